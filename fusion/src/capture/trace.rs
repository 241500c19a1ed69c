//! Traces: what a thread has recorded for a device and nobody has run yet.
//!
//! A thread appends each operation to its trace and goes on at once. The trace runs
//!
//! - when its own thread reads a value, syncs, marks a step, or reaches the [`Budget`];
//! - when it equals a known plan and the thread appends the next operation. It is *sealed* when its last operation is
//!   appended, but which values are still wanted is looked up when it runs: a trainer still holds the old model while
//!   the last operation of the optimizer is recorded. If it can grow into a longer known plan, recording goes on; the
//!   first operation that leaves the longer plan runs the shorter one, and the rest begins a new trace;
//! - when another thread reads a value of it. If it equals a known plan, that is run. If it is on the way to one, the
//!   reader waits for it, at most [`FOREIGN_WAIT`] while the owner could go on recording, so that a metrics thread does not give each step another key. Else
//!   it is cut at the first boundary after the value, a boundary being the point before the first use of an upload: the
//!   next batch, and what the next step does before it uses it. The first boundary and not the last, since a batch has
//!   several tensors that are used at different points.
//!
//! Locks: a thread that holds a trace's lock takes no other trace's and runs nothing; a [`Job`] runs without any.

mod record;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use burn_backend::Scalar;
use burn_std::DType;
use kiln_surface::{Kind, Meta, Op, ScalarSlot, ValueId, infer_with};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::device::{DeviceState, lock};
use super::plans::{self, Counts, MAX_STEPS, Step};
use super::run::Job;
use super::tensor::{FusionTensor, Handle, MAX_VALUES, Place, Stage};
use crate::compiler::{DrawState, GraphCompiler};
use crate::explain::{Cut, Miss};
use crate::interpret::message;

pub(crate) use record::{Recorder, Site, settle};

/// How long a foreign read waits for a trace to become a known plan.
pub(crate) const FOREIGN_WAIT: Duration = Duration::from_millis(5);

/// How long it waits at most while the owner is busy running something, such as the first compilation of kernels. Then
/// the owner may be waiting for the reader.
const BUSY_WAIT: Duration = Duration::from_secs(10);

/// A number for the calling thread.
pub(crate) fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // While the thread ends, its number may be gone; a fresh one owns no trace, which is right then.
    NUMBER.try_with(|number| *number).unwrap_or_else(|_| NEXT.fetch_add(1, Ordering::Relaxed))
}

fn next_trace() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// One thread's recording for one device.
pub(crate) struct Tracer<B: GraphCompiler> {
    pub(crate) thread: u64,
    pub(crate) device: &'static DeviceState<B>,
    trace: Mutex<Trace<B>>,
    /// The trace has been taken, in whole or in part.
    taken: Condvar,
    /// The thread that records is running something and cannot go on recording.
    busy: AtomicBool,
    /// Other threads that are running parts of this trace.
    helpers: AtomicUsize,
}

/// The outputs of one operation.
pub(crate) type Outs<B> = SmallVec<[FusionTensor<B>; 2]>;

struct Trace<B: GraphCompiler> {
    id: u64,
    root: Arc<Step<B>>,
    /// The last operation.
    cursor: Arc<Step<B>>,
    counts: Counts,
    /// By value number.
    values: Vec<Arc<Handle<B>>>,
    scalars: Vec<Scalar>,
    draws: Vec<DrawState>,
    /// Numbers of inputs, for those whose handle has been marked by another trace since.
    inputs: FxHashMap<usize, u32>,
    /// Numbers of nodes that are the first to use an upload.
    boundaries: Vec<u32>,
    /// The trace equals a known plan that none continues.
    sealed: bool,
    /// The length of the longest known plan that the trace has passed.
    passed: Option<u32>,
    /// How many of the operations continued a known sequence.
    followed: u32,
}

impl<B: GraphCompiler> Tracer<B> {
    pub(crate) fn new(device: &'static DeviceState<B>) -> Arc<Self> {
        Arc::new(Tracer {
            thread: thread_number(),
            device,
            trace: Mutex::new(Trace::new(device.nothing())),
            taken: Condvar::new(),
            busy: AtomicBool::new(false),
            helpers: AtomicUsize::new(0),
        })
    }

    pub(crate) fn has_work(&self) -> bool {
        lock(&self.trace).counts.nodes > 0
    }

