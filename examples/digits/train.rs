//! Training: a full run with burn-train, and bare steps whose losses can be compared between backends.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::config::Config;
use burn::lr_scheduler::constant::ConstantLr;
use burn::module::{AutodiffModule, Module};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamW, AdamWConfig, GradientsParams, Optimizer};
use burn::record::{BinBytesRecorder, DefaultRecorder, FullPrecisionSettings, Recorder, RecorderError};
use burn::tensor::ElementConversion;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::checkpoint::KeepLastNCheckpoints;
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{Learner, SupervisedTraining};

use super::batch::{Batch, EpochLoader, in_order};
use super::data::{Images, Split};
use super::model::{Model, ModelConfig};
use super::renderer::CompactRenderer;
use super::run_folder;

/// Images of the test part that go through the model at once.
const TEST_BATCH: usize = 256;

/// What decides the outcome of a run. A run folder keeps it as `config.json`.
#[derive(Config, Debug, PartialEq)]
pub(crate) struct RunConfig {
    /// Name of the data set.
    pub data: String,
    pub model: ModelConfig,
    /// Decides the split of the data set, the initial weights and the order of the images.
    pub seed: u64,
    pub batch_size: usize,
    pub learning_rate: f64,
}

/// Where a run is written, and which part of it is still to do.
pub(crate) struct Run<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) folder: &'a Path,
    /// The last epoch of the run, counted from 1 and from the run's beginning.
    pub(crate) epochs: usize,
    /// The epoch whose checkpoint to continue from.
    pub(crate) resume: Option<usize>,
    /// Burn's full-screen display instead of one line per epoch.
    pub(crate) full_screen: bool,
}

/// The state of the optimizer as a checkpoint holds it.
type OptimizerRecord<B> = <OptimizerAdaptor<AdamW, Model<B>, B> as Optimizer<Model<B>, B>>::Record;

/// Trains with burn-train's `SupervisedTraining`, writing a checkpoint after every epoch and keeping the last two.
///
/// Returns the model and the time that training took. The folder must exist; `run_folder` prepares it.
pub(crate) fn train<B: AutodiffBackend>(
    run: &Run,
    split: &Split,
    device: &B::Device,
) -> (Model<B::InnerBackend>, Duration) {
    let config = run.config;
    let first_epoch = run.resume.map_or(1, |epoch| epoch + 1);
    B::seed(device, config.seed);
    let model = config.model.init::<B>(device);

    let train = Arc::new(split.train.clone());
    let test = Arc::new(split.test.clone());
    let train =
        EpochLoader::<B>::new(train, config.batch_size, Some(config.seed), first_epoch, device.clone());
    let test = EpochLoader::<B::InnerBackend>::new(test, TEST_BATCH, None, first_epoch, device.clone());

    // Full precision, so that a resumed run goes on with the very numbers it stopped at.
    let mut training = SupervisedTraining::new(run.folder, Arc::new(train), Arc::new(test))
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_file_checkpointer(DefaultRecorder::new())
        .with_checkpointing_strategy(KeepLastNCheckpoints::new(2))
        .num_epochs(run.epochs);
    if let Some(epoch) = run.resume {
        training = training.checkpoint(epoch);
    }
    training = if run.full_screen { training.summary() } else { training.renderer(CompactRenderer::new()) };

    let start = Instant::now();
    let result = training.launch(Learner::new(
        model,
        AdamWConfig::new().init(),
        ConstantLr::new(config.learning_rate),
    ));
    let elapsed = start.elapsed();
    // Leaves the full-screen display, which would swallow what is printed next.
    drop(result.renderer);
    (result.model, elapsed)
}

/// The model of the checkpoint of `epoch`, after checking that all three files of the checkpoint can be read.
///
/// # Errors
/// If a file is missing, cut short or of another kind.
pub(crate) fn load_checkpoint<B: AutodiffBackend>(
    config: &RunConfig,
    folder: &Path,
    epoch: usize,
    device: &B::Device,
) -> Result<Model<B::InnerBackend>, RecorderError> {
    let recorder = DefaultRecorder::new();
    let path = |part| run_folder::checkpoint_path(folder, part, epoch);
    Recorder::<B>::load::<OptimizerRecord<B>>(&recorder, path("optim"), device)?;
    Recorder::<B>::load::<()>(&recorder, path("scheduler"), device)?;
    let record = Recorder::<B>::load(&recorder, path("model"), device)?;
    Ok(config.model.init::<B>(device).load_record(record).valid())
}

/// The share of `images` that the model puts into the right class, 0 to 1.
pub(crate) fn accuracy<B: Backend>(model: &Model<B>, images: &Images, device: &B::Device) -> f64 {
    let right: i64 = in_order::<B>(images, TEST_BATCH, device)
        .map(|batch| {
            let [n] = batch.labels.dims();
            let classes = model.forward(batch.images).argmax(1).reshape([n]);
            classes.equal(batch.labels).int().sum().into_scalar().elem::<i64>()
        })
        .sum();
    right as f64 / images.len() as f64
}

/// The first `count` batches in the order of the images, the same on every backend.
#[allow(dead_code, reason = "for the tests that include this file")]
pub(crate) fn first_batches<B: Backend>(
    images: &Images,
    batch_size: usize,
    count: usize,
    device: &B::Device,
) -> Vec<Batch<B>> {
    in_order(images, batch_size, device).take(count).collect()
}

/// A model's weights as bytes that any backend can load.
#[allow(dead_code, reason = "for the tests that include this file")]
pub(crate) fn save_weights<B: Backend>(model: &Model<B>) -> Result<Vec<u8>, RecorderError> {
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    Recorder::<B>::record(&recorder, model.clone().into_record(), ())
}

/// A model with the weights that [`save_weights`] wrote, perhaps on another backend.
#[allow(dead_code, reason = "for the tests that include this file")]
pub(crate) fn load_weights<B: Backend>(
    config: &ModelConfig,
    weights: Vec<u8>,
    device: &B::Device,
) -> Result<Model<B>, RecorderError> {
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    let record = Recorder::<B>::load(&recorder, weights, device)?;
    Ok(config.init::<B>(device).load_record(record))
}

/// One optimizer step per batch, in order, and the loss before each step.
///
/// Nothing here is random, so two backends that start from the same weights differ by rounding alone.
#[allow(dead_code, reason = "for the tests that include this file")]
pub(crate) fn train_steps<B: AutodiffBackend>(
    mut model: Model<B>,
    batches: &[Batch<B>],
    learning_rate: f64,
    device: &B::Device,
) -> Vec<f64> {
    let mut optimizer = AdamWConfig::new().init::<B, Model<B>>();
    model = model.fork(device);
    let mut losses = Vec::with_capacity(batches.len());
    for batch in batches {
        let loss = model.classify(batch.clone()).loss;
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(learning_rate, model, gradients);
        losses.push(loss.into_scalar().elem());
    }
    losses
}
