//! Two-dimensional convolution with groups, its gradients and its transpose: columns (`im2col`) and matrix products.
//!
//! Letters: B batch, C channels in, O channels out, g groups, K = C/g * kernel elements, L = output pixels. A weight is
//! `[O, C/g, kh, kw]`. Columns are made for as many images at once as fit into [`COLUMNS_BYTES`].

use burn_backend::ops::{ConvOptions, ConvTransposeOptions};
use burn_backend::{Shape, TensorMetadata};
use burn_std::DType;

use crate::error::{Error, Result};
use crate::kernels::im2col::{Windows, col2im, im2col};
use crate::ops::elementwise::{ADD, binary, cast, copy_into, zeros};
use crate::ops::matmul::matmul;
use crate::ops::reduce;
use crate::tensor::{CudaTensor, check};

/// Bytes of columns at once: enough images for large matrix products, little beside the activations of a model.
const COLUMNS_BYTES: usize = 512 << 20;
/// Kernel arithmetic is in i32: sizes, also those with padding and a kernel's reach, stay below this.
const LIMIT: usize = i32::MAX as usize / 4;

/// A convolution's sizes, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Conv {
    batch: usize,
    out_channels: usize,
    groups: usize,
    windows: Windows,
}

impl Conv {
    fn new(op: &'static str, x: &[usize], w: &[usize], options: &ConvOptions<2>) -> Result<Conv> {
        let shape = |detail: String| Error::Shape { op, detail, shapes: vec![x.to_vec(), w.to_vec()] };
        let (&[batch, channels, height, width], &[out_channels, per_group, kernel_h, kernel_w]) = (x, w)
        else {
            return Err(shape(
                "the input must be [B, C, H, W] and the weight [O, C / groups, KH, KW]".into(),
            ));
        };
        let groups = options.groups;
        if groups == 0
            || channels % groups != 0
            || out_channels % groups != 0
            || per_group != channels / groups
        {
            return Err(shape(format!("the channels do not fit {groups} groups")));
        }
        let (size, kernel) = ([height, width], [kernel_h, kernel_w]);
        let ConvOptions { stride, padding: pad, dilation, .. } = *options;
        let mut out = [0; 2];
        for d in 0..2 {
            if kernel[d] == 0 || stride[d] == 0 || dilation[d] == 0 {
                return Err(Error::Argument {
                    op,
                    detail: format!(
                        "kernel {kernel:?}, stride {stride:?} and dilation {dilation:?} must be at least 1"
                    ),
                });
            }
            let reach = (kernel[d] - 1).checked_mul(dilation[d]).map(|r| r.saturating_add(1));
            let padded = pad[d].checked_mul(2).map(|p| p.saturating_add(size[d]));
            let (Some(reach), Some(padded)) = (reach, padded) else {
                return Err(shape(format!("padding {pad:?} or dilation {dilation:?} is too large")));
            };
            if reach >= LIMIT || padded >= LIMIT || stride[d] >= LIMIT {
                return Err(shape(format!(
                    "padding {pad:?}, dilation {dilation:?} or stride {stride:?} is too large"
                )));
            }
            let Some(rest) = padded.checked_sub(reach) else {
                return Err(shape(format!(
                    "a kernel of {kernel:?} with dilation {dilation:?} is larger than the input with padding {pad:?}"
                )));
            };
            out[d] = rest / stride[d] + 1;
        }
        if channels >= LIMIT || kernel_h.checked_mul(kernel_w).is_none_or(|k| k >= LIMIT) {
            return Err(shape("too many channels or kernel elements".into()));
        }
        let windows = Windows { channels, size, out, kernel, stride, pad, dilation };
        Ok(Conv { batch, out_channels, groups, windows })
    }

    /// K.
    fn k(&self) -> usize {
        self.windows.channels / self.groups * self.windows.kernel[0] * self.windows.kernel[1]
    }

    /// L.
    fn l(&self) -> usize {
        self.windows.out[0] * self.windows.out[1]
    }

    fn x_shape(&self, batch: usize) -> [usize; 4] {
        [batch, self.windows.channels, self.windows.size[0], self.windows.size[1]]
    }

    fn y_shape(&self) -> [usize; 4] {
        [self.batch, self.out_channels, self.windows.out[0], self.windows.out[1]]
    }

