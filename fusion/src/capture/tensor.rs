//! [`FusionTensor`]: a handle to a value that is known, or that a trace will compute.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_backend::quantization::{QuantPropagation, QuantScheme};
use burn_backend::tensor::QuantizedTensor;
use burn_backend::{QTensorPrimitive, Shape, TensorMetadata};
use burn_std::DType;
use kiln_surface::{Kind, Meta};

use super::device::DeviceState;
use super::trace::Tracer;
use crate::compiler::{GraphCompiler, Value};
use crate::error::Failure;

/// Tensor of [`Fusion<B>`](crate::Fusion), of any kind.
pub struct FusionTensor<B: GraphCompiler> {
    pub(crate) handle: Arc<Handle<B>>,
}

/// What the handles of a value share. The number of [`Arc`]s tells whether anybody still wants it: a trace holds one
/// for each value, a user's tensor one more.
pub(crate) struct Handle<B: GraphCompiler> {
    pub(crate) meta: Meta,
    pub(crate) kind: Kind,
    pub(crate) device: &'static DeviceState<B>,
    /// The thread that records it; `None` for a value that was never recorded.
    pub(crate) owner: Option<Arc<Tracer<B>>>,
    /// The trace that knows the value, and its number there ([`Place`]).
    place: AtomicU64,
    stage: AtomicU8,
    /// The plan that made the value and the output it was, or 0.
    made: AtomicU64,
    /// An upload that no trace has used yet (see `trace` on boundaries).
    pub(crate) fresh: AtomicBool,
    slot: Mutex<Slot<B>>,
}

type Slot<B> = Option<Result<Box<Value<B>>, Arc<Failure>>>;

/// How far a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Recorded in a trace.
    Pending,
    /// Its trace has been taken and runs, or will run without anybody's help.
    Running,
    /// Known, or failed.
    Done,
}

/// A value's number in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) trace: u64,
    pub(crate) index: u32,
}

/// Bits of [`Place::index`]; a trace is cut long before it has that many values.
const INDEX_BITS: u32 = 24;
pub(crate) const MAX_VALUES: usize = 1 << INDEX_BITS;

impl<B: GraphCompiler> Handle<B> {
    /// A value that a trace will compute.
    pub(crate) fn pending(
        meta: Meta,
        kind: Kind,
        device: &'static DeviceState<B>,
        owner: Arc<Tracer<B>>,
        place: Place,
    ) -> Arc<Self> {
        Self::new(meta, kind, device, Some(owner), place, Stage::Pending, None)
    }

    /// A value that is known.
    pub(crate) fn ready(value: Value<B>, device: &'static DeviceState<B>) -> Arc<Self> {
        let (meta, kind) = (value.meta(), value.kind());
        Self::new(meta, kind, device, None, Place::NONE, Stage::Done, Some(Ok(Box::new(value))))
    }

    /// A value that will never be known.
    pub(crate) fn failed(
        meta: Meta,
        kind: Kind,
        device: &'static DeviceState<B>,
        failure: Arc<Failure>,
    ) -> Arc<Self> {
        Self::new(meta, kind, device, None, Place::NONE, Stage::Done, Some(Err(failure)))
    }

