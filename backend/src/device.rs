//! Devices: the public handle, and the state behind it that lives as long as the process.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use burn_backend::{DeviceId, DeviceOps};
use burn_std::device::Device as BurnDevice;

use crate::compile::CompileStats;
use crate::driver::context::{Context, DeviceProps, device_count, usable_device};
use crate::driver::event::Event;
use crate::driver::graph::{Graph, capture_stream, current_pool};
use crate::driver::is_fatal;
use crate::error::{Error, Result};
use crate::faults::Faults;
use crate::kernels::Kernels;
use crate::memory::staging::{PinnedDriver, StagingPool};
use crate::memory::{Allocator, MemoryStats};
use crate::ops::cudnn::{ConvAlgorithm, Cudnn};
use crate::ops::matmul::Blas;
use crate::ops::random::RandomState;

/// One CUDA device, by its number among the visible ones (`CUDA_VISIBLE_DEVICES`).
///
/// Making one touches nothing; the device is opened by the first operation on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct CudaDevice {
    /// The device's number, from 0.
    pub index: usize,
}

impl CudaDevice {
    /// The device with this number.
    pub fn new(index: usize) -> Self {
        CudaDevice { index }
    }

    /// The number of usable devices, or why there is none: what was looked for, where, and what to do.
    ///
    /// Checks the driver, that the first device is new enough, and that NVRTC and cuBLASLt can be loaded, since nothing
    /// runs without them.
    ///
    /// # Errors
    /// `Error::LibraryMissing`, `Error::LibraryShadowed`, `Error::DriverTooOld`, `Error::NoDevice`, `Error::DeviceTooOld`,
    /// or what the driver reports.
    pub fn availability() -> Result<usize> {
        use crate::driver::library::{Library, load};
        let count = device_count()?;
        usable_device(0)?;
        load(Library::Nvrtc)?;
        load(Library::CublasLt)?;
        Ok(count)
    }

    /// What the device is.
    ///
    /// # Errors
    /// As for the first operation on the device.
    pub fn props(&self) -> Result<&'static DeviceProps> {
        Ok(&Device::get(self.index)?.props)
    }

    /// Memory statistics.
    ///
    /// # Errors
    /// As for the first operation on the device.
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        Ok(Device::get(self.index)?.allocator.stats())
    }

    /// What has been launched on the device.
    ///
    /// # Errors
    /// As for the first operation on the device.
    pub fn launch_stats(&self) -> Result<LaunchStats> {
        let device = Device::get(self.index)?;
        Ok(LaunchStats {
            kernels: device.launches.load(Ordering::Relaxed),
            graphs: device.graph_launches.load(Ordering::Relaxed),
        })
    }

    /// What the kernel compiler has done in this process, for all devices.
    pub fn compile_stats() -> CompileStats {
        crate::kernels::compile_stats()
    }

    /// Sets the peak of the statistics to what is live now.
    ///
    /// # Errors
    /// As for the first operation on the device.
    pub fn reset_peak_memory(&self) -> Result<()> {
        Device::get(self.index)?.allocator.reset_peak();
        Ok(())
    }

    /// Waits for the device and gives cached memory back to the driver; returns the bytes given back.
    ///
    /// # Errors
    /// As for the first operation on the device.
    pub fn empty_cache(&self) -> Result<u64> {
        let device = Device::get(self.index)?;
        device.not_capturing("empty_cache")?;
        device.allocator.empty_cache()
    }

    /// Waits for all work of the device.
    ///
    /// # Errors
    /// The first fault that kernels met and that was not reported yet; `Error::ContextDead`; `Error::Capturing`.
    pub fn sync(&self) -> Result<()> {
        let device = Device::get(self.index)?;
        device.wait("sync")?;
        device.faults.take_unreported().map_or(Ok(()), Err)
    }

    /// A mark at the current end of the device's work, to be waited for or timed against another.
    ///
    /// # Errors
    /// A driver error; `Error::Capturing`.
    pub fn record_event(&self) -> Result<Event> {
        let device = Device::get(self.index)?;
        device.enter()?;
        device.not_capturing("record_event")?;
        let event = Event::new(device.context, true)?;
        event.record()?;
        Ok(event)
    }

    /// Runs `f` once with its device work captured into a graph instead of executed.
    ///
    /// Tensors that `f` returns have no values until the graph is launched. Inside `f`, reading a tensor or
    /// synchronising is an error.
    ///
    /// # Errors
    /// A driver error when something in `f` cannot be captured; the device stays usable.
    pub fn capture<R>(&self, f: impl FnOnce() -> R) -> Result<(R, Graph)> {
        Graph::capture(Device::get(self.index)?, f)
    }

    /// Whether f32 matrix products (and convolutions) may use TF32, which keeps 10 bits of each factor's fraction and
    /// sums in f32. Off at first: f32 is exact f32. Holds for the whole process.
    pub fn allow_tf32(allow: bool) {
        crate::ops::matmul::allow_tf32(allow);
    }

    /// How convolutions are computed from now on: [`ConvAlgorithm::Fastest`] at first. Holds for the whole process, but not
    /// for what was captured before, which keeps its way.
    ///
    /// The ways differ in the order of their sums, so in last bits. What is fastest is measured, so with `Fastest` the same
    /// program may take another way in another process.
    pub fn set_conv_algorithm(algorithm: ConvAlgorithm) {
        crate::ops::cudnn::set_algorithm(algorithm);
    }

    /// The version of cuDNN, 91900 for 9.19.0.
    ///
    /// # Errors
    /// `Error::LibraryMissing`, `Error::LibraryShadowed`: convolutions are then computed without it.
    pub fn cudnn_version() -> Result<usize> {
        crate::ops::cudnn::version()
    }
}

