//! The convolution library's C interface (`libcudnn.so.9`): forward, both gradients, and forward with a bias.
//!
//! A convolution is queued like a kernel on its handle's stream and computed on the host when it runs; descriptors and
//! factors are read at the call. There are few algorithms, and all of them sum alike, but some need a workspace: it is
//! filled with garbage, and must overlap nothing.

mod convolution;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::driver::stream::{Work, resolve, run_device};
use crate::driver::{capture, device, handles, lock};
use crate::operands::{Kind, Workspace};
use convolution::{Convolution, Direction, Shape, Tensor, Window};

/// cuDNN 9.19.0.
const VERSION: usize = 91_900;
/// `CUDNN_DIM_MAX`.
const MAX_DIMS: c_int = 8;

macro_rules! statuses {
    ($($name:ident = $code:literal, $symbol:literal;)+) => {
        /// `cudnnStatus_t`: the codes that this library returns.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum Status {
            $($name = $code,)+
        }

        fn name(code: u32) -> &'static CStr {
            match code {
                $($code => $symbol,)+
                _ => c"CUDNN_UNKNOWN_STATUS",
            }
        }
    };
}

statuses! {
    Success = 0, c"CUDNN_STATUS_SUCCESS";
    NotInitialized = 1001, c"CUDNN_STATUS_NOT_INITIALIZED";
    BadParam = 2000, c"CUDNN_STATUS_BAD_PARAM";
    NotSupported = 3000, c"CUDNN_STATUS_NOT_SUPPORTED";
    InternalError = 4000, c"CUDNN_STATUS_INTERNAL_ERROR";
    ExecutionFailed = 5000, c"CUDNN_STATUS_EXECUTION_FAILED";
}

fn answer(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(Status::Success)
}

fn require(condition: bool, otherwise: Status) -> Result<(), Status> {
    if condition { Ok(()) } else { Err(otherwise) }
}

/// Writes a new object's handle to where the caller wants it.
///
/// # Safety
/// `at` is null or valid for a write.
unsafe fn create<T: Send + Sync + 'static>(at: *mut usize, object: T) -> Result<(), Status> {
    require(!at.is_null(), Status::BadParam)?;
    // SAFETY: the caller vouches for the place.
    unsafe { at.write(handles::insert(Arc::new(object))) };
    Ok(())
}

fn get<T: Send + Sync + 'static>(handle: usize) -> Result<Arc<T>, Status> {
    handles::get(handle).ok_or(Status::BadParam)
}

fn destroy<T: Send + Sync + 'static>(handle: usize) -> Status {
    answer(handles::remove::<T>(handle).map(|_| ()).ok_or(Status::BadParam))
}

/// A copy of an array of integers that are at least `least`.
///
/// # Safety
/// `from` is null or leads to `count` integers.
unsafe fn sizes(from: *const c_int, count: c_int, least: c_int) -> Result<Vec<usize>, Status> {
    require(!from.is_null(), Status::BadParam)?;
    // SAFETY: the caller vouches for the array.
    let values = (0..count as usize).map(|k| unsafe { from.add(k).read() });
    values.map(|value| if value < least { Err(Status::BadParam) } else { Ok(value as usize) }).collect()
}

/// The library on one device.
#[derive(Debug)]
struct Handle {
    device: u32,
    stream: Mutex<usize>,
}

/// Values of a descriptor; none before they are set.
#[derive(Debug)]
struct Descriptor<T>(Mutex<Option<T>>);

/// A descriptor's values.
fn values<T: Clone + Send + 'static>(handle: usize) -> Result<T, Status> {
    lock(&get::<Descriptor<T>>(handle)?.0).clone().ok_or(Status::BadParam)
}

fn assign<T: Send + 'static>(handle: usize, values: T) -> Result<(), Status> {
    *lock(&get::<Descriptor<T>>(handle)?.0) = Some(values);
    Ok(())
}

/// `cudnnDataType_t`, which has more types than there are convolutions here.
fn kind(code: u32) -> Result<Kind, Status> {
    match code {
        0 => Ok(Kind::F32),
        1 => Ok(Kind::F64),
        2 => Ok(Kind::F16),
        9 => Ok(Kind::BF16),
        _ => Err(Status::NotSupported),
    }
}

/// The last of `cudnnDataType_t`.
const LAST_KIND: u32 = 21;
/// The last of `cudnnMathType_t`: no rounding before products.
const FMA_MATH: u32 = 3;
/// `CUDNN_CROSS_CORRELATION`, the last of its kind: filters are not turned around.
const CROSS_CORRELATION: u32 = 1;
/// `CUDNN_ACTIVATION_IDENTITY`.
const IDENTITY: u32 = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
struct TensorValues {
    kind: u32,
    dims: Vec<usize>,
    strides: Vec<c_int>,
}

#[derive(Debug, Clone)]
struct FilterValues {
    kind: u32,
    format: u32,
    dims: Vec<usize>,
}

#[derive(Debug, Clone)]
struct ActivationValues {
    mode: u32,
    nan: u32,
}

#[derive(Debug, Clone)]
struct ConvolutionValues {
    /// Without spatial dims until it is set.
    window: Window,
    mode: u32,
    compute: u32,
    math: u32,
}

/// The library's version.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnGetVersion() -> usize {
    VERSION
}

/// The name of a status.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnGetErrorString(code: u32) -> *const c_char {
    name(code).as_ptr()
}

/// The library on the current context's device, with the default stream. May wait for the device, so captures can forbid
/// it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnCreate(handle: *mut usize) -> Status {
    let make = || {
        let device = device::current().map_err(|_| Status::NotInitialized)?;
        capture::permit().map_err(|_| Status::InternalError)?;
        // SAFETY: the caller passes a valid place or null.
        unsafe { create(handle, Handle { device, stream: Mutex::new(0) }) }
    };
    answer(make())
}

/// Waits for the handle's device and ends it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnDestroy(handle: usize) -> Status {
    let end = || {
        let device = get::<Handle>(handle)?.device;
        capture::permit().map_err(|_| Status::InternalError)?;
        run_device(device);
        handles::remove::<Handle>(handle).map(|_| ()).ok_or(Status::BadParam)
    };
    answer(end())
}

/// The stream for what is called from here on.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnSetStream(handle: usize, stream: usize) -> Status {
    let set = || {
        let handle = get::<Handle>(handle)?;
        let found = resolve(stream).map_err(|_| Status::BadParam)?;
        require(found.device == handle.device, Status::BadParam)?;
        *lock(&handle.stream) = stream;
        Ok(())
    };
    answer(set())
}

/// A tensor without values.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnCreateTensorDescriptor(desc: *mut usize) -> Status {
    // SAFETY: the caller passes a valid place or null.
    answer(unsafe { create(desc, Descriptor::<TensorValues>(Mutex::default())) })
}

/// Type, sizes and strides of a tensor; it spans at most 2^31 - 1 elements.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnSetTensorNdDescriptor(
    desc: usize,
    kind: u32,
    count: c_int,
    dims: *const c_int,
    strides: *const c_int,
) -> Status {
    let set = || {
        require(kind <= LAST_KIND, Status::BadParam)?;
        require((4..=MAX_DIMS).contains(&count), Status::NotSupported)?;
        // SAFETY: the caller passes arrays of `count` integers or null.
        let dims = unsafe { sizes(dims, count, 1) }?;
        require(!strides.is_null(), Status::BadParam)?;
        // SAFETY: as above.
        let strides: Vec<_> = (0..dims.len()).map(|k| unsafe { strides.add(k).read() }).collect();
        let steps =
            dims.iter().zip(&strides).map(|(&dim, &stride)| (dim - 1) as i128 * stride.max(0) as i128);
        let span = 1 + steps.sum::<i128>();
        let elements = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        let most = c_int::MAX as usize;
        require(elements.is_some_and(|count| count <= most) && span <= most as i128, Status::NotSupported)?;
        assign(desc, TensorValues { kind, dims, strides })
    };
    answer(set())
}

