//! f32 products are exact f32 unless TF32 is allowed, and again once it is not.

use burn_tensor::{Tensor, TensorData};
use kiln::{Cuda, CudaDevice};

use crate::harness::family::alone;

/// Every element of `a b`, where `a` is 1 + 2^-12 everywhere and `b` is 1: the fraction is below TF32's ten bits.
fn element() -> f32 {
    let device = CudaDevice::default();
    let constant = |value: f32| {
        Tensor::<Cuda, 2>::from_data(TensorData::new(vec![value; 256 * 256], [256, 256]), &device)
    };
    let product: Vec<f32> =
        constant(1.0 + 2f32.powi(-12)).matmul(constant(1.0)).into_data().to_vec().unwrap();
    assert!(product.iter().all(|&v| v == product[0]), "{} .. {}", product[0], product[product.len() - 1]);
    product[0]
}

#[test]
fn tf32_rounds_the_factors_of_f32_products_only_while_it_is_allowed() {
    // The option holds for the process.
    let _alone = alone();
    let exact = 256.0 + 2f32.powi(-4);
    assert_eq!(element(), exact);
    CudaDevice::allow_tf32(true);
    let allowed = element();
    CudaDevice::allow_tf32(false);
    assert_eq!(allowed, 256.0);
    assert_eq!(element(), exact);
}
