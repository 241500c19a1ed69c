//! Running a graph operation by operation on any backend.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn_backend::quantization::QuantizationParametersPrimitive;
use burn_backend::{Scalar, TensorPrimitive};
use burn_std::device::Device as DeviceTrait;
use kiln_surface::burn::*;
use kiln_surface::{Attribute, Draw, Kind, Op, PrimId, ScalarSlot, ValueId, with_backend_methods};
use smallvec::{SmallVec, smallvec};

use crate::compiler::{DrawState, GraphCompiler, Value};
use crate::error::Failure;
use crate::extension;
use crate::graph::Graph;

type Outcome<B> = Result<Value<B>, Arc<Failure>>;

/// The values of a run, each until it has been read for the last time.
pub(crate) struct Env<'a, B: GraphCompiler> {
    values: Vec<Option<Outcome<B>>>,
    /// Reads that are left.
    uses: Vec<u32>,
    scalars: &'a [Scalar],
    draws: &'a [DrawState],
    any_failed: bool,
    /// Reads that the operation under way has made.
    reads: usize,
}

impl<'a, B: GraphCompiler> Env<'a, B> {
    pub(crate) fn new(graph: &'a Graph, uses: &[u32], scalars: &'a [Scalar], draws: &'a [DrawState]) -> Self {
        let values = graph.values.iter().map(|_| None).collect();
        Env { values, uses: uses.to_vec(), scalars, draws, any_failed: false, reads: 0 }
    }

    /// Gives a value; one that nobody will read is dropped.
    pub(crate) fn set(&mut self, value: ValueId, outcome: Outcome<B>) {
        self.any_failed |= outcome.is_err();
        if self.uses[value.0 as usize] > 0 {
            self.values[value.0 as usize] = Some(outcome);
        }
    }

    /// Reads a value; the last read takes it.
    fn read(&mut self, value: ValueId) -> Value<B> {
        let index = value.0 as usize;
        self.uses[index] -= 1;
        self.reads += 1;
        let slot = &mut self.values[index];
        let outcome = if self.uses[index] == 0 { slot.take() } else { slot.clone() };
        match outcome {
            Some(Ok(value)) => value,
            _ => unreachable!("the operands of an operation that runs are known"),
        }
    }

    /// The failure of an operand, and the end of this operation's reads.
    fn failed_operand(&mut self, op: &Op) -> Option<Arc<Failure>> {
        if !self.any_failed {
            return None;
        }
        let mut failure = None;
        op.inputs(&mut |value| {
            if let Some(Err(error)) = &self.values[value.0 as usize] {
                failure.get_or_insert_with(|| error.clone());
            }
        });
        if failure.is_some() {
            self.forget_operands(op, 0);
        }
        failure
    }

    /// Counts the reads that an operation did not make: all but the first `made`.
    fn forget_operands(&mut self, op: &Op, made: usize) {
        let mut read = 0;
        op.inputs(&mut |value| {
            read += 1;
            if read <= made {
                return;
            }
            let index = value.0 as usize;
            self.uses[index] = self.uses[index].saturating_sub(1);
            if self.uses[index] == 0 {
                self.values[index] = None;
            }
        });
    }

    fn float(&mut self, value: ValueId) -> B::FloatTensorPrimitive {
        self.read(value).float()
    }

    fn int(&mut self, value: ValueId) -> B::IntTensorPrimitive {
        self.read(value).int()
    }

    fn bool(&mut self, value: ValueId) -> B::BoolTensorPrimitive {
        self.read(value).bool()
    }

    fn quantized(&mut self, value: ValueId) -> B::QuantizedTensorPrimitive {
        self.read(value).quantized()
    }

    fn scalar(&self, slot: ScalarSlot) -> Scalar {
        self.scalars[slot.index as usize]
    }
}

/// Runs the needed nodes of a graph whose inputs `env` holds, and hands each result to `made`. Returns the number of
/// operations that failed; those that depend on one fail with it, others do not.
pub(crate) fn interpret<B: GraphCompiler>(
    graph: &Graph,
    needed: &[bool],
    env: &mut Env<'_, B>,
    mut made: impl FnMut(ValueId, &Outcome<B>),
) -> u64 {
    let mut failures = 0;
    for (position, node) in graph.nodes.iter().enumerate() {
        if !needed[position] {
            continue;
        }
        let results = match env.failed_operand(&node.op) {
            Some(failure) => Err(failure),
            None => {
                env.reads = 0;
                catch_unwind(AssertUnwindSafe(|| call(&node.op, env))).map_err(|payload| {
                    failures += 1;
                    env.forget_operands(&node.op, env.reads);
                    Arc::new(failure(graph, position, message(payload)))
                })
            }
        };
        let results = results.and_then(|results| {
            check(graph, position, &results).map_err(|message| {
                failures += 1;
                Arc::new(failure(graph, position, message))
            })?;
            Ok(results)
        });
        match results {
            Ok(results) => {
                for (value, result) in node.outputs.iter().zip(results) {
                    let outcome = Ok(result);
                    made(*value, &outcome);
                    env.set(*value, outcome);
                }
            }
            Err(failure) => {
                for value in &node.outputs {
                    let outcome = Err(failure.clone());
                    made(*value, &outcome);
                    env.set(*value, outcome);
                }
            }
        }
    }
    failures
}

