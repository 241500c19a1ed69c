//! The digits example: its data, its command line, and that a run learns and can be resumed.

#[path = "../examples/digits/batch.rs"]
mod batch;
#[path = "../examples/digits/cli.rs"]
#[allow(dead_code)]
mod cli;
#[path = "../examples/digits/data.rs"]
mod data;
#[path = "../examples/digits/device.rs"]
mod device;
#[path = "../examples/digits/mnist.rs"]
mod mnist;
#[path = "../examples/digits/model.rs"]
mod model;
mod recorded;
#[path = "../examples/digits/renderer.rs"]
mod renderer;
#[path = "../examples/digits/run_folder.rs"]
#[allow(dead_code)]
mod run_folder;
#[path = "../examples/digits/train.rs"]
mod train;

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::backend::Autodiff;
use burn::data::dataloader::DataLoader;
use burn::record::RecorderError;
use burn::tensor::backend::Backend;
use burn_flex::{Flex, FlexDevice};
use flate2::Compression;
use flate2::write::GzEncoder;

use batch::{Batch, EpochLoader};
use data::{Images, Split};
use device::{Choice, Device};
use mnist::{IdxError, parse_idx};
use model::ModelConfig;
use train::{Run, RunConfig};

type Cpu = Autodiff<Flex>;

/// burn-flex has one random state for the process, so tests that draw weights take turns.
fn random_state() -> MutexGuard<'static, ()> {
    static RANDOM: Mutex<()> = Mutex::new(());
    RANDOM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An empty folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("digits").join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a writable target folder");
    path
}

fn first(mut images: Images, count: usize) -> Images {
    images.labels.truncate(count);
    images.pixels.truncate(count * images.side * images.side);
    images
}

// ---- data ----

#[test]
fn all_1797_digits_load_with_pixels_and_labels_in_range() {
    let images = data::all_digits().unwrap();
    assert_eq!((images.len(), images.side, images.max_pixel), (1797, 8, 16));
    assert_eq!(images.pixels.len(), 1797 * 64);
    let mut per_class = [0; data::CLASSES];
    images.labels.iter().for_each(|&label| per_class[usize::from(label)] += 1);
    // The class counts that UCI publishes for this part of its data set.
    assert_eq!(per_class, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    let scaled: Vec<f32> = (0..images.len()).flat_map(|i| images.scaled(i)).collect();
    assert_eq!(scaled.iter().copied().fold(f32::INFINITY, f32::min), 0.0);
    assert_eq!(scaled.iter().copied().fold(f32::NEG_INFINITY, f32::max), 1.0);
}

#[test]
fn the_split_is_disjoint_complete_and_decided_by_the_seed() {
    let (train, test) = data::split_indices(1797, 7);
    assert_eq!((train.len(), test.len()), (1437, 360));
    assert_eq!(train.iter().chain(&test).collect::<HashSet<_>>().len(), 1797);
    assert_eq!(data::split_indices(1797, 7), (train.clone(), test));
    assert_ne!(data::split_indices(1797, 8).0, train);

    let split = data::digits(7).unwrap();
    assert_eq!((split.train.len(), split.test.len()), (1437, 360));
    assert_eq!(split, data::digits(7).unwrap());
    // Written down, so that an unintended change of the generator cannot pass.
    assert_eq!(data::shuffled(8, 7), [7, 4, 6, 1, 2, 5, 0, 3]);
}

#[test]
fn a_loader_serves_each_image_once_per_epoch_in_an_order_set_by_seed_and_epoch() {
    let images = Arc::new(first(data::all_digits().unwrap(), 100));
    let epochs = |seed, first_epoch, count| -> Vec<Vec<f32>> {
        let loader = EpochLoader::<Flex>::new(images.clone(), 32, seed, first_epoch, FlexDevice);
        let pixels = |batch: Batch<Flex>| batch.images.into_data().to_vec::<f32>().unwrap();
        (0..count).map(|_| loader.iter().flat_map(pixels).collect()).collect()
    };
    let five = epochs(Some(3), 1, 5);
    assert_eq!(
        five[3..],
        epochs(Some(3), 4, 2),
        "a loader that starts at epoch 4 must go on as one that got there"
    );
    assert_ne!(five[0], five[1]);
    let sorted = |pixels: &[f32]| {
        let bits = |image: &[f32]| image.iter().map(|pixel| pixel.to_bits()).collect::<Vec<u32>>();
        let mut images: Vec<Vec<u32>> = pixels.chunks(64).map(bits).collect();
        images.sort();
        images
    };
    assert_eq!(sorted(&five[0]), sorted(&five[1]));
    let fixed = epochs(None, 1, 2);
    assert_eq!(fixed[0], fixed[1]);
    assert_eq!(sorted(&fixed[0]), sorted(&five[0]));

    let loader = EpochLoader::<Flex>::new(images.clone(), 32, None, 1, FlexDevice);
    let sizes: Vec<usize> = loader.slice(10, 80).iter().map(|batch| batch.labels.dims()[0]).collect();
    assert_eq!(sizes, [32, 32, 6]);
}

// ---- MNIST files ----

fn idx(dims: &[u32], data: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, dims.len() as u8];
    dims.iter().for_each(|dim| file.extend(dim.to_be_bytes()));
    file.extend(data);
    file
}

