//! Trains a small convolutional network to read handwritten digits, on the CPU or on an NVIDIA GPU.
//!
//! `cargo run --release --example digits -- --help` lists the options; README.md in this folder shows a run.
//!
//! - `cli`, `device`: the arguments, and the device they lead to
//! - `data`, `mnist`: images from the file kept here, or from a local folder
//! - `batch`, `model`: tensors from images; the network
//! - `train`, `run_folder`, `renderer`: the training run, what it leaves on disk, what it prints
//! - `cuda`: Kiln's backends

mod batch;
mod cli;
mod cuda;
mod data;
mod device;
mod mnist;
mod model;
mod renderer;
mod run_folder;
mod train;

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use burn::backend::Autodiff;
use burn::module::Module;
use burn::tensor::backend::AutodiffBackend;
use burn_flex::{Flex, FlexDevice};

use kiln::fusion::GraphCompiler;

use cli::Options;
use cuda::{Cuda, Fusion};
use data::Split;
use device::Device;
use model::ModelConfig;
use train::{Run, RunConfig};

const DEFAULT_EPOCHS: usize = 20;
/// An epoch of MNIST is 42 times as many images.
const DEFAULT_EPOCHS_MNIST: usize = 5;
const DEFAULT_SEED: u64 = 1;
const DEFAULT_BATCH_SIZE: usize = 64;
const DEFAULT_LEARNING_RATE: f64 = 4e-3;
const DEFAULT_FOLDER: &str = "target/digits-run";

/// Why the program ends early.
enum Failure {
    /// The arguments make no sense: exit code 2.
    Usage(String),
    /// Something that the arguments name is missing or damaged: exit code 1.
    Run(String),
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Run(message)
    }
}

fn main() -> ExitCode {
    let (message, code) = match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => (message + " (--help lists the options)", 2),
        Err(Failure::Run(message)) => (message, 1),
    };
    let _ = writeln!(std::io::stderr(), "error: {message}");
    ExitCode::from(code)
}

/// `println!` panics when nobody reads the pipe any more; a training run should end all the same.
fn say(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn run() -> Result<(), Failure> {
    let options = cli::parse(std::env::args_os().skip(1)).map_err(Failure::Usage)?;
    if options.help {
        say(cli::HELP.trim_end());
        return Ok(());
    }
    let (device, why) = device::select(options.device, cuda::availability())?;
    say(format_args!("device: {why}"));
    match (device, options.fusion) {
        (Device::Cpu, false) => run_on::<Autodiff<Flex>>(&options, &FlexDevice),
        (Device::Cpu, true) => run_recorded::<Flex>(&options, &FlexDevice),
        (Device::Cuda(index), false) => run_on::<Autodiff<Cuda>>(&options, &cuda::device(index)),
        (Device::Cuda(index), true) => run_recorded::<Cuda>(&options, &cuda::device(index)),
    }
}

/// As [`run_on`], with whole steps recorded; says in the end what became of them.
fn run_recorded<B: GraphCompiler>(options: &Options, device: &B::Device) -> Result<(), Failure> {
    run_on::<Autodiff<Fusion<B>>>(options, device)?;
    let stats = Fusion::<B>::stats(device);
    say(format_args!(
        "graphs: {} runs, {} of them known before, {} by an executable; {} operations",
        stats.runs(),
        stats.hits,
        stats.executed,
        stats.recorded,
    ));
    Ok(())
}

fn run_on<B: AutodiffBackend>(options: &Options, device: &B::Device) -> Result<(), Failure> {
    let folder = options.artifacts.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FOLDER));
    let earlier = if options.resume { Some(run_folder::load_config(&folder)?) } else { None };

    let seed = match (&earlier, options.seed) {
        (Some(earlier), Some(seed)) if seed != earlier.seed => {
            // Another split would put images that were trained on into the test part.
            return Err(Failure::Usage(format!(
                "the run to resume has seed {}; leave --seed out",
                earlier.seed
            )));
        }
        (Some(earlier), _) => earlier.seed,
        (None, seed) => seed.unwrap_or(DEFAULT_SEED),
    };
    let split = match &options.mnist {
        Some(folder) => mnist::load(folder)?,
        None => data::digits(seed)?,
    };
    let config = configure(options, seed, &split, earlier)?;
    let epochs =
        options.epochs.unwrap_or(if options.mnist.is_some() { DEFAULT_EPOCHS_MNIST } else { DEFAULT_EPOCHS });

    say(format_args!(
        "data: {}, {side}x{side} pixels, {} images to train on and {} to test, seed {seed}",
        split.name,
        split.train.len(),
        split.test.len(),
        side = split.train.side,
    ));
    let resume = if options.resume {
        let epoch = latest_checkpoint::<B>(&config, &folder, device)?;
        run_folder::save_config(&folder, &config)?;
        Some(epoch)
    } else {
        run_folder::start(&folder, &config)?;
        None
    };
    let full_screen = std::io::stdout().is_terminal() && !options.plain;
    let run = Run { config: &config, folder: &folder, epochs, resume, full_screen };
    finish::<B>(&run, &split, device)
}

