//! The matrix library's C interface (`libcublasLt.so.13`): real products in column-major order.
//!
//! A product is queued like a kernel and computed on the host when it runs. Each operand is checked exactly: gaps between
//! columns are neither read nor written. The workspace is filled with garbage, and must overlap nothing.

mod product;

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use crate::driver::stream::{Work, resolve};
use crate::driver::{capture, device, handles, lock};
use crate::operands::{Kind, Workspace};
use product::{Batch, Bias, Matrix, Product};

/// cuBLASLt 13.1.0.
const VERSION: usize = 130_100;

/// `cublasStatus_t`: the codes that this library returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Status {
    Success = 0,
    NotInitialized = 1,
    InvalidValue = 7,
    ExecutionFailed = 13,
    NotSupported = 15,
}

fn answer(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(Status::Success)
}

/// Writes a new object's handle to where the caller wants it.
///
/// # Safety
/// `at` is null or valid for a write.
unsafe fn create<T: Send + Sync + 'static>(at: *mut usize, object: T) -> Result<(), Status> {
    if at.is_null() {
        return Err(Status::InvalidValue);
    }
    // SAFETY: the caller vouches for the place.
    unsafe { at.write(handles::insert(Arc::new(object))) };
    Ok(())
}

fn destroy<T: Send + Sync + 'static>(handle: usize) -> Status {
    answer(handles::remove::<T>(handle).map(|_| ()).ok_or(Status::InvalidValue))
}

/// The value of an attribute, which has to have exactly its size.
///
/// # Safety
/// `from` is null or leads to `bytes` bytes.
unsafe fn value<const N: usize>(from: *const c_void, bytes: usize) -> Result<[u8; N], Status> {
    if from.is_null() || bytes != N {
        return Err(Status::InvalidValue);
    }
    // SAFETY: the caller vouches for the bytes; an array of bytes has no alignment.
    Ok(unsafe { from.cast::<[u8; N]>().read() })
}

/// The library on one device.
#[derive(Debug)]
struct Handle {
    device: u32,
}

/// `cublasComputeType_t`, as far as there are such products here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compute {
    F32,
    Tf32,
    F64,
}

impl Compute {
    fn from_code(code: u32) -> Option<Compute> {
        match code {
            68 | 69 => Some(Compute::F32),
            77 => Some(Compute::Tf32),
            70 | 71 => Some(Compute::F64),
            _ => None,
        }
    }

    /// The type of alpha and beta.
    fn scale(self) -> Kind {
        if self == Compute::F64 { Kind::F64 } else { Kind::F32 }
    }
}

fn kind(code: u32) -> Option<Kind> {
    match code {
        0 => Some(Kind::F32),
        1 => Some(Kind::F64),
        2 => Some(Kind::F16),
        14 => Some(Kind::BF16),
        _ => None,
    }
}

/// What a product does beside its operands.
#[derive(Debug, Clone, Copy)]
struct Description {
    compute: u32,
    scale: u32,
    pointer_mode: u32,
    transposed: [u32; 3],
    fill: u32,
    epilogue: u32,
    bias: u64,
    bias_stride: i64,
    /// All ones: that of the result.
    bias_kind: u32,
}

#[derive(Debug)]
struct Layout(Mutex<LayoutValues>);

#[derive(Debug, Clone, Copy)]
struct LayoutValues {
    kind: u32,
    order: u32,
    rows: u64,
    cols: u64,
    ld: i64,
    batch: i32,
    stride: i64,
    plane: i64,
}

#[derive(Debug)]
struct Desc(Mutex<Description>);

#[derive(Debug)]
struct Preference(Mutex<Wishes>);

#[derive(Debug, Clone, Copy)]
struct Wishes {
    workspace: u64,
    reductions: u32,
    alignments: [u32; 4],
}

/// `cublasLtMatmulAlgo_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Algorithm {
    data: [u64; 8],
}

/// First word of every algorithm.
const MARK: u64 = 0x4b69_6c6e_416c_676f;

impl Algorithm {
    /// With bytes of workspace, and the alignment up to 16 that each operand was promised to have.
    fn new(id: u64, workspace: u64, alignments: [u32; 4]) -> Self {
        let packed = alignments.iter().rev().fold(0, |packed, &a| packed << 8 | a.min(16) as u64);
        Algorithm { data: [MARK, id, workspace, packed, 0, 0, 0, 0] }
    }

    fn is_split(&self) -> bool {
        self.data[1] == SPLIT
    }

    fn workspace(&self) -> u64 {
        self.data[2]
    }

