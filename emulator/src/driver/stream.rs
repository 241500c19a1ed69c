//! Streams: queues of work that runs as late as it may.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};

use super::capture::{self, Capture, Mode};
use super::event::Event;
use super::module::Entry;
use super::status::Status;
use super::{answer, device, faults, handles, lock, put};
use crate::exec::{self, Geometry};
use crate::memory::{Access, touch};

/// Operations that wait in a queue before the oldest runs on its own.
const QUEUE_LIMIT: usize = 512;

/// One operation. Whatever it needs is its own or kept alive by it, except the memory that it addresses.
pub(crate) enum Work {
    /// A kernel.
    Launch { entry: Arc<Entry>, geometry: Geometry, params: Vec<Box<[u64]>> },
    /// A copy. A side that is pageable host memory is not checked.
    Copy { what: &'static str, to: u64, from: u64, bytes: usize, check_to: bool, check_from: bool },
    /// A fill with one byte.
    Fill { to: u64, value: u8, bytes: usize },
    /// The n-th record of an event.
    Record { event: Arc<Event>, number: u64 },
    /// A stop until another stream has done so many of its operations.
    Wait { stream: Arc<Stream>, number: u64 },
    /// All nodes of a graph, in order.
    Replay { nodes: Arc<Vec<Work>> },
    /// A call of a library.
    Library(Box<dyn Fn() -> Result<(), String> + Send + Sync>),
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Work::Launch { .. } => "Launch",
            Work::Copy { what, .. } => what,
            Work::Fill { .. } => "Fill",
            Work::Record { .. } => "Record",
            Work::Wait { .. } => "Wait",
            Work::Replay { .. } => "Replay",
            Work::Library(_) => "Library",
        })
    }
}

impl Work {
    /// Does the work; the caller holds the execution lock.
    fn run(&self) -> Result<(), String> {
        match self {
            Work::Launch { entry, geometry, params } => exec::run(entry.function(), geometry, params),
            Work::Copy { what, to, from, bytes, check_to, check_from } => {
                if *bytes == 0 {
                    return Ok(());
                }
                if *check_from {
                    touch(what, *from, *bytes, Access::Read)?;
                }
                if *check_to && *check_from && to.abs_diff(*from) < *bytes as u64 {
                    return Err(format!("{what}: the two ranges of {bytes} bytes overlap"));
                }
                if *check_to {
                    touch(what, *to, *bytes, Access::Write)?;
                }
                // SAFETY: checked sides lie in live allocations; a pageable side is the caller's, who is still in the
                // call. Device memory and host memory do not overlap.
                unsafe { ptr::copy(*from as *const u8, *to as *mut u8, *bytes) };
                Ok(())
            }
            Work::Fill { to, value, bytes } => {
                if *bytes > 0 {
                    touch("cuMemsetD8Async", *to, *bytes, Access::Write)?;
                    // SAFETY: the range lies within one live allocation.
                    unsafe { ptr::write_bytes(*to as *mut u8, *value, *bytes) };
                }
                Ok(())
            }
            Work::Record { event, number } => {
                event.pass(*number);
                Ok(())
            }
            // It is not taken from the queue before.
            Work::Wait { .. } => Ok(()),
            // A fault of one node does not keep the others from running.
            Work::Replay { nodes } => nodes.iter().map(Work::run).fold(Ok(()), Result::and),
            Work::Library(call) => call(),
        }
    }
}

#[derive(Debug)]
struct Operation {
    /// The thread that queued it.
    thread: u64,
    work: Work,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Operation>,
    /// Operations that were ever queued.
    appended: u64,
    capture: Option<Arc<Capture>>,
    /// No handle leads here any more; what waits still counts as work of the device.
    destroyed: bool,
}

/// One queue of one device.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) device: u32,
    queue: Mutex<Queue>,
}

/// Held by whoever runs an operation. Taken before any queue's or event's lock, never while holding one.
static EXECUTION: Mutex<()> = Mutex::new(());

/// All streams that may hold work.
static STREAMS: Mutex<Vec<Arc<Stream>>> = Mutex::new(Vec::new());

/// Where work went.
pub(crate) enum Queued {
    /// To the queue: the number of operations up to it.
    At(u64),
    /// To the graph under capture.
    Captured(Arc<Capture>),
}

impl Stream {
    fn new(device: u32) -> Arc<Stream> {
        let stream = Arc::new(Stream { device, queue: Mutex::default() });
        let mut streams = lock(&STREAMS);
        // Destroyed streams go once their work is done.
        streams.retain(|stream| {
            let queue = lock(&stream.queue);
            !(queue.destroyed && queue.waiting.is_empty())
        });
        streams.push(stream.clone());
        stream
    }

