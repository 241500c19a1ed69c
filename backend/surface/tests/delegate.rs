//! A backend that is expanded from the table alone: every method hands over to burn-flex. That it compiles proves the
//! types of the table; that it computes proves the order of the arguments.

use burn_backend::ops::{FloatTensorOps, ModuleOps};
use burn_backend::{Backend, BackendTypes, DType, DTypeUsageSet, ExecutionError, TensorData, TensorMetadata};
use burn_flex::Flex;
use kiln_surface::{delegate_ops, with_backend_methods};

#[derive(Clone, Default, Debug)]
struct Delegate;

impl BackendTypes for Delegate {
    type Device = <Flex as BackendTypes>::Device;
    type FloatTensorPrimitive = <Flex as BackendTypes>::FloatTensorPrimitive;
    type FloatElem = <Flex as BackendTypes>::FloatElem;
    type IntTensorPrimitive = <Flex as BackendTypes>::IntTensorPrimitive;
    type IntElem = <Flex as BackendTypes>::IntElem;
    type BoolTensorPrimitive = <Flex as BackendTypes>::BoolTensorPrimitive;
    type BoolElem = <Flex as BackendTypes>::BoolElem;
    type QuantizedTensorPrimitive = <Flex as BackendTypes>::QuantizedTensorPrimitive;
}

impl Backend for Delegate {
    fn name(device: &Self::Device) -> String {
        Flex::name(device)
    }

    fn seed(device: &Self::Device, seed: u64) {
        Flex::seed(device, seed);
    }

    fn sync(device: &Self::Device) -> Result<(), ExecutionError> {
        Flex::sync(device)
    }

    fn dtype_usage(device: &Self::Device, dtype: DType) -> DTypeUsageSet {
        Flex::dtype_usage(device, dtype)
    }

    fn device_count(type_id: u16) -> usize {
        Flex::device_count(type_id)
    }
}

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
