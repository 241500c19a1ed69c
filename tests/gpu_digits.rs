//! The digits example on the GPU: the same losses as on the CPU, memory that does not grow, and a whole run.
//!
//! A binary of its own, since it looks at how much memory is live in the process.

#![cfg(feature = "gpu")]

#[path = "../examples/digits/batch.rs"]
mod batch;
#[path = "../examples/digits/data.rs"]
#[allow(dead_code)]
mod data;
#[path = "../examples/digits/model.rs"]
mod model;
mod recorded;
#[path = "../examples/digits/renderer.rs"]
mod renderer;
#[path = "../examples/digits/run_folder.rs"]
#[allow(dead_code)]
mod run_folder;
#[path = "../examples/digits/train.rs"]
#[allow(dead_code)]
mod train;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::backend::Autodiff;
use burn::data::dataloader::DataLoader;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::Backend;
use burn_flex::{Flex, FlexDevice};
use kiln::{Cuda, CudaDevice};

use batch::EpochLoader;
use model::ModelConfig;
use train::{Run, RunConfig};

/// One test at a time: each looks at the memory of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn live_bytes(device: &CudaDevice) -> u64 {
    device.sync().unwrap();
    device.memory_stats().unwrap().live_bytes
}

#[test]
fn losses_agree_with_the_cpu_in_exact_f32() {
    let _alone = alone();
    let split = data::digits(1).unwrap();
    let config = ModelConfig::new(8);
    Flex::seed(&FlexDevice, 5);
    let weights = train::save_weights(&config.init::<Autodiff<Flex>>(&FlexDevice)).unwrap();

    let batches = train::first_batches(&split.train, 64, 20, &FlexDevice);
    let model = train::load_weights(&config, weights.clone(), &FlexDevice).unwrap();
    let reference = train::train_steps::<Autodiff<Flex>>(model, &batches, 4e-3, &FlexDevice);

    let device = CudaDevice::new(0);
    let batches = train::first_batches(&split.train, 64, 20, &device);
    let model = train::load_weights(&config, weights, &device).unwrap();
    let losses = train::train_steps::<Autodiff<Cuda>>(model, &batches, 4e-3, &device);

    let relative = |k: usize| (losses[k] - reference[k]).abs() / reference[k].abs();
    println!("step 1: {:e}, step 20: {:e} (relative difference of the losses)", relative(0), relative(19));
    assert!(relative(0) <= 1e-5, "step 1: {} here, {} on the CPU", losses[0], reference[0]);
    assert!(relative(19) <= 1e-3, "step 20: {} here, {} on the CPU", losses[19], reference[19]);
    assert!(losses[19] < losses[0], "{losses:?}");
}

#[test]
fn live_bytes_do_not_grow_from_epoch_2_to_5() {
    let _alone = alone();
    let device = CudaDevice::new(0);
    let split = data::digits(1).unwrap();
    let loader = EpochLoader::<Autodiff<Cuda>>::new(Arc::new(split.train), 64, Some(3), 1, device);
    let mut model = ModelConfig::new(8).init::<Autodiff<Cuda>>(&device);
    let mut optimizer = AdamWConfig::new().init();
    let mut live = Vec::new();
    for _epoch in 1..=5 {
        for batch in loader.iter() {
            let loss = model.classify(batch).loss;
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(4e-3, model, gradients);
        }
        live.push(live_bytes(&device));
    }
    println!("live bytes after each epoch: {live:?}");
    assert_eq!(live[1], live[4], "{live:?}");
}

