//! Faults: what queued work did wrong when it ran.
//!
//! A fault belongs to the operating-system thread that queued the work. Its next synchronising call returns
//! `CUDA_ERROR_UNKNOWN` with the text; the device goes on, so that one broken kernel fails one test. A process that ends
//! with faults that nobody was told of ends with status 86.
//!
//! For tests of what follows a failure, `KILN_EMULATOR_REJECT=ENTRY:N` makes the driver reject the N-th launch (from 1)
//! of kernels with this entry point, once.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, OnceLock};

use super::lock;
use super::status::Status;

/// The exit status of a process with untold faults.
const EXIT_STATUS: i32 = 86;
/// Texts of one thread that are kept; the rest are counted.
const KEPT: usize = 8;

struct Pending {
    thread: u64,
    texts: Vec<String>,
    more: usize,
}

static PENDING: Mutex<Vec<Pending>> = Mutex::new(Vec::new());

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
    static LAST_TOLD: Cell<Option<&'static CStr>> = const { Cell::new(None) };
}

/// The number of the calling thread, from 1.
pub(crate) fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if THREAD.get() == 0 {
        THREAD.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    THREAD.get()
}

fn print(text: &str) {
    // There is nobody to tell when standard error is closed.
    let _ = std::io::stderr().write_all(format!("kiln emulator: {text}\n").as_bytes());
}

/// Something to say that is no fault of queued work, for example why an image cannot be loaded.
pub(crate) fn note(text: &str) {
    print(text);
}

/// Work that `thread` queued went wrong.
pub(crate) fn record(thread: u64, text: String) {
    let mut pending = lock(&PENDING);
    let index = pending.iter().position(|p| p.thread == thread).unwrap_or_else(|| {
        pending.push(Pending { thread, texts: Vec::new(), more: 0 });
        pending.len() - 1
    });
    let of_thread = &mut pending[index];
    if of_thread.texts.len() < KEPT {
        print(&text);
        of_thread.texts.push(text);
    } else {
        of_thread.more += 1;
    }
}

fn tell(pending: &Pending) -> Status {
    let mut text = pending.texts.join("; ");
    if pending.more > 0 {
        text += &format!("; and {} more", pending.more);
    }
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST_TOLD.set(Some(Box::leak(text.into_boxed_c_str())));
    Status::Unknown
}

/// Tells the calling thread of its faults, once: the end of every synchronising call.
pub(crate) fn deliver() -> Result<(), Status> {
    let of_thread = {
        let mut pending = lock(&PENDING);
        let Some(index) = pending.iter().position(|p| p.thread == thread()) else { return Ok(()) };
        pending.swap_remove(index)
    };
    Err(tell(&of_thread))
}

/// Tells the calling thread of its faults, and will tell it again: for calls whose errors callers often ignore.
pub(crate) fn peek() -> Result<(), Status> {
    match lock(&PENDING).iter().find(|p| p.thread == thread()) {
        Some(of_thread) => Err(tell(of_thread)),
        None => Ok(()),
    }
}

/// What the calling thread was last told.
pub(crate) fn last_told() -> Option<&'static CStr> {
    LAST_TOLD.get()
}

/// The launch that `KILN_EMULATOR_REJECT` names.
fn rejected() -> Option<&'static (String, u64)> {
    static REJECTED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    let read = || {
        let text = std::env::var("KILN_EMULATOR_REJECT").ok()?;
        let (entry, number) = text.rsplit_once(':')?;
        Some((entry.to_owned(), number.parse().ok()?))
    };
    REJECTED.get_or_init(read).as_ref()
}

/// Whether this launch of the entry point is to be rejected; counts it.
pub(crate) fn rejects(entry: &str) -> bool {
    static LAUNCHES: AtomicU64 = AtomicU64::new(0);
    let Some((wanted, number)) = rejected() else { return false };
    entry == wanted && LAUNCHES.fetch_add(1, Ordering::Relaxed) + 1 == *number
}

/// Makes untold faults show in the exit status of the process.
pub(crate) fn watch_exit() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler takes nothing, and this library is never closed.
    ONCE.call_once(|| unsafe {
        libc::atexit(at_exit);
    });
}

