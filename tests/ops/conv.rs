//! Convolutions, pooling and embedding, forward and backward.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLockWriteGuard};

use burn_backend::ops::{ConvOptions, ConvTransposeOptions, DeformConvOptions, FloatTensorOps};
use burn_backend::tensor::FloatTensor;
use burn_backend::{Backend, DType, FloatDType, TensorData};
use burn_tensor::Tensor;
use burn_tensor::activation::relu;
use burn_tensor::module::conv2d;
use kiln::{ConvAlgorithm, Cuda, CudaDevice, CudaTensor, Fusion};

use crate::Family;
use crate::harness::family::{alone, caught, emulated, large, launches};
use crate::harness::{Arg, Body, Dense, Domain, Inputs, Rng, Tolerance, Value, shape};

/// While it lives, convolutions are computed in one way; the choice holds for the process, so those who make it take turns.
struct Way {
    _turn: MutexGuard<'static, ()>,
}

impl Way {
    fn new(algorithm: ConvAlgorithm) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        CudaDevice::set_conv_algorithm(algorithm);
        Way { _turn: turn }
    }

    /// Columns, or cuDNN where there is one.
    fn any(rng: &mut Rng) -> Self {
        Way::new(installed(rng.pick(&[ConvAlgorithm::Columns, ConvAlgorithm::Cudnn])))
    }
}

/// For a test that must run alone, with all convolutions by cuDNN; nothing where that is not installed.
fn alone_by_cudnn() -> Option<(Way, RwLockWriteGuard<'static, ()>)> {
    let alone = alone();
    CudaDevice::cudnn_version().is_ok().then(|| (Way::new(ConvAlgorithm::Cudnn), alone))
}

/// The algorithm, or columns without cuDNN.
fn installed(algorithm: ConvAlgorithm) -> ConvAlgorithm {
    if CudaDevice::cudnn_version().is_ok() { algorithm } else { ConvAlgorithm::Columns }
}

impl Drop for Way {
    fn drop(&mut self) {
        CudaDevice::set_conv_algorithm(ConvAlgorithm::Fastest);
    }
}

/// A convolution, with a bias if there is a third input.
#[derive(Debug)]
pub(crate) struct Conv2d(ConvOptions<2>);
impl Body for Conv2d {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let (x, weight, bias) = operands(inputs);
        vec![Value::Float(B::conv2d(x, weight, bias, self.0.clone()))]
    }
}

#[derive(Debug)]
pub(crate) struct Conv1d(ConvOptions<1>);
impl Body for Conv1d {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let (x, weight, bias) = operands(inputs);
        vec![Value::Float(B::conv1d(x, weight, bias, self.0.clone()))]
    }
}

#[derive(Debug)]
pub(crate) struct Conv3d(ConvOptions<3>);
impl Body for Conv3d {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let (x, weight, bias) = operands(inputs);
        vec![Value::Float(B::conv3d(x, weight, bias, self.0.clone()))]
    }
}

/// Input, weight, and bias if there is a third.
fn operands<B: Backend>(inputs: Vec<Value<B>>) -> (FloatTensor<B>, FloatTensor<B>, Option<FloatTensor<B>>) {
    let bias = inputs.len() == 3;
    let mut inputs = Inputs::new(inputs);
    (inputs.float(), inputs.float(), bias.then(|| inputs.float()))
}

/// Input, weight and bias that fit together, and the length of each sum. Images have at most about `limit` pixels in each
/// dimension.
fn conv_args<const N: usize>(rng: &mut Rng, dtype: DType, limit: usize) -> (Vec<Arg>, ConvOptions<N>, usize) {
    let groups = rng.pick(&[1, 1, 1, 2, 3, 4]);
    let (cin, cout) = (groups * rng.range(1, 5), groups * rng.range(1, 5));
    let kernel: [usize; N] = std::array::from_fn(|_| rng.range(1, if N == 3 { 3 } else { 4 }));
    let stride: [usize; N] = std::array::from_fn(|_| rng.range(1, 3));
    let padding: [usize; N] = std::array::from_fn(|_| rng.below(3));
    let dilation: [usize; N] = std::array::from_fn(|_| rng.range(1, 2));
    let smallest: [usize; N] =
        std::array::from_fn(|d| (dilation[d] * (kernel[d] - 1) + 1).saturating_sub(2 * padding[d]).max(1));
    let image = smallest.map(|n| rng.range(n, n.max(limit)));
    let batch = rng.pick(&[1, 2, 3, 4, 6]);
    let x = Arg::random(rng, &[&[batch, cin][..], &image].concat(), dtype, Domain::Normal);
    let shape = [&[cout, cin / groups][..], &kernel].concat();
    let weight = Arg::random(rng, &shape, dtype, Domain::Normal);
    let mut args = vec![x, weight];
    if rng.one_in(2) {
        args.push(Arg::random(rng, &[cout], dtype, Domain::Normal));
    }
    let options = ConvOptions::new(stride, padding, dilation, groups);
    (args, options, cin / groups * kernel.iter().product::<usize>())
}

fn conv2d_args(rng: &mut Rng, dtype: DType) -> (Vec<Arg>, ConvOptions<2>, usize) {
    let limit = if rng.one_in(4) && large() { 33 } else { 12 };
    conv_args(rng, dtype, limit)
}

/// Of an output. cuBLASLt rounds a 16-bit product before it adds the bias, for some shapes.
fn with_bias(args: &[Arg], dtype: DType, n: usize) -> Tolerance {
    match dtype {
        DType::F16 | DType::BF16 if args.len() > 2 => Tolerance::chain(dtype, 2, n),
        _ => Tolerance::sum(dtype, n),
    }
}

