//! Inputs that broke other systems (NaN, ties, empty dimensions, 16-bit sums), with the values that are right.

use burn_autodiff::Autodiff;
use burn_backend::ops::ConvOptions;
use burn_backend::{AutodiffBackend, Backend, BoolDType, DType, IntDType, Scalar, Slice};
use burn_tensor::{Int, Tensor, TensorData};
use kiln::{Cuda, CudaDevice, Fusion};

use super::whole_device::recorded::turn;
use crate::Family;
use crate::harness::family::{alone, launches, shared};
use crate::harness::values::round_to;
use crate::harness::{Arg, Body, Dense, Domain, Inputs, Rng, Tolerance, Value};

fn floats(shape: &[usize], values: &[f64]) -> Dense {
    Dense::floats(shape, values.to_vec())
}

fn ints(shape: &[usize], values: &[i128]) -> Dense {
    Dense::ints(shape, values.to_vec())
}

/// One case of a family, with explicit inputs and outputs.
fn check(
    family: &'static str,
    op: &str,
    args: &[Arg],
    body: &impl Body,
    expected: &[Dense],
    tolerance: Tolerance,
) {
    let mut family = Family::new(family, args[0].dtype);
    family.cases(op, 0.0, |family, _| family.check_values(args, body, expected, tolerance));
    family.finish();
}

/// The body gives the same bits on `Fusion<Cuda>` as on `Cuda`: interpreted, captured and replayed.
fn same_fused(args: &[Arg], body: &impl Body) {
    fn run<B: Backend<Device = CudaDevice>>(args: &[Arg], body: &impl Body) -> Vec<TensorData> {
        let device = CudaDevice::default();
        let outputs = body.run::<B>(args.iter().map(|arg| arg.value(arg.dtype, &device)).collect());
        outputs.into_iter().map(Value::read).collect()
    }
    let device = CudaDevice::default();
    as_fused(|| run::<Cuda>(args, body), || run::<Fusion<Cuda>>(args, body));
    let stats = Fusion::<Cuda>::stats(&device);
    assert!(stats.executed >= 2, "{stats}");
}

/// Two programs that are the same on `Cuda` and on `Fusion<Cuda>` or `Autodiff` of them: the second, as often as it takes
/// to be replayed, gives what the first gives, which is returned.
#[track_caller]
fn as_fused<T: PartialEq + std::fmt::Debug>(eager: impl Fn() -> T, fused: impl Fn() -> T) -> T {
    let (_turn, _running) = (turn(), shared());
    Fusion::<Cuda>::reset_stats(&CudaDevice::default());
    let expected = eager();
    for round in 0..5 {
        assert_eq!(fused(), expected, "fused, round {round}");
    }
    Fusion::<Cuda>::forget_plans(&CudaDevice::default());
    expected
}

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

crate::body!(
    Extrema
        | x
        | [
            Value::Float(B::float_max_dim(x.float(), 0)),
            Value::Int(B::float_argmax(x.float(), 0, IntDType::I64)),
            Value::Float(B::float_cummax(x.float(), 0)),
            Value::Float(B::float_min_dim(x.float(), 0)),
            Value::Int(B::float_argmin(x.float(), 0, IntDType::I64)),
            Value::Float(B::float_max(x.float()))
        ]
);

#[test]
fn nan_wins_and_the_first_one_is_named() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for (values, max, at, running, min_at) in [
            (vec![1.0, NAN, 3.0], NAN, 1, vec![1.0, NAN, NAN], 1),
            (vec![NAN, INF], NAN, 0, vec![NAN, NAN], 0),
            (vec![INF, NAN], NAN, 1, vec![INF, NAN], 1),
            (vec![-INF, NAN, 2.0, NAN], NAN, 1, vec![-INF, NAN, NAN, NAN], 1),
            (vec![2.0, 7.0, 7.0, 2.0], 7.0, 1, vec![2.0, 7.0, 7.0, 7.0], 0),
            (vec![-INF, -INF], -INF, 0, vec![-INF, -INF], 0),
        ] {
            let n = values.len();
            let x = Arg::new(floats(&[n], &values), dtype);
            let min = if max.is_nan() { NAN } else { values.iter().fold(INF, |m, &v| m.min(v)) };
            let expected = [
                floats(&[1], &[max]),
                ints(&[1], &[at]),
                floats(&[n], &running),
                floats(&[1], &[min]),
                ints(&[1], &[min_at]),
                floats(&[1], &[max]),
            ];
            let args = vec![x; 6];
            check("reduce", "NaN in extrema", &args, &Extrema, &expected, Tolerance::exact());
        }
    }
}

