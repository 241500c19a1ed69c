//! Elements named by indices, ranges assigned, tensors joined and repeated.
//!
//! An index outside its dimension (negative ones too) is found by the device: it is clamped, and the error comes with
//! the next read or sync. Indices may have any integer dtype.
//!
//! Additions of floats at repeated indices happen in a fixed order, so results repeat bit for bit, with two
//! exceptions that use atomics: `select_add` with more than 2^20 indices, and `scatter_add` of more than 128 values a line
//! into few lines that are too long for shared memory or lie across memory (see `kernels::scatter::method`). In shared
//! memory, of each 32 values of a line those with one index are added up before they are added to `x`. Sums of 16-bit
//! floats are kept in f32 and rounded once.

use burn_backend::{Shape, Slice, TensorMetadata};
use burn_std::DType;

use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::kernels::gather::{self as kernel, Along};
use crate::kernels::scatter::{
    Method, Reduce, method, rounds_often, scatter as scatter_kernel, scatter_shared,
};
use crate::layout::{Layout, Strides};
use crate::ops::elementwise::{cast, copy_into, zeros};
use crate::tensor::{CudaTensor, check};

pub(super) fn shape_error(op: &'static str, detail: String, tensors: &[&CudaTensor]) -> Error {
    Error::Shape { op, detail, shapes: tensors.iter().map(|t| t.dims().to_vec()).collect() }
}

/// The indices as i32 or i64, which kernels read. A u64 above `i64::MAX` turns negative, so it stays out of range.
pub(super) fn kernel_index(op: &'static str, index: &CudaTensor) -> Result<CudaTensor> {
    check::int(op, index)?;
    match index.elem() {
        Elem::I32 | Elem::I64 => Ok(index.clone()),
        _ => cast(index.clone(), DType::I64),
    }
}

/// An index cannot be right when there is nothing to name.
fn check_not_empty(op: &'static str, x: &CudaTensor, dim: usize, index: &CudaTensor) -> Result<()> {
    if x.dims()[dim] == 0 {
        return Err(shape_error(
            op,
            format!("there are indices into dimension {dim}, which is empty"),
            &[x, index],
        ));
    }
    Ok(())
}

/// `index` must have `x`'s shape but for `dim`.
fn check_elements(op: &'static str, x: &CudaTensor, dim: usize, index: &CudaTensor) -> Result<()> {
    check::dim(op, x, dim)?;
    let fits = x.dims().len() == index.dims().len()
        && (0..x.dims().len()).all(|d| d == dim || x.dims()[d] == index.dims()[d]);
    if fits {
        Ok(())
    } else {
        Err(shape_error(op, format!("shapes may differ in dimension {dim} only"), &[x, index]))
    }
}

/// `x`'s shape with as many elements in `dim` as `index`, which must have one dimension.
fn selected_shape(op: &'static str, x: &CudaTensor, dim: usize, index: &CudaTensor) -> Result<Shape> {
    check::dim(op, x, dim)?;
    if index.dims().len() != 1 {
        return Err(shape_error(op, "the indices must have one dimension".into(), &[x, index]));
    }
    let mut shape = x.dims().to_vec();
    shape[dim] = index.dims()[0];
    Ok(Shape::from(shape))
}

/// The shape of what `index` names of a tensor of shape `dims`, and the index as kernels read it.
pub(crate) fn indexed_shape(
    op: &'static str,
    dims: &[usize],
    dim: usize,
    index: &CudaTensor,
    along: Along,
) -> Result<(Shape, CudaTensor)> {
    let error =
        |detail: String| Err(Error::Shape { op, detail, shapes: vec![dims.to_vec(), index.dims().to_vec()] });
    if dim >= dims.len() {
        return error(format!("there is no dimension {dim}"));
    }
    let mut shape = dims.to_vec();
    match (along, index.dims()) {
        (Along::Slices, &[count]) => shape[dim] = count,
        (Along::Slices, _) => return error("the indices must have one dimension".into()),
        (Along::Elements, of_index) => {
            let fits =
                of_index.len() == dims.len() && (0..dims.len()).all(|d| d == dim || of_index[d] == dims[d]);
            if !fits {
                return error(format!("shapes may differ in dimension {dim} only"));
            }
            shape[dim] = of_index[dim];
        }
    }
    if dims[dim] == 0 && !shape.contains(&0) {
        return error(format!("there are indices into dimension {dim}, which is empty"));
    }
    Ok((Shape::from(shape), kernel_index(op, index)?))
}

