//! `ModuleOps`, a line per method.

use super::{default_int, run};
use crate::ops::{attention, conv, ctc, deform, fft, index, interpolate, matmul, norm, pool};
use crate::{Cuda, CudaTensor};
use burn_backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConv2dBackward, DeformConvOptions,
    InterpolateOptions, MaxPool2dBackward, MaxPool2dWithIndices, ModuleOps,
};

impl Cuda {
    /// The gradients of `layer_norm` in one pass over the rows: of its input, of `gamma` and of `beta`, from that of its
    /// output. Burn's traits have no such method, and its `Autodiff` takes layer norm apart; it is for backward steps of
    /// one's own.
    ///
    /// Shapes: `grad [.., C]`, `tensor [.., C]`, `gamma [C]` -> `[.., C]`, `[C]`, `[C]`; floats of one dtype. Means and sums
    /// are kept in f32, in f64 for f64.
    ///
    /// # Panics
    /// As Burn's methods do, where shapes, dtypes or devices do not fit or the device reports an error.
    #[track_caller]
    pub fn layer_norm_backward(
        grad: CudaTensor,
        tensor: CudaTensor,
        gamma: CudaTensor,
        epsilon: f64,
    ) -> [CudaTensor; 3] {
        run!(tensor => norm::layer_norm_backward(&grad, &tensor, &gamma, epsilon))
    }
}

impl ModuleOps<Cuda> for Cuda {
    fn embedding(weights: CudaTensor, indices: CudaTensor) -> CudaTensor {
        run!(weights => index::embedding(&weights, &indices))
    }

    fn embedding_backward(weights: CudaTensor, output_grad: CudaTensor, indices: CudaTensor) -> CudaTensor {
        run!(weights => index::embedding_backward(&weights, &output_grad, &indices))
    }

    fn linear(x: CudaTensor, weight: CudaTensor, bias: Option<CudaTensor>) -> CudaTensor {
        run!(x => matmul::linear(&x, &weight, bias.as_ref()))
    }

    fn linear_x_backward(weight: CudaTensor, output_grad: CudaTensor) -> CudaTensor {
        run!(weight => matmul::linear_x_backward(&weight, &output_grad))
    }

    fn linear_weight_backward(x: CudaTensor, output_grad: CudaTensor) -> CudaTensor {
        run!(x => matmul::linear_weight_backward(&x, &output_grad))
    }

    fn linear_bias_backward(output_grad: CudaTensor) -> CudaTensor {
        run!(output_grad => conv::sum_to_last(&output_grad))
    }

    // Burn's defaults for gradients are convolutions of gradients: a loop over groups, and wrong where a stride leaves a rest.
    fn conv1d(
        x: CudaTensor,
        weight: CudaTensor,
        bias: Option<CudaTensor>,
        options: ConvOptions<1>,
    ) -> CudaTensor {
        run!(x => conv::conv("conv1d", &x, &weight, bias.as_ref(), &options))
    }

    fn conv1d_x_backward(
        x: CudaTensor,
        weight: CudaTensor,
        output_grad: CudaTensor,
        options: ConvOptions<1>,
    ) -> CudaTensor {
        run!(x => conv::conv_x_backward("conv1d_x_backward", x.dims(), &weight, &output_grad, &options))
    }

    fn conv1d_weight_backward(
        x: CudaTensor,
        weight: CudaTensor,
        output_grad: CudaTensor,
        options: ConvOptions<1>,
    ) -> CudaTensor {
        run!(x => conv::conv_weight_backward("conv1d_weight_backward", &x, weight.dims(), &output_grad, &options))
    }

    fn conv1d_bias_backward(x: CudaTensor, bias: CudaTensor, output_grad: CudaTensor) -> CudaTensor {
        run!(x => conv::conv_bias_backward("conv1d_bias_backward", &bias, &output_grad))
    }

