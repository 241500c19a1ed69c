//! Pooling of `[B, C, H, W]` over `H` and `W`.
//!
//! Sums are f32 for 16-bit floats. Backward passes gather, so they repeat bit for bit. NaN wins in max pooling, and
//! among several the first; padding is never chosen.

use burn_backend::TensorMetadata;
use burn_std::DType;

use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::kernels::pool::{Case, Pool, pool};
use crate::ops::elementwise::cast;
use crate::tensor::{CudaTensor, check};

/// Kernel arithmetic is in i32: sizes, also those with padding and a kernel's reach, stay below this.
const LIMIT: usize = i32::MAX as usize / 4;

/// Windows over a plane.
#[derive(Debug, Clone, Copy)]
struct Windows {
    kernel: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 2],
    dilation: [usize; 2],
    ceil_mode: bool,
}

impl Windows {
    /// The number of windows along a dimension of `size`, or an error naming `op`. In ceil mode a last window that
    /// reaches over the end counts too; a kernel longer than the padded input gives none, or in ceil mode one.
    fn count(&self, op: &'static str, size: usize, d: usize) -> Result<usize> {
        let (kernel, stride, pad, dilation) = (self.kernel[d], self.stride[d], self.pad[d], self.dilation[d]);
        let argument = |detail: String| Err(Error::Argument { op, detail });
        if kernel == 0 || stride == 0 || dilation == 0 {
            return argument(format!(
                "kernel size {kernel}, stride {stride} and dilation {dilation} must be at least 1"
            ));
        }
        let reach = (kernel - 1).checked_mul(dilation).map(|r| r.saturating_add(1));
        let padded = pad.checked_mul(2).map(|p| p.saturating_add(size));
        let (Some(reach), Some(padded)) = (reach.filter(|&r| r < LIMIT), padded.filter(|&p| p < LIMIT))
        else {
            return argument(format!(
                "size {size} with padding {pad}, or a kernel of {kernel} every {dilation}, is too large"
            ));
        };
        if stride >= LIMIT {
            return argument(format!("stride {stride} is too large"));
        }
        Ok(match padded.checked_sub(reach) {
            None => self.ceil_mode as usize,
            Some(rest) if self.ceil_mode => rest.div_ceil(stride) + 1,
            Some(rest) => rest / stride + 1,
        })
    }

    fn out(&self, op: &'static str, [h, w]: [usize; 2]) -> Result<[usize; 2]> {
        Ok([self.count(op, h, 0)?, self.count(op, w, 1)?])
    }

    fn arg(&self, planes: usize, size: [usize; 2], out: [usize; 2], count_include_pad: bool) -> Pool {
        let narrow = |x: [usize; 2]| x.map(|x| x as i32);
        Pool {
            planes: planes as u64,
            size: narrow(size),
            out: narrow(out),
            kernel: narrow(self.kernel),
            stride: narrow(self.stride),
            pad: narrow(self.pad),
            dilation: narrow(self.dilation),
            count_include_pad: count_include_pad as u32,
        }
    }
}

/// `[B, C]` and `[H, W]` of a shape.
fn split(op: &'static str, dims: &[usize]) -> Result<([usize; 2], [usize; 2])> {
    match *dims {
        [b, c, h, w] => Ok(([b, c], [h, w])),
        _ => Err(Error::Shape {
            op,
            detail: "a tensor of shape [B, C, H, W] is needed".into(),
            shapes: vec![dims.to_vec()],
        }),
    }
}

/// A plane's offsets are 32-bit in the kernels.
fn check_plane(op: &'static str, [h, w]: [usize; 2]) -> Result<()> {
    if h.checked_mul(w).is_some_and(|n| n <= i32::MAX as usize) {
        return Ok(());
    }
    Err(Error::Argument { op, detail: format!("a plane of {h} x {w} has more than 2^31 - 1 elements") })
}

fn empty(
    like: &CudaTensor,
    [b, c]: [usize; 2],
    [h, w]: [usize; 2],
    dtype: DType,
    op: &'static str,
) -> Result<CudaTensor> {
    CudaTensor::empty(like.device(), [b, c, h, w], dtype, op)
}

/// What a forward kernel needs: its output, a row-major input, and the geometry.
fn forward(
    op: &'static str,
    x: &CudaTensor,
    windows: Windows,
    include_pad: bool,
) -> Result<(CudaTensor, CudaTensor, Pool)> {
    check::float(op, x)?;
    let (lead, size) = split(op, x.dims())?;
    let out = windows.out(op, size)?;
    check_plane(op, size)?;
    check_plane(op, out)?;
    let y = empty(x, lead, out, x.dtype(), op)?;
    Ok((y, x.contiguous()?, windows.arg(lead[0] * lead[1], size, out, include_pad)))
}

