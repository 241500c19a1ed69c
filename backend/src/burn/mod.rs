//! Burn's traits for [`Cuda`]: flat tables that hand over to `ops`.

mod activation;
mod bool;
mod float;
mod int;
mod ir;
mod module;
mod quantized;
mod transaction;

use burn_backend::{
    Backend, BackendTypes, DTypeUsage, DTypeUsageSet, ExecutionError, TensorData, get_device_settings,
};
use burn_std::DType;

use crate::device::{CudaDevice, Device};
use crate::driver::context::device_count;
use crate::error::{Error, Result};
use crate::ops::{data, index};
use crate::qtensor::CudaQTensor;
use crate::tensor::CudaTensor;

/// The eager CUDA backend: each operation is queued on the device when it is called.
///
/// One type carries every dtype; the defaults are `f32`, `i32` and `bool`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cuda;

/// Burn's methods return no `Result`: what the host detects becomes a panic that names device, method, op, shapes and
/// dtypes.
#[track_caller]
pub(crate) fn done<T>(device: usize, method: &str, result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("cuda:{device}: {}", error.in_method(name(method))),
    }
}

/// The path of the function that it stands in, which is the method that the user called, whatever operations it is made
/// of.
macro_rules! method {
    () => {{
        fn here() {}
        std::any::type_name_of_val(&here)
    }};
}
pub(crate) use method;

/// The last name of a [`method!`]'s path: `..::float_add::here`, `..::bool_argwhere::{{closure}}::here`.
fn name(path: &str) -> &str {
    path.rsplit("::").find(|name| !["here", "{{closure}}"].contains(name)).unwrap_or(path)
}

/// `run!(x => op(x, ..))` evaluates the op, and panics with the device of `x` if it fails.
macro_rules! run {
    ($tensor:ident => $op:expr) => {{
        let device = $tensor.device().index;
        $crate::burn::done(device, $crate::burn::method!(), $op)
    }};
}
use run;

/// `run_on!(device => op(device, ..))`, for a `&CudaDevice`, which the op sees as the opened device.
macro_rules! run_on {
    ($device:ident => $op:expr) => {{
        let index = $device.index;
        let $device = $crate::burn::done(index, $crate::burn::method!(), $crate::device::Device::get(index));
        $crate::burn::done(index, $crate::burn::method!(), $op)
    }};
}
use run_on;

/// The device's default integer dtype.
fn default_int(tensor: &CudaTensor) -> DType {
    get_device_settings::<Cuda>(&CudaDevice::new(tensor.device().index)).int_dtype.into()
}

fn cat(tensors: Vec<CudaTensor>, dim: usize) -> CudaTensor {
    let device = tensors.first().map_or(0, |t| t.device().index);
    done(device, "cat", index::cat(&tensors, dim))
}

fn execution_error(device: usize, method: &str, error: Error) -> ExecutionError {
    ExecutionError::WithContext { reason: format!("cuda:{device}: {}", error.in_method(method)) }
}

async fn read(tensor: CudaTensor) -> std::result::Result<TensorData, ExecutionError> {
    let device = tensor.device().index;
    data::into_data(tensor).map_err(|e| execution_error(device, "into_data", e))
}

impl BackendTypes for Cuda {
    type Device = CudaDevice;
    type FloatTensorPrimitive = CudaTensor;
    type FloatElem = f32;
    type IntTensorPrimitive = CudaTensor;
    type IntElem = i32;
    type BoolTensorPrimitive = CudaTensor;
    type BoolElem = bool;
    type QuantizedTensorPrimitive = CudaQTensor;
}

impl Backend for Cuda {
    fn name(_device: &CudaDevice) -> String {
        "cuda".into()
    }

    fn seed(device: &CudaDevice, seed: u64) {
        done(device.index, method!(), Device::get(device.index)).random.seed(seed);
    }

    fn sync(device: &CudaDevice) -> std::result::Result<(), ExecutionError> {
        device.sync().map_err(|e| execution_error(device.index, "sync", e))
    }

    fn memory_cleanup(device: &CudaDevice) {
        done(device.index, method!(), device.empty_cache());
    }

    /// Quantised numbers are stored and converted; arithmetic on them is that of floats. Matrix units serve 16-bit floats,
    /// f32 once TF32 is allowed, and f64 where the device has units for it.
    fn dtype_usage(device: &CudaDevice, dtype: DType) -> DTypeUsageSet {
        if let DType::QFloat(scheme) = dtype {
            let stored = crate::qtensor::check_scheme("dtype_usage", &scheme).is_ok();
            return if stored { DTypeUsage::Storage.into() } else { DTypeUsageSet::empty() };
        }
        if crate::dtype::Elem::of("dtype_usage", dtype).is_err() {
            return DTypeUsageSet::empty();
        }
        let accelerated = match dtype {
            DType::F16 | DType::BF16 => true,
            DType::F32 | DType::Flex32 => crate::ops::matmul::tf32_allowed(),
            DType::F64 => device.props().is_ok_and(|props| props.has_f64_matrix_units()),
            _ => false,
        };
        if accelerated { DTypeUsage::general() | DTypeUsage::Accelerated } else { DTypeUsage::general() }
    }

    fn device_count(_type_id: u16) -> usize {
        device_count().unwrap_or(0)
    }
}
