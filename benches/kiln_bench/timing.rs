//! Device time of one call: two events around a queue of launches.
//!
//! The host must stay ahead of the device, or the time of a short operation would be the host's. So each round first
//! queues a few milliseconds of other work; while the device is busy with it, the launches to be timed are queued
//! behind the first event.

use burn_backend::ops::FloatTensorOps;
use burn_backend::{Distribution, Scalar, Shape};
use burn_std::FloatDType;
use kiln::{Cuda, CudaDevice, CudaTensor};

use crate::cases::Run;

/// Launches in a round.
const LAUNCHES: u32 = 200;
/// A round of long operations has fewer launches, to stay at about this.
const MAX_ROUND_US: f64 = 100_000.0;
const MIN_LAUNCHES: u32 = 3;
/// Calls before the first measurement: kernels are compiled, algorithms chosen and memory is cached by then.
const WARM_UP: u32 = 3;
/// Operations of the work in front, each of about 0.13 ms on a device with 4 TB/s.
const AHEAD: usize = 30;
const AHEAD_ELEMENTS: usize = 1 << 27;

/// Times cases on one device.
pub(crate) struct Timer {
    device: CudaDevice,
    ahead: CudaTensor,
}

impl Timer {
    pub(crate) fn new(device: &CudaDevice) -> Result<Self, kiln::Error> {
        CudaDevice::availability()?;
        let shape = Shape::from([AHEAD_ELEMENTS]);
        let ahead = Cuda::float_random(shape, Distribution::Normal(0.0, 1.0), device, FloatDType::BF16);
        Ok(Timer { device: *device, ahead })
    }

    /// Warms up, and finds how many launches a round should have.
    pub(crate) fn launches(&self, run: &Run) -> Result<u32, String> {
        for _ in 0..WARM_UP {
            run();
        }
        let us = self.round(run, MIN_LAUNCHES)?;
        Ok(((MAX_ROUND_US / us.max(1e-3)) as u32).clamp(MIN_LAUNCHES, LAUNCHES))
    }

    /// Microseconds of one call, over a queue of `launches`.
    pub(crate) fn round(&self, run: &Run, launches: u32) -> Result<f64, String> {
        let text = |error: kiln::Error| error.to_string();
        self.device.sync().map_err(text)?;
        for _ in 0..AHEAD {
            drop(Cuda::float_mul_scalar(self.ahead.clone(), Scalar::Float(1.0)));
        }
        let start = self.device.record_event().map_err(text)?;
        for _ in 0..launches {
            run();
        }
        let end = self.device.record_event().map_err(text)?;
        let us = start.elapsed_us(&end).map_err(text)?;
        Ok(us / launches as f64)
    }
}

/// The middle value; of an even number the upper one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
