//! Inputs that broke other systems: captured, several times over, so that known plans are hit, against the value that is
//! right.

use burn_autodiff::Autodiff;
use burn_backend::Backend;
use burn_flex::Flex;
use burn_tensor::module::{avg_pool2d, conv2d};
use burn_tensor::ops::{ConvOptions, PaddedConvOptions};
use burn_tensor::{Bool, Distribution, Int, Shape, Tensor, TensorData, Tolerance, activation};
use kiln_fusion::Fusion;

use crate::allocator::live_bytes;
use crate::serial;

type B = Fusion<Flex>;
type A = Autodiff<B>;

/// Times that a program is run: new, then known.
const ROUNDS: usize = 4;

/// Numbers from -1.5 to 1.5 that depend on seed and position (Knuth's MMIX generator).
fn random<K: Backend, const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<K, D> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let values = (0..shape.iter().product()).map(|_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32 * 3.0 - 1.5
    });
    Tensor::from_data(TensorData::new(values.collect::<Vec<f32>>(), shape), &Default::default())
}

fn floats<const D: usize>(x: Tensor<B, D>) -> Vec<f32> {
    x.into_data().to_vec().unwrap()
}

fn close(captured: &TensorData, eager: &TensorData, tolerance: f32) {
    captured.assert_approx_eq::<f32>(eager, Tolerance::absolute(tolerance));
}

/// Runs a program captured, [`ROUNDS`] times, and eager; results must be equal to the bit.
macro_rules! as_eager {
    ($program:ident($($arg:expr),*)) => {{
        let eager = $program::<Flex>($($arg),*);
        for round in 0..ROUNDS {
            assert_eq!($program::<B>($($arg),*), eager, "round {round}");
        }
        eager
    }};
}

/// As `as_eager`, for a program with gradients.
macro_rules! as_eager_with_gradients {
    ($program:ident($($arg:expr),*)) => {{
        let eager = $program::<Autodiff<Flex>>($($arg),*);
        for round in 0..ROUNDS {
            assert_eq!($program::<A>($($arg),*), eager, "round {round}");
        }
        eager
    }};
}

#[test]
fn floor_division_is_that_of_single_operations() {
    let _serial = serial();
    fn program<K: Backend>(dtype: burn_tensor::DType) -> (TensorData, TensorData) {
        let device = Default::default();
        let make = |x: [f64; 3]| {
            Tensor::<K, 1>::from_data(TensorData::from(x).convert_dtype(dtype), (&device, dtype))
        };
        let (a, b) = (make([1.0, 0.5, 6.0]), make([0.1, 0.1, 0.2]));
        let remainder = a.clone().remainder(b.clone());
        // The floor of the quotient, from the remainder: the rounded quotient may be a whole number too large.
        let floor = ((a - remainder.clone()) / b).round();
        (floor.into_data(), remainder.into_data())
    }
    for dtype in [burn_tensor::DType::F32, burn_tensor::DType::F64] {
        let (floor, remainder) = as_eager!(program(dtype));
        for (r, b) in remainder.iter::<f64>().zip([0.1, 0.1, 0.2]) {
            assert!((0.0..b).contains(&r), "{dtype:?}: a remainder of {r} by {b}");
        }
        assert_eq!(floor.iter::<f64>().collect::<Vec<_>>(), [9.0, 4.0, 29.0]);
    }
}

#[test]
fn an_integer_divided_by_zero_is_an_error_at_the_read_in_every_type() {
    let _serial = serial();
    let device = Default::default();
    for dtype in [burn_tensor::DType::I64, burn_tensor::DType::I32] {
        for alone in [true, false] {
            for _ in 0..ROUNDS {
                let zero = Tensor::<B, 1, Int>::from_data(
                    TensorData::from([0i64]).convert_dtype(dtype),
                    (&device, dtype),
                );
                let zero = if alone { zero } else { zero + 3 - 3 };
                let error = (zero.clone() / zero).try_into_data().unwrap_err().to_string();
                assert!(error.contains("int_div") && error.contains("divide by zero"), "{error}");
            }
        }
    }
}