    fn conv2d(
        x: CudaTensor,
        weight: CudaTensor,
        bias: Option<CudaTensor>,
        options: ConvOptions<2>,
    ) -> CudaTensor {
        run!(x => conv::conv("conv2d", &x, &weight, bias.as_ref(), &options))
    }

    fn conv2d_x_backward(
        x: CudaTensor,
        weight: CudaTensor,
        output_grad: CudaTensor,
        options: ConvOptions<2>,
    ) -> CudaTensor {
        run!(x => conv::conv_x_backward("conv2d_x_backward", x.dims(), &weight, &output_grad, &options))
    }

    fn conv2d_weight_backward(
        x: CudaTensor,
        weight: CudaTensor,
        output_grad: CudaTensor,
        options: ConvOptions<2>,
    ) -> CudaTensor {
        run!(x => conv::conv_weight_backward("conv2d_weight_backward", &x, weight.dims(), &output_grad, &options))
    }

    fn conv2d_bias_backward(x: CudaTensor, bias: CudaTensor, output_grad: CudaTensor) -> CudaTensor {
        run!(x => conv::conv_bias_backward("conv2d_bias_backward", &bias, &output_grad))
    }

    fn conv3d(
        x: CudaTensor,
        weight: CudaTensor,
        bias: Option<CudaTensor>,
        options: ConvOptions<3>,
    ) -> CudaTensor {
        run!(x => conv::conv("conv3d", &x, &weight, bias.as_ref(), &options))
    }

    fn conv3d_x_backward(
        x: CudaTensor,
        weight: CudaTensor,
        output_grad: CudaTensor,
        options: ConvOptions<3>,
    ) -> CudaTensor {
        run!(x => conv::conv_x_backward("conv3d_x_backward", x.dims(), &weight, &output_grad, &options))
    }

    fn conv3d_weight_backward(
        x: CudaTensor,
        weight: CudaTensor,
        output_grad: CudaTensor,
        options: ConvOptions<3>,
    ) -> CudaTensor {
        run!(x => conv::conv_weight_backward("conv3d_weight_backward", &x, weight.dims(), &output_grad, &options))
    }

    fn conv3d_bias_backward(x: CudaTensor, bias: CudaTensor, output_grad: CudaTensor) -> CudaTensor {
        run!(x => conv::conv_bias_backward("conv3d_bias_backward", &bias, &output_grad))
    }

    fn conv_transpose1d(
        x: CudaTensor,
        weight: CudaTensor,
        bias: Option<CudaTensor>,
        options: ConvTransposeOptions<1>,
    ) -> CudaTensor {
        run!(x => conv::conv_transpose("conv_transpose1d", &x, &weight, bias.as_ref(), &options))
    }

    fn conv_transpose1d_x_backward(
        weight: CudaTensor,
        output_grad: CudaTensor,
        options: ConvTransposeOptions<1>,
    ) -> CudaTensor {
        run!(weight => conv::conv_transpose_x_backward("conv_transpose1d_x_backward", &weight, &output_grad, &options))
    }

    fn conv_transpose1d_weight_backward(
        x: CudaTensor,
        weight: CudaTensor,
        output_grad: CudaTensor,
        options: ConvTransposeOptions<1>,
    ) -> CudaTensor {
        run!(x => conv::conv_transpose_weight_backward("conv_transpose1d_weight_backward", &x, weight.dims(), &output_grad, &options))
    }

    fn conv_transpose1d_bias_backward(
        x: CudaTensor,
        bias: CudaTensor,
        output_grad: CudaTensor,
    ) -> CudaTensor {
        run!(x => conv::conv_bias_backward("conv_transpose1d_bias_backward", &bias, &output_grad))
    }

    fn conv_transpose2d(
        x: CudaTensor,
        weight: CudaTensor,
        bias: Option<CudaTensor>,
        options: ConvTransposeOptions<2>,
    ) -> CudaTensor {
        run!(x => conv::conv_transpose("conv_transpose2d", &x, &weight, bias.as_ref(), &options))
    }

