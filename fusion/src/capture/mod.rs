//! `Fusion<B>`: records what Burn calls, and runs it later. The only place that knows how operations arrive from Burn.
//!
//! [`ops`] implements Burn's operation traits, [`trace`] holds what a thread has recorded and says when it runs,
//! [`plans`] knows the sequences that have been seen, [`run`] runs one, [`device`] is what threads share.

pub(crate) mod device;
pub(crate) mod ops;
pub(crate) mod plans;
pub(crate) mod run;
pub(crate) mod tensor;
pub(crate) mod trace;

use std::marker::PhantomData;

use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor, QuantizedTensor};
use burn_backend::{Backend, BackendTypes, DType, DTypeUsageSet, ExecutionError, TensorData};
use burn_ir::{BackendIr, TensorHandle};

pub use device::Budget;
pub use tensor::FusionTensor;

use crate::compiler::GraphCompiler;
use crate::explain::{Cut, Stats};
use device::{DeviceState, local_tracer, lock};

/// A lazy backend over `B`: operations are recorded, and run together when a value is needed.
///
/// One line of a model changes: `type Backend = Autodiff<Fusion<Flex>>`. Results are those of `B`, to the bit as long
/// as graphs are interpreted; random tensors are Kiln's own.
pub struct Fusion<B>(PhantomData<fn() -> B>);

impl<B> Clone for Fusion<B> {
    fn clone(&self) -> Self {
        Fusion(PhantomData)
    }
}

impl<B> Default for Fusion<B> {
    fn default() -> Self {
        Fusion(PhantomData)
    }
}

impl<B> std::fmt::Debug for Fusion<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fusion")
    }
}

impl<B: GraphCompiler> Fusion<B> {
    /// Host memory of one recorded value: its handle with the counts of its `Arc`, and the trace's reference.
    pub const BYTES_PER_VALUE: usize = size_of::<tensor::Handle<B>>() + 3 * size_of::<usize>();

    /// Marks the end of a step: what this thread has recorded for the device runs.
    ///
    /// Call it at the end of each step of a loop that does not read a value in every step; else the steps between two
    /// reads become one long graph. burn-train's loops need no call. Under `Autodiff` it is called on the inner type.
    pub fn step(device: &B::Device) {
        local_tracer(DeviceState::<B>::of(device)).flush(Cut::Step);
    }

    /// What the capture has done on the device since the last [`Fusion::reset_stats`].
    pub fn stats(device: &B::Device) -> Stats {
        lock(&DeviceState::<B>::of(device).stats).clone()
    }

    /// Begins the statistics of the device anew.
    pub fn reset_stats(device: &B::Device) {
        *lock(&DeviceState::<B>::of(device).stats) = Stats::default();
    }

    /// Sets when a trace on the device runs without being asked to.
    pub fn set_budget(device: &B::Device, budget: Budget) {
        *lock(&DeviceState::<B>::of(device).budget) = budget;
    }

    /// Forgets all plans of the device, and with them their executables.
    pub fn forget_plans(device: &B::Device) {
        DeviceState::<B>::of(device).forget_plans();
    }
}

impl<B: GraphCompiler> BackendTypes for Fusion<B> {
    type Device = B::Device;
    type FloatTensorPrimitive = FusionTensor<B>;
    type FloatElem = B::FloatElem;
    type IntTensorPrimitive = FusionTensor<B>;
    type IntElem = B::IntElem;
    type BoolTensorPrimitive = FusionTensor<B>;
    type BoolElem = B::BoolElem;
    type QuantizedTensorPrimitive = FusionTensor<B>;
}

impl<B: GraphCompiler> Backend for Fusion<B> {
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
        local_tracer(DeviceState::<B>::of(device)).finish(Cut::Sync);
        B::memory_cleanup(device);
    }

    fn name(device: &Self::Device) -> String {
        format!("fusion<{}>", B::name(device))
    }

    fn seed(device: &Self::Device, seed: u64) {
        DeviceState::<B>::of(device).seed(seed);
        B::seed(device, seed);
    }

    fn sync(device: &Self::Device) -> Result<(), ExecutionError> {
        local_tracer(DeviceState::<B>::of(device)).finish(Cut::Sync);
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

impl<B: GraphCompiler> BackendIr for Fusion<B> {
    type Handle = FusionTensor<B>;

    fn float_tensor(handle: TensorHandle<Self::Handle>) -> FloatTensor<Self> {
        handle.handle
    }

    fn int_tensor(handle: TensorHandle<Self::Handle>) -> IntTensor<Self> {
        handle.handle
    }

    fn bool_tensor(handle: TensorHandle<Self::Handle>) -> BoolTensor<Self> {
        handle.handle
    }

    fn quantized_tensor(handle: TensorHandle<Self::Handle>) -> QuantizedTensor<Self> {
        handle.handle
    }

    fn float_tensor_handle(tensor: FloatTensor<Self>) -> Self::Handle {
        tensor
    }

    fn int_tensor_handle(tensor: IntTensor<Self>) -> Self::Handle {
        tensor
    }

    fn bool_tensor_handle(tensor: BoolTensor<Self>) -> Self::Handle {
        tensor
    }

    fn quantized_tensor_handle(tensor: QuantizedTensor<Self>) -> Self::Handle {
        tensor
    }
}
