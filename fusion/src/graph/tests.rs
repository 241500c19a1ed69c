//! Random graphs: their text gives them back, and no text makes parsing or verifying panic.

mod valid;

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
use kiln_surface::{
    Axes, Bits, Draw, Exponent, Extension, Kind, Meta, Op, PrimId, ScalarKind, ScalarSlot, ValueId,
};
use smallvec::SmallVec;

use super::{Def, Graph, Node, ParseError, ValueInfo};

/// A small generator (SplitMix64).
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any 64 bits.
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    fn flag(&mut self) -> bool {
        self.bits() & 1 == 1
    }

    /// One of the items.
    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}

/// Any value of a type, sensible or not.
trait Any {
    fn any(rng: &mut Rng) -> Self;
}

/// All bits of a word, with many that are short, all ones or near a limit.
fn word(rng: &mut Rng) -> u64 {
    let bits = rng.bits();
    rng.pick(&[0, 1, bits >> 60, bits >> 32, bits, u64::MAX, 1 << 63, u64::MAX >> 1])
}

macro_rules! any_number {
    ($($type:ty)*) => {$(
        impl Any for $type {
            fn any(rng: &mut Rng) -> Self {
                word(rng) as $type
            }
        }
    )*};
}
any_number! { u8 u16 u32 u64 i64 usize isize }

impl Any for f64 {
    fn any(rng: &mut Rng) -> Self {
        let bits = f64::from_bits(word(rng));
        let limits = [f64::MAX, f64::INFINITY, -f64::INFINITY];
        let nans = [f64::NAN, -f64::NAN, f64::from_bits(0x7ff0_0000_0000_0001)];
        let others = [0.0, -0.0, 1.0, 0.1, -2.5, 1e-5, 1e300, 5e-324, bits, bits, bits];
        rng.pick(&[&limits[..], &nans, &others].concat())
    }
}

impl Any for bool {
    fn any(rng: &mut Rng) -> Self {
        rng.flag()
    }
}

impl Any for String {
    fn any(rng: &mut Rng) -> Self {
        let chars = [
            'a', 'Z', '0', ' ', '"', '\\', '\n', '\r', '\t', '\0', '\u{1b}', '\u{85}', '#', '%', 'é', '🔥',
            '}',
        ];
        (0..rng.below(9)).map(|_| rng.pick(&chars)).collect()
    }
}

fn many<T: Any>(rng: &mut Rng) -> Vec<T> {
    (0..rng.below(7)).map(|_| T::any(rng)).collect()
}

impl<T: Any> Any for Vec<T> {
    fn any(rng: &mut Rng) -> Self {
        many(rng)
    }
}

impl<T: Any, const N: usize> Any for [T; N] {
    fn any(rng: &mut Rng) -> Self {
        std::array::from_fn(|_| T::any(rng))
    }
}

impl<T: Any> Any for Option<T> {
    fn any(rng: &mut Rng) -> Self {
        rng.flag().then(|| T::any(rng))
    }
}

impl<T: Any> Any for Box<T> {
    fn any(rng: &mut Rng) -> Self {
        Box::new(T::any(rng))
    }
}

impl Any for Shape {
    fn any(rng: &mut Rng) -> Self {
        many::<usize>(rng).into()
    }
}

impl Any for Axes {
    fn any(rng: &mut Rng) -> Self {
        many(rng).into()
    }
}

impl Any for Range<i64> {
    fn any(rng: &mut Rng) -> Self {
        i64::any(rng)..i64::any(rng)
    }
}

