//! cuDNN: a convolution, or one of its two gradients, as one call, where the library can be loaded.
//!
//! Only algorithms are used that sum products as the definition does, in one order: none with Fourier or Winograd
//! transforms, whose errors are larger, and none that adds with atomics. Products of f32 are exact f32 unless TF32 is
//! allowed; 16-bit floats are summed in f32. A bias is written to the output first and counts as what it held.
//!
//! Which of cuDNN and the columns of [`super::conv`] is faster depends on sizes, dtype and device, so each is timed once
//! per problem on the real operands ([`ConvAlgorithm::Fastest`]). Nothing is timed while a graph is captured.
#![allow(unsafe_code)]

mod api;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use burn_backend::TensorMetadata;
use cudarc::cudnn::sys;

use self::api::{Api, Object};
use super::conv::Conv;
use super::matmul::{WORKSPACE_BYTES, measure, tf32_allowed};
use crate::device::Device;
use crate::driver::context::RelaxedCapture;
use crate::driver::graph::current_pool;
use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::memory::Block;
use crate::ops::elementwise::copy_into;
use crate::tensor::CudaTensor;

/// How convolutions are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum ConvAlgorithm {
    /// cuDNN or columns, whichever is faster for the sizes: both are timed the first time. Small convolutions, and all of
    /// them where cuDNN cannot be loaded, are columns.
    #[default]
    Fastest,
    /// cuDNN, but for what it does not take: tensors without elements or of 2^31 and more, an output padding that adds no
    /// window, and what a captured graph is the first to compute. A missing library is an error.
    Cudnn,
    /// Columns (`im2col`) and cuBLASLt.
    Columns,
}

static ALGORITHM: AtomicU8 = AtomicU8::new(ConvAlgorithm::Fastest as u8);

pub(crate) fn set_algorithm(algorithm: ConvAlgorithm) {
    ALGORITHM.store(algorithm as u8, Ordering::Relaxed);
}

fn algorithm() -> ConvAlgorithm {
    let set = ALGORITHM.load(Ordering::Relaxed);
    let all = [ConvAlgorithm::Cudnn, ConvAlgorithm::Columns];
    all.into_iter().find(|&known| known as u8 == set).unwrap_or_default()
}

pub(crate) fn version() -> Result<usize> {
    // SAFETY: takes nothing and has no effect.
    Ok(unsafe { (Api::get()?.version)() })
}

/// Multiply-adds from which both ways are timed.
const TIME_FROM: u128 = 1 << 22;
/// Scratch memory that an algorithm may use: that of the columns.
const SCRATCH_BYTES: usize = super::conv::COLUMNS_BYTES;
/// Kernels for 16-byte loads are chosen by sizes alone.
const ALIGNMENT: u64 = 16;

/// What is computed, of `y = w * x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    /// `y` from `x` and `w`.
    Forward,
    /// The gradient of `x` from `w` and that of `y`.
    Input,
    /// The gradient of `w` from `x` and that of `y`.
    Weight,
}

/// All that decides which algorithms there are and which one is fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Problem {
    direction: Direction,
    conv: Conv,
    elem: Elem,
    tf32: bool,
    bias: bool,
}

/// cuDNN on one device.
#[derive(Debug, Default)]
pub(crate) struct Cudnn {
    handle: OnceLock<Handle>,
    /// Why the library cannot be used: for good, since looking for it takes time.
    missing: OnceLock<Error>,
    opening: Mutex<()>,
    routes: Mutex<HashMap<(Problem, ConvAlgorithm), Route>>,
}

/// The library's state for one device: one thread at a time.
#[derive(Debug)]
struct Handle {
    api: &'static Api,
    raw: Mutex<RawHandle>,
}
#[derive(Debug)]
struct RawHandle(Object);

// SAFETY: the mutex around it lets one thread at a time use it; it is never destroyed.
unsafe impl Send for RawHandle {}

