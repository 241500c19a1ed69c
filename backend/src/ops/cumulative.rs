//! Cumulative sums, products, maxima and minima along one dimension.
//!
//! Sums and products of 16-bit floats are carried in f32, those of integers wrap. In `cummax` and `cummin` NaN wins, so
//! all that follows one is NaN.

use burn_backend::TensorMetadata;

use super::softmax::row_major_and_output;
use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::kernels::cumulative::{CumulativeOp, cumulative};
use crate::tensor::{CudaTensor, check};

fn apply(op: &'static str, function: CumulativeOp, x: &CudaTensor, dim: usize) -> Result<CudaTensor> {
    check::dim(op, x, dim)?;
    if x.elem() == Elem::B8 {
        return Err(Error::DType { op, detail: "not defined for bool".into(), dtypes: vec![x.dtype()] });
    }
    let (x, y) = row_major_and_output(x, op)?;
    cumulative(op, function, &y, &x, dim)?;
    Ok(y)
}

/// The sum of the elements up to and including each, along `dim`.
///
/// # Errors
/// `Error::Shape` if there is no such dimension; `Error::DType` for bools.
pub(crate) fn cumsum(x: &CudaTensor, dim: usize) -> Result<CudaTensor> {
    apply("cumsum", CumulativeOp::Sum, x, dim)
}

/// The product of the elements up to and including each, along `dim`.
///
/// # Errors
/// As [`cumsum`].
pub(crate) fn cumprod(x: &CudaTensor, dim: usize) -> Result<CudaTensor> {
    apply("cumprod", CumulativeOp::Prod, x, dim)
}

/// The largest of the elements up to and including each, along `dim`.
///
/// # Errors
/// As [`cumsum`].
pub(crate) fn cummax(x: &CudaTensor, dim: usize) -> Result<CudaTensor> {
    apply("cummax", CumulativeOp::Max, x, dim)
}

/// The smallest of the elements up to and including each, along `dim`.
///
/// # Errors
/// As [`cumsum`].
pub(crate) fn cummin(x: &CudaTensor, dim: usize) -> Result<CudaTensor> {
    apply("cummin", CumulativeOp::Min, x, dim)
}