#[test]
fn sums_over_nothing_are_zero() {
    let _serial = serial();
    fn program<K: Backend>(shape: [usize; 2]) -> (TensorData, TensorData) {
        let x = Tensor::<K, 2>::zeros(shape, &Default::default());
        ((x.clone() * 2.0 + 1.0).sum_dim(0).into_data(), x.exp().sum().into_data())
    }
    let (columns, total) = as_eager!(program([0, 4]));
    assert_eq!((columns, total), (TensorData::from([[0f32; 4]]), TensorData::from([0f32])));
    let (columns, _) = as_eager!(program([3, 0]));
    assert_eq!(columns.shape.as_slice(), [1, 0]);
}

#[test]
fn the_gradient_of_a_selection_of_nothing_is_zero() {
    let _serial = serial();
    fn program<K: burn_tensor::backend::AutodiffBackend>() -> TensorData {
        let device = Default::default();
        let x = Tensor::<K, 2>::ones([3, 2], &device).require_grad();
        let mask = Tensor::<K, 1>::zeros([3], &device).greater_elem(1.0);
        let rows = mask.argwhere().squeeze_dim::<1>(1);
        let grads = x.clone().select(0, rows).sum().backward();
        x.grad(&grads).unwrap().into_data()
    }
    assert_eq!(as_eager_with_gradients!(program()), TensorData::from([[0f32; 2]; 3]));
}

#[test]
fn nothing_broadcasts_against_one() {
    let _serial = serial();
    fn program<K: Backend>(first: bool) -> TensorData {
        let device = Default::default();
        let (none, one) = (Tensor::<K, 1>::zeros([0], &device), Tensor::<K, 1>::ones([1], &device));
        let product = if first { none * one } else { one * none };
        assert_eq!(product.dims(), [0]);
        (product + 1.0).into_data()
    }
    for first in [true, false] {
        assert_eq!(as_eager!(program(first)).shape.as_slice(), [0]);
    }
}

#[test]
fn the_gradient_of_no_rows_is_zero() {
    let _serial = serial();
    fn program<K: burn_tensor::backend::AutodiffBackend>() -> TensorData {
        let device = Default::default();
        let x = Tensor::<K, 2>::ones([3, 2], &device).require_grad();
        let none = Tensor::<K, 1, Int>::from_data(TensorData::new(Vec::<i64>::new(), [0]), &device);
        let grads = (x.clone() * 3.0).select(0, none).sum().backward();
        x.grad(&grads).unwrap().into_data()
    }
    assert_eq!(as_eager_with_gradients!(program()), TensorData::from([[0f32; 2]; 3]));
}

#[test]
fn operations_on_nothing_have_the_right_shape() {
    let _serial = serial();
    fn program<K: Backend>(shape: [usize; 2]) -> Vec<TensorData> {
        let device = Default::default();
        let x = Tensor::<K, 2>::zeros(shape, &device);
        let [rows, columns] = shape;
        let unary = [
            x.clone().exp(),
            x.clone().abs(),
            x.clone().log(),
            x.clone().sqrt(),
            x.clone().sin(),
            x.clone().tanh(),
            x.clone().recip(),
            x.clone().powf_scalar(2.5),
            x.clone().powi_scalar(2),
            -x.clone(),
            x.clone().erf(),
            x.clone().clamp(0.0, 1.0),
            x.clone().floor(),
            x.clone().sign(),
            x.clone() + 1.0,
            x.clone() / 2.0,
            activation::relu(x.clone()),
            activation::gelu(x.clone()),
            activation::sigmoid(x.clone()),
        ];
        let y = x.clone() + 1.0;
        let binary = [
            x.clone() + y.clone(),
            x.clone() - y.clone(),
            x.clone() * y.clone(),
            x.clone() / y.clone(),
            x.clone().powf(y.clone()),
            x.clone().max_pair(y.clone()),
            x.clone().atan2(y.clone()),
            x.clone().mask_where(x.clone().greater(y.clone()), y.clone()),
            x.clone().mask_fill(x.clone().equal(y.clone()), 3.0),
        ];
        let ints = x.clone().int();
        let moved = [
            x.clone().transpose(),
            x.clone().flip([0]),
            x.clone().repeat_dim(0, 2),
            x.clone().repeat_dim(1, 3),
            Tensor::cat(vec![x.clone(), y.clone()], 0),
            Tensor::cat(vec![x.clone(), y.clone()], 1),
            x.clone().slice([0..rows / 2, 0..columns / 2]),
            x.clone().gather(0, ints.clone()),
            x.clone().gather(1, ints.clone()),
            x.clone().slice_assign([0..rows, 0..columns], y.clone()),
            x.clone().permute([1, 0]),
            x.clone().cumsum(0),
            x.clone().cumsum(1),
            x.clone().scatter(0, ints.clone(), y.clone(), burn_tensor::IndexingUpdateOp::Add),
            x.clone().swap_dims(0, 1),
        ];
        let floats = unary.into_iter().chain(binary).chain(moved).map(Tensor::into_data);
        let flags = [x.clone().greater_elem(0.0), x.clone().is_nan(), x.clone().equal(y).bool_not()];
        let (flags, ints) = (
            flags.map(Tensor::<K, 2, Bool>::into_data),
            [ints.clone() + 1, ints.clone() * ints].map(|x| x.into_data()),
        );
        let casts = [x.cast(burn_tensor::DType::F64).into_data()];
        floats.chain(flags).chain(ints).chain(casts).collect()
    }
    for shape in [[0, 10], [10, 0], [0, 0]] {
        for data in as_eager!(program(shape)) {
            assert_eq!(data.num_elements(), 0);
        }
    }
}

