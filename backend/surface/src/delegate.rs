//! [`delegate_ops!`](crate::delegate_ops): a backend around another one with the same tensors.

use burn_backend::ops::{
    DeformConv2dBackward, MaxPool1dBackward, MaxPool1dWithIndices, MaxPool2dBackward, MaxPool2dWithIndices,
    TransactionPrimitive,
};
use burn_backend::quantization::QuantizationParametersPrimitive;
use burn_backend::{Backend, BackendTypes, TensorPrimitive};

/// A type that names a backend only through the tensors it holds: the same value for another backend with the same
/// tensors.
pub trait Rewrap<To> {
    /// The same value.
    fn rewrap(self) -> To;
}

/// Backends with the same tensors.
macro_rules! rewrap {
    ($($type:ident: |$value:ident| $new:expr;)*) => {$(
        impl<From, To> Rewrap<$type<To>> for $type<From>
        where
            From: Backend,
            To: Backend
                + BackendTypes<
                    FloatTensorPrimitive = From::FloatTensorPrimitive,
                    IntTensorPrimitive = From::IntTensorPrimitive,
                    BoolTensorPrimitive = From::BoolTensorPrimitive,
                    QuantizedTensorPrimitive = From::QuantizedTensorPrimitive,
                >,
        {
            fn rewrap(self) -> $type<To> {
                let $value = self;
                $new
            }
        }
    )*};
}
rewrap! {
    TensorPrimitive: |value| match value {
        TensorPrimitive::Float(tensor) => TensorPrimitive::Float(tensor),
        TensorPrimitive::QFloat(tensor) => TensorPrimitive::QFloat(tensor),
    };
    QuantizationParametersPrimitive: |value| QuantizationParametersPrimitive { scales: value.scales };
    TransactionPrimitive: |value| TransactionPrimitive::new(
        value.read_floats, value.read_qfloats, value.read_ints, value.read_bools
    );
    MaxPool1dWithIndices: |value| MaxPool1dWithIndices::new(value.output, value.indices);
    MaxPool2dWithIndices: |value| MaxPool2dWithIndices::new(value.output, value.indices);
    MaxPool1dBackward: |value| MaxPool1dBackward::new(value.x_grad);
    MaxPool2dBackward: |value| MaxPool2dBackward::new(value.x_grad);
    DeformConv2dBackward: |value| DeformConv2dBackward::new(
        value.x_grad, value.offset_grad, value.weight_grad, value.mask_grad, value.bias_grad
    );
}

/// Implements Burn's seven operation traits for a backend around another one with the same tensors: each method calls
/// the inner backend's.
///
/// ```
/// # use std::marker::PhantomData;
/// # use burn_backend::{Backend, BackendTypes, DType, DTypeUsageSet, ExecutionError};
/// use kiln_surface::{delegate_ops, with_backend_methods};
///
/// #[derive(Clone, Default, Debug)]
/// struct Around<B>(PhantomData<B>);
/// with_backend_methods! { delegate_ops! { impl [B: Backend] for [Around<B>] by [B] } }
/// # impl<B: Backend> BackendTypes for Around<B> {
/// #     type Device = B::Device;
/// #     type FloatTensorPrimitive = B::FloatTensorPrimitive;
/// #     type FloatElem = B::FloatElem;
/// #     type IntTensorPrimitive = B::IntTensorPrimitive;
/// #     type IntElem = B::IntElem;
/// #     type BoolTensorPrimitive = B::BoolTensorPrimitive;
/// #     type BoolElem = B::BoolElem;
/// #     type QuantizedTensorPrimitive = B::QuantizedTensorPrimitive;
/// # }
/// # impl<B: Backend> Backend for Around<B> {
/// #     fn name(device: &Self::Device) -> String { B::name(device) }
/// #     fn seed(device: &Self::Device, seed: u64) { B::seed(device, seed) }
/// #     fn sync(device: &Self::Device) -> Result<(), ExecutionError> { B::sync(device) }
/// #     fn dtype_usage(device: &Self::Device, dtype: DType) -> DTypeUsageSet { B::dtype_usage(device, dtype) }
/// #     fn device_count(type_id: u16) -> usize { B::device_count(type_id) }
/// # }
/// ```
#[macro_export]
macro_rules! delegate_ops {
    (impl [$($generics:tt)*] for [$outer:ty] by [$inner:ty] $($traits:tt)*) => {
        $crate::delegate_ops! { @traits [$($generics)*] [$outer] [$inner] $($traits)* }
    };
    (@traits $generics:tt $outer:tt $inner:tt
        trait $trait:ident { node { $($node:tt)* } host { $($host:tt)* } } $($rest:tt)*
    ) => {
        $crate::delegate_ops! { @one $generics $outer $inner $trait $($node)* $($host)* }
        $crate::delegate_ops! { @traits $generics $outer $inner $($rest)* }
    };
    (@traits $generics:tt $outer:tt $inner:tt) => {};
    (@one [$($generics:tt)*] [$outer:ty] [$inner:ty] $trait:ident
        $($name:ident($($arg:ident: $tag:ident),*) -> $ret:ident;)*
    ) => {
        impl<$($generics)*> $crate::burn::$trait<$outer> for $outer {
            $(fn $name($($arg: $crate::arg_type!($tag, $outer)),*) -> $crate::ret_type!($ret, $outer) {
                $crate::delegate_ops!(@pass $ret, <$inner as $crate::burn::$trait<$inner>>::$name(
                    $($crate::delegate_ops!(@pass $tag, $arg)),*
                ))
            })*
        }
    };
    (@pass Prim, $value:expr) => { $crate::Rewrap::rewrap($value) };
    (@pass QParams, $value:expr) => { $crate::Rewrap::rewrap($value) };
    (@pass Transaction, $value:expr) => { $crate::Rewrap::rewrap($value) };
    (@pass MaxPool1d, $value:expr) => { $crate::Rewrap::rewrap($value) };
    (@pass MaxPool2d, $value:expr) => { $crate::Rewrap::rewrap($value) };
    (@pass MaxPool1dGrad, $value:expr) => { $crate::Rewrap::rewrap($value) };
    (@pass MaxPool2dGrad, $value:expr) => { $crate::Rewrap::rewrap($value) };
    (@pass DeformGrad, $value:expr) => { $crate::Rewrap::rewrap($value) };
    (@pass $tag:ident, $value:expr) => { $value };
}
