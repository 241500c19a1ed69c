//! Events: marks in a device's stream.

use cudarc::driver::sys;

use super::check;
use super::context::{Context, RelaxedCapture};
use crate::error::Result;

/// A mark in a device's stream that can be waited for and timed against another.
#[derive(Debug)]
pub struct Event {
    event: sys::CUevent,
    context: &'static Context,
}

// SAFETY: an event is a handle that the driver lets any thread use.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new(context: &'static Context, timed: bool) -> Result<Event> {
        context.make_current()?;
        let _relaxed = RelaxedCapture::enter()?;
        let flags = if timed { 0 } else { sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 };
        let mut event = std::ptr::null_mut();
        // SAFETY: the context is current and `event` a valid place.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(Event { event, context })
    }

    /// Puts the mark at the current end of the stream.
    pub(crate) fn record(&self) -> Result<()> {
        self.context.make_current()?;
        // SAFETY: event and stream belong to the current context.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.event, self.context.stream()) })
    }

    /// Makes what is queued later on `context`'s stream wait for the mark; the device of `context` may be another.
    pub(crate) fn hold(&self, context: &Context) -> Result<()> {
        context.make_current()?;
        // SAFETY: the event lives, and the driver keeps what the wait needs; 0 is the only valid flag.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(context.stream(), self.event, 0) })
    }

    /// Whether the device has passed the mark.
    ///
    /// # Errors
    /// What the device reports for the work before the mark.
    pub fn is_done(&self) -> Result<bool> {
        self.context.make_current()?;
        let _relaxed = RelaxedCapture::enter()?;
        // SAFETY: the event lives.
        match unsafe { sys::cuEventQuery(self.event) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => check("cuEventQuery", status).map(|()| true),
        }
    }

    /// Waits until the device has passed the mark.
    ///
    /// # Errors
    /// What the device reports for the work before the mark.
    pub fn wait(&self) -> Result<()> {
        self.context.make_current()?;
        let _relaxed = RelaxedCapture::enter()?;
        // SAFETY: the event lives.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.event) })
    }

    /// Device time from this mark to `end`, in microseconds; waits for `end`.
    ///
    /// # Errors
    /// What the device reports for the work before `end`.
    pub fn elapsed_us(&self, end: &Event) -> Result<f64> {
        end.wait()?;
        let mut ms = 0f32;
        // SAFETY: both events live, were made with timing, and have been recorded.
        let status = unsafe { sys::cuEventElapsedTime_v2(&mut ms, self.event, end.event) };
        check("cuEventElapsedTime", status)?;
        Ok(ms as f64 * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: nothing uses the event any more; the driver keeps what pending work needs.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}