fn conv(dtype: DType) {
    let mut family = Family::new("conv", dtype);
    family.cases("conv2d", 4.0, |family, rng| {
        let _way = Way::any(rng);
        let (args, options, n) = conv2d_args(rng, dtype);
        family.check_both(&args, &Conv2d(options), with_bias(&args, dtype, n), gradient(dtype, &args));
    });
    family.cases("conv2d of no images", 0.1, |family, rng| {
        let args = [[0, 3, 5, 5], [4, 3, 3, 3]].map(|s| Arg::plain(rng, &s, dtype, Domain::Normal));
        let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        let nothing = Dense::floats(&[0, 4, 5, 5], vec![]);
        family.check_values(&args, &Conv2d(options), &[nothing], Tolerance::exact());
    });
    family.cases("conv1d", 2.0, |family, rng| {
        let _way = Way::any(rng);
        let (args, options, n) = conv_args(rng, dtype, 40);
        // Burn's weight gradient of groups, which burn-flex has, takes too much where the stride leaves a rest. Kiln's is
        // compared with plain loops below.
        let gradient = Some(gradient(dtype, &args)).filter(|_| options.groups == 1 || options.stride == [1]);
        family.check_with(&args, &Conv1d(options), None, with_bias(&args, dtype, n), gradient);
    });
    family.cases("conv3d", 1.5, |family, rng| {
        let _way = Way::any(rng);
        let (args, options, n) = conv_args(rng, dtype, 5);
        family.check_both(&args, &Conv3d(options), with_bias(&args, dtype, n), gradient(dtype, &args));
    });
    family.cases("conv2d of a pixel", 0.5, |family, rng| {
        let _way = Way::any(rng);
        let (mut args, options, _) = conv_args::<2>(rng, dtype, 8);
        let (batch, cin, cout, per_group) =
            (args[0].shape[0], args[0].shape[1], args[1].shape[0], args[1].shape[1]);
        args[0] = Arg::random(rng, &[batch, cin, 5, 7], dtype, Domain::Normal);
        args[1] = Arg::random(rng, &[cout, per_group, 1, 1], dtype, Domain::Normal);
        let options = ConvOptions::new([1; 2], [0; 2], [1; 2], options.groups);
        family.check_both(
            &args,
            &Conv2d(options),
            with_bias(&args, dtype, per_group),
            gradient(dtype, &args),
        );
    });
    family.finish();
}

/// Products this large are run with several algorithms the first time, on the output that holds the bias.
#[test]
fn a_bias_counts_once_where_algorithms_are_measured() {
    let mut family = Family::new("conv", DType::BF16);
    family.cases("a large convolution with a bias", 0.0, |family, rng| {
        let _way = Way::new(ConvAlgorithm::Columns);
        let shapes = [vec![1, 512, 32, 32], vec![512, 512, 1, 1], vec![512]];
        let args = shapes.map(|s| Arg::plain(rng, &s, DType::BF16, Domain::Whole));
        let options = ConvOptions::new([1; 2], [0; 2], [1; 2], 1);
        family.check(&args, &Conv2d(options), Tolerance::sum(DType::BF16, 512));
    });
    family.finish();
}

#[test]
fn cudnn_computes_a_convolution_in_one_launch_where_it_is_installed() {
    let version = match CudaDevice::cudnn_version() {
        Ok(version) => version,
        Err(why) if !emulated() => return println!("without cuDNN: {why}"),
        Err(why) => panic!("{why}"),
    };
    let _alone = alone();
    let device = CudaDevice::new(0);
    let tensor = |shape: [usize; 4]| Tensor::<Cuda, 4>::ones(shape, &device);
    let (x, w) = (tensor([2, 3, 6, 6]), tensor([4, 3, 3, 3]));
    let launches_by = |algorithm| {
        let _way = Way::new(algorithm);
        let options = ConvOptions::new([1; 2], [0; 2], [1; 2], 1);
        let conv = || conv2d(x.clone(), w.clone(), None, options.clone());
        let first = conv();
        let (again, launches) = launches(conv);
        first.into_data().assert_eq(&again.into_data(), true);
        launches
    };
    let (cudnn, columns) = (launches_by(ConvAlgorithm::Cudnn), launches_by(ConvAlgorithm::Columns));
    println!("cuDNN {version}: {cudnn} launch, {columns} without it");
    assert!(cudnn == 1 && columns > 1, "{cudnn} with cuDNN, {columns} without");
}

/// With channels last, as views: of the input, of the output's gradient, and so of what comes back.
#[derive(Debug)]
struct ChannelsLast(ConvOptions<2>);
impl Body for ChannelsLast {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, weight, bias, grad) = (inputs.float(), inputs.float(), inputs.float(), inputs.float());
        let [x, grad] = [x, grad].map(|t| B::float_permute(t, &[0, 3, 1, 2]));
        let y = B::conv2d(x.clone(), weight.clone(), Some(bias), self.0.clone());
        let dx = B::conv2d_x_backward(x.clone(), weight.clone(), grad.clone(), self.0.clone());
        let dw = B::conv2d_weight_backward(x, weight, grad, self.0.clone());
        [y, dx, dw].map(Value::Float).into()
    }
}

#[test]
fn channels_last_are_taken_as_they_lie() {
    let mut family = Family::new("conv", DType::F32);
    for algorithm in [ConvAlgorithm::Cudnn, ConvAlgorithm::Columns, ConvAlgorithm::Fastest] {
        family.cases(&format!("channels last by {algorithm:?}"), 0.0, |family, rng| {
            let _way = Way::new(installed(algorithm));
            // The last one is timed.
            for (size, channels) in [(6, 3), (9, 1), (14, 64)] {
                let shapes = [
                    vec![2, size, size + 1, channels],
                    vec![2 * channels, channels, 3, 3],
                    vec![2 * channels],
                    vec![2, size, size + 1, 2 * channels],
                ];
                let args = shapes.map(|s| Arg::plain(rng, &s, DType::F32, Domain::Normal));
                let body = ChannelsLast(ConvOptions::new([1; 2], [1; 2], [1; 2], 1));
                let n = 9 * 2 * channels.max(size * size);
                family.check(&args, &body, Tolerance::sum(DType::F32, n));
            }
        });
    }
    family.finish();
}

/// A plan for channels last needs no copy of what lies so, and its result keeps the order.
#[test]
fn a_convolution_with_channels_last_is_one_launch_where_cudnn_is_installed() {
    let Some(_alone) = alone_by_cudnn() else { return };
    let device = CudaDevice::new(0);
    let ones = |shape: [usize; 4]| Tensor::<Cuda, 4>::ones(shape, &device);
    // A weight of one pixel lies in both orders.
    let (x, w) = (ones([2, 6, 5, 8]).permute([0, 3, 1, 2]), ones([16, 8, 1, 1]));
    let conv = || conv2d(x.clone(), w.clone(), None, ConvOptions::new([1; 2], [0; 2], [1; 2], 1));
    drop(conv());
    let (y, launches) = launches(conv);
    assert_eq!(launches, 1);
    let y = y.into_primitive().tensor();
    assert_eq!((y.dims(), y.layout().strides()), (&[2, 16, 6, 5][..], &[480, 1, 80, 16][..]));
}

