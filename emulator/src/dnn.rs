//! The convolution library's backend interface (`libcudnn.so.9`): one convolution, forward or either gradient, as a graph of
//! descriptors.
//!
//! - `descriptor`: attributes, and what they become
//! - `engines`: what is proposed for a convolution
//! - `convolution`: its computation on the host
//!
//! A plan's execution is queued like a kernel on its handle's stream and computed when it runs. Tensors are row-major or
//! have their channels last. Most engines need a workspace: it is filled with garbage, and must overlap nothing.

mod convolution;
mod descriptor;
mod engines;

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex};

use crate::driver::stream::{Stream, Work, resolve};
use crate::driver::{capture, device, handles, lock};
use crate::operands::{Kind, Workspace};
use convolution::Convolution;
use descriptor::{Descriptor, Object, finalized};

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

/// The library on one device.
#[derive(Debug)]
struct Handle {
    device: u32,
    stream: Mutex<usize>,
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

/// A descriptor without attributes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnBackendCreateDescriptor(kind: u32, descriptor: *mut usize) -> Status {
    // SAFETY: the caller passes a valid place or null.
    answer(Descriptor::new(kind).and_then(|object| unsafe { create(descriptor, object) }))
}

/// Ends a handle; what was made from the descriptor lives on.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnBackendDestroyDescriptor(descriptor: usize) -> Status {
    answer(handles::remove::<Descriptor>(descriptor).map(|_| ()).ok_or(Status::BadParam))
}

/// Sets an attribute, once.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnBackendSetAttribute(
    descriptor: usize,
    name: u32,
    of: u32,
    count: i64,
    values: *const c_void,
) -> Status {
    // SAFETY: the caller passes an array of `count` values of this type, or null.
    answer(get::<Descriptor>(descriptor).and_then(|found| unsafe { found.set(name, of, count, values) }))
}

/// Reads an attribute of a finalised descriptor.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnBackendGetAttribute(
    descriptor: usize,
    name: u32,
    of: u32,
    wanted: i64,
    count: *mut i64,
    values: *mut c_void,
) -> Status {
    let read = |found: Arc<Descriptor>| {
        // SAFETY: the caller passes room for `wanted` values of this type, or null, and a place for their number.
        unsafe { found.read(name, of, wanted, count, values) }
    };
    answer(get::<Descriptor>(descriptor).and_then(read))
}

/// Makes a descriptor what its attributes say. All have to be there and fit together.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnBackendFinalize(descriptor: usize) -> Status {
    answer(get::<Descriptor>(descriptor).and_then(|found| found.finalize()))
}

/// The handle's stream, which has to live, with its device's context current.
fn stream_of(handle: &Handle) -> Result<Arc<Stream>, Status> {
    require(device::current() == Ok(handle.device), Status::BadParam)?;
    let stream = resolve(*lock(&handle.stream)).map_err(|_| Status::BadParam)?;
    require(stream.device == handle.device, Status::BadParam)?;
    Ok(stream)
}