extern "C" fn at_exit() {
    let pending = std::mem::take(&mut *lock(&PENDING));
    if pending.is_empty() {
        return;
    }
    print("the process ends, and no thread was told of:");
    for of_thread in &pending {
        for text in &of_thread.texts {
            print(text);
        }
        if of_thread.more > 0 {
            print(&format!("and {} more", of_thread.more));
        }
    }
    // SAFETY: flushes what C code has buffered, then ends the process without running anything else.
    unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::_exit(EXIT_STATUS);
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{cuEventQuery, cuEventSynchronize};
    use super::super::status::{cuGetErrorName, cuGetErrorString};
    use super::super::testing::{Bench, alloc, enter, fill, sync};
    use super::*;

    /// Name and text of a code.
    fn words(status: Status) -> (String, String) {
        let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
        // SAFETY: the places are valid, and receive C strings.
        unsafe {
            assert_eq!(cuGetErrorName(status as u32, &mut name), Status::Success);
            assert_eq!(cuGetErrorString(status as u32, &mut text), Status::Success);
            let read = |at| CStr::from_ptr(at).to_str().unwrap().to_owned();
            (read(name), read(text))
        }
    }

    /// An address that is nobody's.
    const NOWHERE: u64 = 4096;

    #[test]
    fn the_thread_that_queued_the_work_is_told_once() {
        let bench = Bench::new();
        let stream = bench.stream;
        let (queued, wait) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let culprit = scope.spawn(|| {
                enter();
                assert_eq!(fill(NOWHERE, 0, 4, stream), Status::Success);
                queued.wait();
                wait.wait();
                let told = (sync(stream), words(Status::Unknown), sync(stream));
                assert_eq!((told.0, told.2), (Status::Unknown, Status::Success));
                assert_eq!(told.1.0, "CUDA_ERROR_UNKNOWN");
                assert!(told.1.1.contains("cuMemsetD8Async"), "{}", told.1.1);
            });
            queued.wait();
            assert_eq!(sync(stream), Status::Success, "this thread did nothing wrong");
            wait.wait();
            culprit.join().unwrap();
        });
        let (device, mut back) = (alloc(4), [0u8; 4]);
        bench.fill(device, 6, 4);
        bench.to_host(&mut back, device);
        assert_eq!(back, [6; 4], "the device goes on");
    }

    #[test]
    fn polls_do_not_use_the_message_up() {
        let bench = Bench::new();
        let event = bench.event();
        assert_eq!(fill(NOWHERE, 0, 4, bench.stream), Status::Success);
        bench.record(event);
        // SAFETY: the calls take any number.
        unsafe {
            assert_eq!(cuEventQuery(event), Status::NotReady);
            assert_eq!(cuEventQuery(event), Status::Unknown);
            assert_eq!(cuEventQuery(event), Status::Unknown);
            assert_eq!(cuEventSynchronize(event), Status::Unknown);
            assert_eq!(cuEventQuery(event), Status::Success);
        }
    }

    #[test]
    fn a_copy_to_pageable_memory_tells() {
        let bench = Bench::new();
        let mut back = [0u8; 4];
        // SAFETY: the target is valid.
        let copy = |from| unsafe {
            super::super::memory::cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), from, 4, bench.stream)
        };
        let mut copy = copy;
        assert_eq!(copy(alloc(4)), Status::Unknown, "never written");
        assert!(words(Status::Unknown).1.contains("cuMemcpyDtoHAsync"));
        assert_eq!(words(Status::InvalidValue).1, "invalid argument");
    }

    #[test]
    fn faults_of_a_replay_are_those_of_the_thread_that_launched_it() {
        use super::super::{capture, stream};
        let bench = Bench::new();
        let (mut graph, mut exec) = (0, 0);
        // SAFETY: all places are valid.
        unsafe {
            assert_eq!(stream::cuStreamBeginCapture_v2(bench.stream, 1), Status::Success);
            bench.fill(NOWHERE, 0, 4);
            assert_eq!(stream::cuStreamEndCapture(bench.stream, &mut graph), Status::Success);
            assert_eq!(capture::cuGraphInstantiateWithFlags(&mut exec, graph, 0), Status::Success);
        }
        let stream = bench.stream;
        let told = std::thread::spawn(move || {
            enter();
            // SAFETY: the call takes any numbers.
            assert_eq!(unsafe { capture::cuGraphLaunch(exec, stream) }, Status::Success);
            sync(stream)
        });
        assert_eq!(told.join().unwrap(), Status::Unknown);
        bench.sync();
    }

    const UNTOLD: &str = "KILN_EMULATOR_TEST_UNTOLD";

    /// Does nothing on its own: the process that the next test starts.
    #[test]
    fn leaves_a_fault_untold() {
        if std::env::var_os(UNTOLD).is_some() {
            let bench = Bench::new();
            let queued = std::thread::spawn({
                let stream = bench.stream;
                move || {
                    enter();
                    fill(NOWHERE, 0, 4, stream)
                }
            });
            assert_eq!(queued.join().unwrap(), Status::Success);
            bench.sync();
        }
    }

    #[test]
    fn untold_faults_show_in_the_exit_status() {
        let run = |told: bool| {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "driver::faults::tests::leaves_a_fault_untold"]);
            if !told {
                command.env(UNTOLD, "1");
            }
            let out = command.output().unwrap();
            (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
        };
        assert_eq!(run(true).0, Some(0));
        let (status, text) = run(false);
        assert_eq!(status, Some(EXIT_STATUS), "{text}");
        assert!(text.contains("kiln emulator: ") && text.contains("cuMemsetD8Async"), "{text}");
    }
}
