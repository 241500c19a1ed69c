//! Tests of the whole device's memory, faults and random numbers: alone, or with nobody else who draws.
//!
//! The name puts them last: tests start in the order of their names, and by then the kernels are compiled.

mod capture;
mod errors;
mod precision;
mod random;
pub(crate) mod recorded;