/// Types that are one of some values.
macro_rules! any_of {
    ($($type:ty: |$rng:ident| [$($value:expr),* $(,)?];)*) => {$(
        impl Any for $type {
            fn any($rng: &mut Rng) -> Self {
                let makers: &[fn(&mut Rng) -> Self] = &[$(|$rng| { let _ = &$rng; $value }),*];
                let maker = $rng.pick(makers);
                maker($rng)
            }
        }
    )*};
}
any_of! {
    Kind: |rng| [Kind::Float, Kind::Int, Kind::Bool, Kind::Quantized];
    ScalarKind: |rng| [ScalarKind::Float, ScalarKind::Int, ScalarKind::UInt, ScalarKind::Bool];
    FloatDType: |rng| [FloatDType::F64, FloatDType::F32, FloatDType::Flex32, FloatDType::F16, FloatDType::BF16];
    IntDType: |rng| [
        IntDType::I64, IntDType::I32, IntDType::I16, IntDType::I8, IntDType::U64, IntDType::U32, IntDType::U16,
        IntDType::U8,
    ];
    BoolDType: |rng| [BoolDType::Native, BoolDType::U8, BoolDType::U32];
    DType: |rng| [
        FloatDType::any(rng).into(), IntDType::any(rng).into(), DType::Bool(Any::any(rng)), DType::QFloat(Any::any(rng)),
    ];
    IndexingUpdateOp: |rng| [
        IndexingUpdateOp::Assign, IndexingUpdateOp::Add, IndexingUpdateOp::Mul, IndexingUpdateOp::Min,
        IndexingUpdateOp::Max,
    ];
    InterpolateMode: |rng| [
        InterpolateMode::Nearest, InterpolateMode::Bilinear, InterpolateMode::Bicubic, InterpolateMode::Lanczos3,
    ];
    GridSamplePaddingMode: |rng| [
        GridSamplePaddingMode::Zeros, GridSamplePaddingMode::Border, GridSamplePaddingMode::Reflection,
    ];
    QuantValue: |rng| [
        QuantValue::Q8F, QuantValue::E5M2, QuantValue::E4M3, QuantValue::Q4F, QuantValue::E2M1, QuantValue::Q2F,
        QuantValue::Q8S, QuantValue::Q4S, QuantValue::Q2S,
    ];
    QuantParam: |rng| [
        QuantParam::F32, QuantParam::F16, QuantParam::BF16, QuantParam::UE8M0, QuantParam::UE4M3,
    ];
    QuantStore: |rng| [
        QuantStore::Native, QuantStore::PackedNative(Any::any(rng)), QuantStore::PackedU32(Any::any(rng)),
    ];
    QuantLevel: |rng| [
        QuantLevel::Tensor,
        { let size: [u8; BlockSize::MAX_DIMS] = Any::any(rng); QuantLevel::block(&size[rng.below(6)..]) },
    ];
    Scalar: |rng| [
        Scalar::Float(Any::any(rng)), Scalar::Int(Any::any(rng)), Scalar::UInt(Any::any(rng)), Scalar::Bool(rng.flag()),
    ];
    Distribution: |rng| [
        Distribution::Default, Distribution::Bernoulli(Any::any(rng)),
        Distribution::Uniform(Any::any(rng), Any::any(rng)), Distribution::Normal(Any::any(rng), Any::any(rng)),
    ];
    PrimId: |rng| [PrimId::Float(Any::any(rng)), PrimId::Quantized(Any::any(rng))];
    ValueId: |rng| [ValueId(rng.below(40) as u32), ValueId(Any::any(rng))];
    ScalarSlot: |rng| [ScalarSlot { kind: Any::any(rng), index: Any::any(rng) }];
    Exponent: |rng| [Exponent(Any::any(rng))];
    Draw: |rng| [Draw { distribution: Any::any(rng), index: Any::any(rng) }];
    DeviceId: |rng| [DeviceId { type_id: Any::any(rng), index_id: Any::any(rng) }];
    Slice: |rng| [Slice { start: Any::any(rng), end: Any::any(rng), step: Any::any(rng) }];
    Meta: |rng| [Meta { shape: Any::any(rng), dtype: Any::any(rng) }];
    Extension: |rng| [
        Extension { name: Any::any(rng), attributes: Any::any(rng), inputs: Any::any(rng), scalars: Any::any(rng) },
    ];
    QuantScheme: |rng| [
        QuantScheme {
            value: Any::any(rng), param: Any::any(rng), store: Any::any(rng), level: Any::any(rng),
            mode: QuantMode::Symmetric,
        },
    ];
    InterpolateOptions: |rng| [InterpolateOptions { mode: Any::any(rng), align_corners: rng.flag() }];
    GridSampleOptions: |rng| [
        GridSampleOptions { mode: Any::any(rng), padding_mode: Any::any(rng), align_corners: rng.flag() },
    ];
    UnfoldOptions: |rng| [
        UnfoldOptions { stride: Any::any(rng), padding: Any::any(rng), dilation: Any::any(rng) },
    ];
    AttentionModuleOptions: |rng| [
        AttentionModuleOptions { scale: Any::any(rng), softcap: Any::any(rng), is_causal: rng.flag() },
    ];
}

impl<T: Any> Any for Bits<T> {
    fn any(rng: &mut Rng) -> Self {
        Bits(T::any(rng))
    }
}

impl<const N: usize> Any for ConvOptions<N> {
    fn any(rng: &mut Rng) -> Self {
        let (stride, padding, dilation) = (Any::any(rng), Any::any(rng), Any::any(rng));
        Self { stride, padding, dilation, groups: Any::any(rng) }
    }
}

impl<const N: usize> Any for ConvTransposeOptions<N> {
    fn any(rng: &mut Rng) -> Self {
        let ConvOptions { stride, padding, dilation, groups } = Any::any(rng);
        Self { stride, padding, padding_out: Any::any(rng), dilation, groups }
    }
}

impl<const N: usize> Any for DeformConvOptions<N> {
    fn any(rng: &mut Rng) -> Self {
        let ConvOptions { stride, padding, dilation, groups } = Any::any(rng);
        Self { stride, padding, dilation, weight_groups: groups, offset_groups: Any::any(rng) }
    }
}

