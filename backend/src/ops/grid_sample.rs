//! Sampling of images at given places.

use burn_backend::TensorMetadata;
use burn_backend::ops::{GridSampleOptions, InterpolateMode};

use crate::error::{Error, Result};
use crate::kernels::grid_sample as kernel;
use crate::tensor::{CudaTensor, check};

/// `x` at the places `grid`, which are `(x, y)` with -1 and 1 at the image's borders. `kernels/grid_sample.cu` has positions
/// and what lies outside. Positions are f64 for every dtype; weights and sums are f32 (f64 for f64), rounded once.
///
/// Burn defines the nearest and the bilinear mode; the bicubic one is PyTorch's, where outside applies to each of the 16
/// pixels. Nobody defines the Lanczos mode.
///
/// Shapes: `x [N, C, H, W]`, `grid [N, OH, OW, 2]` -> `[N, C, OH, OW]`.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Device`, `Error::Argument` for the Lanczos mode or an image without pixels.
pub(crate) fn grid_sample_2d(
    x: &CudaTensor,
    grid: &CudaTensor,
    options: &GridSampleOptions,
) -> Result<CudaTensor> {
    const OP: &str = "grid_sample_2d";
    check::float(OP, x)?;
    check::same_device(OP, &[x, grid])?;
    check::same_dtype(OP, &[x, grid])?;
    let (&[n, c, h, w], &[batch, oh, ow, 2]) = (x.dims(), grid.dims()) else {
        let detail = "an image of [N, C, H, W] and places of [N, OH, OW, 2] are needed".into();
        return Err(Error::Shape { op: OP, detail, shapes: vec![x.dims().to_vec(), grid.dims().to_vec()] });
    };
    if n != batch {
        let detail = "there must be places for each image".into();
        return Err(Error::Shape { op: OP, detail, shapes: vec![x.dims().to_vec(), grid.dims().to_vec()] });
    }
    if matches!(options.mode, InterpolateMode::Lanczos3) {
        return Err(Error::Argument { op: OP, detail: "there is no Lanczos mode".into() });
    }
    if h.max(w) >= 1 << 30 {
        return Err(Error::Argument { op: OP, detail: format!("an image of {h} x {w} is too large") });
    }
    let y = CudaTensor::empty(x.device(), [n, c, oh, ow], x.dtype(), OP)?;
    if y.is_empty() {
        return Ok(y);
    }
    if h * w == 0 {
        return Err(Error::Argument { op: OP, detail: format!("an image of {h} x {w} has no pixels") });
    }
    kernel::grid_sample(&y, &x.contiguous()?, &grid.contiguous()?, options)?;
    Ok(y)
}
