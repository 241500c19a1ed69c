//! Convolution over one to three spatial dimensions with groups, its gradients, and the same of its transpose: columns
//! (`im2col`) and matrix products, or cuDNN where that is faster ([`super::cudnn`]).
//!
//! Letters: B batch, C channels in, O channels out, g groups, K = C/g * kernel elements, L = output pixels. A weight is
//! `[O, C/g, ..]`, a transposed convolution's `[C, O/g, ..]`: that of the convolution whose gradient it is. Columns are
//! made for as many images at once as fit into [`COLUMNS_BYTES`].
//!
//! 16-bit floats are summed in f32 and rounded once: a bias is added to the sums, and columns that are to be summed
//! (`col2im`) are f32.

use burn_backend::ops::{ConvOptions, ConvTransposeOptions};
use burn_backend::{Shape, TensorMetadata};

use crate::error::{Error, Result};
use crate::kernels::im2col::{Windows, col2im, im2col};
use crate::ops::cudnn::{Direction, or_columns};
use crate::ops::elementwise::{ADD, binary, cast, copy_into, zeros};
use crate::ops::matmul::{matmul, matmul_into, matmul_wide};
use crate::ops::reduce;
use crate::tensor::{CudaTensor, check};

/// Bytes of columns at once: enough images for large matrix products, little beside the activations of a model.
pub(super) const COLUMNS_BYTES: usize = 512 << 20;
/// Kernel arithmetic is in i32: sizes, also those with padding and a kernel's reach, stay below this.
pub(super) const LIMIT: usize = i32::MAX as usize / 4;
/// From so many images and groups on, products of each are one batch over copies of the weight: fewer are cheaper as
/// batches over the longer of the two.
const COPIES_FROM: usize = 5;

/// A convolution's sizes, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Conv {
    pub(super) batch: usize,
    pub(super) out_channels: usize,
    pub(super) groups: usize,
    pub(super) windows: Windows,
}

/// `values` as the last of three dimensions, `rest` before.
fn last_of_three<const N: usize>(values: [usize; N], rest: usize) -> [usize; 3] {
    let mut all = [rest; 3];
    all[3 - N..].copy_from_slice(&values);
    all
}

fn spatial<const N: usize>(dims: &[usize]) -> Option<[usize; N]> {
    dims.get(2..)?.try_into().ok()
}

