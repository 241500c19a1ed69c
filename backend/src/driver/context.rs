//! The primary context of a device, its stream, plain memory calls and copies.

use std::sync::Mutex;

use cudarc::driver::sys;

use super::event::Event;
use super::library::{self, Library};
use super::{CUDA_NEEDED, check};
use crate::error::{Error, Result};
use crate::memory::MemoryDriver;

/// What a device can do, read once.
#[derive(Debug, Clone)]
pub struct DeviceProps {
    /// The device's name.
    pub name: String,
    /// Compute capability.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Threads that one multiprocessor holds at once.
    pub max_threads_per_sm: u32,
    /// Bytes of level-2 cache.
    pub l2_bytes: usize,
    /// Bytes of shared memory that one block may opt into.
    pub max_shared_bytes: u32,
}

impl DeviceProps {
    /// The architecture to compile for: features of one generation only ("a") are used where there are any.
    pub(crate) fn arch(&self) -> String {
        let (major, minor) = self.compute_capability;
        let specific = if major >= 9 { "a" } else { "" };
        format!("sm_{major}{minor}{specific}")
    }

    /// Whether matrix units compute in f64 at more than the rate of the other units: the data-centre devices.
    pub(crate) fn has_f64_matrix_units(&self) -> bool {
        matches!(self.compute_capability, (8..=10, 0))
    }
}

/// The number of CUDA devices; loads and initialises the driver.
pub(crate) fn device_count() -> Result<usize> {
    library::load(Library::Cuda)?;
    // SAFETY: the driver library is loaded; 0 is the only valid flag.
    let status = unsafe { sys::cuInit(0) };
    if status == sys::CUresult::CUDA_ERROR_NO_DEVICE {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_else(|_| "not set".into());
        return Err(Error::NoDevice { visible });
    }
    check("cuInit", status)?;
    let mut version = 0;
    // SAFETY: `version` is a valid place.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    let (major, minor) = (version / 1000, version % 1000 / 10);
    if (major, minor) < CUDA_NEEDED {
        return Err(Error::DriverTooOld {
            found_major: major,
            found_minor: minor,
            needed_major: CUDA_NEEDED.0,
            needed_minor: CUDA_NEEDED.1,
        });
    }
    let mut count = 0;
    // SAFETY: `count` is a valid place.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    if count == 0 {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_else(|_| "not set".into());
        return Err(Error::NoDevice { visible });
    }
    Ok(count as usize)
}

/// The driver's handle of device `index`, and what the device is, if Kiln can use it.
pub(crate) fn usable_device(index: usize) -> Result<(sys::CUdevice, DeviceProps)> {
    let count = device_count()?;
    if index >= count {
        return Err(Error::DeviceIndex { index, count });
    }
    let mut device = 0;
    // SAFETY: `device` is a valid place, `index` was checked.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, index as i32) })?;
    let props = props(device)?;
    let (major, minor) = props.compute_capability;
    if major < 8 {
        return Err(Error::DeviceTooOld { index, name: props.name, major, minor });
    }
    Ok((device, props))
}

