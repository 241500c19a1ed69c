//! Capturing a stream into a graph, and graphs.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use super::status::Status;
use super::stream::{Work, resolve};
use super::{answer, device, faults, handles, lock, put};

/// `CUstreamCaptureMode`: which calls a capture forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Potentially unsafe calls, in every thread.
    Global,
    /// Potentially unsafe calls, in the thread that captures.
    ThreadLocal,
    /// Only what conflicts with the capture itself.
    Relaxed,
}

impl Mode {
    pub(crate) fn from_code(code: u32) -> Result<Mode, Status> {
        match code {
            0 => Ok(Mode::Global),
            1 => Ok(Mode::ThreadLocal),
            2 => Ok(Mode::Relaxed),
            _ => Err(Status::InvalidValue),
        }
    }
}

/// One capture, from begin to end.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) mode: Mode,
    /// The thread that began it.
    pub(crate) thread: u64,
    /// `None` once a forbidden call has invalidated it.
    nodes: Mutex<Option<Vec<Work>>>,
}

impl Capture {
    pub(crate) fn add(&self, work: Work) -> Result<(), Status> {
        lock(&self.nodes).as_mut().ok_or(Status::CaptureInvalidated)?.push(work);
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), Status> {
        lock(&self.nodes).as_ref().map(|_| ()).ok_or(Status::CaptureInvalidated)
    }

    fn invalidate(&self) {
        *lock(&self.nodes) = None;
    }

    /// The answer to a call that cannot be made on what is captured: it invalidates the capture.
    pub(crate) fn refuse(&self) -> Status {
        let before = self.check();
        self.invalidate();
        before.err().unwrap_or(Status::CaptureUnsupported)
    }
}

/// Captures that have begun and not ended.
static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

thread_local! {
    /// How much the calling thread lets captures forbid it.
    static INTERACTION: Cell<Mode> = const { Cell::new(Mode::Global) };
}

pub(crate) fn begin(mode: Mode) -> Arc<Capture> {
    let capture = Arc::new(Capture { mode, thread: faults::thread(), nodes: Mutex::new(Some(Vec::new())) });
    lock(&ACTIVE).push(capture.clone());
    capture
}

/// The nodes, unless the capture was invalidated.
pub(crate) fn end(capture: &Arc<Capture>) -> Result<Vec<Work>, Status> {
    lock(&ACTIVE).retain(|active| !Arc::ptr_eq(active, capture));
    lock(&capture.nodes).take().ok_or(Status::CaptureInvalidated)
}

/// The beginning of a potentially unsafe call (one that may wait for the device). A capture of this thread that is not
/// relaxed, or a global one of another thread, forbids it and is invalidated by the attempt, as far as the thread's
/// interaction mode heeds it.
pub(crate) fn permit() -> Result<(), Status> {
    let mode = INTERACTION.get();
    if mode == Mode::Relaxed {
        return Ok(());
    }
    let forbids = |capture: &&Arc<Capture>| {
        let own = capture.thread == faults::thread() && capture.mode != Mode::Relaxed;
        own || mode == Mode::Global && capture.mode == Mode::Global
    };
    let mut result = Ok(());
    for capture in lock(&ACTIVE).iter().filter(forbids) {
        capture.invalidate();
        result = Err(Status::CaptureUnsupported);
    }
    result
}

/// Swaps the calling thread's interaction mode.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> Status {
    let exchange = || {
        device::ready()?;
        if mode.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: the caller passes a valid place, which is not null.
        let new = Mode::from_code(unsafe { mode.read() })?;
        let old = INTERACTION.replace(new);
        // SAFETY: as above.
        unsafe { put(mode, old as u32) }
    };
    answer(exchange())
}

/// A template: what a capture collected.
#[derive(Debug)]
struct Graph {
    nodes: Arc<Vec<Work>>,
    /// Handles of the nodes are numbers from here on.
    first_node: usize,
}

/// What can be launched.
#[derive(Debug)]
struct Executable {
    nodes: Arc<Vec<Work>>,
}

/// A handle of a new graph.
pub(crate) fn graph(nodes: Vec<Work>) -> usize {
    let first_node = handles::reserve(nodes.len());
    handles::insert(Arc::new(Graph { nodes: Arc::new(nodes), first_node }))
}

