//! Reductions over one dimension (which stays, with size 1) or over everything (result `[1]`).
//!
//! Sums, means and products of 16-bit floats are kept in f32 until they are stored; those of integers wrap in 64 bits
//! and keep the low bits. NaN wins in `max` and `min`; where several elements are equal, indices name the first, and
//! the first NaN. Results repeat bit for bit. Over nothing, a sum is 0, a product 1, `any` false and `all` true, the
//! mean of floats NaN; the others are errors.

use burn_backend::{Shape, TensorMetadata};
use burn_std::DType;
use smallvec::SmallVec;

use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::kernels::reduce::{ReduceOp, reduce};
use crate::tensor::{CudaTensor, check};

fn empty(op: &'static str) -> Error {
    Error::Argument { op, detail: "there is no element to reduce".into() }
}

/// `x`'s shape with `dim` of size 1.
fn reduced_shape(x: &CudaTensor, dim: usize) -> Shape {
    let mut dims = x.dims().to_vec();
    dims[dim] = 1;
    Shape::from(dims)
}

/// Whether `op` has a result over no element.
fn has_neutral(op: ReduceOp, elem: Elem) -> bool {
    match op {
        ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Any | ReduceOp::All => true,
        ReduceOp::Mean => elem.is_float(),
        ReduceOp::Max | ReduceOp::Min | ReduceOp::MaxAbs | ReduceOp::MaxAt | ReduceOp::MinAt => false,
    }
}

fn check_input(name: &'static str, op: ReduceOp, x: &CudaTensor, size: usize) -> Result<()> {
    if x.elem() == Elem::B8 && !matches!(op, ReduceOp::Any | ReduceOp::All) {
        return Err(Error::DType {
            op: name,
            detail: "not defined for bool".into(),
            dtypes: vec![x.dtype()],
        });
    }
    if size == 0 && !has_neutral(op, x.elem()) {
        return Err(empty(name));
    }
    Ok(())
}

/// The reduction of `dim`, stored as `out`.
pub(super) fn dim_as(
    name: &'static str,
    op: ReduceOp,
    x: &CudaTensor,
    dim: usize,
    out: DType,
) -> Result<CudaTensor> {
    check::dim(name, x, dim)?;
    check_input(name, op, x, x.dims()[dim])?;
    let y = CudaTensor::empty(x.device(), reduced_shape(x, dim), out, name)?;
    reduce(name, op, x, dim, Some(&y), None)?;
    Ok(y)
}

/// All elements in a row, in whatever order they lie in memory if they fill it without gaps.
fn flat(x: &CudaTensor) -> Result<CudaTensor> {
    let x = match x.layout().permute(&x.layout().memory_order()) {
        Some(layout) if layout.is_contiguous() => x.with_layout(layout),
        _ => x.clone(),
    };
    x.reshape(&[x.len()])
}

/// The reduction of everything, stored as `out`.
fn all_as(name: &'static str, op: ReduceOp, x: &CudaTensor, out: DType) -> Result<CudaTensor> {
    check_input(name, op, x, x.len())?;
    dim_as(name, op, &flat(x)?, 0, out)
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $all:ident, $dim:ident: $op:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// Over everything; the result has shape `[1]`.
            ///
            /// # Errors
            /// `Error::DType` for bools, `Error::Argument` over nothing where that has no value.
            pub(crate) fn $all(x: &CudaTensor) -> Result<CudaTensor> {
                all_as(stringify!($all), ReduceOp::$op, x, x.dtype())
            }

            $(#[$doc])*
            ///
            /// Over `dim`, which stays with size 1.
            ///
            /// # Errors
            /// As over everything, and `Error::Shape` if there is no such dimension.
            pub(crate) fn $dim(x: &CudaTensor, dim: usize) -> Result<CudaTensor> {
                dim_as(stringify!($dim), ReduceOp::$op, x, dim, x.dtype())
            }
        )*
    };
}

