//! A tensor on a CUDA device: shared storage, a layout over it, and a dtype.
//!
//! Clones and views share the storage. An op that would write into storage that others hold writes into a fresh one
//! instead: `CudaTensor::is_unique` is the test, and it is safe because the last owner cannot be cloned behind its
//! back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use burn_backend::{Shape, TensorMetadata};
use burn_std::DType;

use crate::device::Device;
use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::faults::Range;
use crate::layout::{Layout, checked_len};
use crate::memory::{Block, PoolId};
use crate::ops;

/// A block of device memory, and what its values depend on.
#[derive(Debug)]
pub(crate) struct Storage {
    block: Block,
    device: &'static Device,
    /// The capture whose memory this is.
    pool: Option<PoolId>,
    /// A captured plan writes here at each replay.
    slot: AtomicBool,
    /// The tickets of possible faults (see `faults`).
    first_fault: AtomicU64,
    last_fault: AtomicU64,
}

impl Storage {
    pub(crate) fn pool(&self) -> Option<PoolId> {
        self.pool
    }

    /// Notes that a captured plan writes here at each replay.
    pub(crate) fn set_slot(&self) {
        self.slot.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_slot(&self) -> bool {
        self.slot.load(Ordering::Relaxed)
    }

    pub(crate) fn faults(&self) -> Range {
        Range {
            first: self.first_fault.load(Ordering::Relaxed),
            last: self.last_fault.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn set_faults(&self, range: Range) {
        self.first_fault.store(range.first, Ordering::Relaxed);
        self.last_fault.store(range.last, Ordering::Relaxed);
    }
}

/// A tensor on a CUDA device. Clones share the memory.
#[derive(Clone)]
pub struct CudaTensor {
    storage: Arc<Storage>,
    layout: Layout,
    dtype: DType,
    elem: Elem,
}

impl CudaTensor {
    /// An uninitialised row-major tensor. `op` is named in errors.
    ///
    /// # Errors
    /// `Error::TooLarge`, `Error::OutOfMemory`, `Error::DType`.
    pub(crate) fn empty(
        device: &'static Device,
        shape: impl Into<Shape>,
        dtype: DType,
        op: &'static str,
    ) -> Result<CudaTensor> {
        let shape = shape.into();
        let elem = Elem::of(op, dtype)?;
        let len = checked_len(shape.as_slice(), elem.size_bytes()).ok_or_else(|| Error::TooLarge {
            op,
            shape: shape.to_vec(),
            dtype,
        })?;
        let block =
            device.allocator.alloc(len * elem.size_bytes()).map_err(|error| match device.note(error) {
                dead @ Error::ContextDead { .. } => dead,
                error => Error::In {
                    op,
                    shapes: vec![shape.to_vec()],
                    dtypes: vec![dtype],
                    source: Box::new(error),
                },
            })?;
        let storage = Arc::new(Storage {
            block,
            device,
            pool: crate::driver::graph::current_pool(),
            slot: AtomicBool::new(false),
            first_fault: AtomicU64::new(0),
            last_fault: AtomicU64::new(0),
        });
        Ok(CudaTensor { storage, layout: Layout::contiguous(shape), dtype, elem })
    }

    /// An uninitialised row-major tensor of the same shape, dtype and device.
    pub(crate) fn empty_like(&self, op: &'static str) -> Result<CudaTensor> {
        CudaTensor::empty(self.device(), self.layout.shape().clone(), self.dtype, op)
    }

    pub(crate) fn device(&self) -> &'static Device {
        self.storage.device
    }

    pub(crate) fn elem(&self) -> Elem {
        self.elem
    }

    /// The layout over the storage.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// The sizes of the dimensions.
    pub fn dims(&self) -> &[usize] {
        self.layout.dims()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.layout.is_empty()
    }

    /// The device address of the element with all indices 0. Not meaningful for an empty tensor.
    pub fn ptr(&self) -> u64 {
        self.storage.block.ptr().wrapping_add_signed(self.layout.offset() * self.elem.size_bytes() as i64)
    }

    /// Whether the first element's address is a multiple of `bytes`.
    pub(crate) fn aligned_to(&self, bytes: usize) -> bool {
        self.ptr().is_multiple_of(bytes as u64)
    }

    /// Whether no other tensor shares the storage, so that it may be overwritten. A capture must not overwrite its
    /// inputs, which each replay reads again, nor anybody else a graph's outputs, which each replay writes again.
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.storage) == 1 && self.storage.pool == crate::driver::graph::current_pool()
    }

    /// Whether the storage begins with the first element and has room for no more of them.
    pub(crate) fn fills_storage(&self) -> bool {
        self.layout.offset() == 0 && self.len() * self.elem.size_bytes() == self.storage.block.size_bytes()
    }

