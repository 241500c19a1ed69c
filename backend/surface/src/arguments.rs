//! Random valid arguments for every operation, for tests (feature `arguments`).
//!
//! [`arguments`] takes the name of an operation and a seed and gives a [`Case`]: the operation, its inputs with a range
//! for their values, and its scalars. The same name and seed give the same case, and [`Input::data`] the same values.
//! Shapes have ranks 1 to 4 where the operation allows and sizes from 1 to 9; in one case of eight a size is 0.
//!
//! The values avoid what has no defined result (a division by zero, an index out of range, the logarithm of a negative
//! number), and also what depends on the order of evaluation (two writes to one place). A float case of a function with
//! poles stays away from them.

mod plan;
mod recipes;

use burn_backend::quantization::QuantLevel;
use burn_backend::{DType, Scalar, TensorData};

use crate::infer::Meta;
use crate::op::Op;
use plan::Plan;

/// Operations that burn-flex cannot run, and why.
pub const UNSUPPORTED_BY_FLEX: [(&str, &str); 4] = [
    ("float_argtopk", "not implemented"),
    ("int_argtopk", "not implemented"),
    ("q_argtopk", "dequantises and calls float_argtopk"),
    ("ctc_loss_backward", "the default is unreachable, since has_ctc_loss_backward is false"),
];

/// An operation with valid inputs.
#[derive(Debug, Clone)]
pub struct Case {
    /// The operation; its values are numbered from 0 in the order of `inputs`, its scalars in that of `scalars`.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<Input>,
    /// The values of its scalar operands.
    pub scalars: Vec<Scalar>,
}

impl Case {
    /// Whether an input or an attribute has a size of zero.
    pub fn has_zero_size(&self) -> bool {
        self.inputs.iter().any(|input| input.meta.shape.contains(&0)) || self.created_empty()
    }

    fn created_empty(&self) -> bool {
        use Op::*;
        match &self.op {
            float_random { shape, .. }
            | float_zeros { shape, .. }
            | float_ones { shape, .. }
            | float_empty { shape, .. }
            | float_full { shape, .. }
            | float_expand { shape, .. }
            | int_random { shape, .. }
            | int_zeros { shape, .. }
            | int_ones { shape, .. }
            | int_empty { shape, .. }
            | int_full { shape, .. }
            | int_expand { shape, .. }
            | bool_zeros { shape, .. }
            | bool_ones { shape, .. }
            | bool_empty { shape, .. }
            | bool_expand { shape, .. }
            | q_expand { shape, .. } => shape.contains(&0),
            int_arange { range, .. } | int_arange_step { range, .. } => range.is_empty(),
            _ => false,
        }
    }
}

/// A tensor that a case reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Its shape and dtype.
    pub meta: Meta,
    /// Where its values lie.
    pub values: Values,
}

/// Where the values of an input lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values {
    /// Floats in `[low, high)`.
    Float {
        /// The lowest value.
        low: f64,
        /// The bound of the values.
        high: f64,
    },
    /// Integers in `[low, high)`, or no values at all if that is empty.
    Int {
        /// The lowest value.
        low: i64,
        /// The bound of the values.
        high: i64,
    },
    /// Each true or false.
    Bool,
    /// Quantised integers in `[low, 127]` with scales between 0.01 and 0.02.
    Quantized {
        /// The lowest integer.
        low: i8,
    },
}

impl Input {
    /// Random values. The dtype of the data is that of the tensor, so a backend reads them without a cast.
    pub fn data(&self, seed: u64) -> TensorData {
        let mut rng = Rng::new(seed);
        let shape = &self.meta.shape;
        let count = shape.num_elements();
        match self.values {
            Values::Float { low, high } => {
                let values: Vec<f64> = (0..count).map(|_| low + rng.unit() * (high - low)).collect();
                TensorData::new(values, shape.clone()).convert_dtype(self.meta.dtype)
            }
            Values::Int { low, high } => {
                let values: Vec<i64> =
                    (0..count).map(|_| low + rng.below((high - low) as usize) as i64).collect();
                TensorData::new(values, shape.clone()).convert_dtype(self.meta.dtype)
            }
            Values::Bool => {
                let values: Vec<bool> = (0..count).map(|_| rng.flag()).collect();
                TensorData::new(values, shape.clone()).convert_dtype(self.meta.dtype)
            }
            Values::Quantized { low } => {
                let DType::QFloat(scheme) = self.meta.dtype else { unreachable!("a quantised tensor") };
                let span = (127 - i16::from(low) + 1) as usize;
                let values: Vec<i8> =
                    (0..count).map(|_| (i16::from(low) + rng.below(span) as i16) as i8).collect();
                let scales = match scheme.level {
                    QuantLevel::Tensor => 1,
                    QuantLevel::Block(block) => count / block.num_elements(),
                };
                let scales: Vec<f32> = (0..scales).map(|_| 0.01 + 0.01 * rng.unit() as f32).collect();
                TensorData::quantized(values, shape.clone(), scheme, &scales)
            }
        }
    }
}

/// A small generator (SplitMix64), so that cases stay the same whatever version of a library is at hand.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator that repeats itself for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; `bound` must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True or false.
    pub fn flag(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// One of the items.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}

/// Random valid arguments for the operation with the given name, or `None` if there is none (`extension` has none).
pub fn arguments(name: &str, seed: u64) -> Option<Case> {
    let salt = name.bytes().fold(seed, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let mut plan = Plan::new(Rng::new(salt));
    plan.recipe(name);
    let op = plan.op(name)?;
    Some(Case { op, inputs: plan.inputs, scalars: plan.scalars })
}
