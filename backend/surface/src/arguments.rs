//! Random valid arguments for every operation, for tests (feature `arguments`).
//!
//! [`arguments`] takes the name of an operation and a seed and gives a [`Case`]: the operation, its inputs with a range
//! for their values, and its scalars. The same name and seed give the same case, and [`Input::data`] the same values.
//! Shapes have ranks 1 to 4 where the operation allows and sizes from 1 to 9; in one case of eight a size is 0.
//!
//! The values avoid what has no defined result (a division by zero, an index out of range, the logarithm of a negative
//! number), and also what depends on the order of evaluation (two writes to one place). A float case of a function with
//! poles stays away from them.

use std::collections::HashMap;

use burn_backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConvOptions, GridSampleOptions,
    GridSamplePaddingMode, InterpolateMode, InterpolateOptions, UnfoldOptions,
};
use burn_backend::quantization::{BlockSize, QuantLevel, QuantScheme, QuantStore, QuantValue};
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{
    BoolDType, BoolStore, DType, Distribution, FloatDType, IntDType, Scalar, Shape, Slice, TensorData,
};
use burn_std::device::DeviceId;

use crate::infer::Meta;
use crate::op::{Attribute, Axes, Bits, Draw, Exponent, Kind, Op, PrimId, ScalarSlot, ValueId};

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
            float_random { shape, .. } | int_random { shape, .. } => shape.contains(&0),
            float_expand { shape, .. } | int_expand { shape, .. } | bool_expand { shape, .. } => {
                shape.contains(&0)
            }
            q_expand { shape, .. } => shape.contains(&0),
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

/// What the arguments of an operation are to be. The constructor sets what fits most operations, all tensors of one
/// shape; [`Plan::recipe`] what differs; then each argument is made by its name and tag.
struct Plan {
    rng: Rng,
    /// The shape of a tensor without one of its own.
    base: Vec<usize>,
    /// The dimension of an operation that has one.
    dim: usize,
    float: FloatDType,
    int: IntDType,
    boolean: BoolDType,
    scheme: QuantScheme,
    /// By the name of the argument: what is not as `base`, the default range, or a default.
    shapes: HashMap<&'static str, Vec<usize>>,
    values: HashMap<&'static str, Values>,
    dtypes: HashMap<&'static str, DType>,
    numbers: HashMap<&'static str, usize>,
    pairs: HashMap<&'static str, [usize; 2]>,
    scalar_values: HashMap<&'static str, Scalar>,
    /// The shapes of a list of tensors.
    parts: Vec<Vec<usize>>,
    target: Vec<usize>,
    axes: Vec<usize>,
    slices: Vec<Slice>,
    length: Option<usize>,
    exponent: i64,
    update: IndexingUpdateOp,
    window: Window,
    inputs: Vec<Input>,
    scalars: Vec<Scalar>,
}

/// The options of a window that slides over up to three dimensions.
#[derive(Clone, Copy)]
struct Window {
    kernel: [usize; 3],
    stride: [usize; 3],
    padding: [usize; 3],
    padding_out: [usize; 3],
    dilation: [usize; 3],
    groups: usize,
    offset_groups: usize,
    ceil_mode: bool,
}

/// The first `N` of three options.
fn first<const N: usize>(options: [usize; 3]) -> [usize; N] {
    std::array::from_fn(|i| options[i])
}

impl Plan {
    fn new(mut rng: Rng) -> Self {
        let rank = rng.between(1, 4);
        let mut base: Vec<usize> = (0..rank).map(|_| rng.pick(&[1, 2, 3, 3, 4, 5, 7, 9])).collect();
        let dim = rng.below(rank);
        if rng.below(8) == 0 {
            let zero = rng.below(rank);
            base[zero] = 0;
        }
        let scheme = QuantScheme::default()
            .with_value(rng.pick(&[QuantValue::Q8F, QuantValue::Q8S]))
            .with_store(QuantStore::Native);
        Self {
            target: base.clone(),
            base,
            dim,
            float: rng.pick(&[
                FloatDType::F32,
                FloatDType::F32,
                FloatDType::F64,
                FloatDType::F16,
                FloatDType::BF16,
            ]),
            int: rng.pick(&[
                IntDType::I64,
                IntDType::I32,
                IntDType::I16,
                IntDType::I8,
                IntDType::U64,
                IntDType::U32,
                IntDType::U16,
                IntDType::U8,
            ]),
            boolean: BoolDType::from(DType::Bool(rng.pick(&[BoolStore::Native, BoolStore::U8]))),
            scheme,
            shapes: HashMap::new(),
            values: HashMap::new(),
            dtypes: HashMap::new(),
            numbers: HashMap::new(),
            pairs: HashMap::new(),
            scalar_values: HashMap::new(),
            parts: Vec::new(),
            axes: Vec::new(),
            slices: Vec::new(),
            length: None,
            exponent: rng.pick(&[0, 1, 2, 3, 4]),
            update: IndexingUpdateOp::Add,
            window: Window {
                kernel: [1; 3],
                stride: [1; 3],
                padding: [0; 3],
                padding_out: [0; 3],
                dilation: [1; 3],
                groups: 1,
                offset_groups: 1,
                ceil_mode: false,
            },
            inputs: Vec::new(),
            scalars: Vec::new(),
            rng,
        }
    }

