//! [`cost`]: what an operation must read, write and compute at least, for rooflines and for ordering candidates.
//!
//! The numbers are lower bounds for one kernel that does the operation: each input is read once and each output
//! written once, whatever a backend does on the way. An input whose values are not needed (the `x` of a backward that
//! wants its shape) is not read; of a tensor that is indexed, what is taken is read.
//!
//! Arithmetic counts as follows.
//! - Elementwise functions, transcendental ones too, and comparisons and casts: one per element of the result.
//!   An activation is one function; a composite that must look at its input several times counts its passes.
//! - Reductions and scans: one per element of the input.
//! - Matrix products and convolutions: `2 * M * N * K`, a multiplication and an addition.
//! - Moving data: none. A view ([`is_view`]) costs nothing at all.

use burn_backend::ops::InterpolateMode;
use burn_backend::quantization::{QuantLevel, QuantParam};
use burn_backend::{DType, Shape};

use crate::infer::Meta;
use crate::op::{Op, ValueId};

/// What an operation costs at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Bytes read from memory.
    pub bytes_read: u64,
    /// Bytes written to memory.
    pub bytes_written: u64,
    /// Arithmetic operations.
    pub flops: u64,
}

/// Whether a backend whose tensors have strides and an offset does the operation without a copy.
///
/// `reshape` is one as long as its input is contiguous, as results of kernels are. A slice is one unless a step is
/// negative, which would need negative strides; so would `flip`. Quantised tensors are not viewed: their blocks follow
/// the memory order.
pub fn is_view(op: &Op) -> bool {
    use Op::*;
    match op {
        float_reshape { .. }
        | float_transpose { .. }
        | float_swap_dims { .. }
        | float_permute { .. }
        | float_expand { .. }
        | float_unfold { .. }
        | int_reshape { .. }
        | int_transpose { .. }
        | int_swap_dims { .. }
        | int_permute { .. }
        | int_expand { .. }
        | int_unfold { .. }
        | bool_reshape { .. }
        | bool_transpose { .. }
        | bool_swap_dims { .. }
        | bool_permute { .. }
        | bool_expand { .. }
        | bool_unfold { .. } => true,
        float_slice { slices, .. } | int_slice { slices, .. } | bool_slice { slices, .. } => {
            slices.iter().all(|slice| slice.step > 0)
        }
        _ => false,
    }
}

/// The cost of `op`, whose inputs are described by `meta` and whose results by `outputs` (see
/// [`infer`](crate::infer())).
///
/// An extension costs its reads and writes; its arithmetic is known to the crate that adds it.
///
/// # Examples
/// ```
/// use burn_backend::DType;
/// use kiln_surface::{Cost, Meta, Op, ValueId, cost, infer};
///
/// let values = [Meta::new([16, 32], DType::F32), Meta::new([32, 8], DType::F32)];
/// let meta = |value: ValueId| &values[value.0 as usize];
/// let op = Op::float_matmul { lhs: ValueId(0), rhs: ValueId(1) };
/// let outputs = infer(&op, &meta)?;
/// let bytes_read = 4 * (16 * 32 + 32 * 8);
/// assert_eq!(cost(&op, &meta, &outputs), Cost { bytes_read, bytes_written: 4 * 16 * 8, flops: 2 * 16 * 8 * 32 });
/// # Ok::<(), kiln_surface::InferError>(())
/// ```
pub fn cost<'a>(op: &Op, meta: &dyn Fn(ValueId) -> &'a Meta, outputs: &[Meta]) -> Cost {
    if is_view(op) {
        return Cost::default();
    }
    Cost {
        bytes_read: bytes_read(op, meta, outputs),
        bytes_written: outputs.iter().map(bytes).fold(0, u64::saturating_add),
        flops: flops(op, meta, outputs),
    }
}

/// The number of elements.
fn elements(shape: &Shape) -> u64 {
    product(shape)
}

fn product(sizes: &[usize]) -> u64 {
    sizes.iter().fold(1, |product: u64, &size| product.saturating_mul(size as u64))
}