    fn conv_transpose2d_x_backward(
        weight: CudaTensor,
        output_grad: CudaTensor,
        options: ConvTransposeOptions<2>,
    ) -> CudaTensor {
        run!(weight => conv::conv_transpose_x_backward("conv_transpose2d_x_backward", &weight, &output_grad, &options))
    }

    fn conv_transpose2d_weight_backward(
        x: CudaTensor,
        weight: CudaTensor,
        output_grad: CudaTensor,
        options: ConvTransposeOptions<2>,
    ) -> CudaTensor {
        run!(x => conv::conv_transpose_weight_backward("conv_transpose2d_weight_backward", &x, weight.dims(), &output_grad, &options))
    }

    fn conv_transpose2d_bias_backward(
        x: CudaTensor,
        bias: CudaTensor,
        output_grad: CudaTensor,
    ) -> CudaTensor {
        run!(x => conv::conv_bias_backward("conv_transpose2d_bias_backward", &bias, &output_grad))
    }

    fn conv_transpose3d(
        x: CudaTensor,
        weight: CudaTensor,
        bias: Option<CudaTensor>,
        options: ConvTransposeOptions<3>,
    ) -> CudaTensor {
        run!(x => conv::conv_transpose("conv_transpose3d", &x, &weight, bias.as_ref(), &options))
    }

    fn conv_transpose3d_x_backward(
        weight: CudaTensor,
        output_grad: CudaTensor,
        options: ConvTransposeOptions<3>,
    ) -> CudaTensor {
        run!(weight => conv::conv_transpose_x_backward("conv_transpose3d_x_backward", &weight, &output_grad, &options))
    }

    fn conv_transpose3d_weight_backward(
        x: CudaTensor,
        weight: CudaTensor,
        output_grad: CudaTensor,
        options: ConvTransposeOptions<3>,
    ) -> CudaTensor {
        run!(x => conv::conv_transpose_weight_backward("conv_transpose3d_weight_backward", &x, weight.dims(), &output_grad, &options))
    }

    fn conv_transpose3d_bias_backward(
        x: CudaTensor,
        bias: CudaTensor,
        output_grad: CudaTensor,
    ) -> CudaTensor {
        run!(x => conv::conv_bias_backward("conv_transpose3d_bias_backward", &bias, &output_grad))
    }

    fn deform_conv2d(
        x: CudaTensor,
        offset: CudaTensor,
        weight: CudaTensor,
        mask: Option<CudaTensor>,
        bias: Option<CudaTensor>,
        options: DeformConvOptions<2>,
    ) -> CudaTensor {
        run!(x => deform::deform_conv2d(&x, &offset, &weight, mask.as_ref(), bias.as_ref(), &options))
    }

    fn deform_conv2d_backward(
        x: CudaTensor,
        offset: CudaTensor,
        weight: CudaTensor,
        mask: Option<CudaTensor>,
        bias: Option<CudaTensor>,
        output_grad: CudaTensor,
        options: DeformConvOptions<2>,
    ) -> DeformConv2dBackward<Cuda> {
        let grads = run!(x => deform::deform_conv2d_backward(
            &x, &offset, &weight, mask.as_ref(), bias.as_ref(), &output_grad, &options
        ));
        DeformConv2dBackward::new(grads.x, grads.offset, grads.weight, grads.mask, grads.bias)
    }

    fn avg_pool2d(
        x: CudaTensor,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        count_include_pad: bool,
        ceil_mode: bool,
    ) -> CudaTensor {
        run!(x => pool::avg_pool2d(&x, kernel_size, stride, padding, count_include_pad, ceil_mode))
    }

    fn avg_pool2d_backward(
        x: CudaTensor,
        grad: CudaTensor,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        count_include_pad: bool,
        ceil_mode: bool,
    ) -> CudaTensor {
        run!(x => pool::avg_pool2d_backward(x.dims(), &grad, kernel_size, stride, padding, count_include_pad, ceil_mode))
    }

