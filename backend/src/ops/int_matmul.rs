//! Matrix products of integers, wrapping in their dtype.

use burn_backend::{Shape, TensorMetadata};

use crate::error::{Error, Result};
use crate::kernels::int_matmul as kernel;
use crate::layout::broadcast;
use crate::ops::elementwise::zeros;
use crate::tensor::{CudaTensor, check};

/// The product of the last two dimensions; leading dimensions broadcast.
///
/// Shapes: `a [.., M, K]`, `b [.., K, N]` -> `[.., M, N]`.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Device`.
pub(crate) fn int_matmul(a: &CudaTensor, b: &CudaTensor) -> Result<CudaTensor> {
    const OP: &str = "int_matmul";
    check::same_device(OP, &[a, b])?;
    check::same_dtype(OP, &[a, b])?;
    check::int(OP, a)?;
    let error = |detail: &str| Error::Shape {
        op: OP,
        detail: detail.into(),
        shapes: vec![a.dims().to_vec(), b.dims().to_vec()],
    };
    let ([lead_a @ .., m, k], [lead_b @ .., rows, n]) = (a.dims(), b.dims()) else {
        return Err(error("operands need two dimensions or more"));
    };
    if k != rows {
        return Err(error("the inner dimensions differ"));
    }
    let lead = broadcast(lead_a, lead_b).ok_or_else(|| error("the leading dimensions do not broadcast"))?;
    let with = |rows: usize, cols: usize| {
        let mut shape = lead.to_vec();
        shape.extend([rows, cols]);
        shape
    };
    let shape = Shape::from(with(*m, *n));
    if *k == 0 {
        return zeros(a.device(), shape, a.dtype(), OP);
    }
    let c = CudaTensor::empty(a.device(), shape, a.dtype(), OP)?;
    if !c.is_empty() {
        let expanded = |t: &CudaTensor, rows: usize, cols: usize| {
            t.layout()
                .expand(&with(rows, cols))
                .map(|l| t.with_layout(l))
                .ok_or_else(|| error("no broadcast"))
        };
        kernel::int_matmul(&c, &expanded(a, *m, *k)?, &expanded(b, *k, *n)?)?;
    }
    Ok(c)
}
