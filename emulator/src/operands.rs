//! Operands of library calls: their types, the memory that a call touches, and the arithmetic that it computes in.

use std::ffi::c_void;
use std::ops::{Add, Mul};

use half::{bf16, f16};

use crate::driver::memory::reachable;
use crate::memory::{Access, touch};

/// An element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    F16,
    BF16,
    F32,
    F64,
}

impl Kind {
    /// The size of an element.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Kind::F16 | Kind::BF16 => 2,
            Kind::F32 => 4,
            Kind::F64 => 8,
        }
    }

    /// A factor in host memory, which is an f64 for products in F64 and an f32 for all others.
    ///
    /// # Safety
    /// `at` leads to one.
    pub(crate) unsafe fn factor(self, at: *const c_void) -> f64 {
        match self {
            // SAFETY: the caller vouches for the factor.
            Kind::F64 => unsafe { at.cast::<f64>().read_unaligned() },
            // SAFETY: as above.
            _ => f64::from(unsafe { at.cast::<f32>().read_unaligned() }),
        }
    }
}

/// Start and bytes of pieces of memory, by address.
pub(crate) type Ranges = Vec<(u64, u64)>;

/// By address, with neighbours joined where they meet exactly.
pub(crate) fn sorted(mut ranges: Ranges) -> Ranges {
    ranges.sort_unstable();
    let mut joined: Ranges = Vec::with_capacity(ranges.len());
    for (at, bytes) in ranges {
        match joined.last_mut() {
            Some((start, len)) if *start + *len == at => *len += bytes,
            _ => joined.push((at, bytes)),
        }
    }
    joined
}

/// Whether two sorted lists have a byte in common.
fn overlap(a: &[(u64, u64)], b: &[(u64, u64)]) -> bool {
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        let ((a_at, a_len), (b_at, b_len)) = (a[i], b[j]);
        if a_at + a_len <= b_at {
            i += 1;
        } else if b_at + b_len <= a_at {
            j += 1;
        } else {
            return true;
        }
    }
    false
}

/// Memory that the library may use while a call runs; zeros if there is none.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Workspace {
    pub(crate) at: u64,
    pub(crate) given: u64,
    pub(crate) used: u64,
}

/// What a call reads.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) name: &'static str,
    pub(crate) ranges: Ranges,
    /// Whether it is the output, too.
    pub(crate) in_place: bool,
}

/// All memory that a library call touches; ranges are sorted.
#[derive(Debug)]
pub(crate) struct Touched {
    /// The call with its sizes, for faults.
    pub(crate) call: String,
    pub(crate) device: u32,
    pub(crate) inputs: Vec<Input>,
    pub(crate) output: (&'static str, Ranges),
    pub(crate) workspace: Workspace,
}

impl Touched {
    /// Checks everything and notes the output as written. The workspace gets garbage.
    ///
    /// # Errors
    /// Which operand is wrong, and how.
    pub(crate) fn check(&self) -> Result<(), String> {
        let label = |name: &str| format!("{}, {name}:", self.call);
        let check = |name: &str, ranges: &[(u64, u64)], access| {
            let what = label(name);
            if ranges.iter().any(|&(at, _)| !reachable(at, self.device)) {
                return Err(format!("{what} memory of another device than {}", self.device));
            }
            ranges.iter().try_for_each(|&(at, bytes)| touch(&what, at, bytes as usize, access))
        };
        let Workspace { at, given, used } = self.workspace;
        let space = [(at, given)];
        let (result, output) = (self.output.0, &self.output.1);
        for input in &self.inputs {
            check(input.name, &input.ranges, Access::Read)?;
        }
        for input in &self.inputs {
            if !input.in_place && overlap(output, &input.ranges) {
                return Err(format!("{} overlaps the result", label(input.name)));
            }
            if overlap(&space, &input.ranges) {
                return Err(format!("{} overlaps the workspace", label(input.name)));
            }
        }
        if overlap(&space, output) {
            return Err(format!("{} overlaps the workspace", label(result)));
        }
        if output.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            return Err(format!("{} parts of the result overlap", label(result)));
        }
        check(result, output, Access::Write)?;
        if used > 0 {
            check("workspace", &[(at, used)], Access::Write)?;
            // SAFETY: the range lies within one live allocation that overlaps no operand.
            unsafe { std::ptr::write_bytes(at as *mut u8, 0xa5, used as usize) };
        }
        Ok(())
    }
}