/// How one problem is computed: `None` by columns.
type Route = Option<(Arc<Plan>, Algorithm)>;

impl Cudnn {
    fn handle(&'static self, device: &'static Device) -> Result<&'static Handle> {
        if let Some(handle) = self.handle.get() {
            return Ok(handle);
        }
        let _one = self.opening.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(handle) = self.handle.get() {
            return Ok(handle);
        }
        if let Some(missing) = self.missing.get() {
            return Err(missing.clone());
        }
        let api = match Api::get() {
            Ok(api) => api,
            Err(missing) => {
                log::info!("convolutions without cuDNN: {missing}");
                return Err(self.missing.get_or_init(|| missing).clone());
            }
        };
        device.enter()?;
        let _relaxed = RelaxedCapture::enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a valid place and the device's context is current.
        api.check("cudnnCreate", unsafe { (api.create)(&mut handle) })?;
        Ok(self.handle.get_or_init(|| Handle { api, raw: Mutex::new(RawHandle(handle)) }))
    }

    /// Keeps a choice; of threads that choose at once, the first one's holds.
    fn keep(&self, problem: Problem, algorithm: ConvAlgorithm, route: Route) -> Route {
        let mut routes = self.routes.lock().unwrap_or_else(|e| e.into_inner());
        routes.entry((problem, algorithm)).or_insert(route).clone()
    }
}

impl Handle {
    /// The library's handle, set to the device's stream. The one of the last call may be gone: captures have their own.
    fn on_stream(&self, device: &Device) -> Result<MutexGuard<'_, RawHandle>> {
        let handle = self.raw.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the handle is this thread's; the stream is never destroyed, or outlives its capture.
        let set = unsafe { (self.api.set_stream)(handle.0, device.context.stream().cast()) };
        self.api.check("cudnnSetStream", set)?;
        Ok(handle)
    }
}

macro_rules! descriptor {
    ($name:ident, $create:ident, $destroy:ident) => {
        #[derive(Debug)]
        struct $name(Object, &'static Api);

        // SAFETY: plain data of the library that does not change after it was set.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            fn new(api: &'static Api) -> Result<Self> {
                let mut raw = std::ptr::null_mut();
                // SAFETY: `raw` is a valid place.
                api.check(stringify!($create), unsafe { (api.$create)(&mut raw) })?;
                Ok($name(raw, api))
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: created by the library, dropped once.
                unsafe { (self.1.$destroy)(self.0) };
            }
        }
    };
}
descriptor!(TensorDesc, create_tensor, destroy_tensor);
descriptor!(FilterDesc, create_filter, destroy_filter);
descriptor!(ConvDesc, create_convolution, destroy_convolution);

fn data_type(elem: Elem) -> u32 {
    let data_type = match elem {
        Elem::F64 => sys::cudnnDataType_t::CUDNN_DATA_DOUBLE,
        Elem::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
        Elem::BF16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
    };
    data_type as u32
}

/// The library's sizes are of this type, and [`takes`] has seen to it that they fit.
fn ints(values: &[usize]) -> Vec<c_int> {
    values.iter().map(|&value| value as c_int).collect()
}

impl TensorDesc {
    fn row_major(api: &'static Api, elem: Elem, dims: &[usize]) -> Result<Self> {
        let desc = TensorDesc::new(api)?;
        let mut strides = vec![1; dims.len()];
        for d in (1..dims.len()).rev() {
            strides[d - 1] = strides[d] * dims[d];
        }
        let (dims, strides) = (ints(dims), ints(&strides));
        // SAFETY: both arrays have the length that is passed.
        let code = unsafe {
            (api.set_tensor)(desc.0, data_type(elem), dims.len() as c_int, dims.as_ptr(), strides.as_ptr())
        };
        api.check("cudnnSetTensorNdDescriptor", code)?;
        Ok(desc)
    }
}