    fn alignment(&self, operand: usize) -> u64 {
        (self.data[3] >> (8 * operand) & 0xff).max(1)
    }
}

/// Sums the two halves of the inner dimension apart, in the workspace.
const SPLIT: u64 = 1;
const SPLIT_WORKSPACE: u64 = 64 << 10;
/// Sums in order.
const PLAIN: u64 = 2;

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Heuristic {
    algorithm: Algorithm,
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [i32; 4],
}

/// The library on the current context's device. May wait for the device, so captures can forbid it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtCreate(handle: *mut usize) -> Status {
    let make = || {
        let device = device::current().map_err(|_| Status::NotInitialized)?;
        capture::permit().map_err(|_| Status::NotInitialized)?;
        // SAFETY: the caller passes a valid place or null.
        unsafe { create(handle, Handle { device }) }
    };
    answer(make())
}

/// Ends a handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtDestroy(handle: usize) -> Status {
    destroy::<Handle>(handle)
}

/// The library's version.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtGetVersion() -> usize {
    VERSION
}

/// A description with default attributes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatmulDescCreate(
    desc: *mut usize,
    compute: u32,
    scale: u32,
) -> Status {
    let description = Description {
        compute,
        scale,
        pointer_mode: 0,
        transposed: [0; 3],
        fill: 2,
        epilogue: 1,
        bias: 0,
        bias_stride: 0,
        bias_kind: u32::MAX,
    };
    // SAFETY: the caller passes a valid place or null.
    answer(unsafe { create(desc, Desc(Mutex::new(description))) })
}

/// Ends a handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatmulDescDestroy(desc: usize) -> Status {
    destroy::<Desc>(desc)
}

/// Sets an attribute; products that are queued keep what it was.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    desc: usize,
    attribute: u32,
    from: *const c_void,
    bytes: usize,
) -> Status {
    let set = || {
        let desc = handles::get::<Desc>(desc).ok_or(Status::InvalidValue)?;
        // SAFETY: the caller passes a pointer to that many bytes.
        let u32_value = || unsafe { value(from, bytes) }.map(u32::from_ne_bytes);
        let mut desc = lock(&desc.0);
        match attribute {
            0 => desc.compute = u32_value()?,
            1 => desc.scale = u32_value()?,
            2 => desc.pointer_mode = u32_value()?,
            3..=5 => desc.transposed[attribute as usize - 3] = u32_value()?,
            6 => desc.fill = u32_value()?,
            7 => desc.epilogue = u32_value()?,
            // SAFETY: as above.
            8 => desc.bias = u64::from_ne_bytes(unsafe { value(from, bytes) }?),
            // SAFETY: as above.
            10 => desc.bias_stride = i64::from_ne_bytes(unsafe { value(from, bytes) }?),
            // Multiprocessors to use.
            15 => drop(u32_value()?),
            26 => desc.bias_kind = u32_value()?,
            11..=41 => return Err(Status::NotSupported),
            _ => return Err(Status::InvalidValue),
        }
        Ok(())
    };
    answer(set())
}

/// A matrix without a batch.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    layout: *mut usize,
    kind: u32,
    rows: u64,
    cols: u64,
    ld: i64,
) -> Status {
    let values = LayoutValues { kind, order: 0, rows, cols, ld, batch: 1, stride: 0, plane: 0 };
    // SAFETY: the caller passes a valid place or null.
    answer(unsafe { create(layout, Layout(Mutex::new(values))) })
}

/// Ends a handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatrixLayoutDestroy(layout: usize) -> Status {
    destroy::<Layout>(layout)
}

/// Sets an attribute.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatrixLayoutSetAttribute(
    layout: usize,
    attribute: u32,
    from: *const c_void,
    bytes: usize,
) -> Status {
    let set = || {
        let layout = handles::get::<Layout>(layout).ok_or(Status::InvalidValue)?;
        // SAFETY: the caller passes a pointer to that many bytes.
        let small = || unsafe { value::<4>(from, bytes) };
        // SAFETY: as above.
        let large = || unsafe { value::<8>(from, bytes) };
        let mut layout = lock(&layout.0);
        match attribute {
            0 => layout.kind = u32::from_ne_bytes(small()?),
            1 => layout.order = u32::from_ne_bytes(small()?),
            2 => layout.rows = u64::from_ne_bytes(large()?),
            3 => layout.cols = u64::from_ne_bytes(large()?),
            4 => layout.ld = i64::from_ne_bytes(large()?),
            5 => layout.batch = i32::from_ne_bytes(small()?),
            6 => layout.stride = i64::from_ne_bytes(large()?),
            7 => layout.plane = i64::from_ne_bytes(large()?),
            8..=13 => return Err(Status::NotSupported),
            _ => return Err(Status::InvalidValue),
        }
        Ok(())
    };
    answer(set())
}

