use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// What the allocator did to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Alloc(usize),
    Refused(usize),
    Free(usize),
    Sync,
}
use Call::{Alloc, Free, Refused, Sync};

/// A device of a given size. Segments follow each other without a gap, so that blocks of two segments touch,
/// and addresses are never used twice.
struct Fake {
    capacity: u64,
    next: AtomicU64,
    segments: Mutex<BTreeMap<u64, usize>>,
    calls: Mutex<Vec<Call>>,
    capturing: AtomicBool,
    broken: AtomicBool,
    /// Dropped by the next `synchronize`, as a callback of the device would.
    drop_in_sync: Mutex<Vec<Block>>,
}

impl Fake {
    fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            capacity: capacity as u64,
            next: AtomicU64::new(0x7f00_0000_0000),
            segments: Mutex::default(),
            calls: Mutex::default(),
            capturing: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            drop_in_sync: Mutex::default(),
        })
    }

    fn allocator(self: &Arc<Self>) -> Allocator {
        Allocator::new("cuda:0 (fake)", Box::new(Arc::clone(self)))
    }

    fn used(&self) -> u64 {
        lock(&self.segments).values().map(|&b| b as u64).sum()
    }

    /// The calls since the last time this was asked.
    fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut *lock(&self.calls))
    }

    /// The segment that holds the block.
    fn segment_of(&self, block: &Block) -> u64 {
        let segments = lock(&self.segments);
        let (&base, &bytes) = segments.range(..=block.ptr()).next_back().expect("below every segment");
        assert!(
            block.ptr() + block.size_bytes() as u64 <= base + bytes as u64,
            "{block:?} leaves its segment"
        );
        base
    }

    fn error(code: u32) -> Error {
        Error::Cuda { call: "fake", code, name: String::new(), message: String::new() }
    }
}

impl MemoryDriver for Arc<Fake> {
    fn alloc(&self, bytes: usize) -> Result<u64> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(Fake::error(700));
        }
        let mut segments = lock(&self.segments);
        let used = segments.values().map(|&b| b as u64).sum::<u64>();
        if used.saturating_add(bytes as u64) > self.capacity {
            lock(&self.calls).push(Refused(bytes));
            return Err(Fake::error(2));
        }
        let base = self.next.fetch_add(bytes.next_multiple_of(512) as u64, Ordering::Relaxed);
        segments.insert(base, bytes);
        lock(&self.calls).push(Alloc(bytes));
        Ok(base)
    }

    fn free(&self, ptr: u64) {
        let capturing = self.capturing.load(Ordering::Relaxed);
        assert!(!capturing || std::thread::panicking(), "a free would break the capture");
        let bytes = lock(&self.segments).remove(&ptr).expect("only what was allocated is freed, and once");
        lock(&self.calls).push(Free(bytes));
    }

    fn synchronize(&self) -> Result<()> {
        if self.capturing.load(Ordering::Relaxed) {
            return Err(Error::Capturing { op: "synchronize", device: 0 });
        }
        lock(&self.calls).push(Sync);
        let blocks = std::mem::take(&mut *lock(&self.drop_in_sync));
        drop(blocks);
        Ok(())
    }

    fn mem_info(&self) -> Result<(u64, u64)> {
        Ok((self.capacity - self.used(), self.capacity))
    }
}

/// Live blocks by address; finds overlaps.
#[derive(Default)]
struct Model(BTreeMap<u64, u64>);

impl Model {
    fn add(&mut self, block: &Block) {
        let (start, end) = (block.ptr(), block.ptr() + block.size_bytes() as u64);
        assert!(start.is_multiple_of(512), "{start:#x} is not aligned");
        if let Some((&other, &other_end)) = self.0.range(..end).next_back() {
            assert!(other_end <= start, "{start:#x}..{end:#x} overlaps {other:#x}..{other_end:#x}");
        }
        self.0.insert(start, end);
    }

    fn remove(&mut self, block: &Block) {
        self.0.remove(&block.ptr()).expect("live");
    }
}

