//! Launches that the driver rejects: the operation that was called is named, whatever kernels it is made of, and works when
//! it is called again; in the middle of training the same step, taken again, gives what it would have given.
//!
//! The emulator rejects one launch of a process (`KILN_EMULATOR_REJECT`), so each case is a process of its own.

use std::collections::BTreeSet;
use std::process::Command;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn_autodiff::Autodiff;
use burn_backend::ops::{
    ActivationOps, AttentionModuleOptions, BoolTensorOps, ConvOptions, ConvTransposeOptions,
    DeformConvOptions, FloatTensorOps, GridSampleOptions, IntTensorOps, InterpolateMode, InterpolateOptions,
    ModuleOps, QTensorOps,
};
use burn_backend::quantization::{QuantScheme, QuantValue, QuantizationParametersPrimitive};
use burn_backend::tensor::{FloatTensor, IndexingUpdateOp, IntTensor};
use burn_backend::{Backend, BoolDType, Distribution, ExecutionError, FloatDType, IntDType, Shape, Slice};
use burn_tensor::{Int, Tensor, TensorData, activation};
use kiln::{Cuda, Fusion};

use crate::harness::family::caught;

type Trained = Autodiff<Cuda>;

const REJECT: &str = "KILN_EMULATOR_REJECT";
/// The number of the case in [`CASES`] that a process is for.
const CASE: &str = "KILN_REJECTED_CASE";

/// A process that runs one of the tests below, of which the N-th launch of a kernel is rejected.
fn child(test: &str, entry: &str, number: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a process has an executable"));
    command.args(["--exact", &format!("rejected::{test}"), "--nocapture"]);
    command.env(REJECT, format!("{entry}:{number}")).env_remove("KILN_TEST_ONLY");
    command
}

