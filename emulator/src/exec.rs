//! Modules, and launches: the threads of a block are fibers, which run one after another until each waits or ends.
//!
//! The order in which they run changes from block to block (forward, backward, mixed), so that a kernel which counts on one
//! does not pass. Between two barriers every access to memory is compared with those of the block's other threads, and
//! accesses to global memory with those of all threads of the launch: two accesses that nothing orders, of which one is a
//! plain store, are a race, unless both store the same value.
//!
//! Only one launch runs at a time, in the whole process.

use std::cell::UnsafeCell;
use std::ffi::{CString, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use corosensei::stack::{Stack, StackPointer};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::memory::{self, Access, Accessor, Suspect};
use crate::nvrtc::{Folder, Image};

/// Threads of the largest block.
const MAX_THREADS: usize = 1024;
/// Bytes of a fiber's stack. Kernels keep little there, the math library some.
const STACK_BYTES: usize = 64 << 10;
const LANES: usize = 32;
/// Static shared memory that a block can have.
const STATIC_SHARED_BYTES: usize = 48 << 10;
/// Accesses of one thread between two waits. One that makes more is taken to loop for ever: it would hold up the process.
const MAX_ACCESSES: u64 = 1 << 26;

/// A loaded image.
pub(crate) struct Module {
    pub(crate) functions: Vec<Function>,
    _library: Library,
}

/// An entry point.
pub(crate) struct Function {
    pub(crate) name: String,
    /// Bytes of each parameter.
    pub(crate) params: Vec<usize>,
    /// The bound of `__launch_bounds__`, or 1,024.
    pub(crate) max_threads: u32,
    run: unsafe extern "C" fn(*const *const c_void),
    state: *mut State,
    /// Where its library lies: constants may be read there.
    range: (u64, u64),
    /// Whether any thread may wait for another.
    waits: bool,
}

// SAFETY: the pointers lead into a library that is never closed, and are used under the execution lock.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// What a launch needs beside the function.
pub(crate) struct Geometry {
    pub(crate) device: u32,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
}

/// Mirrors `KilnState` in device.hpp.
#[repr(C)]
struct State {
    thread: [u32; 3],
    block: [u32; 3],
    block_size: [u32; 3],
    grid_size: [u32; 3],
    access: extern "C" fn(u64, u64, i32),
    variable: extern "C" fn(u64, u64),
    barrier: extern "C" fn(i32),
    warp: extern "C" fn(i32, u32, u64, i32, i32, i32) -> u64,
}

/// Mirrors `KilnInfo`.
#[repr(C)]
struct Info {
    count: u64,
    bound: u64,
    sizes: [u64; 24],
}

impl Module {
    /// Loads what the emulated NVRTC made.
    ///
    /// # Errors
    /// When it is something else.
    pub(crate) fn load(image: *const u8) -> Result<Module, String> {
        // SAFETY: the caller passes an image; a foreign one is recognised by its first bytes.
        let image = unsafe { Image::read(image) }?;
        let (library, range) = open(image.library)?;
        // SAFETY: device.hpp defines this symbol with this type in every image.
        let state = unsafe { symbol::<*mut State>(&library, "kiln_state") }?;
        let mut functions = Vec::new();
        for name in &image.names {
            let mut info = Info { count: 0, bound: 0, sizes: [0; 24] };
            // SAFETY: the image's text ends with KILN_ENTRY for each of these names.
            let (fill, run) = unsafe {
                (
                    symbol::<unsafe extern "C" fn(*mut Info)>(&library, &format!("kiln_info_{name}"))?,
                    symbol::<unsafe extern "C" fn(*const *const c_void)>(
                        &library,
                        &format!("kiln_run_{name}"),
                    )?,
                )
            };
            // SAFETY: the function writes an `Info`, which this is.
            unsafe { fill(&mut info) };
            functions.push(Function {
                name: name.clone(),
                params: info.sizes[..info.count as usize].iter().map(|&bytes| bytes as usize).collect(),
                max_threads: info.bound as u32,
                run,
                state,
                range,
                waits: image.waits,
            });
        }
        Ok(Module { functions, _library: library })
    }
}

/// Loads a shared library from memory, by way of a file: the loader knows libraries by their names.
fn open(bytes: &[u8]) -> Result<(Library, (u64, u64)), String> {
    let folder = Folder::new().map_err(|error| format!("a temporary folder: {error}"))?;
    let path = folder.path().join("kernel.so");
    std::fs::write(&path, bytes).map_err(|error| format!("writing a kernel image: {error}"))?;
    // SAFETY: the library is one of the emulator's own, which has no initialisers.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| format!("a kernel image: {error}"))?;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = path.display().to_string();
    let parse = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
    let parts = maps.lines().filter(|line| line.ends_with(&path));
    let parts = parts.filter_map(|line| line.split_whitespace().next()?.split_once('-'));
    let range = parts.fold((u64::MAX, 0), |(low, high), (a, b)| (low.min(parse(a)), high.max(parse(b))));
    Ok((library, range))
}

/// # Safety
/// `T` is the type of the symbol's address.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    let c_name = CString::new(name).map_err(|_| String::from("a name with a NUL"))?;
    // SAFETY: the caller vouches for the type.
    let found = unsafe { library.get::<T>(c_name.as_bytes_with_nul()) };
    found.map(|symbol| *symbol).map_err(|error| format!("a kernel image lacks {name}: {error}"))
}