    fn adaptive_avg_pool2d(x: CudaTensor, output_size: [usize; 2]) -> CudaTensor {
        run!(x => pool::adaptive_avg_pool2d(&x, output_size))
    }

    fn adaptive_avg_pool2d_backward(x: CudaTensor, grad: CudaTensor) -> CudaTensor {
        run!(x => pool::adaptive_avg_pool2d_backward(x.dims(), &grad))
    }

    fn max_pool2d(
        x: CudaTensor,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
    ) -> CudaTensor {
        run!(x => pool::max_pool2d(&x, kernel_size, stride, padding, dilation, ceil_mode))
    }

    fn max_pool2d_with_indices(
        x: CudaTensor,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
    ) -> MaxPool2dWithIndices<Cuda> {
        let dtype = default_int(&x);
        let (output, indices) = run!(x => pool::max_pool2d_with_indices(&x, kernel_size, stride, padding, dilation, ceil_mode, dtype));
        MaxPool2dWithIndices::new(output, indices)
    }

    fn max_pool2d_with_indices_backward(
        x: CudaTensor,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
        output_grad: CudaTensor,
        indices: CudaTensor,
    ) -> MaxPool2dBackward<Cuda> {
        MaxPool2dBackward::new(run!(x => pool::max_pool2d_with_indices_backward(
            x.dims(), &output_grad, &indices, kernel_size, stride, padding, dilation, ceil_mode
        )))
    }

    fn interpolate(x: CudaTensor, output_size: [usize; 2], options: InterpolateOptions) -> CudaTensor {
        run!(x => interpolate::interpolate(&x, output_size, &options))
    }

    fn interpolate_backward(
        x: CudaTensor,
        grad: CudaTensor,
        output_size: [usize; 2],
        options: InterpolateOptions,
    ) -> CudaTensor {
        run!(x => interpolate::interpolate_backward(x.dims(), &grad, output_size, &options))
    }

    fn attention(
        query: CudaTensor,
        key: CudaTensor,
        value: CudaTensor,
        mask: Option<CudaTensor>,
        attn_bias: Option<CudaTensor>,
        options: AttentionModuleOptions,
    ) -> CudaTensor {
        run!(query => attention::attention(&query, &key, &value, mask.as_ref(), attn_bias.as_ref(), &options))
    }

    fn layer_norm(
        tensor: CudaTensor,
        gamma: CudaTensor,
        beta: Option<CudaTensor>,
        epsilon: f64,
    ) -> CudaTensor {
        run!(tensor => norm::layer_norm(&tensor, &gamma, beta.as_ref(), epsilon))
    }

    fn ctc_loss(
        log_probs: CudaTensor,
        targets: CudaTensor,
        input_lengths: CudaTensor,
        target_lengths: CudaTensor,
        blank: usize,
    ) -> CudaTensor {
        run!(log_probs => ctc::ctc_loss(&log_probs, &targets, &input_lengths, &target_lengths, blank))
    }

    fn has_ctc_loss_backward() -> bool {
        true
    }

    fn ctc_loss_backward(
        log_probs: CudaTensor,
        targets: CudaTensor,
        input_lengths: CudaTensor,
        target_lengths: CudaTensor,
        grad_loss: CudaTensor,
        blank: usize,
    ) -> CudaTensor {
        run!(log_probs => ctc::ctc_loss_backward(
            &log_probs, &targets, &input_lengths, &target_lengths, &grad_loss, blank
        ))
    }

    fn rfft(signal: CudaTensor, dim: usize, n: Option<usize>) -> (CudaTensor, CudaTensor) {
        run!(signal => fft::rfft(&signal, dim, n))
    }

    fn irfft(spectrum_re: CudaTensor, spectrum_im: CudaTensor, dim: usize, n: Option<usize>) -> CudaTensor {
        run!(spectrum_re => fft::irfft(&spectrum_re, &spectrum_im, dim, n))
    }
}
