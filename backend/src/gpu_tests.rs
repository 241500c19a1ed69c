//! What only a GPU can show about the crate's inside: scalars in device slots, rejected launches, memory that runs out,
//! capture. Behind the feature `gpu`; a missing device is a failure.

use std::sync::Arc;

use burn_backend::{Distribution, Scalar, Shape, TensorData};
use burn_std::DType;

use crate::device::{CudaDevice, Device};
use crate::driver::launch::{Launch, ScalarArg};
use crate::dtype::Elem;
use crate::error::Error;
use crate::kernels::elementwise::elementwise;
use crate::ops::{data, elementwise as ew, index, matmul, random, reduce};
use crate::tensor::CudaTensor;

fn device() -> &'static Device {
    Device::get(0).unwrap_or_else(|e| panic!("the feature `gpu` needs a GPU: {e}"))
}

/// For tests that look at the memory of graphs: one at a time.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

fn tensor(values: &[f32]) -> CudaTensor {
    data::from_data(TensorData::new(values.to_vec(), [values.len()]), device(), "test").unwrap()
}

fn read(t: &CudaTensor) -> Vec<f32> {
    data::into_data(t.clone()).unwrap().to_vec().unwrap()
}

#[test]
fn a_scalar_in_a_device_slot_is_read_when_the_kernel_runs() {
    let _alone = alone();
    let x = tensor(&[1.0, 2.0, 3.0]);
    let slot = data::from_data(TensorData::new(vec![10.0f64], [1]), device(), "test").unwrap();
    let out = x.empty_like("test").unwrap();
    let scalars = [ScalarArg::slot(slot.ptr()), ScalarArg::default()];
    let ((), graph) = CudaDevice::new(0)
        .capture(|| elementwise(&ew::MUL_SCALAR, &out, &[&x], scalars, Elem::F32).unwrap())
        .unwrap();
    for factor in [10.0f64, -2.5, 0.0] {
        let next = data::from_data(TensorData::new(vec![factor], [1]), device(), "test").unwrap();
        ew::copy_into(&slot, &next).unwrap();
        graph.launch().unwrap();
        let expected: Vec<f32> = [1.0, 2.0, 3.0].iter().map(|v| v * factor as f32).collect();
        assert_eq!(read(&out), expected);
    }
}

#[test]
fn a_rejected_launch_names_kernel_and_geometry_and_the_device_goes_on() {
    let x = tensor(&[1.0; 64]);
    let sum = reduce::sum(&x).unwrap();
    assert_eq!(read(&sum), [64.0]);
    let spec = crate::kernels::KernelSpec {
        file: &crate::kernels::elementwise::ELEMENTWISE,
        entry: "elementwise",
        defs: &[
            ("N_IN", crate::kernels::Def::Int(0)),
            ("OUT_T", crate::kernels::Def::Type(Elem::F32)),
            ("A_T", crate::kernels::Def::Type(Elem::U8)),
            ("B_T", crate::kernels::Def::Type(Elem::U8)),
            ("C_T", crate::kernels::Def::Type(Elem::U8)),
            ("S_T", crate::kernels::Def::Text("f32")),
            ("V", crate::kernels::Def::Int(4)),
            ("CASE_CONTIGUOUS", crate::kernels::Def::Int(0)),
            ("INDEX", crate::kernels::Def::Text("u64")),
            ("EXPR", crate::kernels::Def::Text("s0")),
        ],
    };
    let kernel = device().kernel(&spec).unwrap();
    // No GPU has blocks of 4,096 threads.
    let error = Launch::new(device(), kernel).arg(0u64).run([1, 1, 1], 4096, 0).unwrap_err();
    let Error::In { op: "elementwise", source, .. } = &error else { panic!("{error}") };
    let Error::Launch { kernel, block, .. } = &**source else { panic!("{error}") };
    assert_eq!((kernel.as_str(), *block), ("elementwise", [4096, 1, 1]));
    assert_eq!(read(&reduce::sum(&x).unwrap()), [64.0], "new work runs");
}

