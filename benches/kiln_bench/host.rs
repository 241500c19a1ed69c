//! What one eager operation costs the host: f32 additions of 1,024 elements, queued without a wait.
//!
//! Measured twice. In one run of 10,000 the driver's launch queue (about 1,000 entries) can fill, and then the host
//! waits for the device; in chunks of 500 with a wait between them, which is not timed, it never does.

use std::time::{Duration, Instant};

use burn_backend::ops::FloatTensorOps;
use burn_backend::{Distribution, Shape};
use burn_std::FloatDType;
use kiln::{Cuda, CudaDevice};

use crate::timing::median;

const ELEMENTS: usize = 1024;
const OPS: usize = 10_000;
const CHUNK: usize = 500;
const REPETITIONS: usize = 9;

/// `host_cost us=MEDIAN min=.. chunked_us=MEDIAN chunked_min=..`, in microseconds an operation.
pub(crate) fn measure(device: &CudaDevice) -> Result<String, kiln::Error> {
    let normal = || {
        Cuda::float_random(Shape::from([ELEMENTS]), Distribution::Normal(0.0, 1.0), device, FloatDType::F32)
    };
    let (x, y) = (normal(), normal());
    let add = |count: usize| {
        let start = Instant::now();
        for _ in 0..count {
            drop(Cuda::float_add(x.clone(), y.clone()));
        }
        start.elapsed()
    };
    add(CHUNK);
    device.sync()?;
    let (mut whole, mut chunked) = (Vec::new(), Vec::new());
    for _ in 0..REPETITIONS {
        whole.push(us_per_op(add(OPS)));
        device.sync()?;
        let mut time = Duration::ZERO;
        for _ in 0..OPS / CHUNK {
            time += add(CHUNK);
            device.sync()?;
        }
        chunked.push(us_per_op(time));
    }
    let min = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let (whole_min, chunked_min) = (min(&whole), min(&chunked));
    Ok(format!(
        "host_cost us={:.3} min={whole_min:.3} chunked_us={:.3} chunked_min={chunked_min:.3}",
        median(whole),
        median(chunked)
    ))
}

fn us_per_op(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6 / OPS as f64
}
