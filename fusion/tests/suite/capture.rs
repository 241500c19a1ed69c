//! `Fusion<Flex>` against `Flex`.

use burn_backend::ops::FloatTensorOps;
use burn_backend::{Backend, TensorMetadata};
use burn_flex::Flex;
use burn_ir::{BackendIr, TensorHandle};
use burn_tensor::{Distribution, Tensor, TensorData};
use kiln_fusion::{Cut, Fusion, Interpret};

use crate::serial;

type B = Fusion<Flex>;

fn program<B: Backend>(x: TensorData, y: TensorData, scale: f32) -> (TensorData, TensorData) {
    let device = Default::default();
    let x = Tensor::<B, 2>::from_data(x, &device);
    let y = Tensor::<B, 2>::from_data(y, &device);
    let z = (x.clone().matmul(y.transpose()) * scale).exp();
    let w = z.clone().sum_dim(1) - x.clone().max_dim(1);
    let both = Tensor::cat(vec![z.slice([0..1, 0..2]), w.clone().transpose().slice([0..1, 0..2])], 0);
    (w.into_data(), both.into_data())
}

fn data(seed: u64, shape: [usize; 2]) -> TensorData {
    let device = Default::default();
    Flex::seed(&device, seed);
    Tensor::<Flex, 2>::random(shape, Distribution::Default, &device).into_data()
}

#[test]
fn a_program_gives_the_same_bits_captured() {
    let _serial = serial();
    let device = Default::default();
    for seed in 0..4 {
        let (x, y, scale) = (data(seed, [3, 4]), data(seed + 9, [5, 4]), 0.5 + seed as f32);
        assert_eq!(program::<B>(x.clone(), y.clone(), scale), program::<Flex>(x, y, scale));
    }
    let stats = B::stats(&device);
    println!("{stats}");
    assert!(stats.hits >= 3 && stats.cuts[&Cut::Read] > 0, "{stats}");
}

#[test]
fn any_backend_can_be_wrapped_and_captured() {
    type Wrapped = Fusion<Interpret<Flex>>;
    let _serial = serial();
    for seed in 0..3 {
        let (x, y) = (data(seed, [3, 4]), data(seed + 9, [5, 4]));
        assert_eq!(program::<Wrapped>(x.clone(), y.clone(), 0.5), program::<Flex>(x, y, 0.5));
    }
}

#[test]
fn a_captured_backend_can_be_captured_again() {
    type Twice = Fusion<Interpret<Fusion<Flex>>>;
    let _serial = serial();
    for seed in 0..3 {
        let (x, y) = (data(seed, [3, 4]), data(seed + 9, [5, 4]));
        assert_eq!(program::<Twice>(x.clone(), y.clone(), 0.5), program::<Flex>(x, y, 0.5));
    }
}

/// burn-router and remote backends hold tensors by Burn's `BackendIr` handles.
#[test]
fn a_tensor_goes_through_burns_handles_unread() {
    let _serial = serial();
    let device = Default::default();
    let x = B::float_from_data(TensorData::from([1.0f32, 2.0]), &device);
    let y = B::float_add(x.clone(), x);
    let handle = B::float_tensor_handle(y);
    let shape = handle.shape();
    let back = B::float_tensor(TensorHandle { handle, shape });
    let read = burn_backend::try_read_sync(B::float_into_data(B::float_exp(back)));
    let data = read.unwrap().unwrap();
    data.assert_approx_eq::<f32>(&TensorData::from([2f32.exp(), 4f32.exp()]), Default::default());
}

/// What the next step does before it uses its batch (a dropout's mask) must not make the cut wander.
#[test]
fn a_foreign_cut_leaves_the_beginning_of_the_next_step_to_it() {
    let _serial = serial();
    let device = Default::default();
    let upload = || Tensor::<B, 1>::from_floats([1.0, 2.0], &device);
    let read_elsewhere = |x: Tensor<B, 1>| std::thread::spawn(move || x.into_data()).join().unwrap();
    for uses_its_batch in [false, true] {
        let loss = (upload() * 2.0).exp();
        let mask = Tensor::<B, 1>::random([2], Distribution::Bernoulli(0.5), &device) + 1.0;
        let next = if uses_its_batch { upload() * mask } else { mask };
        assert_eq!(read_elsewhere(loss), TensorData::from([2f32.exp(), 4f32.exp()]));
        let stats = B::stats(&device);
        assert_eq!(stats.recent.back().map(|trace| trace.operations), Some(2), "{stats}");
        drop(next);
        B::step(&device);
    }
    // The second time the step is known to end there.
    let stats = B::stats(&device);
    assert_eq!(stats.hits, 1, "{stats}");
}