/// Ends a handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnDestroyTensorDescriptor(desc: usize) -> Status {
    destroy::<Descriptor<TensorValues>>(desc)
}

/// A filter without values.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnCreateFilterDescriptor(desc: *mut usize) -> Status {
    // SAFETY: the caller passes a valid place or null.
    answer(unsafe { create(desc, Descriptor::<FilterValues>(Mutex::default())) })
}

/// Type, order and sizes of a filter, which has no gaps.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnSetFilterNdDescriptor(
    desc: usize,
    kind: u32,
    format: u32,
    count: c_int,
    dims: *const c_int,
) -> Status {
    let set = || {
        require(kind <= LAST_KIND && format <= 2, Status::BadParam)?;
        require((4..=MAX_DIMS).contains(&count), Status::NotSupported)?;
        // SAFETY: the caller passes an array of `count` integers or null.
        let dims = unsafe { sizes(dims, count, 1) }?;
        let elements = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        require(elements.is_some_and(|count| count <= c_int::MAX as usize), Status::NotSupported)?;
        assign(desc, FilterValues { kind, format, dims })
    };
    answer(set())
}

/// Ends a handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnDestroyFilterDescriptor(desc: usize) -> Status {
    destroy::<Descriptor<FilterValues>>(desc)
}

/// A convolution in one group and default math, without spatial dims.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnCreateConvolutionDescriptor(desc: *mut usize) -> Status {
    let window = Window { pads: Vec::new(), strides: Vec::new(), dilations: Vec::new(), groups: 1 };
    let values = ConvolutionValues { window, mode: CROSS_CORRELATION, compute: 0, math: 0 };
    // SAFETY: the caller passes a valid place or null.
    answer(unsafe { create(desc, Descriptor(Mutex::new(Some(values)))) })
}

/// Padding, strides and dilation of each spatial dim, and the type of sums.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnSetConvolutionNdDescriptor(
    desc: usize,
    count: c_int,
    pads: *const c_int,
    strides: *const c_int,
    dilations: *const c_int,
    mode: u32,
    compute: u32,
) -> Status {
    let set = || {
        let old = values::<ConvolutionValues>(desc)?;
        require(count >= 1 && mode <= CROSS_CORRELATION && compute <= LAST_KIND, Status::BadParam)?;
        require(count <= MAX_DIMS - 2, Status::NotSupported)?;
        // SAFETY: the caller passes arrays of `count` integers or null.
        let (pads, strides, dilations) =
            unsafe { (sizes(pads, count, 0)?, sizes(strides, count, 1)?, sizes(dilations, count, 1)?) };
        let window = Window { pads, strides, dilations, groups: old.window.groups };
        assign(desc, ConvolutionValues { window, mode, compute, math: old.math })
    };
    answer(set())
}

/// Parts in which channels and filters are convolved apart.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnSetConvolutionGroupCount(desc: usize, count: c_int) -> Status {
    let set = || {
        let mut values = values::<ConvolutionValues>(desc)?;
        require(count >= 1, Status::BadParam)?;
        values.window.groups = count as usize;
        assign(desc, values)
    };
    answer(set())
}

/// Whether operands in F32 may be rounded: all but `CUDNN_FMA_MATH` allow it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnSetConvolutionMathType(desc: usize, math: u32) -> Status {
    let set = || {
        let mut values = values::<ConvolutionValues>(desc)?;
        require(math <= FMA_MATH, Status::BadParam)?;
        values.math = math;
        assign(desc, values)
    };
    answer(set())
}

/// Ends a handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnDestroyConvolutionDescriptor(desc: usize) -> Status {
    destroy::<Descriptor<ConvolutionValues>>(desc)
}

/// An activation without values.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnCreateActivationDescriptor(desc: *mut usize) -> Status {
    // SAFETY: the caller passes a valid place or null.
    answer(unsafe { create(desc, Descriptor::<ActivationValues>(Mutex::default())) })
}

/// An activation function, with a coefficient that the identity does not use.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnSetActivationDescriptor(
    desc: usize,
    mode: u32,
    nan: u32,
    _coefficient: f64,
) -> Status {
    answer(
        require(mode <= 6 && nan <= 1, Status::BadParam)
            .and_then(|()| assign(desc, ActivationValues { mode, nan })),
    )
}

/// Ends a handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnDestroyActivationDescriptor(desc: usize) -> Status {
    destroy::<Descriptor<ActivationValues>>(desc)
}

/// A convolution of tensors that fit together, by an algorithm that there is.
#[derive(Debug)]
struct Plan {
    kind: Kind,
    /// Shapes of x, w and y.
    shapes: [Shape; 3],
    window: Window,
    tf32: bool,
    workspace: u64,
}

/// Descriptors of x, w, y and their convolution.
type Descriptors = [usize; 4];

fn plan(direction: Direction, algorithm: u32, descriptors: Descriptors) -> Result<Plan, Status> {
    let (x, y): (TensorValues, TensorValues) = (values(descriptors[0])?, values(descriptors[2])?);
    let w: FilterValues = values(descriptors[1])?;
    let convolution: ConvolutionValues = values(descriptors[3])?;
    let window = convolution.window;
    let (rank, spatial) = (x.dims.len(), window.pads.len());
    require(w.dims.len() == rank && y.dims.len() == rank && spatial + 2 == rank, Status::BadParam)?;
    require(x.kind == w.kind && x.kind == y.kind, Status::BadParam)?;
    require(x.dims[0] == y.dims[0] && w.dims[0] == y.dims[1], Status::BadParam)?;
    let groups = window.groups;
    require(w.dims[1] * groups == x.dims[1] && w.dims[0].is_multiple_of(groups), Status::BadParam)?;
    for k in 0..spatial {
        let reach = (w.dims[k + 2] - 1) * window.dilations[k] + 1;
        let room = x.dims[k + 2] + 2 * window.pads[k];
        require(room >= reach && y.dims[k + 2] == 1 + (room - reach) / window.strides[k], Status::BadParam)?;
    }
    require(rank <= 5 && w.format == 0 && convolution.mode == CROSS_CORRELATION, Status::NotSupported)?;
    let kind = kind(x.kind)?;
    let compute = if kind == Kind::F64 { 1 } else { 0 };
    require(convolution.compute == compute, Status::NotSupported)?;
    let workspace = workspace(direction, algorithm, &w.dims)?;
    let tf32 = kind == Kind::F32 && convolution.math != FMA_MATH;
    Ok(Plan { kind, shapes: [shape(x)?, Shape::packed(&w.dims), shape(y)?], window, tf32, workspace })
}

/// The shape of a tensor whose strides lead forwards.
fn shape(values: TensorValues) -> Result<Shape, Status> {
    let forwards = |(&dim, &stride): (&usize, &c_int)| dim == 1 || stride > 0;
    require(values.dims.iter().zip(&values.strides).all(forwards), Status::NotSupported)?;
    let strides = values.strides.iter().map(|&stride| stride.max(0) as usize).collect();
    Ok(Shape { dims: values.dims, strides })
}

/// Bytes that an algorithm needs, as for a table of a filter's elements: not the same for any two that need some.
fn workspace(direction: Direction, algorithm: u32, filter: &[usize]) -> Result<u64, Status> {
    let table = (4 * filter[1..].iter().product::<usize>() as u64).next_multiple_of(256);
    let (count, needed) = match direction {
        Direction::Forward => (8, [Some(0), Some(table), None, None]),
        Direction::BackwardData => (6, [Some(0), Some(2 * table), None, None]),
        Direction::BackwardFilter => (7, [Some(0), Some(3 * table), None, Some(4 * table)]),
    };
    require(algorithm < count, Status::BadParam)?;
    needed.get(algorithm as usize).copied().flatten().ok_or(Status::NotSupported)
}