#[test]
fn the_first_nan_of_a_long_line_is_named() {
    for (len, places) in [(5_000, [4_100, 4_900]), (70_000, [65_000, 66_000])] {
        let mut values: Vec<f64> = (0..len).map(|k| k as f64).collect();
        places.iter().for_each(|&p| values[p] = NAN);
        let args = vec![Arg::new(floats(&[len], &values), DType::F32); 6];
        let mut running = values.clone();
        running[places[0]..].fill(NAN);
        let expected = [
            floats(&[1], &[NAN]),
            ints(&[1], &[places[0] as i128]),
            floats(&[len], &running),
            floats(&[1], &[NAN]),
            ints(&[1], &[places[0] as i128]),
            floats(&[1], &[NAN]),
        ];
        check("reduce", "NaN in a long line", &args, &Extrema, &expected, Tolerance::exact());
    }
}

crate::body!(Products | x | [Value::Float(B::float_cumprod(x.float(), 0))]);

#[test]
fn cumprod_of_bf16_carries_in_f32() {
    let mut rng = Rng::new(9);
    let values: Vec<f64> = (0..1_000).map(|_| 0.99 + 0.01 * rng.normal().abs()).collect();
    let x = Arg::new(floats(&[1_000], &values), DType::BF16);
    let rounded = values.iter().map(|&v| round_to(v, DType::BF16));
    let mut product = 1.0;
    let expected: Vec<f64> = rounded
        .map(|v| {
            product *= v;
            product
        })
        .collect();
    let tolerance = Tolerance::rounded(DType::BF16);
    check("cumulative", "cumprod of bf16", &[x], &Products, &[floats(&[1_000], &expected)], tolerance);
}

crate::body!(
    Sums | x
        | [
            Value::Float(B::float_sum(x.float())),
            Value::Float(B::float_sum_dim(x.float(), 0)),
            Value::Float(B::float_mean(x.float()))
        ]
);

#[test]
fn f16_sums_do_not_overflow_on_the_way() {
    let values = [[32_000.0; 4], [-32_000.0; 4]].concat();
    let args = vec![Arg::new(floats(&[8], &values), DType::F16); 3];
    let zero = floats(&[1], &[0.0]);
    check("reduce", "f16 sum", &args, &Sums, &[zero.clone(), zero.clone(), zero], Tolerance::exact());
}

#[derive(Debug)]
struct BiasGradient;
impl Body for BiasGradient {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (output_grad, x, bias) = (inputs.float(), inputs.float(), inputs.float());
        vec![Value::Float(B::conv2d_bias_backward(x, bias, output_grad))]
    }
}

#[test]
fn f16_sums_over_images_and_pixels_do_not_overflow_in_between() {
    // 120,000 or as much below 0 for each image, and for each pixel over all images; 0 in all. Two channels keep the sums over
    // images and over pixels apart.
    let of = |k: usize| if k % 4 < 2 { 30_000.0 } else { -30_000.0 };
    let dy: Vec<f64> = (0..32).map(|k| of(k / 8) + of(k % 4)).collect();
    let args = [(&[4, 2, 2, 2][..], &dy[..]), (&[4, 1, 2, 2], &[0.0; 16]), (&[2], &[0.0; 2])];
    let args = args.map(|(shape, values)| Arg::new(floats(shape, values), DType::F16));
    let zero = floats(&[2], &[0.0; 2]);
    check("reduce", "f16 bias gradient", &args, &BiasGradient, &[zero], Tolerance::exact());
}

crate::body!(Remainders | x | [Value::Float(B::float_remainder(x.float(), x.float()))]);

