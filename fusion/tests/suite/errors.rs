//! Errors: of shapes at the call, of runs at the read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use burn_backend::ops::{BoolTensorOps, FloatTensorOps};
use burn_backend::{FloatDType, Slice};
use burn_flex::Flex;
use burn_tensor::{Int, Tensor, TensorData, TensorPrimitive, Transaction};
use kiln_fusion::{Cut, Fusion, FusionTensor, Miss};

use crate::probe::probe;
use crate::serial;

type B = Fusion<Flex>;
type Vector = Tensor<B, 1>;

fn upload(values: &[f32]) -> Vector {
    Tensor::from_floats(values, &Default::default())
}

fn read(x: Vector) -> Vec<f32> {
    x.into_data().to_vec().unwrap()
}

fn error(x: Vector) -> String {
    x.try_into_data().expect_err("the operation fails").to_string()
}

/// What a panic of `run` says.
fn panics<R>(run: impl FnOnce() -> R) -> String {
    let payload = catch_unwind(AssertUnwindSafe(run)).err().expect("it panics");
    let text = payload.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).expect("a message")
}

fn primitive<const D: usize>(x: &Tensor<B, D>) -> FusionTensor<Flex> {
    x.clone().into_primitive().tensor()
}

fn tensor<const D: usize>(x: FusionTensor<Flex>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(x))
}

/// The first element `at` an index; the index is checked when the operation runs.
fn pick(x: &Vector, at: i64) -> Vector {
    x.clone().select(0, Tensor::<B, 1, Int>::from_ints([at], &Default::default()))
}

#[test]
fn shapes_that_do_not_fit_panic_at_the_call_with_name_and_shapes() {
    let _serial = serial();
    let device = Default::default();
    let x = Tensor::<B, 2>::ones([2, 3], &device);
    let y = Tensor::<B, 2>::ones([2, 4], &device);
    let message = panics(|| B::float_add(primitive(&x), primitive(&y)));
    assert!(message.contains("float_add"), "{message}");
    assert!(message.contains("[2, 3]") && message.contains("[2, 4]"), "{message}");
    let message = panics(|| B::float_matmul(primitive(&x), primitive(&y)));
    assert!(message.contains("float_matmul") && message.contains("[2, 4]"), "{message}");
    let message = panics(|| B::float_sum_dim(primitive(&x), 2));
    assert!(message.contains("float_sum_dim") && message.contains("dimension 2"), "{message}");
    let message = panics(|| B::float_reshape(primitive(&x), [7].into()));
    assert!(message.contains("float_reshape") && message.contains("[2, 3]"), "{message}");
    assert_eq!((x.sum() + y.sum()).into_data(), TensorData::from([14f32]));
}

/// Calls that are refused, on tensors and with scalars that the trace has and has not seen.
fn refused(seen: &Tensor<B, 2>, unseen: &Tensor<B, 2>) {
    let (a, b) = (primitive(seen), primitive(unseen)); // [2, 3] and [5, 7]
    panics(|| B::float_add(a.clone(), b.clone()));
    panics(|| B::float_add(b.clone(), a.clone()));
    panics(|| B::float_matmul(b.clone(), b.clone()));
    panics(|| B::float_cat(vec![a.clone(), b.clone(), a.clone()], 0));
    panics(|| B::float_slice_assign(b.clone(), &[Slice::new(0, Some(1), 1)], a.clone()));
    panics(|| B::float_permute(b.clone(), &[0, 2]));
    panics(|| B::float_expand(b.clone(), [2, 2].into()));
    panics(|| {
        B::float_mask_fill(
            b.clone(),
            B::bool_zeros([9].into(), &Default::default(), burn_backend::BoolDType::Native),
            3.0f32.into(),
        )
    });
    panics(|| B::float_cumsum(b.clone(), 9));
}

