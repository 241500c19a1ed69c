//! Operations that another crate adds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_backend::ops::FloatTensorOps;
use burn_backend::{Scalar, TensorMetadata};
use burn_flex::Flex;
use burn_tensor::{Tensor, TensorData, TensorPrimitive};
use kiln_fusion::{Cut, ExtensionOp, Fusion, Miss, Stats, Value};
use kiln_surface::{Kind, Meta};

use crate::probe::apply;
use crate::serial;

type B = Fusion<Flex>;

fn upload(values: &[f32]) -> Tensor<B, 1> {
    Tensor::from_floats(values, &Default::default())
}

fn read(x: Tensor<B, 1>) -> Vec<f32> {
    x.into_data().to_vec().unwrap()
}

fn stats() -> Stats {
    let stats = B::stats(&Default::default());
    B::reset_stats(&Default::default());
    stats
}

fn new_operations(stats: &Stats) -> u64 {
    stats.misses.get(&Miss::NewOperations).copied().unwrap_or(0)
}

/// `x, y [N]` -> `(scalar * x + y, sum(x * y) to the power given by the attribute)`, shapes `[N]` and `[1]`.
struct ScaledSum {
    power: i32,
    ran: Arc<AtomicUsize>,
}

impl ExtensionOp<Flex> for ScaledSum {
    fn name(&self) -> String {
        "suite::scaled_sum".into()
    }

    fn attributes(&self) -> String {
        format!("power = {}", self.power)
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Vec<(Meta, Kind)>, String> {
        let [x, y] = inputs else { return Err(format!("{} inputs instead of 2", inputs.len())) };
        if x != y {
            return Err(format!("{:?} and {:?} differ", x.shape.as_slice(), y.shape.as_slice()));
        }
        Ok(vec![(x.clone(), Kind::Float), (Meta::new([1], x.dtype), Kind::Float)])
    }

    fn forward(&self, inputs: Vec<Value<Flex>>, scalars: &[Scalar]) -> Vec<Value<Flex>> {
        self.ran.fetch_add(1, Ordering::Relaxed);
        let [x, y] = <[_; 2]>::try_from(inputs).unwrap().map(Value::float);
        assert!(scalars[0].elem::<f32>() < 1000.0, "a scalar of {:?} is too large", scalars[0]);
        let sum = Flex::float_sum(Flex::float_mul(x.clone(), y.clone()));
        let scaled = Flex::float_add(Flex::float_mul_scalar(x, scalars[0]), y);
        vec![Value::Float(scaled), Value::Float(Flex::float_powi_scalar(sum, self.power.into()))]
    }
}

/// The operation, and how often it has run: the first of its name and attributes counts for all.
fn scaled_sum(power: i32) -> Arc<dyn ExtensionOp<Flex>> {
    Arc::new(ScaledSum { power, ran: Arc::default() })
}

fn program(power: i32, scalar: f32) -> [Vec<f32>; 2] {
    let (x, y) = (upload(&[1.0, 2.0]) + 1.0, upload(&[0.5, 0.25]));
    let [scaled, sum] = <[_; 2]>::try_from(apply(&scaled_sum(power), &[x, y], &[scalar.into()])).unwrap();
    assert_eq!((scaled.dims(), sum.dims()), ([2], [1]), "shapes are known at the call");
    let (scaled, sum) = (scaled * 2.0, sum + 1.0);
    B::step(&Default::default());
    [read(scaled), read(sum)]
}

fn expected(power: i32, scalar: f32) -> [Vec<f32>; 2] {
    let scaled = vec![(2.0 * scalar + 0.5) * 2.0, (3.0 * scalar + 0.25) * 2.0];
    [scaled, vec![1.75f32.powi(power) + 1.0]]
}

#[test]
fn it_has_as_many_results_as_it_infers() {
    let _serial = serial();
    assert_eq!(program(1, 2.0), expected(1, 2.0));
    let stats = stats();
    assert_eq!((stats.runs(), stats.recorded, new_operations(&stats)), (1, 4, 1), "{stats}");
}

#[test]
fn other_scalars_hit_the_same_plan() {
    let _serial = serial();
    for (round, scalar) in [0.5, 2.0, -3.0, 0.0].into_iter().enumerate() {
        assert_eq!(program(2, scalar), expected(2, scalar));
        let stats = stats();
        assert_eq!(stats.hits, u64::from(round > 0), "{stats}");
    }
}

#[test]
fn a_scalar_of_another_type_is_another_key() {
    let _serial = serial();
    let run = |scalar: Scalar| {
        let x = upload(&[1.0, 2.0]);
        let y = x.clone();
        read(apply(&scaled_sum(1), &[x, y], &[scalar]).remove(0))
    };
    for _ in 0..2 {
        assert_eq!(run(Scalar::Float(3.0)), [4.0, 8.0]);
        assert_eq!(run(Scalar::Int(3)), [4.0, 8.0]);
    }
    let stats = stats();
    assert_eq!((new_operations(&stats), stats.hits), (2, 2), "{stats}");
}

#[test]
fn other_attributes_miss() {
    let _serial = serial();
    for round in 0..2 {
        for power in 1..4 {
            assert_eq!(program(power, 2.0), expected(power, 2.0));
            let stats = stats();
            assert_eq!((stats.hits, new_operations(&stats)), (round, 1 - round), "{stats}");
        }
    }
}

#[test]
fn it_runs_when_the_trace_runs() {
    let _serial = serial();
    let ran = Arc::new(AtomicUsize::new(0));
    let op: Arc<dyn ExtensionOp<Flex>> = Arc::new(ScaledSum { power: 77, ran: ran.clone() });
    for round in 1..4 {
        let x = upload(&[1.0]);
        let out = apply(&op, &[x.clone(), x], &[1.0f32.into()]);
        assert_eq!(ran.load(Ordering::Relaxed), round - 1);
        B::step(&Default::default());
        assert_eq!(ran.load(Ordering::Relaxed), round);
        assert_eq!(read(out[0].clone()), [2.0]);
        assert_eq!(ran.load(Ordering::Relaxed), round, "and once");
    }
}

#[test]
fn a_result_that_nobody_wants_is_not_kept_but_the_other_is_right() {
    let _serial = serial();
    for round in 0..3 {
        for keep in 0..2 {
            let (x, y) = (upload(&[2.0, 3.0]), upload(&[0.5, 0.25]));
            let out = apply(&scaled_sum(1), &[x, y], &[2.0f32.into()]).swap_remove(keep);
            assert_eq!(read(out), [vec![4.5, 6.25], vec![1.75]][keep], "round {round}");
        }
    }
}

#[test]
fn a_shape_error_panics_at_the_call_and_names_the_operation() {
    let _serial = serial();
    for _ in 0..3 {
        let (x, y) = (upload(&[1.0, 2.0]), upload(&[1.0, 2.0, 3.0]));
        let sum = x.clone() + 1.0;
        let wrong = || apply(&scaled_sum(1), &[x.clone(), y.clone()], &[1.0f32.into()]);
        let panic = catch_unwind(AssertUnwindSafe(wrong)).expect_err("shapes that differ");
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains("suite::scaled_sum: [2] and [3] differ"), "{message}");
        // What the refused call had numbered is forgotten.
        let both = apply(&scaled_sum(1), &[y.clone(), y * 2.0], &[3.0f32.into()]);
        assert_eq!(read(both[0].clone() * sum.sum()), [25.0, 50.0, 75.0]);
    }
    let stats = stats();
    assert_eq!((new_operations(&stats), stats.hits), (1, 2), "{stats}");
}

