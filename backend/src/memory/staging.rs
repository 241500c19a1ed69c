//! Pinned host buffers for copies in both directions.
//!
//! The device copies from and to page-locked memory while the host goes on, so a buffer must stay untouched
//! until the copy is done; and locking pages is slow, so buffers are kept. A buffer goes round three places:
//!
//! ```text
//! Staging --retire(ticket) or drop--> pending --ticket done--> idle --take--> Staging
//! ```
//!
//! A *ticket* stands for a point in the stream's order. Tickets of one stream are done in order, so `pending`
//! is a queue of which only the front is asked about, on every `take` and return; there is no thread of its
//! own. `idle` is kept by power-of-two size, up to a cap; beyond it, buffers of the size that holds most idle
//! memory are freed, so a change of sizes does not leave the pool full of useless ones. A buffer beyond the
//! cap is freed after its use.
//!
//! A captured graph that copies from or to a `Staging` keeps it for as long as the graph lives.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use super::lock;
use crate::error::{Error, Result};

/// The smallest buffer: a page.
const MIN_BYTES: usize = 4 << 10;
/// One class for each power of two from `MIN_BYTES`.
const CLASSES: usize = (usize::BITS - MIN_BYTES.trailing_zeros()) as usize;

/// What the pool needs of a CUDA device.
///
/// Every method may be called from any thread.
pub(crate) trait PinnedDriver: Send + Sync + std::panic::RefUnwindSafe {
    /// Takes `bytes` of page-locked host memory, at least page-aligned, and returns its address.
    ///
    /// # Errors
    /// What the driver reports.
    fn alloc_pinned(&self, bytes: usize) -> Result<usize>;

    /// Gives back what `alloc_pinned` returned.
    fn free_pinned(&self, addr: usize);

    /// A ticket that is done when all work queued so far is.
    ///
    /// # Errors
    /// `Error::Capturing` while the stream is captured; otherwise what the driver reports.
    fn record(&self) -> Result<u64>;

    /// Whether the ticket is done, without waiting. May be asked repeatedly, also after it was; a failed
    /// device is done. Must not disturb a capture: where asking would, the answer is no.
    fn is_done(&self, ticket: u64) -> bool;

    /// Waits for the ticket.
    ///
    /// # Errors
    /// What the device reports; it has stopped using the buffer then, too.
    fn wait(&self, ticket: u64) -> Result<()>;
}

/// The pinned buffers of one device. A clone is another handle to the same pool.
#[derive(Clone)]
pub(crate) struct StagingPool {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Box<dyn PinnedDriver>,
    max_idle_bytes: usize,
    state: Mutex<State>,
}

struct State {
    /// Returned buffers that the device may still use, in the order of return.
    pending: VecDeque<(Buffer, u64)>,
    /// Addresses of reusable buffers by class.
    idle: [Vec<usize>; CLASSES],
    idle_bytes: usize,
}

#[derive(Clone, Copy)]
struct Buffer {
    addr: usize,
    bytes: usize,
}

/// A pinned host buffer, lent by a [`StagingPool`].
///
/// The contents are undefined at first. Its owner makes slices from [`Staging::as_mut_ptr`] and answers for
/// it that the device does not use the bytes at that time.
pub(crate) struct Staging {
    buffer: Buffer,
    len: usize,
    returned: bool,
    inner: Arc<Inner>,
}

impl StagingPool {
    /// Idle memory kept by [`StagingPool::new`].
    pub(crate) const MAX_IDLE_BYTES: usize = 256 << 20;

    /// A pool that holds no memory yet.
    pub(crate) fn new(driver: Box<dyn PinnedDriver>) -> Self {
        Self::with_max_idle(driver, Self::MAX_IDLE_BYTES)
    }

    /// A pool that keeps at most `max_idle_bytes` of unused memory.
    pub(crate) fn with_max_idle(driver: Box<dyn PinnedDriver>, max_idle_bytes: usize) -> Self {
        let state = State { pending: VecDeque::new(), idle: [const { Vec::new() }; CLASSES], idle_bytes: 0 };
        Self { inner: Arc::new(Inner { driver, max_idle_bytes, state: Mutex::new(state) }) }
    }

