//! Sorts and what is made of them, against a stable sort of plain lists; the places of what is true.

use std::cmp::Ordering;

use burn_backend::{Backend, DType, IntDType, TensorMetadata, read_sync};

use crate::Family;
use crate::harness::values::int_limits;
use crate::harness::{Arg, BOOL, Body, Dense, Domain, Inputs, Rng, Tolerance, Value, Values, shape};

/// Lengths of rows that a warp holds, and around them.
const SHORT: [usize; 13] = [0, 1, 2, 3, 5, 17, 32, 33, 64, 65, 129, 255, 256];
/// Lengths of rows that a block holds.
const MIDDLE: [usize; 10] = [257, 513, 1_025, 2_048, 2_049, 4_095, 4_096, 4_097, 5_000, 5_120];
/// Rows that no block holds: of few tiles and of many, with a rest and without.
const LONG: [usize; 5] = [5_121, 8_192, 10_240, 18_433, 24_577];

/// Everything that orders the rows along a dimension, or the first `k` elements of them; of the methods one if it says so,
/// since the emulated device is slow.
#[derive(Debug)]
pub(crate) struct Sort {
    only: Option<usize>,
    dim: usize,
    descending: bool,
    k: usize,
    /// Of the indices, where a method takes it.
    dtype: IntDType,
}
impl Body for Sort {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let &Sort { only, dim, descending, k, dtype } = self;
        let wanted = |method: usize| only.is_none_or(|only| only == method);
        let mut all = Vec::new();
        match Inputs::new(inputs).any() {
            Value::Float(x) => {
                if wanted(0) {
                    all.push(Value::Float(B::float_sort(x.clone(), dim, descending)));
                }
                if wanted(1) {
                    all.push(Value::Int(B::float_argsort(x.clone(), dim, descending, dtype)));
                }
                if wanted(2) {
                    let (values, indices) = B::float_sort_with_indices(x.clone(), dim, descending, dtype);
                    all.extend([Value::Float(values), Value::Int(indices)]);
                }
                if wanted(3) {
                    all.push(Value::Float(B::float_topk(x.clone(), dim, k)));
                }
                if wanted(4) {
                    all.push(Value::Int(B::float_argtopk(x, dim, k, dtype)));
                }
            }
            Value::Int(x) => {
                if wanted(0) {
                    all.push(Value::Int(B::int_sort(x.clone(), dim, descending)));
                }
                if wanted(1) {
                    all.push(Value::Int(B::int_argsort(x.clone(), dim, descending)));
                }
                if wanted(2) {
                    let (values, indices) = B::int_sort_with_indices(x.clone(), dim, descending);
                    all.extend([Value::Int(values), Value::Int(indices)]);
                }
                if wanted(3) {
                    all.push(Value::Int(B::int_topk(x.clone(), dim, k)));
                }
                if wanted(4) {
                    all.push(Value::Int(B::int_argtopk(x, dim, k)));
                }
            }
            Value::Bool(_) => unreachable!("bools are not sorted"),
        }
        all
    }
}

