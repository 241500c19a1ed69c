//! The op tests on a GPU.
//!
//! `cargo test --features gpu --test gpu`; the harness's page says what can be set.

#![cfg(feature = "gpu")]

#[macro_use]
mod harness;

/// The backend under test.
type Subject = kiln::Cuda;
type Family = harness::Family<Subject>;

#[path = "ops/large.rs"]
mod large;
mod ops;
