//! Tests that need no GPU: the harness itself, and what Kiln says on a machine without CUDA.

#[macro_use]
mod harness;

use burn_backend::ops::FloatTensorOps;
use burn_backend::{Backend, DType, TensorData, TensorMetadata};
use burn_flex::Flex;
use harness::{Arg, Body, Covered, Dense, Domain, Family, Inputs, Rng, Step, Tolerance, Value, same, shape};
use harness::{count::Counts, settings::Settings};
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

/// Adds one in f64, where the reference runs; in the dtype under test it is wrong as `fault` says of the input.
#[derive(Debug)]
struct Planted {
    fault: fn(&[usize]) -> bool,
}
impl Body for Planted {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).float();
        let wrong = x.dtype() != DType::F64 && (self.fault)(&x.shape().to_vec());
        vec![Value::Float(B::float_add_scalar(x, if wrong { 1.5 } else { 1.0 }.into()))]
    }
}

/// Settings as this test's own words, not the run's.
fn settings(words: &str) -> Settings {
    let words: Vec<(&str, &str)> = words.split(' ').filter_map(|word| word.split_once('=')).collect();
    Settings::parse(|name| words.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string()))
}

/// Runs cases of the body; failures and counts.
fn family_of(settings: Settings, body: &impl Body, gradient: bool) -> (Vec<String>, Counts) {
    let mut family: Family<Flex> = Family::of(settings, "harness", DType::F32);
    family.cases("an op", 1.0, |family, rng| {
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
    family.into_parts()
}

#[test]
fn a_family_passes_right_ops_and_counts_them() {
    for gradient in [false, true] {
        let (failures, counts) = family_of(settings("KILN_TEST_CASES=60"), &Tanh, gradient);
        assert_eq!(failures, Vec::<String>::new());
        let Counts { cases, views, gradients, edge, special } = counts;
        assert_eq!((cases, gradients, special), (60, if gradient { 60 } else { 0 }, 0));
        assert!((20..60).contains(&views) && (20..60).contains(&edge), "{views} with views, {edge} odd");
    }
}

#[test]
fn a_wrong_op_is_reported_with_the_simplest_case() {
    let last_above_3 = Planted { fault: |shape| shape[shape.len() - 1] > 3 };
    for gradient in [false, true] {
        let (failures, _) = family_of(settings("KILN_TEST_SEED=7"), &last_above_3, gradient);
        assert_eq!(failures.len(), 1, "two failures of one op shrink to the same case: {failures:#?}");
        let parts = [
            "harness f32 / an op, case ",
            " of seed 7: ",
            "4 of 4 elements differ (tolerance ",
            "\n    at [3]: ",
            "body: Planted",
            "arg 0: f32 [4], values [1.0, 2.0, 3.0, -1.0]\n",
            "shrunk in ",
            "again: KILN_TEST_SEED=7 KILN_TEST_CASES=20 KILN_TEST_ONLY=harness/f32/an_op:",
            "--test cpu -- --exact a_wrong_op_is_reported_with_the_simplest_case",
        ];
        for part in parts {
            assert!(failures[0].contains(part), "{part:?} is missing in: {}", failures[0]);
        }
    }
}

/// Wrong if the last of some dimensions is above 3 and a view permutes them.
fn transposed_family(settings: Settings) -> Vec<String> {
    let mut family: Family<Flex> = Family::of(settings, "harness", DType::F32);
    let (right, wrong) =
        (Planted { fault: |_| false }, Planted { fault: |shape| shape[shape.len() - 1] > 3 });
    family.cases("transposed", 3.0, |family, rng| {
        let other = shape::any(rng, false);
        let shape = shape::any(rng, false);
        let args = [&other, &shape].map(|s| Arg::random(rng, s, DType::F32, Domain::Normal));
        let transposed = args[1].views.iter().any(|step| matches!(step, Step::Permute(_)));
        family.check(&args[1..], if transposed { &wrong } else { &right }, Tolerance::exact());
    });
    family.into_parts().0
}

#[test]
fn a_fault_of_transposed_views_shrinks_to_one_transposition_and_is_repeated_by_its_command() {
    let failures = transposed_family(settings("KILN_TEST_SEED=3 KILN_TEST_CASES=20"));
    assert!(!failures.is_empty());
    for failure in &failures {
        // Four elements, of which a permutation makes a row: [1, 4], or [4] with a reshape behind it.
        for part in ["from [4, 1] permute [1, 0]", ", values [1.0, 2.0, 3.0, -1.0]\n"] {
            assert!(failure.contains(part), "{part:?} is missing in: {failure}");
        }
        let again = failure.split("again: ").nth(1).expect("a command");
        let repeated = transposed_family(settings(again));
        assert_eq!(repeated.len(), 1);
        // All but the number of runs, which a slow machine may cut short.
        let before = |text: &str| text.split("    shrunk in").next().expect("a report").to_owned();
        assert_eq!(before(&repeated[0]), before(failure));
    }
}

#[test]
fn a_command_for_another_case_runs_nothing_here() {
    let broken = Planted { fault: |_| true };
    let (failures, counts) = family_of(settings("KILN_TEST_ONLY=harness/f32/another_op:0"), &broken, false);
    assert_eq!((failures.len(), counts.cases), (0, 0));
}

/// Wrong in the first of the runs only.
#[derive(Debug, Default)]
struct Flaky(std::sync::atomic::AtomicUsize);
impl Body for Flaky {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).float();
        // Each case runs the reference first.
        let second = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1;
        vec![Value::Float(B::float_add_scalar(x, if second { 1.5 } else { 1.0 }.into()))]
    }
}