impl std::fmt::Display for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuda:{}", self.index)
    }
}

impl BurnDevice for CudaDevice {
    fn from_id(id: DeviceId) -> Self {
        CudaDevice { index: id.index_id as usize }
    }

    fn to_id(&self) -> DeviceId {
        DeviceId::new(0, self.index as u16)
    }
}

impl DeviceOps for CudaDevice {}

/// Launches since a device was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaunchStats {
    /// Kernels and library products that the host launched one by one; what a capture records is not counted.
    pub kernels: u64,
    /// CUDA graphs launched (`cuGraphLaunch`).
    pub graphs: u64,
}

/// The state of one device.
pub(crate) struct Device {
    pub(crate) index: usize,
    pub(crate) context: &'static Context,
    pub(crate) props: DeviceProps,
    /// What kernels are compiled for.
    pub(crate) arch: String,
    pub(crate) allocator: Allocator,
    pub(crate) staging: StagingPool,
    pub(crate) timeline: &'static Timeline,
    pub(crate) kernels: Kernels,
    pub(crate) faults: Faults,
    pub(crate) random: RandomState,
    pub(crate) blas: Blas,
    pub(crate) cudnn: Cudnn,
    launches: AtomicU64,
    graph_launches: AtomicU64,
    /// The error that made the context unusable.
    dead: OnceLock<Error>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("index", &self.index)
            .field("props", &self.props)
            .finish_non_exhaustive()
    }
}

/// Devices that can be addressed: more than any machine has.
const MAX_DEVICES: usize = 64;

struct Slot {
    opening: Mutex<()>,
    device: OnceLock<&'static Device>,
}

static DEVICES: [Slot; MAX_DEVICES] =
    [const { Slot { opening: Mutex::new(()), device: OnceLock::new() } }; MAX_DEVICES];

