//! Normalisations.

use burn_backend::TensorMetadata;

use super::softmax::row_major_and_output;
use crate::error::{Error, Result};
use crate::kernels::layer_norm as kernels;
use crate::tensor::{CudaTensor, check};

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
    let Some(&size) = x.dims().last() else {
        return Err(Error::Shape {
            op: OP,
            detail: "there is no dimension".into(),
            shapes: vec![x.dims().to_vec()],
        });
    };
    check::float(OP, x)?;
    for parameter in [Some(gamma), beta].into_iter().flatten() {
        check::same_device(OP, &[x, parameter])?;
        check::same_dtype(OP, &[x, parameter])?;
        check::shape(OP, parameter, &[size])?;
    }
    if u32::try_from(size).is_err() {
        return Err(Error::TooLarge { op: OP, shape: x.dims().to_vec(), dtype: x.dtype() });
    }
    let gamma = gamma.contiguous()?;
    let beta = beta.map(CudaTensor::contiguous).transpose()?;
    let (x, y) = row_major_and_output(x, OP)?;
    kernels::layer_norm(&y, None, &x, &gamma, beta.as_ref(), eps)?;
    Ok(y)
}
