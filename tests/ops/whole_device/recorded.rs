//! `Fusion<Cuda>` against `Cuda`: each operation recorded, interpreted and then replayed as a CUDA graph with new data
//! and new scalars; and what may happen to tensors around a replay.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLockWriteGuard};

use burn_backend::{Backend, Distribution, Scalar, TensorData};
use burn_tensor::{Int, Tensor};
use kiln::fusion::graph::{Def, Graph, Node, ValueInfo};
use kiln::fusion::{GraphCompiler, Interpret, Value, interpret_graph};
use kiln::{Cuda, CudaDevice, Fusion};
use kiln_surface::arguments::{Case, Rng, arguments};
use kiln_surface::{Kind, Op, ValueId, infer_with};

use crate::harness::family;

type Recorded = Fusion<Cuda>;

/// Statistics and plans belong to the device, so these tests take turns.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For tests that watch memory and launches too.
fn alone() -> (MutexGuard<'static, ()>, RwLockWriteGuard<'static, ()>) {
    (turn(), family::alone())
}

/// A graph of the case's one operation.
fn graph_of(case: &Case) -> Option<Graph> {
    let device = CudaDevice::new(0);
    let mut graph = Graph { scalars: case.scalars.len() as u32, ..Graph::default() };
    for input in &case.inputs {
        let kind = match input.meta.dtype {
            burn_backend::DType::QFloat(_) => Kind::Quantized,
            burn_backend::DType::Bool(_) => Kind::Bool,
            dtype if dtype.is_float() => Kind::Float,
            _ => Kind::Int,
        };
        graph.values.push(ValueInfo { meta: input.meta.clone(), kind, def: Def::Input });
    }
    let meta = |value: ValueId| &case.inputs[value.0 as usize].meta;
    let outs = infer_with(&case.op, &meta, &Cuda::defaults(&device)).ok()?;
    for (output, (kind, meta)) in case.op.outputs().iter().zip(outs).enumerate() {
        graph.outputs.push(ValueId(graph.values.len() as u32));
        let def = Def::Node { node: 0, output: output as u32 };
        graph.values.push(ValueInfo { meta, kind: *kind, def });
    }
    graph.nodes.push(Node { op: case.op.clone(), outputs: graph.outputs.iter().copied().collect() });
    Some(graph)
}

/// Runs the graph on `B` and reads the results.
fn run<B: GraphCompiler>(
    graph: &Graph,
    data: &[TensorData],
    scalars: &[Scalar],
    device: &B::Device,
) -> Result<Vec<TensorData>, String> {
    let inputs = graph.values.iter().zip(data).map(|(info, data)| match info.kind {
        Kind::Float => Value::Float(B::float_from_data(data.clone(), device)),
        Kind::Int => Value::Int(B::int_from_data(data.clone(), device)),
        Kind::Bool => Value::Bool(B::bool_from_data(data.clone(), device)),
        Kind::Quantized => Value::Quantized(B::q_from_data(data.clone(), device)),
    });
    let outputs =
        interpret_graph::<B>(graph, inputs.collect(), scalars, &[]).map_err(|e| e.message.clone())?;
    let read = outputs.into_iter().map(|output| {
        let data = match output {
            Value::Float(tensor) => burn_backend::try_read_sync(B::float_into_data(tensor)),
            Value::Int(tensor) => burn_backend::try_read_sync(B::int_into_data(tensor)),
            Value::Bool(tensor) => burn_backend::try_read_sync(B::bool_into_data(tensor)),
            Value::Quantized(tensor) => burn_backend::try_read_sync(B::q_into_data(tensor)),
        };
        data.expect("reads are synchronous").map_err(|error| error.to_string())
    });
    read.collect()
}

/// New values for the scalars, of the same variants: whole numbers stay small, so that shifts and bounds hold.
fn vary(scalars: &[Scalar], rng: &mut Rng) -> Vec<Scalar> {
    let vary = |scalar: &Scalar| match *scalar {
        Scalar::Float(x) => Scalar::Float(x + 0.25 * rng.unit()),
        Scalar::Int(x) if x > 0 => Scalar::Int(x + rng.below(2) as i64),
        Scalar::UInt(x) if x > 0 => Scalar::UInt(x + rng.below(2) as u64),
        other => other,
    };
    scalars.iter().map(vary).collect()
}

