//! Modules of burn-nn, their losses and gradients: the same parameters here and on Flex.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn_autodiff::Autodiff;
use burn_backend::{AutodiffBackend, Backend, DType, TensorData};
use burn_flex::Flex;
use burn_tensor::{Int, Tensor, activation};

use crate::harness::values::dense;
use crate::harness::{Covered, Dense, Domain, Rng, Tolerance, same};
use crate::{Family, Subject};

/// Replaces each parameter by seeded values, so that two backends have the same ones.
struct Seeded(Rng);

impl<B: Backend> ModuleMapper<B> for Seeded {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|old| {
            let shape: Vec<usize> = old.dims().to_vec();
            let fan_in = if shape.len() > 1 { old.shape().num_elements() / shape[0].max(1) } else { 4 };
            let scale = 1.0 / (fan_in as f64).sqrt();
            let values = dense(&mut self.0, &shape, DType::F32, Domain::Normal);
            let values = values.as_floats().iter().map(|v| (v * scale) as f32).collect::<Vec<_>>();
            let tensor = Tensor::from_data(TensorData::new(values, shape), &old.device());
            tensor.set_require_grad(old.is_require_grad())
        })
    }
}

/// The gradients of a module's parameters, in the order they are visited.
struct Collect<'a, B: AutodiffBackend> {
    gradients: &'a B::Gradients,
    all: Vec<TensorData>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.all.extend(param.val().grad(self.gradients).map(Tensor::into_data));
    }
}

fn gradients_of<B: AutodiffBackend>(module: &impl Module<B>, gradients: &B::Gradients) -> Vec<TensorData> {
    let mut collect = Collect { gradients, all: Vec::new() };
    module.visit(&mut collect);
    collect.all
}

#[derive(Module, Debug)]
pub(crate) struct Mlp<B: Backend> {
    first: Linear<B>,
    norm: LayerNorm<B>,
    second: Linear<B>,
}

impl<B: Backend> Mlp<B> {
    pub(crate) fn new(device: &B::Device, seed: u64) -> Self {
        let mlp = Mlp {
            first: LinearConfig::new(12, 33).init(device),
            norm: LayerNormConfig::new(33).init(device),
            second: LinearConfig::new(33, 5).init(device),
        };
        mlp.map(&mut Seeded(Rng::new(seed)))
    }

    pub(crate) fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(activation::gelu(self.norm.forward(self.first.forward(x))))
    }
}

#[derive(Module, Debug)]
struct Cnn<B: Backend> {
    first: Conv2d<B>,
    norm: BatchNorm<B>,
    second: Conv2d<B>,
    pool: MaxPool2d,
    mean: AdaptiveAvgPool2d,
    head: Linear<B>,
}

impl<B: Backend> Cnn<B> {
    fn new(device: &B::Device, seed: u64) -> Self {
        let cnn = Cnn {
            first: Conv2dConfig::new([1, 4], [3, 3]).init(device),
            norm: BatchNormConfig::new(4).init(device),
            second: Conv2dConfig::new([4, 6], [3, 3]).with_stride([2, 2]).with_groups(2).init(device),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            mean: AdaptiveAvgPool2dConfig::new([2, 2]).init(),
            head: LinearConfig::new(24, 5).init(device),
        };
        cnn.map(&mut Seeded(Rng::new(seed)))
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let x = activation::relu(self.norm.forward(self.first.forward(x)));
        let x = self.pool.forward(activation::relu(self.second.forward(x)));
        self.head.forward(self.mean.forward(x).flatten(1, 3))
    }
}

fn floats<B: Backend, const D: usize>(values: &Dense, device: &B::Device) -> Tensor<B, D> {
    Tensor::from_data(values.data(DType::F32), device)
}

fn ints<B: Backend>(values: &Dense, device: &B::Device) -> Tensor<B, 1, Int> {
    Tensor::from_data(values.data(DType::I32), device)
}

