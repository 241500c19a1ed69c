//! What random programs have found, reduced.

use burn_backend::ops::FloatTensorOps;
use burn_backend::{TensorData, try_read_sync};

use super::Captured;
use super::backend::OwnDevice;

/// A device for each test.
fn device(number: u16) -> OwnDevice {
    OwnDevice::new(32 + number)
}

fn read(tensor: kiln_fusion::FusionTensor<super::backend::Own>) -> TensorData {
    try_read_sync(Captured::float_into_data(tensor)).expect("a thread may block").expect("nothing fails")
}

/// Reading what an ended thread has recorded took the first part of its trace, and then ran the rest, which waits for
/// that part, before it.
#[test]
fn the_first_part_of_an_ended_threads_trace_is_read() {
    let device = device(0);
    let (a, b) = std::thread::scope(|scope| {
        let recording = scope.spawn(|| {
            let x = Captured::float_from_data(TensorData::from([1.0f32, 2.0]), &device);
            let y = Captured::float_from_data(TensorData::from([3.0f32, 5.0]), &device);
            let a = Captured::float_neg(x);
            (a.clone(), Captured::float_add(a, y))
        });
        recording.join().expect("recording")
    });
    assert_eq!(read(a), TensorData::from([-1.0f32, -2.0]));
    assert_eq!(read(b), TensorData::from([2.0f32, 3.0]));
}
