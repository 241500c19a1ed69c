//! Sorted rows, their first elements, and the places of what is true.
//!
//! Every sort is stable, falling ones too: equal elements keep the order of their indices. Floats: -0 equals 0, and NaN
//! is greater than all others, whatever its sign. Elements keep their bits.

use burn_backend::TensorMetadata;
use burn_std::DType;

use super::data;
use super::elementwise::cast;
use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::kernels::argwhere::{argwhere_counts, argwhere_write};
use crate::kernels::sort::{self as kernel, Sorted};
use crate::layout::Layout;
use crate::tensor::{CudaTensor, check};

/// The dtype that kernels write indices in, where `dtype` is asked for.
fn written(op: &'static str, dtype: DType, narrow: DType) -> Result<DType> {
    let elem = Elem::of(op, dtype)?;
    if !elem.is_int() {
        return Err(Error::DType { op, detail: "indices are integers".into(), dtypes: vec![dtype] });
    }
    Ok(if elem.size_bytes() < 4 { narrow } else { dtype })
}

/// The first `kept` elements of each row along `dim`, in order, and their indices; either only if it is asked for.
fn sorted(
    op: &'static str,
    x: &CudaTensor,
    dim: usize,
    descending: bool,
    kept: usize,
    values: bool,
    indices: Option<DType>,
) -> Result<(Option<CudaTensor>, Option<CudaTensor>)> {
    check::dim(op, x, dim)?;
    if x.elem() == Elem::B8 {
        return Err(Error::DType { op, detail: "not defined for bool".into(), dtypes: vec![x.dtype()] });
    }
    let shape_error = |detail| Err(Error::Shape { op, detail, shapes: vec![x.dims().to_vec()] });
    let n = x.dims()[dim];
    if kept > n {
        return shape_error(format!("there are no {kept} elements along dimension {dim}"));
    }
    let most = match indices {
        Some(DType::I32) => i32::MAX as usize,
        _ => u32::MAX as usize,
    };
    if n > most {
        return shape_error(format!("a sort has indices up to {most}, which dimension {dim} exceeds"));
    }
    // The dimension goes last for the kernels, and its results come back as views.
    let last = x.rank() - 1;
    let axes: Vec<usize> = (0..=last).filter(|&d| d != dim).chain([dim]).collect();
    let mut back: Vec<usize> = (0..last).collect();
    back.insert(dim, last);
    let permuted = |layout: &Layout, axes: &[usize]| layout.permute(axes).expect("each dimension once");
    let rows = x.with_layout(permuted(x.layout(), &axes)).contiguous()?;
    let mut shape = rows.dims().to_vec();
    shape[last] = kept;
    let output = |dtype| CudaTensor::empty(x.device(), shape.clone(), dtype, op);
    let y = values.then(|| output(x.dtype())).transpose()?;
    let index = indices.map(|dtype| output(written(op, dtype, DType::U32)?)).transpose()?;
    if !rows.is_empty() && kept > 0 {
        kernel::sort(op, Sorted { values: y.as_ref(), indices: index.as_ref() }, &rows, n, kept, descending)?;
    }
    let index = match (index, indices) {
        (Some(index), Some(dtype)) if index.dtype() != dtype => Some(cast(index, dtype)?),
        (index, _) => index,
    };
    let restored = |t: CudaTensor| {
        let layout = permuted(t.layout(), &back);
        t.into_layout(layout)
    };
    Ok((y.map(restored), index.map(restored)))
}

fn only<T>(value: Option<T>) -> T {
    value.expect("an output that was asked for")
}

/// `x` in rising (or falling) order along `dim`.
///
/// # Errors
/// `Error::Shape` if there is no such dimension, or if it has 2^32 elements or more; `Error::DType` for bools.
pub(crate) fn sort(x: &CudaTensor, dim: usize, descending: bool) -> Result<CudaTensor> {
    let n = x.dims().get(dim).copied().unwrap_or(0);
    Ok(only(sorted("sort", x, dim, descending, n, true, None)?.0))
}

/// As [`sort`], with the index that each element had, in `dtype`.
///
/// # Errors
/// As [`sort`]; `Error::Shape` also where an i32 does not hold the indices.
pub(crate) fn sort_with_indices(
    x: &CudaTensor,
    dim: usize,
    descending: bool,
    dtype: DType,
) -> Result<(CudaTensor, CudaTensor)> {
    let n = x.dims().get(dim).copied().unwrap_or(0);
    let (values, indices) = sorted("sort_with_indices", x, dim, descending, n, true, Some(dtype))?;
    Ok((only(values), only(indices)))
}

/// The indices of [`sort_with_indices`].
///
/// # Errors
/// As [`sort_with_indices`].
pub(crate) fn argsort(x: &CudaTensor, dim: usize, descending: bool, dtype: DType) -> Result<CudaTensor> {
    let n = x.dims().get(dim).copied().unwrap_or(0);
    Ok(only(sorted("argsort", x, dim, descending, n, false, Some(dtype))?.1))
}

/// The `k` largest elements along `dim`, the largest first.
///
/// # Errors
/// As [`sort`]; `Error::Shape` if there are no `k` elements.
pub(crate) fn topk(x: &CudaTensor, dim: usize, k: usize) -> Result<CudaTensor> {
    Ok(only(sorted("topk", x, dim, true, k, true, None)?.0))
}

/// The indices of the elements of [`topk`], in `dtype`.
///
/// # Errors
/// As [`topk`] and [`sort_with_indices`].
pub(crate) fn argtopk(x: &CudaTensor, dim: usize, k: usize, dtype: DType) -> Result<CudaTensor> {
    Ok(only(sorted("argtopk", x, dim, true, k, false, Some(dtype))?.1))
}

/// The coordinates of the elements that are true, in row-major order: `x` of rank `D` -> `[trues, D]` of `dtype`.
///
/// Waits for the device, which alone knows how many there are.
///
/// # Errors
/// `Error::DType` unless `x` is a bool tensor; `Error::Capturing`; the fault that `x` depends on.
pub(crate) fn argwhere(x: &CudaTensor, dtype: DType) -> Result<CudaTensor> {
    const OP: &str = "argwhere";
    let device = x.device();
    if x.elem() != Elem::B8 {
        return Err(Error::DType {
            op: OP,
            detail: "a bool tensor is needed".into(),
            dtypes: vec![x.dtype()],
        });
    }
    device.not_capturing(OP)?;
    let kernel_dtype = match Elem::of(OP, dtype)? {
        Elem::I32 | Elem::I64 => dtype,
        elem if elem.is_int() => DType::I64,
        _ => return Err(Error::DType { op: OP, detail: "indices are integers".into(), dtypes: vec![dtype] }),
    };
    let x = x.contiguous()?;
    if x.is_empty() {
        return CudaTensor::empty(device, [0, x.rank()], dtype, OP);
    }
    let counts = argwhere_counts(OP, &x)?;
    let all = counts.with_layout(counts.layout().narrow(0, counts.len() - 1, 1));
    let all = data::into_data(all)?.iter::<i64>().next().unwrap_or(0) as usize;
    let out = CudaTensor::empty(device, [all, x.rank()], kernel_dtype, OP)?;
    if all > 0 {
        argwhere_write(OP, &out, &x, &counts)?;
    }
    if kernel_dtype == dtype { Ok(out) } else { cast(out, dtype) }
}