/// An algorithm and the scratch memory that it needs.
#[derive(Debug, Clone, Copy)]
struct Algorithm {
    id: AlgorithmId,
    scratch_bytes: usize,
}

#[derive(Debug, Clone, Copy)]
enum AlgorithmId {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    Input(sys::cudnnConvolutionBwdDataAlgo_t),
    Weight(sys::cudnnConvolutionBwdFilterAlgo_t),
}

impl Direction {
    /// Those that sum in one order; the usually fastest first.
    fn algorithms(self) -> &'static [AlgorithmId] {
        use sys::cudnnConvolutionBwdDataAlgo_t::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
        use sys::cudnnConvolutionBwdFilterAlgo_t::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
        use sys::cudnnConvolutionFwdAlgo_t::{
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
        };
        match self {
            Direction::Forward => &[
                AlgorithmId::Forward(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM),
                AlgorithmId::Forward(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM),
            ],
            Direction::Input => &[AlgorithmId::Input(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1)],
            Direction::Weight => &[AlgorithmId::Weight(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1)],
        }
    }
}

/// A convolution as the library describes it; two or three spatial dimensions.
#[derive(Debug)]
struct Plan {
    problem: Problem,
    handle: &'static Handle,
    x: TensorDesc,
    w: FilterDesc,
    y: TensorDesc,
    conv: ConvDesc,
}

/// Whether the library can describe the convolution.
fn takes(conv: &Conv) -> bool {
    let w = &conv.windows;
    let fits = |dims: Vec<usize>| {
        let elements = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        elements.is_some_and(|n| (1..=i32::MAX as usize).contains(&n))
    };
    // Under a transposed convolution with an output padding there may be fewer windows than fit.
    let all_windows = (0..3).all(|d| {
        let reach = (w.kernel[d] - 1) * w.dilation[d] + 1;
        w.out[d] == (w.size[d] + 2 * w.pad[d] - reach) / w.stride[d] + 1
    });
    all_windows && fits(conv.x_shape()) && fits(conv.y_shape()) && fits(conv.w_shape())
}

impl Plan {
    fn new(problem: Problem, handle: &'static Handle) -> Result<Plan> {
        let Problem { conv, elem, tf32, .. } = problem;
        let (windows, api) = (&conv.windows, handle.api);
        // The library knows no fewer than two spatial dimensions; the first of two has size 1.
        let spatial = windows.dims.max(2);
        let last = |values: &[usize; 3]| values[3 - spatial..].to_vec();
        let dims = |lead: [usize; 2], values: &[usize; 3]| [&lead[..], &last(values)].concat();
        let x = TensorDesc::row_major(api, elem, &dims([conv.batch, windows.channels], &windows.size))?;
        let y = TensorDesc::row_major(api, elem, &dims([conv.batch, conv.out_channels], &windows.out))?;
        let w = FilterDesc::new(api)?;
        let per_group = windows.channels / conv.groups;
        let w_dims = ints(&dims([conv.out_channels, per_group], &windows.kernel));
        // SAFETY: the array has the length that is passed.
        let code = unsafe {
            (api.set_filter)(
                w.0,
                data_type(elem),
                sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW as u32,
                w_dims.len() as c_int,
                w_dims.as_ptr(),
            )
        };
        api.check("cudnnSetFilterNdDescriptor", code)?;
        let desc = ConvDesc::new(api)?;
        let [pad, stride, dilation] =
            [&windows.pad, &windows.stride, &windows.dilation].map(|values| ints(&last(values)));
        // SAFETY: the arrays have the length that is passed.
        let code = unsafe {
            (api.set_convolution)(
                desc.0,
                spatial as c_int,
                pad.as_ptr(),
                stride.as_ptr(),
                dilation.as_ptr(),
                sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION as u32,
                data_type(if elem == Elem::F64 { Elem::F64 } else { Elem::F32 }),
            )
        };
        api.check("cudnnSetConvolutionNdDescriptor", code)?;
        // SAFETY: the descriptor lives.
        let code = unsafe { (api.set_groups)(desc.0, conv.groups as c_int) };
        api.check("cudnnSetConvolutionGroupCount", code)?;
        let math = match elem {
            Elem::F32 if !tf32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
            Elem::F64 => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
            _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
        };
        // SAFETY: the descriptor lives.
        api.check("cudnnSetConvolutionMathType", unsafe { (api.set_math)(desc.0, math as u32) })?;
        Ok(Plan { problem, handle, x, w, y, conv: desc })
    }

