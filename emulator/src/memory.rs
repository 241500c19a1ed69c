//! Memory of the emulated devices, and what is known of each of its bytes.
//!
//! Every device has an arena of address space; allocations lie in it with gaps between them, and an address is not used
//! again soon after it was freed. Beside the arena lie shadows: for each byte, whether it belongs to an allocation and
//! has been written, and who read and wrote it last. They are reserved, not filled: only pages in use take memory.
//!
//! Page-locked host memory has an arena, too; the host writes to it unseen, so there only bounds are checked.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of a device.
const DEVICE_BYTES: u64 = 4 << 30;
/// Bytes of host memory that can be page-locked.
const HOST_BYTES: u64 = 4 << 30;
/// Devices that there can be.
pub(crate) const MAX_DEVICES: u32 = 8;
/// Addresses that `alloc` gives are multiples of this.
const ALIGN: u64 = 512;
/// No allocation comes closer than this to the one before.
const GAP: u64 = 512;

/// Where an allocation lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Memory of this device.
    Device(u32),
    /// Page-locked host memory that every device can address.
    Host,
}

/// What an access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// A plain load.
    Read,
    /// A plain store.
    Write,
    /// A read-modify-write that other threads cannot come between.
    Atomic,
}

/// A byte that belongs to no allocation.
const OUTSIDE: u8 = 0;
/// A byte of an allocation that nobody has written.
const FRESH: u8 = 1;
/// A byte with a value.
const WRITTEN: u8 = 2;

/// Who accessed a byte last: launch, block, thread of the block, and the barriers that the block had passed. 0 is nobody.
///
/// Launches are counted to 2^20 and then the shadows are cleared; blocks are told apart up to 2^20, barriers up to 2^13.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
struct Mark(u64);

impl Mark {
    /// Several blocks.
    const BLOCKS: u64 = (1 << 20) - 1;
    /// Several threads of one block.
    const THREADS: u64 = 1 << 10;

    fn new(by: &Accessor) -> Self {
        let block = by.block as u64 % Self::BLOCKS;
        Mark((by.launch as u64) << 44 | block << 24 | (by.thread as u64) << 13 | by.epoch as u64 & 0x1fff)
    }

    fn launch(self) -> u64 {
        self.0 >> 44
    }

    fn block(self) -> u64 {
        self.0 >> 24 & Self::BLOCKS
    }

    fn thread(self) -> u64 {
        self.0 >> 13 & 0x7ff
    }

    fn epoch(self) -> u64 {
        self.0 & 0x1fff
    }

    /// The mark that stands for this load and an earlier one.
    fn joined(self, earlier: Mark) -> Self {
        if earlier.launch() != self.launch() {
            return self;
        }
        if earlier.block() != self.block() {
            return Mark(self.0 | Self::BLOCKS << 24);
        }
        if earlier.epoch() == self.epoch() && earlier.thread() != self.thread() {
            return Mark(self.0 & !(0x7ff << 13) | Self::THREADS << 13);
        }
        self
    }

    /// Whether nothing orders this access before a later one of the same launch.
    #[inline]
    fn unordered(self, later: Mark) -> bool {
        if self.0 == 0 || self.launch() != later.launch() {
            return false;
        }
        self.block() != later.block() || (self.thread() != later.thread() && self.epoch() == later.epoch())
    }
}

/// Address space of one place.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) place: Place,
    base: u64,
    bytes: u64,
    /// One state a byte; empty for host memory.
    states: *mut u8,
    /// The last plain store, load and atomic of each byte.
    stores: *mut Mark,
    loads: *mut Mark,
    atomics: *mut Mark,
    books: Mutex<Books>,
}

// SAFETY: the shadows are plain memory that lives as long as the process; they are used under the execution lock, or under
// `books` for bytes that no running kernel may touch.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

#[derive(Debug)]
struct Books {
    /// Bytes of each allocation by address.
    live: BTreeMap<u64, u64>,
    /// Freed allocations, the latest last, for messages.
    freed: Vec<(u64, u64)>,
    used: u64,
    next: u64,
}

/// Address space without pages.
fn reserve(bytes: u64) -> u64 {
    // SAFETY: a fresh private mapping at an address of the kernel's choice; length and flags are valid.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert!(at != libc::MAP_FAILED, "the emulator cannot reserve {bytes} bytes of address space");
    at as u64
}

