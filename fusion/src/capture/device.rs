//! What all threads share for one device: its known operation sequences, its random counter, its statistics.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use burn_backend::DeviceOps;
use burn_std::DType;
use burn_std::device::DeviceId;

use super::plans::Step;
use super::trace::Tracer;
use crate::compiler::{DrawState, GraphCompiler};
use crate::explain::Stats;
use crate::random;

/// When a trace is cut without anybody asking for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Operations in a trace.
    pub nodes: usize,
    /// Bytes that the values of a trace would take, were all of them kept.
    pub bytes: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { nodes: 1 << 15, bytes: 64 << 30 }
    }
}

/// One device of `B`. There are few devices, and they live as long as the process.
pub(crate) struct DeviceState<B: GraphCompiler> {
    pub(crate) device: B::Device,
    pub(crate) id: DeviceId,
    pub(crate) budget: Mutex<Budget>,
    pub(crate) stats: Mutex<Stats>,
    root: Mutex<Arc<Step<B>>>,
    /// A root that stays without steps, for traces without operations.
    nothing: Arc<Step<B>>,
    /// Steps added since the root was new.
    steps: AtomicUsize,
    random: Mutex<DrawState>,
    /// Tracers of threads that ended while their trace held operations.
    orphans: Mutex<Vec<Arc<Tracer<B>>>>,
    any_orphans: AtomicBool,
    /// Those who wait for a value that another thread computes.
    waiting: AtomicUsize,
    done: Mutex<()>,
    done_signal: Condvar,
}

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A backend and one of its devices.
type Key = (TypeId, DeviceId);

/// A `DeviceState` of whichever backend.
type AnyState = &'static (dyn Any + Send + Sync);

static DEVICES: Mutex<Option<HashMap<Key, AnyState>>> = Mutex::new(None);

impl<B: GraphCompiler> DeviceState<B> {
    /// The state of `device`, made at first use.
    pub(crate) fn of(device: &B::Device) -> &'static Self {
        let key = (TypeId::of::<B>(), device.id());
        if let Ok(Some(known)) = LOCAL.try_with(|local| local.borrow().device(key)) {
            return known.downcast_ref().expect("the key holds the type");
        }
        let mut devices = lock(&DEVICES);
        let any = *devices.get_or_insert_default().entry(key).or_insert_with(|| {
            Box::leak(Box::new(DeviceState::<B> {
                device: device.clone(),
                id: key.1,
                budget: Mutex::default(),
                stats: Mutex::default(),
                root: Mutex::new(Step::root()),
                nothing: Step::root(),
                steps: AtomicUsize::new(0),
                random: Mutex::default(),
                orphans: Mutex::default(),
                any_orphans: AtomicBool::new(false),
                waiting: AtomicUsize::new(0),
                done: Mutex::new(()),
                done_signal: Condvar::new(),
            }))
        });
        let _ = LOCAL.try_with(|local| local.borrow_mut().devices.push((key, any))); // gone while a thread ends
        any.downcast_ref().expect("the key holds the type")
    }

    /// Where known sequences of operations begin.
    pub(crate) fn root(&self) -> Arc<Step<B>> {
        lock(&self.root).clone()
    }

    /// What a trace without operations holds.
    pub(crate) fn nothing(&self) -> Arc<Step<B>> {
        self.nothing.clone()
    }

    /// Forgets all known sequences; traces under way keep theirs.
    pub(crate) fn forget_plans(&self) {
        *lock(&self.root) = Step::root();
        self.steps.store(0, Ordering::Relaxed);
    }

    /// Counts a step that is added, and returns how many there were.
    pub(crate) fn count_step(&self) -> usize {
        self.steps.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn seed(&self, seed: u64) {
        *lock(&self.random) = DrawState { seed, offset: 0 };
    }

    /// The numbers for a random operation, in the order of the calls.
    pub(crate) fn reserve_draw(&self, dtype: DType, len: usize) -> DrawState {
        if let Some(state) = B::reserve_draw(&self.device, dtype, len) {
            return state;
        }
        let mut random = lock(&self.random);
        let state = *random;
        random.offset = random.offset.wrapping_add(random::counters(dtype, len));
        state
    }

    /// Waits until `ready` holds, which a run of another thread brings about.
    pub(crate) fn wait_until(&self, ready: impl Fn() -> bool) {
        let mut guard = lock(&self.done);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst); // with that of `notify`: it sees that somebody waits, or `ready` sees the value
        while !ready() {
            guard = self.done_signal.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Tells those who wait that values are known.
    pub(crate) fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.done));
            self.done_signal.notify_all();
        }
    }

    pub(crate) fn adopt(&self, tracer: Arc<Tracer<B>>) {
        lock(&self.orphans).push(tracer);
        self.any_orphans.store(true, Ordering::Release);
    }

    /// The tracers of threads that have ended.
    pub(crate) fn take_orphans(&self) -> Vec<Arc<Tracer<B>>> {
        if !self.any_orphans.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *lock(&self.orphans))
    }
}

/// A tracer of whichever backend, as its thread keeps it.
trait LocalTracer {
    fn as_any(&self) -> &dyn Any;
    /// The thread ends.
    fn close(&self);
}

impl<B: GraphCompiler> LocalTracer for Arc<Tracer<B>> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn close(&self) {
        if self.has_work() {
            self.device.adopt(self.clone());
        }
    }
}

#[derive(Default)]
struct Local {
    devices: Vec<(Key, AnyState)>,
    tracers: Vec<(Key, Box<dyn LocalTracer>)>,
}

impl Local {
    fn device(&self, key: Key) -> Option<AnyState> {
        self.devices.iter().find(|(k, _)| *k == key).map(|(_, any)| *any)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        for (_, tracer) in &self.tracers {
            tracer.close();
        }
    }
}

thread_local! {
    static LOCAL: RefCell<Local> = RefCell::default();
}

/// This thread's tracer for a device.
pub(crate) fn local_tracer<B: GraphCompiler>(device: &'static DeviceState<B>) -> Arc<Tracer<B>> {
    let key = (TypeId::of::<B>(), device.id);
    let known = LOCAL.try_with(|local| {
        let local = local.borrow();
        let found = local.tracers.iter().find(|(k, _)| *k == key);
        found.and_then(|(_, tracer)| tracer.as_any().downcast_ref::<Arc<Tracer<B>>>().cloned())
    });
    if let Ok(Some(tracer)) = known {
        return tracer;
    }
    let tracer = Tracer::new(device);
    if LOCAL.try_with(|local| local.borrow_mut().tracers.push((key, Box::new(tracer.clone())))).is_err() {
        device.adopt(tracer.clone()); // the thread ends: whoever runs something next runs this too
    }
    tracer
}