/// `y[i] = x[i with index[i] in dimension dim]`.
///
/// Shapes: `index` has `x`'s but for `dim`; `y` has `index`'s.
///
/// # Errors
/// `Error::Shape`, `Error::DType` if `index` is not an integer tensor, `Error::Device`.
pub(crate) fn gather(dim: usize, x: &CudaTensor, index: &CudaTensor) -> Result<CudaTensor> {
    const OP: &str = "gather";
    check::same_device(OP, &[x, index])?;
    check_elements(OP, x, dim, index)?;
    let index = kernel_index(OP, index)?;
    let y = CudaTensor::empty(x.device(), index.layout().shape().clone(), x.dtype(), OP)?;
    if !y.is_empty() {
        check_not_empty(OP, x, dim, &index)?;
        kernel::gather(OP, &y, x, dim, &index, Along::Elements)?;
    }
    Ok(y)
}

/// The slices of `x` along `dim` that `index` names, in its order.
///
/// Shapes: `index [N]`; `y` has `x`'s with `N` in `dim`.
///
/// # Errors
/// As for [`gather`].
pub(crate) fn select(x: &CudaTensor, dim: usize, index: &CudaTensor) -> Result<CudaTensor> {
    select_as("select", x, dim, index)
}

pub(super) fn select_as(
    op: &'static str,
    x: &CudaTensor,
    dim: usize,
    index: &CudaTensor,
) -> Result<CudaTensor> {
    check::same_device(op, &[x, index])?;
    let shape = selected_shape(op, x, dim, index)?;
    let index = kernel_index(op, index)?;
    let y = CudaTensor::empty(x.device(), shape, x.dtype(), op)?;
    if !y.is_empty() {
        check_not_empty(op, x, dim, &index)?;
        kernel::gather(op, &y, x, dim, &index, Along::Slices)?;
    }
    Ok(y)
}

/// A row-major tensor that may be written: `x` itself if nobody else holds its storage.
pub(super) fn writable(x: CudaTensor, op: &'static str) -> Result<CudaTensor> {
    if x.is_unique() && x.layout().is_contiguous() {
        return Ok(x);
    }
    let out = x.empty_like(op)?;
    copy_into(&out, &x)?;
    Ok(out)
}

/// Adds (or "ors", or reduces otherwise) `value` into `x`; shapes are checked.
pub(super) fn reduce_at(
    op: &'static str,
    reduce: Reduce,
    x: CudaTensor,
    dim: usize,
    index: &CudaTensor,
    value: &CudaTensor,
    along: Along,
) -> Result<CudaTensor> {
    check::same_dtype(op, &[&x, value])?;
    check::same_device(op, &[&x, index, value])?;
    let index = kernel_index(op, index)?;
    if value.is_empty() {
        return Ok(x);
    }
    check_not_empty(op, &x, dim, &index)?;
    let count = value.dims()[dim];
    let last = (dim + 1 == x.dims().len()).then(|| x.dims()[dim]);
    let method = method(reduce, x.elem(), along, value.len() / count, count, last);
    if method == Method::Shared {
        let from = x.contiguous()?;
        drop(x);
        let y = if from.is_unique() { from.clone() } else { from.empty_like(op)? };
        scatter_shared(op, (&y, &from), &index, value)?;
        return Ok(y);
    }
    let dtype = x.dtype();
    if x.elem().is_float() && x.elem().size_bytes() == 2 && rounds_often(reduce, method, count) {
        let sums = CudaTensor::empty(x.device(), x.layout().shape().clone(), DType::F32, op)?;
        copy_into(&sums, &x)?;
        scatter_kernel(op, reduce, &sums, dim, &index, value, along, method)?;
        return cast(sums, dtype);
    }
    let x = writable(x, op)?;
    scatter_kernel(op, reduce, &x, dim, &index, value, along, method)?;
    Ok(x)
}

fn check_bool(op: &'static str, x: &CudaTensor, wanted: bool) -> Result<()> {
    if (x.elem() == Elem::B8) == wanted {
        return Ok(());
    }
    let detail = if wanted { "a bool tensor is needed" } else { "not defined for bool" };
    Err(Error::DType { op, detail: detail.into(), dtypes: vec![x.dtype()] })
}

