//! [`delegate_backend!`](crate::delegate_backend) and [`delegate_ops!`](crate::delegate_ops): a backend around another
//! one with the same tensors.

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

/// Implements `BackendTypes` and `Backend` for a backend around another one: its tensors and devices, and its answers.
#[macro_export]
macro_rules! delegate_backend {
    (impl [$($generics:tt)*] for [$outer:ty] by [$inner:ty]) => {
        impl<$($generics)*> $crate::burn::BackendTypes for $outer {
            type Device = <$inner as $crate::burn::BackendTypes>::Device;
            type FloatTensorPrimitive = <$inner as $crate::burn::BackendTypes>::FloatTensorPrimitive;
            type FloatElem = <$inner as $crate::burn::BackendTypes>::FloatElem;
            type IntTensorPrimitive = <$inner as $crate::burn::BackendTypes>::IntTensorPrimitive;
            type IntElem = <$inner as $crate::burn::BackendTypes>::IntElem;
            type BoolTensorPrimitive = <$inner as $crate::burn::BackendTypes>::BoolTensorPrimitive;
            type BoolElem = <$inner as $crate::burn::BackendTypes>::BoolElem;
            type QuantizedTensorPrimitive = <$inner as $crate::burn::BackendTypes>::QuantizedTensorPrimitive;
        }

        impl<$($generics)*> $crate::burn::Backend for $outer {
            fn ad_enabled(device: &Self::Device) -> bool {
                <$inner as $crate::burn::Backend>::ad_enabled(device)
            }

            fn memory_persistent_allocations<
                Output: ::core::marker::Send,
                Input: ::core::marker::Send,
                Func: ::core::ops::Fn(Input) -> Output + ::core::marker::Send,
            >(
                device: &Self::Device,
                input: Input,
                func: Func,
            ) -> Output {
                <$inner as $crate::burn::Backend>::memory_persistent_allocations(device, input, func)
            }

            fn memory_cleanup(device: &Self::Device) {
                <$inner as $crate::burn::Backend>::memory_cleanup(device);
            }

            fn name(device: &Self::Device) -> ::std::string::String {
                <$inner as $crate::burn::Backend>::name(device)
            }

            fn seed(device: &Self::Device, seed: u64) {
                <$inner as $crate::burn::Backend>::seed(device, seed);
            }

            fn sync(device: &Self::Device) -> ::core::result::Result<(), $crate::burn::ExecutionError> {
                <$inner as $crate::burn::Backend>::sync(device)
            }

            fn staging<'a, Iter>(data: Iter, device: &Self::Device)
            where
                Iter: ::core::iter::Iterator<Item = &'a mut $crate::burn::TensorData>,
            {
                <$inner as $crate::burn::Backend>::staging(data, device);
            }

            fn supports_dtype(device: &Self::Device, dtype: $crate::burn::DType) -> bool {
                <$inner as $crate::burn::Backend>::supports_dtype(device, dtype)
            }

            fn dtype_usage(device: &Self::Device, dtype: $crate::burn::DType) -> $crate::burn::DTypeUsageSet {
                <$inner as $crate::burn::Backend>::dtype_usage(device, dtype)
            }

            fn device_count(type_id: u16) -> usize {
                <$inner as $crate::burn::Backend>::device_count(type_id)
            }
        }
    };
}

/// Implements Burn's seven operation traits for a backend around another one with the same tensors: each method calls
/// the inner backend's.
///
/// ```
/// # use std::marker::PhantomData;
/// use burn_backend::Backend;
/// use kiln_surface::{delegate_backend, delegate_ops, with_backend_methods};
///
/// #[derive(Clone, Default, Debug)]
/// struct Around<B>(PhantomData<B>);
/// delegate_backend! { impl [B: Backend] for [Around<B>] by [B] }
/// with_backend_methods! { delegate_ops! { impl [B: Backend] for [Around<B>] by [B] } }
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
