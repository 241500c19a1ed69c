//! The surface of Burn's `Backend` trait as data.
//!
//! Nothing is implemented here yet. The crate will hold one table with a line for each of the 428 methods of Burn
//! 0.21's backend traits; the graph capture, the interpreter, the profiler decorator and the autodiff newtype are to
//! be expanded from it.
