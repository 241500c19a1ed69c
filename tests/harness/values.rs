//! Values on the host: what tests draw, upload and compare.

use burn_backend::tensor::Device;
use burn_backend::{Backend, DType, TensorData, bf16, f16};

use super::shape::{self as shapes, Views, views_to};
use super::{Rng, Value};

/// The elements of a tensor: every float dtype as f64, every other as i128.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Values {
    Float(Vec<f64>),
    Int(Vec<i128>),
}

/// Shape and elements in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Dense {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Values,
}

impl Dense {
    pub(crate) fn floats(shape: &[usize], values: Vec<f64>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len());
        Dense { shape: shape.to_vec(), values: Values::Float(values) }
    }

    pub(crate) fn ints(shape: &[usize], values: Vec<i128>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len());
        Dense { shape: shape.to_vec(), values: Values::Int(values) }
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub(crate) fn as_floats(&self) -> &[f64] {
        match &self.values {
            Values::Float(v) => v,
            Values::Int(_) => panic!("integers where floats are expected"),
        }
    }

    pub(crate) fn as_ints(&self) -> &[i128] {
        match &self.values {
            Values::Int(v) => v,
            Values::Float(_) => panic!("floats where integers are expected"),
        }
    }

    /// In `dtype`; floats are rounded to nearest, integers keep their low bits.
    pub(crate) fn data(&self, dtype: DType) -> TensorData {
        let shape = self.shape.clone();
        macro_rules! of {
            ($v:expr, $f:expr) => {
                TensorData::new($v.iter().map(|&x| $f(x)).collect::<Vec<_>>(), shape)
            };
        }
        match (&self.values, dtype) {
            (Values::Float(v), DType::F64) => of!(v, |x| x),
            (Values::Float(v), DType::F32) => of!(v, |x| x as f32),
            (Values::Float(v), DType::F16) => of!(v, |x| f16::from_f32(to_odd(x))),
            (Values::Float(v), DType::BF16) => of!(v, |x| bf16::from_f32(to_odd(x))),
            (Values::Int(v), DType::I64) => of!(v, |x| x as i64),
            (Values::Int(v), DType::I32) => of!(v, |x| x as i32),
            (Values::Int(v), DType::I16) => of!(v, |x| x as i16),
            (Values::Int(v), DType::I8) => of!(v, |x| x as i8),
            (Values::Int(v), DType::U64) => of!(v, |x| x as u64),
            (Values::Int(v), DType::U32) => of!(v, |x| x as u32),
            (Values::Int(v), DType::U16) => of!(v, |x| x as u16),
            (Values::Int(v), DType::U8) => of!(v, |x| x as u8),
            (Values::Int(v), DType::Bool(_)) => of!(v, |x| x != 0),
            (_, dtype) => panic!("the harness has no {dtype:?} from these values"),
        }
    }

    pub(crate) fn of(data: &TensorData) -> Self {
        macro_rules! read {
            ($t:ty, $kind:ident, $f:expr) => {
                Values::$kind(
                    data.as_slice::<$t>().expect("the dtype was matched").iter().map(|&x| $f(x)).collect(),
                )
            };
        }
        let values = match data.dtype {
            DType::F64 => read!(f64, Float, |x| x),
            DType::F32 => read!(f32, Float, f64::from),
            DType::F16 => read!(f16, Float, f64::from),
            DType::BF16 => read!(bf16, Float, f64::from),
            DType::I64 => read!(i64, Int, i128::from),
            DType::I32 => read!(i32, Int, i128::from),
            DType::I16 => read!(i16, Int, i128::from),
            DType::I8 => read!(i8, Int, i128::from),
            DType::U64 => read!(u64, Int, i128::from),
            DType::U32 => read!(u32, Int, i128::from),
            DType::U16 => read!(u16, Int, i128::from),
            DType::U8 => read!(u8, Int, i128::from),
            DType::Bool(_) => read!(bool, Int, |x| x as i128),
            dtype => panic!("the harness cannot read {dtype:?}"),
        };
        Dense { shape: data.shape.to_vec(), values }
    }
}

/// `x` in f32, rounded to odd, so that rounding on to 16 bits is right. (`half`'s own conversions from f64 drop the low
/// half of the fraction first and can be one unit off.)
fn to_odd(x: f64) -> f32 {
    let near = x as f32;
    if near as f64 == x || x.is_nan() || near.is_infinite() {
        return near;
    }
    let toward_zero = if (near as f64).abs() > x.abs() { near.to_bits() - 1 } else { near.to_bits() };
    f32::from_bits(toward_zero | 1)
}

