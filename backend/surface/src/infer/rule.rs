//! The rule of each operation.

use burn_backend::{DType, Shape};
use smallvec::smallvec;

use super::sizes::*;
use super::{Defaults, Meta, Outputs, Reason};
use crate::op::{Op, PrimId, ValueId};

pub(super) fn rule<'a>(
    op: &Op,
    meta: &dyn Fn(ValueId) -> &'a Meta,
    defaults: &Defaults,
) -> Result<Outputs, Reason> {
    use Op::*;
    let shape = |value: &ValueId| &meta(*value).shape;
    let dtype = |value: &ValueId| meta(*value).dtype;
    let float = DType::from(defaults.float);
    let index = DType::from(defaults.index);

    match op {
        // Created from nothing.
        float_random { shape, dtype, .. }
        | float_zeros { shape, dtype, .. }
        | float_ones { shape, dtype, .. }
        | float_empty { shape, dtype, .. }
        | float_full { shape, dtype, .. } => one(shape.clone(), (*dtype).into()),
        int_random { shape, dtype, .. }
        | int_empty { shape, dtype, .. }
        | int_zeros { shape, dtype, .. }
        | int_ones { shape, dtype, .. }
        | int_full { shape, dtype, .. } => one(shape.clone(), (*dtype).into()),
        bool_empty { shape, dtype, .. }
        | bool_zeros { shape, dtype, .. }
        | bool_ones { shape, dtype, .. } => one(shape.clone(), (*dtype).into()),
        int_arange { range, dtype, .. } => one(steps(range, 1)?, (*dtype).into()),
        int_arange_step { range, step, dtype, .. } => one(steps(range, *step)?, (*dtype).into()),

        // As the tensor: elementwise, or in place along a dimension that no attribute names.
        float_to_device { tensor, .. }
        | int_to_device { tensor, .. }
        | bool_to_device { tensor, .. }
        | q_to_device { tensor, .. }
        | float_clamp_min { tensor, .. }
        | float_clamp_max { tensor, .. }
        | float_clamp { tensor, .. }
        | int_clamp_min { tensor, .. }
        | int_clamp_max { tensor, .. }
        | int_clamp { tensor, .. }
        | float_neg { tensor }
        | float_recip { tensor }
        | float_exp { tensor }
        | float_log { tensor }
        | float_log1p { tensor }
        | float_sqrt { tensor }
        | float_abs { tensor }
        | float_cos { tensor }
        | float_sin { tensor }
        | float_tan { tensor }
        | float_cosh { tensor }
        | float_sinh { tensor }
        | float_tanh { tensor }
        | float_acos { tensor }
        | float_acosh { tensor }
        | float_asin { tensor }
        | float_asinh { tensor }
        | float_atan { tensor }
        | float_atanh { tensor }
        | float_round { tensor }
        | float_floor { tensor }
        | float_ceil { tensor }
        | float_trunc { tensor }
        | float_erf { tensor }
        | float_sign { tensor }
        | float_powf_scalar { tensor, .. }
        | float_powf_scalar_impl { tensor, .. }
        | relu { tensor }
        | gelu { tensor }
        | sigmoid { tensor }
        | log_sigmoid { tensor }
        | leaky_relu { tensor, .. }
        | hard_sigmoid { tensor, .. }
        | int_neg { tensor }
        | int_abs { tensor }
        | int_sign { tensor }
        | bitwise_not { tensor }
        | bool_not { tensor }
        | q_abs { tensor } => Ok(smallvec![meta(*tensor).clone()]),
        float_add_scalar { lhs, .. }
        | float_sub_scalar { lhs, .. }
        | float_mul_scalar { lhs, .. }
        | float_div_scalar { lhs, .. }
        | float_remainder_scalar { lhs, .. }
        | float_powi_scalar { lhs, .. }
        | float_powi_scalar_impl { lhs, .. }
        | int_add_scalar { lhs, .. }
        | int_sub_scalar { lhs, .. }
        | int_mul_scalar { lhs, .. }
        | int_div_scalar { lhs, .. }
        | int_remainder_scalar { lhs, .. }
        | int_powi_scalar { lhs, .. }
        | int_powi_scalar_impl { lhs, .. }
        | bitwise_and_scalar { lhs, .. }
        | bitwise_or_scalar { lhs, .. }
        | bitwise_xor_scalar { lhs, .. }
        | bitwise_left_shift_scalar { lhs, .. }
        | bitwise_right_shift_scalar { lhs, .. }
        | bool_equal_elem { lhs, .. }
        | bool_not_equal_elem { lhs, .. } => Ok(smallvec![meta(*lhs).clone()]),

        // As the tensor, along a dimension.
        float_cumsum { tensor, dim }
        | float_cumprod { tensor, dim }
        | float_cummin { tensor, dim }
        | float_cummax { tensor, dim }
        | int_cumsum { tensor, dim }
        | int_cumprod { tensor, dim }
        | int_cummin { tensor, dim }
        | int_cummax { tensor, dim }
        | softmax { tensor, dim }
        | log_softmax { tensor, dim }
        | softmin { tensor, dim }
        | float_sort { tensor, dim, .. }
        | int_sort { tensor, dim, .. }
        | q_sort { tensor, dim, .. } => {
            has_dim(shape(tensor), *dim)?;
            Ok(smallvec![meta(*tensor).clone()])
        }
        float_argsort { tensor, dim, out_dtype, .. } | q_argsort { tensor, dim, out_dtype, .. } => {
            has_dim(shape(tensor), *dim)?;
            one(shape(tensor).clone(), (*out_dtype).into())
        }
        int_argsort { tensor, dim, .. } => {
            has_dim(shape(tensor), *dim)?;
            one(shape(tensor).clone(), index)
        }
        float_sort_with_indices { tensor, dim, indices_dtype: out_dtype, .. }
        | q_sort_with_indices { tensor, dim, out_dtype, .. } => {
            has_dim(shape(tensor), *dim)?;
            two(shape(tensor).clone(), dtype(tensor), (*out_dtype).into())
        }
        int_sort_with_indices { tensor, dim, .. } => {
            has_dim(shape(tensor), *dim)?;
            two(shape(tensor).clone(), dtype(tensor), index)
        }

        // Quantised operands, a float result.
        q_add_scalar { lhs: tensor, .. }
        | q_sub_scalar { lhs: tensor, .. }
        | q_mul_scalar { lhs: tensor, .. }
        | q_div_scalar { lhs: tensor, .. }
        | q_powi_scalar { lhs: tensor, .. }
        | q_powf_scalar { tensor, .. }
        | q_clamp_min { tensor, .. }
        | q_clamp_max { tensor, .. }
        | q_clamp { tensor, .. }
        | q_neg { tensor }
        | q_recip { tensor }
        | q_exp { tensor }
        | q_log { tensor }
        | q_log1p { tensor }
        | q_sqrt { tensor }
        | q_cos { tensor }
        | q_sin { tensor }
        | q_tan { tensor }
        | q_cosh { tensor }
        | q_sinh { tensor }
        | q_tanh { tensor }
        | q_erf { tensor } => one(shape(tensor).clone(), float),
        q_cumsum { tensor, dim }
        | q_cumprod { tensor, dim }
        | q_cummin { tensor, dim }
        | q_cummax { tensor, dim } => {
            has_dim(shape(tensor), *dim)?;
            one(shape(tensor).clone(), float)
        }

        // Two tensors, broadcast.
        float_add { lhs, rhs }
        | float_sub { lhs, rhs }
        | float_mul { lhs, rhs }
        | float_div { lhs, rhs }
        | float_remainder { lhs, rhs }
        | float_powf { lhs, rhs }
        | float_powi { lhs, rhs }
        | float_atan2 { lhs, rhs }
        | int_add { lhs, rhs }
        | int_sub { lhs, rhs }
        | int_mul { lhs, rhs }
        | int_div { lhs, rhs }
        | int_remainder { lhs, rhs }
        | int_powi { lhs, rhs }
        | bitwise_and { lhs, rhs }
        | bitwise_or { lhs, rhs }
        | bitwise_xor { lhs, rhs }
        | bitwise_left_shift { lhs, rhs }
        | bitwise_right_shift { lhs, rhs }
        | bool_equal { lhs, rhs }
        | bool_not_equal { lhs, rhs }
        | bool_and { lhs, rhs }
        | bool_or { lhs, rhs }
        | bool_xor { lhs, rhs }
        | prelu { tensor: lhs, alpha: rhs }
        | gelu_backward { x: lhs, grad: rhs }
        | log_sigmoid_backward { x: lhs, grad: rhs }
        | relu_backward { output: lhs, grad: rhs }
        | sigmoid_backward { output: lhs, grad: rhs } => one(broadcast(shape(lhs), shape(rhs))?, dtype(lhs)),
        q_add { lhs, rhs }
        | q_sub { lhs, rhs }
        | q_mul { lhs, rhs }
        | q_div { lhs, rhs }
        | q_powf { lhs, rhs }
        | q_powi { lhs, rhs } => one(broadcast(shape(lhs), shape(rhs))?, float),
        float_equal { lhs, rhs, out_dtype }
        | float_not_equal { lhs, rhs, out_dtype }
        | float_greater { lhs, rhs, out_dtype }
        | float_greater_equal { lhs, rhs, out_dtype }
        | float_lower { lhs, rhs, out_dtype }
        | float_lower_equal { lhs, rhs, out_dtype }
        | int_equal { lhs, rhs, out_dtype }
        | int_not_equal { lhs, rhs, out_dtype }
        | int_greater { lhs, rhs, out_dtype }
        | int_greater_equal { lhs, rhs, out_dtype }
        | int_lower { lhs, rhs, out_dtype }
        | int_lower_equal { lhs, rhs, out_dtype } => {
            one(broadcast(shape(lhs), shape(rhs))?, (*out_dtype).into())
        }
        float_cross { lhs, rhs, dim } => {
            for side in [lhs, rhs] {
                let size = has_dim(shape(side), *dim)?;
                same_size("the crossed dimension", size, 3)?;
            }
            one(broadcast(shape(lhs), shape(rhs))?, dtype(lhs))
        }

        // Another dtype.
        float_equal_elem { lhs: tensor, out_dtype, .. }
        | float_not_equal_elem { lhs: tensor, out_dtype, .. }
        | float_greater_elem { lhs: tensor, out_dtype, .. }
        | float_greater_equal_elem { lhs: tensor, out_dtype, .. }
        | float_lower_elem { lhs: tensor, out_dtype, .. }
        | float_lower_equal_elem { lhs: tensor, out_dtype, .. }
        | int_equal_elem { lhs: tensor, out_dtype, .. }
        | int_not_equal_elem { lhs: tensor, out_dtype, .. }
        | int_greater_elem { lhs: tensor, out_dtype, .. }
        | int_greater_equal_elem { lhs: tensor, out_dtype, .. }
        | int_lower_elem { lhs: tensor, out_dtype, .. }
        | int_lower_equal_elem { lhs: tensor, out_dtype, .. }
        | float_is_nan { tensor, out_dtype }
        | float_is_inf { tensor, out_dtype } => one(shape(tensor).clone(), (*out_dtype).into()),
        float_into_int { tensor, out_dtype: dtype }
        | bool_into_int { tensor, out_dtype: dtype }
        | int_cast { tensor, dtype } => one(shape(tensor).clone(), (*dtype).into()),
        float_cast { tensor, dtype }
        | int_into_float { tensor, out_dtype: dtype }
        | bool_into_float { tensor, out_dtype: dtype }
        | dequantize { tensor, dtype } => one(shape(tensor).clone(), (*dtype).into()),
        quantize { tensor, scheme, qparams } => {
            same_size("scales", elements(shape(qparams))?, scales(shape(tensor), scheme)?)?;
            one(shape(tensor).clone(), DType::QFloat(*scheme))
        }
        quantize_dynamic { tensor, scheme } => {
            scales(shape(tensor), scheme)?;
            one(shape(tensor).clone(), DType::QFloat(*scheme))
        }

        // Reduced to one element.
        float_sum { tensor }
        | float_prod { tensor }
        | float_mean { tensor }
        | float_max { tensor }
        | float_min { tensor }
        | float_max_abs { tensor }
        | int_sum { tensor }
        | int_prod { tensor }
        | int_mean { tensor }
        | int_max { tensor }
        | int_min { tensor }
        | int_max_abs { tensor }
        | bool_any { tensor }
        | bool_all { tensor }
        | q_max { tensor }
        | q_min { tensor }
        | q_max_abs { tensor } => one(Shape::new([1]), dtype(tensor)),
        q_sum { .. } | q_prod { .. } | q_mean { .. } => one(Shape::new([1]), float),
        float_any { out_dtype, .. }
        | float_all { out_dtype, .. }
        | int_any { out_dtype, .. }
        | int_all { out_dtype, .. }
        | q_any { out_dtype, .. }
        | q_all { out_dtype, .. } => one(Shape::new([1]), (*out_dtype).into()),

        // Reduced along a dimension, which keeps size 1.
        float_sum_dim { tensor, dim }
        | float_prod_dim { tensor, dim }
        | float_mean_dim { tensor, dim }
        | float_max_dim { tensor, dim }
        | float_min_dim { tensor, dim }
        | float_max_abs_dim { tensor, dim }
        | int_sum_dim { tensor, dim }
        | int_prod_dim { tensor, dim }
        | int_mean_dim { tensor, dim }
        | int_max_dim { tensor, dim }
        | int_min_dim { tensor, dim }
        | int_max_abs_dim { tensor, dim }
        | bool_any_dim { tensor, dim }
        | bool_all_dim { tensor, dim }
        | q_max_dim { tensor, dim }
        | q_min_dim { tensor, dim }
        | q_max_abs_dim { tensor, dim } => one(with_size(shape(tensor), *dim, 1)?, dtype(tensor)),
        q_sum_dim { tensor, dim } | q_prod_dim { tensor, dim } | q_mean_dim { tensor, dim } => {
            one(with_size(shape(tensor), *dim, 1)?, float)
        }
        float_any_dim { tensor, dim, out_dtype }
        | float_all_dim { tensor, dim, out_dtype }
        | int_any_dim { tensor, dim, out_dtype }
        | int_all_dim { tensor, dim, out_dtype }
        | q_any_dim { tensor, dim, out_dtype }
        | q_all_dim { tensor, dim, out_dtype } => {
            one(with_size(shape(tensor), *dim, 1)?, (*out_dtype).into())
        }
        float_argmax { tensor, dim, out_dtype }
        | float_argmin { tensor, dim, out_dtype }
        | q_argmax { tensor, dim, out_dtype }
        | q_argmin { tensor, dim, out_dtype } => one(with_size(shape(tensor), *dim, 1)?, (*out_dtype).into()),
        int_argmax { tensor, dim } | int_argmin { tensor, dim } => {
            one(with_size(shape(tensor), *dim, 1)?, index)
        }
        float_max_dim_with_indices { tensor, dim, indices_dtype: out_dtype }
        | float_min_dim_with_indices { tensor, dim, indices_dtype: out_dtype }
        | q_max_dim_with_indices { tensor, dim, out_dtype }
        | q_min_dim_with_indices { tensor, dim, out_dtype } => {
            two(with_size(shape(tensor), *dim, 1)?, dtype(tensor), (*out_dtype).into())
        }
        int_max_dim_with_indices { tensor, dim } | int_min_dim_with_indices { tensor, dim } => {
            two(with_size(shape(tensor), *dim, 1)?, dtype(tensor), index)
        }
        float_topk { tensor, dim, k } | int_topk { tensor, dim, k } | q_topk { tensor, dim, k } => {
            one(best(shape(tensor), *dim, *k)?, dtype(tensor))
        }
        float_argtopk { tensor, dim, k, out_dtype } | q_argtopk { tensor, dim, k, out_dtype } => {
            one(best(shape(tensor), *dim, *k)?, (*out_dtype).into())
        }
        int_argtopk { tensor, dim, k } => one(best(shape(tensor), *dim, *k)?, index),

        // Moved.
        float_transpose { tensor }
        | int_transpose { tensor }
        | bool_transpose { tensor }
        | q_transpose { tensor } => {
            let rank = at_least(shape(tensor), 2)?;
            one(swapped(shape(tensor), rank - 2, rank - 1)?, dtype(tensor))
        }
        float_swap_dims { tensor, dim1, dim2 }
        | int_swap_dims { tensor, dim1, dim2 }
        | bool_swap_dims { tensor, dim1, dim2 }
        | q_swap_dims { tensor, dim1, dim2 } => one(swapped(shape(tensor), *dim1, *dim2)?, dtype(tensor)),
        float_permute { tensor, axes }
        | int_permute { tensor, axes }
        | bool_permute { tensor, axes }
        | q_permute { tensor, axes } => {
            distinct(shape(tensor), axes)?;
            same_size("axes and rank", axes.len(), shape(tensor).rank())?;
            one(axes.iter().map(|&axis| shape(tensor)[axis]).collect::<Vec<_>>().into(), dtype(tensor))
        }
        float_flip { tensor, axes }
        | int_flip { tensor, axes }
        | bool_flip { tensor, axes }
        | q_flip { tensor, axes } => {
            distinct(shape(tensor), axes)?;
            Ok(smallvec![meta(*tensor).clone()])
        }
        float_reshape { tensor, shape: to }
        | int_reshape { tensor, shape: to }
        | bool_reshape { tensor, shape: to }
        | q_reshape { tensor, shape: to } => {
            if elements(shape(tensor))? != elements(to)? {
                return Err(shapes("elements", shape(tensor), to));
            }
            one(to.clone(), dtype(tensor))
        }
        float_expand { tensor, shape: to }
        | int_expand { tensor, shape: to }
        | bool_expand { tensor, shape: to }
        | q_expand { tensor, shape: to } => one(expanded(shape(tensor), to)?, dtype(tensor)),
        float_repeat_dim { tensor, dim, times }
        | int_repeat_dim { tensor, dim, times }
        | bool_repeat_dim { tensor, dim, times }
        | q_repeat_dim { tensor, dim, times } => {
            let size = mul(has_dim(shape(tensor), *dim)?, *times)?;
            one(with_size(shape(tensor), *dim, size)?, dtype(tensor))
        }
        float_unfold { tensor, dim, size, step }
        | int_unfold { tensor, dim, size, step }
        | bool_unfold { tensor, dim, size, step } => {
            let windows = window_count(has_dim(shape(tensor), *dim)?, *size, 1, *step, 0)?;
            let mut windowed = with_size(shape(tensor), *dim, windows)?;
            windowed.push(*size);
            one(windowed, dtype(tensor))
        }
        float_cat { tensors, dim }
        | int_cat { tensors, dim }
        | bool_cat { tensors, dim }
        | q_cat { tensors, dim } => {
            let first = tensors.first().ok_or(Reason::Empty)?;
            one(concatenated(tensors.iter().map(shape), *dim)?, dtype(first))
        }
        float_slice { tensor, slices }
        | int_slice { tensor, slices }
        | bool_slice { tensor, slices }
        | q_slice { tensor, slices } => one(sliced(shape(tensor), slices)?, dtype(tensor)),
        float_slice_assign { tensor, slices, value }
        | int_slice_assign { tensor, slices, value }
        | bool_slice_assign { tensor, slices, value } => {
            let part = sliced(shape(tensor), slices)?;
            if part != *shape(value) {
                return Err(shapes("slice and value", &part, shape(value)));
            }
            Ok(smallvec![meta(*tensor).clone()])
        }

        // Picked by a mask or by indices.
        float_mask_where { tensor, mask, value }
        | int_mask_where { tensor, mask, value }
        | bool_mask_where { tensor, mask, value } => {
            let both = broadcast(shape(tensor), shape(mask))?;
            one(broadcast(&both, shape(value))?, dtype(tensor))
        }
        float_mask_fill { tensor, mask, .. }
        | int_mask_fill { tensor, mask, .. }
        | bool_mask_fill { tensor, mask, .. } => one(broadcast(shape(tensor), shape(mask))?, dtype(tensor)),
        float_gather { dim, tensor, indices }
        | int_gather { dim, tensor, indices }
        | bool_gather { dim, tensor, indices }
        | q_gather { dim, tensor, indices } => {
            fits_along(shape(tensor), *dim, shape(indices))?;
            one(shape(indices).clone(), dtype(tensor))
        }
        float_scatter_add { dim, tensor, indices, value }
        | int_scatter_add { dim, tensor, indices, value }
        | bool_scatter_or { dim, tensor, indices, value } => {
            fits_along(shape(tensor), *dim, shape(indices))?;
            if shape(indices) != shape(value) {
                return Err(shapes("indices and values", shape(indices), shape(value)));
            }
            Ok(smallvec![meta(*tensor).clone()])
        }
        float_select { tensor, dim, indices }
        | int_select { tensor, dim, indices }
        | bool_select { tensor, dim, indices }
        | q_select { tensor, dim, indices } => {
            let count = is_rank(shape(indices), 1)?[0];
            one(with_size(shape(tensor), *dim, count)?, dtype(tensor))
        }
        float_select_add { tensor, dim, indices, value }
        | int_select_add { tensor, dim, indices, value }
        | bool_select_or { tensor, dim, indices, value } => {
            let count = is_rank(shape(indices), 1)?[0];
            let part = with_size(shape(tensor), *dim, count)?;
            if part != *shape(value) {
                return Err(shapes("selection and values", &part, shape(value)));
            }
            Ok(smallvec![meta(*tensor).clone()])
        }
        float_gather_nd { data, indices } | int_gather_nd { data, indices } => {
            one(gathered_nd(shape(data), shape(indices))?, dtype(data))
        }
        float_scatter_nd { data, indices, values, .. } | int_scatter_nd { data, indices, values, .. } => {
            let part = gathered_nd(shape(data), shape(indices))?;
            if part != *shape(values) {
                return Err(shapes("indices and values", &part, shape(values)));
            }
            Ok(smallvec![meta(*data).clone()])
        }
        embedding { weights, indices } => {
            let width = is_rank(shape(weights), 2)?[1];
            let indices = is_rank(shape(indices), 2)?;
            one(Shape::new([indices[0], indices[1], width]), dtype(weights))
        }
        embedding_backward { weights, output_grad, indices } => {
            let width = is_rank(shape(weights), 2)?[1];
            let rows = elements(is_rank(shape(indices), 2)?)?;
            same_size("output_grad", elements(shape(output_grad))?, mul(rows, width)?)?;
            one(shape(weights).clone(), dtype(output_grad))
        }

        // Products of matrices.
        float_matmul { lhs, rhs } | int_matmul { lhs, rhs } => {
            same_dtype(dtype(lhs), dtype(rhs))?;
            one(matmul(shape(lhs), shape(rhs))?, dtype(lhs))
        }
        q_matmul { lhs, rhs } => {
            let dtype = match (lhs, rhs) {
                (PrimId::Float(lhs), PrimId::Float(rhs)) => {
                    same_dtype(dtype(lhs), dtype(rhs))?;
                    dtype(lhs)
                }
                (PrimId::Float(float), _) | (_, PrimId::Float(float)) => dtype(float),
                (PrimId::Quantized(_), PrimId::Quantized(_)) => float,
            };
            one(matmul(shape(&lhs.value()), shape(&rhs.value()))?, dtype)
        }
        linear { x, weight, bias } => {
            same_dtype(dtype(x), dtype(weight))?;
            let product = matmul(shape(x), is_rank(shape(weight), 2)?)?;
            match bias {
                Some(bias) => one(broadcast(&product, is_rank(shape(bias), 1)?)?, dtype(x)),
                None => one(product, dtype(x)),
            }
        }
        linear_x_backward { weight, output_grad } => {
            same_dtype(dtype(output_grad), dtype(weight))?;
            let transposed = swapped(is_rank(shape(weight), 2)?, 0, 1)?;
            one(matmul(shape(output_grad), &transposed)?, dtype(output_grad))
        }
        linear_weight_backward { x, output_grad } => {
            same_dtype(dtype(x), dtype(output_grad))?;
            let (rank, last) = (at_least(shape(x), 2)?, at_least(shape(output_grad), 2)? - 1);
            let width = shape(output_grad)[last];
            gradient("output gradient", &with_size(shape(x), rank - 1, width)?, shape(output_grad))?;
            one(Shape::new([shape(x)[rank - 1], width]), dtype(x))
        }
        linear_bias_backward { output_grad } => {
            let rank = at_least(shape(output_grad), 1)?;
            one(Shape::new([shape(output_grad)[rank - 1]]), dtype(output_grad))
        }
        attention { query, key, value, mask, attn_bias, .. } => {
            let (q, k) = (is_rank(shape(query), 4)?, is_rank(shape(key), 4)?);
            let v = is_rank(shape(value), 4)?;
            for (what, left, right) in [
                ("batches of query and key", q[0], k[0]),
                ("heads of query and key", q[1], k[1]),
                ("widths of query and key", q[3], k[3]),
                ("batches of key and value", k[0], v[0]),
                ("heads of key and value", k[1], v[1]),
                ("lengths of key and value", k[2], v[2]),
            ] {
                same_size(what, left, right)?;
            }
            let scores = Shape::new([q[0], q[1], q[2], k[2]]);
            for extra in mask.iter().chain(attn_bias) {
                expanded(is_rank(shape(extra), 4)?, &scores)?;
            }
            one(Shape::new([q[0], q[1], q[2], v[3]]), dtype(query))
        }
        layer_norm { tensor, gamma, beta, .. } => {
            let rank = at_least(shape(tensor), 1)?;
            for scale in [Some(gamma), beta.as_ref()].into_iter().flatten() {
                same_size("width", elements(shape(scale))?, shape(tensor)[rank - 1])?;
            }
            Ok(smallvec![meta(*tensor).clone()])
        }

        // Convolutions.
        conv1d { x, weight, bias, options } => {
            let out = conv(shape(x), shape(weight), options.into())?;
            one(with_bias(out, bias.as_ref().map(shape))?, dtype(x))
        }
        conv2d { x, weight, bias, options } => {
            let out = conv(shape(x), shape(weight), options.into())?;
            one(with_bias(out, bias.as_ref().map(shape))?, dtype(x))
        }
        conv3d { x, weight, bias, options } => {
            let out = conv(shape(x), shape(weight), options.into())?;
            one(with_bias(out, bias.as_ref().map(shape))?, dtype(x))
        }
        deform_conv2d { x, offset, weight, mask, bias, options } => {
            let out = deform(shape(x), shape(offset), shape(weight), mask.as_ref().map(shape), options)?;
            one(with_bias(out, bias.as_ref().map(shape))?, dtype(x))
        }
        conv_transpose1d { x, weight, bias, options } => {
            let (options, padding_out) = transposed(options);
            let out = conv_transpose(shape(x), shape(weight), options, padding_out)?;
            one(with_bias(out, bias.as_ref().map(shape))?, dtype(x))
        }
        conv_transpose2d { x, weight, bias, options } => {
            let (options, padding_out) = transposed(options);
            let out = conv_transpose(shape(x), shape(weight), options, padding_out)?;
            one(with_bias(out, bias.as_ref().map(shape))?, dtype(x))
        }
        conv_transpose3d { x, weight, bias, options } => {
            let (options, padding_out) = transposed(options);
            let out = conv_transpose(shape(x), shape(weight), options, padding_out)?;
            one(with_bias(out, bias.as_ref().map(shape))?, dtype(x))
        }
        conv1d_x_backward { x, weight, output_grad, options } => {
            conv_gradient(shape(x), shape(weight), options.into(), shape(output_grad))?;
            one(shape(x).clone(), dtype(output_grad))
        }
        conv2d_x_backward { x, weight, output_grad, options } => {
            conv_gradient(shape(x), shape(weight), options.into(), shape(output_grad))?;
            one(shape(x).clone(), dtype(output_grad))
        }
        conv3d_x_backward { x, weight, output_grad, options } => {
            conv_gradient(shape(x), shape(weight), options.into(), shape(output_grad))?;
            one(shape(x).clone(), dtype(output_grad))
        }
        conv1d_weight_backward { x, weight, output_grad, options } => {
            conv_gradient(shape(x), shape(weight), options.into(), shape(output_grad))?;
            one(shape(weight).clone(), dtype(weight))
        }
        conv2d_weight_backward { x, weight, output_grad, options } => {
            conv_gradient(shape(x), shape(weight), options.into(), shape(output_grad))?;
            one(shape(weight).clone(), dtype(weight))
        }
        conv3d_weight_backward { x, weight, output_grad, options } => {
            conv_gradient(shape(x), shape(weight), options.into(), shape(output_grad))?;
            one(shape(weight).clone(), dtype(weight))
        }
        conv1d_bias_backward { bias, output_grad, .. }
        | conv2d_bias_backward { bias, output_grad, .. }
        | conv3d_bias_backward { bias, output_grad, .. }
        | conv_transpose1d_bias_backward { bias, output_grad, .. }
        | conv_transpose2d_bias_backward { bias, output_grad, .. }
        | conv_transpose3d_bias_backward { bias, output_grad, .. } => {
            at_least(shape(output_grad), 2)?;
            same_size("channels", elements(shape(bias))?, shape(output_grad)[1])?;
            one(shape(bias).clone(), dtype(output_grad))
        }
        conv_transpose1d_x_backward { weight, output_grad, options } => {
            let (options, padding_out) = transposed(options);
            let x = conv_transpose_input(shape(weight), shape(output_grad), options, padding_out)?;
            one(x, dtype(output_grad))
        }
        conv_transpose2d_x_backward { weight, output_grad, options } => {
            let (options, padding_out) = transposed(options);
            let x = conv_transpose_input(shape(weight), shape(output_grad), options, padding_out)?;
            one(x, dtype(output_grad))
        }
        conv_transpose3d_x_backward { weight, output_grad, options } => {
            let (options, padding_out) = transposed(options);
            let x = conv_transpose_input(shape(weight), shape(output_grad), options, padding_out)?;
            one(x, dtype(output_grad))
        }
        conv_transpose1d_weight_backward { x, weight, output_grad, options } => {
            let (options, padding_out) = transposed(options);
            let out = conv_transpose(shape(x), shape(weight), options, padding_out)?;
            gradient("output and its gradient", &out, shape(output_grad))?;
            one(shape(weight).clone(), dtype(weight))
        }
        conv_transpose2d_weight_backward { x, weight, output_grad, options } => {
            let (options, padding_out) = transposed(options);
            let out = conv_transpose(shape(x), shape(weight), options, padding_out)?;
            gradient("output and its gradient", &out, shape(output_grad))?;
            one(shape(weight).clone(), dtype(weight))
        }
        conv_transpose3d_weight_backward { x, weight, output_grad, options } => {
            let (options, padding_out) = transposed(options);
            let out = conv_transpose(shape(x), shape(weight), options, padding_out)?;
            gradient("output and its gradient", &out, shape(output_grad))?;
            one(shape(weight).clone(), dtype(weight))
        }
        deform_conv2d_backward { x, offset, weight, mask, bias, output_grad, options } => {
            let out = deform(shape(x), shape(offset), shape(weight), mask.as_ref().map(shape), options)?;
            gradient("output and its gradient", &out, shape(output_grad))?;
            with_bias(out, bias.as_ref().map(shape))?;
            let read = [Some(x), Some(offset), Some(weight), mask.as_ref(), bias.as_ref()];
            let grads = read.into_iter().flatten();
            Ok(grads.map(|value| Meta::new(shape(value).clone(), dtype(x))).collect())
        }
        unfold4d { x, kernel_size, options } => {
            let mut blocks = 1;
            let x_shape = is_rank(shape(x), 4)?;
            for i in 0..2 {
                let (stride, padding, dilation) =
                    (options.stride[i], options.padding[i], options.dilation[i]);
                let count = window_count(x_shape[2 + i], kernel_size[i], dilation, stride, padding)?;
                blocks = mul(blocks, count)?;
            }
            let rows = mul(x_shape[1], mul(kernel_size[0], kernel_size[1])?)?;
            one(Shape::new([x_shape[0], rows, blocks]), dtype(x))
        }

        // Pooling and resampling.
        avg_pool1d { x, kernel_size, stride, padding, ceil_mode, .. } => {
            one(pool(shape(x), [*kernel_size], [*stride], [*padding], [1], *ceil_mode)?, dtype(x))
        }
        avg_pool2d { x, kernel_size, stride, padding, ceil_mode, .. } => {
            one(pool(shape(x), *kernel_size, *stride, *padding, [1; 2], *ceil_mode)?, dtype(x))
        }
        max_pool1d { x, kernel_size, stride, padding, dilation, ceil_mode } => {
            one(pool(shape(x), [*kernel_size], [*stride], [*padding], [*dilation], *ceil_mode)?, dtype(x))
        }
        max_pool2d { x, kernel_size, stride, padding, dilation, ceil_mode } => {
            one(pool(shape(x), *kernel_size, *stride, *padding, *dilation, *ceil_mode)?, dtype(x))
        }
        max_pool1d_with_indices { x, kernel_size, stride, padding, dilation, ceil_mode } => two(
            pool(shape(x), [*kernel_size], [*stride], [*padding], [*dilation], *ceil_mode)?,
            dtype(x),
            index,
        ),
        max_pool2d_with_indices { x, kernel_size, stride, padding, dilation, ceil_mode } => {
            two(pool(shape(x), *kernel_size, *stride, *padding, *dilation, *ceil_mode)?, dtype(x), index)
        }
        avg_pool1d_backward { x, grad, kernel_size, stride, padding, ceil_mode, .. } => {
            let out = pool(shape(x), [*kernel_size], [*stride], [*padding], [1], *ceil_mode)?;
            gradient("output and its gradient", &out, shape(grad))?;
            Ok(smallvec![meta(*x).clone()])
        }
        avg_pool2d_backward { x, grad, kernel_size, stride, padding, ceil_mode, .. } => {
            let out = pool(shape(x), *kernel_size, *stride, *padding, [1; 2], *ceil_mode)?;
            gradient("output and its gradient", &out, shape(grad))?;
            Ok(smallvec![meta(*x).clone()])
        }
        max_pool1d_with_indices_backward {
            x,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            output_grad,
            indices,
        } => {
            let out = pool(shape(x), [*kernel_size], [*stride], [*padding], [*dilation], *ceil_mode)?;
            gradient("output and its gradient", &out, shape(output_grad))?;
            gradient("output and indices", &out, shape(indices))?;
            Ok(smallvec![meta(*x).clone()])
        }
        max_pool2d_with_indices_backward {
            x,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            output_grad,
            indices,
        } => {
            let out = pool(shape(x), *kernel_size, *stride, *padding, *dilation, *ceil_mode)?;
            gradient("output and its gradient", &out, shape(output_grad))?;
            gradient("output and indices", &out, shape(indices))?;
            Ok(smallvec![meta(*x).clone()])
        }
        adaptive_avg_pool1d { x, output_size } => one(resized(shape(x), [*output_size])?, dtype(x)),
        adaptive_avg_pool2d { x, output_size } => one(resized(shape(x), *output_size)?, dtype(x)),
        interpolate { x, output_size, .. } => one(resized(shape(x), *output_size)?, dtype(x)),
        adaptive_avg_pool1d_backward { x, grad } => {
            let size = is_rank(shape(grad), 3)?[2];
            gradient("output and its gradient", &resized(shape(x), [size])?, shape(grad))?;
            Ok(smallvec![meta(*x).clone()])
        }
        adaptive_avg_pool2d_backward { x, grad } => {
            let grad = is_rank(shape(grad), 4)?;
            gradient("output and its gradient", &resized(shape(x), [grad[2], grad[3]])?, grad)?;
            Ok(smallvec![meta(*x).clone()])
        }
        interpolate_backward { x, grad, output_size, .. } => {
            gradient("output and its gradient", &resized(shape(x), *output_size)?, shape(grad))?;
            Ok(smallvec![meta(*x).clone()])
        }
        float_grid_sample_2d { tensor, grid, .. } => {
            let (x, grid) = (is_rank(shape(tensor), 4)?, is_rank(shape(grid), 4)?);
            same_size("batches", x[0], grid[0])?;
            same_size("coordinates", grid[3], 2)?;
            one(Shape::new([x[0], x[1], grid[1], grid[2]]), dtype(tensor))
        }

        // Others.
        ctc_loss { log_probs, targets, input_lengths, target_lengths, blank } => one(
            ctc([log_probs, targets, input_lengths, target_lengths].map(shape), *blank)?,
            dtype(log_probs),
        ),
        ctc_loss_backward { log_probs, targets, input_lengths, target_lengths, grad_loss, blank } => {
            let loss = ctc([log_probs, targets, input_lengths, target_lengths].map(shape), *blank)?;
            gradient("loss and its gradient", &loss, shape(grad_loss))?;
            Ok(smallvec![meta(*log_probs).clone()])
        }
        rfft { signal, dim, n } => {
            let n = fft_size(*n, has_dim(shape(signal), *dim)?)?;
            two(with_size(shape(signal), *dim, n / 2 + 1)?, dtype(signal), dtype(signal))
        }
        irfft { spectrum_re, spectrum_im, dim, n } => {
            if shape(spectrum_re) != shape(spectrum_im) {
                return Err(shapes("real and imaginary parts", shape(spectrum_re), shape(spectrum_im)));
            }
            let half = has_dim(shape(spectrum_re), *dim)?;
            let n = fft_size(*n, mul(half.saturating_sub(1), 2)?)?;
            one(with_size(shape(spectrum_re), *dim, n)?, dtype(spectrum_re))
        }

        extension(_) => Err(Reason::Extension),
    }
}

fn one(shape: Shape, dtype: DType) -> Rule<Outputs> {
    Ok(smallvec![Meta { shape, dtype }])
}

/// Two results of one shape.
fn two(shape: Shape, first: DType, second: DType) -> Rule<Outputs> {
    Ok(smallvec![Meta { shape: shape.clone(), dtype: first }, Meta { shape, dtype: second }])
}