fn scatter_with(
    op: &'static str,
    dim: usize,
    x: CudaTensor,
    index: &CudaTensor,
    value: &CudaTensor,
) -> Result<CudaTensor> {
    check_elements(op, &x, dim, index)?;
    if value.dims() != index.dims() {
        return Err(shape_error(op, "values and indices must have one shape".into(), &[&x, index, value]));
    }
    reduce_at(op, Reduce::Add, x, dim, index, value, Along::Elements)
}

fn select_with(
    op: &'static str,
    x: CudaTensor,
    dim: usize,
    index: &CudaTensor,
    value: &CudaTensor,
) -> Result<CudaTensor> {
    let shape = selected_shape(op, &x, dim, index)?;
    if value.dims() != shape.as_slice() {
        return Err(shape_error(
            op,
            format!("the values must have shape {:?}", shape.as_slice()),
            &[&x, index, value],
        ));
    }
    reduce_at(op, Reduce::Add, x, dim, index, value, Along::Slices)
}

/// `x[i with index[i] in dimension dim] += value[i]`; all values for a repeated index count.
///
/// Shapes: `index` and `value` have `x`'s but for `dim`.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Device`.
pub(crate) fn scatter_add(
    dim: usize,
    x: CudaTensor,
    index: &CudaTensor,
    value: &CudaTensor,
) -> Result<CudaTensor> {
    check_bool("scatter_add", &x, false)?;
    scatter_with("scatter_add", dim, x, index, value)
}

/// As [`scatter_add`] for bools: an element becomes true if any of its values is.
///
/// # Errors
/// As for [`scatter_add`].
pub(crate) fn scatter_or(
    dim: usize,
    x: CudaTensor,
    index: &CudaTensor,
    value: &CudaTensor,
) -> Result<CudaTensor> {
    check_bool("scatter_or", &x, true)?;
    scatter_with("scatter_or", dim, x, index, value)
}

/// Adds the slices of `value` along `dim` to the slices of `x` that `index` names.
///
/// Shapes: `index [N]`; `value` has `x`'s with `N` in `dim`.
///
/// # Errors
/// As for [`scatter_add`].
pub(crate) fn select_add(
    x: CudaTensor,
    dim: usize,
    index: &CudaTensor,
    value: &CudaTensor,
) -> Result<CudaTensor> {
    check_bool("select_add", &x, false)?;
    select_with("select_add", x, dim, index, value)
}

/// As [`select_add`] for bools.
///
/// # Errors
/// As for [`scatter_add`].
pub(crate) fn select_or(
    x: CudaTensor,
    dim: usize,
    index: &CudaTensor,
    value: &CudaTensor,
) -> Result<CudaTensor> {
    check_bool("select_or", &x, true)?;
    select_with("select_or", x, dim, index, value)
}

/// Rows of a table: `weights [V, D]`, `index [B, T]` (any shape) -> `[B, T, D]`.
///
/// # Errors
/// As for [`gather`].
pub(crate) fn embedding(weights: &CudaTensor, index: &CudaTensor) -> Result<CudaTensor> {
    let [_, width] = *weights.dims() else {
        return Err(shape_error(
            "embedding",
            "the weights must have two dimensions".into(),
            &[weights, index],
        ));
    };
    let rows = select_as("embedding", weights, 0, &index.reshape(&[index.len()])?)?;
    let mut shape = index.dims().to_vec();
    shape.push(width);
    rows.reshape(&shape)
}

/// Gradient of [`embedding`] with respect to the weights: `dy [B, T, D]`, `index [B, T]` -> `[V, D]`.
///
/// # Errors
/// As for [`select_add`].
pub(crate) fn embedding_backward(
    weights: &CudaTensor,
    dy: &CudaTensor,
    index: &CudaTensor,
) -> Result<CudaTensor> {
    const OP: &str = "embedding_backward";
    let [_, width] = *weights.dims() else {
        return Err(shape_error(OP, "the weights must have two dimensions".into(), &[weights, dy, index]));
    };
    if index.len().checked_mul(width) != Some(dy.len()) {
        return Err(shape_error(
            OP,
            "the gradient must be a row for each index".into(),
            &[weights, dy, index],
        ));
    }
    let zeros = zeros(weights.device(), weights.layout().shape().clone(), dy.dtype(), OP)?;
    let rows = dy.reshape(&[index.len(), width])?;
    select_with(OP, zeros, 0, &index.reshape(&[index.len()])?, &rows)
}

