//! Operations that another crate adds to the graph.
//!
//! An [`ExtensionOp`] says what comes out of which shapes, and how a backend computes it. [`call`] records it like
//! any other operation: it is part of the key of its trace, runs when the trace runs, and reads scalars anew at each
//! run. A [`DifferentiableOp`] also says what its gradient is; [`call_autodiff`] records it under Burn's `Autodiff`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use burn_autodiff::Autodiff;
//! use burn_autodiff::checkpoint::strategy::NoCheckpointing;
//! use burn_backend::Scalar;
//! use burn_backend::ops::{ActivationOps, FloatTensorOps};
//! use burn_flex::Flex;
//! use burn_tensor::{Tensor, TensorData, TensorPrimitive};
//! use kiln_fusion::extension::{DifferentiableOp, ExtensionOp, call_autodiff};
//! use kiln_fusion::{Fusion, FusionTensor, Value};
//! use kiln_surface::{Kind, Meta};
//!
//! /// `x * sigmoid(beta * x)` (arXiv:1710.05941), in one node of the graph.
//! struct Swish;
//!
//! impl ExtensionOp<Flex> for Swish {
//!     fn name(&self) -> String {
//!         "example::swish".into()
//!     }
//!
//!     fn infer(&self, inputs: &[Meta]) -> Result<Vec<(Meta, Kind)>, String> {
//!         match inputs {
//!             [x] if x.dtype.is_float() => Ok(vec![(x.clone(), Kind::Float)]),
//!             _ => Err("one float tensor is needed".into()),
//!         }
//!     }
//!
//!     fn forward(&self, mut inputs: Vec<Value<Flex>>, scalars: &[Scalar]) -> Vec<Value<Flex>> {
//!         let x = inputs.remove(0).float();
//!         let gate = Flex::sigmoid(Flex::float_mul_scalar(x.clone(), scalars[0]));
//!         vec![Value::Float(Flex::float_mul(x, gate))]
//!     }
//! }
//!
//! impl DifferentiableOp<Flex> for Swish {
//!     /// `gate + beta * y * (1 - gate)`, times the gradient of the result. What is called here is recorded too.
//!     fn backward(
//!         &self,
//!         inputs: &[FusionTensor<Flex>],
//!         output: &FusionTensor<Flex>,
//!         grad: FusionTensor<Flex>,
//!         scalars: &[Scalar],
//!     ) -> Vec<FusionTensor<Flex>> {
//!         type F = Fusion<Flex>;
//!         let gate = F::sigmoid(F::float_mul_scalar(inputs[0].clone(), scalars[0]));
//!         let rest = F::float_add_scalar(F::float_neg(gate.clone()), Scalar::Float(1.0));
//!         let slope = F::float_mul(F::float_mul_scalar(output.clone(), scalars[0]), rest);
//!         vec![F::float_mul(grad, F::float_add(gate, slope))]
//!     }
//! }
//!
//! type B = Autodiff<Fusion<Flex>>;
//!
//! fn swish(x: Tensor<B, 1>, beta: f64) -> Tensor<B, 1> {
//!     let op: Arc<dyn DifferentiableOp<Flex>> = Arc::new(Swish);
//!     let x = x.into_primitive().tensor();
//!     let y = call_autodiff::<_, NoCheckpointing, 1>(&op, [x], &[Scalar::Float(beta)]);
//!     Tensor::from_primitive(TensorPrimitive::Float(y))
//! }
//!
//! let x = Tensor::<B, 1>::from_floats([0.0, 1.0], &Default::default()).require_grad();
//! let y = swish(x.clone(), 1.0);
//! let grads = y.clone().sum().backward();
//! y.into_data().assert_approx_eq::<f32>(&TensorData::from([0.0f32, 0.731_059]), Default::default());
//! let grad = x.grad(&grads).unwrap().into_data();
//! grad.assert_approx_eq::<f32>(&TensorData::from([0.5f32, 0.927_671]), Default::default());
//! ```

mod gradient;

pub use gradient::{DifferentiableOp, call_autodiff};

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use burn_backend::Scalar;
use kiln_surface::{Extension, Kind, Meta, Op};

use crate::capture::device::lock;
use crate::capture::tensor::FusionTensor;
use crate::capture::trace::{Results, Site};
use crate::compiler::{GraphCompiler, Value};

/// An operation that another crate adds, for a backend `B`.
///
/// Two operations with the same name and the same attributes must be the same.
pub trait ExtensionOp<B: GraphCompiler>: Send + Sync + 'static {
    /// The name, unique among extensions: `crate_name::operation`.
    fn name(&self) -> String;

    /// Static attributes, as text. They are part of a graph; what varies from call to call should be a scalar.
    fn attributes(&self) -> String {
        String::new()
    }

    /// Shape, dtype and kind of each result.
    ///
    /// # Errors
    /// What is wrong with the inputs, in words; the call then panics with it.
    fn infer(&self, inputs: &[Meta]) -> Result<Vec<(Meta, Kind)>, String>;

    /// Computes the results on the backend, in the order of [`ExtensionOp::infer`].
    fn forward(&self, inputs: Vec<Value<B>>, scalars: &[Scalar]) -> Vec<Value<B>>;
}

type Key = (TypeId, String, String);

/// An `Arc<dyn ExtensionOp<B>>` for each key.
static KNOWN: Mutex<Option<HashMap<Key, Box<dyn Any + Send + Sync>>>> = Mutex::new(None);

fn key<B: GraphCompiler>(name: &str, attributes: &str) -> Key {
    (TypeId::of::<B>(), name.into(), attributes.into())
}

/// Records an extension operation.
///
/// # Panics
/// If there are no inputs, or [`ExtensionOp::infer`] refuses them.
pub fn call<B: GraphCompiler>(
    op: &Arc<dyn ExtensionOp<B>>,
    inputs: &[FusionTensor<B>],
    scalars: &[Scalar],
) -> Vec<FusionTensor<B>> {
    let (name, attributes) = (op.name(), op.attributes());
    let known = key::<B>(&name, &attributes);
    lock(&KNOWN).get_or_insert_default().entry(known).or_insert_with(|| Box::new(op.clone()));
    let mut site = Site::new("extension");
    inputs.iter().for_each(|input| site.operand(input));
    let ready = site.begin();
    let mut recorder = ready.record();
    let node = Op::extension(Extension {
        inputs: inputs.iter().map(|input| recorder.tensor(input)).collect(),
        scalars: scalars.iter().map(|scalar| recorder.scalar(*scalar)).collect(),
        name: name.clone(),
        attributes,
    });
    let infer = |metas: &[Meta]| match op.infer(metas) {
        Ok(outs) => Ok(outs.into_iter().collect()),
        Err(error) => Err(format!("{name}: {error}")),
    };
    recorder.finish(node, Results::Extension(&infer)).into_vec()
}

/// Runs a recorded extension operation.
///
/// # Panics
/// If no operation of that name and those attributes has been called in this process, which can only be so for a
/// graph that was read from text.
pub(crate) fn run<B: GraphCompiler>(
    call: &Extension,
    inputs: Vec<Value<B>>,
    scalars: &[Scalar],
) -> Vec<Value<B>> {
    let known = lock(&KNOWN)
        .as_ref()
        .and_then(|known| known.get(&key::<B>(&call.name, &call.attributes)))
        .and_then(|op| op.downcast_ref::<Arc<dyn ExtensionOp<B>>>().cloned());
    match known {
        Some(op) => op.forward(inputs, scalars),
        None => panic!("no extension operation {} with attributes '{}' is known", call.name, call.attributes),
    }
}