/// A block of a residual network: what lies with channels last stays so, and each operation is one launch.
#[test]
fn channels_stay_last_from_one_convolution_to_the_next() {
    let Some(_alone) = alone_by_cudnn() else { return };
    let device = CudaDevice::new(0);
    let ones = |shape: [usize; 4]| Tensor::<Cuda, 4>::ones(shape, &device);
    let (x, w) = (ones([2, 6, 5, 8]).permute([0, 3, 1, 2]), ones([8, 8, 1, 1]));
    let (scale, shift) = (ones([1, 8, 1, 1]), ones([1, 8, 1, 1]));
    let conv = |x| conv2d(x, w.clone(), None, ConvOptions::new([1; 2], [0; 2], [1; 2], 1));
    let block = || conv(relu(conv(x.clone()) * scale.clone() + shift.clone()) + x.clone());
    let expected = block().into_data();
    let (y, launches) = launches(block);
    assert_eq!(launches, 6);
    let strides = |t: Tensor<Cuda, 4>| t.into_primitive().tensor().layout().strides().to_vec();
    assert_eq!(strides(y.clone()), [240, 1, 40, 8]);
    // A tensor that is held, so that the result is another one, in another dtype, and one of bools.
    assert_eq!(strides(y.clone().cast(FloatDType::F16)), [240, 1, 40, 8]);
    let where_large = y.clone().greater_elem(1.0);
    assert_eq!(where_large.clone().into_primitive().layout().strides(), [240, 1, 40, 8]);
    assert_eq!(strides(y.clone().mask_fill(where_large, 0.0)), [240, 1, 40, 8]);
    y.into_data().assert_eq(&expected, true);
}

/// A convolution in one graph and, in the next one, two more: of its result, and of a view with gaps.
fn over_two_graphs<B: Backend>(device: &B::Device, step: &dyn Fn()) -> Vec<TensorData> {
    let wave = |shape: [usize; 4]| {
        let values = (0..shape.iter().product()).map(|k| (1.7 * k as f32).sin()).collect();
        Tensor::<B, 4>::from_data(TensorData::new::<f32, _>(values, shape), device)
    };
    let weight = |out| wave([out, 3, 3, 8]).permute([0, 3, 1, 2]);
    let conv = |x, w| conv2d(x, w, None, ConvOptions::new([1; 2], [1; 2], [1; 2], 1));
    let y = relu(conv(wave([2, 8, 9, 9]), weight(8)));
    let part = wave([2, 8, 12, 9]).narrow(2, 3, 9);
    step();
    let z = [conv(y, weight(4)), conv(part, weight(5))];
    step();
    z.map(Tensor::into_data).into()
}

#[test]
fn a_convolution_in_a_captured_graph_is_computed_as_it_was_before() {
    let _turn = crate::ops::whole_device::recorded::turn();
    let Some(_alone) = alone_by_cudnn() else { return };
    let device = CudaDevice::new(0);
    Fusion::<Cuda>::forget_plans(&device);
    let eager = over_two_graphs::<Cuda>(&device, &|| {});
    for round in 0..6 {
        let got = over_two_graphs::<Fusion<Cuda>>(&device, &|| Fusion::<Cuda>::step(&device));
        assert!(got == eager, "round {round}");
    }
}

/// Windows may have only padding to read.
#[test]
fn images_without_rows_are_padding_in_every_way() {
    let mut family = Family::new("conv", DType::F32);
    for algorithm in [ConvAlgorithm::Columns, ConvAlgorithm::Cudnn, ConvAlgorithm::Fastest] {
        family.cases(&format!("no rows by {algorithm:?}"), 0.0, |family, rng| {
            let _way = Way::new(installed(algorithm));
            let shapes = [vec![2, 256, 0, 64], vec![128, 256, 2, 3], vec![128]];
            let args = shapes.map(|s| Arg::plain(rng, &s, DType::F32, Domain::Normal));
            let bias = args[2].dense();
            let of_channel = |channel: usize| [bias.as_floats()[channel]; 64];
            let expected =
                Dense::floats(&[2, 128, 1, 64], (0..256).flat_map(|k| of_channel(k % 128)).collect());
            let body = Conv2d(ConvOptions::new([1; 2], [1; 2], [1; 2], 1));
            family.check_values(&args, &body, &[expected], Tolerance::exact());
        });
    }
    family.finish();
}

/// A captured graph has a stream of its own, and cuDNN keeps the one of its last call.
#[test]
fn cudnn_takes_a_new_convolution_after_a_captured_one_and_on_another_thread() {
    let Some(_alone) = alone_by_cudnn() else { return };
    let device = CudaDevice::new(0);
    let conv = |x: Tensor<Cuda, 4>, w: &Tensor<Cuda, 4>| {
        conv2d(x, w.clone(), None, ConvOptions::new([1; 2], [1; 2], [1; 2], 1))
    };
    let ones = |width: usize| Tensor::<Cuda, 4>::ones([2, 3, 9, width], &device);
    let w = Tensor::<Cuda, 4>::ones([4, 3, 3, 3], &device);
    let (x, before) = (ones(9), conv(ones(9), &w));
    let (captured, graph) = device.capture(|| conv(x.clone(), &w)).expect("cuDNN's call can be captured");
    graph.launch().expect("a graph");
    captured.into_data().assert_eq(&before.into_data(), true);
    let launches_at = |width: usize| {
        let x = ones(width);
        drop(conv(x.clone(), &w));
        let (y, launches) = launches(|| conv(x, &w));
        assert_eq!(y.slice([0..1, 0..1, 1..2, 1..2]).into_scalar(), 27.0);
        launches
    };
    let elsewhere =
        std::thread::scope(|scope| scope.spawn(|| launches_at(11)).join().expect("a convolution"));
    assert_eq!((launches_at(10), elsewhere), (1, 1));
}

