//! Start-up, devices and their primary contexts.

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::status::Status;
use super::{answer, faults, handles, lock, put};

/// CUDA 13.0.
const VERSION: c_int = 13_000;
const NAME: &[u8] = b"Kiln emulated device\0";
/// Threads of a block.
pub(crate) const MAX_BLOCK_THREADS: u32 = 1024;
/// Shared memory of a block, static and dynamic, without the function attribute that allows more.
pub(crate) const SHARED_BYTES: u32 = 48 << 10;
const SHARED_OPT_IN_BYTES: u32 = 227 << 10;
const L2_BYTES: c_int = 1 << 20;

static INITIALISED: AtomicBool = AtomicBool::new(false);

/// The primary context of a device.
#[derive(Debug)]
struct Context {
    device: u32,
}

thread_local! {
    /// The calling thread's context: its handle, 0 for none, and its device.
    static CURRENT: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

/// # Errors
/// `CUDA_ERROR_NOT_INITIALIZED` before `cuInit`.
pub(crate) fn ready() -> Result<(), Status> {
    if INITIALISED.load(Ordering::Acquire) { Ok(()) } else { Err(Status::NotInitialized) }
}

/// The device of the calling thread's context.
pub(crate) fn current() -> Result<u32, Status> {
    ready()?;
    match CURRENT.get() {
        (0, _) => Err(Status::InvalidContext),
        (_, device) => Ok(device),
    }
}

/// Devices that there are.
pub(crate) fn count() -> u32 {
    crate::device_count()
}

/// Multiprocessors of a device: few, so that loops over the grid have something to do.
fn multiprocessors() -> u32 {
    static COUNT: OnceLock<u32> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let set = std::env::var("KILN_EMULATOR_SMS").ok().and_then(|text| text.parse().ok());
        set.filter(|&count| count > 0).unwrap_or(8)
    })
}

fn known(device: c_int) -> Result<u32, Status> {
    ready()?;
    u32::try_from(device).ok().filter(|&device| device < count()).ok_or(Status::InvalidDevice)
}

/// Starts the driver; without devices it says so here.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuInit(flags: u32) -> Status {
    if flags != 0 {
        return Status::InvalidValue;
    }
    if count() == 0 {
        return Status::NoDevice;
    }
    faults::watch_exit();
    INITIALISED.store(true, Ordering::Release);
    Status::Success
}

/// The CUDA version that the driver supports; answered before `cuInit`, too.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller passes a valid place or null.
    answer(unsafe { put(version, VERSION) })
}

/// The number of devices.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuDeviceGetCount(devices: *mut c_int) -> Status {
    // SAFETY: the caller passes a valid place or null.
    answer(ready().and_then(|()| unsafe { put(devices, count() as c_int) }))
}

/// The handle of a device, which is its number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Status {
    // SAFETY: the caller passes a valid place or null.
    answer(known(ordinal).and_then(|number| unsafe { put(device, number as c_int) }))
}

/// The device's name, cut to the buffer and ended with a NUL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> Status {
    let copy = || {
        known(device)?;
        if name.is_null() || len < 1 {
            return Err(Status::InvalidValue);
        }
        let bytes = NAME.len().min(len as usize);
        // SAFETY: the caller's buffer has `len` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(NAME.as_ptr().cast(), name, bytes);
            name.add(bytes - 1).write(0);
        }
        Ok(())
    };
    answer(copy())
}

/// One figure of a device. Those that have no meaning here are 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: u32,
    device: c_int,
) -> Status {
    let find = || {
        known(device)?;
        let found = match attribute {
            // Threads of a block, in all and along each axis.
            1..=3 => MAX_BLOCK_THREADS as c_int,
            4 => 64,
            // Blocks of a grid.
            5 => c_int::MAX,
            6 | 7 => 65_535,
            // Shared memory of a block.
            8 => SHARED_BYTES as c_int,
            // Constant memory.
            9 => 64 << 10,
            // Threads of a warp.
            10 => 32,
            // Registers of a block and of a multiprocessor.
            12 | 82 => 65_536,
            // Clock in kHz.
            13 => 1_000_000,
            16 => multiprocessors() as c_int,
            // Mapped host memory, concurrent kernels, unified addresses.
            19 | 31 | 41 => 1,
            38 => L2_BYTES,
            // Threads of a multiprocessor.
            39 => 2048,
            // Compute capability.
            75 => 9,
            76 => 0,
            // Shared memory of a multiprocessor, and of a block that opts in.
            81 => 228 << 10,
            97 => SHARED_OPT_IN_BYTES as c_int,
            // Blocks of a multiprocessor.
            106 => 32,
            0 | 151.. => return Err(Status::InvalidValue),
            _ => 0,
        };
        // SAFETY: the caller passes a valid place or null.
        unsafe { put(value, found) }
    };
    answer(find())
}

/// The primary context of a device, the same each time.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> Status {
    static CONTEXTS: OnceLock<Vec<usize>> = OnceLock::new();
    let retain = || {
        let device = known(device)?;
        let contexts = CONTEXTS.get_or_init(|| {
            (0..count()).map(|device| handles::insert(Arc::new(Context { device }))).collect()
        });
        // SAFETY: the caller passes a valid place or null.
        unsafe { put(context, contexts[device as usize]) }
    };
    answer(retain())
}

/// Makes a context the calling thread's; null leaves it without.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuCtxSetCurrent(context: usize) -> Status {
    let set = || {
        ready()?;
        let device = match context {
            0 => 0,
            context => handles::get::<Context>(context).ok_or(Status::InvalidContext)?.device,
        };
        CURRENT.set((context, device));
        Ok(())
    };
    answer(set())
}

/// The device of a context.
pub(crate) fn of(context: usize) -> Result<u32, Status> {
    ready()?;
    handles::get::<Context>(context).map(|context| context.device).ok_or(Status::InvalidContext)
}

/// Whether a device can address another's memory: all can.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> Status {
    let find = || {
        let (device, peer) = (known(device)?, known(peer)?);
        // SAFETY: the caller passes a valid place or null.
        unsafe { put(can, (device != peer) as c_int) }
    };
    answer(find())
}

/// Lets copies of the current context go straight to another's device. Kernels still may not address its memory.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuCtxEnablePeerAccess(context: usize, flags: u32) -> Status {
    static ENABLED: Mutex<Vec<(u32, u32)>> = Mutex::new(Vec::new());
    let enable = || {
        let pair = (current()?, of(context)?);
        if flags != 0 {
            return Err(Status::InvalidValue);
        }
        if pair.0 == pair.1 {
            return Err(Status::InvalidDevice);
        }
        let mut enabled = lock(&ENABLED);
        if enabled.contains(&pair) {
            return Err(Status::PeerAccessAlreadyEnabled);
        }
        enabled.push(pair);
        Ok(())
    };
    answer(enable())
}

/// The calling thread's context, or null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> Status {
    // SAFETY: the caller passes a valid place or null.
    answer(ready().and_then(|()| unsafe { put(context, CURRENT.get().0) }))
}