/// Default wishes: no workspace, any reduction, full alignment.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatmulPreferenceCreate(preference: *mut usize) -> Status {
    let wishes = Wishes { workspace: 0, reductions: 7, alignments: [256; 4] };
    // SAFETY: the caller passes a valid place or null.
    answer(unsafe { create(preference, Preference(Mutex::new(wishes))) })
}

/// Ends a handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatmulPreferenceDestroy(preference: usize) -> Status {
    destroy::<Preference>(preference)
}

/// Sets an attribute.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    preference: usize,
    attribute: u32,
    from: *const c_void,
    bytes: usize,
) -> Status {
    let set = || {
        let preference = handles::get::<Preference>(preference).ok_or(Status::InvalidValue)?;
        // SAFETY: the caller passes a pointer to that many bytes.
        let small = || unsafe { value::<4>(from, bytes) };
        // SAFETY: as above.
        let large = || unsafe { value::<8>(from, bytes) };
        let mut wishes = lock(&preference.0);
        match attribute {
            1 => wishes.workspace = u64::from_ne_bytes(large()?),
            3 => wishes.reductions = u32::from_ne_bytes(small()?),
            5..=8 => wishes.alignments[attribute as usize - 5] = u32::from_ne_bytes(small()?),
            // Search mode and waves.
            0 | 9 => drop(small()?),
            // Kinds of implementation.
            12 => drop(large()?),
            _ => return Err(Status::InvalidValue),
        }
        Ok(())
    };
    answer(set())
}

/// A product as described, of matrices that fit together and that the library can multiply.
#[derive(Debug, Clone, Copy)]
struct Plan {
    compute: Compute,
    transposed: [bool; 2],
    matrices: [Matrix; 4],
    batch: u64,
    bias: Option<Bias>,
}

fn matrix(handle: usize) -> Result<(Matrix, u64), Status> {
    let layout = *lock(&handles::get::<Layout>(handle).ok_or(Status::InvalidValue)?.0);
    let Some(kind) = kind(layout.kind) else { return Err(Status::NotSupported) };
    if layout.order != 0 || layout.plane != 0 {
        return Err(Status::NotSupported);
    }
    let most = i32::MAX as u64;
    if layout.rows == 0 || layout.cols == 0 || layout.batch < 1 || layout.ld < layout.rows.min(most) as i64 {
        return Err(Status::InvalidValue);
    }
    if layout.rows > most || layout.cols > most || layout.ld > most as i64 {
        return Err(Status::NotSupported);
    }
    let matrix =
        Matrix { kind, rows: layout.rows, cols: layout.cols, ld: layout.ld as u64, stride: layout.stride };
    Ok((matrix, layout.batch as u64))
}

fn plan(desc: usize, layouts: [usize; 4]) -> Result<Plan, Status> {
    let desc = *lock(&handles::get::<Desc>(desc).ok_or(Status::InvalidValue)?.0);
    let mut matrices = [matrix(layouts[0])?; 4];
    for (matrix_of, &layout) in matrices.iter_mut().zip(&layouts) {
        *matrix_of = matrix(layout)?;
    }
    let batch = matrices[3].1;
    if matrices.iter().any(|&(_, count)| count != batch) {
        return Err(Status::InvalidValue);
    }
    let matrices = matrices.map(|(matrix, _)| matrix);
    let [a, b, c, d] = &matrices;
    if batch > 1 && d.stride == 0 {
        return Err(Status::InvalidValue);
    }
    let compute = Compute::from_code(desc.compute).ok_or(Status::NotSupported)?;
    if desc.transposed.iter().any(|&t| t > 2) {
        return Err(Status::InvalidValue);
    }
    if kind(desc.scale) != Some(compute.scale())
        || desc.pointer_mode != 0
        || desc.transposed[2] != 0
        || desc.fill != 2
    {
        return Err(Status::NotSupported);
    }
    let inputs_fit = match compute {
        Compute::F64 => a.kind == Kind::F64 && d.kind == Kind::F64,
        Compute::Tf32 => a.kind == Kind::F32 && d.kind == Kind::F32,
        Compute::F32 => a.kind != Kind::F64 && (d.kind == a.kind || d.kind == Kind::F32),
    };
    if !inputs_fit || b.kind != a.kind || c.kind != d.kind {
        return Err(Status::NotSupported);
    }
    let transposed = [desc.transposed[0] != 0, desc.transposed[1] != 0];
    let sizes = |matrix: &Matrix, turned: bool| {
        if turned { (matrix.cols, matrix.rows) } else { (matrix.rows, matrix.cols) }
    };
    let ((m, k), (inner, n)) = (sizes(a, transposed[0]), sizes(b, transposed[1]));
    if k != inner || (d.rows, d.cols) != (m, n) || (c.rows, c.cols) != (m, n) {
        return Err(Status::InvalidValue);
    }
    let bias = match desc.epilogue {
        1 => None,
        4 => {
            let found = if desc.bias_kind == u32::MAX { Some(d.kind) } else { kind(desc.bias_kind) };
            // A bias has the type of the result; a 16-bit product in f32 may have one of its inputs' type.
            let bias_kind = found.filter(|&found| found == d.kind || found == a.kind);
            let kind = bias_kind.ok_or(Status::NotSupported)?;
            Some(Bias { at: desc.bias, kind, stride: desc.bias_stride })
        }
        _ => return Err(Status::NotSupported),
    };
    Ok(Plan { compute, transposed, matrices, batch, bias })
}

