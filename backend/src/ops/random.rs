//! Random tensors.
//!
//! A device has a seed and an offset. An op takes as many counters as its tensor needs when it is called, in program
//! order; each element is then a function of seed, offset and position (`common/philox.cuh`).

use std::sync::Mutex;

use burn_backend::{Distribution, ElementConversion, Scalar, Shape};
use burn_std::{DType, bf16, f16};

use crate::device::Device;
use crate::driver::launch::ScalarArg;
use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::kernels::random::{self as kernel, Case, counters};
use crate::layout::checked_len;
use crate::ops::elementwise;
use crate::tensor::CudaTensor;

/// Where a device's random numbers stand.
#[derive(Debug, Default)]
pub(crate) struct RandomState {
    now: Mutex<Position>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    seed: u64,
    offset: u64,
}

impl RandomState {
    /// Starts again at `seed`.
    pub(crate) fn seed(&self, seed: u64) {
        *self.lock() = Position { seed, offset: 0 };
    }

    /// The seed and the first of `counters` counters, which nobody else will get.
    pub(crate) fn take(&self, counters: u64) -> (u64, u64) {
        let mut now = self.lock();
        let Position { seed, offset } = *now;
        now.offset = offset.wrapping_add(counters);
        (seed, offset)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Position> {
        self.now.lock().unwrap_or_else(|e| e.into_inner())
    }
}

const OP: &str = "random";

/// A tensor of numbers drawn from `distribution`.
///
/// `Default` is uniform in `[0, 1)` for floats and any value of the dtype for integers. `Uniform(low, high)` takes its
/// bounds in the dtype and never gives `high`. Normal numbers are cut to integers as casts do.
///
/// # Errors
/// `Error::Argument` for bounds, a deviation or a probability that make no distribution; `Error::DType` for a dtype
/// that is neither float nor integer.
pub(crate) fn random(
    device: &'static Device,
    shape: Shape,
    distribution: Distribution,
    dtype: DType,
) -> Result<CudaTensor> {
    // Numbers are taken only for what can be drawn.
    let elem = Elem::of(OP, dtype)?;
    if only_value(elem, distribution).is_none() {
        case(elem, distribution, dtype)?;
    }
    let (seed, offset) = reserve(device, dtype, checked_len(shape.as_slice(), 1).unwrap_or(0))?;
    random_at(device, shape, distribution, dtype, ScalarArg::bits(seed), ScalarArg::bits(offset))
}

/// The seed, and the first of the counters that `len` elements use up; nobody else will get them.
///
/// # Errors
/// `Error::DType` for a dtype that has no random numbers.
pub(crate) fn reserve(device: &Device, dtype: DType, len: usize) -> Result<(u64, u64)> {
    Ok(device.random.take(counters(Elem::of(OP, dtype)?, len)))
}

/// As [`random`], with numbers that were reserved before.
///
/// # Errors
/// As for [`random`].
pub(crate) fn random_at(
    device: &'static Device,
    shape: Shape,
    distribution: Distribution,
    dtype: DType,
    seed: ScalarArg,
    offset: ScalarArg,
) -> Result<CudaTensor> {
    let elem = Elem::of(OP, dtype)?;
    if let Some(value) = only_value(elem, distribution) {
        return elementwise::full(device, shape, Scalar::Float(value), dtype, OP);
    }
    let case = case(elem, distribution, dtype)?;
    let y = CudaTensor::empty(device, shape, dtype, OP)?;
    if !y.is_empty() {
        kernel::random(&y, case, seed, offset, 0)?;
    }
    Ok(y)
}

/// The value that all numbers of an interval round to when it is narrower than the dtype's steps.
fn only_value(elem: Elem, distribution: Distribution) -> Option<f64> {
    match distribution {
        Distribution::Uniform(low, high) if low < high => match bounds(elem, low, high) {
            (Bound::Float(a), Bound::Float(b)) if a == b && a.is_finite() => Some(a),
            _ => None,
        },
        _ => None,
    }
}

fn case(elem: Elem, distribution: Distribution, dtype: DType) -> Result<Case> {
    let argument = |detail: String| Err(Error::Argument { op: OP, detail });
    if !elem.is_float() && !elem.is_int() {
        return Err(Error::DType {
            op: OP,
            detail: "a float or integer dtype is needed".into(),
            dtypes: vec![dtype],
        });
    }
    match distribution {
        Distribution::Default if elem.is_float() => Ok(Case::Uniform(0f64.to_bits(), 1f64.to_bits())),
        Distribution::Default => Ok(Case::Bits),
        Distribution::Uniform(low, high) => {
            let (from, to) = bounds(elem, low, high);
            match (from, to) {
                (Bound::Float(a), Bound::Float(b))
                    if a < b && in_range(elem, b - a) && in_range(elem, a.abs().max(b.abs())) =>
                {
                    Ok(Case::Uniform(a.to_bits(), b.to_bits()))
                }
                (Bound::Int(a), Bound::Int(b)) if a < b => Ok(Case::Uniform(a as u64, b as u64)),
                _ => argument(format!("there is no uniform distribution over [{low}, {high}) in {dtype:?}")),
            }
        }
        Distribution::Normal(mean, std) if std.is_finite() => Ok(Case::Normal { mean, std }),
        Distribution::Normal(mean, std) => {
            argument(format!("a deviation must be finite: normal({mean}, {std})"))
        }
        Distribution::Bernoulli(p) if (0.0..=1.0).contains(&p) => Ok(Case::Bernoulli(p)),
        Distribution::Bernoulli(p) => argument(format!("a probability must be in [0, 1]: bernoulli({p})")),
    }
}

#[derive(Debug, Clone, Copy)]
enum Bound {
    Float(f64),
    Int(i128),
}

/// The bounds as values of the element type.
fn bounds(elem: Elem, low: f64, high: f64) -> (Bound, Bound) {
    macro_rules! float {
        ($t:ty) => {
            [low, high].map(|x| Bound::Float(x.elem::<$t>().elem::<f64>()))
        };
    }
    macro_rules! int {
        ($t:ty) => {
            [low, high].map(|x| Bound::Int((x as $t) as i128)) // saturates; NaN gives 0
        };
    }
    let [low, high] = match elem {
        Elem::F64 => [low, high].map(Bound::Float),
        Elem::F32 => float!(f32),
        Elem::F16 => float!(f16),
        Elem::BF16 => float!(bf16),
        Elem::I64 => int!(i64),
        Elem::I32 => int!(i32),
        Elem::I16 => int!(i16),
        Elem::I8 => int!(i8),
        Elem::U64 => int!(u64),
        Elem::U32 => int!(u32),
        Elem::U16 => int!(u16),
        Elem::U8 | Elem::B8 => int!(u8),
    };
    (low, high)
}

/// Whether a difference of bounds is finite in the type that it is computed in.
fn in_range(elem: Elem, x: f64) -> bool {
    if elem == Elem::F64 { x.is_finite() } else { (x as f32).is_finite() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_handed_out_once_and_in_order() {
        let state = RandomState::default();
        state.seed(7);
        assert_eq!((state.take(3), state.take(1), state.take(0)), ((7, 0), (7, 3), (7, 4)));
        state.seed(7);
        assert_eq!(state.take(1), (7, 0));
        let mut taken: Vec<u64> = std::thread::scope(|s| {
            let threads: Vec<_> =
                (0..4).map(|_| s.spawn(|| (0..100).map(|_| state.take(2).1).collect::<Vec<_>>())).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        taken.sort_unstable();
        assert!(taken.iter().enumerate().all(|(k, &offset)| offset == 1 + 2 * k as u64));
    }

    fn uniform(elem: Elem, low: f64, high: f64) -> Result<Case> {
        case(elem, Distribution::Uniform(low, high), DType::F32)
    }

    #[test]
    fn bounds_are_taken_in_the_dtype() {
        assert_eq!(uniform(Elem::I32, -2.9, 5.5).unwrap(), Case::Uniform(-2i64 as u64, 5));
        assert_eq!(uniform(Elem::U8, -4.0, 300.0).unwrap(), Case::Uniform(0, 255));
        assert_eq!(
            uniform(Elem::F32, 0.1, 0.2).unwrap(),
            Case::Uniform((0.1f32 as f64).to_bits(), (0.2f32 as f64).to_bits())
        );
        assert_eq!(uniform(Elem::U64, 0.0, 1e30).unwrap(), Case::Uniform(0, u64::MAX));
        assert_eq!(only_value(Elem::BF16, Distribution::Uniform(1.0, 1.001)), Some(1.0));
        assert_eq!(only_value(Elem::F32, Distribution::Uniform(1.0, 1.001)), None);
    }

    #[test]
    fn what_is_no_distribution_is_an_error() {
        assert!(uniform(Elem::F32, 1.0, 1.0).is_err());
        assert!(uniform(Elem::F32, 0.0, f64::NAN).is_err());
        assert!(uniform(Elem::F32, f64::MIN, 0.0).is_err());
        assert!(uniform(Elem::I64, 3.2, 3.9).is_err());
        let with = |d| case(Elem::F32, d, DType::F32);
        assert!(
            with(Distribution::Bernoulli(1.5)).is_err() && with(Distribution::Bernoulli(f64::NAN)).is_err()
        );
        assert!(with(Distribution::Normal(0.0, f64::INFINITY)).is_err());
        assert!(matches!(with(Distribution::Normal(0.0, 1.0)), Ok(Case::Normal { .. })));
        assert_eq!(case(Elem::I8, Distribution::Default, DType::I8).unwrap(), Case::Bits);
        assert!(case(Elem::B8, Distribution::Default, DType::U8).is_err());
    }
}