/// Equal bits, or for sums that atomics add in any order a few units in the last place.
fn same(a: &TensorData, b: &TensorData, exact: bool) -> Result<(), String> {
    if a.shape != b.shape || a.dtype != b.dtype {
        return Err(format!("{:?} {:?} and {:?} {:?}", a.shape, a.dtype, b.shape, b.dtype));
    }
    if a.as_bytes() == b.as_bytes() {
        return Ok(());
    }
    if exact || !a.dtype.is_float() {
        return Err("the bits differ".into());
    }
    let epsilon = a.dtype.finfo().map_or(0.0, |info| info.epsilon);
    let worst = a.iter::<f64>().zip(b.iter::<f64>()).find(|(x, y)| {
        !(x == y || (x - y).abs() <= 32.0 * epsilon * (1.0 + x.abs()) || x.is_nan() && y.is_nan())
    });
    worst.map_or(Ok(()), |(x, y)| Err(format!("{x} and {y}")))
}

/// What an operation's inputs hold in a round.
fn data_of(case: &Case, seed: u64, round: u64) -> Vec<TensorData> {
    (0..).zip(&case.inputs).map(|(k, input)| input.data(seed + 31 * round + k)).collect()
}

/// Runs the operations on several threads, so that their kernels are not compiled one after the other.
fn compile_ahead(names: &[&'static str], seeds: u64) {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
    std::thread::scope(|scope| {
        for first in 0..threads {
            scope.spawn(move || {
                for (name, seed) in
                    names.iter().skip(first).step_by(threads).flat_map(|n| (0..seeds).map(move |s| (n, s)))
                {
                    let Some(case) = arguments(name, seed) else { continue };
                    let Some(graph) = graph_of(&case) else { continue };
                    let _shared = family::shared();
                    // What fails here fails again, where it is reported.
                    let _ = run::<Cuda>(&graph, &data_of(&case, seed, 0), &case.scalars, &CudaDevice::new(0));
                }
            });
        }
    });
}

#[test]
fn each_operation_is_replayed_with_new_data_and_scalars() {
    let device = CudaDevice::new(0);
    let seeds: u64 = std::env::var("KILN_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    // Random numbers are tested with a model, uninitialised memory has no values.
    let left_out = ["_random", "_empty", "_to_device"];
    let names: Vec<&str> =
        Op::NAMES.iter().copied().filter(|name| !left_out.iter().any(|end| name.ends_with(end))).collect();
    compile_ahead(&names, seeds);
    let _turn = turn();
    let (mut cases, mut replayed) = (0, 0);
    let mut skipped: BTreeMap<&str, String> = BTreeMap::new();
    let mut tested: Vec<&str> = Vec::new();
    let mut wrong: Vec<String> = Vec::new();
    for name in names {
        let _shared = family::shared();
        for seed in 0..seeds {
            let Some(case) = arguments(name, seed) else {
                skipped.insert(name, "no arguments".into());
                continue;
            };
            let Some(graph) = graph_of(&case) else { continue };
            let exact =
                !name.contains("scatter") && !name.contains("select_add") && !name.ends_with("backward");
            let mut rng = Rng::new(seed ^ 0x5eed);
            Recorded::reset_stats(&device);
            for round in 0..5u64 {
                let data = data_of(&case, seed, round);
                let scalars = if round == 0 { case.scalars.clone() } else { vary(&case.scalars, &mut rng) };
                let expected = match run::<Cuda>(&graph, &data, &scalars, &device) {
                    Ok(expected) => expected,
                    Err(why) => {
                        skipped.insert(name, why);
                        break;
                    }
                };
                match run::<Interpret<Recorded>>(&graph, &data, &scalars, &device) {
                    Ok(got) => {
                        let pairs = got.iter().zip(&expected);
                        if let Some(Err(why)) = pairs.map(|(g, e)| same(g, e, exact)).find(Result::is_err) {
                            wrong.push(format!("{name}, seed {seed}, round {round}: {why}; {:?}", case.op));
                        }
                    }
                    Err(why) => wrong.push(format!("{name}, seed {seed}, round {round}: {why}")),
                }
                tested.push(name);
            }
            let stats = Recorded::stats(&device);
            cases += 1;
            replayed += u64::from(stats.executed > 0);
            for (reason, count) in stats.declined {
                wrong.push(format!("{name}, seed {seed}: declined {count} times: {reason}"));
            }
        }
        Recorded::forget_plans(&device);
    }
    tested.dedup();
    skipped.retain(|name, _| !tested.contains(name));
    println!("{} operations in {cases} cases, {replayed} of them replayed", tested.len());
    for (name, why) in &skipped {
        println!("  {name}: {why}");
    }
    // A bool scalar has no spare values to mark it with, what reads to the host cannot be captured, and slots hold no
    // quantised tensors.
    let reasons =
        ["a bool scalar is a parameter", "captured into a graph", "quantised tensors go in or come out"];
    let (interpreted, wrong): (Vec<_>, Vec<_>) =
        wrong.into_iter().partition(|text| reasons.iter().any(|reason| text.contains(reason)));
    println!("{} cases are not captured:", interpreted.len());
    interpreted.iter().for_each(|text| println!("  {}", text.lines().next().unwrap_or_default()));
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(tested.len() > 250 && replayed > cases / 2, "{} operations, {replayed} replays", tested.len());
}

/// Sums over what another graph has made, a transposed result and a view of another one: their last bits depend on the order
/// in which the elements lie in memory.
fn sums_of_transposed<B: Backend<Device = CudaDevice>>() -> Vec<TensorData> {
    let device = CudaDevice::new(0);
    let mut read = Vec::new();
    for round in 0..8 {
        let wave =
            (0..33 * 700).map(|k| (1.7 * k as f32 + round as f32).sin() * 1e3f32.powi(k % 3)).collect();
        let x = Tensor::<B, 2>::from_data(TensorData::new::<f32, _>(wave, [33, 700]), &device);
        let (scaled, view) = (x.clone().transpose() * 1.5, x.clone().exp().transpose());
        read.push(scaled.clone().max().into_data());
        read.extend([scaled, view].into_iter().flat_map(|y| {
            [y.clone().sum_dim(0).into_data(), y.clone().sum_dim(1).into_data(), y.sum().into_data()]
        }));
    }
    read
}

#[test]
fn a_sum_over_a_transposed_result_of_another_graph_is_replayed_to_the_bit() {
    let _alone = alone();
    let device = CudaDevice::new(0);
    Recorded::forget_plans(&device);
    Recorded::reset_stats(&device);
    let (eager, got) = (sums_of_transposed::<Cuda>(), sums_of_transposed::<Recorded>());
    let wrong: Vec<usize> = (0..got.len()).filter(|&k| got[k].as_bytes() != eager[k].as_bytes()).collect();
    assert!(wrong.is_empty(), "of {} values, those at {wrong:?}", got.len());
    assert!(Recorded::stats(&device).executed > 10, "{}", Recorded::stats(&device));
}

fn values(tensor: &Tensor<Recorded, 1>) -> Vec<f32> {
    tensor.clone().into_data().iter::<f32>().collect()
}

/// `x + scale`, recorded as one step.
fn step(x: Tensor<Recorded, 1>, scale: f32) -> Tensor<Recorded, 1> {
    let device = x.device();
    let y = x + scale;
    Recorded::step(&device);
    y
}

fn start(value: f32) -> Tensor<Recorded, 1> {
    Tensor::from_floats([value; 4], &CudaDevice::new(0))
}

/// Runs until the step is a captured graph whose parameter stays in place.
fn warm() -> Tensor<Recorded, 1> {
    let device = CudaDevice::new(0);
    Recorded::forget_plans(&device);
    Recorded::reset_stats(&device);
    let mut x = start(0.0);
    for _ in 0..6 {
        x = step(x, 1.0);
    }
    assert!(Recorded::stats(&device).executed >= 3, "{}", Recorded::stats(&device));
    x
}

#[test]
fn a_held_old_value_survives_the_replays_that_follow() {
    let _alone = alone();
    let mut x = warm();
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(x.clone());
        x = step(x, 1.0);
    }
    let read: Vec<f32> = held.iter().map(|x| values(x)[0]).collect();
    assert_eq!(read, [6.0, 7.0, 8.0, 9.0]);
    assert_eq!(values(&x), [10.0; 4]);
}

#[test]
fn a_held_view_survives_the_replays_that_follow() {
    let _alone = alone();
    let mut x = warm();
    let view = x.clone().narrow(0, 1, 2);
    Recorded::step(&CudaDevice::new(0)); // the view is a tensor of the parameter's memory now
    for _ in 0..3 {
        x = step(x, 1.0);
    }
    assert_eq!(values(&view), [6.0; 2]);
    assert_eq!(values(&x), [9.0; 4]);
}

#[test]
fn two_models_share_a_plan_without_mixing_their_parameters() {
    let _alone = alone();
    let mut a = warm();
    let mut b = start(100.0);
    for _ in 0..4 {
        b = step(b, 10.0);
        a = step(a, 1.0);
    }
    assert_eq!((values(&a), values(&b)), (vec![10.0; 4], vec![140.0; 4]));
}

#[test]
fn outputs_of_chained_replays_stay_valid() {
    let _alone = alone();
    let _ = warm();
    let a = step(start(1.1), 1.0);
    let b = step(start(1.2), 1.0);
    let c = step(step(start(2.0), 1.0), 1.0);
    assert_eq!((values(&a)[0], values(&b)[0], values(&c)[0]), (2.1, 2.2, 4.0));
}

#[test]
fn swapped_parameters_are_not_overwritten_before_they_are_read() {
    let _alone = alone();
    let device = CudaDevice::new(0);
    Recorded::forget_plans(&device);
    let (mut a, mut b) = (start(1.0), start(2.0));
    for _ in 0..8 {
        (a, b) = (b.clone() * 1.0, a.clone() * 1.0);
        Recorded::step(&device);
    }
    assert_eq!((values(&a)[0], values(&b)[0]), (1.0, 2.0));
    a = a * 1.0;
    Recorded::step(&device);
    assert_eq!((values(&a)[0], values(&b)[0]), (1.0, 2.0));
}

#[test]
fn random_numbers_of_replays_are_those_of_the_eager_backend() {
    let _alone = alone();
    let device = CudaDevice::new(0);
    fn draw<B: Backend>(device: &B::Device) -> Tensor<B, 1> {
        let uniform = Tensor::<B, 1>::random([1000], Distribution::Uniform(-1.0, 2.0), device);
        let normal = Tensor::<B, 1>::random([1000], Distribution::Normal(0.5, 2.0), device);
        uniform * normal
    }
    Recorded::forget_plans(&device);
    Recorded::reset_stats(&device);
    Cuda::seed(&device, 42);
    let eager: Vec<TensorData> = (0..6).map(|_| draw::<Cuda>(&device).into_data()).collect();
    Recorded::seed(&device, 42);
    let mut lazy = Vec::new();
    for _ in 0..6 {
        let x = draw::<Recorded>(&device);
        Recorded::step(&device);
        lazy.push(x.into_data());
    }
    assert!(Recorded::stats(&device).executed >= 3);
    assert_eq!(lazy, eager);
}

#[test]
fn an_index_out_of_range_in_a_replay_is_reported_and_the_next_replay_is_clean() {
    let _alone = alone();
    let device = CudaDevice::new(0);
    Recorded::forget_plans(&device);
    Recorded::reset_stats(&device);
    let rows = |index: i32| {
        let table = Tensor::<Recorded, 2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &device);
        let y = table.select(0, Tensor::<Recorded, 1, Int>::from_ints([index], &device)) * 2.0;
        Recorded::step(&device);
        y
    };
    for _ in 0..4 {
        assert_eq!(rows(1).into_data(), TensorData::from([[6.0f32, 8.0]]));
    }
    // Replays without a wait between them share what is known of their indices, so the bad one is read first.
    let error = rows(7).try_into_data().unwrap_err().to_string();
    assert!(error.contains("select") && error.contains('7'), "{error}");
    assert_eq!(rows(0).into_data(), TensorData::from([[2.0f32, 4.0]]));
    assert_eq!(rows(1).into_data(), TensorData::from([[6.0f32, 8.0]]));
    assert!(Recorded::stats(&device).executed >= 4, "{}", Recorded::stats(&device));
    let _ = Recorded::sync(&device);
}

#[test]
fn memory_is_flat_over_replays_and_given_back_with_the_plans() {
    let _alone = alone();
    let device = CudaDevice::new(0);
    let live = || {
        Recorded::sync(&device).unwrap();
        device.memory_stats().unwrap().live_bytes
    };
    Recorded::forget_plans(&device);
    let before = live();
    let mut x = warm();
    let early = live();
    for _ in 0..200 {
        x = step(x, 1.0);
    }
    assert_eq!(live(), early);
    drop(x);
    Recorded::forget_plans(&device);
    assert_eq!(live(), before);
}
