//! The op tests of both devices, a family per file. What needs more memory than the emulated one has is in `large.rs`, which
//! `tests/gpu.rs` has beside these.

mod aliasing;
mod attention;
mod conv;
mod ctc;
mod devices;
mod elementwise;
mod fft;
mod index;
mod interpolate;
mod logic;
mod matmul;
mod models;
mod nd;
mod programs;
mod quantized;
mod reduce;
mod rules;
mod sort;
mod whole_device;
