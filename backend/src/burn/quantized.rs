//! `QTensorOps`: not supported yet.

use super::unsupported;
use crate::{Cuda, CudaDevice, CudaTensor};
use burn_backend::ops::QTensorOps;
use burn_backend::quantization::QuantScheme;
use burn_backend::tensor::quantization::QuantizationParametersPrimitive;
use burn_backend::{ExecutionError, Shape, Slice, TensorData};
use burn_std::FloatDType;

impl QTensorOps<Cuda> for Cuda {
    fn q_from_data(_data: TensorData, _device: &CudaDevice) -> CudaTensor {
        unsupported!(q_from_data)
    }

    fn quantize(
        _tensor: CudaTensor,
        _scheme: &QuantScheme,
        _qparams: QuantizationParametersPrimitive<Cuda>,
    ) -> CudaTensor {
        unsupported!(quantize)
    }

    fn dequantize(_tensor: CudaTensor, _dtype: FloatDType) -> CudaTensor {
        unsupported!(dequantize)
    }

    fn q_device(tensor: &CudaTensor) -> CudaDevice {
        CudaDevice::new(tensor.device().index)
    }

    fn q_to_device(_tensor: CudaTensor, _device: &CudaDevice) -> CudaTensor {
        unsupported!(q_to_device)
    }

    fn q_reshape(_tensor: CudaTensor, _shape: Shape) -> CudaTensor {
        unsupported!(q_reshape)
    }

    async fn q_into_data(_tensor: CudaTensor) -> Result<TensorData, ExecutionError> {
        unsupported!(q_into_data)
    }

    fn q_expand(_tensor: CudaTensor, _shape: Shape) -> CudaTensor {
        unsupported!(q_expand)
    }

    fn q_swap_dims(_tensor: CudaTensor, _dim1: usize, _dim2: usize) -> CudaTensor {
        unsupported!(q_swap_dims)
    }

    fn q_permute(_tensor: CudaTensor, _axes: &[usize]) -> CudaTensor {
        unsupported!(q_permute)
    }

    fn q_flip(_tensor: CudaTensor, _axes: &[usize]) -> CudaTensor {
        unsupported!(q_flip)
    }

    fn q_select(_tensor: CudaTensor, _dim: usize, _indices: CudaTensor) -> CudaTensor {
        unsupported!(q_select)
    }

    fn q_slice(_tensor: CudaTensor, _slices: &[Slice]) -> CudaTensor {
        unsupported!(q_slice)
    }
}
