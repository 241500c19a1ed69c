//! Normalisations.

use burn_backend::TensorMetadata;
use burn_std::DType;

use super::elementwise::{binary, cast, scalar, unary, zeros};
use super::reduce;
use super::softmax::row_major_and_output;
use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::kernels::layer_norm as kernels;
use crate::kernels::reduce::ReduceOp;
use crate::tensor::{CudaTensor, check};

/// The size of the last dimension, once all is as it has to be.
fn check_operands(
    op: &'static str,
    x: &CudaTensor,
    gamma: &CudaTensor,
    beta: Option<&CudaTensor>,
) -> Result<usize> {
    let Some(&size) = x.dims().last() else {
        return Err(Error::Shape {
            op,
            detail: "there is no dimension".into(),
            shapes: vec![x.dims().to_vec()],
        });
    };
    check::float(op, x)?;
    for parameter in [Some(gamma), beta].into_iter().flatten() {
        check::same_device(op, &[x, parameter])?;
        check::same_dtype(op, &[x, parameter])?;
        check::shape(op, parameter, &[size])?;
    }
    if u32::try_from(size).is_err() {
        return Err(Error::TooLarge { op, shape: x.dims().to_vec(), dtype: x.dtype() });
    }
    Ok(size)
}

/// `(x - mean) / sqrt(variance + eps) * gamma + beta` over the last dimension (arXiv:1607.06450); the variance is the
/// biased one. Statistics are f32, f64 for f64.
///
/// Shapes: `x [.., C]`, `gamma [C]`, `beta [C]` -> `[.., C]`.
///
/// # Errors
/// `Error::Shape` if `x` has no dimension or `gamma` or `beta` is not `[C]`; `Error::DType` if they differ from `x` or
/// are no floats; `Error::Device`.
pub(crate) fn layer_norm(
    x: &CudaTensor,
    gamma: &CudaTensor,
    beta: Option<&CudaTensor>,
    eps: f64,
) -> Result<CudaTensor> {
    const OP: &str = "layer_norm";
    check_operands(OP, x, gamma, beta)?;
    let gamma = gamma.contiguous()?;
    let beta = beta.map(CudaTensor::contiguous).transpose()?;
    let (x, y) = row_major_and_output(x, OP)?;
    kernels::layer_norm(&y, &x, &gamma, beta.as_ref(), eps)?;
    Ok(y)
}

/// The gradients of [`layer_norm`] from that of its output: of `x`, `gamma` and `beta`. `gamma` is wanted even where `beta`
/// was none.
///
/// Shapes: `dy [.., C]`, `x [.., C]`, `gamma [C]` -> `[.., C]`, `[C]`, `[C]`. Sums over rows are f32, f64 for f64, and
/// happen in one order.
///
/// # Errors
/// As for [`layer_norm`], and `Error::Shape` if `dy` has not `x`'s shape.
pub(crate) fn layer_norm_backward(
    dy: &CudaTensor,
    x: &CudaTensor,
    gamma: &CudaTensor,
    eps: f64,
) -> Result<[CudaTensor; 3]> {
    const OP: &str = "layer_norm_backward";
    let size = check_operands(OP, x, gamma, None)?;
    check::same_device(OP, &[x, dy])?;
    check::same_dtype(OP, &[x, dy])?;
    check::shape(OP, dy, x.dims())?;
    if x.is_empty() {
        let none = || zeros(x.device(), vec![size], x.dtype(), OP);
        return Ok([x.empty_like(OP)?, none()?, none()?]);
    }
    let (dy, gamma) = (dy.contiguous()?, gamma.contiguous()?);
    let (x, dx) = row_major_and_output(x, OP)?;
    let sums = match kernels::layer_norm_backward(OP, &dx, &dy, &x, &gamma, eps)? {
        Some(partial) => partial.reshape(&[partial.dims()[0], 2 * size])?,
        None => return backward_of_long_rows(&dy, &x, &gamma, eps),
    };
    let sums = reduce::dim_as(OP, ReduceOp::Sum, &sums, 0, x.dtype())?;
    let part = |start| sums.with_layout(sums.layout().narrow(1, start, size)).reshape(&[size]);
    Ok([dx, part(0)?, part(size)?])
}

/// In several passes, of f32 (f64 for f64).
fn backward_of_long_rows(
    dy: &CudaTensor,
    x: &CudaTensor,
    gamma: &CudaTensor,
    eps: f64,
) -> Result<[CudaTensor; 3]> {
    use super::elementwise::{ADD_SCALAR, DIV, MUL, SQRT, SUB};
    let size = gamma.len();
    let wide = |t: &CudaTensor| {
        let dtype = if x.elem() == Elem::F64 { DType::F64 } else { DType::F32 };
        cast(t.reshape(&[t.len() / size, size])?, dtype)
    };
    let mean = |t: &CudaTensor| reduce::mean_dim(t, 1);
    let (dy, scale, centered) = (wide(dy)?, wide(gamma)?, wide(x)?);
    let centered = binary(&SUB, centered.clone(), mean(&centered)?)?;
    let variance = mean(&binary(&MUL, centered.clone(), centered.clone())?)?;
    let deviation = unary(&SQRT, scalar(&ADD_SCALAR, variance, eps.into())?)?;
    let h = binary(&DIV, centered, deviation.clone())?;
    let dgamma = reduce::sum_dim(&binary(&MUL, dy.clone(), h.clone())?, 0)?;
    let dbeta = reduce::sum_dim(&dy, 0)?;
    let g = binary(&MUL, dy, scale)?;
    let gh = mean(&binary(&MUL, g.clone(), h.clone())?)?;
    let dx = binary(&SUB, binary(&SUB, g.clone(), mean(&g)?)?, binary(&MUL, h, gh)?)?;
    let dx = binary(&DIV, dx, deviation)?;
    let result = |t: CudaTensor, shape: &[usize]| cast(t, x.dtype())?.reshape(shape);
    Ok([result(dx, x.dims())?, result(dgamma, &[size])?, result(dbeta, &[size])?])
}
