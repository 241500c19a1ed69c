//! Expected values from plain loops, by Kiln's own rules: where burn-flex has others, or none.
//!
//! Integers wrap; `x / 0 = 0`, `MIN / -1 = MIN`, a remainder has the sign of the divisor and `x % 0 = 0`; shifts count
//! modulo the width. NaN wins in extrema, and the first of equals is the one that indices name.

use burn_backend::DType;

use super::values::{int_limits, wrap};
use super::{Dense, Values, shape};

/// `f` of each element.
pub(crate) fn map(x: &Dense, f: impl Fn(i128) -> i128) -> Dense {
    Dense::ints(&x.shape, x.as_ints().iter().map(|&v| f(v)).collect())
}

/// `f` of each pair, broadcast.
pub(crate) fn zip(a: &Dense, b: &Dense, f: impl Fn(i128, i128) -> i128) -> Dense {
    let to: Vec<usize> = a.shape.iter().zip(&b.shape).map(|(&x, &y)| if x == 1 { y } else { x }).collect();
    let at = |d: &Dense, index: &[usize]| {
        let own: Vec<usize> = index.iter().zip(&d.shape).map(|(&i, &n)| if n == 1 { 0 } else { i }).collect();
        d.as_ints()[shape::ravel(&own, &d.shape)]
    };
    let len = to.iter().product();
    let values = (0..len).map(|p| shape::unravel(p, &to)).map(|i| f(at(a, &i), at(b, &i))).collect();
    Dense::ints(&to, values)
}

/// An integer operation of two operands.
pub(crate) fn int_binary(op: &str, dtype: DType, a: i128, b: i128) -> i128 {
    let (low, high) = int_limits(dtype);
    let bits = (high - low + 1).ilog2() as i128;
    let exact = match op {
        "add" => a + b,
        "sub" => a - b,
        "mul" => a.wrapping_mul(b),
        "div" if b == 0 => 0,
        "div" => a / b,
        "remainder" if b == 0 => 0,
        "remainder" => {
            let r = a % b;
            if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
        }
        "powi" => {
            let (mut base, mut result, mut e) = (a, 1i128, b as u32);
            while e > 0 {
                if e & 1 == 1 {
                    result = wrap(result.wrapping_mul(base), dtype);
                }
                base = wrap(base.wrapping_mul(base), dtype);
                e >>= 1;
            }
            result
        }
        "and" => a & b,
        "or" => a | b,
        "xor" => a ^ b,
        "shl" => a << (b & (bits - 1)),
        "shr" => a >> (b & (bits - 1)),
        "equal" => return (a == b) as i128,
        "not_equal" => return (a != b) as i128,
        "greater" => return (a > b) as i128,
        "greater_equal" => return (a >= b) as i128,
        "lower" => return (a < b) as i128,
        "lower_equal" => return (a <= b) as i128,
        _ => panic!("no plain {op}"),
    };
    wrap(exact, dtype)
}

/// Replaces each line along `dim` by what `f` makes of it; all lines become equally long.
fn lines<T: Copy, U: Copy + Default>(
    x: &[T],
    dims: &[usize],
    dim: usize,
    len: usize,
    f: impl Fn(&[T]) -> Vec<U>,
) -> (Vec<usize>, Vec<U>) {
    let mut to = dims.to_vec();
    to[dim] = len;
    let inner: usize = dims[dim + 1..].iter().product();
    let outer: usize = dims[..dim].iter().product();
    let mut out = vec![U::default(); outer * len * inner];
    for o in 0..outer {
        for i in 0..inner {
            let line: Vec<T> = (0..dims[dim]).map(|k| x[(o * dims[dim] + k) * inner + i]).collect();
            for (k, y) in f(&line).into_iter().enumerate() {
                out[(o * len + k) * inner + i] = y;
            }
        }
    }
    (to, out)
}

/// Whether `a` takes the place of `best` in a search for the largest.
fn beats(a: f64, best: f64) -> bool {
    !best.is_nan() && (a.is_nan() || a > best)
}

fn extremum(line: &[f64], sign: f64) -> usize {
    (1..line.len()).fold(0, |best, k| if beats(sign * line[k], sign * line[best]) { k } else { best })
}

fn int_extremum(line: &[i128], sign: i128) -> usize {
    (1..line.len()).fold(0, |best, k| if sign * line[k] > sign * line[best] { k } else { best })
}

fn running<T: Copy>(line: &[T], f: impl Fn(T, T) -> T) -> Vec<T> {
    let mut out: Vec<T> = Vec::with_capacity(line.len());
    for &x in line {
        out.push(out.last().map_or(x, |&last| f(last, x)));
    }
    out
}