reductions! {
    /// The sum.
    sum, sum_dim: Sum;
    /// The product.
    prod, prod_dim: Prod;
    /// The mean. That of integers is the wrapped sum divided by the number of elements, towards zero.
    mean, mean_dim: Mean;
    /// The largest element; NaN if there is one.
    max, max_dim: Max;
    /// The smallest element; NaN if there is one.
    min, min_dim: Min;
    /// The largest magnitude; NaN if there is one. The magnitude of the most negative integer is that integer.
    max_abs, max_abs_dim: MaxAbs;
}

/// Whether any element differs from 0 (NaN does), as a bool of dtype `out`; shape `[1]`.
///
/// # Errors
/// `Error::DType` if `out` is not supported.
pub(crate) fn any(x: &CudaTensor, out: DType) -> Result<CudaTensor> {
    all_as("any", ReduceOp::Any, x, out)
}

/// Whether any element along `dim` differs from 0 (NaN does), as a bool of dtype `out`.
///
/// # Errors
/// `Error::DType` if `out` is not supported, `Error::Shape` if there is no such dimension.
pub(crate) fn any_dim(x: &CudaTensor, dim: usize, out: DType) -> Result<CudaTensor> {
    dim_as("any_dim", ReduceOp::Any, x, dim, out)
}

/// Whether all elements differ from 0 (NaN does), as a bool of dtype `out`; shape `[1]`.
///
/// # Errors
/// `Error::DType` if `out` is not supported.
pub(crate) fn all(x: &CudaTensor, out: DType) -> Result<CudaTensor> {
    all_as("all", ReduceOp::All, x, out)
}

/// Whether all elements along `dim` differ from 0 (NaN does), as a bool of dtype `out`.
///
/// # Errors
/// `Error::DType` if `out` is not supported, `Error::Shape` if there is no such dimension.
pub(crate) fn all_dim(x: &CudaTensor, dim: usize, out: DType) -> Result<CudaTensor> {
    dim_as("all_dim", ReduceOp::All, x, dim, out)
}

/// Values (where wanted) and indices of the extrema along `dim`.
fn extrema(
    name: &'static str,
    op: ReduceOp,
    x: &CudaTensor,
    dim: usize,
    indices: DType,
    values: bool,
) -> Result<(Option<CudaTensor>, CudaTensor)> {
    check::dim(name, x, dim)?;
    let size = x.dims()[dim];
    check_input(name, op, x, size)?;
    let elem = Elem::of(name, indices)?;
    if !elem.is_int() {
        let detail = "indices need an integer dtype".into();
        return Err(Error::DType { op: name, detail, dtypes: vec![indices] });
    }
    let bits =
        8 * elem.size_bytes() as u32 - matches!(elem, Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64) as u32;
    if (size as u64 - 1).checked_shr(bits).unwrap_or(0) != 0 {
        let detail = format!("indices up to {} do not fit into {indices:?}", size - 1);
        return Err(Error::Argument { op: name, detail });
    }
    let shape = reduced_shape(x, dim);
    let idx = CudaTensor::empty(x.device(), shape.clone(), indices, name)?;
    let out = if values { Some(CudaTensor::empty(x.device(), shape, x.dtype(), name)?) } else { None };
    reduce(name, op, x, dim, out.as_ref(), Some(&idx))?;
    Ok((out, idx))
}

/// The index of the largest element along `dim`: the first of several, and the first NaN if there is one.
///
/// # Errors
/// `Error::Argument` if `dim` is empty or its indices do not fit into `indices`; `Error::DType`, `Error::Shape`.
pub(crate) fn argmax(x: &CudaTensor, dim: usize, indices: DType) -> Result<CudaTensor> {
    Ok(extrema("argmax", ReduceOp::MaxAt, x, dim, indices, false)?.1)
}

/// The index of the smallest element along `dim`; otherwise as [`argmax`].
///
/// # Errors
/// As [`argmax`].
pub(crate) fn argmin(x: &CudaTensor, dim: usize, indices: DType) -> Result<CudaTensor> {
    Ok(extrema("argmin", ReduceOp::MinAt, x, dim, indices, false)?.1)
}