#[test]
fn running_out_of_memory_is_reported_and_survived() {
    let error = CudaTensor::empty(device(), [1usize << 40], DType::F32, "test").unwrap_err();
    let text = error.to_string();
    let Error::In { op: "test", source, .. } = &error else { panic!("{text}") };
    assert!(
        matches!(**source, Error::OutOfMemory { requested_bytes, .. } if requested_bytes == 4 << 40),
        "{text}"
    );
    for part in ["cuda:0", "4.0 TiB", "1099511627776", "F32"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    assert_eq!(read(&tensor(&[5.0])), [5.0]);
    let error =
        CudaTensor::empty(device(), Shape::from(vec![usize::MAX, 2]), DType::F32, "test").unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

#[test]
fn a_source_that_does_not_compile_gives_its_log() {
    let bad: &'static crate::kernels::elementwise::Op =
        Box::leak(Box::new(crate::kernels::elementwise::Op { name: "bad", expr: "no_such_function(a)" }));
    let x = tensor(&[1.0]);
    let error = ew::unary(bad, x).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Compile { .. }) && text.contains("no_such_function"), "{text}");
    assert_eq!(read(&tensor(&[2.0])), [2.0]);
}

#[test]
fn a_captured_graph_replays_on_new_inputs_and_owns_its_memory() {
    let _alone = alone();
    let x = tensor(&[1.0, 2.0, 3.0, 4.0]);
    let w = data::from_data(TensorData::new(vec![1f32, 0.0, 0.0, 2.0], [2, 2]), device(), "test").unwrap();
    let run = |x: &CudaTensor| {
        let y = matmul::matmul(&x.reshape(&[2, 2]).unwrap(), &w).unwrap();
        let y = ew::scalar(&ew::ADD_SCALAR, y, Scalar::Float(1.0)).unwrap();
        reduce::sum_dim(&y, 1).unwrap()
    };
    assert_eq!(read(&run(&x)), [7.0, 13.0]);
    let before = device().allocator.stats();
    let (y, graph) = CudaDevice::new(0).capture(|| run(&x)).unwrap();
    assert!(graph.nodes() >= 3, "{}", graph.nodes());
    for k in 0..10 {
        let k = k as f32;
        ew::copy_into(&x, &tensor(&[k, 1.0, 1.0, k])).unwrap();
        graph.launch().unwrap();
        // Other work between replays must not reach the graph's memory.
        let noise = random::random(device(), [4096].into(), Distribution::Default, DType::F32).unwrap();
        assert_eq!(read(&y), [k + 2.0 + 2.0, 1.0 + 2.0 * k + 2.0]);
        drop(noise);
    }
    drop((y, graph));
    let after = device().allocator.stats();
    assert_eq!(after.private_bytes, before.private_bytes, "the graph's pool went with it");
}

#[test]
fn a_read_inside_a_capture_is_refused_and_the_device_goes_on() {
    let _alone = alone();
    let x = tensor(&[1.0, 2.0]);
    let private = device().allocator.stats().private_bytes;
    let (refused, graph) = CudaDevice::new(0)
        .capture(|| {
            let y = ew::scalar(&ew::ADD_SCALAR, x.clone(), Scalar::Float(1.0)).unwrap();
            (data::into_data(y).unwrap_err(), device().wait("sync").unwrap_err())
        })
        .unwrap();
    assert!(matches!(refused, (Error::Capturing { .. }, Error::Capturing { .. })), "{refused:?}");
    drop(graph);
    let panicked = std::panic::catch_unwind(|| CudaDevice::new(0).capture(|| panic!("in the middle")));
    assert!(panicked.is_err());
    assert_eq!(read(&x), [1.0, 2.0]);
    assert_eq!(device().allocator.stats().private_bytes, private);
}

#[test]
fn an_upload_inside_a_capture_belongs_to_the_graph() {
    let _alone = alone();
    let (y, graph) = CudaDevice::new(0).capture(|| tensor(&[7.0, 8.0])).unwrap();
    for _ in 0..3 {
        let _reuse: Vec<CudaTensor> = (0..8).map(|k| tensor(&[k as f32; 2])).collect();
        graph.launch().unwrap();
        assert_eq!(read(&y), [7.0, 8.0]);
    }
}

#[test]
fn a_fault_follows_the_data_and_nothing_else() {
    let x = tensor(&[1.0, 2.0, 3.0]);
    let ids = data::from_data(TensorData::new(vec![0i32, 9], [2]), device(), "test").unwrap();
    let bad = index::select(&x, 0, &ids).unwrap();
    let derived = ew::scalar(&ew::MUL_SCALAR, bad.clone(), Scalar::Float(2.0)).unwrap();
    let fine = ew::scalar(&ew::MUL_SCALAR, x.clone(), Scalar::Float(2.0)).unwrap();
    assert_eq!(read(&fine), [2.0, 4.0, 6.0]);
    for t in [&bad, &derived, &bad] {
        let error = data::into_data(t.clone()).unwrap_err();
        assert!(matches!(&error, Error::IndexOutOfRange { index: 9, size: 3, .. }), "{error}");
    }
    assert_eq!(read(&ew::scalar(&ew::ADD_SCALAR, fine, Scalar::Float(1.0)).unwrap()), [3.0, 5.0, 7.0]);
}