    /// Runs jobs on the thread that records.
    fn run(&self, jobs: impl IntoIterator<Item = Job<B>>) {
        struct Busy<'a>(&'a AtomicBool);
        impl Drop for Busy<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        for job in jobs {
            self.busy.store(true, Ordering::Release);
            let _busy = Busy(&self.busy);
            job.run();
        }
        self.run_orphans();
    }

    /// Runs what threads have left behind that ended. Only when no job is left to run, since an orphan may wait for it:
    /// after a foreign read has taken the first part of its trace, for one.
    fn run_orphans(&self) {
        for orphan in self.device.take_orphans() {
            orphan.flush(Cut::ThreadEnd);
        }
    }

    /// Runs what is recorded. For the thread that records, or for one that has inherited the trace.
    pub(crate) fn flush(self: &Arc<Self>, cut: Cut) {
        let job = self.take_all(&mut lock(&self.trace), cut);
        self.run(job);
    }

    fn take_all(self: &Arc<Self>, trace: &mut Trace<B>, cut: Cut) -> Option<Job<B>> {
        if trace.counts.nodes == 0 {
            return None;
        }
        let old = std::mem::replace(trace, Trace::new(self.device.nothing()));
        self.taken.notify_all();
        Some(old.into_job(cut))
    }

    /// Takes the first `depth` operations; the others begin a new trace, which may itself pass the ends of plans.
    fn take_prefix(self: &Arc<Self>, trace: &mut Trace<B>, depth: u32, cut: Cut, jobs: &mut Vec<Job<B>>) {
        if depth >= trace.counts.nodes {
            jobs.extend(self.take_all(trace, cut));
            return;
        }
        let mut old = std::mem::replace(trace, Trace::new(self.device.nothing()));
        self.taken.notify_all();
        let rest = old.split(depth);
        jobs.push(old.into_job(cut));
        for recorded in rest {
            self.take_sealed(trace, jobs);
            let first_new = trace.values.len();
            let op = trace.renumber(recorded.op, recorded.inputs, recorded.scalars, recorded.draws);
            let appended = self.append(trace, op, first_new, Results::Known(&recorded.outs), jobs);
            appended.expect("what was recorded once can be recorded again");
        }
    }

    /// Appends an operation whose operands are numbered. What is to run first goes to `jobs`.
    ///
    /// # Errors
    /// If the operands do not fit together; the trace is then as before.
    fn append(
        self: &Arc<Self>,
        trace: &mut Trace<B>,
        mut op: Op,
        mut first_new: usize,
        results: Results<'_, B>,
        jobs: &mut Vec<Job<B>>,
    ) -> Result<Outs<B>, String> {
        let (step, known) = loop {
            if trace.counts.nodes == 0 {
                trace.begin(self.device.root());
            }
            let leaves = &trace.values[first_new..];
            let child = trace.cursor.child(&op, leaves);
            if let Some(depth) = trace.passed
                && !child.is_some_and(|child| child.planned())
            {
                // The longer plan is left: run the shorter one and record what came after it anew.
                let mut operands = Vec::new();
                op.inputs(&mut |value| operands.push(trace.values[value.0 as usize].clone()));
                let scalars = trace.scalars.split_off(trace.counts.scalars as usize);
                let draws = trace.draws.split_off(trace.counts.draws as usize);
                trace.values.truncate(first_new);
                self.take_prefix(trace, depth, Cut::LeftPlan, jobs);
                self.take_sealed(trace, jobs);
                first_new = trace.values.len();
                op = trace.renumber(op, operands, scalars, draws);
                continue;
            }
            if let Some(child) = child {
                break (child.clone(), true);
            }
            // An extension's rule may panic: the operands must not stay behind, and `jobs` must run all the same.
            let infer = AssertUnwindSafe(|| trace.infer(&op, &results, self.device));
            let outs = match catch_unwind(infer).unwrap_or_else(|payload| Err(message(payload))) {
                Ok(outs) => outs,
                Err(error) => {
                    trace.forget_operands(first_new);
                    return Err(error);
                }
            };
            let counts = Counts {
                nodes: trace.counts.nodes + 1,
                values: (trace.values.len() + outs.len()) as u32,
                scalars: trace.scalars.len() as u32,
                draws: trace.draws.len() as u32,
                bytes: outs
                    .iter()
                    .fold(trace.counts.bytes, |sum, (meta, _)| sum.saturating_add(size_bytes(meta))),
            };
            if trace.cursor.children() >= trace.cursor.max_children() || self.device.count_step() >= MAX_STEPS
            {
                self.device.forget_plans();
            }
            break (trace.cursor.add_child(op, leaves, outs, counts), false);
        };
        let new = &trace.values[first_new..];
        if new.iter().fold(false, |any, leaf| leaf.fresh.swap(false, Ordering::Relaxed) | any) {
            trace.boundaries.push(trace.counts.nodes);
        }
        let mut made = Outs::new();
        for (k, (meta, kind)) in step.outs.iter().enumerate() {
            let place = Place { trace: trace.id, index: trace.values.len() as u32 };
            if let Results::Known(outs) = results {
                outs[k].set_place(place);
                trace.values.push(outs[k].clone());
            } else {
                let handle = Handle::pending(meta.clone(), *kind, self.device, self.clone(), place);
                trace.values.push(handle.clone());
                made.push(FusionTensor { handle });
            }
        }
        trace.counts = step.counts;
        trace.cursor = step;
        trace.followed += u32::from(known);
        if trace.cursor.has_plan() {
            match trace.cursor.planned_further() {
                true => trace.passed = Some(trace.counts.nodes),
                false => trace.sealed = true,
            }
        }
        Ok(made)
    }

    /// Takes the trace if it equals a known plan.
    fn take_sealed(self: &Arc<Self>, trace: &mut Trace<B>, jobs: &mut Vec<Job<B>>) {
        if trace.sealed {
            jobs.extend(self.take_all(trace, Cut::Plan));
        }
    }

    /// Takes what exceeds the budget.
    fn take_excess(self: &Arc<Self>, trace: &mut Trace<B>, jobs: &mut Vec<Job<B>>) {
        let budget = *lock(&self.device.budget);
        let over = trace.counts.nodes as usize >= budget.nodes
            || trace.counts.bytes >= budget.bytes
            || trace.values.len() >= MAX_VALUES / 2;
        if over {
            let depth = match trace.boundaries.last() {
                Some(&boundary) if boundary > trace.counts.nodes / 2 => {
                    trace.without_beginning(trace.counts.nodes / 2, boundary)
                }
                _ => trace.counts.nodes,
            };
            self.take_prefix(trace, depth, Cut::Budget, jobs);
        }
    }

    /// Runs as much of this trace, which another thread records, as `handle` needs.
    fn foreign_read(self: &Arc<Self>, handles: &[&Arc<Handle<B>>]) {
        let mut deadline = Instant::now() + FOREIGN_WAIT;
        let latest = Instant::now() + BUSY_WAIT;
        let mut counted = false;
        let mut waited = false;
        let mut jobs = Vec::new();
        let mut trace = lock(&self.trace);
        loop {
            let pending =
                handles.iter().filter(|h| h.stage() == Stage::Pending && h.place().trace == trace.id);
            let Some(last) = pending.map(|h| h.place().index).max() else { break };
            if !std::mem::replace(&mut counted, true) {
                lock(&self.device.stats).foreign_reads += 1;
            }
            if trace.sealed || trace.passed == Some(trace.counts.nodes) {
                jobs.extend(self.take_all(&mut trace, Cut::ForeignPlan));
                break;
            }
            let now = Instant::now();
            if self.busy.load(Ordering::Acquire) && now < latest {
                // It runs what came before; that it records nothing meanwhile says nothing about this trace.
                deadline = now + FOREIGN_WAIT;
            }
            if trace.cursor.planned_further() && now < deadline {
                if !std::mem::replace(&mut waited, true) {
                    lock(&self.device.stats).waits += 1;
                }
                let wait = self.taken.wait_timeout(trace, deadline - now);
                trace = wait.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            if waited {
                lock(&self.device.stats).timeouts += 1;
            }
            // The node that makes the value is the first after which there are more values than its number.
            let node = trace.node_of(last);
            let plan = trace.passed.filter(|&depth| depth > node);
            let boundary = trace.boundaries.iter().copied().find(|&boundary| boundary > node);
            let (depth, cut) = match plan.or(boundary) {
                Some(depth) => (depth, Cut::ForeignBoundary),
                None => (trace.counts.nodes, Cut::ForeignEnd),
            };
            let depth = if plan.is_some() { depth } else { trace.without_beginning(node + 1, depth) };
            self.take_prefix(&mut trace, depth, cut, &mut jobs);
            break;
        }
        struct Helping<'a, B: GraphCompiler>(&'a Tracer<B>);
        impl<B: GraphCompiler> Drop for Helping<'_, B> {
            fn drop(&mut self) {
                self.0.helpers.fetch_sub(1, Ordering::Release);
                self.0.device.notify();
            }
        }
        self.helpers.fetch_add(1, Ordering::Relaxed); // under the lock, so that the owner cannot miss it
        let helping = Helping(self);
        drop(trace);
        for job in jobs {
            job.run();
        }
        drop(helping);
        self.run_orphans();
    }

    /// Runs what is recorded, and waits for what other threads have taken of it.
    pub(crate) fn finish(self: &Arc<Self>, cut: Cut) {
        self.flush(cut);
        if self.helpers.load(Ordering::Acquire) > 0 {
            self.device.wait_until(|| self.helpers.load(Ordering::Acquire) == 0);
        }
    }
}

