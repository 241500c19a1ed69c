//! The text form of what stands in a graph: each type of a field of [`Op`] prints itself and parses what it printed.
//!
//! | type | text |
//! |---|---|
//! | values | `%3`, absent `none`, many `[%3, %4]`; a primitive `%3:float` or `%3:quantized` |
//! | scalars | `s3:float`: index and variant; an exponent is its value, `2:int` |
//! | draws | `uniform(0, 1)@r2`: distribution and index |
//! | numbers | decimal; floats also `inf`, `-inf`, `nan`, `nan(0xfff8000000000000)`, and every float parses to its bits |
//! | shapes, axes, pairs | `[2, 3]` |
//! | slices | `[0..4;1, 1..;-2]`: start, end if there is one, step |
//! | devices | `device(0, 1)`: type and index |
//! | choices | the variant in snake case; dtypes as in Rust, with `bool`, `bool8` and `bool32` by storage |
//! | structs | the fields by name: `{stride=[1, 1], groups=1}` |
//! | strings | quoted, with `\"`, `\\`, `\n`, `\r`, `\t` and `\u{1b}` |

use std::fmt::{self, Formatter, Write};
use std::ops::Range;

use burn_backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConvOptions, GridSampleOptions,
    GridSamplePaddingMode, InterpolateMode, InterpolateOptions, UnfoldOptions,
};
use burn_backend::quantization::{
    BlockSize, QuantLevel, QuantMode, QuantParam, QuantScheme, QuantStore, QuantValue,
};
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{BoolDType, DType, Distribution, FloatDType, IntDType, Scalar, Shape, Slice};
use burn_std::device::DeviceId;
use kiln_surface::{Axes, Bits, Draw, Exponent, Kind, Meta, Op, PrimId, ScalarKind, ScalarSlot, ValueId};

use super::parse::{Cursor, ParseError};

/// A type with a text form: `parse` gives back what was printed.
pub(super) trait Text {
    /// Writes the text.
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result;

    /// Reads the text at the cursor.
    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError>
    where
        Self: Sized;

    /// Calls `f` with each value that stands in it.
    fn values(&self, _f: &mut dyn FnMut(ValueId)) {}
}

/// A text as something to format.
pub(super) struct Shown<'a>(pub(super) &'a dyn Text);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.print(f)
    }
}

macro_rules! visit_fields {
    ($(trait $trait:ident {
        node { $($op:ident ($($field:ident: $tag:ident),*) -> $ret:ident;)* }
        host { $($host:tt)* }
    })*) => {
        /// Calls `f` with name and content of each field of an operation, in the order of the arguments.
        pub(super) fn fields<'a>(op: &'a Op, f: &mut dyn FnMut(&'static str, &'a dyn Text)) {
            match op {
                $($(Op::$op { $($field),* } => { $(f(stringify!($field), $field);)* })*)*
                Op::extension(extension) => {
                    f("name", &extension.name);
                    f("attributes", &extension.attributes);
                    f("inputs", &extension.inputs);
                    f("scalars", &extension.scalars);
                }
            }
        }
    };
}
kiln_surface::with_backend_methods! { visit_fields! {} }

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Text for $type {
            fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }

            fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
                cursor.integer(concat!("a number (", stringify!($type), ")"))
            }
        }
    )*};
}
numbers! { u8 u16 u32 u64 i64 usize isize }

impl Text for f64 {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.to_bits() == f64::NAN.to_bits() {
            f.write_str("nan")
        } else if self.is_nan() {
            write!(f, "nan({:#x})", self.to_bits())
        } else {
            // The shortest digits that parse back; in scientific notation where those are many.
            let text = format!("{self:?}");
            f.write_str(text.strip_suffix(".0").unwrap_or(&text))
        }
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        cursor.float()
    }
}

impl Text for String {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        cursor.string()
    }
}

/// Prints `[a, b]`.
fn print_list<T: Text>(items: &[T], f: &mut Formatter<'_>) -> fmt::Result {
    f.write_char('[')?;
    for (k, item) in items.iter().enumerate() {
        f.write_str(if k > 0 { ", " } else { "" })?;
        item.print(f)?;
    }
    f.write_char(']')
}