/// Gives the pages of a range back, which then read as zero; the ends are cleared by hand.
fn clear(at: u64, bytes: u64) {
    const PAGE: u64 = 4096;
    let (first, last) = (at.next_multiple_of(PAGE), (at + bytes) / PAGE * PAGE);
    // SAFETY: the caller owns the range, which lies within one arena or shadow.
    unsafe {
        if first >= last {
            ptr::write_bytes(at as *mut u8, 0, bytes as usize);
        } else {
            ptr::write_bytes(at as *mut u8, 0, (first - at) as usize);
            libc::madvise(first as *mut libc::c_void, (last - first) as usize, libc::MADV_DONTNEED);
            ptr::write_bytes(last as *mut u8, 0, (at + bytes - last) as usize);
        }
    }
}

impl Arena {
    fn new(place: Place) -> Self {
        let shadowed = place != Place::Host;
        let bytes = if shadowed { DEVICE_BYTES } else { HOST_BYTES };
        let shadow = |each: u64| if shadowed { reserve(bytes * each) } else { 0 };
        let base = reserve(bytes);
        Arena {
            place,
            base,
            bytes,
            states: shadow(1) as *mut u8,
            stores: shadow(8) as *mut Mark,
            loads: shadow(8) as *mut Mark,
            atomics: shadow(8) as *mut Mark,
            books: Mutex::new(Books { live: BTreeMap::new(), freed: Vec::new(), used: 0, next: base }),
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.bytes
    }

    /// The first byte of a range that is not in the state that `access` needs.
    #[inline]
    fn bad_byte(&self, address: u64, bytes: u64, access: Access) -> Option<u64> {
        let offset = address - self.base;
        if offset + bytes > self.bytes {
            return Some(self.bytes - offset);
        }
        let needed = if access == Access::Write { FRESH } else { WRITTEN };
        // SAFETY: the range was found to lie inside the arena, and the shadow has a state for each of its bytes.
        let states = unsafe { std::slice::from_raw_parts(self.states.add(offset as usize), bytes as usize) };
        states.iter().position(|&state| state < needed).map(|at| at as u64)
    }

    fn set(&self, address: u64, bytes: u64, state: u8) {
        let offset = (address - self.base) as usize;
        // SAFETY: the caller's range lies inside the arena.
        unsafe { ptr::write_bytes(self.states.add(offset), state, bytes as usize) };
    }

    /// What is wrong with an access that begins at `address` and fails at byte `at`.
    fn explain(&self, address: u64, bytes: u64, at: u64, access: Access) -> String {
        let books = self.books();
        let verb = match access {
            Access::Read => "reads",
            Access::Write => "writes",
            Access::Atomic => "updates",
        };
        let bad = address + at;
        let name = match self.place {
            Place::Device(index) => format!("device {index}"),
            Place::Host => "page-locked memory".into(),
        };
        let before = books.live.range(..=bad).next_back().map(|(&a, &b)| (a, b));
        if let Some((start, len)) = before
            && bad < start + len
        {
            let offset = bad - start;
            return format!(
                "{verb} {bytes} bytes, of which byte {offset} of an allocation of {len} bytes ({name}) was never written"
            );
        }
        let freed = books.freed.iter().rev().find(|(start, len)| (*start..start + len).contains(&bad));
        if let Some((start, len)) = freed {
            return format!(
                "{verb} byte {} of an allocation of {len} bytes ({name}) that was freed",
                bad - start
            );
        }
        let after = books.live.range(bad..).next().map(|(&a, &b)| (a, b));
        match (before, after) {
            (Some((start, len)), Some((next, _))) if bad - (start + len) <= next - bad => {
                format!(
                    "{verb} {bytes} bytes, {} past the end of an allocation of {len} bytes ({name})",
                    bad - (start + len) + 1
                )
            }
            (Some((start, len)), None) => {
                format!(
                    "{verb} {bytes} bytes, {} past the end of an allocation of {len} bytes ({name})",
                    bad - (start + len) + 1
                )
            }
            (_, Some((next, len))) => {
                format!(
                    "{verb} {bytes} bytes, {} before the start of an allocation of {len} bytes ({name})",
                    next - bad
                )
            }
            (None, None) => format!("{verb} {bytes} bytes at {bad:#x}, where nothing is allocated ({name})"),
        }
    }
}

/// Devices first, host memory last.
pub(crate) fn arenas() -> &'static [Arena] {
    static ARENAS: OnceLock<Vec<Arena>> = OnceLock::new();
    ARENAS.get_or_init(|| {
        let devices = crate::device_count().min(MAX_DEVICES);
        (0..devices).map(Place::Device).chain([Place::Host]).map(Arena::new).collect()
    })
}