/// Up to two algorithms: one that sums in two parts and wants a workspace, and a plain one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    handle: usize,
    desc: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    preference: usize,
    requested: i32,
    results: *mut Heuristic,
    count: *mut i32,
) -> Status {
    let find = || {
        if count.is_null() || results.is_null() || requested < 1 {
            return Err(Status::InvalidValue);
        }
        // SAFETY: the caller passes a valid place.
        unsafe { count.write(0) };
        handles::get::<Handle>(handle).ok_or(Status::NotInitialized)?;
        let plan = plan(desc, [a, b, c, d])?;
        let wishes = *lock(&handles::get::<Preference>(preference).ok_or(Status::InvalidValue)?.0);
        let too_narrow = |(matrix, &alignment): (&Matrix, &u32)| {
            !alignment.is_power_of_two() || (alignment as u64) < matrix.kind.bytes()
        };
        if plan.matrices.iter().zip(&wishes.alignments).any(too_narrow) {
            return Err(Status::NotSupported);
        }
        // Parts are summed in the compute type.
        let split = wishes.workspace >= SPLIT_WORKSPACE && wishes.reductions & 2 != 0;
        let candidates = [(split, SPLIT, SPLIT_WORKSPACE), (true, PLAIN, 0)];
        let legal = candidates.iter().filter(|(legal, ..)| *legal).take(requested as usize);
        let mut found = 0;
        for &(_, id, workspace) in legal {
            let result = Heuristic {
                algorithm: Algorithm::new(id, workspace, wishes.alignments),
                workspace: workspace as usize,
                state: Status::Success,
                waves: 1.0,
                reserved: [0; 4],
            };
            // SAFETY: the caller's array has `requested` elements.
            unsafe { results.add(found).write(result) };
            found += 1;
        }
        // SAFETY: as above.
        unsafe { count.write(found as i32) };
        Ok(())
    };
    answer(find())
}