/// Panics while it infers shapes, when it is asked to.
struct BadInference;

impl ExtensionOp<Flex> for BadInference {
    fn name(&self) -> String {
        "suite::bad_inference".into()
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Vec<(Meta, Kind)>, String> {
        assert!(inputs[0].shape[0] < 3, "three is too many");
        Ok(vec![(inputs[0].clone(), Kind::Float)])
    }

    fn forward(&self, inputs: Vec<Value<Flex>>, _: &[Scalar]) -> Vec<Value<Flex>> {
        inputs
    }
}

#[test]
fn a_panic_while_shapes_are_inferred_leaves_the_trace_usable() {
    let _serial = serial();
    let op: Arc<dyn ExtensionOp<Flex>> = Arc::new(BadInference);
    for round in 0..4 {
        let (x, y) = (upload(&[1.0, 2.0]), upload(&[1.0, 2.0, 3.0]));
        let sum = x.clone() + 1.0;
        let wrong = || apply(&op, std::slice::from_ref(&y), &[Scalar::Float(7.0)]);
        let panic = catch_unwind(AssertUnwindSafe(wrong)).expect_err("it panics");
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap();
        assert!(message.contains("three is too many"), "{message}");
        let z = y.clone() * 2.0 + y * 3.0;
        let right = apply(&op, &[x * 5.0], &[Scalar::Float(7.0)]).remove(0);
        assert_eq!(read(z * sum.sum() + right.sum()), [40.0, 65.0, 90.0], "round {round}");
    }
    let stats = stats();
    assert_eq!((new_operations(&stats), stats.hits), (1, 3), "{stats}");
}

#[test]
fn a_panic_while_shapes_are_inferred_costs_no_value_of_a_plan_that_is_left() {
    let _serial = serial();
    let op: Arc<dyn ExtensionOp<Flex>> = Arc::new(BadInference);
    let plan = || upload(&[1.0, 2.0, 3.0]) * 2.0 + 1.0;
    read(plan().exp().sqrt());
    read(plan());
    let (x, y) = (plan(), upload(&[1.0, 2.0, 3.0]));
    // The plan of two operations can grow; the refused call leaves the longer one.
    let wrong = || apply(&op, std::slice::from_ref(&y), &[]);
    catch_unwind(AssertUnwindSafe(wrong)).expect_err("it panics");
    assert_eq!(read(x.clone() + y), [4.0, 7.0, 10.0]);
    assert_eq!(read(x), [3.0, 5.0, 7.0]);
}

#[test]
fn a_panic_in_forward_is_an_error_at_the_read() {
    let _serial = serial();
    for round in 0..4 {
        let x = upload(&[1.0, 2.0]);
        let large = if round % 2 == 1 { 5000.0f32 } else { 5.0 };
        let out = apply(&scaled_sum(1), &[x.clone(), x.clone()], &[large.into()]);
        let (other, dependent) = (x + 1.0, out[0].clone().sum() + out[1].clone());
        B::step(&Default::default());
        assert_eq!(read(other), [2.0, 3.0], "round {round}");
        match dependent.try_into_data() {
            Ok(sum) => {
                assert_eq!(round % 2, 0);
                assert_eq!(sum, TensorData::from([23f32]));
            }
            Err(error) => {
                assert_eq!(round % 2, 1);
                let error = error.to_string();
                assert!(error.contains("scaled_sum") && error.contains("is too large"), "{error}");
                assert!(error.contains("[2] F32, [2] F32"), "{error}");
                assert!(error.contains("operation 0 of a trace of 4"), "{error}");
                for out in out {
                    assert_eq!(out.try_into_data().unwrap_err().to_string(), error);
                }
            }
        }
    }
    let stats = stats();
    assert_eq!(
        (stats.hits, stats.failures, stats.cuts[&Cut::Step]),
        (3, 2, 4),
        "a failure misses no plan: {stats}"
    );
}

/// Gives something else than it inferred.
struct Liar(&'static str);

impl ExtensionOp<Flex> for Liar {
    fn name(&self) -> String {
        format!("suite::liar_{}", self.0)
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Vec<(Meta, Kind)>, String> {
        Ok(vec![(inputs[0].clone(), Kind::Float), (inputs[0].clone(), Kind::Float)])
    }

    fn forward(&self, inputs: Vec<Value<Flex>>, _: &[Scalar]) -> Vec<Value<Flex>> {
        let x = inputs.into_iter().next().unwrap();
        match self.0 {
            "none" => Vec::new(),
            "one" => vec![x],
            "three" => vec![x.clone(), x.clone(), x],
            "shape" => vec![x.clone(), Value::Float(Flex::float_sum(x.float()))],
            "kind" => {
                let ints = Flex::float_into_int(x.clone().float(), burn_backend::IntDType::I64);
                vec![x, Value::Int(ints)]
            }
            _ => vec![x.clone(), Value::Float(Flex::float_cast(x.float(), burn_backend::FloatDType::F64))],
        }
    }
}

#[test]
fn results_unlike_those_inferred_are_an_error_at_the_read() {
    let _serial = serial();
    for lie in ["none", "one", "three", "shape", "kind", "dtype"] {
        let op: Arc<dyn ExtensionOp<Flex>> = Arc::new(Liar(lie));
        let x = upload(&[1.0, 2.0]);
        let outs = apply(&op, std::slice::from_ref(&x), &[]);
        let dependents: Vec<_> = outs.iter().map(|out| out.clone() + 1.0).collect();
        B::step(&Default::default());
        for out in outs.into_iter().chain(dependents) {
            let error = out.try_into_data().expect_err(lie).to_string();
            assert!(error.contains(&format!("suite::liar_{lie}")), "{error}");
        }
        assert_eq!(read(x + 1.0), [2.0, 3.0]);
    }
}

#[test]
fn without_inputs_it_says_so() {
    let _serial = serial();
    let none = || apply(&scaled_sum(1), &[], &[1.0f32.into()]);
    let panic = catch_unwind(none).expect_err("no device to record for");
    assert!(panic.downcast_ref::<String>().unwrap().contains("there is no tensor"));
}

#[test]
fn one_tensor_for_both_inputs_is_another_key_than_two() {
    let _serial = serial();
    for _ in 0..2 {
        let (x, y) = (upload(&[1.0, 2.0]), upload(&[3.0, 4.0]));
        assert_eq!(
            read(apply(&scaled_sum(1), &[x.clone(), x.clone()], &[2f32.into()]).remove(0)),
            [3.0, 6.0]
        );
        assert_eq!(read(apply(&scaled_sum(1), &[x, y], &[2f32.into()]).remove(0)), [5.0, 8.0]);
    }
    let stats = stats();
    assert_eq!((new_operations(&stats), stats.hits), (2, 2), "{stats}");
}

#[test]
fn it_takes_tensors_of_other_ranks() {
    let _serial = serial();
    let op = scaled_sum(1);
    let x = Tensor::<B, 2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &Default::default());
    let x = x.into_primitive().tensor();
    let outs = kiln_fusion::extension::call(&op, &[x.clone(), x], &[1.0f32.into()]);
    assert_eq!(outs[0].shape().as_slice(), [2, 2]);
    let sum = Tensor::<B, 2>::from_primitive(TensorPrimitive::Float(outs[0].clone()));
    assert_eq!(sum.into_data(), TensorData::from([[2f32, 4.0], [6.0, 8.0]]));
}
