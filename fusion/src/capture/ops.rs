//! Burn's operation traits for [`Fusion<B>`], expanded from the table: each `node` method records itself, each `host`
//! method moves data or answers from what is known.

use burn_backend::{DeviceOps, TensorPrimitive};
use kiln_surface::burn::*;
use kiln_surface::{Attribute, Draw, Op, PrimId, arg_type, ret_type, with_backend_methods};

use super::device::DeviceState;
use super::tensor::{FusionTensor, Handle};
use super::trace::{Outs, Recorder, Results, Site, settle};
use crate::Fusion;
use crate::compiler::{GraphCompiler, Value};
use crate::error::Failure;
use crate::random;

/// Shows an argument's tensors or device to the site.
macro_rules! place {
    (F, $site:ident, $arg:ident) => {
        $site.operand(&$arg)
    };
    (I, $site:ident, $arg:ident) => {
        $site.operand(&$arg)
    };
    (B, $site:ident, $arg:ident) => {
        $site.operand(&$arg)
    };
    (Q, $site:ident, $arg:ident) => {
        $site.operand(&$arg)
    };
    (OptF, $site:ident, $arg:ident) => {
        $arg.iter().for_each(|tensor| $site.operand(tensor))
    };
    (OptB, $site:ident, $arg:ident) => {
        $arg.iter().for_each(|tensor| $site.operand(tensor))
    };
    (VecF, $site:ident, $arg:ident) => {
        $arg.iter().for_each(|tensor| $site.operand(tensor))
    };
    (VecI, $site:ident, $arg:ident) => {
        $arg.iter().for_each(|tensor| $site.operand(tensor))
    };
    (VecB, $site:ident, $arg:ident) => {
        $arg.iter().for_each(|tensor| $site.operand(tensor))
    };
    (VecQ, $site:ident, $arg:ident) => {
        $arg.iter().for_each(|tensor| $site.operand(tensor))
    };
    (Prim, $site:ident, $arg:ident) => {
        $site.operand(tensor_of(&$arg))
    };
    (QParams, $site:ident, $arg:ident) => {
        $site.operand(&$arg.scales)
    };
    (Device, $site:ident, $arg:ident) => {
        $site.device($arg)
    };
    ($tag:ident, $site:ident, $arg:ident) => {};
}

/// The field of an operation, for an argument.
macro_rules! field {
    (F, $r:ident, $arg:ident) => {
        $r.tensor(&$arg)
    };
    (I, $r:ident, $arg:ident) => {
        $r.tensor(&$arg)
    };
    (B, $r:ident, $arg:ident) => {
        $r.tensor(&$arg)
    };
    (Q, $r:ident, $arg:ident) => {
        $r.tensor(&$arg)
    };
    (OptF, $r:ident, $arg:ident) => {
        $arg.as_ref().map(|tensor| $r.tensor(tensor))
    };
    (OptB, $r:ident, $arg:ident) => {
        $arg.as_ref().map(|tensor| $r.tensor(tensor))
    };
    (VecF, $r:ident, $arg:ident) => {
        $arg.iter().map(|tensor| $r.tensor(tensor)).collect()
    };
    (VecI, $r:ident, $arg:ident) => {
        $arg.iter().map(|tensor| $r.tensor(tensor)).collect()
    };
    (VecB, $r:ident, $arg:ident) => {
        $arg.iter().map(|tensor| $r.tensor(tensor)).collect()
    };
    (VecQ, $r:ident, $arg:ident) => {
        $arg.iter().map(|tensor| $r.tensor(tensor)).collect()
    };
    (Prim, $r:ident, $arg:ident) => {
        match &$arg {
            TensorPrimitive::Float(tensor) => PrimId::Float($r.tensor(tensor)),
            TensorPrimitive::QFloat(tensor) => PrimId::Quantized($r.tensor(tensor)),
        }
    };
    (QParams, $r:ident, $arg:ident) => {
        $r.tensor(&$arg.scales)
    };
    (Scalar, $r:ident, $arg:ident) => {
        $r.scalar($arg)
    };
    (Device, $r:ident, $arg:ident) => {
        $arg.id()
    };
    ($tag:ident, $r:ident, $arg:ident) => {
        Attribute::from_arg($arg)
    };
}

