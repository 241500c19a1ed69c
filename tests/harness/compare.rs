//! Comparing a result with what was expected.

use burn_backend::DType;

use super::values::round_to;
use super::{Dense, Tolerance, Values, shape};

/// Elements shown of a difference.
const SHOWN: usize = 5;

/// Whether `got`, of `dtype`, is `expected` within the tolerance; otherwise how many elements differ, and the first.
///
/// # Errors
/// The difference in words.
pub(crate) fn same(got: &Dense, expected: &Dense, dtype: DType, tolerance: Tolerance) -> Result<(), String> {
    if got.shape != expected.shape {
        return Err(format!("shape {:?}, expected {:?}", got.shape, expected.shape));
    }
    let dims = got.shape.clone();
    let (mut wrong, mut first) = (0, String::new());
    let mut note = |at: usize, got: String, expected: String| {
        wrong += 1;
        if wrong <= SHOWN {
            first += &format!("\n    at {:?}: {got}, expected {expected}", shape::unravel(at, &dims));
        }
    };
    match (&got.values, &expected.values) {
        (Values::Int(got), Values::Int(expected)) => {
            for (at, (g, e)) in got.iter().zip(expected).enumerate() {
                if g != e {
                    note(at, g.to_string(), e.to_string());
                }
            }
        }
        (Values::Float(got), Values::Float(expected)) => {
            let max = expected.iter().filter(|e| e.is_finite()).fold(0.0f64, |m, e| m.max(e.abs()));
            for (at, (&g, &e)) in got.iter().zip(expected).enumerate() {
                if !close(g, e, dtype, tolerance, max) {
                    note(at, format!("{g:e}"), format!("{e:e}"));
                }
            }
        }
        _ => return Err("the result is of another kind (float, int or bool) than expected".into()),
    }
    match wrong {
        0 => Ok(()),
        _ => Err(format!("{wrong} of {} elements differ ({tolerance}){first}", expected.len())),
    }
}

fn close(got: f64, expected: f64, dtype: DType, tolerance: Tolerance, max: f64) -> bool {
    if got.is_nan() || expected.is_nan() {
        return got.is_nan() && expected.is_nan();
    }
    let rounded = round_to(expected, dtype);
    if got == rounded {
        return true;
    }
    let allowed = tolerance.relative * expected.abs() + tolerance.absolute + tolerance.of_max * (max + 1.0);
    if got.is_infinite() || rounded.is_infinite() {
        // At the edge of what the dtype holds, one side may round to infinity. Not so in exact comparisons.
        let limit = dtype.finfo().map_or(f64::MAX, |info| info.max);
        let other = if got.is_infinite() { expected } else { got };
        let same_sign = got.is_sign_negative() == expected.is_sign_negative();
        return allowed > 0.0
            && same_sign
            && expected.is_finite()
            && other.abs() >= limit * (1.0 - 2.0 * tolerance.relative);
    }
    (got - rounded).abs() <= allowed
}
