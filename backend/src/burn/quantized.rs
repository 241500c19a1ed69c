//! `QTensorOps`, a line per method. What is not here Burn computes on the dequantised tensor.

use super::{execution_error, run, run_on};
use crate::ops::quantize;
use crate::qtensor::CudaQTensor;
use crate::{Cuda, CudaDevice, CudaTensor};
use burn_backend::ops::QTensorOps;
use burn_backend::quantization::QuantScheme;
use burn_backend::tensor::quantization::QuantizationParametersPrimitive;
use burn_backend::{ExecutionError, Shape, Slice, TensorData};
use burn_std::{FloatDType, IntDType};

impl QTensorOps<Cuda> for Cuda {
    fn q_from_data(data: TensorData, device: &CudaDevice) -> CudaQTensor {
        run_on!(device => quantize::from_data(data, device))
    }

    fn quantize(
        tensor: CudaTensor,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Cuda>,
    ) -> CudaQTensor {
        run!(tensor => quantize::quantize(&tensor, scheme, &qparams.scales))
    }

    fn quantize_dynamic(tensor: CudaTensor, scheme: &QuantScheme) -> CudaQTensor {
        run!(tensor => quantize::quantize_dynamic(&tensor, scheme))
    }

    fn dequantize(tensor: CudaQTensor, dtype: FloatDType) -> CudaTensor {
        run!(tensor => quantize::dequantize(&tensor, dtype.into()))
    }

    fn q_device(tensor: &CudaQTensor) -> CudaDevice {
        CudaDevice::new(tensor.device().index)
    }

    fn q_to_device(tensor: CudaQTensor, device: &CudaDevice) -> CudaQTensor {
        run_on!(device => quantize::to_device(tensor, device))
    }

    fn q_reshape(tensor: CudaQTensor, shape: Shape) -> CudaQTensor {
        run!(tensor => quantize::reshape(tensor, shape.as_slice()))
    }

    async fn q_into_data(tensor: CudaQTensor) -> Result<TensorData, ExecutionError> {
        let device = tensor.device().index;
        let read = quantize::into_data_many(Vec::new(), vec![tensor]);
        read.map(|(_, mut data)| data.remove(0)).map_err(|e| execution_error(device, "q_into_data", e))
    }

    fn q_expand(tensor: CudaQTensor, shape: Shape) -> CudaQTensor {
        run!(tensor => quantize::expand(tensor, shape.as_slice()))
    }

    fn q_swap_dims(tensor: CudaQTensor, dim1: usize, dim2: usize) -> CudaQTensor {
        run!(tensor => quantize::swap_dims(tensor, dim1, dim2))
    }

    fn q_permute(tensor: CudaQTensor, axes: &[usize]) -> CudaQTensor {
        run!(tensor => quantize::permute(tensor, axes))
    }

    fn q_flip(tensor: CudaQTensor, axes: &[usize]) -> CudaQTensor {
        run!(tensor => quantize::flip(tensor, axes))
    }

    fn q_select(tensor: CudaQTensor, dim: usize, indices: CudaTensor) -> CudaQTensor {
        run!(tensor => quantize::select(&tensor, dim, &indices))
    }

    fn q_slice(tensor: CudaQTensor, slices: &[Slice]) -> CudaQTensor {
        run!(tensor => quantize::slice(tensor, slices))
    }

    fn q_gather(dim: usize, tensor: CudaQTensor, indices: CudaTensor) -> CudaQTensor {
        run!(tensor => quantize::gather(dim, &tensor, &indices))
    }

    fn q_repeat_dim(tensor: CudaQTensor, dim: usize, times: usize) -> CudaQTensor {
        run!(tensor => quantize::repeat_dim(tensor, dim, times))
    }

    fn q_argmax(tensor: CudaQTensor, dim: usize, out_dtype: IntDType) -> CudaTensor {
        run!(tensor => quantize::argmax(&tensor, dim, out_dtype.into()))
    }

    fn q_argmin(tensor: CudaQTensor, dim: usize, out_dtype: IntDType) -> CudaTensor {
        run!(tensor => quantize::argmin(&tensor, dim, out_dtype.into()))
    }
}