/// Burn's result, from the recorded outputs.
macro_rules! result {
    (F, $outs:expr) => {
        one($outs)
    };
    (I, $outs:expr) => {
        one($outs)
    };
    (B, $outs:expr) => {
        one($outs)
    };
    (Q, $outs:expr) => {
        one($outs)
    };
    (Prim, $outs:expr) => {{
        let tensor = one($outs);
        match tensor.dtype() {
            DType::QFloat(_) => TensorPrimitive::QFloat(tensor),
            _ => TensorPrimitive::Float(tensor),
        }
    }};
    (FI, $outs:expr) => {
        two($outs)
    };
    (II, $outs:expr) => {
        two($outs)
    };
    (QI, $outs:expr) => {
        two($outs)
    };
    (FF, $outs:expr) => {
        two($outs)
    };
    (MaxPool1d, $outs:expr) => {{
        let (output, indices) = two($outs);
        MaxPool1dWithIndices::new(output, indices)
    }};
    (MaxPool2d, $outs:expr) => {{
        let (output, indices) = two($outs);
        MaxPool2dWithIndices::new(output, indices)
    }};
    (MaxPool1dGrad, $outs:expr) => {
        MaxPool1dBackward::new(one($outs))
    };
    (MaxPool2dGrad, $outs:expr) => {
        MaxPool2dBackward::new(one($outs))
    };
    (DeformGrad, $outs:expr) => {
        unreachable!("written by hand: {:?}", $outs.len())
    };
}

fn one<B: GraphCompiler>(mut outs: Outs<B>) -> FusionTensor<B> {
    outs.pop().expect("the table says one result")
}

fn two<B: GraphCompiler>(mut outs: Outs<B>) -> (FusionTensor<B>, FusionTensor<B>) {
    let second = outs.pop().expect("the table says two results");
    (one(outs), second)
}

fn tensor_of<B: GraphCompiler>(primitive: &TensorPrimitive<Fusion<B>>) -> &FusionTensor<B> {
    match primitive {
        TensorPrimitive::Float(tensor) | TensorPrimitive::QFloat(tensor) => tensor,
    }
}

/// A method that records itself.
macro_rules! node {
    (float_to_device $($signature:tt)*) => { to_device! { float_to_device $($signature)* } };
    (int_to_device $($signature:tt)*) => { to_device! { int_to_device $($signature)* } };
    (bool_to_device $($signature:tt)*) => { to_device! { bool_to_device $($signature)* } };
    (q_to_device $($signature:tt)*) => { to_device! { q_to_device $($signature)* } };
    (float_powf_scalar $($signature:tt)*) => {
        // A whole exponent is part of the graph, as Burn decides by its value what to call.
        fn float_powf_scalar(tensor: FusionTensor<B>, value: Scalar) -> FusionTensor<B> {
            match value.try_as_integer() {
                Some(exponent) => Self::float_powi_scalar(tensor, exponent),
                None => Self::float_powf_scalar_impl(tensor, value),
            }
        }
    };
    (float_random $($signature:tt)*) => { random! { float_random $($signature)* } };
    (int_random $($signature:tt)*) => { random! { int_random $($signature)* } };
    (deform_conv2d_backward(
        $x:ident: F, $offset:ident: F, $weight:ident: F, $mask:ident: OptF, $bias:ident: OptF,
        $grad:ident: F, $options:ident: Deform
    ) -> $ret:ident) => {
        fn deform_conv2d_backward(
            $x: FusionTensor<B>,
            $offset: FusionTensor<B>,
            $weight: FusionTensor<B>,
            $mask: Option<FusionTensor<B>>,
            $bias: Option<FusionTensor<B>>,
            $grad: FusionTensor<B>,
            $options: DeformConvOptions<2>,
        ) -> DeformConv2dBackward<Fusion<B>> {
            let (has_mask, has_bias) = ($mask.is_some(), $bias.is_some());
            let outs = record! { deform_conv2d_backward(
                $x: F, $offset: F, $weight: F, $mask: OptF, $bias: OptF, $grad: F, $options: Deform
            ) };
            let mut outs = outs.into_iter();
            let mut next = || outs.next().expect("a gradient for each operand");
            let (x, offset, weight) = (next(), next(), next());
            DeformConv2dBackward::new(x, offset, weight, has_mask.then(&mut next), has_bias.then(&mut next))
        }
    };
    ($node:ident($($arg:ident: $tag:ident),*) -> $ret:ident) => {
        fn $node($($arg: arg_type!($tag, Fusion<B>)),*) -> ret_type!($ret, Fusion<B>) {
            result!($ret, record! { $node($($arg: $tag),*) })
        }
    };
}

