//! `BoolTensorOps`, a line per method.

use super::{cat, read, run, run_on};
use crate::ops::elementwise::*;
use crate::ops::{data, index, reduce, sort, view};
use crate::{Cuda, CudaDevice, CudaTensor};
use burn_backend::ops::BoolTensorOps;
use burn_backend::{ExecutionError, Scalar, Shape, Slice, TensorData, TensorMetadata};
use burn_std::{BoolDType, FloatDType, IntDType};

impl BoolTensorOps<Cuda> for Cuda {
    fn bool_empty(shape: Shape, device: &CudaDevice, dtype: BoolDType) -> CudaTensor {
        run_on!(device => data::empty(device, shape, dtype.into(), "empty"))
    }

    fn bool_zeros(shape: Shape, device: &CudaDevice, dtype: BoolDType) -> CudaTensor {
        run_on!(device => zeros(device, shape, dtype.into(), "zeros"))
    }

    fn bool_ones(shape: Shape, device: &CudaDevice, dtype: BoolDType) -> CudaTensor {
        run_on!(device => full(device, shape, Scalar::Bool(true), dtype.into(), "ones"))
    }

    fn bool_into_data(tensor: CudaTensor) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        read(tensor)
    }

    fn bool_from_data(data: TensorData, device: &CudaDevice) -> CudaTensor {
        run_on!(device => data::from_data(data, device, "bool_from_data"))
    }

    fn bool_into_int(tensor: CudaTensor, out_dtype: IntDType) -> CudaTensor {
        run!(tensor => cast(tensor, out_dtype.into()))
    }

    fn bool_into_float(tensor: CudaTensor, out_dtype: FloatDType) -> CudaTensor {
        run!(tensor => cast(tensor, out_dtype.into()))
    }

    fn bool_device(tensor: &CudaTensor) -> CudaDevice {
        CudaDevice::new(tensor.device().index)
    }

    fn bool_to_device(tensor: CudaTensor, device: &CudaDevice) -> CudaTensor {
        run_on!(device => data::to_device(tensor, device))
    }

    fn bool_reshape(tensor: CudaTensor, shape: Shape) -> CudaTensor {
        run!(tensor => tensor.reshape(shape.as_slice()))
    }

    fn bool_slice(tensor: CudaTensor, slices: &[Slice]) -> CudaTensor {
        run!(tensor => view::slice(tensor, slices))
    }

    fn bool_slice_assign(tensor: CudaTensor, slices: &[Slice], value: CudaTensor) -> CudaTensor {
        run!(tensor => index::slice_assign(tensor, slices, value))
    }

    fn bool_mask_where(tensor: CudaTensor, mask: CudaTensor, value: CudaTensor) -> CudaTensor {
        run!(tensor => mask_where(tensor, mask, value))
    }

    fn bool_mask_fill(tensor: CudaTensor, mask: CudaTensor, value: Scalar) -> CudaTensor {
        run!(tensor => mask_fill(tensor, mask, value))
    }

    fn bool_gather(dim: usize, tensor: CudaTensor, indices: CudaTensor) -> CudaTensor {
        run!(tensor => index::gather(dim, &tensor, &indices))
    }

    fn bool_scatter_or(dim: usize, tensor: CudaTensor, indices: CudaTensor, value: CudaTensor) -> CudaTensor {
        run!(tensor => index::scatter_or(dim, tensor, &indices, &value))
    }

    fn bool_select(tensor: CudaTensor, dim: usize, indices: CudaTensor) -> CudaTensor {
        run!(tensor => index::select(&tensor, dim, &indices))
    }

    fn bool_select_or(tensor: CudaTensor, dim: usize, indices: CudaTensor, value: CudaTensor) -> CudaTensor {
        run!(tensor => index::select_or(tensor, dim, &indices, &value))
    }

    fn bool_repeat_dim(tensor: CudaTensor, dim: usize, times: usize) -> CudaTensor {
        run!(tensor => index::repeat_dim(&tensor, dim, times))
    }

    fn bool_cat(tensors: Vec<CudaTensor>, dim: usize) -> CudaTensor {
        cat(tensors, dim)
    }

    fn bool_equal(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&EQUAL, lhs, rhs))
    }

    fn bool_not_equal(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&NOT_EQUAL, lhs, rhs))
    }

    fn bool_equal_elem(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&EQUAL_SCALAR, lhs, rhs))
    }

    fn bool_not_equal_elem(lhs: CudaTensor, rhs: Scalar) -> CudaTensor {
        run!(lhs => scalar(&NOT_EQUAL_SCALAR, lhs, rhs))
    }

    fn bool_not(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary(&NOT, tensor))
    }

    fn bool_and(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&AND, lhs, rhs))
    }

    fn bool_or(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&OR, lhs, rhs))
    }

    fn bool_xor(lhs: CudaTensor, rhs: CudaTensor) -> CudaTensor {
        run!(lhs => binary(&NOT_EQUAL, lhs, rhs))
    }

    fn bool_transpose(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => view::transpose(tensor))
    }

    fn bool_swap_dims(tensor: CudaTensor, dim1: usize, dim2: usize) -> CudaTensor {
        run!(tensor => view::swap_dims(tensor, dim1, dim2))
    }

    fn bool_permute(tensor: CudaTensor, axes: &[usize]) -> CudaTensor {
        run!(tensor => view::permute(tensor, axes))
    }

    fn bool_flip(tensor: CudaTensor, axes: &[usize]) -> CudaTensor {
        run!(tensor => view::flip(tensor, axes))
    }

    fn bool_any(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::any(&tensor, tensor.dtype()))
    }

    fn bool_any_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::any_dim(&tensor, dim, tensor.dtype()))
    }

    fn bool_all(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => reduce::all(&tensor, tensor.dtype()))
    }

    fn bool_all_dim(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => reduce::all_dim(&tensor, dim, tensor.dtype()))
    }

    async fn bool_argwhere(tensor: CudaTensor, out_dtype: IntDType) -> CudaTensor {
        run!(tensor => sort::argwhere(&tensor, out_dtype.into()))
    }

    fn bool_expand(tensor: CudaTensor, shape: Shape) -> CudaTensor {
        run!(tensor => view::expand(tensor, shape.as_slice()))
    }

    fn bool_unfold(tensor: CudaTensor, dim: usize, size: usize, step: usize) -> CudaTensor {
        run!(tensor => view::unfold(tensor, dim, size, step))
    }
}
