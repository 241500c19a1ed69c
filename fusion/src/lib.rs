//! A lazy whole-graph compiler for Burn backends.
//!
//! [`Fusion<B>`] records what a program does on `B` and runs it when a value is needed. A recorded trace is a
//! [`graph::Graph`], pure data; a backend that implements [`GraphCompiler`] may make an executable of it, else it is
//! interpreted, operation by operation.
//!
//! ```
//! use burn_flex::Flex;
//! use burn_tensor::Tensor;
//! use kiln_fusion::Fusion;
//!
//! type B = Fusion<Flex>;
//!
//! let device = Default::default();
//! for step in 0..3 {
//!     let x = Tensor::<B, 1>::from_floats([1.0, 2.0], &device);
//!     let y = (x * step as f32).exp().sum(); // recorded, not computed
//!     println!("{}", y.into_scalar()); // runs what was recorded
//! }
//! // The second and third step were known by then; the changing scalar is no part of what is compared.
//! assert_eq!(B::stats(&device).hits, 2);
//! ```
//!
//! Read the crate in this order: `capture` (`ops`, `trace`, `plans`, `run`), [`graph`], `interpret`, [`compiler`],
//! [`extension`], [`explain`].

#![recursion_limit = "512"]

pub(crate) mod capture;
pub mod compiler;
mod decorate;
pub mod error;
pub mod explain;
pub mod extension;
pub mod graph;
mod interpret;
mod random;

pub use capture::{Budget, Fusion, FusionTensor};
pub use compiler::{Declined, DrawState, GraphCompiler, History, Run, Value};
pub use decorate::Interpret;
pub use error::Failure;
pub use explain::{Cut, Miss, Stats, Trace};
pub use extension::ExtensionOp;
pub use interpret::interpret_graph;