impl Conv {
    pub(super) fn new<const N: usize>(
        op: &'static str,
        x: &[usize],
        w: &[usize],
        options: &ConvOptions<N>,
    ) -> Result<Conv> {
        let shape = |detail: String| Error::Shape { op, detail, shapes: vec![x.to_vec(), w.to_vec()] };
        let (Some(size), Some(kernel)) = (spatial::<N>(x), spatial::<N>(w)) else {
            return Err(shape(format!(
                "the input must be [B, C, ..] and the weight [O, C / groups, ..] with {N} spatial dimensions"
            )));
        };
        let (channels, out_channels, groups) = (x[1], w[0], options.groups);
        if groups == 0 || channels % groups != 0 || out_channels % groups != 0 || w[1] != channels / groups {
            return Err(shape(format!("the channels do not fit {groups} groups")));
        }
        let ConvOptions { stride, padding: pad, dilation, .. } = *options;
        let mut out = [0; N];
        for d in 0..N {
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
        let elements = kernel.iter().try_fold(1usize, |n, &k| n.checked_mul(k));
        if channels >= LIMIT || elements.is_none_or(|n| n >= LIMIT) {
            return Err(shape("too many channels or kernel elements".into()));
        }
        let windows = Windows {
            dims: N,
            channels,
            size: last_of_three(size, 1),
            out: last_of_three(out, 1),
            kernel: last_of_three(kernel, 1),
            stride: last_of_three(stride, 1),
            pad: last_of_three(pad, 0),
            dilation: last_of_three(dilation, 1),
        };
        Ok(Conv { batch: x[0], out_channels, groups, windows })
    }

    /// The convolution from the output of a transposed one, `[B, O, ..]`, to its input: with an output padding, a window
    /// may fit that the input has no pixel for.
    pub(super) fn under_transposed<const N: usize>(
        op: &'static str,
        y: &[usize],
        w: &[usize],
        options: &ConvTransposeOptions<N>,
    ) -> Result<Conv> {
        let ConvTransposeOptions { stride, padding, padding_out, dilation, groups } = *options;
        let mut conv = Conv::new(op, y, w, &ConvOptions { stride, padding, dilation, groups })?;
        for (d, padding_out) in last_of_three(padding_out, 0).into_iter().enumerate() {
            let Windows { size, kernel, stride, pad, dilation, out, .. } = &mut conv.windows;
            let used = (kernel[d] - 1) * dilation[d] + 1;
            let rest = (size[d] + 2 * pad[d] - used).checked_sub(padding_out);
            let Some(rest) = rest else {
                return Err(Error::Shape {
                    op,
                    detail: format!("an output padding of {padding_out} leaves no input"),
                    shapes: vec![y.to_vec(), w.to_vec()],
                });
            };
            out[d] = rest / stride[d] + 1;
        }
        Ok(conv)
    }

    /// K.
    pub(super) fn k(&self) -> usize {
        self.windows.channels / self.groups * self.windows.kernel_len()
    }

    /// L.
    pub(super) fn l(&self) -> usize {
        self.windows.pixels()
    }

    fn shape(&self, channels: usize, size: &[usize; 3]) -> Vec<usize> {
        let mut shape = vec![self.batch, channels];
        shape.extend_from_slice(&size[3 - self.windows.dims..]);
        shape
    }

    pub(super) fn x_shape(&self) -> Vec<usize> {
        self.shape(self.windows.channels, &self.windows.size)
    }

    pub(super) fn y_shape(&self) -> Vec<usize> {
        self.shape(self.out_channels, &self.windows.out)
    }

    pub(super) fn w_shape(&self) -> Vec<usize> {
        let w = &self.windows;
        let mut shape = vec![self.out_channels, w.channels / self.groups];
        shape.extend_from_slice(&w.kernel[3 - w.dims..]);
        shape
    }

    /// Of the convolution and of each of its gradients.
    pub(super) fn multiply_adds(&self) -> u128 {
        [self.batch, self.out_channels, self.k(), self.l()].iter().map(|&n| n as u128).product()
    }

    /// Whether the columns are the input itself.
    fn is_pointwise(&self) -> bool {
        let w = &self.windows;
        w.kernel == [1; 3] && w.stride == [1; 3] && w.pad == [0; 3] && w.size == w.out
    }

    /// Images at once.
    pub(super) fn chunk(&self, elem_bytes: usize) -> usize {
        let image = (self.groups * self.k()).saturating_mul(self.l()).saturating_mul(elem_bytes);
        (COLUMNS_BYTES / image.max(1)).clamp(1, self.batch.max(1))
    }

    /// The weight as one matrix a group: `[g, O/g, K]`.
    pub(super) fn matrices(&self, w: &CudaTensor) -> Result<CudaTensor> {
        w.reshape(&[self.groups, self.out_channels / self.groups, self.k()])
    }

    /// One matrix a group, for so many images. The library takes one stride from each matrix of a batch to the next, so
    /// many images of many groups would be many calls; copies of the weight make it one. They are smaller than the
    /// columns, unless images are small.
    pub(super) fn for_images(&self, w: &CudaTensor, images: usize) -> Result<CudaTensor> {
        if self.groups.min(images) < COPIES_FROM || self.out_channels / self.groups > self.l() {
            return Ok(w.clone());
        }
        let mut shape = vec![images];
        shape.extend_from_slice(w.dims());
        let copies = CudaTensor::empty(w.device(), shape, w.dtype(), "convolution")?;
        copy_into(&copies, w)?;
        Ok(copies)
    }
}

/// Images `first .. first + count`.
pub(super) fn images(x: &CudaTensor, first: usize, count: usize) -> CudaTensor {
    x.with_layout(x.layout().narrow(0, first, count))
}

/// The matrices of `count` images: all of [`Conv::for_images`]'s, or the first so many.
pub(super) fn of_images(w: &CudaTensor, count: usize) -> CudaTensor {
    if w.dims().len() == 4 { images(w, 0, count) } else { w.clone() }
}

/// The last two dimensions exchanged.
pub(super) fn transposed(x: &CudaTensor) -> CudaTensor {
    let rank = x.dims().len();
    x.with_layout(x.layout().swap_dims(rank - 2, rank - 1).expect("at least two dimensions"))
}

pub(super) fn check_operands(op: &'static str, a: &CudaTensor, b: &CudaTensor) -> Result<()> {
    check::same_device(op, &[a, b])?;
    check::same_dtype(op, &[a, b])?;
    check::float(op, a)
}

pub(super) fn check_bias(op: &'static str, x: &CudaTensor, bias: &CudaTensor, channels: usize) -> Result<()> {
    check_operands(op, x, bias)?;
    check::shape(op, bias, &[channels])
}

/// Cross-correlation of `x` with `w`, plus `bias` for each output channel.
///
/// Shapes: `x [B, C, ..]`, `w [O, C/g, ..]`, `bias [O]` -> `[B, O, ..]`, with N spatial dimensions.
///
/// # Errors
/// `Error::Shape` (also for a kernel larger than the padded input), `Error::DType`, `Error::Argument`, `Error::Device`.
pub(crate) fn conv<const N: usize>(
    op: &'static str,
    x: &CudaTensor,
    w: &CudaTensor,
    bias: Option<&CudaTensor>,
    options: &ConvOptions<N>,
) -> Result<CudaTensor> {
    check_operands(op, x, w)?;
    let conv = Conv::new(op, x.dims(), w.dims(), options)?;
    if let Some(bias) = bias {
        check_bias(op, x, bias, conv.out_channels)?;
    }
    products(op, &conv, x, w, bias)
}

fn products(
    op: &'static str,
    conv: &Conv,
    x: &CudaTensor,
    w: &CudaTensor,
    bias: Option<&CudaTensor>,
) -> Result<CudaTensor> {
    or_columns(op, Direction::Forward, conv, (x, w), bias, || column_products(op, conv, x, w, bias))
}

/// `y[B, g, O/g, L] = w[g, O/g, K] col[B, g, K, L] + bias[g, O/g, 1]`
fn column_products(
    op: &'static str,
    conv: &Conv,
    x: &CudaTensor,
    w: &CudaTensor,
    bias: Option<&CudaTensor>,
) -> Result<CudaTensor> {
    let Conv { batch, out_channels, groups, windows } = *conv;
    let y = CudaTensor::empty(x.device(), conv.y_shape(), x.dtype(), op)?;
    if y.is_empty() {
        return Ok(y);
    }
    let (k, l) = (conv.k(), conv.l());
    let chunk = if conv.is_pointwise() { batch } else { conv.chunk(x.elem().size_bytes()) };
    let w = conv.for_images(&conv.matrices(w)?, chunk)?;
    let bias = bias.map(|bias| bias.reshape(&[groups, out_channels / groups, 1])).transpose()?;
    for first in (0..batch).step_by(chunk) {
        let count = chunk.min(batch - first);
        let to = images(&y, first, count).reshape(&[count, groups, out_channels / groups, l])?;
        let col = if conv.is_pointwise() {
            x.reshape(&[batch, groups, k, l])?
        } else {
            let col = CudaTensor::empty(x.device(), [count, groups, k, l], x.dtype(), op)?;
            im2col(&col, ((groups * k * l) as i64, l as i64), &images(x, first, count), &windows)?;
            col
        };
        matmul_into(op, &to, &of_images(&w, count), &col, bias.as_ref())?;
    }
    Ok(y)
}

/// Gradient of [`conv`] with respect to `x`, which has shape `x_dims`.
///
/// Each pixel sums over the windows that read it, in one order.
///
/// # Errors
/// As for [`conv`].
pub(crate) fn conv_x_backward<const N: usize>(
    op: &'static str,
    x_dims: &[usize],
    w: &CudaTensor,
    dy: &CudaTensor,
    options: &ConvOptions<N>,
) -> Result<CudaTensor> {
    check_operands(op, w, dy)?;
    let conv = Conv::new(op, x_dims, w.dims(), options)?;
    check::shape(op, dy, &conv.y_shape())?;
    x_gradient(op, &conv, w, dy, None)
}

fn x_gradient(
    op: &'static str,
    conv: &Conv,
    w: &CudaTensor,
    dy: &CudaTensor,
    bias: Option<&CudaTensor>,
) -> Result<CudaTensor> {
    or_columns(op, Direction::Input, conv, (w, dy), bias, || column_x_gradient(op, conv, w, dy, bias))
}

/// `col[B, g, K, L] = w[g, O/g, K]^T dy[B, g, O/g, L]`, summed to `dx`, plus `bias` for each channel of it.
fn column_x_gradient(
    op: &'static str,
    conv: &Conv,
    w: &CudaTensor,
    dy: &CudaTensor,
    bias: Option<&CudaTensor>,
) -> Result<CudaTensor> {
    let Conv { batch, out_channels, groups, windows } = *conv;
    let dx = CudaTensor::empty(dy.device(), conv.x_shape(), dy.dtype(), op)?;
    if dx.is_empty() {
        return Ok(dx);
    }
    let (k, l) = (conv.k(), conv.l());
    let gradient = |first: usize, count: usize| {
        images(dy, first, count).reshape(&[count, groups, out_channels / groups, l])
    };
    let w = transposed(&conv.matrices(w)?);
    if conv.is_pointwise() {
        let w = conv.for_images(&w, batch)?;
        let bias = bias.map(|bias| bias.reshape(&[groups, k, 1])).transpose()?;
        let to = dx.reshape(&[batch, groups, k, l])?;
        matmul_into(op, &to, &w, &gradient(0, batch)?, bias.as_ref())?;
        return Ok(dx);
    }
    let bias = bias.map(CudaTensor::contiguous).transpose()?;
    let chunk = conv.chunk(dy.elem().size_bytes().max(4));
    let w = conv.for_images(&w, chunk)?;
    for first in (0..batch).step_by(chunk) {
        let count = chunk.min(batch - first);
        let col = matmul_wide(op, &of_images(&w, count), &gradient(first, count)?)?;
        col2im(&images(&dx, first, count), &col, bias.as_ref(), &windows)?;
    }
    Ok(dx)
}

/// Gradient of [`conv`] with respect to the weight, which has shape `w_dims`.
///
/// # Errors
/// As for [`conv`].
pub(crate) fn conv_weight_backward<const N: usize>(
    op: &'static str,
    x: &CudaTensor,
    w_dims: &[usize],
    dy: &CudaTensor,
    options: &ConvOptions<N>,
) -> Result<CudaTensor> {
    check_operands(op, x, dy)?;
    let conv = Conv::new(op, x.dims(), w_dims, options)?;
    check::shape(op, dy, &conv.y_shape())?;
    weight_gradient(op, &conv, x, w_dims, dy)
}

fn weight_gradient(
    op: &'static str,
    conv: &Conv,
    x: &CudaTensor,
    w_dims: &[usize],
    dy: &CudaTensor,
) -> Result<CudaTensor> {
    let columns = || column_weight_gradient(op, conv, x, w_dims, dy);
    or_columns(op, Direction::Weight, conv, (x, dy), None, columns)
}

/// One product a group over all images and pixels, `dw[g, O/g, K] = dy[g, O/g, (B, L)] col[g, K, (B, L)]^T`.
fn column_weight_gradient(
    op: &'static str,
    conv: &Conv,
    x: &CudaTensor,
    w_dims: &[usize],
    dy: &CudaTensor,
) -> Result<CudaTensor> {
    let (groups, k, l) = (conv.groups, conv.k(), conv.l());
    let chunk = if conv.is_pointwise() { conv.batch } else { conv.chunk(x.elem().size_bytes()) };
    weight_products(op, conv, w_dims, dy, chunk, |first, count| {
        let columns = count * l;
        let x = images(x, first, count);
        if conv.is_pointwise() {
            return pixels_last(&x).reshape(&[groups, k, columns]);
        }
        let col = CudaTensor::empty(x.device(), [groups, k, columns], x.dtype(), op)?;
        im2col(&col, (l as i64, columns as i64), &x, &conv.windows)?;
        Ok(col)
    })
}

/// Channels before images.
fn pixels_last(x: &CudaTensor) -> CudaTensor {
    x.with_layout(x.layout().swap_dims(0, 1).expect("two dimensions and more"))
}

/// [`weight_gradient`] from any columns: `columns(first, count)` makes `[g, K, (B, L)]` of so many images.
pub(super) fn weight_products(
    op: &'static str,
    conv: &Conv,
    w_dims: &[usize],
    dy: &CudaTensor,
    chunk: usize,
    columns: impl Fn(usize, usize) -> Result<CudaTensor>,
) -> Result<CudaTensor> {
    let Conv { batch, out_channels, groups, .. } = *conv;
    if batch == 0 || w_dims.contains(&0) {
        return zeros(dy.device(), Shape::from(w_dims.to_vec()), dy.dtype(), op);
    }
    let operands = |first: usize, count: usize| -> Result<(CudaTensor, CudaTensor)> {
        let dy = pixels_last(&images(dy, first, count));
        let dy = dy.reshape(&[groups, out_channels / groups, count * conv.l()])?;
        Ok((dy, transposed(&columns(first, count)?)))
    };
    if chunk >= batch {
        let (dy, col) = operands(0, batch)?;
        return matmul(&dy, &col)?.reshape(w_dims);
    }
    let part = |first: usize| {
        let (dy, col) = operands(first, chunk.min(batch - first))?;
        matmul_wide(op, &dy, &col)
    };
    let mut sum = part(0)?;
    for first in (chunk..batch).step_by(chunk) {
        sum = binary(&ADD, sum, part(first)?)?;
    }
    cast(sum, dy.dtype())?.reshape(w_dims)
}

/// Gradient of a convolution, transposed or not, with respect to the bias: `dy [B, O, ..]` summed to `[O]`.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Device`.
pub(crate) fn conv_bias_backward(op: &'static str, bias: &CudaTensor, dy: &CudaTensor) -> Result<CudaTensor> {
    let (&[channels], [_, _, ..]) = (bias.dims(), dy.dims()) else {
        return Err(Error::Shape {
            op,
            detail: "the bias must be [O] and the gradient [B, O, ..]".into(),
            shapes: vec![bias.dims().to_vec(), dy.dims().to_vec()],
        });
    };
    check_bias(op, dy, bias, dy.dims()[1])?;
    let mut kept = vec![1; dy.dims().len()];
    kept[1] = channels;
    reduce::sum_to(dy, &kept)?.reshape(&[channels])
}

/// Transposed convolution: what [`conv`] with this weight is to its input, plus `bias` for each output channel.
///
/// Shapes: `x [B, C, ..]`, `w [C, O/g, ..]`, `bias [O]` -> `[B, O, ..]`, of sizes `(size - 1) * stride + dilation *
/// (kernel - 1) + 1 + padding_out - 2 * padding`.
///
/// # Errors
/// As for [`conv`].
pub(crate) fn conv_transpose<const N: usize>(
    op: &'static str,
    x: &CudaTensor,
    w: &CudaTensor,
    bias: Option<&CudaTensor>,
    options: &ConvTransposeOptions<N>,
) -> Result<CudaTensor> {
    check_operands(op, x, w)?;
    let shape = |detail: &str| Error::Shape {
        op,
        detail: detail.into(),
        shapes: vec![x.dims().to_vec(), w.dims().to_vec()],
    };
    let (Some(size), Some(kernel)) = (spatial::<N>(x.dims()), spatial::<N>(w.dims())) else {
        return Err(shape("the input must be [B, C, ..] and the weight [C, O / groups, ..]"));
    };
    if x.dims()[1] != w.dims()[0] {
        return Err(shape("the weight must have as many rows as the input has channels"));
    }
    let ConvTransposeOptions { stride, padding, padding_out, dilation, groups } = *options;
    let out_channels = w.dims()[1].checked_mul(groups).ok_or_else(|| shape("too many groups"))?;
    let mut y_dims = vec![x.dims()[0], out_channels];
    for d in 0..N {
        let reach = kernel[d].checked_sub(1).and_then(|k| k.checked_mul(dilation[d]));
        let full = size[d].checked_sub(1).and_then(|n| n.checked_mul(stride[d])).zip(reach);
        let full = full.and_then(|(a, b)| a.checked_add(b)?.checked_add(padding_out[d].checked_add(1)?));
        let cut = full.and_then(|full| full.checked_sub(padding[d].checked_mul(2)?));
        y_dims.push(cut.ok_or_else(|| shape("no output is left, or it is too large"))?);
    }
    let conv = Conv::under_transposed(op, &y_dims, w.dims(), options)?;
    check::shape(op, x, &conv.y_shape())?;
    if let Some(bias) = bias {
        check_bias(op, x, bias, out_channels)?;
    }
    x_gradient(op, &conv, w, x, bias)
}

/// Gradient of [`conv_transpose`] with respect to the input: the convolution of `dy`.
///
/// # Errors
/// As for [`conv`].
pub(crate) fn conv_transpose_x_backward<const N: usize>(
    op: &'static str,
    w: &CudaTensor,
    dy: &CudaTensor,
    options: &ConvTransposeOptions<N>,
) -> Result<CudaTensor> {
    check_operands(op, w, dy)?;
    let conv = Conv::under_transposed(op, dy.dims(), w.dims(), options)?;
    products(op, &conv, dy, w, None)
}

/// Gradient of [`conv_transpose`] with respect to the weight, which has shape `w_dims`.
///
/// # Errors
/// As for [`conv`].
pub(crate) fn conv_transpose_weight_backward<const N: usize>(
    op: &'static str,
    x: &CudaTensor,
    w_dims: &[usize],
    dy: &CudaTensor,
    options: &ConvTransposeOptions<N>,
) -> Result<CudaTensor> {
    check_operands(op, x, dy)?;
    let conv = Conv::under_transposed(op, dy.dims(), w_dims, options)?;
    check::shape(op, x, &conv.y_shape())?;
    weight_gradient(op, &conv, dy, w_dims, x)
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
    fn missing_dimensions_are_of_size_one() {
        let line = Conv::new("conv1d", &[2, 4, 9], &[6, 2, 3], &ConvOptions::new([2], [1], [1], 2)).unwrap();
        assert_eq!(
            (line.windows.size, line.windows.out, line.windows.pad),
            ([1, 1, 9], [1, 1, 5], [0, 0, 1])
        );
        assert_eq!((line.k(), line.l(), line.y_shape()), (6, 5, vec![2, 6, 5]));
        assert!(Conv::new("conv1d", &[2, 4, 9, 9], &[6, 2, 3], &ConvOptions::new([2], [1], [1], 2)).is_err());
    }

    #[test]
    fn output_padding_adds_no_window() {
        // Inputs of 3 pixels; the convolution of the output alone could be of 4.
        let options = ConvTransposeOptions::new([1], [0], [1], [1], 1);
        let conv = Conv::under_transposed("conv_transpose1d", &[1, 2, 6], &[4, 2, 3], &options).unwrap();
        assert_eq!(conv.windows.out, [1, 1, 3]);
        let options = ConvTransposeOptions::new([1], [0], [4], [1], 1);
        assert!(Conv::under_transposed("conv_transpose1d", &[1, 2, 6], &[4, 2, 3], &options).is_err());
    }

    #[test]
    fn output_sizes_are_burns() {
        use burn_backend::ops::conv::calculate_conv_output_size;
        for (size, kernel, stride, pad, dilation) in
            [(5, 3, 1, 1, 1), (224, 7, 2, 3, 1), (9, 3, 2, 0, 3), (1, 1, 1, 0, 1), (4, 2, 5, 3, 2)]
        {
            let options = ConvOptions::new([stride, 1], [pad, 0], [dilation, 1], 2);
            let got = conv([2, 4, size, 8], [6, 2, kernel, 3], options).unwrap();
            assert_eq!(
                got.windows.out,
                [1, calculate_conv_output_size(kernel, stride, pad, dilation, size), 6]
            );
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