/// The number of nodes, and their handles where there is room for them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphGetNodes(
    graph: usize,
    nodes: *mut usize,
    count: *mut usize,
) -> Status {
    let list = || {
        device::ready()?;
        let graph = handles::get::<Graph>(graph).ok_or(Status::InvalidHandle)?;
        if count.is_null() {
            return Err(Status::InvalidValue);
        }
        let all = graph.nodes.len();
        if nodes.is_null() {
            // SAFETY: the caller passes a valid place.
            return unsafe { put(count, all) };
        }
        // SAFETY: as above.
        let room = unsafe { count.read() };
        for k in 0..room {
            let node = if k < all { graph.first_node + k } else { 0 };
            // SAFETY: the caller's array has `room` elements.
            unsafe { nodes.add(k).write(node) };
        }
        // SAFETY: as above.
        unsafe { put(count, all.min(room)) }
    };
    answer(list())
}

/// An executable graph; it does not need the template any more.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphInstantiateWithFlags(
    exec: *mut usize,
    graph: usize,
    flags: u64,
) -> Status {
    let make = || {
        device::current()?;
        let graph = handles::get::<Graph>(graph).ok_or(Status::InvalidHandle)?;
        if flags > 15 || exec.is_null() {
            return Err(Status::InvalidValue);
        }
        let executable = Executable { nodes: graph.nodes.clone() };
        // SAFETY: the caller passes a valid place.
        unsafe { put(exec, handles::insert(Arc::new(executable))) }
    };
    answer(make())
}

/// Appends one replay of all nodes, with addresses and parameters as they were recorded. Faults are those of the thread
/// that launches.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphLaunch(exec: usize, stream: usize) -> Status {
    let launch = || {
        let stream = resolve(stream)?;
        let executable = handles::get::<Executable>(exec).ok_or(Status::InvalidHandle)?;
        stream.enqueue(Work::Replay { nodes: executable.nodes.clone() }).map(|_| ())
    };
    answer(launch())
}

/// Ends the handle; executable graphs made from it live on.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphDestroy(graph: usize) -> Status {
    answer(device::ready().and(handles::remove::<Graph>(graph).map(|_| ()).ok_or(Status::InvalidHandle)))
}

/// Ends the handle; replays that are queued still run.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGraphExecDestroy(exec: usize) -> Status {
    answer(device::ready().and(handles::remove::<Executable>(exec).map(|_| ()).ok_or(Status::InvalidHandle)))
}

#[cfg(test)]
mod tests {
    use super::super::event::{cuEventQuery, cuEventSynchronize};
    use super::super::memory::{cuMemAlloc_v2, cuMemFree_v2, cuMemcpyHtoDAsync_v2};
    use super::super::stream::{cuStreamBeginCapture_v2, cuStreamDestroy_v2, cuStreamEndCapture};
    use super::super::testing::{Bench, alloc, enter, fill, new_stream, sync};
    use super::*;

    fn begin_on(stream: usize, mode: u32) {
        // SAFETY: the call takes any numbers.
        assert_eq!(unsafe { cuStreamBeginCapture_v2(stream, mode) }, Status::Success);
    }

    fn end_on(stream: usize) -> (Status, usize) {
        let mut graph = usize::MAX;
        // SAFETY: `graph` is a valid place.
        let status = unsafe { cuStreamEndCapture(stream, &mut graph) };
        (status, graph)
    }

    fn exchange(mode: u32) -> u32 {
        let mut mode = mode;
        // SAFETY: `mode` is a valid place.
        assert_eq!(unsafe { cuThreadExchangeStreamCaptureMode(&mut mode) }, Status::Success);
        mode
    }

    fn try_alloc() -> Status {
        let mut address = 0;
        // SAFETY: `address` is a valid place.
        unsafe { cuMemAlloc_v2(&mut address, 64) }
    }

