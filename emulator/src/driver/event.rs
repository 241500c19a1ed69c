//! Events: marks in streams.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::capture::{self, Capture};
use super::status::Status;
use super::stream::{Queued, Stream, Work, resolve};
use super::{answer, device, faults, handles, lock, put};

/// An event of one device.
#[derive(Debug)]
pub(crate) struct Event {
    device: u32,
    timed: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Times that it was recorded; calls mean the last.
    recorded: u64,
    /// The last record that a stream has passed, and when.
    passed: u64,
    at: Option<Instant>,
    /// Where the last record waits.
    place: Option<(Arc<Stream>, u64)>,
    /// The capture that it was last recorded in.
    captured: Option<Arc<Capture>>,
}

impl Event {
    /// A stream has come to the record with this number.
    pub(crate) fn pass(&self, number: u64) {
        let mut state = lock(&self.state);
        if number > state.passed {
            state.passed = number;
            state.at = Some(Instant::now());
        }
        if state.passed == state.recorded {
            state.place = None;
        }
    }

    /// Where the last record waits; `None` if it has been passed or there is none.
    fn place(&self) -> Result<Option<(Arc<Stream>, u64)>, Status> {
        let state = lock(&self.state);
        if let Some(capture) = &state.captured {
            capture.refuse();
            return Err(Status::CapturedEvent);
        }
        Ok(state.place.clone())
    }
}

fn event(handle: usize) -> Result<Arc<Event>, Status> {
    device::ready()?;
    handles::get(handle).ok_or(Status::InvalidHandle)
}

/// An event of the current context. Flags: blocking waits (no difference here), and no timing.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuEventCreate(event: *mut usize, flags: u32) -> Status {
    let make = || {
        let device = device::current()?;
        if flags > 3 || event.is_null() {
            return Err(Status::InvalidValue);
        }
        let made = Event { device, timed: flags & 2 == 0, state: Mutex::default() };
        // SAFETY: the caller passes a valid place.
        unsafe { put(event, handles::insert(Arc::new(made))) }
    };
    answer(make())
}

/// Ends the handle; records that are queued are passed without effect.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuEventDestroy_v2(event: usize) -> Status {
    answer(device::ready().and(handles::remove::<Event>(event).map(|_| ()).ok_or(Status::InvalidHandle)))
}

/// Puts the event at the end of a stream of its device; an earlier record no longer counts. On a captured stream the
/// event becomes part of the capture, and cannot be asked about.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuEventRecord(handle: usize, stream: usize) -> Status {
    let record = || {
        let event = event(handle)?;
        let stream = resolve(stream)?;
        if event.device != stream.device {
            return Err(Status::InvalidHandle);
        }
        let too_long = {
            let mut state = lock(&event.state);
            let number = state.recorded + 1;
            let (queued, too_long) = stream.push(Work::Record { event: event.clone(), number })?;
            match queued {
                Queued::At(place) => {
                    state.recorded = number;
                    state.place = Some((stream.clone(), place));
                    state.captured = None;
                }
                Queued::Captured(capture) => state.captured = Some(capture),
            }
            too_long
        };
        stream.trim(too_long);
        Ok(())
    };
    answer(record())
}

/// Whether the last record has been passed. Each call that has to say no lets the stream do one more operation, so
/// polling comes to an end. Once passed, it tells the calling thread of its faults, which the next synchronising call
/// does again: answers to a poll are easily ignored.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuEventQuery(handle: usize) -> Status {
    let query = || {
        let event = event(handle)?;
        let Some((stream, _)) = event.place()? else {
            capture::permit()?;
            return faults::peek();
        };
        capture::permit()?;
        stream.run_one();
        match event.place()? {
            Some(_) => Err(Status::NotReady),
            None => faults::peek(),
        }
    };
    answer(query())
}

/// Runs the stream up to the last record and not further; the calling thread is told of its faults.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuEventSynchronize(handle: usize) -> Status {
    let synchronize = || {
        let event = event(handle)?;
        let place = event.place()?;
        capture::permit()?;
        if let Some((stream, number)) = place {
            stream.run_until(number);
        }
        faults::deliver()
    };
    answer(synchronize())
}

/// Makes what comes later in a stream, which may be another device's, wait for the last record of the event. There is no
/// flag. A stream under capture cannot wait for work outside of it here, nor one outside for captured work.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuStreamWaitEvent(stream: usize, handle: usize, flags: u32) -> Status {
    let wait = || {
        let event = event(handle)?;
        let stream = resolve(stream)?;
        if flags != 0 {
            return Err(Status::InvalidValue);
        }
        let place = event.place()?;
        if let Some(capture) = stream.capture() {
            return Err(capture.refuse());
        }
        match place {
            Some((other, number)) => stream.enqueue(Work::Wait { stream: other, number }).map(|_| ()),
            None => Ok(()),
        }
    };
    answer(wait())
}

/// Milliseconds between the moments at which two events of a device were passed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuEventElapsedTime_v2(ms: *mut f32, start: usize, end: usize) -> Status {
    let elapsed = || {
        let (start, end) = (event(start)?, event(end)?);
        if start.device != end.device || !start.timed || !end.timed {
            return Err(Status::InvalidHandle);
        }
        let when = |event: &Event| {
            if event.place()?.is_some() {
                return Err(Status::NotReady);
            }
            lock(&event.state).at.ok_or(Status::InvalidHandle)
        };
        let (start, end) = (when(&start)?, when(&end)?);
        let seconds = match end.checked_duration_since(start) {
            Some(ahead) => ahead.as_secs_f64(),
            None => -start.duration_since(end).as_secs_f64(),
        };
        // SAFETY: the caller passes a valid place or null.
        unsafe { put(ms, (seconds * 1e3) as f32) }
    };
    answer(elapsed())
}