impl<T: Text> Text for Vec<T> {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        print_list(self, f)
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        cursor.list()
    }

    fn values(&self, f: &mut dyn FnMut(ValueId)) {
        self.iter().for_each(|item| item.values(f));
    }
}

impl<T: Text + Copy + Default, const N: usize> Text for [T; N] {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        print_list(self, f)
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let mut items = [T::default(); N];
        cursor.expect("[")?;
        for (k, item) in items.iter_mut().enumerate() {
            if k > 0 {
                cursor.expect(",")?;
            }
            *item = T::parse(cursor)?;
        }
        cursor.expect("]")?;
        Ok(items)
    }
}

impl Text for Axes {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        print_list(self, f)
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        Ok(cursor.list()?.into())
    }
}

impl Text for Shape {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        print_list(self.as_slice(), f)
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        Ok(cursor.list::<usize>()?.into())
    }
}

impl<T: Text> Text for Option<T> {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Some(some) => some.print(f),
            None => f.write_str("none"),
        }
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        if cursor.eat_word("none") { Ok(None) } else { T::parse(cursor).map(Some) }
    }

    fn values(&self, f: &mut dyn FnMut(ValueId)) {
        self.iter().for_each(|item| item.values(f));
    }
}

impl<T: Text> Text for Box<T> {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        (**self).print(f)
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        T::parse(cursor).map(Box::new)
    }
}

impl<T: Text> Text for Bits<T> {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.print(f)
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        T::parse(cursor).map(Self)
    }
}

impl Text for ValueId {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        cursor.prefixed("%", "a value").map(Self)
    }

    fn values(&self, f: &mut dyn FnMut(ValueId)) {
        f(*self);
    }
}

impl Text for PrimId {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Float(_) => Kind::Float,
            Self::Quantized(_) => Kind::Quantized,
        };
        write!(f, "{}:{}", Shown(&self.value()), Shown(&kind))
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let value = ValueId::parse(cursor)?;
        cursor.expect(":")?;
        cursor.choice(&[("float", Self::Float(value)), ("quantized", Self::Quantized(value))])
    }

    fn values(&self, f: &mut dyn FnMut(ValueId)) {
        f(self.value());
    }
}

impl Text for ScalarSlot {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "s{}:{}", self.index, Shown(&self.kind))
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let index = cursor.prefixed("s", "a scalar")?;
        cursor.expect(":")?;
        Ok(Self { kind: Text::parse(cursor)?, index })
    }
}

impl Text for Exponent {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Scalar::Float(value) => write!(f, "{}:float", Shown(value)),
            Scalar::Int(value) => write!(f, "{value}:int"),
            Scalar::UInt(value) => write!(f, "{value}:uint"),
            Scalar::Bool(value) => write!(f, "{value}:bool"),
        }
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        // The kind stands behind the value, but tells how to read it.
        let mut ahead = cursor.clone();
        if !ahead.eat_word("true") && !ahead.eat_word("false") {
            ahead.float()?;
        }
        ahead.expect(":")?;
        let scalar = match ScalarKind::parse(&mut ahead)? {
            ScalarKind::Float => Scalar::Float(Text::parse(cursor)?),
            ScalarKind::Int => Scalar::Int(Text::parse(cursor)?),
            ScalarKind::UInt => Scalar::UInt(Text::parse(cursor)?),
            ScalarKind::Bool => Scalar::Bool(Text::parse(cursor)?),
        };
        cursor.expect(":")?;
        ScalarKind::parse(cursor)?;
        Ok(Self(scalar))
    }
}

