//! `Fusion<Flex>` against `Flex`.

use burn_backend::Backend;
use burn_flex::Flex;
use burn_tensor::{Distribution, Tensor, TensorData};
use kiln_fusion::{Cut, Fusion};

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
    let device = Default::default();
    B::reset_stats(&device);
    for seed in 0..4 {
        let (x, y, scale) = (data(seed, [3, 4]), data(seed + 9, [5, 4]), 0.5 + seed as f32);
        assert_eq!(program::<B>(x.clone(), y.clone(), scale), program::<Flex>(x, y, scale));
    }
    let stats = B::stats(&device);
    println!("{stats}");
    assert!(stats.hits >= 3 && stats.cuts[&Cut::Read] > 0, "{stats}");
}