    /// The capture that the stream is under.
    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        lock(&self.queue).capture.clone()
    }

    /// Appends work, to the queue or to the graph under capture; runs nothing. The second value says that the queue is
    /// too long: to be handed to [`Stream::trim`] when no lock is held.
    pub(crate) fn push(&self, work: Work) -> Result<(Queued, bool), Status> {
        let mut queue = lock(&self.queue);
        if let Some(capture) = &queue.capture {
            // A mark in a capture orders, but does nothing.
            match work {
                Work::Record { .. } => capture.check()?,
                work => capture.add(work)?,
            }
            return Ok((Queued::Captured(capture.clone()), false));
        }
        queue.waiting.push_back(Operation { thread: faults::thread(), work });
        queue.appended += 1;
        Ok((Queued::At(queue.appended), queue.waiting.len() > QUEUE_LIMIT))
    }

    pub(crate) fn trim(&self, too_long: bool) {
        if too_long {
            self.run_one();
        }
    }

    /// Appends work.
    pub(crate) fn enqueue(&self, work: Work) -> Result<Queued, Status> {
        let (queued, too_long) = self.push(work)?;
        self.trim(too_long);
        Ok(queued)
    }

    /// Operations that have been taken from the queue.
    fn taken(&self) -> u64 {
        let queue = lock(&self.queue);
        queue.appended - queue.waiting.len() as u64
    }

    /// What the oldest operation waits for, if it has to; the caller holds the execution lock.
    fn blocked(&self) -> Option<(Arc<Stream>, u64)> {
        let oldest = match lock(&self.queue).waiting.front() {
            Some(Operation { work: Work::Wait { stream, number }, .. }) => (stream.clone(), *number),
            _ => return None,
        };
        (oldest.0.taken() < oldest.1).then_some(oldest)
    }

    /// Runs the oldest operation, if there is one; where it waits for another stream, that one goes a step further.
    pub(crate) fn run_one(&self) {
        let execution = lock(&EXECUTION);
        if let Some((other, _)) = self.blocked() {
            drop(execution);
            return other.run_one();
        }
        let oldest = lock(&self.queue).waiting.pop_front();
        if let Some(operation) = oldest {
            operation.run();
        }
    }

    /// Runs the queue up to and with the operation of this number. Between two operations, other threads may run theirs.
    pub(crate) fn run_until(&self, number: u64) {
        loop {
            let execution = lock(&EXECUTION);
            if self.taken() < number
                && let Some((other, before)) = self.blocked()
            {
                drop(execution);
                other.run_until(before);
                continue;
            }
            let oldest = {
                let mut queue = lock(&self.queue);
                if queue.appended - queue.waiting.len() as u64 >= number {
                    return;
                }
                queue.waiting.pop_front()
            };
            if let Some(operation) = oldest {
                operation.run();
            }
        }
    }

    /// Runs all that has been queued by now.
    pub(crate) fn run_all(&self) {
        let number = lock(&self.queue).appended;
        self.run_until(number);
    }
}

impl Operation {
    fn run(&self) {
        let done = catch_unwind(AssertUnwindSafe(|| self.work.run())).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            Err(format!("the emulator itself panicked ({:?}): {text}", self.work))
        });
        if let Err(text) = done {
            faults::record(self.thread, text);
        }
    }
}

/// Runs all that has been queued by now on every stream of a device.
pub(crate) fn run_device(device: u32) {
    let streams: Vec<_> = lock(&STREAMS).iter().filter(|stream| stream.device == device).cloned().collect();
    for stream in streams {
        stream.run_all();
    }
}

/// The stream of a handle; 0 and 1 are the default stream of the current context.
pub(crate) fn resolve(handle: usize) -> Result<Arc<Stream>, Status> {
    static DEFAULT: OnceLock<Vec<Arc<Stream>>> = OnceLock::new();
    device::ready()?;
    if handle <= 1 {
        let device = device::current()?;
        let default = DEFAULT.get_or_init(|| (0..device::count()).map(Stream::new).collect());
        return default.get(device as usize).cloned().ok_or(Status::InvalidContext);
    }
    handles::get(handle).ok_or(Status::InvalidHandle)
}

/// A stream of the current context.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamCreate(stream: *mut usize, flags: u32) -> Status {
    let make = || {
        let device = device::current()?;
        if flags > 1 || stream.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: the caller passes a valid place.
        unsafe { put(stream, handles::insert(Stream::new(device))) }
    };
    answer(make())
}

/// Ends the handle at once; work that waits stays work of the device. A capture of the stream ends, too.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamDestroy_v2(stream: usize) -> Status {
    let destroy = || {
        device::ready()?;
        let stream = handles::remove::<Stream>(stream).ok_or(Status::InvalidHandle)?;
        let capture = {
            let mut queue = lock(&stream.queue);
            queue.destroyed = true;
            queue.capture.take()
        };
        if let Some(capture) = capture {
            // What it collected is dropped.
            let _ = capture::end(&capture);
        }
        Ok(())
    };
    answer(destroy())
}