/// What the process prints behind `label`.
#[track_caller]
fn printed(mut child: Command, label: &str) -> String {
    let output = child.output().expect("the test binary can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let reject = child.get_envs().find(|(name, _)| *name == REJECT);
    assert!(output.status.success(), "{reject:?}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    text.lines().find_map(|line| line.strip_prefix(label)).expect("what failed").to_owned()
}

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

fn step(model: Mlp<Trained>, batch: usize) -> (Mlp<Trained>, f32) {
    let device = Default::default();
    let x: Vec<f32> = (0..24).map(|k| ((k * 7 + batch * 5) % 11) as f32 * 0.2 - 1.0).collect();
    let x = Tensor::<Trained, 2>::from_data(TensorData::new(x, [4, 6]), &device);
    let labels = Tensor::<Trained, 1, Int>::from_data(
        TensorData::new(vec![0i32, 2, 1, (batch % 3) as i32], [4]),
        &device,
    );
    let logits = model.second.forward(activation::relu(model.first.forward(x)));
    let loss = CrossEntropyLossConfig::new().init(&device).forward(logits, labels);
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let value = loss.into_scalar();
    (SgdConfig::new().init().step(0.1, model, gradients), value)
}

/// The losses of six steps, and what went wrong on the way; a step that fails is taken again.
fn train(start: Mlp<Trained>) -> (Vec<f32>, Vec<String>) {
    let (mut model, mut losses, mut failures) = (start, Vec::new(), Vec::new());
    while losses.len() < 6 {
        match caught(|| step(model.clone(), losses.len())) {
            Ok((next, loss)) => {
                model = next;
                losses.push(loss);
            }
            Err(text) => failures.push(text),
        }
    }
    (losses, failures)
}

/// Does nothing on its own: the process that the next test starts.
#[test]
fn child_process() {
    let Some(rejected) = std::env::var_os(REJECT) else { return };
    let device = Default::default();
    let model = Mlp::<Trained> {
        first: LinearConfig::new(6, 8).init(&device),
        second: LinearConfig::new(8, 3).init(&device),
    };
    // Parameters are drawn when they are first used, and clones made before draw their own.
    for linear in [&model.first, &model.second] {
        drop((linear.weight.val(), linear.bias.as_ref().map(|bias| bias.val())));
    }
    let (losses, failures) = train(model.clone());
    let (again, none) = train(model);
    assert!(none.is_empty(), "{none:?}");
    assert_eq!(losses, again, "{rejected:?}");
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    println!("failures: {failures:?}");
}

#[test]
fn a_rejected_launch_is_named_and_training_goes_on() {
    // Making the parameters launches, too; a step has some 20 launches of elementwise kernels.
    let cases =
        [("elementwise", 20), ("elementwise", 33), ("elementwise", 90), ("gather", 3), ("reduce_rows", 4)];
    for (entry, number) in cases {
        let line = printed(child("child_process", entry, number), "failures: ");
        for part in [
            "cuda:0: ",
            ": the launch with grid [",
            "was rejected",
            "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
            "shapes [[",
            "F32",
            entry,
        ] {
            assert!(line.contains(part), "{entry}:{number}: {part:?} is missing in: {line}");
        }
        println!("{entry}:{number}: {line}");
    }
}

/// Does nothing on its own: the process that the next test starts.
#[test]
fn recorded_program() {
    if std::env::var_os(REJECT).is_none() {
        return;
    }
    type Recorded = Fusion<Cuda>;
    let device = Default::default();
    fn program<B: Backend>(device: &B::Device) -> Result<TensorData, String> {
        let x = Tensor::<B, 1>::from_data(TensorData::from([1.0f32, 2.0, -1.0]), device);
        let y = activation::softmax(x + 1.0, 0);
        y.try_into_data().map_err(|error| error.to_string())
    }
    let mut failures = Vec::new();
    let mut given = Vec::new();
    for _ in 0..6 {
        match program::<Recorded>(&device) {
            Ok(data) => given.push(data),
            Err(text) => failures.push(text),
        }
    }
    let expected = program::<Cuda>(&device).expect("nothing is rejected any more");
    assert!(given.len() >= 5 && given.iter().all(|data| *data == expected), "{given:?}, {expected:?}");
    println!("failures: {failures:?}");
}

/// An operation of a recorded program fails at the read of what depends on it; while a graph is captured, the program is
/// run without one.
#[test]
fn a_launch_that_is_rejected_in_a_recorded_program_is_named_at_the_read() {
    let mut named = 0;
    for (entry, op) in [("elementwise", "float_add_scalar"), ("softmax", "softmax")] {
        // Two runs are interpreted, the third is captured, and the others are replays of it.
        for number in 1..=3 {
            let line = printed(child("recorded_program", entry, number), "failures: ");
            println!("{entry}:{number}: {line}");
            if line == "[]" {
                continue;
            }
            for part in [op, "cuda:0: ", "the launch with grid ["] {
                assert!(line.contains(part), "{entry}:{number}: {part:?} is missing in: {line}");
            }
            named += 1;
        }
    }
    assert!(named >= 2, "only {named} were rejected outside of a capture");
}

// --- every kernel -------------------------------------------------------------------------------------------------------

const NATIVE: BoolDType = BoolDType::Native;

fn floats(shape: &[usize]) -> FloatTensor<Cuda> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|k: usize| (k % 7) as f32 - 2.0).collect();
    Cuda::float_from_data(TensorData::new(values, shape.to_vec()), &Default::default())
}

fn ints(shape: &[usize], values: Vec<i32>) -> IntTensor<Cuda> {
    Cuda::int_from_data(TensorData::new(values, shape.to_vec()), &Default::default())
}

/// Whole numbers from 0 to 4 and back.
fn counted(shape: &[usize]) -> IntTensor<Cuda> {
    ints(shape, (0..shape.iter().product()).map(|k: usize| (k % 5) as i32).collect())
}

fn image() -> FloatTensor<Cuda> {
    floats(&[1, 2, 5, 6])
}

fn kernel() -> FloatTensor<Cuda> {
    floats(&[2, 2, 3, 3])
}

