//! Tests that need an NVIDIA GPU: every op against burn-flex in f64, gradients, aliasing, errors, memory, graphs.
//!
//! `cargo test --features gpu --test gpu`; the harness's page says what can be set.

#![cfg(feature = "gpu")]

#[macro_use]
mod harness;

/// The backend under test.
type Subject = kiln::Cuda;
type Family = harness::Family<Subject>;

/// A test for each dtype: `per_dtype!(body: f32 f16)` calls `body(DType::F32)` in `body::f32`, and so on.
#[macro_export]
macro_rules! per_dtype {
    ($body:ident: $($dtype:ident)*) => {
        mod $body {
            $(
                #[test]
                fn $dtype() {
                    super::$body($crate::harness::dtype_named(stringify!($dtype)))
                }
            )*
        }
    };
}

#[path = "gpu/aliasing.rs"]
mod aliasing;
#[path = "gpu/conv.rs"]
mod conv;
#[path = "gpu/devices.rs"]
mod devices;
#[path = "gpu/elementwise.rs"]
mod elementwise;
#[path = "gpu/gradients.rs"]
mod gradients;
#[path = "gpu/index.rs"]
mod index;
#[path = "ops/large.rs"]
mod large;
#[path = "gpu/logic.rs"]
mod logic;
#[path = "gpu/matmul.rs"]
mod matmul;
#[path = "gpu/models.rs"]
mod models;
#[path = "gpu/reduce.rs"]
mod reduce;
#[path = "gpu/rules.rs"]
mod rules;
#[path = "gpu/whole_device/mod.rs"]
mod whole_device;
