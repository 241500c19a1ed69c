//! Tests that need no GPU: the harness itself, and what Kiln says on a machine without CUDA.

#[macro_use]
mod harness;
#[path = "cpu/readme.rs"]
mod readme;

use burn_backend::ops::FloatTensorOps;
use burn_backend::{Backend, DType, TensorData};
use burn_flex::Flex;
use harness::{Arg, Body, Dense, Domain, Family, Inputs, Rng, Tolerance, Value, same, shape};
use kiln::{Cuda, CudaDevice};

#[test]
fn views_read_what_index_arithmetic_says() {
    let mut rng = Rng::new(1);
    let (mut with_views, mut empty) = (0, 0);
    for _ in 0..300 {
        let shape = shape::any(&mut rng, false);
        let mut arg = Arg::random(&mut rng, &shape, DType::I32, Domain::Special);
        let len: usize = arg.base.shape.iter().product();
        arg.base = Dense::ints(&arg.base.shape, (0..len as i128).collect());
        let got = arg.dense();
        assert_eq!(got.shape, shape, "{:?}", arg.views);
        for (p, &v) in got.as_ints().iter().enumerate() {
            let at = shape::unravel(p, &shape);
            let from = shape::index_through(&arg.views, &arg.base.shape, &shape, &at);
            assert_eq!(v, shape::ravel(&from, &arg.base.shape) as i128, "{:?} at {at:?}", arg.views);
        }
        with_views += !arg.views.is_empty() as usize;
        empty += got.as_ints().is_empty() as usize;
    }
    assert!(with_views > 120 && empty > 3, "{with_views} with views, {empty} empty");
}

#[test]
fn shapes_cover_vectors_blocks_and_many_rows() {
    let mut rng = Rng::new(2);
    let shapes: Vec<_> = (0..2_000).map(|_| shape::any(&mut rng, true)).collect();
    for rank in 1..=6 {
        assert!(shapes.iter().any(|s| s.len() == rank));
    }
    assert!(shapes.iter().any(|s| s.len() > 1 && s[0] > 1 << 16));
    assert!(shapes.iter().any(|s| s.contains(&0)));
    assert!(shapes.iter().all(|s| s.iter().product::<usize>() <= 250_000));
}

#[test]
fn tolerances_grow_with_length_and_shrink_with_precision() {
    let sum = |dtype, n| Tolerance::sum(dtype, n).of_max;
    assert!(sum(DType::F32, 10_000) > 2.0 * sum(DType::F32, 100));
    assert!(sum(DType::F64, 100) < 1e-8 * sum(DType::F32, 100));
    // 16-bit sums are kept in f32, so their length costs no more than in f32.
    assert_eq!(sum(DType::F16, 1_000), sum(DType::F32, 1_000));
    assert!(sum(DType::F32, 1 << 16) < 1e-3);
    assert!(Tolerance::function(DType::BF16).relative < 0.02);
}

#[test]
fn comparison_notices_each_kind_of_difference() {
    let dense = |v: &[f64]| Dense::floats(&[v.len()], v.to_vec());
    let check = |got: &[f64], expected: &[f64], dtype| {
        same(&dense(got), &dense(expected), dtype, Tolerance::function(dtype))
    };
    let x = [1.0, f64::NAN, f64::INFINITY, -0.0];
    assert!(check(&x, &x, DType::F32).is_ok());
    assert!(check(&[1.0 + 1e-7], &[1.0], DType::F32).is_ok());
    for (got, expected) in [(1.0001, 1.0), (f64::NAN, 1.0), (1.0, f64::NAN), (f64::INFINITY, -f64::INFINITY)]
    {
        assert!(check(&[got], &[expected], DType::F32).is_err(), "{got} for {expected}");
    }
    assert!(check(&[f64::INFINITY], &[1.0], DType::F32).is_err());
    // Just beyond what f16 holds, infinity and the largest number are both right.
    assert!(check(&[65_504.0], &[65_515.0], DType::F16).is_ok());
    assert!(check(&[f64::INFINITY], &[65_515.0], DType::F16).is_ok());
    let text = check(&[0.0, 2.0], &[0.0, 3.0], DType::F32).expect_err("2 is not 3");
    assert!(
        text.contains("1 of 2") && text.contains("[1]") && text.contains("2e0") && text.contains("3e0"),
        "{text}"
    );
    assert!(
        same(&Dense::ints(&[1], vec![1]), &Dense::ints(&[1], vec![2]), DType::I32, Tolerance::exact())
            .is_err()
    );
    assert!(same(&Dense::ints(&[1], vec![1]), &dense(&[1.0]), DType::I32, Tolerance::exact()).is_err());
    assert!(
        same(&dense(&[1.0]), &Dense::floats(&[1, 1], vec![1.0]), DType::F32, Tolerance::exact()).is_err()
    );
}