/// The same for a backward kernel, whose output has shape `x_dims`.
fn backward(
    op: &'static str,
    x_dims: &[usize],
    dy: &CudaTensor,
    windows: Windows,
    include_pad: bool,
) -> Result<(CudaTensor, CudaTensor, Pool)> {
    check::float(op, dy)?;
    let (lead, size) = split(op, x_dims)?;
    let out = windows.out(op, size)?;
    check_plane(op, size)?;
    check_plane(op, out)?;
    check::shape(op, dy, &[lead[0], lead[1], out[0], out[1]])?;
    let dx = empty(dy, lead, size, dy.dtype(), op)?;
    Ok((dx, dy.contiguous()?, windows.arg(lead[0] * lead[1], size, out, include_pad)))
}

/// The mean of each window. `count_include_pad`: padding counts in the divisor, though not what a window of ceil mode
/// reaches beyond it.
///
/// Shapes: `x [B, C, H, W]` -> `[B, C, OH, OW]`.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Argument`.
pub(crate) fn avg_pool2d(
    x: &CudaTensor,
    kernel: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 2],
    count_include_pad: bool,
    ceil_mode: bool,
) -> Result<CudaTensor> {
    let windows = Windows { kernel, stride, pad, dilation: [1, 1], ceil_mode };
    let (y, x, arg) = forward("avg_pool2d", x, windows, count_include_pad)?;
    if !y.is_empty() {
        pool(Case::Avg { y: &y, x: &x }, arg)?;
    }
    Ok(y)
}

/// Gradient of [`avg_pool2d`] with respect to `x`.
///
/// # Errors
/// As for [`avg_pool2d`].
pub(crate) fn avg_pool2d_backward(
    x_dims: &[usize],
    dy: &CudaTensor,
    kernel: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 2],
    count_include_pad: bool,
    ceil_mode: bool,
) -> Result<CudaTensor> {
    let windows = Windows { kernel, stride, pad, dilation: [1, 1], ceil_mode };
    let (dx, dy, arg) = backward("avg_pool2d_backward", x_dims, dy, windows, count_include_pad)?;
    if !dx.is_empty() {
        pool(Case::AvgBackward { dx: &dx, dy: &dy }, arg)?;
    }
    Ok(dx)
}

/// The largest element of each window; -inf for a window of padding only.
///
/// # Errors
/// As for [`avg_pool2d`].
pub(crate) fn max_pool2d(
    x: &CudaTensor,
    kernel: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 2],
    dilation: [usize; 2],
    ceil_mode: bool,
) -> Result<CudaTensor> {
    let windows = Windows { kernel, stride, pad, dilation, ceil_mode };
    let (y, x, arg) = forward("max_pool2d", x, windows, false)?;
    if !y.is_empty() {
        pool(Case::Max { y: &y, x: &x }, arg)?;
    }
    Ok(y)
}

/// As [`max_pool2d`], and where each maximum is: `h * W + w`, or -1 for a window of padding only, in dtype `indices`.
///
/// # Errors
/// As for [`avg_pool2d`].
pub(crate) fn max_pool2d_with_indices(
    x: &CudaTensor,
    kernel: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 2],
    dilation: [usize; 2],
    ceil_mode: bool,
    indices: DType,
) -> Result<(CudaTensor, CudaTensor)> {
    const OP: &str = "max_pool2d_with_indices";
    let windows = Windows { kernel, stride, pad, dilation, ceil_mode };
    let (y, x, arg) = forward(OP, x, windows, false)?;
    let native = match Elem::of(OP, indices)? {
        Elem::I64 | Elem::U64 | Elem::U32 => DType::I64,
        _ => DType::I32,
    };
    let at = CudaTensor::empty(y.device(), y.layout().shape().clone(), native, OP)?;
    check::int(OP, &at)?;
    if !y.is_empty() {
        pool(Case::MaxIndices { y: &y, indices: &at, x: &x }, arg)?;
    }
    Ok((y, cast(at, indices)?))
}

/// Gradient of [`max_pool2d_with_indices`] with respect to `x`: each element's share goes where its maximum was.
///
/// # Errors
/// As for [`avg_pool2d`].
#[allow(clippy::too_many_arguments)]
pub(crate) fn max_pool2d_with_indices_backward(
    x_dims: &[usize],
    dy: &CudaTensor,
    indices: &CudaTensor,
    kernel: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 2],
    dilation: [usize; 2],
    ceil_mode: bool,
) -> Result<CudaTensor> {
    const OP: &str = "max_pool2d_with_indices_backward";
    check::same_device(OP, &[dy, indices])?;
    check::int(OP, indices)?;
    check::shape(OP, indices, dy.dims())?;
    let windows = Windows { kernel, stride, pad, dilation, ceil_mode };
    let (dx, dy, arg) = backward(OP, x_dims, dy, windows, false)?;
    if !dx.is_empty() {
        let indices = match indices.elem() {
            Elem::I32 | Elem::I64 => indices.contiguous()?,
            _ => cast(indices.clone(), DType::I64)?.contiguous()?,
        };
        pool(Case::MaxBackward { dx: &dx, dy: &dy, indices: &indices }, arg)?;
    }
    Ok(dx)
}

