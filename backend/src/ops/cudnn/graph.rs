//! A convolution in cuDNN's backend interface: tensors, the operation and its graph as descriptors, the engines that the
//! library proposes for it, and a plan for each one that may be used.
//!
//! A descriptor gets its attributes, is finalised, and is read only from then on. All that a plan was made from is kept
//! beside it.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cudnn::sys;
use sys::cudnnBackendAttributeName_t::{self as Name, *};
use sys::cudnnBackendAttributeType_t::{self as Type, *};
use sys::cudnnBackendDescriptorType_t::{self as Kind, *};
use sys::cudnnBackendNumericalNote_t::*;

use super::api::{Api, Object};
use super::{ALIGNMENT, Direction, Order, Problem, SCRATCH_BYTES};
use crate::dtype::Elem;
use crate::error::Result;

/// Plans of one order of memory. The library proposes dozens of engines and settings, the supposedly fastest first.
const PLANS: usize = 6;
/// Plans of one engine: where it was misjudged, so were all of its settings.
const PLANS_OF_ENGINE: usize = 3;
/// More than an engine can have; counts that the library reports.
const NOTES: usize = 32;

/// An object of the library, destroyed when dropped.
#[derive(Debug)]
struct Descriptor {
    raw: Object,
    api: &'static Api,
}

// SAFETY: it does not change once it is finalised, and until then has one owner.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created by the library, dropped once. A failure leaks, at worst.
        unsafe { (self.api.destroy_descriptor)(self.raw) };
    }
}

impl Descriptor {
    fn new(api: &'static Api, kind: Kind) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a valid place.
        let status = unsafe { (api.create_descriptor)(kind as u32, &mut raw) };
        api.check("cudnnBackendCreateDescriptor", status)?;
        Ok(Descriptor { raw, api })
    }

    /// # Safety
    /// `T` is what the library reads for this type of attribute.
    unsafe fn set<T>(&self, name: Name, of: Type, values: &[T]) -> Result<()> {
        let (count, at) = (values.len() as i64, values.as_ptr().cast());
        // SAFETY: the array has the length that is passed; the caller vouches for its type.
        let status = unsafe { (self.api.set_attribute)(self.raw, name as u32, of as u32, count, at) };
        self.api.check("cudnnBackendSetAttribute", status)
    }

    fn numbers(&self, name: Name, values: &[i64]) -> Result<()> {
        // SAFETY: the type is of 64-bit integers.
        unsafe { self.set(name, CUDNN_TYPE_INT64, values) }
    }

    fn data_type(&self, name: Name, value: sys::cudnnDataType_t) -> Result<()> {
        // SAFETY: the type is of this enum.
        unsafe { self.set(name, CUDNN_TYPE_DATA_TYPE, &[value as u32]) }
    }

    /// A factor in the type of the sums.
    fn factor(&self, name: Name, elem: Elem, value: f64) -> Result<()> {
        match elem {
            // SAFETY: the type is of doubles.
            Elem::F64 => unsafe { self.set(name, CUDNN_TYPE_DOUBLE, &[value]) },
            // SAFETY: the type is of floats.
            _ => unsafe { self.set(name, CUDNN_TYPE_FLOAT, &[value as f32]) },
        }
    }

    fn addresses(&self, name: Name, values: &[u64]) -> Result<()> {
        // SAFETY: the type is of pointers, which have 64 bits here.
        unsafe { self.set(name, CUDNN_TYPE_VOID_PTR, values) }
    }

    fn handle(&self, name: Name, handle: Object) -> Result<()> {
        // SAFETY: the type is of handles.
        unsafe { self.set(name, CUDNN_TYPE_HANDLE, &[handle]) }
    }

