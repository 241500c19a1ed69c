//! Softmax and its relatives along one dimension.
//!
//! Computed in f32 (f64 for f64) and rounded once. A row that is all -inf, or holds a NaN or a +inf, becomes all NaN,
//! as the composite of max, subtraction, exp, sum and division gives (and burn-flex). Attention masks have a rule of
//! their own, in the attention kernels.

use burn_backend::TensorMetadata;

use crate::error::Result;
use crate::kernels::softmax::{self as kernels, Softmax};
use crate::tensor::{CudaTensor, check};

/// `x` in row-major order, and a tensor for the result. They are the same where a copy had to be made.
pub(super) fn row_major_and_output(x: &CudaTensor, op: &'static str) -> Result<(CudaTensor, CudaTensor)> {
    let row_major = x.contiguous()?;
    let y = if x.layout().is_contiguous() { x.empty_like(op)? } else { row_major.clone() };
    Ok((row_major, y))
}

fn apply(op: &'static str, function: Softmax, x: &CudaTensor, dim: usize) -> Result<CudaTensor> {
    check::dim(op, x, dim)?;
    check::float(op, x)?;
    let (x, y) = row_major_and_output(x, op)?;
    kernels::softmax(function, &y, &x, dim)?;
    Ok(y)
}

/// `exp(x) / sum(exp(x))` along `dim`.
///
/// # Errors
/// `Error::Shape` if there is no such dimension; `Error::DType` unless `x` is a float tensor.
pub(crate) fn softmax(x: &CudaTensor, dim: usize) -> Result<CudaTensor> {
    apply("softmax", Softmax { log: false, negate: false }, x, dim)
}

/// `x - log(sum(exp(x)))` along `dim`.
///
/// # Errors
/// As [`softmax`].
pub(crate) fn log_softmax(x: &CudaTensor, dim: usize) -> Result<CudaTensor> {
    apply("log_softmax", Softmax { log: true, negate: false }, x, dim)
}

/// [`softmax`] of `-x`.
///
/// # Errors
/// As [`softmax`].
pub(crate) fn softmin(x: &CudaTensor, dim: usize) -> Result<CudaTensor> {
    apply("softmin", Softmax { log: false, negate: true }, x, dim)
}

/// The input's gradient of [`softmax`] (or, with `log`, of [`log_softmax`]) from its output `y` and the output's
/// gradient `dy`; `None` where the kernel does not serve: other dimensions than the last, rows too long for registers.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Device` if the operands differ.
#[allow(dead_code)] // for kiln::Autodiff's softmax
pub(crate) fn softmax_backward(
    log: bool,
    y: &CudaTensor,
    dy: &CudaTensor,
    dim: usize,
) -> Result<Option<CudaTensor>> {
    const OP: &str = "softmax_backward";
    check::dim(OP, y, dim)?;
    check::float(OP, y)?;
    check::same_device(OP, &[y, dy])?;
    check::same_dtype(OP, &[y, dy])?;
    check::shape(OP, dy, y.dims())?;
    if dim + 1 != y.rank() {
        return Ok(None);
    }
    let (y, dy) = (y.contiguous()?, dy.contiguous()?);
    let dx = y.empty_like(OP)?;
    Ok(kernels::softmax_backward(log, &dx, &y, &dy)?.then_some(dx))
}