    /// Whether the integer dtype has no sign.
    fn unsigned(&self) -> bool {
        DType::from(self.int).is_uint()
    }

    fn rank_at_least(&mut self, rank: usize) {
        while self.base.len() < rank {
            self.base.push(self.rng.between(1, 5));
        }
        self.target = self.base.clone();
    }

    fn shape(&mut self, argument: &'static str, shape: impl Into<Vec<usize>>) {
        self.shapes.insert(argument, shape.into());
    }

    fn floats(&mut self, argument: &'static str, low: f64, high: f64) {
        self.values.insert(argument, Values::Float { low, high });
    }

    fn ints(&mut self, argument: &'static str, low: i64, high: i64) {
        self.values.insert(argument, Values::Int { low, high });
    }

    /// `base` with another size in `dim`.
    fn resized(&self, size: usize) -> Vec<usize> {
        let mut shape = self.base.clone();
        shape[self.dim] = size;
        shape
    }

    /// `base` with some sizes 1, so that it broadcasts to `base`.
    fn broadcastable(&mut self) -> Vec<usize> {
        let shrink = self.rng.below(3) == 0;
        let base = self.base.clone();
        base.into_iter().map(|size| if shrink && self.rng.flag() { 1 } else { size }).collect()
    }

    /// Indices into a dimension of the given size: how many, none if it is empty; and their range and dtype.
    fn indices(&mut self, size: usize, most: usize) -> usize {
        self.ints("indices", 0, size as i64);
        let dtype = self.rng.pick(&[IntDType::I64, IntDType::I32]);
        self.dtypes.insert("indices", dtype.into());
        if size == 0 { 0 } else { self.rng.between(0, most) }
    }