/// xorshift64*
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }

    /// Mostly small sizes, some up to 40 MiB, with the borders of the classes among them.
    fn size(&mut self) -> usize {
        const BORDERS: [usize; 8] = [1, 512, 513, MIB, MIB + 1, 16 * MIB - 512, 16 * MIB, 32 * MIB];
        match self.below(16) {
            0 => BORDERS[self.below(8) as usize],
            1 => 1 + self.below(40 << 20) as usize,
            2..5 => 1 + self.below(4 << 20) as usize,
            _ => 1 + (self.below(1 << 10) * self.below(1 << 10)) as usize,
        }
    }
}

/// Random traffic: the blocks still live at the end.
fn churn(allocator: &Allocator, model: &Mutex<Model>, seed: u64, steps: usize) -> Vec<Block> {
    let mut rng = Rng(seed);
    let mut blocks = Vec::new();
    for step in 0..steps {
        // The target moves, so that the heap fills and drains in turn.
        let target = if step / 500 % 2 == 0 { 150 } else { 10 };
        if (blocks.len() as u64) < 1 + rng.below(target * 2) {
            let size = rng.size();
            match allocator.alloc(size) {
                Ok(block) => {
                    assert_eq!(block.size_bytes(), size);
                    lock(model).add(&block);
                    blocks.push(block);
                }
                Err(error) => assert!(matches!(error, Error::OutOfMemory { .. }), "{error}"),
            }
        } else {
            let block = blocks.swap_remove(rng.below(blocks.len() as u64) as usize);
            // Under the model's lock: once dropped, another thread may have the address.
            let mut model = lock(model);
            model.remove(&block);
            drop(block);
        }
    }
    blocks
}

fn live_bytes(blocks: &[Block]) -> u64 {
    blocks.iter().map(|b| b.size_bytes() as u64).sum()
}

#[test]
fn random_traffic_agrees_with_a_model() {
    for seed in 1..=4 {
        let fake = Fake::new(GIB);
        let allocator = fake.allocator();
        let model = Mutex::new(Model::default());
        let mut blocks = Vec::new();
        for round in 0..8 {
            blocks.extend(churn(&allocator, &model, seed * 100 + round, 1000));
            allocator.inner.lock().check();
            let stats = allocator.stats();
            assert_eq!((stats.live_count, stats.live_bytes), (blocks.len() as u64, live_bytes(&blocks)));
            assert_eq!(stats.reserved_bytes, fake.used());
            for block in blocks.drain(blocks.len() / 2..) {
                lock(&model).remove(&block);
            }
        }
        assert!(allocator.stats().alloc_count > 3000);
        drop(blocks);
        allocator.inner.lock().check();
        let stats = allocator.stats();
        assert_eq!((stats.live_count, stats.live_bytes, stats.occupied_bytes), (0, 0, 0));
        // Everything has coalesced, so everything can be given back.
        assert_eq!(allocator.empty_cache().unwrap(), stats.reserved_bytes);
        assert_eq!((fake.used(), allocator.stats().reserved_bytes), (0, 0));
        allocator.inner.lock().check();
    }
}

#[test]
fn random_traffic_of_four_threads() {
    // Small enough that threads run out, and empty the cache under each other.
    let fake = Fake::new(512 * MIB);
    let allocator = fake.allocator();
    let model = Mutex::new(Model::default());
    let mut blocks = std::thread::scope(|scope| {
        let spawn = |seed| {
            let (allocator, model) = (allocator.clone(), &model);
            scope.spawn(move || churn(&allocator, model, seed, 5000))
        };
        let threads = (11..15).map(spawn).collect::<Vec<_>>();
        threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect::<Vec<_>>()
    });
    allocator.inner.lock().check();
    let stats = allocator.stats();
    assert_eq!((stats.live_count, stats.live_bytes), (blocks.len() as u64, live_bytes(&blocks)));
    assert!(stats.retry_count > 0 && stats.driver_free_count > 0, "{stats:?}");
    // Blocks are dropped by another thread than the one that took them.
    blocks.truncate(blocks.len() / 2);
    assert_eq!(allocator.stats().live_count, blocks.len() as u64);
    drop(blocks);
    allocator.empty_cache().unwrap();
    allocator.inner.lock().check();
    assert_eq!((fake.used(), allocator.stats().live_bytes), (0, 0));
}

