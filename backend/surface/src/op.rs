//! [`Op`]: what a node of a graph computes.
//!
//! The enum is generated from the `node` lines of the [table](crate::table). A field has the type below for its tag;
//! the attribute types convert from and to Burn's arguments by [`Attribute`].
//!
//! | tag | field |
//! |---|---|
//! | `F` `I` `B` `Q` | [`ValueId`] |
//! | `OptF` `OptB` | `Option<ValueId>` |
//! | `VecF` `VecI` `VecB` `VecQ` | `Vec<ValueId>` |
//! | `Prim` | [`PrimId`] |
//! | `QParams` | [`ValueId`] of the scales, the only parameter Burn has |
//! | `Device` | [`DeviceId`] |
//! | `Scalar` | [`ScalarSlot`] |
//! | `Distribution` | [`Draw`] |
//! | `Exponent` | [`Exponent`] |
//! | `Axes` `Slices` | [`Axes`], `Vec<Slice>` |
//! | `Scheme` | `QuantScheme` |
//! | `ConvT3` | boxed, to keep [`Op`] small |
//! | `f64` `Attention` `Interp` `GridSample` `Unfold` | [`Bits`] of Burn's type, which has no (total) equality |
//! | the others | Burn's type |

use std::hash::{Hash, Hasher};
use std::ops::{Deref, Range};

use burn_backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConvOptions, GridSampleOptions,
    GridSamplePaddingMode, InterpolateMode, InterpolateOptions, UnfoldOptions,
};
use burn_backend::quantization::QuantScheme;
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{BoolDType, Distribution, FloatDType, IntDType, Scalar, Shape, Slice};
use burn_std::device::DeviceId;
use smallvec::SmallVec;

/// A value of a graph: what a node gives, or an input of the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

/// What Burn's `TensorPrimitive` is for tensors: a float value or a quantised one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrimId {
    /// A float tensor.
    Float(ValueId),
    /// A quantised tensor.
    Quantized(ValueId),
}

impl PrimId {
    /// The value, of whichever kind.
    pub fn value(self) -> ValueId {
        match self {
            Self::Float(value) | Self::Quantized(value) => value,
        }
    }
}

/// The kind of a tensor, which picks its type in a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A float tensor.
    Float,
    /// An integer tensor.
    Int,
    /// A boolean tensor.
    Bool,
    /// A quantised tensor.
    Quantized,
}

/// The variant of Burn's `Scalar`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScalarKind {
    /// `Scalar::Float`
    Float,
    /// `Scalar::Int`
    Int,
    /// `Scalar::UInt`
    UInt,
    /// `Scalar::Bool`
    Bool,
}

impl From<Scalar> for ScalarKind {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Float(_) => Self::Float,
            Scalar::Int(_) => Self::Int,
            Scalar::UInt(_) => Self::UInt,
            Scalar::Bool(_) => Self::Bool,
        }
    }
}

/// A scalar operand. Its value is parameter `index` of the graph, not part of it, so that a learning rate may change
/// from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScalarSlot {
    /// The variant of the value.
    pub kind: ScalarKind,
    /// Which of the graph's scalars it is.
    pub index: u32,
}

/// The exponent of an integer power. Unlike other scalars it is part of the graph, since `x^2` and `x^3` compile to
/// different code. Compared by bits.
#[derive(Debug, Clone, Copy)]
pub struct Exponent(pub Scalar);

/// A random draw: the distribution, and which of the graph's random parameters (seed and offset) it takes. Compared
/// by bits.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    /// What is drawn from.
    pub distribution: Distribution,
    /// Which of the graph's random parameters gives seed and offset.
    pub index: u32,
}

/// An attribute that is compared and hashed by its bits: NaN equals itself, and 0.0 differs from -0.0.
#[derive(Debug, Clone, Copy)]
pub struct Bits<T>(pub T);

impl<T> Deref for Bits<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The axes of a permutation or flip.
pub type Axes = SmallVec<[usize; 5]>;

/// An operation that another crate adds.
///
/// It names its inputs and scalars; what it gives and means is known to the crate that adds it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Extension {
    /// The name, by which the crate that adds it finds its implementation.
    pub name: String,
    /// Static attributes, in a text form of that crate.
    pub attributes: String,
    /// The tensors read.
    pub inputs: Vec<ValueId>,
    /// The scalar operands.
    pub scalars: Vec<ScalarSlot>,
}