/// What is found in need holds for that call only: there is no room for what timing takes. (On a GPU, products have scratch
/// memory that would not fit either.)
#[test]
fn a_convolution_goes_to_cudnn_again_once_there_is_memory() {
    if !emulated() {
        return;
    }
    let _alone = alone();
    let device = CudaDevice::new(0);
    let tensor = |shape: [usize; 4]| Tensor::<Cuda, 4>::ones(shape, &device);
    let (x, w) = (tensor([4, 32, 64, 96]), tensor([16, 32, 1, 1]));
    let conv = || conv2d(x.clone(), w.clone(), None, ConvOptions::new([2, 1], [0; 2], [1; 2], 1));
    let by = |algorithm| {
        let _way = Way::new(algorithm);
        conv().slice([0..1, 0..1, 0..1, 0..1]).into_scalar()
    };
    assert_eq!(by(ConvAlgorithm::Columns), 32.0);
    let held = all_but(&device, 18 << 20);
    for algorithm in [ConvAlgorithm::Columns, ConvAlgorithm::Cudnn, ConvAlgorithm::Fastest] {
        assert_eq!(by(algorithm), 32.0, "{algorithm:?}");
    }
    drop(held);
    let _way = Way::new(ConvAlgorithm::Cudnn);
    drop(conv());
    assert_eq!(launches(conv).1, 1);
}

/// Holds all of the device's memory but about so many bytes.
fn all_but(device: &CudaDevice, bytes: usize) -> Vec<CudaTensor> {
    let take = |bytes: usize| caught(|| Cuda::float_empty([bytes].into(), device, FloatDType::F32)).ok();
    let (mut held, mut step) = (Vec::new(), 1 << 28);
    let room = take(bytes / 4);
    while step >= 1 << 16 {
        match take(step) {
            Some(block) => held.push(block),
            None => step /= 2,
        }
    }
    drop(room);
    held
}

/// From this size on, columns and cuDNN are timed the first time; then one of them is taken.
#[test]
fn the_faster_way_is_found_on_other_memory_than_the_results() {
    let mut family = Family::new("conv", DType::F32);
    family.cases("a convolution that is timed", 0.0, |family, rng| {
        let _way = Way::new(ConvAlgorithm::Fastest);
        let shapes = [vec![4, 64, 16, 16], vec![64, 64, 1, 3], vec![64]];
        let args = shapes.map(|s| Arg::plain(rng, &s, DType::F32, Domain::Whole));
        let body = Conv2d(ConvOptions::new([1; 2], [0, 1], [1; 2], 1));
        for _ in 0..2 {
            family.check_both(&args, &body, Tolerance::sum(DType::F32, 192), gradient(DType::F32, &args));
        }
    });
    family.finish();
}

#[derive(Debug)]
pub(crate) struct ConvTranspose2d(ConvTransposeOptions<2>);
impl Body for ConvTranspose2d {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let (x, weight, bias) = operands(inputs);
        vec![Value::Float(B::conv_transpose2d(x, weight, bias, self.0.clone()))]
    }
}

#[derive(Debug)]
pub(crate) struct ConvTranspose3d(ConvTransposeOptions<3>);
impl Body for ConvTranspose3d {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let (x, weight, bias) = operands(inputs);
        vec![Value::Float(B::conv_transpose3d(x, weight, bias, self.0.clone()))]
    }
}

/// Input, weight and bias of a transposed convolution, its options, and the length of each sum.
fn transpose_args<const N: usize>(
    rng: &mut Rng,
    dtype: DType,
    limit: usize,
) -> (Vec<Arg>, ConvTransposeOptions<N>, usize) {
    let groups = rng.range(1, 2);
    let (cin, cout) = (groups * rng.range(1, 4), groups * rng.range(1, 4));
    let kernel: [usize; N] = std::array::from_fn(|_| rng.range(1, 4));
    let size: [usize; N] = std::array::from_fn(|_| rng.range(1, limit));
    let stride: [usize; N] = std::array::from_fn(|_| rng.range(1, 3));
    let dilation: [usize; N] = std::array::from_fn(|_| rng.range(1, 2));
    // At most half of the kernel, so that something is left.
    let padding = std::array::from_fn(|d| if size[d] == 1 { 0 } else { rng.below(kernel[d] / 2 + 1) });
    let padding_out = stride.map(|s| rng.below(s));
    let batch = rng.range(1, 3);
    let args = vec![
        Arg::random(rng, &[&[batch, cin][..], &size].concat(), dtype, Domain::Normal),
        Arg::random(rng, &[&[cin, cout / groups][..], &kernel].concat(), dtype, Domain::Normal),
        Arg::random(rng, &[cout], dtype, Domain::Normal),
    ];
    let options = ConvTransposeOptions::new(stride, padding, padding_out, dilation, groups);
    (args, options, cin / groups * kernel.iter().product::<usize>())
}

fn conv_transpose(dtype: DType) {
    let mut family = Family::new("conv", dtype);
    family.cases("conv_transpose2d", 1.0, |family, rng| {
        let _way = Way::any(rng);
        let (args, options, n) = transpose_args(rng, dtype, 10);
        let tolerance = Tolerance::sum(dtype, n);
        family.check_both(&args, &ConvTranspose2d(options), tolerance, gradient(dtype, &args));
    });
    family.cases("conv_transpose3d", 1.0, |family, rng| {
        let _way = Way::any(rng);
        let (args, options, n) = transpose_args(rng, dtype, 4);
        let tolerance = Tolerance::sum(dtype, n);
        family.check_both(&args, &ConvTranspose3d(options), tolerance, gradient(dtype, &args));
    });
    family.finish();
}

/// A convolution of one to three dimensions, or a transposed one, with all its gradients: of input, weight, bias, and
/// the output's gradient.
#[derive(Debug, Clone)]
pub(crate) struct WithGradients {
    dims: usize,
    transposed: bool,
    /// The last `dims` of each.
    options: ConvTransposeOptions<3>,
}

