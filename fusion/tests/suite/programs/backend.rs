//! [`Own`]: burn-flex with devices of its own, so that no other test shares their plans, counts and random numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn_backend::{
    Backend, BackendTypes, DType, DTypeUsageSet, DeviceOps, Distribution, ExecutionError, FloatDType,
    IntDType, Shape,
};
use burn_flex::{Flex, FlexDevice};
use burn_std::device::DeviceId;
use kiln_fusion::graph::Graph;
use kiln_fusion::{Declined, DrawState, Fusion, GraphCompiler, History, Run, interpret_graph};
use kiln_surface::{Rewrap, arg_type, burn::*, ret_type, with_backend_methods};

use super::subject::Subject;

#[derive(Clone, Default, Debug)]
pub(crate) struct Own;

#[derive(Clone, Default, Debug, PartialEq)]
pub(crate) struct OwnDevice(u16);

impl burn_std::device::Device for OwnDevice {
    fn from_id(id: DeviceId) -> Self {
        OwnDevice(id.index_id)
    }

    fn to_id(&self) -> DeviceId {
        DeviceId::new(0, self.0)
    }
}

impl DeviceOps for OwnDevice {}

impl BackendTypes for Own {
    type Device = OwnDevice;
    type FloatTensorPrimitive = <Flex as BackendTypes>::FloatTensorPrimitive;
    type FloatElem = <Flex as BackendTypes>::FloatElem;
    type IntTensorPrimitive = <Flex as BackendTypes>::IntTensorPrimitive;
    type IntElem = <Flex as BackendTypes>::IntElem;
    type BoolTensorPrimitive = <Flex as BackendTypes>::BoolTensorPrimitive;
    type BoolElem = <Flex as BackendTypes>::BoolElem;
    type QuantizedTensorPrimitive = <Flex as BackendTypes>::QuantizedTensorPrimitive;
}

impl Backend for Own {
    fn name(_: &OwnDevice) -> String {
        Flex::name(&FlexDevice)
    }

    fn seed(_: &OwnDevice, _: u64) {}

    fn sync(_: &OwnDevice) -> Result<(), ExecutionError> {
        Flex::sync(&FlexDevice)
    }

    fn dtype_usage(_: &OwnDevice, dtype: DType) -> DTypeUsageSet {
        Flex::dtype_usage(&FlexDevice, dtype)
    }

    fn device_count(_: u16) -> usize {
        64
    }
}

/// The devices whose graphs are compiled, a bit for each.
static COMPILES: AtomicU64 = AtomicU64::new(0);

impl OwnDevice {
    /// Device number `number`, below 64.
    pub(crate) fn new(number: u16) -> Self {
        OwnDevice(number)
    }

    /// Sets whether graphs that run again are compiled.
    pub(crate) fn set_compiles(&self, compiles: bool) {
        let bit = 1 << self.0;
        match compiles {
            true => COMPILES.fetch_or(bit, Ordering::Relaxed),
            false => COMPILES.fetch_and(!bit, Ordering::Relaxed),
        };
    }
}

/// A graph is its own executable: the interpreter, behind the interface that compiled code has.
impl GraphCompiler for Own {
    type Executable = Arc<Graph>;

    fn compile(device: &OwnDevice, history: &History, _run: &Run<'_, Self>) -> Option<Arc<Graph>> {
        let compiles = COMPILES.load(Ordering::Relaxed) >> device.0 & 1 == 1;
        (compiles && history.runs > 0).then(|| history.graph.clone())
    }

    fn execute(graph: &Arc<Graph>, run: &mut Run<'_, Self>) -> Result<(), Declined> {
        let inputs = (0..run.inputs()).map(|k| run.take(k).expect("an input that did not fail"));
        let inputs: Vec<_> = inputs.collect();
        match interpret_graph(graph, inputs.clone(), run.scalars(), run.draws()) {
            Ok(outputs) => {
                for (k, output) in outputs.into_iter().enumerate() {
                    if run.wanted(k) {
                        run.set(k, output);
                    }
                }
                Ok(())
            }
            Err(_) => {
                inputs.into_iter().enumerate().for_each(|(k, input)| run.replace(k, input));
                Err(Declined("an operation fails".into()))
            }
        }
    }
}

/// What is generic over the backend itself, for another one with the same primitives.
#[rustfmt::skip]
macro_rules! rewrap {
    (Device, $value:expr) => {{ let _ = $value; &FlexDevice }};
    (RetDevice, $value:expr) => {{ let _ = $value; OwnDevice::default() }};
    (Prim, $value:expr) => { Rewrap::rewrap($value) };
    (QParams, $value:expr) => { Rewrap::rewrap($value) };
    (Transaction, $value:expr) => { Rewrap::rewrap($value) };
    (MaxPool1d, $value:expr) => { Rewrap::rewrap($value) };
    (MaxPool2d, $value:expr) => { Rewrap::rewrap($value) };
    (MaxPool1dGrad, $value:expr) => { Rewrap::rewrap($value) };
    (MaxPool2dGrad, $value:expr) => { Rewrap::rewrap($value) };
    (DeformGrad, $value:expr) => { Rewrap::rewrap($value) };
    ($tag:ident, $value:expr) => { $value };
}

macro_rules! result {
    (Device, $value:expr) => {
        rewrap!(RetDevice, $value)
    };
    ($tag:ident, $value:expr) => {
        rewrap!($tag, $value)
    };
}

macro_rules! delegate {
    ($(trait $trait:ident {
        node { $($node:ident ($($node_arg:ident: $node_tag:ident),*) -> $node_ret:ident;)* }
        host { $($host:ident ($($host_arg:ident: $host_tag:ident),*) -> $host_ret:ident;)* }
    })*) => {$(
        impl $trait<Own> for Own {
            $(fn $node($($node_arg: arg_type!($node_tag, Own)),*) -> ret_type!($node_ret, Own) {
                result!($node_ret, <Flex as $trait<Flex>>::$node($(rewrap!($node_tag, $node_arg)),*))
            })*
            $(fn $host($($host_arg: arg_type!($host_tag, Own)),*) -> ret_type!($host_ret, Own) {
                result!($host_ret, <Flex as $trait<Flex>>::$host($(rewrap!($host_tag, $host_arg)),*))
            })*
        }
    )*};
}
with_backend_methods! { delegate! {} }

impl Subject for Fusion<Own> {
    fn random_float(
        shape: Shape,
        distribution: Distribution,
        device: &OwnDevice,
        dtype: FloatDType,
        _: &mut DrawState,
    ) -> Self::FloatTensorPrimitive {
        Self::float_random(shape, distribution, device, dtype)
    }

    fn random_int(
        shape: Shape,
        distribution: Distribution,
        device: &OwnDevice,
        dtype: IntDType,
        _: &mut DrawState,
    ) -> Self::IntTensorPrimitive {
        Self::int_random(shape, distribution, device, dtype)
    }
}