/// NaN is greater than all others; zeros are equal.
fn order(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// The first `k` elements along `dim` in order, and where they stood.
fn sorted(x: &Dense, dim: usize, descending: bool, k: usize) -> (Dense, Dense) {
    let (n, inner) = (x.shape[dim], x.shape[dim + 1..].iter().product::<usize>());
    let mut shape = x.shape.clone();
    shape[dim] = k;
    let len = shape.iter().product();
    let (mut from, mut indices) = (vec![0; len], vec![0; len]);
    for outer in 0..x.shape[..dim].iter().product() {
        for i in 0..inner {
            let at = |r: usize| (outer * n + r) * inner + i;
            let compare = |&a: &usize, &b: &usize| match &x.values {
                Values::Float(v) => order(v[at(a)], v[at(b)]),
                Values::Int(v) => v[at(a)].cmp(&v[at(b)]),
            };
            let mut places: Vec<usize> = (0..n).collect();
            // Rust's `sort_by` is stable, with the comparison turned round too.
            places.sort_by(|a, b| if descending { compare(b, a) } else { compare(a, b) });
            for (r, &place) in places.iter().take(k).enumerate() {
                let to = (outer * k + r) * inner + i;
                (from[to], indices[to]) = (at(place), place as i128);
            }
        }
    }
    let values = match &x.values {
        Values::Float(v) => Values::Float(from.iter().map(|&at| v[at]).collect()),
        Values::Int(v) => Values::Int(from.iter().map(|&at| v[at]).collect()),
    };
    (Dense { shape: shape.clone(), values }, Dense::ints(&shape, indices))
}

fn check_sort(family: &mut Family, rng: &mut Rng, arg: Arg, dim: usize) {
    let x = arg.dense();
    let n = x.shape[dim];
    let descending = rng.one_in(2);
    let k = match rng.below(4) {
        0 => n,
        1 => n.min(1 + rng.below(4)),
        2 => n / 2,
        _ => n.min(rng.pick(&[0, 7, 100, 513, 1_025, 1_280, 1_281])),
    };
    let dtype = rng.pick(&[IntDType::I32, IntDType::I64, IntDType::U32, IntDType::U64, IntDType::I16]);
    let dtype = if n > 32_767 && dtype == IntDType::I16 { IntDType::I32 } else { dtype };
    let (values, indices) = sorted(&x, dim, descending, n);
    let (first, first_at) = sorted(&x, dim, true, k);
    // The sort with indices counts for two.
    let only = (n > 256).then(|| rng.pick(&[0, 1, 2, 2, 3, 4]));
    let expected = match only {
        None => vec![values.clone(), indices.clone(), values, indices, first, first_at],
        Some(0) => vec![values],
        Some(1) => vec![indices],
        Some(2) => vec![values, indices],
        Some(3) => vec![first],
        Some(_) => vec![first_at],
    };
    let body = Sort { only, dim, descending, k, dtype };
    family.check_values(&[arg], &body, &expected, Tolerance::exact());
}

/// A shape of `n` along a dimension.
fn around(rng: &mut Rng, n: usize, most: usize) -> (Vec<usize>, usize) {
    let rank = rng.range(1, 4);
    let dim = rng.below(rank);
    let mut shape = vec![1; rank];
    let mut left = most / n.max(1);
    for d in rng.permutation(rank) {
        let sizes: Vec<usize> = [1, 2, 3, 5, 16, 33].into_iter().filter(|&s| s <= left.max(1)).collect();
        shape[d] = if d == dim { n } else { rng.pick(&sizes) };
        left /= if d == dim { 1 } else { shape[d] };
    }
    (shape, dim)
}

fn sort(dtype: DType) {
    let mut family = Family::new("sort", dtype);
    // Many ties, many special values, or neither.
    let domains = [Domain::Normal, Domain::Whole, Domain::Special, Domain::Bit];
    let share = |of_float: f64| if dtype.is_float() { of_float } else { 0.5 * of_float };
    family.cases("any shape", share(2.0), |family, rng| {
        let shape = shape::any(rng, false);
        let dim = rng.below(shape.len());
        let domain = rng.pick(&domains);
        let arg = Arg::random(rng, &shape, dtype, domain);
        check_sort(family, rng, arg, dim);
    });
    family.cases("many dimensions", share(0.2), |family, rng| {
        let shape = shape::many(rng);
        let dim = rng.below(shape.len());
        let arg = Arg::reversed(rng, &shape, dtype, Domain::Special);
        check_sort(family, rng, arg, dim);
    });
    for (name, lengths, most, of_float) in [
        ("short rows", &SHORT[..], 2_000, 5.0),
        ("rows of a block", &MIDDLE[..], 5_120, 2.5),
        ("long rows", &LONG[..], 24_577, 1.2),
    ] {
        family.cases(name, share(of_float), |family, rng| {
            let n = rng.pick(lengths);
            let (shape, dim) = around(rng, n, most);
            let domain = rng.pick(&domains);
            let arg = Arg::random(rng, &shape, dtype, domain);
            check_sort(family, rng, arg, dim);
        });
    }
    family.cases("the longest rows", share(0.2), |family, rng| {
        let domain = rng.pick(&[Domain::Special, Domain::Normal]);
        let arg = Arg::plain(rng, &[70_001], dtype, domain);
        check_sort(family, rng, arg, 0);
    });
    family.cases("rows that are all but constant", share(0.6), |family, rng| {
        let n = rng.pick(&[300, 1_000, 7_000]);
        let mut arg = Arg::plain(rng, &[2, n], dtype, Domain::Bit);
        let high = int_limits(dtype).1;
        match &mut arg.base.values {
            Values::Float(v) => v.iter_mut().for_each(|x| *x = -1.5),
            Values::Int(v) => v.iter_mut().for_each(|x| *x = high - 3),
        }
        let at = rng.below(n);
        match &mut arg.base.values {
            Values::Float(v) => v[at] = 2.5,
            Values::Int(v) => v[at] = high,
        }
        check_sort(family, rng, arg, 1);
    });
    if dtype.is_float() {
        family.cases("gradient", 2.0, |family, rng| {
            // No two are equal, in 16 bits either: of equals Flex may take any.
            let shape = rng.pick(&[[1, 1, 7], [3, 33, 2], [2, 1, 129], [5, 65, 1], [1, 400, 1]]);
            let dim = rng.below(3);
            let len: usize = shape.iter().product();
            let values = rng.permutation(len).into_iter().map(|k| k as f64 - (len / 2) as f64).collect();
            let args = [Arg::new(Dense::floats(&shape, values), dtype)];
            let body = SortGradient { dim, descending: rng.one_in(2) };
            family.check_both(&args, &body, Tolerance::exact(), Tolerance::chain(dtype, 2, 1));
        });
    }
    family.finish();
}

#[derive(Debug)]
pub(crate) struct SortGradient {
    dim: usize,
    descending: bool,
}
impl Body for SortGradient {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).float();
        let (values, _) = B::float_sort_with_indices(x.clone(), self.dim, self.descending, IntDType::I64);
        let both = B::float_add(values, B::float_sort(x, self.dim, !self.descending));
        vec![Value::Float(both)]
    }
}