#[test]
fn a_maximum_over_nothing_is_an_error_and_of_nothing_is_empty() {
    let _serial = serial();
    for _ in 0..ROUNDS {
        let x = || Tensor::<B, 2>::zeros([2, 0], &Default::default());
        assert_eq!(x().max_dim(0).into_data().shape.as_slice(), [1, 0]);
        let over = std::panic::catch_unwind(|| x().max_dim(1).try_into_data());
        assert!(!matches!(over, Ok(Ok(_))), "{over:?}");
    }
}

#[test]
fn an_operation_that_is_refused_does_not_disturb_the_next() {
    let _serial = serial();
    for _ in 0..ROUNDS {
        let x = random::<B, 2>(1, [3, 4]);
        let sum = x.clone() + 1.0;
        let wrong = std::panic::AssertUnwindSafe(|| x.clone().cross(sum.clone(), 1).into_data());
        assert!(std::panic::catch_unwind(wrong).is_err(), "a cross product over four");
        let right = x.clone().cross(sum.clone(), 0).into_data();
        let eager = random::<Flex, 2>(1, [3, 4]);
        assert_eq!(right, eager.clone().cross(eager.clone() + 1.0, 0).into_data());
        assert_eq!(sum.into_data(), (eager + 1.0).into_data());
    }
}

#[test]
fn a_reduction_among_many_operations_and_outputs() {
    let _serial = serial();
    fn program<K: Backend>() -> Vec<TensorData> {
        let x = random::<K, 2>(5, [256, 1024]);
        let a = x.clone() * 0.5;
        let b = a.clone().tanh();
        let c = b.clone() + x.clone();
        let d = c.clone().sum_dim(1);
        let e = d.clone() * 0.001;
        let f = c.clone() - e.clone();
        let g = f.clone().exp();
        let h = g.clone() * d.clone();
        K::sync(&Default::default()).unwrap();
        [a, b, c, d, e, f, g, h].map(Tensor::into_data).to_vec()
    }
    as_eager!(program());
}

#[test]
fn a_state_space_block() {
    let _serial = serial();
    fn program<K: Backend>(seed: u64) -> TensorData {
        let [b, t, h, n] = [2, 64, 8, 16];
        let decay = random::<K, 4>(seed, [b, h, t, 1]).abs() * -0.1;
        let sums = decay.cumsum(2);
        let segments = sums.clone() - sums.transpose();
        let mask = Tensor::<K, 2>::ones([t, t], &Default::default()).triu(1).greater_elem(0.5);
        let weights = segments.mask_fill(mask.unsqueeze(), f32::NEG_INFINITY).exp();
        let (q, k) = (random::<K, 4>(seed + 1, [b, h, t, n]), random::<K, 4>(seed + 2, [b, h, t, n]));
        let v = random::<K, 4>(seed + 3, [b, h, t, n]);
        (q.matmul(k.transpose()) * weights).matmul(v).into_data()
    }
    for seed in 0..3 {
        let eager = program::<Flex>(seed);
        for _ in 0..2 {
            close(&program::<B>(seed), &eager, 1e-5);
        }
    }
}

