//! `FloatTensorOps`, a line per method.

use super::{cat, read, run, run_on};
use crate::ops::elementwise::*;
use crate::ops::{cumulative, data, grid_sample, index, matmul, nd, random, reduce, sort, view};
use crate::{Cuda, CudaDevice, CudaTensor};
use burn_backend::ops::{FloatTensorOps, GridSampleOptions};
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{Distribution, ExecutionError, Scalar, Shape, Slice, TensorData};
use burn_std::{BoolDType, FloatDType, IntDType};

impl FloatTensorOps<Cuda> for Cuda {
    fn float_from_data(data: TensorData, device: &CudaDevice) -> CudaTensor {
        run_on!(device => data::from_data(data, device, "float_from_data"))
    }

    fn float_random(
        shape: Shape,
        distribution: Distribution,
        device: &CudaDevice,
        dtype: FloatDType,
    ) -> CudaTensor {
        run_on!(device => random::random(device, shape, distribution, dtype.into()))
    }

    fn float_zeros(shape: Shape, device: &CudaDevice, dtype: FloatDType) -> CudaTensor {
        run_on!(device => zeros(device, shape, dtype.into(), "zeros"))
    }

    fn float_ones(shape: Shape, device: &CudaDevice, dtype: FloatDType) -> CudaTensor {
        run_on!(device => full(device, shape, Scalar::Int(1), dtype.into(), "ones"))
    }

    fn float_full(shape: Shape, fill_value: Scalar, device: &CudaDevice, dtype: FloatDType) -> CudaTensor {
        run_on!(device => full(device, shape, fill_value, dtype.into(), "full"))
    }

    fn float_into_data(
        tensor: CudaTensor,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        read(tensor)
    }

    fn float_device(tensor: &CudaTensor) -> CudaDevice {
        CudaDevice::new(tensor.device().index)
    }

    fn float_to_device(tensor: CudaTensor, device: &CudaDevice) -> CudaTensor {
        run_on!(device => data::to_device(tensor, device))
    }

    fn float_into_int(tensor: CudaTensor, out_dtype: IntDType) -> CudaTensor {
        run!(tensor => cast(tensor, out_dtype.into()))
    }

    fn float_empty(shape: Shape, device: &CudaDevice, dtype: FloatDType) -> CudaTensor {
        run_on!(device => data::empty(device, shape, dtype.into(), "empty"))
    }

    fn float_repeat_dim(tensor: CudaTensor, dim: usize, times: usize) -> CudaTensor {
        run!(tensor => index::repeat_dim(&tensor, dim, times))
    }

