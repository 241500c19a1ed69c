//! A small convolutional network for square grey images.

use burn::config::Config;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};

use super::batch::Batch;
use super::data::CLASSES;

/// The sizes of a [`Model`].
#[derive(Config, Debug, PartialEq)]
pub(crate) struct ModelConfig {
    /// Width and height of the images in pixels, 4 or more.
    pub side: usize,
    /// Channels after the first and the second convolution.
    #[config(default = "[16, 32]")]
    pub channels: [usize; 2],
    /// Width of the hidden layer.
    #[config(default = "128")]
    pub hidden: usize,
}

/// Two convolutions of 3x3, each followed by a pool of 2x2, then two linear layers.
///
/// It draws no random numbers after its initialisation (no dropout), so that a resumed run can equal an unbroken one.
#[derive(Module, Debug)]
pub(crate) struct Model<B: Backend> {
    conv1: Conv2d<B>,
    conv2: Conv2d<B>,
    pool: MaxPool2d,
    hidden: Linear<B>,
    output: Linear<B>,
}

impl ModelConfig {
    /// A model with new random weights, all of them drawn before this returns.
    ///
    /// Burn draws a parameter when it is first used; drawing here makes the weights depend on the backend's seed and
    /// not on which layer happens to run first.
    pub(crate) fn init<B: Backend>(&self, device: &B::Device) -> Model<B> {
        let [first, second] = self.channels;
        let conv = |from, to| {
            Conv2dConfig::new([from, to], [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device)
        };
        let pooled = self.side / 2 / 2;
        let model = Model {
            conv1: conv(1, first),
            conv2: conv(first, second),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            hidden: LinearConfig::new(second * pooled * pooled, self.hidden).init(device),
            output: LinearConfig::new(self.hidden, CLASSES).init(device),
        };
        // Counting visits every parameter of this very model; a clone would draw its own weights.
        model.num_params();
        model
    }
}

impl<B: Backend> Model<B> {
    /// `[N, 1, side, side]` to one score per class, `[N, 10]`.
    pub(crate) fn forward(&self, images: Tensor<B, 4>) -> Tensor<B, 2> {
        let x = self.pool.forward(relu(self.conv1.forward(images)));
        let x = self.pool.forward(relu(self.conv2.forward(x)));
        let x = relu(self.hidden.forward(x.flatten(1, 3)));
        self.output.forward(x)
    }

    /// Scores and the mean cross-entropy.
    pub(crate) fn classify(&self, batch: Batch<B>) -> ClassificationOutput<B> {
        let scores = self.forward(batch.images);
        let loss = cross_entropy(scores.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, scores, batch.labels)
    }
}

fn cross_entropy<B: Backend>(scores: Tensor<B, 2>, labels: Tensor<B, 1, Int>) -> Tensor<B, 1> {
    CrossEntropyLossConfig::new().init(&scores.device()).forward(scores, labels)
}

impl<B: AutodiffBackend> TrainStep for Model<B> {
    type Input = Batch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<ClassificationOutput<B>> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<B: Backend> InferenceStep for Model<B> {
    type Input = Batch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Batch<B>) -> ClassificationOutput<B> {
        self.classify(batch)
    }
}
