//! Views and clones of a tensor that is written, and tensors that threads share.

use burn_backend::ops::FloatTensorOps;
use burn_backend::{Backend, DType, Scalar, Shape, Slice, TensorData};

use crate::harness::{Arg, Body, Dense, Domain, Inputs, Tolerance, Value, shape};
use crate::{Family, Subject};

fn rows(start: usize, end: usize) -> Slice {
    Slice::new(start as isize, Some(end as isize), 1)
}

/// `x[1:] = x[:-1]`, the value being a view of the target, with the target held elsewhere or not.
#[derive(Debug)]
struct ShiftRows {
    held: bool,
}
impl Body for ShiftRows {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).float();
        let n = burn_backend::TensorMetadata::shape(&x)[0];
        let x = B::float_mul_scalar(x, Scalar::Float(1.0));
        let held = self.held.then(|| x.clone());
        let value = B::float_slice(x.clone(), &[rows(0, n - 1)]);
        let mut out = vec![Value::Float(B::float_slice_assign(x, &[rows(1, n)], value))];
        out.extend(held.map(Value::Float));
        out
    }
}

#[test]
fn shifting_rows_within_a_tensor() {
    let mut family = Family::new("index", DType::F32);
    for held in [false, true] {
        let op = if held { "x[1:] = x[:-1] while x is held" } else { "x[1:] = x[:-1]" };
        family.cases(op, 0.5, |family, rng| {
            let shape = [rng.pick(&[2, 3, 17, 257, 4_099]), rng.pick(&[1, 3, 8, 33])];
            let args = [Arg::random(rng, &shape, DType::F32, Domain::Normal)];
            family.check(&args, &ShiftRows { held }, Tolerance::exact());
        });
    }
    family.finish();
}

crate::body!(ScanInPlace | x | [Value::Float(B::float_cumsum(B::float_swap_dims(x.float(), 0, 1), 1))]);

/// A view is copied and then scanned in place. Threads that had no row of their own read the first one while it was
/// written.
#[test]
fn a_scan_in_place_of_fewer_rows_than_a_block_has_does_not_race() {
    let mut family = Family::new("cumulative", DType::F32);
    family.cases("cumsum in place", 0.5, |family, rng| {
        let shape = [rng.range(2, 40), rng.range(2, 7)];
        let args = [Arg::plain(rng, &shape, DType::F32, Domain::Normal)];
        family.check(&args, &ScanInPlace, Tolerance::sum(DType::F32, shape[0]));
    });
    family.finish();
}

/// `y[:, 0] += |x[:, 2]|` twice: the second write must see the first.
#[derive(Debug)]
struct TwoUpdates;
impl Body for TwoUpdates {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).float();
        let mut y = B::float_mul_scalar(x.clone(), Scalar::Float(0.0));
        let column = |k| [rows(0, 2), rows(k, k + 1)];
        for _ in 0..2 {
            let old = B::float_slice(y.clone(), &column(0));
            let new = B::float_add(old, B::float_abs(B::float_slice(x.clone(), &column(2))));
            y = B::float_slice_assign(y, &column(0), new);
        }
        vec![Value::Float(y)]
    }
}

#[test]
fn two_updates_of_a_column_add_up() {
    let mut family = Family::new("index", DType::F32);
    family.cases("two updates of a column", 0.5, |family, rng| {
        let args = [Arg::random(rng, &[2, 3], DType::F32, Domain::NotZero)];
        let tolerance = Tolerance::rounded(DType::F32);
        family.check_both(&args, &TwoUpdates, tolerance, tolerance);
    });
    family.finish();
}

/// Views taken before the tensor is changed in every way that may happen in place.
#[derive(Debug)]
struct ViewsOfAChangedTensor;
impl Body for ViewsOfAChangedTensor {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, at) = (inputs.float(), inputs.int());
        let x = B::float_add_scalar(x, Scalar::Float(0.0));
        let n = burn_backend::TensorMetadata::shape(&x)[0];
        let flipped = B::float_flip(x.clone(), &[0]);
        let column = B::float_slice(x.clone(), &[rows(0, n), rows(0, 1)]);
        let transposed = B::float_transpose(x.clone());
        let ones = B::float_ones(Shape::from(vec![1, 3]), &Default::default(), x_dtype::<B>(&x));
        let x = B::float_slice_assign(x, &[rows(0, 1)], ones.clone());
        let kept = x.clone();
        let x = B::float_exp(x);
        let update = B::float_expand(ones, Shape::from(vec![2, 3]));
        let added = B::float_select_add(x.clone(), 0, at, update);
        let x = B::float_mul_scalar(x, Scalar::Float(2.0));
        // x = 2x by index, then x + flip(x): reads at other positions of what an in-place add would write.
        let mirrored = B::float_add(x.clone(), B::float_flip(x.clone(), &[0]));
        let all = [flipped, column, transposed, kept, added, x, mirrored];
        all.into_iter().map(Value::Float).collect()
    }
}

fn x_dtype<B: Backend>(x: &burn_backend::tensor::FloatTensor<B>) -> burn_backend::FloatDType {
    burn_backend::TensorMetadata::dtype(x).into()
}