macro_rules! record {
    ($node:ident($($arg:ident: $tag:ident),*)) => {{
        let mut site = Site::<B>::new(stringify!($node));
        $(place!($tag, site, $arg);)*
        let ready = site.begin();
        #[allow(unused_mut)]
        let mut recorder: Recorder<'_, B> = ready.record();
        let op = Op::$node { $($arg: field!($tag, recorder, $arg)),* };
        recorder.finish(op, Results::New)
    }};
}

/// A random operation takes its numbers at the call.
macro_rules! random {
    ($node:ident(shape: Shape, distribution: Distribution, device: Device, dtype: $dtype:ident) -> $ret:ident) => {
        fn $node(
            shape: Shape,
            distribution: Distribution,
            device: &Device<Fusion<B>>,
            dtype: $dtype,
        ) -> ret_type!($ret, Fusion<B>) {
            let mut site = Site::<B>::new(stringify!($node));
            site.device(device);
            // What is no distribution is an error here, not at the read.
            if let Err(error) = random::draw(&Shape::new([0]), distribution, dtype.into(), 0, 0) {
                panic!("{}: {error}", stringify!($node));
            }
            let ready = site.begin();
            let mut recorder = ready.record();
            let index = recorder.draw(dtype.into(), shape.num_elements());
            let distribution = Draw { distribution, index };
            let op = Op::$node { shape, distribution, device: device.id(), dtype };
            one(recorder.finish(op, Results::New))
        }
    };
}

/// A copy to another device runs at once: it is where two devices' traces meet.
macro_rules! to_device {
    ($node:ident(tensor: $tag:ident, device: Device) -> $ret:ident) => {
        fn $node(tensor: FusionTensor<B>, device: &Device<Fusion<B>>) -> FusionTensor<B> {
            let target = DeviceState::of(device);
            let handle = &tensor.handle;
            if std::ptr::eq(handle.device, target) {
                return tensor;
            }
            settle(&[handle]);
            let moved = match handle.value() {
                Ok(value) => Ok(to_device!(@move $tag, $node, value, device)),
                Err(failure) => Err(failure),
            };
            match moved {
                Ok(value) => FusionTensor::ready(value, target),
                Err(failure) => FusionTensor {
                    handle: Handle::failed(handle.meta.clone(), handle.kind, target, failure),
                },
            }
        }
    };
    (@move F, $node:ident, $value:ident, $device:ident) => { Value::Float(B::$node($value.float(), $device)) };
    (@move I, $node:ident, $value:ident, $device:ident) => { Value::Int(B::$node($value.int(), $device)) };
    (@move B, $node:ident, $value:ident, $device:ident) => { Value::Bool(B::$node($value.bool(), $device)) };
    (@move Q, $node:ident, $value:ident, $device:ident) => {
        Value::Quantized(B::$node($value.quantized(), $device))
    };
}

