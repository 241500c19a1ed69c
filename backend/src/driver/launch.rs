//! A kernel launch: arguments in order, then geometry.
//!
//! Launchers in `kernels/` are the only users: they own argument order, types and geometry. Tensors are passed by
//! role, so that faults follow the data: what a launch writes depends on all that it reads.
//! A launch returns before the device reads the tensors' memory. That is sound because a freed block can only be
//! handed out again to work that comes later on the same stream; during a capture the graph keeps the tensors.

use cudarc::driver::sys;
use smallvec::SmallVec;

use super::{check, params};
use crate::device::Device;
use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::faults::FaultTable;
use crate::tensor::CudaTensor;

/// A compiled entry point; loaded for the life of the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    pub(crate) function: sys::CUfunction,
    pub(crate) name: &'static str,
}

// SAFETY: a function handle may be used from any thread, and its module is never unloaded.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// A value that a kernel takes by value, with the same layout in Rust and CUDA.
///
/// # Safety
/// The type must be `#[repr(C)]` or primitive, hold no references, and match the kernel's parameter type in size and
/// alignment.
pub(crate) unsafe trait KernelArg: Copy {}

/// Declares `#[repr(C)]` types as kernel arguments.
macro_rules! kernel_arg {
    ($($type:ty),+ $(,)?) => {
        $(
            #[allow(unsafe_code)]
            // SAFETY: the type is plain `#[repr(C)]` data that mirrors the struct of the same name in CUDA.
            unsafe impl $crate::driver::launch::KernelArg for $type {}
        )+
    };
}
pub(crate) use kernel_arg;

kernel_arg!(u32, i32, u64, i64, f32, f64, ScalarArg, FastDiv, FaultTable);

/// A scalar by value, or in a device slot that is read when the kernel runs. Mirrors `ScalarArg` in the prelude.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScalarArg {
    bits: u64,
    slot: u64,
}

impl ScalarArg {
    /// A scalar for a kernel whose scalars have the compute type of `elem`.
    ///
    /// While a plan is captured, a scalar that stands for one of its parameters becomes that parameter's slot.
    pub(crate) fn value(elem: Elem, value: burn_backend::Scalar) -> Self {
        match params::slot(elem, value) {
            Some(slot) => ScalarArg { bits: 0, slot },
            None => ScalarArg { bits: elem.scalar_bits(value), slot: 0 },
        }
    }

    /// A scalar whose 8 bytes are given as they are.
    pub(crate) fn bits(bits: u64) -> Self {
        ScalarArg { bits, slot: 0 }
    }

    /// The scalar in the 8 bytes at device address `slot`, which must outlive every run of the kernel.
    pub(crate) fn slot(slot: u64) -> Self {
        ScalarArg { bits: 0, slot }
    }
}

/// Division of any `n < 2^31` by a constant. Mirrors `FastDiv` in the prelude
/// (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FastDiv {
    divisor: u32,
    multiplier: u32,
    shift: u32,
}

impl FastDiv {
    /// For a divisor in `1..2^31`.
    pub(crate) fn new(divisor: u32) -> Self {
        debug_assert!((1..1 << 31).contains(&divisor));
        let shift = 32 - (divisor - 1).leading_zeros();
        let multiplier = ((1u64 << 32) * ((1u64 << shift) - divisor as u64) / divisor as u64 + 1) as u32;
        FastDiv { divisor, multiplier, shift }
    }

    /// What the kernel computes.
    #[cfg(test)]
    fn div(&self, n: u32) -> u32 {
        let high = ((n as u64 * self.multiplier as u64) >> 32) as u32;
        high.wrapping_add(n) >> self.shift
    }
}