#[test]
fn views_keep_the_values_of_a_tensor_that_is_overwritten() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let mut family = Family::new("layout", dtype);
        family.cases("views of a changed tensor", 0.5, |family, rng| {
            let n = rng.pick(&[2, 5, 64, 1_025]);
            let x = Arg::random(rng, &[n, 3], dtype, Domain::Normal);
            let at = Arg::plain(rng, &[2], DType::I64, Domain::Index(n));
            // Each step of the chain is rounded to the dtype.
            family.check(&[x, at], &ViewsOfAChangedTensor, Tolerance::chain(dtype, 4, 2));
        });
        family.finish();
    }
}

fn read(x: burn_backend::tensor::FloatTensor<Subject>) -> Vec<f64> {
    Dense::of(&Value::<Subject>::Float(x).read()).as_floats().to_vec()
}

fn upload(values: Vec<f32>, shape: &[usize]) -> burn_backend::tensor::FloatTensor<Subject> {
    Subject::float_from_data(TensorData::new(values, shape.to_vec()), &Default::default())
}

/// An operand that nobody else holds may take the result; a sum over the result adds in the order of its memory.
#[test]
fn a_sum_does_not_depend_on_who_holds_an_operand() {
    let _running = crate::harness::family::shared();
    let wave = |step: f32| (0..33 * 700).map(|k| (step * k as f32).sin() * 1e3f32.powi(k % 3)).collect();
    let sum = |holds: [bool; 2]| {
        let a = upload(wave(1.7), &[33, 700]);
        let b = Subject::float_transpose(upload(wave(0.3), &[700, 33]));
        let held: Vec<_> =
            [&a, &b].into_iter().zip(holds).filter(|held| held.1).map(|held| held.0.clone()).collect();
        let sum = read(Subject::float_sum(Subject::float_add(a, b)))[0];
        drop(held);
        sum.to_bits()
    };
    let alone = sum([true, true]);
    for holds in [[false, true], [true, false], [false, false]] {
        assert_eq!(sum(holds), alone, "{holds:?}");
    }
}

#[test]
fn threads_share_tensors() {
    let _running = crate::harness::family::shared();
    let len = 3_001;
    let shared = upload((0..len).map(|k| k as f32).collect(), &[len]);
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let shared = shared.clone();
            scope.spawn(move || {
                let mut y = shared.clone();
                for step in 0..200usize {
                    // Whole numbers below 2^24, so that every sum is exact.
                    y = match (step + thread) % 4 {
                        0 => Subject::float_add_scalar(y, Scalar::Float(1.0)),
                        1 => Subject::float_sub(Subject::float_add(y, shared.clone()), shared.clone()),
                        2 => Subject::float_flip(Subject::float_flip(y, &[0]), &[0]),
                        _ => Subject::float_neg(Subject::float_neg(y)),
                    };
                }
                let values = read(y);
                for (k, v) in values.into_iter().enumerate() {
                    assert_eq!(v, (k + 50) as f64, "thread {thread}, element {k}");
                }
            });
        }
    });
    assert_eq!(read(shared), (0..len).map(|k| k as f64).collect::<Vec<_>>());
    println!("threads: 8 threads of 200 ops");
}

#[test]
fn a_tensor_made_on_one_thread_is_used_on_another() {
    let _running = crate::harness::family::shared();
    let (sender, receiver) = std::sync::mpsc::channel();
    let maker = std::thread::spawn(move || {
        for k in 0..50 {
            let x = upload(vec![k as f32; 1_000], &[10, 100]);
            sender.send(Subject::float_add_scalar(x, Scalar::Float(0.5))).expect("the receiver waits");
        }
    });
    let mut received = 0;
    for (k, x) in receiver.iter().enumerate() {
        assert_eq!(read(Subject::float_sum(x)), [1_000.0 * (k as f64 + 0.5)]);
        received += 1;
    }
    maker.join().expect("the thread that makes tensors");
    assert_eq!(received, 50);
}

/// A row of a larger tensor times a transposed matrix: the row's stride is left over from the tensor.
#[test]
fn a_sliced_row_times_a_transposed_matrix() {
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        let mut family = Family::new("matmul", dtype);
        family.cases("a sliced row times a transposed matrix", 0.2, |family, rng| {
            let mut x = Arg::plain(rng, &[1, 8, 2_048], dtype, Domain::Normal);
            let row = rng.below(8);
            let at = Slice::new(row as isize, Some(row as isize + 1), 1);
            x.views = vec![
                shape::Step::Slice(vec![Slice::full(), at, Slice::full()]),
                shape::Step::Reshape(vec![1, 2_048]),
            ];
            x.shape = vec![1, 2_048];
            let mut w = Arg::plain(rng, &[32, 2_048], dtype, Domain::Normal);
            w.views = vec![shape::Step::Permute(vec![1, 0])];
            w.shape = vec![2_048, 32];
            family.check(&[x, w], &crate::ops::matmul::Matmul, Tolerance::sum(dtype, 2_048));
        });
        family.finish();
    }
}