/// The words that stand for a value of [`Bits`], [`Exponent`] or [`Draw`] in comparisons.
pub trait Bitwise {
    /// Equal words, equal values.
    fn words(&self) -> [u64; 6];
}

impl Bitwise for f64 {
    fn words(&self) -> [u64; 6] {
        [self.to_bits(), 0, 0, 0, 0, 0]
    }
}

impl Bitwise for Scalar {
    fn words(&self) -> [u64; 6] {
        let (kind, bits) = match *self {
            Self::Float(value) => (0, value.to_bits()),
            Self::Int(value) => (1, value as u64),
            Self::UInt(value) => (2, value),
            Self::Bool(value) => (3, value.into()),
        };
        [kind, bits, 0, 0, 0, 0]
    }
}

impl Bitwise for Distribution {
    fn words(&self) -> [u64; 6] {
        let (kind, a, b) = match *self {
            Self::Default => (0, 0.0, 0.0),
            Self::Bernoulli(probability) => (1, probability, 0.0),
            Self::Uniform(low, high) => (2, low, high),
            Self::Normal(mean, deviation) => (3, mean, deviation),
        };
        [kind, a.to_bits(), b.to_bits(), 0, 0, 0]
    }
}

impl Bitwise for AttentionModuleOptions {
    fn words(&self) -> [u64; 6] {
        let Self { scale, softcap, is_causal } = *self;
        let flags =
            u64::from(scale.is_some()) | u64::from(softcap.is_some()) << 1 | u64::from(is_causal) << 2;
        [flags, scale.unwrap_or(0.0).to_bits(), softcap.unwrap_or(0.0).to_bits(), 0, 0, 0]
    }
}

impl Bitwise for InterpolateMode {
    fn words(&self) -> [u64; 6] {
        let mode = match self {
            Self::Nearest => 0,
            Self::Bilinear => 1,
            Self::Bicubic => 2,
            Self::Lanczos3 => 3,
        };
        [mode, 0, 0, 0, 0, 0]
    }
}

impl Bitwise for InterpolateOptions {
    fn words(&self) -> [u64; 6] {
        [self.mode.words()[0], self.align_corners.into(), 0, 0, 0, 0]
    }
}

impl Bitwise for GridSampleOptions {
    fn words(&self) -> [u64; 6] {
        let padding = match self.padding_mode {
            GridSamplePaddingMode::Zeros => 0,
            GridSamplePaddingMode::Border => 1,
            GridSamplePaddingMode::Reflection => 2,
        };
        [self.mode.words()[0], padding, self.align_corners.into(), 0, 0, 0]
    }
}

impl Bitwise for UnfoldOptions {
    fn words(&self) -> [u64; 6] {
        let ([a, b], [c, d], [e, f]) = (self.stride, self.padding, self.dilation);
        [a, b, c, d, e, f].map(|word| word as u64)
    }
}

impl<T: Bitwise> Bitwise for Bits<T> {
    fn words(&self) -> [u64; 6] {
        self.0.words()
    }
}

impl Bitwise for Exponent {
    fn words(&self) -> [u64; 6] {
        self.0.words()
    }
}

impl Bitwise for Draw {
    fn words(&self) -> [u64; 6] {
        let [kind, a, b, ..] = self.distribution.words();
        [kind, a, b, self.index.into(), 0, 0]
    }
}

macro_rules! compare_by_words {
    ($($type:ty $(, $param:ident)?;)*) => {$(
        impl$(<$param: Bitwise>)? PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                self.words() == other.words()
            }
        }
        impl$(<$param: Bitwise>)? Eq for $type {}
        impl$(<$param: Bitwise>)? Hash for $type {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.words().hash(state);
            }
        }
    )*};
}
compare_by_words! { Bits<T>, T; Exponent; Draw; }

/// A static attribute of an operation: a field of [`Op`] that is made from Burn's argument alone and gives it back.
pub trait Attribute {
    /// Burn's type of the argument.
    type Arg<'a>
    where
        Self: 'a;

