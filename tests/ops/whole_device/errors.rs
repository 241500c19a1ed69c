//! What fails, how it says so, and that everything works afterwards.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn_autodiff::Autodiff;
use burn_backend::ops::{ConvOptions, FloatTensorOps, IntTensorOps, ModuleOps};
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_backend::{Backend, DType, Shape, TensorData};
use burn_tensor::{Tensor, TensorPrimitive};
use kiln::{Cuda, CudaDevice};

use crate::harness::family::{alone, caught, shared};
use crate::harness::{Dense, Value};

type Float = FloatTensor<Cuda>;
type Int = IntTensor<Cuda>;

fn device() -> CudaDevice {
    CudaDevice::default()
}

fn floats(shape: &[usize]) -> Float {
    let len = shape.iter().product();
    let values: Vec<f32> = (0..len).map(|k| k as f32).collect();
    Cuda::float_from_data(TensorData::new(values, shape.to_vec()), &device())
}

fn ints(shape: &[usize], values: Vec<i32>) -> Int {
    Cuda::int_from_data(TensorData::new(values, shape.to_vec()), &device())
}

fn read(x: Float) -> Result<Vec<f64>, String> {
    let data = Value::<Cuda>::Float(x).try_read().map_err(|e| format!("{e:?}"))?;
    Ok(Dense::of(&data).as_floats().to_vec())
}

/// Asserts that `f` panics with a message that has all of `parts`, and that the device works afterwards.
#[track_caller]
fn panics_with<R>(parts: &[&str], f: impl FnOnce() -> R) {
    let text = match caught(f) {
        Ok(_) => panic!("no panic; expected one with {parts:?}"),
        Err(text) => text,
    };
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    works();
}

#[track_caller]
fn works() {
    let sum = Cuda::float_sum(Cuda::float_add(floats(&[3]), floats(&[3])));
    assert_eq!(read(sum), Ok(vec![6.0]), "a new tensor after an error");
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let _running = shared();
    panics_with(&["cuda:0", "add", "[2, 3]", "[4, 5]"], || Cuda::float_add(floats(&[2, 3]), floats(&[4, 5])));
    panics_with(&["matmul", "[2, 3]", "[4, 5]"], || Cuda::float_matmul(floats(&[2, 3]), floats(&[4, 5])));
    panics_with(&["reshape", "[2, 3]", "[5]"], || Cuda::float_reshape(floats(&[2, 3]), Shape::from(vec![5])));
    panics_with(&["expand", "[2, 3]", "[2, 4]"], || {
        Cuda::float_expand(floats(&[2, 3]), Shape::from(vec![2, 4]))
    });
    panics_with(&["cat", "[2, 3]", "[3, 4]"], || Cuda::float_cat(vec![floats(&[2, 3]), floats(&[3, 4])], 0));
    panics_with(&["sum_dim", "dimension 2", "[2, 3]"], || Cuda::float_sum_dim(floats(&[2, 3]), 2));
    panics_with(&["permute"], || Cuda::float_permute(floats(&[2, 3]), &[0, 0]));
    panics_with(&["conv2d"], || {
        let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
        Cuda::conv2d(floats(&[1, 3, 5, 5]), floats(&[2, 4, 3, 3]), None, options)
    });
    panics_with(&["gather"], || Cuda::float_gather(0, floats(&[4, 3]), ints(&[2, 2], vec![0; 4])));
}

#[test]
fn dtypes_that_do_not_fit_are_named() {
    let _running = shared();
    let half = || Cuda::float_cast(floats(&[3]), DType::F16.into());
    panics_with(&["cuda:0", "add", "F32", "F16"], || Cuda::float_add(floats(&[3]), half()));
    let half = || Cuda::float_cast(floats(&[3, 3]), DType::BF16.into());
    panics_with(&["matmul", "F32", "BF16"], || Cuda::float_matmul(floats(&[3, 3]), half()));
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    let _running = shared();
    let far = CudaDevice::new(63);
    panics_with(&["cuda:63", "does not exist"], || {
        Cuda::float_zeros(Shape::from(vec![1]), &far, DType::F32.into())
    });
}