/// Runs all that the stream holds; the calling thread is told of its faults. Not permitted while the stream is
/// captured, nor, unless relaxed, in a thread that captures another.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamSynchronize(stream: usize) -> Status {
    let synchronize = || {
        let stream = resolve(stream)?;
        if let Some(capture) = stream.capture() {
            return Err(capture.refuse());
        }
        capture::permit()?;
        stream.run_all();
        faults::deliver()
    };
    answer(synchronize())
}

/// From here on, work that is appended becomes nodes of a graph. The default stream cannot be captured.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamBeginCapture_v2(stream: usize, mode: u32) -> Status {
    let begin = || {
        if stream <= 1 {
            return Err(Status::CaptureUnsupported);
        }
        let stream = resolve(stream)?;
        let mode = Mode::from_code(mode)?;
        let mut queue = lock(&stream.queue);
        if queue.capture.is_some() {
            return Err(Status::IllegalState);
        }
        queue.capture = Some(capture::begin(mode));
        Ok(())
    };
    answer(begin())
}

/// Ends the capture and gives its graph, or says that it was invalidated; then there is no graph. Only the thread that
/// began it may do so, unless it is relaxed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> Status {
    let end = || {
        let stream = resolve(stream)?;
        // SAFETY: the caller passes a valid place.
        unsafe { put(graph, 0) }?;
        let capture = {
            let mut queue = lock(&stream.queue);
            let capture = queue.capture.clone().ok_or(Status::IllegalState)?;
            if capture.mode != Mode::Relaxed && capture.thread != faults::thread() {
                return Err(Status::CaptureWrongThread);
            }
            queue.capture = None;
            capture
        };
        let nodes = capture::end(&capture)?;
        // SAFETY: as above.
        unsafe { put(graph, capture::graph(nodes)) }
    };
    answer(end())
}

#[cfg(test)]
mod tests {
    use super::super::event::{cuEventElapsedTime_v2, cuEventQuery, cuEventSynchronize, cuStreamWaitEvent};
    use super::super::memory::{cuMemFree_v2, cuMemFreeHost};
    use super::super::testing::{Bench, alloc, fill, new_stream, sync};
    use super::*;

    /// Symptom: a staging buffer is filled again before its copy has run, and nobody notices.
    #[test]
    fn queued_copies_see_later_writes_of_the_host() {
        let bench = Bench::new();
        let (from, to, device) = (bench.pinned(4), bench.pinned(4), alloc(4));
        from.fill(1);
        bench.to_device(device, from);
        from.fill(2);
        bench.to_host(to, device);
        bench.sync();
        assert_eq!(to, [2; 4]);
        let event = bench.event();
        bench.to_device(device, from);
        bench.record(event);
        // SAFETY: the call takes any number.
        assert_eq!(unsafe { cuEventSynchronize(event) }, Status::Success);
        from.fill(3);
        bench.to_host(to, device);
        bench.sync();
        assert_eq!(to, [2; 4]);
    }

    #[test]
    fn waiting_for_an_event_runs_nothing_behind_it() {
        let bench = Bench::new();
        let (device, before, after) = (alloc(4), bench.pinned(4), bench.pinned(4));
        let event = bench.event();
        before.fill(0);
        after.fill(0);
        bench.fill(device, 7, 4);
        bench.to_host(before, device);
        bench.record(event);
        bench.to_host(after, device);
        // SAFETY: the call takes any number.
        assert_eq!(unsafe { cuEventSynchronize(event) }, Status::Success);
        assert_eq!((&*before, &*after), (&[7; 4][..], &[0; 4][..]));
        bench.sync();
        assert_eq!(after, [7; 4]);
    }

    #[test]
    fn polling_takes_the_stream_one_step_further_each_time() {
        let bench = Bench::new();
        let (device, start, end) = (alloc(4), bench.event(), bench.event());
        bench.record(start);
        bench.fill(device, 1, 4);
        bench.record(end);
        let mut ms = 0.0;
        // SAFETY: `ms` is a valid place.
        unsafe {
            assert_eq!(cuEventQuery(end), Status::NotReady);
            assert_eq!(cuEventElapsedTime_v2(&mut ms, start, end), Status::NotReady);
            assert_eq!(cuEventQuery(end), Status::NotReady);
            assert_eq!(cuEventQuery(end), Status::Success);
            assert_eq!(cuEventElapsedTime_v2(&mut ms, start, end), Status::Success);
            assert!(ms >= 0.0);
            assert_eq!(cuEventQuery(bench.event()), Status::Success, "never recorded");
        }
    }

    #[test]
    fn pageable_memory_is_copied_at_the_call() {
        let bench = Bench::new();
        let device = alloc(12);
        bench.to_device(device, Vec::from([1u32, 2, 3]).as_slice());
        let mut back = vec![0u32; 3];
        bench.to_host(&mut back, device);
        assert_eq!(back, [1, 2, 3]);
    }

