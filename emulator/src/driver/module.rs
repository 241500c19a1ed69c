//! Modules, functions and launches.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use super::device::{MAX_BLOCK_THREADS, SHARED_BYTES};
use super::status::Status;
use super::stream::{Work, resolve};
use super::{answer, capture, device, faults, handles, put};
use crate::exec::{Function, Geometry, Module};

struct Loaded {
    device: u32,
    module: Module,
}

/// A function of a module, which it keeps.
pub(crate) struct Entry {
    loaded: Arc<Loaded>,
    index: usize,
}

impl Entry {
    pub(crate) fn function(&self) -> &Function {
        &self.loaded.module.functions[self.index]
    }
}

/// Loads an image for the current context. CUDA may have to wait for the device, so captures can forbid it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_void) -> Status {
    let load = || {
        let device = device::current()?;
        if module.is_null() || image.is_null() {
            return Err(Status::InvalidValue);
        }
        capture::permit()?;
        let loaded = Module::load(image.cast()).map_err(|text| {
            faults::note(&format!("cuModuleLoadData: {text}"));
            Status::InvalidImage
        })?;
        let loaded = Arc::new(Loaded { device, module: loaded });
        // SAFETY: the caller passes a valid place.
        unsafe { put(module, handles::insert(loaded)) }
    };
    answer(load())
}

/// A function of a module by its name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuModuleGetFunction(
    function: *mut usize,
    module: usize,
    name: *const c_char,
) -> Status {
    let find = || {
        device::ready()?;
        let loaded = handles::get::<Loaded>(module).ok_or(Status::InvalidHandle)?;
        if function.is_null() || name.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: the caller passes a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        let index = loaded.module.functions.iter().position(|f| f.name.as_bytes() == name);
        let index = index.ok_or(Status::NotFound)?;
        // SAFETY: the caller passes a valid place.
        unsafe { put(function, handles::insert(Arc::new(Entry { loaded, index }))) }
    };
    answer(find())
}

/// What the driver checks before it accepts a launch.
fn validate(max_threads: u32, grid: [u32; 3], block: [u32; 3], dynamic_shared: u32) -> Result<(), Status> {
    if grid.contains(&0) || block.contains(&0) {
        return Err(Status::InvalidValue);
    }
    if grid[0] > i32::MAX as u32 || grid[1] > 65_535 || grid[2] > 65_535 {
        return Err(Status::InvalidValue);
    }
    let threads = block.iter().map(|&b| b as u64).fold(1u64, u64::saturating_mul);
    if block[0] > MAX_BLOCK_THREADS || block[1] > MAX_BLOCK_THREADS || block[2] > 64 {
        return Err(Status::InvalidValue);
    }
    if threads > MAX_BLOCK_THREADS as u64 || dynamic_shared > SHARED_BYTES {
        return Err(Status::InvalidValue);
    }
    if threads > max_threads as u64 {
        return Err(Status::LaunchOutOfResources);
    }
    Ok(())
}

/// Queues a launch. Parameters are copied now. Function, stream and current context are of one device.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: usize,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Status {
    let launch = || {
        let device = device::current()?;
        let entry = handles::get::<Entry>(function).ok_or(Status::InvalidHandle)?;
        let stream = resolve(stream)?;
        if stream.device != device || entry.loaded.device != device {
            return Err(Status::InvalidHandle);
        }
        let function = entry.function();
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        validate(function.max_threads, grid, block, shared_bytes)?;
        if faults::rejects(&function.name) {
            return Err(Status::LaunchOutOfResources);
        }
        if !extra.is_null() || params.is_null() && !function.params.is_empty() {
            return Err(Status::InvalidValue);
        }
        let mut values = Vec::with_capacity(function.params.len());
        for (k, &bytes) in function.params.iter().enumerate() {
            // SAFETY: the caller's array has a pointer for each parameter.
            let from = unsafe { params.add(k).read() };
            if from.is_null() {
                return Err(Status::InvalidValue);
            }
            let mut words = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
            // SAFETY: the caller's pointer leads to a value of the parameter's size; the words hold at least as much.
            unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), words.as_mut_ptr().cast(), bytes) };
            values.push(words);
        }
        let geometry = Geometry { device, grid, block };
        stream.enqueue(Work::Launch { entry, geometry, params: values }).map(|_| ())
    };
    answer(launch())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: a launch that the hardware rejects passes in the emulator.
    #[test]
    fn launches_are_checked_as_the_driver_checks_them() {
        let check = |grid, block, shared| validate(256, grid, block, shared);
        assert_eq!(check([1, 1, 1], [256, 1, 1], 48 << 10), Ok(()));
        assert_eq!(check([i32::MAX as u32, 65_535, 65_535], [1, 1, 64], 0), Ok(()));
        let invalid = Err(Status::InvalidValue);
        assert_eq!(check([0, 1, 1], [32, 1, 1], 0), invalid);
        assert_eq!(check([1, 1, 1], [32, 0, 1], 0), invalid);
        assert_eq!(check([1 << 31, 1, 1], [32, 1, 1], 0), invalid);
        assert_eq!(check([1, 65_536, 1], [32, 1, 1], 0), invalid);
        assert_eq!(check([1, 1, 65_536], [32, 1, 1], 0), invalid);
        assert_eq!(check([1, 1, 1], [1025, 1, 1], 0), invalid);
        assert_eq!(check([1, 1, 1], [64, 32, 1], 0), invalid);
        assert_eq!(check([1, 1, 1], [1, 1, 65], 0), invalid);
        assert_eq!(check([1, 1, 1], [32, 1, 1], (48 << 10) + 1), invalid);
        assert_eq!(check([1, 1, 1], [257, 1, 1], 0), Err(Status::LaunchOutOfResources));
    }
}
