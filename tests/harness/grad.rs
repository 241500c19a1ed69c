//! Gradients of a body under Burn's `Autodiff`.

use burn_autodiff::Autodiff;
use burn_backend::ops::FloatTensorOps;
use burn_backend::{AutodiffBackend, Backend, DType, TensorData, TensorMetadata};

use super::{Arg, Body, Dense, Rng, Value, shape};

/// The first output, then the gradient of each float arg (before its views) of a weighted sum of that output.
pub(crate) fn run<B: Backend>(
    args: &[Arg],
    body: &impl Body,
    dtype: impl Fn(DType) -> DType,
) -> Vec<Option<TensorData>> {
    type A<B> = Autodiff<B>;
    let device = Default::default();
    let (mut leaves, mut inputs) = (Vec::new(), Vec::new());
    for arg in args {
        let value = Value::<A<B>>::new(arg.base.data(dtype(arg.dtype)), &device);
        let value = match value {
            Value::Float(t) => {
                let t = A::<B>::float_set_require_grad(t, true);
                leaves.push(t.clone());
                Value::Float(t)
            }
            other => other,
        };
        inputs.push(shape::apply(value, &arg.views));
    }
    let output = body.run::<A<B>>(inputs).remove(0).float();
    let weights = weights(&output.shape().to_vec()).data(output.dtype());
    let weighted = A::<B>::float_mul(output.clone(), A::<B>::float_from_data(weights, &device));
    let gradients = A::<B>::backward(A::<B>::float_sum(weighted));
    let mut all = vec![Some(Value::<B>::Float(A::<B>::inner(output)).read())];
    for leaf in &leaves {
        all.push(A::<B>::grad(leaf, &gradients).map(|g| Value::<B>::Float(g).read()));
    }
    all
}

/// Weights that differ from element to element and are numbers of every float dtype.
fn weights(shape: &[usize]) -> Dense {
    let mut rng = Rng::new(shape.iter().fold(7, |h, &d| h * 31 + d as u64));
    let len = shape.iter().product();
    Dense::floats(shape, (0..len).map(|_| (rng.below(15) as f64 - 7.0) / 8.0).collect())
}