    fn descriptor(&self, name: Name, value: &Descriptor) -> Result<()> {
        // SAFETY: the type is of descriptors.
        unsafe { self.set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &[value.raw]) }
    }

    fn finalize(&self) -> Result<()> {
        // SAFETY: the descriptor lives.
        self.api.check("cudnnBackendFinalize", unsafe { (self.api.finalize)(self.raw) })
    }

    /// Reads up to `values.len()` values, and returns how many there are.
    ///
    /// # Safety
    /// `T` is what the library writes for this type of attribute.
    unsafe fn get<T>(&self, name: Name, of: Type, values: &mut [T]) -> Result<usize> {
        let (wanted, mut count) = (values.len() as i64, 0);
        let at: *mut c_void =
            if values.is_empty() { std::ptr::null_mut() } else { values.as_mut_ptr().cast() };
        // SAFETY: the array has the length that is passed; the caller vouches for its type.
        let status =
            unsafe { (self.api.get_attribute)(self.raw, name as u32, of as u32, wanted, &mut count, at) };
        self.api.check("cudnnBackendGetAttribute", status)?;
        Ok(count.max(0) as usize)
    }

    fn number(&self, name: Name) -> Result<i64> {
        let mut value = [0i64];
        // SAFETY: the type is of 64-bit integers.
        unsafe { self.get(name, CUDNN_TYPE_INT64, &mut value) }?;
        Ok(value[0])
    }

    /// Fills descriptors that were made for it, and returns how many.
    fn fill(&self, name: Name, descriptors: &[Descriptor]) -> Result<usize> {
        let mut raw: Vec<Object> = descriptors.iter().map(|descriptor| descriptor.raw).collect();
        // SAFETY: the type is of descriptors.
        let count = unsafe { self.get(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut raw) }?;
        Ok(count.min(descriptors.len()))
    }
}

fn data_type(elem: Elem) -> sys::cudnnDataType_t {
    match elem {
        Elem::F64 => sys::cudnnDataType_t::CUDNN_DATA_DOUBLE,
        Elem::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
        Elem::BF16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
    }
}

/// Sizes have been found to fit ([`super::takes`]).
fn numbers(values: &[usize]) -> Vec<i64> {
    values.iter().map(|&value| value as i64).collect()
}

/// The numbers by which x, w and y are known in a graph.
const X: i64 = 1;
const W: i64 = 2;
const Y: i64 = 3;

/// One convolution as a graph, with all that it was made from.
#[derive(Debug)]
struct Graph {
    graph: Descriptor,
    _parts: Vec<Descriptor>,
}

