//! Arithmetic on shapes, with checks in place of panics and wraps.

use burn_backend::ops::{ConvOptions, ConvTransposeOptions, DeformConvOptions};
use burn_backend::quantization::{QuantLevel, QuantScheme};
use burn_backend::{DType, Shape, Slice};

use super::Reason;

/// What a step of a rule gives.
pub(super) type Rule<T> = Result<T, Reason>;

pub(super) fn shapes(what: &'static str, left: &Shape, right: &Shape) -> Reason {
    Reason::Shapes { what, left: left[..].into(), right: right[..].into() }
}

pub(super) fn mul(left: usize, right: usize) -> Rule<usize> {
    left.checked_mul(right).ok_or(Reason::Overflow)
}

pub(super) fn add(left: usize, right: usize) -> Rule<usize> {
    left.checked_add(right).ok_or(Reason::Overflow)
}

pub(super) fn elements(shape: &Shape) -> Rule<usize> {
    if shape.iter().any(|&size| size == 0) {
        return Ok(0);
    }
    shape.iter().try_fold(1, |product, &size| mul(product, size))
}

pub(super) fn same_size(what: &'static str, left: usize, right: usize) -> Rule<()> {
    if left == right { Ok(()) } else { Err(Reason::Size { what, left, right }) }
}

pub(super) fn same_dtype(left: DType, right: DType) -> Rule<()> {
    if left == right { Ok(()) } else { Err(Reason::DTypes { left, right }) }
}

pub(super) fn gradient(what: &'static str, left: &Shape, right: &Shape) -> Rule<()> {
    if left == right { Ok(()) } else { Err(shapes(what, left, right)) }
}

pub(super) fn positive(what: &'static str, value: usize) -> Rule<usize> {
    if value == 0 { Err(Reason::Attribute { what, value }) } else { Ok(value) }
}

/// The size of a dimension that must exist.
pub(super) fn has_dim(shape: &Shape, dim: usize) -> Rule<usize> {
    shape.as_slice().get(dim).copied().ok_or(Reason::Dim { dim, rank: shape.rank() })
}

pub(super) fn is_rank(shape: &Shape, expected: usize) -> Rule<&Shape> {
    if shape.rank() == expected { Ok(shape) } else { Err(Reason::Rank { expected, actual: shape.rank() }) }
}

pub(super) fn at_least(shape: &Shape, expected: usize) -> Rule<usize> {
    if shape.rank() >= expected {
        Ok(shape.rank())
    } else {
        Err(Reason::Rank { expected, actual: shape.rank() })
    }
}

pub(super) fn with_size(shape: &Shape, dim: usize, size: usize) -> Rule<Shape> {
    has_dim(shape, dim)?;
    let mut resized = shape.clone();
    resized[dim] = size;
    Ok(resized)
}

pub(super) fn swapped(shape: &Shape, dim1: usize, dim2: usize) -> Rule<Shape> {
    let (size1, size2) = (has_dim(shape, dim1)?, has_dim(shape, dim2)?);
    let mut swapped = shape.clone();
    swapped[dim1] = size2;
    swapped[dim2] = size1;
    Ok(swapped)
}

/// Each axis exists and occurs once.
pub(super) fn distinct(shape: &Shape, axes: &[usize]) -> Rule<()> {
    let valid = axes.iter().enumerate().all(|(i, axis)| *axis < shape.rank() && !axes[..i].contains(axis));
    if valid { Ok(()) } else { Err(Reason::Axes(axes.to_vec())) }
}

/// Aligned at the last dimension; equal sizes, or one of them 1.
pub(super) fn broadcast(left: &Shape, right: &Shape) -> Rule<Shape> {
    let (long, short) = if left.rank() >= right.rank() { (left, right) } else { (right, left) };
    let mut both = long.clone();
    let offset = long.rank() - short.rank();
    for (size, &other) in both[offset..].iter_mut().zip(short.iter()) {
        match (*size, other) {
            (here, there) if here == there => {}
            (1, _) => *size = other,
            (_, 1) => {}
            _ => return Err(shapes("shapes", left, right)),
        }
    }
    Ok(both)
}