#[test]
fn a_remainder_lies_between_zero_and_the_divisor() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let a = [1.0, 0.5, 6.0, -1.0, -0.5, 5.5, -5.5, -1e-7, 3.0, 0.0];
        let b = [0.1, 0.1, 0.2, 0.1, 0.1, -2.0, -2.0, 3.0, 3.0, 3.0];
        let args = [a, b].map(|v| Arg::new(floats(&[10], &v), dtype));
        let device = Default::default();
        let inputs = args.iter().map(|a| a.value::<crate::Subject>(dtype, &device)).collect();
        let r = Dense::of(&Remainders.run(inputs).remove(0).read());
        for (k, &r) in r.as_floats().iter().enumerate() {
            let b = round_to(b[k], dtype);
            let inside = if b > 0.0 { (0.0..b).contains(&r) } else { b < r && r <= 0.0 };
            assert!(inside, "{dtype:?}: {} % {b} = {r}", a[k]);
        }
    }
}

/// The floor of a quotient, made from the remainder: the rounded quotient may be a whole number too large. Then the
/// remainder.
#[derive(Debug)]
struct FloorDivision;
impl Body for FloorDivision {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (a, b) = (inputs.float(), inputs.float());
        let rest = B::float_remainder(a.clone(), b.clone());
        let floor = B::float_round(B::float_div(B::float_sub(a, rest.clone()), b));
        vec![Value::Float(floor), Value::Float(rest)]
    }
}

#[test]
fn a_floor_division_does_not_round_up() {
    for dtype in [DType::F32, DType::F64] {
        let args = [[1.0, 0.5, 6.0], [0.1, 0.1, 0.2]].map(|v| Arg::new(floats(&[3], &v), dtype));
        let rest = [(1.0, 0.1), (0.5, 0.1), (6.0, 0.2)].map(|(a, b)| a % round_to(b, dtype));
        let expected = [floats(&[3], &[9.0, 4.0, 29.0]), floats(&[3], &rest)];
        check("elementwise", "floor division", &args, &FloorDivision, &expected, Tolerance::exact());
        same_fused(&args, &FloorDivision);
    }
}

crate::body!(
    SortedIndices
        | x
        | [
            Value::Int(B::int_argsort(x.int(), 0, false)),
            Value::Int(B::int_sort_with_indices(x.int(), 0, false).1),
            Value::Int(B::int_sort_with_indices(x.int(), 0, false).0)
        ]
);

#[test]
fn sorting_bytes_gives_indices_that_a_byte_does_not_hold() {
    for dtype in [DType::I8, DType::I64] {
        let falling: Vec<i128> = (0..200).map(|k| 99 - k).collect();
        let x = Arg::new(ints(&[200], &falling), dtype);
        let indices: Vec<i128> = (0..200).rev().collect();
        let sorted: Vec<i128> = (0..200).map(|k| k - 100).collect();
        let expected = [ints(&[200], &indices), ints(&[200], &indices), ints(&[200], &sorted)];
        let args = vec![x; 3];
        check("index", "indices of sorted integers", &args, &SortedIndices, &expected, Tolerance::exact());
    }
}

crate::body!(
    ZeroDivision
        | x
        | [
            Value::Int(B::int_div(x.int(), x.int())),
            Value::Int(B::int_remainder(x.int(), x.int())),
            Value::Int(B::int_div_scalar(x.int(), Scalar::Int(0))),
            Value::Int(B::int_remainder_scalar(x.int(), Scalar::Int(0)))
        ]
);

#[test]
fn integer_division_by_zero_is_zero() {
    for dtype in crate::harness::INTS {
        let (low, high) = crate::harness::values::int_limits(dtype);
        let a = [0, 1, high, low];
        let zeros = ints(&[4], &[0; 4]);
        let [x, z] = [ints(&[4], &a), zeros.clone()].map(|v| Arg::new(v, dtype));
        let args = [x.clone(), z.clone(), x.clone(), z, x.clone(), x];
        check("elementwise", "division by zero", &args, &ZeroDivision, &vec![zeros; 4], Tolerance::exact());
        if matches!(dtype, DType::I32 | DType::I64) {
            same_fused(&args, &ZeroDivision);
        }
    }
}

#[test]
fn the_most_negative_integer_divided_by_minus_one_stays() {
    for dtype in [DType::I8, DType::I16, DType::I32, DType::I64] {
        let low = crate::harness::values::int_limits(dtype).0;
        let x = Arg::new(ints(&[1], &[low]), dtype);
        let y = Arg::new(ints(&[1], &[-1]), dtype);
        let args = [x.clone(), y.clone(), x.clone(), y, x.clone(), x];
        let expected = [low, 0, 0, 0].map(|v| ints(&[1], &[v]));
        check("elementwise", "MIN / -1", &args, &ZeroDivision, &expected, Tolerance::exact());
    }
}