crate::per_dtype!(sort: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64);

#[derive(Debug)]
pub(crate) struct Argwhere(IntDType);
impl Body for Argwhere {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        vec![Value::Int(read_sync(B::bool_argwhere(Inputs::new(inputs).bool(), self.0)))]
    }
}

#[test]
fn argwhere() {
    let mut family = Family::new("sort", BOOL);
    let mut check = |name: &str, share: f64, shape: fn(&mut Rng) -> Vec<usize>| {
        family.cases(name, share, |family, rng| {
            let shape = shape(rng);
            let mut arg = Arg::random(rng, &shape, BOOL, Domain::Bit);
            // Mostly half of all; few, none, or all.
            let keep = rng.pick(&[usize::MAX, usize::MAX, 1, 97, 0]);
            if let Values::Int(v) = &mut arg.base.values {
                match keep {
                    0 => v.iter_mut().for_each(|x| *x = 0),
                    1 => v.iter_mut().for_each(|x| *x = 1),
                    usize::MAX => {}
                    step => v.iter_mut().enumerate().for_each(|(k, x)| *x *= (k % step == 0) as i128),
                }
            }
            let x = arg.dense();
            let all = x.as_ints().iter().enumerate().filter(|(_, x)| **x != 0);
            let places: Vec<i128> =
                all.flat_map(|(at, _)| shape::unravel(at, &shape)).map(|c| c as i128).collect();
            let expected = Dense::ints(&[places.len() / shape.len(), shape.len()], places);
            let dtype = rng.pick(&[IntDType::I32, IntDType::I64, IntDType::U32]);
            family.check_values(&[arg], &Argwhere(dtype), &[expected], Tolerance::exact());
        });
    };
    check("argwhere", 6.0, |rng| shape::any(rng, false));
    check("argwhere of many dimensions", 1.0, shape::many);
    check("argwhere of several tiles", 2.0, |rng| {
        let n = rng.pick(&[8_191, 8_192, 8_193, 20_000, 70_001]);
        if rng.one_in(2) { vec![n] } else { vec![n / 7, 7] }
    });
    family.finish();
}