/// Aligned at the last dimension; each size stays, or is 1 and becomes any.
pub(super) fn expanded(from: &Shape, to: &Shape) -> Rule<Shape> {
    let fits = from.rank() <= to.rank()
        && from.iter().zip(&to[to.rank() - from.rank()..]).all(|(&from, &to)| from == to || from == 1);
    if fits { Ok(to.clone()) } else { Err(shapes("shape and its expansion", from, to)) }
}

/// The number of steps from start to end: none if they are in the wrong order.
pub(super) fn steps(range: &std::ops::Range<i64>, step: usize) -> Rule<Shape> {
    let length = i128::from(range.end) - i128::from(range.start);
    let length = u128::try_from(length).unwrap_or(0);
    let count = length.div_ceil(positive("step", step)? as u128);
    Ok(Shape::new([usize::try_from(count).map_err(|_| Reason::Overflow)?]))
}

/// The `k` largest along a dimension.
pub(super) fn best(shape: &Shape, dim: usize, k: usize) -> Rule<Shape> {
    let size = has_dim(shape, dim)?;
    if k > size {
        return Err(Reason::Window { window: k, size });
    }
    with_size(shape, dim, k)
}

pub(super) fn concatenated<'a>(mut parts: impl Iterator<Item = &'a Shape>, dim: usize) -> Rule<Shape> {
    let mut whole = parts.next().ok_or(Reason::Empty)?.clone();
    has_dim(&whole, dim)?;
    for part in parts {
        is_rank(part, whole.rank())?;
        let size = add(whole[dim], part[dim])?;
        if with_size(&whole, dim, part[dim])? != *part {
            return Err(shapes("parts", &whole, part));
        }
        whole[dim] = size;
    }
    Ok(whole)
}

/// Bounds count from the end when negative and are clamped to the dimension; a negative step takes the same elements
/// from the back. Dimensions without a slice stay whole.
pub(super) fn sliced(shape: &Shape, slices: &[Slice]) -> Rule<Shape> {
    if slices.len() > shape.rank() || slices.iter().any(|slice| slice.step == 0) {
        return Err(Reason::Slices(slices.to_vec()));
    }
    let mut part = shape.clone();
    for (size, slice) in part.iter_mut().zip(slices) {
        isize::try_from(*size).map_err(|_| Reason::Overflow)?;
        *size = slice.output_size(*size);
    }
    Ok(part)
}

/// Indices have the tensor's size in every dimension but `dim`.
pub(super) fn fits_along(tensor: &Shape, dim: usize, indices: &Shape) -> Rule<()> {
    is_rank(indices, tensor.rank())?;
    has_dim(tensor, dim)?;
    if with_size(tensor, dim, indices[dim])? != *indices {
        return Err(shapes("tensor and indices", tensor, indices));
    }
    Ok(())
}

/// Each row of indices names a position in the first dimensions of the data; what remains is taken whole.
pub(super) fn gathered_nd(data: &Shape, indices: &Shape) -> Rule<Shape> {
    let rows = at_least(indices, 1)? - 1;
    let named = indices[rows];
    if named > data.rank() {
        return Err(Reason::Dim { dim: named, rank: data.rank() });
    }
    Ok(indices[..rows].iter().chain(&data[named..]).copied().collect::<Vec<_>>().into())
}

/// `[.., M, K] x [.., K, N]`, the dimensions before broadcast.
pub(super) fn matmul(lhs: &Shape, rhs: &Shape) -> Rule<Shape> {
    let (left, right) = (at_least(lhs, 2)?, at_least(rhs, 2)?);
    same_size("inner dimensions", lhs[left - 1], rhs[right - 2])?;
    let batch = |shape: &Shape| Shape::from(shape[..shape.rank() - 2].to_vec());
    let mut product = broadcast(&batch(lhs), &batch(rhs))?;
    product.extend([lhs[left - 2], rhs[right - 1]]);
    Ok(product)
}

/// The number of scales of a tensor that is quantised, whose elements must fill whole blocks.
pub(super) fn scales(shape: &Shape, scheme: &QuantScheme) -> Rule<usize> {
    let QuantLevel::Block(block) = scheme.level else { return Ok(1) };
    let (elements, block) = (elements(shape)?, block.num_elements());
    match elements.checked_rem(block) {
        Some(0) => Ok(elements / block),
        _ => Err(Reason::Size { what: "elements and block", left: elements, right: block }),
    }
}