    /// What the library can do for this problem with little enough memory.
    fn algorithms(&self, device: &Device) -> Result<Vec<Algorithm>> {
        let (api, handle) = (self.handle.api, self.handle.on_stream(device)?);
        let scratch = |id: &AlgorithmId| {
            let mut bytes = 0usize;
            let Plan { x, w, y, conv, .. } = self;
            // SAFETY: all descriptors live and `bytes` is a valid place.
            let code = unsafe {
                match *id {
                    AlgorithmId::Forward(id) => {
                        (api.forward_bytes)(handle.0, x.0, w.0, conv.0, y.0, id as u32, &mut bytes)
                    }
                    AlgorithmId::Input(id) => {
                        (api.input_bytes)(handle.0, w.0, y.0, conv.0, x.0, id as u32, &mut bytes)
                    }
                    AlgorithmId::Weight(id) => {
                        (api.weight_bytes)(handle.0, x.0, y.0, conv.0, w.0, id as u32, &mut bytes)
                    }
                }
            };
            let usable = code == 0 && bytes <= SCRATCH_BYTES;
            usable.then_some(Algorithm { id: *id, scratch_bytes: bytes })
        };
        Ok(self.problem.direction.algorithms().iter().filter_map(scratch).collect())
    }

    /// Queues the computation on new memory.
    fn run(
        &self,
        op: &'static str,
        algorithm: Algorithm,
        (a, b): (&CudaTensor, &CudaTensor),
        bias: Option<&CudaTensor>,
    ) -> Result<CudaTensor> {
        let device = a.device();
        let (a, b) = (aligned(a)?, aligned(b)?);
        let conv = &self.problem.conv;
        let shape = match self.problem.direction {
            Direction::Forward => conv.y_shape(),
            Direction::Input => conv.x_shape(),
            Direction::Weight => conv.w_shape(),
        };
        let out = CudaTensor::empty(device, shape, a.dtype(), op)?;
        if let Some(bias) = bias {
            let mut dims = vec![1; out.dims().len()];
            dims[1] = bias.len();
            copy_into(&out, &bias.reshape(&dims)?)?;
        }
        let within = |e: Error| device.note(e).within(op, &[&a, &b]);
        let scratch = device.allocator.alloc(algorithm.scratch_bytes).map_err(within)?;
        device.enter()?;
        let code = {
            let handle = self.handle.on_stream(device).map_err(within)?;
            // SAFETY: operands and scratch memory are live device memory until the stream has passed the call.
            unsafe { self.call(&handle, algorithm, [a.ptr(), b.ptr(), out.ptr(), scratch.ptr()]) }
        };
        device.count_launch();
        code.map_err(within)?;
        device.used(&[&out], &[&a, &b], None);
        Ok(out)
    }