fn arena(place: Place) -> Option<&'static Arena> {
    arenas().iter().find(|arena| arena.place == place)
}

fn arena_of(address: u64) -> Option<&'static Arena> {
    arenas().iter().find(|arena| arena.contains(address))
}

/// `bytes` of memory, 512-byte aligned and addressable from the host; `None` when the device is full.
pub(crate) fn alloc(place: Place, bytes: usize) -> Option<u64> {
    let arena = arena(place)?;
    let bytes = bytes as u64;
    if bytes == 0 || bytes > arena.bytes {
        return None;
    }
    let mut books = arena.books();
    let end = arena.base + arena.bytes;
    let from = books.next;
    let address =
        find_gap(&books.live, from, end, bytes).or_else(|| find_gap(&books.live, arena.base, end, bytes))?;
    books.live.insert(address, bytes);
    books.used += bytes;
    books.next = (address + bytes + GAP).next_multiple_of(ALIGN);
    if place != Place::Host {
        clear(address, bytes);
        arena.set(address, bytes, FRESH);
        // Driver memory comes in whole words; kernels that exchange the word around a narrow value may rely on it.
        let whole = bytes.next_multiple_of(4);
        arena.set(address + bytes, whole - bytes, WRITTEN);
    }
    Some(address)
}

/// The first place from `from` on with room for `bytes` and the gaps around them.
fn find_gap(live: &BTreeMap<u64, u64>, from: u64, end: u64, bytes: u64) -> Option<u64> {
    let before = live.range(..from).next_back().map_or(from, |(&a, &b)| a + b + GAP);
    let mut at = before.max(from).next_multiple_of(ALIGN);
    for (&start, &len) in live.range(from..) {
        if at + bytes + GAP <= start {
            return Some(at);
        }
        at = at.max((start + len + GAP).next_multiple_of(ALIGN));
    }
    (at + bytes + GAP <= end).then_some(at)
}

/// Gives back what `alloc` returned.
///
/// # Errors
/// When the address is no allocation's.
pub(crate) fn free(place: Place, address: u64) -> Result<(), String> {
    let Some(arena) = arena(place) else { return Err(format!("there is no {place:?}")) };
    let mut books = arena.books();
    let Some(bytes) = books.live.remove(&address) else {
        return Err(format!("{address:#x} is not the address of an allocation of {place:?}"));
    };
    books.used -= bytes;
    books.freed.push((address, bytes));
    if books.freed.len() > 4096 {
        books.freed.drain(..2048);
    }
    if place != Place::Host {
        let whole = bytes.next_multiple_of(4);
        arena.set(address, whole, OUTSIDE);
        // Here and not when the address comes back, which is late: marks are 24 times as large as the memory.
        for marks in [arena.stores, arena.loads, arena.atomics] {
            clear(marks as u64 + 8 * (address - arena.base), 8 * whole);
        }
    }
    clear(address, bytes);
    Ok(())
}

/// Free and total bytes of a device.
pub(crate) fn info(device: u32) -> (u64, u64) {
    arena(Place::Device(device)).map_or((0, 0), |arena| (arena.bytes - arena.books().used, arena.bytes))
}

/// For copies, fills and library calls: whether the range lies within one live allocation, and, for a read, has been
/// written; notes a write. `what` names the call in the text of the error.
///
/// # Errors
/// What is wrong with the access.
pub(crate) fn touch(what: &str, address: u64, bytes: usize, access: Access) -> Result<(), String> {
    if bytes == 0 {
        return Ok(());
    }
    let bytes = bytes as u64;
    let Some(arena) = arena_of(address) else {
        return Err(format!("{what}: {address:#x} is no address of the device or of page-locked memory"));
    };
    if arena.place == Place::Host {
        return host_bounds(arena, address, bytes, access).map_err(|text| format!("{what} {text}"));
    }
    if let Some(at) = arena.bad_byte(address, bytes, access) {
        return Err(format!("{what} {}", arena.explain(address, bytes, at, access)));
    }
    if access != Access::Read {
        arena.set(address, bytes, WRITTEN);
    }
    Ok(())
}

