//! Work captured into a CUDA graph and replayed, and memory that stays flat.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn_autodiff::Autodiff;
use burn_backend::ops::{ActivationOps, BoolTensorOps, FloatTensorOps};
use burn_backend::tensor::FloatTensor;
use burn_backend::{DType, Scalar, TensorData};
use burn_tensor::Tensor;
use kiln::{Cuda, CudaDevice, MemoryStats};

use crate::harness::family::{alone, caught};
use crate::harness::{Dense, Domain, Rng, Value, values::dense};
use crate::ops::models::Mlp;

type Float = FloatTensor<Cuda>;

fn device() -> CudaDevice {
    CudaDevice::default()
}

fn upload(values: &[f32], shape: &[usize]) -> Float {
    Cuda::float_from_data(TensorData::new(values.to_vec(), shape.to_vec()), &device())
}

fn read(x: &Float) -> Vec<f64> {
    Dense::of(&Value::<Cuda>::Float(x.clone()).read()).as_floats().to_vec()
}

fn add(x: Float, y: f64) -> Float {
    Cuda::float_add_scalar(x, Scalar::Float(y))
}

fn stats() -> MemoryStats {
    device().memory_stats().expect("the device is open")
}

/// A few ops of each kind.
fn work(x: Float, w: Float) -> Vec<Float> {
    let product = Cuda::float_matmul(x.clone(), w);
    let total = Cuda::float_sum_dim(product.clone(), 1);
    let soft = Cuda::softmax(product.clone(), 1);
    let both = Cuda::float_cat(vec![Cuda::float_exp(x.clone()), x.clone()], 0);
    let joined = Cuda::float_add(Cuda::float_mul(product, soft.clone()), total.clone());
    vec![total, soft, both, joined]
}

#[test]
fn a_replay_gives_what_the_ops_give() {
    let _alone = alone();
    let mut rng = Rng::new(3);
    let mut values = |n| (0..n).map(|_| rng.normal() as f32).collect::<Vec<_>>();
    let (x, w) = (upload(&values(12 * 16), &[12, 16]), upload(&values(16 * 16), &[16, 16]));
    let expected: Vec<_> = work(x.clone(), w.clone()).iter().map(read).collect();
    let captured = device().capture(|| work(x.clone(), w.clone()));
    let (outputs, graph) = captured.expect("the work can be captured");
    assert!(graph.nodes() >= 5, "{} nodes", graph.nodes());
    for replay in 0..3 {
        graph.launch().expect("a replay");
        for (k, (output, expected)) in outputs.iter().zip(&expected).enumerate() {
            assert_eq!(&read(output), expected, "replay {replay}, output {k}");
        }
    }
}

#[test]
fn replays_read_an_input_that_only_the_capture_holds() {
    let _alone = alone();
    drop(add(upload(&[0.0; 4], &[4]), 1.0));
    // Nobody else holds it, and the addition could be made in its place: the second replay would then add to the first.
    let input = upload(&[1.5, 2.0, 3.0, 4.0], &[4]);
    let ((sum, twice), graph) = device()
        .capture(move || {
            let sum = add(input, 1.0);
            (sum.clone(), Cuda::float_mul_scalar(sum, Scalar::Float(2.0)))
        })
        .expect("an addition can be captured");
    for replay in 0..3 {
        graph.launch().expect("a replay");
        assert_eq!(read(&sum), [2.5, 3.0, 4.0, 5.0], "replay {replay}");
        assert_eq!(read(&twice), [5.0, 6.0, 8.0, 10.0], "replay {replay}");
    }
    // The last holder of an output gives it away: the result is not in the graph's memory, where the next replay writes.
    let after = add(twice, 100.0);
    graph.launch().expect("a replay");
    assert_eq!(read(&after), [105.0, 106.0, 108.0, 110.0]);
    assert_eq!(read(&sum), [2.5, 3.0, 4.0, 5.0]);
}

#[test]
fn chained_graphs_give_two_more() {
    let _alone = alone();
    let x = upload(&[1.0, 2.0], &[2]);
    drop(read(&add(x.clone(), 1.0)));
    let (y, f) = device().capture(|| add(x.clone(), 1.0)).expect("f");
    let (z, g) = device().capture(|| add(y.clone(), 1.0)).expect("g");
    for call in 1..=10 {
        f.launch().expect("f");
        g.launch().expect("g");
        if [1, 2, 3, 10].contains(&call) {
            assert_eq!(read(&z), [3.0, 4.0], "call {call}");
        }
    }
    drop((f, g));
    // Outputs outlive their graphs, and nothing else is put where they lie.
    let others: Vec<_> = (0..64).map(|k| upload(&[k as f32; 2], &[2])).collect();
    assert_eq!((read(&y), read(&z)), (vec![2.0, 3.0], vec![3.0, 4.0]));
    drop(others);
}

