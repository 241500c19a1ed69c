//! The digits model under burn-train's unmodified `SupervisedTraining`, watched step by step.
//!
//! Included by the tests that have the example's modules `batch`, `data`, `model`, `renderer` beside them.

use std::any::Any;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use burn::data::dataloader::DataLoader;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::optim::AdamWConfig;
use burn::record::DefaultRecorder;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{ElementConversion, Tensor};
use burn::train::checkpoint::KeepLastNCheckpoints;
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep};

use crate::batch::{Batch, EpochLoader};
use crate::data::Split;
use crate::model::{Model, ModelConfig};
use crate::renderer::CompactRenderer;
use crate::train::load_weights;

/// Full batches in an epoch of [`train`], which leaves the short last one out.
pub(crate) const STEPS_PER_EPOCH: usize = 22;
const BATCH: usize = 64;

/// The model, with dropout on its images, that shows each step to whoever watches.
#[derive(Module, Debug)]
pub(crate) struct Watched<B: Backend> {
    model: Model<B>,
    dropout: Dropout,
}

/// What a training shows at the beginning of a step.
struct Snapshot<B: Backend> {
    /// The parameters as they are then: what the step before has made of them.
    model: Watched<B>,
    /// The loss of the step before.
    loss: Option<Tensor<B, 1>>,
}

/// Steps begun, whoever watches; what to do at the beginning of one; the `Sender<Snapshot<B>>`; the last loss.
struct Watch {
    step: usize,
    at_step: Box<dyn FnMut(usize) + Send>,
    sender: Option<Box<dyn Any + Send>>,
    loss: Option<Box<dyn Any + Send>>,
    snapshots: usize,
}

static WATCH: Mutex<Option<Watch>> = Mutex::new(None);

impl<B: AutodiffBackend> TrainStep for Watched<B> {
    type Input = Batch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<ClassificationOutput<B>> {
        let mut guard = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = guard.as_mut().expect("`train` sets it");
        (watch.at_step)(watch.step);
        // The reader is another thread, as a metrics worker or a checkpointer is.
        if watch.step <= watch.snapshots
            && let Some(sender) = watch.sender.as_ref().and_then(|s| s.downcast_ref::<Sender<Snapshot<B>>>())
        {
            let loss = watch.loss.take().map(|loss| *loss.downcast().expect("of this training"));
            let _ = sender.send(Snapshot { model: self.clone(), loss });
        }
        watch.step += 1;
        let images = self.dropout.forward(batch.images);
        let output = self.model.classify(Batch { images, labels: batch.labels });
        if watch.step <= watch.snapshots {
            watch.loss = Some(Box::new(output.loss.clone()));
        }
        drop(guard);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<B: Backend> InferenceStep for Watched<B> {
    type Input = Batch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Batch<B>) -> ClassificationOutput<B> {
        self.model.classify(batch)
    }
}

/// What a training does.
pub(crate) struct Plan {
    /// Where burn-train writes; removed afterwards.
    pub(crate) folder: PathBuf,
    /// The first weights, of the model of `ModelConfig::new(8)`.
    pub(crate) weights: Vec<u8>,
    pub(crate) epochs: usize,
    /// The probability with which a pixel is left out.
    pub(crate) dropout: f64,
    /// Steps to return.
    pub(crate) snapshots: usize,
}

/// The numbers of a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    /// The loss before this step.
    pub(crate) loss: f64,
    /// All parameters after it, one after the other.
    pub(crate) weights: Vec<f32>,
}

struct Weights(Vec<f32>);

impl<B: Backend> ModuleVisitor<B> for Weights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.0.extend(param.val().into_data().iter::<f32>());
    }
}

/// Trains `epochs` epochs from the given weights, with a learning rate that changes at each step, calls `at_step` at the beginning of each,
/// and returns the first `snapshots` steps.
pub(crate) fn train<B: AutodiffBackend>(
    split: &Split,
    plan: &Plan,
    device: &B::Device,
    at_step: impl FnMut(usize) + Send + 'static,
) -> Vec<Step> {
    let Plan { folder, weights, epochs, dropout, snapshots } = plan;
    let (epochs, snapshots) = (*epochs, *snapshots);
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).expect("a folder for the run");
    let (sender, receiver) = channel::<Snapshot<B>>();
    *WATCH.lock().unwrap_or_else(PoisonError::into_inner) = Some(Watch {
        step: 0,
        at_step: Box::new(at_step),
        sender: Some(Box::new(sender)),
        loss: None,
        snapshots,
    });
    let reader = std::thread::spawn(move || {
        let mut steps = Vec::new();
        for Snapshot { model, loss } in receiver {
            let mut weights = Weights(Vec::new());
            model.visit(&mut weights);
            if let Some(loss) = loss {
                steps.push(Step { loss: loss.into_scalar().elem(), weights: weights.0 });
            }
        }
        steps
    });

    let model = Watched {
        model: load_weights::<B>(&ModelConfig::new(8), weights.clone(), device)
            .expect("weights of this model"),
        dropout: DropoutConfig::new(*dropout).init(),
    };
    let images = Arc::new(split.train.clone());
    let loader = EpochLoader::<B>::new(images, BATCH, Some(7), 1, device.clone());
    let loader = loader.slice(0, STEPS_PER_EPOCH * BATCH);
    let test = Arc::new(split.test.clone());
    let test = EpochLoader::<B::InnerBackend>::new(test, 256, None, 1, device.clone());
    let rate = LinearLrSchedulerConfig::new(4e-3, 1e-3, epochs * STEPS_PER_EPOCH).init();
    B::seed(device, 7);
    let result = SupervisedTraining::new(folder, loader, Arc::new(test))
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_file_checkpointer(DefaultRecorder::new())
        .with_checkpointing_strategy(KeepLastNCheckpoints::new(1))
        .num_epochs(epochs)
        .renderer(CompactRenderer::new())
        .launch(Learner::new(model, AdamWConfig::new().init(), rate.expect("rates above 0")));
    drop(result);
    *WATCH.lock().unwrap_or_else(PoisonError::into_inner) = None; // hangs up on the reader
    let steps = reader.join().expect("the reader reads to the end");
    std::fs::remove_dir_all(folder).expect("the folder was made above");
    steps
}

/// The largest relative difference of losses and of weights, each relative to the largest weight of the step.
pub(crate) fn largest_difference(steps: &[Step], reference: &[Step]) -> (f64, f64) {
    assert_eq!(steps.len(), reference.len());
    let mut largest = (0f64, 0f64);
    for (step, reference) in steps.iter().zip(reference) {
        largest.0 = largest.0.max((step.loss - reference.loss).abs() / reference.loss.abs());
        let scale = reference.weights.iter().fold(0f32, |max, w| max.max(w.abs()));
        let pairs = step.weights.iter().zip(&reference.weights);
        let difference = pairs.fold(0f32, |max, (a, b)| max.max((a - b).abs()));
        largest.1 = largest.1.max(f64::from(difference / scale));
    }
    largest
}