    /// The field for an argument.
    fn from_arg(arg: Self::Arg<'_>) -> Self;

    /// The argument for the field.
    fn arg(&self) -> Self::Arg<'_>;
}

macro_rules! attributes {
    ($($field:ty: $arg:ty, |$from:ident| $from_arg:expr, |$to:ident| $to_arg:expr;)*) => {$(
        impl Attribute for $field {
            type Arg<'a> = $arg;

            fn from_arg($from: Self::Arg<'_>) -> Self {
                $from_arg
            }

            fn arg(&self) -> Self::Arg<'_> {
                let $to = self;
                $to_arg
            }
        }
    )*};
}
attributes! {
    Axes: &'a [usize], |arg| arg.into(), |field| field;
    Vec<Slice>: &'a [Slice], |arg| arg.to_vec(), |field| field;
    QuantScheme: &'a QuantScheme, |arg| *arg, |field| field;
    Exponent: Scalar, |arg| Self(arg), |field| field.0;
    Shape: Shape, |arg| arg, |field| field.clone();
    usize: usize, |arg| arg, |field| *field;
    bool: bool, |arg| arg, |field| *field;
    Option<usize>: Option<usize>, |arg| arg, |field| *field;
    [usize; 2]: [usize; 2], |arg| arg, |field| *field;
    Range<i64>: Range<i64>, |arg| arg, |field| field.clone();
    FloatDType: FloatDType, |arg| arg, |field| *field;
    IntDType: IntDType, |arg| arg, |field| *field;
    BoolDType: BoolDType, |arg| arg, |field| *field;
    IndexingUpdateOp: IndexingUpdateOp, |arg| arg, |field| *field;
    ConvOptions<1>: ConvOptions<1>, |arg| arg, |field| field.clone();
    ConvOptions<2>: ConvOptions<2>, |arg| arg, |field| field.clone();
    ConvOptions<3>: ConvOptions<3>, |arg| arg, |field| field.clone();
    ConvTransposeOptions<1>: ConvTransposeOptions<1>, |arg| arg, |field| field.clone();
    ConvTransposeOptions<2>: ConvTransposeOptions<2>, |arg| arg, |field| field.clone();
    Box<ConvTransposeOptions<3>>: ConvTransposeOptions<3>, |arg| Box::new(arg), |field| (**field).clone();
    DeformConvOptions<2>: DeformConvOptions<2>, |arg| arg, |field| field.clone();
    Bits<f64>: f64, |arg| Self(arg), |field| field.0;
    Bits<AttentionModuleOptions>: AttentionModuleOptions, |arg| Self(arg), |field| field.0;
    Bits<InterpolateOptions>: InterpolateOptions, |arg| Self(arg), |field| field.0.clone();
    Bits<GridSampleOptions>: GridSampleOptions, |arg| Self(arg), |field| field.0.clone();
    Bits<UnfoldOptions>: UnfoldOptions, |arg| Self(arg), |field| field.0.clone();
}

/// The type of a field by its tag; the module's table in code.
#[rustfmt::skip]
macro_rules! field {
    (F) => { ValueId };
    (I) => { ValueId };
    (B) => { ValueId };
    (Q) => { ValueId };
    (OptF) => { Option<ValueId> };
    (OptB) => { Option<ValueId> };
    (VecF) => { Vec<ValueId> };
    (VecI) => { Vec<ValueId> };
    (VecB) => { Vec<ValueId> };
    (VecQ) => { Vec<ValueId> };
    (Prim) => { PrimId };
    (QParams) => { ValueId };
    (Device) => { DeviceId };
    (Scalar) => { ScalarSlot };
    (Distribution) => { Draw };
    (Exponent) => { Exponent };
    (Axes) => { Axes };
    (Slices) => { Vec<Slice> };
    (Scheme) => { QuantScheme };
    (Shape) => { Shape };
    (usize) => { usize };
    (bool) => { bool };
    (f64) => { Bits<f64> };
    (OptUsize) => { Option<usize> };
    (Pair) => { [usize; 2] };
    (Range) => { Range<i64> };
    (FloatDType) => { FloatDType };
    (IntDType) => { IntDType };
    (BoolDType) => { BoolDType };
    (Update) => { IndexingUpdateOp };
    (Conv1) => { ConvOptions<1> };
    (Conv2) => { ConvOptions<2> };
    (Conv3) => { ConvOptions<3> };
    (ConvT1) => { ConvTransposeOptions<1> };
    (ConvT2) => { ConvTransposeOptions<2> };
    (ConvT3) => { Box<ConvTransposeOptions<3>> };
    (Deform) => { DeformConvOptions<2> };
    (Interp) => { Bits<InterpolateOptions> };
    (GridSample) => { Bits<GridSampleOptions> };
    (Unfold) => { Bits<UnfoldOptions> };
    (Attention) => { Bits<AttentionModuleOptions> };
}