fn conv() -> ConvOptions<2> {
    ConvOptions::new([1, 1], [1, 1], [1, 1], 1)
}

fn deform() -> DeformConvOptions<2> {
    DeformConvOptions::new([1, 1], [1, 1], [1, 1], 1, 1)
}

fn deform_backward() {
    let (offset, mask) = (floats(&[1, 18, 5, 6]), floats(&[1, 9, 5, 6]));
    drop(Cuda::deform_conv2d_backward(image(), offset, kernel(), Some(mask), None, image(), deform()));
}

fn attention() {
    let (q, options) =
        (floats(&[1, 1, 3, 4]), AttentionModuleOptions { is_causal: true, ..Default::default() });
    drop(Cuda::attention(q.clone(), q.clone(), q, None, None, options));
}

fn scheme() -> QuantScheme {
    QuantScheme::default().with_value(QuantValue::Q8S)
}

fn scatter_nd(how: IndexingUpdateOp) {
    let at = ints(&[2, 2], vec![0, 1, 2, 0]);
    drop(Cuda::float_scatter_nd(floats(&[3, 2, 4]), at, floats(&[2, 4]), how));
}

/// A line of more indices than one thread adds up.
fn select_add() {
    drop(Cuda::float_select_add(floats(&[5, 4]), 0, counted(&[70]), floats(&[70, 4])));
}

fn large_sort() {
    drop(Cuda::int_sort(Cuda::int_cast(counted(&[5000]), IntDType::U8), 0, false));
}

fn argwhere() {
    let x = Cuda::int_equal(counted(&[9]), counted(&[9]), NATIVE);
    drop(burn_backend::read_sync(Cuda::bool_argwhere(x, IntDType::I32)));
}

fn ctc_backward() {
    let one = || ints(&[1], vec![1]);
    drop(Cuda::ctc_loss_backward(
        floats(&[3, 1, 4]),
        ints(&[1, 1], vec![2]),
        ints(&[1], vec![3]),
        one(),
        floats(&[1]),
        0,
    ));
}

fn max_pool_backward() {
    let (two, one) = ([2, 2], [1, 1]);
    let y = Cuda::max_pool2d_with_indices(image(), two, one, [0, 0], one, false);
    let dy = floats(&[1, 2, 4, 5]);
    drop(Cuda::max_pool2d_with_indices_backward(image(), two, one, [0, 0], one, false, dy, y.indices));
}

/// A read of a view, which is copied first.
fn read_transposed(rows: usize, columns: usize) {
    let x = Cuda::float_transpose(floats(&[rows, columns]));
    if let Err(ExecutionError::WithContext { reason }) = burn_backend::read_sync(Cuda::float_into_data(x)) {
        panic!("{reason}");
    }
}

/// An operation, and which launch of which kernel is rejected in it.
struct Case {
    entry: &'static str,
    number: usize,
    op: &'static str,
    run: fn(),
}

macro_rules! cases {
    ($($entry:ident $number:literal, $op:ident: $run:expr;)*) => {
        &[$(Case { entry: stringify!($entry), number: $number, op: stringify!($op), run: || { let _ = $run; } }),*]
    };
}

