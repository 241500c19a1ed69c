//!
//! `cargo test --features gpu --test gpu`; the harness's page says what can be set.

#![cfg(feature = "gpu")]

#[macro_use]
mod harness;

/// The backend under test.
type Subject = kiln::Cuda;
type Family = harness::Family<Subject>;

#[path = "ops/aliasing.rs"]
mod aliasing;
#[path = "ops/attention.rs"]
mod attention;
#[path = "ops/conv.rs"]
mod conv;
#[path = "ops/ctc.rs"]
mod ctc;
#[path = "ops/devices.rs"]
mod devices;
#[path = "ops/elementwise.rs"]
mod elementwise;
#[path = "ops/fft.rs"]
mod fft;
#[path = "ops/index.rs"]
mod index;
#[path = "ops/interpolate.rs"]
mod interpolate;
#[path = "ops/large.rs"]
mod large;
#[path = "ops/logic.rs"]
mod logic;
#[path = "ops/matmul.rs"]
mod matmul;
#[path = "ops/models.rs"]
mod models;
#[path = "ops/nd.rs"]
mod nd;
#[path = "ops/programs/mod.rs"]
mod programs;
#[path = "ops/quantized.rs"]
mod quantized;
#[path = "ops/reduce.rs"]
mod reduce;
#[path = "ops/rules.rs"]
mod rules;
#[path = "ops/sort.rs"]
mod sort;
#[path = "ops/whole_device/mod.rs"]
mod whole_device;
