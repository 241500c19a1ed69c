//! Which devices there are; with two or more, work on each, copies between them, and operands that do not meet.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_backend::Backend;
use burn_tensor::{Tensor, TensorData};
use kiln::{Cuda, CudaDevice};

use crate::harness::family::panic_text;

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