macro_rules! any_op {
    ($(trait $trait:ident {
        node { $($op:ident ($($field:ident: $tag:ident),*) -> $ret:ident;)* }
        host { $($host:tt)* }
    })*) => {
        /// Any operand and attribute, for each operation in the order of the table, and for an extension.
        const ANY_OP: &[fn(&mut Rng) -> Op] = &[
            $($(|rng| Op::$op { $($field: Any::any(rng)),* },)*)*
            |rng| Op::extension(Any::any(rng)),
        ];
    };
}
kiln_surface::with_backend_methods! { any_op! {} }

/// A graph of the operations, whose values are defined once each, but with any numbers and of any kind and shape.
fn any_graph(ops: impl IntoIterator<Item = Op>, rng: &mut Rng) -> Graph {
    let mut defs = vec![Def::Input; rng.below(3)];
    let mut nodes = Vec::new();
    for op in ops {
        let outputs: SmallVec<_> =
            (0..rng.pick(&[0, 1, 1, 1, 2, 5])).map(|k| ValueId(k + defs.len() as u32)).collect();
        let node = nodes.len() as u32;
        defs.extend((0..outputs.len() as u32).map(|output| Def::Node { node, output }));
        nodes.push(Node { op, outputs });
    }
    // The numbers of the values in any order.
    let mut numbers: Vec<u32> = (0..defs.len() as u32).collect();
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, rng.below(at + 1));
    }
    nodes.iter_mut().flat_map(|node| &mut node.outputs).for_each(|id| id.0 = numbers[id.0 as usize]);
    let mut values: Vec<_> = numbers.into_iter().zip(defs).collect();
    values.sort_by_key(|(number, _)| *number);
    let values =
        values.into_iter().map(|(_, def)| ValueInfo { meta: Any::any(rng), kind: Any::any(rng), def });
    Graph {
        values: values.collect(),
        nodes,
        outputs: Any::any(rng),
        scalars: Any::any(rng),
        draws: Any::any(rng),
    }
}

fn assert_round_trip(graph: &Graph) {
    let text = graph.to_string();
    let parsed = text.parse::<Graph>();
    assert_eq!(parsed.as_ref(), Ok(graph), "{text}");
    assert_eq!(parsed.unwrap().to_string(), text);
}

#[test]
fn each_operation_round_trips_with_any_fields() {
    let mut rng = Rng::new(1);
    assert_eq!(ANY_OP.len(), Op::NAMES.len() + 1);
    for any in ANY_OP {
        for _ in 0..20 {
            let op = any(&mut rng);
            assert_round_trip(&any_graph([op], &mut rng));
        }
    }
}

#[test]
fn graphs_of_many_nodes_round_trip() {
    let mut rng = Rng::new(2);
    for _ in 0..200 {
        let count = rng.below(30);
        let ops: Vec<_> = (0..count).map(|_| rng.pick(ANY_OP)(&mut rng)).collect();
        assert_round_trip(&any_graph(ops, &mut rng));
    }
    assert_round_trip(&Graph::default());
}

