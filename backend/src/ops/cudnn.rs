//! cuDNN: a convolution, or one of its two gradients, as one call, where the library can be loaded.
//!
//! The library proposes engines ([`graph`]); only those are used that sum products as the definition does, in one order:
//! none with Fourier or Winograd transforms, whose errors are larger, none that adds with atomics, none that sums in 16
//! bits. Products of f32 are exact f32 unless TF32 is allowed; 16-bit floats are summed in f32. A bias is written to the
//! output first and counts as what it held.
//!
//! Tensors lie in one of two orders, row-major or with channels last, which most engines for tensor cores want: both are
//! candidates. Operands in another order are copied first. The result stays as it is, which elementwise operations keep, so
//! that the next convolution finds it so; but the gradient of a weight is row-major, as the weight is.
//!
//! Which of these and the columns of [`super::conv`] is fastest depends on sizes, dtype and device, so each is timed once
//! per problem on the real operands, copies included ([`ConvAlgorithm::Fastest`]). Nothing is timed while a graph is
//! captured.
#![allow(unsafe_code)]

mod api;
mod graph;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use burn_backend::{Shape, TensorMetadata};

use self::api::{Api, Object};
use self::graph::{Plan, plans};
use super::conv::Conv;
use super::matmul::{WORKSPACE_BYTES, measure, tf32_allowed};
use crate::device::Device;
use crate::driver::context::RelaxedCapture;
use crate::driver::graph::current_pool;
use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::memory::Block;
use crate::ops::elementwise::copy_into;
use crate::tensor::CudaTensor;

/// How convolutions are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum ConvAlgorithm {
    /// cuDNN or columns, whichever is faster for the sizes: all ways are timed the first time. Small convolutions, and all of
    /// them where cuDNN cannot be loaded, are columns.
    #[default]
    Fastest,
    /// cuDNN, but for what it does not take: tensors without elements or of 2^31 and more, an output padding that adds no
    /// window, the bias of a transposed convolution in 16 bits, and what a captured graph is the first to compute. A missing
    /// library is an error.
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

/// Multiply-adds from which ways are timed.
const TIME_FROM: u128 = 1 << 22;
/// Device time for which a way is timed again, after one run; in how many runs at most. One that took twice as long as the
/// best is not.
const TIMED_US: f64 = 5000.0;
const RUNS: usize = 20;
/// Scratch memory that an engine may use: that of the columns.
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

/// How the elements of `[B, C, ..]` lie, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Order {
    /// Row-major.
    Rows,
    /// As row-major `[B, .., C]`.
    ChannelsLast,
}

impl Order {
    /// Of a tensor that the library can take as it lies. Where both orders are the same one, it is row-major.
    fn of(t: &CudaTensor) -> Option<Order> {
        [Order::Rows, Order::ChannelsLast].into_iter().find(|order| order.has(t))
    }

    fn has(self, t: &CudaTensor) -> bool {
        let lies = match self {
            Order::Rows => t.layout().is_contiguous(),
            Order::ChannelsLast => {
                t.layout().permute(&channels_last(t.rank())).is_some_and(|layout| layout.is_contiguous())
            }
        };
        lies && t.ptr().is_multiple_of(ALIGNMENT)
    }

    /// In elements, for sizes in the order `[B, C, ..]`.
    fn strides(self, dims: &[i64]) -> Vec<i64> {
        let (mut strides, mut step) = (vec![1; dims.len()], 1);
        let mut outer_to_inner: Vec<usize> = (0..dims.len()).collect();
        if self == Order::ChannelsLast {
            outer_to_inner = channels_last(dims.len());
        }
        for d in outer_to_inner.into_iter().rev() {
            strides[d] = step;
            step *= dims[d];
        }
        strides
    }