    fn float_add(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&ADD, lhs, rhs))
    }

    fn float_add_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&ADD_SCALAR, lhs, rhs))
    }

    fn float_clamp_min(tensor: CudaTensor, min: Scalar) -> CudaTensor {
        run!(tensor => scalar(&CLAMP_MIN, tensor, min))
    }

    fn float_clamp_max(tensor: CudaTensor, max: Scalar) -> CudaTensor {
        run!(tensor => scalar(&CLAMP_MAX, tensor, max))
    }

    fn float_clamp(tensor: CudaTensor, min: Scalar, max: Scalar) -> CudaTensor {
        run!(tensor => scalar2(&CLAMP, tensor, min, max))
    }

    fn float_sub(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&SUB, lhs, rhs))
    }

    fn float_sub_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&SUB_SCALAR, lhs, rhs))
    }

    fn float_mul(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&MUL, lhs, rhs))
    }

    fn float_mul_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&MUL_SCALAR, lhs, rhs))
    }

    fn float_div(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&DIV, lhs, rhs))
    }

    fn float_div_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&DIV_SCALAR, lhs, rhs))
    }

    fn float_remainder(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&REM, lhs, rhs))
    }

    fn float_remainder_scalar(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&REM_SCALAR, lhs, rhs))
    }

    fn float_matmul(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => matmul::matmul(&lhs, &rhs))
    }

    fn float_cross(lhs: CudaTensor, rhs: CudaTensor, dim: usize) -> CudaTensor {
        run!(lhs => nd::cross(&lhs, &rhs, dim))
    }

    fn float_neg(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary(&NEG, tensor))
    }

    fn float_recip(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&RECIP, tensor))
    }

    fn float_transpose(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => view::transpose(tensor))
    }

    fn float_swap_dims(tensor: CudaTensor, dim1: usize, dim2: usize) -> CudaTensor {
        run!(tensor => view::swap_dims(tensor, dim1, dim2))
    }

    fn float_permute(tensor: CudaTensor, axes: &[usize]) -> CudaTensor {
        run!(tensor => view::permute(tensor, axes))
    }

    fn float_flip(tensor: CudaTensor, axes: &[usize]) -> CudaTensor {
        run!(tensor => view::flip(tensor, axes))
    }

    fn float_reshape(tensor: CudaTensor, shape: Shape) -> CudaTensor {
        run!(tensor => tensor.reshape(shape.as_slice()))
    }

    fn float_gather(dim: usize, tensor: CudaTensor, indices: CudaTensor) -> CudaTensor {
        run!(tensor => index::gather(dim, &tensor, &indices))
    }

    fn float_scatter_add(
        dim: usize,
        tensor: CudaTensor,
        indices: CudaTensor,
        value: CudaTensor,
    ) -> CudaTensor {
        run!(tensor => index::scatter_add(dim, tensor, &indices, &value))
    }

    fn float_scatter_nd(
        data: CudaTensor,
        indices: CudaTensor,
        values: CudaTensor,
        reduction: IndexingUpdateOp,
    ) -> CudaTensor {
        run!(data => nd::scatter_nd(data, &indices, &values, reduction))
    }

    fn float_gather_nd(data: CudaTensor, indices: CudaTensor) -> CudaTensor {
        run!(data => nd::gather_nd(&data, &indices))
    }

    fn float_grid_sample_2d(tensor: CudaTensor, grid: CudaTensor, options: GridSampleOptions) -> CudaTensor {
        run!(tensor => grid_sample::grid_sample_2d(&tensor, &grid, &options))
    }

    fn float_select(tensor: CudaTensor, dim: usize, indices: CudaTensor) -> CudaTensor {
        run!(tensor => index::select(&tensor, dim, &indices))
    }

    fn float_select_add(
        tensor: CudaTensor,
        dim: usize,
        indices: CudaTensor,
        value: CudaTensor,
    ) -> CudaTensor {
        run!(tensor => index::select_add(tensor, dim, &indices, &value))
    }

    fn float_slice(tensor: CudaTensor, slices: &[Slice]) -> CudaTensor {
        run!(tensor => view::slice(tensor, slices))
    }

    fn float_slice_assign(tensor: CudaTensor, slices: &[Slice], value: CudaTensor) -> CudaTensor {
        run!(tensor => index::slice_assign(tensor, slices, value))
    }

    fn float_mask_where(tensor: CudaTensor, mask: CudaTensor, value: CudaTensor) -> CudaTensor {
        run!(tensor => mask_where(tensor, mask, value))
    }

    fn float_mask_fill(tensor: CudaTensor, mask: CudaTensor, value: Scalar) -> CudaTensor {
        run!(tensor => mask_fill(tensor, mask, value))
    }

    fn float_equal(lhs: CudaTensor, rhs: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare(&EQUAL, lhs, rhs, out_dtype.into()))
    }

    fn float_not_equal(lhs: CudaTensor, rhs: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare(&NOT_EQUAL, lhs, rhs, out_dtype.into()))
    }

    fn float_equal_elem(lhs: CudaTensor, rhs: Scalar, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare_scalar(&EQUAL_SCALAR, lhs, rhs, out_dtype.into()))
    }

    fn float_not_equal_elem(lhs: CudaTensor, rhs: Scalar, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare_scalar(&NOT_EQUAL_SCALAR, lhs, rhs, out_dtype.into()))
    }

    fn float_greater(lhs: CudaTensor, rhs: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare(&GREATER, lhs, rhs, out_dtype.into()))
    }

    fn float_greater_elem(lhs: CudaTensor, rhs: Scalar, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare_scalar(&GREATER_SCALAR, lhs, rhs, out_dtype.into()))
    }

    fn float_greater_equal(lhs: CudaTensor, rhs: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare(&GREATER_EQUAL, lhs, rhs, out_dtype.into()))
    }

    fn float_greater_equal_elem(lhs: CudaTensor, rhs: Scalar, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare_scalar(&GREATER_EQUAL_SCALAR, lhs, rhs, out_dtype.into()))
    }

    fn float_lower(lhs: CudaTensor, rhs: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare(&LOWER, lhs, rhs, out_dtype.into()))
    }

    fn float_lower_elem(lhs: CudaTensor, rhs: Scalar, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare_scalar(&LOWER_SCALAR, lhs, rhs, out_dtype.into()))
    }

    fn float_lower_equal(lhs: CudaTensor, rhs: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare(&LOWER_EQUAL, lhs, rhs, out_dtype.into()))
    }

    fn float_lower_equal_elem(lhs: CudaTensor, rhs: Scalar, out_dtype: BoolDType) -> CudaTensor {
        run!(lhs => compare_scalar(&LOWER_EQUAL_SCALAR, lhs, rhs, out_dtype.into()))
    }

    fn float_sum(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::sum(&tensor))
    }

    fn float_sum_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::sum_dim(&tensor, dim))
    }

    fn float_prod(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::prod(&tensor))
    }

    fn float_prod_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::prod_dim(&tensor, dim))
    }

    fn float_mean(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::mean(&tensor))
    }

    fn float_mean_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::mean_dim(&tensor, dim))
    }

    fn float_cumsum(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => cumulative::cumsum(&tensor, dim))
    }

    fn float_cumprod(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => cumulative::cumprod(&tensor, dim))
    }

    fn float_cummin(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => cumulative::cummin(&tensor, dim))
    }

    fn float_cummax(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => cumulative::cummax(&tensor, dim))
    }

    fn float_cast(tensor: CudaTensor, dtype: FloatDType) -> CudaTensor {
        run!(tensor => cast(tensor, dtype.into()))
    }

    fn float_exp(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&EXP, tensor))
    }

    fn float_log(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&LOG, tensor))
    }

    fn float_log1p(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&LOG1P, tensor))
    }

    fn float_powf(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&POW, lhs, rhs))
    }

    fn float_powf_scalar_impl(tensor: CudaTensor, value: Scalar) -> CudaTensor {
        run!(tensor => scalar(&POW_SCALAR, tensor, value))
    }

    fn float_sqrt(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&SQRT, tensor))
    }

    fn float_abs(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary(&ABS, tensor))
    }

    fn float_cos(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&COS, tensor))
    }

    fn float_sin(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&SIN, tensor))
    }

    fn float_tan(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&TAN, tensor))
    }

    fn float_cosh(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&COSH, tensor))
    }

    fn float_sinh(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&SINH, tensor))
    }

    fn float_tanh(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&TANH, tensor))
    }

    fn float_acos(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&ACOS, tensor))
    }

    fn float_acosh(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&ACOSH, tensor))
    }

    fn float_asin(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&ASIN, tensor))
    }

    fn float_asinh(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&ASINH, tensor))
    }

    fn float_atan(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&ATAN, tensor))
    }

    fn float_atanh(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&ATANH, tensor))
    }

    fn float_atan2(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&ATAN2, lhs, rhs))
    }

    fn float_round(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&ROUND, tensor))
    }

    fn float_floor(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&FLOOR, tensor))
    }

    fn float_ceil(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&CEIL, tensor))
    }

    fn float_trunc(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&TRUNC, tensor))
    }

    fn float_erf(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&ERF, tensor))
    }

    fn float_cat(tensors: Vec<CudaTensor>, dim: usize) -> CudaTensor {
        cat(tensors, dim)
    }

    fn float_argmax(tensor: CudaTensor, dim: usize, out_dtype: IntDType) -> CudaTensor {
        run!(tensor => reduce::argmax(&tensor, dim, out_dtype.into()))
    }

    fn float_argtopk(tensor: CudaTensor, dim: usize, k: usize, out_dtype: IntDType) -> CudaTensor {
        run!(tensor => sort::argtopk(&tensor, dim, k, out_dtype.into()))
    }

    fn float_topk(tensor: CudaTensor, dim: usize, k: usize) -> CudaTensor {
        run!(tensor => sort::topk(&tensor, dim, k))
    }

    fn float_sort(tensor: CudaTensor, dim: usize, descending: bool) -> CudaTensor {
        run!(tensor => sort::sort(&tensor, dim, descending))
    }

    fn float_sort_with_indices(
        tensor: CudaTensor,
        dim: usize,
        descending: bool,
        indices_dtype: IntDType,
    ) -> (CudaTensor, CudaTensor) {
        run!(tensor => sort::sort_with_indices(&tensor, dim, descending, indices_dtype.into()))
    }

    fn float_argsort(tensor: CudaTensor, dim: usize, descending: bool, out_dtype: IntDType) -> CudaTensor {
        run!(tensor => sort::argsort(&tensor, dim, descending, out_dtype.into()))
    }

    fn float_argmin(tensor: CudaTensor, dim: usize, out_dtype: IntDType) -> CudaTensor {
        run!(tensor => reduce::argmin(&tensor, dim, out_dtype.into()))
    }

    fn float_max(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::max(&tensor))
    }

    fn float_max_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::max_dim(&tensor, dim))
    }

    fn float_max_dim_with_indices(
        tensor: CudaTensor,
        dim: usize,
        indices_dtype: IntDType,
    ) -> (CudaTensor, CudaTensor) {
        run!(tensor => reduce::max_dim_with_indices(&tensor, dim, indices_dtype.into()))
    }

    fn float_min(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::min(&tensor))
    }

    fn float_min_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::min_dim(&tensor, dim))
    }

    fn float_min_dim_with_indices(
        tensor: CudaTensor,
        dim: usize,
        indices_dtype: IntDType,
    ) -> (CudaTensor, CudaTensor) {
        run!(tensor => reduce::min_dim_with_indices(&tensor, dim, indices_dtype.into()))
    }

    fn float_max_abs(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::max_abs(&tensor))
    }

    fn float_max_abs_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::max_abs_dim(&tensor, dim))
    }

    fn float_any(tensor: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(tensor => reduce::any(&tensor, out_dtype.into()))
    }

    fn float_any_dim(tensor: CudaTensor, dim: usize, out_dtype: BoolDType) -> CudaTensor {
        run!(tensor => reduce::any_dim(&tensor, dim, out_dtype.into()))
    }

    fn float_all(tensor: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(tensor => reduce::all(&tensor, out_dtype.into()))
    }

    fn float_all_dim(tensor: CudaTensor, dim: usize, out_dtype: BoolDType) -> CudaTensor {
        run!(tensor => reduce::all_dim(&tensor, dim, out_dtype.into()))
    }

    fn float_sign(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary(&SIGN, tensor))
    }

    fn float_expand(tensor: CudaTensor, shape: Shape) -> CudaTensor {
        run!(tensor => view::expand(tensor, shape.as_slice()))
    }

    fn float_unfold(tensor: CudaTensor, dim: usize, size: usize, step: usize) -> CudaTensor {
        run!(tensor => view::unfold(tensor, dim, size, step))
    }

    fn float_is_nan(tensor: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(tensor => unary_to(&IS_NAN, tensor, out_dtype.into()))
    }

    fn float_is_inf(tensor: CudaTensor, out_dtype: BoolDType) -> CudaTensor {
        run!(tensor => unary_to(&IS_INF, tensor, out_dtype.into()))
    }
}