/// Queues `D = alpha A B + beta C + bias`. Descriptions, factors and the bias's address are read now, matrices when it
/// runs.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cublasLtMatmul(
    handle: usize,
    desc: usize,
    alpha: *const c_void,
    a: u64,
    a_layout: usize,
    b: u64,
    b_layout: usize,
    beta: *const c_void,
    c: u64,
    c_layout: usize,
    d: u64,
    d_layout: usize,
    algorithm: *const Algorithm,
    workspace: u64,
    workspace_bytes: usize,
    stream: usize,
) -> Status {
    let queue = || {
        let handle = handles::get::<Handle>(handle).ok_or(Status::NotInitialized)?;
        let plan = plan(desc, [a_layout, b_layout, c_layout, d_layout])?;
        if alpha.is_null() || beta.is_null() {
            return Err(Status::InvalidValue);
        }
        let scale = plan.compute.scale();
        // SAFETY: the caller passes factors of the scale type.
        let (alpha, beta) = unsafe { (scale.factor(alpha), scale.factor(beta)) };
        let algorithm = if algorithm.is_null() {
            Algorithm::new(PLAIN, 0, [1; 4])
        } else {
            // SAFETY: the caller passes an algorithm.
            unsafe { algorithm.read() }
        };
        if algorithm.data[0] != MARK || !matches!(algorithm.data[1], SPLIT | PLAIN) {
            return Err(Status::InvalidValue);
        }
        let addresses = [a, b, if beta == 0.0 { d } else { c }, d];
        for (k, (&address, matrix)) in addresses.iter().zip(&plan.matrices).enumerate() {
            if address == 0 || address % algorithm.alignment(k).max(matrix.kind.bytes()) != 0 {
                return Err(Status::InvalidValue);
            }
        }
        let same_layout = plan.matrices[2] == plan.matrices[3];
        if beta != 0.0 && c == d && !same_layout {
            return Err(Status::InvalidValue);
        }
        if let Some(bias) = &plan.bias
            && (bias.at == 0 || bias.at % bias.kind.bytes() != 0)
        {
            return Err(Status::InvalidValue);
        }
        let needed = algorithm.workspace();
        if (workspace_bytes as u64) < needed
            || needed > 0 && (workspace == 0 || !workspace.is_multiple_of(256))
        {
            return Err(Status::InvalidValue);
        }
        let workspace = match workspace {
            0 => Workspace::default(),
            at => Workspace { at, given: workspace_bytes as u64, used: needed },
        };
        let stream = resolve(stream).map_err(|_| Status::InvalidValue)?;
        if stream.device != handle.device {
            return Err(Status::InvalidValue);
        }
        let product = Product {
            device: stream.device,
            tf32: plan.compute == Compute::Tf32,
            split: algorithm.is_split(),
            transposed: plan.transposed,
            a: Batch { at: a, matrix: plan.matrices[0], count: plan.batch },
            b: Batch { at: b, matrix: plan.matrices[1], count: plan.batch },
            c: (beta != 0.0).then_some(Batch { at: c, matrix: plan.matrices[2], count: plan.batch }),
            d: Batch { at: d, matrix: plan.matrices[3], count: plan.batch },
            bias: plan.bias,
            alpha,
            beta,
            workspace,
        };
        let work = Work::Library(Box::new(move || product.run()));
        stream.enqueue(work).map(|_| ()).map_err(|_| Status::ExecutionFailed)
    };
    answer(queue())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::status::Status as Driver;
    use crate::driver::testing::{Bench, alloc, sync};
    use crate::operands::testing::{decode, encode, values};

    const CODES: [(Kind, u32); 4] = [(Kind::F32, 0), (Kind::F64, 1), (Kind::F16, 2), (Kind::BF16, 14)];

    fn code(kind: Kind) -> u32 {
        CODES.iter().find(|(known, _)| *known == kind).unwrap().1
    }

    /// A product to test: sizes, types, transposes, padding of leading dimensions, and whether A is one for the batch.
    #[derive(Debug, Clone, Copy)]
    struct Case {
        sizes: (usize, usize, usize),
        input: Kind,
        output: Kind,
        compute: u32,
        transposed: [bool; 2],
        padding: usize,
        batch: usize,
        broadcast: bool,
        bias: bool,
        beta: f64,
        algorithm: usize,
    }

    const CASE: Case = Case {
        sizes: (5, 7, 9),
        input: Kind::F32,
        output: Kind::F32,
        compute: 68,
        transposed: [false; 2],
        padding: 0,
        batch: 1,
        broadcast: false,
        bias: false,
        beta: 0.0,
        algorithm: 0,
    };

    struct Objects {
        handle: usize,
        desc: usize,
        layouts: [usize; 4],
        preference: usize,
        algorithms: Vec<Heuristic>,
        status: Status,
    }

    fn objects(case: &Case, bias: u64) -> Objects {
        let (m, n, k) = case.sizes;
        let (mut handle, mut desc, mut preference, mut layouts) = (0, 0, 0, [0; 4]);
        let (scale, with_bias) = (if case.compute == 70 { 1 } else { 0 }, 4u32);
        let turned = |t: bool, rows: usize, cols: usize| if t { (cols, rows) } else { (rows, cols) };
        let shapes = [turned(case.transposed[0], m, k), turned(case.transposed[1], k, n), (m, n), (m, n)];
        let kinds = [case.input, case.input, case.output, case.output];
        // SAFETY: all places are valid, and values have the sizes that are passed.
        unsafe {
            assert_eq!(cublasLtCreate(&mut handle), Status::Success);
            assert_eq!(cublasLtMatmulDescCreate(&mut desc, case.compute, scale), Status::Success);
            let set = |attribute, from: *const c_void, bytes| {
                assert_eq!(cublasLtMatmulDescSetAttribute(desc, attribute, from, bytes), Status::Success);
            };
            for (side, &turned) in case.transposed.iter().enumerate() {
                let operation = turned as u32;
                set(3 + side as u32, (&raw const operation).cast(), 4);
            }
            if case.bias {
                set(7, (&raw const with_bias).cast(), 4);
                set(8, (&raw const bias).cast(), 8);
            }
            for (side, layout) in layouts.iter_mut().enumerate() {
                let (rows, cols) = shapes[side];
                let ld = rows + case.padding;
                let code = code(kinds[side]);
                let made = cublasLtMatrixLayoutCreate(layout, code, rows as u64, cols as u64, ld as i64);
                assert_eq!(made, Status::Success);
                let batch = case.batch as i32;
                let stride = if case.broadcast && side == 0 { 0 } else { (ld * cols) as i64 };
                let set = |attribute, from: *const c_void, bytes| {
                    let done = cublasLtMatrixLayoutSetAttribute(*layout, attribute, from, bytes);
                    assert_eq!(done, Status::Success);
                };
                set(5, (&raw const batch).cast(), 4);
                set(6, (&raw const stride).cast(), 8);
            }
            assert_eq!(cublasLtMatmulPreferenceCreate(&mut preference), Status::Success);
            let workspace = 1u64 << 20;
            let from = (&raw const workspace).cast();
            assert_eq!(cublasLtMatmulPreferenceSetAttribute(preference, 1, from, 8), Status::Success);
            let none = Heuristic {
                algorithm: Algorithm { data: [0; 8] },
                workspace: 0,
                state: Status::NotSupported,
                waves: 0.0,
                reserved: [0; 4],
            };
            let (mut algorithms, mut count) = (vec![none; 4], 0);
            let [a, b, c, d] = layouts;
            let results = algorithms.as_mut_ptr();
            let status =
                cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, d, preference, 4, results, &mut count);
            algorithms.truncate(count as usize);
            Objects { handle, desc, layouts, preference, algorithms, status }
        }
    }

    fn free(objects: &Objects) {
        // SAFETY: the calls take any numbers.
        unsafe {
            assert_eq!(cublasLtDestroy(objects.handle), Status::Success);
            assert_eq!(cublasLtMatmulDescDestroy(objects.desc), Status::Success);
            for layout in objects.layouts {
                assert_eq!(cublasLtMatrixLayoutDestroy(layout), Status::Success);
            }
            assert_eq!(cublasLtMatmulPreferenceDestroy(objects.preference), Status::Success);
            assert_eq!(cublasLtMatmulPreferenceDestroy(objects.preference), Status::InvalidValue);
        }
    }

    /// Addresses of A, B, C and D, then the workspace and its size.
    fn queue(bench: &Bench, case: &Case, objects: &Objects, at: [u64; 4], workspace: (u64, usize)) -> Status {
        let (one, beta) = ([1f64, 1f64], [case.beta, 0.0]);
        let (one32, beta32) = (1f32, case.beta as f32);
        let wide = case.compute == 70;
        let alpha: *const c_void = if wide { one.as_ptr().cast() } else { (&raw const one32).cast() };
        let beta: *const c_void = if wide { beta.as_ptr().cast() } else { (&raw const beta32).cast() };
        let [a, b, c, d] = objects.layouts;
        let algorithm = &raw const objects.algorithms[case.algorithm].algorithm;
        // SAFETY: factors and algorithm are valid; operands are checked when the product runs.
        unsafe {
            cublasLtMatmul(
                objects.handle,
                objects.desc,
                alpha,
                at[0],
                a,
                at[1],
                b,
                beta,
                at[2],
                c,
                at[3],
                d,
                algorithm,
                workspace.0,
                workspace.1,
                bench.stream,
            )
        }
    }

    /// Writes columns only, so that the gaps stay unwritten.
    fn upload(bench: &Bench, kind: Kind, rows: usize, ld: usize, values: &[f64]) -> u64 {
        let size = kind.bytes() as usize;
        let address = alloc(values.len() / rows * ld * size);
        for (col, values) in values.chunks_exact(rows).enumerate() {
            bench.to_device(address + (col * ld * size) as u64, &encode(kind, values));
        }
        address
    }

    fn download(bench: &Bench, kind: Kind, rows: usize, cols: usize, ld: usize, from: u64) -> Vec<f64> {
        let size = kind.bytes() as usize;
        let one = |col: usize| {
            let mut bytes = vec![0u8; rows * size];
            bench.to_host(&mut bytes, from + (col * ld * size) as u64);
            decode(kind, &bytes)
        };
        (0..cols).flat_map(one).collect()
    }

    fn check(bench: &Bench, case: Case) {
        let (m, n, k) = case.sizes;
        let batch = case.batch;
        let (a_rows, b_rows) =
            (if case.transposed[0] { k } else { m }, if case.transposed[1] { n } else { k });
        let a_batch = if case.broadcast { 1 } else { batch };
        let (a, b) = (values(m * k * a_batch, 1), values(k * n * batch, 2));
        let (c, bias) = (values(m * n * batch, 3), values(m, 4));
        let at_a = upload(bench, case.input, a_rows, a_rows + case.padding, &a);
        let at_b = upload(bench, case.input, b_rows, b_rows + case.padding, &b);
        let at_c = upload(bench, case.output, m, m + case.padding, &c);
        let at_bias = upload(bench, case.output, m, m, &bias);
        let at_d = alloc((m + case.padding) * n * batch * case.output.bytes() as usize);
        let objects = objects(&case, at_bias);
        assert_eq!((objects.status, objects.algorithms.len()), (Status::Success, 2), "{case:?}");
        let need = objects.algorithms[case.algorithm].workspace;
        let workspace = if need == 0 { (0, 0) } else { (alloc(need), need) };
        let status = queue(bench, &case, &objects, [at_a, at_b, at_c, at_d], workspace);
        assert_eq!(status, Status::Success, "{case:?}");
        free(&objects);
        bench.sync();
        let got = download(bench, case.output, m, n * batch, m + case.padding, at_d);
        for index in 0..batch {
            let a = &a[if case.broadcast { 0 } else { index * m * k }..][..m * k];
            let b = &b[index * k * n..][..k * n];
            for col in 0..n {
                for row in 0..m {
                    let a = |l: usize| if case.transposed[0] { a[row * k + l] } else { a[l * m + row] };
                    let b = |l: usize| if case.transposed[1] { b[l * n + col] } else { b[col * k + l] };
                    let at = (index * n + col) * m + row;
                    let mut sum: f64 = (0..k).map(|l| a(l) * b(l)).sum();
                    sum += case.beta * c[at] + if case.bias { bias[row] } else { 0.0 };
                    let sum = decode(case.output, &encode(case.output, &[sum]))[0];
                    assert_eq!(got[at], sum, "{case:?}: row {row}, column {col} of {index}");
                }
            }
        }
    }

    #[test]
    fn products_agree_with_plain_loops() {
        let bench = Bench::new();
        let kinds = [
            (Kind::F32, Kind::F32, 68),
            (Kind::F32, Kind::F32, 77),
            (Kind::F64, Kind::F64, 70),
            (Kind::F16, Kind::F16, 68),
            (Kind::BF16, Kind::BF16, 68),
            (Kind::F16, Kind::F32, 68),
            (Kind::BF16, Kind::F32, 68),
        ];
        for (input, output, compute) in kinds {
            for turns in 0..4 {
                let transposed = [turns & 1 != 0, turns & 2 != 0];
                let case = Case { input, output, compute, transposed, padding: turns * 2, ..CASE };
                check(&bench, case);
                check(&bench, Case { bias: true, algorithm: 1, batch: 3, broadcast: true, ..case });
                check(&bench, Case { beta: 0.5, batch: 2, ..case });
            }
        }
        // Edges of tiles and blocks.
        for sizes in [(1, 1, 1), (16, 6, 256), (17, 13, 257), (1, 40, 3), (200, 1, 600), (150, 2, 1)] {
            check(&bench, Case { sizes, ..CASE });
            check(&bench, Case { sizes, bias: true, algorithm: 1, transposed: [true, false], ..CASE });
        }
    }

    #[test]
    fn operands_are_read_when_the_product_runs() {
        let bench = Bench::new();
        let case = Case { sizes: (1, 1, 1), algorithm: 1, ..CASE };
        let objects = objects(&case, 0);
        let [a, b, d] = [alloc(4), alloc(4), alloc(4)];
        let factor = bench.pinned(4);
        factor.copy_from_slice(&1f32.to_ne_bytes());
        bench.to_device(a, factor);
        bench.to_device(b, &[5f32]);
        assert_eq!(queue(&bench, &case, &objects, [a, b, d, d], (0, 0)), Status::Success);
        let out = bench.pinned(4);
        bench.to_host(out, d);
        bench.to_device(a, factor);
        assert_eq!(queue(&bench, &case, &objects, [a, b, d, d], (0, 0)), Status::Success);
        factor.copy_from_slice(&3f32.to_ne_bytes());
        bench.to_host(out, d);
        bench.sync();
        assert_eq!(out, 15f32.to_ne_bytes());
    }

    #[test]
    fn products_during_a_capture_become_nodes() {
        use crate::driver::{capture as graphs, stream};
        let bench = Bench::new();
        let case = Case { sizes: (1, 1, 1), algorithm: 1, ..CASE };
        let objects = objects(&case, 0);
        let [a, b, d] = [alloc(4), alloc(4), alloc(4)];
        bench.to_device(b, &[5f32]);
        let (mut graph, mut exec, mut count) = (0, 0, 0);
        // SAFETY: all places are valid.
        unsafe {
            assert_eq!(stream::cuStreamBeginCapture_v2(bench.stream, 1), Driver::Success);
            assert_eq!(queue(&bench, &case, &objects, [a, b, d, d], (0, 0)), Status::Success);
            assert_eq!(stream::cuStreamEndCapture(bench.stream, &mut graph), Driver::Success);
            assert_eq!(graphs::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count), Driver::Success);
            assert_eq!(count, 1);
            assert_eq!(graphs::cuGraphInstantiateWithFlags(&mut exec, graph, 0), Driver::Success);
            for factor in [2f32, 7.0] {
                bench.to_device(a, &[factor]);
                assert_eq!(graphs::cuGraphLaunch(exec, bench.stream), Driver::Success);
                let mut out = [0f32];
                bench.to_host(&mut out, d);
                assert_eq!(out, [5.0 * factor]);
            }
        }
    }

    #[test]
    fn what_a_product_touches_is_checked_exactly() {
        let bench = Bench::new();
        let case = Case { sizes: (4, 3, 2), algorithm: 0, ..CASE };
        let objects = objects(&case, 0);
        let space = alloc(1 << 16);
        let (a, b, d) = (alloc(32), alloc(24), alloc(48));
        let run = |at: [u64; 4], space: (u64, usize)| {
            assert_eq!(queue(&bench, &case, &objects, at, space), Status::Success);
            sync(bench.stream)
        };
        assert_eq!(run([a, b, d, d], (space, 1 << 16)), Driver::Unknown, "A was never written");
        bench.fill(a, 0, 32);
        bench.fill(b, 0, 24);
        assert_eq!(run([a, b, d, d], (space, 1 << 16)), Driver::Success);
        let short = alloc(44);
        assert_eq!(run([a, b, short, short], (space, 1 << 16)), Driver::Unknown, "D is too short");
        assert_eq!(run([a, b, a, a], (space, 1 << 16)), Driver::Unknown, "D lies over A");
        let large = alloc(1 << 17);
        bench.fill(large, 0, 1 << 17);
        assert_eq!(
            run([large + 1024, b, d, d], (large, 1 << 16)),
            Driver::Unknown,
            "A lies in the workspace"
        );
        assert_eq!(run([large + (1 << 16), b, d, d], (large, 1 << 16)), Driver::Success);
        let mut garbage = [0u8; 8];
        bench.to_host(&mut garbage, large);
        assert_eq!(garbage, [0xa5; 8]);
    }

    #[test]
    fn what_the_library_does_not_support_is_refused() {
        let bench = Bench::new();
        let status = |case: Case| objects(&case, 256).status;
        assert_eq!(status(CASE), Status::Success);
        for (input, output, compute) in
            [(Kind::F64, Kind::F64, 68), (Kind::F16, Kind::BF16, 68), (Kind::F16, Kind::F16, 77)]
        {
            assert_eq!(status(Case { input, output, compute, ..CASE }), Status::NotSupported);
        }
        assert_eq!(
            status(Case { input: Kind::F16, output: Kind::F16, compute: 64, ..CASE }),
            Status::NotSupported
        );
        assert_eq!(status(Case { sizes: (0, 1, 1), ..CASE }), Status::InvalidValue);
        let objects = objects(&CASE, 0);
        let [a, d] = [alloc(4096), alloc(4096)];
        let misaligned = queue(&bench, &CASE, &objects, [a + 4, a, d, d], (0, 0));
        assert_eq!(misaligned, Status::InvalidValue, "the algorithm was asked for with aligned operands");
        assert_eq!(
            queue(&bench, &CASE, &objects, [a, a, d, d], (0, 0)),
            Status::InvalidValue,
            "no workspace"
        );
        // SAFETY: the value has more bytes than are read.
        unsafe {
            let value = 1u64;
            let from = (&raw const value).cast();
            assert_eq!(cublasLtMatmulDescSetAttribute(objects.desc, 3, from, 8), Status::InvalidValue);
            assert_eq!(
                cublasLtMatrixLayoutSetAttribute(objects.layouts[0], 6, from, 4),
                Status::InvalidValue
            );
            assert_eq!(
                cublasLtMatmulPreferenceSetAttribute(objects.preference, 1, from, 4),
                Status::InvalidValue
            );
            let wrong = cublasLtMatmulDescSetAttribute(objects.layouts[0], 3, from, 4);
            assert_eq!(wrong, Status::InvalidValue, "a layout is no description");
        }
    }
}