fn host_bounds(arena: &Arena, address: u64, bytes: u64, access: Access) -> Result<(), String> {
    let books = arena.books();
    let inside = books.live.range(..=address).next_back().is_some_and(|(&a, &b)| address + bytes <= a + b);
    drop(books);
    if inside { Ok(()) } else { Err(arena.explain(address, bytes, 0, access)) }
}

/// Whether an address is of page-locked memory.
pub(crate) fn is_host(address: u64) -> bool {
    arenas().last().is_some_and(|host| host.contains(address))
}

/// A thread of a running kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Accessor {
    /// Number of the launch, from 1 to below 2^20.
    pub(crate) launch: u32,
    /// Number of the block in the grid.
    pub(crate) block: u32,
    /// Number of the thread in its block.
    pub(crate) thread: u32,
    /// Barriers that its block has passed.
    pub(crate) epoch: u32,
}

/// A plain store over another thread's in the same launch, with no barrier between: harmless only if it stores the same.
#[derive(Debug)]
pub(crate) struct Suspect {
    pub(crate) address: u64,
    pub(crate) value: u8,
    pub(crate) text: String,
}

/// An access of a kernel to global memory. `None` if the address is neither device nor page-locked memory.
#[inline]
pub(crate) fn access(
    by: &Accessor,
    address: u64,
    bytes: u64,
    access: Access,
    suspects: &mut Vec<Suspect>,
) -> Option<Result<(), String>> {
    let arena = arena_of(address)?;
    if arena.place == Place::Host {
        return Some(host_bounds(arena, address, bytes, access));
    }
    if let Some(at) = arena.bad_byte(address, bytes, access) {
        return Some(Err(arena.explain(address, bytes, at, access)));
    }
    let mark = Mark::new(by);
    let offset = (address - arena.base) as usize;
    for k in offset..offset + bytes as usize {
        // SAFETY: the range lies inside the arena; launches run one at a time.
        let (store, load, atomic) =
            unsafe { (&mut *arena.stores.add(k), &mut *arena.loads.add(k), &mut *arena.atomics.add(k)) };
        let clash = |last: Mark| last.unordered(mark);
        let other = match access {
            Access::Read if clash(*store) => Some((*store, "stored by")),
            Access::Write if clash(*load) => Some((*load, "loaded by")),
            Access::Write if clash(*atomic) => Some((*atomic, "updated by")),
            Access::Atomic if clash(*store) => Some((*store, "stored by")),
            Access::Write if clash(*store) => {
                if suspects.len() < 4096 {
                    let text = race(arena, address, bytes, access, *store, "stored by");
                    // SAFETY: the byte lies inside the arena.
                    let value = unsafe { *((arena.base as usize + k) as *const u8) };
                    suspects.push(Suspect { address: arena.base + k as u64, value, text });
                }
                None
            }
            _ => None,
        };
        if let Some((other, did)) = other {
            return Some(Err(race(arena, address, bytes, access, other, did)));
        }
        match access {
            Access::Read => {
                *load = mark.joined(*load);
            }
            Access::Write => *store = mark,
            Access::Atomic => *atomic = mark,
        }
    }
    if access != Access::Read {
        arena.set(address, bytes, WRITTEN);
    }
    Some(Ok(()))
}

fn race(arena: &Arena, address: u64, bytes: u64, access: Access, other: Mark, did: &str) -> String {
    let start = arena.books().live.range(..=address).next_back().map_or(0, |(&a, _)| a);
    let who = match (other.block(), other.thread()) {
        (Mark::BLOCKS, _) => "several blocks".into(),
        (block, Mark::THREADS) => format!("several threads of block {block}"),
        (block, thread) => format!("thread {thread} of block {block}"),
    };
    let verb = match access {
        Access::Read => "loads",
        Access::Write => "stores",
        Access::Atomic => "updates",
    };
    format!(
        "race: {verb} {bytes} bytes at byte {} of an allocation, {did} {who} with no barrier between",
        address - start
    )
}

/// Forgets who accessed what: launches are counted from the start again.
pub(crate) fn forget_marks() {
    for arena in arenas().iter().filter(|arena| arena.place != Place::Host) {
        for marks in [arena.stores, arena.loads, arena.atomics] {
            clear(marks as u64, arena.bytes * 8);
        }
    }
}