    /// Whether the columns are the input itself.
    fn is_pointwise(&self) -> bool {
        let w = &self.windows;
        w.kernel == [1, 1] && w.stride == [1, 1] && w.pad == [0, 0]
    }

    /// Images at once.
    fn chunk(&self, elem_bytes: usize) -> usize {
        let image = (self.groups * self.k()).saturating_mul(self.l()).saturating_mul(elem_bytes);
        (COLUMNS_BYTES / image.max(1)).clamp(1, self.batch.max(1))
    }

    /// The weight as one matrix a group: `[g, O/g, K]`.
    fn matrices(&self, w: &CudaTensor) -> Result<CudaTensor> {
        w.reshape(&[self.groups, self.out_channels / self.groups, self.k()])
    }
}

/// Images `first .. first + count`.
fn images(x: &CudaTensor, first: usize, count: usize) -> CudaTensor {
    x.with_layout(x.layout().narrow(0, first, count))
}

/// The last two dimensions exchanged.
fn transposed(x: &CudaTensor) -> CudaTensor {
    let rank = x.dims().len();
    x.with_layout(x.layout().swap_dims(rank - 2, rank - 1).expect("at least two dimensions"))
}

fn check_operands(op: &'static str, a: &CudaTensor, b: &CudaTensor) -> Result<()> {
    check::same_device(op, &[a, b])?;
    check::same_dtype(op, &[a, b])?;
    check::float(op, a)
}

/// Cross-correlation of `x` with `w`, plus `bias` for each output channel.
///
/// Shapes: `x [B, C, H, W]`, `w [O, C/g, kh, kw]`, `bias [O]` -> `[B, O, OH, OW]`.
///
/// # Errors
/// `Error::Shape` (also for a kernel larger than the padded input), `Error::DType`, `Error::Argument`, `Error::Device`.
pub(crate) fn conv2d(
    x: &CudaTensor,
    w: &CudaTensor,
    bias: Option<&CudaTensor>,
    options: &ConvOptions<2>,
) -> Result<CudaTensor> {
    const OP: &str = "conv2d";
    check_operands(OP, x, w)?;
    let conv = Conv::new(OP, x.dims(), w.dims(), options)?;
    if let Some(bias) = bias {
        check_operands(OP, x, bias)?;
        check::shape(OP, bias, &[conv.out_channels])?;
    }
    let y = products(OP, &conv, x, w)?;
    match bias {
        Some(bias) => binary(&ADD, y, bias.reshape(&[1, conv.out_channels, 1, 1])?),
        None => Ok(y),
    }
}

/// `y[B, g, O/g, L] = w[g, O/g, K] col[B, g, K, L]`
fn products(op: &'static str, conv: &Conv, x: &CudaTensor, w: &CudaTensor) -> Result<CudaTensor> {
    let Conv { batch, out_channels, groups, windows } = *conv;
    let shape = conv.y_shape();
    if batch == 0 || out_channels == 0 {
        return CudaTensor::empty(x.device(), shape, x.dtype(), op);
    }
    let w = conv.matrices(w)?;
    let (k, l) = (conv.k(), conv.l());
    if conv.is_pointwise() {
        return matmul(&w, &x.reshape(&[batch, groups, k, l])?)?.reshape(&shape);
    }
    let chunk = conv.chunk(x.elem().size_bytes());
    let part = |first: usize, count: usize| {
        let col = CudaTensor::empty(x.device(), [count, groups, k, l], x.dtype(), op)?;
        im2col(&col, ((groups * k * l) as i64, l as i64), &images(x, first, count), &windows)?;
        matmul(&w, &col)
    };
    if chunk >= batch {
        return part(0, batch)?.reshape(&shape);
    }
    let y = CudaTensor::empty(x.device(), shape, x.dtype(), op)?;
    for first in (0..batch).step_by(chunk) {
        let count = chunk.min(batch - first);
        let to = images(&y, first, count);
        copy_into(&to, &part(first, count)?.reshape(to.dims())?)?;
    }
    Ok(y)
}

/// Gradient of [`conv2d`] with respect to `x`, which has shape `x_dims`.
///
/// Each pixel sums over the windows that read it, in one order.
///
/// # Errors
/// As for [`conv2d`].
pub(crate) fn conv2d_x_backward(
    x_dims: &[usize],
    w: &CudaTensor,
    dy: &CudaTensor,
    options: &ConvOptions<2>,
) -> Result<CudaTensor> {
    x_gradient("conv2d_x_backward", x_dims, w, dy, options)
}

