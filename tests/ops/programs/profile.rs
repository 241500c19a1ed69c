//! What the programs of each test are made of.

use burn_backend::{BoolStore, DType, Distribution, FloatDType, IntDType, Shape};
use kiln::fusion::{DrawState, GraphCompiler};
use kiln::{Cuda, CudaDevice, Fusion};
use kiln_surface::arguments::{UNSUPPORTED_BY_FLEX, arguments};
use kiln_surface::{Defaults, Op};

use super::execute::call;
use super::generate::Profile;
use super::observe::value;
use super::subject::{Subject, draws_as_told, take_counters};
use crate::harness::family::{caught, shared};

fn left_out(name: &str) -> bool {
    let flex = UNSUPPORTED_BY_FLEX.iter().any(|(unsupported, _)| *unsupported == name);
    // Quantised numbers are compared bit for bit in tests of their own: Burn's composites quantise results of functions, where
    // a last digit makes the next integer.
    let quantized = name.starts_with("q_") || matches!(name, "quantize" | "quantize_dynamic" | "dequantize");
    // Memory without values has none to compare.
    flex || quantized || name.ends_with("_empty")
}

/// Few dtypes, since each is a kernel of its own.
fn dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F32,
        DType::F16 => DType::BF16,
        DType::I8 | DType::I16 | DType::U8 | DType::U16 => DType::I32,
        DType::U32 | DType::U64 => DType::I64,
        DType::Bool(_) => DType::Bool(BoolStore::Native),
        other => other,
    }
}

fn defaults() -> Defaults {
    <Cuda as GraphCompiler>::defaults(&CudaDevice::new(0))
}

/// Programs whose operations are compared with burn-flex's.
pub(crate) fn eager() -> Profile {
    Profile {
        leaves_out: left_out,
        dtype,
        defaults: defaults(),
        threads: &[1, 1, 2, 3],
        long: false,
        fails: false,
        steady: false,
    }
}

/// Programs that run captured.
pub(crate) fn captured() -> Profile {
    Profile { threads: &[1, 1, 1, 2, 2, 3, 4], ..eager() }
}

/// Programs that do the same in each run.
pub(crate) fn replayed() -> Profile {
    Profile {
        leaves_out: |name| {
            // A bool scalar is no parameter of a captured graph.
            left_out(name) || matches!(name, "bool_mask_fill" | "bool_equal_elem" | "bool_not_equal_elem")
        },
        threads: &[1],
        steady: true,
        ..eager()
    }
}

// Other tests may draw meanwhile.
draws_as_told!(Cuda);

/// Draws from the device's numbers.
impl Subject for Fusion<Cuda> {
    fn random_float(
        shape: Shape,
        distribution: Distribution,
        device: &CudaDevice,
        dtype: FloatDType,
        _: &mut DrawState,
    ) -> Self::FloatTensorPrimitive {
        <Self as burn_backend::ops::FloatTensorOps<Self>>::float_random(shape, distribution, device, dtype)
    }

    fn random_int(
        shape: Shape,
        distribution: Distribution,
        device: &CudaDevice,
        dtype: IntDType,
        _: &mut DrawState,
    ) -> Self::IntTensorPrimitive {
        <Self as burn_backend::ops::IntTensorOps<Self>>::int_random(shape, distribution, device, dtype)
    }
}

/// Runs the operation on arguments of its own; `Err` holds the panic.
fn runs(name: &str) -> Result<(), String> {
    let device = CudaDevice::new(0);
    let mut cases = (0..64).filter_map(|seed| arguments(name, seed));
    let case = cases.find(|case| !case.has_zero_size());
    let case = case.expect("arguments of an operation of the table");
    caught(|| {
        let values = case.inputs.iter().map(|input| value::<Cuda>(input.data(1), &device)).collect();
        drop(call::<Cuda>(&case.op, values, &case.scalars, &device, &mut DrawState::default()));
    })
}

#[test]
fn quantised_operations_run() {
    let _device = shared();
    let quantized = Op::NAMES.iter().filter(|name| name.starts_with("q_"));
    let others = ["quantize", "quantize_dynamic", "dequantize"];
    let failed = quantized.chain(&others).filter_map(|name| runs(name).err().map(|e| format!("{name}: {e}")));
    let failed: Vec<_> = failed.collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