/// Runs a graph on a backend and returns its outputs.
///
/// # Errors
/// The first failure that an output depends on.
///
/// # Panics
/// If there are fewer inputs, scalars or draws than the graph has.
pub fn interpret_graph<B: GraphCompiler>(
    graph: &Graph,
    inputs: Vec<Value<B>>,
    scalars: &[Scalar],
    draws: &[DrawState],
) -> Result<Vec<Value<B>>, Arc<Failure>> {
    let ids: Vec<ValueId> = graph.inputs().collect();
    assert!(ids.len() == inputs.len() && graph.scalars as usize <= scalars.len(), "a value for each input");
    assert!(graph.draws as usize <= draws.len(), "a state for each draw");
    let mut outputs: Vec<Option<Outcome<B>>> = graph.outputs.iter().map(|_| None).collect();
    let mut env = Env::new(graph, &graph.uses(), scalars, draws);
    let mut keep = |value: ValueId, outcome: &Outcome<B>| {
        if let Ok(position) = graph.outputs.binary_search(&value) {
            outputs[position] = Some(outcome.clone());
        }
    };
    for (id, input) in ids.into_iter().zip(inputs) {
        keep(id, &Ok(input.clone()));
        env.set(id, Ok(input));
    }
    interpret(graph, &vec![true; graph.nodes.len()], &mut env, keep);
    outputs.into_iter().map(|output| output.expect("each output is a value of the graph")).collect()
}

/// What a panic said.
pub(crate) fn message(payload: Box<dyn std::any::Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
}

/// Whether results are what the user was told they would be when the operation was recorded.
fn check<B: GraphCompiler>(graph: &Graph, position: usize, results: &[Value<B>]) -> Result<(), String> {
    let outputs = &graph.nodes[position].outputs;
    if results.len() != outputs.len() {
        return Err(format!("the backend gave {} results instead of {}", results.len(), outputs.len()));
    }
    for (value, result) in outputs.iter().zip(results) {
        let (expected, meta) = (graph.value(*value), result.meta());
        // Backends store bools and quantised numbers in more than one way, and tell it by the dtype.
        let stored = matches!(expected.kind, Kind::Bool | Kind::Quantized);
        let same_dtype = meta.dtype == expected.meta.dtype || stored;
        if result.kind() != expected.kind || meta.shape != expected.meta.shape || !same_dtype {
            return Err(format!(
                "the backend gave {:?} {:?} where {:?} {:?} was inferred; please report this",
                meta.shape.as_slice(),
                meta.dtype,
                expected.meta.shape.as_slice(),
                expected.meta.dtype
            ));
        }
    }
    Ok(())
}

fn failure(graph: &Graph, position: usize, message: String) -> Failure {
    let op = &graph.nodes[position].op;
    let mut inputs = Vec::new();
    op.inputs(&mut |value| inputs.push(graph.value(value).meta.clone()));
    let name = match op {
        Op::extension(call) => call.name.clone(),
        op => op.name().into(),
    };
    Failure { op: name, inputs, position, trace_len: graph.nodes.len(), message }
}

/// An argument for the backend, from the field of an operation, by its tag.
macro_rules! argument {
    (F, $env:ident, $field:ident) => {
        $env.float(*$field)
    };
    (I, $env:ident, $field:ident) => {
        $env.int(*$field)
    };
    (B, $env:ident, $field:ident) => {
        $env.bool(*$field)
    };
    (Q, $env:ident, $field:ident) => {
        $env.quantized(*$field)
    };
    (OptF, $env:ident, $field:ident) => {
        $field.map(|value| $env.float(value))
    };
    (OptB, $env:ident, $field:ident) => {
        $field.map(|value| $env.bool(value))
    };
    (VecF, $env:ident, $field:ident) => {
        $field.iter().map(|value| $env.float(*value)).collect()
    };
    (VecI, $env:ident, $field:ident) => {
        $field.iter().map(|value| $env.int(*value)).collect()
    };
    (VecB, $env:ident, $field:ident) => {
        $field.iter().map(|value| $env.bool(*value)).collect()
    };
    (VecQ, $env:ident, $field:ident) => {
        $field.iter().map(|value| $env.quantized(*value)).collect()
    };
    (Prim, $env:ident, $field:ident) => {
        match *$field {
            PrimId::Float(value) => TensorPrimitive::Float($env.float(value)),
            PrimId::Quantized(value) => TensorPrimitive::QFloat($env.quantized(value)),
        }
    };
    (QParams, $env:ident, $field:ident) => {
        QuantizationParametersPrimitive { scales: $env.float(*$field) }
    };
    (Scalar, $env:ident, $field:ident) => {
        $env.scalar(*$field)
    };
    (Device, $env:ident, $field:ident) => {
        &<B::Device as DeviceTrait>::from_id(*$field)
    };
    ($tag:ident, $env:ident, $field:ident) => {
        Attribute::arg($field)
    };
}