impl Text for Draw {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.distribution {
            Distribution::Default => f.write_str("default")?,
            Distribution::Bernoulli(probability) => write!(f, "bernoulli({})", Shown(probability))?,
            Distribution::Uniform(low, high) => write!(f, "uniform({}, {})", Shown(low), Shown(high))?,
            Distribution::Normal(mean, std) => write!(f, "normal({}, {})", Shown(mean), Shown(std))?,
        }
        write!(f, "@r{}", self.index)
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        fn two(cursor: &mut Cursor<'_>) -> Result<(f64, f64), ParseError> {
            cursor.expect("(")?;
            let first = cursor.float()?;
            cursor.expect(",")?;
            let second = cursor.float()?;
            cursor.expect(")")?;
            Ok((first, second))
        }
        let distribution =
            match cursor.choice(&[("default", 0), ("bernoulli", 1), ("uniform", 2), ("normal", 3)])? {
                0 => Distribution::Default,
                1 => {
                    cursor.expect("(")?;
                    let probability = cursor.float()?;
                    cursor.expect(")")?;
                    Distribution::Bernoulli(probability)
                }
                2 => two(cursor).map(|(low, high)| Distribution::Uniform(low, high))?,
                _ => two(cursor).map(|(mean, std)| Distribution::Normal(mean, std))?,
            };
        cursor.expect("@")?;
        Ok(Self { distribution, index: cursor.prefixed("r", "a draw")? })
    }
}

impl Text for Slice {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}..", self.start)?;
        if let Some(end) = self.end {
            write!(f, "{end}")?;
        }
        write!(f, ";{}", self.step)
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let start = Text::parse(cursor)?;
        cursor.expect("..")?;
        let end = if cursor.eat(";") {
            None
        } else {
            let end = Text::parse(cursor)?;
            cursor.expect(";")?;
            Some(end)
        };
        Ok(Self { start, end, step: Text::parse(cursor)? })
    }
}

impl Text for Range<i64> {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let start = Text::parse(cursor)?;
        cursor.expect("..")?;
        Ok(start..Text::parse(cursor)?)
    }
}

impl Text for DeviceId {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "device({}, {})", self.type_id, self.index_id)
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        cursor.expect("device")?;
        cursor.expect("(")?;
        let type_id = Text::parse(cursor)?;
        cursor.expect(",")?;
        let index_id = Text::parse(cursor)?;
        cursor.expect(")")?;
        Ok(Self { type_id, index_id })
    }
}

/// `f32[2, 3]`.
impl Text for Meta {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.dtype.print(f)?;
        self.shape.print(f)
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let dtype = Text::parse(cursor)?;
        Ok(Self { shape: Text::parse(cursor)?, dtype })
    }
}

impl Text for DType {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(store) => store.print(f),
            Self::QFloat(scheme) => write!(f, "qfloat{}", Shown(scheme)),
            Self::F64 | Self::F32 | Self::Flex32 | Self::F16 | Self::BF16 => FloatDType::from(*self).print(f),
            _ => IntDType::from(*self).print(f),
        }
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        if cursor.eat_word("qfloat") {
            return Text::parse(cursor).map(Self::QFloat);
        }
        cursor.choice(&[
            ("f64", Self::F64),
            ("f32", Self::F32),
            ("flex32", Self::Flex32),
            ("f16", Self::F16),
            ("bf16", Self::BF16),
            ("i64", Self::I64),
            ("i32", Self::I32),
            ("i16", Self::I16),
            ("i8", Self::I8),
            ("u64", Self::U64),
            ("u32", Self::U32),
            ("u16", Self::U16),
            ("u8", Self::U8),
            ("bool", Self::Bool(BoolDType::Native)),
            ("bool8", Self::Bool(BoolDType::U8)),
            ("bool32", Self::Bool(BoolDType::U32)),
        ])
    }
}

impl Text for QuantStore {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native => f.write_str("native"),
            Self::PackedNative(dim) => write!(f, "packed_native({dim})"),
            Self::PackedU32(dim) => write!(f, "packed_u32({dim})"),
        }
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let packed: fn(usize) -> Self =
            match cursor.choice(&[("native", 0), ("packed_native", 1), ("packed_u32", 2)])? {
                0 => return Ok(Self::Native),
                1 => Self::PackedNative,
                _ => Self::PackedU32,
            };
        cursor.expect("(")?;
        let dim = Text::parse(cursor)?;
        cursor.expect(")")?;
        Ok(packed(dim))
    }
}

