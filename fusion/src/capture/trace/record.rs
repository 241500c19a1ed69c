//! How an operation gets into its thread's trace, and how a value is asked for.

use std::sync::{Arc, MutexGuard};

use burn_backend::Scalar;
use burn_std::DType;
use kiln_surface::{Op, ScalarSlot, ValueId};

use super::{Outs, Results, Trace, Tracer, thread_number};
use crate::capture::device::{DeviceState, local_tracer, lock};
use crate::capture::tensor::{FusionTensor, Handle, Stage};
use crate::compiler::GraphCompiler;
use crate::explain::Cut;

/// Where an operation is recorded: the device of its operands, and this thread's tracer for it.
pub(crate) struct Site<B: GraphCompiler> {
    op: &'static str,
    thread: u64,
    device: Option<&'static DeviceState<B>>,
    tracer: Option<Arc<Tracer<B>>>,
}

impl<B: GraphCompiler> Site<B> {
    pub(crate) fn new(op: &'static str) -> Self {
        Site { op, thread: thread_number(), device: None, tracer: None }
    }

    pub(crate) fn device(&mut self, device: &B::Device) {
        if self.device.is_none() {
            self.device = Some(DeviceState::of(device));
        }
    }

    /// An operand. One that another thread has recorded is computed first.
    #[inline]
    pub(crate) fn operand(&mut self, tensor: &FusionTensor<B>) {
        let handle = &tensor.handle;
        match self.device {
            None => self.device = Some(handle.device),
            Some(device) if !std::ptr::eq(device, handle.device) => self.other_device(device, handle),
            Some(_) => {}
        }
        if let Some(owner) = &handle.owner {
            if owner.thread == self.thread {
                if self.tracer.is_none() {
                    self.tracer = Some(owner.clone());
                }
            } else if handle.stage() == Stage::Pending {
                owner.foreign_read(&[handle]);
            }
        }
    }

    #[cold]
    fn other_device(&self, device: &DeviceState<B>, handle: &Handle<B>) -> ! {
        panic!(
            "{}: the operands are on different devices, {:?} and {:?}",
            self.op, device.device, handle.device.device
        )
    }

    /// Begins recording.
    pub(crate) fn begin(self) -> Ready<B> {
        let tracer = match self.tracer {
            Some(tracer) => tracer,
            None => {
                let device = self.device.unwrap_or_else(|| panic!("{}: there is no tensor", self.op));
                local_tracer(device)
            }
        };
        Ready { tracer }
    }
}

/// A tracer about to record.
pub(crate) struct Ready<B: GraphCompiler> {
    tracer: Arc<Tracer<B>>,
}

impl<B: GraphCompiler> Ready<B> {
    /// The trace, after a plan that it equalled has been run.
    pub(crate) fn record(&self) -> Recorder<'_, B> {
        let mut trace = lock(&self.tracer.trace);
        while trace.sealed {
            let job = self.tracer.take_all(&mut trace, Cut::Plan);
            drop(trace);
            self.tracer.run(job);
            trace = lock(&self.tracer.trace);
        }
        let first_new = trace.values.len();
        Recorder { tracer: &self.tracer, trace, first_new }
    }
}

/// Records one operation: number its operands, then [`Recorder::finish`].
pub(crate) struct Recorder<'a, B: GraphCompiler> {
    tracer: &'a Arc<Tracer<B>>,
    trace: MutexGuard<'a, Trace<B>>,
    first_new: usize,
}

impl<B: GraphCompiler> Recorder<'_, B> {
    #[inline]
    pub(crate) fn tensor(&mut self, tensor: &FusionTensor<B>) -> ValueId {
        let place = tensor.handle.place();
        if place.trace == self.trace.id {
            return ValueId(place.index);
        }
        self.trace.number(tensor.handle.clone())
    }

    #[inline]
    pub(crate) fn scalar(&mut self, scalar: Scalar) -> ScalarSlot {
        let index = self.trace.scalars.len() as u32;
        self.trace.scalars.push(scalar);
        ScalarSlot { kind: scalar.into(), index }
    }

    /// The number of the operation's random draw.
    pub(crate) fn draw(&mut self, dtype: DType, len: usize) -> u32 {
        let index = self.trace.draws.len() as u32;
        self.trace.draws.push(self.tracer.device.reserve_draw(dtype, len));
        index
    }

    /// Appends the operation.
    ///
    /// # Panics
    /// If its operands do not fit together.
    pub(crate) fn finish(mut self, op: Op, results: Results<'_, B>) -> Outs<B> {
        let mut jobs = Vec::new();
        let trace = &mut *self.trace;
        let made = self.tracer.append(trace, op, self.first_new, results, &mut jobs);
        self.tracer.take_excess(trace, &mut jobs);
        let Recorder { tracer, trace, .. } = self;
        drop(trace);
        if !jobs.is_empty() {
            tracer.run(jobs); // else it would run what ended threads have left, and recording runs nothing
        }
        match made {
            Ok(made) => made,
            Err(error) => panic!("{error}"), // which names the operation
        }
    }
}

/// Makes the values known, as far as traces have them.
pub(crate) fn settle<B: GraphCompiler>(handles: &[&Arc<Handle<B>>]) {
    let me = thread_number();
    for handle in handles {
        if let Some(owner) = &handle.owner
            && handle.stage() == Stage::Pending
        {
            if owner.thread == me {
                owner.flush(Cut::Read);
            } else {
                let same: Vec<_> = handles
                    .iter()
                    .filter(|h| h.owner.as_ref().is_some_and(|o| Arc::ptr_eq(o, owner)))
                    .copied()
                    .collect();
                owner.foreign_read(&same);
            }
        }
    }
    for handle in handles {
        if handle.stage() != Stage::Done {
            handle.device.wait_until(|| handle.stage() == Stage::Done);
        }
    }
}