fn residual<K: Backend>(x: Tensor<K, 4>, weight: Tensor<K, 4>) -> Tensor<K, 4> {
    let y =
        conv2d(x.clone(), weight, None, PaddedConvOptions::from(ConvOptions::new([1, 1], [1, 1], [1, 1], 1)));
    let mean = y.clone().mean_dim(0).mean_dim(2).mean_dim(3);
    let centred = y - mean;
    let variance = centred.clone().powi_scalar(2).mean_dim(0).mean_dim(2).mean_dim(3);
    activation::relu(centred / (variance + 1e-5).sqrt()) + x
}

#[test]
fn a_residual_block() {
    let _serial = serial();
    fn program<K: Backend>() -> TensorData {
        residual(random::<K, 4>(1, [1, 3, 32, 32]), random::<K, 4>(2, [3, 3, 3, 3])).into_data()
    }
    as_eager!(program());
}

#[test]
fn a_linear_layer_of_every_inner_width_forward_and_backward() {
    let _serial = serial();
    fn program<K: burn_tensor::backend::AutodiffBackend>(batch: usize, width: usize) -> [TensorData; 2] {
        let x = random::<K, 2>(1, [batch, width]).require_grad();
        let w = random::<K, 2>(2, [width, 3]).require_grad();
        let grads = (x.clone().matmul(w.clone()) + 1.0).powi_scalar(2).sum().backward();
        [x.grad(&grads).unwrap().into_data(), w.grad(&grads).unwrap().into_data()]
    }
    for batch in [1, 7, 64] {
        for width in [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 100, 127, 129, 513] {
            assert_eq!(
                program::<A>(batch, width),
                program::<Autodiff<Flex>>(batch, width),
                "{batch}, {width}"
            );
        }
    }
}

/// One layer of attention and a feed-forward part, with gradients, trained by plain descent.
fn train<K: burn_tensor::backend::AutodiffBackend>(
    steps: usize,
    mut after: impl FnMut(usize),
) -> Vec<TensorData> {
    let mut parameters: Vec<Tensor<K, 2>> =
        (0..6).map(|k| (random::<K, 2>(k, [16, 16]) * 0.2).detach().require_grad()).collect();
    for step in 0..steps {
        let x = random::<K, 3>(100 + step as u64 % 4, [2, 8, 16]);
        let p: Vec<Tensor<K, 3>> = parameters.iter().map(|p| p.clone().unsqueeze()).collect();
        let (q, k, v) =
            (x.clone().matmul(p[0].clone()), x.clone().matmul(p[1].clone()), x.clone().matmul(p[2].clone()));
        let attention = activation::softmax(q.matmul(k.transpose()) / 4.0, 2).matmul(v).matmul(p[3].clone());
        let hidden = x.clone() + attention;
        let y = activation::gelu(hidden.clone().matmul(p[4].clone())).matmul(p[5].clone()) + hidden;
        let loss = (y - x.flip([1])).powi_scalar(2).mean();
        let grads = loss.backward();
        for parameter in &mut parameters {
            let grad = parameter.grad(&grads).unwrap();
            let inner = parameter.clone().inner() - grad * 0.1;
            *parameter = Tensor::from_inner(inner).require_grad();
        }
        loss.into_data();
        after(step);
    }
    parameters.into_iter().map(Tensor::into_data).collect()
}

#[test]
fn live_bytes_are_flat_while_a_transformer_layer_trains() {
    let _serial = serial();
    let mut live = Vec::with_capacity(100);
    let captured = train::<A>(60, |step| {
        if step >= 20 {
            live.push(live_bytes())
        }
    });
    let (least, most) = (live.iter().min().unwrap(), live.iter().max().unwrap());
    assert!(most - least < 2_000, "{live:?}\n{}", B::stats(&Default::default()));
    let stats = B::stats(&Default::default());
    assert!(stats.hits >= 55, "{stats}");
    assert_eq!(captured, train::<Autodiff<Flex>>(60, |_| {}));
}

