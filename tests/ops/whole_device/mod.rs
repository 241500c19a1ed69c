//! Tests that watch memory, random numbers or faults of the whole device, so that most of them run alone.
//!
//! The name puts them last: tests start in the order of their names, and by then the kernels are compiled.

mod capture;
mod errors;
mod precision;
mod random;
pub(crate) mod recorded;