/// An operation taken out of a trace.
struct Recorded<B: GraphCompiler> {
    op: Op,
    inputs: Vec<Arc<Handle<B>>>,
    scalars: Vec<Scalar>,
    draws: Vec<DrawState>,
    outs: Vec<Arc<Handle<B>>>,
}

/// What an extension infers from its inputs.
pub(crate) type InferExtension<'a> = dyn Fn(&[Meta]) -> Result<plans::Results, String> + 'a;

/// Where the results of an appended operation come from.
pub(crate) enum Results<'a, B: GraphCompiler> {
    /// They are new; their shapes follow from the operands'.
    New,
    /// As `New`, but an extension knows the shapes.
    Extension(&'a InferExtension<'a>),
    /// They have been recorded before, in another trace.
    Known(&'a [Arc<Handle<B>>]),
}

impl<B: GraphCompiler> Trace<B> {
    fn new(root: Arc<Step<B>>) -> Self {
        Trace {
            id: next_trace(),
            cursor: root.clone(),
            root,
            counts: Counts::default(),
            values: Vec::new(),
            scalars: Vec::new(),
            draws: Vec::new(),
            inputs: FxHashMap::default(),
            boundaries: Vec::new(),
            sealed: false,
            passed: None,
            followed: 0,
        }
    }

