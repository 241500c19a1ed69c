//! Which devices there are; with two or more, work on each, copies between them, and operands that do not meet.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps, QTensorOps};
use burn_backend::quantization::{QuantLevel, QuantParam, QuantScheme, QuantStore, QuantValue};
use burn_backend::{
    Backend, BoolDType, BoolStore, DType, DTypeUsage, DTypeUsageSet, DeviceOps, FloatDType, Shape, read_sync,
};
use burn_ir::{BackendIr, TensorHandle};
use burn_tensor::{Tensor, TensorData};
use kiln::{Cuda, CudaDevice};

use crate::harness::family::{alone, caught, panic_text, shared};
use crate::harness::{FLOATS, INTS};

fn tensor(values: [f32; 3], device: &CudaDevice) -> Tensor<Cuda, 1> {
    Tensor::from_data(TensorData::from(values), device)
}

fn read(x: Tensor<Cuda, 1>) -> Vec<f32> {
    x.into_data().to_vec().unwrap()
}

#[test]
fn a_device_that_is_not_there_is_named_with_how_many_there_are() {
    let count = Cuda::device_count(0);
    assert!(count >= 1);
    for index in [count, 1000] {
        let panic = catch_unwind(|| tensor([1.0, 2.0, 3.0], &CudaDevice::new(index))).unwrap_err();
        let text = panic_text(&*panic);
        assert!(text.contains(&format!("cuda:{index} does not exist")), "{text}");
        assert!(text.contains(&format!("{count} CUDA device(s)")), "{text}");
    }
}

#[test]
fn devices_work_side_by_side_and_operands_must_meet() {
    let count = Cuda::device_count(0);
    println!("{count} device(s)");
    let all: Vec<CudaDevice> = (0..count).map(CudaDevice::new).collect();
    let sums: Vec<_> =
        all.iter().map(|device| tensor([1.0, 2.0, 3.0], device) * (device.index as f32 + 1.0)).collect();
    for (sum, device) in sums.iter().zip(&all) {
        assert_eq!(sum.device(), *device);
        let factor = device.index as f32 + 1.0;
        assert_eq!(read(sum.clone()), [factor, 2.0 * factor, 3.0 * factor]);
    }
    for pair in all.windows(2) {
        let here = tensor([1.0, 2.0, 3.0], &pair[0]);
        let there = here.clone().to_device(&pair[1]);
        assert_eq!((there.device(), read(there.clone())), (pair[1], vec![1.0, 2.0, 3.0]));
        // Below burn-tensor, which has a check of its own.
        use burn_backend::ops::FloatTensorOps;
        let (a, b) = (here.into_primitive().tensor(), there.into_primitive().tensor());
        let panic = catch_unwind(AssertUnwindSafe(|| Cuda::float_add(a.clone(), b.clone()))).unwrap_err();
        let text = panic_text(&*panic);
        let (left, right) = (pair[0].index, pair[1].index);
        assert!(text.contains("add") && text.contains(&format!("cuda:{left} and cuda:{right}")), "{text}");
        assert_eq!(read(Tensor::from_primitive(burn_tensor::TensorPrimitive::Float(b))), [1.0, 2.0, 3.0]);
    }
}

/// Two devices, if there are as many.
fn pair() -> Option<[CudaDevice; 2]> {
    let pair = (Cuda::device_count(0) >= 2).then(|| [CudaDevice::new(0), CudaDevice::new(1)]);
    if pair.is_none() {
        println!("SKIPPED: one device");
    }
    pair
}

#[test]
fn a_device_and_its_number_are_one() {
    for index in 0..3 {
        let device = CudaDevice::new(index);
        assert_eq!(<CudaDevice as burn_backend::Device>::from_id(device.id()), device);
        assert_eq!(device.to_string(), format!("cuda:{index}"));
        assert_eq!(*device.inner(), device);
    }
    assert_ne!(CudaDevice::new(0).id(), CudaDevice::new(1).id());
}