impl Graph {
    fn new(api: &'static Api, handle: Object, problem: &Problem, order: Order) -> Result<Graph> {
        let Problem { direction, conv, elem, bias, .. } = *problem;
        let windows = &conv.windows;
        // No fewer than two spatial dimensions, as all engines take them; the first of two has size 1.
        let spatial = windows.dims.max(2);
        let last = |values: &[usize; 3]| numbers(&values[3 - spatial..]);
        let tensor = |id: i64, lead: [usize; 2], size: &[usize; 3]| -> Result<Descriptor> {
            let dims = [numbers(&lead), last(size)].concat();
            let desc = Descriptor::new(api, CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
            desc.data_type(CUDNN_ATTR_TENSOR_DATA_TYPE, data_type(elem))?;
            desc.numbers(CUDNN_ATTR_TENSOR_DIMENSIONS, &dims)?;
            desc.numbers(CUDNN_ATTR_TENSOR_STRIDES, &order.strides(&dims))?;
            desc.numbers(CUDNN_ATTR_TENSOR_UNIQUE_ID, &[id])?;
            desc.numbers(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[ALIGNMENT as i64])?;
            desc.finalize()?;
            Ok(desc)
        };
        let x = tensor(X, [conv.batch, windows.channels], &windows.size)?;
        let w = tensor(W, [conv.out_channels, windows.channels / conv.groups], &windows.kernel)?;
        let y = tensor(Y, [conv.batch, conv.out_channels], &windows.out)?;

        let window = Descriptor::new(api, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
        let sums = if elem == Elem::F64 { Elem::F64 } else { Elem::F32 };
        window.data_type(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, data_type(sums))?;
        let mode = [sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION as u32];
        // SAFETY: the type is of this enum.
        unsafe { window.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, &mode) }?;
        window.numbers(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[spatial as i64])?;
        window.numbers(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &last(&windows.pad))?;
        window.numbers(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &last(&windows.pad))?;
        window.numbers(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &last(&windows.stride))?;
        window.numbers(CUDNN_ATTR_CONVOLUTION_DILATIONS, &last(&windows.dilation))?;
        window.finalize()?;

        let (kind, [alpha, beta, of, at_x, at_w, at_y]) = direction.attributes();
        let operation = Descriptor::new(api, kind)?;
        operation.factor(alpha, elem, 1.0)?;
        operation.factor(beta, elem, if bias { 1.0 } else { 0.0 })?;
        for (name, part) in [(of, &window), (at_x, &x), (at_w, &w), (at_y, &y)] {
            operation.descriptor(name, part)?;
        }
        operation.finalize()?;

        let graph = Descriptor::new(api, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.handle(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle)?;
        graph.descriptor(CUDNN_ATTR_OPERATIONGRAPH_OPS, &operation)?;
        graph.finalize()?;
        Ok(Graph { graph, _parts: vec![x, w, y, window, operation] })
    }

    /// The library's engines for it, with their settings; the supposedly fastest first.
    fn configs(&self, mode: sys::cudnnBackendHeurMode_t) -> Result<Vec<Descriptor>> {
        let api = self.graph.api;
        let heuristics = Descriptor::new(api, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        heuristics.descriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &self.graph)?;
        // SAFETY: the type is of this enum.
        unsafe { heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &[mode as u32]) }?;
        heuristics.finalize()?;
        // SAFETY: nothing is written to an empty array.
        let count = unsafe {
            heuristics.get::<Object>(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut [])
        }?;
        let made = (0..count).map(|_| Descriptor::new(api, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
        let mut configs = made.collect::<Result<Vec<_>>>()?;
        let filled = heuristics.fill(CUDNN_ATTR_ENGINEHEUR_RESULTS, &configs)?;
        configs.truncate(filled);
        Ok(configs)
    }
}

impl Direction {
    /// The operation, and its names for both factors, the convolution, x, w and y.
    fn attributes(self) -> (Kind, [Name; 6]) {
        match self {
            Direction::Forward => (
                CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                ],
            ),
            Direction::Input => (
                CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                ],
            ),
            Direction::Weight => (
                CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                ],
            ),
        }
    }

    /// The numbers of the two operands, in the order of [`Direction`]'s words, and of the result.
    fn ids(self) -> [i64; 3] {
        match self {
            Direction::Forward => [X, W, Y],
            Direction::Input => [W, Y, X],
            Direction::Weight => [X, Y, W],
        }
    }
}

/// One engine's way to compute a problem whose tensors lie in one order.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) order: Order,
    pub(super) scratch_bytes: usize,
    engine: i64,
    notes: Vec<u32>,
    ids: [i64; 3],
    plan: Descriptor,
    _config: Descriptor,
    _graph: Arc<Graph>,
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Plan { engine, order, notes, scratch_bytes, .. } = self;
        write!(f, "engine {engine} {order:?} with notes {notes:?} and {scratch_bytes} B")
    }
}

/// An engine that computes as the definition does has no notes but these.
fn allowed(notes: &[u32], tensor_cores: bool) -> bool {
    notes.iter().all(|&note| {
        note == CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP as u32
            || tensor_cores && note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE as u32
    })
}

/// The plans that may be used for a problem whose tensors lie in `order`; the supposedly fastest first. Those that may not
/// are logged with the reason.
pub(super) fn plans(api: &'static Api, handle: Object, problem: &Problem, order: Order) -> Result<Vec<Plan>> {
    let graph = Arc::new(Graph::new(api, handle, problem, order)?);
    let mut plans: Vec<Plan> = Vec::new();
    for mode in [
        sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_INSTANT,
        sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_FALLBACK,
    ] {
        let configs = match graph.configs(mode) {
            Ok(configs) => configs,
            Err(error) => {
                log::debug!("{problem:?} {order:?}, {mode:?}: {error}");
                continue;
            }
        };
        log::debug!("{problem:?} {order:?}, {mode:?}: {} proposals", configs.len());
        let before: Vec<i64> = plans.iter().map(|plan| plan.engine).collect();
        for config in configs {
            if plans.len() == PLANS {
                return Ok(plans);
            }
            match Plan::new(handle, problem, order, &graph, config, |engine| {
                let plans = plans.iter().filter(|plan| plan.engine == engine).count();
                plans < PLANS_OF_ENGINE && !before.contains(&engine)
            }) {
                Ok(Ok(plan)) => plans.push(plan),
                Ok(Err(why)) => log::debug!("{problem:?} {order:?}: {why}"),
                Err(error) => log::debug!("{problem:?} {order:?}: {error}"),
            }
        }
    }
    Ok(plans)
}

