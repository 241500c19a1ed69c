//! Device memory: a caching allocator, and a pool of pinned host buffers ([`staging`]).
//!
//! # The scheme
//!
//! The driver's own allocation is slow and its free waits for the device, so memory is taken from the driver
//! in *segments* and kept. A segment is cut into *blocks*, which cover it without a gap; each is live or
//! free.
//!
//! - Sizes are rounded up to 512 bytes, so every address is 512-byte aligned.
//! - Requests up to 1 MiB are *small* and come out of 2 MiB segments; *large* ones up to 16 MiB come out of
//!   32 MiB segments, and from 16 MiB on a segment is made for the request, rounded up to 2 MiB. Small and
//!   large blocks never share a segment, so that a long-lived scalar does not pin a big segment.
//! - The smallest free block that fits is taken, of equals among the small ones the one freed last (its lines
//!   may still be in the L2 cache), among the large ones the one at the lowest address. What is left over
//!   becomes a free block; a large remainder of 1 MiB or less stays with the block, since no large request
//!   could ever use it. A freed block joins its free neighbours, so a segment whose blocks are all free is a
//!   single block, and two free blocks never touch.
//! - The allocator never gives memory back of itself, except to avoid running out (below).
//!
//! # Stream order
//!
//! Kiln launches all work of a device on one stream. A block that is dropped on the host may therefore be
//! handed out again at once, although kernels that use it are still queued: whatever its new owner launches
//! runs after them. This is what lets `Drop` return a block with no event and no wait. Whoever uses a block
//! on *another* stream, or from the host, must keep the [`Block`] alive until that use is over, or make
//! Kiln's stream wait for it first.
//!
//! # Out of memory
//!
//! When the driver refuses, the allocator waits for the device, gives every wholly free segment back and asks
//! once more (and, if a shared segment was refused, for one just as large as the request). Then it reports
//! [`Error::OutOfMemory`] and goes on working. A request beyond the device's total memory fails without
//! touching the cache. While the stream is captured the device cannot be waited for, so that the cache stays
//! as it is.
//!
//! # Private pools
//!
//! A captured CUDA graph uses fixed addresses at every replay, also those of blocks that were allocated and
//! dropped during its capture. They must not go to anyone else while the graph lives. So a capture runs
//! inside a *pool*: from [`Allocator::begin_pool`] to [`Allocator::end_pool`] the calling thread's blocks
//! come from segments of that pool alone, and a block returns to the pool of its segment, whichever thread
//! drops it. A pool that needs a segment takes a wholly free one of the global pool before it asks the
//! driver. [`Allocator::release_pool`], called when the last graph that used the pool is gone, hands its
//! segments to the global pool: what is free becomes free there, what is live stays valid and becomes free
//! there when it is dropped.
//!
//! # Exact mode
//!
//! With `KILN_ALLOCATOR=exact` every block is an allocation of the driver's own, of exactly the bytes that were asked for,
//! and goes back when it is dropped (blocks of a private pool: when the pool is released). Nothing is rounded, cached or
//! reused, so compute-sanitizer and Kiln's emulator see the bounds and the life of every tensor. It is slow.
//!
//! # Locks
//!
//! `state` guards the book-keeping and is held for a few tens of nanoseconds, never across a driver call.
//! `grow` is held by the thread that takes memory from the driver or gives it back, so that memory which one
//! thread frees in order to retry is not missed by a second one, which would report a shortage that is none.
//! It is taken before `state`. `Drop` of a block takes `state` alone, so that a block may be dropped in a
//! callback that the device runs while another thread waits for the device.

mod segments;
pub(crate) mod staging;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use segments::{LARGE_SHARED, NIL, SMALL_MAX, SMALL_SEGMENT, State, round_up};

/// Below this a large request comes out of a shared segment.
const OWN_SEGMENT_MIN: u64 = 16 << 20;
/// Segments are multiples of this: the page size of the GPU's large pages.
const SEGMENT_STEP: u64 = 2 << 20;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const CUDA_ERROR_OUT_OF_MEMORY: u32 = 2;
/// How many of the largest live blocks an out-of-memory error lists.
const LARGEST_LISTED: usize = 5;