    /// What differs from the defaults for an operation.
    fn recipe(&mut self, name: &str) {
        let bare = ["float_", "int_", "bool_", "q_"].iter().find_map(|prefix| name.strip_prefix(prefix));
        if name.starts_with("q_") || name.contains("quantize") {
            // Burn's quantised data cannot be empty: its scales would have nothing to be aligned behind.
            self.base.iter_mut().for_each(|size| *size = (*size).max(1));
            self.target = self.base.clone();
        }
        self.ranges(bare.unwrap_or(name), name);
        match bare.unwrap_or(name) {
            "add"
            | "sub"
            | "mul"
            | "div"
            | "remainder"
            | "powf"
            | "powi"
            | "atan2"
            | "equal"
            | "not_equal"
            | "greater"
            | "greater_equal"
            | "lower"
            | "lower_equal"
            | "and"
            | "or"
            | "xor"
            | "bitwise_and"
            | "bitwise_or"
            | "bitwise_xor"
            | "bitwise_left_shift"
            | "bitwise_right_shift" => {
                let (lhs, rhs) = (self.broadcastable(), self.broadcastable());
                self.shape("lhs", lhs);
                self.shape("rhs", rhs);
            }
            "cross" => {
                self.base[self.dim] = 3;
            }
            "matmul" => {
                let [m, k, n] = std::array::from_fn(|_| self.rng.between(1, 6));
                self.base.truncate(2);
                let (mut lhs, mut rhs) = (self.broadcastable(), self.broadcastable());
                lhs.extend([m, k]);
                rhs.extend([k, n]);
                self.shape("lhs", lhs);
                self.shape("rhs", rhs);
            }
            "transpose" => self.rank_at_least(2),
            "swap_dims" => {
                let other = self.rng.below(self.base.len());
                self.numbers.insert("dim1", self.dim);
                self.numbers.insert("dim2", other);
            }
            "permute" | "flip" => {
                let mut axes: Vec<usize> = (0..self.base.len()).collect();
                for i in (1..axes.len()).rev() {
                    axes.swap(i, self.rng.below(i + 1));
                }
                if bare == Some("flip") {
                    axes.truncate(self.rng.between(0, self.base.len()));
                }
                self.axes = axes;
            }
            "reshape" => {
                let mut target = self.base.clone();
                if target.len() > 1 && self.rng.flag() {
                    let last = target.pop().unwrap_or(1);
                    let at = self.rng.below(target.len());
                    target[at] *= last;
                }
                if self.rng.flag() {
                    target.insert(0, 1);
                }
                self.target = target;
            }
            "expand" => {
                let from = self.broadcastable();
                let mut target = self.base.clone();
                if self.rng.flag() && target.len() < 4 {
                    target.insert(0, self.rng.between(1, 3));
                }
                self.shape("tensor", from);
                self.target = target;
            }
            "gather" | "scatter_add" | "scatter_or" => {
                let count = self.indices(self.base[self.dim], 6);
                let shape = self.resized(count);
                self.shape("indices", shape.clone());
                self.shape("value", shape);
            }
            "select" | "select_add" | "select_or" => {
                let count = self.indices(self.base[self.dim], 6);
                let shape = self.resized(count);
                self.shape("indices", [count]);
                self.shape("value", shape);
            }
            "gather_nd" | "scatter_nd" => {
                let named = self.rng.between(1, self.base.len());
                let smallest = self.base[..named].iter().copied().min().unwrap_or(0);
                let mut rows = self.indices(smallest, 5);
                let updates = [IndexingUpdateOp::Add, IndexingUpdateOp::Mul, IndexingUpdateOp::Min];
                self.update = self.rng.pick(&updates);
                if rows == 1 {
                    self.update = IndexingUpdateOp::Assign;
                }
                let mut indices = vec![];
                if rows > 0 && self.rng.flag() {
                    indices.push(1);
                    rows = rows.max(1);
                }
                indices.push(rows);
                let mut values = indices.clone();
                indices.push(named);
                values.extend_from_slice(&self.base[named..]);
                self.shape("indices", indices);
                self.shape("values", values);
            }
            "slice" | "slice_assign" => {
                for at in 0..self.rng.between(0, self.base.len()) {
                    let size = self.base[at] as isize;
                    let mut bound = || self.rng.between(0, 2 * size as usize + 2) as isize - size - 1;
                    let (start, end) = (bound(), bound());
                    let end = (self.rng.below(3) > 0).then_some(end);
                    // Reads may go past the end, and are cut there; a start past it is no slice of anything.
                    let start = start.min((size - 1).max(0));
                    let step = self.rng.pick(&[1, 1, 1, 2, 3, -1, -2]);
                    self.slices.push(Slice::new(start, end, step));
                }
                let sizes = self.base.iter().enumerate();
                let part: Vec<usize> = sizes
                    .map(|(at, &size)| self.slices.get(at).map_or(size, |slice| slice.output_size(size)))
                    .collect();
                self.shape("value", part);
            }
            "mask_where" | "mask_fill" => {
                let mask = self.broadcastable();
                self.shape("mask", mask);
            }
            "cat" => {
                let count = self.rng.between(1, 3);
                self.parts = (0..count)
                    .map(|_| {
                        let size = self.rng.between(1, 4);
                        self.resized(size)
                    })
                    .collect();
            }
            "topk" | "argtopk" => {
                let k = self.rng.between(self.base[self.dim].min(1), self.base[self.dim]);
                self.numbers.insert("k", k);
            }
            "unfold" => {
                self.base[self.dim] = self.base[self.dim].max(1);
                let size = self.rng.between(1, self.base[self.dim]);
                self.numbers.insert("size", size);
                let step = self.rng.between(1, 3);
                self.numbers.insert("step", step);
            }
            "repeat_dim" => {
                let times = self.rng.between(1, 3);
                self.numbers.insert("times", times);
            }
            "arange_step" => {
                let step = self.rng.between(1, 4);
                self.numbers.insert("step", step);
            }
            "quantize" | "quantize_dynamic" | "dequantize" => {
                if self.rng.flag() {
                    let last = self.base.len() - 1;
                    self.base[last] = 4 * self.rng.between(1, 3);
                    self.scheme = self.scheme.with_level(QuantLevel::Block(BlockSize::new([4])));
                }
                let elements: usize = self.base.iter().product();
                let block = matches!(self.scheme.level, QuantLevel::Block(_));
                self.shape("qparams", [if block { elements / 4 } else { 1 }]);
                self.floats("qparams", 0.01, 0.02);
            }
            "softmax" | "log_softmax" | "softmin" => {}
            "prelu" => {
                let alpha = self.broadcastable();
                self.shape("alpha", alpha);
            }
            _ => self.module_recipe(name),
        }
    }

