//! A lazy whole-graph compiler for Burn backends.
//!
//! [`Fusion<B>`] records what a program does on `B` and runs it when a value is needed: [`capture`]. A recorded trace
//! is a [`graph::Graph`], pure data; a backend that implements [`GraphCompiler`] may compile it, else it is
//! interpreted, operation by operation.

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