#[test]
fn too_much_memory_is_an_error_with_figures() {
    let _alone = alone();
    let before = device().memory_stats().expect("the device is open").live_bytes;
    let held = floats(&[1_000]);
    panics_with(&["cuda:0", "out of memory", "4.0 TiB", "free", "live", "reserved", "largest"], || {
        Cuda::float_zeros(Shape::from(vec![1usize << 40]), &device(), DType::F32.into())
    });
    // An op on what was there before.
    assert_eq!(read(Cuda::float_max(held)), Ok(vec![999.0]));
    assert_eq!(device().memory_stats().expect("the device is open").live_bytes, before);
}

/// A classifier over tokens.
#[derive(Module, Debug)]
struct Tokens<B: Backend> {
    embedding: Embedding<B>,
    first: Linear<B>,
    second: Linear<B>,
}

type Trained = Autodiff<Cuda>;

impl Tokens<Trained> {
    fn new() -> Self {
        let tokens = Tokens {
            embedding: EmbeddingConfig::new(7, 6).init(&device()),
            first: LinearConfig::new(6, 16).init(&device()),
            second: LinearConfig::new(16, 3).init(&device()),
        };
        // Parameters are drawn when they are first used, and clones made before draw their own.
        tokens.forward([0; 4], 1);
        tokens
    }

    /// Each row is repeated `times` times on the way, without a copy before the first product.
    fn forward(&self, tokens: [i32; 4], times: usize) -> Tensor<Trained, 2> {
        let tokens = Tensor::<Trained, 2, burn_tensor::Int>::from_data(TensorData::from([tokens]), &device());
        let x = self.embedding.forward(tokens).reshape([1, 4, 6]).expand([times, 4, 6]);
        let x = burn_tensor::activation::relu(self.first.forward(x));
        self.second.forward(x.mean_dim(0).reshape([4, 16]))
    }

    /// A step on these tokens, and its loss.
    fn step(self, tokens: [i32; 4], times: usize) -> (Self, Tensor<Trained, 1>) {
        let loss = self.forward(tokens, times).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &self);
        (SgdConfig::new().init().step(0.05, self, gradients), loss)
    }

    fn losses(mut self, steps: usize) -> Vec<f32> {
        let step = |k: usize| {
            let (next, loss) = self.clone().step([0, 6, 3, (k % 7) as i32], 1);
            self = next;
            loss.into_scalar()
        };
        (0..steps).map(step).collect()
    }
}

/// The device's memory, as an error gives it.
fn total_bytes(text: &str) -> usize {
    let (_, rest) = text.split_once(" free of ").expect("figures");
    let (number, rest) = rest.split_once(' ').expect("a unit");
    assert!(rest.starts_with("GiB"), "{text}");
    (number.parse::<f64>().expect("a number") * (1u64 << 30) as f64) as usize
}

