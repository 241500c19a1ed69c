//! A backend that is expanded from the table alone: every method hands over to burn-flex. That it compiles proves the
//! types of the table; that it computes proves the order of the arguments.
#![recursion_limit = "256"]

use burn_backend::ops::{
    DeformConv2dBackward, MaxPool1dBackward, MaxPool1dWithIndices, MaxPool2dBackward, MaxPool2dWithIndices,
    TransactionPrimitive,
};
use burn_backend::quantization::QuantizationParametersPrimitive;
use burn_backend::{
    Backend, BackendTypes, DType, DTypeUsageSet, ExecutionError, TensorData, TensorMetadata, TensorPrimitive,
};
use burn_flex::Flex;
use kiln_surface::{arg_type, burn::*, ret_type, with_backend_methods};

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

/// Converts what is generic over the backend itself between two backends with the same primitives.
macro_rules! rewrap {
    (Prim, $value:expr) => {
        match $value {
            TensorPrimitive::Float(tensor) => TensorPrimitive::Float(tensor),
            TensorPrimitive::QFloat(tensor) => TensorPrimitive::QFloat(tensor),
        }
    };
    (QParams, $value:expr) => {
        QuantizationParametersPrimitive { scales: $value.scales }
    };
    (Transaction, $value:expr) => {{
        let value = $value;
        TransactionPrimitive::new(value.read_floats, value.read_qfloats, value.read_ints, value.read_bools)
    }};
    (MaxPool1d, $value:expr) => {{
        let value = $value;
        MaxPool1dWithIndices::new(value.output, value.indices)
    }};
    (MaxPool2d, $value:expr) => {{
        let value = $value;
        MaxPool2dWithIndices::new(value.output, value.indices)
    }};
    (MaxPool1dGrad, $value:expr) => {
        MaxPool1dBackward::new($value.x_grad)
    };
    (MaxPool2dGrad, $value:expr) => {
        MaxPool2dBackward::new($value.x_grad)
    };
    (DeformGrad, $value:expr) => {{
        let value = $value;
        DeformConv2dBackward::new(
            value.x_grad,
            value.offset_grad,
            value.weight_grad,
            value.mask_grad,
            value.bias_grad,
        )
    }};
    ($tag:ident, $value:expr) => {
        $value
    };
}

macro_rules! delegate {
    ($(trait $trait:ident {
        node { $($node:ident ($($node_arg:ident: $node_tag:ident),*) -> $node_ret:ident;)* }
        host { $($host:ident ($($host_arg:ident: $host_tag:ident),*) -> $host_ret:ident;)* }
    })*) => {$(
        impl $trait<Delegate> for Delegate {
            $(fn $node($($node_arg: arg_type!($node_tag, Delegate)),*) -> ret_type!($node_ret, Delegate) {
                rewrap!($node_ret, <Flex as $trait<Flex>>::$node($(rewrap!($node_tag, $node_arg)),*))
            })*
            $(fn $host($($host_arg: arg_type!($host_tag, Delegate)),*) -> ret_type!($host_ret, Delegate) {
                rewrap!($host_ret, <Flex as $trait<Flex>>::$host($(rewrap!($host_tag, $host_arg)),*))
            })*
        }
    )*};
}
with_backend_methods! { delegate! {} }

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