/// What the allocator needs of a CUDA device.
///
/// Every method may be called from any thread, so the implementation makes the device's context current.
/// `alloc` must also work in a thread whose stream is being captured (see
/// `cuThreadExchangeStreamCaptureMode`).
pub(crate) trait MemoryDriver: Send + Sync + std::panic::RefUnwindSafe {
    /// Takes `bytes` of device memory; the address is a multiple of 512.
    ///
    /// # Errors
    /// `Error::Cuda` with code 2 (`CUDA_ERROR_OUT_OF_MEMORY`) when the device is full: the allocator then
    /// tries to make room. Any other error reaches the caller as it is.
    fn alloc(&self, bytes: usize) -> Result<u64>;

    /// Gives back what `alloc` returned. Failures are ignored: nothing could be done about them.
    fn free(&self, ptr: u64);

    /// Waits for all work on the device.
    ///
    /// # Errors
    /// `Error::Capturing` while the stream is captured; otherwise what the device reports.
    fn synchronize(&self) -> Result<()>;

    /// `(free, total)` bytes of the device.
    ///
    /// # Errors
    /// What the driver reports.
    fn mem_info(&self) -> Result<(u64, u64)>;
}

/// Counters of a device's allocator. Sizes are in bytes; counts run from the creation of the allocator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in live blocks, as they were asked for (without rounding).
    pub live_bytes: u64,
    /// The highest `live_bytes` since the start or the last reset.
    pub peak_live_bytes: u64,
    /// Live blocks.
    pub live_count: u64,
    /// Bytes that live blocks occupy, with rounding.
    pub occupied_bytes: u64,
    /// Bytes held from the driver, live or cached.
    pub reserved_bytes: u64,
    /// The highest `reserved_bytes` since the start or the last reset.
    pub peak_reserved_bytes: u64,
    /// The part of `reserved_bytes` that belongs to captured graphs and cannot be used by anything else.
    pub private_bytes: u64,
    /// Blocks handed out.
    pub alloc_count: u64,
    /// Segments taken from the driver.
    pub driver_alloc_count: u64,
    /// Segments given back to the driver.
    pub driver_free_count: u64,
    /// Requests for which the driver was out of memory at first, whether or not the retry succeeded.
    pub retry_count: u64,
    /// Requests that failed for want of memory.
    pub oom_count: u64,
}

/// Names a private pool of one allocator. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolId {
    allocator: u32,
    slot: u32,
    generation: u32,
}

thread_local! {
    /// The pools that this thread is in, innermost last; of several allocators if it captures on several
    /// devices.
    static ENTERED: RefCell<Vec<PoolId>> = const { RefCell::new(Vec::new()) };
}

/// The caching allocator of one device. A clone is another handle to the same allocator.
#[derive(Clone)]
pub(crate) struct Allocator {
    inner: Arc<Inner>,
}

struct Inner {
    id: u32,
    device: String,
    driver: Box<dyn MemoryDriver>,
    state: Mutex<State>,
    grow: Mutex<()>,
    exact: bool,
}

/// Device memory that returns to its allocator when it is dropped (see the module's notes on stream order).
pub(crate) struct Block {
    ptr: u64,
    size_bytes: usize,
    /// Index of the block in the allocator's books; `NIL` for zero bytes.
    node: u32,
    inner: Arc<Inner>,
}

/// A request on its way through the slow path.
struct Request {
    requested: u64,
    /// `requested`, rounded up to the alignment.
    size: u64,
    pool: Option<PoolId>,
}

impl Allocator {
    /// An allocator that holds no memory yet. `device` names the device in errors, as in `cuda:0 (NVIDIA
    /// H200)`.
    pub(crate) fn new(device: impl Into<String>, driver: Box<dyn MemoryDriver>) -> Self {
        Self::with_mode(device.into(), driver, false)
    }

    /// As [`Allocator::new`], in exact mode (the module's notes).
    pub(crate) fn exact(device: impl Into<String>, driver: Box<dyn MemoryDriver>) -> Self {
        Self::with_mode(device.into(), driver, true)
    }

    /// As `KILN_ALLOCATOR` says: `exact`, `caching`, or not set.
    ///
    /// # Errors
    /// `Error::Argument` for another value.
    pub(crate) fn from_env(device: impl Into<String>, driver: Box<dyn MemoryDriver>) -> Result<Self> {
        match std::env::var("KILN_ALLOCATOR").as_deref() {
            Ok("exact") => Ok(Self::exact(device, driver)),
            Ok("" | "caching") | Err(std::env::VarError::NotPresent) => Ok(Self::new(device, driver)),
            other => Err(Error::Argument {
                op: "KILN_ALLOCATOR",
                detail: format!("{other:?} is neither \"caching\" nor \"exact\""),
            }),
        }
    }

