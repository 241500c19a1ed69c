//! Indices of several dimensions (`gather_nd`, `scatter_nd`), and the cross product.
//!
//! An index of `K` numbers names a slice of the remaining dimensions: `x` is seen as rows `[R, inner]`, where `R` is the
//! product of its first `K` sizes, so that an index is one row number.

use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{Shape, TensorMetadata};
use burn_std::DType;

use super::index::{kernel_index, reduce_at, select_as, shape_error, writable};
use crate::error::{Error, Result};
use crate::kernels::gather::Along;
use crate::kernels::scatter::Reduce;
use crate::kernels::{cross as cross_kernel, nd as kernel};
use crate::ops::elementwise::zeros;
use crate::tensor::{CudaTensor, check};

/// What indices of several dimensions name.
struct Rows {
    /// Row numbers, `[N]` of i64.
    at: CudaTensor,
    /// R and the elements of a row.
    table: [usize; 2],
    /// The shape of what is named: one slice for each index.
    named: Vec<usize>,
}

/// The rows of `x` that `index [.., K]` names.
fn rows(op: &'static str, x: &CudaTensor, index: &CudaTensor) -> Result<Rows> {
    check::same_device(op, &[x, index])?;
    let index = kernel_index(op, index)?;
    let (k, lead) = match index.dims() {
        [lead @ .., k] if *k <= x.dims().len() => (*k, lead),
        _ => {
            let detail = "the last dimension of the indices counts the indexed dimensions".into();
            return Err(shape_error(op, detail, &[x, &index]));
        }
    };
    let (sizes, slice) = x.dims().split_at(k);
    let product = |sizes: &[usize]| sizes.iter().product::<usize>();
    let (n, table) = (product(lead), [product(sizes), product(slice)]);
    let named = [lead, slice].concat();
    let at = if k == 0 {
        // The index of nothing names all of x.
        zeros(x.device(), vec![n], DType::I64, op)?
    } else {
        CudaTensor::empty(x.device(), vec![n], DType::I64, op)?
    };
    if k > 0 && n > 0 {
        if table[0] == 0 {
            return Err(shape_error(op, "there are indices into an empty dimension".into(), &[x, &index]));
        }
        let strides: Vec<usize> = (1..=k).map(|d| product(&sizes[d..])).collect();
        kernel::flat(op, &at, &index.contiguous()?, sizes, &strides)?;
    }
    Ok(Rows { at, table, named })
}

/// The slices of `x` that `index` names.
///
/// Shapes: `x [S1, .., SD]`, `index [.., K]`, `K <= D` -> `[.., SK+1, .., SD]`.
///
/// # Errors
/// `Error::Shape`, `Error::DType` if `index` is not an integer tensor, `Error::Device`.
pub(crate) fn gather_nd(x: &CudaTensor, index: &CudaTensor) -> Result<CudaTensor> {
    const OP: &str = "gather_nd";
    let rows = rows(OP, x, index)?;
    if rows.named.contains(&0) {
        return CudaTensor::empty(x.device(), Shape::from(rows.named), x.dtype(), OP);
    }
    select_as(OP, &x.reshape(&rows.table)?, 0, &rows.at)?.reshape(&rows.named)
}

/// `x` with the slices that `index` names assigned, or combined with the values for them. Repeated indices: the last one
/// assigns (in row-major order), and all of them add, multiply and count as extrema, of which NaN is both. Values of
/// floats are added and multiplied in a fixed order up to 2^20 indices.
///
/// Shapes: `x [S1, .., SD]`, `index [.., K]`, `K <= D`, `value [.., SK+1, .., SD]`.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Device`.
pub(crate) fn scatter_nd(
    x: CudaTensor,
    index: &CudaTensor,
    value: &CudaTensor,
    how: IndexingUpdateOp,
) -> Result<CudaTensor> {
    const OP: &str = "scatter_nd";
    check::same_device(OP, &[&x, value])?;
    check::same_dtype(OP, &[&x, value])?;
    let Rows { at, table, named } = rows(OP, &x, index)?;
    if value.dims() != named {
        return Err(shape_error(OP, format!("the values must have shape {named:?}"), &[&x, index, value]));
    }
    if value.is_empty() {
        return Ok(x);
    }
    let (shape, value) = (x.dims().to_vec(), value.reshape(&[at.len(), table[1]])?);
    let x = match x.layout().reshape(&table) {
        Some(layout) => x.into_layout(layout),
        None => x.reshape(&table)?,
    };
    let reduce = match how {
        IndexingUpdateOp::Assign => {
            let (x, value) = (writable(x, OP)?, value.contiguous()?);
            let last = zeros(x.device(), vec![table[0]], kernel::key(at.len()), OP)?;
            kernel::last(&last, &at)?;
            kernel::assign(&x, &value, &at, &last)?;
            return x.reshape(&shape);
        }
        IndexingUpdateOp::Add => Reduce::Add,
        IndexingUpdateOp::Mul => Reduce::Mul,
        IndexingUpdateOp::Min => Reduce::Min,
        IndexingUpdateOp::Max => Reduce::Max,
    };
    let y = reduce_at(OP, reduce, x, 0, &at, &value, Along::Slices)?;
    let layout = y.layout().reshape(&shape).expect("row-major");
    Ok(y.into_layout(layout))
}

/// `a x b` along `dim`, whose size is 3; the other dimensions broadcast.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Device`.
pub(crate) fn cross(a: &CudaTensor, b: &CudaTensor, dim: usize) -> Result<CudaTensor> {
    const OP: &str = "cross";
    check::float(OP, a)?;
    check::same_device(OP, &[a, b])?;
    check::same_dtype(OP, &[a, b])?;
    check::dim(OP, a, dim)?;
    let Some(shape) = crate::layout::broadcast(a.dims(), b.dims())
        .filter(|shape| a.dims().len() == b.dims().len() && shape[dim] == 3)
        .filter(|_| a.dims()[dim] == 3 && b.dims()[dim] == 3)
    else {
        let detail = format!("dimension {dim} must have size 3, and the others must broadcast");
        return Err(shape_error(OP, detail, &[a, b]));
    };
    let expanded = |t: &CudaTensor| {
        let layout = t.layout().expand(shape.as_slice());
        layout.map(|layout| t.with_layout(layout)).ok_or(Error::Shape {
            op: OP,
            detail: "the shapes do not broadcast".into(),
            shapes: vec![a.dims().to_vec(), b.dims().to_vec()],
        })
    };
    let (a, b) = (expanded(a)?, expanded(b)?);
    let y = CudaTensor::empty(a.device(), shape, a.dtype(), OP)?;
    if !y.is_empty() {
        cross_kernel::cross(&y, &a, &b, dim)?;
    }
    Ok(y)
}