    /// The ranges of values and scalars, by what the function is defined on.
    fn ranges(&mut self, bare: &str, name: &str) {
        let low = if self.unsigned() { 0 } else { -8 };
        for argument in ["tensor", "lhs", "rhs", "data", "value", "values"] {
            if name.starts_with("int_") || name.starts_with("bitwise_") {
                self.ints(argument, low, 8);
            }
        }
        let integer = |value: i64| if low == 0 { Scalar::UInt(value as u64) } else { Scalar::Int(value) };
        let exact = name.starts_with("int_") || name.starts_with("bitwise_");
        let two = if exact { integer(2) } else { Scalar::Float(1.75) };
        let one = if exact { integer(1) } else { Scalar::Float(0.25) };
        for argument in ["rhs", "max", "value", "fill_value", "alpha"] {
            self.scalar_values.insert(argument, two);
        }
        for argument in ["min", "beta", "negative_slope"] {
            self.scalar_values.insert(argument, one);
        }
        if name.starts_with("bool_") {
            let flag = Scalar::Bool(self.rng.flag());
            self.scalar_values.insert("rhs", flag);
            self.scalar_values.insert("value", flag);
        }
        if name.starts_with("q_")
            && matches!(bare, "log" | "log1p" | "sqrt" | "powf" | "powf_scalar" | "recip")
        {
            for argument in ["tensor", "lhs", "rhs"] {
                self.values.insert(argument, Values::Quantized { low: 1 });
            }
        }
        if name.starts_with("q_") && matches!(bare, "div" | "powi") {
            self.values.insert("rhs", Values::Quantized { low: 1 });
        }
        match (name, bare) {
            ("q_powi", _) | ("float_powi", _) => self.ints("rhs", 0, 3),
            ("int_powi", _) => self.ints("rhs", 0, 3),
            ("int_div" | "int_remainder", _) => self.ints("rhs", 1, 6),
            ("bitwise_left_shift" | "bitwise_right_shift", _) => self.ints("rhs", 0, 4),
            ("float_div" | "float_remainder", _) => self.floats("rhs", 0.5, 2.0),
            ("float_powf", _) => {
                self.floats("lhs", 0.25, 2.0);
                self.floats("rhs", -2.0, 2.0);
            }
            ("float_atan2", _) => self.floats("rhs", 0.25, 2.0),
            ("float_log" | "float_log1p" | "float_sqrt" | "float_recip", _) => {
                self.floats("tensor", 0.25, 4.0)
            }
            ("float_powf_scalar" | "float_powf_scalar_impl", _) => self.floats("tensor", 0.25, 2.0),
            ("float_acos" | "float_asin" | "float_atanh", _) => self.floats("tensor", -0.9, 0.9),
            ("float_acosh", _) => self.floats("tensor", 1.25, 4.0),
            ("int_scatter_nd", _) => self.ints("values", low.max(-1), 2),
            // The sizes allow a product of thousands of elements.
            ("int_prod" | "int_prod_dim" | "int_cumprod", _) => self.ints("tensor", low.max(-1), 2),
            // Burn's backends have these for the wide dtypes only.
            ("int_matmul" | "int_argmax" | "int_argmin" | "int_mean", _) => {
                self.int = self.rng.pick(&[IntDType::I64, IntDType::I32]);
            }
            ("float_tan", _) => self.floats("tensor", -1.2, 1.2),
            ("float_prod" | "float_prod_dim" | "float_cumprod", _) => self.floats("tensor", 0.5, 1.5),
            _ => {}
        }
    }