/// What a thread waits for.
#[derive(Debug, Clone, Copy)]
enum Request {
    Barrier {
        line: i32,
    },
    Warp(Exchange),
    /// It did something wrong, and does not go on.
    Fault,
}

#[derive(Debug, Clone, Copy)]
struct Exchange {
    what: i32,
    mask: u32,
    value: u64,
    lane: i32,
    width: i32,
    line: i32,
}

#[derive(Debug, Clone, Copy)]
enum Thread {
    /// Goes on with this result.
    Ready(u64),
    AtBarrier(i32),
    AtExchange(Exchange),
    Done,
}

/// Part of the area that holds all stacks, so that an access to any of them can be told by its address.
struct FiberStack(usize);

/// The lowest address of the stacks.
fn stacks() -> usize {
    static AREA: OnceLock<usize> = OnceLock::new();
    *AREA.get_or_init(|| {
        // SAFETY: a fresh private mapping of valid length and flags.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                MAX_THREADS * STACK_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
                -1,
                0,
            )
        };
        assert!(at != libc::MAP_FAILED, "the emulator cannot map its fibers' stacks");
        at.addr()
    })
}

fn on_a_stack(address: u64) -> bool {
    (address as usize).wrapping_sub(stacks()) < MAX_THREADS * STACK_BYTES
}

// SAFETY: each index is used by one fiber at a time, under the execution lock; the area is mapped for good.
unsafe impl Stack for FiberStack {
    fn base(&self) -> StackPointer {
        StackPointer::new(stacks() + (self.0 + 1) * STACK_BYTES).expect("addresses are not 0")
    }

    fn limit(&self) -> StackPointer {
        StackPointer::new(stacks() + self.0 * STACK_BYTES).expect("addresses are not 0")
    }
}

/// Nobody, in the books of shared memory.
const NOBODY: u16 = u16::MAX;
/// More than one.
const MANY: u16 = u16::MAX - 1;

/// Who used a byte of shared memory last.
#[derive(Clone, Copy)]
struct SharedByte {
    written: bool,
    store_thread: u16,
    store_epoch: u32,
    store_warp_epoch: u32,
    load_thread: u16,
    load_warp: u16,
    load_epoch: u32,
    load_warp_epoch: u32,
}

const UNUSED: SharedByte = SharedByte {
    written: false,
    store_thread: NOBODY,
    store_epoch: 0,
    store_warp_epoch: 0,
    load_thread: NOBODY,
    load_warp: NOBODY,
    load_epoch: 0,
    load_warp_epoch: 0,
};

/// A shared variable that the kernel has declared so far.
struct SharedVariable {
    begin: u64,
    bytes: Vec<SharedByte>,
}

impl SharedVariable {
    /// For the next block.
    fn reset(&mut self) {
        self.bytes.fill(UNUSED);
        // SAFETY: the kernel declared that many bytes. A value that is no number, and no small index.
        unsafe { std::ptr::write_bytes(self.begin as *mut u8, 0xff, self.bytes.len()) };
    }
}

/// The launch that runs.
struct Running<'a> {
    function: &'a Function,
    accessor: Accessor,
    /// Times that each warp has met in `__syncwarp`.
    warp_epochs: [u32; MAX_THREADS / LANES],
    shared: Vec<SharedVariable>,
    suspects: Vec<Suspect>,
    /// Made by the current thread since it began or waited.
    accesses: u64,
    yielders: Vec<*const Yielder<u64, Request>>,
    fault: Option<String>,
}

/// The launch that callbacks from kernels belong to.
struct Current(UnsafeCell<*mut Running<'static>>);

// SAFETY: used under the execution lock only.
unsafe impl Sync for Current {}

static CURRENT: Current = Current(UnsafeCell::new(std::ptr::null_mut()));

/// # Safety
/// Called by a kernel's thread, so that a launch runs; the reference ends before the thread waits.
unsafe fn running<'a>() -> &'a mut Running<'static> {
    // SAFETY: `run` has put a live launch there, and only one thread of one launch runs at a time.
    unsafe { &mut **CURRENT.0.get() }
}

/// Waits. Returns what the executor answers.
fn wait(request: Request) -> u64 {
    // SAFETY: called by a kernel's thread; the yielder lives on that thread's stack.
    unsafe {
        let running = running();
        let yielder = running.yielders[fiber(running)];
        (*yielder).suspend(request)
    }
}

/// The fiber that the current thread runs on.
fn fiber(running: &Running) -> usize {
    if running.function.waits { running.accessor.thread as usize } else { 0 }
}