#[rustfmt::skip]
const CASES: &[Case] = cases! {
    elementwise 1, float_add: Cuda::float_add(floats(&[3]), floats(&[3]));
    elementwise 1, int_powi: Cuda::int_powi(counted(&[3]), counted(&[3]));
    elementwise 1, float_ones: Cuda::float_ones(Shape::from(vec![3]), &Default::default(), FloatDType::F32);
    elementwise 1, float_slice_assign: Cuda::float_slice_assign(floats(&[3]), &[Slice::new(0, Some(2), 1)], floats(&[2]));
    elementwise 1, cat: Cuda::float_cat(vec![floats(&[3]), floats(&[2])], 0);
    elementwise 1, conv2d: Cuda::conv2d(image(), Cuda::float_swap_dims(kernel(), 2, 3), None, conv());
    elementwise 1, softmax: Cuda::softmax(Cuda::float_transpose(floats(&[2, 3])), 1);
    elementwise 1, into_data: read_transposed(2, 3);
    transpose 1, into_data: read_transposed(40, 50);
    transpose 1, softmax: Cuda::softmax(Cuda::float_transpose(floats(&[40, 50])), 1);
    transpose 1, float_slice_assign: Cuda::float_slice_assign(floats(&[50, 50]), &[Slice::full(), Slice::new(3, Some(43), 1)], Cuda::float_transpose(floats(&[40, 50])));
    argwhere_count 1, bool_argwhere: argwhere();
    argwhere_write 1, bool_argwhere: argwhere();
    cumulative_rows 1, bool_argwhere: argwhere();
    attention_softmax 1, attention: attention();
    attention_repair 1, attention: attention();
    cross 1, float_cross: Cuda::float_cross(floats(&[2, 3]), floats(&[2, 3]), 1);
    ctc 1, ctc_loss: Cuda::ctc_loss(floats(&[3, 1, 4]), ints(&[1, 1], vec![2]), ints(&[1], vec![3]), ints(&[1], vec![1]), 0);
    ctc 1, ctc_loss_backward: ctc_backward();
    cumulative_rows 1, float_cumsum: Cuda::float_cumsum(floats(&[2, 9]), 1);
    cumulative_rows 1, int_cummax: Cuda::int_cummax(counted(&[9]), 0);
    cumulative_columns 1, float_cumprod: Cuda::float_cumprod(floats(&[9, 2]), 0);
    deform_columns 1, deform_conv2d: Cuda::deform_conv2d(image(), floats(&[1, 18, 5, 6]), kernel(), None, None, deform());
    deform_columns 1, deform_conv2d_backward: deform_backward();
    deform_offsets 1, deform_conv2d_backward: deform_backward();
    deform_count 1, deform_conv2d_backward: deform_backward();
    cumulative_rows 1, deform_conv2d_backward: deform_backward();
    deform_fill 1, deform_conv2d_backward: deform_backward();
    deform_sort 1, deform_conv2d_backward: deform_backward();
    deform_x 1, deform_conv2d_backward: deform_backward();
    fft 1, rfft: Cuda::rfft(floats(&[16]), 0, None);
    fft 1, irfft: Cuda::irfft(floats(&[9]), floats(&[9]), 0, None);
    fft 4, rfft: Cuda::rfft(floats(&[1001]), 0, None);
    gather 1, float_gather: Cuda::float_gather(0, floats(&[4]), counted(&[3]));
    gather 1, int_select: Cuda::int_select(counted(&[5, 3]), 0, counted(&[4]));
    gather 1, embedding: Cuda::embedding(floats(&[5, 3]), counted(&[1, 4]));
    gather 1, float_gather_nd: Cuda::float_gather_nd(floats(&[5, 4]), counted(&[3, 1]));
    grid_sample 1, float_grid_sample_2d: Cuda::float_grid_sample_2d(image(), floats(&[1, 3, 3, 2]), GridSampleOptions::new(InterpolateMode::Bilinear));
    im2col 1, conv2d: Cuda::conv2d(image(), kernel(), None, conv());
    im2col 1, conv2d_weight_backward: Cuda::conv2d_weight_backward(image(), kernel(), image(), conv());
    col2im 1, conv2d_x_backward: Cuda::conv2d_x_backward(image(), kernel(), image(), conv());
    col2im 1, conv_transpose2d: Cuda::conv_transpose2d(image(), kernel(), None, ConvTransposeOptions::new([2, 2], [0, 0], [0, 0], [1, 1], 1));
    int_matmul 1, int_matmul: Cuda::int_matmul(counted(&[2, 3]), counted(&[3, 2]));
    interpolate 1, interpolate: Cuda::interpolate(image(), [7, 3], InterpolateOptions::new(InterpolateMode::Bilinear));
    interpolate 1, interpolate_backward: Cuda::interpolate_backward(image(), floats(&[1, 2, 7, 3]), [7, 3], InterpolateOptions::new(InterpolateMode::Bilinear));
    layer_norm 1, layer_norm: Cuda::layer_norm(floats(&[3, 8]), floats(&[8]), None, 1e-5);
    layer_norm_backward 1, layer_norm_backward: Cuda::layer_norm_backward(floats(&[3, 8]), floats(&[3, 8]), floats(&[8]), 1e-5);
    nd 1, float_gather_nd: Cuda::float_gather_nd(floats(&[5, 4]), ints(&[2, 2], vec![0, 1, 2, 0]));
    nd 2, float_scatter_nd: scatter_nd(IndexingUpdateOp::Assign);
    nd 3, float_scatter_nd: scatter_nd(IndexingUpdateOp::Assign);
    scatter 1, float_scatter_nd: scatter_nd(IndexingUpdateOp::Max);
    pool 1, avg_pool2d: Cuda::avg_pool2d(image(), [2, 2], [1, 1], [0, 0], true, false);
    pool 1, avg_pool2d_backward: Cuda::avg_pool2d_backward(image(), floats(&[1, 2, 4, 5]), [2, 2], [1, 1], [0, 0], true, false);
    pool 1, max_pool2d: Cuda::max_pool2d(image(), [2, 2], [1, 1], [0, 0], [1, 1], false);
    pool 1, max_pool2d_with_indices: max_pool_backward();
    pool 2, max_pool2d_with_indices_backward: max_pool_backward();
    pool 1, adaptive_avg_pool2d: Cuda::adaptive_avg_pool2d(image(), [3, 3]);
    pool 1, adaptive_avg_pool2d_backward: Cuda::adaptive_avg_pool2d_backward(image(), floats(&[1, 2, 3, 3]));
    quantize 1, quantize_dynamic: Cuda::quantize_dynamic(floats(&[8]), &scheme());
    quantize 2, quantize_dynamic: Cuda::quantize_dynamic(floats(&[8]), &scheme());
    quantize 1, quantize: Cuda::quantize(floats(&[8]), &scheme(), QuantizationParametersPrimitive { scales: floats(&[1]) });
    quantize 3, dequantize: Cuda::dequantize(Cuda::quantize_dynamic(floats(&[8]), &scheme()), FloatDType::F32);
    quantized_move 1, q_select: Cuda::q_select(Cuda::quantize_dynamic(floats(&[5, 4]), &scheme()), 0, counted(&[3]));
    random_fill 1, float_random: Cuda::float_random(Shape::from(vec![3]), Distribution::Default, &Default::default(), FloatDType::F32);
    random_fill 1, int_random: Cuda::int_random(Shape::from(vec![3]), Distribution::Uniform(0.0, 9.0), &Default::default(), IntDType::I32);
    reduce_rows 1, float_sum_dim: Cuda::float_sum_dim(floats(&[3, 4]), 1);
    reduce_row 1, float_mean: Cuda::float_mean(floats(&[2000]));
    reduce_row 1, float_argmax: Cuda::float_argmax(floats(&[2000]), 0, IntDType::I32);
    reduce_partials 1, float_max: Cuda::float_max(floats(&[40_000]));
    reduce_columns 1, int_prod_dim: Cuda::int_prod_dim(counted(&[3, 4]), 0);
    reduce_rows 1, conv2d_bias_backward: Cuda::conv2d_bias_backward(image(), floats(&[2]), image());
    scatter 1, int_scatter_add: Cuda::int_scatter_add(0, counted(&[5]), counted(&[3]), counted(&[3]));
    scatter 1, float_scatter_add: Cuda::float_scatter_add(0, floats(&[5, 2]), counted(&[3, 2]), floats(&[3, 2]));
    scatter 1, float_select_add: select_add();
    scatter 2, float_select_add: select_add();
    scatter 3, float_select_add: select_add();
    scatter 1, embedding_backward: Cuda::embedding_backward(floats(&[5, 4]), floats(&[1, 70, 4]), counted(&[1, 70]));
    softmax 1, softmax: Cuda::softmax(floats(&[3, 4]), 1);
    softmax 1, log_softmax: Cuda::log_softmax(floats(&[3, 4]), 0);
    sort_warp 1, float_sort: Cuda::float_sort(floats(&[3, 4]), 1, false);
    sort_block 1, float_argsort: Cuda::float_argsort(floats(&[600]), 0, true, IntDType::I32);
    sort_select 1, float_topk: Cuda::float_topk(floats(&[12_000]), 0, 3);
    sort_warp 1, float_topk: Cuda::float_topk(floats(&[12_000]), 0, 3);
    sort_count 1, int_sort: large_sort();
    cumulative_rows 1, int_sort: large_sort();
    sort_scatter 1, int_sort: large_sort();
};

