//! Copies between host and device, and between devices.
//!
//! Both directions go through pinned buffers: an upload returns as soon as the bytes are in one, a download waits for
//! the device. Large tensors go in pieces, so that the host's copy of one overlaps with the transfer of another.

use std::collections::VecDeque;

use burn_backend::{Shape, TensorData, TensorMetadata};
use burn_std::DType;

use crate::device::Device;
use crate::driver::graph;
use crate::error::{Error, Result};
use crate::memory::staging::{PinnedDriver, Staging};
use crate::ops::elementwise;
use crate::tensor::CudaTensor;

/// Bytes of one piece: large enough to reach the bus's speed, small enough to overlap.
const PIECE_BYTES: usize = 16 << 20;
/// Pieces in flight.
const PIECES: usize = 3;
/// Pieces in flight when they are small: each has a pinned buffer, which is slow to make.
const SMALL_PIECES: usize = 64;

/// A tensor with the data's shape and dtype. Returns before the device has the bytes.
///
/// # Errors
/// `Error::DType`, `Error::OutOfMemory`, `Error::Argument` if the bytes do not match the shape.
#[allow(unsafe_code)]
pub(crate) fn from_data(data: TensorData, device: &'static Device, op: &'static str) -> Result<CudaTensor> {
    let out = CudaTensor::empty(device, data.shape.clone(), data.dtype, op)?;
    let bytes: &[u8] = data.as_bytes();
    if bytes.len() != out.len() * out.elem().size_bytes() {
        return Err(Error::Argument {
            op,
            detail: format!("{} bytes of data for shape {:?} of {:?}", bytes.len(), data.shape, data.dtype),
        });
    }
    if bytes.is_empty() {
        return Ok(out);
    }
    device.enter()?;
    let mut in_flight = VecDeque::new();
    for (k, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
        if in_flight.len() == PIECES
            && let Some(ticket) = in_flight.pop_front()
        {
            device.timeline.wait(ticket).map_err(|e| device.note(e))?;
        }
        let staging = device.staging.take(piece.len())?;
        // SAFETY: the buffer holds at least this many bytes and nobody else uses it.
        unsafe { staging.as_mut_ptr().copy_from_nonoverlapping(piece.as_ptr(), piece.len()) };
        let target = out.ptr() + (k * PIECE_BYTES) as u64;
        // SAFETY: both ranges are this long; the staging buffer is handed out again only after its ticket has passed, or
        // belongs to the graph under capture.
        let copied = unsafe { device.context.copy_to_device(target, staging.as_mut_ptr(), piece.len()) };
        copied.map_err(|e| device.note(e))?;
        if let Some(staging) = graph::keep_value(staging) {
            let ticket = device.timeline.record().map_err(|e| device.note(e))?;
            staging.retire(ticket);
            in_flight.push_back(ticket);
        }
    }
    device.used(&[&out], &[], None);
    Ok(out)
}