impl Text for QuantLevel {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor => f.write_str("tensor"),
            Self::Block(size) => {
                f.write_str("block")?;
                print_list(size.as_slice(), f)
            }
        }
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        if !cursor.choice(&[("tensor", false), ("block", true)])? {
            return Ok(Self::Tensor);
        }
        let start = cursor.clone();
        let size: Vec<u8> = cursor.list()?;
        if size.len() > BlockSize::MAX_DIMS {
            return Err(start.error(format!("at most {} sizes", BlockSize::MAX_DIMS)));
        }
        Ok(Self::Block(BlockSize::new(size)))
    }
}

/// Types that are a choice of words.
macro_rules! words {
    ($($type:ident { $($variant:ident = $word:literal),* $(,)? })*) => {$(
        impl Text for $type {
            fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($type::$variant => $word),* })
            }

            fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
                cursor.choice(&[$(($word, $type::$variant)),*])
            }
        }
    )*};
}
words! {
    Kind { Float = "float", Int = "int", Bool = "bool", Quantized = "quantized" }
    ScalarKind { Float = "float", Int = "int", UInt = "uint", Bool = "bool" }
    FloatDType { F64 = "f64", F32 = "f32", Flex32 = "flex32", F16 = "f16", BF16 = "bf16" }
    IntDType {
        I64 = "i64", I32 = "i32", I16 = "i16", I8 = "i8", U64 = "u64", U32 = "u32", U16 = "u16", U8 = "u8",
    }
    BoolDType { Native = "bool", U8 = "bool8", U32 = "bool32" }
    IndexingUpdateOp { Assign = "assign", Add = "add", Mul = "mul", Min = "min", Max = "max" }
    InterpolateMode { Nearest = "nearest", Bilinear = "bilinear", Bicubic = "bicubic", Lanczos3 = "lanczos3" }
    GridSamplePaddingMode { Zeros = "zeros", Border = "border", Reflection = "reflection" }
    QuantValue {
        Q8F = "q8f", E5M2 = "e5m2", E4M3 = "e4m3", Q4F = "q4f", E2M1 = "e2m1", Q2F = "q2f", Q8S = "q8s", Q4S = "q4s",
        Q2S = "q2s",
    }
    QuantParam { F32 = "f32", F16 = "f16", BF16 = "bf16", UE8M0 = "ue8m0", UE4M3 = "ue4m3" }
    QuantMode { Symmetric = "symmetric" }
}

impl Text for bool {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        cursor.choice(&[("false", false), ("true", true)])
    }
}

/// Types that are their fields.
macro_rules! structs {
    ($($type:ident $(<$n:ident>)? { $first:ident $(, $field:ident)* })*) => {$(
        impl$(<const $n: usize>)? Text for $type$(<$n>)? {
            fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
                let Self { $first $(, $field)* } = self;
                write!(f, concat!("{{", stringify!($first), "={}"), Shown($first))?;
                $(write!(f, concat!(", ", stringify!($field), "={}"), Shown($field))?;)*
                f.write_char('}')
            }

            fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
                cursor.expect("{")?;
                let parsed = Self {
                    $first: cursor.field(stringify!($first), true)?,
                    $($field: cursor.field(stringify!($field), false)?),*
                };
                cursor.expect("}")?;
                Ok(parsed)
            }
        }
    )*};
}
structs! {
    ConvOptions<N> { stride, padding, dilation, groups }
    ConvTransposeOptions<N> { stride, padding, padding_out, dilation, groups }
    DeformConvOptions<N> { stride, padding, dilation, weight_groups, offset_groups }
    InterpolateOptions { mode, align_corners }
    GridSampleOptions { mode, padding_mode, align_corners }
    UnfoldOptions { stride, padding, dilation }
    AttentionModuleOptions { scale, softcap, is_causal }
    QuantScheme { value, param, store, level, mode }
}