    /// An empty trace holds no plans; it takes the root when its first operation comes.
    fn begin(&mut self, root: Arc<Step<B>>) {
        self.cursor = root.clone();
        self.root = root;
    }

    /// The number of a value; one that the trace does not know becomes its next input.
    fn number(&mut self, handle: Arc<Handle<B>>) -> ValueId {
        let place = handle.place();
        if place.trace == self.id {
            return ValueId(place.index);
        }
        let key = Arc::as_ptr(&handle).addr();
        let index = *self.inputs.entry(key).or_insert_with(|| {
            let index = self.values.len() as u32;
            self.values.push(handle.clone());
            index
        });
        handle.set_place(Place { trace: self.id, index });
        ValueId(index)
    }

    /// An operation of another trace with the numbers of this one.
    fn renumber(
        &mut self,
        mut op: Op,
        inputs: Vec<Arc<Handle<B>>>,
        scalars: Vec<Scalar>,
        draws: Vec<DrawState>,
    ) -> Op {
        let mut inputs = inputs.into_iter();
        op.map_inputs(&mut |_| self.number(inputs.next().expect("one for each input")));
        let first = self.scalars.len() as u32;
        self.scalars.extend(scalars);
        let mut index = first..;
        op.map_scalars(&mut |slot| ScalarSlot { index: index.next().unwrap_or(first), ..slot });
        let first = self.draws.len() as u32;
        self.draws.extend(draws);
        op.map_draw(&mut |_| first);
        op
    }

    /// Shapes, dtypes and kinds of what `op` gives.
    fn infer(
        &self,
        op: &Op,
        results: &Results<'_, B>,
        device: &DeviceState<B>,
    ) -> Result<plans::Results, String> {
        let meta = |value: ValueId| &self.values[value.0 as usize].meta;
        match results {
            Results::Known(outs) => Ok(outs.iter().map(|out| (out.meta.clone(), out.kind)).collect()),
            Results::Extension(infer) => {
                let mut inputs = Vec::new();
                op.inputs(&mut |value| inputs.push(meta(value).clone()));
                infer(&inputs)
            }
            Results::New => {
                let outs = infer_with(op, &meta, &B::defaults(&device.device)).map_err(|e| e.to_string())?;
                let kinds = op.outputs().iter().zip(outs).map(|(kind, meta)| {
                    // Where Burn lets a result be either, the dtype tells.
                    let quantized = matches!(meta.dtype, DType::QFloat(_));
                    (meta, if quantized { Kind::Quantized } else { *kind })
                });
                Ok(kinds.collect())
            }
        }
    }