    /// An uninitialised tensor of a shape in the order `[B, C, ..]`.
    fn empty(self, of: &CudaTensor, shape: &[usize], op: &'static str) -> Result<CudaTensor> {
        if self == Order::Rows {
            return CudaTensor::empty(of.device(), shape.to_vec(), of.dtype(), op);
        }
        let dims: Vec<i64> = shape.iter().map(|&d| d as i64).collect();
        let lies: Vec<usize> = channels_last(shape.len()).into_iter().map(|d| shape[d]).collect();
        let memory = CudaTensor::empty(of.device(), lies, of.dtype(), op)?;
        let layout = Layout::new(Shape::from(shape.to_vec()), self.strides(&dims).into(), 0);
        Ok(memory.into_layout(layout))
    }

    /// The tensor, or a copy in this order.
    fn operand(self, t: &CudaTensor) -> Result<CudaTensor> {
        if self.has(t) {
            return Ok(t.clone());
        }
        let copy = self.empty(t, t.dims(), "convolution")?;
        copy_into(&copy, t)?;
        Ok(copy)
    }
}

/// The dimensions of `[B, C, ..]` as `[B, .., C]`.
fn channels_last(rank: usize) -> Vec<usize> {
    std::iter::once(0).chain(2..rank).chain([1]).collect()
}

/// All that decides which plans there are and which one is fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Problem {
    direction: Direction,
    conv: Conv,
    elem: Elem,
    tf32: bool,
    bias: bool,
    /// Of the two operands; `None` for one that is copied whatever the plan.
    orders: [Option<Order>; 2],
}

impl Problem {
    /// In the order `[B, C, ..]`.
    fn result_shape(&self) -> Vec<usize> {
        match self.direction {
            Direction::Forward => self.conv.y_shape(),
            Direction::Input => self.conv.x_shape(),
            Direction::Weight => self.conv.w_shape(),
        }
    }
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
struct RawHandle {
    raw: Object,
    /// Of the last call; one that was captured may be gone.
    stream: usize,
}

// SAFETY: the mutex around it lets one thread at a time use it; it is never destroyed.
unsafe impl Send for RawHandle {}

/// How one problem is computed: `None` by columns.
type Route = Option<Arc<Plan>>;

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
        Ok(self.handle.get_or_init(|| Handle { api, raw: Mutex::new(RawHandle { raw: handle, stream: 0 }) }))
    }

    /// What was chosen for the same problem with operands in other orders; columns if there is nothing.
    fn of_other_orders(&self, problem: &Problem, algorithm: ConvAlgorithm) -> Route {
        let routes = self.routes.lock().unwrap_or_else(|e| e.into_inner());
        let all = [Some(Order::ChannelsLast), Some(Order::Rows), None];
        let mut pairs = all.into_iter().flat_map(|a| all.map(|b| [a, b]));
        pairs.find_map(|orders| routes.get(&(Problem { orders, ..*problem }, algorithm)).cloned()).flatten()
    }

    /// Keeps a choice; of threads that choose at once, the first one's holds.
    fn keep(&self, problem: Problem, algorithm: ConvAlgorithm, route: Route) -> Route {
        let mut routes = self.routes.lock().unwrap_or_else(|e| e.into_inner());
        routes.entry((problem, algorithm)).or_insert(route).clone()
    }
}

impl Handle {
    /// The library's handle, set to the device's stream.
    fn on_stream(&self, device: &Device) -> Result<MutexGuard<'_, RawHandle>> {
        let mut handle = self.raw.lock().unwrap_or_else(|e| e.into_inner());
        let stream = device.context.stream();
        // Another capture's stream may have had the same address.
        if handle.stream != stream.addr() || current_pool().is_some() {
            // SAFETY: the handle is this thread's; the stream is never destroyed, or outlives its capture.
            let set = unsafe { (self.api.set_stream)(handle.raw, stream.cast()) };
            handle.stream = 0;
            self.api.check("cudnnSetStream", set)?;
            handle.stream = stream.addr();
        }
        Ok(handle)
    }
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