/// Burn's own example of what is kept of equals.
#[test]
fn the_first_of_equals_comes_first_in_falling_order_too() {
    let x = Arg::new(Dense::ints(&[6], vec![3, 2, 3, 2, 1, 1]), DType::I64);
    let body = Sort { only: None, dim: 0, descending: true, k: 2, dtype: IntDType::I32 };
    let ints = |v: &[i128]| Dense::ints(&[v.len()], v.to_vec());
    let (values, indices) = (ints(&[3, 3, 2, 2, 1, 1]), ints(&[0, 2, 1, 3, 4, 5]));
    let expected = [values.clone(), indices.clone(), values, indices, ints(&[3, 3]), ints(&[0, 2])];
    let mut family = Family::new("sort", DType::I64);
    family.cases("topk of equals", 0.0, |family, _| {
        family.check_values(std::slice::from_ref(&x), &body, &expected, Tolerance::exact());
    });
    family.finish();
}

/// Bits of `x` in order, and their indices.
fn sorted_bits(x: &[u32], n: usize, descending: bool) -> (Vec<u32>, Vec<i32>) {
    use burn_backend::ops::FloatTensorOps;
    use kiln::Cuda;
    let all: Vec<f32> = x.iter().cycle().take(n).map(|&bits| f32::from_bits(bits)).collect();
    let x = Cuda::float_from_data(burn_backend::TensorData::new(all, [n]), &Default::default());
    let (values, indices) = Cuda::float_sort_with_indices(x, 0, descending, IntDType::I32);
    assert_eq!(indices.dtype(), DType::I32);
    let read = |t| read_sync(Cuda::float_into_data(t)).expect("the device works");
    let bits = read(values).as_slice::<f32>().expect("f32").iter().map(|x| x.to_bits()).collect();
    (bits, read(indices).as_slice::<i32>().expect("i32").to_vec())
}

#[test]
fn zeros_are_equal_nan_is_largest_and_all_keep_their_bits() {
    let _device = crate::harness::family::shared();
    // -NaN with a payload, 0, inf, -0, NaN, -inf, 0, -0, -1.
    let x =
        [0xffc0_1234u32, 0, 0x7f80_0000, 0x8000_0000, 0x7fc0_0000, 0xff80_0000, 0, 0x8000_0000, 0xbf80_0000];
    let rank = |bits: u32| match f32::from_bits(bits) {
        x if x.is_nan() => 4,
        x if x == f32::INFINITY => 3,
        0.0 => 2, // -0 too
        -1.0 => 1,
        _ => 0,
    };
    for n in [9, 40, 300, 9_000] {
        for descending in [false, true] {
            let mut places: Vec<usize> = (0..n).collect();
            let key = |&at: &usize| if descending { 4 - rank(x[at % 9]) } else { rank(x[at % 9]) };
            places.sort_by_key(key);
            let (bits, indices) = sorted_bits(&x, n, descending);
            assert_eq!(indices, places.iter().map(|&at| at as i32).collect::<Vec<_>>(), "{n} {descending}");
            assert_eq!(bits, places.iter().map(|&at| x[at % 9]).collect::<Vec<_>>(), "{n} {descending}");
        }
    }
}

#[test]
fn more_elements_than_there_are_is_an_error() {
    use burn_backend::ops::FloatTensorOps;
    use kiln::Cuda;
    let _device = crate::harness::family::shared();
    let device = Default::default();
    let x = Cuda::float_zeros([2, 3].into(), &device, burn_backend::FloatDType::F32);
    let text = crate::harness::family::caught(|| drop(Cuda::float_topk(x.clone(), 1, 4))).unwrap_err();
    for part in ["topk", "no 4 elements", "[2, 3]"] {
        assert!(text.contains(part), "{text}");
    }
    let text = crate::harness::family::caught(|| drop(Cuda::float_sort(x, 2, false))).unwrap_err();
    assert!(text.contains("sort") && text.contains("no dimension 2"), "{text}");
}
