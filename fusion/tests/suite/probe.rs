//! Extension operations through which tests look into a run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use burn_backend::Scalar;
use burn_flex::Flex;
use burn_tensor::{Tensor, TensorPrimitive};
use kiln_fusion::{ExtensionOp, Fusion, Value, extension};
use kiln_surface::{Kind, Meta};

type B = Fusion<Flex>;

/// The identity on its first input, which shows all inputs to a closure first.
struct Probe<F> {
    name: String,
    look: F,
}

impl<F: Fn(&[Value<Flex>]) + Send + Sync + 'static> ExtensionOp<Flex> for Probe<F> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Vec<(Meta, Kind)>, String> {
        Ok(vec![(inputs[0].clone(), Kind::Float)])
    }

    fn forward(&self, mut inputs: Vec<Value<Flex>>, _: &[Scalar]) -> Vec<Value<Flex>> {
        (self.look)(&inputs);
        inputs.truncate(1);
        inputs
    }
}

/// An operation unlike any other: `look` sees its inputs whenever it runs.
pub(crate) fn probe(
    look: impl Fn(&[Value<Flex>]) + Send + Sync + 'static,
) -> impl Fn(Tensor<B, 1>) -> Tensor<B, 1> + Send + Sync + Clone {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("suite::probe{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let op: Arc<dyn ExtensionOp<Flex>> = Arc::new(Probe { name, look });
    move |x| apply(&op, &[x], &[]).remove(0)
}

/// Records an extension operation on float vectors.
pub(crate) fn apply(
    op: &Arc<dyn ExtensionOp<Flex>>,
    inputs: &[Tensor<B, 1>],
    scalars: &[Scalar],
) -> Vec<Tensor<B, 1>> {
    let inputs: Vec<_> = inputs.iter().map(|input| input.clone().into_primitive().tensor()).collect();
    let outs = extension::call(op, &inputs, scalars);
    outs.into_iter().map(|out| Tensor::from_primitive(TensorPrimitive::Float(out))).collect()
}

/// Addresses, in the order in which they were seen.
pub(crate) type Seen = Arc<Mutex<Vec<usize>>>;

/// A probe that notes where the data of its input lies.
pub(crate) fn addresses() -> (impl Fn(Tensor<B, 1>) -> Tensor<B, 1> + Clone, Seen) {
    let seen = Seen::default();
    let notes = seen.clone();
    let op = probe(move |inputs| match &inputs[0] {
        Value::Float(tensor) => notes.lock().unwrap().push(tensor.bytes().as_ptr().addr()),
        other => panic!("a float tensor, not {:?}", other.kind()),
    });
    (op, seen)
}