/// The settings of this run: what was given, else what the run to resume had, else the defaults.
fn configure(
    options: &Options,
    seed: u64,
    split: &Split,
    earlier: Option<RunConfig>,
) -> Result<RunConfig, Failure> {
    let mut config = earlier.unwrap_or_else(|| {
        let model = ModelConfig::new(split.train.side);
        RunConfig::new(split.name.to_string(), model, seed, DEFAULT_BATCH_SIZE, DEFAULT_LEARNING_RATE)
    });
    if config.data != split.name {
        let hint = if config.data == "mnist" { "give its folder with --mnist" } else { "leave --mnist out" };
        return Err(Failure::Usage(format!("the run to resume was trained on {}; {hint}", config.data)));
    }
    if config.model.side != split.train.side {
        let (earlier, side) = (config.model.side, split.train.side);
        return Err(Failure::Run(format!(
            "the run to resume has images {earlier} pixels wide, these have {side}"
        )));
    }
    config.batch_size = options.batch_size.unwrap_or(config.batch_size);
    config.learning_rate = options.learning_rate.unwrap_or(config.learning_rate);
    Ok(config)
}

/// The latest epoch whose checkpoint is whole. A run that was killed may leave one that is not.
fn latest_checkpoint<B: AutodiffBackend>(
    config: &RunConfig,
    folder: &Path,
    device: &B::Device,
) -> Result<usize, String> {
    for epoch in run_folder::checkpoints(folder) {
        if train::load_checkpoint::<B>(config, folder, epoch, device).is_ok() {
            return Ok(epoch);
        }
        say(format_args!("the checkpoint of epoch {epoch} is incomplete or damaged, skipped"));
    }
    Err(format!("{}: no checkpoint to resume from", folder.display()))
}

/// Trains what is left of the run and tests its model.
fn finish<B: AutodiffBackend>(run: &Run, split: &Split, device: &B::Device) -> Result<(), Failure> {
    let model = match run.resume {
        Some(epoch) if epoch >= run.epochs => {
            say(format_args!("nothing to train: epoch {epoch} is done; give a higher --epochs to go on"));
            train::load_checkpoint::<B>(run.config, run.folder, epoch, device).map_err(|e| e.to_string())?
        }
        _ => {
            match run.resume {
                Some(epoch) => say(format_args!("resuming after epoch {epoch} in {}", run.folder.display())),
                None => say(format_args!("logs and checkpoints: {}", run.folder.display())),
            }
            let (model, elapsed) = train::train::<B>(run, split, device);
            say(format_args!("trained for {:.1} s", elapsed.as_secs_f64()));
            model
        }
    };
    say(format_args!("parameters: {}", model.num_params()));
    say(format_args!("test accuracy: {:.3}", train::accuracy(&model, &split.test, device)));
    Ok(())
}