#[test]
fn requests_come_from_the_segment_of_their_class() {
    let fake = Fake::new(GIB);
    let allocator = fake.allocator();
    let sizes = [1, MIB, MIB + 1, 16 * MIB - 512, 16 * MIB, 33 * MIB + 1];
    let blocks = sizes.map(|bytes| allocator.alloc(bytes).unwrap());
    assert_eq!(fake.calls(), [2 * MIB, 32 * MIB, 16 * MIB, 34 * MIB].map(Alloc));
    assert_eq!(fake.segment_of(&blocks[0]), fake.segment_of(&blocks[1]));
    assert_eq!(fake.segment_of(&blocks[2]), fake.segment_of(&blocks[3]));
    allocator.inner.lock().check();
}

#[test]
fn the_best_fit_is_taken_and_split() {
    for (unit, spacer) in [(4 * KIB, 512), (2 * MIB, MIB + 512)] {
        let fake = Fake::new(GIB);
        let allocator = fake.allocator();
        let sizes = [5, 2, 4, 3].map(|n| n * unit);
        let holes = sizes.map(|bytes| (allocator.alloc(bytes).unwrap(), allocator.alloc(spacer).unwrap()));
        let (holes, _spacers): (Vec<_>, Vec<_>) = holes.into_iter().unzip();
        let at = holes.iter().map(Block::ptr).collect::<Vec<_>>();
        drop(holes);
        let first = allocator.alloc(3 * unit).unwrap();
        assert_eq!(first.ptr(), at[3], "the hole of just that size");
        let second = allocator.alloc(3 * unit - 512).unwrap();
        assert_eq!(second.ptr(), at[2], "the next larger one");
        let third = allocator.alloc(unit).unwrap();
        let rest = second.ptr() + 3 * unit as u64 - 512;
        assert_eq!(third.ptr(), rest, "what was split off");
        allocator.inner.lock().check();
    }
}

#[test]
fn the_index_finds_the_best_fit_at_any_size() {
    let fake = Fake::new(GIB);
    let allocator = fake.allocator();
    let blocks = churn(&allocator, &Mutex::default(), 21, 1400);
    let state = allocator.inner.lock();
    let mut found = 0;
    for size in (1..5000).map(|n| n * 512).chain((1..40).map(|n| n << 20)) {
        let expected = state.smallest_fit(size);
        assert_eq!(state.best_fit(size), expected, "{size}");
        found += expected.is_some() as u32;
    }
    assert!(found > 2000, "{found}");
    drop(state);
    drop(blocks);
}

#[test]
fn a_large_remainder_that_no_request_could_use_stays_with_the_block() {
    let fake = Fake::new(GIB);
    let allocator = fake.allocator();
    drop(allocator.alloc(20 * MIB).unwrap());
    let block = allocator.alloc(19 * MIB).unwrap();
    assert_eq!(allocator.stats().occupied_bytes, 20 << 20);
    drop(block);
    let _block = allocator.alloc(19 * MIB - 512).unwrap();
    assert_eq!(allocator.stats().occupied_bytes, (19 << 20) - 512);
    assert_eq!(fake.calls(), [Alloc(20 * MIB)]);
}

#[test]
fn neighbours_coalesce_in_any_order() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 2, 0], [0, 2, 1, 3], [2, 0, 3, 1]] {
        for unit in [512 * KIB, 8 * MIB] {
            let fake = Fake::new(GIB);
            let allocator = fake.allocator();
            // Four fill a segment; the next segment follows it and must stay apart.
            let mut blocks = [(); 8].map(|()| Some(allocator.alloc(unit).unwrap()));
            for index in order {
                assert_eq!(allocator.empty_cache().unwrap(), 0);
                blocks[index] = None;
                allocator.inner.lock().check();
            }
            let segment = 4 * unit;
            fake.calls();
            let whole = allocator.alloc(if unit < MIB { MIB } else { segment }).unwrap();
            assert_eq!(fake.calls(), [], "one free block");
            drop(whole);
            assert_eq!(allocator.empty_cache().unwrap(), segment as u64);
            assert_eq!(fake.calls(), [Sync, Free(segment)]);
            assert_eq!(allocator.stats().live_count, 4);
        }
    }
}