    /// Shapes of the module operations.
    fn module_recipe(&mut self, name: &str) {
        let batch = self.rng.pick(&[1, 1, 1, 2, 2, 2, 3, 0]);
        match name {
            "embedding" | "embedding_backward" => {
                let [length, rows, width] = std::array::from_fn(|_| self.rng.between(1, 5));
                self.indices(rows, 1);
                self.shape("weights", [rows, width]);
                self.shape("indices", [batch, length]);
                self.shape("output_grad", [batch, length, width]);
            }
            "linear" | "linear_x_backward" | "linear_weight_backward" | "linear_bias_backward" => {
                let [rows, inner, outer] = std::array::from_fn(|_| self.rng.between(1, 6));
                let lead: Vec<usize> =
                    (0..self.rng.below(3)).map(|_| self.rng.between(1, 3)).chain([rows]).collect();
                let with = |width: usize| -> Vec<usize> { lead.iter().copied().chain([width]).collect() };
                self.shape("x", with(inner));
                self.shape("output_grad", with(outer));
                self.shape("weight", [inner, outer]);
                self.shape("bias", [outer]);
            }
            "attention" => {
                let [heads, queries, keys, width, values] = std::array::from_fn(|_| self.rng.between(1, 5));
                self.shape("query", [batch, heads, queries, width]);
                self.shape("key", [batch, heads, keys, width]);
                self.shape("value", [batch, heads, keys, values]);
                let scores = self.rng.pick(&[
                    [batch, heads, queries, keys],
                    [1, 1, queries, keys],
                    [batch, 1, 1, keys],
                ]);
                self.shape("mask", scores);
                self.shape("attn_bias", scores);
            }
            "layer_norm" => {
                let width = self.base[self.base.len() - 1];
                self.shape("gamma", [width]);
                self.shape("beta", [width]);
            }
            "ctc_loss" | "ctc_loss_backward" => {
                let [length, classes] = [self.rng.between(4, 6), self.rng.between(3, 5)];
                let targets = self.rng.between(1, 2);
                self.int = IntDType::I64;
                self.shape("log_probs", [length, batch, classes]);
                self.shape("targets", [batch, targets]);
                self.shape("input_lengths", [batch]);
                self.shape("target_lengths", [batch]);
                self.shape("grad_loss", [batch]);
                self.floats("log_probs", -3.0, -0.5);
                self.ints("targets", 1, classes as i64);
                self.ints("input_lengths", length as i64, length as i64 + 1);
                self.ints("target_lengths", targets as i64, targets as i64 + 1);
                self.numbers.insert("blank", 0);
            }
            "rfft" => {
                self.base[self.dim] = self.rng.pick(&[1, 2, 4, 8, 16]);
                if self.rng.flag() {
                    self.base[self.dim] = self.rng.between(1, 9);
                    self.length = Some(self.rng.between(1, 12));
                }
            }
            "irfft" => {
                self.base[self.dim] = self.rng.pick(&[2, 3, 5, 9]);
                if self.rng.flag() {
                    self.length = Some(self.rng.between(1, 12));
                }
            }
            "float_grid_sample_2d" => {
                let [channels, height, width, rows, columns] =
                    std::array::from_fn(|_| self.rng.between(1, 6));
                self.shape("tensor", [batch, channels, height, width]);
                self.shape("grid", [batch, rows, columns, 2]);
                self.floats("grid", -1.2, 1.2);
            }
            _ if name.contains("conv_transpose") => self.conv_transpose_recipe(name, batch),
            _ if name.contains("conv") => self.conv_recipe(name, batch),
            _ if name.contains("pool") || name.starts_with("interpolate") || name == "unfold4d" => {
                self.pool_recipe(name, batch);
            }
            _ => {}
        }
    }

    /// A window over three sizes, which it fits.
    fn slide(&mut self) -> [usize; 3] {
        let rng = &mut self.rng;
        let window = &mut self.window;
        window.kernel = std::array::from_fn(|_| rng.between(1, 3));
        window.stride = std::array::from_fn(|_| rng.between(1, 3));
        window.dilation = std::array::from_fn(|_| rng.between(1, 2));
        window.padding = std::array::from_fn(|i| rng.between(0, window.kernel[i] / 2));
        std::array::from_fn(|i| window.dilation[i] * (window.kernel[i] - 1) + 1 + rng.below(5))
    }

    /// The sizes that the window gives.
    fn slid(&self, sizes: [usize; 3], ceil_mode: bool) -> [usize; 3] {
        let Window { kernel, stride, padding, dilation, .. } = self.window;
        std::array::from_fn(|i| {
            let slack = sizes[i] + 2 * padding[i] - (dilation[i] * (kernel[i] - 1) + 1);
            1 + if ceil_mode { slack.div_ceil(stride[i]) } else { slack / stride[i] }
        })
    }