macro_rules! with_gradients {
    ($self:ident, $inputs:ident, $n:literal: $conv:ident $conv_x:ident $conv_w:ident $conv_b:ident,
     $transpose:ident $transpose_x:ident $transpose_w:ident $transpose_b:ident) => {{
        let (x, w, b, dy) = ($inputs.float(), $inputs.float(), $inputs.float(), $inputs.float());
        let last = |a: [usize; 3]| -> [usize; $n] { std::array::from_fn(|d| a[3 - $n + d]) };
        let ConvTransposeOptions { stride, padding, padding_out, dilation, groups } = $self.options;
        let (stride, padding, dilation) = (last(stride), last(padding), last(dilation));
        if $self.transposed {
            let o = ConvTransposeOptions::new(stride, padding, last(padding_out), dilation, groups);
            vec![
                B::$transpose(x.clone(), w.clone(), Some(b.clone()), o.clone()),
                B::$transpose_x(w.clone(), dy.clone(), o.clone()),
                B::$transpose_w(x.clone(), w, dy.clone(), o),
                B::$transpose_b(x, b, dy),
            ]
        } else {
            let o = ConvOptions::new(stride, padding, dilation, groups);
            vec![
                B::$conv(x.clone(), w.clone(), Some(b.clone()), o.clone()),
                B::$conv_x(x.clone(), w.clone(), dy.clone(), o.clone()),
                B::$conv_w(x.clone(), w, dy.clone(), o),
                B::$conv_b(x, b, dy),
            ]
        }
    }};
}

impl Body for WithGradients {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let outputs = match self.dims {
            1 => with_gradients!(self, inputs, 1:
                conv1d conv1d_x_backward conv1d_weight_backward conv1d_bias_backward, conv_transpose1d
                conv_transpose1d_x_backward conv_transpose1d_weight_backward conv_transpose1d_bias_backward),
            2 => with_gradients!(self, inputs, 2:
                conv2d conv2d_x_backward conv2d_weight_backward conv2d_bias_backward, conv_transpose2d
                conv_transpose2d_x_backward conv_transpose2d_weight_backward conv_transpose2d_bias_backward),
            _ => with_gradients!(self, inputs, 3:
                conv3d conv3d_x_backward conv3d_weight_backward conv3d_bias_backward, conv_transpose3d
                conv_transpose3d_x_backward conv_transpose3d_weight_backward conv_transpose3d_bias_backward),
        };
        outputs.into_iter().map(Value::Float).collect()
    }
}

/// Sizes of a convolution; dimensions that it does not have are 1.
#[derive(Debug)]
struct Sizes {
    batch: usize,
    groups: usize,
    /// Of a group.
    channels: [usize; 2],
    size: [usize; 3],
    kernel: [usize; 3],
    out: [usize; 3],
}

impl Sizes {
    /// `f(pixel, weight, window)` for every product: flat indices of the input, the weight and the output.
    fn products(&self, options: &ConvTransposeOptions<3>, mut f: impl FnMut(usize, usize, usize)) {
        let len = |a: [usize; 3]| a.iter().product::<usize>();
        let split = |flat: usize, a: [usize; 3]| [flat / a[2] / a[1], flat / a[2] % a[1], flat % a[2]];
        let [cin, cout] = self.channels;
        for b in 0..self.batch {
            for (o, c) in (0..self.groups * cout).flat_map(|o| (0..cin).map(move |c| (o, c))) {
                let channel = o / cout * cin + c;
                for (k, l) in (0..len(self.kernel)).flat_map(|k| (0..len(self.out)).map(move |l| (k, l))) {
                    let (tap, window) = (split(k, self.kernel), split(l, self.out));
                    let at: [Option<usize>; 3] = std::array::from_fn(|d| {
                        let at = window[d] * options.stride[d] + tap[d] * options.dilation[d];
                        at.checked_sub(options.padding[d]).filter(|&at| at < self.size[d])
                    });
                    let [Some(z), Some(y), Some(x)] = at else { continue };
                    let image = (b * self.groups * cin + channel) * len(self.size);
                    f(
                        image + (z * self.size[1] + y) * self.size[2] + x,
                        (o * cin + c) * len(self.kernel) + k,
                        (b * self.groups * cout + o) * len(self.out) + l,
                    );
                }
            }
        }
    }
}

/// Values and gradients as plain loops give them.
fn plain_gradients(body: &WithGradients, sizes: &Sizes, args: &[Arg]) -> Vec<Dense> {
    let dense: Vec<Dense> = args.iter().map(Arg::dense).collect();
    let [x, w, b, dy] = [0, 1, 2, 3].map(|k| dense[k].as_floats());
    let channels = b.len();
    let pixels = args[3].shape[2..].iter().product::<usize>();
    let (mut y, mut dx, mut dw) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
    sizes.products(&body.options, |pixel, k, window| {
        let (i, o) = if body.transposed { (window, pixel) } else { (pixel, window) };
        y[o] += x[i] * w[k];
        dx[i] += dy[o] * w[k];
        dw[k] += x[i] * dy[o];
    });
    let mut db = vec![0.0; channels];
    for (k, (y, dy)) in y.iter_mut().zip(dy).enumerate() {
        *y += b[k / pixels % channels];
        db[k / pixels % channels] += dy;
    }
    let shapes = [3, 0, 1, 2].map(|k| args[k].shape.clone());
    [y, dx, dw, db].into_iter().zip(shapes).map(|(values, shape)| Dense::floats(&shape, values)).collect()
}

/// Groups, and strides and output paddings that leave a rest, in every number of dimensions.
fn conv_gradients(dtype: DType) {
    let mut family = Family::new("conv", dtype);
    for dims in 1..=3 {
        for transposed in [false, true] {
            let name = if transposed { "conv_transpose and gradients" } else { "conv and gradients" };
            family.cases(&format!("{name}, {dims} dimensions"), 1.0, |family, rng| {
                let _way = Way::any(rng);
                let groups = rng.pick(&[1, 2, 2, 3, 6]);
                let channels = [rng.range(1, 3), rng.range(1, 3)];
                let limit = [12, 6, 4][dims - 1];
                let mut options = ConvTransposeOptions::new([1; 3], [0; 3], [0; 3], [1; 3], groups);
                let (mut size, mut kernel, mut out) = ([1; 3], [1; 3], [1; 3]);
                for d in 3 - dims..3 {
                    options.stride[d] = rng.range(1, 3);
                    options.dilation[d] = rng.range(1, 2);
                    kernel[d] = rng.range(1, 3);
                    let reach = options.dilation[d] * (kernel[d] - 1) + 1;
                    options.padding[d] = rng.below(3);
                    if transposed {
                        // An output padding of a stride and more has windows that no input is read by.
                        options.padding_out[d] = rng.below(options.stride[d] + 2);
                        out[d] = rng.range(1, limit);
                        let full = (out[d] - 1) * options.stride[d] + reach + options.padding_out[d];
                        options.padding[d] = options.padding[d].min((full - 1) / 2);
                        size[d] = full - 2 * options.padding[d];
                    } else {
                        size[d] = rng.range(1, limit).max(reach.saturating_sub(2 * options.padding[d]));
                        out[d] = (size[d] + 2 * options.padding[d] - reach) / options.stride[d] + 1;
                    }
                }
                let batch = rng.pick(&[1, 2, 6]);
                let sizes = Sizes { batch, groups, channels, size, kernel, out };
                let [cin, cout] = channels;
                let shape = |a: usize, b: usize, rest: &[usize; 3]| [&[a, b][..], &rest[3 - dims..]].concat();
                let image = shape(batch, groups * cin, &size);
                let windows = shape(batch, groups * cout, &out);
                let (input, output) = if transposed { (windows, image) } else { (image, windows) };
                let args = [
                    Arg::random(rng, &input, dtype, Domain::Normal),
                    Arg::random(rng, &shape(groups * cout, cin, &kernel), dtype, Domain::Normal),
                    Arg::random(rng, &output[1..2], dtype, Domain::Normal),
                    Arg::random(rng, &output, dtype, Domain::Normal),
                ];
                let body = WithGradients { dims, transposed, options };
                let expected = plain_gradients(&body, &sizes, &args);
                let longest = args.iter().map(|arg| arg.shape.iter().product::<usize>()).max().unwrap_or(1);
                family.check_values(&args, &body, &expected, with_bias(&args, dtype, longest));
            });
        }
    }
    family.finish();
}

