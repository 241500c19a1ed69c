//! Comparing what two runs of a program showed.

use burn_backend::{DType, TensorData};
use burn_std::{bf16, f16};
use kiln_surface::Meta;

use super::execute::Seen;

/// Whether two tensors are equal to the bit, but that any NaN is any other.
pub(crate) fn same(a: &TensorData, b: &TensorData) -> bool {
    fn all<T: burn_backend::Element>(a: &TensorData, b: &TensorData, same: impl Fn(&T, &T) -> bool) -> bool {
        let (Ok(a), Ok(b)) = (a.as_slice::<T>(), b.as_slice::<T>()) else { return false };
        a.iter().zip(b).all(|(a, b)| same(a, b))
    }
    if a.shape != b.shape || !(a.dtype == b.dtype || booleans(a.dtype, b.dtype)) {
        return false;
    }
    if a.bytes == b.bytes {
        return true;
    }
    match a.dtype {
        DType::F64 => all::<f64>(a, b, |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()),
        DType::F32 => all::<f32>(a, b, |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()),
        DType::F16 => all::<f16>(a, b, |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()),
        DType::BF16 => all::<bf16>(a, b, |a, b| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()),
        _ => false,
    }
}

/// Whether the dtypes may be those of one boolean tensor. burn-flex calls what it gathers from one a tensor of U8, and
/// which operand's dtype an operation passes on depends on which of them it may overwrite.
fn booleans(a: DType, b: DType) -> bool {
    let stored = |dtype| matches!(dtype, DType::U8 | DType::Bool(_));
    stored(a) && stored(b) && (a != DType::U8 || b != DType::U8)
}

/// What is wrong with what a statement showed, if anything is.
pub(crate) fn difference(want: &Seen, got: &Seen) -> Option<String> {
    match (want, got) {
        (_, Seen::Refused(message)) => Some(format!("the call panicked: {message}")),
        (Seen::Data(want), Seen::Data(got)) => {
            let equal = want.len() == got.len() && want.iter().zip(got).all(|(want, got)| same(want, got));
            (!equal).then(|| format!("read\n      {}\n    instead of\n      {}", show(got), show(want)))
        }
        (Seen::Failed(_), Seen::Failed(_)) => None,
        (Seen::Failed(_), Seen::Data(got)) => Some(format!("read {} after a failure", show(got))),
        (Seen::Data(want), Seen::Failed(message)) => {
            Some(format!("failed: {message}; instead of {}", show(want)))
        }
        (Seen::Metas(want), Seen::Metas(got)) => {
            let equal = |(want, got): (&Meta, &Meta)| {
                want.shape == got.shape && (want.dtype == got.dtype || booleans(want.dtype, got.dtype))
            };
            (!want.iter().zip(got).all(equal)).then(|| format!("gave {got:?} instead of {want:?}"))
        }
        // What depends on a failure is recorded all the same, and one of the call itself waits for the read.
        (Seen::Nothing, Seen::Nothing) | (Seen::Nothing | Seen::Refused(_), Seen::Metas(_)) => None,
        _ => Some(format!("showed {got:?} instead of {want:?}")),
    }
}

/// Data in words.
pub(crate) fn show(data: &[TensorData]) -> String {
    let all: Vec<_> =
        data.iter().map(|data| format!("{:?} {:?} {data}", data.dtype, &data.shape[..])).collect();
    all.join(", ")
}