    fn conv_recipe(&mut self, name: &str, batch: usize) {
        let rank = if name.contains('1') {
            1
        } else if name.contains('2') {
            2
        } else {
            3
        };
        let sizes = self.slide();
        let out = self.slid(sizes, false);
        let groups = self.rng.between(1, 2);
        let deform = name.starts_with("deform");
        let offset_groups = if deform { self.rng.between(1, 2) } else { 1 };
        self.window.groups = groups;
        self.window.offset_groups = offset_groups;
        let inputs = self.rng.between(1, 2) * if deform { offset_groups } else { 1 };
        let outputs = groups * self.rng.between(1, 2);
        let kernel = self.window.kernel;
        let with = |lead: [usize; 2], sizes: [usize; 3]| [&lead[..], &sizes[..rank]].concat();
        self.shape("x", with([batch, inputs * groups], sizes));
        self.shape("weight", with([outputs, inputs], kernel));
        self.shape("bias", [outputs]);
        self.shape("output_grad", with([batch, outputs], out));
        let taps = offset_groups * kernel[0] * kernel[1];
        self.shape("offset", with([batch, 2 * taps], out));
        self.shape("mask", with([batch, taps], out));
        self.floats("offset", -0.5, 0.5);
        self.floats("mask", 0.0, 1.0);
    }

    fn conv_transpose_recipe(&mut self, name: &str, batch: usize) {
        let rank = if name.contains('1') {
            1
        } else if name.contains('2') {
            2
        } else {
            3
        };
        let out = self.slide();
        let groups = self.rng.between(1, 2);
        self.window.groups = groups;
        let Window { kernel, stride, padding, dilation, .. } = self.window;
        let sizes = self.slid(out, false);
        // What the convolution of the output leaves over is the output padding.
        self.window.padding_out = std::array::from_fn(|i| {
            (out[i] + 2 * padding[i] - (dilation[i] * (kernel[i] - 1) + 1)) % stride[i]
        });
        let inputs = groups * self.rng.between(1, 2);
        let outputs = self.rng.between(1, 2);
        let with = |lead: [usize; 2], sizes: [usize; 3]| [&lead[..], &sizes[..rank]].concat();
        self.shape("x", with([batch, inputs], sizes));
        self.shape("weight", with([inputs, outputs], kernel));
        self.shape("bias", [outputs * groups]);
        self.shape("output_grad", with([batch, outputs * groups], out));
    }

    fn pool_recipe(&mut self, name: &str, batch: usize) {
        let rank = if name.contains('1') { 1 } else { 2 };
        let channels = self.rng.between(1, 3);
        let sizes = self.slide();
        if name.starts_with("avg") {
            self.window.dilation = [1; 3];
        }
        self.window.ceil_mode = self.rng.flag();
        let mut out = self.slid(sizes, self.window.ceil_mode);
        if name.starts_with("adaptive") || name.starts_with("interpolate") {
            out = std::array::from_fn(|_| self.rng.between(1, 6));
        }
        let with = |sizes: [usize; 3]| [&[batch, channels], &sizes[..rank]].concat();
        self.shape("x", with(sizes));
        self.shape("grad", with(out));
        self.shape("output_grad", with(out));
        self.shape("indices", with(out));
        let positions: usize = sizes[..rank].iter().product();
        self.indices(positions, 1);
        self.dtypes.insert("indices", DType::I64);
        let Window { kernel, stride, padding, dilation, .. } = self.window;
        let options = [
            ("kernel_size", kernel),
            ("stride", stride),
            ("padding", padding),
            ("dilation", dilation),
            ("output_size", out),
        ];
        for (argument, option) in options {
            self.numbers.insert(argument, option[0]);
            self.pairs.insert(argument, first(option));
        }
    }

    // One argument each.

    fn tensor(&mut self, kind: Kind, argument: &'static str) -> ValueId {
        let shape = self.shapes.get(argument).unwrap_or(&self.base).clone();
        self.input(kind, argument, shape)
    }