/// A convolution whose weight is a view with an offset.
#[derive(Debug)]
struct ViewedKernel;
impl Body for ViewedKernel {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, weights) = (inputs.float(), inputs.float());
        let part = B::float_slice(weights, &[Slice::new(2, Some(6), 1), Slice::new(1, Some(4), 1)]);
        let flipped = B::float_swap_dims(part, 2, 3);
        vec![Value::Float(B::conv2d(x, flipped, None, ConvOptions::new([1, 1], [1, 1], [1, 1], 1)))]
    }
}

#[test]
fn conv2d_with_a_sliced_and_transposed_kernel() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let mut family = Family::new("conv", dtype);
        family.cases("conv2d with a viewed kernel", 0.1, |family, rng| {
            let args = [[2, 3, 8, 8], [7, 5, 3, 3]].map(|s| Arg::random(rng, &s, dtype, Domain::Normal));
            let gradient = Tolerance::chain(dtype, 6, 128);
            family.check_both(&args, &ViewedKernel, Tolerance::sum(dtype, 27), gradient);
        });
        family.finish();
    }
}

crate::body!(
    PaddedMeans
        | x
        | [
            Value::Float(B::avg_pool2d(x.float(), [3, 1], [1, 1], [2, 0], false, false)),
            Value::Float(B::avg_pool2d(x.float(), [1, 3], [1, 1], [0, 2], false, false)),
            Value::Float(B::avg_pool1d(x.float(), 3, 1, 2, false, false))
        ]
);

#[test]
fn padding_that_does_not_count_leaves_a_mean_of_ones() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let args = [vec![1, 1, 4, 1], vec![1, 1, 1, 4], vec![1, 1, 4]]
            .map(|shape| Arg::new(floats(&shape, &[1.0; 4]), dtype));
        let expected =
            [vec![1, 1, 6, 1], vec![1, 1, 1, 6], vec![1, 1, 6]].map(|shape| floats(&shape, &[1.0; 6]));
        check("pool", "a mean of ones", &args, &PaddedMeans, &expected, Tolerance::exact());
    }
}

/// One token's row, sliced out of a batch, times a weight that is stored transposed.
#[derive(Debug)]
struct LastToken;
impl Body for LastToken {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, w) = (inputs.float(), inputs.float());
        let last = B::float_slice(x, &[Slice::new(0, None, 1), Slice::new(-1, None, 1)]);
        let last = B::float_reshape(last, [1, 2048].into());
        vec![Value::Float(B::float_matmul(last, B::float_transpose(w)))]
    }
}

#[test]
fn a_sliced_row_times_a_transposed_weight() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let mut family = Family::new("matmul", dtype);
        family.cases("the last token", 0.2, |family, rng| {
            let args = [vec![1, 8, 2048], vec![32, 2048]].map(|s| Arg::plain(rng, &s, dtype, Domain::Normal));
            family.check(&args, &LastToken, Tolerance::sum(dtype, 2048));
        });
        family.finish();
    }
}

#[test]
fn a_sliced_row_times_a_transposed_weight_is_not_copied() {
    let _alone = alone();
    let values = |shape: &[usize]| {
        let all = (0..shape.iter().product()).map(|k: usize| (k % 3) as f32 - 1.0).collect::<Vec<_>>();
        Value::<Cuda>::Float(float_from(TensorData::new(all, shape.to_vec())))
    };
    let args = vec![values(&[1, 8, 2048]), values(&[32, 2048])];
    let (_product, launches) = launches(|| LastToken.run::<Cuda>(args));
    assert_eq!(launches, 1, "the product is all that is launched");
}

fn float_from(data: TensorData) -> burn_backend::tensor::FloatTensor<Cuda> {
    <Cuda as burn_backend::ops::FloatTensorOps<Cuda>>::float_from_data(data, &CudaDevice::default())
}