    /// # Safety
    /// The addresses are those of the two operands, the output and the scratch memory, as the plan describes them.
    unsafe fn call(
        &self,
        handle: &RawHandle,
        algorithm: Algorithm,
        [a, b, out, scratch]: [u64; 4],
    ) -> Result<()> {
        let (one, held) = (1f64, if self.problem.bias { 1f64 } else { 0f64 });
        let (one32, held32) = (one as f32, held as f32);
        let (alpha, beta): (*const c_void, *const c_void) = if self.problem.elem == Elem::F64 {
            (std::ptr::from_ref(&one).cast(), std::ptr::from_ref(&held).cast())
        } else {
            (std::ptr::from_ref(&one32).cast(), std::ptr::from_ref(&held32).cast())
        };
        let (bytes, api) = (algorithm.scratch_bytes, self.handle.api);
        let Plan { x, w, y, conv, .. } = self;
        // SAFETY: the caller vouches for the addresses; factors have the type that the convolution's asks for.
        unsafe {
            match algorithm.id {
                AlgorithmId::Forward(id) => api.check(
                    "cudnnConvolutionForward",
                    (api.forward)(
                        handle.0, alpha, x.0, a, w.0, b, conv.0, id as u32, scratch, bytes, beta, y.0, out,
                    ),
                ),
                AlgorithmId::Input(id) => api.check(
                    "cudnnConvolutionBackwardData",
                    (api.input)(
                        handle.0, alpha, w.0, a, y.0, b, conv.0, id as u32, scratch, bytes, beta, x.0, out,
                    ),
                ),
                AlgorithmId::Weight(id) => api.check(
                    "cudnnConvolutionBackwardFilter",
                    (api.weight)(
                        handle.0, alpha, x.0, a, y.0, b, conv.0, id as u32, scratch, bytes, beta, w.0, out,
                    ),
                ),
            }
        }
    }
}

/// The tensor, or a copy that the library can take.
fn aligned(t: &CudaTensor) -> Result<CudaTensor> {
    if t.layout().is_contiguous() && t.ptr().is_multiple_of(ALIGNMENT) {
        return Ok(t.clone());
    }
    let copy = t.empty_like("convolution")?;
    copy_into(&copy, t)?;
    Ok(copy)
}

/// Computes a convolution or a gradient of one from its two operands, in the order of [`Direction`]'s words, and a bias for
/// the channels of the output: by cuDNN, or by `columns`.
///
/// # Errors
/// `Error::LibraryMissing` for [`ConvAlgorithm::Cudnn`] without cuDNN; those of the library and of `columns`.
pub(super) fn or_columns(
    op: &'static str,
    direction: Direction,
    conv: &Conv,
    (a, b): (&CudaTensor, &CudaTensor),
    bias: Option<&CudaTensor>,
    columns: impl Fn() -> Result<CudaTensor>,
) -> Result<CudaTensor> {
    let algorithm = algorithm();
    let work = conv.multiply_adds();
    let small = work < TIME_FROM && algorithm == ConvAlgorithm::Fastest;
    if small || algorithm == ConvAlgorithm::Columns || work == 0 || !takes(conv) {
        return columns();
    }
    let device = a.device();
    device.enter()?;
    let (elem, tf32) = (a.elem(), a.elem() == Elem::F32 && tf32_allowed());
    let problem = Problem { direction, conv: *conv, elem, tf32, bias: bias.is_some() };
    let known =
        device.cudnn.routes.lock().unwrap_or_else(|e| e.into_inner()).get(&(problem, algorithm)).cloned();
    let route = match known {
        Some(route) => route,
        // Opening the library, asking it, and an algorithm that fails could each end the capture.
        None if current_pool().is_some() => None,
        None => choose(problem, algorithm, device, |plan, way| plan.run(op, way, (a, b), bias), &columns)?,
    };
    match route {
        Some((plan, algorithm)) => plan.run(op, algorithm, (a, b), bias),
        None => columns(),
    }
}

