//! Attention: two matrix products and a softmax between them.
//!
//! Scores, and all of the softmax, are f32 (f64 for f64); shares of 16-bit floats are rounded to their dtype for the
//! second product. A key is removed from a query by the mask, by causality, or by a bias of -inf: whatever its key and
//! value hold, also NaN, does not show. A query without any key gives zeros. A finite fill value, however low, is a
//! score like others.
//!
//! Memory beside the operands and the output: scores of as many heads, or queries of one head, as fit into
//! [`SCORES_BYTES`], and for 16-bit floats their shares, half as much again.

use burn_backend::ops::AttentionModuleOptions;
use burn_backend::{Scalar, TensorMetadata};

use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::kernels::attention::{self as kernels, Scores};
use crate::ops::elementwise::fill;
use crate::ops::matmul::{matmul_into, matmul_wide};
use crate::tensor::{CudaTensor, check};

/// Bytes of scores at once.
const SCORES_BYTES: usize = 256 << 20;

/// `softmax(q k^T * scale + bias) v` over the keys, with what `options` say.
///
/// Shapes: `q [B, H, R, D]`, `k [B, H, K, D]`, `v [B, H, K, W]`; `mask` (bool, true removes the key) and `bias` broadcast
/// to `[B, H, R, K]` -> `[B, H, R, W]`. The scale is `1 / sqrt(D)` unless given. A softcap bounds the scaled scores before
/// the bias: `softcap * tanh(score / softcap)`. A causal query `i` sees keys up to `i + K - R`.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Device`; `Error::Argument` for a softcap that is not positive.
pub(crate) fn attention(
    q: &CudaTensor,
    k: &CudaTensor,
    v: &CudaTensor,
    mask: Option<&CudaTensor>,
    bias: Option<&CudaTensor>,
    options: &AttentionModuleOptions,
) -> Result<CudaTensor> {
    const OP: &str = "attention";
    check::float(OP, q)?;
    for other in [Some(k), Some(v), bias].into_iter().flatten() {
        check::same_dtype(OP, &[q, other])?;
    }
    for other in [Some(k), Some(v), mask, bias].into_iter().flatten() {
        check::same_device(OP, &[q, other])?;
    }
    let shape = |detail: &str| Error::Shape {
        op: OP,
        detail: detail.into(),
        shapes: [Some(q), Some(k), Some(v), mask, bias].iter().flatten().map(|t| t.dims().to_vec()).collect(),
    };
    let (&[batch, heads, queries, depth], &[_, _, keys, _], &[_, _, _, width]) =
        (q.dims(), k.dims(), v.dims())
    else {
        return Err(shape("query, key and value must have four dimensions"));
    };
    if k.dims() != [batch, heads, keys, depth] || v.dims() != [batch, heads, keys, width] {
        return Err(shape("query must be [B, H, R, D], key [B, H, K, D] and value [B, H, K, W]"));
    }
    if mask.is_some_and(|mask| mask.elem() != Elem::B8) {
        let dtypes = mask.iter().map(|t| t.dtype()).collect();
        return Err(Error::DType { op: OP, detail: "the mask must be a bool tensor".into(), dtypes });
    }
    let scores = [batch, heads, queries, keys];
    let expanded = |t: &CudaTensor| match t.layout().expand(&scores) {
        Some(layout) if t.dims().len() == 4 => Ok(t.with_layout(layout)),
        _ => Err(shape("mask and bias must have four dimensions that broadcast to the scores")),
    };
    let (mask, bias) = (mask.map(expanded).transpose()?, bias.map(expanded).transpose()?);
    if let Some(softcap) = options.softcap
        && (softcap <= 0.0 || softcap.is_nan())
    {
        return Err(Error::Argument { op: OP, detail: format!("softcap must be positive, got {softcap}") });
    }

    let out = CudaTensor::empty(q.device(), [batch, heads, queries, width], q.dtype(), OP)?;
    if out.is_empty() {
        return Ok(out);
    }
    if keys == 0 {
        fill(&out, Scalar::Int(0))?;
        return Ok(out);
    }
    let how = Scores {
        scale: options.scale.unwrap_or_else(|| 1.0 / (depth as f64).sqrt()),
        softcap: options.softcap,
        causal: options.is_causal.then_some(keys as i64 - queries as i64),
        first: 0,
    };
    // Without any of these, no key is removed.
    let removes = mask.is_some() || bias.is_some() || options.is_causal;
    for Part { images, heads, queries } in parts(batch, heads, queries, keys, q.elem().size_bytes().max(4)) {
        let part = |t: &CudaTensor, rows: &[(usize, (usize, usize))]| {
            let mut layout = t.layout().narrow(0, images.0, images.1).narrow(1, heads.0, heads.1);
            for &(dim, (first, count)) in rows {
                layout = layout.narrow(dim, first, count);
            }
            t.with_layout(layout)
        };
        let (q, k, v) = (part(q, &[(2, queries)]), part(k, &[]), part(v, &[]));
        let k = k.with_layout(k.layout().swap_dims(2, 3).expect("four dimensions"));
        let scores = matmul_wide(OP, &q, &k)?;
        let shares = match q.elem().size_bytes() {
            2 => CudaTensor::empty(q.device(), scores.layout().shape().clone(), q.dtype(), OP)?,
            _ => scores.clone(),
        };
        let [mask, bias] = [&mask, &bias].map(|t| t.as_ref().map(|t| part(t, &[(2, queries)])));
        let how = Scores { first: queries.0, ..how };
        kernels::softmax(&shares, &scores, mask.as_ref(), bias.as_ref(), how)?;
        drop(scores);
        let out = part(&out, &[(2, queries)]);
        matmul_into(OP, &out, &shares, &v, None)?;
        if removes {
            kernels::repair(&out, &shares, &v)?;
        }
    }
    Ok(out)
}