#[test]
fn idx_files_parse_and_damaged_ones_are_named_for_what_they_are() {
    let file = idx(&[2, 1, 3], &[1, 2, 3, 4, 5, 6]);
    assert_eq!(parse_idx::<3>(&file), Ok(([2, 1, 3], &[1, 2, 3, 4, 5, 6][..])));
    assert_eq!(parse_idx::<1>(&idx(&[0], &[])), Ok(([0], &[][..])));

    for cut in 0..16 {
        assert_eq!(parse_idx::<3>(&file[..cut]), Err(IdxError::NoHeader), "cut at {cut}");
    }
    for cut in 16..file.len() {
        let error = IdxError::Length { dims: vec![2, 1, 3], bytes: cut - 16 };
        assert_eq!(parse_idx::<3>(&file[..cut]), Err(error), "cut at {cut}");
    }
    let long = [&file[..], &[0]].concat();
    assert_eq!(parse_idx::<3>(&long), Err(IdxError::Length { dims: vec![2, 1, 3], bytes: 7 }));
    assert_eq!(parse_idx::<1>(&file), Err(IdxError::Magic { rank: 1, found: [0, 0, 8, 3] }));
    let text = b"<!DOCTYPE html>";
    assert_eq!(parse_idx::<1>(text), Err(IdxError::Magic { rank: 1, found: *b"<!DO" }));
    // The product of the dimensions passes 2^64.
    let huge = idx(&[u32::MAX, u32::MAX, u32::MAX], &[]);
    assert!(matches!(parse_idx::<3>(&huge), Err(IdxError::Length { bytes: 0, .. })));
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn mnist_loads_plain_and_gz_and_says_which_file_is_wrong() {
    let folder = folder("mnist");
    let error = |what: &str| {
        let error = mnist::load(&folder).unwrap_err();
        assert!(error.contains(what) && !error.contains('\n'), "'{error}' should say '{what}'");
    };
    error("no train-images-idx3-ubyte here");
    let images = idx(&[3, 4, 4], &[7; 48]);
    fs::write(folder.join("train-images-idx3-ubyte.gz"), gz(&images)).unwrap();
    error("no train-labels-idx1-ubyte here");
    fs::write(folder.join("train-labels-idx1-ubyte"), idx(&[2], &[1, 9])).unwrap();
    error("2 labels for 3 images");
    fs::write(folder.join("train-labels-idx1-ubyte"), idx(&[3], &[1, 9, 10])).unwrap();
    error("label 10");
    fs::write(folder.join("train-labels-idx1-ubyte"), idx(&[3], &[1, 9, 0])).unwrap();
    fs::write(folder.join("t10k-images.idx3-ubyte"), idx(&[1, 4, 4], &[255; 16])).unwrap();
    fs::write(folder.join("t10k-labels.idx1-ubyte.gz"), gz(&idx(&[1], &[5]))).unwrap();
    let split = mnist::load(&folder).unwrap();
    assert_eq!((split.name, split.train.len(), split.test.len()), ("mnist", 3, 1));
    assert_eq!(split.test.scaled(0).collect::<Vec<_>>(), [1.0; 16]);

    fs::write(folder.join("t10k-images.idx3-ubyte"), idx(&[1, 5, 5], &[255; 25])).unwrap();
    error("4 pixels wide, test images 5");
    fs::write(folder.join("t10k-images.idx3-ubyte"), idx(&[1, 4, 5], &[255; 20])).unwrap();
    error("1 images of 4x5");
    let gzip = gz(&images);
    fs::write(folder.join("train-images-idx3-ubyte.gz"), &gzip[..gzip.len() / 2]).unwrap();
    error("train-images-idx3-ubyte.gz: truncated or corrupt");
    fs::write(folder.join("train-images-idx3-ubyte.gz"), &images).unwrap();
    error("train-images-idx3-ubyte.gz: truncated or corrupt");
    assert!(mnist::load(&folder.join("missing")).unwrap_err().contains("no such folder"));
}

// ---- command line and device ----

#[test]
fn arguments_parse_and_wrong_ones_give_one_line() {
    let parse = |line: &str| cli::parse(line.split_whitespace().map(Into::into));
    assert_eq!(parse(""), Ok(cli::Options::default()));
    let options = parse("--device cuda:3 --epochs=4 --lr 1e-3 --resume --mnist dir --seed 9").unwrap();
    assert_eq!((options.device, options.epochs, options.seed), (Choice::Cuda(3), Some(4), Some(9)));
    assert_eq!((options.learning_rate, options.resume), (Some(1e-3), true));
    assert_eq!(options.mnist.as_deref(), Some(Path::new("dir")));
    let devices = ["--device gpu", "--device cuda:", "--device cuda:-1", "--device cuda:x"];
    let numbers =
        ["--epochs 0", "--epochs -1", "--batch-size 0", "--lr 0", "--lr nan", "--lr inf", "--seed -1"];
    let shapes = ["--epochs", "--resume=yes", "--unknown", "stray", "-x"];
    for wrong in devices.into_iter().chain(numbers).chain(shapes) {
        let error = parse(wrong).expect_err(wrong);
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn the_device_is_chosen_by_what_is_there() {
    let none = || Err("libcuda.so.1 not found\n  in /usr/lib\n".to_string());
    let (device, why) = device::select(Choice::Auto, none()).unwrap();
    assert_eq!(device, Device::Cpu);
    assert_eq!(why, "cpu (burn-flex), since CUDA is not usable: libcuda.so.1 not found; in /usr/lib");
    assert_eq!(device::select(Choice::Auto, Ok(0)).unwrap().0, Device::Cpu);
    assert_eq!(device::select(Choice::Auto, Ok(2)).unwrap().0, Device::Cuda(0));
    assert_eq!(device::select(Choice::Cpu, Ok(2)).unwrap().0, Device::Cpu);
    assert_eq!(device::select(Choice::Cuda(1), Ok(2)).unwrap().0, Device::Cuda(1));
    let error = device::select(Choice::Cuda(9), Ok(2)).unwrap_err();
    assert_eq!(error, "no device cuda:9; there are 2 CUDA devices, cuda:0 to cuda:1");
    assert!(device::select(Choice::Cuda(0), none()).unwrap_err().contains("libcuda.so.1 not found; in"));
}

// ---- training ----

fn model(seed: u64) -> model::Model<Cpu> {
    let _turn = random_state();
    Cpu::seed(&FlexDevice, seed);
    ModelConfig::new(8).init(&FlexDevice)
}

#[test]
fn steps_from_the_same_weights_reduce_the_loss_and_repeat_exactly() {
    let images = data::digits(1).unwrap().train;
    let batches = train::first_batches::<Cpu>(&images, 32, 40, &FlexDevice);
    let weights = train::save_weights(&model(1)).unwrap();
    let run = || {
        let turn = random_state();
        let model = train::load_weights::<Cpu>(&ModelConfig::new(8), weights.clone(), &FlexDevice).unwrap();
        drop(turn);
        train::train_steps(model, &batches, 1e-2, &FlexDevice)
    };
    let losses = run();
    assert_eq!(losses.len(), 40);
    assert!((losses[0] - 10f64.ln()).abs() < 0.2, "an untrained model guesses: {}", losses[0]);
    assert!(losses[39] < 0.5 * losses[0], "{losses:?}");
    assert_eq!(losses, run());
}

#[test]
fn the_seed_decides_the_initial_weights() {
    // Parameter ids are new in each model, so the scores on some images stand for the weights.
    let images = first(data::all_digits().unwrap(), 8);
    let scores = |seed| {
        let batch = Batch::<Cpu>::new(&images, &[0, 1, 2, 3, 4, 5, 6, 7], &FlexDevice);
        model(seed).forward(batch.images).into_data()
    };
    assert_eq!(scores(1), scores(1));
    assert_ne!(scores(1), scores(2));
}

fn small_split() -> Split {
    let Split { name, train, test } = data::digits(1).unwrap();
    Split { name, train: first(train, 192), test: first(test, 64) }
}

fn load_checkpoint(
    config: &RunConfig,
    folder: &Path,
    epoch: usize,
) -> Result<model::Model<Flex>, RecorderError> {
    let _turn = random_state();
    train::load_checkpoint::<Cpu>(config, folder, epoch, &FlexDevice)
}

/// Trains up to `epochs` and returns the scores on the test images, and how many are right.
fn train_to(folder: &Path, config: &RunConfig, epochs: usize, resume: Option<usize>) -> (Vec<f32>, f64) {
    let _turn = random_state();
    if resume.is_none() {
        run_folder::start(folder, config).unwrap();
    }
    let run = Run { config, folder, epochs, resume, full_screen: false };
    let split = small_split();
    let (model, _) = train::train::<Cpu>(&run, &split, &FlexDevice);
    let batch = batch::in_order::<Flex>(&split.test, 64, &FlexDevice).next().unwrap();
    let accuracy = train::accuracy(&model, &split.test, &FlexDevice);
    (model.forward(batch.images).into_data().to_vec().unwrap(), accuracy)
}

#[test]
fn a_resumed_run_goes_on_with_the_next_epoch_and_equals_an_unbroken_one() {
    let config = RunConfig::new("digits".into(), ModelConfig::new(8), 1, 32, 2e-3);
    let (unbroken, resumed) = (folder("unbroken"), folder("resumed"));
    let expected = train_to(&unbroken, &config, 4, None);

    let early = train_to(&resumed, &config, 2, None);
    assert_ne!(early, expected);
    assert_eq!(run_folder::checkpoints(&resumed), [2, 1]);
    assert_eq!(run_folder::load_config(&resumed).unwrap(), config);
    load_checkpoint(&config, &resumed, 2).unwrap();
    let epoch_2 = resumed.join("train/epoch-2/Loss.log");
    let before = fs::metadata(&epoch_2).unwrap().modified().unwrap();
    assert_eq!(train_to(&resumed, &config, 4, Some(2)), expected);
    assert_eq!(fs::metadata(&epoch_2).unwrap().modified().unwrap(), before, "epoch 2 is not trained again");
    assert_eq!(run_folder::checkpoints(&resumed), [4, 3]);
    let log = |folder: &Path, path| fs::read_to_string(folder.join(path)).unwrap();
    assert_eq!(log(&resumed, "train/epoch-4/Loss.log"), log(&unbroken, "train/epoch-4/Loss.log"));
    // One batch of 64 test images: "percent,64".
    let logged = log(&resumed, "valid/epoch-4/Accuracy.log");
    let percent: f64 = logged.split(',').next().unwrap().parse().unwrap();
    assert!((percent / 100.0 - expected.1).abs() < 1e-9, "{logged} and {}", expected.1);
}

#[test]
fn a_damaged_checkpoint_and_a_foreign_folder_are_refused() {
    let config = RunConfig::new("digits".into(), ModelConfig::new(8), 1, 64, 2e-3);
    let run = folder("damaged");
    train_to(&run, &config, 1, None);
    let load = || load_checkpoint(&config, &run, 1);
    assert!(load().is_ok());
    for part in ["model", "optim"] {
        let path = run_folder::checkpoint_path(&run, part, 1).with_extension("mpk");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(load().is_err(), "{part} cut short");
        fs::remove_file(&path).unwrap();
        assert!(load().is_err(), "{part} missing");
        fs::write(&path, whole).unwrap();
    }
    assert!(load().is_ok());

    let other = folder("foreign");
    fs::write(other.join("thesis.txt"), "keep me").unwrap();
    assert!(run_folder::start(&other, &config).unwrap_err().contains("something else"));
    assert!(run_folder::load_config(&other).is_err());
    assert_eq!(fs::read_to_string(other.join("thesis.txt")).unwrap(), "keep me");
    assert!(run_folder::start(&other.join("thesis.txt"), &config).unwrap_err().contains("not a folder"));
    assert!(run_folder::checkpoints(&other).is_empty());
}

/// The digits training recorded and interpreted: the same bits as on the backend itself, one plan for each kind of
/// step, whichever thread reads what and when.
#[test]
fn a_recorded_training_equals_the_eager_one_step_by_step() {
    let _random = random_state();
    Flex::seed(&FlexDevice, 5);
    let weights = train::save_weights(&ModelConfig::new(8).init::<Cpu>(&FlexDevice)).unwrap();
    let split = data::digits(1).unwrap();
    let plan = |name| recorded::Plan {
        folder: folder(name),
        weights: weights.clone(),
        epochs: 3,
        dropout: 0.0,
        snapshots: 30,
    };
    let eager = recorded::train::<Cpu>(&split, &plan("eager"), &FlexDevice, |_| {});
    assert_eq!(eager.len(), 30);

    type Recorded = kiln::Fusion<Flex>;
    Recorded::reset_stats(&FlexDevice);
    let misses: Arc<Mutex<Vec<u64>>> = Arc::default();
    let log = misses.clone();
    let at_step = move |_| log.lock().unwrap().push(Recorded::stats(&FlexDevice).misses.values().sum());
    let lazy = recorded::train::<Autodiff<Recorded>>(&split, &plan("recorded"), &FlexDevice, at_step);
    let stats = Recorded::stats(&FlexDevice);
    let misses = misses.lock().unwrap();
    println!("{stats}\nmisses before each step: {misses:?}");
    assert!(lazy == eager, "(loss, weights) differ by {:?}", recorded::largest_difference(&lazy, &eager));
    // The first step has no optimizer state yet; the second and the two kinds of validation batches are new once.
    assert_eq!((misses[6], misses[misses.len() - 1]), (2, 4), "{misses:?}");
    assert!(stats.timeouts <= 1, "{stats}");
    assert_eq!(stats.failures, 0);
}