#[test]
fn a_value_written_back_is_not_read_at_other_positions() {
    let _serial = serial();
    for _ in 0..ROUNDS {
        let (rows, columns) = (64, 128);
        let data = Tensor::<Flex, 1, Int>::arange(0..(rows * columns) as i64, &Default::default());
        let x =
            Tensor::<B, 1>::from_data(data.float().into_data(), &Default::default()).reshape([rows, columns]);
        let index = Tensor::<B, 1, Int>::arange(0..rows as i64, &Default::default());
        let x = x.select(0, index) * 2.0;
        let x = x.clone() + x.flip([0]);
        for (k, value) in floats(x).into_iter().enumerate() {
            let (row, column) = (k / columns, k % columns);
            assert_eq!(value, 2.0 * (k + (rows - 1 - row) * columns + column) as f32);
        }
    }
}

#[test]
fn an_overlapping_copy_reads_old_values() {
    let _serial = serial();
    for _ in 0..ROUNDS {
        let (rows, columns) = (300, 64);
        let data: Vec<f32> = (0..rows * columns).map(|k| (k / columns) as f32).collect();
        let x = Tensor::<B, 2>::from_data(TensorData::new(data, [rows, columns]), &Default::default());
        let old = x.clone().slice([0..rows - 1, 0..columns]);
        let x = x.slice_assign([1..rows, 0..columns], old);
        for (k, value) in floats(x).into_iter().enumerate() {
            assert_eq!(value, (k / columns).saturating_sub(1) as f32);
        }
    }
}

#[test]
fn an_update_that_occurs_twice_counts_twice() {
    let _serial = serial();
    for _ in 0..ROUNDS {
        let x = Tensor::<A, 2>::from_floats([[1.0, 2.0, -3.0], [4.0, 5.0, 6.0]], &Default::default())
            .require_grad();
        let mut y = Tensor::<A, 2>::zeros([2, 3], &Default::default());
        for _ in 0..2 {
            let column = y.clone().slice([0..2, 0..1]) + x.clone().slice([0..2, 2..3]).abs();
            y = y.slice_assign([0..2, 0..1], column);
        }
        let grads = y.clone().sum().backward();
        assert_eq!(y.into_data(), TensorData::from([[6f32, 0.0, 0.0], [12.0, 0.0, 0.0]]));
        let grad = x.grad(&grads).unwrap();
        assert_eq!(grad.into_data(), TensorData::from([[0f32, 0.0, -2.0], [0.0, 0.0, 2.0]]));
    }
}

#[test]
fn layouts_after_an_operation_in_place() {
    let _serial = serial();
    fn program<K: Backend>() -> Vec<i64> {
        random::<K, 2>(3, [33, 65]).sin().transpose().argmin(1).into_data().iter::<i64>().collect()
    }
    as_eager!(program());
}

#[test]
fn indices_of_what_is_not_zero() {
    let _serial = serial();
    fn program<K: Backend>() -> Vec<Vec<i64>> {
        let x = random::<K, 2>(4, [2, 2048]).clamp_min(0.0);
        x.not_equal_elem(0.0).nonzero().into_iter().map(|x| x.into_data().iter::<i64>().collect()).collect()
    }
    let found = as_eager!(program());
    assert!(found[0].is_sorted() && found[0].len() == found[1].len() && found[1].len() > 500);
}

#[test]
fn a_convolution_at_several_batch_sizes() {
    let _serial = serial();
    fn program<K: Backend>(batch: usize) -> TensorData {
        let y = residual(random::<K, 4>(7, [batch, 2, 8, 8]), random::<K, 4>(8, [2, 2, 3, 3]));
        avg_pool2d(y, [2, 2], [2, 2], [0, 0], true, false).into_data()
    }
    for _ in 0..3 {
        for batch in [4, 7, 1] {
            assert_eq!(program::<B>(batch), program::<Flex>(batch), "batch {batch}");
        }
    }
}

#[test]
fn results_of_two_replays_are_two_tensors() {
    let _serial = serial();
    let f = |x: f32| {
        let y = Tensor::<B, 1>::from_floats([x], &Default::default()) + 1.0;
        B::step(&Default::default());
        y
    };
    let mut held = Vec::new();
    for round in 0..6 {
        held.push((f(round as f32 + 0.1), round as f32 + 0.1 + 1.0));
    }
    let (a, b) = (f(1.1), f(1.2));
    assert_eq!(a.clone().equal(b.clone()).into_data().iter::<bool>().collect::<Vec<_>>(), [false]);
    assert_eq!((floats(a), floats(b)), (vec![1.1 + 1.0], vec![1.2 + 1.0]));
    for (x, value) in held {
        assert_eq!(floats(x), [value]);
    }
}