    fn new(
        meta: Meta,
        kind: Kind,
        device: &'static DeviceState<B>,
        owner: Option<Arc<Tracer<B>>>,
        place: Place,
        stage: Stage,
        slot: Slot<B>,
    ) -> Arc<Self> {
        Arc::new(Handle {
            meta,
            kind,
            device,
            owner,
            place: AtomicU64::new(place.bits()),
            stage: AtomicU8::new(stage as u8),
            made: AtomicU64::new(0),
            fresh: AtomicBool::new(false),
            slot: Mutex::new(slot),
        })
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Pending,
            1 => Stage::Running,
            _ => Stage::Done,
        }
    }

    pub(crate) fn set_running(&self) {
        self.stage.store(Stage::Running as u8, Ordering::Release);
    }

    pub(crate) fn place(&self) -> Place {
        Place::from_bits(self.place.load(Ordering::Acquire))
    }

    pub(crate) fn set_place(&self, place: Place) {
        self.place.store(place.bits(), Ordering::Release);
    }

    /// Notes that the value is output number `output` of a plan.
    pub(crate) fn set_made(&self, plan: u64, output: u32) {
        self.made.store(Place { trace: plan, index: output }.bits(), Ordering::Relaxed);
    }

    /// Which output of the plan the value is, if it is one.
    pub(crate) fn made_by(&self, plan: u64) -> Option<u32> {
        let made = Place::from_bits(self.made.load(Ordering::Relaxed));
        (made.trace == plan).then_some(made.index)
    }

    fn slot(&self) -> MutexGuard<'_, Slot<B>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the value known.
    pub(crate) fn set(&self, result: Result<Value<B>, Arc<Failure>>) {
        let old = self.slot().replace(result.map(Box::new));
        self.stage.store(Stage::Done as u8, Ordering::Release);
        drop(old); // outside the lock, since it may free device memory
    }

    pub(crate) fn is_failed(&self) -> bool {
        matches!(&*self.slot(), Some(Err(_)))
    }

    /// The value of a handle that is [`Stage::Done`].
    pub(crate) fn value(&self) -> Result<Value<B>, Arc<Failure>> {
        match &*self.slot() {
            Some(Ok(value)) => Ok(Value::clone(value)),
            Some(Err(failure)) => Err(failure.clone()),
            None => Err(lost()),
        }
    }

    /// As [`Handle::value`], leaving nothing behind.
    pub(crate) fn take(&self) -> Result<Value<B>, Arc<Failure>> {
        match self.slot().take() {
            Some(Ok(value)) => Ok(*value),
            Some(Err(failure)) => Err(failure),
            None => Err(lost()),
        }
    }
}

/// A value was read that nobody holds: a fault of this crate.
fn lost() -> Arc<Failure> {
    let message = "the value was given away before it was read; please report this".into();
    Arc::new(Failure { op: "read".into(), inputs: Vec::new(), position: 0, trace_len: 0, message })
}

impl Place {
    pub(crate) const NONE: Place = Place { trace: 0, index: 0 };

    fn bits(self) -> u64 {
        self.trace << INDEX_BITS | u64::from(self.index)
    }

    fn from_bits(bits: u64) -> Self {
        Place { trace: bits >> INDEX_BITS, index: (bits & (MAX_VALUES as u64 - 1)) as u32 }
    }
}

impl<B: GraphCompiler> FusionTensor<B> {
    pub(crate) fn ready(value: Value<B>, device: &'static DeviceState<B>) -> Self {
        FusionTensor { handle: Handle::ready(value, device) }
    }

    /// A value that the host has just uploaded.
    pub(crate) fn uploaded(value: Value<B>, device: &'static DeviceState<B>) -> Self {
        let tensor = Self::ready(value, device);
        tensor.handle.fresh.store(true, Ordering::Relaxed);
        tensor
    }
}

impl<B: GraphCompiler> Clone for FusionTensor<B> {
    fn clone(&self) -> Self {
        FusionTensor { handle: self.handle.clone() }
    }
}

impl<B: GraphCompiler> std::fmt::Debug for FusionTensor<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FusionTensor")
            .field("shape", &self.handle.meta.shape)
            .field("dtype", &self.handle.meta.dtype)
            .field("stage", &self.handle.stage())
            .finish()
    }
}

impl<B: GraphCompiler> TensorMetadata for FusionTensor<B> {
    fn dtype(&self) -> DType {
        self.handle.meta.dtype
    }

    fn shape(&self) -> Shape {
        self.handle.meta.shape.clone()
    }

    fn rank(&self) -> usize {
        self.handle.meta.shape.num_dims()
    }
}

impl<B: GraphCompiler> QTensorPrimitive for FusionTensor<B> {
    fn scheme(&self) -> &QuantScheme {
        match &self.handle.meta.dtype {
            DType::QFloat(scheme) => scheme,
            other => panic!("scheme: a tensor of {other:?} is not quantised"),
        }
    }

    fn propagation(&self) -> QuantPropagation {
        QuantPropagation::Inhibit
    }

    fn default_scheme() -> QuantScheme {
        QuantizedTensor::<B>::default_scheme()
    }
}