/// Cross entropy by hand, with targets that are masked before they index: 255 is no class.
#[derive(Debug)]
struct MaskedCrossEntropy;
impl Body for MaskedCrossEntropy {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (logits, targets) = (inputs.float(), inputs.int());
        let ignored = B::int_equal_elem(targets.clone(), Scalar::Int(255), BoolDType::Native);
        let targets = B::int_mask_fill(targets, ignored.clone(), Scalar::Int(0));
        let picked = B::float_gather(1, B::log_softmax(logits, 1), targets);
        vec![Value::Float(B::float_mask_fill(B::float_neg(picked), ignored, Scalar::Float(0.0)))]
    }
}

#[test]
fn an_ignored_target_outside_the_classes_costs_nothing() {
    let mut family = Family::new("index", DType::F32);
    family.cases("cross entropy with ignored targets", 0.2, |family, rng| {
        let targets = Arg::new(ints(&[6, 1], &[0, 1, 255, 0, 1, 2]), DType::I32);
        let args = [Arg::random(rng, &[6, 3], DType::F32, Domain::Normal), targets];
        let [forward, gradient] = [4, 6].map(|depth| Tolerance::chain(DType::F32, depth, 3));
        family.check_both(&args, &MaskedCrossEntropy, forward, gradient);
    });
    family.finish();
}

/// A least-squares loss with a bias that is broadcast over the batch.
#[derive(Debug)]
struct LeastSquares;
impl Body for LeastSquares {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, w, bias, label) = (inputs.float(), inputs.float(), inputs.float(), inputs.float());
        let y = B::float_add(B::float_matmul(x, w), bias);
        let e = B::float_sub(y, label);
        vec![Value::Float(B::float_mul(e.clone(), e))]
    }
}

#[test]
fn gradients_of_a_broadcast_bias_have_its_shape() {
    let mut family = Family::new("matmul", DType::F32);
    family.cases("least squares with a broadcast bias", 0.2, |family, rng| {
        // [2, 1] + [1, 3] broadcasts to [2, 3].
        let args = [vec![2, 3], vec![3, 1], vec![1, 3], vec![2, 1]]
            .map(|s| Arg::random(rng, &s, DType::F32, Domain::Normal));
        family.check_gradient(&args, &LeastSquares, Tolerance::chain(DType::F32, 8, 8));
    });
    family.finish();
}

crate::body!(
    EmptySums
        | x
        | [
            Value::Float(B::float_sum_dim(x.float(), 0)),
            Value::Float(B::float_prod_dim(x.float(), 0)),
            Value::Float(B::float_sum(x.float())),
            Value::Float(B::float_mul(x.float(), x.float())),
            Value::Float(B::float_add(x.float(), x.float()))
        ]
);

#[test]
fn sums_over_nothing_are_zero() {
    let empty = Arg::new(floats(&[0, 4], &[]), DType::F32);
    let one = Arg::new(floats(&[1, 4], &[2.0; 4]), DType::F32);
    let args = [empty.clone(), empty.clone(), empty.clone(), empty.clone(), one.clone(), one, empty];
    let nothing = floats(&[0, 4], &[]);
    let expected = [
        floats(&[1, 4], &[0.0; 4]),
        floats(&[1, 4], &[1.0; 4]),
        floats(&[1], &[0.0]),
        nothing.clone(),
        nothing,
    ];
    check("reduce", "empty sums", &args, &EmptySums, &expected, Tolerance::exact());
    same_fused(&args, &EmptySums);
}

crate::body!(
    EmptyRows
        | x
        | [
            Value::Float(B::float_sum_dim(x.float(), 1)),
            Value::Float(B::float_sum_dim(x.float(), 0)),
            Value::Float(B::float_max_dim(x.float(), 0)),
            Value::Float(B::softmax(x.float(), 0)),
            Value::Float(B::float_matmul(x.float(), x.float())),
            Value::Float(B::float_cumsum(x.float(), 0)),
            Value::Bool(B::float_all(x.float(), BoolDType::Native)),
            Value::Bool(B::float_any(x.float(), BoolDType::Native))
        ]
);

