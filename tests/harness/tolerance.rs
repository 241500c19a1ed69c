//! How far a result may be from the reference in f64, for every test: by dtype and reduction length.

use burn_backend::DType;

/// `|result - reference| <= relative * |reference| + absolute + of_max * (max |reference| + 1)`.
///
/// The reference is rounded to the dtype first. Infinities and NaN must match.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tolerance {
    pub(crate) relative: f64,
    pub(crate) absolute: f64,
    pub(crate) of_max: f64,
}

impl std::fmt::Display for Tolerance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == Tolerance::exact() {
            return f.write_str("must be equal");
        }
        let terms =
            [("of each", self.relative), ("absolute", self.absolute), ("of the largest + 1", self.of_max)];
        let terms = terms.iter().filter(|(_, t)| *t > 0.0).map(|(name, t)| format!("{t:.1e} {name}"));
        write!(f, "tolerance {}", terms.collect::<Vec<_>>().join(" + "))
    }
}

/// The distance from 1 to the next number.
pub(crate) fn epsilon(dtype: DType) -> f64 {
    dtype.finfo().map_or(0.0, |info| info.epsilon)
}

/// The same of the type that sums are kept in.
fn sum_epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 | DType::BF16 => f32::EPSILON as f64,
        _ => epsilon(dtype),
    }
}

impl Tolerance {
    /// Copies, comparisons, integers: equal.
    pub(crate) fn exact() -> Self {
        Tolerance { relative: 0.0, absolute: 0.0, of_max: 0.0 }
    }

    /// One operation whose result is rounded correctly: at most one unit in the last place.
    pub(crate) fn rounded(dtype: DType) -> Self {
        Tolerance { relative: epsilon(dtype), absolute: 0.0, of_max: 0.0 }
    }

    /// A function of one element, computed in f32 for 16-bit types: CUDA's functions are within a few units.
    pub(crate) fn function(dtype: DType) -> Self {
        let relative = match dtype {
            DType::F16 | DType::BF16 => 1.5 * epsilon(dtype),
            _ => 10.0 * epsilon(dtype),
        };
        // Near a zero of the function (sin at pi) the input's own rounding decides.
        Tolerance { relative, absolute: 4.0 * sum_epsilon(dtype), of_max: 0.0 }
    }

    /// A sum (mean, product, scan, matrix product, ...) over `n` terms of size about 1, stored once.
    ///
    /// The error of an unordered f32 sum grows as the root of its length; the factor leaves room for sums whose
    /// terms cancel.
    pub(crate) fn sum(dtype: DType, n: usize) -> Self {
        let of_max = sum_epsilon(dtype) * (8.0 + 2.0 * (n as f64).sqrt());
        Tolerance { relative: 1.5 * epsilon(dtype), absolute: 0.0, of_max }
    }

    /// A term over the sum of `n` terms of one sign, stored once: nothing cancels, however small the share.
    pub(crate) fn share(dtype: DType, n: usize) -> Self {
        let sum = Tolerance::sum(dtype, n);
        // The distance of subnormal numbers.
        let step = dtype.finfo().map_or(0.0, |info| info.min_positive) * epsilon(dtype);
        Tolerance { relative: sum.relative + sum.of_max, absolute: step, of_max: 0.0 }
    }

    /// A chain of `depth` operations whose results are each stored in the dtype, with sums over `n` terms among them.
    pub(crate) fn chain(dtype: DType, depth: usize, n: usize) -> Self {
        let sums = sum_epsilon(dtype) * (8.0 + 2.0 * (n as f64).sqrt());
        let of_max = epsilon(dtype) * 1.5 * depth as f64 + sums;
        Tolerance { relative: epsilon(dtype) * 2.0 * depth as f64, absolute: 0.0, of_max }
    }

    /// As `self` with everything multiplied.
    pub(crate) fn times(self, factor: f64) -> Self {
        Tolerance {
            relative: self.relative * factor,
            absolute: self.absolute * factor,
            of_max: self.of_max * factor,
        }
    }
}