/// Transposed convolution: what [`conv2d`] with this weight is to its input, plus `bias` for each output channel.
///
/// Shapes: `x [B, C, H, W]`, `w [C, O/g, kh, kw]`, `bias [O]` -> `[B, O, OH, OW]`, `OH = (H - 1) * stride +
/// dilation * (kh - 1) + 1 + padding_out - 2 * padding`, and OW alike.
///
/// # Errors
/// As for [`conv2d`]; `Error::Argument` for a `padding_out` that is not below the stride.
pub(crate) fn conv_transpose2d(
    x: &CudaTensor,
    w: &CudaTensor,
    bias: Option<&CudaTensor>,
    options: &ConvTransposeOptions<2>,
) -> Result<CudaTensor> {
    const OP: &str = "conv_transpose2d";
    let shape = |detail: &str| Error::Shape {
        op: OP,
        detail: detail.into(),
        shapes: vec![x.dims().to_vec(), w.dims().to_vec()],
    };
    let (&[batch, channels, height, width], &[w_channels, per_group, kernel_h, kernel_w]) =
        (x.dims(), w.dims())
    else {
        return Err(shape("the input must be [B, C, H, W] and the weight [C, O / groups, KH, KW]"));
    };
    if channels != w_channels {
        return Err(shape("the weight must have as many rows as the input has channels"));
    }
    let ConvTransposeOptions { stride, padding, padding_out, dilation, groups } = *options;
    let out_channels = per_group.checked_mul(groups).ok_or_else(|| shape("too many groups"))?;
    let (size, kernel) = ([height, width], [kernel_h, kernel_w]);
    let mut out = [0; 2];
    for d in 0..2 {
        if padding_out[d] >= stride[d].max(1) {
            let detail = format!("the output padding {padding_out:?} must be below the stride {stride:?}");
            return Err(Error::Argument { op: OP, detail });
        }
        let reach = kernel[d].checked_sub(1).and_then(|k| k.checked_mul(dilation[d]));
        let full = size[d].checked_sub(1).and_then(|n| n.checked_mul(stride[d])).zip(reach);
        let full = full.and_then(|(a, b)| a.checked_add(b)?.checked_add(padding_out[d] + 1));
        let cut = full.and_then(|full| full.checked_sub(padding[d].checked_mul(2)?));
        out[d] = cut.ok_or_else(|| shape("no output is left, or it is too large"))?;
    }
    let options = ConvOptions { stride, padding, dilation, groups };
    let y = x_gradient(OP, &[batch, out_channels, out[0], out[1]], w, x, &options)?;
    match bias {
        Some(bias) => {
            check_operands(OP, x, bias)?;
            check::shape(OP, bias, &[out_channels])?;
            binary(&ADD, y, bias.reshape(&[1, out_channels, 1, 1])?)
        }
        None => Ok(y),
    }
}

fn x_gradient(
    op: &'static str,
    x_dims: &[usize],
    w: &CudaTensor,
    dy: &CudaTensor,
    options: &ConvOptions<2>,
) -> Result<CudaTensor> {
    check_operands(op, w, dy)?;
    let conv = Conv::new(op, x_dims, w.dims(), options)?;
    check::shape(op, dy, &conv.y_shape())?;
    let Conv { batch, out_channels, groups, windows } = conv;
    let w = transposed(&conv.matrices(w)?);
    let columns = |first: usize, count: usize| {
        let dy = images(dy, first, count).reshape(&[count, groups, out_channels / groups, conv.l()])?;
        matmul(&w, &dy)
    };
    if conv.is_pointwise() {
        return columns(0, batch)?.reshape(x_dims);
    }
    let dx = CudaTensor::empty(dy.device(), conv.x_shape(batch), dy.dtype(), op)?;
    if dx.is_empty() {
        return Ok(dx);
    }
    let chunk = conv.chunk(dy.elem().size_bytes());
    for first in (0..batch).step_by(chunk) {
        let count = chunk.min(batch - first);
        col2im(&images(&dx, first, count), &columns(first, count)?, &windows)?;
    }
    Ok(dx)
}