/// The kinds of what an operation gives, by the tag of its result.
#[rustfmt::skip]
macro_rules! kinds {
    (F) => { &[Kind::Float] };
    (I) => { &[Kind::Int] };
    (B) => { &[Kind::Bool] };
    (Q) => { &[Kind::Quantized] };
    (Prim) => { &[Kind::Float] };
    (FI) => { &[Kind::Float, Kind::Int] };
    (II) => { &[Kind::Int, Kind::Int] };
    (QI) => { &[Kind::Quantized, Kind::Int] };
    (FF) => { &[Kind::Float, Kind::Float] };
    (MaxPool1d) => { &[Kind::Float, Kind::Int] };
    (MaxPool2d) => { &[Kind::Float, Kind::Int] };
    (MaxPool1dGrad) => { &[Kind::Float] };
    (MaxPool2dGrad) => { &[Kind::Float] };
    (DeformGrad) => { &[Kind::Float; 5] };
}

/// What a field holds besides a static attribute.
trait Field {
    fn inputs(&self, _f: &mut dyn FnMut(ValueId)) {}
    fn map_inputs(&mut self, _f: &mut dyn FnMut(ValueId) -> ValueId) {}
    fn scalars(&self, _f: &mut dyn FnMut(ScalarSlot)) {}
    fn map_scalars(&mut self, _f: &mut dyn FnMut(ScalarSlot) -> ScalarSlot) {}
    fn map_draw(&mut self, _f: &mut dyn FnMut(u32) -> u32) {}
    fn draw(&self) -> Option<&Draw> {
        None
    }
}

impl Field for ValueId {
    fn inputs(&self, f: &mut dyn FnMut(ValueId)) {
        f(*self);
    }

    fn map_inputs(&mut self, f: &mut dyn FnMut(ValueId) -> ValueId) {
        *self = f(*self);
    }
}

impl Field for Option<ValueId> {
    fn inputs(&self, f: &mut dyn FnMut(ValueId)) {
        self.iter().for_each(|value| value.inputs(f));
    }

    fn map_inputs(&mut self, f: &mut dyn FnMut(ValueId) -> ValueId) {
        self.iter_mut().for_each(|value| value.map_inputs(f));
    }
}

impl Field for Vec<ValueId> {
    fn inputs(&self, f: &mut dyn FnMut(ValueId)) {
        self.iter().for_each(|value| value.inputs(f));
    }

    fn map_inputs(&mut self, f: &mut dyn FnMut(ValueId) -> ValueId) {
        self.iter_mut().for_each(|value| value.map_inputs(f));
    }
}

impl Field for PrimId {
    fn inputs(&self, f: &mut dyn FnMut(ValueId)) {
        self.value().inputs(f);
    }

    fn map_inputs(&mut self, f: &mut dyn FnMut(ValueId) -> ValueId) {
        match self {
            Self::Float(value) | Self::Quantized(value) => value.map_inputs(f),
        }
    }
}

impl Field for ScalarSlot {
    fn scalars(&self, f: &mut dyn FnMut(ScalarSlot)) {
        f(*self);
    }

    fn map_scalars(&mut self, f: &mut dyn FnMut(ScalarSlot) -> ScalarSlot) {
        *self = f(*self);
    }
}

impl Field for Vec<ScalarSlot> {
    fn scalars(&self, f: &mut dyn FnMut(ScalarSlot)) {
        self.iter().for_each(|slot| f(*slot));
    }

    fn map_scalars(&mut self, f: &mut dyn FnMut(ScalarSlot) -> ScalarSlot) {
        self.iter_mut().for_each(|slot| *slot = f(*slot));
    }
}

impl Field for Draw {
    fn map_draw(&mut self, f: &mut dyn FnMut(u32) -> u32) {
        self.index = f(self.index);
    }

    fn draw(&self) -> Option<&Draw> {
        Some(self)
    }
}

impl Field for DeviceId {}
impl<T: Attribute> Field for T {}

impl Field for Extension {
    fn inputs(&self, f: &mut dyn FnMut(ValueId)) {
        self.inputs.inputs(f);
    }

    fn map_inputs(&mut self, f: &mut dyn FnMut(ValueId) -> ValueId) {
        self.inputs.map_inputs(f);
    }

    fn scalars(&self, f: &mut dyn FnMut(ScalarSlot)) {
        self.scalars.scalars(f);
    }

