//! A backend that is expanded from the table alone: every method hands over to burn-flex. That it compiles proves the
//! types of the table; that it computes proves the order of the arguments.

use burn_backend::ops::{FloatTensorOps, ModuleOps};
use burn_backend::{TensorData, TensorMetadata};
use burn_flex::Flex;
use kiln_surface::{delegate_backend, delegate_ops, with_backend_methods};

#[derive(Clone, Default, Debug)]
struct Delegate;

delegate_backend! { impl [] for [Delegate] by [Flex] }
with_backend_methods! { delegate_ops! { impl [] for [Delegate] by [Flex] } }

#[test]
fn a_backend_expanded_from_the_table_computes() {
    let device = Default::default();
    let x = Delegate::float_from_data(TensorData::from([[1.0f32, 5.0, 3.0]]), &device);
    let sub = Delegate::float_sub(x.clone(), Delegate::float_flip(x.clone(), &[1]));
    let data = burn_backend::try_read_sync(Delegate::float_into_data(sub)).unwrap().unwrap();
    assert_eq!(data, TensorData::from([[-2.0f32, 0.0, 2.0]]));

    let pooled =
        Delegate::max_pool1d_with_indices(Delegate::float_reshape(x, [1, 1, 3].into()), 2, 1, 0, 1, false);
    assert_eq!(pooled.indices.shape(), [1, 1, 2].into());
}