/// A classifier's step: its loss, what it gives, and the gradients of its parameters.
macro_rules! classifier_step {
    ($name:ident: $model:ident) => {
        fn $name<B: AutodiffBackend>(x: &Dense, labels: &Dense, seed: u64) -> Vec<TensorData> {
            let device = Default::default();
            let model = $model::<B>::new(&device, seed);
            let logits = model.forward(floats(x, &device));
            let loss =
                CrossEntropyLossConfig::new().init(&device).forward(logits.clone(), ints(labels, &device));
            let gradients = loss.backward();
            let mut all = vec![loss.into_data(), logits.into_data()];
            all.extend(gradients_of(&model, &gradients));
            all
        }
    };
}

classifier_step!(mlp_step: Mlp);
classifier_step!(cnn_step: Cnn);

fn batch_norm_step<B: AutodiffBackend>(x: &Dense, _labels: &Dense, seed: u64) -> Vec<TensorData> {
    let device = Default::default();
    let norm: BatchNorm<B> = BatchNormConfig::new(x.shape[1]).init(&device);
    let norm = norm.map(&mut Seeded(Rng::new(seed)));
    let x = floats::<B, 4>(x, &device).require_grad();
    let y = norm.forward(x.clone());
    let loss = (y.clone() * y.clone() * x.clone()).sum();
    let gradients = loss.backward();
    let mut all = vec![y.into_data()];
    all.extend(x.grad(&gradients).map(Tensor::into_data));
    all.extend(gradients_of(&norm, &gradients));
    all.push(norm.running_mean.value_sync().into_data());
    all.push(norm.running_var.value_sync().into_data());
    all
}

/// Ten AdamW steps, and the losses on the way.
fn training<B: AutodiffBackend>(x: &Dense, labels: &Dense, seed: u64) -> Vec<TensorData> {
    let device = Default::default();
    let mut model = Mlp::<B>::new(&device, seed);
    let mut optimizer = AdamWConfig::new().init();
    let loss = CrossEntropyLossConfig::new().init(&device);
    let mut losses = Vec::new();
    for _ in 0..10 {
        let value = loss.forward(model.forward(floats(x, &device)), ints(labels, &device));
        let gradients = GradientsParams::from_grads(value.backward(), &model);
        model = optimizer.step(1e-2, model, gradients);
        losses.push(value.into_data());
    }
    losses
}

/// Compares a step on the two backends.
fn compare(
    family: &mut Family,
    got: Result<Vec<TensorData>, String>,
    expected: &[TensorData],
    tolerance: Tolerance,
) {
    let outcome = got.and_then(|got| {
        if got.len() != expected.len() {
            return Err(format!("{} results, expected {}", got.len(), expected.len()));
        }
        for (k, (got, expected)) in got.iter().zip(expected).enumerate() {
            same(&Dense::of(got), &Dense::of(expected), DType::F32, tolerance)
                .map_err(|text| format!("result {k} of shape {:?}: {text}", expected.shape))?;
        }
        Ok(())
    });
    let shapes: Vec<_> = expected.iter().map(Dense::of).collect();
    family.expect(&[], Covered::of(&[], &shapes, true), outcome);
}

macro_rules! step_test {
    ($name:ident: $step:ident, $shape:expr, $tolerance:expr) => {
        #[test]
        fn $name() {
            let mut family: Family = Family::new("models", DType::F32);
            family.cases(stringify!($name), 1.4, |family, rng| {
                let mut shape = $shape.to_vec();
                shape[0] = rng.range(2, 9);
                let x = dense(rng, &shape, DType::F32, Domain::Normal);
                let labels = dense(rng, &shape[..1], DType::I32, Domain::Index(5));
                let seed = rng.bits();
                let expected = $step::<Autodiff<Flex>>(&x, &labels, seed);
                let got = crate::harness::family::caught(|| $step::<Autodiff<Subject>>(&x, &labels, seed));
                compare(family, got, &expected, $tolerance);
            });
            family.finish();
        }
    };
}

step_test!(mlp_with_cross_entropy: mlp_step, [0, 12], Tolerance::chain(DType::F32, 30, 256));
step_test!(small_cnn: cnn_step, [0, 1, 12, 12], Tolerance::chain(DType::F32, 60, 2_000));
step_test!(batch_norm: batch_norm_step, [0, 3, 7, 5], Tolerance::chain(DType::F32, 30, 512));
step_test!(ten_steps_of_adamw: training, [0, 12], Tolerance::chain(DType::F32, 2_000, 256));