    fn map_scalars(&mut self, f: &mut dyn FnMut(ScalarSlot) -> ScalarSlot) {
        self.scalars.map_scalars(f);
    }
}

macro_rules! define_op {
    ($(trait $trait:ident {
        node { $($op:ident ($($field:ident: $tag:ident),*) -> $ret:ident;)* }
        host { $($host:tt)* }
    })*) => {
        /// An operation of a graph: a method of Burn's operation traits with its operands.
        ///
        /// Variants and fields bear the names of the methods and their arguments, in Burn's spelling, so that one
        /// search finds an operation wherever it occurs. Tensors are [`ValueId`]s; everything else is a static
        /// attribute, except scalars and random draws, whose values are parameters of the graph.
        #[allow(missing_docs, non_camel_case_types)]
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Op {
            $($($op { $($field: field!($tag)),* },)*)*
            /// An operation that another crate adds.
            extension(Extension),
        }

        impl Op {
            /// The names of all operations in the order of the table, less `extension`.
            pub const NAMES: &[&str] = &[$($(stringify!($op),)*)*];

            /// The name of the method; `extension` for an operation of another crate.
            pub fn name(&self) -> &'static str {
                match self {
                    $($(Self::$op { .. } => stringify!($op),)*)*
                    Self::extension(_) => "extension",
                }
            }

            /// Calls `f` with each tensor that is read, in the order of the arguments; absent ones are left out.
            pub fn inputs(&self, f: &mut dyn FnMut(ValueId)) {
                match self {
                    $($(Self::$op { $($field),* } => { $($field.inputs(f);)* })*)*
                    Self::extension(extension) => Field::inputs(extension, f),
                }
            }

            /// Replaces each tensor that is read by what `f` gives for it, in the order of the arguments.
            pub fn map_inputs(&mut self, f: &mut dyn FnMut(ValueId) -> ValueId) {
                match self {
                    $($(Self::$op { $($field),* } => { $($field.map_inputs(f);)* })*)*
                    Self::extension(extension) => Field::map_inputs(extension, f),
                }
            }

            /// Calls `f` with each scalar operand, in the order of the arguments; an [`Exponent`] is none.
            pub fn scalars(&self, f: &mut dyn FnMut(ScalarSlot)) {
                match self {
                    $($(Self::$op { $($field),* } => { $($field.scalars(f);)* })*)*
                    Self::extension(extension) => Field::scalars(extension, f),
                }
            }

            /// Replaces each scalar operand by what `f` gives for it, in the order of the arguments.
            pub fn map_scalars(&mut self, f: &mut dyn FnMut(ScalarSlot) -> ScalarSlot) {
                match self {
                    $($(Self::$op { $($field),* } => { $($field.map_scalars(f);)* })*)*
                    Self::extension(extension) => Field::map_scalars(extension, f),
                }
            }

            /// Replaces the index of the random draw, if there is one.
            pub fn map_draw(&mut self, f: &mut dyn FnMut(u32) -> u32) {
                match self {
                    $($(Self::$op { $($field),* } => { $($field.map_draw(f);)* })*)*
                    Self::extension(_) => {}
                }
            }

            /// The random draw of an operation that makes one.
            pub fn draw(&self) -> Option<&Draw> {
                match self {
                    $($(Self::$op { $($field),* } => None$(.or($field.draw()))*,)*)*
                    Self::extension(_) => None,
                }
            }

            /// The kinds of the tensors that come out.
            ///
            /// - Where Burn gives a `TensorPrimitive` (`q_add` and its like) this is a float tensor: it would be a
            ///   quantised one only for a primitive that overrides `QTensorPrimitive::propagation`, and none does.
            /// - `deform_conv2d_backward` gives the gradients of x, offset and weight, then of mask and bias if the
            ///   operation has them.
            /// - What an extension gives is known to the crate that adds it; here it is empty.
            pub fn outputs(&self) -> &'static [Kind] {
                if let Self::deform_conv2d_backward { mask, bias, .. } = self {
                    return &[Kind::Float; 5][..3 + usize::from(mask.is_some()) + usize::from(bias.is_some())];
                }
                match self {
                    $($(Self::$op { .. } => kinds!($ret),)*)*
                    Self::extension(_) => &[],
                }
            }
        }
    };
}
with_backend_methods! { define_op! {} }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_op_stays_small() {
        assert_eq!(size_of::<Op>(), 104);
    }
}
