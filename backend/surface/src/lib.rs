//! The surface of Burn's `Backend` trait as data.
//!
//! - [`table`]: one line for each of the 418 methods of Burn 0.21's operation traits, handed to a macro of the caller
//!   by [`with_backend_methods!`]. The graph capture, the interpreter, the profiler decorator and the autodiff newtype
//!   are expanded from it.
//! - [`op`]: [`Op`], an enum with a variant for each method that a graph can record, generated from the table.
//! - [`mod@infer`]: shape and dtype of what an operation gives, from those of its inputs.
//! - [`delegate`]: a backend around another one with the same tensors, for decorators.
//! - [`mod@cost`]: the bytes and arithmetic that an operation takes at least, and which operations are views.

// First, since the macros of the table are used by the other modules.
#[macro_use]
pub mod table;

#[cfg(feature = "arguments")]
pub mod arguments;
pub mod cost;
pub mod delegate;
pub mod infer;
pub mod op;

pub use cost::{Cost, cost, is_view};
pub use delegate::Rewrap;
pub use infer::{Defaults, InferError, Meta, Outputs, Reason, infer, infer_with};
pub use op::{
    Attribute, Axes, Bits, Draw, Exponent, Extension, Kind, Op, PrimId, ScalarKind, ScalarSlot, ValueId,
};
pub use table::BACKEND_METHODS;

/// What the table's macros need of Burn; use Burn's own paths instead.
#[doc(hidden)]
pub mod burn {
    pub use burn_backend::ops::{
        ActivationOps, BoolTensorOps, FloatTensorOps, IntTensorOps, ModuleOps, QTensorOps, TransactionOps,
    };
    pub use burn_backend::ops::{
        AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConv2dBackward, DeformConvOptions,
        GridSampleOptions, InterpolateOptions, MaxPool1dBackward, MaxPool1dWithIndices, MaxPool2dBackward,
        MaxPool2dWithIndices, TransactionPrimitive, TransactionPrimitiveData, UnfoldOptions,
    };
    pub use burn_backend::quantization::{QuantScheme, QuantizationParametersPrimitive};
    pub use burn_backend::tensor::{
        BoolTensor, Device, FloatTensor, IndexingUpdateOp, IntTensor, QuantizedTensor,
    };
    pub use burn_backend::{
        Backend, BackendTypes, BoolDType, DType, DTypeUsageSet, Distribution, ExecutionError, FloatDType,
        IntDType, Scalar, Shape, Slice, TensorData, TensorMetadata, TensorPrimitive,
    };
    pub use burn_std::device::DeviceId;
}