#[test]
fn refused_calls_leave_no_trace() {
    let _serial = serial();
    let device = Default::default();
    let run = |wrong: bool| {
        let x = Tensor::<B, 2>::from_floats([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &device);
        let y = Tensor::<B, 2>::ones([5, 7], &device) * 2.0;
        let mask = Tensor::<B, 2>::ones([5, 7], &device).greater_elem(0.0);
        let unseen = Tensor::<B, 2>::from_data(TensorData::from([[0.5f32; 7]; 5]), &device);
        // The refused calls record one operation that fits: a mask.
        let step = |seen: &Tensor<B, 2>, unseen: &Tensor<B, 2>| match wrong {
            true => refused(seen, unseen),
            false => drop(B::bool_zeros([9].into(), &device, burn_backend::BoolDType::Native)),
        };
        step(&x, &unseen);
        let z = unseen.clone() + y * 3.0;
        step(&x, &unseen);
        let w = (x.clone() + 1.0).clamp(2.5, 6.5);
        step(&w, &z);
        (w.sum() * 10.0 + z.mask_fill(mask, 2.0).sum() + x.sum()).into_data()
    };
    let expected = TensorData::from([(2.5 + 3.0 + 4.0 + 5.0 + 6.0 + 6.5) * 10.0 + 70.0 + 21.0f32]);
    assert_eq!(run(false), expected);
    for round in 0..3 {
        B::reset_stats(&device);
        assert_eq!(run(true), expected, "round {round}");
        let stats = B::stats(&device);
        assert_eq!(stats.misses.len(), 0, "the same key as without the refused calls: {stats}");
    }
}

#[test]
fn a_refused_call_after_a_known_plan_keeps_its_values() {
    let _serial = serial();
    let device = Default::default();
    let plan = || upload(&[1.0, 2.0, 3.0]) * 2.0 + 1.0;
    for longer in [false, true] {
        if longer {
            read(plan().exp().sqrt());
        }
        read(plan());
        for _ in 0..3 {
            let (x, y) = (plan(), Tensor::<B, 2>::ones([5, 7], &device));
            panics(|| B::float_matmul(primitive(&y), primitive(&y)));
            assert_eq!(read(x.clone() + y.sum()), [38.0, 40.0, 42.0]);
            assert_eq!(read(x), [3.0, 5.0, 7.0]);
        }
    }
}

#[test]
fn a_refused_random_call_is_only_a_gap_in_the_numbers() {
    let _serial = serial();
    let device = Default::default();
    let x = Tensor::<B, 1>::random([4], burn_tensor::Distribution::Default, &device);
    let y = Tensor::<B, 2>::ones([5, 7], &device);
    panics(|| B::float_add(primitive(&x), primitive(&y)));
    let z = Tensor::<B, 1>::random([4], burn_tensor::Distribution::Default, &device);
    let difference = read((x - z).abs());
    assert!(difference.iter().all(|&d| d > 0.0 && d < 1.0), "{difference:?}");
}

#[test]
fn an_operation_that_fails_is_named_at_the_read() {
    let _serial = serial();
    for round in 0..3 {
        let x = upload(&[1.0, 2.0, 3.0]);
        let y = x.clone() + 1.0;
        let bad = pick(&y, 7);
        let dependent = bad.clone() * 2.0 + 1.0;
        let other = y.clone() * 3.0;
        let said = error(dependent.clone());
        assert!(said.contains("float_select([3] F32, [1] I32), operation 1 of a trace of 5"), "{said}");
        assert_eq!(error(bad), said, "round {round}");
        assert_eq!(error(dependent), said);
        assert_eq!(read(other), [6.0, 9.0, 12.0], "what does not depend on it is right");
        assert_eq!(read(y), [2.0, 3.0, 4.0]);
        assert_eq!(read(x), [1.0, 2.0, 3.0]);
        assert_eq!(read(upload(&[5.0]) * 2.0), [10.0], "new tensors work");
    }
}

#[test]
fn the_read_panics_with_the_error_where_burn_returns_none() {
    let _serial = serial();
    let message = panics(|| pick(&upload(&[1.0]), 3).into_data());
    assert!(message.contains("float_select"), "{message}");
}

#[test]
fn a_division_of_integers_by_zero_fails_alone() {
    let _serial = serial();
    let device = Default::default();
    for _ in 0..3 {
        let zero = Tensor::<B, 1, Int>::from_ints([0], &device);
        let (quotient, sum) = (zero.clone() / zero.clone(), zero + 1);
        let said = quotient.try_into_data().unwrap_err().to_string();
        assert!(said.contains("int_div"), "{said}");
        assert_eq!(sum.into_data().iter::<i64>().collect::<Vec<_>>(), [1]);
    }
}

#[test]
fn a_replayed_trace_may_fail_and_then_not() {
    let _serial = serial();
    let device = Default::default();
    for (round, at) in [0, 2, 9, 1, -7, 2].into_iter().enumerate() {
        B::reset_stats(&device);
        let x = upload(&[1.0, 2.0, 3.0]);
        let (picked, other) = (pick(&x, at), x * 2.0);
        let sum = picked + other.clone().sum();
        B::step(&device);
        let stats = B::stats(&device);
        assert_eq!((stats.runs(), stats.hits), (1, u64::from(round > 0)), "{stats}");
        let fails = !(0..3).contains(&at);
        assert_eq!(stats.failures, u64::from(fails), "{stats}");
        match fails {
            true => assert!(error(sum).contains("float_select")),
            false => assert_eq!(read(sum), [at as f32 + 13.0]),
        }
        assert_eq!(read(other), [2.0, 4.0, 6.0]);
    }
}

#[test]
fn of_two_failures_dependents_report_that_of_the_first_operand() {
    let _serial = serial();
    let x = upload(&[1.0, 2.0, 3.0]);
    let (a, b) = (pick(&x, 11), pick(&x, 22));
    let (sum, reverse) = (a.clone() + b.clone(), b.clone() + a.clone());
    B::step(&Default::default());
    assert_eq!(error(sum), error(a.clone()));
    assert_eq!(error(reverse), error(b.clone()));
    assert_ne!(error(a), error(b));
}

#[test]
fn a_failed_operation_that_reads_a_donated_input_leaves_it_to_the_others() {
    let _serial = serial();
    let device = Default::default();
    let failing = probe(|_| panic!("as asked for"));
    for _ in 0..3 {
        let x = upload(&[1.0, 2.0]);
        let bad = failing(x.clone());
        let twice = bad.clone() * bad.clone();
        let other = x * 3.0; // the last that holds the upload
        B::step(&device);
        assert!(error(twice).contains("as asked for"));
        assert_eq!(read(other), [3.0, 6.0]);
        assert!(error(bad).contains("as asked for"));
    }
}

#[test]
fn a_transaction_with_a_failed_tensor_is_an_error_and_the_others_can_still_be_read() {
    let _serial = serial();
    for _ in 0..3 {
        let x = upload(&[1.0, 2.0]);
        let (good, bad) = (x.clone() + 1.0, pick(&x, 5));
        let both = Transaction::default().register(good.clone()).register(bad.clone());
        let said = both.try_execute().unwrap_err().to_string();
        assert_eq!(said, error(bad));
        let alone = Transaction::default().register(good.clone()).register(x).try_execute().unwrap();
        assert_eq!(alone, [TensorData::from([2f32, 3.0]), TensorData::from([1f32, 2.0])]);
        assert_eq!(read(good), [2.0, 3.0]);
    }
}

#[test]
fn a_failed_value_fails_what_is_made_of_it_in_later_traces() {
    let _serial = serial();
    let device = Default::default();
    for round in 0..3 {
        let bad = pick(&upload(&[1.0, 2.0]), 5);
        let said = error(bad.clone());
        B::reset_stats(&device);
        let x = upload(&[4.0]);
        let (sum, other) = (bad.clone() + x.clone(), x + 1.0);
        let later = sum.clone().exp();
        assert_eq!(error(later), said, "round {round}");
        assert_eq!(read(other), [5.0]);
        let stats = B::stats(&device);
        assert_eq!(stats.failures, 0, "only the operation that failed counts: {stats}");
        // Written over as a whole, it is still an operand that failed.
        let mended = bad.slice_assign(0..1, upload(&[8.0]));
        assert_eq!(error(mended), said);
    }
}

#[test]
fn a_failed_value_fails_on_other_threads_too() {
    let _serial = serial();
    for run_before in [false, true] {
        let (bad, good) = thread::spawn(move || {
            let x = upload(&[1.0, 2.0]);
            let pair = (pick(&x, 5), x + 1.0);
            if run_before {
                B::step(&Default::default());
            }
            pair
        })
        .join()
        .unwrap();
        let said = error(bad.clone());
        assert!(said.contains("float_select"), "{said}");
        assert_eq!(error(bad * 2.0 + good.clone()), said);
        assert_eq!(read(good), [2.0, 3.0]);
    }
}

#[test]
fn a_failure_that_another_thread_runs_into_stays_with_the_value() {
    let _serial = serial();
    let x = upload(&[1.0, 2.0]);
    let (bad, good) = (pick(&x, 5), x + 1.0);
    let copy = bad.clone();
    let said = thread::spawn(move || error(copy)).join().expect("the reader gets an error, no panic");
    assert_eq!(B::stats(&Default::default()).cuts[&Cut::ForeignEnd], 1);
    assert_eq!(error(bad), said);
    assert_eq!(read(good * 2.0), [4.0, 6.0]);
}

#[test]
fn argwhere_of_a_failed_value_panics_and_names_what_failed() {
    let _serial = serial();
    let x = upload(&[1.0, 2.0]);
    let bad = pick(&x, 5).greater_elem(0.0);
    let message = panics(|| bad.argwhere());
    assert!(message.contains("bool_argwhere") && message.contains("float_select"), "{message}");
    assert_eq!(read(x + 1.0), [2.0, 3.0]);
    let found = upload(&[0.0, 1.0]).greater_elem(0.5).argwhere().into_data();
    assert_eq!(found.iter::<i64>().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_message_without_text_is_a_failure_too() {
    let _serial = serial();
    let failing = probe(|_| std::panic::resume_unwind(Box::new(7)));
    let said = error(failing(upload(&[1.0])));
    assert!(said.contains("suite::probe") && said.contains("it panicked"), "{said}");
}

#[test]
fn random_sequences_with_refused_and_failing_calls_equal_eager_ones() {
    let _serial = serial();
    // A linear congruential generator (Knuth's MMIX) over a pool of vectors and their values on the host.
    let mut state = 42u64;
    let mut next = move |bound: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % bound
    };
    let failing = probe(|_| std::panic::resume_unwind(Box::new("as asked for")));
    let mut pool: Vec<(Vector, Option<Vec<f32>>)> = vec![(upload(&[1.0, 2.0]), Some(vec![1.0, 2.0]))];
    let both = |a: &Option<Vec<f32>>, b: &Option<Vec<f32>>, f: fn(f32, f32) -> f32| match (a, b) {
        (Some(a), Some(b)) => Some(a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect::<Vec<_>>()),
        _ => None,
    };
    for step in 0..4000 {
        let (a, b) = (pool[next(pool.len())].clone(), pool[next(pool.len())].clone());
        let new = match next(16) {
            0..4 => (a.0 + b.0, both(&a.1, &b.1, |a, b| a + b)),
            4..6 => ((a.0 * b.0).clamp(-4.0, 4.0), both(&a.1, &b.1, |a, b| (a * b).clamp(-4.0, 4.0))),
            6..8 => (a.0.clamp(-1.0, 1.0), both(&a.1, &a.1, |a, _| a.clamp(-1.0, 1.0))),
            8 => {
                let values = [next(5) as f32, next(5) as f32];
                (upload(&values), Some(values.to_vec()))
            }
            9 => {
                let wide = Tensor::<B, 1>::ones([3], &Default::default());
                panics(|| B::float_add(primitive(&a.0), primitive(&wide)));
                continue;
            }
            10 if step % 5 == 0 => (failing(a.0), None),
            11 => {
                B::step(&Default::default());
                continue;
            }
            12..14 => {
                match a.0.try_into_data() {
                    Ok(data) => assert_eq!(Some(data.to_vec::<f32>().unwrap()), a.1, "step {step}"),
                    Err(error) => assert!(a.1.is_none() && error.to_string().contains("as asked for")),
                }
                continue;
            }
            _ => (a.0.clone() - b.0, both(&a.1, &b.1, |a, b| a - b)),
        };
        match pool.len() < 8 {
            true => pool.push(new),
            false => {
                let at = next(8);
                pool[at] = match new.1.as_ref().is_some_and(|values| values.iter().any(|v| v.abs() > 1e6)) {
                    true => (upload(&[1.0, 1.0]), Some(vec![1.0, 1.0])),
                    false => new,
                };
                if pool.iter().all(|(_, values)| values.is_none()) {
                    pool[0] = (upload(&[2.0, 3.0]), Some(vec![2.0, 3.0]));
                }
            }
        }
    }
    let stats = B::stats(&Default::default());
    assert!(stats.failures > 0 && stats.misses.contains_key(&Miss::NewOperations), "{stats}");
}

#[test]
fn a_cast_of_a_failed_value_and_its_shape_are_known_all_the_same() {
    let _serial = serial();
    let bad = pick(&upload(&[1.0, 2.0]), 5);
    let cast = tensor::<1>(B::float_cast(primitive(&bad), FloatDType::F64));
    B::step(&Default::default());
    assert_eq!(cast.dims(), [1]);
    assert_eq!(error(cast), error(bad));
}

#[test]
fn extension_calls_with_failed_inputs_do_not_run() {
    let _serial = serial();
    let watch = probe(|_| panic!("it ran"));
    let bad = pick(&upload(&[1.0, 2.0]), 5);
    let said = error(watch(bad.clone()));
    assert!(said.contains("float_select") && !said.contains("it ran"), "{said}");
}