/// Gradient of [`conv2d`] with respect to the weight, which has shape `w_dims`: one product a group over all images
/// and pixels, `dw[g, O/g, K] = dy[g, O/g, (B, L)] col[g, K, (B, L)]^T`.
///
/// # Errors
/// As for [`conv2d`].
pub(crate) fn conv2d_weight_backward(
    x: &CudaTensor,
    w_dims: &[usize],
    dy: &CudaTensor,
    options: &ConvOptions<2>,
) -> Result<CudaTensor> {
    weight_gradient("conv2d_weight_backward", x, w_dims, dy, options)
}

fn weight_gradient(
    op: &'static str,
    x: &CudaTensor,
    w_dims: &[usize],
    dy: &CudaTensor,
    options: &ConvOptions<2>,
) -> Result<CudaTensor> {
    check_operands(op, x, dy)?;
    let conv = Conv::new(op, x.dims(), w_dims, options)?;
    check::shape(op, dy, &conv.y_shape())?;
    let Conv { batch, out_channels, groups, windows } = conv;
    let w_shape = Shape::from(w_dims.to_vec());
    if batch == 0 || w_dims.contains(&0) {
        return zeros(x.device(), w_shape, x.dtype(), op);
    }
    let (k, l) = (conv.k(), conv.l());
    let chunk = conv.chunk(x.elem().size_bytes());
    let part = |first: usize, count: usize| {
        let columns = count * l;
        let col = CudaTensor::empty(x.device(), [groups, k, columns], x.dtype(), op)?;
        im2col(&col, (l as i64, columns as i64), &images(x, first, count), &windows)?;
        let dy = images(dy, first, count);
        let dy = dy.with_layout(dy.layout().swap_dims(0, 1).expect("four dimensions"));
        matmul(&dy.reshape(&[groups, out_channels / groups, columns])?, &transposed(&col))
    };
    if chunk >= batch {
        return part(0, batch)?.reshape(w_dims);
    }
    // The chunks' sum is kept in f32 at least.
    let acc = if x.elem().size_bytes() == 2 { DType::F32 } else { x.dtype() };
    let mut sum = cast(part(0, chunk)?, acc)?;
    for first in (chunk..batch).step_by(chunk) {
        sum = binary(&ADD, sum, cast(part(first, chunk.min(batch - first))?, acc)?)?;
    }
    cast(sum, x.dtype())?.reshape(w_dims)
}

/// The dimensions of rows as images of height 1.
fn flat_image(op: &'static str, dims: &[usize]) -> Result<[usize; 4]> {
    match *dims {
        [a, b, n] => Ok([a, b, 1, n]),
        _ => Err(Error::Shape {
            op,
            detail: "input, weight and gradient must have three dimensions".into(),
            shapes: vec![dims.to_vec()],
        }),
    }
}

fn flat_options(options: &ConvOptions<1>) -> ConvOptions<2> {
    let ConvOptions { stride: [stride], padding: [padding], dilation: [dilation], groups } = *options;
    ConvOptions { stride: [1, stride], padding: [0, padding], dilation: [1, dilation], groups }
}

/// Gradient of a one-dimensional convolution with respect to `x`: that of images of height 1.
///
/// # Errors
/// As for [`conv2d`].
pub(crate) fn conv1d_x_backward(
    x_dims: &[usize],
    w: &CudaTensor,
    dy: &CudaTensor,
    options: &ConvOptions<1>,
) -> Result<CudaTensor> {
    const OP: &str = "conv1d_x_backward";
    let (w, dy) = (w.reshape(&flat_image(OP, w.dims())?)?, dy.reshape(&flat_image(OP, dy.dims())?)?);
    x_gradient(OP, &flat_image(OP, x_dims)?, &w, &dy, &flat_options(options))?.reshape(x_dims)
}

/// Gradient of a one-dimensional convolution with respect to the weight.
///
/// # Errors
/// As for [`conv2d`].
pub(crate) fn conv1d_weight_backward(
    x: &CudaTensor,
    w_dims: &[usize],
    dy: &CudaTensor,
    options: &ConvOptions<1>,
) -> Result<CudaTensor> {
    const OP: &str = "conv1d_weight_backward";
    let (x, dy) = (x.reshape(&flat_image(OP, x.dims())?)?, dy.reshape(&flat_image(OP, dy.dims())?)?);
    weight_gradient(OP, &x, &flat_image(OP, w_dims)?, &dy, &flat_options(options))?.reshape(w_dims)
}

