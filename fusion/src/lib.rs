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
//! A read ends a graph. A loop that reads only now and then ends its steps by [`Fusion::step`]. [`Fusion::stats`] tells
//! what ran and why something was new; [`Budget`] bounds what is recorded before anybody asks for it;
//! [`Fusion::forget_plans`] gives back what is kept for known graphs. An operation that fails when its graph runs is
//! reported by the reads of what depends on it (`try_into_data` returns it); the panic hook prints its message before.
//!
//! In the sources, read in this order: `capture` (`ops`, `trace`, `plans`, `run`), `graph`, `interpret`, `compiler`,
//! `extension`, `explain`.

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
