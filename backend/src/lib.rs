//! `Cuda`: an eager [Burn](burn_backend) backend for NVIDIA GPUs.
//!
//! Read in this order: [`layout`] (where elements lie), [`tensor`] and [`qtensor`], `ops` (what can be done with tensors), `kernels`
//! (the CUDA code and its launchers), `driver` and `memory` (the CUDA driver), `compile` (NVRTC and its cache),
//! `burn` (Burn's traits, which hand over to `ops`).
//!
//! Nothing here needs CUDA to build. The driver, NVRTC and cuBLASLt are loaded when the first device is opened;
//! [`CudaDevice::availability`] says whether that will work and, if not, what to do.

mod burn;
mod compile;
mod device;
mod driver;
mod dtype;
mod error;
mod faults;
mod fusion;
#[cfg(all(test, feature = "gpu"))]
mod gpu_tests;
mod kernels;
pub mod layout;
mod memory;
mod ops;
pub mod qtensor;
pub mod tensor;

pub use burn::Cuda;
pub use compile::CompileStats;
pub use device::{CudaDevice, LaunchStats};
pub use driver::context::DeviceProps;
pub use driver::event::Event;
pub use driver::graph::Graph;
pub use error::{Error, Result};
pub use memory::MemoryStats;
pub use ops::cudnn::ConvAlgorithm;
pub use qtensor::CudaQTensor;
pub use tensor::CudaTensor;