#[test]
fn a_refusal_empties_the_cache_and_retries() {
    let fake = Fake::new(100 * MIB);
    let allocator = fake.allocator();
    let kept = allocator.alloc(40 * MIB).unwrap();
    drop((allocator.alloc(30 * MIB).unwrap(), allocator.alloc(20 * MIB).unwrap()));
    fake.calls();
    let block = allocator.alloc(60 * MIB).unwrap();
    let calls = fake.calls();
    assert_eq!(calls[..2], [Refused(60 * MIB), Sync]);
    assert_eq!(calls[2..], [Free(30 * MIB), Free(20 * MIB), Alloc(60 * MIB)]);
    let stats = allocator.stats();
    assert_eq!((stats.retry_count, stats.oom_count, stats.driver_free_count), (1, 0, 2));
    assert_eq!(stats.reserved_bytes, fake.used());
    assert_ne!(fake.segment_of(&kept), fake.segment_of(&block));
    allocator.inner.lock().check();
}

#[test]
fn blocks_dropped_while_waiting_serve_the_request() {
    let fake = Fake::new(100 * MIB);
    let allocator = fake.allocator();
    let queued = allocator.alloc(80 * MIB).unwrap();
    let at = queued.ptr();
    lock(&fake.drop_in_sync).push(queued);
    assert_eq!(allocator.alloc(80 * MIB).unwrap().ptr(), at);
    assert_eq!(fake.calls(), [Alloc(80 * MIB), Refused(80 * MIB), Sync]);
}

#[test]
fn a_shared_segment_that_does_not_fit_shrinks() {
    let fake = Fake::new(10 * MIB);
    let allocator = fake.allocator();
    let block = allocator.alloc(5 * MIB).unwrap();
    assert_eq!(fake.calls(), [Refused(32 * MIB), Sync, Refused(32 * MIB), Alloc(6 * MIB)]);
    assert_eq!(fake.segment_of(&block), block.ptr());
}

#[test]
fn out_of_memory_says_what_is_where_and_passes() {
    let fake = Fake::new(100 * MIB);
    let allocator = fake.allocator();
    let sizes = [20 * MIB, 1000, 18 * MIB + 1, 17 * MIB, 3, MIB, 2000];
    let mut blocks = sizes.map(|bytes| allocator.alloc(bytes).unwrap()).into_iter().collect::<Vec<_>>();
    drop(allocator.alloc(16 * MIB).unwrap());
    let error = allocator.alloc(50 * MIB + 3).unwrap_err();
    let Error::OutOfMemory {
        device,
        requested_bytes,
        free_bytes,
        total_bytes,
        live_bytes,
        reserved_bytes,
        live_count,
        largest_bytes,
    } = &error
    else {
        panic!("{error}")
    };
    let reserved = (20 + 20 + 18 + 2) << 20; // 18 MiB + 1 takes 20; the free 16 MiB were given back
    assert_eq!((device.as_str(), *requested_bytes), ("cuda:0 (fake)", (50 << 20) + 3));
    assert_eq!((*free_bytes, *total_bytes, *reserved_bytes), ((100 << 20) - reserved, 100 << 20, reserved));
    assert_eq!((*live_bytes, *live_count), (sizes.iter().sum::<usize>() as u64, 7));
    assert_eq!(*largest_bytes, [20 << 20, (18 << 20) + 1, 17 << 20, 1 << 20, 2000]);
    assert_eq!(allocator.stats().oom_count, 1);
    // It goes on working, and the same request passes once there is room.
    drop(allocator.alloc(MIB).unwrap());
    blocks.drain(..1);
    drop(allocator.alloc(50 * MIB + 3).unwrap());
    allocator.inner.lock().check();
}

