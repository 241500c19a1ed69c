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

#[path = "ops/aliasing.rs"]
mod aliasing;
#[path = "ops/conv.rs"]
mod conv;
#[path = "ops/devices.rs"]
mod devices;
#[path = "ops/elementwise.rs"]
mod elementwise;
#[path = "ops/index.rs"]
mod index;
#[path = "ops/large.rs"]
mod large;
#[path = "ops/logic.rs"]
mod logic;
#[path = "ops/matmul.rs"]
mod matmul;
#[path = "ops/models.rs"]
mod models;
#[path = "ops/programs/mod.rs"]
mod programs;
#[path = "ops/reduce.rs"]
mod reduce;
#[path = "ops/rules.rs"]
mod rules;
#[path = "ops/whole_device/mod.rs"]
mod whole_device;