/// Writes 8-byte words to the beginning of a tensor; returns before the device has them.
///
/// # Errors
/// `Error::Argument` if the tensor holds fewer bytes; a driver error.
#[allow(unsafe_code)]
pub(crate) fn upload_words(target: &CudaTensor, words: &[u64]) -> Result<()> {
    let bytes: &[u8] = bytemuck::cast_slice(words);
    if bytes.len() > target.len() * target.elem().size_bytes() || !target.layout().is_contiguous() {
        let detail = format!("{} bytes do not fit a tensor of {:?}", bytes.len(), target.dims());
        return Err(Error::Argument { op: "upload", detail });
    }
    if bytes.is_empty() {
        return Ok(());
    }
    let device = target.device();
    device.enter()?;
    let staging = device.staging.take(bytes.len())?;
    // SAFETY: the buffer holds at least this many bytes and nobody else uses it.
    unsafe { staging.as_mut_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    // SAFETY: both ranges are this long; the staging buffer is handed out again only after its ticket has passed.
    let copied = unsafe { device.context.copy_to_device(target.ptr(), staging.as_mut_ptr(), bytes.len()) };
    copied.map_err(|e| device.note(e))?;
    let ticket = device.timeline.record().map_err(|e| device.note(e))?;
    staging.retire(ticket);
    device.used(&[target], &[], None);
    Ok(())
}

/// Copies `source` over `target` of the same shape and dtype; without a kernel where both lie in one order without gaps.
///
/// # Errors
/// `Error::Shape`, `Error::Launch`, a driver error.
#[allow(unsafe_code)]
pub(crate) fn copy(target: &CudaTensor, source: &CudaTensor) -> Result<()> {
    let plain = target.layout().steps_as(source.layout()) && source.layout().is_packed();
    if !plain || target.dtype() != source.dtype() {
        return elementwise::copy_into(target, source);
    }
    if source.is_empty() || source.ptr() == target.ptr() {
        return Ok(());
    }
    let device = target.device();
    device.enter()?;
    let bytes = source.len() * source.elem().size_bytes();
    // SAFETY: tensors without gaps cover exactly these ranges of live storages; two tensors that overlap without being
    // the same do not reach this, since callers copy between storages.
    unsafe { device.context.copy_on_device(target.ptr(), source.ptr(), bytes) }
        .map_err(|e| device.note(e))?;
    device.used(&[target], &[source], None);
    Ok(())
}

/// The tensor's elements; waits for the device.
///
/// # Errors
/// The fault that the values depend on, if a kernel met one; `Error::ContextDead`; `Error::Capturing`.
pub(crate) fn into_data(tensor: CudaTensor) -> Result<TensorData> {
    let mut all = into_data_many(vec![tensor])?;
    Ok(all.remove(0))
}

/// As [`into_data`] for many tensors, with one wait where they are small.
pub(crate) fn into_data_many(tensors: Vec<CudaTensor>) -> Result<Vec<TensorData>> {
    let tensors = tensors.iter().map(CudaTensor::contiguous).collect::<Result<Vec<_>>>()?;
    let mut bytes: Vec<Vec<u8>> = Vec::with_capacity(tensors.len());
    let mut pending: VecDeque<Piece> = VecDeque::new();
    let mut on_the_way = 0;
    for (k, tensor) in tensors.iter().enumerate() {
        let len = tensor.len() * tensor.elem().size_bytes();
        bytes.push(vec![0; len]);
        let device = tensor.device();
        device.enter()?;
        device.not_capturing("into_data")?;
        let mut start = 0;
        while start < len {
            let size = (len - start).min(PIECE_BYTES);
            // Small tensors are on the way before the first wait.
            while (on_the_way + size > PIECES * PIECE_BYTES || pending.len() == SMALL_PIECES)
                && let Some(piece) = pending.pop_front()
            {
                on_the_way -= piece.size;
                finish(piece, &mut bytes)?;
            }
            pending.push_back(begin(tensor, k, start, size)?);
            on_the_way += size;
            start += size;
        }
    }
    while let Some(piece) = pending.pop_front() {
        finish(piece, &mut bytes)?;
    }
    let mut waited: Vec<usize> = Vec::new();
    for tensor in &tensors {
        if !waited.contains(&tensor.device().index) {
            tensor.device().wait("into_data")?;
            waited.push(tensor.device().index);
        }
        if let Some(fault) = tensor.device().faults.report(tensor.storage().faults()) {
            return Err(fault);
        }
    }
    Ok(tensors
        .iter()
        .zip(bytes)
        .map(|(t, bytes)| TensorData::from_bytes_vec(bytes, t.shape(), t.dtype()))
        .collect())
}

/// A part of a tensor on its way to the host.
struct Piece {
    device: &'static Device,
    staging: Staging,
    ticket: u64,
    tensor: usize,
    start: usize,
    size: usize,
}

#[allow(unsafe_code)]
fn begin(tensor: &CudaTensor, index: usize, start: usize, size: usize) -> Result<Piece> {
    let device = tensor.device();
    let staging = device.staging.take(size)?;
    // SAFETY: both ranges are this long; the buffer is read only after its ticket has passed.
    let copied =
        unsafe { device.context.copy_to_host(staging.as_mut_ptr(), tensor.ptr() + start as u64, size) };
    copied.map_err(|e| device.note(e))?;
    let ticket = device.timeline.record().map_err(|e| device.note(e))?;
    Ok(Piece { device, staging, ticket, tensor: index, start, size })
}

#[allow(unsafe_code)]
fn finish(piece: Piece, bytes: &mut [Vec<u8>]) -> Result<()> {
    piece.device.timeline.wait(piece.ticket).map_err(|e| piece.device.note(e))?;
    let target = &mut bytes[piece.tensor][piece.start..piece.start + piece.size];
    // SAFETY: the copy into the buffer is complete, and the buffer holds at least this many bytes.
    let source = unsafe { std::slice::from_raw_parts(piece.staging.as_mut_ptr(), piece.size) };
    target.copy_from_slice(source);
    piece.staging.release();
    Ok(())
}

/// The tensor on another device; itself when it is there already. Returns before the bytes have arrived: the devices'
/// streams wait for each other, the host for neither.
///
/// # Errors
/// `Error::OutOfMemory`, a driver error, `Error::Capturing`: a graph belongs to one device.
#[allow(unsafe_code)]
pub(crate) fn to_device(tensor: CudaTensor, device: &'static Device) -> Result<CudaTensor> {
    const OP: &str = "to_device";
    let from = tensor.device();
    if from.index == device.index {
        return Ok(tensor);
    }
    from.not_capturing(OP)?;
    let source = tensor.contiguous()?;
    let out = CudaTensor::empty(device, source.layout().shape().clone(), source.dtype(), OP)?;
    if out.is_empty() {
        return Ok(out);
    }
    from.enter()?;
    device.enter()?;
    let bytes = source.len() * source.elem().size_bytes();
    // SAFETY: contiguous tensors cover exactly these ranges of live storages on these devices.
    let copied = unsafe { from.context.copy_to_peer(device.context, out.ptr(), source.ptr(), bytes) };
    copied.map_err(|error| from.note(error).within(OP, &[&source]))?;
    let faults = from.faults.prune(source.storage().faults());
    if !faults.is_none() {
        out.storage().set_faults(device.faults.inherit(&from.faults, faults));
    }
    Ok(out)
}

/// An uninitialised tensor.
pub(crate) fn empty(
    device: &'static Device,
    shape: Shape,
    dtype: DType,
    op: &'static str,
) -> Result<CudaTensor> {
    CudaTensor::empty(device, shape, dtype, op)
}