/// A deformable convolution, and its gradients if there is an output gradient: x, offset, weight, then mask and bias if
/// there are.
#[derive(Debug, Clone)]
pub(crate) struct Deform {
    options: DeformConvOptions<2>,
    mask: bool,
    bias: bool,
    backward: bool,
}
impl Body for Deform {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, offset, weight) = (inputs.float(), inputs.float(), inputs.float());
        let mask = self.mask.then(|| inputs.float());
        let bias = self.bias.then(|| inputs.float());
        if !self.backward {
            return vec![Value::Float(B::deform_conv2d(x, offset, weight, mask, bias, self.options.clone()))];
        }
        let (dy, options) = (inputs.float(), self.options.clone());
        let grads = B::deform_conv2d_backward(x, offset, weight, mask, bias, dy, options);
        let there = [Some(grads.x_grad), Some(grads.offset_grad), Some(grads.weight_grad)];
        let all = there.into_iter().chain([grads.mask_grad, grads.bias_grad]);
        all.flatten().map(Value::Float).collect()
    }
}

/// Arguments, the output's gradient among them, and the options.
fn deform_args(rng: &mut Rng, dtype: DType) -> (Vec<Arg>, Deform) {
    let (groups, offset_groups) = (rng.range(1, 3), rng.range(1, 3));
    // Channels that both divide, and now and then more than a thread takes at once.
    let cin = groups * offset_groups * rng.pick(&[1, 1, 2, 2, 17]);
    let cout = groups * rng.range(1, 3);
    let kernel: [usize; 2] = std::array::from_fn(|_| rng.range(1, 3));
    let options = DeformConvOptions::new(
        std::array::from_fn(|_| rng.range(1, 2)),
        std::array::from_fn(|_| rng.below(3)),
        std::array::from_fn(|_| rng.range(1, 2)),
        groups,
        offset_groups,
    );
    let reach: [usize; 2] = std::array::from_fn(|d| options.dilation[d] * (kernel[d] - 1) + 1);
    let image: [usize; 2] =
        std::array::from_fn(|d| rng.range(1, 7).max(reach[d].saturating_sub(2 * options.padding[d])));
    let out: [usize; 2] =
        std::array::from_fn(|d| (image[d] + 2 * options.padding[d] - reach[d]) / options.stride[d] + 1);
    let batch = rng.pick(&[1, 2, 2, 6]);
    let taps = offset_groups * kernel[0] * kernel[1];
    let (mask, bias) = (rng.one_in(2), rng.one_in(2));
    // At times all samples lie in one place.
    let offset = if rng.one_in(6) {
        Arg::new(Dense::floats(&[1, 1, 1, 1], vec![0.25]), dtype)
    } else {
        Arg::random(rng, &[batch, 2 * taps, out[0], out[1]], dtype, Domain::Normal)
    };
    let offset = match offset.shape[..] {
        [1, 1, 1, 1] => {
            let shape = vec![batch, 2 * taps, out[0], out[1]];
            Arg { views: vec![shape::Step::Expand(shape.clone())], shape, ..offset }
        }
        _ => offset,
    };
    let mut args = vec![
        Arg::random(rng, &[batch, cin, image[0], image[1]], dtype, Domain::Normal),
        offset,
        Arg::random(rng, &[cout, cin / groups, kernel[0], kernel[1]], dtype, Domain::Normal),
    ];
    if mask {
        args.push(Arg::random(rng, &[batch, taps, out[0], out[1]], dtype, Domain::Normal));
    }
    if bias {
        args.push(Arg::random(rng, &[cout], dtype, Domain::Normal));
    }
    args.push(Arg::random(rng, &[batch, cout, out[0], out[1]], dtype, Domain::Normal));
    (args, Deform { options, mask, bias, backward: true })
}