#[test]
fn a_request_beyond_the_device_leaves_the_cache() {
    let fake = Fake::new(100 * MIB);
    let allocator = fake.allocator();
    drop(allocator.alloc(64 * MIB).unwrap());
    fake.calls();
    assert!(matches!(allocator.alloc(101 * MIB), Err(Error::OutOfMemory { .. })));
    assert_eq!(fake.calls(), [Refused(102 * MIB)]);
    for bytes in [usize::MAX, usize::MAX - 511, usize::MAX - 512, usize::MAX - 2 * MIB, usize::MAX / 2] {
        let error = allocator.alloc(bytes).unwrap_err();
        let Error::OutOfMemory { requested_bytes, .. } = error else { panic!("{error}") };
        assert_eq!(requested_bytes, bytes as u64);
    }
    assert!(!fake.calls().iter().any(|call| matches!(call, Free(_) | Sync | Alloc(_))));
    drop(allocator.alloc(64 * MIB).unwrap());
    assert_eq!(fake.calls(), [], "still cached");
}

#[test]
fn other_driver_errors_pass_through() {
    let fake = Fake::new(GIB);
    let allocator = fake.allocator();
    fake.broken.store(true, Ordering::Relaxed);
    assert!(matches!(allocator.alloc(1), Err(Error::Cuda { code: 700, .. })));
    assert_eq!((fake.calls(), allocator.stats()), (vec![], MemoryStats::default()));
    fake.broken.store(false, Ordering::Relaxed);
    assert!(allocator.alloc(1).is_ok());
}

#[test]
fn zero_bytes_take_nothing() {
    let fake = Fake::new(GIB);
    let allocator = fake.allocator();
    let block = allocator.alloc(0).unwrap();
    assert_eq!((block.ptr(), block.size_bytes()), (0, 0));
    assert_eq!((allocator.stats(), fake.calls()), (MemoryStats::default(), vec![]));
    drop(block);
    assert_eq!(allocator.stats(), MemoryStats::default());
}

#[test]
fn statistics_are_flat_over_cycles() {
    let fake = Fake::new(GIB);
    let allocator = fake.allocator();
    let cycle = || {
        let mut blocks = Vec::new();
        let mut rng = Rng(7);
        for _ in 0..200 {
            blocks.push(allocator.alloc(rng.size()).unwrap());
            if rng.below(3) == 0 {
                blocks.swap_remove(rng.below(blocks.len() as u64) as usize);
            }
        }
    };
    cycle();
    let first = allocator.stats();
    for _ in 0..50 {
        cycle();
    }
    let last = allocator.stats();
    assert!(first.peak_live_bytes > 0);
    assert_eq!(last, MemoryStats { alloc_count: first.alloc_count * 51, ..first });
}

#[test]
fn peaks_can_be_reset() {
    let fake = Fake::new(GIB);
    let allocator = fake.allocator();
    let small = allocator.alloc(1000).unwrap();
    drop(allocator.alloc(20 * MIB).unwrap());
    let peaks = || (allocator.stats().peak_live_bytes, allocator.stats().peak_reserved_bytes);
    assert_eq!(peaks(), ((20 << 20) + 1000, 22 << 20));
    assert_eq!(allocator.empty_cache().unwrap(), 20 << 20);
    allocator.reset_peak();
    assert_eq!(peaks(), (1000, 2 << 20));
    drop(small);
    assert_eq!((peaks(), allocator.stats().live_bytes), ((1000, 2 << 20), 0));
}

#[test]
fn the_end_gives_everything_back() {
    let fake = Fake::new(GIB);
    let allocator = fake.allocator();
    let last = allocator.alloc(10).unwrap();
    drop(allocator.alloc(20 * MIB).unwrap());
    drop(allocator);
    assert_eq!(fake.used(), 22 << 20, "a live block keeps the allocator");
    fake.calls();
    drop(last);
    assert_eq!(fake.used(), 0);
    assert_eq!(fake.calls()[0], Sync);
}

