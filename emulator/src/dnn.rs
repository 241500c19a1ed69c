//! The convolution library's C interface (`libcudnn.so.9`): forward and both gradients.
//!
//! A convolution is queued like a kernel on its handle's stream and computed on the host when it runs; descriptors and
//! factors are read at the call. Tensors have no gaps. Of the algorithms there are those that sum in one order. They are
//! computed alike, but most need a workspace: it is filled with garbage, and must overlap nothing.

mod convolution;

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::driver::stream::{Stream, Work, resolve};
use crate::driver::{capture, device, handles, lock};
use crate::operands::{Kind, Workspace};
use convolution::{Convolution, Direction, Window};

/// cuDNN 9.19.0.
const VERSION: usize = 91_900;

/// `cudnnStatus_t`: the codes that this library returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Status {
    Success = 0,
    NotInitialized = 1001,
    BadParam = 2000,
    NotSupported = 3000,
    InternalError = 4000,
    ExecutionFailed = 5000,
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

/// The last of `cudnnMathType_t`: no rounding before products.
const FMA_MATH: u32 = 3;

/// Type and sizes.
#[derive(Debug, Clone)]
struct Array {
    kind: Kind,
    dims: Vec<usize>,
}

impl Array {
    /// Of two or three spatial dims and at most 2^31 - 1 elements.
    ///
    /// # Safety
    /// `dims` is null or leads to `count` integers.
    unsafe fn new(code: u32, count: c_int, dims: *const c_int) -> Result<Self, Status> {
        let kind = kind(code)?;
        require((4..=5).contains(&count), Status::NotSupported)?;
        // SAFETY: the caller vouches for the array.
        let dims = unsafe { sizes(dims, count, 1) }?;
        let elements = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        require(elements.is_some_and(|count| count <= c_int::MAX as usize), Status::NotSupported)?;
        Ok(Array { kind, dims })
    }
}

#[derive(Debug, Clone)]
struct TensorValues(Array);

#[derive(Debug, Clone)]
struct FilterValues(Array);

#[derive(Debug, Clone)]
struct ConvolutionValues {
    /// Without spatial dims until it is set.
    window: Window,
    compute: Kind,
    math: u32,
}

/// The library's version.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnGetVersion() -> usize {
    VERSION
}

/// The version of CUDA that it is made for.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnGetCudartVersion() -> usize {
    13_000
}

/// A status in words.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnGetErrorString(status: u32) -> *const c_char {
    let name = match status {
        0 => c"CUDNN_STATUS_SUCCESS",
        1001 => c"CUDNN_STATUS_NOT_INITIALIZED",
        2000 => c"CUDNN_STATUS_BAD_PARAM",
        3000 => c"CUDNN_STATUS_NOT_SUPPORTED",
        4000 => c"CUDNN_STATUS_INTERNAL_ERROR",
        5000 => c"CUDNN_STATUS_EXECUTION_FAILED",
        _ => c"CUDNN_UNKNOWN_STATUS",
    };
    name.as_ptr()
}

/// More about the last failure: this library has none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnGetLastErrorString(message: *mut c_char, bytes: usize) {
    if !message.is_null() && bytes > 0 {
        // SAFETY: the caller passes a place for so many bytes.
        unsafe { message.write(0) };
    }
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