/// The text with bytes changed, dropped, repeated or cut off.
fn scrambled(text: &str, rng: &mut Rng) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..rng.between(1, 3) {
        if bytes.is_empty() {
            break;
        }
        let (at, to) = (rng.below(bytes.len()), rng.below(bytes.len()));
        let part = at.min(to)..at.max(to).min(at.min(to) + 40);
        match rng.below(5) {
            0 => bytes[at] = rng.below(256) as u8,
            1 => bytes[at] = rng.pick(b"0123456789%,:=()[]{}.;-#\"\\\n snae"),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(part)),
            _ => {
                let copy = bytes[part].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The text with some of its words and numbers replaced by others of it, or by large numbers.
fn reworded(text: &str, rng: &mut Rng) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    // Words and what stands between them, in turn.
    let mut parts: Vec<&str> = vec![];
    let mut rest = text;
    while !rest.is_empty() {
        let word = rest.chars().next().is_some_and(is_word);
        let end = rest.find(|c| is_word(c) != word).unwrap_or(rest.len());
        parts.push(&rest[..end]);
        rest = &rest[end..];
    }
    for _ in 0..rng.between(1, 2) {
        let at = rng.below(parts.len());
        let like = |part: &&str| part.chars().next().map(|c| (is_word(c), c.is_ascii_digit()));
        let others: Vec<&str> =
            parts.iter().copied().filter(|other| like(other) == like(&parts[at])).collect();
        parts[at] = rng.pick(&others);
        if parts[at].bytes().all(|byte| byte.is_ascii_digit()) && rng.below(3) == 0 {
            parts[at] =
                rng.pick(&["0", "3", "255", "4294967295", "9223372036854775807", "18446744073709551615"]);
        }
    }
    parts.concat()
}

/// Parses, verifies and draws the text after some change. What is parsed must be what its text says.
fn mutate(graph: &Graph, rng: &mut Rng) -> Outcome {
    let change = rng.pick(&[scrambled, reworded]);
    let text = change(&graph.to_string(), rng);
    match text.parse::<Graph>() {
        Ok(graph) => {
            assert_round_trip(&graph);
            graph.to_dot();
            Outcome { parsed: true, verified: graph.verify().is_ok() }
        }
        Err(ParseError { line, column, expected, .. }) => {
            assert!(line <= text.split('\n').count() && !expected.is_empty());
            let line = text.split('\n').nth(line - 1).unwrap();
            assert!(column <= line.chars().count() + 1, "column {column} of {line:?}");
            Outcome { parsed: false, verified: false }
        }
    }
}

struct Outcome {
    parsed: bool,
    verified: bool,
}

#[test]
fn no_text_makes_parsing_panic() {
    let mut rng = Rng::new(4);
    let mut parsed = 0;
    for _ in 0..3000 {
        let op = rng.pick(ANY_OP)(&mut rng);
        parsed += u32::from(mutate(&any_graph([op], &mut rng), &mut rng).parsed);
    }
    assert!(parsed > 100, "{parsed} parsed");
}

/// One valid line or more for each tag of an argument.
const VALID: &str = "\
graph scalars=2 draws=2
%0: float f32[2, 4, 6, 6] = input
%1: float f32[4, 2, 3, 3] = input
%2: int i64[3] = input
%3: quantized qfloat{value=q8s, param=f32, store=native, level=block[1, 4], mode=symmetric}[4, 4] = input
%4: float f32[2, 4, 6, 6] = conv2d(x=%0, weight=%1, bias=none, options={stride=[1, 1], padding=[1, 1], \
dilation=[1, 1], groups=2})
%5: bool bool[2, 4, 6, 6] = float_greater_elem(lhs=%4, rhs=s0:float, out_dtype=bool)
%6: float f32[2, 4, 6, 6] = float_mask_where(tensor=%4, mask=%5, value=%0)
%7: float f32[3, 4, 6, 6] = float_select(tensor=%6, dim=0, indices=%2)
%8: float f32[2, 4, 6, 3] = float_slice(tensor=%6, slices=[0..2;1, 0..;1, -6..6;1, 1..6;-2])
%9: float f32[2, 6, 4, 6] = float_permute(tensor=%4, axes=[0, 2, 1, 3])
%10: float f32[5, 4, 6, 6] = float_cat(tensors=[%4, %7], dim=0)
%11: float f32[4] = float_random(shape=[4], distribution=uniform(-1, 1)@r0, device=device(0, 0), dtype=f32)
%12: int i32[5] = int_arange_step(range=0..10, step=2, device=device(0, 0), dtype=i32)
%13: int i32[5] = int_powi_scalar(lhs=%12, rhs=3:int)
%14: float f32[4, 4] = q_matmul(lhs=%3:quantized, rhs=%3:quantized)
%15: float f32[4, 4] = layer_norm(tensor=%14, gamma=%11, beta=%11, epsilon=1e-5)
%16: quantized qfloat{value=q8f, param=f32, store=native, level=tensor, mode=symmetric}[4, 4] = \
quantize_dynamic(tensor=%15, scheme={value=q8f, param=f32, store=native, level=tensor, mode=symmetric})
%17: float f32[2, 4, 3, 3] = avg_pool2d(x=%6, kernel_size=[2, 2], stride=[2, 2], padding=[0, 0], \
count_include_pad=true, ceil_mode=false)
%18: float f32[2, 4, 5, 5] = interpolate(x=%17, output_size=[5, 5], options={mode=bilinear, align_corners=true})
%19: float f32[2, 4, 6, 6] = attention(query=%6, key=%6, value=%6, mask=none, attn_bias=none, \
options={scale=0.5, softcap=none, is_causal=false})
%20: float f32[2, 4, 6, 5], %21: float f32[2, 4, 6, 5] = rfft(signal=%19, dim=3, n=8)
return %5, %8, %10, %13, %16, %18, %20, %21
";

#[test]
fn no_text_makes_verifying_panic() {
    let mut rng = Rng::new(5);
    let graph: Graph = VALID.parse().unwrap();
    assert_eq!(graph.verify(), Ok(()));
    assert_eq!(graph.to_string(), VALID);
    let (mut parsed, mut verified) = (0, 0);
    for _ in 0..3000 {
        let outcome = mutate(&graph, &mut rng);
        parsed += u32::from(outcome.parsed);
        verified += u32::from(outcome.verified);
    }
    assert!(parsed > 100 && verified > 20, "{parsed} parsed, {verified} verified");
}
