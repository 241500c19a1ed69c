//! Deformable convolution (arXiv:1703.06211, arXiv:1811.11168) and its gradients: columns sampled bilinearly at moved
//! places, then the matrix products of a convolution.
//!
//! Letters as in [`super::conv`], and G offset groups. Places and samples are computed in f32 (f64 for f64); columns of
//! 16-bit floats are rounded to their dtype for the product, the gradient of the columns is f32. All gradients repeat bit
//! for bit.

use burn_backend::TensorMetadata;
use burn_backend::ops::{ConvOptions, DeformConvOptions};
use burn_std::DType;

use super::conv::{
    Conv, LIMIT, check_bias, check_operands, conv_bias_backward, images, of_images, transposed,
    weight_products,
};
use super::cumulative::cumsum;
use super::elementwise::zeros;
use super::matmul::{matmul_into, matmul_wide};
use crate::error::{Error, Result};
use crate::kernels::deform::{self as kernels, Samples};
use crate::tensor::{CudaTensor, check};

/// The operands, checked, and in row-major order.
struct Operands {
    conv: Conv,
    samples: Samples,
    x: CudaTensor,
    offset: CudaTensor,
    w: CudaTensor,
    mask: Option<CudaTensor>,
}

impl Operands {
    fn new(
        op: &'static str,
        x: &CudaTensor,
        offset: &CudaTensor,
        w: &CudaTensor,
        mask: Option<&CudaTensor>,
        options: &DeformConvOptions<2>,
    ) -> Result<Operands> {
        for other in [Some(offset), Some(w), mask].into_iter().flatten() {
            check_operands(op, x, other)?;
        }
        let DeformConvOptions { stride, padding, dilation, weight_groups, offset_groups } = *options;
        let conv_options = ConvOptions { stride, padding, dilation, groups: weight_groups };
        let conv = Conv::new(op, x.dims(), w.dims(), &conv_options)?;
        let windows = conv.windows;
        if offset_groups == 0 || windows.channels % offset_groups != 0 {
            return Err(Error::Shape {
                op,
                detail: format!("the channels do not fit {offset_groups} offset groups"),
                shapes: vec![x.dims().to_vec()],
            });
        }
        let taps = offset_groups.checked_mul(windows.kernel_len()).and_then(|n| n.checked_mul(2));
        let samples = Samples { windows, groups: offset_groups };
        let fits = |a: usize, b: usize| a.checked_mul(b).is_some_and(|n| n < LIMIT);
        let Some(taps) = taps.filter(|_| {
            fits(windows.kernel_len(), windows.pixels()) && fits(windows.size[1] + 1, windows.size[2] + 1)
        }) else {
            return Err(Error::TooLarge { op, shape: x.dims().to_vec(), dtype: x.dtype() });
        };
        let [_, height, width] = windows.out;
        check::shape(op, offset, &[conv.batch, taps, height, width])?;
        if let Some(mask) = mask {
            check::shape(op, mask, &[conv.batch, taps / 2, height, width])?;
        }
        Ok(Operands {
            conv,
            samples,
            x: x.contiguous()?,
            offset: offset.contiguous()?,
            w: conv.matrices(w)?,
            mask: mask.map(CudaTensor::contiguous).transpose()?,
        })
    }

    fn mask(&self, first: usize, count: usize) -> Option<CudaTensor> {
        self.mask.as_ref().map(|mask| images(mask, first, count))
    }

    /// Columns of so many images, in a tensor of this shape and with these strides of image and row.
    fn columns(
        &self,
        op: &'static str,
        (first, count): (usize, usize),
        shape: &[usize],
        strides: (i64, i64),
    ) -> Result<CudaTensor> {
        let col = CudaTensor::empty(self.x.device(), shape.to_vec(), self.x.dtype(), op)?;
        let (x, offset) = (images(&self.x, first, count), images(&self.offset, first, count));
        kernels::columns(&col, strides, &x, &offset, self.mask(first, count).as_ref(), &self.samples)?;
        Ok(col)
    }
}

