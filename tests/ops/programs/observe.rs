//! [`Observer`]: what the operations of a run were called with and what they gave.

use std::sync::Mutex;

use burn_backend::{Backend, DType, Scalar, TensorData};
use kiln::Cuda;
use kiln::fusion::{DrawState, Value};

use super::execute::{Watch, read};
use super::program::Program;

/// One call of an operation.
pub(crate) struct Call<T = TensorData> {
    pub(crate) statement: usize,
    pub(crate) scalars: Vec<Scalar>,
    pub(crate) draws: DrawState,
    pub(crate) operands: Vec<T>,
    pub(crate) results: Vec<T>,
}

/// A tensor that is seen: a handle that is held, or its values.
enum Sight {
    Held(Box<Value<Cuda>>),
    Read(TensorData),
}

impl Sight {
    fn data(self) -> TensorData {
        match self {
            Sight::Held(value) => now(*value),
            Sight::Read(data) => data,
        }
    }
}

fn now(value: Value<Cuda>) -> TensorData {
    read::<Cuda>(value).unwrap_or_else(|error| panic!("reading failed: {error}"))
}

#[derive(Default)]
struct Sights {
    operands: Vec<Sight>,
    calls: Vec<Call<Sight>>,
}

/// Watches a run on one thread. It either holds every tensor to the end, and reads them then: nothing may be overwritten and
/// nothing waits. Or it reads each at once and holds none: whatever is used for the last time may be overwritten.
pub(crate) struct Observer {
    holds: bool,
    sights: Mutex<Sights>,
}

impl Observer {
    /// Which of the two it does, the program's seed says.
    pub(crate) fn new(program: &Program) -> Self {
        Observer { holds: program.seed.is_multiple_of(3), sights: Mutex::default() }
    }

    fn sight(&self, value: &Value<Cuda>) -> Sight {
        if self.holds { Sight::Held(Box::new(value.clone())) } else { Sight::Read(now(value.clone())) }
    }

    /// The calls in their order.
    pub(crate) fn calls(self) -> Vec<Call> {
        let sights = self.sights.into_inner().expect("nothing panics while it is locked");
        let data = |sights: Vec<Sight>| sights.into_iter().map(Sight::data).collect();
        let calls = sights.calls.into_iter().map(|call| Call {
            statement: call.statement,
            scalars: call.scalars,
            draws: call.draws,
            operands: data(call.operands),
            results: data(call.results),
        });
        calls.collect()
    }
}

impl Watch<Cuda> for Observer {
    fn before(&self, _: usize, _: u32, operands: &[Value<Cuda>]) {
        let operands = operands.iter().map(|value| self.sight(value)).collect();
        self.sights.lock().expect("nothing panics while it is locked").operands = operands;
    }

    fn after(&self, statement: usize, _: u32, scalars: &[Scalar], draws: DrawState, results: &[Value<Cuda>]) {
        let results = results.iter().map(|value| self.sight(value)).collect();
        let mut sights = self.sights.lock().expect("nothing panics while it is locked");
        let operands = std::mem::take(&mut sights.operands);
        sights.calls.push(Call { statement, scalars: scalars.to_vec(), draws, operands, results });
    }
}

/// Uploads.
pub(crate) fn value<B: Backend>(data: TensorData, device: &B::Device) -> Value<B> {
    match data.dtype {
        DType::QFloat(_) => Value::Quantized(B::q_from_data(data, device)),
        DType::Bool(_) => Value::Bool(B::bool_from_data(data, device)),
        dtype if dtype.is_float() => Value::Float(B::float_from_data(data, device)),
        _ => Value::Int(B::int_from_data(data, device)),
    }
}
