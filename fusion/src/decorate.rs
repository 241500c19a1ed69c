//! [`Interpret<B>`]: any backend, as one that can be captured.

use std::marker::PhantomData;

use burn_backend::{Backend, BackendTypes, DType, DTypeUsageSet, ExecutionError, TensorData};
use kiln_surface::{delegate_ops, with_backend_methods};

use crate::compiler::GraphCompiler;

/// The backend `B`, as one whose graphs are interpreted: `Fusion<Interpret<B>>` works for every `B`.
///
/// A crate cannot implement [`GraphCompiler`] for a backend of another crate; this wrapper has the tensors of `B` and
/// calls its methods.
pub struct Interpret<B>(PhantomData<fn() -> B>);

impl<B> Clone for Interpret<B> {
    fn clone(&self) -> Self {
        Interpret(PhantomData)
    }
}

impl<B> Default for Interpret<B> {
    fn default() -> Self {
        Interpret(PhantomData)
    }
}

impl<B> std::fmt::Debug for Interpret<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interpret")
    }
}

impl<B: Backend> BackendTypes for Interpret<B> {
    type Device = B::Device;
    type FloatTensorPrimitive = B::FloatTensorPrimitive;
    type FloatElem = B::FloatElem;
    type IntTensorPrimitive = B::IntTensorPrimitive;
    type IntElem = B::IntElem;
    type BoolTensorPrimitive = B::BoolTensorPrimitive;
    type BoolElem = B::BoolElem;
    type QuantizedTensorPrimitive = B::QuantizedTensorPrimitive;
}

impl<B: Backend> Backend for Interpret<B> {
    fn ad_enabled(device: &Self::Device) -> bool {
        B::ad_enabled(device)
    }

    fn memory_persistent_allocations<Output: Send, Input: Send, Func: Fn(Input) -> Output + Send>(
        device: &Self::Device,
        input: Input,
        func: Func,
    ) -> Output {
        B::memory_persistent_allocations(device, input, func)
    }

    fn memory_cleanup(device: &Self::Device) {
        B::memory_cleanup(device);
    }

    fn name(device: &Self::Device) -> String {
        B::name(device)
    }

    fn seed(device: &Self::Device, seed: u64) {
        B::seed(device, seed);
    }

    fn sync(device: &Self::Device) -> Result<(), ExecutionError> {
        B::sync(device)
    }

    fn staging<'a, Iter>(data: Iter, device: &Self::Device)
    where
        Iter: Iterator<Item = &'a mut TensorData>,
    {
        B::staging(data, device);
    }

    fn supports_dtype(device: &Self::Device, dtype: DType) -> bool {
        B::supports_dtype(device, dtype)
    }

    fn dtype_usage(device: &Self::Device, dtype: DType) -> DTypeUsageSet {
        B::dtype_usage(device, dtype)
    }

    fn device_count(type_id: u16) -> usize {
        B::device_count(type_id)
    }
}

with_backend_methods! { delegate_ops! { impl [B: Backend] for [Interpret<B>] by [B] } }

impl<B: Backend> GraphCompiler for Interpret<B> {
    type Executable = ();
}
