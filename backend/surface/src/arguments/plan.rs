//! [`Plan`]: the arguments of one operation, made one by one from what its recipe sets.

use std::collections::HashMap;

use burn_backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConvOptions, GridSampleOptions,
    GridSamplePaddingMode, InterpolateMode, InterpolateOptions, UnfoldOptions,
};
use burn_backend::quantization::{QuantScheme, QuantStore, QuantValue};
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{BoolDType, BoolStore, DType, Distribution, FloatDType, IntDType, Scalar, Shape, Slice};
use burn_std::device::DeviceId;

use super::{Input, Rng, Values};
use crate::infer::Meta;
use crate::op::{Attribute, Axes, Bits, Draw, Exponent, Kind, Op, PrimId, ScalarSlot, ValueId};

/// What the arguments of an operation are to be. The constructor sets what fits most operations, all tensors of one
/// shape; [`Plan::recipe`] what differs; then each argument is made by its name and tag.
pub(super) struct Plan {
    pub(super) rng: Rng,
    /// The shape of a tensor without one of its own.
    pub(super) base: Vec<usize>,
    /// The dimension of an operation that has one.
    pub(super) dim: usize,
    pub(super) float: FloatDType,
    pub(super) int: IntDType,
    pub(super) boolean: BoolDType,
    pub(super) scheme: QuantScheme,
    /// By the name of the argument: what is not as `base`, the default range, or a default.
    pub(super) shapes: HashMap<&'static str, Vec<usize>>,
    pub(super) values: HashMap<&'static str, Values>,
    pub(super) dtypes: HashMap<&'static str, DType>,
    pub(super) numbers: HashMap<&'static str, usize>,
    pub(super) pairs: HashMap<&'static str, [usize; 2]>,
    pub(super) scalar_values: HashMap<&'static str, Scalar>,
    /// The shapes of a list of tensors.
    pub(super) parts: Vec<Vec<usize>>,
    pub(super) target: Vec<usize>,
    pub(super) axes: Vec<usize>,
    pub(super) slices: Vec<Slice>,
    pub(super) length: Option<usize>,
    pub(super) exponent: i64,
    pub(super) update: IndexingUpdateOp,
    pub(super) window: Window,
    pub(super) inputs: Vec<Input>,
    pub(super) scalars: Vec<Scalar>,
}

/// The options of a window that slides over up to three dimensions.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) kernel: [usize; 3],
    pub(super) stride: [usize; 3],
    pub(super) padding: [usize; 3],
    pub(super) padding_out: [usize; 3],
    pub(super) dilation: [usize; 3],
    pub(super) groups: usize,
    pub(super) offset_groups: usize,
    pub(super) ceil_mode: bool,
}

/// The first `N` of three options.
pub(super) fn first<const N: usize>(options: [usize; 3]) -> [usize; N] {
    std::array::from_fn(|i| options[i])
}

impl Plan {
    pub(super) fn new(mut rng: Rng) -> Self {
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
    pub(super) fn unsigned(&self) -> bool {
        DType::from(self.int).is_uint()
    }

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
            pub(super) fn op(&mut self, name: &str) -> Option<Op> {
                Some(match name {
                    $($(stringify!($op) => Op::$op { $($field: make!($tag, self, stringify!($field))),* },)*)*
                    _ => return None,
                })
            }
        }
    };
}
with_backend_methods! { define_make! {} }