/// Queues a plan's convolution. Tensors are read when it runs.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cudnnBackendExecute(handle: usize, plan: usize, pack: usize) -> Status {
    let queue = || {
        let (plan, pack) = (finalized(plan)?, finalized(pack)?);
        let (Object::Plan(of, operation, engine), Object::Pack(pack)) = (&*plan, &*pack) else {
            return Err(Status::BadParam);
        };
        require(*of == handle && pack.places.len() == 3, Status::BadParam)?;
        let handle = get::<Handle>(handle)?;
        let stream = stream_of(&handle)?;
        let place = |k: usize| {
            let tensor = &operation.tensors[k];
            let found = pack.places.iter().find(|(id, _)| *id == tensor.id);
            let at = found.map(|(_, at)| *at).filter(|&at| at != 0 && at.is_multiple_of(tensor.alignment));
            at.ok_or(Status::BadParam)
        };
        let at = [place(0)?, place(1)?, place(2)?];
        require(!engine.fails(), Status::ExecutionFailed)?;
        let used = engine.workspace(operation);
        let space = pack.workspace;
        require(used == 0 || space != 0 && space.is_multiple_of(256), Status::BadParam)?;
        let workspace =
            if used == 0 { Workspace::default() } else { Workspace { at: space, given: used, used } };
        let (direction, tensors) = (operation.direction, &operation.tensors);
        let sizes = direction.operands().map(|k| format!("{} {:?}", direction.names()[k], tensors[k].dims));
        let convolution = Convolution {
            call: format!("{} ({})", direction.call(), sizes.join(", ")),
            device: handle.device,
            direction,
            kind: tensors[0].kind,
            tf32: tensors[0].kind == Kind::F32 && engine.tf32(),
            window: operation.window.clone(),
            at,
            dims: [0, 1, 2].map(|k: usize| tensors[k].dims.clone()),
            strides: [0, 1, 2].map(|k: usize| tensors[k].strides.clone()),
            alpha: operation.alpha,
            beta: operation.beta,
            wrong: engine.is_wrong(),
            workspace,
        };
        let work = Work::Library(Box::new(move || convolution.run()));
        stream.enqueue(work).map(|_| ()).map_err(|_| Status::ExecutionFailed)
    };
    answer(queue())
}

#[cfg(test)]
mod tests {
    use super::convolution::{Direction, Window, places};
    use super::*;
    use crate::driver::capture as graphs;
    use crate::driver::status::Status as Driver;
    use crate::driver::testing::{Bench, alloc, sync};
    use crate::driver::{faults, stream};
    use crate::operands::testing::{decode, encode, values};

    const CODES: [(Kind, u32); 4] = [(Kind::F32, 0), (Kind::F64, 1), (Kind::F16, 2), (Kind::BF16, 9)];
    const DIRECTIONS: [Direction; 3] =
        [Direction::Forward, Direction::BackwardData, Direction::BackwardFilter];

    // Attribute types.
    const HANDLE: u32 = 0;
    const DATA_TYPE: u32 = 1;
    const INT64: u32 = 3;
    const FLOAT: u32 = 4;
    const DOUBLE: u32 = 5;
    const VOID_PTR: u32 = 6;
    const MODE: u32 = 7;
    const HEUR_MODE: u32 = 8;
    const NOTE: u32 = 11;
    const DESCRIPTOR: u32 = 15;

    /// A convolution to test.
    #[derive(Debug, Clone)]
    struct Case {
        direction: Direction,
        kind: Kind,
        x: Vec<usize>,
        w: Vec<usize>,
        window: Window,
        channels_last: bool,
        engine: i64,
        alpha: f64,
        beta: f64,
    }

    fn case(direction: Direction) -> Case {
        let window = Window { pads: vec![1, 1], strides: vec![1, 1], dilations: vec![1, 1] };
        let (x, w, kind) = (vec![2, 3, 4, 5], vec![2, 3, 3, 3], Kind::F32);
        Case { direction, kind, x, w, window, channels_last: false, engine: 1, alpha: 1.0, beta: 0.0 }
    }

