//! Quantised tensors: made, turned back, moved, read and written. What `crate::qtensor` says about storage holds here.

use burn_backend::quantization::QuantScheme;
use burn_backend::{Bytes, Shape, Slice, TensorData, TensorMetadata};
use burn_std::DType;
use smallvec::SmallVec;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernels::gather::Along;
use crate::kernels::quantized_move::Source;
use crate::kernels::{quantize as kernel, quantized_move};
use crate::layout::{Layout, Nest, Strides};
use crate::ops::{data, elementwise, index, reduce};
use crate::qtensor::{
    CudaQTensor, check_scheme, group_of, param_elem, range_of, scale_count, stored_bits, words_for,
};
use crate::tensor::{CudaTensor, check};

/// Loops that a kernel has.
const MAX_LOOPS: usize = 8;

fn empty_words(device: &'static Device, len: usize, bits: usize, op: &'static str) -> Result<CudaTensor> {
    CudaTensor::empty(device, [words_for(len, bits)], DType::U32, op)
}

/// `x` with the values `clamp(round(x / scale))` of `scheme`; a scale that cannot be divided by is replaced by the smallest
/// normal number, as burn-flex does.
///
/// Shapes: one scale, or one for each block, in any shape and float dtype.
///
/// # Errors
/// `Error::DType` for a scheme that is not supported or a tensor that is no float, `Error::Shape` for blocks that do not
/// come out even or another number of scales, `Error::Device`.
pub(crate) fn quantize(x: &CudaTensor, scheme: &QuantScheme, scales: &CudaTensor) -> Result<CudaQTensor> {
    const OP: &str = "quantize";
    check_scheme(OP, scheme)?;
    check::float(OP, x)?;
    check::float(OP, scales)?;
    check::same_device(OP, &[x, scales])?;
    let count = scale_count(OP, scheme, x.dims())?;
    if scales.len() != count {
        return Err(Error::Shape {
            op: OP,
            detail: format!("{count} scales are needed"),
            shapes: vec![x.dims().to_vec(), scales.dims().to_vec()],
        });
    }
    let usable = CudaTensor::empty(x.device(), [count], DType::F32, OP)?;
    kernel::usable_scales(&usable, &scales.contiguous()?, param_elem(scheme))?;
    with_scales(OP, &x.contiguous()?, scheme, usable)
}

/// As [`quantize`], with the scales that take the largest magnitude to the end of the range. NaN is passed over, and
/// becomes 0.
///
/// # Errors
/// As for [`quantize`].
pub(crate) fn quantize_dynamic(x: &CudaTensor, scheme: &QuantScheme) -> Result<CudaQTensor> {
    const OP: &str = "quantize_dynamic";
    check_scheme(OP, scheme)?;
    check::float(OP, x)?;
    let count = scale_count(OP, scheme, x.dims())?;
    let x = x.contiguous()?;
    let scales = CudaTensor::empty(x.device(), [count], DType::F32, OP)?;
    let (low, high) = scheme.value.range();
    kernel::scales_of(&scales, &x, group_of(scheme), high - low, param_elem(scheme))?;
    with_scales(OP, &x, scheme, scales)
}

fn with_scales(
    op: &'static str,
    x: &CudaTensor,
    scheme: &QuantScheme,
    scales: CudaTensor,
) -> Result<CudaQTensor> {
    let bits = stored_bits(scheme);
    let words = empty_words(x.device(), x.len(), bits, op)?;
    let group = group_of(scheme);
    if !x.is_empty() {
        kernel::quantize(&words, x, &scales, bits, group, range_of(scheme))?;
    }
    let layout = Layout::contiguous(x.layout().shape().clone());
    Ok(CudaQTensor { words, scales, layout, group, scheme: *scheme })
}