impl Plan {
    /// A plan of an engine that `wanted` asks for, or why it may not be used.
    fn new(
        handle: Object,
        problem: &Problem,
        order: Order,
        graph: &Arc<Graph>,
        config: Descriptor,
        wanted: impl Fn(i64) -> bool,
    ) -> Result<std::result::Result<Plan, String>> {
        let api = config.api;
        let description = [Descriptor::new(api, CUDNN_BACKEND_ENGINE_DESCRIPTOR)?];
        config.fill(CUDNN_ATTR_ENGINECFG_ENGINE, &description)?;
        let [description] = description;
        let engine = description.number(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?;
        if !wanted(engine) {
            return Ok(Err(format!("engine {engine} again")));
        }
        let mut notes = vec![0u32; NOTES];
        // SAFETY: the type is of an enum, read as a number.
        let count = unsafe {
            description.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, &mut notes)
        }?;
        notes.truncate(count);
        if count > NOTES || !allowed(&notes, problem.elem != Elem::F32 || problem.tf32) {
            return Ok(Err(format!("engine {engine} has the notes {notes:?}")));
        }
        let plan = Descriptor::new(api, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.handle(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle)?;
        plan.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &config)?;
        if let Err(error) = plan.finalize() {
            return Ok(Err(format!("engine {engine}: {error}")));
        }
        let bytes = plan.number(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
        let Some(scratch_bytes) = usize::try_from(bytes).ok().filter(|&bytes| bytes <= SCRATCH_BYTES) else {
            return Ok(Err(format!("engine {engine} needs {bytes} B of scratch memory")));
        };
        let (ids, graph) = (problem.direction.ids(), graph.clone());
        Ok(Ok(Plan { order, scratch_bytes, engine, notes, ids, plan, _config: config, _graph: graph }))
    }

    /// Queues the computation on the handle's stream.
    ///
    /// # Safety
    /// The addresses are those of the two operands, the result and the scratch memory, as the plan describes them, and the
    /// handle is this thread's.
    pub(super) unsafe fn execute(&self, handle: Object, tensors: [u64; 3], scratch: u64) -> Result<()> {
        let api = self.plan.api;
        let pack = Descriptor::new(api, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.numbers(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &self.ids)?;
        pack.addresses(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &tensors)?;
        pack.addresses(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[scratch])?;
        pack.finalize()?;
        // SAFETY: both descriptors are finalised; the caller vouches for the memory and the handle.
        let status = unsafe { (api.execute)(handle, self.plan.raw, pack.raw) };
        api.check("cudnnBackendExecute", status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_engines_that_compute_as_the_definition_does_are_allowed() {
        let (tensor_core, nan) =
            (CUDNN_NUMERICAL_NOTE_TENSOR_CORE as u32, CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP as u32);
        assert!(allowed(&[], false) && allowed(&[nan], false));
        assert!(allowed(&[tensor_core], true) && !allowed(&[nan, tensor_core], false));
        for refused in [
            CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
            CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
            CUDNN_NUMERICAL_NOTE_FFT,
            CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
            CUDNN_NUMERICAL_NOTE_WINOGRAD,
            CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
            CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
            CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13,
        ] {
            assert!(!allowed(&[tensor_core, refused as u32], true), "{refused:?}");
        }
        assert!(!allowed(&[99], true), "a note of a later version");
    }
}