/// Bytes of a tensor in memory. Quantised values are packed, and their scales follow.
fn bytes(meta: &Meta) -> u64 {
    let elements = elements(&meta.shape);
    let DType::QFloat(scheme) = meta.dtype else {
        return elements.saturating_mul(meta.dtype.size() as u64);
    };
    let scales = match scheme.level {
        QuantLevel::Tensor => 1,
        QuantLevel::Block(block) => elements.div_ceil(block.num_elements().max(1) as u64),
    };
    let scale = match scheme.param {
        QuantParam::F32 => 4,
        QuantParam::F16 | QuantParam::BF16 => 2,
        QuantParam::UE8M0 | QuantParam::UE4M3 => 1,
    };
    elements.saturating_mul(scheme.value.size_bits() as u64).div_ceil(8).saturating_add(scales * scale)
}

fn bytes_read<'a>(op: &Op, meta: &dyn Fn(ValueId) -> &'a Meta, outputs: &[Meta]) -> u64 {
    use Op::*;
    let read =
        |values: &[&ValueId]| values.iter().map(|value| bytes(meta(**value))).fold(0, u64::saturating_add);
    let taken = || outputs.first().map_or(0, bytes);
    match op {
        // Only what is taken.
        float_gather { indices, .. }
        | int_gather { indices, .. }
        | bool_gather { indices, .. }
        | q_gather { indices, .. }
        | float_gather_nd { indices, .. }
        | int_gather_nd { indices, .. }
        | float_select { indices, .. }
        | int_select { indices, .. }
        | bool_select { indices, .. }
        | q_select { indices, .. }
        | embedding { indices, .. } => read(&[indices]).saturating_add(taken()),
        float_slice { .. } | int_slice { .. } | bool_slice { .. } | q_slice { .. } => taken(),

        // Some inputs are there for their shape.
        embedding_backward { output_grad, indices, .. } => read(&[output_grad, indices]),
        conv1d_x_backward { weight, output_grad, .. }
        | conv2d_x_backward { weight, output_grad, .. }
        | conv3d_x_backward { weight, output_grad, .. } => read(&[weight, output_grad]),
        conv1d_weight_backward { x, output_grad, .. }
        | conv2d_weight_backward { x, output_grad, .. }
        | conv3d_weight_backward { x, output_grad, .. }
        | conv_transpose1d_weight_backward { x, output_grad, .. }
        | conv_transpose2d_weight_backward { x, output_grad, .. }
        | conv_transpose3d_weight_backward { x, output_grad, .. } => read(&[x, output_grad]),
        conv1d_bias_backward { output_grad, .. }
        | conv2d_bias_backward { output_grad, .. }
        | conv3d_bias_backward { output_grad, .. }
        | conv_transpose1d_bias_backward { output_grad, .. }
        | conv_transpose2d_bias_backward { output_grad, .. }
        | conv_transpose3d_bias_backward { output_grad, .. } => read(&[output_grad]),
        avg_pool1d_backward { grad, .. }
        | avg_pool2d_backward { grad, .. }
        | adaptive_avg_pool1d_backward { grad, .. }
        | adaptive_avg_pool2d_backward { grad, .. }
        | interpolate_backward { grad, .. } => read(&[grad]),
        max_pool1d_with_indices_backward { output_grad, indices, .. }
        | max_pool2d_with_indices_backward { output_grad, indices, .. } => read(&[output_grad, indices]),

        // All of every input, once however often it is named.
        _ => {
            let mut seen = Vec::new();
            op.inputs(&mut |value| {
                if !seen.contains(&value) {
                    seen.push(value);
                }
            });
            read(&seen.iter().collect::<Vec<_>>())
        }
    }
}

