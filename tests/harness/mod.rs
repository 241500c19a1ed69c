//! What the op tests share: random inputs, one body for two backends, one table of tolerances, one report.
//!
//! A test draws [`Arg`]s (values, dtype, and a chain of views over a larger tensor), and runs a [`Body`] twice: on the
//! backend under test in the dtype that was drawn, and on burn-flex in f64. Both see the same views. Where Kiln's
//! rules differ from Flex's, the expected values come from plain loops instead (`plain.rs`).
//!
//! A case that fails is made simpler and simpler (`shrink.rs`), and the report of the simplest one ends in a command
//! that runs it again.
//!
//! | variable | meaning |
//! |---|---|
//! | `KILN_TEST_SEED` | changes the inputs |
//! | `KILN_TEST_CASES` | the cases of an op and dtype whose share is 1: 20 when unset, over 30,000 in all; below 10, large tensors are left out; 5 gives over 5,000, for a sanitizer or a slow device |
//! | `KILN_TEST_ONLY` | runs nothing but this case, `FAMILY/DTYPE/OP:CASE` as a report has it |
//! | `KILN_TEST_REPORT` | a file to which each family appends its counts: family, dtype class, cases, of those with views, gradients, empty or odd sizes, special values, and the seed, separated by tabs |

#![allow(dead_code, unused_imports)] // each test binary uses a part

pub(crate) mod compare;
pub(crate) mod count;
pub(crate) mod family;
pub(crate) mod grad;
pub(crate) mod plain;
pub(crate) mod report;
pub(crate) mod rng;
pub(crate) mod settings;
pub(crate) mod shape;
pub(crate) mod shrink;
pub(crate) mod tolerance;
pub(crate) mod values;

use burn_backend::tensor::{BoolTensor, Device, FloatTensor, IntTensor};
use burn_backend::{Backend, DType, ExecutionError, Shape, Slice, TensorData, read_sync};

pub(crate) use compare::same;
pub(crate) use count::Covered;
pub(crate) use family::Family;
pub(crate) use rng::Rng;
pub(crate) use shape::{Step, Views, views_to};
pub(crate) use tolerance::Tolerance;
pub(crate) use values::{Arg, Dense, Domain, Values};

/// The float dtypes that the op tests cover.
pub(crate) const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];
/// The integer dtypes.
pub(crate) const INTS: [DType; 8] =
    [DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];
/// The bool dtype.
pub(crate) const BOOL: DType = DType::Bool(burn_backend::BoolStore::Native);

/// A tensor of any kind.
pub(crate) enum Value<B: Backend> {
    Float(FloatTensor<B>),
    Int(IntTensor<B>),
    Bool(BoolTensor<B>),
}

impl<B: Backend> Clone for Value<B> {
    fn clone(&self) -> Self {
        match self {
            Value::Float(t) => Value::Float(t.clone()),
            Value::Int(t) => Value::Int(t.clone()),
            Value::Bool(t) => Value::Bool(t.clone()),
        }
    }
}

/// A test for each dtype: `per_dtype!(body: f32 f16)` calls `body(DType::F32)` in `body::f32`, and so on.
#[macro_export]
macro_rules! per_dtype {
    ($body:ident: $($dtype:ident)*) => {
        mod $body {
            $(
                #[test]
                fn $dtype() {
                    super::$body($crate::harness::dtype_named(stringify!($dtype)))
                }
            )*
        }
    };
}

/// Calls the float, int or bool method of one name on a value; the result is of the same kind.
#[macro_export]
macro_rules! per_kind {
    ($value:expr; $float:ident $int:ident $bool:ident; $($arg:expr),*) => {
        match $value {
            $crate::harness::Value::Float(t) => $crate::harness::Value::Float(B::$float(t, $($arg),*)),
            $crate::harness::Value::Int(t) => $crate::harness::Value::Int(B::$int(t, $($arg),*)),
            $crate::harness::Value::Bool(t) => $crate::harness::Value::Bool(B::$bool(t, $($arg),*)),
        }
    };
}

impl<B: Backend> Value<B> {
    /// Uploads, as the kind that the data's dtype says.
    pub(crate) fn new(data: TensorData, device: &Device<B>) -> Self {
        match data.dtype {
            dtype if dtype.is_float() => Value::Float(B::float_from_data(data, device)),
            dtype if dtype.is_bool() => Value::Bool(B::bool_from_data(data, device)),
            _ => Value::Int(B::int_from_data(data, device)),
        }
    }