    /// Lends a buffer of at least `bytes` that the device does not use. Waits for the device only if there is
    /// neither a reusable buffer nor memory for a fresh one.
    ///
    /// # Errors
    /// `Error::Argument` if the size cannot be addressed; what the driver reports if it has no memory left.
    pub(crate) fn take(&self, bytes: usize) -> Result<Staging> {
        let inner = &self.inner;
        let size = inner.buffer_bytes(bytes)?;
        inner.collect();
        let idle = inner.lock().take_idle(size);
        let addr = match idle {
            Some(addr) => addr,
            None => match inner.driver.alloc_pinned(size) {
                Ok(addr) => addr,
                Err(_) => {
                    inner.free_unused();
                    inner.driver.alloc_pinned(size)?
                }
            },
        };
        let buffer = Buffer { addr, bytes: size };
        Ok(Staging { buffer, len: bytes, returned: false, inner: Arc::clone(inner) })
    }

    /// Bytes of buffers that nobody uses.
    #[cfg(test)]
    pub(crate) fn idle_bytes(&self) -> usize {
        self.inner.collect();
        self.inner.lock().idle_bytes
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A power of two; for a buffer that will not be kept, whole pages.
    fn buffer_bytes(&self, bytes: usize) -> Result<usize> {
        let size = match bytes {
            0..=MIN_BYTES => Some(MIN_BYTES),
            _ if bytes > self.max_idle_bytes => bytes.checked_next_multiple_of(MIN_BYTES),
            _ => bytes.checked_next_power_of_two(),
        };
        size.filter(|&size| isize::try_from(size).is_ok()).ok_or_else(|| Error::Argument {
            op: "staging buffer",
            detail: format!("{bytes} bytes cannot be addressed"),
        })
    }

    /// Moves the pending buffers that the device is done with to the idle ones and frees what is too much.
    fn collect(&self) {
        let mut state = self.lock();
        let mut surplus = Vec::new();
        while let Some(&(buffer, ticket)) = state.pending.front()
            && self.driver.is_done(ticket)
        {
            state.pending.pop_front();
            state.keep(buffer, self.max_idle_bytes, &mut surplus);
        }
        drop(state);
        self.free(&surplus);
    }

    /// Waits for the pending buffers and frees all that are not lent.
    fn free_unused(&self) {
        let mut state = self.lock();
        let pending = std::mem::take(&mut state.pending);
        let mut unused = state.idle.iter_mut().flat_map(std::mem::take).collect::<Vec<_>>();
        state.idle_bytes = 0;
        drop(state);
        for (buffer, ticket) in pending {
            // An error means that the device failed: it does not use the buffer any more.
            let _ = self.driver.wait(ticket);
            unused.push(buffer.addr);
        }
        self.free(&unused);
    }

    fn free(&self, addrs: &[usize]) {
        for &addr in addrs {
            self.driver.free_pinned(addr);
        }
    }
}

impl State {
    fn take_idle(&mut self, size: usize) -> Option<usize> {
        let addr = self.idle[class_of(size)?].pop()?;
        self.idle_bytes -= size;
        Some(addr)
    }

    /// Makes a buffer idle; what then exceeds the cap goes to `surplus`.
    fn keep(&mut self, buffer: Buffer, max_idle_bytes: usize, surplus: &mut Vec<usize>) {
        let Some(class) = class_of(buffer.bytes) else {
            surplus.push(buffer.addr);
            return;
        };
        self.idle[class].push(buffer.addr);
        self.idle_bytes += buffer.bytes;
        while self.idle_bytes > max_idle_bytes {
            let held = |&class: &usize| self.idle[class].len() * class_bytes(class);
            let Some(fullest) = (0..CLASSES).max_by_key(held) else { break };
            surplus.extend(self.idle[fullest].pop());
            self.idle_bytes -= class_bytes(fullest);
        }
    }
}

/// The class of buffers of exactly this size; `None` for sizes that are not kept.
fn class_of(bytes: usize) -> Option<usize> {
    bytes.is_power_of_two().then(|| (bytes.trailing_zeros() - MIN_BYTES.trailing_zeros()) as usize)
}

fn class_bytes(class: usize) -> usize {
    MIN_BYTES << class
}

/// Runs when the pool and all its buffers are gone.
impl Drop for Inner {
    fn drop(&mut self) {
        self.free_unused();
    }
}

impl Staging {
    /// The first byte; valid for reads and writes of `len` bytes while the buffer lives.
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.buffer.addr)
    }

    /// Bytes asked for.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether zero bytes were asked for.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the buffer, to be reused once `ticket` is done: one recorded after the last copy that uses it.
    pub(crate) fn retire(mut self, ticket: u64) {
        self.give_back(ticket);
    }

    /// Returns the buffer for reuse at once: the device has never used it, or the caller has waited for the
    /// copy.
    pub(crate) fn release(mut self) {
        self.returned = true;
        let mut surplus = Vec::new();
        self.inner.lock().keep(self.buffer, self.inner.max_idle_bytes, &mut surplus);
        self.inner.free(&surplus);
    }

    fn give_back(&mut self, ticket: u64) {
        self.returned = true;
        self.inner.lock().pending.push_back((self.buffer, ticket));
        self.inner.collect();
    }
}