fn flops<'a>(op: &Op, meta: &dyn Fn(ValueId) -> &'a Meta, outputs: &[Meta]) -> u64 {
    use Op::*;
    let shape = |value: &ValueId| &meta(*value).shape;
    let count = |value: &ValueId| elements(shape(value));
    let written = outputs.first().map_or(0, |output| elements(&output.shape));
    let last = |value: &ValueId| shape(value).last().map_or(0, |&size| size as u64);
    // The multiplications of one output of a convolution, or of one input of a transposed one.
    let taps = |weight: &ValueId| shape(weight).get(1..).map_or(0, product);
    let product =
        |factors: &[u64]| factors.iter().fold(1, |product: u64, &factor| product.saturating_mul(factor));
    // A sort of lines of the given length.
    let sort = |tensor: &ValueId, dim: usize| {
        let length = shape(tensor).get(dim).copied().unwrap_or(0).max(1);
        product(&[count(tensor), u64::from(length.next_power_of_two().trailing_zeros())])
    };

    match op {
        // Moved or filled.
        float_zeros { .. }
        | float_ones { .. }
        | float_empty { .. }
        | float_full { .. }
        | int_zeros { .. }
        | int_ones { .. }
        | int_empty { .. }
        | int_full { .. }
        | bool_zeros { .. }
        | bool_ones { .. }
        | bool_empty { .. }
        | float_to_device { .. }
        | int_to_device { .. }
        | bool_to_device { .. }
        | q_to_device { .. }
        | q_reshape { .. }
        | q_transpose { .. }
        | q_swap_dims { .. }
        | q_permute { .. }
        | q_expand { .. }
        | q_slice { .. }
        | float_slice { .. }
        | int_slice { .. }
        | bool_slice { .. }
        | float_slice_assign { .. }
        | int_slice_assign { .. }
        | bool_slice_assign { .. }
        | float_flip { .. }
        | int_flip { .. }
        | bool_flip { .. }
        | q_flip { .. }
        | float_cat { .. }
        | int_cat { .. }
        | bool_cat { .. }
        | q_cat { .. }
        | float_repeat_dim { .. }
        | int_repeat_dim { .. }
        | bool_repeat_dim { .. }
        | q_repeat_dim { .. }
        | float_gather { .. }
        | int_gather { .. }
        | bool_gather { .. }
        | q_gather { .. }
        | float_gather_nd { .. }
        | int_gather_nd { .. }
        | float_select { .. }
        | int_select { .. }
        | bool_select { .. }
        | q_select { .. }
        | embedding { .. }
        | unfold4d { .. }
        | extension(_) => 0,

        // One per element that is added somewhere.
        float_scatter_add { value, .. }
        | int_scatter_add { value, .. }
        | bool_scatter_or { value, .. }
        | float_select_add { value, .. }
        | int_select_add { value, .. }
        | bool_select_or { value, .. }
        | float_scatter_nd { values: value, .. }
        | int_scatter_nd { values: value, .. }
        | embedding_backward { output_grad: value, .. }
        | max_pool1d_with_indices_backward { output_grad: value, .. }
        | max_pool2d_with_indices_backward { output_grad: value, .. } => count(value),

        // One per element of the input.
        float_sum { tensor }
        | float_prod { tensor }
        | float_mean { tensor }
        | float_max { tensor }
        | float_min { tensor }
        | float_sum_dim { tensor, .. }
        | float_prod_dim { tensor, .. }
        | float_mean_dim { tensor, .. }
        | float_max_dim { tensor, .. }
        | float_min_dim { tensor, .. }
        | float_argmax { tensor, .. }
        | float_argmin { tensor, .. }
        | float_max_dim_with_indices { tensor, .. }
        | float_min_dim_with_indices { tensor, .. }
        | float_any { tensor, .. }
        | float_all { tensor, .. }
        | float_any_dim { tensor, .. }
        | float_all_dim { tensor, .. }
        | int_sum { tensor }
        | int_prod { tensor }
        | int_mean { tensor }
        | int_max { tensor }
        | int_min { tensor }
        | int_sum_dim { tensor, .. }
        | int_prod_dim { tensor, .. }
        | int_mean_dim { tensor, .. }
        | int_max_dim { tensor, .. }
        | int_min_dim { tensor, .. }
        | int_argmax { tensor, .. }
        | int_argmin { tensor, .. }
        | int_max_dim_with_indices { tensor, .. }
        | int_min_dim_with_indices { tensor, .. }
        | int_any { tensor, .. }
        | int_all { tensor, .. }
        | int_any_dim { tensor, .. }
        | int_all_dim { tensor, .. }
        | bool_any { tensor }
        | bool_all { tensor }
        | bool_any_dim { tensor, .. }
        | bool_all_dim { tensor, .. }
        | q_sum { tensor }
        | q_prod { tensor }
        | q_mean { tensor }
        | q_max { tensor }
        | q_min { tensor }
        | q_sum_dim { tensor, .. }
        | q_prod_dim { tensor, .. }
        | q_mean_dim { tensor, .. }
        | q_max_dim { tensor, .. }
        | q_min_dim { tensor, .. }
        | q_argmax { tensor, .. }
        | q_argmin { tensor, .. }
        | q_max_dim_with_indices { tensor, .. }
        | q_min_dim_with_indices { tensor, .. }
        | q_any { tensor, .. }
        | q_all { tensor, .. }
        | q_any_dim { tensor, .. }
        | q_all_dim { tensor, .. }
        | linear_bias_backward { output_grad: tensor }
        | conv1d_bias_backward { output_grad: tensor, .. }
        | conv2d_bias_backward { output_grad: tensor, .. }
        | conv3d_bias_backward { output_grad: tensor, .. }
        | conv_transpose1d_bias_backward { output_grad: tensor, .. }
        | conv_transpose2d_bias_backward { output_grad: tensor, .. }
        | conv_transpose3d_bias_backward { output_grad: tensor, .. }
        | adaptive_avg_pool1d { x: tensor, .. }
        | adaptive_avg_pool2d { x: tensor, .. } => count(tensor),
        // An absolute value and a comparison; a range and a rounding.
        float_max_abs { tensor }
        | float_max_abs_dim { tensor, .. }
        | int_max_abs { tensor }
        | int_max_abs_dim { tensor, .. }
        | q_max_abs { tensor }
        | q_max_abs_dim { tensor, .. }
        | quantize_dynamic { tensor, .. } => product(&[2, count(tensor)]),

        float_sort { tensor, dim, .. }
        | float_argsort { tensor, dim, .. }
        | float_sort_with_indices { tensor, dim, .. }
        | float_topk { tensor, dim, .. }
        | float_argtopk { tensor, dim, .. }
        | int_sort { tensor, dim, .. }
        | int_argsort { tensor, dim, .. }
        | int_sort_with_indices { tensor, dim, .. }
        | int_topk { tensor, dim, .. }
        | int_argtopk { tensor, dim, .. }
        | q_sort { tensor, dim, .. }
        | q_argsort { tensor, dim, .. }
        | q_sort_with_indices { tensor, dim, .. }
        | q_topk { tensor, dim, .. }
        | q_argtopk { tensor, dim, .. } => sort(tensor, *dim),

        // Maximum, difference, exponential, sum, and quotient or difference.
        softmax { .. } | log_softmax { .. } | softmin { .. } => product(&[5, written]),
        // Mean, difference, square, mean, quotient, and scale; then the shift.
        layer_norm { beta, .. } => product(&[6 + u64::from(beta.is_some()), written]),
        // Two products and a difference for each of three components.
        float_cross { .. } => product(&[3, written]),

        float_matmul { lhs, .. } | int_matmul { lhs, .. } => product(&[2, written, last(lhs)]),
        q_matmul { lhs, .. } => product(&[2, written, last(&lhs.value())]),
        linear { x, bias, .. } => {
            product(&[2, written, last(x)]).saturating_add(if bias.is_some() { written } else { 0 })
        }
        linear_x_backward { output_grad, .. } => product(&[2, written, last(output_grad)]),
        linear_weight_backward { x, output_grad } => product(&[2, count(x), last(output_grad)]),
        attention { query, key, value, .. } => {
            let scores = product(&[
                count(query) / last(query).max(1),
                shape(key).get(2).map_or(0, |&size| size as u64),
            ]);
            // Two products, and the softmax between them.
            product(&[scores, 2 * last(query) + 2 * last(value) + 5])
        }
        conv1d { weight, bias, .. }
        | conv2d { weight, bias, .. }
        | conv3d { weight, bias, .. }
        | deform_conv2d { weight, bias, .. } => {
            product(&[2, written, taps(weight)]).saturating_add(if bias.is_some() { written } else { 0 })
        }
        conv_transpose1d { x, weight, bias, .. }
        | conv_transpose2d { x, weight, bias, .. }
        | conv_transpose3d { x, weight, bias, .. } => {
            product(&[2, count(x), taps(weight)]).saturating_add(if bias.is_some() { written } else { 0 })
        }
        conv1d_x_backward { weight, output_grad, .. }
        | conv2d_x_backward { weight, output_grad, .. }
        | conv3d_x_backward { weight, output_grad, .. }
        | conv1d_weight_backward { weight, output_grad, .. }
        | conv2d_weight_backward { weight, output_grad, .. }
        | conv3d_weight_backward { weight, output_grad, .. } => {
            product(&[2, count(output_grad), taps(weight)])
        }
        conv_transpose1d_x_backward { weight, .. }
        | conv_transpose2d_x_backward { weight, .. }
        | conv_transpose3d_x_backward { weight, .. } => product(&[2, written, taps(weight)]),
        conv_transpose1d_weight_backward { x, weight, .. }
        | conv_transpose2d_weight_backward { x, weight, .. }
        | conv_transpose3d_weight_backward { x, weight, .. } => product(&[2, count(x), taps(weight)]),
        // A product for the weight, and one for the sampled values, from which x, offset and mask follow.
        deform_conv2d_backward { weight, output_grad, .. } => product(&[4, count(output_grad), taps(weight)]),

        avg_pool1d { kernel_size, .. }
        | max_pool1d { kernel_size, .. }
        | max_pool1d_with_indices { kernel_size, .. } => product(&[written, *kernel_size as u64]),
        avg_pool2d { kernel_size, .. }
        | max_pool2d { kernel_size, .. }
        | max_pool2d_with_indices { kernel_size, .. } => {
            product(&[written, kernel_size[0] as u64, kernel_size[1] as u64])
        }
        avg_pool1d_backward { grad, kernel_size, .. } => product(&[count(grad), *kernel_size as u64]),
        avg_pool2d_backward { grad, kernel_size, .. } => {
            product(&[count(grad), kernel_size[0] as u64, kernel_size[1] as u64])
        }
        interpolate { options, .. } => product(&[written, samples(&options.mode)]),
        interpolate_backward { grad, options, .. } => product(&[count(grad), samples(&options.mode)]),
        float_grid_sample_2d { options, .. } => product(&[written, samples(&options.mode)]),

        // A label takes three logarithms of sums in each step.
        ctc_loss { log_probs, targets, .. } | ctc_loss_backward { log_probs, targets, .. } => {
            let steps = count(log_probs) / last(log_probs).max(1);
            product(&[6, steps, 2 * last(targets) + 1])
        }
        // A real transform: half of 5 n log2 n.
        rfft { signal, dim, .. } => {
            let half =
                outputs.first().and_then(|output| output.shape.get(*dim)).map_or(0, |&size| size as u64);
            let lines = count(signal) / shape(signal).get(*dim).map_or(1, |&size| size.max(1) as u64);
            transform(lines, 2 * half.saturating_sub(1))
        }
        irfft { dim, .. } => {
            let length =
                outputs.first().and_then(|output| output.shape.get(*dim)).map_or(1, |&size| size as u64);
            transform(written / length.max(1), length)
        }

        // Everything else is elementwise, a scan or a draw: one per element of the result.
        _ => written,
    }
}