/// The gradients as plain loops give them.
fn plain_deform(body: &Deform, args: &[Arg]) -> Vec<Dense> {
    let dense: Vec<Dense> = args.iter().map(Arg::dense).collect();
    let floats = |k: usize| dense[k].as_floats();
    let (x, offset, weight) = (floats(0), floats(1), floats(2));
    let mask = body.mask.then(|| floats(3));
    let dy = floats(args.len() - 1);
    let [batch, cin, height, width] = args[0].shape[..] else { unreachable!("four dimensions") };
    let [cout, per_group, kh, kw] = args[2].shape[..] else { unreachable!("four dimensions") };
    let [_, _, oh, ow] = args[args.len() - 1].shape[..] else { unreachable!("four dimensions") };
    let DeformConvOptions { stride, padding, dilation, weight_groups, offset_groups } = body.options;
    let (taps, pixels) = (kh * kw, oh * ow);
    let mut grads: Vec<Vec<f64>> =
        args[..args.len() - 1].iter().map(|arg| vec![0.0; arg.shape.iter().product::<usize>()]).collect();
    for b in 0..batch {
        for (o, c) in (0..cout).flat_map(|o| (0..per_group).map(move |c| (o, c))) {
            let channel = o / (cout / weight_groups) * per_group + c;
            let row = b * offset_groups + channel / (cin / offset_groups);
            for (tap, pixel) in (0..taps).flat_map(|t| (0..pixels).map(move |p| (t, p))) {
                let (down_at, mask_at) =
                    ((row * taps + tap) * 2 * pixels + pixel, (row * taps + tap) * pixels + pixel);
                let base = |window: usize, tap: usize, d: usize| {
                    (window * stride[d] + tap * dilation[d]) as f64 - padding[d] as f64
                };
                let h = base(pixel / ow, tap / kw, 0) + offset[down_at];
                let w = base(pixel % ow, tap % kw, 1) + offset[down_at + pixels];
                // On the border itself a sample reads nothing.
                if h <= -1.0 || h >= height as f64 || w <= -1.0 || w >= width as f64 {
                    continue;
                }
                let m = mask.map_or(1.0, |mask| mask[mask_at]);
                let weight_at = (o * per_group + c) * taps + tap;
                let g = dy[(b * cout + o) * pixels + pixel];
                let (mut value, mut by_h, mut by_w) = (0.0, 0.0, 0.0);
                for (i, j) in [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)] {
                    let (y, z) = (h.floor() + i, w.floor() + j);
                    if y < 0.0 || y >= height as f64 || z < 0.0 || z >= width as f64 {
                        continue;
                    }
                    let at = ((b * cin + channel) * height + y as usize) * width + z as usize;
                    let (down, right) = (1.0 - (h - y).abs(), 1.0 - (w - z).abs());
                    value += down * right * x[at];
                    by_h += (2.0 * i - 1.0) * right * x[at];
                    by_w += (2.0 * j - 1.0) * down * x[at];
                    grads[0][at] += g * weight[weight_at] * m * down * right;
                }
                grads[1][down_at] += g * weight[weight_at] * m * by_h;
                grads[1][down_at + pixels] += g * weight[weight_at] * m * by_w;
                grads[2][weight_at] += g * m * value;
                if body.mask {
                    grads[3][mask_at] += g * weight[weight_at] * value;
                }
            }
        }
    }
    if body.bias {
        let db = grads.last_mut().expect("a bias");
        dy.iter().enumerate().for_each(|(k, g)| db[k / pixels % cout] += g);
    }
    grads.into_iter().zip(args).map(|(values, arg)| Dense::floats(&arg.shape, values)).collect()
}

fn deform(dtype: DType) {
    let mut family = Family::new("conv", dtype);
    family.cases("deform_conv2d", 1.5, |family, rng| {
        let (mut args, body) = deform_args(rng, dtype);
        args.pop();
        let n = args[2].shape[1..].iter().product();
        // Columns are stored in between.
        family.check(&args, &Deform { backward: false, ..body }, Tolerance::chain(dtype, 2, n));
    });
    family.cases("deform_conv2d_backward", 1.5, |family, rng| {
        let (args, body) = deform_args(rng, dtype);
        let longest = args.iter().map(|arg| arg.shape.iter().product::<usize>()).max().unwrap_or(1);
        let expected = plain_deform(&body, &args);
        family.check_values(&args, &body, &expected, Tolerance::chain(dtype, 2, longest));
    });
    family.cases("deform_conv2d of no images", 0.1, |family, rng| {
        let shapes = [[0, 2, 4, 4], [0, 18, 4, 4], [3, 2, 3, 3], [0, 3, 4, 4]];
        let args = shapes.map(|s| Arg::plain(rng, &s, dtype, Domain::Normal));
        let options = DeformConvOptions::new([1; 2], [1; 2], [1; 2], 1, 1);
        let body = Deform { options, mask: false, bias: false, backward: true };
        let expected = [
            Dense::floats(&shapes[0], vec![]),
            Dense::floats(&shapes[1], vec![]),
            Dense::floats(&shapes[2], vec![0.0; 54]),
        ];
        family.check_values(&args, &body, &expected, Tolerance::exact());
    });
    family.finish();
}

/// Gradients of weights and biases sum over the batch and the image.
fn gradient(dtype: DType, args: &[Arg]) -> Tolerance {
    Tolerance::chain(dtype, 6, 9 * args[0].shape.iter().product::<usize>())
}

/// Backward ops called as they are, without autodiff.
#[derive(Debug)]
pub(crate) struct ConvBackward(ConvOptions<2>);
impl Body for ConvBackward {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, weight, bias) = (inputs.float(), inputs.float(), inputs.float());
        let y = B::conv2d(x.clone(), weight.clone(), Some(bias.clone()), self.0.clone());
        // A gradient that is a view: expanded from one element.
        let shape = burn_backend::TensorMetadata::shape(&y);
        let one = B::float_mean(B::float_abs(bias.clone()));
        let one = B::float_reshape(one, [1, 1, 1, 1].into());
        let grad = B::float_expand(one, shape);
        vec![
            Value::Float(B::conv2d_x_backward(x.clone(), weight.clone(), grad.clone(), self.0.clone())),
            Value::Float(B::conv2d_weight_backward(x.clone(), weight, grad.clone(), self.0.clone())),
            Value::Float(B::conv2d_bias_backward(x, bias, grad)),
        ]
    }
}

fn conv_backward(dtype: DType) {
    let mut family = Family::new("conv", dtype);
    family.cases("conv2d x, weight and bias", 1.0, |family, rng| {
        let _way = Way::any(rng);
        let (mut args, options, n) = conv2d_args(rng, dtype);
        args.truncate(2);
        let cout = args[1].shape[0];
        args.push(Arg::plain(rng, &[cout], dtype, Domain::Normal));
        let tolerance = Tolerance::chain(dtype, 3, n + 4 * 33 * 33);
        family.check(&args, &ConvBackward(options), tolerance);
    });
    family.finish();
}

/// Windows of a pooling op.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    flag: bool,
    ceil: bool,
}

impl Window {
    fn random(rng: &mut Rng) -> Self {
        let kernel = [rng.range(1, 4), rng.range(1, 4)];
        Window {
            kernel,
            stride: [rng.range(1, 3), rng.range(1, 3)],
            // At most half the kernel, as everywhere.
            padding: kernel.map(|k| rng.below(k / 2 + 1)),
            dilation: [1, 1],
            flag: rng.one_in(2),
            ceil: rng.one_in(4),
        }
    }