#[test]
fn every_kind_of_tensor_goes_to_another_device() {
    let Some([here, there]) = pair() else { return };
    let _running = shared();
    let shape = || Shape::from(vec![3, 4]);
    for dtype in FLOATS {
        let x = Cuda::float_arange(&here, dtype);
        let view = Cuda::float_flip(Cuda::float_transpose(x), &[0]);
        let expected = read_sync(Cuda::float_into_data(view.clone())).unwrap();
        let moved = Cuda::float_to_device(view, &there);
        assert_eq!(Cuda::float_device(&moved), there);
        assert_eq!(read_sync(Cuda::float_into_data(moved.clone())).unwrap(), expected);
        let back = Cuda::float_to_device(Cuda::float_neg(Cuda::float_neg(moved)), &here);
        assert_eq!(read_sync(Cuda::float_into_data(back)).unwrap(), expected);
    }
    for dtype in INTS {
        let x = Cuda::int_expand(Cuda::int_arange(0..4, &here, dtype.into()), shape());
        let moved = Cuda::int_to_device(x.clone(), &there);
        let [got, expected] = [moved, x].map(|x| read_sync(Cuda::int_into_data(x)).unwrap());
        assert_eq!((got.as_bytes(), got.dtype), (expected.as_bytes(), dtype));
    }
    let bools = Cuda::bool_to_device(Cuda::bool_ones(shape(), &here, BoolDType::Native), &there);
    assert_eq!(read_sync(Cuda::bool_into_data(bools)).unwrap().to_vec::<bool>().unwrap(), [true; 12]);
    let empty = Cuda::float_zeros(Shape::from(vec![0, 3]), &here, FloatDType::F32);
    let empty = Cuda::float_to_device(empty, &there);
    assert_eq!(read_sync(Cuda::float_into_data(empty)).unwrap().shape.as_slice(), [0, 3]);
    for level in [QuantLevel::Tensor, QuantLevel::block([4])] {
        let scheme = QuantScheme::default().with_value(QuantValue::Q4S).with_level(level);
        let q = Cuda::quantize_dynamic(Cuda::float_arange(&here, DType::F32), &scheme);
        let view = Cuda::q_permute(q, &[1, 0]);
        let expected = read_sync(Cuda::q_into_data(view.clone())).unwrap();
        let moved = Cuda::q_to_device(view, &there);
        assert_eq!(Cuda::q_device(&moved), there);
        assert_eq!(read_sync(Cuda::q_into_data(moved)).unwrap(), expected);
    }
}

/// `[3, 4]`: 0, 1, 2, ..
trait Arange {
    fn float_arange(device: &CudaDevice, dtype: DType) -> kiln::CudaTensor;
}
impl Arange for Cuda {
    fn float_arange(device: &CudaDevice, dtype: DType) -> kiln::CudaTensor {
        let values: Vec<f32> = (0..12).map(|k| k as f32).collect();
        Cuda::float_cast(Cuda::float_from_data(TensorData::new(values, [3, 4]), device), dtype.into())
    }
}

/// Copies and what surrounds them are in order although nothing waits: sources are dropped and their memory used again on
/// one device, targets are made of memory that work of the other still uses.
#[test]
fn copies_between_devices_are_in_order_with_both() {
    let Some(devices) = pair() else { return };
    let _running = shared();
    let mut x = tensor([1.0, 2.0, 3.0], &devices[0]);
    let mut held = Vec::new();
    for round in 0..40 {
        let to = devices[(round + 1) % 2];
        let moved = (x.clone() * 2.0).to_device(&to);
        // Takes the place of what was just dropped.
        let noise = tensor([round as f32; 3], &devices[round % 2]) * -1.0;
        x = (moved + tensor([1.0; 3], &to)) * 0.5;
        held.push((noise, x.clone(), round));
        if round % 3 == 0 {
            held.remove(0);
        }
    }
    // Each round adds a half.
    assert_eq!(read(x), [21.0, 22.0, 23.0]);
    for (noise, x, round) in held {
        assert_eq!(read(noise), [-(round as f32); 3]);
        assert_eq!(read(x)[0], 1.0 + (round + 1) as f32 * 0.5);
    }
}

#[test]
fn an_index_out_of_range_is_reported_on_the_device_that_values_were_copied_to() {
    let Some([here, there]) = pair() else { return };
    let _alone = alone();
    let x = || Cuda::float_from_data(TensorData::from([1f32, 2.0]), &here);
    let index = |k: i32| Cuda::int_from_data(TensorData::from([k]), &here);
    let bad = Cuda::float_gather(0, x(), index(7));
    let good = Cuda::float_gather(0, x(), index(1));
    let copy = Cuda::float_neg(Cuda::float_to_device(bad, &there));
    let clean = Cuda::float_to_device(good, &there);
    for _ in 0..2 {
        let text = read_sync(Cuda::float_into_data(copy.clone())).expect_err("7 is out of range").to_string();
        assert!(text.contains("gather: index 7") && text.contains("size 2"), "{text}");
    }
    assert_eq!(read_sync(Cuda::float_into_data(clean)).unwrap().to_vec::<f32>().unwrap(), [2.0]);
    let text = here.sync().expect_err("nobody has read it there").to_string();
    assert!(text.contains("index 7"), "{text}");
    assert!(here.sync().is_ok() && there.sync().is_ok());
}

#[test]
fn a_graph_belongs_to_one_device() {
    let Some([here, there]) = pair() else { return };
    let _alone = alone();
    let x = tensor([1.0, 2.0, 3.0], &here);
    let (text, _) = here.capture(|| caught(|| x.clone().to_device(&there)).map(|_| ())).unwrap();
    let text = text.unwrap_err();
    assert!(text.contains("to_device") && text.contains("captured into a graph"), "{text}");
    assert_eq!(read(x.to_device(&there)), [1.0, 2.0, 3.0]);
}