/// Convolution of `x` whose kernel elements read where `offset` moves them, times `mask`, plus `bias` for each output
/// channel.
///
/// Shapes: `x [B, C, H, W]`, `offset [B, G * KH * KW * 2, OH, OW]` (down, then right), `w [O, C/g, KH, KW]`,
/// `mask [B, G * KH * KW, OH, OW]`, `bias [O]` -> `[B, O, OH, OW]`.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Argument`, `Error::Device`; `Error::TooLarge` for 2^29 samples or pixels of an
/// image and more.
pub(crate) fn deform_conv2d(
    x: &CudaTensor,
    offset: &CudaTensor,
    w: &CudaTensor,
    mask: Option<&CudaTensor>,
    bias: Option<&CudaTensor>,
    options: &DeformConvOptions<2>,
) -> Result<CudaTensor> {
    const OP: &str = "deform_conv2d";
    let operands = Operands::new(OP, x, offset, w, mask, options)?;
    let conv = operands.conv;
    let Conv { batch, out_channels, groups, .. } = conv;
    if let Some(bias) = bias {
        check_bias(OP, x, bias, out_channels)?;
    }
    let y = CudaTensor::empty(x.device(), conv.y_shape(), x.dtype(), OP)?;
    if y.is_empty() {
        return Ok(y);
    }
    let (k, l) = (conv.k(), conv.l());
    let chunk = conv.chunk(x.elem().size_bytes());
    let w = conv.for_images(&operands.w, chunk)?;
    let bias = bias.map(|bias| bias.reshape(&[groups, out_channels / groups, 1])).transpose()?;
    for first in (0..batch).step_by(chunk) {
        let count = chunk.min(batch - first);
        let strides = ((groups * k * l) as i64, l as i64);
        let col = operands.columns(OP, (first, count), &[count, groups, k, l], strides)?;
        let to = images(&y, first, count).reshape(&[count, groups, out_channels / groups, l])?;
        matmul_into(OP, &to, &of_images(&w, count), &col, bias.as_ref())?;
    }
    Ok(y)
}

/// What [`deform_conv2d_backward`] gives.
pub(crate) struct Gradients {
    pub(crate) x: CudaTensor,
    pub(crate) offset: CudaTensor,
    pub(crate) weight: CudaTensor,
    pub(crate) mask: Option<CudaTensor>,
    pub(crate) bias: Option<CudaTensor>,
}

/// The gradients of [`deform_conv2d`]'s operands from that of its output. Where a place lies on a pixel, the derivative
/// is that towards the next one.
///
/// # Errors
/// As for [`deform_conv2d`].
pub(crate) fn deform_conv2d_backward(
    x: &CudaTensor,
    offset: &CudaTensor,
    w: &CudaTensor,
    mask: Option<&CudaTensor>,
    bias: Option<&CudaTensor>,
    dy: &CudaTensor,
    options: &DeformConvOptions<2>,
) -> Result<Gradients> {
    const OP: &str = "deform_conv2d_backward";
    let operands = Operands::new(OP, x, offset, w, mask, options)?;
    let (conv, samples) = (operands.conv, operands.samples);
    let Conv { batch, out_channels, groups, .. } = conv;
    check_operands(OP, x, dy)?;
    check::shape(OP, dy, &conv.y_shape())?;
    let (k, l) = (conv.k(), conv.l());
    let chunk = conv.chunk(x.elem().size_bytes().max(4));

    let weight = weight_products(OP, &conv, w.dims(), dy, chunk, |first, count| {
        let columns = count * l;
        operands.columns(OP, (first, count), &[groups, k, columns], (l as i64, columns as i64))
    })?;
    let gradients = Gradients {
        x: operands.x.empty_like(OP)?,
        offset: operands.offset.empty_like(OP)?,
        weight,
        mask: operands.mask.as_ref().map(|mask| mask.empty_like(OP)).transpose()?,
        bias: bias.map(|bias| conv_bias_backward(OP, bias, dy)).transpose()?,
    };
    if batch == 0 {
        return Ok(gradients);
    }
    let w = conv.for_images(&transposed(&operands.w), chunk)?;
    for first in (0..batch).step_by(chunk) {
        let count = chunk.min(batch - first);
        let part = |t: &CudaTensor| images(t, first, count);
        let dy = part(dy).reshape(&[count, groups, out_channels / groups, l])?;
        let d_col = matmul_wide(OP, &of_images(&w, count), &dy)?;
        let (x, offset, mask) = (part(&operands.x), part(&operands.offset), operands.mask(first, count));
        let d_mask = gradients.mask.as_ref().map(part);
        let d_offset = part(&gradients.offset);
        kernels::offsets(&d_offset, d_mask.as_ref(), &x, &offset, mask.as_ref(), &d_col, &samples)?;
        let dx = part(&gradients.x);
        if dx.is_empty() {
            continue;
        }
        let rows = count * samples.groups;
        let counts = zeros(x.device(), [rows, samples.cells() + 1], DType::I32, OP)?;
        kernels::count(&counts, &offset, &samples)?;
        let starts = cumsum(&counts, 1)?;
        let ids = CudaTensor::empty(x.device(), [rows, samples.len()], DType::I32, OP)?;
        kernels::list(&ids, &counts, &starts, &offset, &samples)?;
        kernels::x(&dx, &offset, mask.as_ref(), &d_col, &starts, &ids, &samples)?;
    }
    Ok(gradients)
}
