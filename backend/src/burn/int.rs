//! `IntTensorOps`, a line per method.

use super::{cat, default_int, read, run, run_on};
use crate::ops::elementwise::*;
use crate::ops::{cumulative, data, index, int_matmul, nd, random, reduce, sort, view};
use crate::{Cuda, CudaDevice, CudaTensor};
use burn_backend::ops::IntTensorOps;
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{Distribution, ExecutionError, Scalar, Shape, Slice, TensorData};
use burn_std::{BoolDType, FloatDType, IntDType};
use std::ops::Range;

impl IntTensorOps<Cuda> for Cuda {
    fn int_empty(shape: Shape, device: &CudaDevice, dtype: IntDType) -> CudaTensor {
        run_on!(device => data::empty(device, shape, dtype.into(), "empty"))
    }

    fn int_into_data(tensor: CudaTensor) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        read(tensor)
    }

    fn int_from_data(data: TensorData, device: &CudaDevice) -> CudaTensor {
        run_on!(device => data::from_data(data, device, "int_from_data"))
    }

    fn int_device(tensor: &CudaTensor) -> CudaDevice {
        CudaDevice::new(tensor.device().index)
    }

    fn int_to_device(tensor: CudaTensor, device: &CudaDevice) -> CudaTensor {
        run_on!(device => data::to_device(tensor, device))
    }

    fn int_reshape(tensor: CudaTensor, shape: Shape) -> CudaTensor {
        run!(tensor => tensor.reshape(shape.as_slice()))
    }

    fn int_slice(tensor: CudaTensor, slices: &[Slice]) -> CudaTensor {
        run!(tensor => view::slice(tensor, slices))
    }

    fn int_slice_assign(tensor: CudaTensor, slices: &[Slice], value: CudaTensor) -> CudaTensor {
        run!(tensor => index::slice_assign(tensor, slices, value))
    }

    fn int_into_float(tensor: CudaTensor, out_dtype: FloatDType) -> CudaTensor {
        run!(tensor => cast(tensor, out_dtype.into()))
    }

    fn int_mask_where(tensor: CudaTensor, mask: CudaTensor, value: CudaTensor) -> CudaTensor {
        run!(tensor => mask_where(tensor, mask, value))
    }

    fn int_mask_fill(tensor: CudaTensor, mask: CudaTensor, value: Scalar) -> CudaTensor {
        run!(tensor => mask_fill(tensor, mask, value))
    }

    fn int_gather(dim: usize, tensor: CudaTensor, indices: CudaTensor) -> CudaTensor {
        run!(tensor => index::gather(dim, &tensor, &indices))
    }

    fn int_scatter_add(dim: usize, tensor: CudaTensor, indices: CudaTensor, value: CudaTensor) -> CudaTensor {
        run!(tensor => index::scatter_add(dim, tensor, &indices, &value))
    }

    fn int_scatter_nd(
        data: CudaTensor,
        indices: CudaTensor,
        values: CudaTensor,
        reduction: IndexingUpdateOp,
    ) -> CudaTensor {
        run!(data => nd::scatter_nd(data, &indices, &values, reduction))
    }

    fn int_gather_nd(data: CudaTensor, indices: CudaTensor) -> CudaTensor {
        run!(data => nd::gather_nd(&data, &indices))
    }

    fn int_select(tensor: CudaTensor, dim: usize, indices: CudaTensor) -> CudaTensor {
        run!(tensor => index::select(&tensor, dim, &indices))
    }

    fn int_select_add(tensor: CudaTensor, dim: usize, indices: CudaTensor, value: CudaTensor) -> CudaTensor {
        run!(tensor => index::select_add(tensor, dim, &indices, &value))
    }

    fn int_repeat_dim(tensor: CudaTensor, dim: usize, times: usize) -> CudaTensor {
        run!(tensor => index::repeat_dim(&tensor, dim, times))
    }

    fn int_cat(tensors: Vec<CudaTensor>, dim: usize) -> CudaTensor {
        cat(tensors, dim)
    }

    fn int_equal(lhs: CudaTensor, rhs: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare(&EQUAL, lhs, rhs, out_dtype.into()))
    }

    fn int_not_equal(lhs: CudaTensor, rhs: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare(&NOT_EQUAL, lhs, rhs, out_dtype.into()))
    }

    fn int_equal_elem(lhs: CudaTensor, rhs: Scalar, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare_scalar(&EQUAL_SCALAR, lhs, rhs, out_dtype.into()))
    }

    fn int_not_equal_elem(lhs: CudaTensor, rhs: Scalar, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare_scalar(&NOT_EQUAL_SCALAR, lhs, rhs, out_dtype.into()))
    }

    fn int_greater(lhs: CudaTensor, rhs: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare(&GREATER, lhs, rhs, out_dtype.into()))
    }

    fn int_greater_elem(lhs: CudaTensor, rhs: Scalar, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare_scalar(&GREATER_SCALAR, lhs, rhs, out_dtype.into()))
    }

    fn int_greater_equal(lhs: CudaTensor, rhs: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare(&GREATER_EQUAL, lhs, rhs, out_dtype.into()))
    }

    fn int_greater_equal_elem(lhs: CudaTensor, rhs: Scalar, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare_scalar(&GREATER_EQUAL_SCALAR, lhs, rhs, out_dtype.into()))
    }

    fn int_lower(lhs: CudaTensor, rhs: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare(&LOWER, lhs, rhs, out_dtype.into()))
    }

    fn int_lower_elem(lhs: CudaTensor, rhs: Scalar, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare_scalar(&LOWER_SCALAR, lhs, rhs, out_dtype.into()))
    }

    fn int_lower_equal(lhs: CudaTensor, rhs: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare(&LOWER_EQUAL, lhs, rhs, out_dtype.into()))
    }

    fn int_lower_equal_elem(lhs: CudaTensor, rhs: Scalar, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare_scalar(&LOWER_EQUAL_SCALAR, lhs, rhs, out_dtype.into()))
    }

    fn int_add(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&ADD, lhs, rhs))
    }

    fn int_add_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&ADD_SCALAR, lhs, rhs))
    }

    fn int_powi(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&IPOW, lhs, rhs))
    }

    fn int_powi_scalar_impl(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&IPOW_SCALAR, lhs, rhs))
    }

    fn int_clamp_min(tensor: CudaTensor, min: Scalar) -> CudaTensor {
        run!(tensor => scalar(&CLAMP_MIN, tensor, min))
    }

    fn int_clamp_max(tensor: CudaTensor, max: Scalar) -> CudaTensor {
        run!(tensor => scalar(&CLAMP_MAX, tensor, max))
    }

    fn int_clamp(tensor: CudaTensor, min: Scalar, max: Scalar) -> CudaTensor {
        run!(tensor => scalar2(&CLAMP, tensor, min, max))
    }

    fn int_sub(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&SUB, lhs, rhs))
    }

    fn int_sub_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&SUB_SCALAR, lhs, rhs))
    }

    fn int_mul(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&MUL, lhs, rhs))
    }

    fn int_mul_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&MUL_SCALAR, lhs, rhs))
    }

    fn int_div(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&DIV, lhs, rhs))
    }

    fn int_div_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&DIV_SCALAR, lhs, rhs))
    }

    fn int_remainder(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&REM, lhs, rhs))
    }

    fn int_remainder_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&REM_SCALAR, lhs, rhs))
    }

    fn int_matmul(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => int_matmul::int_matmul(&lhs, &rhs))
    }

    fn int_neg(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary(&NEG, tensor))
    }

    fn int_zeros(shape: Shape, device: &CudaDevice, dtype: IntDType) -> CudaTensor {
        run_on!(device => zeros(device, shape, dtype.into(), "zeros"))
    }

    fn int_ones(shape: Shape, device: &CudaDevice, dtype: IntDType) -> CudaTensor {
        run_on!(device => full(device, shape, Scalar::Int(1), dtype.into(), "ones"))
    }

    fn int_full(shape: Shape, fill_value: Scalar, device: &CudaDevice, dtype: IntDType) -> CudaTensor {
        run_on!(device => full(device, shape, fill_value, dtype.into(), "full"))
    }

    fn int_sum(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::sum(&tensor))
    }

    fn int_sum_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::sum_dim(&tensor, dim))
    }

    fn int_prod(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::prod(&tensor))
    }

    fn int_prod_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::prod_dim(&tensor, dim))
    }

    fn int_mean(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::mean(&tensor))
    }

    fn int_mean_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::mean_dim(&tensor, dim))
    }

    fn int_cumsum(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => cumulative::cumsum(&tensor, dim))
    }

    fn int_cumprod(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => cumulative::cumprod(&tensor, dim))
    }

    fn int_cummin(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => cumulative::cummin(&tensor, dim))
    }

    fn int_cummax(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => cumulative::cummax(&tensor, dim))
    }

    fn int_argmax(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::argmax(&tensor, dim, default_int(&tensor)))
    }

    // Indices have the default integer dtype: that of the values, which Burn's own definitions give them, need not hold
    // them.
    fn int_argsort(tensor: CudaTensor, dim: usize, descending: bool) -> CudaTensor {
        run!(tensor => sort::argsort(&tensor, dim, descending, default_int(&tensor)))
    }

    fn int_sort(tensor: CudaTensor, dim: usize, descending: bool) -> CudaTensor {
        run!(tensor => sort::sort(&tensor, dim, descending))
    }

    fn int_sort_with_indices(tensor: CudaTensor, dim: usize, descending: bool) -> (CudaTensor, CudaTensor) {
        run!(tensor => sort::sort_with_indices(&tensor, dim, descending, default_int(&tensor)))
    }

    fn int_argtopk(tensor: CudaTensor, dim: usize, k: usize) -> CudaTensor {
        run!(tensor => sort::argtopk(&tensor, dim, k, default_int(&tensor)))
    }

    fn int_topk(tensor: CudaTensor, dim: usize, k: usize) -> CudaTensor {
        run!(tensor => sort::topk(&tensor, dim, k))
    }

    fn int_argmin(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::argmin(&tensor, dim, default_int(&tensor)))
    }

    fn int_max(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::max(&tensor))
    }

    fn int_max_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::max_dim(&tensor, dim))
    }

    fn int_max_dim_with_indices(tensor: CudaTensor, dim: usize) -> (CudaTensor, CudaTensor) {
        run!(tensor => reduce::max_dim_with_indices(&tensor, dim, default_int(&tensor)))
    }

    fn int_max_abs(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::max_abs(&tensor))
    }

    fn int_max_abs_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::max_abs_dim(&tensor, dim))
    }

    fn int_min(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::min(&tensor))
    }

    fn int_min_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::min_dim(&tensor, dim))
    }

    fn int_min_dim_with_indices(tensor: CudaTensor, dim: usize) -> (CudaTensor, CudaTensor) {
        run!(tensor => reduce::min_dim_with_indices(&tensor, dim, default_int(&tensor)))
    }

    fn int_abs(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary(&ABS, tensor))
    }

    fn int_transpose(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => view::transpose(tensor))
    }

    fn int_swap_dims(tensor: CudaTensor, dim1: usize, dim2: usize) -> CudaTensor {
        run!(tensor => view::swap_dims(tensor, dim1, dim2))
    }

    fn int_permute(tensor: CudaTensor, axes: &[usize]) -> CudaTensor {
        run!(tensor => view::permute(tensor, axes))
    }

    fn int_flip(tensor: CudaTensor, axes: &[usize]) -> CudaTensor {
        run!(tensor => view::flip(tensor, axes))
    }

    fn int_random(
        shape: Shape,
        distribution: Distribution,
        device: &CudaDevice,
        dtype: IntDType,
    ) -> CudaTensor {
        run_on!(device => random::random(device, shape, distribution, dtype.into()))
    }

    fn int_arange_step(range: Range<i64>, step: usize, device: &CudaDevice, dtype: IntDType) -> CudaTensor {
        run_on!(device => arange(device, range.start, range.end, step, dtype.into()))
    }

    fn int_arange(range: Range<i64>, device: &CudaDevice, dtype: IntDType) -> CudaTensor {
        run_on!(device => arange(device, range.start, range.end, 1, dtype.into()))
    }

    fn int_any(tensor: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(tensor => reduce::any(&tensor, out_dtype.into()))
    }

    fn int_any_dim(tensor: CudaTensor, dim: usize, out_dtype: BoolDType) -> CudaTensor {
        run!(tensor => reduce::any_dim(&tensor, dim, out_dtype.into()))
    }

    fn int_all(tensor: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(tensor => reduce::all(&tensor, out_dtype.into()))
    }

    fn int_all_dim(tensor: CudaTensor, dim: usize, out_dtype: BoolDType) -> CudaTensor {
        run!(tensor => reduce::all_dim(&tensor, dim, out_dtype.into()))
    }

    fn int_sign(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary(&SIGN, tensor))
    }

    fn int_expand(tensor: CudaTensor, shape: Shape) -> CudaTensor {
        run!(tensor => view::expand(tensor, shape.as_slice()))
    }

    fn bitwise_and(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&AND, lhs, rhs))
    }

    fn bitwise_and_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&AND_SCALAR, lhs, rhs))
    }

    fn bitwise_or(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&OR, lhs, rhs))
    }

    fn bitwise_or_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&OR_SCALAR, lhs, rhs))
    }

    fn bitwise_xor(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&XOR, lhs, rhs))
    }

    fn bitwise_xor_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&XOR_SCALAR, lhs, rhs))
    }

    fn bitwise_not(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary(&BITWISE_NOT, tensor))
    }

    fn bitwise_left_shift(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&SHL, lhs, rhs))
    }

    fn bitwise_left_shift_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&SHL_SCALAR, lhs, rhs))
    }

    fn bitwise_right_shift(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&SHR, lhs, rhs))
    }

    fn bitwise_right_shift_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&SHR_SCALAR, lhs, rhs))
    }

    fn int_cast(tensor: CudaTensor, dtype: IntDType) -> CudaTensor {
        run!(tensor => cast(tensor, dtype.into()))
    }

    fn int_unfold(tensor: CudaTensor, dim: usize, size: usize, step: usize) -> CudaTensor {
        run!(tensor => view::unfold(tensor, dim, size, step))
    }
}