/// A launch under construction. Small, since the builder moves it; only a large struct argument spills to the heap.
pub(crate) struct Launch<'a> {
    device: &'static Device,
    kernel: Kernel,
    /// The arguments' bytes, each from an 8-byte boundary.
    words: SmallVec<[u64; 16]>,
    /// Where each argument begins, in words.
    starts: SmallVec<[u16; 12]>,
    written: SmallVec<[&'a CudaTensor; 2]>,
    read: SmallVec<[&'a CudaTensor; 3]>,
    /// Where the fault table goes, and the operation that it is for.
    faults: Option<(usize, &'static str)>,
    /// What the launch is called in errors.
    op: &'static str,
}

impl<'a> Launch<'a> {
    pub(crate) fn new(device: &'static Device, kernel: Kernel) -> Self {
        Launch {
            device,
            kernel,
            words: SmallVec::new(),
            starts: SmallVec::new(),
            written: SmallVec::new(),
            read: SmallVec::new(),
            faults: None,
            op: kernel.name,
        }
    }

    /// The next argument.
    #[inline]
    pub(crate) fn arg<T: KernelArg>(mut self, value: T) -> Self {
        const { assert!(align_of::<T>() <= 8) };
        let start = self.words.len();
        self.words.resize(start + size_of::<T>().div_ceil(8), 0);
        // SAFETY: the words from `start` on hold at least `size_of::<T>()` bytes, are aligned for T, and T is plain data.
        unsafe { self.words.as_mut_ptr().add(start).cast::<T>().write(value) };
        self.starts.push(start as u16);
        self
    }

    /// The address of a tensor that the kernel writes.
    pub(crate) fn write(mut self, tensor: &'a CudaTensor) -> Self {
        self.written.push(tensor);
        self.arg(tensor.ptr())
    }

    /// The address of a tensor that the kernel reads.
    pub(crate) fn read(mut self, tensor: &'a CudaTensor) -> Self {
        self.read.push(tensor);
        self.arg(tensor.ptr())
    }

    /// The address of a tensor that the kernel reads and writes.
    pub(crate) fn update(mut self, tensor: &'a CudaTensor) -> Self {
        self.written.push(tensor);
        self.read.push(tensor);
        self.arg(tensor.ptr())
    }

    /// Notes tensors whose addresses are inside a struct argument.
    pub(crate) fn uses(mut self, written: &[&'a CudaTensor], read: &[&'a CudaTensor]) -> Self {
        self.written.extend_from_slice(written);
        self.read.extend_from_slice(read);
        self
    }

    /// A null pointer.
    pub(crate) fn null(self) -> Self {
        self.arg(0u64)
    }

    /// A scalar.
    pub(crate) fn scalar(self, scalar: ScalarArg) -> Self {
        self.arg(scalar)
    }

    /// Where the kernel notes indices that are out of range; what it writes depends on that. `op` is named in the error.
    pub(crate) fn faults(mut self, op: &'static str) -> Self {
        self.faults = Some((self.words.len(), op));
        self.op = op;
        self.arg(FaultTable::default())
    }

    /// Names the operation in errors, where the kernel serves several.
    pub(crate) fn op(mut self, op: &'static str) -> Self {
        self.op = op;
        self
    }

    /// Launches on the device's stream; nothing happens when `grid` has a 0.
    ///
    /// # Errors
    /// `Error::Launch` when the driver rejects it, `Error::ContextDead` when the device is lost.
    pub(crate) fn run(mut self, grid: [u32; 3], block: u32, shared_bytes: u32) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        self.device.enter()?;
        // A wait must not take the ticket for checked before the kernel is on its way.
        let opened = self.faults.map(|(start, op)| (start, self.device.faults.open(op)));
        let table = opened.as_ref().map(|(_, open)| open.table);
        if let Some((start, open)) = &opened {
            // SAFETY: `faults` reserved words for a table from `start` on.
            unsafe { self.words.as_mut_ptr().add(*start).cast::<FaultTable>().write(open.table) };
        }
        let base = self.words.as_mut_ptr();
        // SAFETY: every start lies inside the words.
        let address = |&start: &u16| unsafe { base.add(start as usize) }.cast::<std::ffi::c_void>();
        let mut params: SmallVec<[*mut std::ffi::c_void; 16]> = self.starts.iter().map(address).collect();
        let stream = self.device.context.stream();
        // SAFETY: the launcher matched the arguments with the kernel; `params` and the words outlive the call, which
        // copies them; the tensors' memory outlives the kernel (module docs).
        let status = unsafe {
            sys::cuLaunchKernel(
                self.kernel.function,
                grid[0],
                grid[1],
                grid[2],
                block,
                1,
                1,
                shared_bytes,
                stream,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        drop(opened);
        if let Err(source) = check("cuLaunchKernel", status) {
            let source = self.device.note(source);
            let error = match source {
                Error::ContextDead { .. } => source,
                source => Error::Launch {
                    kernel: self.kernel.name.into(),
                    grid,
                    block: [block, 1, 1],
                    shared_bytes,
                    source: Box::new(source),
                },
            };
            let tensors: SmallVec<[&CudaTensor; 6]> =
                self.written.iter().chain(&self.read).copied().collect();
            return Err(error.within(self.op, &tensors));
        }
        self.device.count_launch();
        self.device.used(&self.written, &self.read, table);
        Ok(())
    }
}

/// What a launch or a library call does to the tensors' bookkeeping: faults follow the data, and a graph under capture
/// keeps what it uses.
impl Device {
    pub(crate) fn used(&self, written: &[&CudaTensor], read: &[&CudaTensor], faults: Option<FaultTable>) {
        let mut range = faults.map_or_else(Default::default, |f| f.range());
        for tensor in read {
            range = range.join(self.faults.prune(tensor.storage().faults()));
        }
        for tensor in written {
            let storage = tensor.storage();
            // What is written in place keeps what it depended on, unless that has been found clean.
            let before = storage.faults();
            if !(range.is_none() && before.is_none()) {
                storage.set_faults(self.faults.prune(before).join(range));
            }
        }
        super::graph::keep(written, read, faults);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_division_is_exact_below_2_to_the_31() {
        let mut divisors = vec![1u32, 2, 3, 5, 7, 10, 641, 1 << 16, (1 << 30) + 1, (1 << 31) - 1];
        divisors.extend((0..31).map(|b| 1u32 << b));
        divisors.extend((1..200).map(|k| k * 7919));
        for d in divisors {
            let fast = FastDiv::new(d);
            let mut ns = vec![0u32, 1, d - 1, d, (1 << 31) - 1, (1 << 31) - 2];
            ns.extend((0..200u32).map(|k| k.wrapping_mul(2654435761) >> 1));
            ns.extend(
                (1..4u64).filter_map(|k| u32::try_from(d as u64 * k - 1).ok()).filter(|&n| n < 1 << 31),
            );
            for n in ns {
                assert_eq!(fast.div(n), n / d, "{n} / {d}");
            }
        }
    }
}
