//! Extension operations under Burn's `Autodiff`.

use std::marker::PhantomData;
use std::sync::Arc;

use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_backend::Scalar;
use burn_backend::tensor::FloatTensor;

use super::{ExtensionOp, call};
use crate::Fusion;
use crate::capture::tensor::FusionTensor;
use crate::compiler::GraphCompiler;

/// An extension operation of float tensors with one result and a gradient.
pub trait DifferentiableOp<B: GraphCompiler>: ExtensionOp<B> {
    /// The gradients of the inputs, in their order, from the gradient of the result. Called while a backward pass is
    /// recorded.
    fn backward(
        &self,
        inputs: &[FusionTensor<B>],
        output: &FusionTensor<B>,
        grad: FusionTensor<B>,
        scalars: &[Scalar],
    ) -> Vec<FusionTensor<B>>;
}

/// Records an extension operation on tracked tensors.
///
/// # Panics
/// As [`call`]; and in the backward pass if there is not one gradient for each input.
pub fn call_autodiff<B: GraphCompiler, C: CheckpointStrategy, const N: usize>(
    op: &Arc<dyn DifferentiableOp<B>>,
    inputs: [FloatTensor<Autodiff<Fusion<B>, C>>; N],
    scalars: &[Scalar],
) -> FloatTensor<Autodiff<Fusion<B>, C>> {
    let plain: Vec<FusionTensor<B>> = inputs.iter().map(|input| input.primitive.clone()).collect();
    let extension: Arc<dyn ExtensionOp<B>> = op.clone();
    let output = call(&extension, &plain, scalars).remove(0);
    let nodes = inputs.map(|input| input.node);
    match Gradient::<B, N>(PhantomData).prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let saved =
                Saved { op: op.clone(), inputs: plain, output: output.clone(), scalars: scalars.to_vec() };
            prepared.finish(saved, output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}

/// The backward step of an extension operation with `N` inputs.
struct Gradient<B, const N: usize>(PhantomData<fn() -> B>);

impl<B, const N: usize> std::fmt::Debug for Gradient<B, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gradient")
    }
}

/// What the backward step needs of the forward one.
struct Saved<B: GraphCompiler> {
    op: Arc<dyn DifferentiableOp<B>>,
    inputs: Vec<FusionTensor<B>>,
    output: FusionTensor<B>,
    scalars: Vec<Scalar>,
}

impl<B: GraphCompiler> Clone for Saved<B> {
    fn clone(&self) -> Self {
        let Saved { op, inputs, output, scalars } = self;
        Saved { op: op.clone(), inputs: inputs.clone(), output: output.clone(), scalars: scalars.clone() }
    }
}

impl<B: GraphCompiler> std::fmt::Debug for Saved<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saved").field("op", &self.op.name()).finish_non_exhaustive()
    }
}

impl<B: GraphCompiler, const N: usize> Backward<Fusion<B>, N> for Gradient<B, N> {
    type State = Saved<B>;

    fn backward(self, ops: Ops<Saved<B>, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let grad = grads.consume::<Fusion<B>>(&ops.node);
        let Saved { op, inputs, output, scalars } = ops.state;
        let made = op.backward(&inputs, &output, grad, &scalars);
        assert_eq!(made.len(), N, "{}: a gradient for each input is needed", op.name());
        for (parent, grad) in ops.parents.into_iter().zip(made) {
            if let Some(parent) = parent {
                grads.register::<Fusion<B>>(parent.id, grad);
            }
        }
    }
}