    fn input(&mut self, kind: Kind, argument: &'static str, shape: Vec<usize>) -> ValueId {
        let low = if self.unsigned() { 0 } else { -8 };
        let (dtype, values) = match kind {
            Kind::Float => (self.float.into(), Values::Float { low: -2.0, high: 2.0 }),
            Kind::Int => (self.int.into(), Values::Int { low, high: 8 }),
            Kind::Bool => (self.boolean.into(), Values::Bool),
            Kind::Quantized => (DType::QFloat(self.scheme), Values::Quantized { low: -127 }),
        };
        let given = self.values.get(argument).copied();
        let fits = |given: &Values| std::mem::discriminant(given) == std::mem::discriminant(&values);
        let values = given.filter(fits).unwrap_or(values);
        let dtype = self.dtypes.get(argument).copied().filter(|_| kind == Kind::Int).unwrap_or(dtype);
        self.inputs.push(Input { meta: Meta::new(Shape::from(shape), dtype), values });
        ValueId(self.inputs.len() as u32 - 1)
    }

    fn optional(&mut self, kind: Kind, argument: &'static str) -> Option<ValueId> {
        self.rng.flag().then(|| self.tensor(kind, argument))
    }

    fn list(&mut self, kind: Kind, argument: &'static str) -> Vec<ValueId> {
        self.parts.clone().into_iter().map(|shape| self.input(kind, argument, shape)).collect()
    }

    fn primitive(&mut self, argument: &'static str) -> PrimId {
        if self.rng.flag() {
            PrimId::Float(self.tensor(Kind::Float, argument))
        } else {
            PrimId::Quantized(self.tensor(Kind::Quantized, argument))
        }
    }

    fn scalar(&mut self, argument: &'static str) -> ScalarSlot {
        let value = self.scalar_values.get(argument).copied().unwrap_or(Scalar::Float(0.5));
        self.scalars.push(value);
        ScalarSlot { kind: value.into(), index: self.scalars.len() as u32 - 1 }
    }

    fn number(&self, argument: &'static str) -> usize {
        self.numbers.get(argument).copied().unwrap_or(self.dim)
    }

    fn distribution(&mut self) -> Draw {
        let distribution = self.rng.pick(&[
            Distribution::Default,
            Distribution::Uniform(0.0, 4.0),
            Distribution::Bernoulli(0.25),
            Distribution::Normal(8.0, 0.5),
        ]);
        Draw { distribution, index: 0 }
    }

    fn mode(&mut self) -> InterpolateMode {
        self.rng.pick(&[InterpolateMode::Nearest, InterpolateMode::Bilinear, InterpolateMode::Bicubic])
    }

    fn conv<const N: usize>(&self) -> ConvOptions<N> {
        let Window { stride, padding, dilation, groups, .. } = self.window;
        ConvOptions::new(first(stride), first(padding), first(dilation), groups)
    }

    fn conv_transpose<const N: usize>(&self) -> ConvTransposeOptions<N> {
        let Window { stride, padding, padding_out, dilation, groups, .. } = self.window;
        ConvTransposeOptions::new(first(stride), first(padding), first(padding_out), first(dilation), groups)
    }
}