extern "C" fn on_barrier(line: i32) {
    wait(Request::Barrier { line });
}

extern "C" fn on_warp(what: i32, mask: u32, value: u64, lane: i32, width: i32, line: i32) -> u64 {
    wait(Request::Warp(Exchange { what, mask, value, lane, width, line }))
}

extern "C" fn on_variable(begin: u64, bytes: u64) {
    // SAFETY: called by a kernel's thread.
    let running = unsafe { running() };
    if running.shared.iter().all(|variable| variable.begin != begin) {
        let mut variable = SharedVariable { begin, bytes: vec![UNUSED; bytes as usize] };
        variable.reset();
        running.shared.push(variable);
        let total = running.shared.iter().map(|variable| variable.bytes.len()).sum::<usize>();
        if total > STATIC_SHARED_BYTES {
            stop(format!(
                "has {total} bytes of static shared memory, of {STATIC_SHARED_BYTES} that there can be"
            ));
        }
    }
}

/// Ends the calling thread's launch.
fn stop(text: String) -> ! {
    // SAFETY: called by a kernel's thread.
    unsafe { running() }.fault = Some(text);
    loop {
        wait(Request::Fault);
    }
}

extern "C" fn on_access(address: u64, bytes: u64, kind: i32) {
    if on_a_stack(address) {
        return;
    }
    let access = match kind {
        0 => Access::Read,
        1 => Access::Write,
        _ => Access::Atomic,
    };
    // SAFETY: called by a kernel's thread.
    let running = unsafe { running() };
    running.accesses += 1;
    if running.accesses > MAX_ACCESSES {
        stop(format!("does not come to an end: {MAX_ACCESSES} accesses to memory without a wait"));
    }
    let checked = match memory::access(&running.accessor, address, bytes, access, &mut running.suspects) {
        Some(checked) => checked,
        None => running.access_variable(address, bytes, access),
    };
    if let Err(text) = checked {
        stop(text);
    }
}

impl Running<'_> {
    /// An access to shared memory or a constant.
    fn access_variable(&mut self, address: u64, bytes: u64, access: Access) -> Result<(), String> {
        let verb = if access == Access::Read { "reads" } else { "writes" };
        let inside =
            |v: &SharedVariable| v.begin <= address && address + bytes <= v.begin + v.bytes.len() as u64;
        let Some(variable) = self.shared.iter_mut().find(|v| inside(v)) else {
            let (low, high) = self.function.range;
            // The room behind a variable lies in the library, too, so variables come first.
            let beside = |v: &&SharedVariable| {
                (v.begin.saturating_sub(256)..v.begin + v.bytes.len() as u64 + 256).contains(&address)
            };
            return match self.shared.iter().find(beside) {
                Some(v) => Err(format!(
                    "{verb} {bytes} bytes at offset {} of a shared variable of {} bytes",
                    address as i64 - v.begin as i64,
                    v.bytes.len()
                )),
                None if access == Access::Read && (low..high).contains(&address) => Ok(()),
                None => {
                    Err(format!("{verb} {bytes} bytes at {address:#x}, which is no memory of the device"))
                }
            };
        };
        let size = variable.bytes.len();
        let offset = (address - variable.begin) as usize;
        let (thread, epoch) = (self.accessor.thread as u16, self.accessor.epoch);
        let warp = thread / LANES as u16;
        let warp_epoch = self.warp_epochs[warp as usize];
        for at in offset..offset + bytes as usize {
            let byte = &mut variable.bytes[at];
            let race = |other: u16, did: &str| {
                let who = if other == MANY { "other threads".into() } else { format!("thread {other}") };
                format!(
                    "race: {verb} byte {at} of a shared variable of {size} bytes, which {who} {did} since the last barrier"
                )
            };
            let same_warp_in_order = |other: u16, its: u32| other / LANES as u16 == warp && its != warp_epoch;
            let store_clashes = byte.store_thread != NOBODY
                && byte.store_thread != thread
                && byte.store_epoch == epoch
                && !same_warp_in_order(byte.store_thread, byte.store_warp_epoch);
            if access != Access::Write {
                if !byte.written {
                    return Err(format!(
                        "reads byte {at} of a shared variable of {size} bytes, which its block never wrote"
                    ));
                }
                if store_clashes {
                    return Err(race(byte.store_thread, "wrote"));
                }
                // What this warp loaded before it last waited for itself is in order; other warps see this load.
                let in_order = byte.load_warp == warp && byte.load_warp_epoch != warp_epoch;
                let earlier = byte.load_epoch == epoch && byte.load_thread != NOBODY && !in_order;
                (byte.load_thread, byte.load_warp) = match (earlier, byte.load_warp == warp) {
                    (false, _) => (thread, warp),
                    (true, true) if byte.load_thread == thread => (thread, warp),
                    (true, true) => (MANY, warp),
                    (true, false) => (MANY, MANY),
                };
                (byte.load_epoch, byte.load_warp_epoch) = (epoch, warp_epoch);
            }
            if access == Access::Write {
                let loaded =
                    byte.load_thread != NOBODY && byte.load_thread != thread && byte.load_epoch == epoch;
                if loaded && !(byte.load_warp == warp && byte.load_warp_epoch != warp_epoch) {
                    return Err(race(byte.load_thread, "read"));
                }
                if store_clashes && self.suspects.len() < 4096 {
                    let text = race(byte.store_thread, "wrote");
                    // SAFETY: the byte lies inside a variable of the loaded library.
                    let value = unsafe { *((variable.begin as usize + at) as *const u8) };
                    self.suspects.push(Suspect { address: variable.begin + at as u64, value, text });
                }
                byte.store_thread = thread;
                byte.store_epoch = epoch;
                byte.store_warp_epoch = warp_epoch;
            }
            if access != Access::Read {
                byte.written = true;
            }
        }
        Ok(())
    }

    /// Two threads stored to one byte: they have stored by now, and if the byte has changed, not the same.
    fn settle_suspects(&mut self) -> Result<(), String> {
        for suspect in self.suspects.drain(..) {
            // SAFETY: the byte was in live memory when it was stored to, in this launch.
            if unsafe { *(suspect.address as *const u8) } != suspect.value {
                return Err(format!("{}, with another value", suspect.text));
            }
        }
        Ok(())
    }
}