#[test]
fn two_graphs_in_turn() {
    let _alone = alone();
    let x = upload(&[0.5, 1.0, -2.0], &[3]);
    let (sin, cos) = (read(&Cuda::float_sin(x.clone())), read(&Cuda::float_cos(x.clone())));
    let (a, f) = device().capture(|| Cuda::float_sin(x.clone())).expect("sin");
    let (b, g) = device().capture(|| Cuda::float_cos(x.clone())).expect("cos");
    for _ in 0..3 {
        f.launch().expect("sin");
        g.launch().expect("cos");
        assert_eq!((read(&a), read(&b)), (sin.clone(), cos.clone()));
    }
}

#[test]
fn reading_inside_a_capture_is_an_error() {
    let _alone = alone();
    let x = upload(&[1.0; 1_000], &[1_000]);
    drop(read(&add(x.clone(), 1.0)));
    device().empty_cache().expect("nothing is captured");
    let before = stats();
    let (outcome, graph) = device()
        .capture(|| {
            let y = add(x.clone(), 1.0);
            let read = Value::<Cuda>::Float(y.clone()).try_read().map(|_| ()).map_err(|e| format!("{e:?}"));
            (read, device().sync().map_err(|e| e.to_string()), y)
        })
        .expect("the capture itself goes on");
    let (argwhere, graph_of_argwhere) = device()
        .capture(|| {
            let bits =
                Cuda::float_greater_elem(x.clone(), Scalar::Float(0.0), burn_backend::BoolDType::Native);
            caught(|| drop(burn_backend::read_sync(Cuda::bool_argwhere(bits, burn_backend::IntDType::I32))))
        })
        .expect("the capture itself goes on");
    drop(graph_of_argwhere);
    let argwhere = argwhere.expect_err("a result of unknown shape");
    assert!(argwhere.contains("argwhere"), "{argwhere}");
    for text in [outcome.0.expect_err("a read"), outcome.1.expect_err("a sync"), argwhere] {
        assert!(text.contains("captured into a graph"), "{text}");
    }
    drop((outcome.2, graph));
    // A capture that ends in a panic.
    let failed = caught(|| {
        device().capture(|| {
            let _y = add(x.clone(), 2.0);
            panic!("on purpose")
        })
    });
    assert!(failed.is_err());
    device().empty_cache().expect("nothing is captured any more");
    let after = stats();
    assert_eq!((after.live_bytes, after.private_bytes), (before.live_bytes, 0));
    assert!(
        after.reserved_bytes <= before.reserved_bytes,
        "{} > {}",
        after.reserved_bytes,
        before.reserved_bytes
    );
    assert_eq!(read(&add(x, 1.0))[999], 2.0);
}

#[test]
fn other_threads_go_on_during_a_capture() {
    let _alone = alone();
    let x = upload(&[1.0; 100], &[100]);
    drop(read(&add(x.clone(), 1.0)));
    let (y, graph) = device()
        .capture(|| {
            let y = add(x.clone(), 1.0);
            let elsewhere = std::thread::scope(|s| s.spawn(|| read(&add(x.clone(), 5.0))).join());
            assert_eq!(elsewhere.expect("the other thread may read"), vec![6.0; 100]);
            y
        })
        .expect("a capture beside another thread");
    graph.launch().expect("a replay");
    assert_eq!(read(&y), vec![2.0; 100]);
}

#[test]
fn training_keeps_memory_flat() {
    let _alone = alone();
    type B = Autodiff<Cuda>;
    let device = device();
    let mut rng = Rng::new(1);
    let x = dense(&mut rng, &[32, 12], DType::F32, Domain::Normal);
    let labels = dense(&mut rng, &[32], DType::I32, Domain::Index(5));
    let mut model = Mlp::<B>::new(&device, 4);
    let mut optimizer = AdamWConfig::new().init();
    let loss = CrossEntropyLossConfig::new().init(&device);
    let mut seen = Vec::new();
    for _ in 0..20 {
        let logits = model.forward(Tensor::from_data(x.data(DType::F32), &device));
        let value = loss.forward(logits, Tensor::from_data(labels.data(DType::I32), &device));
        let gradients = GradientsParams::from_grads(value.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
        value.into_data();
        seen.push(stats());
    }
    let (early, late) = (seen[2], seen[19]);
    assert_eq!((early.live_bytes, early.live_count), (late.live_bytes, late.live_count));
    // In exact mode nothing is reused.
    if std::env::var_os("KILN_ALLOCATOR").is_none_or(|mode| mode != "exact") {
        let counts = (early.driver_alloc_count, late.driver_alloc_count);
        assert_eq!(counts.0, counts.1, "later steps reuse the memory of earlier ones");
    }
    println!("training: {} live bytes in {} blocks after steps 3 and 20", late.live_bytes, late.live_count);
}

#[test]
fn dropping_everything_gives_all_bytes_back() {
    let _alone = alone();
    let before = stats();
    let tensors: Vec<_> = (1..50).map(|k| add(upload(&vec![1.0; k * 100], &[k * 100]), 1.0)).collect();
    assert!(stats().live_bytes >= before.live_bytes + 4 * 100 * (49 * 50 / 2));
    drop(tensors);
    assert_eq!((stats().live_bytes, stats().live_count), (before.live_bytes, before.live_count));
    device().empty_cache().expect("nothing is captured");
    assert!(stats().reserved_bytes <= before.reserved_bytes);
}