/// Gradient of [`conv2d`] with respect to the bias: `dy [B, O, OH, OW]` summed to `[O]`.
///
/// # Errors
/// `Error::Shape`, `Error::DType`.
pub(crate) fn conv2d_bias_backward(bias: &CudaTensor, dy: &CudaTensor) -> Result<CudaTensor> {
    const OP: &str = "conv2d_bias_backward";
    check_operands(OP, bias, dy)?;
    let ([channels], [_, out_channels, _, _]) = (bias.dims(), dy.dims()) else {
        return Err(Error::Shape {
            op: OP,
            detail: "the bias must be [O] and the gradient [B, O, OH, OW]".into(),
            shapes: vec![bias.dims().to_vec(), dy.dims().to_vec()],
        });
    };
    check::shape(OP, bias, &[*out_channels])?;
    reduce::sum_to(dy, &[1, *channels, 1, 1])?.reshape(&[*channels])
}

/// `x` summed over all dimensions but the last: the gradient of a bias that was added to rows.
///
/// # Errors
/// `Error::Shape` if `x` has no dimension.
pub(crate) fn sum_to_last(x: &CudaTensor) -> Result<CudaTensor> {
    let Some(&last) = x.dims().last() else {
        return Err(Error::Shape {
            op: "linear_bias_backward",
            detail: "the gradient must have a dimension".into(),
            shapes: vec![x.dims().to_vec()],
        });
    };
    reduce::sum_to(x, &[last])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conv(x: [usize; 4], w: [usize; 4], options: ConvOptions<2>) -> Result<Conv> {
        Conv::new("conv2d", &x, &w, &options)
    }

    #[test]
    fn output_sizes_are_burns() {
        use burn_backend::ops::conv::calculate_conv_output_size;
        for (size, kernel, stride, pad, dilation) in
            [(5, 3, 1, 1, 1), (224, 7, 2, 3, 1), (9, 3, 2, 0, 3), (1, 1, 1, 0, 1), (4, 2, 5, 3, 2)]
        {
            let options = ConvOptions::new([stride, 1], [pad, 0], [dilation, 1], 2);
            let got = conv([2, 4, size, 8], [6, 2, kernel, 3], options).unwrap();
            assert_eq!(got.windows.out, [calculate_conv_output_size(kernel, stride, pad, dilation, size), 6]);
            assert_eq!((got.k(), got.y_shape()[1]), (2 * kernel * 3, 6));
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_errors() {
        // Not through `new`, which panics.
        let options = |groups| ConvOptions { groups, ..ConvOptions::new([1, 1], [0, 0], [1, 1], 1) };
        assert!(conv([1, 4, 3, 3], [6, 4, 3, 3], options(1)).is_ok());
        assert!(conv([1, 4, 3, 3], [6, 3, 3, 3], options(1)).is_err());
        assert!(conv([1, 4, 3, 3], [6, 2, 3, 3], options(4)).is_err());
        assert!(conv([1, 4, 3, 3], [6, 4, 3, 3], options(0)).is_err());
        let large = conv([1, 4, 3, 2], [6, 4, 3, 3], options(1)).unwrap_err().to_string();
        assert!(large.contains("larger than the input"), "{large}");
        let stride = conv([1, 4, 3, 3], [6, 4, 3, 3], ConvOptions { stride: [0, 1], ..options(1) });
        assert!(matches!(stride, Err(Error::Argument { .. })));
    }

    #[test]
    fn columns_stay_within_the_workspace() {
        let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        let small = conv([8, 3, 32, 32], [16, 3, 3, 3], options.clone()).unwrap();
        assert_eq!(small.chunk(4), 8);
        let large = conv([64, 256, 112, 112], [64, 256, 3, 3], options.clone()).unwrap();
        assert!(large.chunk(4) < 64 && large.chunk(4) * large.k() * large.l() * 4 <= COLUMNS_BYTES);
        let huge = conv([2, 1024, 2048, 2048], [1, 1024, 3, 3], options).unwrap();
        assert_eq!(huge.chunk(4), 1);
    }
}