#[test]
fn a_failure_that_does_not_come_again_is_reported_as_flaky() {
    let (failures, _) = family_of(settings(""), &Flaky::default(), false);
    assert_eq!(failures.len(), 1);
    for part in
        ["elements differ", "flaky: run again with the same inputs, it failed 0 times and then did not"]
    {
        assert!(failures[0].contains(part), "{part:?} is missing in: {}", failures[0]);
    }
}

/// Loses its device in the second run.
#[derive(Debug, Default)]
struct Losing(std::sync::atomic::AtomicUsize);
impl Body for Losing {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let runs = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert!(runs < 1, "cuda:0 can no longer be used in this process");
        inputs
    }
}

#[test]
fn nothing_is_run_on_a_device_that_is_lost() {
    let body = Losing::default();
    let (failures, counts) = family_of(settings(""), &body, false);
    assert_eq!((failures.len(), counts.cases, body.0.into_inner()), (1, 1, 2));
    assert!(failures[0].contains("the device is lost"), "{}", failures[0]);
}

#[test]
fn a_panic_of_the_test_itself_is_a_failure_of_its_case() {
    let mut family: Family<Flex> = Family::of(settings(""), "harness", DType::F32);
    family.cases("an op", 1.0, |_, rng| assert!(rng.below(100) < 5, "too many"));
    let failures = family.into_parts().0;
    assert!(failures[0].contains("the test's own code failed: too many"), "{}", failures[0]);
}

#[test]
fn counts_say_what_was_covered() {
    let plain = |v: f64| Arg::new(Dense::floats(&[2], vec![v; 2]), DType::F32);
    let covered = |v: f64| Covered::of(&[plain(v)], &[], false);
    let special = [f64::NAN, f64::INFINITY, -0.0, f32::MAX as f64, 1e-40];
    assert!(special.iter().all(|&v| covered(v).special));
    assert!([1.0, 0.0, -2.0].iter().all(|&v| covered(v) == Covered::default()));
    let classes = [DType::BF16, DType::I8, DType::U64, harness::BOOL].map(harness::count::class);
    assert_eq!(classes, ["bf16", "int", "uint", "bool"]);
    let mut counts = Counts::default();
    counts.add(Covered { views: true, gradient: true, ..Covered::default() });
    counts.add(Covered { views: true, edge: true, ..Covered::default() });
    assert_eq!(counts.row("reduce", DType::I16, 9), "reduce\tint\t2\t2\t1\t1\t0\t9\n");
    assert!(
        counts.line().starts_with("2 cases, 2 (100%) with views, 1 (50%) with gradients"),
        "{}",
        counts.line()
    );
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