#[test]
fn the_weight_gradient_of_a_convolution_of_a_permuted_input() {
    let _serial = serial();
    fn program<K: burn_tensor::backend::AutodiffBackend>(seed: u64) -> [TensorData; 2] {
        let x = random::<K, 4>(seed, [2, 8, 8, 3]).require_grad();
        let w = random::<K, 4>(seed + 1, [4, 3, 3, 3]).require_grad();
        let options = PaddedConvOptions::from(ConvOptions::new([1, 1], [0, 0], [1, 1], 1));
        let y = conv2d(x.clone().permute([0, 3, 1, 2]), w.clone(), None, options);
        let grads = (y * 0.5).powi_scalar(2).sum().backward();
        drop(Tensor::<K, 1>::zeros([1000], &Default::default()));
        [w.grad(&grads).unwrap().into_data(), x.grad(&grads).unwrap().into_data()]
    }
    let [w, _] = as_eager_with_gradients!(program(3));
    assert!(w.iter::<f32>().all(|g| g != 0.0));
}

#[test]
fn two_known_programs_in_a_chain() {
    let _serial = serial();
    let plus_one = |x: Tensor<B, 1>| {
        let y = x + 1.0;
        B::step(&Default::default());
        y
    };
    for call in 1..=10 {
        let x = Tensor::<B, 1>::from_floats([call as f32, 0.5], &Default::default());
        let between = plus_one(x.clone());
        let y = plus_one(between.clone());
        assert_eq!(floats(y), [call as f32 + 2.0, 2.5], "call {call}");
        assert_eq!(floats(between), [call as f32 + 1.0, 1.5]);
        assert_eq!(floats(x), [call as f32, 0.5]);
    }
}

#[test]
fn two_known_programs_in_turn() {
    let _serial = serial();
    let x = Tensor::<B, 1>::from_floats([0.25, 0.5], &Default::default());
    let expected = [vec![0.25f32.sin(), 0.5f32.sin()], vec![0.25f32.cos(), 0.5f32.cos()]];
    for _ in 0..ROUNDS {
        let (sin, cos) = (x.clone().sin(), x.clone().cos());
        assert_eq!([floats(sin), floats(cos)], expected);
        let sin = floats(x.clone().sin());
        assert_eq!([sin, floats(x.clone().cos())], expected);
    }
}

#[test]
fn the_second_pass_over_all_lengths_misses_nothing() {
    let _serial = serial();
    let device = Default::default();
    let pass = || {
        for length in 1..=256usize {
            let keys = Tensor::<B, 2>::ones([length, 4], &device);
            let query = Tensor::<B, 2>::ones([1, 4], &device);
            let weights = activation::softmax(query.matmul(keys.clone().transpose()), 1);
            assert!(floats(weights.matmul(keys)).iter().all(|x| (x - 1.0).abs() < 1e-4));
        }
    };
    pass();
    let before = live_bytes();
    B::reset_stats(&device);
    pass();
    let stats = B::stats(&device);
    assert_eq!((stats.hits, stats.misses.len()), (256, 0), "{stats}");
    let grown = live_bytes() - before;
    assert!(grown < 20_000, "{grown} bytes");
}

#[test]
fn random_numbers_do_not_depend_on_what_other_threads_record() {
    let _serial = serial();
    let device = Default::default();
    let draw = || {
        B::seed(&device, 7);
        let x: Vec<_> = (0..4).map(|_| Tensor::<B, 1>::random([5], Distribution::Default, &device)).collect();
        std::thread::spawn(|| {
            let y = Tensor::<B, 1>::ones([3], &Default::default());
            assert_eq!(floats(y.clone() + y), [2.0; 3]);
        })
        .join()
        .unwrap();
        x.into_iter().rev().map(floats).collect::<Vec<_>>()
    };
    let first = draw();
    for _ in 0..ROUNDS {
        assert_eq!(draw(), first, "the same seed, the same numbers, in the order of the calls");
    }
    assert!(first.windows(2).all(|pair| pair[0] != pair[1]), "replays draw anew");
    let shape: Shape = [2, 3].into();
    let (a, b) = (
        Tensor::<B, 2>::random(shape.clone(), Distribution::Default, &device),
        Tensor::<B, 2>::random(shape, Distribution::Default, &device),
    );
    assert_ne!(floats(a), floats(b));
}