/// How often a window fits: `(size + 2 * padding - dilation * (window - 1) - 1) / stride + 1`.
pub(super) fn window_count(
    size: usize,
    window: usize,
    dilation: usize,
    stride: usize,
    padding: usize,
) -> Rule<usize> {
    let (window, size) = window_and_size(size, window, dilation, padding)?;
    let slack = size.checked_sub(window).ok_or(Reason::Window { window, size })?;
    Ok(slack / positive("stride", stride)? + 1)
}

/// The extent of a dilated window and of what it slides over.
pub(super) fn window_and_size(
    size: usize,
    window: usize,
    dilation: usize,
    padding: usize,
) -> Rule<(usize, usize)> {
    let window = add(mul(positive("dilation", dilation)?, positive("window", window)? - 1)?, 1)?;
    Ok((window, add(size, mul(padding, 2)?)?))
}

/// The options of a convolution over `N` dimensions.
#[derive(Clone, Copy)]
pub(super) struct Options<const N: usize> {
    pub(super) stride: [usize; N],
    pub(super) padding: [usize; N],
    pub(super) dilation: [usize; N],
    pub(super) groups: usize,
}

impl<const N: usize> From<&ConvOptions<N>> for Options<N> {
    fn from(options: &ConvOptions<N>) -> Self {
        let ConvOptions { stride, padding, dilation, groups } = *options;
        Self { stride, padding, dilation, groups }
    }
}

/// The options of a transposed convolution, and its output padding.
pub(super) fn transposed<const N: usize>(options: &ConvTransposeOptions<N>) -> (Options<N>, [usize; N]) {
    let ConvTransposeOptions { stride, padding, padding_out, dilation, groups } = *options;
    (Options { stride, padding, dilation, groups }, padding_out)
}

/// What the gradients of a convolution need: that the gradient has the shape of the output.
pub(super) fn conv_gradient<const N: usize>(
    x: &Shape,
    weight: &Shape,
    options: Options<N>,
    output_grad: &Shape,
) -> Rule<()> {
    gradient("output and its gradient", &conv(x, weight, options)?, output_grad)
}

/// `x [B, C, ..]`, `weight [D, C / groups, ..]` -> `[B, D, ..]`.
pub(super) fn conv<const N: usize>(x: &Shape, weight: &Shape, options: Options<N>) -> Rule<Shape> {
    let (x, weight) = (is_rank(x, N + 2)?, is_rank(weight, N + 2)?);
    let Options { stride, padding, dilation, groups } = options;
    same_size("channels", x[1], mul(weight[1], positive("groups", groups)?)?)?;
    if !weight[0].is_multiple_of(groups) {
        return Err(Reason::Size { what: "output channels and groups", left: weight[0], right: groups });
    }
    let mut out = Shape::from(vec![x[0], weight[0]]);
    for i in 0..N {
        out.push(window_count(x[2 + i], weight[2 + i], dilation[i], stride[i], padding[i])?);
    }
    Ok(out)
}

/// `x [B, C, ..]`, `weight [C, D / groups, ..]` -> `[B, D, ..]`; sizes
/// `(size - 1) * stride + dilation * (window - 1) + 1 + padding_out - 2 * padding`.
pub(super) fn conv_transpose<const N: usize>(
    x: &Shape,
    weight: &Shape,
    options: Options<N>,
    padding_out: [usize; N],
) -> Rule<Shape> {
    let (x, weight) = (is_rank(x, N + 2)?, is_rank(weight, N + 2)?);
    let Options { stride, padding, dilation, groups } = options;
    same_size("channels", x[1], weight[0])?;
    if weight[0].checked_rem(groups) != Some(0) {
        return Err(Reason::Size { what: "channels and groups", left: weight[0], right: groups });
    }
    let mut out = Shape::from(vec![x[0], mul(weight[1], groups)?]);
    for i in 0..N {
        let (window, _) = window_and_size(0, weight[2 + i], dilation[i], 0)?;
        let moved = mul(positive("size", x[2 + i])? - 1, positive("stride", stride[i])?)?;
        let size = add(add(moved, window)?, padding_out[i])?;
        let cut = mul(padding[i], 2)?;
        out.push(size.checked_sub(cut).ok_or(Reason::Window { window: cut, size })?);
    }
    Ok(out)
}