impl Device {
    /// The device, opened at first use; a failure is not remembered.
    pub(crate) fn get(index: usize) -> Result<&'static Device> {
        let slot = match DEVICES.get(index) {
            Some(slot) => slot,
            None => return Err(Error::DeviceIndex { index, count: device_count()? }),
        };
        if let Some(device) = slot.device.get() {
            return Ok(device);
        }
        let _one_at_a_time = slot.opening.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(device) = slot.device.get() {
            return Ok(device);
        }
        let device = Device::open(index)?;
        Ok(slot.device.get_or_init(|| device))
    }

    #[allow(unsafe_code)]
    fn open(index: usize) -> Result<&'static Device> {
        CudaDevice::availability()?;
        let (context, props) = Context::new(index)?;
        let context: &'static Context = Box::leak(Box::new(context));
        let table = context.alloc_pinned(Faults::TABLE_BYTES)?;
        // SAFETY: the memory was just allocated with this size.
        unsafe { table.write_bytes(0, Faults::TABLE_BYTES) };
        let timeline: &'static Timeline = Box::leak(Box::new(Timeline::new(context)));
        crate::kernels::prefetch_common(&props.arch());
        log::info!("opened cuda:{index}: {} ({} multiprocessors)", props.name, props.sm_count);
        Ok(Box::leak(Box::new(Device {
            index,
            context,
            arch: props.arch(),
            allocator: Allocator::from_env(format!("cuda:{index} ({})", props.name), Box::new(context))?,
            staging: StagingPool::new(Box::new(timeline)),
            timeline,
            kernels: Kernels::default(),
            faults: Faults::new(table as usize),
            random: RandomState::default(),
            blas: Blas::default(),
            cudnn: Cudnn::default(),
            launches: AtomicU64::new(0),
            graph_launches: AtomicU64::new(0),
            dead: OnceLock::new(),
            props,
        })))
    }

    /// Makes the device current for the calling thread. Every operation begins here.
    ///
    /// # Errors
    /// `Error::ContextDead` once the context is lost.
    pub(crate) fn enter(&self) -> Result<()> {
        if let Some(cause) = self.dead.get() {
            return Err(Error::ContextDead { index: self.index, cause: Box::new(cause.clone()) });
        }
        self.context.make_current().map_err(|e| self.note(e))
    }

    /// Counts a launch, unless it is only recorded.
    #[inline]
    pub(crate) fn count_launch(&self) {
        if current_pool().is_none() {
            self.launches.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_graph_launch(&self) {
        self.graph_launches.fetch_add(1, Ordering::Relaxed);
    }

    /// Remembers an error after which the context cannot be used, and says so.
    pub(crate) fn note(&self, error: Error) -> Error {
        match &error {
            Error::Cuda { code, .. } if is_fatal(*code) => {
                let cause = self.dead.get_or_init(|| error.clone());
                Error::ContextDead { index: self.index, cause: Box::new(cause.clone()) }
            }
            _ => error,
        }
    }

    /// # Errors
    /// `Error::Capturing` while this thread captures a graph.
    pub(crate) fn not_capturing(&self, op: &'static str) -> Result<()> {
        match current_pool() {
            Some(_) => Err(Error::Capturing { op, device: self.index }),
            None => Ok(()),
        }
    }

    /// Waits for all work of the device, and collects the faults that its kernels met.
    pub(crate) fn wait(&self, op: &'static str) -> Result<()> {
        self.enter()?;
        self.not_capturing(op)?;
        let upto = self.faults.begin_wait();
        self.context.synchronize().map_err(|e| self.note(e))?;
        self.faults.end_wait(upto);
        Ok(())
    }
}

/// Numbered marks in the stream, for the reuse of pinned buffers.
#[derive(Debug)]
pub(crate) struct Timeline {
    context: &'static Context,
    state: Mutex<Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    next: u64,
    /// Marks up to this number are passed.
    passed: u64,
    pending: VecDeque<(u64, Event)>,
    spare: Vec<Event>,
}

impl Timeline {
    fn new(context: &'static Context) -> Self {
        Timeline { context, state: Mutex::new(Marks { next: 1, ..Marks::default() }) }
    }
}

impl PinnedDriver for &'static Timeline {
    fn alloc_pinned(&self, bytes: usize) -> Result<usize> {
        self.context.alloc_pinned(bytes).map(|p| p as usize)
    }

    #[allow(unsafe_code)]
    fn free_pinned(&self, addr: usize) {
        // SAFETY: the pool frees only what `alloc_pinned` returned, after the mark of its last use has been passed.
        unsafe { self.context.free_pinned(addr as *mut u8) }
    }

    fn record(&self) -> Result<u64> {
        // The event would go to the captured stream, and could never be asked about.
        if capture_stream(self.context).is_some() {
            return Err(Error::Capturing { op: "staging", device: self.context.index() });
        }
        let mut marks = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let event = match marks.spare.pop() {
            Some(event) => event,
            None => Event::new(self.context, false)?,
        };
        event.record()?;
        let ticket = marks.next;
        marks.next += 1;
        marks.pending.push_back((ticket, event));
        Ok(ticket)
    }

    fn is_done(&self, ticket: u64) -> bool {
        let mut marks = self.state.lock().unwrap_or_else(|e| e.into_inner());
        while marks.passed < ticket && marks.pending.front().is_some_and(|(_, e)| e.is_done().unwrap_or(true))
        {
            if let Some((passed, event)) = marks.pending.pop_front() {
                marks.passed = passed;
                marks.spare.push(event);
            }
        }
        ticket <= marks.passed
    }

    fn wait(&self, ticket: u64) -> Result<()> {
        loop {
            // The event is taken out for the wait, so that other threads can go on recording.
            let taken = {
                let mut marks = self.state.lock().unwrap_or_else(|e| e.into_inner());
                if ticket <= marks.passed {
                    return Ok(());
                }
                marks.pending.pop_front()
            };
            match taken {
                Some((number, event)) => {
                    let waited = event.wait();
                    let mut marks = self.state.lock().unwrap_or_else(|e| e.into_inner());
                    marks.passed = marks.passed.max(number);
                    marks.spare.push(event);
                    waited?;
                }
                // Another thread waits for the mark.
                None => std::thread::yield_now(),
            }
        }
    }
}
