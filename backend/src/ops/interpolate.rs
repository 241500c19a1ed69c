//! Interpolation of `[B, C, H, W]` over `H` and `W`.
//!
//! Positions are f64 for every dtype; weights and sums are f32 (f64 for f64), rounded once. The gradient is the transpose
//! of the weights, a dimension after the other, each element a sum in fixed order: it repeats bit for bit.

use burn_backend::TensorMetadata;
use burn_backend::ops::InterpolateOptions;
use burn_std::DType;

use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::kernels::interpolate::{self as kernel, Scale};
use crate::tensor::{CudaTensor, check};

/// `[B, C, H, W]` of a shape. Sizes fit kernels' 32-bit arithmetic.
fn split(op: &'static str, dims: &[usize], [oh, ow]: [usize; 2]) -> Result<[usize; 4]> {
    let &[b, c, h, w] = dims else {
        return Err(Error::Shape {
            op,
            detail: "a tensor of shape [B, C, H, W] is needed".into(),
            shapes: vec![dims.to_vec()],
        });
    };
    if [h, w, oh, ow].iter().any(|&size| size >= i32::MAX as usize / 2) {
        return Err(Error::Argument { op, detail: format!("size [{h}, {w}] or [{oh}, {ow}] is too large") });
    }
    if oh * ow > 0 && h * w == 0 {
        let detail = format!("an image of [{h}, {w}] has no pixels for one of [{oh}, {ow}]");
        return Err(Error::Argument { op, detail });
    }
    Ok([b, c, h, w])
}

fn scales(size: [usize; 2], out: [usize; 2], options: &InterpolateOptions) -> [Scale; 2] {
    [0, 1].map(|d| Scale::new(size[d], out[d], options.align_corners))
}

/// The image in another size. `kernels/interpolate.cu` has positions, weights and what happens at the edges.
///
/// Shapes: `x [B, C, H, W]` -> `[B, C, out]`.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Argument` if there are pixels to make of none.
pub(crate) fn interpolate(
    x: &CudaTensor,
    out: [usize; 2],
    options: &InterpolateOptions,
) -> Result<CudaTensor> {
    const OP: &str = "interpolate";
    check::float(OP, x)?;
    let [b, c, h, w] = split(OP, x.dims(), out)?;
    let y = CudaTensor::empty(x.device(), [b, c, out[0], out[1]], x.dtype(), OP)?;
    if !y.is_empty() {
        kernel::interpolate(&y, &x.contiguous()?, b * c, scales([h, w], out, options), &options.mode)?;
    }
    Ok(y)
}

/// Gradient of [`interpolate`] with respect to an `x` of shape `x_dims`.
///
/// # Errors
/// As for [`interpolate`].
pub(crate) fn interpolate_backward(
    x_dims: &[usize],
    dy: &CudaTensor,
    out: [usize; 2],
    options: &InterpolateOptions,
) -> Result<CudaTensor> {
    const OP: &str = "interpolate_backward";
    check::float(OP, dy)?;
    let [b, c, h, w] = split(OP, x_dims, out)?;
    check::shape(OP, dy, &[b, c, out[0], out[1]])?;
    let dx = CudaTensor::empty(dy.device(), [b, c, h, w], dy.dtype(), OP)?;
    if dx.is_empty() {
        return Ok(dx);
    }
    let sums = if dy.elem() == Elem::F64 { DType::F64 } else { DType::F32 };
    let [rows, columns] = scales([h, w], out, options);
    let lines = CudaTensor::empty(dy.device(), [b, c, out[0], w], sums, OP)?;
    if !lines.is_empty() {
        kernel::interpolate_backward(&lines, &dy.contiguous()?, 1, columns, &options.mode)?;
    }
    kernel::interpolate_backward(&dx, &lines, w, rows, &options.mode)?;
    Ok(dx)
}