    /// Another view of the same storage. The layout must stay inside it.
    pub(crate) fn with_layout(&self, layout: Layout) -> CudaTensor {
        debug_assert!(layout.span().is_none_or(|(low, high)| {
            low >= 0
                && (high as u64 + 1) * self.elem.size_bytes() as u64 <= self.storage.block.size_bytes() as u64
        }));
        CudaTensor { storage: self.storage.clone(), layout, dtype: self.dtype, elem: self.elem }
    }

    /// As [`CudaTensor::with_layout`], keeping the storage unique if it was.
    pub(crate) fn into_layout(mut self, layout: Layout) -> CudaTensor {
        self.layout = layout;
        self
    }

    /// The same bits under another dtype of the same size (bool stores, Flex32).
    pub(crate) fn with_dtype(mut self, dtype: DType, op: &'static str) -> Result<CudaTensor> {
        let elem = Elem::of(op, dtype)?;
        if elem.size_bytes() != self.elem.size_bytes() {
            return Err(Error::DType {
                op,
                detail: "the two dtypes differ in size".into(),
                dtypes: vec![self.dtype, dtype],
            });
        }
        (self.dtype, self.elem) = (dtype, elem);
        Ok(self)
    }

    /// Itself when the elements lie in row-major order without gaps (from any offset), else a copy that does.
    pub(crate) fn contiguous(&self) -> Result<CudaTensor> {
        if self.layout.is_contiguous() {
            return Ok(self.clone());
        }
        let out = self.empty_like("contiguous")?;
        ops::elementwise::copy_into(&out, self)?;
        Ok(out)
    }

    /// The same elements in row-major order under another shape: a view where the strides allow it, else a copy.
    ///
    /// # Errors
    /// `Error::Shape` if the number of elements differs.
    pub(crate) fn reshape(&self, shape: &[usize]) -> Result<CudaTensor> {
        if checked_len(shape, 1) != Some(self.len()) {
            return Err(Error::Shape {
                op: "reshape",
                detail: "the number of elements differs".into(),
                shapes: vec![self.dims().to_vec(), shape.to_vec()],
            });
        }
        if let Some(layout) = self.layout.reshape(shape) {
            return Ok(self.with_layout(layout));
        }
        let copy = self.contiguous()?;
        let layout =
            Layout::new(Shape::from(shape.to_vec()), crate::layout::row_major(shape), copy.layout.offset());
        Ok(copy.into_layout(layout))
    }
}

impl std::fmt::Debug for CudaTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaTensor")
            .field("device", &format_args!("cuda:{}", self.device().index))
            .field("dtype", &self.dtype)
            .field("layout", &self.layout)
            .finish()
    }
}

impl TensorMetadata for CudaTensor {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> Shape {
        self.layout.shape().clone()
    }

    fn rank(&self) -> usize {
        self.layout.rank()
    }
}

/// Checks that many ops share. Each error names the op.
pub(crate) mod check {
    use super::*;

    pub(crate) fn same_device(op: &'static str, tensors: &[&CudaTensor]) -> Result<()> {
        let first = tensors[0].device().index;
        match tensors.iter().find(|t| t.device().index != first) {
            Some(other) => Err(Error::Device { op, lhs: first, rhs: other.device().index }),
            None => Ok(()),
        }
    }

    pub(crate) fn same_dtype(op: &'static str, tensors: &[&CudaTensor]) -> Result<()> {
        if tensors.iter().all(|t| t.elem == tensors[0].elem) {
            return Ok(());
        }
        Err(Error::DType {
            op,
            detail: "the operands' dtypes differ; cast one of them first".into(),
            dtypes: tensors.iter().map(|t| t.dtype).collect(),
        })
    }

    pub(crate) fn shape(op: &'static str, tensor: &CudaTensor, expected: &[usize]) -> Result<()> {
        if tensor.dims() == expected {
            return Ok(());
        }
        Err(Error::Shape {
            op,
            detail: format!("expected shape {expected:?}"),
            shapes: vec![tensor.dims().to_vec()],
        })
    }

    pub(crate) fn dim(op: &'static str, tensor: &CudaTensor, dim: usize) -> Result<()> {
        if dim < tensor.layout.rank() {
            return Ok(());
        }
        Err(Error::Shape {
            op,
            detail: format!("there is no dimension {dim}"),
            shapes: vec![tensor.dims().to_vec()],
        })
    }

    pub(crate) fn float(op: &'static str, tensor: &CudaTensor) -> Result<()> {
        if tensor.elem.is_float() {
            return Ok(());
        }
        Err(Error::DType { op, detail: "a float tensor is needed".into(), dtypes: vec![tensor.dtype] })
    }

    pub(crate) fn int(op: &'static str, tensor: &CudaTensor) -> Result<()> {
        if tensor.elem.is_int() {
            return Ok(());
        }
        Err(Error::DType { op, detail: "an integer tensor is needed".into(), dtypes: vec![tensor.dtype] })
    }
}