/// Type, sizes and strides of a tensor, which must have no gaps.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnSetTensorNdDescriptor(
    desc: usize,
    kind: u32,
    count: c_int,
    dims: *const c_int,
    strides: *const c_int,
) -> Status {
    let set = || {
        // SAFETY: the caller passes arrays of `count` integers or null.
        let (array, strides) = unsafe { (Array::new(kind, count, dims)?, sizes(strides, count, 1)?) };
        let packed = (1..=strides.len()).map(|k| array.dims[k..].iter().product());
        require(strides.into_iter().eq(packed), Status::NotSupported)?;
        assign(desc, TensorValues(array))
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

/// Type, order (`CUDNN_TENSOR_NCHW`) and sizes of a filter.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnSetFilterNdDescriptor(
    desc: usize,
    kind: u32,
    format: u32,
    count: c_int,
    dims: *const c_int,
) -> Status {
    let set = || {
        require(format == 0, Status::NotSupported)?;
        // SAFETY: the caller passes an array of `count` integers or null.
        assign(desc, FilterValues(unsafe { Array::new(kind, count, dims) }?))
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
    let values = ConvolutionValues { window, compute: Kind::F32, math: 0 };
    // SAFETY: the caller passes a valid place or null.
    answer(unsafe { create(desc, Descriptor(Mutex::new(Some(values)))) })
}

/// Padding, strides and dilation of each spatial dim, the mode (`CUDNN_CROSS_CORRELATION`) and the type of sums.
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
        require((2..=3).contains(&count) && mode == 1, Status::NotSupported)?;
        // SAFETY: the caller passes arrays of `count` integers or null.
        let (pads, strides, dilations) =
            unsafe { (sizes(pads, count, 0)?, sizes(strides, count, 1)?, sizes(dilations, count, 1)?) };
        let window = Window { pads, strides, dilations, groups: old.window.groups };
        assign(desc, ConvolutionValues { window, compute: kind(compute)?, math: old.math })
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

/// A convolution of tensors that fit together, by an algorithm that there is.
#[derive(Debug)]
struct Plan {
    kind: Kind,
    /// Of x, w and y.
    dims: [Vec<usize>; 3],
    window: Window,
    tf32: bool,
    workspace: u64,
}

/// Descriptors of x, w, y and their convolution.
type Descriptors = [usize; 4];

fn plan(direction: Direction, algorithm: u32, descriptors: Descriptors) -> Result<Plan, Status> {
    let (TensorValues(x), TensorValues(y)) = (values(descriptors[0])?, values(descriptors[2])?);
    let FilterValues(w) = values(descriptors[1])?;
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
    let compute = if x.kind == Kind::F64 { Kind::F64 } else { Kind::F32 };
    require(convolution.compute == compute, Status::NotSupported)?;
    let workspace = workspace(direction, algorithm, &w.dims)?;
    let tf32 = x.kind == Kind::F32 && convolution.math != FMA_MATH;
    Ok(Plan { kind: x.kind, dims: [x.dims, w.dims, y.dims], window, tf32, workspace })
}

/// Bytes that an algorithm needs, as for a table of a filter's elements: not the same for any two that need some.
fn workspace(direction: Direction, algorithm: u32, filter: &[usize]) -> Result<u64, Status> {
    let table = (4 * filter[1..].iter().product::<usize>() as u64).next_multiple_of(256);
    match (direction, algorithm) {
        (Direction::Forward, 0) => Ok(0),
        (Direction::Forward, 1) => Ok(table),
        (Direction::BackwardData, 1) => Ok(2 * table),
        (Direction::BackwardFilter, 1) => Ok(3 * table),
        _ => Err(Status::NotSupported),
    }
}

/// The handle's stream, which has to live, with its device's context current.
fn stream_of(handle: &Handle) -> Result<Arc<Stream>, Status> {
    require(device::current() == Ok(handle.device), Status::BadParam)?;
    let stream = resolve(*lock(&handle.stream)).map_err(|_| Status::BadParam)?;
    require(stream.device == handle.device, Status::BadParam)?;
    Ok(stream)
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
        stream_of(&*get::<Handle>(handle)?)?;
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

/// Workspace of the gradient of x, for which there is algorithm 1.
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

/// Workspace of the gradient of w, for which there is algorithm 1.
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
    direction: Direction,
    algorithm: u32,
    handle: usize,
    descriptors: Descriptors,
    /// x, w and y.
    at: [u64; 3],
    workspace: (u64, usize),
    factors: [*const c_void; 2],
}

/// Queues a convolution.
///
/// # Safety
/// Factors are null or valid.
unsafe fn queue(call: Call) -> Result<(), Status> {
    let handle = get::<Handle>(call.handle)?;
    require(call.factors.iter().all(|factor| !factor.is_null()), Status::BadParam)?;
    let Plan { kind, dims, window, tf32, workspace: used } =
        plan(call.direction, call.algorithm, call.descriptors)?;
    // SAFETY: the caller passes factors, of the type that goes with the tensors'.
    let [alpha, beta] = call.factors.map(|at| unsafe { kind.factor(at) });
    let usable = |at: u64| at != 0 && at.is_multiple_of(kind.bytes());
    require(call.at.into_iter().all(usable), Status::BadParam)?;
    let (at, given) = call.workspace;
    require(used == 0 || at != 0 && at.is_multiple_of(256), Status::BadParam)?;
    require(given as u64 >= used, Status::BadParam)?;
    let workspace = if at == 0 { Workspace::default() } else { Workspace { at, given: given as u64, used } };
    let sizes = call.direction.operands().map(|k| format!("{} {:?}", call.direction.names()[k], dims[k]));
    let stream = stream_of(&handle)?;
    let convolution = Convolution {
        call: format!("{} ({})", call.direction.call(), sizes.join(", ")),
        device: handle.device,
        direction: call.direction,
        kind,
        tf32,
        window,
        at: call.at,
        dims,
        alpha,
        beta,
        workspace,
    };
    let work = Work::Library(Box::new(move || convolution.run()));
    stream.enqueue(work).map(|_| ()).map_err(|_| Status::ExecutionFailed)
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
        direction: Direction::Forward,
        algorithm,
        handle,
        descriptors: [x_desc, w_desc, y_desc, convolution],
        at: [x, w, y],
        workspace: (workspace, workspace_bytes),
        factors: [alpha, beta],
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
        direction: Direction::BackwardData,
        algorithm,
        handle,
        descriptors: [dx_desc, w_desc, dy_desc, convolution],
        at: [dx, w, dy],
        workspace: (workspace, workspace_bytes),
        factors: [alpha, beta],
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
        direction: Direction::BackwardFilter,
        algorithm,
        handle,
        descriptors: [x_desc, dw_desc, dy_desc, convolution],
        at: [x, dw, dy],
        workspace: (workspace, workspace_bytes),
        factors: [alpha, beta],
    };
    // SAFETY: the caller passes factors or null.
    answer(unsafe { queue(call) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::capture as graphs;
    use crate::driver::status::Status as Driver;
    use crate::driver::testing::{Bench, alloc, sync};
    use crate::driver::{faults, stream};
    use crate::operands::testing::{decode, encode, values};

    const CODES: [(Kind, u32); 4] = [(Kind::F32, 0), (Kind::F64, 1), (Kind::F16, 2), (Kind::BF16, 9)];
    const DIRECTIONS: [Direction; 3] =
        [Direction::Forward, Direction::BackwardData, Direction::BackwardFilter];

    /// A convolution to test.
    #[derive(Debug, Clone)]
    struct Case {
        direction: Direction,
        kind: Kind,
        x: Vec<usize>,
        w: Vec<usize>,
        window: Window,
        algorithm: u32,
        math: u32,
        alpha: f64,
        beta: f64,
    }

    fn case(direction: Direction) -> Case {
        let window = Window { pads: vec![1, 1], strides: vec![1, 1], dilations: vec![1, 1], groups: 1 };
        let (x, w, kind) = (vec![2, 3, 4, 5], vec![2, 3, 3, 3], Kind::F32);
        Case { direction, kind, x, w, window, algorithm: 1, math: FMA_MATH, alpha: 1.0, beta: 0.0 }
    }

    /// Any case; the numbers are the same in each run.
    fn random(state: &mut u64, direction: Direction, kind: Kind) -> Case {
        let mut below = |end: usize| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*state >> 33) as usize % end
        };
        let (spatial, groups, channels) = (2 + below(2), 1 + below(3), 1 + below(3));
        let (mut x, mut w) = (vec![1 + below(2), channels * groups], vec![groups * (1 + below(3)), channels]);
        let mut window = Window { pads: Vec::new(), strides: Vec::new(), dilations: Vec::new(), groups };
        for k in 0..spatial {
            let (size, pad, dilation) = (1 + below(3), below(4), 1 + below(2));
            // Some rows have more than one vector.
            let input = 1 + below(6) + if k + 1 == spatial { below(2) * 14 } else { 0 };
            x.push(input.max(((size - 1) * dilation + 1).saturating_sub(2 * pad)));
            w.push(size);
            window.pads.push(pad);
            window.strides.push(1 + below(3));
            window.dilations.push(dilation);
        }
        let algorithm = if direction == Direction::Forward { below(2) as u32 } else { 1 };
        let (alpha, beta) = ([1.0, 0.5][below(2)], [0.0, 1.0, 0.5][below(3)]);
        Case { direction, kind, x, w, window, algorithm, math: FMA_MATH, alpha, beta }
    }

    /// All indices of an array, in order.
    fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
        dims.iter().fold(vec![Vec::new()], |indices, &dim| {
            let longer = |index: &Vec<usize>, k| index.iter().copied().chain([k]).collect();
            indices.iter().flat_map(|index| (0..dim).map(move |k| longer(index, k))).collect()
        })
    }

    impl Case {
        /// Sizes of x, w and y.
        fn dims(&self) -> [Vec<usize>; 3] {
            let Window { pads, strides, dilations, .. } = &self.window;
            let output = |k: usize| {
                let reach = (self.w[k + 2] - 1) * dilations[k] + 1;
                1 + (self.x[k + 2] + 2 * pads[k] - reach) / strides[k]
            };
            let y = [self.x[0], self.w[0]].into_iter().chain((0..pads.len()).map(output)).collect();
            [self.x.clone(), self.w.clone(), y]
        }

        fn elements(&self) -> [usize; 3] {
            self.dims().map(|dims| dims.iter().product())
        }

        /// `alpha convolution + beta result`, in plain loops.
        fn computed(&self, tensors: &[Vec<f64>; 3]) -> Vec<f64> {
            let Window { pads, strides, dilations, groups } = &self.window;
            let (dims, result, [a, b]) = (self.dims(), self.direction.result(), self.direction.operands());
            let taps = indices(&dims[1]);
            let mut sums: Vec<_> = tensors[result].iter().map(|value| self.beta * value).collect();
            for y in indices(&dims[2]) {
                for w in taps.iter().filter(|w| w[0] == y[1]) {
                    let mut x = vec![y[0], w[0] / (dims[1][0] / groups) * dims[1][1] + w[1]];
                    let spatial = 0..pads.len();
                    x.extend(
                        spatial
                            .map(|k| (y[k + 2] * strides[k] + w[k + 2] * dilations[k]).wrapping_sub(pads[k])),
                    );
                    if x.iter().zip(&dims[0]).all(|(at, dim)| at < dim) {
                        let flat = |index: &[usize], k: usize| {
                            dims[k].iter().zip(index).fold(0, |at, (dim, index)| at * dim + index)
                        };
                        let at = [flat(&x, 0), flat(w, 1), flat(&y, 2)];
                        sums[at[result]] += self.alpha * tensors[a][at[a]] * tensors[b][at[b]];
                    }
                }
            }
            decode(self.kind, &encode(self.kind, &sums))
        }
    }

    /// A handle and the descriptors of a case.
    struct Objects {
        handle: usize,
        descriptors: Descriptors,
    }

    fn ints(values: &[usize]) -> Vec<c_int> {
        values.iter().map(|&value| value as c_int).collect()
    }

    fn set_tensor(desc: usize, kind: u32, dims: &[usize]) -> Status {
        let strides: Vec<_> = (1..=dims.len()).map(|k| dims[k..].iter().product()).collect();
        let (dims, strides) = (ints(dims), ints(&strides));
        // SAFETY: the arrays have that many integers.
        unsafe {
            cudnnSetTensorNdDescriptor(desc, kind, dims.len() as c_int, dims.as_ptr(), strides.as_ptr())
        }
    }

    fn set_filter(desc: usize, kind: u32, format: u32, dims: &[usize]) -> Status {
        let dims = ints(dims);
        // SAFETY: the array has that many integers.
        unsafe { cudnnSetFilterNdDescriptor(desc, kind, format, dims.len() as c_int, dims.as_ptr()) }
    }

    fn set_window(desc: usize, window: &Window, mode: u32, compute: u32) -> Status {
        let [pads, strides, dilations] = [&window.pads, &window.strides, &window.dilations].map(|v| ints(v));
        let (count, pads, strides) = (pads.len() as c_int, pads.as_ptr(), strides.as_ptr());
        // SAFETY: the arrays have that many integers.
        unsafe {
            cudnnSetConvolutionNdDescriptor(desc, count, pads, strides, dilations.as_ptr(), mode, compute)
        }
    }

    fn objects(bench: &Bench, case: &Case) -> Objects {
        let (mut handle, mut descriptors) = (0, [0; 4]);
        let kind = CODES.iter().find(|(known, _)| *known == case.kind).unwrap().1;
        let [x, w, y] = case.dims();
        // SAFETY: all places are valid.
        let done = unsafe {
            [
                cudnnCreate(&mut handle),
                cudnnSetStream(handle, bench.stream),
                cudnnCreateTensorDescriptor(&mut descriptors[0]),
                cudnnCreateFilterDescriptor(&mut descriptors[1]),
                cudnnCreateTensorDescriptor(&mut descriptors[2]),
                cudnnCreateConvolutionDescriptor(&mut descriptors[3]),
                cudnnSetConvolutionGroupCount(descriptors[3], case.window.groups as c_int),
                cudnnSetConvolutionMathType(descriptors[3], case.math),
                set_tensor(descriptors[0], kind, &x),
                set_filter(descriptors[1], kind, 0, &w),
                set_tensor(descriptors[2], kind, &y),
                set_window(descriptors[3], &case.window, 1, (case.kind == Kind::F64) as u32),
            ]
        };
        assert_eq!(done, [Status::Success; 12], "{case:?}");
        Objects { handle, descriptors }
    }

    /// Ends the descriptors; of a handle there is no end.
    fn free(objects: &Objects) {
        let [x, w, y, convolution] = objects.descriptors;
        // SAFETY: the calls take any numbers.
        unsafe {
            assert_eq!(cudnnDestroyTensorDescriptor(x), Status::Success);
            assert_eq!(cudnnDestroyFilterDescriptor(w), Status::Success);
            assert_eq!(cudnnDestroyTensorDescriptor(y), Status::Success);
            assert_eq!(cudnnDestroyConvolutionDescriptor(convolution), Status::Success);
            assert_eq!(cudnnDestroyConvolutionDescriptor(convolution), Status::BadParam);
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

    /// Queues the convolution of tensors x, w and y.
    fn queue(case: &Case, objects: &Objects, at: [u64; 3], space: (u64, usize)) -> Status {
        let kind = if case.kind == Kind::F64 { Kind::F64 } else { Kind::F32 };
        let [alpha, beta] = [case.alpha, case.beta].map(|value| encode(kind, &[value]));
        let (alpha, beta) = (alpha.as_ptr().cast(), beta.as_ptr().cast());
        let ([dx, dw, dy, c], [x, w, y], (space, bytes)) = (objects.descriptors, at, space);
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

    fn workspace(case: &Case, objects: &Objects) -> (u64, usize) {
        match need(case, objects).unwrap() {
            0 => (0, 0),
            bytes => (alloc(bytes), bytes),
        }
    }

    fn upload(bench: &Bench, kind: Kind, values: &[f64]) -> u64 {
        let bytes = encode(kind, values);
        let address = alloc(bytes.len());
        bench.to_device(address, &bytes);
        address
    }

    fn download(bench: &Bench, kind: Kind, from: u64, count: usize) -> Vec<f64> {
        let mut bytes = vec![0; count * kind.bytes() as usize];
        bench.to_host(&mut bytes, from);
        decode(kind, &bytes)
    }

    fn told() -> String {
        faults::last_told().unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn convolutions_agree_with_plain_loops() {
        let (bench, mut state) = (Bench::new(), 1);
        for (kind, _) in CODES {
            for direction in DIRECTIONS {
                for seed in 0..30 {
                    let case = random(&mut state, direction, kind);
                    let (elements, result) = (case.elements(), direction.result());
                    let tensors = [0, 1, 2].map(|k| values(elements[k], seed + k));
                    let at = [0, 1, 2].map(|k: usize| upload(&bench, kind, &tensors[k]));
                    let objects = objects(&bench, &case);
                    let space = workspace(&case, &objects);
                    assert_eq!(space.1 == 0, case.algorithm == 0);
                    assert_eq!(queue(&case, &objects, at, space), Status::Success, "{case:?}");
                    free(&objects);
                    let got = download(&bench, kind, at[result], elements[result]);
                    assert_eq!(got, case.computed(&tensors), "{case:?}");
                }
            }
        }
    }

    /// Symptom: a backend forgets `CUDNN_FMA_MATH`, and nobody notices before the hardware does.
    #[test]
    fn operands_in_f32_are_rounded_unless_that_is_forbidden() {
        let (bench, fine) = (Bench::new(), 1.0 + 1.0 / 4096.0);
        for direction in DIRECTIONS {
            for (math, kind) in (0..4).map(|math| (math, Kind::F32)).chain([(0, Kind::F64)]) {
                let window = Window { pads: vec![0, 0], ..case(direction).window };
                let case = Case { kind, math, x: vec![1; 4], w: vec![1; 4], window, ..case(direction) };
                let (objects, result) = (objects(&bench, &case), direction.result());
                let first = (result + 1) % 3;
                let at = [0, 1, 2].map(|k| upload(&bench, kind, &[if k == first { fine } else { 1.0 }]));
                assert_eq!(queue(&case, &objects, at, workspace(&case, &objects)), Status::Success);
                let expected = if kind == Kind::F64 || math == FMA_MATH { fine } else { 1.0 };
                assert_eq!(download(&bench, kind, at[result], 1), [expected], "math {math}");
            }
        }
    }

    #[test]
    fn convolutions_during_a_capture_become_nodes() {
        let (bench, case) = (Bench::new(), case(Direction::Forward));
        let (objects, elements) = (objects(&bench, &case), case.elements());
        let space = workspace(&case, &objects);
        let mut tensors = elements.map(|count| values(count, 1));
        let at = [0, 1, 2].map(|k: usize| upload(&bench, case.kind, &tensors[k]));
        let (mut graph, mut exec, mut other) = (0, 0, 0);
        // SAFETY: all places are valid.
        unsafe {
            assert_eq!(stream::cuStreamBeginCapture_v2(bench.stream, 1), Driver::Success);
            assert_eq!(queue(&case, &objects, at, space), Status::Success);
            assert_eq!(stream::cuStreamEndCapture(bench.stream, &mut graph), Driver::Success);
            assert_eq!(graphs::cuGraphInstantiateWithFlags(&mut exec, graph, 0), Driver::Success);
        }
        free(&objects);
        for seed in 2..4 {
            tensors[0] = values(elements[0], seed);
            bench.to_device(at[0], &encode(case.kind, &tensors[0]));
            // SAFETY: the call takes any numbers.
            assert_eq!(unsafe { graphs::cuGraphLaunch(exec, bench.stream) }, Driver::Success);
            assert_eq!(download(&bench, case.kind, at[2], elements[2]), case.computed(&tensors));
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
        let calls = [
            "cudnnConvolutionForward (x [2, 3, 4, 5], w [2, 3, 3, 3]), x:",
            "cudnnConvolutionBackwardData (w [2, 3, 3, 3], dy [2, 2, 4, 5]), w:",
            "cudnnConvolutionBackwardFilter (x [2, 3, 4, 5], dy [2, 2, 4, 5]), x:",
        ];
        for (direction, call) in DIRECTIONS.into_iter().zip(calls) {
            let case = case(direction);
            let (objects, result) = (objects(&bench, &case), direction.result());
            let bytes = case.elements().map(|count| 4 * count);
            let (at, space) = (bytes.map(alloc), workspace(&case, &objects));
            let large = alloc(1 << 17);
            bench.fill(large, 0, 1 << 17);
            let run = |case: &Case, at: [u64; 3], space| {
                assert_eq!(queue(case, &objects, at, space), Status::Success);
                sync(bench.stream)
            };
            assert_eq!(run(&case, at, space), Driver::Unknown, "inputs were never written");
            assert!(told().contains(call), "{}", told());
            for k in direction.operands() {
                bench.fill(at[k], 0, bytes[k]);
            }
            let beta = Case { beta: 1.0, ..case.clone() };
            assert_eq!(run(&beta, at, space), Driver::Unknown, "the result is added, but was never written");
            assert!(told().contains("was never written"), "{}", told());
            assert_eq!(run(&case, at, space), Driver::Success, "{}", told());
            assert_eq!(run(&beta, at, space), Driver::Success);
            for (k, bytes) in bytes.into_iter().enumerate() {
                let with =
                    |address| std::array::from_fn(|other| if other == k { address } else { at[other] });
                let short = alloc(bytes - 4);
                bench.fill(short, 0, bytes - 4);
                assert_eq!(run(&case, with(short), space), Driver::Unknown, "operand {k} is too short");
                assert!(told().contains("past the end of an allocation"), "{}", told());
                if k != result {
                    let mut same = with(large);
                    same[result] = large + bytes as u64 - 4;
                    assert_eq!(run(&case, same, space), Driver::Unknown, "operand {k} meets the result");
                    assert!(told().contains("overlaps the result"), "{}", told());
                }
                let space = (large, 1 << 16);
                assert_eq!(
                    run(&case, with(large + 1024), space),
                    Driver::Unknown,
                    "operand {k} in workspace"
                );
                assert!(told().contains("overlaps the workspace"), "{}", told());
                assert_eq!(run(&case, with(large + (1 << 16)), space), Driver::Success);
                assert_eq!(download(&bench, Kind::F32, large, 1), decode(Kind::F32, &[0xa5; 4]));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (bench, case) = (Bench::new(), case(Direction::Forward));
        let objects = objects(&bench, &case);
        let [x, w, y, convolution] = objects.descriptors;
        let [x_dims, w_dims, y_dims] = case.dims();
        let (at, space) = ([alloc(4096), alloc(4096), alloc(4096)], workspace(&case, &objects));
        at.iter().for_each(|&at| bench.fill(at, 0, 4096));
        let status = || {
            let status = queue(&case, &objects, at, space);
            assert_eq!(need(&case, &objects).err().unwrap_or(Status::Success), status);
            status
        };
        let with = |dims: &[usize], k: usize, dim: usize| {
            let mut dims = dims.to_vec();
            dims[k] = dim;
            dims
        };
        for k in 0..4 {
            for (desc, dims) in [(x, &x_dims), (y, &y_dims)] {
                assert_eq!(set_tensor(desc, 0, &with(dims, k, dims[k] + 1)), Status::Success);
                assert_eq!(status(), Status::BadParam, "dim {k} of a tensor");
                assert_eq!(set_tensor(desc, 0, dims), Status::Success);
            }
            assert_eq!(set_filter(w, 0, 0, &with(&w_dims, k, 9)), Status::Success);
            assert_eq!(status(), Status::BadParam, "dim {k} of the filter");
        }
        assert_eq!(set_filter(w, 2, 0, &w_dims), Status::Success);
        assert_eq!(status(), Status::BadParam, "types differ");
        assert_eq!(set_filter(w, 0, 0, &w_dims), Status::Success);
        assert_eq!(set_window(convolution, &case.window, 1, 1), Status::Success);
        assert_eq!(status(), Status::NotSupported, "sums of another type");
        assert_eq!(set_window(convolution, &case.window, 1, 0), Status::Success);
        assert_eq!(status(), Status::Success);

        let strides = [60, 1, 15, 3];
        // SAFETY: the arrays have that many integers.
        let last = unsafe { cudnnSetTensorNdDescriptor(x, 0, 4, ints(&x_dims).as_ptr(), strides.as_ptr()) };
        assert_eq!(last, Status::NotSupported, "channels last");
        assert_eq!(set_filter(w, 0, 1, &w_dims), Status::NotSupported, "channels last");
        assert_eq!(set_tensor(x, 0, &[2, 3, 4]), Status::NotSupported, "three dims");
        assert_eq!(set_filter(w, 0, 0, &[2, 3, 4]), Status::NotSupported, "three dims");
        assert_eq!(set_tensor(x, 0, &[2, 0, 4, 5]), Status::BadParam, "nothing");
        assert_eq!(set_tensor(x, 99, &x_dims), Status::NotSupported, "no type");
        assert_eq!(set_tensor(x, 0, &[1 << 16, 1 << 15, 1, 1]), Status::NotSupported, "2^31 elements");
        assert_eq!(set_window(convolution, &case.window, 0, 0), Status::NotSupported, "a turned filter");
        let still = Window { strides: vec![0, 1], ..case.window.clone() };
        assert_eq!(set_window(convolution, &still, 1, 0), Status::BadParam);
        // SAFETY: the calls take any numbers.
        unsafe {
            assert_eq!(cudnnSetStream(objects.handle, usize::MAX), Status::BadParam);
            assert_eq!(cudnnSetConvolutionGroupCount(convolution, 0), Status::BadParam);
            assert_eq!(cudnnSetConvolutionMathType(convolution, 4), Status::BadParam);
            assert_eq!(cudnnSetConvolutionGroupCount(x, 1), Status::BadParam, "a tensor is no convolution");
            assert_eq!(cudnnSetConvolutionGroupCount(convolution, 3), Status::Success);
        }
        assert_eq!(status(), Status::BadParam, "three groups of one filter");
    }

    #[test]
    fn algorithms_are_few_and_have_their_workspace() {
        let bench = Bench::new();
        for direction in DIRECTIONS {
            let case = case(direction);
            let objects = objects(&bench, &case);
            let some = |algorithm| need(&Case { algorithm, ..case.clone() }, &objects).map(|bytes| bytes > 0);
            let none = if direction == Direction::Forward { Ok(false) } else { Err(Status::NotSupported) };
            assert_eq!([some(0), some(1), some(2)], [none, Ok(true), Err(Status::NotSupported)]);
            let (at, (space, bytes)) = ([alloc(4096), alloc(4096), alloc(4096)], workspace(&case, &objects));
            for wrong in [(0, 0), (0, bytes), (space, bytes - 1), (space + 128, bytes)] {
                assert_eq!(queue(&case, &objects, at, wrong), Status::BadParam, "{wrong:?}");
            }
            for wrong in [at[1] + 2, 0] {
                let at = [at[0], wrong, at[2]];
                assert_eq!(queue(&case, &objects, at, (space, bytes)), Status::BadParam, "{at:?}");
            }
            free(&objects);
            assert_eq!(queue(&case, &objects, at, (space, bytes)), Status::BadParam, "no descriptors");
        }
    }
}
