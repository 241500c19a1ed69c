//! Kiln: a [Burn](https://burn.dev) backend for NVIDIA GPUs.
//!
//! A model written over Burn's `Backend` type parameter runs on the GPU through hand-tuned CUDA kernels by changing
//! one type:
//!
//! ```
//! use burn::backend::Autodiff;
//! use burn::tensor::{Distribution, Tensor, backend::Backend};
//!
//! fn loss<B: Backend>(device: &B::Device) -> Tensor<B, 1> {
//!     let x = Tensor::<B, 2>::random([64, 8], Distribution::Default, device);
//!     let w = Tensor::<B, 2>::random([8, 4], Distribution::Default, device);
//!     x.matmul(w).powi_scalar(2).mean()
//! }
//!
//! // On the GPU where there is one, else on the CPU.
//! match kiln::CudaDevice::availability() {
//!     Ok(_) => println!("{}", loss::<Autodiff<kiln::Cuda>>(&kiln::CudaDevice::new(0))),
//!     Err(why) => {
//!         println!("no GPU: {why}");
//!         println!("{}", loss::<Autodiff<burn_flex::Flex>>(&Default::default()));
//!     }
//! }
//! ```
//!
//! [`Fusion<B>`](Fusion) records what a program does on `B` and runs it as whole graphs: interpreted on a CPU, replayed as
//! CUDA graphs on [`Cuda`].
//!
//! This crate is a facade. [`Cuda`] lives in `kiln-backend`, [`Fusion`] in `kiln-fusion`; the sharded training and the
//! profiler have crates of their own (`kiln-distributed`, `kiln-profiler`), which are empty so far. The README's status
//! table says what is there.

pub use kiln_backend::{
    CompileStats, ConvAlgorithm, Cuda, CudaDevice, CudaQTensor, CudaTensor, DeviceProps, Error, Event, Graph,
    LaunchStats, MemoryStats, Result,
};
pub use kiln_fusion as fusion;
pub use kiln_fusion::Fusion;