/// Writes the bytes that an algorithm needs.
///
/// # Safety
/// `bytes` is null or valid for a write.
unsafe fn workspace_size(
    handle: usize,
    direction: Direction,
    algorithm: u32,
    descriptors: Descriptors,
    bytes: *mut usize,
) -> Status {
    let find = || {
        get::<Handle>(handle)?;
        require(!bytes.is_null(), Status::BadParam)?;
        let plan = plan(direction, algorithm, descriptors)?;
        // SAFETY: the caller vouches for the place.
        unsafe { bytes.write(plan.workspace as usize) };
        Ok(())
    };
    answer(find())
}

/// Workspace of a forward convolution: none for algorithm 0, some for 1; there are no others.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnGetConvolutionForwardWorkspaceSize(
    handle: usize,
    x: usize,
    w: usize,
    convolution: usize,
    y: usize,
    algorithm: u32,
    bytes: *mut usize,
) -> Status {
    // SAFETY: the caller passes a valid place or null.
    unsafe { workspace_size(handle, Direction::Forward, algorithm, [x, w, y, convolution], bytes) }
}

/// Workspace of the gradient of x: none for algorithm 0, some for 1; there are no others.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnGetConvolutionBackwardDataWorkspaceSize(
    handle: usize,
    w: usize,
    dy: usize,
    convolution: usize,
    dx: usize,
    algorithm: u32,
    bytes: *mut usize,
) -> Status {
    // SAFETY: the caller passes a valid place or null.
    unsafe { workspace_size(handle, Direction::BackwardData, algorithm, [dx, w, dy, convolution], bytes) }
}

/// Workspace of the gradient of w: none for algorithm 0, some for 1 and 3; there are no others.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnGetConvolutionBackwardFilterWorkspaceSize(
    handle: usize,
    x: usize,
    dy: usize,
    convolution: usize,
    dw: usize,
    algorithm: u32,
    bytes: *mut usize,
) -> Status {
    // SAFETY: the caller passes a valid place or null.
    unsafe { workspace_size(handle, Direction::BackwardFilter, algorithm, [x, dw, dy, convolution], bytes) }
}

/// What all convolutions are called with.
struct Call {
    name: &'static str,
    direction: Direction,
    algorithm: u32,
    handle: usize,
    descriptors: Descriptors,
    /// x, w and y.
    names: [&'static str; 3],
    at: [u64; 3],
    workspace: (u64, usize),
    factors: [*const c_void; 2],
    /// What is added instead of the result itself.
    side: Option<Side>,
}

/// Operands of a forward convolution with a bias.
struct Side {
    z: (usize, u64),
    bias: (usize, u64),
    activation: usize,
}

/// Whether an address can be one of a tensor.
fn aligned(at: u64, kind: Kind) -> Result<(), Status> {
    require(at != 0 && at.is_multiple_of(kind.bytes()), Status::BadParam)
}

/// Queues a convolution.
///
/// # Safety
/// Factors are null or valid.
unsafe fn queue(call: Call) -> Result<(), Status> {
    let handle = get::<Handle>(call.handle)?;
    require(call.factors.iter().all(|factor| !factor.is_null()), Status::BadParam)?;
    let Plan { kind, shapes, window, tf32, workspace: used } =
        plan(call.direction, call.algorithm, call.descriptors)?;
    // SAFETY: the caller passes factors, of the type that goes with the tensors'.
    let [alpha, beta] = call.factors.map(|at| unsafe { kind.factor(at) });
    for at in call.at {
        aligned(at, kind)?;
    }
    let (at, given) = call.workspace;
    require(used == 0 || at != 0 && at.is_multiple_of(256), Status::BadParam)?;
    require(given as u64 >= used, Status::BadParam)?;
    let workspace = if at == 0 { Workspace::default() } else { Workspace { at, given: given as u64, used } };
    let tensors =
        std::array::from_fn(|k| Tensor { name: call.names[k], at: call.at[k], shape: shapes[k].clone() });
    let result = &tensors[call.direction.result()];
    let (added, bias) = match &call.side {
        None => (result.clone(), None),
        Some(side) => {
            let (z, bias) = side_tensors(side, &call, kind, result)?;
            (z, Some(bias))
        }
    };
    let stream = resolve(*lock(&handle.stream)).map_err(|_| Status::BadParam)?;
    require(stream.device == handle.device, Status::BadParam)?;
    let sizes = call.direction.operands().map(|k| format!("{} {:?}", tensors[k].name, tensors[k].shape.dims));
    let convolution = Convolution {
        call: format!("{} ({})", call.name, sizes.join(", ")),
        device: handle.device,
        direction: call.direction,
        kind,
        tf32,
        window,
        tensors,
        alpha,
        added: (beta != 0.0).then_some((added, beta)),
        bias,
        workspace,
    }
    .arranged();
    let work = Work::Library(Box::new(move || convolution.run()));
    stream.enqueue(work).map(|_| ()).map_err(|_| Status::ExecutionFailed)
}

/// z, which is like the result, and the bias.
fn side_tensors(side: &Side, call: &Call, kind: Kind, y: &Tensor) -> Result<(Tensor, Tensor), Status> {
    let activation: ActivationValues = values(side.activation)?;
    let z: TensorValues = values(side.z.0)?;
    let bias: TensorValues = values(side.bias.0)?;
    aligned(side.z.1, kind)?;
    aligned(side.bias.1, kind)?;
    // The identity goes with one algorithm only.
    require(activation.mode == IDENTITY && activation.nan == 0 && call.algorithm == 1, Status::NotSupported)?;
    require(kind != Kind::BF16, Status::NotSupported)?;
    let filters = y.shape.dims[1];
    let fits = |(k, &dim): (usize, &usize)| dim == if k == 1 { filters } else { 1 };
    let rank = y.shape.dims.len();
    require(bias.dims.len() == rank && bias.dims.iter().enumerate().all(fits), Status::BadParam)?;
    require(bias.kind == z.kind && z == values(call.descriptors[2])?, Status::NotSupported)?;
    require(bias.strides[1] == 1, Status::NotSupported)?;
    let z = Tensor { name: "z", at: side.z.1, shape: shape(z)? };
    Ok((z, Tensor { name: "bias", at: side.bias.1, shape: shape(bias)? }))
}

/// Queues `y = alpha convolution(x, w) + beta y`. Tensors are read when it runs.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnConvolutionForward(
    handle: usize,
    alpha: *const c_void,
    x_desc: usize,
    x: u64,
    w_desc: usize,
    w: u64,
    convolution: usize,
    algorithm: u32,
    workspace: u64,
    workspace_bytes: usize,
    beta: *const c_void,
    y_desc: usize,
    y: u64,
) -> Status {
    let call = Call {
        name: "cudnnConvolutionForward",
        direction: Direction::Forward,
        algorithm,
        handle,
        descriptors: [x_desc, w_desc, y_desc, convolution],
        names: ["x", "w", "y"],
        at: [x, w, y],
        workspace: (workspace, workspace_bytes),
        factors: [alpha, beta],
        side: None,
    };
    // SAFETY: the caller passes factors or null.
    answer(unsafe { queue(call) })
}

/// Queues `dx = alpha gradient(w, dy) + beta dx`. Tensors are read when it runs.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnConvolutionBackwardData(
    handle: usize,
    alpha: *const c_void,
    w_desc: usize,
    w: u64,
    dy_desc: usize,
    dy: u64,
    convolution: usize,
    algorithm: u32,
    workspace: u64,
    workspace_bytes: usize,
    beta: *const c_void,
    dx_desc: usize,
    dx: u64,
) -> Status {
    let call = Call {
        name: "cudnnConvolutionBackwardData",
        direction: Direction::BackwardData,
        algorithm,
        handle,
        descriptors: [dx_desc, w_desc, dy_desc, convolution],
        names: ["dx", "w", "dy"],
        at: [dx, w, dy],
        workspace: (workspace, workspace_bytes),
        factors: [alpha, beta],
        side: None,
    };
    // SAFETY: the caller passes factors or null.
    answer(unsafe { queue(call) })
}