/// The nearest number of `dtype`.
pub(crate) fn round_to(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => x as f32 as f64,
        DType::F16 => f16::from_f32(to_odd(x)).to_f64(),
        DType::BF16 => bf16::from_f32(to_odd(x)).to_f64(),
        _ => x,
    }
}

/// The smallest and largest integer of `dtype`.
pub(crate) fn int_limits(dtype: DType) -> (i128, i128) {
    match dtype {
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::I64 => (i64::MIN.into(), i64::MAX.into()),
        DType::U8 => (0, u8::MAX.into()),
        DType::U16 => (0, u16::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::U64 => (0, u64::MAX.into()),
        _ => (0, 1),
    }
}

/// Keeps the low bits that `dtype` has.
pub(crate) fn wrap(x: i128, dtype: DType) -> i128 {
    let (low, high) = int_limits(dtype);
    x.wrapping_sub(low).rem_euclid(high - low + 1) + low
}

/// Which values are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Domain {
    /// Standard normal; integers from -9 to 9 (0 to 9).
    Normal,
    /// Above 0, about 1.
    Positive,
    /// Inside (-1, 1).
    Inside,
    /// Above 1.
    AboveOne,
    /// Away from 0: magnitudes 0.5 to 3; integers not 0.
    NotZero,
    /// Whole numbers from -4 to 4, in floats too.
    Whole,
    /// Normal with many NaN, infinities, zeros of both signs, ties and limits; integers of the whole range.
    Special,
    /// Floats from below the smallest to above the largest integer of this dtype, as far as their own dtype goes.
    Beyond(DType),
    /// 0 or 1.
    Bit,
    /// Integers from 0 to below this.
    Index(usize),
}

/// NaN, infinities, zeros of both signs, limits, ties and subnormals.
fn special(k: usize, dtype: DType) -> f64 {
    let info = dtype.finfo().expect("a float dtype");
    let all = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        info.max,
        info.min,
        info.min_positive,
        info.min_positive / 4.0,
        -info.min_positive / 4.0,
        info.epsilon,
        1.5,
        -1.5,
        0.5,
        -2.5,
        1.0,
    ];
    all[k % all.len()]
}

/// `share` of the largest integer of `to`, or of the largest number of `dtype` where that is smaller.
fn beyond(share: f64, to: DType, dtype: DType) -> f64 {
    share * (int_limits(to).1 as f64).min(dtype.finfo().expect("a float dtype").max)
}

/// The elements of the simplest tensor: small, few digits, neighbours differ.
fn counted(k: usize, domain: Domain, dtype: DType) -> f64 {
    let of = |all: &[f64]| all[k % all.len()];
    match domain {
        Domain::Normal | Domain::NotZero => of(&[1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -0.5]),
        Domain::Positive => of(&[1.0, 2.0, 0.5]),
        Domain::Inside => of(&[0.5, -0.5, 0.25, -0.25, 0.75]),
        Domain::AboveOne => of(&[2.0, 3.0, 1.5]),
        Domain::Whole => of(&[1.0, 2.0, 3.0, -4.0, 0.0]),
        Domain::Special => special(k, dtype),
        Domain::Beyond(to) => beyond(of(&[0.75, -0.75, 1.25, -1.25, 0.25]), to, dtype),
        Domain::Bit => (k % 2) as f64,
        Domain::Index(n) => (k % n) as f64,
    }
}

/// One element in `dtype`'s kind; floats are numbers of `dtype`.
pub(crate) fn draw(rng: &mut Rng, domain: Domain, dtype: DType) -> f64 {
    if let Some(k) = rng.counted() {
        return round_to(counted(k, domain, dtype), dtype);
    }
    let x = match domain {
        Domain::Normal => rng.normal(),
        Domain::Positive => rng.uniform(0.05, 3.0),
        Domain::Inside => rng.uniform(-0.98, 0.98),
        Domain::AboveOne => rng.uniform(1.05, 4.0),
        Domain::NotZero => rng.uniform(0.5, 3.0) * if rng.one_in(2) { -1.0 } else { 1.0 },
        Domain::Whole => rng.below(9) as f64 - 4.0,
        Domain::Beyond(to) => beyond(rng.uniform(-1.25, 1.25), to, dtype),
        Domain::Bit => rng.below(2) as f64,
        Domain::Index(n) => rng.below(n) as f64,
        Domain::Special => match rng.below(32) {
            k if k < 16 => special(k, dtype),
            16 => rng.normal() * 100.0,
            _ => rng.normal(),
        },
    };
    round_to(x, dtype)
}

