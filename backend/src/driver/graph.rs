//! Capturing work into a CUDA graph, and replaying it.
//!
//! A capture belongs to the thread that begins it: from then on that thread's work goes to a stream of its own, which
//! is being captured, while other threads go on with the device's stream. Memory that the thread allocates comes from
//! a pool that belongs to the graph, so no address inside the graph is handed to others while the graph lives. Tensors
//! from outside that the captured work uses are kept by the graph. Replays run on the device's stream.
//! Reads and synchronisation are refused during a capture.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

use cudarc::driver::sys;

use super::check;
use super::context::{Context, RelaxedCapture};
use crate::device::Device;
use crate::error::Result;
use crate::faults::{FaultTable, Range};
use crate::memory::PoolId;
use crate::tensor::{CudaTensor, Storage};

thread_local! {
    /// The device that this thread captures, as the address of its context (0 for none), the stream that stands in, and
    /// the pool that memory comes from.
    static CAPTURING: Cell<(usize, sys::CUstream, Option<PoolId>)> = const { Cell::new((0, std::ptr::null_mut(), None)) };
    /// What the graph under capture must keep.
    static KEPT: RefCell<Kept> = const {
        RefCell::new(Kept { storages: Vec::new(), written: Vec::new(), tickets: Vec::new(), others: Vec::new() })
    };
}

#[derive(Default)]
struct Kept {
    /// From outside the graph's pool, read or written.
    storages: Vec<Arc<Storage>>,
    /// Written; those that outlive the capture take over the faults of what the graph reads.
    written: Vec<Weak<Storage>>,
    /// The tickets of operations that check indices.
    tickets: Vec<u64>,
    others: Vec<Box<dyn Any + Send>>,
}

/// The stream that stands in for `context`'s while this thread captures it.
pub(crate) fn capture_stream(context: &Context) -> Option<sys::CUstream> {
    let (at, stream, _) = CAPTURING.get();
    (at == std::ptr::from_ref(context).addr()).then_some(stream)
}

/// The pool of the graph that this thread captures.
pub(crate) fn current_pool() -> Option<PoolId> {
    CAPTURING.get().2
}

/// Notes what work does to storages, for the graph under capture: it keeps those that are not its own pool's. Nothing
/// happens outside a capture.
pub(crate) fn keep(written: &[&CudaTensor], read: &[&CudaTensor], faults: Option<FaultTable>) {
    let Some(pool) = current_pool() else { return };
    KEPT.with_borrow_mut(|kept| {
        for storage in written.iter().chain(read).map(|t| t.storage()) {
            if storage.pool() != Some(pool) && !kept.storages.iter().any(|s| Arc::ptr_eq(s, storage)) {
                kept.storages.push(storage.clone());
            }
        }
        for storage in written.iter().map(|t| t.storage()) {
            if !kept.written.iter().any(|s| Weak::as_ptr(s) == Arc::as_ptr(storage)) {
                kept.written.push(Arc::downgrade(storage));
            }
        }
        kept.tickets.extend(faults.map(|f| f.ticket()));
    });
}

/// Makes the graph under capture own a value, for example a staging buffer that it copies from.
/// Gives it back outside a capture.
pub(crate) fn keep_value<T: Send + 'static>(value: T) -> Option<T> {
    if current_pool().is_none() {
        return Some(value);
    }
    KEPT.with_borrow_mut(|kept| kept.others.push(Box::new(value)));
    None
}

/// Work that was captured once and can be replayed.
///
/// A replay reads and writes the same addresses as the captured work: inputs are those tensors' memory as it is at the
/// time of the replay, outputs appear in the tensors that the capture returned.
pub struct Graph {
    exec: sys::CUgraphExec,
    device: &'static Device,
    pool: PoolId,
    kept: Kept,
    nodes: usize,
}

// SAFETY: the driver lets any thread use the handle; launches go through `&self` on one stream.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

/// Ends the capture when `f` of [`Graph::capture`] panics or fails half-way.
struct Running {
    device: &'static Device,
    stream: sys::CUstream,
    pool: PoolId,
    ended: bool,
}