/// The sums of the first elements, each as exact as f64 is (Neumaier, 1974): one after another, the errors of equal terms
/// add up.
fn running_sums(line: &[f64]) -> Vec<f64> {
    let (mut sum, mut lost) = (0.0f64, 0.0);
    let mut next = |x: f64| {
        let total = sum + x;
        lost += if sum.abs() >= x.abs() { (sum - total) + x } else { (x - total) + sum };
        sum = total;
        if total.is_finite() { total + lost } else { total }
    };
    line.iter().map(|&x| next(x)).collect()
}

fn exact_sum(line: &[f64]) -> f64 {
    running_sums(line).last().copied().unwrap_or(0.0)
}

/// A reduction of `dim` (which stays, with size 1), or a scan along it. Integers are of `dtype`.
pub(crate) fn along(op: &str, x: &Dense, dim: usize, dtype: DType) -> Dense {
    let size = x.shape[dim];
    let len = if op.starts_with("cum") { size } else { 1 };
    match &x.values {
        Values::Float(v) => {
            let pick = |sign: f64| move |l: &[f64]| l[extremum(l, sign)];
            let at = |sign: f64| move |l: &[f64]| vec![extremum(l, sign) as i128];
            let f = |l: &[f64]| -> Vec<f64> {
                match op {
                    "sum" => vec![exact_sum(l)],
                    "mean" => vec![exact_sum(l) / l.len() as f64],
                    "prod" => vec![l.iter().product()],
                    "max" => vec![pick(1.0)(l)],
                    "min" => vec![pick(-1.0)(l)],
                    "max_abs" => vec![pick(1.0)(&l.iter().map(|x| x.abs()).collect::<Vec<_>>())],
                    "cumsum" => running_sums(l),
                    "cumprod" => running(l, |a, b| a * b),
                    "cummax" => running(l, |a, b| if beats(b, a) { b } else { a }),
                    "cummin" => running(l, |a, b| if beats(-b, -a) { b } else { a }),
                    _ => panic!("no plain {op}"),
                }
            };
            let ints = match op {
                "argmax" => lines(v, &x.shape, dim, 1, at(1.0)),
                "argmin" => lines(v, &x.shape, dim, 1, at(-1.0)),
                "any" => lines(v, &x.shape, dim, 1, |l| vec![l.iter().any(|&x| x != 0.0) as i128]),
                "all" => lines(v, &x.shape, dim, 1, |l| vec![l.iter().all(|&x| x != 0.0) as i128]),
                _ => {
                    let (shape, values) = lines(v, &x.shape, dim, len, f);
                    return Dense::floats(&shape, values);
                }
            };
            Dense::ints(&ints.0, ints.1)
        }
        Values::Int(v) => {
            let add = |a: i128, b: i128| wrap(a + b, DType::I64);
            let mul = |a: i128, b: i128| wrap(a.wrapping_mul(b), DType::U64);
            let f = |l: &[i128]| -> Vec<i128> {
                match op {
                    "sum" => vec![wrap(l.iter().copied().fold(0, add), dtype)],
                    "mean" => {
                        let total = l.iter().copied().fold(0, add);
                        let total = if int_limits(dtype).0 == 0 { wrap(total, DType::U64) } else { total };
                        vec![wrap(total / l.len() as i128, dtype)]
                    }
                    "prod" => vec![wrap(l.iter().map(|&x| wrap(x, DType::U64)).fold(1, mul), dtype)],
                    "max" => vec![l[int_extremum(l, 1)]],
                    "min" => vec![l[int_extremum(l, -1)]],
                    "max_abs" => {
                        let magnitudes: Vec<i128> = l.iter().map(|x| wrap(x.abs(), dtype)).collect();
                        vec![magnitudes[int_extremum(&magnitudes, 1)]]
                    }
                    "argmax" => vec![int_extremum(l, 1) as i128],
                    "argmin" => vec![int_extremum(l, -1) as i128],
                    "any" => vec![l.iter().any(|&x| x != 0) as i128],
                    "all" => vec![l.iter().all(|&x| x != 0) as i128],
                    "cumsum" => running(l, |a, b| wrap(a + b, dtype)),
                    "cumprod" => running(l, |a, b| wrap(a.wrapping_mul(b), dtype)),
                    "cummax" => running(l, |a, b| a.max(b)),
                    "cummin" => running(l, |a, b| a.min(b)),
                    _ => panic!("no plain {op}"),
                }
            };
            let (shape, values) = lines(v, &x.shape, dim, len, f);
            Dense::ints(&shape, values)
        }
    }
}

/// The reduction of everything, of shape `[1]`.
pub(crate) fn whole(op: &str, x: &Dense, dtype: DType) -> Dense {
    let flat = Dense { shape: vec![x.len()], values: x.values.clone() };
    along(op, &flat, 0, dtype)
}