    fn image(&self, rng: &mut Rng, dtype: DType) -> Arg {
        let limit = if rng.one_in(4) && large() { 40 } else { 14 };
        let (batch, channels) = (rng.range(1, 3), rng.range(1, 5));
        let [h, w] = self.kernel.map(|k| rng.range(2 * k, limit.max(2 * k)));
        Arg::random(rng, &[batch, channels, h, w], dtype, Domain::Normal)
    }
}

#[derive(Debug)]
pub(crate) struct Pool(&'static str, Window);
impl Body for Pool {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let (x, w) = (Inputs::new(inputs).float(), self.1);
        match self.0 {
            "avg" => vec![Value::Float(B::avg_pool2d(x, w.kernel, w.stride, w.padding, w.flag, w.ceil))],
            "max" => vec![Value::Float(B::max_pool2d(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil))],
            "max with indices" => {
                let y = B::max_pool2d_with_indices(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil);
                vec![Value::Float(y.output), Value::Int(y.indices)]
            }
            _ => vec![Value::Float(B::adaptive_avg_pool2d(x, w.kernel))],
        }
    }
}

fn pool(dtype: DType) {
    let mut family = Family::new("pool", dtype);
    for op in ["avg", "max", "max with indices", "adaptive"] {
        family.cases(op, 1.6, |family, rng| {
            let mut window = Window::random(rng);
            if op.starts_with("max") && rng.one_in(4) {
                window.dilation = [2, 1];
            }
            let args = [window.image(rng, dtype)];
            let tolerance =
                if op.starts_with("max") { Tolerance::exact() } else { Tolerance::sum(dtype, 16) };
            // Where a window reaches over the edge, burn-flex's gradient divides by the whole window, unlike its values.
            let over_the_edge = op == "avg" && window.flag && window.ceil;
            let gradient = Tolerance::chain(dtype, 8, args[0].shape.iter().product());
            let gradient = Some(gradient).filter(|_| !over_the_edge);
            family.check_with(&args, &Pool(op, window), None, tolerance, gradient);
        });
    }
    family.finish();
}

/// The edges of windows are products of two sizes, which pass 2^31 long before a size does.
#[test]
fn adaptive_pool_of_a_long_line_has_its_windows_in_place() {
    let mut family = Family::new("pool", DType::F32);
    family.cases("adaptive of a long line", 0.2, |family, rng| {
        let window = Window { kernel: [1, 50_000], ..Window::random(rng) };
        let args = [Arg::random(rng, &[1, 1, 1, 100_000], DType::F32, Domain::Normal)];
        family.check(&args, &Pool("adaptive", window), Tolerance::sum(DType::F32, 2));
    });
    family.finish();
}

/// Windows that reach over the edge count only what is inside of the padding, in the gradient as in the values.
#[test]
fn avg_pool_in_ceil_mode_has_the_gradient_of_its_values() {
    let mut family = Family::new("pool", DType::F64);
    family.cases("avg over the edge", 0.2, |family, rng| {
        #[derive(Debug)]
        struct Both;
        impl Body for Both {
            fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
                let mut inputs = Inputs::new(inputs);
                let (x, grad) = (inputs.float(), inputs.float());
                let y = B::avg_pool2d(x.clone(), [1, 3], [1, 2], [0, 0], true, true);
                let dx = B::avg_pool2d_backward(x, grad, [1, 3], [1, 2], [0, 0], true, true);
                vec![Value::Float(y), Value::Float(dx)]
            }
        }
        let args = [[1, 1, 1, 6], [1, 1, 1, 3]].map(|s| Arg::random(rng, &s, DType::F64, Domain::Whole));
        let (x, g) = (args[0].dense(), args[1].dense());
        let (x, g) = (x.as_floats(), g.as_floats());
        let y = vec![(x[0] + x[1] + x[2]) / 3.0, (x[2] + x[3] + x[4]) / 3.0, (x[4] + x[5]) / 2.0];
        let (a, b, c) = (g[0] / 3.0, g[1] / 3.0, g[2] / 2.0);
        let expected =
            [Dense::floats(&[1, 1, 1, 3], y), Dense::floats(&[1, 1, 1, 6], vec![a, a, a + b, b, b + c, c])];
        family.check_values(&args, &Both, &expected, Tolerance::rounded(DType::F64).times(2.0));
    });
    family.finish();
}

#[derive(Debug)]
pub(crate) struct Embedding(bool);
impl Body for Embedding {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (weights, at) = (inputs.float(), inputs.int());
        vec![Value::Float(match self.0 {
            false => B::embedding(weights, at),
            true => B::embedding_backward(weights, inputs.float(), at),
        })]
    }
}

fn embedding(dtype: DType) {
    let mut family = Family::new("index", dtype);
    for backward in [false, true] {
        family.cases(if backward { "embedding_backward" } else { "embedding" }, 1.0, |family, rng| {
            let (vocabulary, width) = (rng.range(1, 60), rng.pick(&[1, 3, 8, 16, 33, 128]));
            let (batch, tokens) = (rng.range(1, 4), rng.range(1, 40));
            let index = rng.pick(&[DType::I32, DType::I64]);
            let args = [
                Arg::random(rng, &[vocabulary, width], dtype, Domain::Normal),
                Arg::random(rng, &[batch, tokens], index, Domain::Index(vocabulary)),
                Arg::random(rng, &[batch, tokens, width], dtype, Domain::Normal),
            ];
            let tolerance =
                if backward { Tolerance::chain(dtype, 1 + tokens / 4, tokens) } else { Tolerance::exact() };
            let args = if backward { &args[..] } else { &args[..2] };
            let gradient = (!backward).then(|| Tolerance::chain(dtype, 8 + tokens, batch * tokens));
            family.check_with(args, &Embedding(backward), None, tolerance, gradient);
        });
    }
    family.finish();
}

crate::per_dtype!(conv: f32 f64 f16 bf16);
crate::per_dtype!(conv_backward: f32 f64 f16 bf16);
crate::per_dtype!(conv_gradients: f32 f64 f16 bf16);
crate::per_dtype!(conv_transpose: f32 f64 f16 bf16);
crate::per_dtype!(deform: f32 f64 f16 bf16);
crate::per_dtype!(pool: f32 f64 f16 bf16);
crate::per_dtype!(embedding: f32 f64 f16 bf16);
