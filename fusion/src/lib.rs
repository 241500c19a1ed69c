//! `Fusion<B>`: a lazy whole-graph compiler for Burn backends.
//!
//! Nothing is implemented here yet. The crate will capture a Burn program as a graph, optimise it, and replay it on
//! any backend; code generation comes after that.