/// The input of a transposed convolution from its weight and output: a convolution, cut by the output padding.
pub(super) fn conv_transpose_input<const N: usize>(
    weight: &Shape,
    output: &Shape,
    options: Options<N>,
    padding_out: [usize; N],
) -> Rule<Shape> {
    let mut x = conv(output, weight, options)?;
    let Options { stride, padding, dilation, .. } = options;
    for i in 0..N {
        let (window, size) = window_and_size(output[2 + i], weight[2 + i], dilation[i], padding[i])?;
        let window = add(window, padding_out[i])?;
        let slack = size.checked_sub(window).ok_or(Reason::Window { window, size })?;
        x[2 + i] = x[2 + i].min(slack / stride[i] + 1);
    }
    Ok(x)
}

/// `x [B, C, H, W]`, `offset [B, G * 2 * KH * KW, OH, OW]`, `weight [D, C / groups, KH, KW]`,
/// `mask [B, G * KH * KW, OH, OW]` -> `[B, D, OH, OW]`.
pub(super) fn deform(
    x: &Shape,
    offset: &Shape,
    weight: &Shape,
    mask: Option<&Shape>,
    options: &DeformConvOptions<2>,
) -> Rule<Shape> {
    let DeformConvOptions { stride, padding, dilation, weight_groups, offset_groups } = *options;
    let out = conv(x, weight, Options { stride, padding, dilation, groups: weight_groups })?;
    let taps = mul(positive("offset groups", offset_groups)?, mul(weight[2], weight[3])?)?;
    if !x[1].is_multiple_of(offset_groups) {
        return Err(Reason::Size { what: "channels and offset groups", left: x[1], right: offset_groups });
    }
    gradient("offset", &Shape::new([out[0], mul(taps, 2)?, out[2], out[3]]), offset)?;
    if let Some(mask) = mask {
        gradient("mask", &Shape::new([out[0], taps, out[2], out[3]]), mask)?;
    }
    Ok(out)
}

/// A bias has one element per channel.
pub(super) fn with_bias(out: Shape, bias: Option<&Shape>) -> Rule<Shape> {
    if let Some(bias) = bias {
        same_size("bias and channels", is_rank(bias, 1)?[0], out[1])?;
    }
    Ok(out)
}

/// As burn-flex does it, a window larger than what it slides over gives no result, or one with `ceil_mode`.
pub(super) fn pool<const N: usize>(
    x: &Shape,
    kernel: [usize; N],
    stride: [usize; N],
    padding: [usize; N],
    dilation: [usize; N],
    ceil_mode: bool,
) -> Rule<Shape> {
    let mut out = is_rank(x, N + 2)?.clone();
    for i in 0..N {
        let (window, size) = window_and_size(x[2 + i], kernel[i], dilation[i], padding[i])?;
        let stride = positive("stride", stride[i])?;
        out[2 + i] = match size.checked_sub(window) {
            Some(slack) if ceil_mode => slack.div_ceil(stride) + 1,
            Some(slack) => slack / stride + 1,
            None => ceil_mode.into(),
        };
    }
    Ok(out)
}

/// `[B, C, ..]` with other sizes in the last `N` dimensions.
pub(super) fn resized<const N: usize>(x: &Shape, to: [usize; N]) -> Rule<Shape> {
    let mut out = is_rank(x, N + 2)?.clone();
    out[2..].copy_from_slice(&to);
    Ok(out)
}

/// `log_probs [T, N, C]`, `targets [N, S]`, lengths `[N]` -> `[N]`.
pub(super) fn ctc(
    [log_probs, targets, input_lengths, target_lengths]: [&Shape; 4],
    blank: usize,
) -> Rule<Shape> {
    let (log_probs, targets) = (is_rank(log_probs, 3)?, is_rank(targets, 2)?);
    for batch in [targets[0], is_rank(input_lengths, 1)?[0], is_rank(target_lengths, 1)?[0]] {
        same_size("batches", log_probs[1], batch)?;
    }
    if blank >= log_probs[2] {
        return Err(Reason::Attribute { what: "blank", value: blank });
    }
    Ok(Shape::new([log_probs[1]]))
}

/// The given length, or the signal's own. (burn-flex has powers of two only, and takes the next one.)
pub(super) fn fft_size(given: Option<usize>, own: usize) -> Rule<usize> {
    positive("length of a transform", given.unwrap_or(own))
}