impl Running {
    fn end(&mut self) -> Result<sys::CUgraph> {
        self.ended = true;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is being captured by this thread.
        let status = unsafe { sys::cuStreamEndCapture(self.stream, &mut graph) };
        CAPTURING.set((0, std::ptr::null_mut(), None));
        self.device.allocator.end_pool(self.pool);
        check("cuStreamEndCapture", status)?;
        Ok(graph)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            if let Ok(graph) = self.end() {
                // SAFETY: the graph was just made and is used by nobody.
                let _ = unsafe { sys::cuGraphDestroy(graph) };
            }
            drop(KEPT.take());
            self.device.allocator.release_pool(self.pool);
        }
        // SAFETY: the stream was made for this capture, which is over.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
    }
}

impl Graph {
    /// Runs `f` once with its device work captured instead of executed.
    ///
    /// # Errors
    /// A driver error when the capture is not possible or was broken; the device can be used as before.
    pub(crate) fn capture<R>(device: &'static Device, f: impl FnOnce() -> R) -> Result<(R, Graph)> {
        device.enter()?;
        device.not_capturing("capture")?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current and `stream` a valid place.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is new and idle.
        let begun = check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream, mode) });
        if let Err(error) = begun {
            // SAFETY: the stream is unused.
            let _ = unsafe { sys::cuStreamDestroy_v2(stream) };
            return Err(error);
        }
        let pool = device.allocator.begin_pool();
        CAPTURING.set((std::ptr::from_ref(device.context).addr(), stream, Some(pool)));
        let mut running = Running { device, stream, pool, ended: false };
        let result = f();
        let graph = match running.end() {
            Ok(graph) => graph,
            Err(error) => {
                drop(KEPT.take());
                device.allocator.release_pool(pool);
                return Err(error);
            }
        };
        let mut kept = KEPT.take();
        kept.written.retain(|storage| storage.strong_count() > 0);
        device.faults.capture(&kept.tickets);
        let mut nodes = 0;
        // SAFETY: with a null array the call only counts.
        let counted = unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes) };
        let mut exec = std::ptr::null_mut();
        // SAFETY: `graph` is valid and `exec` a valid place.
        let status = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) };
        // SAFETY: the executable graph does not need the template any more.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        if let Err(error) = check("cuGraphGetNodes", counted).and(check("cuGraphInstantiate", status)) {
            device.faults.release(&kept.tickets);
            device.allocator.release_pool(pool);
            return Err(error);
        }
        Ok((result, Graph { exec, device, pool, kept, nodes }))
    }

    /// Queues one replay on the device's stream.
    ///
    /// # Errors
    /// A driver error; `Error::Capturing` while this thread captures.
    pub fn launch(&self) -> Result<()> {
        self.device.enter()?;
        self.device.not_capturing("graph launch")?;
        let faults = &self.device.faults;
        faults.rerun(&self.kept.tickets);
        let stream = self.device.context.stream();
        // SAFETY: the executable graph lives, and so does all memory that it uses (module docs).
        let status = unsafe { sys::cuGraphLaunch(self.exec, stream) };
        check("cuGraphLaunch", status).map_err(|e| self.device.note(e))?;
        self.device.count_graph_launch();
        // What the graph writes depends on what it reads now, and on its own operations.
        let own = self.kept.tickets.iter().map(|&ticket| Range { first: ticket, last: ticket });
        let read = self.kept.storages.iter().map(|storage| faults.prune(storage.faults()));
        let range = own.chain(read).fold(Range::default(), Range::join);
        for storage in self.kept.written.iter().filter_map(Weak::upgrade) {
            storage.set_faults(range);
        }
        Ok(())
    }

    /// The number of nodes (kernels, copies and fills).
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A replay may still run; its memory must not be given to others before it has ended. Another graph of this
        // thread may be under capture.
        let relaxed = RelaxedCapture::enter();
        if relaxed.is_ok() && self.device.context.synchronize().is_ok() {
            // SAFETY: no replay is pending.
            let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
        }
        self.device.faults.release(&self.kept.tickets);
        self.device.allocator.release_pool(self.pool);
    }
}