#[test]
fn ops_on_empty_tensors_have_the_right_shape() {
    let empty = |shape: [usize; 2]| Arg::new(floats(&shape, &[]), DType::F32);
    let args = [
        empty([3, 0]),
        empty([3, 0]),
        empty([2, 0]),
        empty([2, 0]),
        empty([2, 0]),
        empty([0, 3]),
        empty([2, 0]),
        empty([0, 5]),
        empty([0, 5]),
    ];
    let expected = [
        floats(&[3, 1], &[0.0; 3]),
        floats(&[1, 0], &[]),
        floats(&[1, 0], &[]),
        floats(&[2, 0], &[]),
        // A product over no terms.
        floats(&[2, 3], &[0.0; 6]),
        floats(&[2, 0], &[]),
        ints(&[1], &[1]),
        ints(&[1], &[0]),
    ];
    check("reduce", "empty rows", &args, &EmptyRows, &expected, Tolerance::exact());
    same_fused(&args, &EmptyRows);
}

crate::body!(SelectNothing | x | [Value::Float(B::float_select(x.float(), 0, x.int()))]);

#[test]
fn selecting_nothing_has_zero_gradients() {
    let mut family = Family::new("index", DType::F32);
    family.cases("select of nothing", 0.1, |family, rng| {
        let none = Arg::new(ints(&[0], &[]), DType::I64);
        let args = [Arg::random(rng, &[3, 4], DType::F32, Domain::Normal), none];
        family.check_values(&args, &SelectNothing, &[floats(&[0, 4], &[])], Tolerance::exact());
        family.check_gradient(&args, &SelectNothing, Tolerance::exact());
    });
    family.finish();
}

/// The gradient of the rows that a mask without a true element selects, and of what was computed of them.
#[test]
fn a_masked_selection_of_nothing_has_zero_gradients() {
    fn program<B: AutodiffBackend<Device = CudaDevice>>() -> TensorData {
        let device = CudaDevice::default();
        let x = Tensor::<B, 2>::ones([3, 2], &device).require_grad();
        let mask = Tensor::<B, 1>::zeros([3], &device).greater_elem(1.0);
        let rows = mask.argwhere().squeeze_dim::<1>(1);
        assert_eq!(rows.dims(), [0]);
        let gradients = (x.clone() * 3.0).select(0, rows).sum().backward();
        x.grad(&gradients).expect("x is a leaf").into_data()
    }
    let gradient = as_fused(program::<Autodiff<Cuda>>, program::<Autodiff<Fusion<Cuda>>>);
    assert_eq!(gradient, TensorData::from([[0f32; 2]; 3]));
}

#[test]
fn nothing_broadcasts_against_one_in_either_order() {
    fn program<B: Backend<Device = CudaDevice>>() -> Vec<TensorData> {
        let device = CudaDevice::default();
        let (none, one) = (Tensor::<B, 1>::zeros([0], &device), Tensor::<B, 1>::ones([1], &device));
        let products = [none.clone() * one.clone(), one.clone() * none.clone()];
        let ints = [none.clone().int() * one.clone().int(), one.int() * none.int()];
        assert!(products.iter().all(|x| x.dims() == [0]) && ints.iter().all(|x| x.dims() == [0]));
        products.map(|x| (x + 1.0).into_data()).into_iter().chain(ints.map(Tensor::into_data)).collect()
    }
    let all = as_fused(program::<Cuda>, program::<Fusion<Cuda>>);
    assert!(all.iter().all(|data| data.shape.as_slice() == [0]), "{all:?}");
}

