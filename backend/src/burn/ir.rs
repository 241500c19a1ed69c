//! `BackendIr`: tensors as handles, for Burn's router, remote backend and fusion.

use burn_ir::{BackendIr, HandleKind, TensorHandle};

use crate::{Cuda, CudaQTensor, CudaTensor};

/// A method pair for each kind of tensor.
macro_rules! handles {
    ($($kind:ident, $tensor:ty: $from:ident $into:ident;)*) => {
        impl BackendIr for Cuda {
            type Handle = HandleKind<Cuda>;

            $(
                fn $from(handle: TensorHandle<HandleKind<Cuda>>) -> $tensor {
                    match handle.handle {
                        HandleKind::$kind(tensor) => tensor,
                        other => panic!("{}: the handle is of a {} tensor", stringify!($from), other.name()),
                    }
                }

                fn $into(tensor: $tensor) -> HandleKind<Cuda> {
                    HandleKind::$kind(tensor)
                }
            )*
        }
    };
}

handles! {
    Float, CudaTensor: float_tensor float_tensor_handle;
    Int, CudaTensor: int_tensor int_tensor_handle;
    Bool, CudaTensor: bool_tensor bool_tensor_handle;
    Quantized, CudaQTensor: quantized_tensor quantized_tensor_handle;
}