const UNUSED: Windows =
    Windows { kernel: [1, 1], stride: [1, 1], pad: [0, 0], dilation: [1, 1], ceil_mode: false };

fn check_adaptive(op: &'static str, size: [usize; 2], out: [usize; 2]) -> Result<()> {
    for plane in [size, out] {
        check_plane(op, plane)?;
        if plane.iter().any(|&s| s >= LIMIT) {
            return Err(Error::Argument { op, detail: format!("size {plane:?} is too large") });
        }
    }
    Ok(())
}

/// The mean of each of `out` windows that cover the input evenly: output `o` of a dimension covers inputs
/// `floor(o size / out) .. ceil((o + 1) size / out)`.
///
/// Shapes: `x [B, C, H, W]` -> `[B, C, out]`.
///
/// # Errors
/// As for [`avg_pool2d`].
pub(crate) fn adaptive_avg_pool2d(x: &CudaTensor, out: [usize; 2]) -> Result<CudaTensor> {
    const OP: &str = "adaptive_avg_pool2d";
    check::float(OP, x)?;
    let (lead, size) = split(OP, x.dims())?;
    check_adaptive(OP, size, out)?;
    let y = empty(x, lead, out, x.dtype(), OP)?;
    if !y.is_empty() {
        pool(Case::Adaptive { y: &y, x: &x.contiguous()? }, UNUSED.arg(lead[0] * lead[1], size, out, false))?;
    }
    Ok(y)
}

/// Gradient of [`adaptive_avg_pool2d`] with respect to `x`.
///
/// # Errors
/// As for [`avg_pool2d`].
pub(crate) fn adaptive_avg_pool2d_backward(x_dims: &[usize], dy: &CudaTensor) -> Result<CudaTensor> {
    const OP: &str = "adaptive_avg_pool2d_backward";
    check::float(OP, dy)?;
    let ((lead, size), (dy_lead, out)) = (split(OP, x_dims)?, split(OP, dy.dims())?);
    if lead != dy_lead {
        return Err(Error::Shape {
            op: OP,
            detail: "batch and channels differ".into(),
            shapes: vec![x_dims.to_vec(), dy.dims().to_vec()],
        });
    }
    check_adaptive(OP, size, out)?;
    let dx = empty(dy, lead, size, dy.dtype(), OP)?;
    if !dx.is_empty() {
        let arg = UNUSED.arg(lead[0] * lead[1], size, out, false);
        pool(Case::AdaptiveBackward { dx: &dx, dy: &dy.contiguous()? }, arg)?;
    }
    Ok(dx)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(
        size: usize,
        kernel: usize,
        stride: usize,
        pad: usize,
        dilation: usize,
        ceil_mode: bool,
    ) -> Result<usize> {
        let both = |x| [x, x];
        Windows {
            kernel: both(kernel),
            stride: both(stride),
            pad: both(pad),
            dilation: both(dilation),
            ceil_mode,
        }
        .count("pool", size, 0)
    }

    #[test]
    fn windows_are_counted_as_burn_does() {
        use burn_backend::ops::conv::calculate_pool_output_size;
        for (size, kernel, stride, pad, dilation) in
            [(5, 2, 2, 0, 1), (6, 3, 2, 1, 1), (7, 3, 3, 1, 2), (1, 1, 1, 0, 1), (10, 2, 7, 0, 3)]
        {
            for ceil in [false, true] {
                assert_eq!(
                    count(size, kernel, stride, pad, dilation, ceil).unwrap(),
                    calculate_pool_output_size(kernel, stride, pad, dilation, size, ceil)
                );
            }
        }
    }

    #[test]
    fn a_kernel_longer_than_the_input_has_no_window() {
        assert_eq!(count(2, 3, 1, 0, 1, false).unwrap(), 0);
        assert_eq!(count(2, 3, 1, 0, 1, true).unwrap(), 1);
    }

    #[test]
    fn impossible_windows_are_errors() {
        for (kernel, stride, dilation) in
            [(0, 1, 1), (1, 0, 1), (1, 1, 0), (2, 1, usize::MAX), (2, usize::MAX, 1)]
        {
            assert!(count(4, kernel, stride, 0, dilation, false).is_err());
        }
        assert!(count(4, 1, 1, usize::MAX, 1, false).is_err());
    }
}