/// Runs all blocks. `params` are the values, each from an 8-byte boundary.
///
/// # Errors
/// What the kernel did wrong, as a text for people; memory may be half written then.
pub(crate) fn run(function: &Function, geometry: &Geometry, params: &[Box<[u64]>]) -> Result<(), String> {
    static LOCK: Mutex<u32> = Mutex::new(0);
    let mut launches = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    *launches += 1;
    if *launches == 1 << 20 {
        memory::forget_marks();
        *launches = 1;
    }
    let mut running = Running {
        function,
        accessor: Accessor { launch: *launches, block: 0, thread: 0, epoch: 0 },
        warp_epochs: [0; MAX_THREADS / LANES],
        shared: Vec::new(),
        suspects: Vec::new(),
        accesses: 0,
        yielders: vec![std::ptr::null(); MAX_THREADS],
        fault: None,
    };
    let addresses: Vec<*const c_void> = params.iter().map(|value| value.as_ptr().cast()).collect();
    // SAFETY: the state belongs to the function's library, and only the holder of the lock uses it.
    let state = unsafe { &mut *function.state };
    state.access = on_access;
    state.variable = on_variable;
    state.barrier = on_barrier;
    state.warp = on_warp;
    state.block_size = geometry.block;
    state.grid_size = geometry.grid;
    // SAFETY: the pointer is taken away again before `running` ends, and only used meanwhile.
    unsafe { *CURRENT.0.get() = std::ptr::from_mut(&mut running).cast() };
    let blocks = geometry.grid.iter().map(|&n| n as u64).product::<u64>();
    let seed = order_seed(&function.name, geometry);
    let mut result = Ok(());
    for k in 0..blocks {
        let block = if seed.is_multiple_of(2) { k } else { blocks - 1 - k };
        result = run_block(function, geometry, &addresses, block, mix(seed ^ block));
        if result.is_err() {
            break;
        }
    }
    // SAFETY: as above.
    unsafe { *CURRENT.0.get() = std::ptr::null_mut() };
    result.map_err(|text| {
        let [x, y, z] = geometry.grid;
        let shape = format!("grid {x} x {y} x {z}, block {}", geometry.block.iter().product::<u32>());
        format!("{} on device {} ({shape}): {text}", function.name, geometry.device)
    })
}