/// The route of a problem, kept unless memory was short: next time there may be enough.
///
/// # Errors
/// `Error::LibraryMissing` and others of opening cuDNN for [`ConvAlgorithm::Cudnn`]; `Error::ContextDead`.
fn choose(
    problem: Problem,
    algorithm: ConvAlgorithm,
    device: &'static Device,
    run: impl Fn(&Plan, Algorithm) -> Result<CudaTensor>,
    columns: &dyn Fn() -> Result<CudaTensor>,
) -> Result<Route> {
    let keep = |route: Route| Ok(device.cudnn.keep(problem, algorithm, route));
    let handle = match device.cudnn.handle(device) {
        Ok(handle) => handle,
        Err(_) if algorithm == ConvAlgorithm::Fastest => return Ok(None),
        Err(error) => return Err(error),
    };
    let described = Plan::new(problem, handle).and_then(|plan| Ok((plan.algorithms(device)?, plan)));
    let (found, plan) = match described {
        Ok((found, plan)) => (found, Arc::new(plan)),
        Err(error) => {
            log::debug!("{problem:?}: {error}");
            return keep(None);
        }
    };
    // Some of what the library cannot do shows only when it is done.
    let mut able = Vec::new();
    for way in found {
        match run(&plan, way) {
            Ok(_) => able.push(way),
            Err(dead @ Error::ContextDead { .. }) => return Err(dead),
            Err(error) if error.is_out_of_memory() => return Ok(None),
            Err(error) => log::debug!("{problem:?}, {way:?}: {error}"),
        }
    }
    let best = match algorithm {
        ConvAlgorithm::Fastest if !able.is_empty() => {
            let Ok(ahead) = device.allocator.alloc(WORKSPACE_BYTES) else { return Ok(None) };
            fastest(&problem, device, &ahead, &able, |way| run(&plan, way), columns)?
        }
        _ => able.first().copied(),
    };
    log::debug!("{problem:?}: {best:?} of {able:?}");
    keep(best.map(|way| (plan, way)))
}

/// Times the algorithms, and the columns: `None` if those are fastest. `ahead` is overwritten.
fn fastest(
    problem: &Problem,
    device: &'static Device,
    ahead: &Block,
    able: &[Algorithm],
    run: impl Fn(Algorithm) -> Result<CudaTensor>,
    columns: &dyn Fn() -> Result<CudaTensor>,
) -> Result<Option<Algorithm>> {
    // Longer problems need fewer runs.
    let runs = ((1u128 << 36) / problem.conv.multiply_adds()).clamp(1, 20) as usize;
    let mut best = (f64::INFINITY, None);
    for candidate in std::iter::once(None).chain(able.iter().copied().map(Some)) {
        let once = || match candidate {
            None => columns().map(drop),
            Some(algorithm) => run(algorithm).map(drop),
        };
        match measure(device, ahead, runs, once).map_err(|e| device.note(e)) {
            Ok(us) if us < best.0 => best = (us, candidate),
            Ok(_) => {}
            Err(dead @ Error::ContextDead { .. }) => return Err(dead),
            // One that cannot run after all is no candidate.
            Err(error) => log::debug!("{problem:?}, {candidate:?}: {error}"),
        }
    }
    Ok(best.1)
}

#[cfg(test)]
mod tests {
    use burn_backend::ops::{ConvOptions, ConvTransposeOptions};

    use super::*;

    #[test]
    fn algorithms_are_kept_apart() {
        for set in [ConvAlgorithm::Cudnn, ConvAlgorithm::Columns, ConvAlgorithm::Fastest] {
            set_algorithm(set);
            assert_eq!(algorithm(), set);
        }
    }

    #[test]
    fn what_the_library_cannot_describe_is_left_to_columns() {
        let options = ConvOptions::new([2, 1], [1, 0], [1, 2], 1);
        let conv = Conv::new("conv2d", &[2, 3, 8, 9], &[4, 3, 3, 3], &options).unwrap();
        assert!(takes(&conv));
        let huge = Conv::new("conv2d", &[1 << 18, 128, 8, 9], &[4, 128, 3, 3], &options).unwrap();
        assert!(!takes(&huge));
        // Inputs of 3 pixels; the convolution of the output alone could be of 4.
        let options = ConvTransposeOptions::new([1], [0], [1], [1], 1);
        let conv = Conv::under_transposed("conv_transpose1d", &[1, 2, 6], &[4, 2, 3], &options).unwrap();
        assert!(!takes(&conv));
    }
}