/// Multiplications and additions of one sample by interpolation.
fn samples(mode: &InterpolateMode) -> u64 {
    match mode {
        InterpolateMode::Nearest => 0,
        InterpolateMode::Bilinear => 2 * 4,
        InterpolateMode::Bicubic => 2 * 16,
        InterpolateMode::Lanczos3 => 2 * 36,
    }
}

/// Real transforms of a length, half as much as complex ones.
fn transform(lines: u64, length: u64) -> u64 {
    let steps = u64::from(length.max(1).ilog2());
    lines.saturating_mul(5 * length / 2).saturating_mul(steps)
}

#[cfg(test)]
mod tests {
    use burn_backend::ops::ConvOptions;
    use burn_backend::{Scalar, Slice};

    use super::*;
    use crate::infer::infer;
    use crate::op::ScalarSlot;

    fn f32s(shapes: &[&[usize]]) -> Vec<Meta> {
        shapes.iter().map(|&shape| Meta::new(Shape::from(shape.to_vec()), DType::F32)).collect()
    }

    fn cost_of(op: &Op, inputs: &[Meta]) -> Cost {
        let meta = |value: ValueId| &inputs[value.0 as usize];
        cost(op, &meta, &infer(op, &meta).expect("inputs that fit"))
    }

    #[test]
    fn an_elementwise_op_reads_and_writes_once_and_does_one_flop_per_element() {
        let op = Op::float_add { lhs: ValueId(0), rhs: ValueId(1) };
        let cost = cost_of(&op, &f32s(&[&[10, 20], &[1, 20]]));
        assert_eq!(cost, Cost { bytes_read: 4 * 220, bytes_written: 4 * 200, flops: 200 });

        let rhs = ScalarSlot { kind: Scalar::Float(0.0).into(), index: 0 };
        let cost = cost_of(&Op::float_mul_scalar { lhs: ValueId(0), rhs }, &f32s(&[&[6]]));
        assert_eq!(cost, Cost { bytes_read: 24, bytes_written: 24, flops: 6 });
    }

