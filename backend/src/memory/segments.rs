//! The allocator's books: segments, the blocks that cover them, and an index of the free ones. Plain data
//! under the allocator's lock; no driver call. The rules are told in the module's header.

use std::collections::BTreeMap;

use super::{MemoryStats, PoolId};

/// Sizes and addresses are multiples of this. CUDA's own allocations are aligned to it, and 16-byte vector
/// accesses and TMA descriptors ask for less.
pub(super) const ALIGN: u64 = 512;
/// The largest small request.
pub(super) const SMALL_MAX: u64 = 1 << 20;
/// The segment that small requests share.
pub(super) const SMALL_SEGMENT: u64 = 2 << 20;
/// The segment that middle-sized requests share.
pub(super) const LARGE_SHARED: u64 = 32 << 20;
/// No node.
pub(super) const NIL: u32 = u32::MAX;
/// The slot of the pool that everyone uses.
const GLOBAL: u32 = 0;
/// One bin for each size that a free block of a small segment can have.
const BINS: usize = (SMALL_SEGMENT / ALIGN) as usize;

/// A block. `prev` and `next` are its neighbours in the segment.
struct Node {
    addr: u64,
    bytes: u64,
    /// Bytes asked for; 0 while the block is free.
    requested: u64,
    segment: u32,
    prev: u32,
    next: u32,
    /// Links of the bin's list, while the block is free and small.
    bin_prev: u32,
    bin_next: u32,
}

/// What was taken from the driver in one call; a vacant entry has zero bytes.
struct Segment {
    base: u64,
    bytes: u64,
    pool: u32,
    small: bool,
    /// The block at `base`: blocks join into the one before, so it stays.
    first: u32,
}

/// The free blocks of a pool.
struct Pool {
    generation: u32,
    small: SmallBins,
    /// `(bytes, addr)` to node: the first entry from `(size, 0)` on is the best fit.
    large: BTreeMap<(u64, u64), u32>,
}

/// Lists of equal-sized free blocks, with a bit per list and a bit per word of bits.
struct SmallBins {
    heads: Box<[u32]>,
    bits: [u64; BINS / 64],
    summary: u64,
}
const _: () = assert!(BINS == 64 * 64, "one summary word covers the bins");