/// The primary context of one device and Kiln's stream on it. Lives as long as the process.
#[derive(Debug)]
pub(crate) struct Context {
    index: usize,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: contexts and streams are handles that the driver lets any thread use; they are never destroyed.
unsafe impl Send for Context {}
// SAFETY: as above; the driver synchronises calls on the same handle.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of device `index` and makes a stream on it.
    pub(crate) fn new(index: usize) -> Result<(Context, DeviceProps)> {
        let (device, props) = usable_device(index)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is a valid place and `device` a device of this driver.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        let mut this = Context { index, device, context, stream: std::ptr::null_mut() };
        this.make_current()?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current and `stream` a valid place.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut this.stream, flags) })?;
        Ok((this, props))
    }

    /// Makes this the calling thread's context. Every public entry does so, since other code may have changed it;
    /// asking first costs less than setting it again.
    pub(crate) fn make_current(&self) -> Result<()> {
        let mut current = std::ptr::null_mut();
        // SAFETY: `current` is a valid place.
        let status = unsafe { sys::cuCtxGetCurrent(&mut current) };
        if status == sys::cudaError_enum::CUDA_SUCCESS && current == self.context {
            return Ok(());
        }
        // SAFETY: the context is retained for the life of the process.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Where this thread's work goes: the device's stream, or the one it captures.
    pub(crate) fn stream(&self) -> sys::CUstream {
        super::graph::capture_stream(self).unwrap_or(self.stream)
    }

    /// Waits for all work of the stream.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.make_current()?;
        // SAFETY: the stream is never destroyed.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Queues a copy to the device.
    ///
    /// # Safety
    /// `source` must stay valid and unchanged until the stream has passed the copy; both ranges hold `bytes` bytes.
    pub(crate) unsafe fn copy_to_device(&self, target: u64, source: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller vouches for both ranges.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(target, source.cast(), bytes, self.stream())
        })
    }

    /// Queues a copy to the host.
    ///
    /// # Safety
    /// `target` must stay valid, and must not be read, until the stream has passed the copy; both ranges hold `bytes`.
    pub(crate) unsafe fn copy_to_host(&self, target: *mut u8, source: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller vouches for both ranges.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(target.cast(), source, bytes, self.stream())
        })
    }

    /// Queues a copy on the device.
    ///
    /// # Safety
    /// Both ranges hold `bytes` bytes of live device memory and do not overlap.
    pub(crate) unsafe fn copy_on_device(&self, target: u64, source: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller vouches for both ranges.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes, self.stream()) })
    }

    /// Queues a copy to another device's memory. It comes after what either device's stream holds, and what either gets
    /// later comes after it: the source may be freed and the target used as if both were on one stream.
    ///
    /// # Safety
    /// Both ranges hold `bytes` bytes of live memory, `source` on this device and `target` on that of `to`.
    pub(crate) unsafe fn copy_to_peer(
        &'static self,
        to: &'static Context,
        target: u64,
        source: u64,
        bytes: usize,
    ) -> Result<()> {
        let free = Event::new(to, false)?;
        free.record()?;
        free.hold(self)?;
        self.allow_peer(to);
        // SAFETY: the caller vouches for both ranges; both contexts are retained for the life of the process.
        check("cuMemcpyPeerAsync", unsafe {
            sys::cuMemcpyPeerAsync(target, to.context, source, self.context, bytes, self.stream())
        })?;
        let copied = Event::new(self, false)?;
        copied.record()?;
        copied.hold(to)
    }

    /// Lets copies from here to `to` go straight between the devices, if they can; others go through the host. This
    /// context is current.
    fn allow_peer(&self, to: &Context) {
        static ASKED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
        let mut asked = ASKED.lock().unwrap_or_else(|e| e.into_inner());
        let pair = (self.index, to.index);
        if asked.contains(&pair) {
            return;
        }
        asked.push(pair);
        let mut can = 0;
        // SAFETY: `can` is a valid place, and both are devices of this driver.
        let status = unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.device, to.device) };
        let enabled = check("cuDeviceCanAccessPeer", status).and_then(|()| match can {
            0 => Ok(false),
            // SAFETY: both contexts live, and this one is current; 0 is the only valid flag.
            _ => match unsafe { sys::cuCtxEnablePeerAccess(to.context, 0) } {
                // By other code in this process.
                sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
                status => check("cuCtxEnablePeerAccess", status).map(|()| true),
            },
        });
        match enabled {
            Ok(direct) => {
                log::info!("copies from cuda:{} to cuda:{} are direct: {direct}", self.index, to.index)
            }
            Err(error) => log::warn!("copies from cuda:{} to cuda:{}: {error}", self.index, to.index),
        }
    }

    /// Queues zeros over a range.
    ///
    /// # Safety
    /// The range holds `bytes` bytes of live device memory.
    pub(crate) unsafe fn clear(&self, target: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller vouches for the range.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(target, 0, bytes, self.stream()) })
    }

    /// Page-locked host memory that the device can also address directly.
    pub(crate) fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8> {
        self.make_current()?;
        let _relaxed = RelaxedCapture::enter()?;
        let mut at = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: `at` is a valid place.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut at, bytes, flags) })?;
        Ok(at.cast())
    }

    /// Frees what [`Context::alloc_pinned`] returned.
    ///
    /// # Safety
    /// Nothing may use the memory any more, the device included.
    pub(crate) unsafe fn free_pinned(&self, at: *mut u8) {
        if let (Ok(()), Ok(_relaxed)) = (self.make_current(), RelaxedCapture::enter()) {
            // SAFETY: the caller vouches that it came from `alloc_pinned` and is unused.
            let status = unsafe { sys::cuMemFreeHost(at.cast()) };
            if let Err(error) = check("cuMemFreeHost", status) {
                log::warn!("{error}");
            }
        }
    }
}

impl MemoryDriver for &'static Context {
    fn alloc(&self, bytes: usize) -> Result<u64> {
        self.make_current()?;
        let _relaxed = RelaxedCapture::enter()?;
        let mut ptr = 0;
        // SAFETY: `ptr` is a valid place.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut ptr, bytes) })?;
        Ok(ptr)
    }

    fn free(&self, ptr: u64) {
        let freed = self.make_current().and_then(|()| {
            let _relaxed = RelaxedCapture::enter()?;
            // SAFETY: the allocator frees only what `alloc` returned, once, after the stream has passed its last use.
            check("cuMemFree", unsafe { sys::cuMemFree_v2(ptr) })
        });
        if let Err(error) = freed {
            log::warn!("{error}");
        }
    }

    fn synchronize(&self) -> Result<()> {
        // A capture forbids only its own thread to wait: its work does not run yet.
        if super::graph::capture_stream(self).is_some() {
            return Err(Error::Capturing { op: "waiting for memory", device: self.index });
        }
        Context::synchronize(self)
    }

    fn mem_info(&self) -> Result<(u64, u64)> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid places.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }
}

/// While it lives, this thread may allocate and load modules although it captures a stream: the calls do not touch
/// the captured stream.
pub(crate) struct RelaxedCapture {
    before: sys::CUstreamCaptureMode,
}

impl RelaxedCapture {
    pub(crate) fn enter() -> Result<Self> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` is a valid place; it receives the mode before.
        check("cuThreadExchangeStreamCaptureMode", unsafe {
            sys::cuThreadExchangeStreamCaptureMode(&mut mode)
        })?;
        Ok(RelaxedCapture { before: mode })
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        let mut mode = self.before;
        // SAFETY: `mode` is a valid place and holds a mode that the driver returned.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    }
}

fn props(device: sys::CUdevice) -> Result<DeviceProps> {
    use sys::CUdevice_attribute::*;
    let read = |attribute| -> Result<i32> {
        let mut value = 0;
        // SAFETY: `value` is a valid place and `device` a device of this driver.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
        Ok(value)
    };
    let mut name = [0 as std::ffi::c_char; 256];
    // SAFETY: the buffer has the length that is passed.
    check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device) })?;
    // SAFETY: the driver ends the name with a NUL within the buffer.
    let name = unsafe { std::ffi::CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(DeviceProps {
        name,
        compute_capability: (
            read(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            read(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        sm_count: read(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        max_threads_per_sm: read(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)? as u32,
        l2_bytes: read(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        max_shared_bytes: read(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
    })
}
