//! Connectionist temporal classification.
//!
//! Sums are f32 (f64 for f64), in a fixed order: values and gradients repeat bit for bit. `kernels/ctc.cu` has the formulas.

use burn_backend::TensorMetadata;
use burn_std::DType;

use crate::error::{Error, Result};
use crate::kernels::ctc as kernel;
use crate::ops::elementwise::{cast, zeros};
use crate::tensor::{CudaTensor, check};

/// Row-major, and i64.
fn index(op: &'static str, x: &CudaTensor) -> Result<CudaTensor> {
    check::int(op, x)?;
    cast(x.clone(), DType::I64)?.contiguous()
}

/// Checked operands in the form that the kernels read.
struct Operands {
    log_probs: CudaTensor,
    targets: CudaTensor,
    input_lengths: CudaTensor,
    target_lengths: CudaTensor,
    blank: usize,
}

impl Operands {
    fn new(
        op: &'static str,
        log_probs: &CudaTensor,
        targets: &CudaTensor,
        input_lengths: &CudaTensor,
        target_lengths: &CudaTensor,
        blank: usize,
    ) -> Result<Operands> {
        check::float(op, log_probs)?;
        let all = [log_probs, targets, input_lengths, target_lengths];
        check::same_device(op, &all)?;
        let (&[steps, n, classes], &[batch, longest]) = (log_probs.dims(), targets.dims()) else {
            let detail = "log-probabilities of [T, N, C] and targets of [N, S] are needed".into();
            return Err(Error::Shape { op, detail, shapes: all.map(|t| t.dims().to_vec()).to_vec() });
        };
        if batch != n {
            let detail = "there must be a target for each sequence".into();
            return Err(Error::Shape { op, detail, shapes: all.map(|t| t.dims().to_vec()).to_vec() });
        }
        check::shape(op, input_lengths, &[n])?;
        check::shape(op, target_lengths, &[n])?;
        let argument = |detail: String| Err(Error::Argument { op, detail });
        if n > 0 && steps == 0 {
            return argument("there are no time steps".into());
        }
        if n > 0 && blank >= classes {
            return argument(format!("the blank is label {blank} of {classes}"));
        }
        if [n, classes, longest].iter().any(|&size| size >= 1 << 30) {
            return argument(format!("{n} sequences, {classes} labels or targets of {longest} are too many"));
        }
        Ok(Operands {
            log_probs: log_probs.contiguous()?,
            targets: index(op, targets)?,
            input_lengths: index(op, input_lengths)?,
            target_lengths: index(op, target_lengths)?,
            blank,
        })
    }

    fn inputs(&self) -> kernel::Inputs<'_> {
        kernel::Inputs {
            log_probs: &self.log_probs,
            targets: &self.targets,
            input_lengths: &self.input_lengths,
            target_lengths: &self.target_lengths,
            blank: self.blank,
        }
    }
}

/// The loss of each sequence; +inf where its target has no alignment.
///
/// Shapes: `log_probs [T, N, C]`, `targets [N, S]`, `input_lengths [N]`, `target_lengths [N]` -> `[N]`.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Device`, `Error::Argument` without steps, or for a blank that is no label.
pub(crate) fn ctc_loss(
    log_probs: &CudaTensor,
    targets: &CudaTensor,
    input_lengths: &CudaTensor,
    target_lengths: &CudaTensor,
    blank: usize,
) -> Result<CudaTensor> {
    const OP: &str = "ctc_loss";
    let operands = Operands::new(OP, log_probs, targets, input_lengths, target_lengths, blank)?;
    let loss = CudaTensor::empty(log_probs.device(), [log_probs.dims()[1]], log_probs.dtype(), OP)?;
    if !loss.is_empty() {
        kernel::loss(OP, &loss, operands.inputs())?;
    }
    Ok(loss)
}

/// Gradient of [`ctc_loss`] with respect to `log_probs`, for the gradient `dy [N]` of the losses; 0 where a loss is +inf.
///
/// # Errors
/// As for [`ctc_loss`].
pub(crate) fn ctc_loss_backward(
    log_probs: &CudaTensor,
    targets: &CudaTensor,
    input_lengths: &CudaTensor,
    target_lengths: &CudaTensor,
    dy: &CudaTensor,
    blank: usize,
) -> Result<CudaTensor> {
    const OP: &str = "ctc_loss_backward";
    let operands = Operands::new(OP, log_probs, targets, input_lengths, target_lengths, blank)?;
    check::same_device(OP, &[log_probs, dy])?;
    check::same_dtype(OP, &[log_probs, dy])?;
    check::shape(OP, dy, &[log_probs.dims()[1]])?;
    let dx = zeros(log_probs.device(), log_probs.layout().shape().clone(), log_probs.dtype(), OP)?;
    if !dx.is_empty() {
        kernel::backward(OP, &dx, &dy.contiguous()?, operands.inputs())?;
    }
    Ok(dx)
}
