//! Kiln's backends, as this program uses them.

pub(crate) use kiln::{Cuda, CudaDevice, Fusion};

/// The number of CUDA devices, or what is missing and how to get it.
pub(crate) fn availability() -> Result<usize, String> {
    CudaDevice::availability().map_err(|error| error.to_string())
}

pub(crate) fn device(index: usize) -> CudaDevice {
    CudaDevice::new(index)
}