/// The values of a result, by its tag.
macro_rules! results {
    (F, $result:expr) => {
        smallvec![Value::Float($result)]
    };
    (I, $result:expr) => {
        smallvec![Value::Int($result)]
    };
    (B, $result:expr) => {
        smallvec![Value::Bool($result)]
    };
    (Q, $result:expr) => {
        smallvec![Value::Quantized($result)]
    };
    (Prim, $result:expr) => {
        match $result {
            TensorPrimitive::Float(tensor) => smallvec![Value::Float(tensor)],
            TensorPrimitive::QFloat(tensor) => smallvec![Value::Quantized(tensor)],
        }
    };
    (FI, $result:expr) => {{
        let (a, b) = $result;
        smallvec![Value::Float(a), Value::Int(b)]
    }};
    (II, $result:expr) => {{
        let (a, b) = $result;
        smallvec![Value::Int(a), Value::Int(b)]
    }};
    (QI, $result:expr) => {{
        let (a, b) = $result;
        smallvec![Value::Quantized(a), Value::Int(b)]
    }};
    (FF, $result:expr) => {{
        let (a, b) = $result;
        smallvec![Value::Float(a), Value::Float(b)]
    }};
    (MaxPool1d, $result:expr) => {{
        let result = $result;
        smallvec![Value::Float(result.output), Value::Int(result.indices)]
    }};
    (MaxPool2d, $result:expr) => {{
        let result = $result;
        smallvec![Value::Float(result.output), Value::Int(result.indices)]
    }};
    (MaxPool1dGrad, $result:expr) => {
        smallvec![Value::Float($result.x_grad)]
    };
    (MaxPool2dGrad, $result:expr) => {
        smallvec![Value::Float($result.x_grad)]
    };
    (DeformGrad, $result:expr) => {{
        let result = $result;
        let present = [Some(result.x_grad), Some(result.offset_grad), Some(result.weight_grad)];
        let optional = [result.mask_grad, result.bias_grad];
        present.into_iter().chain(optional).flatten().map(Value::Float).collect()
    }};
}

/// A call of the backend's method; random operations take the numbers that were reserved for them.
macro_rules! method {
    (float_random, $trait:ident, $ret:ident, $env:ident, $($arg:ident: $tag:ident),*) => {
        draw!($env, draw_float, Value::Float, $($arg),*)
    };
    (int_random, $trait:ident, $ret:ident, $env:ident, $($arg:ident: $tag:ident),*) => {
        draw!($env, draw_int, Value::Int, $($arg),*)
    };
    ($node:ident, $trait:ident, $ret:ident, $env:ident, $($arg:ident: $tag:ident),*) => {
        results!($ret, <B as $trait<B>>::$node($(argument!($tag, $env, $arg)),*))
    };
}

macro_rules! draw {
    ($env:ident, $draw:ident, $value:path, $shape:ident, $distribution:ident, $device:ident, $dtype:ident) => {{
        let Draw { distribution, index } = *$distribution;
        let (device, state) = (<B::Device as DeviceTrait>::from_id(*$device), $env.draws[index as usize]);
        smallvec![$value(B::$draw($shape.clone(), distribution, &device, (*$dtype).into(), state))]
    }};
}

macro_rules! define_call {
    ($(trait $trait:ident {
        node { $($node:ident ($($arg:ident: $tag:ident),*) -> $ret:ident;)* }
        host { $($host:tt)* }
    })*) => {
        /// Calls the backend's method.
        fn call<B: GraphCompiler>(op: &Op, env: &mut Env<'_, B>) -> SmallVec<[Value<B>; 2]> {
            match op {
                $($(Op::$node { $($arg),* } => method!($node, $trait, $ret, env, $($arg: $tag),*),)*)*
                Op::extension(call) => {
                    let inputs = call.inputs.iter().map(|value| env.read(*value)).collect();
                    let scalars: Vec<Scalar> = call.scalars.iter().map(|slot| env.scalar(*slot)).collect();
                    extension::run(call, inputs, &scalars).into_iter().collect()
                }
            }
        }
    };
}
with_backend_methods! { define_call! {} }