/// Kernels that no method of Burn launches.
const WITHOUT_A_METHOD: [&str; 1] = ["softmax_backward"];

/// Does nothing on its own: the process that the next test starts for a case.
#[test]
fn rejected_operation() {
    let Some(number) = std::env::var(CASE).ok() else { return };
    let case = &CASES[number.parse::<usize>().expect("a number")];
    let text = caught(case.run).expect_err("a launch is rejected");
    println!("failure: {text}");
    // Once more, and with new tensors.
    (case.run)();
    Cuda::sync(&Default::default()).expect("nothing is left of the failure");
    let sum = Cuda::float_sum(Cuda::float_add(floats(&[3]), floats(&[3])));
    let sum = burn_backend::read_sync(Cuda::float_into_data(sum)).expect("a new tensor");
    assert_eq!(sum.iter::<f32>().collect::<Vec<_>>(), [-6.0]);
}

#[test]
fn every_operation_is_named_when_a_launch_of_it_is_rejected() {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        let mut wrong = Vec::new();
        loop {
            let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(Case { entry, number, op, .. }) = CASES.get(index) else { return wrong };
            let mut child = child("rejected_operation", entry, *number);
            child.env(CASE, index.to_string());
            let text = match caught(|| printed(child, "failure: ")) {
                Ok(text) => text,
                Err(text) => {
                    wrong.push(format!("{op}, {entry}:{number}: {text}"));
                    continue;
                }
            };
            // The method, or its name without the kind of tensor.
            let plain = ["float_", "int_", "bool_"].iter().find_map(|kind| op.strip_prefix(kind));
            let named = |op: &str| text.starts_with(&format!("cuda:0: {op}: "));
            let kernel = text.contains(&format!(": {entry}: the launch with grid ["));
            if !(named(op) || plain.is_some_and(named)) || !kernel || !text.contains("shapes [[") {
                wrong.push(format!("{op}, {entry}:{number}: {text}"));
            }
        }
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The entry points of all kernels, from their sources.
fn entries() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/backend/src/kernels");
    let files =
        std::fs::read_dir(folder).expect("the kernels' folder").map(|file| file.expect("a file").path());
    let mut all = BTreeSet::new();
    for file in files.filter(|file| file.extension().is_some_and(|e| e == "cu")) {
        let text = std::fs::read_to_string(&file).expect("a kernel's source");
        for part in text.split("extern \"C\" __global__").skip(1) {
            // void __launch_bounds__(..) name(
            let name = part.split('(').find_map(|part| {
                let name = part.rsplit([' ', '\n', ')']).next().unwrap_or_default();
                (!name.is_empty() && !name.starts_with("__") && part.contains(')')).then_some(name)
            });
            all.insert(name.expect("an entry point has a name").to_owned());
        }
    }
    all
}

#[test]
fn every_kernel_has_a_case() {
    let covered: BTreeSet<_> = CASES.iter().map(|case| case.entry).chain(WITHOUT_A_METHOD).collect();
    let entries = entries();
    let entries: BTreeSet<_> = entries.iter().map(String::as_str).collect();
    assert!(entries.len() > 30, "{entries:?}");
    assert_eq!(entries, covered);
}
