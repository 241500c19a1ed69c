//! Views: new layouts over the same storage. None of them touches the device.

use burn_backend::{Slice, TensorMetadata};

use crate::error::{Error, Result};
use crate::layout::{Layout, checked_len};
use crate::tensor::CudaTensor;

fn view(
    op: &'static str,
    x: CudaTensor,
    layout: Option<Layout>,
    detail: impl FnOnce() -> String,
) -> Result<CudaTensor> {
    match layout {
        Some(layout) => Ok(x.into_layout(layout)),
        None => Err(Error::Shape { op, detail: detail(), shapes: vec![x.dims().to_vec()] }),
    }
}

/// Two dimensions exchanged.
pub(crate) fn swap_dims(x: CudaTensor, dim1: usize, dim2: usize) -> Result<CudaTensor> {
    let layout = x.layout().swap_dims(dim1, dim2);
    view("swap_dims", x, layout, || format!("there is no dimension {}", dim1.max(dim2)))
}

/// The last two dimensions exchanged.
pub(crate) fn transpose(x: CudaTensor) -> Result<CudaTensor> {
    let rank = x.layout().rank();
    let layout = rank.checked_sub(2).and_then(|d| x.layout().swap_dims(d, rank - 1));
    view("transpose", x, layout, || "a tensor of two dimensions or more is needed".into())
}

/// Dimensions in the order of `axes`.
pub(crate) fn permute(x: CudaTensor, axes: &[usize]) -> Result<CudaTensor> {
    let layout = x.layout().permute(axes);
    view("permute", x, layout, || format!("{axes:?} does not name each dimension once"))
}

/// Dimensions reversed.
pub(crate) fn flip(x: CudaTensor, axes: &[usize]) -> Result<CudaTensor> {
    let layout = x.layout().flip(axes);
    view("flip", x, layout, || format!("{axes:?} names a dimension that is not there"))
}

/// Dimensions of size 1 stretched to `shape`.
pub(crate) fn expand(x: CudaTensor, shape: &[usize]) -> Result<CudaTensor> {
    if checked_len(shape, x.elem().size_bytes()).is_none() {
        return Err(Error::TooLarge { op: "expand", shape: shape.to_vec(), dtype: x.dtype() });
    }
    let layout = x.layout().expand(shape);
    view("expand", x, layout, || format!("cannot be expanded to {shape:?}"))
}

/// Windows of `size` every `step` along `dim`, as a new last dimension.
pub(crate) fn unfold(x: CudaTensor, dim: usize, size: usize, step: usize) -> Result<CudaTensor> {
    let layout = x.layout().unfold(dim, size, step);
    view("unfold", x, layout, || format!("no windows of {size} every {step} along dimension {dim}"))
}

/// A range of each dimension.
pub(crate) fn slice(x: CudaTensor, slices: &[Slice]) -> Result<CudaTensor> {
    let layout = x.layout().slice(slices);
    view("slice", x, layout, || format!("{} ranges for a tensor of fewer dimensions", slices.len()))
}