/// What decides the order of blocks and threads: the same launch of the same kernel always runs in the same order.
fn order_seed(name: &str, geometry: &Geometry) -> u64 {
    let start = std::env::var("KILN_EMULATOR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    let hash = name.bytes().fold(start, |h, b| mix(h ^ b as u64));
    geometry.grid.iter().fold(hash, |h, &n| mix(h ^ n as u64))
}

/// SplitMix64's finaliser (Steele, Lea, Flood, 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The order in which threads get their turn.
fn order(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    match seed % 3 {
        0 => {}
        1 => order.reverse(),
        _ => {
            for k in (1..count).rev() {
                order.swap(k, (mix(seed ^ k as u64) % (k as u64 + 1)) as usize);
            }
        }
    }
    order
}

type Fiber = Coroutine<u64, Request, (), FiberStack>;

fn coordinates(index: u64, size: [u32; 3]) -> [u32; 3] {
    let (x, y) = (size[0] as u64, size[1] as u64);
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}

fn run_block(
    function: &Function,
    geometry: &Geometry,
    params: &[*const c_void],
    block: u64,
    seed: u64,
) -> Result<(), String> {
    let count = geometry.block.iter().product::<u32>() as usize;
    // SAFETY: no fiber runs now; the reference is not used while one does (`running` is called anew after each).
    let running_now = || unsafe { running() };
    {
        let running = running_now();
        running.accessor.block = block as u32;
        running.accessor.epoch = 0;
        running.warp_epochs = [0; MAX_THREADS / LANES];
        running.shared.iter_mut().for_each(SharedVariable::reset);
        // SAFETY: the state belongs to the function's library, which the lock's holder uses alone.
        unsafe { (*function.state).block = coordinates(block, geometry.grid) };
    }
    let order = order(count, seed);
    // Without barriers a block's threads can run to their ends one by one, on one fiber.
    let fibers_needed = if function.waits { count } else { 1 };
    let mut fibers: Vec<Fiber> = Vec::with_capacity(fibers_needed);
    for k in 0..fibers_needed {
        let (run, state, params, size) = (function.run, function.state, params.as_ptr(), geometry.block);
        let turns = if function.waits { vec![k] } else { order.clone() };
        fibers.push(Coroutine::with_stack(FiberStack(k), move |yielder, _| {
            for thread in turns {
                // SAFETY: this fiber has its turn. The parameters' storage outlives the launch, and `run` was made for them.
                unsafe {
                    let running = running();
                    running.yielders[k] = yielder;
                    running.accessor.thread = thread as u32;
                    running.accesses = 0;
                    (*state).thread = coordinates(thread as u64, size);
                    run(params);
                }
            }
        }));
    }
    let result = if function.waits {
        schedule(function, geometry, &mut fibers, &order)
    } else {
        match fibers[0].resume(0) {
            CoroutineResult::Return(()) => Ok(()),
            CoroutineResult::Yield(_) => Err(fault(geometry)),
        }
    };
    for fiber in &mut fibers {
        if !fiber.done() {
            // SAFETY: kernels own nothing that would have to be dropped.
            unsafe { fiber.force_reset() };
        }
    }
    result.and_then(|()| running_now().settle_suspects())
}

/// What the current thread did wrong.
fn fault(geometry: &Geometry) -> String {
    // SAFETY: no fiber runs now.
    let running = unsafe { running() };
    let text = running.fault.take().unwrap_or_else(|| "a thread stopped without a reason".into());
    let [x, y, z] = coordinates(running.accessor.thread as u64, geometry.block);
    let thread = if y == 0 && z == 0 { x.to_string() } else { format!("({x}, {y}, {z})") };
    format!("thread {thread} of block {} {text}", running.accessor.block)
}

/// Runs the fibers in turn until all have ended.
fn schedule(
    function: &Function,
    geometry: &Geometry,
    fibers: &mut [Fiber],
    order: &[usize],
) -> Result<(), String> {
    let mut threads = vec![Thread::Ready(0); fibers.len()];
    loop {
        let mut ran = false;
        for &k in order {
            let Thread::Ready(input) = threads[k] else { continue };
            ran = true;
            {
                // SAFETY: no fiber runs now.
                let running = unsafe { running() };
                running.accessor.thread = k as u32;
                running.accesses = 0;
                // SAFETY: the state belongs to the function's library, which the lock's holder uses alone.
                unsafe { (*function.state).thread = coordinates(k as u64, geometry.block) };
            }
            threads[k] = match fibers[k].resume(input) {
                CoroutineResult::Return(()) => Thread::Done,
                CoroutineResult::Yield(Request::Barrier { line }) => Thread::AtBarrier(line),
                CoroutineResult::Yield(Request::Warp(exchange)) => Thread::AtExchange(exchange),
                CoroutineResult::Yield(Request::Fault) => return Err(fault(geometry)),
            };
            if let Thread::AtExchange(_) = threads[k] {
                exchange(&mut threads, k)?;
            }
        }
        if ran {
            continue;
        }
        // Everybody has ended or waits.
        let mut line = None;
        for (k, thread) in threads.iter().enumerate() {
            match *thread {
                Thread::AtExchange(at) => return Err(stuck(&threads, k, at)),
                Thread::AtBarrier(here) if *line.get_or_insert(here) != here => {
                    let first = line.unwrap_or(here);
                    return Err(format!(
                        "divergent barrier: some threads wait in line {first}, others in line {here}"
                    ));
                }
                _ => {}
            }
        }
        if line.is_none() {
            return Ok(());
        }
        // SAFETY: no fiber runs now.
        let running = unsafe { running() };
        running.settle_suspects()?;
        running.accessor.epoch += 1;
        for thread in &mut threads {
            if let Thread::AtBarrier(_) = thread {
                *thread = Thread::Ready(0);
            }
        }
    }
}

/// Why lane `k` cannot go on.
fn stuck(threads: &[Thread], k: usize, at: Exchange) -> String {
    let base = k / LANES * LANES;
    let missing = (0..LANES).filter(|lane| at.mask >> lane & 1 == 1);
    let missing = missing.filter_map(|lane| match threads.get(base + lane) {
        Some(Thread::Done) => Some(format!("lane {lane} has ended")),
        Some(Thread::AtBarrier(line)) => Some(format!("lane {lane} waits at the barrier in line {line}")),
        _ => None,
    });
    let missing = missing.take(3).collect::<Vec<_>>().join(", ");
    format!("divergent warp: thread {k} waits in line {} for lanes that do not come: {missing}", at.line)
}

/// If all lanes that thread `k`'s exchange names have come, they get their results.
fn exchange(threads: &mut [Thread], k: usize) -> Result<(), String> {
    let base = k / LANES * LANES;
    let Thread::AtExchange(own) = threads[k] else { return Ok(()) };
    let lane = k - base;
    if own.mask >> lane & 1 == 0 {
        return Err(format!("thread {k} exchanges in line {} with a mask that does not name it", own.line));
    }
    let mut values = [0u64; LANES];
    let lanes: Vec<usize> =
        (0..LANES).filter(|l| own.mask >> l & 1 == 1 && base + l < threads.len()).collect();
    for &l in &lanes {
        match threads[base + l] {
            Thread::AtExchange(its) if (its.what, its.mask, its.line) == (own.what, own.mask, own.line) => {
                values[l] = its.value;
            }
            Thread::AtExchange(its) if its.mask >> lane & 1 == 1 => {
                let (a, b) = (own.line, its.line);
                return Err(format!(
                    "divergent warp: lane {lane} exchanges in line {a}, lane {l} in line {b}"
                ));
            }
            _ => return Ok(()),
        }
    }
    if own.what == 0 {
        // SAFETY: no fiber runs now.
        unsafe { running() }.warp_epochs[k / LANES] += 1;
    }
    let ballot = lanes.iter().fold(0u64, |bits, &l| bits | (values[l] & 1) << l);
    for &l in &lanes {
        let Thread::AtExchange(its) = threads[base + l] else { continue };
        let width = its.width.clamp(1, LANES as i32);
        let (first, here) = (l as i32 / width * width, l as i32);
        let source = match its.what {
            1 => Some(here ^ its.lane).filter(|&s| s < first + width),
            2 => Some(here - its.lane).filter(|&s| s >= first),
            3 => Some(here + its.lane).filter(|&s| s < first + width),
            4 => Some(first + its.lane.rem_euclid(width)),
            _ => None,
        };
        let result = match (its.what, source) {
            (0, _) => 0,
            (5, _) => ballot,
            (_, None) => values[l],
            (_, Some(source)) if lanes.contains(&(source as usize)) => values[source as usize],
            (_, Some(source)) => {
                return Err(format!(
                    "lane {l} takes the value of lane {source} in line {}, which does not take part",
                    its.line
                ));
            }
        };
        threads[base + l] = Thread::Ready(result);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Place, alloc, touch};
    use crate::nvrtc::compile;

    /// Floats on device 0.
    fn floats(values: &[f32]) -> u64 {
        let at = alloc(Place::Device(0), values.len() * 4).expect("there is room");
        touch("upload", at, values.len() * 4, Access::Write).expect("it was just allocated");
        // SAFETY: the allocation has room for the values.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), at as *mut f32, values.len()) };
        at
    }

    fn read(at: u64, count: usize) -> Vec<f32> {
        touch("download", at, count * 4, Access::Read).expect("all of it was written");
        // SAFETY: `touch` found that many bytes.
        unsafe { std::slice::from_raw_parts(at as *const f32, count) }.to_vec()
    }

    /// Runs `kernel`, whose parameters are 8 bytes each, over blocks of `threads`.
    fn launch(text: &str, params: &[u64], blocks: u32, threads: u32) -> Result<(), String> {
        let image = compile(text, "test", &[]).unwrap_or_else(|log| panic!("{log}"));
        let module = Box::leak(Box::new(Module::load(image.as_ptr()).expect("its own image")));
        let function = module.functions.iter().find(|f| f.name == "kernel").expect("the tests name it so");
        let params: Vec<Box<[u64]>> = params.iter().map(|&p| vec![p].into_boxed_slice()).collect();
        assert_eq!(function.params, vec![8; params.len()]);
        let geometry = Geometry { device: 0, grid: [blocks, 1, 1], block: [threads, 1, 1] };
        run(function, &geometry, &params)
    }

    const ADD: &str = r#"
        #define N 256
        extern "C" __global__ void __launch_bounds__(N) kernel(float* y, const float* a, const float* b, unsigned long long n) {
            const unsigned long long i = (unsigned long long)blockIdx.x * N + threadIdx.x;
            if (i < n) y[i] = a[i] + b[i];
        }"#;

    #[test]
    fn adds() {
        let a: Vec<f32> = (0..1000).map(|k| k as f32).collect();
        let (x, y) = (floats(&a), alloc(Place::Device(0), 4000).unwrap());
        launch(ADD, &[y, x, x, 1000], 4, 256).unwrap();
        assert_eq!(read(y, 1000), a.iter().map(|v| v * 2.0).collect::<Vec<_>>());
    }

    #[test]
    fn an_access_past_the_end_is_named() {
        let x = floats(&[1.0; 1000]);
        let y = alloc(Place::Device(0), 4004).unwrap();
        let error = launch(ADD, &[y, x, x, 1001], 4, 256).unwrap_err();
        assert!(error.contains("kernel on device 0") && error.contains("thread 232 of block 3"), "{error}");
        assert!(
            error.contains("reads 4 bytes") && error.contains("past the end of an allocation of 4000 bytes"),
            "{error}"
        );
        let error = launch(ADD, &[x, y, y, 10], 1, 256).unwrap_err();
        assert!(error.contains("was never written"), "{error}");
    }

    #[test]
    fn what_was_not_written_cannot_be_read() {
        let x = floats(&[1.0; 8]);
        let y = alloc(Place::Device(0), 32).unwrap();
        launch(ADD, &[y, x, x, 7], 1, 256).unwrap();
        assert!(touch("download", y, 28, Access::Read).is_ok());
        let error = touch("download", y, 32, Access::Read).unwrap_err();
        assert!(error.contains("byte 28 of an allocation of 32 bytes"), "{error}");
    }

    #[test]
    fn a_loop_without_end_is_ended() {
        let text = r#"
        extern "C" __global__ void __launch_bounds__(32) kernel(volatile float* y) {
            WAIT
            for (int turn = 0; turn != -1; turn |= 1) y[threadIdx.x] = 1.f;
        }"#;
        let y = floats(&[0.0; 32]);
        for wait in ["", "__syncthreads();"] {
            let error = launch(&text.replace("WAIT", wait), &[y], 1, 32).unwrap_err();
            assert!(error.contains("does not come to an end"), "{error}");
        }
    }

    /// Block sums through shared memory, with the barrier or without.
    fn block_sum(barrier: &str) -> String {
        r#"
        extern "C" __global__ void __launch_bounds__(128)
            kernel(float* y, const float* x) {
            __shared__ float part[128], total[1];
            part[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
            for (int half = 64; half > 0; half /= 2) {
                BARRIER
                if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
            }
            if (threadIdx.x == 0) total[0] = part[0];
            __syncthreads();
            y[blockIdx.x * 128 + threadIdx.x] = total[0];
        }"#
        .replace("BARRIER", barrier)
    }

    #[test]
    fn a_missing_barrier_is_a_race() {
        let x = floats(&(0..384).map(|k| (k % 7) as f32).collect::<Vec<_>>());
        let y = alloc(Place::Device(0), 384 * 4).unwrap();
        launch(&block_sum("__syncthreads();"), &[y, x], 3, 128).unwrap();
        let sums = read(x, 384).chunks(128).map(|c| c.iter().sum::<f32>()).collect::<Vec<_>>();
        assert_eq!(read(y, 384), sums.iter().flat_map(|&s| vec![s; 128]).collect::<Vec<_>>());
        let error = launch(&block_sum(""), &[y, x], 3, 128).unwrap_err();
        assert!(error.contains("race: ") || error.contains("never wrote"), "{error}");
    }

    #[test]
    fn an_index_outside_of_a_shared_variable_is_named() {
        let text = r#"
        extern "C" __global__ void __launch_bounds__(32) kernel(float* y, unsigned long long at) {
            __shared__ float a[8], b[8];
            a[threadIdx.x % 8] = 1.f;
            b[threadIdx.x % 8] = 1.f;
            __syncthreads();
            if (threadIdx.x == 0) *y = a[at] + b[at];
        }"#;
        let y = floats(&[0.0]);
        launch(text, &[y, 7], 1, 32).unwrap();
        assert_eq!(read(y, 1), [2.0]);
        let error = launch(text, &[y, 8], 1, 32).unwrap_err();
        assert!(error.contains("at offset 32 of a shared variable of 32 bytes"), "{error}");
    }

    #[test]
    fn barriers_and_exchanges_that_not_all_threads_reach_are_noticed() {
        let text = |body: &str| {
            format!(
                "extern \"C\" __global__ void __launch_bounds__(64) kernel(float* y) {{ {body} y[threadIdx.x] = 1.f; }}"
            )
        };
        let y = floats(&[0.0; 64]);
        let cases = [
            ("if (threadIdx.x < 7) {\n __syncthreads(); } else {\n __syncthreads(); }", "divergent barrier"),
            ("if (threadIdx.x % 2) __shfl_xor_sync(~0u, 1.f, 1);", "divergent warp"),
            ("if (threadIdx.x == 3) return; __syncwarp();", "lane 3 has ended"),
            ("if (threadIdx.x == 3) __syncthreads(); else __syncwarp();", "lane 3 waits at the barrier"),
        ];
        for (body, expected) in cases {
            let error = launch(&text(body), &[y], 1, 64).unwrap_err();
            assert!(error.contains(expected), "{body}: {error}");
        }
        launch(&text("if (threadIdx.x < 32) __syncwarp(); __syncthreads();"), &[y], 1, 64).unwrap();
    }

    #[test]
    fn lanes_of_a_warp_may_take_turns_at_one_place() {
        let text = |wait: &str| {
            format!(
                r#"extern "C" __global__ void __launch_bounds__(64) kernel(float* y) {{
                    __shared__ float sum[2];
                    const int t = threadIdx.x, lane = t % 32;
                    if (lane == 0) sum[t / 32] = 0.f;
                    __syncwarp();
                    for (int turn = 0; turn < 32; ++turn) {{
                        if (turn == lane) sum[t / 32] += (float)lane;
                        {wait}
                    }}
                    y[t] = sum[t / 32];
                }}"#
            )
        };
        let y = floats(&[0.0; 64]);
        launch(&text("__syncwarp();"), &[y], 1, 64).unwrap();
        assert_eq!(read(y, 64), [496.0; 64]);
        let error = launch(&text(""), &[y], 1, 64).unwrap_err();
        assert!(error.contains("race: "), "{error}");
        // In turns by lane, but not of one warp.
        let error = launch(&text("__syncwarp();").replace("t / 32", "0"), &[y], 1, 64).unwrap_err();
        assert!(error.contains("race: "), "{error}");
    }

    #[test]
    fn lanes_exchange_values_as_on_a_gpu() {
        let text = r#"
        extern "C" __global__ void __launch_bounds__(64) kernel(float* y) {
            const int t = threadIdx.x;
            const float x = (float)t;
            y[t] = __shfl_xor_sync(~0u, x, 5);
            y[64 + t] = __shfl_up_sync(~0u, x, 3);
            y[128 + t] = __shfl_down_sync(~0u, x, 3, 8);
            y[192 + t] = __shfl_sync(~0u, x, 9, 16);
            y[256 + t] = (float)__popc(__ballot_sync(~0u, t % 3 == 0));
            y[320 + t] = __any_sync(~0u, t == 40) + 2 * __all_sync(~0u, t < 32);
            y[384 + t] = (float)__reduce_add_sync(~0u, t);
        }"#;
        let y = floats(&[0.0; 448]);
        launch(text, &[y], 1, 64).unwrap();
        let y = read(y, 448);
        for t in 0..64usize {
            let lane = t % 32;
            let expected = [
                (t ^ 5) as f32,
                if lane < 3 { t as f32 } else { t as f32 - 3.0 },
                if lane % 8 + 3 < 8 { t as f32 + 3.0 } else { t as f32 },
                (t / 16 * 16 + 9) as f32,
                11.0,
                if t < 32 { 2.0 } else { 1.0 },
                if t < 32 { 496.0 } else { 1520.0 },
            ];
            for (k, e) in expected.into_iter().enumerate() {
                assert_eq!(y[k * 64 + t], e, "result {k} of thread {t}");
            }
        }
    }

    #[test]
    fn races_on_global_memory_across_blocks_and_harmless_ones() {
        let text = |body: &str| {
            format!(
                "extern \"C\" __global__ void __launch_bounds__(32) kernel(float* y) {{ const int i = blockIdx.x * 32 + threadIdx.x; {body} }}"
            )
        };
        let y = floats(&[0.0; 64]);
        for body in ["y[63 - i] = y[i];", "y[0] = (float)i;", "y[0] += 1.f;"] {
            let error = launch(&text(body), &[y], 2, 32).expect_err(body);
            assert!(error.contains("race: "), "{body}: {error}");
        }
        for body in [
            "y[i] += 1.f;",
            "y[0] = 3.f;",
            "atomicAdd(y + 5, 1.f);",
            "y[i] = 1.f; __syncthreads(); y[blockIdx.x * 32 + 31 - threadIdx.x] = 2.f;",
        ] {
            launch(&text(body), &[y], 2, 32).unwrap_or_else(|error| panic!("{body}: {error}"));
        }
        assert_eq!(read(y, 64)[5], 2.0);
    }

    #[test]
    fn sixteen_bit_conversions_round_to_even() {
        let text = r#"
        extern "C" __global__ void __launch_bounds__(32) kernel(float* y, const float* x) {
            const int t = threadIdx.x;
            if (t >= 8) return;
            y[t] = ptx_f16_to_f32(ptx_f32_to_f16(x[t]));
            y[8 + t] = __uint_as_float((unsigned)ptx_f32_to_bf16(x[t]) << 16);
        }"#;
        let values =
            [1.0f32, 1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 65519.9, 65520.0, 1e-8, -0.0, 1.0 + 1.0 / 256.0];
        let (x, y) = (floats(&values), floats(&[0.0; 16]));
        launch(text, &[y, x], 1, 32).unwrap();
        let got = read(y, 16);
        for (k, v) in values.into_iter().enumerate() {
            assert_eq!(got[k].to_bits(), half::f16::from_f32(v).to_f32().to_bits(), "f16 of {v}");
            assert_eq!(got[8 + k].to_bits(), half::bf16::from_f32(v).to_f32().to_bits(), "bf16 of {v}");
        }
    }
}
