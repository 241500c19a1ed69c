//! `ActivationOps`, a line per method.

use super::run;
use crate::ops::elementwise::*;
use crate::ops::softmax;
use crate::{Cuda, CudaTensor};
use burn_backend::Scalar;
use burn_backend::ops::ActivationOps;

impl ActivationOps<Cuda> for Cuda {
    fn leaky_relu(tensor: CudaTensor, negative_slope: Scalar) -> CudaTensor {
        run!(tensor => scalar(&LEAKY_RELU, tensor, negative_slope))
    }

    fn relu(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&RELU, tensor))
    }

    fn relu_backward(output: CudaTensor, grad: CudaTensor) -> CudaTensor {
        run!(output => binary(&RELU_BACKWARD, output, grad))
    }

    fn gelu(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&GELU, tensor))
    }

    fn prelu(tensor: CudaTensor, alpha: CudaTensor) -> CudaTensor {
        run!(tensor => binary(&PRELU, tensor, alpha))
    }

    fn gelu_backward(x: CudaTensor, grad: CudaTensor) -> CudaTensor {
        run!(x => binary(&GELU_BACKWARD, x, grad))
    }

    fn sigmoid(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&SIGMOID, tensor))
    }

    fn sigmoid_backward(output: CudaTensor, grad: CudaTensor) -> CudaTensor {
        run!(output => binary(&SIGMOID_BACKWARD, output, grad))
    }

    fn hard_sigmoid(tensor: CudaTensor, alpha: Scalar, beta: Scalar) -> CudaTensor {
        run!(tensor => scalar2(&HARD_SIGMOID, tensor, alpha, beta))
    }

    fn log_sigmoid(tensor: CudaTensor) -> CudaTensor {
        run!(tensor => unary_float(&LOG_SIGMOID, tensor))
    }

    fn softmax(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => softmax::softmax(&tensor, dim))
    }

    fn log_softmax(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => softmax::log_softmax(&tensor, dim))
    }

    fn softmin(tensor: CudaTensor, dim: usize) -> CudaTensor {
        run!(tensor => softmax::softmin(&tensor, dim))
    }

    fn log_sigmoid_backward(x: CudaTensor, grad: CudaTensor) -> CudaTensor {
        run!(x => binary(&LOG_SIGMOID_BACKWARD, x, grad))
    }
}