    /// Any case; the numbers are the same in each run.
    fn random(state: &mut u64, direction: Direction, kind: Kind) -> Case {
        let mut below = |end: usize| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*state >> 33) as usize % end
        };
        let (spatial, groups, channels) = (2 + below(2), 1 + below(3), 1 + below(3));
        let (mut x, mut w) = (vec![1 + below(2), channels * groups], vec![groups * (1 + below(3)), channels]);
        let mut window = Window { pads: Vec::new(), strides: Vec::new(), dilations: Vec::new() };
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
        let (channels_last, engine) = (below(2) == 1, [0, 1][below(2)]);
        let (alpha, beta) = ([1.0, 0.5][below(2)], [0.0, 1.0, 0.5][below(3)]);
        Case { direction, kind, x, w, window, channels_last, engine, alpha, beta }
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

        fn strides(&self, dims: &[usize]) -> Vec<usize> {
            let inner = |d: usize| dims[d..].iter().product::<usize>();
            let channels = if self.channels_last { dims[1] } else { 1 };
            let mut strides: Vec<_> = (1..=dims.len()).map(|d| inner(d) * channels).collect();
            strides[0] = inner(1);
            strides[1] = if self.channels_last { 1 } else { inner(2) };
            strides
        }

        /// Values in the order of memory.
        fn laid_out(&self, tensor: usize, values: &[f64]) -> Vec<f64> {
            let dims = &self.dims()[tensor];
            let mut memory = vec![0.0; values.len()];
            places(dims, &self.strides(dims)).into_iter().zip(values).for_each(|(at, v)| memory[at] = *v);
            memory
        }

        /// `alpha convolution + beta result`, in plain loops.
        fn computed(&self, tensors: &[Vec<f64>; 3]) -> Vec<f64> {
            let Window { pads, strides, dilations } = &self.window;
            let (dims, result, [a, b]) = (self.dims(), self.direction.result(), self.direction.operands());
            let (taps, groups) = (indices(&dims[1]), dims[0][1] / dims[1][1]);
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

        fn code(&self) -> u32 {
            CODES.iter().find(|(known, _)| *known == self.kind).unwrap().1
        }

        /// The first attribute of the operation, and the operation.
        fn operation(&self) -> (u32, u32) {
            match self.direction {
                Direction::Forward => (700, 10),
                Direction::BackwardData => (706, 12),
                Direction::BackwardFilter => (712, 11),
            }
        }
    }

    fn made(kind: u32) -> usize {
        let mut descriptor = 0;
        // SAFETY: the place is valid.
        assert_eq!(unsafe { cudnnBackendCreateDescriptor(kind, &mut descriptor) }, Status::Success);
        descriptor
    }

    fn set<T>(descriptor: usize, name: u32, of: u32, values: &[T]) -> Status {
        // SAFETY: the array has that many values.
        unsafe { cudnnBackendSetAttribute(descriptor, name, of, values.len() as i64, values.as_ptr().cast()) }
    }

    fn read<T>(descriptor: usize, name: u32, of: u32, values: &mut [T]) -> Result<usize, Status> {
        let (mut count, wanted, at) = (-1, values.len() as i64, values.as_mut_ptr().cast());
        // SAFETY: the array has that many places.
        let status = unsafe { cudnnBackendGetAttribute(descriptor, name, of, wanted, &mut count, at) };
        if status == Status::Success { Ok(count as usize) } else { Err(status) }
    }

    fn finalize(descriptor: usize) -> Status {
        // SAFETY: the call takes any number.
        unsafe { cudnnBackendFinalize(descriptor) }
    }

    fn destroy(descriptor: usize) -> Status {
        // SAFETY: the call takes any number.
        unsafe { cudnnBackendDestroyDescriptor(descriptor) }
    }

    fn ints(values: &[usize]) -> Vec<i64> {
        values.iter().map(|&value| value as i64).collect()
    }

    /// A tensor, or what is wrong with it.
    fn tensor(id: i64, code: u32, dims: &[usize], strides: &[usize]) -> Result<usize, Status> {
        let descriptor = made(17);
        let set = [
            set(descriptor, 901, DATA_TYPE, &[code]),
            set(descriptor, 902, INT64, &ints(dims)),
            set(descriptor, 903, INT64, &ints(strides)),
            set(descriptor, 906, INT64, &[id]),
            set(descriptor, 900, INT64, &[16i64]),
        ];
        assert_eq!(set, [Status::Success; 5]);
        let status = finalize(descriptor);
        if status == Status::Success { Ok(descriptor) } else { Err(status) }
    }

    fn convolution(window: &Window, mode: u32, code: u32) -> Result<usize, Status> {
        let descriptor = made(1);
        let set = [
            set(descriptor, 100, DATA_TYPE, &[code]),
            set(descriptor, 101, MODE, &[mode]),
            set(descriptor, 106, INT64, &[window.pads.len() as i64]),
            set(descriptor, 104, INT64, &ints(&window.pads)),
            set(descriptor, 105, INT64, &ints(&window.pads)),
            set(descriptor, 103, INT64, &ints(&window.strides)),
            set(descriptor, 102, INT64, &ints(&window.dilations)),
        ];
        assert_eq!(set, [Status::Success; 7]);
        let status = finalize(descriptor);
        if status == Status::Success { Ok(descriptor) } else { Err(status) }
    }

    fn operation(case: &Case, parts: [usize; 4]) -> Result<usize, Status> {
        let ((first, kind), [window, w, x, y]) = (case.operation(), parts);
        let descriptor = made(kind);
        for (k, factor) in [case.alpha, case.beta].into_iter().enumerate() {
            let status = match case.kind {
                Kind::F64 => set(descriptor, first + k as u32, DOUBLE, &[factor]),
                _ => set(descriptor, first + k as u32, FLOAT, &[factor as f32]),
            };
            assert_eq!(status, Status::Success);
        }
        for (k, part) in (2..).zip([window, w, x, y]) {
            let status = set(descriptor, first + k, DESCRIPTOR, &[part]);
            if status != Status::Success {
                return Err(status);
            }
        }
        let status = finalize(descriptor);
        if status == Status::Success { Ok(descriptor) } else { Err(status) }
    }

    fn handle(bench: &Bench) -> usize {
        let mut handle = 0;
        // SAFETY: the place is valid.
        unsafe {
            assert_eq!(cudnnCreate(&mut handle), Status::Success);
            assert_eq!(cudnnSetStream(handle, bench.stream), Status::Success);
        }
        handle
    }

    /// Index, notes and configuration of all that is proposed.
    fn proposed(case: &Case, handle: usize, mode: u32) -> Vec<(i64, Vec<u32>, usize)> {
        let [x, w, y] = case.dims();
        let parts = [
            convolution(&case.window, 1, (case.kind == Kind::F64) as u32).unwrap(),
            tensor(-7, case.code(), &w, &case.strides(&w)).unwrap(),
            tensor(5, case.code(), &x, &case.strides(&x)).unwrap(),
            tensor(9, case.code(), &y, &case.strides(&y)).unwrap(),
        ];
        let operation = operation(case, parts).unwrap();
        let (graph, heuristics) = (made(15), made(4));
        let set = [
            set(graph, 800, HANDLE, &[handle]),
            set(graph, 801, DESCRIPTOR, &[operation]),
            finalize(graph),
            set(heuristics, 201, DESCRIPTOR, &[graph]),
            set(heuristics, 200, HEUR_MODE, &[mode]),
            finalize(heuristics),
        ];
        assert_eq!(set, [Status::Success; 6]);
        let count = read::<usize>(heuristics, 202, DESCRIPTOR, &mut []).unwrap();
        let mut configs: Vec<_> = (0..count).map(|_| made(3)).collect();
        assert_eq!(read(heuristics, 202, DESCRIPTOR, &mut configs), Ok(count));
        // Nothing needs what it was made from.
        parts.into_iter().chain([operation, graph, heuristics]).for_each(|part| {
            assert_eq!(destroy(part), Status::Success);
            assert_eq!(destroy(part), Status::BadParam);
        });
        let describe = |config: usize| {
            let (engine, mut index, mut notes) = (made(2), [-1i64], [u32::MAX; 8]);
            assert_eq!(read(config, 300, DESCRIPTOR, &mut [engine]), Ok(1));
            assert_eq!(read(engine, 1301, INT64, &mut index), Ok(1));
            let count = read(engine, 1303, NOTE, &mut notes).unwrap();
            (index[0], notes[..count].to_vec(), config)
        };
        configs.into_iter().map(describe).collect()
    }

    fn plan(handle: usize, config: usize) -> Result<usize, Status> {
        let plan = made(5);
        assert_eq!(set(plan, 400, HANDLE, &[handle]), Status::Success);
        assert_eq!(set(plan, 401, DESCRIPTOR, &[config]), Status::Success);
        let status = finalize(plan);
        if status == Status::Success { Ok(plan) } else { Err(status) }
    }

    /// A handle and a plan of a case.
    #[derive(Debug, Clone, Copy)]
    struct Objects {
        handle: usize,
        plan: usize,
    }

    fn objects(bench: &Bench, case: &Case) -> Objects {
        let handle = handle(bench);
        let all = [0, 2].map(|mode| proposed(case, handle, mode)).concat();
        let config = all.iter().find(|(index, ..)| *index == case.engine).unwrap().2;
        Objects { handle, plan: plan(handle, config).unwrap() }
    }

    fn workspace(objects: Objects) -> u64 {
        let mut bytes = [-1i64];
        assert_eq!(read(objects.plan, 402, INT64, &mut bytes), Ok(1));
        if bytes[0] == 0 { 0 } else { alloc(bytes[0] as usize) }
    }

    /// Queues the convolution of tensors x, w and y.
    fn queue(objects: Objects, [x, w, y]: [u64; 3], space: u64) -> Status {
        let pack = made(16);
        let set = [
            set(pack, 1000, INT64, &[9i64, 5, -7]),
            set(pack, 1001, VOID_PTR, &[y, x, w]),
            set(pack, 1003, VOID_PTR, &[space]),
            finalize(pack),
        ];
        assert_eq!(set, [Status::Success; 4]);
        // SAFETY: operands are checked when the convolution runs.
        let status = unsafe { cudnnBackendExecute(objects.handle, objects.plan, pack) };
        assert_eq!(destroy(pack), Status::Success);
        status
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
                    let at = [0, 1, 2].map(|k| upload(&bench, kind, &case.laid_out(k, &tensors[k])));
                    let objects = objects(&bench, &case);
                    assert_eq!(queue(objects, at, workspace(objects)), Status::Success, "{case:?}");
                    assert_eq!(destroy(objects.plan), Status::Success);
                    let got = download(&bench, kind, at[result], elements[result]);
                    assert_eq!(got, case.laid_out(result, &case.computed(&tensors)), "{case:?}");
                }
            }
        }
    }

    /// Symptom: a backend takes an engine for tensor cores, and nobody notices before the hardware does.
    #[test]
    fn tensor_cores_round_operands_in_f32() {
        let (bench, fine) = (Bench::new(), 1.0 + 1.0 / 4096.0);
        for direction in DIRECTIONS {
            for (engine, kind) in [(62, Kind::F32), (1, Kind::F32), (0, Kind::F32), (1, Kind::F64)] {
                let window = Window { pads: vec![0, 0], ..case(direction).window };
                let case = Case { kind, engine, x: vec![1; 4], w: vec![1; 4], window, ..case(direction) };
                let (objects, result) = (objects(&bench, &case), direction.result());
                let first = (result + 1) % 3;
                let at = [0, 1, 2].map(|k| upload(&bench, kind, &[if k == first { fine } else { 1.0 }]));
                assert_eq!(queue(objects, at, workspace(objects)), Status::Success);
                let expected = if engine == 62 { 1.0 } else { fine };
                assert_eq!(download(&bench, kind, at[result], 1), [expected], "engine {engine}");
            }
        }
        let double = Case { kind: Kind::F64, ..case(Direction::Forward) };
        assert!(proposed(&double, handle(&bench), 0).iter().all(|(_, notes, _)| !notes.contains(&0)));
    }

    #[test]
    fn convolutions_during_a_capture_become_nodes() {
        let (bench, case) = (Bench::new(), case(Direction::Forward));
        let (objects, elements) = (objects(&bench, &case), case.elements());
        let space = workspace(objects);
        let mut tensors = elements.map(|count| values(count, 1));
        let at = [0, 1, 2].map(|k: usize| upload(&bench, case.kind, &tensors[k]));
        let (mut graph, mut exec, mut other) = (0, 0, 0);
        // SAFETY: all places are valid.
        unsafe {
            assert_eq!(stream::cuStreamBeginCapture_v2(bench.stream, 1), Driver::Success);
            assert_eq!(queue(objects, at, space), Status::Success);
            assert_eq!(stream::cuStreamEndCapture(bench.stream, &mut graph), Driver::Success);
            assert_eq!(graphs::cuGraphInstantiateWithFlags(&mut exec, graph, 0), Driver::Success);
        }
        assert_eq!(destroy(objects.plan), Status::Success);
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
            "convolution forward (x [2, 3, 4, 5], w [2, 3, 3, 3]), x:",
            "convolution backward data (w [2, 3, 3, 3], dy [2, 2, 4, 5]), w:",
            "convolution backward filter (x [2, 3, 4, 5], dy [2, 2, 4, 5]), x:",
        ];
        for (direction, call) in DIRECTIONS.into_iter().zip(calls) {
            let case = case(direction);
            let result = direction.result();
            let [plain, added] = [0.0, 1.0].map(|beta| objects(&bench, &Case { beta, ..case.clone() }));
            let bytes = case.elements().map(|count| 4 * count);
            let (at, space) = (bytes.map(alloc), workspace(plain));
            let large = alloc(1 << 17);
            bench.fill(large, 0, 1 << 17);
            let run = |objects: Objects, at: [u64; 3], space| {
                assert_eq!(queue(objects, at, space), Status::Success);
                sync(bench.stream)
            };
            assert_eq!(run(plain, at, space), Driver::Unknown, "inputs were never written");
            assert!(told().contains(call), "{}", told());
            for k in direction.operands() {
                bench.fill(at[k], 0, bytes[k]);
            }
            assert_eq!(run(added, at, space), Driver::Unknown, "the result is added, but was never written");
            assert!(told().contains("was never written"), "{}", told());
            assert_eq!(run(plain, at, space), Driver::Success, "{}", told());
            assert_eq!(run(added, at, space), Driver::Success);
            for (k, bytes) in bytes.into_iter().enumerate() {
                let with =
                    |address| std::array::from_fn(|other| if other == k { address } else { at[other] });
                let short = alloc(bytes - 4);
                bench.fill(short, 0, bytes - 4);
                assert_eq!(run(plain, with(short), space), Driver::Unknown, "operand {k} is too short");
                assert!(told().contains("past the end of an allocation"), "{}", told());
                if k != result {
                    let mut same = with(large);
                    same[result] = large + (bytes as u64 - 4) / 16 * 16;
                    assert_eq!(run(plain, same, space), Driver::Unknown, "operand {k} meets the result");
                    assert!(told().contains("overlaps the result"), "{}", told());
                }
                assert_eq!(
                    run(plain, with(large + 64), large),
                    Driver::Unknown,
                    "operand {k} in the workspace"
                );
                assert!(told().contains("overlaps the workspace"), "{}", told());
                assert_eq!(run(plain, with(large + (1 << 16)), large), Driver::Success);
                assert_eq!(download(&bench, Kind::F32, large, 1), decode(Kind::F32, &[0xa5; 4]));
            }
        }
    }

    #[test]
    fn attributes_have_their_types_and_their_time() {
        let bench = Bench::new();
        let (x, rows) = ([2, 3, 4, 5], [60, 20, 5, 1]);
        let descriptor = made(17);
        assert_eq!(set(descriptor, 902, DATA_TYPE, &[1u32; 4]), Status::BadParam, "another type");
        assert_eq!(set(descriptor, 902, INT64, &[1i64; 6]), Status::BadParam, "six dims");
        assert_eq!(set::<i64>(descriptor, 902, INT64, &[]), Status::BadParam, "none");
        assert_eq!(set(descriptor, 906, INT64, &[1i64, 2]), Status::BadParam, "two numbers");
        assert_eq!(set(descriptor, 100, DATA_TYPE, &[0u32]), Status::BadParam, "of a convolution");
        assert_eq!(set(descriptor, 901, DATA_TYPE, &[0u32]), Status::Success);
        assert_eq!(set(descriptor, 901, DATA_TYPE, &[0u32]), Status::BadParam, "twice");
        assert_eq!(finalize(descriptor), Status::BadParam, "incomplete");
        let done = tensor(1, 0, &x, &rows).unwrap();
        assert_eq!(finalize(done), Status::BadParam, "twice");
        assert_eq!(set(done, 906, INT64, &[2i64]), Status::BadParam, "too late");
        let forward = made(10);
        assert_eq!(set(forward, 704, DESCRIPTOR, &[descriptor]), Status::NotInitialized, "not finalised");
        assert_eq!(set(forward, 704, DESCRIPTOR, &[1usize]), Status::BadParam, "no descriptor");
        assert_eq!(read(made(5), 402, INT64, &mut [0i64]), Err(Status::NotInitialized));
        let case = case(Direction::Forward);
        let objects = objects(&bench, &case);
        assert_eq!(read(objects.plan, 402, FLOAT, &mut [0i64]), Err(Status::BadParam), "another type");
        assert_eq!(read(objects.plan, 401, INT64, &mut [0i64]), Err(Status::BadParam), "not to be read");
        let other = plan(handle(&bench), proposed(&case, objects.handle, 0)[0].2);
        assert_eq!(other, Err(Status::BadParam), "another handle");
        for kind in [0, 6, 9, 13, 18, 99] {
            let mut descriptor = 0;
            // SAFETY: the place is valid.
            let status = unsafe { cudnnBackendCreateDescriptor(kind, &mut descriptor) };
            assert_eq!(status, Status::NotSupported);
        }
        // SAFETY: the call takes any numbers.
        unsafe { assert_eq!(cudnnSetStream(objects.handle, usize::MAX), Status::BadParam) };
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let case = case(Direction::Forward);
        let _bench = Bench::new();
        let [x_dims, w_dims, y_dims] = case.dims();
        let of = |id: i64, code: u32, dims: &[usize]| tensor(id, code, dims, &case.strides(dims)).unwrap();
        let [x, w, y] = [of(1, 0, &x_dims), of(2, 0, &w_dims), of(3, 0, &y_dims)];
        let window = convolution(&case.window, 1, 0).unwrap();
        let with = |dims: &[usize], k: usize, dim: usize| {
            let mut dims = dims.to_vec();
            dims[k] = dim;
            dims
        };
        assert!(operation(&case, [window, w, x, y]).is_ok());
        for k in 0..4 {
            let other = of(1, 0, &with(&x_dims, k, x_dims[k] + 1));
            assert_eq!(operation(&case, [window, w, other, y]), Err(Status::BadParam), "dim {k} of x");
            let other = of(3, 0, &with(&y_dims, k, y_dims[k] + 1));
            assert_eq!(operation(&case, [window, w, x, other]), Err(Status::BadParam), "dim {k} of y");
            let other = of(2, 0, &with(&w_dims, k, 9));
            assert_eq!(operation(&case, [window, other, x, y]), Err(Status::BadParam), "dim {k} of w");
        }
        let other = of(2, 2, &w_dims);
        assert_eq!(operation(&case, [window, other, x, y]), Err(Status::BadParam), "types differ");
        let same = of(3, 0, &w_dims);
        assert_eq!(operation(&case, [window, same, x, y]), Err(Status::BadParam), "one number for two");
        let double = convolution(&case.window, 1, 1).unwrap();
        assert_eq!(operation(&case, [double, w, x, y]), Err(Status::NotSupported), "sums of another type");
        assert_eq!(operation(&case, [x, w, x, y]), Err(Status::BadParam), "a tensor is no convolution");

        let strides = |strides: [usize; 4]| tensor(1, 0, &x_dims, &strides).err();
        assert_eq!(strides([60, 1, 15, 3]), None, "channels last");
        assert_eq!(strides([64, 20, 5, 1]), Some(Status::NotSupported), "gaps");
        assert_eq!(strides([60, 20, 1, 4]), Some(Status::NotSupported), "another order");
        assert_eq!(tensor(1, 0, &[2, 3, 4], &[12, 4, 1]), Err(Status::NotSupported), "three dims");
        assert_eq!(tensor(1, 0, &[2, 0, 4, 5], &[1; 4]), Err(Status::BadParam), "nothing");
        assert_eq!(tensor(1, 99, &x_dims, &[60, 20, 5, 1]), Err(Status::NotSupported), "no type");
        let large = tensor(1, 0, &[1 << 16, 1 << 15, 1, 1], &[1 << 15, 1, 1, 1]);
        assert_eq!(large, Err(Status::NotSupported), "2^31 elements");
        assert_eq!(convolution(&case.window, 0, 0), Err(Status::NotSupported), "a turned filter");
        let still = Window { strides: vec![0, 1], ..case.window.clone() };
        assert_eq!(convolution(&still, 1, 0), Err(Status::BadParam));
    }

    #[test]
    fn engines_with_notes_are_wrong_and_some_cannot_be_used() {
        let bench = Bench::new();
        for direction in DIRECTIONS {
            let case = Case { kind: Kind::BF16, ..case(direction) };
            let (handle, result, elements) = (handle(&bench), direction.result(), case.elements());
            let tensors = elements.map(|count| values(count, 3));
            let at = [0, 1, 2].map(|k: usize| upload(&bench, case.kind, &tensors[k]));
            let mut outcomes = Vec::new();
            for (index, notes, config) in proposed(&case, handle, 0) {
                let Ok(plan) = plan(handle, config) else {
                    outcomes.push((index, "has no plan"));
                    continue;
                };
                let objects = Objects { handle, plan };
                let mut bytes = [0i64];
                assert_eq!(read(plan, 402, INT64, &mut bytes), Ok(1));
                if bytes[0] > 1 << 30 {
                    outcomes.push((index, "needs too much"));
                    continue;
                }
                if queue(objects, at, workspace(objects)) != Status::Success {
                    outcomes.push((index, "fails"));
                    continue;
                }
                let right =
                    download(&bench, case.kind, at[result], elements[result]) == case.computed(&tensors);
                assert_eq!(
                    right,
                    notes.iter().all(|&note| note == 0 || note == 9),
                    "engine {index} {notes:?}"
                );
                outcomes.push((index, if right { "right" } else { "wrong" }));
            }
            let of = |outcome: &str| outcomes.iter().filter(|(_, found)| *found == outcome).count();
            let counts = ["right", "wrong", "has no plan", "needs too much", "fails"].map(of);
            assert_eq!(counts, [2, 6, 1, 1, 1], "{outcomes:?}");
        }
    }

    #[test]
    fn workspaces_and_addresses_are_aligned() {
        let bench = Bench::new();
        for direction in DIRECTIONS {
            let objects = objects(&bench, &case(direction));
            let (at, space) = ([alloc(4096), alloc(4096), alloc(4096)], workspace(objects));
            for wrong in [0, space + 128] {
                assert_eq!(queue(objects, at, wrong), Status::BadParam, "{wrong:?}");
            }
            for wrong in [at[1] + 4, 0] {
                let at = [at[0], wrong, at[2]];
                assert_eq!(queue(objects, at, space), Status::BadParam, "{at:?}");
            }
            assert_eq!(destroy(objects.plan), Status::Success);
            assert_eq!(queue(objects, at, space), Status::BadParam, "no plan");
        }
    }
}