/// Returns the buffer, to be reused once all work that is queued by now is done.
impl Drop for Staging {
    fn drop(&mut self) {
        if self.returned {
            return;
        }
        match self.inner.driver.record() {
            Ok(ticket) => self.give_back(ticket),
            // Under capture the graph may hold the address for good, so the buffer must never be used again.
            Err(error) => log::warn!("{} bytes of pinned memory are lost: {error}", self.buffer.bytes),
        }
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staging").field("addr", &self.buffer.addr).field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Hands out addresses that are never used again; the test moves `done` as the device would.
    #[derive(Default)]
    struct Fake {
        live: Mutex<BTreeMap<usize, usize>>,
        next: Mutex<usize>,
        capacity: AtomicU64,
        recorded: AtomicU64,
        done: AtomicU64,
        waits: AtomicU64,
        capturing: AtomicU64,
    }

    impl PinnedDriver for Arc<Fake> {
        fn alloc_pinned(&self, bytes: usize) -> Result<usize> {
            let mut live = lock(&self.live);
            if (live.values().sum::<usize>() + bytes) as u64 > self.capacity.load(Ordering::Relaxed) {
                let (name, message) = ("CUDA_ERROR_OUT_OF_MEMORY".into(), String::new());
                return Err(Error::Cuda { call: "cuMemHostAlloc", code: 2, name, message });
            }
            let mut next = lock(&self.next);
            *next += 1 << 40;
            live.insert(*next, bytes);
            Ok(*next)
        }

        fn free_pinned(&self, addr: usize) {
            assert!(lock(&self.live).remove(&addr).is_some(), "{addr:#x} was not allocated");
        }

        fn record(&self) -> Result<u64> {
            if self.capturing.load(Ordering::Relaxed) == 1 {
                return Err(Error::Capturing { op: "record", device: 0 });
            }
            Ok(self.recorded.fetch_add(1, Ordering::Relaxed) + 1)
        }

        fn is_done(&self, ticket: u64) -> bool {
            ticket <= self.done.load(Ordering::Relaxed)
        }

        fn wait(&self, ticket: u64) -> Result<()> {
            self.waits.fetch_add(1, Ordering::Relaxed);
            self.done.fetch_max(ticket, Ordering::Relaxed);
            Ok(())
        }
    }

    impl Fake {
        fn pool(max_idle_bytes: usize) -> (Arc<Self>, StagingPool) {
            let fake = Arc::new(Self::default());
            fake.capacity.store(1 << 60, Ordering::Relaxed);
            let pool = StagingPool::with_max_idle(Box::new(Arc::clone(&fake)), max_idle_bytes);
            (fake, pool)
        }

        fn held(&self) -> Vec<usize> {
            lock(&self.live).values().copied().collect()
        }
    }

    #[test]
    fn a_buffer_is_reused_only_after_its_ticket() {
        let (fake, pool) = Fake::pool(1 << 20);
        let first = pool.take(5000).unwrap();
        assert_eq!((first.len(), fake.held()), (5000, vec![8192]));
        let addr = first.as_mut_ptr();
        first.retire(fake.record().unwrap());
        let second = pool.take(8192).unwrap();
        assert_ne!(second.as_mut_ptr(), addr, "its copy is still running");
        fake.done.store(1, Ordering::Relaxed);
        let third = pool.take(4097).unwrap();
        assert_eq!(third.as_mut_ptr(), addr);
        assert_eq!(fake.waits.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn drop_waits_for_the_work_queued_so_far() {
        let (fake, pool) = Fake::pool(1 << 20);
        let first = pool.take(1).unwrap();
        let addr = first.as_mut_ptr();
        fake.record().unwrap();
        drop(first);
        fake.done.store(1, Ordering::Relaxed);
        assert_ne!(pool.take(1).unwrap().as_mut_ptr(), addr);
        fake.done.store(2, Ordering::Relaxed);
        assert_eq!(pool.idle_bytes(), MIN_BYTES);
        assert_eq!(pool.take(1).unwrap().as_mut_ptr(), addr);
    }

    #[test]
    fn released_buffers_are_reused_at_once() {
        let (fake, pool) = Fake::pool(1 << 20);
        let first = pool.take(100).unwrap();
        let addr = first.as_mut_ptr();
        first.release();
        assert_eq!(pool.take(4096).unwrap().as_mut_ptr(), addr);
        assert_eq!(fake.recorded.load(Ordering::Relaxed), 1, "only the drop of the second one records");
    }

    #[test]
    fn idle_memory_is_capped() {
        let (fake, pool) = Fake::pool(64 << 10);
        let many = (0..20).map(|_| pool.take(4096).unwrap()).collect::<Vec<_>>();
        assert_eq!(fake.held().len(), 20);
        many.into_iter().for_each(Staging::release);
        assert_eq!((pool.idle_bytes(), fake.held().len()), (64 << 10, 16));
        // A new size displaces the old one.
        pool.take(32 << 10).unwrap().release();
        assert_eq!(pool.idle_bytes(), 64 << 10);
        assert!(fake.held().contains(&(32 << 10)));
        // A buffer beyond the cap is as large as asked for, and is freed when the device is done with it.
        let large = pool.take((64 << 10) + 1).unwrap();
        assert!(fake.held().contains(&(68 << 10)));
        large.retire(fake.record().unwrap());
        assert_eq!(pool.idle_bytes(), 64 << 10);
        assert!(fake.held().contains(&(68 << 10)), "the device may still use it");
        fake.done.store(1, Ordering::Relaxed);
        assert_eq!(pool.idle_bytes(), 64 << 10);
        assert!(!fake.held().contains(&(68 << 10)));
    }

    #[test]
    fn pinned_memory_is_flat_over_cycles() {
        let (fake, pool) = Fake::pool(1 << 20);
        for _ in 0..1000 {
            let (a, b) = (pool.take(10_000).unwrap(), pool.take(100_000).unwrap());
            let ticket = fake.record().unwrap();
            a.retire(ticket);
            b.retire(ticket);
            fake.done.store(ticket - 1, Ordering::Relaxed); // the device is one step behind
        }
        let mut held = fake.held();
        held.sort_unstable();
        assert_eq!(held, [16 << 10, 16 << 10, 128 << 10, 128 << 10]);
    }

    #[test]
    fn a_full_host_waits_and_frees_before_it_fails() {
        let (fake, pool) = Fake::pool(1 << 20);
        fake.capacity.store(64 << 10, Ordering::Relaxed);
        pool.take(16 << 10).unwrap().release();
        pool.take(32 << 10).unwrap().retire(fake.record().unwrap());
        let all = pool.take(64 << 10).unwrap();
        assert_eq!((fake.waits.load(Ordering::Relaxed), fake.held()), (1, vec![64 << 10]));
        assert!(matches!(pool.take(1), Err(Error::Cuda { code: 2, .. })));
        all.release();
        assert!(pool.take(1).is_ok());
    }

    #[test]
    fn a_buffer_dropped_under_capture_is_never_reused() {
        let (fake, pool) = Fake::pool(1 << 20);
        let buffer = pool.take(1).unwrap();
        let addr = buffer.as_mut_ptr();
        fake.capturing.store(1, Ordering::Relaxed);
        drop(buffer);
        fake.capturing.store(0, Ordering::Relaxed);
        fake.done.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(pool.idle_bytes(), 0);
        assert_ne!(pool.take(1).unwrap().as_mut_ptr(), addr);
        drop(pool);
        assert_eq!(fake.held(), [MIN_BYTES], "it outlives the pool, for the graph");
    }

    #[test]
    fn the_pool_frees_everything_at_its_end() {
        let (fake, pool) = Fake::pool(1 << 20);
        pool.take(1).unwrap().release();
        pool.take(1 << 16).unwrap().retire(fake.record().unwrap());
        let lent = pool.take(1 << 12).unwrap();
        drop(pool);
        assert!(!fake.held().is_empty(), "a lent buffer keeps the pool");
        drop(lent);
        assert!(fake.held().is_empty());
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let (fake, pool) = Fake::pool(1 << 20);
        for bytes in [usize::MAX, usize::MAX - MIN_BYTES, isize::MAX as usize + 1] {
            assert!(matches!(pool.take(bytes), Err(Error::Argument { .. })), "{bytes}");
        }
        assert!(fake.held().is_empty());
        let empty = pool.take(0).unwrap();
        assert!(empty.is_empty() && !empty.as_mut_ptr().is_null());
    }
}