    #[test]
    fn an_input_named_twice_is_read_once() {
        let op = Op::float_mul { lhs: ValueId(0), rhs: ValueId(0) };
        assert_eq!(cost_of(&op, &f32s(&[&[8]])).bytes_read, 32);
    }

    #[test]
    fn a_batched_matmul_does_two_m_n_k() {
        let op = Op::float_matmul { lhs: ValueId(0), rhs: ValueId(1) };
        let cost = cost_of(&op, &f32s(&[&[3, 4, 5], &[1, 5, 6]]));
        assert_eq!(cost.flops, 3 * 2 * 4 * 6 * 5);
        assert_eq!(cost.bytes_read, 4 * (60 + 30));
    }

    #[test]
    fn a_convolution_counts_the_channels_of_its_group() {
        let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 2);
        let op = Op::conv2d { x: ValueId(0), weight: ValueId(1), bias: None, options };
        let cost = cost_of(&op, &f32s(&[&[2, 8, 16, 16], &[4, 4, 3, 3]]));
        assert_eq!(cost.flops, 2 * (2 * 4 * 16 * 16) * (4 * 3 * 3));
    }

    #[test]
    fn views_cost_nothing_and_reversed_slices_a_copy() {
        let slice = |step| Op::float_slice { tensor: ValueId(0), slices: vec![Slice::new(0, Some(4), step)] };
        let inputs = f32s(&[&[10]]);
        assert_eq!(cost_of(&slice(2), &inputs), Cost::default());
        assert_eq!(cost_of(&slice(-1), &inputs), Cost { bytes_read: 16, bytes_written: 16, flops: 0 });
        assert!(is_view(&Op::float_transpose { tensor: ValueId(0) }));
        assert!(!is_view(&Op::float_exp { tensor: ValueId(0) }));
    }

    #[test]
    fn a_selection_reads_what_it_takes() {
        let op = Op::float_select { tensor: ValueId(0), dim: 0, indices: ValueId(1) };
        let inputs = [Meta::new([1000, 8], DType::F32), Meta::new([5], DType::I64)];
        assert_eq!(cost_of(&op, &inputs), Cost { bytes_read: 40 + 4 * 40, bytes_written: 4 * 40, flops: 0 });
    }
}