#[test]
fn training_goes_on_after_out_of_memory_in_a_forward_pass() {
    let _alone = alone();
    let model = Tokens::new();
    let undisturbed = model.clone().losses(3);
    let before = device().memory_stats().expect("the device is open");
    // More than the device has.
    let text = caught(|| model.clone().step([1, 2, 3, 4], 1 << 34)).expect_err("a tebibyte and more");
    for part in ["cuda:0: linear: ", "out of memory", "TiB", "shapes [["] {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    // More than is left: the cache is given back and the driver asked again. Each repetition is 24 floats where the first
    // product needs them in a row.
    let total = total_bytes(&text);
    let held = Cuda::float_empty(Shape::from(vec![total / 8 / 4]), &device(), DType::F32.into());
    let text =
        caught(|| model.clone().step([1, 2, 3, 4], total / 16 * 15 / 96)).expect_err("so much is not left");
    for part in ["cuda:0: linear: ", "out of memory", "GiB asked for", "shapes [["] {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    drop(held);
    assert_eq!(model.clone().losses(3), undisturbed);
    let after = device().memory_stats().expect("the device is open");
    assert_eq!(after.live_bytes, before.live_bytes, "what the failed steps made is gone");
    assert!(after.oom_count >= before.oom_count + 2);
    works();
}

#[test]
fn training_goes_on_after_a_token_out_of_range() {
    let _alone = alone();
    let model = Tokens::new();
    let undisturbed = model.clone().losses(2);
    let (spoilt, loss) = model.clone().step([0, 1, 7, 2], 1);
    let parts = ["embedding", "index 7", "size 7"];
    faulty(&loss.inner().into_primitive().tensor(), &parts);
    // What was updated from it is spoilt; what was not is not.
    faulty(&spoilt.first.weight.val().inner().into_primitive().tensor(), &parts);
    assert!(read(model.first.weight.val().inner().into_primitive().tensor()).is_ok());
    assert_eq!(model.losses(2), undisturbed);
    drop(spoilt);
    let _ = device().sync();
    works();
}

#[test]
fn shapes_beyond_64_bits_are_an_error() {
    let _running = shared();
    panics_with(&["more bytes than can be addressed"], || {
        Cuda::float_zeros(Shape::from(vec![1usize << 40, 1usize << 40]), &device(), DType::F32.into())
    });
    panics_with(&["more bytes than can be addressed"], || {
        Cuda::float_zeros(Shape::from(vec![(1usize << 62) + 1]), &device(), DType::F32.into())
    });
    // A size of 0 makes all of it nothing.
    let nothing =
        Cuda::float_zeros(Shape::from(vec![1usize << 40, 0, 1usize << 40]), &device(), DType::F32.into());
    assert_eq!(read(nothing), Ok(vec![]));
}

/// Reads a poisoned value and checks the error's parts.
#[track_caller]
fn faulty(x: &Float, parts: &[&str]) {
    let text = read(x.clone()).expect_err("the value depends on an index out of range");
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn an_index_out_of_range_poisons_what_depends_on_it() {
    let _alone = alone();
    let other = Cuda::float_neg(floats(&[4]));
    let bad = Cuda::float_gather(0, floats(&[10]), ints(&[3], vec![0, 12, 1]));
    let good = Cuda::float_gather(0, floats(&[10]), ints(&[3], vec![0, 9, 1]));
    let dependent = Cuda::float_sum(Cuda::float_add(bad.clone(), good.clone()));
    let parts = ["gather", "index 12", "size 10"];
    faulty(&dependent, &parts);
    faulty(&bad, &parts);
    faulty(&dependent, &parts);
    let view = Cuda::float_slice(bad.clone(), &[burn_backend::Slice::new(0, Some(1), 1)]);
    faulty(&view, &parts);
    assert_eq!(read(good), Ok(vec![0.0, 9.0, 1.0]));
    assert_eq!(read(other), Ok(vec![0.0, -1.0, -2.0, -3.0]));
    // What is made of the poisoned value later re-reports the first error.
    faulty(&Cuda::float_mul_scalar(bad, burn_backend::Scalar::Float(2.0)), &parts);
    assert!(device().sync().is_ok(), "sync does not repeat what a read has reported");
    works();
}

/// Token 19 of a sequence would be in its fifth block of four, where the next sequence's blocks begin in memory.
#[test]
fn a_block_table_that_is_too_short_is_an_error_at_the_read() {
    let _alone = alone();
    let pool = || floats(&[6, 4, 2]);
    let table = || ints(&[2, 4], vec![0, 1, 2, 3, 4, 5, 0, 1]);
    let tokens = |last: i32| ints(&[2, 2], vec![3, last / 4, 0, 2]);
    let blocks = |last: i32| Cuda::int_reshape(Cuda::int_gather(1, table(), tokens(last)), vec![4].into());
    let right = Cuda::float_select(pool(), 0, blocks(15));
    let expected = [3, 3, 4, 0].iter().flat_map(|b| (8 * b..8 * b + 8).map(f64::from)).collect();
    assert_eq!(read(right), Ok(expected));
    faulty(&Cuda::float_select(pool(), 0, blocks(19)), &["gather", "index 4", "size 4"]);
    // The same with the tokens' places in the table as indices of both dimensions.
    let place = ints(&[2, 2], vec![0, 3, 0, 4]);
    let named = Cuda::int_gather_nd(table(), place);
    faulty(&Cuda::float_select(pool(), 0, named), &["gather_nd", "index 4", "size 4"]);
    // A block that the pool does not have.
    let far = Cuda::float_gather_nd(pool(), ints(&[2, 2], vec![5, 3, 6, 0]));
    faulty(&far, &["gather_nd", "index 6", "size 6"]);
    let _ = device().sync();
    works();
}

/// Burn's loss picks the class of every target, and masks what it is to ignore afterwards.
#[test]
fn a_target_to_ignore_that_is_no_class_is_an_error_of_burns_own_loss() {
    let _alone = alone();
    let config = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![255]));
    let logits = || Tensor::<Cuda, 2>::from_primitive(TensorPrimitive::Float(floats(&[3, 3])));
    let loss = |targets: [i32; 3]| {
        let targets = Tensor::<Cuda, 1, burn_tensor::Int>::from_data(TensorData::from(targets), &device());
        config.init(&device()).forward(logits(), targets).into_primitive().tensor()
    };
    assert!(read(loss([0, 2, 1])).is_ok());
    faulty(&loss([0, 255, 1]), &["gather", "index 255", "size 3"]);
    let _ = device().sync();
    works();
}

#[test]
fn every_indexing_op_reports_its_own_fault() {
    let _alone = alone();
    let x = || floats(&[5, 3]);
    let select = Cuda::float_select(x(), 0, ints(&[2], vec![1, -1]));
    faulty(&select, &["select", "index -1", "size 5"]);
    let select = Cuda::float_select(x(), 1, ints(&[2], vec![3, 0]));
    faulty(&select, &["select", "index 3", "size 3"]);
    let scatter = Cuda::float_scatter_add(0, x(), ints(&[1, 3], vec![0, 77, 4]), floats(&[1, 3]));
    faulty(&scatter, &["scatter", "index 77", "size 5"]);
    let add = Cuda::float_select_add(x(), 0, ints(&[1], vec![5]), floats(&[1, 3]));
    faulty(&add, &["select_add", "index 5", "size 5"]);
    let gather = Cuda::float_gather_nd(x(), ints(&[2, 2], vec![4, 2, 1, 3]));
    faulty(&gather, &["gather_nd", "index 3", "size 3"]);
    let how = burn_backend::tensor::IndexingUpdateOp::Max;
    let scatter = Cuda::float_scatter_nd(x(), ints(&[2, 1], vec![-2, 1]), floats(&[2, 3]), how);
    faulty(&scatter, &["scatter_nd", "index -2", "size 5"]);
    let (targets, one) = (ints(&[1, 1], vec![7]), || ints(&[1], vec![1]));
    let loss = Cuda::ctc_loss(floats(&[2, 1, 4]), targets, one(), one(), 0);
    faulty(&loss, &["ctc_loss", "index 7", "size 4"]);
    let embedding = Cuda::embedding(x(), ints(&[1, 2], vec![2, 9]));
    faulty(&embedding, &["embedding", "index 9", "size 5"]);
    let _ = device().sync();
    works();
}

#[test]
fn sync_alone_finds_a_fault() {
    let _alone = alone();
    assert!(device().sync().is_ok());
    let _bad = Cuda::float_gather(0, floats(&[10]), ints(&[1], vec![10]));
    let text = format!("{:?}", Cuda::sync(&device()).expect_err("the gather was out of range"));
    assert!(text.contains("gather") && text.contains("index 10"), "{text}");
    assert!(Cuda::sync(&device()).is_ok());
    works();
}

#[test]
fn a_fault_among_a_thousand_ops_is_found() {
    let _alone = alone();
    let all: Vec<Float> = (0..3_000)
        .map(|k| Cuda::float_gather(0, floats(&[4]), ints(&[1], vec![if k == 1_700 { 4 } else { 3 }])))
        .collect();
    for (k, x) in all.into_iter().enumerate() {
        match k {
            1_700 => faulty(&x, &["index 4", "size 4"]),
            _ => assert_eq!(read(x), Ok(vec![3.0]), "gather {k}"),
        }
    }
    let _ = device().sync();
}