/// The largest element along `dim` and its index, as [`max_dim`] and [`argmax`].
///
/// # Errors
/// As [`argmax`].
pub(crate) fn max_dim_with_indices(
    x: &CudaTensor,
    dim: usize,
    indices: DType,
) -> Result<(CudaTensor, CudaTensor)> {
    let (values, indices) = extrema("max_dim_with_indices", ReduceOp::MaxAt, x, dim, indices, true)?;
    Ok((values.expect("values were asked for"), indices))
}

/// The smallest element along `dim` and its index, as [`min_dim`] and [`argmin`].
///
/// # Errors
/// As [`argmax`].
pub(crate) fn min_dim_with_indices(
    x: &CudaTensor,
    dim: usize,
    indices: DType,
) -> Result<(CudaTensor, CudaTensor)> {
    let (values, indices) = extrema("min_dim_with_indices", ReduceOp::MinAt, x, dim, indices, true)?;
    Ok((values.expect("values were asked for"), indices))
}

/// Runs of dimensions, merged: `(size, reduced)` each, without dimensions of size 1.
fn runs(x: &[usize], target: &[usize]) -> SmallVec<[(usize, bool); 6]> {
    let extra = x.len() - target.len();
    let mut runs: SmallVec<[(usize, bool); 6]> = SmallVec::new();
    for (d, &size) in x.iter().enumerate().filter(|&(_, &size)| size != 1) {
        let reduced = d < extra || target[d - extra] != size;
        match runs.last_mut() {
            Some(last) if last.1 == reduced => last.0 *= size,
            _ => runs.push((size, reduced)),
        }
    }
    runs
}

/// Undoes a broadcast: sums `x` over the dimensions that `shape` lacks or has with size 1, in f32 for 16-bit floats.
///
/// # Errors
/// `Error::Shape` if `shape` does not broadcast to `x`'s.
pub(crate) fn sum_to(x: &CudaTensor, shape: &[usize]) -> Result<CudaTensor> {
    let fits =
        x.dims().len().checked_sub(shape.len()).is_some_and(|extra| {
            x.dims()[extra..].iter().zip(shape).all(|(&from, &to)| to == from || to == 1)
        });
    if !fits {
        return Err(Error::Shape {
            op: "sum_to",
            detail: "the target does not broadcast to the operand's shape".into(),
            shapes: vec![x.dims().to_vec(), shape.to_vec()],
        });
    }
    let mut dims = runs(x.dims(), shape);
    let mut left = dims.iter().filter(|r| r.1).count();
    let mut y = x.reshape(&dims.iter().map(|r| r.0).collect::<Vec<_>>())?;
    // The longest run first: later ones then have less to read.
    while let Some(d) = (0..dims.len()).filter(|&d| dims[d].1).max_by_key(|&d| dims[d].0) {
        left -= 1;
        let dtype = match x.elem() {
            Elem::F16 | Elem::BF16 if left > 0 => DType::F32,
            _ => x.dtype(),
        };
        y = dim_as("sum_to", ReduceOp::Sum, &y, d, dtype)?;
        dims[d] = (1, false);
    }
    y.reshape(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_broadcast_dimensions_are_one_run() {
        assert_eq!(runs(&[4, 5, 6], &[6])[..], [(20, true), (6, false)]);
        assert_eq!(runs(&[4, 5, 6], &[4, 1, 6])[..], [(4, false), (5, true), (6, false)]);
        assert_eq!(runs(&[4, 1, 6], &[1])[..], [(24, true)]);
        assert_eq!(runs(&[4, 5], &[4, 5])[..], [(20, false)]);
        assert_eq!(runs(&[3, 0], &[3, 1])[..], [(3, false), (0, true)]);
        assert_eq!(runs(&[1, 5, 1], &[5, 1])[..], [(5, false)]);
        assert_eq!(runs(&[], &[])[..], []);
    }
}