    /// Takes back what the operands of an operation that is not appended have added.
    fn forget_operands(&mut self, first_new: usize) {
        for handle in self.values.drain(first_new..) {
            handle.set_place(Place::NONE);
            self.inputs.remove(&Arc::as_ptr(&handle).addr());
        }
        self.scalars.truncate(self.counts.scalars as usize);
        self.draws.truncate(self.counts.draws as usize);
    }

    /// The node that makes value number `index`.
    fn node_of(&self, index: u32) -> u32 {
        let path = self.cursor.path_from(0);
        path.partition_point(|step| step.counts.values <= index) as u32
    }

    /// The first `depth` operations without those at their end that read nothing of what is before them: what the next
    /// step does before it uses its batch (a random mask, a range of positions). At least `least` remain.
    fn without_beginning(&self, least: u32, depth: u32) -> u32 {
        let path = self.cursor.path_from(0);
        // The operations from `reach` on read what those from `node` on make, or inputs.
        let (mut end, mut reach) = (depth, depth);
        for node in (least..depth).rev() {
            let step = &path[node as usize];
            let first_input = node.checked_sub(1).map_or(0, |before| path[before as usize].counts.values);
            step.op.iter().for_each(|op| {
                op.inputs(&mut |value| {
                    if value.0 < first_input && !self.is_input(&path, value.0) {
                        reach = reach.min(path.partition_point(|step| step.counts.values <= value.0) as u32);
                    }
                });
            });
            if reach >= node {
                end = node;
            }
        }
        end
    }

    /// Whether value number `index` comes from outside the trace.
    fn is_input(&self, path: &[Arc<Step<B>>], index: u32) -> bool {
        let step = &path[path.partition_point(|step| step.counts.values <= index)];
        index < step.counts.values - step.outs.len() as u32
    }

    /// Takes the operations after the first `depth` out.
    fn split(&mut self, depth: u32) -> Vec<Recorded<B>> {
        let path = self.cursor.path_from(depth);
        let mut recorded = Vec::with_capacity(path.len());
        for step in &path {
            let op = step.op.clone().expect("only the root has none");
            let mut inputs = Vec::new();
            op.inputs(&mut |value| inputs.push(self.values[value.0 as usize].clone()));
            let mut scalars = Vec::new();
            op.scalars(&mut |slot| scalars.push(self.scalars[slot.index as usize]));
            let draws = op.draw().map(|draw| self.draws[draw.index as usize]).into_iter().collect();
            let first_out = step.counts.values as usize - step.outs.len();
            let outs = self.values[first_out..][..step.outs.len()].to_vec();
            if self.boundaries.contains(&(step.counts.nodes - 1)) {
                // The first use of an upload is a boundary in the new trace too.
                let leaves = &self.values[first_out - step.leaves.len()..first_out];
                leaves.iter().for_each(|leaf| leaf.fresh.store(true, Ordering::Relaxed));
            }
            recorded.push(Recorded { op, inputs, scalars, draws, outs });
        }
        self.cursor = self.cursor.ancestor(depth);
        self.counts = self.cursor.counts;
        self.values.truncate(self.counts.values as usize);
        self.scalars.truncate(self.counts.scalars as usize);
        self.draws.truncate(self.counts.draws as usize);
        self.followed = self.followed.min(depth);
        recorded
    }

    fn into_job(self, cut: Cut) -> Job<B> {
        let miss = match self.cursor.has_plan() {
            true => None,
            false if self.followed == self.counts.nodes => Some(Miss::NewEnd),
            false => Some(Miss::NewOperations),
        };
        for handle in &self.values {
            if handle.stage() == Stage::Pending && handle.place().trace == self.id {
                handle.set_running();
            }
        }
        Job {
            _root: self.root,
            end: self.cursor,
            values: self.values,
            scalars: self.scalars,
            draws: self.draws,
            cut,
            miss,
            followed: self.followed,
            done: false,
        }
    }
}

fn size_bytes(meta: &Meta) -> u64 {
    let len = meta.shape.iter().fold(1u64, |len, &size| len.saturating_mul(size as u64));
    len.saturating_mul(meta.dtype.size() as u64)
}
