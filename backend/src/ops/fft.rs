//! Fourier transforms of real lines.
//!
//! Any length is transformed in O(n log n); arithmetic is f32 (f64 for f64), rounded once. `kernels/fft.cu` says how.

use burn_backend::{Shape, TensorMetadata};

use crate::error::{Error, Result};
use crate::kernels::fft as kernel;
use crate::layout::Layout;
use crate::tensor::{CudaTensor, check};

/// A row-major result of lines along the last dimension, with that dimension back in its place.
fn back(y: CudaTensor, dim: usize) -> CudaTensor {
    let last = y.dims().len() - 1;
    let layout = y.layout().swap_dims(dim, last).expect("the dimension was checked");
    y.into_layout(layout)
}

/// Row-major lines along `dim`, `[lines, size]`, and the shape with `dim` last and of size `to`.
fn lines(x: &CudaTensor, dim: usize, to: usize) -> Result<(CudaTensor, Shape)> {
    let (layout, size): (Layout, [usize; 2]) = kernel::lines_along(x, dim);
    let mut shape = layout.dims().to_vec();
    *shape.last_mut().expect("the dimension was checked") = to;
    Ok((x.with_layout(layout).contiguous()?.reshape(&size)?, Shape::from(shape)))
}

fn no_samples(op: &'static str) -> Error {
    Error::Argument { op, detail: "a transform of no samples is not defined".into() }
}

/// `X[k] = sum over t of x[t] exp(-2 pi i k t / n)` along `dim`, for `k` from 0 to `n / 2`: real and imaginary parts. The
/// signal is cut or followed by zeros to `n` samples, which are all of it if `n` is `None`.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Argument` for no samples.
pub(crate) fn rfft(x: &CudaTensor, dim: usize, n: Option<usize>) -> Result<(CudaTensor, CudaTensor)> {
    const OP: &str = "rfft";
    check::float(OP, x)?;
    check::dim(OP, x, dim)?;
    let n = n.unwrap_or(x.dims()[dim]);
    if n == 0 {
        return Err(no_samples(OP));
    }
    let (x, shape) = lines(x, dim, n / 2 + 1)?;
    let re = CudaTensor::empty(x.device(), shape, x.dtype(), OP)?;
    let im = re.empty_like(OP)?;
    if !re.is_empty() {
        kernel::rfft(OP, &re, &im, &x, n)?;
    }
    Ok((back(re, dim), back(im, dim)))
}

/// The `n` samples along `dim` whose spectrum is `re + i im`, which is cut or followed by zeros to `n / 2 + 1` bins; `None`
/// is `2 (bins - 1)` samples. The imaginary parts of bins 0 and `n / 2`, which are real, count as 0.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Device`, `Error::Argument` for no samples.
pub(crate) fn irfft(re: &CudaTensor, im: &CudaTensor, dim: usize, n: Option<usize>) -> Result<CudaTensor> {
    const OP: &str = "irfft";
    check::float(OP, re)?;
    check::dim(OP, re, dim)?;
    check::same_device(OP, &[re, im])?;
    check::same_dtype(OP, &[re, im])?;
    check::shape(OP, im, re.dims())?;
    let n = n.unwrap_or(2 * re.dims()[dim].saturating_sub(1));
    if n == 0 {
        return Err(no_samples(OP));
    }
    let ((re, shape), (im, _)) = (lines(re, dim, n)?, lines(im, dim, n)?);
    let y = CudaTensor::empty(re.device(), shape, re.dtype(), OP)?;
    if !y.is_empty() {
        let (count, dims) = (y.len() / n, y.dims().to_vec());
        let flat = y.into_layout(Layout::contiguous(Shape::from(vec![count, n])));
        kernel::irfft(OP, &flat, &re, &im)?;
        return Ok(back(flat.into_layout(Layout::contiguous(Shape::from(dims))), dim));
    }
    Ok(back(y, dim))
}
