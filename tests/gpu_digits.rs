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