    fn with_mode(device: String, driver: Box<dyn MemoryDriver>, exact: bool) -> Self {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let state = Mutex::new(State::new());
        Self { inner: Arc::new(Inner { id, device, driver, state, grow: Mutex::new(()), exact }) }
    }

    /// Takes `bytes` of device memory, 512-byte aligned, with undefined contents. Zero bytes give a block
    /// with address 0 that takes nothing.
    ///
    /// # Errors
    /// `Error::OutOfMemory` if the memory cannot be had; what the driver reports if it fails for another
    /// reason.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<Block> {
        if bytes == 0 {
            return Ok(Block { ptr: 0, size_bytes: 0, node: NIL, inner: Arc::clone(&self.inner) });
        }
        let requested = bytes as u64;
        let Some(size) = round_up(requested, segments::ALIGN) else {
            return Err(self.inner.out_of_memory(requested));
        };
        let pool = self.entered_pool();
        let mut state = self.inner.lock();
        let slot = state.slot(pool);
        let taken = if self.inner.exact { None } else { state.take(slot, size, requested) };
        drop(state);
        let (node, ptr) = match taken {
            Some(taken) => taken,
            None => self.inner.alloc_slow(&Request { requested, size, pool })?,
        };
        Ok(Block { ptr, size_bytes: bytes, node, inner: Arc::clone(&self.inner) })
    }

    /// Creates a private pool and makes the calling thread allocate from it, until `end_pool`.
    pub(crate) fn begin_pool(&self) -> PoolId {
        let (slot, generation) = self.inner.lock().add_pool();
        let id = PoolId { allocator: self.inner.id, slot, generation };
        self.resume_pool(id);
        id
    }

    /// Makes the calling thread allocate from `pool` again, until `end_pool`: a further graph shares the
    /// pool.
    ///
    /// Only for graphs that never run at the same time and whose outputs do not outlive the next replay,
    /// unless their blocks are still held: a block that the first graph's capture dropped may be used by the
    /// second.
    pub(crate) fn resume_pool(&self, pool: PoolId) {
        ENTERED.with(|entered| entered.borrow_mut().push(pool));
    }

    /// Makes the calling thread allocate from where it did before it entered `pool`. Does nothing if it is
    /// not in it.
    pub(crate) fn end_pool(&self, pool: PoolId) {
        ENTERED.with(|entered| {
            let mut entered = entered.borrow_mut();
            if let Some(at) = entered.iter().rposition(|id| *id == pool) {
                entered.remove(at);
            }
        });
    }

    /// Hands the segments of `pool` to the global pool; call it when no graph that was captured in it is
    /// left. Blocks that are live stay valid. A thread that is still inside the pool allocates globally from
    /// then on.
    pub(crate) fn release_pool(&self, pool: PoolId) {
        if pool.allocator == self.inner.id {
            self.inner.lock().release_pool(pool);
            if self.inner.exact {
                self.inner.release_cached();
            }
        }
    }

    /// The counters.
    pub(crate) fn stats(&self) -> MemoryStats {
        self.inner.lock().stats
    }

    /// Sets the peaks to the present values.
    pub(crate) fn reset_peak(&self) {
        let stats = &mut self.inner.lock().stats;
        stats.peak_live_bytes = stats.live_bytes;
        stats.peak_reserved_bytes = stats.reserved_bytes;
    }

    /// Waits for the device, gives every wholly free segment outside private pools back to the driver, and
    /// returns their bytes.
    ///
    /// # Errors
    /// What `synchronize` reports; nothing is released then.
    pub(crate) fn empty_cache(&self) -> Result<u64> {
        let _grow = lock(&self.inner.grow);
        self.inner.driver.synchronize()?;
        Ok(self.inner.release_cached())
    }

    fn entered_pool(&self) -> Option<PoolId> {
        // `try_with`: a thread that is being torn down is in no pool.
        let find = |entered: &RefCell<Vec<PoolId>>| {
            entered.borrow().iter().rev().find(|id| id.allocator == self.inner.id).copied()
        };
        ENTERED.try_with(find).unwrap_or(None)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The way of a request that no free block of its pool serves.
    #[cold]
    fn alloc_slow(&self, request: &Request) -> Result<(u32, u64)> {
        let _grow = lock(&self.grow);
        if let Some(taken) = self.take_or_adopt(request) {
            return Ok(taken); // another thread grew the pool, or the global pool had a segment to spare
        }
        let Some(own_segment) = round_up(request.size, SEGMENT_STEP) else {
            return Err(self.out_of_memory(request.requested));
        };
        let segment = if self.exact {
            request.size
        } else if request.size <= SMALL_MAX {
            SMALL_SEGMENT
        } else if request.size < OWN_SEGMENT_MIN {
            LARGE_SHARED
        } else {
            own_segment
        };
        if let Some(taken) = self.take_from_driver(request, segment)? {
            return Ok(taken);
        }
        if self.driver.mem_info().is_ok_and(|(_, total)| request.requested > total) {
            return Err(self.out_of_memory(request.requested));
        }
        self.lock().stats.retry_count += 1;
        match self.driver.synchronize() {
            Ok(()) => {
                if let Some(taken) = self.take_or_adopt(request) {
                    return Ok(taken); // blocks were dropped during the wait
                }
                let released = self.release_cached();
                log::debug!("{}: out of memory, {released} cached bytes given back", self.device);
                if let Some(taken) = self.take_from_driver(request, segment)? {
                    return Ok(taken);
                }
            }
            // Freeing waits for the device as well, so under capture the cache has to stay.
            Err(Error::Capturing { .. }) => {}
            Err(error) => return Err(error),
        }
        if own_segment < segment
            && let Some(taken) = self.take_from_driver(request, own_segment)?
        {
            return Ok(taken);
        }
        Err(self.out_of_memory(request.requested))
    }

    /// Serves a request from the free blocks of its pool or, for a private pool, with a segment of the global
    /// one.
    fn take_or_adopt(&self, request: &Request) -> Option<(u32, u64)> {
        if self.exact {
            return None;
        }
        let mut state = self.lock();
        let slot = state.slot(request.pool);
        let taken = state.take(slot, request.size, request.requested);
        if taken.is_some() || !state.adopt(slot, request.size) {
            return taken;
        }
        state.take(slot, request.size, request.requested)
    }

    /// Serves a request from a new segment; `None` if the driver has no memory for it.
    fn take_from_driver(&self, request: &Request, segment_bytes: u64) -> Result<Option<(u32, u64)>> {
        let bytes = if self.exact { request.requested } else { segment_bytes };
        let Ok(bytes) = usize::try_from(bytes) else { return Ok(None) };
        let base = match self.driver.alloc(bytes) {
            Ok(base) => base,
            Err(Error::Cuda { code: CUDA_ERROR_OUT_OF_MEMORY, .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut state = self.lock();
        let slot = state.slot(request.pool);
        let whole = state.add_segment(slot, base, segment_bytes, request.size <= SMALL_MAX);
        Ok(Some(state.occupy(whole, request.size, request.requested)))
    }

    /// Gives the global pool's wholly free segments back; returns their bytes. The caller holds `grow` and
    /// has waited for the device, except in exact mode, where nobody else takes from them and the driver waits.
    fn release_cached(&self) -> u64 {
        let segments = self.lock().detach_free_segments();
        for &(base, _) in &segments {
            self.driver.free(base);
        }
        segments.iter().map(|&(_, bytes)| bytes).sum()
    }

    #[cold]
    fn out_of_memory(&self, requested_bytes: u64) -> Error {
        let (free_bytes, total_bytes) = self.driver.mem_info().unwrap_or((0, 0));
        let mut state = self.lock();
        state.stats.oom_count += 1;
        Error::OutOfMemory {
            device: self.device.clone(),
            requested_bytes,
            free_bytes,
            total_bytes,
            live_bytes: state.stats.live_bytes,
            reserved_bytes: state.stats.reserved_bytes,
            live_count: state.stats.live_count,
            largest_bytes: state.largest_live(LARGEST_LISTED),
        }
    }
}

/// Runs when the allocator and all its blocks are gone.
impl Drop for Inner {
    fn drop(&mut self) {
        // A device that reports a fault here has stopped using the memory too.
        let _ = self.driver.synchronize();
        for base in self.lock().segment_bases() {
            self.driver.free(base);
        }
    }
}

impl Block {
    /// The device address, a multiple of 512; 0 if the block has zero bytes.
    pub(crate) fn ptr(&self) -> u64 {
        self.ptr
    }

    /// The size that was asked for.
    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.node != NIL {
            self.inner.lock().give_back(self.node);
            if self.inner.exact {
                self.inner.release_cached();
            }
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("ptr", &self.ptr).field("size_bytes", &self.size_bytes).finish()
    }
}

impl fmt::Debug for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocator").field("device", &self.inner.device).field("stats", &self.stats()).finish()
    }
}

/// Locks also when a thread panicked with the lock held: what it guards changes in no panicking step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