#[test]
fn a_bad_index_that_was_handled_does_not_poison_what_is_updated_in_place() {
    let ids = |values: Vec<i32>| {
        let n = values.len();
        data::from_data(TensorData::new(values, [n]), device(), "test").unwrap()
    };
    let mut w = tensor(&[0.0; 4]);
    w = index::select_add(w, 0, &ids(vec![0]), &tensor(&[1.0])).unwrap();
    assert_eq!(read(&w), [1.0, 0.0, 0.0, 0.0]);
    let bad = index::select(&tensor(&[1.0]), 0, &ids(vec![9])).unwrap();
    assert!(data::into_data(bad).is_err());
    w = index::select_add(w, 0, &ids(vec![1]), &tensor(&[2.0])).unwrap();
    assert_eq!(read(&w), [1.0, 2.0, 0.0, 0.0]);
}

#[test]
fn a_graph_reports_the_bad_index_of_its_last_run_only() {
    let _alone = alone();
    let x = tensor(&[1.0, 2.0, 3.0]);
    let set = |ids: &CudaTensor, values: [i32; 2]| {
        let next = data::from_data(TensorData::new(values.to_vec(), [2]), device(), "test").unwrap();
        ew::copy_into(ids, &next).unwrap();
    };
    let ids = data::from_data(TensorData::new(vec![0i32, 1], [2]), device(), "test").unwrap();
    assert_eq!(read(&index::select(&x, 0, &ids).unwrap()), [1.0, 2.0]);
    let (y, graph) = CudaDevice::new(0).capture(|| index::select(&x, 0, &ids).unwrap()).unwrap();
    for good in [[0, 1], [2, 0]] {
        set(&ids, good);
        graph.launch().unwrap();
        assert_eq!(read(&y), good.map(|i| i as f32 + 1.0));
        set(&ids, [1, 7]);
        graph.launch().unwrap();
        let derived = ew::scalar(&ew::MUL_SCALAR, y.clone(), Scalar::Float(2.0)).unwrap();
        let error = data::into_data(derived).unwrap_err();
        assert!(matches!(&error, Error::IndexOutOfRange { index: 7, size: 3, .. }), "{error}");
    }
}

#[test]
fn threads_multiply_at_once_without_sharing_scratch_memory() {
    // Shapes for which an algorithm splits the inner dimension and adds the parts in scratch memory.
    let (m, k) = (64, 65_536);
    std::thread::scope(|scope| {
        for t in 1..=6 {
            scope.spawn(move || {
                let ones = |rows: usize, cols: usize, value: f32| {
                    data::from_data(TensorData::new(vec![value; rows * cols], [rows, cols]), device(), "test")
                        .unwrap()
                };
                let (a, b) = (ones(m, k, t as f32), ones(k, m, 1.0));
                for _ in 0..50 {
                    let product = matmul::matmul(&a, &b).unwrap();
                    let got = read(&product.reshape(&[m * m]).unwrap());
                    assert!(got.iter().all(|&v| v == (t * k) as f32), "{} {}", got[0], t * k);
                }
            });
        }
    });
}

#[test]
fn many_threads_share_the_device() {
    let x = Arc::new(tensor(&(0..1000).map(|k| k as f32).collect::<Vec<_>>()));
    std::thread::scope(|scope| {
        for t in 0..8 {
            let x = x.clone();
            scope.spawn(move || {
                for k in 0..100 {
                    let add = (t * 100 + k) as f32;
                    let y = ew::scalar(&ew::ADD_SCALAR, (*x).clone(), Scalar::Float(add as f64)).unwrap();
                    let got = read(&y);
                    assert!(got.iter().enumerate().all(|(i, v)| *v == i as f32 + add));
                }
            });
        }
    });
}

#[test]
fn large_copies_go_in_pieces() {
    // Over three pieces, and not a multiple of one.
    let n = (50 << 20) / 4 + 13;
    let values: Vec<f32> = (0..n).map(|k| (k % 65_521) as f32).collect();
    assert!(read(&tensor(&values)) == values);
}