/// `x` with the elements that `slices` name replaced by `value`, which broadcasts to their shape.
///
/// # Errors
/// `Error::Shape`, `Error::DType`, `Error::Device`.
pub(crate) fn slice_assign(x: CudaTensor, slices: &[Slice], value: CudaTensor) -> Result<CudaTensor> {
    const OP: &str = "slice_assign";
    check::same_dtype(OP, &[&x, &value])?;
    check::same_device(OP, &[&x, &value])?;
    let shape_of = |x: &CudaTensor| {
        x.layout().slice(slices).ok_or_else(|| {
            shape_error(OP, format!("{} ranges for a tensor of fewer dimensions", slices.len()), &[x])
        })
    };
    let part = shape_of(&x)?;
    if value.layout().expand(part.dims()).is_none() {
        return Err(shape_error(
            OP,
            format!("the value does not fit the range's shape {:?}", part.dims()),
            &[&x, &value],
        ));
    }
    if part.is_empty() {
        return Ok(x);
    }
    let x = writable(x, OP)?;
    copy_into(&x.with_layout(shape_of(&x)?), &value)?;
    Ok(x)
}

/// Tensors joined along `dim`; they agree in all other dimensions.
///
/// # Errors
/// `Error::Argument` for no tensor, `Error::Shape`, `Error::DType`, `Error::Device`.
pub(crate) fn cat(tensors: &[CudaTensor], dim: usize) -> Result<CudaTensor> {
    const OP: &str = "cat";
    let Some(first) = tensors.first() else {
        return Err(Error::Argument { op: OP, detail: "there is no tensor to join".into() });
    };
    let all: Vec<&CudaTensor> = tensors.iter().collect();
    check::same_dtype(OP, &all)?;
    check::same_device(OP, &all)?;
    check::dim(OP, first, dim)?;
    let mut shape = first.dims().to_vec();
    shape[dim] = 0;
    for t in tensors {
        let fits =
            t.dims().len() == shape.len() && (0..shape.len()).all(|d| d == dim || t.dims()[d] == shape[d]);
        if !fits {
            return Err(shape_error(OP, format!("shapes may differ in dimension {dim} only"), &all));
        }
        shape[dim] = shape[dim].saturating_add(t.dims()[dim]);
    }
    if let [one] = tensors {
        return Ok(one.clone());
    }
    let out = CudaTensor::empty(first.device(), Shape::from(shape), first.dtype(), OP)?;
    let mut start = 0;
    for t in tensors {
        let size = t.dims()[dim];
        if !t.is_empty() {
            copy_into(&out.with_layout(out.layout().narrow(dim, start, size)), t)?;
        }
        start += size;
    }
    Ok(out)
}

/// `layout` with a dimension of size `times` in front of `dim`, and the stride that it has there.
fn with_loop(layout: &Layout, dim: usize, times: usize, stride: i64, size: usize) -> Layout {
    let mut shape = layout.dims().to_vec();
    let mut strides: Strides = layout.strides().into();
    shape[dim] = size;
    shape.insert(dim, times);
    strides.insert(dim, stride);
    Layout::new(Shape::from(shape), strides, layout.offset())
}

/// `x` repeated `times` times along `dim`.
///
/// # Errors
/// `Error::Shape` if there is no such dimension, `Error::TooLarge`.
pub(crate) fn repeat_dim(x: &CudaTensor, dim: usize, times: usize) -> Result<CudaTensor> {
    const OP: &str = "repeat_dim";
    check::dim(OP, x, dim)?;
    if times == 1 {
        return Ok(x.clone());
    }
    let size = x.dims()[dim];
    let mut shape = x.dims().to_vec();
    shape[dim] = size.saturating_mul(times);
    let out = CudaTensor::empty(x.device(), Shape::from(shape), x.dtype(), OP)?;
    if !out.is_empty() {
        let step = out.layout().strides()[dim] * size as i64;
        let to = out.with_layout(with_loop(out.layout(), dim, times, step, size));
        copy_into(&to, &x.with_layout(with_loop(x.layout(), dim, 1, 0, size)))?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_is_one_more_loop_over_the_output() {
        let out = Layout::contiguous(Shape::from(vec![2, 6, 4]));
        let to = with_loop(&out, 1, 3, 8, 2);
        assert_eq!((to.dims(), to.strides()), (&[2, 3, 2, 4][..], &[24, 8, 4, 1][..]));
    }
}