/// First and count of what is computed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    images: (usize, usize),
    heads: (usize, usize),
    queries: (usize, usize),
}

/// As many whole images as fit, else as many heads of one, else as many queries of one head.
fn parts(
    batch: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    elem_bytes: usize,
) -> impl Iterator<Item = Part> {
    let row = keys.saturating_mul(elem_bytes).max(1);
    let rows = (SCORES_BYTES / row).max(1);
    let heads_at_once = (rows / queries.max(1)).clamp(1, heads.max(1));
    let images_at_once = (rows / queries.max(1) / heads.max(1)).clamp(1, batch.max(1));
    let rows_at_once = rows.min(queries.max(1));
    let pieces = |n: usize, step: usize| (0..n).step_by(step).map(move |first| (first, step.min(n - first)));
    pieces(batch, images_at_once).flat_map(move |images| {
        pieces(heads, heads_at_once).flat_map(move |heads| {
            pieces(queries, rows_at_once).map(move |queries| Part { images, heads, queries })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_and_keep_to_the_bytes() {
        for (batch, heads, queries, keys) in [
            (2, 3, 5, 7),
            (8, 16, 1024, 1024),
            (3, 30, 4096, 4096),
            (1, 2, 10_000, 100_000),
            (1, 1, 2, 1 << 30),
        ] {
            let mut rows = 0;
            for part in parts(batch, heads, queries, keys, 4) {
                let these = part.images.1 * part.heads.1 * part.queries.1;
                rows += these;
                assert!(these == 1 || these * keys * 4 <= SCORES_BYTES, "{part:?}");
                assert!(part.images.1 == 1 || part.heads.1 == heads, "{part:?}");
                assert!(part.heads.1 == 1 || part.queries.1 == queries, "{part:?}");
            }
            assert_eq!(rows, batch * heads * queries);
        }
        assert_eq!(parts(2, 3, 5, 7, 4).count(), 1);
    }
}