/// Queues a plan's computation on new memory, with the copies that its order needs.
fn run(
    op: &'static str,
    problem: &Problem,
    plan: &Plan,
    (a, b): (&CudaTensor, &CudaTensor),
    bias: Option<&CudaTensor>,
    handle: &Handle,
) -> Result<CudaTensor> {
    let device = a.device();
    let (a, b) = (plan.order.operand(a)?, plan.order.operand(b)?);
    let out = plan.order.empty(&a, &problem.result_shape(), op)?;
    if let Some(bias) = bias {
        let mut dims = vec![1; out.dims().len()];
        dims[1] = bias.len();
        copy_into(&out, &bias.reshape(&dims)?)?;
    }
    let within = |e: Error| device.note(e).within(op, &[&a, &b]);
    let scratch = device.allocator.alloc(plan.scratch_bytes).map_err(within)?;
    device.enter()?;
    let done = {
        let handle = handle.on_stream(device).map_err(within)?;
        // SAFETY: operands and scratch memory are live device memory until the stream has passed the call, and lie as the
        // plan's order says.
        unsafe { plan.execute(handle.raw, [a.ptr(), b.ptr(), out.ptr()], scratch.ptr()) }
    };
    device.count_launch();
    done.map_err(within)?;
    device.used(&[&out], &[&a, &b], None);
    if problem.direction == Direction::Weight { Order::Rows.operand(&out) } else { Ok(out) }
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
    // On an H200, cuDNN 9.19 rounds these sums before it adds what the output held, the bias.
    let rounds_twice = direction == Direction::Input && bias.is_some() && a.elem().size_bytes() == 2;
    if small || algorithm == ConvAlgorithm::Columns || work == 0 || rounds_twice || !takes(conv) {
        return columns();
    }
    let device = a.device();
    device.enter()?;
    let (elem, tf32) = (a.elem(), a.elem() == Elem::F32 && tf32_allowed());
    let orders = [Order::of(a), Order::of(b)];
    let problem = Problem { direction, conv: *conv, elem, tf32, bias: bias.is_some(), orders };
    let known =
        device.cudnn.routes.lock().unwrap_or_else(|e| e.into_inner()).get(&(problem, algorithm)).cloned();
    let by = |plan: &Plan, handle: &Handle| run(op, &problem, plan, (a, b), bias, handle);
    let route = match known {
        Some(route) => route,
        // Opening the library, asking it, and a plan that fails could each end the capture. What was chosen for operands in
        // other orders serves as well: a graph's inputs have no gaps, which they may have had when it was interpreted.
        None if current_pool().is_some() => device.cudnn.of_other_orders(&problem, algorithm),
        None => choose(problem, algorithm, device, by, &columns)?,
    };
    match route {
        Some(plan) => by(&plan, device.cudnn.handle(device)?),
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
    run: impl Fn(&Plan, &Handle) -> Result<CudaTensor>,
    columns: &dyn Fn() -> Result<CudaTensor>,
) -> Result<Route> {
    let keep = |route: Route| Ok(device.cudnn.keep(problem, algorithm, route));
    let handle = match device.cudnn.handle(device) {
        Ok(handle) => handle,
        Err(_) if algorithm == ConvAlgorithm::Fastest => return Ok(None),
        Err(error) => return Err(error),
    };
    let plans: Vec<_> = match proposed(&problem, device, handle) {
        Ok(plans) => plans.into_iter().map(Arc::new).collect(),
        Err(dead @ Error::ContextDead { .. }) => return Err(dead),
        Err(error) => {
            log::debug!("{problem:?}: {error}");
            return keep(None);
        }
    };
    let timed = problem.conv.multiply_adds() >= TIME_FROM;
    let columns = Some(columns).filter(|_| algorithm == ConvAlgorithm::Fastest);
    if !plans.is_empty() && (timed || columns.is_some()) {
        let Ok(ahead) = device.allocator.alloc(WORKSPACE_BYTES) else { return Ok(None) };
        return match fastest(&problem, device, &ahead, &plans, |plan| run(plan, handle), columns) {
            Ok(route) => keep(route),
            Err(error) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(error),
        };
    }
    // Some of what the library cannot do shows only when it is done.
    for plan in plans {
        match run(&plan, handle) {
            Ok(_) => return keep(Some(plan)),
            Err(dead @ Error::ContextDead { .. }) => return Err(dead),
            Err(error) if error.is_out_of_memory() => return Ok(None),
            Err(error) => log::debug!("{problem:?}: {plan}: {error}"),
        }
    }
    keep(None)
}

/// Plans in the order that the operands have, and in the other one.
fn proposed(problem: &Problem, device: &'static Device, handle: &Handle) -> Result<Vec<Plan>> {
    let orders = match problem.orders {
        [Some(Order::ChannelsLast), _] | [_, Some(Order::ChannelsLast)] => [Order::ChannelsLast, Order::Rows],
        _ => [Order::Rows, Order::ChannelsLast],
    };
    device.enter()?;
    // Kernels are loaded, which must not end another thread's capture.
    let _relaxed = RelaxedCapture::enter()?;
    let locked = handle.on_stream(device)?;
    let mut all = Vec::new();
    for order in orders {
        match plans(handle.api, locked.raw, problem, order) {
            Ok(plans) => all.extend(plans),
            Err(error) => log::debug!("{problem:?} {order:?}: {error}"),
        }
    }
    Ok(all)
}

/// Times the plans, and the columns if they may be used: `None` if those are fastest. `ahead` is overwritten.
///
/// # Errors
/// `Error::OutOfMemory`, `Error::ContextDead`.
fn fastest(
    problem: &Problem,
    device: &'static Device,
    ahead: &Block,
    plans: &[Arc<Plan>],
    run: impl Fn(&Plan) -> Result<CudaTensor>,
    columns: Option<&dyn Fn() -> Result<CudaTensor>>,
) -> Result<Route> {
    let mut best = (f64::INFINITY, None);
    let ways = columns.map(|_| None).into_iter().chain(plans.iter().map(Some));
    for way in ways {
        let once = || match (way, columns) {
            (Some(plan), _) => run(plan).map(drop),
            (None, Some(columns)) => columns().map(drop),
            (None, None) => Ok(()),
        };
        let name = || way.map_or("columns".into(), |plan| plan.to_string());
        let timed = measure(device, ahead, 1, once).and_then(|us| match (TIMED_US / us) as usize {
            runs if runs > 1 && us < 2.0 * best.0 => measure(device, ahead, runs.min(RUNS), once),
            _ => Ok(us),
        });
        match timed.map_err(|e| device.note(e)) {
            Ok(us) => {
                log::debug!("{problem:?}: {us:.1} us by {}", name());
                if us < best.0 {
                    best = (us, way);
                }
            }
            Err(dead @ Error::ContextDead { .. }) => return Err(dead),
            Err(short) if way.is_some() && short.is_out_of_memory() => return Err(short),
            // Some of what the library cannot do shows only when it is done.
            Err(error) => log::debug!("{problem:?}: {}: {error}", name()),
        }
    }
    log::debug!("{problem:?}: fastest is {}", best.1.map_or("columns".into(), |plan| plan.to_string()));
    Ok(best.1.cloned())
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

    #[test]
    fn strides_of_both_orders() {
        assert_eq!(Order::Rows.strides(&[2, 3, 4, 5]), [60, 20, 5, 1]);
        assert_eq!(Order::ChannelsLast.strides(&[2, 3, 4, 5]), [60, 1, 15, 3]);
        assert_eq!(Order::ChannelsLast.strides(&[2, 3, 4, 5, 6]), [360, 1, 90, 18, 3]);
    }
}