/// The shapes of what operations make of a tensor without elements, with those that they should have.
fn of_nothing<B: Backend<Device = CudaDevice>, const D: usize>(
    shape: [usize; D],
) -> Vec<(Vec<usize>, Vec<usize>)> {
    let device = CudaDevice::default();
    let data = |value: f32| TensorData::new(vec![value; shape.iter().product()], shape);
    let x = || Tensor::<B, D>::from_data(data(0.5), &device);
    let ints = || Tensor::<B, D, Int>::from_data(TensorData::new(Vec::<i32>::new(), shape), &device);
    let same = [
        x().exp(),
        x().log(),
        x().log1p(),
        x().sqrt(),
        x().sin(),
        x().cos(),
        x().tan(),
        x().tanh(),
        x().erf(),
        x().recip(),
        x().abs(),
        x().sign(),
        x().floor(),
        x().ceil(),
        x().round(),
        x().neg(),
        x().powf_scalar(2.5),
        x().powi_scalar(2),
        x().clamp(0.0, 1.0),
        x() + 1.0,
        x() / 2.0,
        burn_tensor::activation::relu(x()),
        burn_tensor::activation::gelu(x()),
        burn_tensor::activation::sigmoid(x()),
        burn_tensor::activation::softmax(x(), D - 1),
        x() + x(),
        x() - x(),
        x() * x(),
        x() / x(),
        x().powf(x()),
        x().atan2(x()),
        x().max_pair(x()),
        x().remainder(x()),
        x().mask_where(x().greater(x()), x()),
        x().mask_fill(x().equal(x()), 3.0),
        x().gather(0, ints()),
        x().gather(D - 1, ints()),
        x().scatter(0, ints(), x(), burn_tensor::IndexingUpdateOp::Add),
        x().slice_assign(shape.map(|n| 0..n), x()),
        x().slice(shape.map(|n| 0..n)),
        x().flip([0]),
        x().cumsum(0),
        x().cumprod(D - 1),
        x().sort(D - 1),
        ints().float(),
        x().cast(DType::F16).cast(DType::F32),
    ];
    let whole = [
        ints() + ints(),
        ints() * 3,
        ints() / ints(),
        ints().powi_scalar(2),
        ints().bitwise_and(ints()),
        x().int(),
        x().argsort(D - 1),
    ];
    let flags = [x().greater(x()), x().lower_elem(1.0), x().is_nan(), ints().equal(ints()).bool_not()];
    let mut all: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    let mut expect = |got: [usize; D], expected: [usize; D]| all.push((got.to_vec(), expected.to_vec()));
    same.iter().for_each(|y| expect(y.dims(), shape));
    whole.iter().for_each(|y| expect(y.dims(), shape));
    flags.iter().for_each(|y| expect(y.dims(), shape));
    let with = |dim: usize, size: usize| {
        let mut shape = shape;
        shape[dim] = size;
        shape
    };
    let mut reversed = shape;
    reversed.reverse();
    let axes: [isize; D] = std::array::from_fn(|d| (D - 1 - d) as isize);
    expect(x().permute(axes).dims(), reversed);
    expect(x().swap_dims(0, D - 1).dims(), reversed);
    expect(x().repeat_dim(0, 3).dims(), with(0, 3 * shape[0]));
    expect(Tensor::cat(vec![x(), x()], D - 1).dims(), with(D - 1, 2 * shape[D - 1]));
    expect(x().slice(shape.map(|n| 0..n / 2)).dims(), shape.map(|n| n / 2));
    let none = Tensor::<B, 1, Int>::from_data(TensorData::new(Vec::<i32>::new(), [0]), &device);
    expect(x().select(0, none).dims(), with(0, 0));
    if shape[0] > 0 {
        expect(x().max_dim(0).dims(), with(0, 1));
        expect(x().sum_dim(0).dims(), with(0, 1));
    }
    all
}

#[test]
fn operations_on_nothing_have_the_right_shape_and_launch_nothing() {
    let _alone = alone();
    drop(float_from(TensorData::from([0.0f32])));
    let (all, launches) = launches(|| {
        [of_nothing::<Cuda, 1>([0]), of_nothing::<Cuda, 2>([0, 10]), of_nothing::<Cuda, 2>([10, 0])]
    });
    assert_eq!(launches, 0);
    for (shapes, of) in all.iter().zip(["[0]", "[0, 10]", "[10, 0]"]) {
        for (k, (got, expected)) in shapes.iter().enumerate() {
            assert_eq!(got, expected, "operation {k} on {of}");
        }
    }
}

#[test]
fn the_largest_of_nothing_is_an_error() {
    let _running = crate::harness::family::shared();
    let x =
        Arg::new(floats(&[0, 3], &[]), DType::F32).value::<crate::Subject>(DType::F32, &Default::default());
    let failed = crate::harness::family::caught(|| {
        <crate::Subject as burn_backend::ops::FloatTensorOps<_>>::float_max_dim(x.float(), 0)
    });
    assert!(failed.is_err());
}

crate::body!(NegativeZero | x | [Value::Float(B::float_recip(B::float_abs(B::float_neg(x.float()))))]);

#[test]
fn infinities_and_nan_are_read_as_they_are() {
    let x = Arg::new(floats(&[4], &[INF, -INF, NAN, 0.0]), DType::F32);
    let expected = floats(&[4], &[0.0, 0.0, NAN, INF]);
    check("elementwise", "reading infinities", &[x], &NegativeZero, &[expected], Tolerance::exact());
}