/// Queues `dw = alpha gradient(x, dy) + beta dw`. Tensors are read when it runs.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnConvolutionBackwardFilter(
    handle: usize,
    alpha: *const c_void,
    x_desc: usize,
    x: u64,
    dy_desc: usize,
    dy: u64,
    convolution: usize,
    algorithm: u32,
    workspace: u64,
    workspace_bytes: usize,
    beta: *const c_void,
    dw_desc: usize,
    dw: u64,
) -> Status {
    let call = Call {
        name: "cudnnConvolutionBackwardFilter",
        direction: Direction::BackwardFilter,
        algorithm,
        handle,
        descriptors: [x_desc, dw_desc, dy_desc, convolution],
        names: ["x", "dw", "dy"],
        at: [x, dw, dy],
        workspace: (workspace, workspace_bytes),
        factors: [alpha, beta],
        side: None,
    };
    // SAFETY: the caller passes factors or null.
    answer(unsafe { queue(call) })
}

/// Queues `y = alpha1 convolution(x, w) + alpha2 z + bias`. The activation has to be the identity, which goes with
/// algorithm 1 only. Tensors are read when it runs.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnConvolutionBiasActivationForward(
    handle: usize,
    alpha1: *const c_void,
    x_desc: usize,
    x: u64,
    w_desc: usize,
    w: u64,
    convolution: usize,
    algorithm: u32,
    workspace: u64,
    workspace_bytes: usize,
    alpha2: *const c_void,
    z_desc: usize,
    z: u64,
    bias_desc: usize,
    bias: u64,
    activation: usize,
    y_desc: usize,
    y: u64,
) -> Status {
    let call = Call {
        name: "cudnnConvolutionBiasActivationForward",
        direction: Direction::Forward,
        algorithm,
        handle,
        descriptors: [x_desc, w_desc, y_desc, convolution],
        names: ["x", "w", "y"],
        at: [x, w, y],
        workspace: (workspace, workspace_bytes),
        factors: [alpha1, alpha2],
        side: Some(Side { z: (z_desc, z), bias: (bias_desc, bias), activation }),
    };
    // SAFETY: the caller passes factors or null.
    answer(unsafe { queue(call) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::status::Status as Driver;
    use crate::driver::testing::{Bench, alloc, sync};
    use crate::driver::{faults, stream};
    use crate::operands::testing::{decode, encode};

    const CODES: [(Kind, u32); 4] = [(Kind::F32, 0), (Kind::F64, 1), (Kind::F16, 2), (Kind::BF16, 9)];
    const DIRECTIONS: [Direction; 3] =
        [Direction::Forward, Direction::BackwardData, Direction::BackwardFilter];
    /// What lies between a tensor's elements.
    const GAP: f64 = 77.0;

    fn code(kind: Kind) -> u32 {
        CODES.iter().find(|(known, _)| *known == kind).unwrap().1
    }

    /// A convolution to test.
    #[derive(Debug, Clone)]
    struct Case {
        direction: Direction,
        kind: Kind,
        batch: usize,
        /// Of a group.
        channels: usize,
        filters: usize,
        input: Vec<usize>,
        filter: Vec<usize>,
        window: Window,
        /// Of x and y: 0 is packed; 1 has channels last; 2 has gaps after each row and image.
        layouts: [usize; 2],
        algorithm: u32,
        math: u32,
        alpha: f64,
        beta: f64,
    }

    fn case(direction: Direction) -> Case {
        let window = Window { pads: vec![1, 1], strides: vec![1, 1], dilations: vec![1, 1], groups: 1 };
        Case {
            direction,
            kind: Kind::F32,
            batch: 2,
            channels: 3,
            filters: 2,
            input: vec![4, 5],
            filter: vec![3, 3],
            window,
            layouts: [0, 0],
            algorithm: 0,
            math: FMA_MATH,
            alpha: 1.0,
            beta: 0.0,
        }
    }

    impl Case {
        /// Sizes of x, w and y.
        fn dims(&self) -> [Vec<usize>; 3] {
            let Window { pads, strides, dilations, groups } = &self.window;
            let output = |k: usize| {
                let reach = (self.filter[k] - 1) * dilations[k] + 1;
                1 + (self.input[k] + 2 * pads[k] - reach) / strides[k]
            };
            let filters = self.filters * groups;
            [
                [&[self.batch, self.channels * groups], &self.input[..]].concat(),
                [&[filters, self.channels], &self.filter[..]].concat(),
                [vec![self.batch, filters], (0..self.input.len()).map(output).collect()].concat(),
            ]
        }

        fn shapes(&self) -> [Shape; 3] {
            let [x, w, y] = self.dims();
            [laid_out(&x, self.layouts[0]), Shape::packed(&w), laid_out(&y, self.layouts[1])]
        }

        fn result(&self) -> usize {
            self.direction.result()
        }

        /// `alpha convolution`, of all three tensors without gaps, in plain loops.
        fn convolve(&self, tensors: &[Vec<f64>; 3]) -> Vec<f64> {
            let Window { pads, strides, dilations, groups } = &self.window;
            let [x_dims, w_dims, y_dims] = self.dims();
            let (x_size, w_size, y_size): (usize, usize, usize) =
                (x_dims[2..].iter().product(), w_dims[2..].iter().product(), y_dims[2..].iter().product());
            let mut sums = vec![0.0; tensors[self.result()].len()];
            for image in 0..self.batch {
                for filter in 0..w_dims[0] {
                    let group = filter / (w_dims[0] / groups);
                    for channel in 0..self.channels {
                        for tap in 0..w_size {
                            for output in 0..y_size {
                                let (mut tap_rest, mut output_rest) = (tap, output);
                                let (mut place, mut factor, mut inside) = (0, 1, true);
                                for k in (0..self.input.len()).rev() {
                                    let at = output_rest % y_dims[k + 2] * strides[k]
                                        + tap_rest % w_dims[k + 2] * dilations[k];
                                    inside &= at >= pads[k] && at - pads[k] < self.input[k];
                                    place += at.wrapping_sub(pads[k]).wrapping_mul(factor) * inside as usize;
                                    factor *= self.input[k];
                                    tap_rest /= w_dims[k + 2];
                                    output_rest /= y_dims[k + 2];
                                }
                                if !inside {
                                    continue;
                                }
                                let channel_of_x = image * x_dims[1] + group * self.channels + channel;
                                let x = channel_of_x * x_size + place;
                                let w = (filter * self.channels + channel) * w_size + tap;
                                let y = (image * w_dims[0] + filter) * y_size + output;
                                let at = [x, w, y][self.result()];
                                let one = |k: usize, at: usize| {
                                    if k == self.result() { 1.0 } else { tensors[k][at] }
                                };
                                sums[at] += self.alpha * one(0, x) * one(1, w) * one(2, y);
                            }
                        }
                    }
                }
            }
            sums
        }
    }

    fn laid_out(dims: &[usize], layout: usize) -> Shape {
        let mut shape = Shape::packed(dims);
        match layout {
            0 => {}
            1 => {
                let order: Vec<_> = [0].into_iter().chain(2..dims.len()).chain([1]).collect();
                let mut step = 1;
                for &k in order.iter().rev() {
                    shape.strides[k] = step;
                    step *= dims[k];
                }
            }
            _ => {
                let mut step = 2;
                for k in (0..dims.len()).rev() {
                    shape.strides[k] = step;
                    step = step * dims[k] + k % 2;
                }
            }
        }
        shape
    }

    /// Of all elements, in order.
    fn offsets(shape: &Shape) -> Vec<usize> {
        shape.dims.iter().zip(&shape.strides).fold(vec![0], |offsets, (&dim, &stride)| {
            offsets.iter().flat_map(|at| (0..dim).map(move |k| at + k * stride)).collect()
        })
    }

    /// Numbers that are the same in each run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % end
        }

        /// Values that every type holds exactly, so that sums of a moderate number of products are exact, too.
        fn values(&mut self, count: usize) -> Vec<f64> {
            (0..count).map(|_| self.below(15) as f64 / 2.0 - 3.5).collect()
        }

        fn case(&mut self, direction: Direction, kind: Kind) -> Case {
            let spatial = 2 + self.below(2);
            let mut sizes = |least: usize, most: usize| -> Vec<usize> {
                (0..spatial).map(|_| least + self.below(most - least + 1)).collect()
            };
            let filter = sizes(1, 3);
            let window =
                Window { pads: sizes(0, 3), strides: sizes(1, 3), dilations: sizes(1, 2), groups: 1 };
            let mut input = sizes(1, 6);
            for k in 0..spatial {
                let reach = (filter[k] - 1) * window.dilations[k] + 1;
                input[k] = input[k].max(reach.saturating_sub(2 * window.pads[k]));
            }
            // Rows of more than one vector.
            input[spatial - 1] += self.below(2) * 14;
            let algorithms = if direction == Direction::BackwardFilter { vec![0, 1, 3] } else { vec![0, 1] };
            Case {
                direction,
                kind,
                batch: 1 + self.below(3),
                channels: 1 + self.below(3),
                filters: 1 + self.below(3),
                input,
                filter,
                window: Window { groups: 1 + self.below(3), ..window },
                layouts: [self.below(3), self.below(3)],
                algorithm: algorithms[self.below(algorithms.len())],
                math: FMA_MATH,
                alpha: [1.0, 0.5][self.below(2)],
                beta: [0.0, 1.0, 0.5][self.below(3)],
            }
        }
    }

    /// A handle and the descriptors of a case; z is described as y is.
    struct Objects {
        handle: usize,
        descriptors: Descriptors,
        bias: usize,
        activation: usize,
    }

    fn set_tensor(desc: usize, kind: u32, shape: &Shape) -> Status {
        let dims: Vec<_> = shape.dims.iter().map(|&dim| dim as c_int).collect();
        let strides: Vec<_> = shape.strides.iter().map(|&stride| stride as c_int).collect();
        // SAFETY: the arrays have that many integers.
        unsafe {
            cudnnSetTensorNdDescriptor(desc, kind, dims.len() as c_int, dims.as_ptr(), strides.as_ptr())
        }
    }

    fn set_filter(desc: usize, kind: u32, format: u32, dims: &[usize]) -> Status {
        let dims: Vec<_> = dims.iter().map(|&dim| dim as c_int).collect();
        // SAFETY: the array has that many integers.
        unsafe { cudnnSetFilterNdDescriptor(desc, kind, format, dims.len() as c_int, dims.as_ptr()) }
    }

    fn set_window(desc: usize, window: &Window, mode: u32, compute: u32) -> Status {
        let ints = |values: &[usize]| values.iter().map(|&value| value as c_int).collect::<Vec<_>>();
        let (pads, strides, dilations) = (ints(&window.pads), ints(&window.strides), ints(&window.dilations));
        let (count, pads, strides) = (pads.len() as c_int, pads.as_ptr(), strides.as_ptr());
        // SAFETY: the arrays have that many integers.
        unsafe {
            cudnnSetConvolutionNdDescriptor(desc, count, pads, strides, dilations.as_ptr(), mode, compute)
        }
    }

    fn objects(bench: &Bench, case: &Case) -> Objects {
        let (mut handle, mut descriptors, mut bias, mut activation) = (0, [0; 4], 0, 0);
        let [x, w, y] = case.shapes();
        let kind = code(case.kind);
        // SAFETY: all places are valid.
        unsafe {
            assert_eq!(cudnnCreate(&mut handle), Status::Success);
            assert_eq!(cudnnSetStream(handle, bench.stream), Status::Success);
            assert_eq!(cudnnCreateTensorDescriptor(&mut descriptors[0]), Status::Success);
            assert_eq!(cudnnCreateFilterDescriptor(&mut descriptors[1]), Status::Success);
            assert_eq!(cudnnCreateTensorDescriptor(&mut descriptors[2]), Status::Success);
            assert_eq!(cudnnCreateConvolutionDescriptor(&mut descriptors[3]), Status::Success);
            assert_eq!(cudnnCreateTensorDescriptor(&mut bias), Status::Success);
            assert_eq!(cudnnCreateActivationDescriptor(&mut activation), Status::Success);
            let groups = case.window.groups as c_int;
            assert_eq!(cudnnSetConvolutionGroupCount(descriptors[3], groups), Status::Success);
            assert_eq!(cudnnSetConvolutionMathType(descriptors[3], case.math), Status::Success);
            assert_eq!(cudnnSetActivationDescriptor(activation, IDENTITY, 0, 0.0), Status::Success);
        }
        let mut of_bias = vec![1; y.dims.len()];
        of_bias[1] = y.dims[1];
        assert_eq!(set_tensor(descriptors[0], kind, &x), Status::Success);
        assert_eq!(set_filter(descriptors[1], kind, 0, &w.dims), Status::Success);
        assert_eq!(set_tensor(descriptors[2], kind, &y), Status::Success);
        assert_eq!(set_tensor(bias, kind, &Shape::packed(&of_bias)), Status::Success);
        let compute = if case.kind == Kind::F64 { 1 } else { 0 };
        assert_eq!(set_window(descriptors[3], &case.window, CROSS_CORRELATION, compute), Status::Success);
        Objects { handle, descriptors, bias, activation }
    }

    fn free(objects: &Objects) {
        let [x, w, y, convolution] = objects.descriptors;
        // SAFETY: the calls take any numbers.
        unsafe {
            assert_eq!(cudnnDestroy(objects.handle), Status::Success);
            for tensor in [x, y, objects.bias] {
                assert_eq!(cudnnDestroyTensorDescriptor(tensor), Status::Success);
            }
            assert_eq!(cudnnDestroyFilterDescriptor(w), Status::Success);
            assert_eq!(cudnnDestroyConvolutionDescriptor(convolution), Status::Success);
            assert_eq!(cudnnDestroyActivationDescriptor(objects.activation), Status::Success);
            assert_eq!(cudnnDestroyActivationDescriptor(objects.activation), Status::BadParam);
        }
    }

    /// Bytes of workspace.
    fn need(case: &Case, objects: &Objects) -> Result<usize, Status> {
        let (handle, algorithm, mut bytes) = (objects.handle, case.algorithm, usize::MAX);
        let [x, w, y, c] = objects.descriptors;
        // SAFETY: the place is valid.
        let status = unsafe {
            match case.direction {
                Direction::Forward => {
                    cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, c, y, algorithm, &mut bytes)
                }
                Direction::BackwardData => {
                    cudnnGetConvolutionBackwardDataWorkspaceSize(handle, w, y, c, x, algorithm, &mut bytes)
                }
                Direction::BackwardFilter => {
                    cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, x, y, c, w, algorithm, &mut bytes)
                }
            }
        };
        if status == Status::Success { Ok(bytes) } else { Err(status) }
    }

    fn factor(kind: Kind, value: f64) -> Vec<u8> {
        encode(if kind == Kind::F64 { Kind::F64 } else { Kind::F32 }, &[value])
    }

    /// Queues the convolution of tensors x, w and y.
    fn queue(case: &Case, objects: &Objects, at: [u64; 3], space: (u64, usize)) -> Status {
        let (alpha, beta) = (factor(case.kind, case.alpha), factor(case.kind, case.beta));
        let (alpha, beta) = (alpha.as_ptr().cast(), beta.as_ptr().cast());
        let [dx, dw, dy, c] = objects.descriptors;
        let ([x, w, y], (space, bytes)) = (at, space);
        let (handle, algorithm) = (objects.handle, case.algorithm);
        // SAFETY: factors are valid; operands are checked when the convolution runs.
        unsafe {
            match case.direction {
                Direction::Forward => cudnnConvolutionForward(
                    handle, alpha, dx, x, dw, w, c, algorithm, space, bytes, beta, dy, y,
                ),
                Direction::BackwardData => cudnnConvolutionBackwardData(
                    handle, alpha, dw, w, dy, y, c, algorithm, space, bytes, beta, dx, x,
                ),
                Direction::BackwardFilter => cudnnConvolutionBackwardFilter(
                    handle, alpha, dx, x, dy, y, c, algorithm, space, bytes, beta, dw, w,
                ),
            }
        }
    }

    /// Queues a convolution with a bias: addresses of x, w and y, then z and bias.
    fn queue_bias(
        case: &Case,
        objects: &Objects,
        at: [u64; 3],
        side: [u64; 2],
        space: (u64, usize),
    ) -> Status {
        let (alpha, beta) = (factor(case.kind, case.alpha), factor(case.kind, case.beta));
        let [dx, dw, dy, convolution] = objects.descriptors;
        // SAFETY: factors are valid; operands are checked when the convolution runs.
        unsafe {
            cudnnConvolutionBiasActivationForward(
                objects.handle,
                alpha.as_ptr().cast(),
                dx,
                at[0],
                dw,
                at[1],
                convolution,
                case.algorithm,
                space.0,
                space.1,
                beta.as_ptr().cast(),
                dy,
                side[0],
                objects.bias,
                side[1],
                objects.activation,
                dy,
                at[2],
            )
        }
    }

    fn workspace(case: &Case, objects: &Objects) -> (u64, usize) {
        match need(case, objects).unwrap() {
            0 => (0, 0),
            bytes => (alloc(bytes), bytes),
        }
    }

    /// Puts values where a shape has them, with something else in the gaps.
    fn upload(bench: &Bench, kind: Kind, shape: &Shape, values: &[f64]) -> u64 {
        let offsets = offsets(shape);
        let mut all = vec![GAP; offsets.iter().max().unwrap() + 1];
        for (&at, &value) in offsets.iter().zip(values) {
            all[at] = value;
        }
        let bytes = encode(kind, &all);
        let address = alloc(bytes.len());
        bench.to_device(address, &bytes);
        address
    }

    /// The values of a shape; the gaps have to be as they were.
    fn download(bench: &Bench, kind: Kind, shape: &Shape, from: u64) -> Vec<f64> {
        let offsets = offsets(shape);
        let mut bytes = vec![0; (offsets.iter().max().unwrap() + 1) * kind.bytes() as usize];
        bench.to_host(&mut bytes, from);
        let mut all = decode(kind, &bytes);
        let values = offsets.iter().map(|&at| std::mem::replace(&mut all[at], GAP)).collect();
        assert!(all.iter().all(|&value| value == GAP), "something was written to a gap");
        values
    }

    fn rounded(kind: Kind, values: &[f64]) -> Vec<f64> {
        decode(kind, &encode(kind, values))
    }

    fn told() -> String {
        faults::last_told().unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn convolutions_agree_with_plain_loops() {
        let bench = Bench::new();
        let mut random = Random(1);
        for (kind, _) in CODES {
            for direction in DIRECTIONS {
                for _ in 0..60 {
                    let case = random.case(direction, kind);
                    let shapes = case.shapes();
                    let tensors = [0, 1, 2].map(|k: usize| random.values(shapes[k].elements()));
                    let at = [0, 1, 2].map(|k: usize| upload(&bench, kind, &shapes[k], &tensors[k]));
                    let objects = objects(&bench, &case);
                    let space = workspace(&case, &objects);
                    assert_eq!(space.1 == 0, case.algorithm == 0);
                    assert_eq!(queue(&case, &objects, at, space), Status::Success, "{case:?}");
                    free(&objects);
                    bench.sync();
                    let result = case.result();
                    let old = &tensors[result];
                    let mut expected = case.convolve(&tensors);
                    expected.iter_mut().zip(old).for_each(|(sum, old)| *sum += case.beta * old);
                    let got = download(&bench, kind, &shapes[result], at[result]);
                    assert_eq!(got, rounded(kind, &expected), "{case:?}");
                }
            }
        }
    }

    #[test]
    fn convolutions_with_a_bias_agree_with_plain_loops() {
        let bench = Bench::new();
        let mut random = Random(2);
        for kind in [Kind::F32, Kind::F64, Kind::F16] {
            for round in 0..60 {
                let case = Case { algorithm: 1, ..random.case(Direction::Forward, kind) };
                let shapes = case.shapes();
                let tensors = [0, 1, 2].map(|k: usize| random.values(shapes[k].elements()));
                let at = [0, 1, 2].map(|k: usize| upload(&bench, kind, &shapes[k], &tensors[k]));
                let (z, bias) = (random.values(shapes[2].elements()), random.values(shapes[2].dims[1]));
                let in_place = round % 2 == 0;
                let (z, at_z) = match in_place {
                    true => (&tensors[2], at[2]),
                    false => (&z, upload(&bench, kind, &shapes[2], &z)),
                };
                let at_bias = upload(&bench, kind, &Shape::packed(&[bias.len()]), &bias);
                let objects = objects(&bench, &case);
                let space = workspace(&case, &objects);
                let status = queue_bias(&case, &objects, at, [at_z, at_bias], space);
                assert_eq!(status, Status::Success, "{case:?}");
                free(&objects);
                bench.sync();
                let mut expected = case.convolve(&tensors);
                let plane: usize = shapes[2].dims[2..].iter().product();
                for (k, sum) in expected.iter_mut().enumerate() {
                    *sum += case.beta * z[k] + bias[k / plane % bias.len()];
                }
                let got = download(&bench, kind, &shapes[2], at[2]);
                assert_eq!(got, rounded(kind, &expected), "{case:?}");
            }
        }
    }

    /// Symptom: a backend forgets `CUDNN_FMA_MATH`, and nobody notices before the hardware does.
    #[test]
    fn operands_in_f32_are_rounded_unless_that_is_forbidden() {
        let bench = Bench::new();
        let fine = 1.0 + 1.0 / 4096.0;
        for direction in DIRECTIONS {
            for (math, kind, expected) in [
                (0, Kind::F32, 1.0),
                (1, Kind::F32, 1.0),
                (2, Kind::F32, 1.0),
                (3, Kind::F32, fine),
                (0, Kind::F64, fine),
            ] {
                let window =
                    Window { pads: vec![0, 0], strides: vec![1, 1], dilations: vec![1, 1], groups: 1 };
                let case = Case {
                    kind,
                    math,
                    batch: 1,
                    channels: 1,
                    filters: 1,
                    input: vec![1, 1],
                    filter: vec![1, 1],
                    window,
                    ..case(direction)
                };
                let objects = objects(&bench, &case);
                let shapes = case.shapes();
                let at = [0, 1, 2].map(|k: usize| {
                    let first = (case.result() + 1) % 3 == k;
                    upload(&bench, kind, &shapes[k], &[if first { fine } else { 1.0 }])
                });
                assert_eq!(queue(&case, &objects, at, (0, 0)), Status::Success);
                let result = case.result();
                assert_eq!(download(&bench, kind, &shapes[result], at[result]), [expected], "math {math}");
            }
        }
    }

    #[test]
    fn descriptors_are_read_at_the_call_and_tensors_when_it_runs() {
        let bench = Bench::new();
        let case = Case {
            input: vec![1, 1],
            filter: vec![1, 1],
            channels: 1,
            filters: 1,
            batch: 1,
            ..case(Direction::Forward)
        };
        let window = Window { pads: vec![0, 0], ..case.window.clone() };
        let case = Case { window, ..case };
        let objects = objects(&bench, &case);
        let [x, w, y] = [alloc(4), alloc(4), alloc(4)];
        let factor = bench.pinned(4);
        factor.copy_from_slice(&1f32.to_ne_bytes());
        bench.to_device(x, factor);
        bench.to_device(w, &[5f32]);
        assert_eq!(queue(&case, &objects, [x, w, y], (0, 0)), Status::Success);
        assert_eq!(set_window(objects.descriptors[3], &case.window, 0, 0), Status::Success);
        assert_eq!(queue(&case, &objects, [x, w, y], (0, 0)), Status::NotSupported, "a turned filter");
        assert_eq!(set_window(objects.descriptors[3], &case.window, 1, 0), Status::Success);
        bench.to_device(x, factor);
        assert_eq!(queue(&case, &objects, [x, w, y], (0, 0)), Status::Success);
        factor.copy_from_slice(&3f32.to_ne_bytes());
        free(&objects);
        let mut out = [0f32];
        bench.to_host(&mut out, y);
        assert_eq!(out, [15.0]);
    }

    #[test]
    fn convolutions_during_a_capture_become_nodes() {
        use crate::driver::capture as graphs;
        let bench = Bench::new();
        let window = Window { pads: vec![0, 0], strides: vec![1, 1], dilations: vec![1, 1], groups: 1 };
        let case = Case { algorithm: 1, input: vec![3, 3], window, ..case(Direction::Forward) };
        let objects = objects(&bench, &case);
        let (shapes, space) = (case.shapes(), workspace(&case, &objects));
        let mut random = Random(3);
        let mut tensors = [0, 1, 2].map(|k: usize| random.values(shapes[k].elements()));
        let at = [0, 1, 2].map(|k: usize| upload(&bench, case.kind, &shapes[k], &tensors[k]));
        let at_bias = upload(&bench, case.kind, &Shape::packed(&[2]), &[0.5, -1.0]);
        let (mut graph, mut exec, mut count, mut other) = (0, 0, 0, 0);
        // SAFETY: all places are valid.
        unsafe {
            assert_eq!(stream::cuStreamBeginCapture_v2(bench.stream, 1), Driver::Success);
            assert_eq!(queue(&case, &objects, at, space), Status::Success);
            assert_eq!(queue_bias(&case, &objects, at, [at[2], at_bias], space), Status::Success);
            assert_eq!(stream::cuStreamEndCapture(bench.stream, &mut graph), Driver::Success);
            assert_eq!(graphs::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count), Driver::Success);
            assert_eq!(count, 2);
            assert_eq!(graphs::cuGraphInstantiateWithFlags(&mut exec, graph, 0), Driver::Success);
        }
        free(&objects);
        for _ in 0..2 {
            tensors[0] = random.values(shapes[0].elements());
            bench.to_device(at[0], &encode(case.kind, &tensors[0]));
            // SAFETY: the call takes any numbers.
            assert_eq!(unsafe { graphs::cuGraphLaunch(exec, bench.stream) }, Driver::Success);
            let sums = case.convolve(&tensors).into_iter().enumerate();
            let expected: Vec<_> = sums.map(|(k, sum)| sum + [0.5, -1.0][k % 2]).collect();
            assert_eq!(download(&bench, case.kind, &shapes[2], at[2]), expected);
        }
        // SAFETY: all places are valid.
        unsafe {
            assert_eq!(stream::cuStreamBeginCapture_v2(bench.stream, 1), Driver::Success);
            assert_eq!(cudnnCreate(&mut other), Status::InternalError, "it may wait for the device");
            assert_eq!(stream::cuStreamEndCapture(bench.stream, &mut graph), Driver::CaptureInvalidated);
        }
    }

    #[test]
    fn what_a_convolution_touches_is_checked_exactly() {
        let bench = Bench::new();
        for direction in DIRECTIONS {
            let case = Case { algorithm: 1, layouts: [2, 2], ..case(direction) };
            let objects = objects(&bench, &case);
            let (shapes, result) = (case.shapes(), case.result());
            let bytes = shapes.clone().map(|shape| 4 * (offsets(&shape).iter().max().unwrap() + 1));
            let space = (alloc(1 << 16), 1 << 16);
            let at = bytes.map(alloc);
            let run = |case: &Case, at: [u64; 3], space| {
                assert_eq!(queue(case, &objects, at, space), Status::Success);
                sync(bench.stream)
            };
            assert_eq!(run(&case, at, space), Driver::Unknown, "inputs were never written");
            // Elements only, so that the gaps stay unwritten.
            for k in (0..3).filter(|&k| k != result) {
                for offset in offsets(&shapes[k]) {
                    bench.fill(at[k] + 4 * offset as u64, 0, 4);
                }
            }
            let beta = Case { beta: 1.0, ..case.clone() };
            assert_eq!(run(&beta, at, space), Driver::Unknown, "the result is added, but was never written");
            assert!(told().contains("was never written"), "{}", told());
            assert_eq!(run(&case, at, space), Driver::Success, "{}", told());
            assert_eq!(run(&beta, at, space), Driver::Success);
            for k in 0..3 {
                let mut short = at;
                short[k] = alloc(bytes[k] - 4);
                bench.fill(short[k], 0, bytes[k] - 4);
                assert_eq!(run(&case, short, space), Driver::Unknown, "operand {k} is too short");
                assert!(told().contains("past the end of an allocation"), "{}", told());
                let mut over = at;
                over[k] = at[(k + 1) % 3];
                if k == result || (k + 1) % 3 == result {
                    assert_eq!(run(&case, over, space), Driver::Unknown, "an operand lies over the result");
                }
                let large = alloc(1 << 17);
                bench.fill(large, 0, 1 << 17);
                let mut inside = at;
                inside[k] = large + 1024;
                assert_eq!(run(&case, inside, (large, 1 << 16)), Driver::Unknown, "operand {k} in workspace");
                assert!(told().contains("overlaps the workspace"), "{}", told());
                inside[k] = large + (1 << 16);
                assert_eq!(run(&case, inside, (large, 1 << 16)), Driver::Success);
                let mut garbage = [0u8; 8];
                bench.to_host(&mut garbage, large);
                assert_eq!(garbage, [0xa5; 8]);
            }
            free(&objects);
        }
    }

    #[test]
    fn faults_name_the_call_its_sizes_and_the_operand() {
        let bench = Bench::new();
        let calls = [
            "Forward (x [2, 3, 4, 5], w [2, 3, 3, 3]), x:",
            "BackwardData (w [2, 3, 3, 3], dy [2, 2, 4, 5]), w:",
            "BackwardFilter (x [2, 3, 4, 5], dy [2, 2, 4, 5]), x:",
        ];
        for (direction, call) in DIRECTIONS.into_iter().zip(calls) {
            let case = case(direction);
            let objects = objects(&bench, &case);
            let at = [alloc(4096), alloc(4096), alloc(4096)];
            assert_eq!(queue(&case, &objects, at, (0, 0)), Status::Success);
            assert_eq!(sync(bench.stream), Driver::Unknown);
            assert!(told().contains(&format!("cudnnConvolution{call}")), "{}", told());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let bench = Bench::new();
        let case = case(Direction::Forward);
        let objects = objects(&bench, &case);
        let [x, w, y, convolution] = objects.descriptors;
        let [x_dims, w_dims, y_dims] = case.dims();
        let at = [alloc(4096), alloc(4096), alloc(4096)];
        bench.fill(at[0], 0, 4096);
        bench.fill(at[1], 0, 4096);
        let status = || {
            let status = queue(&case, &objects, at, (0, 0));
            assert_eq!(need(&case, &objects).err().unwrap_or(Status::Success), status);
            status
        };
        let with = |dims: &[usize], k: usize, dim: usize| {
            let mut dims = dims.to_vec();
            dims[k] = dim;
            Shape::packed(&dims)
        };
        assert_eq!(status(), Status::Success);
        for k in 0..4 {
            for (desc, dims) in [(x, &x_dims), (y, &y_dims)] {
                assert_eq!(set_tensor(desc, 0, &with(dims, k, dims[k] + 1)), Status::Success);
                assert_eq!(status(), Status::BadParam, "dim {k} of a tensor");
                assert_eq!(set_tensor(desc, 0, &Shape::packed(dims)), Status::Success);
            }
            assert_eq!(set_filter(w, 0, 0, &with(&w_dims, k, 9).dims), Status::Success);
            assert_eq!(status(), Status::BadParam, "dim {k} of the filter");
        }
        assert_eq!(set_filter(w, 2, 0, &w_dims), Status::Success);
        assert_eq!(status(), Status::BadParam, "types differ");
        assert_eq!(set_filter(w, 0, 1, &w_dims), Status::Success);
        assert_eq!(status(), Status::NotSupported, "a filter with channels last");
        assert_eq!(set_filter(w, 0, 0, &w_dims), Status::Success);
        assert_eq!(set_window(convolution, &case.window, 1, 1), Status::Success);
        assert_eq!(status(), Status::NotSupported, "sums of another type");
        assert_eq!(set_window(convolution, &case.window, 1, 0), Status::Success);
        let mut broadcast = Shape::packed(&x_dims);
        broadcast.strides[0] = 0;
        assert_eq!(set_tensor(x, 0, &broadcast), Status::Success);
        assert_eq!(status(), Status::NotSupported, "a stride of 0");
        assert_eq!(set_tensor(x, 0, &Shape::packed(&x_dims)), Status::Success);
        assert_eq!(status(), Status::Success);

        assert_eq!(set_tensor(x, 0, &Shape::packed(&[2, 3, 4])), Status::NotSupported, "three dims");
        assert_eq!(set_filter(w, 0, 0, &[2, 3, 4]), Status::NotSupported, "three dims");
        assert_eq!(set_tensor(x, 0, &Shape::packed(&[2, 0, 4, 5])), Status::BadParam, "nothing");
        assert_eq!(set_tensor(x, 99, &Shape::packed(&x_dims)), Status::BadParam, "no type");
        let large = Shape::packed(&[1 << 16, 1 << 15, 1, 1]);
        assert_eq!(set_tensor(x, 0, &large), Status::NotSupported, "2^31 elements");
        assert_eq!(set_filter(w, 0, 0, &large.dims), Status::NotSupported, "2^31 elements");
        assert_eq!(
            set_window(convolution, &Window { strides: vec![0, 1], ..case.window.clone() }, 1, 0),
            Status::BadParam
        );
        // SAFETY: the calls take any numbers.
        unsafe {
            assert_eq!(cudnnSetConvolutionGroupCount(convolution, 0), Status::BadParam);
            assert_eq!(cudnnSetConvolutionMathType(convolution, 4), Status::BadParam);
            assert_eq!(cudnnSetConvolutionGroupCount(x, 1), Status::BadParam, "a tensor is no convolution");
            assert_eq!(cudnnSetConvolutionGroupCount(convolution, 3), Status::Success);
        }
        assert_eq!(status(), Status::BadParam, "three groups of one filter");
    }

    #[test]
    fn what_the_library_does_not_support_is_refused() {
        let bench = Bench::new();
        for direction in DIRECTIONS {
            let status = |algorithm| {
                let case = Case { algorithm, ..case(direction) };
                need(&case, &objects(&bench, &case)).map(|bytes| bytes > 0)
            };
            assert_eq!([status(0), status(1)], [Ok(false), Ok(true)]);
            let third =
                if direction == Direction::BackwardFilter { Ok(true) } else { Err(Status::NotSupported) };
            assert_eq!([status(2), status(3)], [Err(Status::NotSupported), third]);
            assert_eq!([status(5), status(8)], [Err(Status::NotSupported), Err(Status::BadParam)]);

            let plain = case(direction);
            let case = Case { algorithm: 1, ..plain };
            let objects = objects(&bench, &case);
            let at = [alloc(4096), alloc(4096), alloc(4096)];
            let bytes = need(&case, &objects).unwrap();
            let space = alloc(2 * bytes);
            assert_eq!(queue(&case, &objects, at, (0, 0)), Status::BadParam, "no workspace");
            assert_eq!(queue(&case, &objects, at, (0, bytes)), Status::BadParam, "no workspace");
            assert_eq!(queue(&case, &objects, at, (space, bytes - 1)), Status::BadParam, "too small");
            assert_eq!(queue(&case, &objects, at, (space + 128, bytes)), Status::BadParam, "not aligned");
            assert_eq!(queue(&case, &objects, [at[0] + 2, at[1], at[2]], (space, bytes)), Status::BadParam);
            assert_eq!(queue(&case, &objects, [at[0], 0, at[2]], (space, bytes)), Status::BadParam);
        }
    }

    #[test]
    fn a_bias_goes_with_one_algorithm_and_the_identity() {
        let bench = Bench::new();
        let case = Case { algorithm: 1, ..case(Direction::Forward) };
        let at = [alloc(4096), alloc(4096), alloc(4096)];
        let (z, bias, space) = (alloc(4096), alloc(4096), (alloc(4096), 4096));
        for at in [at[0], at[1], bias] {
            bench.fill(at, 0, 4096);
        }
        let run = |case: &Case| queue_bias(case, &objects(&bench, case), at, [z, bias], space);
        assert_eq!(run(&case), Status::Success);
        bench.sync();
        assert_eq!(run(&Case { beta: 1.0, ..case.clone() }), Status::Success);
        assert_eq!(sync(bench.stream), Driver::Unknown, "z was never written");
        assert!(
            told().contains("cudnnConvolutionBiasActivationForward (x [2, 3, 4, 5], w [2, 3, 3, 3]), z:")
        );
        assert_eq!(run(&Case { kind: Kind::BF16, ..case.clone() }), Status::NotSupported);
        assert_eq!(run(&Case { algorithm: 0, ..case.clone() }), Status::NotSupported);

        let objects = objects(&bench, &case);
        let status = || queue_bias(&case, &objects, at, [z, bias], space);
        let activation = |mode, nan| {
            // SAFETY: the call takes any numbers.
            unsafe { cudnnSetActivationDescriptor(objects.activation, mode, nan, 0.0) }
        };
        assert_eq!((activation(1, 0), status()), (Status::Success, Status::NotSupported));
        assert_eq!((activation(IDENTITY, 1), status()), (Status::Success, Status::NotSupported));
        assert_eq!((activation(7, 0), activation(IDENTITY, 0)), (Status::BadParam, Status::Success));
        assert_eq!(set_tensor(objects.bias, 0, &Shape::packed(&[1, 3, 1, 1])), Status::Success);
        assert_eq!(status(), Status::BadParam, "a bias of three for two filters");
        assert_eq!(set_tensor(objects.bias, 2, &Shape::packed(&[1, 2, 1, 1])), Status::Success);
        assert_eq!(status(), Status::NotSupported, "a bias of another type");
        assert_eq!(set_tensor(objects.bias, 0, &Shape::packed(&[1, 2, 1, 1])), Status::Success);
        assert_eq!(queue_bias(&case, &objects, at, [0, bias], space), Status::BadParam, "no z");
        assert_eq!(status(), Status::Success);
    }

    #[test]
    fn handles_belong_to_a_device_and_statuses_have_names() {
        let bench = Bench::new();
        let case = case(Direction::Forward);
        let objects = objects(&bench, &case);
        // SAFETY: the calls take any numbers and check places; names are static.
        unsafe {
            assert_eq!(cudnnGetVersion(), VERSION);
            assert_eq!(cudnnCreate(std::ptr::null_mut()), Status::BadParam);
            assert_eq!(cudnnSetStream(objects.handle, usize::MAX), Status::BadParam);
            assert_eq!(cudnnSetStream(objects.handle, 0), Status::Success);
            assert_eq!(CStr::from_ptr(cudnnGetErrorString(0)), c"CUDNN_STATUS_SUCCESS");
            assert_eq!(CStr::from_ptr(cudnnGetErrorString(3000)), c"CUDNN_STATUS_NOT_SUPPORTED");
            assert_eq!(CStr::from_ptr(cudnnGetErrorString(1)), c"CUDNN_UNKNOWN_STATUS");
        }
        free(&objects);
        assert_eq!(queue(&case, &objects, [256; 3], (0, 0)), Status::BadParam);
    }
}