pub(super) struct State {
    nodes: Vec<Node>,
    spare_nodes: Vec<u32>,
    segments: Vec<Segment>,
    spare_segments: Vec<u32>,
    pools: Vec<Pool>,
    spare_pools: Vec<u32>,
    pub(super) stats: MemoryStats,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            spare_nodes: Vec::new(),
            segments: Vec::new(),
            spare_segments: Vec::new(),
            pools: vec![Pool::new()],
            spare_pools: Vec::new(),
            stats: MemoryStats::default(),
        }
    }

    /// Makes the best-fitting free block of the pool live and cuts off what it does not need.
    pub(super) fn take(&mut self, slot: u32, size: u64, requested: u64) -> Option<(u32, u64)> {
        let small = size <= SMALL_MAX;
        let pool = &self.pools[slot as usize];
        let id = if small { pool.small.best_fit(size) } else { pool.large_fit(size) }?;
        Some(self.occupy(id, size, requested))
    }

    /// Makes a free block live and cuts off what is not needed.
    pub(super) fn occupy(&mut self, id: u32, size: u64, requested: u64) -> (u32, u64) {
        let small = size <= SMALL_MAX;
        self.unlink(id);
        let node = &self.nodes[id as usize];
        let rest = node.bytes - size;
        // A large block keeps a rest that only small requests could use.
        if rest > if small { 0 } else { SMALL_MAX } {
            let (addr, segment, next) = (node.addr + size, node.segment, node.next);
            let tail = self.add_node(Node { prev: id, next, ..Node::free(addr, rest, segment) });
            if next != NIL {
                self.nodes[next as usize].prev = tail;
            }
            let node = &mut self.nodes[id as usize];
            node.next = tail;
            node.bytes = size;
            self.link(tail);
        }
        let node = &mut self.nodes[id as usize];
        node.requested = requested;
        let stats = &mut self.stats;
        stats.occupied_bytes += node.bytes;
        stats.live_bytes += requested;
        stats.peak_live_bytes = stats.peak_live_bytes.max(stats.live_bytes);
        stats.live_count += 1;
        stats.alloc_count += 1;
        (id, node.addr)
    }

    /// Makes a live block free and joins it with its free neighbours.
    pub(super) fn give_back(&mut self, mut id: u32) {
        let node = &mut self.nodes[id as usize];
        debug_assert!(!node.is_free(), "a block is given back once");
        self.stats.occupied_bytes -= node.bytes;
        self.stats.live_bytes -= node.requested;
        self.stats.live_count -= 1;
        node.requested = 0;
        let (prev, next) = (node.prev, node.next);
        if next != NIL && self.nodes[next as usize].is_free() {
            self.unlink(next);
            self.join(id, next);
        }
        if prev != NIL && self.nodes[prev as usize].is_free() {
            self.unlink(prev);
            self.join(prev, id);
            id = prev;
        }
        self.link(id);
    }

    /// Adds what the driver returned as one free block, which it returns.
    pub(super) fn add_segment(&mut self, slot: u32, base: u64, bytes: u64, small: bool) -> u32 {
        debug_assert!(base.is_multiple_of(ALIGN), "the driver aligns to {ALIGN}");
        let id = self.spare_segments.pop().unwrap_or(self.segments.len() as u32);
        let first = self.add_node(Node::free(base, bytes, id));
        let segment = Segment { base, bytes, pool: slot, small, first };
        if id as usize == self.segments.len() {
            self.segments.push(segment);
        } else {
            self.segments[id as usize] = segment;
        }
        self.link(first);
        let stats = &mut self.stats;
        stats.driver_alloc_count += 1;
        stats.reserved_bytes += bytes;
        stats.peak_reserved_bytes = stats.peak_reserved_bytes.max(stats.reserved_bytes);
        if slot != GLOBAL {
            stats.private_bytes += bytes;
        }
        first
    }

    /// Moves the smallest wholly free segment of the global pool that fits to the private pool in `slot`. A
    /// linear search: it runs where the alternative is a driver call.
    pub(super) fn adopt(&mut self, slot: u32, size: u64) -> bool {
        if slot == GLOBAL {
            return false;
        }
        let fits = |s: &Segment| s.small == (size <= SMALL_MAX) && s.bytes >= size && self.is_cached(s);
        let candidates = self.segments.iter().enumerate().filter(|(_, s)| fits(s));
        let Some((index, _)) = candidates.min_by_key(|(_, s)| (s.bytes, s.base)) else { return false };
        let Segment { first, bytes, .. } = self.segments[index];
        self.unlink(first);
        self.segments[index].pool = slot;
        self.link(first);
        self.stats.private_bytes += bytes;
        true
    }

    /// Takes the wholly free segments of the global pool out of the books: `(base, bytes)` of each.
    pub(super) fn detach_free_segments(&mut self) -> Vec<(u64, u64)> {
        let cached =
            (0..self.segments.len()).filter(|&i| self.is_cached(&self.segments[i])).collect::<Vec<_>>();
        let mut detached = Vec::with_capacity(cached.len());
        for index in cached {
            let Segment { base, bytes, first, .. } = self.segments[index];
            self.unlink(first);
            self.spare_nodes.push(first);
            self.segments[index].bytes = 0;
            self.spare_segments.push(index as u32);
            self.stats.reserved_bytes -= bytes;
            self.stats.driver_free_count += 1;
            detached.push((base, bytes));
        }
        detached
    }

    /// The bases of all segments, for the end of the allocator.
    pub(super) fn segment_bases(&self) -> Vec<u64> {
        self.segments.iter().filter(|s| s.bytes != 0).map(|s| s.base).collect()
    }

    /// The slot to allocate from: the global one outside a pool, and for a pool that has been released.
    pub(super) fn slot(&self, pool: Option<PoolId>) -> u32 {
        match pool {
            Some(id) if self.pools[id.slot as usize].generation == id.generation => id.slot,
            _ => GLOBAL,
        }
    }

    /// Slot and generation of a new private pool.
    pub(super) fn add_pool(&mut self) -> (u32, u32) {
        let slot = self.spare_pools.pop().unwrap_or_else(|| {
            self.pools.push(Pool::new());
            (self.pools.len() - 1) as u32
        });
        (slot, self.pools[slot as usize].generation)
    }

    /// Moves the pool's segments to the global pool.
    pub(super) fn release_pool(&mut self, pool: PoolId) {
        let slot = self.slot(Some(pool));
        if slot == GLOBAL {
            return;
        }
        for index in 0..self.segments.len() {
            if self.segments[index].pool != slot || self.segments[index].bytes == 0 {
                continue;
            }
            self.move_segment(index, GLOBAL);
            self.stats.private_bytes -= self.segments[index].bytes;
        }
        self.pools[slot as usize].generation += 1;
        self.spare_pools.push(slot);
    }

    /// Requested sizes of the largest live blocks, largest first. Linear: for an error report.
    pub(super) fn largest_live(&self, count: usize) -> Vec<u64> {
        let mut sizes = Vec::new();
        for segment in self.segments.iter().filter(|s| s.bytes != 0) {
            sizes
                .extend(self.blocks(segment).map(|id| self.nodes[id as usize].requested).filter(|&b| b != 0));
        }
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes.truncate(count);
        sizes
    }

    fn move_segment(&mut self, index: usize, slot: u32) {
        let free = self.blocks(&self.segments[index]).filter(|&id| self.nodes[id as usize].is_free());
        let free = free.collect::<Vec<_>>();
        for &id in &free {
            self.unlink(id);
        }
        self.segments[index].pool = slot;
        for &id in &free {
            self.link(id);
        }
    }

    /// Whether the segment is wholly free and in the global pool.
    fn is_cached(&self, segment: &Segment) -> bool {
        let first = || &self.nodes[segment.first as usize];
        segment.bytes != 0 && segment.pool == GLOBAL && first().is_free() && first().next == NIL
    }

    /// The blocks of a segment by address.
    fn blocks(&self, segment: &Segment) -> impl Iterator<Item = u32> + '_ {
        let next = |id: &u32| Some(self.nodes[*id as usize].next).filter(|&id| id != NIL);
        std::iter::successors(Some(segment.first), next)
    }

    fn add_node(&mut self, node: Node) -> u32 {
        if let Some(id) = self.spare_nodes.pop() {
            self.nodes[id as usize] = node;
            return id;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Lengthens `head` by the block behind it. Neither is in the index.
    fn join(&mut self, head: u32, tail: u32) {
        let Node { bytes, next, .. } = self.nodes[tail as usize];
        let node = &mut self.nodes[head as usize];
        node.bytes += bytes;
        node.next = next;
        if next != NIL {
            self.nodes[next as usize].prev = head;
        }
        self.spare_nodes.push(tail);
    }

    /// Adds a free block to the index of its pool.
    fn link(&mut self, id: u32) {
        let Node { addr, bytes, segment, .. } = self.nodes[id as usize];
        let segment = &self.segments[segment as usize];
        let pool = &mut self.pools[segment.pool as usize];
        if segment.small {
            pool.small.push(&mut self.nodes, id);
        } else {
            pool.large.insert((bytes, addr), id);
        }
    }

    /// Takes a free block out of the index of its pool.
    fn unlink(&mut self, id: u32) {
        let Node { addr, bytes, segment, .. } = self.nodes[id as usize];
        let segment = &self.segments[segment as usize];
        let pool = &mut self.pools[segment.pool as usize];
        if segment.small {
            pool.small.remove(&mut self.nodes, id);
        } else {
            pool.large.remove(&(bytes, addr));
        }
    }
}

impl Node {
    fn free(addr: u64, bytes: u64, segment: u32) -> Self {
        Self { addr, bytes, requested: 0, segment, prev: NIL, next: NIL, bin_prev: NIL, bin_next: NIL }
    }

    fn is_free(&self) -> bool {
        self.requested == 0
    }
}

impl Pool {
    fn new() -> Self {
        Self { generation: 0, small: SmallBins::new(), large: BTreeMap::new() }
    }

    fn large_fit(&self, size: u64) -> Option<u32> {
        self.large.range((size, 0)..).next().map(|(_, &id)| id)
    }
}

impl SmallBins {
    fn new() -> Self {
        Self { heads: vec![NIL; BINS].into_boxed_slice(), bits: [0; BINS / 64], summary: 0 }
    }

    fn bin(bytes: u64) -> usize {
        (bytes / ALIGN) as usize - 1
    }

    /// The head of the first list, from that of `size` on, that is not empty.
    fn best_fit(&self, size: u64) -> Option<u32> {
        let bin = Self::bin(size);
        let mut word = bin / 64;
        let mut bits = self.bits[word] & (!0 << (bin % 64));
        if bits == 0 {
            let later = self.summary & (!0u64).checked_shl(word as u32 + 1).unwrap_or(0);
            if later == 0 {
                return None;
            }
            word = later.trailing_zeros() as usize;
            bits = self.bits[word];
        }
        Some(self.heads[word * 64 + bits.trailing_zeros() as usize])
    }

    fn push(&mut self, nodes: &mut [Node], id: u32) {
        let bin = Self::bin(nodes[id as usize].bytes);
        let head = std::mem::replace(&mut self.heads[bin], id);
        let node = &mut nodes[id as usize];
        node.bin_prev = NIL;
        node.bin_next = head;
        if head != NIL {
            nodes[head as usize].bin_prev = id;
        }
        self.bits[bin / 64] |= 1 << (bin % 64);
        self.summary |= 1 << (bin / 64);
    }

    fn remove(&mut self, nodes: &mut [Node], id: u32) {
        let Node { bytes, bin_prev: prev, bin_next: next, .. } = nodes[id as usize];
        if next != NIL {
            nodes[next as usize].bin_prev = prev;
        }
        if prev != NIL {
            nodes[prev as usize].bin_next = next;
            return;
        }
        let bin = Self::bin(bytes);
        self.heads[bin] = next;
        if next == NIL {
            self.bits[bin / 64] &= !(1 << (bin % 64));
            if self.bits[bin / 64] == 0 {
                self.summary &= !(1 << (bin / 64));
            }
        }
    }
}

/// The next multiple of `step`; `None` if it does not fit.
pub(super) fn round_up(bytes: u64, step: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(step)
}

#[cfg(test)]
impl State {
    /// The bytes of the smallest free block of the global pool that fits, found by looking at all.
    pub(super) fn smallest_fit(&self, size: u64) -> Option<u64> {
        let segments = self.segments.iter().filter(|s| s.bytes != 0 && s.pool == GLOBAL);
        let segments = segments.filter(|s| s.small == (size <= SMALL_MAX));
        let nodes = segments.flat_map(|s| self.blocks(s)).map(|id| &self.nodes[id as usize]);
        nodes.filter(|n| n.is_free() && n.bytes >= size).map(|n| n.bytes).min()
    }

    /// The bytes of the block that a request would be cut from.
    pub(super) fn best_fit(&self, size: u64) -> Option<u64> {
        let pool = &self.pools[GLOBAL as usize];
        let id = if size <= SMALL_MAX { pool.small.best_fit(size) } else { pool.large_fit(size) };
        id.map(|id| self.nodes[id as usize].bytes)
    }

    /// Checks every invariant of the books.
    pub(super) fn check(&self) {
        let (mut occupied, mut live, mut live_count, mut reserved, mut private) = (0, 0, 0, 0, 0);
        let (mut free_small, mut free_large, mut node_count) = (0, 0, 0);
        for (index, segment) in self.segments.iter().enumerate().filter(|(_, s)| s.bytes != 0) {
            reserved += segment.bytes;
            private += if segment.pool == GLOBAL { 0 } else { segment.bytes };
            let pool = &self.pools[segment.pool as usize];
            let (mut at, mut before, mut before_free) = (segment.base, NIL, false);
            for id in self.blocks(segment) {
                let node = &self.nodes[id as usize];
                node_count += 1;
                assert_eq!(
                    (node.addr, node.prev, node.segment),
                    (at, before, index as u32),
                    "blocks are in line"
                );
                assert!(
                    node.bytes > 0 && node.bytes.is_multiple_of(ALIGN) && node.addr.is_multiple_of(ALIGN)
                );
                if node.is_free() {
                    assert!(!before_free, "free neighbours are joined");
                    if segment.small {
                        free_small += 1;
                        assert!(
                            pool.small.list(&self.nodes, node.bytes).contains(&id),
                            "free blocks are indexed"
                        );
                    } else {
                        free_large += 1;
                        assert_eq!(
                            pool.large.get(&(node.bytes, node.addr)),
                            Some(&id),
                            "free blocks are indexed"
                        );
                    }
                } else {
                    assert!(node.requested <= node.bytes);
                    occupied += node.bytes;
                    live += node.requested;
                    live_count += 1;
                }
                (at, before, before_free) = (at + node.bytes, id, node.is_free());
            }
            assert_eq!(at, segment.base + segment.bytes, "blocks cover their segment");
        }
        let mut indexed_small = 0;
        for pool in &self.pools {
            for bin in 0..BINS {
                let list = pool.small.list(&self.nodes, (bin as u64 + 1) * ALIGN);
                indexed_small += list.len();
                assert_eq!(pool.small.bits[bin / 64] >> (bin % 64) & 1 == 1, !list.is_empty());
            }
            for word in 0..BINS / 64 {
                assert_eq!(pool.small.summary >> word & 1 == 1, pool.small.bits[word] != 0);
            }
        }
        assert_eq!(indexed_small, free_small, "only free blocks are indexed");
        assert_eq!(self.pools.iter().map(|p| p.large.len()).sum::<usize>(), free_large);
        assert_eq!(self.nodes.len(), node_count + self.spare_nodes.len(), "no node is lost");
        let s = &self.stats;
        assert_eq!((s.occupied_bytes, s.live_bytes, s.live_count), (occupied, live, live_count));
        assert_eq!((s.reserved_bytes, s.private_bytes), (reserved, private));
    }
}

#[cfg(test)]
impl SmallBins {
    fn list(&self, nodes: &[Node], bytes: u64) -> Vec<u32> {
        let some = |id: u32| Some(id).filter(|&id| id != NIL);
        let head = some(self.heads[Self::bin(bytes)]);
        std::iter::successors(head, |&id| some(nodes[id as usize].bin_next)).collect()
    }
}