/// A method that does not become a node.
macro_rules! host {
    (float_from_data $($rest:tt)*) => {
        from_data! { float_from_data, Float }
    };
    (int_from_data $($rest:tt)*) => {
        from_data! { int_from_data, Int }
    };
    (bool_from_data $($rest:tt)*) => {
        from_data! { bool_from_data, Bool }
    };
    (q_from_data $($rest:tt)*) => {
        from_data! { q_from_data, Quantized }
    };
    (float_into_data $($rest:tt)*) => {
        into_data! { float_into_data, float }
    };
    (int_into_data $($rest:tt)*) => {
        into_data! { int_into_data, int }
    };
    (bool_into_data $($rest:tt)*) => {
        into_data! { bool_into_data, bool }
    };
    (q_into_data $($rest:tt)*) => {
        into_data! { q_into_data, quantized }
    };
    (bool_argwhere $($rest:tt)*) => {
        // The size of the result depends on the data, so it cannot wait.
        fn bool_argwhere(
            tensor: FusionTensor<B>,
            out_dtype: IntDType,
        ) -> impl Future<Output = FusionTensor<B>> + 'static + Send {
            async move {
                let (device, value) = (tensor.handle.device, known(tensor, "bool_argwhere"));
                let indices = B::bool_argwhere(value.bool(), out_dtype).await;
                FusionTensor::ready(Value::Int(indices), device)
            }
        }
    };
    (has_ctc_loss_backward $($rest:tt)*) => {
        fn has_ctc_loss_backward() -> bool {
            B::has_ctc_loss_backward()
        }
    };
    (tr_execute $($rest:tt)*) => {
        fn tr_execute(
            transaction: TransactionPrimitive<Fusion<B>>,
        ) -> impl Future<Output = Result<TransactionPrimitiveData, ExecutionError>> + Send {
            async move {
                let all = [&transaction.read_floats, &transaction.read_ints, &transaction.read_bools];
                let all = all.into_iter().chain([&transaction.read_qfloats]).flatten();
                settle(&all.map(|tensor| &tensor.handle).collect::<Vec<_>>());
                let TransactionPrimitive { read_floats, read_qfloats, read_ints, read_bools, .. } =
                    transaction;
                let floats = values(read_floats)?.into_iter().map(Value::float).collect();
                let quantized = values(read_qfloats)?.into_iter().map(Value::quantized).collect();
                let ints = values(read_ints)?.into_iter().map(Value::int).collect();
                let bools = values(read_bools)?.into_iter().map(Value::bool).collect();
                B::tr_execute(TransactionPrimitive::new(floats, quantized, ints, bools)).await
            }
        }
    };
    // Devices, and what Burn asks of gradients: a tensor here has none.
    ($host:ident($arg:ident: $tag:ident) -> Device) => {
        fn $host($arg: arg_type!($tag, Fusion<B>)) -> Device<Fusion<B>> {
            $arg.handle.device.device.clone()
        }
    };
    ($host:ident($arg:ident: $tag:ident) -> bool) => {
        fn $host(_: arg_type!($tag, Fusion<B>)) -> bool {
            false
        }
    };
    ($host:ident($arg:ident: $tag:ident) -> $ret:ident) => {
        fn $host($arg: arg_type!($tag, Fusion<B>)) -> FusionTensor<B> {
            $arg
        }
    };
    ($host:ident($arg:ident: $tag:ident, $flag:ident: bool) -> $ret:ident) => {
        fn $host($arg: arg_type!($tag, Fusion<B>), _: bool) -> FusionTensor<B> {
            $arg
        }
    };
}

/// An upload is made at once, from whichever thread loads data.
macro_rules! from_data {
    ($host:ident, $kind:ident) => {
        fn $host(data: TensorData, device: &Device<Fusion<B>>) -> FusionTensor<B> {
            FusionTensor::uploaded(Value::$kind(B::$host(data, device)), DeviceState::of(device))
        }
    };
}

macro_rules! into_data {
    ($host:ident, $kind:ident) => {
        fn $host(tensor: FusionTensor<B>) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
            async move {
                settle(&[&tensor.handle]);
                let value = tensor.handle.value().map_err(|failure| ExecutionError::from(&*failure))?;
                drop(tensor);
                B::$host(B::unshare(value).$kind()).await
            }
        }
    };
}

fn values<B: GraphCompiler>(tensors: Vec<FusionTensor<B>>) -> Result<Vec<Value<B>>, ExecutionError> {
    let failed = |failure: std::sync::Arc<Failure>| ExecutionError::from(&*failure);
    tensors.into_iter().map(|tensor| tensor.handle.value().map(B::unshare).map_err(failed)).collect()
}

/// The value of a tensor where Burn leaves no way to return an error.
pub(crate) fn known<B: GraphCompiler>(tensor: FusionTensor<B>, op: &str) -> Value<B> {
    settle(&[&tensor.handle]);
    match tensor.handle.value() {
        Ok(value) => value,
        Err(failure) => panic!("{op}: an operand failed: {failure}"),
    }
}

macro_rules! implement {
    ($(trait $trait:ident {
        node { $($node:ident $node_args:tt -> $node_ret:ident;)* }
        host { $($host:ident $host_args:tt -> $host_ret:ident;)* }
    })*) => {$(
        impl<B: GraphCompiler> $trait<Fusion<B>> for Fusion<B> {
            $(node! { $node $node_args -> $node_ret })*
            $(host! { $host $host_args -> $host_ret })*
        }
    )*};
}
with_backend_methods! { implement! {} }