/// A field of an operation, by its tag.
#[rustfmt::skip]
macro_rules! make {
    (F, $plan:ident, $argument:expr) => { $plan.tensor(Kind::Float, $argument) };
    (I, $plan:ident, $argument:expr) => { $plan.tensor(Kind::Int, $argument) };
    (B, $plan:ident, $argument:expr) => { $plan.tensor(Kind::Bool, $argument) };
    (Q, $plan:ident, $argument:expr) => { $plan.tensor(Kind::Quantized, $argument) };
    (OptF, $plan:ident, $argument:expr) => { $plan.optional(Kind::Float, $argument) };
    (OptB, $plan:ident, $argument:expr) => { $plan.optional(Kind::Bool, $argument) };
    (VecF, $plan:ident, $argument:expr) => { $plan.list(Kind::Float, $argument) };
    (VecI, $plan:ident, $argument:expr) => { $plan.list(Kind::Int, $argument) };
    (VecB, $plan:ident, $argument:expr) => { $plan.list(Kind::Bool, $argument) };
    (VecQ, $plan:ident, $argument:expr) => { $plan.list(Kind::Quantized, $argument) };
    (Prim, $plan:ident, $argument:expr) => { $plan.primitive($argument) };
    (QParams, $plan:ident, $argument:expr) => { $plan.tensor(Kind::Float, $argument) };
    (Device, $plan:ident, $argument:expr) => { DeviceId::new(0, 0) };
    (Scalar, $plan:ident, $argument:expr) => { $plan.scalar($argument) };
    (Exponent, $plan:ident, $argument:expr) => { Exponent(Scalar::Int($plan.exponent)) };
    (Shape, $plan:ident, $argument:expr) => { Shape::from($plan.target.clone()) };
    (Axes, $plan:ident, $argument:expr) => { Axes::from_arg(&$plan.axes) };
    (Slices, $plan:ident, $argument:expr) => { $plan.slices.clone() };
    (usize, $plan:ident, $argument:expr) => { $plan.number($argument) };
    (bool, $plan:ident, $argument:expr) => {
        if $argument == "ceil_mode" { $plan.window.ceil_mode } else { $plan.rng.flag() }
    };
    (f64, $plan:ident, $argument:expr) => { Bits(1e-5) };
    (OptUsize, $plan:ident, $argument:expr) => { $plan.length };
    (Pair, $plan:ident, $argument:expr) => { $plan.pairs[$argument] };
    (Range, $plan:ident, $argument:expr) => {{
        let start = $plan.rng.below(5) as i64;
        start..start + $plan.rng.below(12) as i64
    }};
    (Distribution, $plan:ident, $argument:expr) => { $plan.distribution() };
    (FloatDType, $plan:ident, $argument:expr) => { $plan.float_result() };
    (IntDType, $plan:ident, $argument:expr) => { $plan.int_result() };
    (BoolDType, $plan:ident, $argument:expr) => { $plan.boolean };
    (Update, $plan:ident, $argument:expr) => { $plan.update };
    (Scheme, $plan:ident, $argument:expr) => { $plan.scheme };
    (Conv1, $plan:ident, $argument:expr) => { $plan.conv() };
    (Conv2, $plan:ident, $argument:expr) => { $plan.conv() };
    (Conv3, $plan:ident, $argument:expr) => { $plan.conv() };
    (ConvT1, $plan:ident, $argument:expr) => { $plan.conv_transpose() };
    (ConvT2, $plan:ident, $argument:expr) => { $plan.conv_transpose() };
    (ConvT3, $plan:ident, $argument:expr) => { Box::new($plan.conv_transpose()) };
    (Deform, $plan:ident, $argument:expr) => { $plan.deform() };
    (Interp, $plan:ident, $argument:expr) => {{
        let mode = $plan.mode();
        Bits(InterpolateOptions { mode, align_corners: $plan.rng.flag() })
    }};
    (GridSample, $plan:ident, $argument:expr) => { Bits($plan.grid_sample()) };
    (Unfold, $plan:ident, $argument:expr) => { Bits($plan.unfold()) };
    (Attention, $plan:ident, $argument:expr) => { Bits($plan.attention()) };
}

impl Plan {
    fn float_result(&mut self) -> FloatDType {
        self.rng.pick(&[FloatDType::F32, FloatDType::F64, FloatDType::F16, FloatDType::BF16])
    }

    fn int_result(&mut self) -> IntDType {
        self.rng.pick(&[IntDType::I64, IntDType::I32, IntDType::U8, IntDType::I16])
    }

    fn deform(&self) -> DeformConvOptions<2> {
        let Window { stride, padding, dilation, groups, offset_groups, .. } = self.window;
        DeformConvOptions::new(first(stride), first(padding), first(dilation), groups, offset_groups)
    }

    fn grid_sample(&mut self) -> GridSampleOptions {
        let paddings =
            [GridSamplePaddingMode::Zeros, GridSamplePaddingMode::Border, GridSamplePaddingMode::Reflection];
        GridSampleOptions {
            mode: self.rng.pick(&[InterpolateMode::Nearest, InterpolateMode::Bilinear]),
            padding_mode: self.rng.pick(&paddings),
            align_corners: self.rng.flag(),
        }
    }

    fn unfold(&self) -> UnfoldOptions {
        let Window { stride, padding, dilation, .. } = self.window;
        UnfoldOptions::new(first(stride), first(padding), first(dilation))
    }

    fn attention(&mut self) -> AttentionModuleOptions {
        AttentionModuleOptions {
            scale: self.rng.flag().then_some(0.5),
            softcap: (self.rng.below(3) == 0).then_some(4.0),
            is_causal: self.rng.flag(),
        }
    }
}

macro_rules! define_make {
    ($(trait $trait:ident {
        node { $($op:ident ($($field:ident: $tag:ident),*) -> $ret:ident;)* }
        host { $($host:tt)* }
    })*) => {
        impl Plan {
            fn op(&mut self, name: &str) -> Option<Op> {
                Some(match name {
                    $($(stringify!($op) => Op::$op { $($field: make!($tag, self, stringify!($field))),* },)*)*
                    _ => return None,
                })
            }
        }
    };
}
with_backend_methods! { define_make! {} }
