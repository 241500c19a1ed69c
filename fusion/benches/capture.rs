//! What it costs to record an operation, to recognise it, and to free what was recorded.
//!
//! `cargo bench -p kiln-fusion --bench capture`. The graphs are not computed: the backend here has an executable that
//! hands out an input, so that time goes into the capture alone. The bound is what PyTorch or burn-fusion pay for an
//! operation at all; the goal is 0.3 us.

use std::time::{Duration, Instant};

use burn_backend::ops::FloatTensorOps;
use burn_backend::{BackendTypes, Scalar, TensorData};
use burn_flex::{Flex, FlexDevice};
use kiln_fusion::{Declined, Fusion, GraphCompiler, History, Run};
use kiln_surface::{delegate_backend, delegate_ops, with_backend_methods};

/// burn-flex, whose graphs are not computed.
#[derive(Clone, Default, Debug)]
struct Skip;

delegate_backend! { impl [] for [Skip] by [Flex] }
with_backend_methods! { delegate_ops! { impl [] for [Skip] by [Flex] } }

impl GraphCompiler for Skip {
    type Executable = ();

    fn compile(_device: &FlexDevice, _history: &History, _run: &Run<'_, Self>) -> Option<()> {
        Some(())
    }

    fn execute(_executable: &(), run: &mut Run<'_, Self>) -> Result<(), Declined> {
        let input = run.input(0).map_err(|failure| Declined(failure.to_string()))?;
        for output in 0..run.outputs() {
            run.set(output, input.clone());
        }
        Ok(())
    }
}

type B = Fusion<Skip>;
type Tensor = <B as BackendTypes>::FloatTensorPrimitive;

/// `count` operations on tensors of rank 2, each using the result before it; every third also an old one.
fn chain(x: &Tensor, count: usize, scalar: f64) -> Tensor {
    let mut old = x.clone();
    let mut y = x.clone();
    for k in 0..count {
        y = match k % 3 {
            0 => B::float_mul_scalar(y, Scalar::Float(scalar)),
            1 => B::float_exp(y),
            _ => {
                let sum = B::float_add(y, old);
                old = sum.clone();
                sum
            }
        };
    }
    y
}

fn main() {
    let device = FlexDevice;
    let data = TensorData::new(vec![0f32; 64], [8, 8]);
    println!("{:>10} {:>14} {:>14} {:>14}", "operations", "us/op median", "us/op minimum", "new us/op");
    for count in [10, 100, 1_000, 10_000] {
        let x = B::float_from_data(data.clone(), &device);
        let run = |scalar: f64| -> Duration {
            let start = Instant::now();
            let y = chain(&x, count, scalar);
            B::step(&device);
            drop(y);
            start.elapsed()
        };
        B::forget_plans(&device); // else the shorter chain's plan would end the longer one early
        let new = run(1.0).as_secs_f64() * 1e6 / count as f64;
        let runs = (2_000_000 / count).clamp(50, 20_000);
        let mut times: Vec<f64> =
            (0..runs).map(|k| run(k as f64).as_secs_f64() * 1e6 / count as f64).collect();
        times.sort_by(f64::total_cmp);
        println!("{count:>10} {:>14.3} {:>14.3} {new:>14.3}", times[times.len() / 2], times[0]);
    }
    println!("{} bytes a recorded value", Fusion::<Skip>::BYTES_PER_VALUE);
    let stats = B::stats(&device);
    println!("{} traces, {} hits", stats.runs(), stats.hits);
}