fn draw_int(rng: &mut Rng, domain: Domain, dtype: DType) -> i128 {
    let (low, high) = int_limits(dtype);
    let x = match domain {
        Domain::Bit => rng.below(2) as i128,
        Domain::Index(n) => rng.below(n) as i128,
        Domain::Positive | Domain::AboveOne => rng.below(9) as i128 + 1,
        Domain::NotZero => (rng.below(9) as i128 + 1) * if low < 0 && rng.one_in(2) { -1 } else { 1 },
        Domain::Special => match rng.below(8) {
            0 => low,
            1 => high,
            2 => 0,
            3 => 1,
            4 => low.max(-1),
            5 => rng.below(100) as i128,
            _ => wrap((rng.bits() as i128) << 1, dtype),
        },
        _ => rng.below(19) as i128 - 9,
    };
    x.clamp(low.max(if matches!(domain, Domain::Normal | Domain::Whole) { -9 } else { low }), high)
}

/// An input: a tensor, and views of it.
#[derive(Debug, Clone)]
pub(crate) struct Arg {
    pub(crate) base: Dense,
    pub(crate) dtype: DType,
    pub(crate) views: Views,
    /// The shape after the views.
    pub(crate) shape: Vec<usize>,
}

impl Arg {
    /// Random values of `shape` through random views.
    pub(crate) fn random(rng: &mut Rng, shape: &[usize], dtype: DType, domain: Domain) -> Self {
        rng.part(|rng| {
            let (base, views) = views_to(rng, shape);
            Arg { base: dense(rng, &base, dtype, domain), dtype, views, shape: shape.to_vec() }
        })
    }

    /// As [`Arg::random`] without views that repeat elements.
    pub(crate) fn distinct(rng: &mut Rng, shape: &[usize], dtype: DType, domain: Domain) -> Self {
        loop {
            let arg = Arg::random(rng, shape, dtype, domain);
            if !arg.views.iter().any(|step| matches!(step, shapes::Step::Expand(_))) {
                return arg;
            }
        }
    }

    /// Random values of `shape` with the order of the dimensions reversed in memory, so that no two are one loop.
    pub(crate) fn reversed(rng: &mut Rng, shape: &[usize], dtype: DType, domain: Domain) -> Self {
        let base: Vec<usize> = shape.iter().rev().copied().collect();
        let views = vec![shapes::Step::Permute((0..shape.len()).rev().collect())];
        Arg { views, shape: shape.to_vec(), ..Arg::plain(rng, &base, dtype, domain) }
    }

    /// Random values of `shape`, no view.
    pub(crate) fn plain(rng: &mut Rng, shape: &[usize], dtype: DType, domain: Domain) -> Self {
        Arg::new(rng.part(|rng| dense(rng, shape, dtype, domain)), dtype)
    }

    /// These values, no view.
    pub(crate) fn new(base: Dense, dtype: DType) -> Self {
        Arg { shape: base.shape.clone(), base, dtype, views: Views::new() }
    }

    /// On a backend, in `dtype`.
    pub(crate) fn value<B: Backend>(&self, dtype: DType, device: &Device<B>) -> Value<B> {
        shapes::apply(Value::new(self.base.data(dtype), device), &self.views)
    }

    /// The values after the views.
    pub(crate) fn dense(&self) -> Dense {
        if self.views.is_empty() {
            return self.base.clone();
        }
        let dtype = super::reference_dtype(self.dtype);
        Dense::of(&self.reference(dtype).read())
    }

    /// On Flex, in `dtype`. Views that end empty are left out: Flex cannot take some of them.
    pub(crate) fn reference(&self, dtype: DType) -> Value<burn_flex::Flex> {
        if self.shape.contains(&0) {
            let none = if dtype.is_float() { Values::Float(vec![]) } else { Values::Int(vec![]) };
            let empty = Dense { shape: self.shape.clone(), values: none };
            return Value::new(empty.data(dtype), &Default::default());
        }
        self.value(dtype, &Default::default())
    }
}

/// Random values; one choice of the generator.
pub(crate) fn dense(rng: &mut Rng, shape: &[usize], dtype: DType, domain: Domain) -> Dense {
    let rng = &mut rng.elements();
    let len = shape.iter().product();
    if dtype.is_float() {
        Dense::floats(shape, (0..len).map(|_| draw(rng, domain, dtype)).collect())
    } else if dtype.is_bool() {
        Dense::ints(shape, (0..len).map(|_| rng.below(2) as i128).collect())
    } else {
        Dense::ints(shape, (0..len).map(|_| draw_int(rng, domain, dtype)).collect())
    }
}