/// `scale * value`, computed in f32 and rounded to `dtype`.
///
/// # Errors
/// `Error::OutOfMemory`, a driver error.
pub(crate) fn dequantize(x: &CudaQTensor, dtype: DType) -> Result<CudaTensor> {
    const OP: &str = "dequantize";
    let y = CudaTensor::empty(x.device(), x.layout.shape().clone(), dtype, OP)?;
    if y.is_empty() {
        return Ok(y);
    }
    let (bits, base) = (x.bits(), x.layout.offset() as u64);
    if x.layout.is_contiguous() && base.is_multiple_of((32 / bits) as u64) {
        kernel::dequantize(&y, &x.words, &x.scales, bits, base, x.group)?;
        return Ok(y);
    }
    let nest = x.nest();
    if nest.sizes.len() > MAX_LOOPS {
        return dequantize(&packed(OP, x)?, dtype);
    }
    kernel::dequantize_view(&y, &x.words, &x.scales, bits, base, x.group, &nest)?;
    Ok(y)
}

impl CudaQTensor {
    /// The loops over the values, as the second operand of two.
    fn nest(&self) -> Nest<2> {
        let none: Strides = SmallVec::from_elem(0, self.layout.rank());
        Nest::new(self.dims(), [&none, self.layout.strides()])
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The length of the longest runs of the result, from multiples of it on, whose values are sure to share a scale, when
/// `group` neighbours in storage share one. `nest` walks the result: strides of the index (0 where it does not change) and of
/// the stored values, which begin at `base`; an index moves them by any multiple of `dim_stride`.
fn shared_run(nest: &Nest<2>, base: i64, dim_stride: i64, group: u64) -> u64 {
    let loops: SmallVec<[(u64, i64, bool); 8]> =
        nest.sizes.iter().zip(&nest.strides).rev().map(|(&n, s)| (n as u64, s[1], s[0] != 0)).collect();
    // What all starts of runs are multiples of, beside `base` and within groups.
    let step = |outer: usize, extra: i64| {
        let strides = loops[outer..].iter().map(|l| l.1.unsigned_abs());
        strides.fold(gcd(group, gcd(dim_stride.unsigned_abs(), extra.unsigned_abs())), gcd)
    };
    // Whether places `low..=high` around each start are in one group.
    let fits = |low: i64, high: i64, step: u64| {
        let first = (base + low).rem_euclid(step as i64) as u64;
        first + ((high - low) as u64) < step
    };
    let (mut best, mut run) = (1, 1);
    let (mut low, mut high) = (0i64, 0i64);
    for k in 0..=loops.len() {
        if fits(low, high, step(k, 0)) {
            best = best.max(run);
        }
        let Some(&(size, stride, false)) = loops.get(k) else { break };
        if stride != 0 {
            // Parts of this loop; those that do not fit a group need not be tried.
            let most = (group / stride.unsigned_abs()).min(size - 1);
            let part = (2..=most).rev().find(|&part| {
                let reach = (part - 1) as i64 * stride;
                size.is_multiple_of(part)
                    && fits(low + reach.min(0), high + reach.max(0), step(k + 1, part as i64 * stride))
            });
            best = best.max(part.map_or(1, |part| run * part));
        }
        let reach = (size as i64 - 1).saturating_mul(stride);
        (low, high) = (low.saturating_add(reach.min(0)), high.saturating_add(reach.max(0)));
        if high.saturating_sub(low) as u64 >= group {
            break;
        }
        run *= size;
    }
    best
}

/// The values that `source` names as a packed tensor of `shape`, with their scales.
fn moved(op: &'static str, x: &CudaQTensor, shape: Shape, source: Source) -> Result<CudaQTensor> {
    let layout = Layout::contiguous(shape);
    let (len, bits) = (layout.len(), x.bits());
    let words = empty_words(x.device(), len, bits, op)?;
    if len > 0 {
        quantized_move::values(op, &words, bits, len as u64, &x.words, source)?;
    }
    if x.group == 0 {
        return Ok(CudaQTensor { words, scales: x.scales.clone(), layout, group: 0, scheme: x.scheme });
    }
    let block = group_of(&x.scheme);
    let dim_stride = source.index.map_or(0, |(_, stride, _)| stride);
    let run = if len == 0 { block } else { shared_run(source.nest, source.base as i64, dim_stride, x.group) };
    let group = if run.is_multiple_of(block) { block } else { run };
    let scales = CudaTensor::empty(x.device(), [(len as u64 / group) as usize], DType::F32, op)?;
    if len > 0 {
        quantized_move::scales(op, &scales, group, len as u64, &x.words, &x.scales, x.group, source)?;
    }
    Ok(CudaQTensor { words, scales, layout, group, scheme: x.scheme })
}

/// The same values and scales with the values packed in row-major order; itself if they are.
fn packed(op: &'static str, x: &CudaQTensor) -> Result<CudaQTensor> {
    if x.is_packed() {
        return Ok(x.clone());
    }
    let nest = x.nest();
    if !x.is_empty() && nest.sizes.len() > MAX_LOOPS {
        let (values, scales) = apart(op, x)?;
        return together(op, x, &values, scales.as_ref());
    }
    let source = Source { bits: x.bits(), base: x.layout.offset() as u64, nest: &nest, index: None };
    moved(op, x, x.layout.shape().clone(), source)
}

/// The values as i8 and, unless all share one, a scale for each, both as views like `x`: for what the kernels cannot walk.
fn apart(op: &'static str, x: &CudaQTensor) -> Result<(CudaTensor, Option<CudaTensor>)> {
    let all =
        x.clone().with_layout(Layout::contiguous(Shape::from([kernel::room(&x.words, x.bits()) as usize])));
    let values = unpacked(op, &all)?.with_layout(x.layout.clone());
    if x.group == 0 {
        return Ok((values, None));
    }
    // As many as there are values in storage.
    let len = x.scales.len() as u64 * x.group;
    let nest = Nest::new(&[len as usize], [&[0], &[1]]);
    let source = Source { bits: x.bits(), base: 0, nest: &nest, index: None };
    let scales = CudaTensor::empty(x.device(), [len as usize], DType::F32, op)?;
    quantized_move::scales(op, &scales, 1, len, &x.words, &x.scales, x.group, source)?;
    Ok((values, Some(scales.with_layout(x.layout.clone()))))
}

/// The inverse of [`apart`]: `values` (i8) and a scale for each, packed as `like`'s are.
fn together(
    op: &'static str,
    like: &CudaQTensor,
    values: &CudaTensor,
    scales: Option<&CudaTensor>,
) -> Result<CudaQTensor> {
    let layout = Layout::contiguous(values.layout().shape().clone());
    let len = values.len();
    // Whole words are read.
    let bytes = elementwise::zeros(values.device(), Shape::from([len.next_multiple_of(4)]), DType::I8, op)?;
    elementwise::copy_into(&bytes.with_layout(layout.clone()), values)?;
    let nest = Nest::new(&[len], [&[0], &[1]]);
    let source = Source { bits: 8, base: 0, nest: &nest, index: None };
    let words = empty_words(values.device(), len, like.bits(), op)?;
    quantized_move::values(op, &words, like.bits(), len as u64, &bytes, source)?;
    let (scales, group) = match scales {
        Some(scales) => (scales.contiguous()?.reshape(&[len])?, 1),
        None => (like.scales.clone(), 0),
    };
    Ok(CudaQTensor { words, scales, layout, group, scheme: like.scheme })
}

/// The values as i8, row-major.
fn unpacked(op: &'static str, x: &CudaQTensor) -> Result<CudaTensor> {
    let nest = x.nest();
    if !x.is_empty() && nest.sizes.len() > MAX_LOOPS {
        return apart(op, x)?.0.contiguous();
    }
    // Whole words are written.
    let out = CudaTensor::empty(x.device(), [x.len().next_multiple_of(4)], DType::I8, op)?;
    if !x.is_empty() {
        let source = Source { bits: x.bits(), base: x.layout.offset() as u64, nest: &nest, index: None };
        quantized_move::values(op, &out, 8, x.len() as u64, &x.words, source)?;
    }
    Ok(out.into_layout(Layout::contiguous(x.layout.shape().clone())))
}

fn viewed(
    op: &'static str,
    x: CudaQTensor,
    layout: Option<Layout>,
    detail: impl FnOnce() -> String,
) -> Result<CudaQTensor> {
    match layout {
        Some(layout) => Ok(x.with_layout(layout)),
        None => Err(Error::Shape { op, detail: detail(), shapes: vec![x.dims().to_vec()] }),
    }
}

/// The same values in row-major order under another shape.
///
/// # Errors
/// `Error::Shape` if their number differs.
pub(crate) fn reshape(x: CudaQTensor, shape: &[usize]) -> Result<CudaQTensor> {
    const OP: &str = "q_reshape";
    if crate::layout::checked_len(shape, 1) != Some(x.len()) {
        return Err(Error::Shape {
            op: OP,
            detail: "the number of elements differs".into(),
            shapes: vec![x.dims().to_vec(), shape.to_vec()],
        });
    }
    if let Some(layout) = x.layout.reshape(shape) {
        return Ok(x.with_layout(layout));
    }
    Ok(packed(OP, &x)?.with_layout(Layout::contiguous(Shape::from(shape.to_vec()))))
}

/// Two dimensions exchanged.
pub(crate) fn swap_dims(x: CudaQTensor, dim1: usize, dim2: usize) -> Result<CudaQTensor> {
    let layout = x.layout.swap_dims(dim1, dim2);
    viewed("q_swap_dims", x, layout, || format!("there is no dimension {}", dim1.max(dim2)))
}

/// Dimensions in the order of `axes`.
pub(crate) fn permute(x: CudaQTensor, axes: &[usize]) -> Result<CudaQTensor> {
    let layout = x.layout.permute(axes);
    viewed("q_permute", x, layout, || format!("{axes:?} does not name each dimension once"))
}

/// Dimensions reversed.
pub(crate) fn flip(x: CudaQTensor, axes: &[usize]) -> Result<CudaQTensor> {
    let layout = x.layout.flip(axes);
    viewed("q_flip", x, layout, || format!("{axes:?} names a dimension that is not there"))
}

/// Dimensions of size 1 stretched to `shape`.
pub(crate) fn expand(x: CudaQTensor, shape: &[usize]) -> Result<CudaQTensor> {
    if crate::layout::checked_len(shape, 8).is_none() {
        return Err(Error::TooLarge { op: "q_expand", shape: shape.to_vec(), dtype: x.dtype() });
    }
    let layout = x.layout.expand(shape);
    viewed("q_expand", x, layout, || format!("cannot be expanded to {shape:?}"))
}

/// A range of each dimension.
pub(crate) fn slice(x: CudaQTensor, slices: &[Slice]) -> Result<CudaQTensor> {
    let layout = x.layout.slice(slices);
    viewed("q_slice", x, layout, || format!("{} ranges for a tensor of fewer dimensions", slices.len()))
}

/// `x` repeated `times` times along `dim`.
///
/// # Errors
/// `Error::Shape` if there is no such dimension, `Error::TooLarge`.
pub(crate) fn repeat_dim(x: CudaQTensor, dim: usize, times: usize) -> Result<CudaQTensor> {
    const OP: &str = "q_repeat_dim";
    if dim >= x.layout.rank() {
        return viewed(OP, x, None, || format!("there is no dimension {dim}"));
    }
    let mut shape = x.dims().to_vec();
    let mut strides: Strides = x.layout.strides().into();
    shape.insert(dim, times);
    strides.insert(dim, 0);
    if crate::layout::checked_len(&shape, 8).is_none() {
        return Err(Error::TooLarge { op: OP, shape, dtype: x.dtype() });
    }
    let looped = Layout::new(Shape::from(shape.clone()), strides, x.layout.offset());
    let size = shape.remove(dim + 1);
    shape[dim] = size * times;
    reshape(x.with_layout(looped), &shape)
}

/// Values that an index names: `index` along `dim`, for each element or for each slice.
fn indexed(
    op: &'static str,
    x: &CudaQTensor,
    dim: usize,
    index: &CudaTensor,
    along: Along,
) -> Result<CudaQTensor> {
    if x.device().index != index.device().index {
        return Err(Error::Device { op, lhs: x.device().index, rhs: index.device().index });
    }
    let (shape, index) = index::indexed_shape(op, x.dims(), dim, index, along)?;
    let y = Layout::contiguous(shape);
    if y.is_empty() {
        let nothing = Nest::new(&[0], [&[0], &[0]]);
        let source = Source { bits: x.bits(), base: 0, nest: &nothing, index: None };
        return moved(op, x, y.shape().clone(), source);
    }
    let index_strides = along.index_strides(&index, y.rank(), dim);
    let mut strides: Strides = x.layout.strides().into();
    let dim_stride = std::mem::replace(&mut strides[dim], 0);
    let nest = Nest::new(y.dims(), [&index_strides, &strides]);
    if nest.sizes.len() > MAX_LOOPS {
        let (values, scales) = apart(op, x)?;
        let pick = |t: &CudaTensor| match along {
            Along::Elements => index::gather(dim, t, &index),
            Along::Slices => index::select(t, dim, &index),
        };
        let scales = scales.as_ref().map(pick).transpose()?;
        return together(op, x, &pick(&values)?, scales.as_ref());
    }
    let source = Source {
        bits: x.bits(),
        base: x.layout.offset() as u64,
        nest: &nest,
        index: Some((&index, dim_stride, x.dims()[dim])),
    };
    moved(op, x, y.shape().clone(), source)
}

/// The slices along `dim` that `index [N]` names.
///
/// # Errors
/// As for `index::select`.
pub(crate) fn select(x: &CudaQTensor, dim: usize, index: &CudaTensor) -> Result<CudaQTensor> {
    indexed("q_select", x, dim, index, Along::Slices)
}

/// `y[i] = x[i with index[i] in dimension dim]`.
///
/// # Errors
/// As for `index::gather`.
pub(crate) fn gather(dim: usize, x: &CudaQTensor, index: &CudaTensor) -> Result<CudaQTensor> {
    indexed("q_gather", x, dim, index, Along::Elements)
}

/// What is compared in place of `x`: the values themselves where all have one scale.
fn comparable(op: &'static str, x: &CudaQTensor) -> Result<CudaTensor> {
    if x.group == 0 { unpacked(op, x) } else { dequantize(x, DType::F32) }
}

/// The index of the largest value along `dim`, the lowest of equals.
pub(crate) fn argmax(x: &CudaQTensor, dim: usize, indices: DType) -> Result<CudaTensor> {
    reduce::argmax(&comparable("q_argmax", x)?, dim, indices)
}

/// The index of the smallest value along `dim`, the lowest of equals.
pub(crate) fn argmin(x: &CudaQTensor, dim: usize, indices: DType) -> Result<CudaTensor> {
    reduce::argmin(&comparable("q_argmin", x)?, dim, indices)
}

/// The tensor on another device; itself when it is there already. Returns before the bytes have arrived.
///
/// # Errors
/// As for `data::to_device`.
pub(crate) fn to_device(x: CudaQTensor, device: &'static Device) -> Result<CudaQTensor> {
    if x.device().index == device.index {
        return Ok(x);
    }
    let x = packed("q_to_device", &x)?;
    let words = data::to_device(x.words, device)?;
    let scales = data::to_device(x.scales, device)?;
    Ok(CudaQTensor { words, scales, ..x })
}

/// Whether values are a byte each in Burn's format, with nothing after the last.
fn in_bytes(scheme: &QuantScheme) -> bool {
    stored_bits(scheme) == 8
}

/// A tensor with the data's values, scales and scheme.
///
/// Scales are f32 in Burn's format. Those that are in the scheme's own precision, as Burn's CUDA backend writes them, are
/// known by the number of bytes.
///
/// # Errors
/// `Error::DType` for data that is not quantised or a scheme that is not supported; `Error::Argument` if the number of bytes
/// is none that the shape can have.
pub(crate) fn from_data(source: TensorData, device: &'static Device) -> Result<CudaQTensor> {
    const OP: &str = "q_from_data";
    let DType::QFloat(scheme) = source.dtype else {
        return Err(Error::DType {
            op: OP,
            detail: "quantised data is needed".into(),
            dtypes: vec![source.dtype],
        });
    };
    check_scheme(OP, &scheme)?;
    let shape = source.shape.clone();
    let count = scale_count(OP, &scheme, shape.as_slice())?;
    let len: usize = shape.iter().product();
    let bits = stored_bits(&scheme);
    let bytes: &[u8] = source.as_bytes();
    let in_words = 4 * words_for(len, bits);
    let values = if in_bytes(&scheme) { len } else { in_words };
    let param = param_elem(&scheme);
    let sizes = [4, param.size_bytes()];
    let Some(size) = sizes.into_iter().find(|size| values + count * size == bytes.len()) else {
        return Err(Error::Argument {
            op: OP,
            detail: format!(
                "{} bytes of data for shape {:?} of {:?}: {} of values and {count} scales are needed",
                bytes.len(),
                shape.as_slice(),
                scheme,
                values
            ),
        });
    };
    let (values, scales) = bytes.split_at(values);
    let mut words = values.to_vec();
    words.resize(in_words, 0);
    let scales: Vec<f32> = match (size, param) {
        (2, crate::dtype::Elem::BF16) => {
            scales.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
        }
        (2, _) => scales.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        _ => scales.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    };
    let words = TensorData::from_bytes_vec(words, [words_for(len, bits)], DType::U32);
    let words = data::from_data(words, device, OP)?;
    let scales = data::from_data(TensorData::new(scales, [count]), device, OP)?;
    Ok(CudaQTensor { words, scales, layout: Layout::contiguous(shape), group: group_of(&scheme), scheme })
}

/// The tensor as Burn's format has it: packed, with one scale for each block.
fn formatted(x: CudaQTensor) -> Result<CudaQTensor> {
    const OP: &str = "q_into_data";
    scale_count(OP, &x.scheme, x.dims())?;
    let x = packed(OP, &x)?;
    if x.group == group_of(&x.scheme) {
        return Ok(x);
    }
    // Values of several scales meet in a block.
    quantize_dynamic(&dequantize(&x, DType::F32)?, &x.scheme)
}

/// Reads many tensors with one wait where they are small: `plain`, and `quantized` as Burn's format has them.
///
/// # Errors
/// As for `data::into_data`; `Error::Shape` if a quantised tensor's blocks do not come out even.
pub(crate) fn into_data_many(
    plain: Vec<CudaTensor>,
    quantized: Vec<CudaQTensor>,
) -> Result<(Vec<TensorData>, Vec<TensorData>)> {
    let quantized = quantized.into_iter().map(formatted).collect::<Result<Vec<_>>>()?;
    let mut tensors = plain;
    let count = tensors.len();
    tensors.extend(quantized.iter().flat_map(|x| [x.words.clone(), x.scales.clone()]));
    let mut all = data::into_data_many(tensors)?;
    let parts = all.split_off(count);
    let quantized =
        quantized.iter().zip(parts.chunks_exact(2)).map(|(x, parts)| assembled(x, &parts[0], &parts[1]));
    Ok((all, quantized.collect()))
}

fn assembled(x: &CudaQTensor, words: &TensorData, scales: &TensorData) -> TensorData {
    let (words, scales) = (words.as_bytes(), scales.as_bytes());
    let values = if in_bytes(&x.scheme) { &words[..x.len()] } else { words };
    let bytes = [values, scales].concat();
    // Readers of packed values look at words.
    let bytes = if in_bytes(&x.scheme) {
        Bytes::from_bytes_vec(bytes)
    } else {
        let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Bytes::from_elems(bytes.chunks_exact(4).map(word).collect::<Vec<u32>>())
    };
    TensorData::from_bytes(bytes, x.shape(), x.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(layout: &Layout, group: u64) -> u64 {
        let none: Strides = SmallVec::from_elem(0, layout.rank());
        shared_run(&Nest::new(layout.dims(), [&none, layout.strides()]), layout.offset(), 0, group)
    }

    /// The longest runs whose values share a scale, by looking at each.
    fn longest(layout: &Layout, group: u64) -> u64 {
        let mut places = vec![layout.offset()];
        for (&size, &stride) in layout.dims().iter().zip(layout.strides()) {
            places = places.iter().flat_map(|&at| (0..size as i64).map(move |i| at + i * stride)).collect();
        }
        let groups: Vec<u64> = places.iter().map(|&at| at as u64 / group).collect();
        let shared = |run: usize| groups.chunks(run).all(|run| run.iter().all(|group| *group == run[0]));
        (1..=groups.len()).rev().find(|&run| groups.len().is_multiple_of(run) && shared(run)).unwrap() as u64
    }

    #[test]
    fn runs_that_share_a_scale_are_found_in_views() {
        let base = Layout::contiguous(Shape::from(vec![6, 4, 16]));
        let steps = |start, end, step| Slice::new(start, Some(end), step);
        let views = [
            (base.clone(), 32),
            (base.permute(&[1, 0, 2]).unwrap(), 16),
            (base.permute(&[0, 2, 1]).unwrap(), 1),
            (base.flip(&[0]).unwrap(), 32),
            (base.flip(&[2]).unwrap(), 32),
            (base.flip(&[0, 1, 2]).unwrap(), 32),
            (base.slice(&[steps(1, 5, 1), steps(1, 4, 1)]).unwrap(), 16),
            (base.slice(&[steps(0, 6, 1), steps(0, 4, 1), steps(4, 12, 1)]).unwrap(), 16),
            (base.slice(&[steps(0, 6, 1), steps(0, 4, 1), steps(3, 11, 1)]).unwrap(), 16),
            (base.slice(&[steps(0, 6, 1), steps(0, 4, 1), steps(0, 16, 4)]).unwrap(), 8),
            (base.narrow(0, 2, 1).expand(&[5, 4, 16]).unwrap(), 32),
        ];
        for (view, expected) in views {
            let found = run(&view, 32);
            assert_eq!(found, expected, "{view:?}");
            assert!(longest(&view, 32).is_multiple_of(found), "{view:?}: {}", longest(&view, 32));
        }
        // Rows of 8 within groups of 32, exchanged with what is around them.
        let inside = Layout::contiguous(Shape::from(vec![3, 4, 8])).permute(&[0, 2, 1]).unwrap();
        assert_eq!((run(&inside, 32), run(&inside, 16)), (32, 1));
    }

    #[test]
    fn runs_end_where_an_index_changes() {
        // select on dimension 1 of [2, 5, 16]: rows of 16 in groups of 8, 16 and 32.
        let rows = Nest::new(&[2, 3, 16], [&[0, 1, 0], &[80, 0, 1]]);
        assert_eq!([8, 16, 32].map(|group| shared_run(&rows, 0, 16, group)), [8, 16, 16]);
        let elements = Nest::new(&[2, 3, 16], [&[48, 16, 1], &[80, 0, 1]]);
        assert_eq!(shared_run(&elements, 0, 16, 16), 1);
    }
}