#[test]
fn a_whole_run_learns_and_leaves_nothing_behind() {
    let _alone = alone();
    let device = CudaDevice::new(0);
    let split = data::digits(1).unwrap();
    let config = RunConfig::new("digits".into(), ModelConfig::new(8), 1, 64, 4e-3);
    let run = |epochs: usize| {
        let folder: PathBuf =
            std::env::temp_dir().join(format!("kiln-gpu-digits-{}-{epochs}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let run = Run { config: &config, folder: &folder, epochs, resume: None, full_screen: false };
        let (model, _) = train::train::<Autodiff<Cuda>>(&run, &split, &device);
        std::fs::remove_dir_all(&folder).unwrap();
        let accuracy = train::accuracy(&model, &split.test, &device);
        drop(model);
        (accuracy, live_bytes(&device))
    };
    let (_, after_two) = run(2);
    let (accuracy, after_many) = run(20);
    println!(
        "test accuracy {accuracy:.3}; live bytes after a run of 2 and one of 20 epochs: {after_two}, {after_many}"
    );
    assert!(accuracy >= 0.97, "{accuracy}");
    assert_eq!(after_two, after_many);
}

/// The riskiest path: a training step under burn-train's unmodified `SupervisedTraining`, recorded and replayed as one
/// CUDA graph, with a learning rate, bias corrections and dropout that change at each replay.
#[test]
fn a_training_is_replayed_as_one_graph_a_step() {
    use kiln::Fusion;
    let _alone = alone();
    let device = CudaDevice::new(0);
    let split = data::digits(1).unwrap();
    Flex::seed(&FlexDevice, 5);
    let weights = train::save_weights(&ModelConfig::new(8).init::<Autodiff<Flex>>(&FlexDevice)).unwrap();
    let plan = |name: &str, epochs, snapshots| recorded::Plan {
        folder: std::env::temp_dir().join(format!("kiln-{name}-{}", std::process::id())),
        weights: weights.clone(),
        epochs,
        dropout: 0.1,
        snapshots,
    };

    // Nobody holds old weights; launches are counted from the third epoch on.
    let epochs = 60;
    Fusion::<Cuda>::reset_stats(&device);
    let warm = 2 * recorded::STEPS_PER_EPOCH;
    let seen: Arc<Mutex<Vec<(kiln::LaunchStats, u64, u64)>>> = Arc::default();
    let live: Arc<Mutex<Vec<u64>>> = Arc::default();
    let (log, live_log) = (seen.clone(), live.clone());
    let look = move || {
        let stats = Fusion::<Cuda>::stats(&device);
        (device.launch_stats().unwrap(), stats.executed, stats.runs())
    };
    let at_step = move |step| {
        if step >= warm {
            if step % recorded::STEPS_PER_EPOCH == 0 || step + 1 == epochs * recorded::STEPS_PER_EPOCH {
                Fusion::<Cuda>::sync(&device).unwrap(); // so that the step before has run
                live_log.lock().unwrap().push(live_bytes(&device));
            }
            log.lock().unwrap().push(look());
        }
    };
    recorded::train::<Autodiff<Fusion<Cuda>>>(&split, &plan("replayed", epochs, 0), &device, at_step);
    let seen = seen.lock().unwrap();
    let stats = Fusion::<Cuda>::stats(&device);
    let (first, last) = (seen[0], seen[seen.len() - 1]);
    let (steps, graphs) = (seen.len() - 1, last.0.graphs - first.0.graphs);
    let kernels = last.0.kernels - first.0.kernels;
    let validations = (epochs - 3) as u64 * 2;
    println!(
        "{steps} training steps and {validations} validation batches after warm-up: {graphs} cuGraphLaunch, {kernels} \
         eager launches, {} runs by an executable of {}",
        last.1 - first.1,
        last.2 - first.2,
    );
    println!("{stats}");
    // In epoch 3 the validation batches are captured. The checkpointer may hold an epoch's parameters for a while, so the
    // least of several epochs counts.
    let live = &live.lock().unwrap()[1..];
    let least = |epochs: &[u64]| *epochs.iter().min().unwrap();
    println!("live bytes at the beginning of each epoch: {live:?}");
    assert_eq!(least(&live[..live.len() / 2]), least(&live[live.len() / 2..]));
    // Step by step against the eager backend. The learning rate depends on the number of epochs.
    let eager = recorded::train::<Autodiff<Cuda>>(&split, &plan("eager", epochs, 100), &device, |_| {});
    let lazy =
        recorded::train::<Autodiff<Fusion<Cuda>>>(&split, &plan("watched", epochs, 100), &device, |_| {});
    let (loss, weight) = recorded::largest_difference(&lazy, &eager);
    println!("largest relative difference of 100 steps: losses {loss:e}, weights {weight:e}");
    assert!(loss <= 1e-5 && weight <= 1e-5, "losses {loss:e}, weights {weight:e}");
    assert!(steps >= 1000);
    assert_eq!(graphs, steps as u64 + validations);
    assert_eq!(kernels, 0);
    assert_eq!((stats.timeouts, stats.failures), (0, 0));
}