/// The type of products and sums.
pub(crate) trait Real: Copy + Add<Output = Self> + Mul<Output = Self> {
    const ZERO: Self;
    fn from_f64(value: f64) -> Self;
    /// Rounded to 10 bits after the point, ties away from zero.
    fn tf32(self) -> Self;
    /// Element `index` of an array.
    ///
    /// # Safety
    /// It can be read and is aligned.
    unsafe fn load(kind: Kind, at: u64, index: usize) -> Self;
    /// # Safety
    /// Element `index` can be written and is aligned.
    unsafe fn store(self, kind: Kind, at: u64, index: usize);
}

impl Real for f32 {
    const ZERO: Self = 0.0;

    fn from_f64(value: f64) -> Self {
        value as f32
    }

    fn tf32(self) -> Self {
        if self.is_finite() { f32::from_bits((self.to_bits() + 0x1000) & !0x1fff) } else { self }
    }

    #[inline(always)]
    unsafe fn load(kind: Kind, at: u64, index: usize) -> Self {
        // SAFETY: the caller vouches for the element.
        unsafe {
            match kind {
                Kind::F16 => (*(at as *const f16).add(index)).to_f32(),
                Kind::BF16 => (*(at as *const bf16).add(index)).to_f32(),
                Kind::F32 => *(at as *const f32).add(index),
                Kind::F64 => *(at as *const f64).add(index) as f32,
            }
        }
    }

    #[inline(always)]
    unsafe fn store(self, kind: Kind, at: u64, index: usize) {
        // SAFETY: the caller vouches for the element.
        unsafe {
            match kind {
                Kind::F16 => *(at as *mut f16).add(index) = f16::from_f32(self),
                Kind::BF16 => *(at as *mut bf16).add(index) = bf16::from_f32(self),
                Kind::F32 => *(at as *mut f32).add(index) = self,
                Kind::F64 => *(at as *mut f64).add(index) = self as f64,
            }
        }
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;

    fn from_f64(value: f64) -> Self {
        value
    }

    fn tf32(self) -> Self {
        self
    }

    #[inline(always)]
    unsafe fn load(kind: Kind, at: u64, index: usize) -> Self {
        // SAFETY: the caller vouches for the element.
        unsafe {
            match kind {
                Kind::F64 => *(at as *const f64).add(index),
                kind => f32::load(kind, at, index) as f64,
            }
        }
    }

    #[inline(always)]
    unsafe fn store(self, kind: Kind, at: u64, index: usize) {
        // SAFETY: the caller vouches for the element.
        unsafe {
            match kind {
                Kind::F64 => *(at as *mut f64).add(index) = self,
                kind => (self as f32).store(kind, at, index),
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Arrays of each element type.

    use super::*;

    /// Values as a device holds them.
    pub(crate) fn encode(kind: Kind, values: &[f64]) -> Vec<u8> {
        let one = |&value: &f64| match kind {
            Kind::F32 => (value as f32).to_ne_bytes().to_vec(),
            Kind::F64 => value.to_ne_bytes().to_vec(),
            Kind::F16 => f16::from_f64(value).to_ne_bytes().to_vec(),
            Kind::BF16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
        };
        values.iter().flat_map(one).collect()
    }

    /// The values in a device's bytes.
    pub(crate) fn decode(kind: Kind, bytes: &[u8]) -> Vec<f64> {
        let one = |bytes: &[u8]| match kind {
            Kind::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()) as f64,
            Kind::F64 => f64::from_ne_bytes(bytes.try_into().unwrap()),
            Kind::F16 => f16::from_ne_bytes(bytes.try_into().unwrap()).to_f64(),
            Kind::BF16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f64(),
        };
        bytes.chunks_exact(kind.bytes() as usize).map(one).collect()
    }

    /// Values that every type holds exactly, so that sums of a moderate number of products are exact, too.
    pub(crate) fn values(count: usize, seed: usize) -> Vec<f64> {
        (0..count).map(|k| ((k * 37 + seed * 11) % 15) as f64 / 2.0 - 3.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tf32_rounds_to_ten_bits() {
        assert_eq!((1.0 + f32::EPSILON).tf32(), 1.0);
        assert_eq!((1.0 + 1.5 / 1024.0f32).tf32(), 1.0 + 2.0 / 1024.0);
        assert_eq!((-1.0 - 0.5 / 1024.0f32).tf32(), -1.0 - 1.0 / 1024.0);
        assert!(f32::NAN.tf32().is_nan() && f32::INFINITY.tf32() == f32::INFINITY);
    }
}