#[test]
fn a_pool_keeps_its_addresses() {
    let fake = Fake::new(GIB);
    let allocator = fake.allocator();
    let outside = allocator.alloc(KIB).unwrap();
    let pool = allocator.begin_pool();
    let captured = [KIB, 3 * MIB].map(|bytes| allocator.alloc(bytes).unwrap());
    let elsewhere = std::thread::scope(|s| s.spawn(|| allocator.alloc(KIB).unwrap()).join().unwrap());
    allocator.end_pool(pool);
    let segments = captured.each_ref().map(|b| fake.segment_of(b));
    assert!(!segments.contains(&fake.segment_of(&outside)));
    assert_eq!(fake.segment_of(&elsewhere), fake.segment_of(&outside), "another thread is not in the pool");
    let at = captured.each_ref().map(Block::ptr);
    std::thread::scope(|s| s.spawn(|| drop(captured)).join().unwrap());
    // Nobody else gets the graph's memory: not a request that would fit, not one that is short of memory.
    let others = [KIB, MIB, 3 * MIB, 30 * MIB].map(|bytes| allocator.alloc(bytes).unwrap());
    assert!(others.iter().all(|b| !segments.contains(&fake.segment_of(b))));
    drop(others);
    assert!(matches!(allocator.alloc(GIB - MIB), Err(Error::OutOfMemory { .. })));
    assert_eq!(allocator.stats().private_bytes, 34 << 20);
    assert_eq!(fake.used(), 36 << 20, "only the pool and the segment of the live blocks are left");
    // The next capture in the pool gets it again.
    allocator.resume_pool(pool);
    assert_eq!([KIB, 3 * MIB].map(|bytes| allocator.alloc(bytes).unwrap().ptr()), at);
    allocator.end_pool(pool);
    allocator.inner.lock().check();
}

#[test]
fn pools_do_not_share() {
    let fake = Fake::new(GIB);
    let allocator = fake.allocator();
    let outer = allocator.begin_pool();
    let a = allocator.alloc(KIB).unwrap();
    let inner = allocator.begin_pool();
    let b = allocator.alloc(KIB).unwrap();
    allocator.end_pool(inner);
    let c = allocator.alloc(KIB).unwrap();
    allocator.end_pool(outer);
    assert_ne!(fake.segment_of(&a), fake.segment_of(&b));
    assert_eq!(fake.segment_of(&a), fake.segment_of(&c));
    // A pool of one allocator says nothing about another one.
    let other = Fake::new(GIB).allocator();
    let pool = allocator.begin_pool();
    let foreign = other.alloc(KIB).unwrap();
    assert_eq!(other.stats().private_bytes, 0);
    drop(foreign);
    other.release_pool(pool);
    let d = allocator.alloc(KIB).unwrap();
    allocator.end_pool(pool);
    assert!(![&a, &b].iter().any(|x| fake.segment_of(x) == fake.segment_of(&d)));
    allocator.end_pool(pool); // a second end does nothing
    let e = allocator.alloc(KIB).unwrap();
    assert!(![&a, &b, &d].iter().any(|x| fake.segment_of(x) == fake.segment_of(&e)));
}

#[test]
fn a_released_pool_joins_the_global_one() {
    let fake = Fake::new(GIB);
    let allocator = fake.allocator();
    let pool = allocator.begin_pool();
    let live = allocator.alloc(KIB).unwrap();
    drop(allocator.alloc(20 * MIB).unwrap());
    allocator.release_pool(pool);
    allocator.inner.lock().check();
    assert_eq!((allocator.stats().private_bytes, allocator.stats().live_count), (0, 1));
    // Free memory is for everyone, the live block is left alone; the thread that is still inside allocates
    // globally.
    fake.calls();
    let shared = allocator.alloc(20 * MIB).unwrap();
    let small = allocator.alloc(KIB).unwrap();
    assert_eq!(fake.segment_of(&small), fake.segment_of(&live));
    assert_ne!(small.ptr(), live.ptr());
    assert_eq!((fake.calls(), allocator.stats().private_bytes), (vec![], 0));
    drop((shared, small));
    assert_eq!(allocator.empty_cache().unwrap(), 20 << 20);
    drop(live);
    assert_eq!(allocator.empty_cache().unwrap(), 2 << 20);
    allocator.release_pool(pool); // a second release does nothing
    allocator.end_pool(pool);
    // The slot is used again, the name is not.
    let next = allocator.begin_pool();
    assert_ne!(next, pool);
    let inside = allocator.alloc(KIB).unwrap();
    allocator.release_pool(pool);
    assert_eq!(allocator.stats().private_bytes, 2 << 20);
    allocator.end_pool(next);
    drop(inside);
    allocator.inner.lock().check();
}