    #[test]
    fn long_queues_run_their_oldest_operation() {
        let bench = Bench::new();
        let (device, out) = (alloc(4), bench.pinned(4));
        out.fill(0);
        bench.fill(device, 9, 4);
        bench.to_host(out, device);
        for _ in 2..QUEUE_LIMIT + 1 {
            bench.fill(device, 1, 4);
        }
        assert_eq!(out, [0; 4], "only the first fill has run");
        bench.fill(device, 1, 4);
        assert_eq!(out, [9; 4]);
        bench.sync();
    }

    #[test]
    fn streams_run_apart_and_freeing_waits_for_all() {
        let bench = Bench::new();
        let other = new_stream();
        let (device, out) = (alloc(4), bench.pinned(4));
        out.fill(0);
        bench.fill(device, 5, 4);
        bench.to_host(out, device);
        assert_eq!(fill(alloc(4), 1, 4, other), Status::Success);
        assert_eq!(sync(other), Status::Success);
        assert_eq!(sync(0), Status::Success);
        assert_eq!(out, [0; 4]);
        // SAFETY: nothing uses the memory afterwards.
        unsafe {
            assert_eq!(cuStreamDestroy_v2(bench.stream), Status::Success);
            assert_eq!(cuMemFree_v2(device), Status::Success);
            assert_eq!(out, [5; 4], "work of a destroyed stream still runs");
            assert_eq!(cuMemFree_v2(device), Status::InvalidValue);
            assert_eq!(cuMemFree_v2(out.as_ptr() as u64), Status::InvalidValue);
            assert_eq!(cuMemFreeHost(out.as_mut_ptr().cast()), Status::Success);
            assert_eq!(cuMemFreeHost(out.as_mut_ptr().cast()), Status::InvalidValue);
        }
    }

    #[test]
    fn a_stream_that_waits_runs_the_other_up_to_the_event() {
        let bench = Bench::new();
        let other = new_stream();
        let (device, seen, after, event) = (alloc(4), bench.pinned(4), bench.pinned(4), bench.event());
        for out in [&mut *seen, &mut *after] {
            out.fill(0);
        }
        bench.fill(device, 5, 4);
        bench.record(event);
        bench.to_host(after, device);
        // SAFETY: the calls take any numbers, and the host memory is page-locked.
        unsafe {
            assert_eq!(cuStreamWaitEvent(other, event, 0), Status::Success);
            let copied =
                super::super::memory::cuMemcpyDtoHAsync_v2(seen.as_mut_ptr().cast(), device, 4, other);
            assert_eq!(copied, Status::Success);
            // Recorded again: the wait is for the first record.
            bench.record(event);
            assert_eq!(sync(other), Status::Success);
            assert_eq!((&*seen, &*after), (&[5; 4][..], &[0; 4][..]));
            assert_eq!(cuStreamWaitEvent(other, bench.event(), 0), Status::Success, "never recorded");
            assert_eq!(sync(other), Status::Success);
        }
        bench.sync();
    }

    #[test]
    fn streams_that_wait_for_each_other_in_turns_come_to_an_end() {
        let bench = Bench::new();
        let other = new_stream();
        let (device, out) = (alloc(4), bench.pinned(4));
        for round in 0..3 {
            let [there, back] = [bench.event(), bench.event()];
            // SAFETY: the calls take any numbers.
            unsafe {
                bench.fill(device, 2 * round, 4);
                bench.record(there);
                assert_eq!(cuStreamWaitEvent(other, there, 0), Status::Success);
                assert_eq!(fill(device, 2 * round + 1, 4, other), Status::Success);
                assert_eq!(super::super::event::cuEventRecord(back, other), Status::Success);
                assert_eq!(cuStreamWaitEvent(bench.stream, back, 0), Status::Success);
            }
        }
        bench.to_host(out, device);
        bench.sync();
        assert_eq!(out, [5; 4]);
    }

    #[test]
    fn unknown_handles_are_errors() {
        let bench = Bench::new();
        let event = bench.event();
        assert_eq!(sync(event), Status::InvalidHandle, "an event is no stream");
        assert_eq!(sync(usize::MAX), Status::InvalidHandle);
        // SAFETY: the calls take any number.
        unsafe {
            assert_eq!(cuStreamDestroy_v2(bench.stream), Status::Success);
            assert_eq!(cuStreamDestroy_v2(bench.stream), Status::InvalidHandle);
            assert_eq!(cuEventQuery(bench.stream), Status::InvalidHandle);
            assert_eq!(device::cuCtxSetCurrent(event), Status::InvalidContext);
        }
        assert_eq!(sync(bench.stream), Status::InvalidHandle);
    }
}