#[test]
fn a_seed_is_that_of_one_device() {
    let Some([here, there]) = pair() else { return };
    let _alone = alone();
    let draw = |device: &CudaDevice| {
        let shape = Shape::from(vec![5]);
        let x = Cuda::float_random(shape, burn_backend::Distribution::Default, device, FloatDType::F32);
        read_sync(Cuda::float_into_data(x)).unwrap().to_vec::<f32>().unwrap()
    };
    for device in [&here, &there] {
        Cuda::seed(device, 7);
    }
    let first = [&here, &there].map(draw);
    assert_eq!(first[0], first[1], "the same numbers on each");
    let second = draw(&there);
    Cuda::seed(&here, 7);
    assert_eq!(draw(&here), first[0]);
    assert_ne!(draw(&there), second, "the other goes on");
    for device in [&here, &there] {
        Cuda::memory_cleanup(device);
        assert_eq!(Cuda::name(device), "cuda");
    }
    let (inside, output) =
        Cuda::memory_persistent_allocations(&here, 3, |n| (n, tensor([n as f32; 3], &here)));
    assert_eq!((inside, read(output)), (3, vec![3.0; 3]));
    let mut data = [TensorData::from([1.0f32, 2.0, 3.0])];
    Cuda::staging(data.iter_mut(), &here);
    assert_eq!(read(Tensor::from_data(data[0].clone(), &here)), [1.0, 2.0, 3.0]);
}

#[test]
fn each_dtype_says_what_it_can_be_used_for() {
    let device = CudaDevice::new(0);
    let general: DTypeUsageSet = DTypeUsage::general();
    let of = |dtype| Cuda::dtype_usage(&device, dtype);
    for dtype in [DType::F16, DType::BF16] {
        assert_eq!(of(dtype), general | DTypeUsage::Accelerated);
    }
    assert!(of(DType::F64).is_superset(general));
    let stores = [BoolStore::Native, BoolStore::U8].map(DType::Bool);
    for dtype in INTS.into_iter().chain(stores) {
        assert_eq!(of(dtype), general, "{dtype:?}");
    }
    for dtype in FLOATS.into_iter().chain(INTS).chain(stores).chain([DType::Flex32]) {
        assert!(Cuda::supports_dtype(&device, dtype), "{dtype:?}");
    }
    assert_eq!(of(DType::Bool(BoolStore::U32)), DTypeUsageSet::empty());
    let base = QuantScheme::default();
    let stored = [
        base,
        base.with_value(QuantValue::Q2S).with_level(QuantLevel::block([32])),
        base.with_value(QuantValue::Q4F).with_store(QuantStore::Native).with_param(QuantParam::BF16),
    ];
    for scheme in stored {
        assert_eq!(of(DType::QFloat(scheme)), DTypeUsageSet::from(DTypeUsage::Storage), "{scheme:?}");
        assert!(!Cuda::supports_dtype(&device, DType::QFloat(scheme)));
    }
    let not = [
        base.with_value(QuantValue::E2M1),
        base.with_param(QuantParam::UE4M3),
        base.with_store(QuantStore::PackedU32(1)),
    ];
    for scheme in not {
        assert_eq!(of(DType::QFloat(scheme)), DTypeUsageSet::empty(), "{scheme:?}");
    }
    // What it says can be stored, can be.
    for scheme in stored {
        let x = Cuda::float_ones(Shape::from(vec![64]), &device, FloatDType::F32);
        let x = Cuda::dequantize(Cuda::quantize_dynamic(x, &scheme), FloatDType::F32);
        assert_eq!(read_sync(Cuda::float_into_data(x)).unwrap().to_vec::<f32>().unwrap().len(), 64);
    }
}

#[test]
fn handles_hold_tensors_of_their_kind() {
    let _running = shared();
    let device = CudaDevice::new(0);
    let shape = Shape::from(vec![3, 4]);
    let handle = |handle| TensorHandle { handle, shape: shape.clone() };
    let float = Cuda::float_arange(&device, DType::F32);
    let data = read_sync(Cuda::float_into_data(float.clone())).unwrap();
    let back = Cuda::float_tensor(handle(Cuda::float_tensor_handle(float.clone())));
    assert_eq!(back.ptr(), float.ptr(), "no copy");
    assert_eq!(read_sync(Cuda::float_into_data(back)).unwrap(), data);
    let int = Cuda::int_ones(shape.clone(), &device, burn_backend::IntDType::I32);
    assert_eq!(Cuda::int_tensor(handle(Cuda::int_tensor_handle(int.clone()))).ptr(), int.ptr());
    let bools = Cuda::bool_ones(shape.clone(), &device, BoolDType::Native);
    assert_eq!(Cuda::bool_tensor(handle(Cuda::bool_tensor_handle(bools.clone()))).ptr(), bools.ptr());
    let q = Cuda::quantize_dynamic(float, &QuantScheme::default());
    let data = read_sync(Cuda::q_into_data(q.clone())).unwrap();
    let back = Cuda::quantized_tensor(handle(Cuda::quantized_tensor_handle(q.clone())));
    assert_eq!(read_sync(Cuda::q_into_data(back)).unwrap(), data);
    let text = caught(|| Cuda::float_tensor(handle(Cuda::quantized_tensor_handle(q)))).unwrap_err();
    assert!(text.contains("float_tensor") && text.contains("quantized"), "{text}");
}