    pub(crate) fn float(self) -> FloatTensor<B> {
        match self {
            Value::Float(t) => t,
            _ => panic!("the test body needs a float tensor"),
        }
    }

    pub(crate) fn int(self) -> IntTensor<B> {
        match self {
            Value::Int(t) => t,
            _ => panic!("the test body needs an int tensor"),
        }
    }

    pub(crate) fn bool(self) -> BoolTensor<B> {
        match self {
            Value::Bool(t) => t,
            _ => panic!("the test body needs a bool tensor"),
        }
    }

    /// Reads the values, waiting for the device.
    pub(crate) fn try_read(self) -> Result<TensorData, ExecutionError> {
        match self {
            Value::Float(t) => read_sync(B::float_into_data(t)),
            Value::Int(t) => read_sync(B::int_into_data(t)),
            Value::Bool(t) => read_sync(B::bool_into_data(t)),
        }
    }

    pub(crate) fn read(self) -> TensorData {
        self.try_read().unwrap_or_else(|error| panic!("reading a result failed: {error}"))
    }

    pub(crate) fn permute(self, axes: &[usize]) -> Self {
        per_kind!(self; float_permute int_permute bool_permute; axes)
    }

    pub(crate) fn flip(self, axes: &[usize]) -> Self {
        per_kind!(self; float_flip int_flip bool_flip; axes)
    }

    pub(crate) fn slice(self, slices: &[Slice]) -> Self {
        per_kind!(self; float_slice int_slice bool_slice; slices)
    }

    pub(crate) fn expand(self, shape: &[usize]) -> Self {
        per_kind!(self; float_expand int_expand bool_expand; Shape::from(shape.to_vec()))
    }

    pub(crate) fn reshape(self, shape: &[usize]) -> Self {
        per_kind!(self; float_reshape int_reshape bool_reshape; Shape::from(shape.to_vec()))
    }
}

/// An operation, or a few, written once for every backend. Reports show its parameters.
pub(crate) trait Body: std::fmt::Debug {
    /// The outputs for these inputs, which are in the order of the args.
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>>;

    /// The dtype of the outputs; if there is none, float outputs are of the dtype of the first float arg.
    fn dtype(&self) -> Option<DType> {
        None
    }
}

/// The dtype that the reference runs in: f64 for floats, the same for the others.
pub(crate) fn reference_dtype(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { dtype }
}

/// The inputs of a body, in order.
pub(crate) struct Inputs<B: Backend>(std::vec::IntoIter<Value<B>>);

impl<B: Backend> Inputs<B> {
    pub(crate) fn new(values: Vec<Value<B>>) -> Self {
        Inputs(values.into_iter())
    }

    pub(crate) fn any(&mut self) -> Value<B> {
        self.0.next().expect("the test body asks for more inputs than there are args")
    }

    pub(crate) fn float(&mut self) -> FloatTensor<B> {
        self.any().float()
    }

    pub(crate) fn int(&mut self) -> IntTensor<B> {
        self.any().int()
    }

    pub(crate) fn bool(&mut self) -> BoolTensor<B> {
        self.any().bool()
    }

    pub(crate) fn rest(self) -> Vec<Value<B>> {
        self.0.collect()
    }
}

/// The dtype of this name.
pub(crate) fn dtype_named(name: &str) -> DType {
    let all = FLOATS.into_iter().chain(INTS).chain([BOOL]);
    all.into_iter().find(|dtype| dtype.name() == name).unwrap_or_else(|| panic!("there is no dtype {name}"))
}

/// A body without parameters: `body!(Name |inputs| [outputs])`, where `B` is the backend.
#[macro_export]
macro_rules! body {
    ($name:ident |$inputs:ident| [$($output:expr),*]) => {
        #[derive(Debug)]
        struct $name;
        impl $crate::harness::Body for $name {
            #[allow(unused_mut, unused_variables)]
            fn run<B: burn_backend::Backend>(&self, values: Vec<$crate::harness::Value<B>>) -> Vec<$crate::harness::Value<B>> {
                let mut $inputs = $crate::harness::Inputs::new(values);
                vec![$($output),*]
            }
        }
    };
}