#[test]
fn a_pool_takes_cached_segments_before_new_ones() {
    let fake = Fake::new(100 * MIB);
    let allocator = fake.allocator();
    let in_use = allocator.alloc(40 * MIB).unwrap();
    drop((
        allocator.alloc(30 * MIB).unwrap(),
        allocator.alloc(20 * MIB).unwrap(),
        allocator.alloc(1).unwrap(),
    ));
    fake.calls();
    let pool = allocator.begin_pool();
    fake.capturing.store(true, Ordering::Relaxed);
    let captured = [KIB, 20 * MIB].map(|bytes| allocator.alloc(bytes).unwrap());
    assert_eq!((fake.calls(), allocator.stats().private_bytes), (vec![], 22 << 20), "the best-fitting ones");
    allocator.inner.lock().check();
    // Under capture the cache cannot be emptied; what is there stays, and the error is the usual one.
    assert!(matches!(allocator.alloc(31 * MIB), Err(Error::OutOfMemory { .. })));
    assert_eq!(fake.calls(), [Refused(32 * MIB)]);
    assert!(allocator.alloc(30 * MIB).is_ok());
    fake.capturing.store(false, Ordering::Relaxed);
    allocator.end_pool(pool);
    drop((captured, in_use));
    assert_eq!(allocator.empty_cache().unwrap(), 40 << 20, "the pool's are not given back");
    allocator.release_pool(pool);
    assert_eq!(allocator.empty_cache().unwrap(), 52 << 20);
}

#[test]
fn empty_cache_fails_with_the_device_and_keeps_its_memory() {
    let fake = Fake::new(GIB);
    let allocator = fake.allocator();
    drop(allocator.alloc(1).unwrap());
    fake.capturing.store(true, Ordering::Relaxed);
    assert!(matches!(allocator.empty_cache(), Err(Error::Capturing { .. })));
    assert_eq!(allocator.stats().reserved_bytes, 2 << 20);
    fake.capturing.store(false, Ordering::Relaxed);
}

#[test]
fn exact_mode_gives_every_block_an_allocation_of_its_size() {
    let fake = Fake::new(1 << 20);
    let memory = Allocator::exact("cuda:0 (fake)", Box::new(Arc::clone(&fake)));
    let (a, b) = (memory.alloc(3).unwrap(), memory.alloc(700_000).unwrap());
    assert_eq!(fake.calls(), [Alloc(3), Alloc(700_000)]);
    assert_ne!(a.ptr(), b.ptr());
    drop(a);
    assert_eq!(fake.calls(), [Free(3)], "nothing is kept");
    // Too much at first; what a wait drops makes room.
    lock(&fake.drop_in_sync).push(b);
    let c = memory.alloc(600_000).unwrap();
    assert_eq!(fake.calls(), [Refused(600_000), Sync, Free(700_000), Alloc(600_000)]);
    let stats = memory.stats();
    assert_eq!((stats.live_bytes, stats.live_count, stats.retry_count), (600_000, 1, 1));
    drop(c);
    assert_eq!(memory.stats().reserved_bytes, 0);

    // A graph's blocks stay as long as its pool.
    let pool = memory.begin_pool();
    let (d, e) = (memory.alloc(1000).unwrap(), memory.alloc(2000).unwrap());
    drop(d);
    let f = memory.alloc(500).unwrap();
    memory.end_pool(pool);
    drop(f);
    fake.calls();
    memory.release_pool(pool);
    let mut freed = fake.calls();
    freed.sort_by_key(|call| if let Free(bytes) = call { *bytes } else { 0 });
    assert_eq!(freed, [Free(500), Free(1000)]);
    drop(e);
    assert_eq!(fake.calls(), [Free(2000)]);
    memory.inner.lock().check();
}