body!(Tanh | x | [Value::Float(B::float_tanh(x.float()))]);

/// Right on Flex in f64, where the reference runs, and wrong in the dtype under test.
struct Planted;
impl Body for Planted {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).float();
        let dtype = burn_backend::TensorMetadata::dtype(&x);
        let y = B::float_mul(x.clone(), x);
        vec![Value::Float(if dtype == DType::F64 { y } else { B::float_mul_scalar(y, 1.01.into()) })]
    }
}

fn family_of(body: &impl Body, gradient: bool) -> Vec<String> {
    let mut family: Family<Flex> = Family::new("harness");
    family.cases("op", 1.0, |family, rng| {
        let mut shape = shape::any(rng, false);
        shape[0] = shape[0].max(1);
        let args = [Arg::random(rng, &shape, DType::F32, Domain::NotZero)];
        let tolerance = Tolerance::chain(DType::F32, 8, 64);
        if gradient {
            family.check_gradient(&args, body, tolerance);
        } else {
            family.check(&args, body, tolerance);
        }
    });
    family.into_failures()
}

#[test]
fn a_family_passes_right_ops_and_reports_wrong_ones() {
    assert_eq!(family_of(&Tanh, false), Vec::<String>::new());
    assert_eq!(family_of(&Tanh, true), Vec::<String>::new());
    for gradient in [false, true] {
        let failures = family_of(&Planted, gradient);
        assert_eq!(failures.len(), harness::family::cases().min(2), "an op is left after two failures");
        for part in ["harness / op case 0", "arg 0: f32", "KILN_TEST_SEED=", "elements differ, first at"] {
            assert!(failures[0].contains(part), "{part:?} is missing in: {}", failures[0]);
        }
    }
}

#[test]
fn values_are_rounded_once() {
    let round = harness::values::round_to;
    // Just above the middle of two numbers: rounding through f32, or without the low bits, would go down.
    assert_eq!(round(1.0 + 2f64.powi(-11) + 2f64.powi(-40), DType::F16), 1.0 + 2f64.powi(-10));
    assert_eq!(round(1.0 + 2f64.powi(-8) + 2f64.powi(-40), DType::BF16), 1.0 + 2f64.powi(-7));
    assert_eq!(round(-1.0 - 2f64.powi(-11) + 2f64.powi(-40), DType::F16), -1.0);
    assert_eq!(round(1.0 + 2f64.powi(-11), DType::F16), 1.0);
    assert_eq!(round(65_519.99, DType::F16), 65_504.0);
    assert_eq!(round(65_520.0, DType::F16), f64::INFINITY);
}

#[test]
fn plain_integer_rules() {
    let op = |name, a, b| harness::plain::int_binary(name, DType::I8, a, b);
    assert_eq!([op("div", 7, 0), op("div", -128, -1), op("div", -7, 2)], [0, -128, -3]);
    assert_eq!([op("remainder", 7, 0), op("remainder", -7, 3), op("remainder", 7, -3)], [0, 2, -2]);
    assert_eq!([op("add", 127, 1), op("mul", 64, 2), op("powi", 3, 5)], [-128, -128, -13]);
    assert_eq!([op("shl", 1, 9), op("shr", -128, 7)], [2, -1]);
}

#[test]
fn a_machine_without_cuda_is_told_what_is_missing() {
    let error = match CudaDevice::availability() {
        Ok(count) => {
            assert!(count > 0);
            return println!("this machine has {count} CUDA devices: nothing to check");
        }
        Err(error) => error.to_string(),
    };
    println!("{error}");
    if error.contains("was not found") {
        assert!(
            error.contains("libcuda") || error.contains("libnvrtc") || error.contains("libcublasLt"),
            "{error}"
        );
    }
    if error.contains("libcuda.so") {
        assert!(error.contains("driver"), "{error}");
    }
    // An op says the same, and it is Kiln that says it.
    let text = harness::family::caught(|| {
        Cuda::float_from_data(TensorData::from([1.0f32, 2.0]), &CudaDevice::default())
    });
    let text = text.map(|_| ()).expect_err("an op without a device");
    assert!(text.contains(&error), "{text}");
    assert!(text.starts_with("cuda:0: ") && !text.contains("cudarc"), "{text}");
}