    #[test]
    fn captured_work_runs_with_each_replay() {
        let bench = Bench::new();
        let (device, from, out) = (alloc(8), bench.pinned(4), bench.pinned(8));
        out.fill(0);
        begin_on(bench.stream, 1);
        bench.fill(device, 1, 8);
        bench.to_device(device, from);
        bench.to_host(out, device);
        let (status, graph) = end_on(bench.stream);
        assert_eq!(status, Status::Success);
        bench.sync();
        assert_eq!(out, [0; 8], "nothing runs while it is captured");
        let (mut exec, mut count, mut nodes) = (0, 0, [0; 4]);
        // SAFETY: all places are valid.
        unsafe {
            assert_eq!(cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count), Status::Success);
            assert_eq!(count, 3);
            count = 4;
            assert_eq!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count), Status::Success);
            assert!(count == 3 && nodes[2] != 0 && nodes[3] == 0);
            assert_eq!(cuGraphInstantiateWithFlags(&mut exec, graph, 0), Status::Success);
            assert_eq!(cuGraphDestroy(graph), Status::Success);
            assert_eq!(cuGraphDestroy(graph), Status::InvalidHandle);
            for value in [2, 3] {
                assert_eq!(cuGraphLaunch(exec, bench.stream), Status::Success);
                from.fill(value);
                assert_ne!(out[0], value);
                bench.sync();
                assert_eq!(out, [value, value, value, value, 1, 1, 1, 1]);
            }
            assert_eq!(cuGraphLaunch(exec, bench.stream), Status::Success);
            from.fill(4);
            assert_eq!(cuGraphExecDestroy(exec), Status::Success);
            assert_eq!(cuGraphLaunch(exec, bench.stream), Status::InvalidHandle);
        }
        bench.sync();
        assert_eq!(out[0], 4, "a replay that was queued still runs");
    }

    #[test]
    fn waiting_for_a_captured_stream_invalidates_the_capture() {
        let bench = Bench::new();
        let device = alloc(4);
        begin_on(bench.stream, 2);
        bench.fill(device, 1, 4);
        assert_eq!(sync(bench.stream), Status::CaptureUnsupported);
        assert_eq!(fill(device, 1, 4, bench.stream), Status::CaptureInvalidated);
        assert_eq!(end_on(bench.stream), (Status::CaptureInvalidated, 0));
        assert_eq!(end_on(bench.stream), (Status::IllegalState, 0));
        bench.fill(device, 1, 4);
        bench.sync();
    }

    #[test]
    fn unsafe_calls_depend_on_the_modes() {
        let bench = Bench::new();
        let block = alloc(4);
        begin_on(bench.stream, 1);
        assert_eq!(exchange(2), 0);
        assert_eq!(try_alloc(), Status::Success);
        let other = new_stream();
        assert_eq!(sync(other), Status::Success);
        assert_eq!(exchange(0), 2);
        let elsewhere = std::thread::spawn(move || {
            enter();
            (try_alloc(), sync(other))
        });
        assert_eq!(elsewhere.join().unwrap(), (Status::Success, Status::Success));
        assert_eq!(end_on(bench.stream).0, Status::Success);
        for forbidden in [try_alloc, || sync(0)] {
            begin_on(bench.stream, 1);
            assert_eq!(forbidden(), Status::CaptureUnsupported);
            assert_eq!(end_on(bench.stream).0, Status::CaptureInvalidated);
        }
        begin_on(bench.stream, 1);
        // SAFETY: nothing uses the memory.
        assert_eq!(unsafe { cuMemFree_v2(block) }, Status::CaptureUnsupported);
        assert_eq!(end_on(bench.stream).0, Status::CaptureInvalidated);
        // SAFETY: as above.
        assert_eq!(unsafe { cuMemFree_v2(block) }, Status::Success);
        begin_on(bench.stream, 0);
        let elsewhere = std::thread::spawn(|| {
            enter();
            try_alloc()
        });
        assert_eq!(elsewhere.join().unwrap(), Status::CaptureUnsupported);
        assert_eq!(end_on(bench.stream).0, Status::CaptureInvalidated);
    }

    #[test]
    fn events_of_a_capture_cannot_be_asked_about() {
        let bench = Bench::new();
        let event = bench.event();
        for ask in [cuEventQuery, cuEventSynchronize] {
            begin_on(bench.stream, 2);
            bench.record(event);
            // SAFETY: the call takes any number.
            assert_eq!(unsafe { ask(event) }, Status::CapturedEvent);
            assert_eq!(end_on(bench.stream).0, Status::CaptureInvalidated);
        }
        bench.record(event);
        // SAFETY: the call takes any number.
        assert_eq!(unsafe { cuEventSynchronize(event) }, Status::Success);
    }

    #[test]
    fn captures_belong_to_their_thread() {
        let bench = Bench::new();
        let stream = bench.stream;
        begin_on(stream, 1);
        let elsewhere = std::thread::spawn(move || {
            enter();
            end_on(stream)
        });
        assert_eq!(elsewhere.join().unwrap().0, Status::CaptureWrongThread);
        // SAFETY: the stream takes no more work.
        assert_eq!(unsafe { cuStreamDestroy_v2(stream) }, Status::Success);
        assert_eq!(try_alloc(), Status::Success, "the capture has ended with its stream");
    }

    #[test]
    fn pageable_memory_and_the_default_stream_cannot_be_captured() {
        let bench = Bench::new();
        let device = alloc(4);
        // SAFETY: the memory is valid.
        unsafe {
            assert_eq!(cuStreamBeginCapture_v2(0, 1), Status::CaptureUnsupported);
            begin_on(bench.stream, 1);
            let copied = cuMemcpyHtoDAsync_v2(device, [1u8; 4].as_ptr().cast(), 4, bench.stream);
            assert_eq!(copied, Status::CaptureUnsupported);
        }
        assert_eq!(end_on(bench.stream).0, Status::CaptureInvalidated);
    }
}
