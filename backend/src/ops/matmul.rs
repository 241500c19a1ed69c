//! Matrix products through cuBLASLt: any strided view, batched with broadcast, exact f32 unless TF32 is allowed.
//!
//! cuBLASLt is column-major, tensors are row-major: `C = A B` is asked for as `C^T = B^T A^T`, where a row-major matrix
//! read as column-major is its own transpose. A matrix whose rows or whose columns are dense is passed as it lies;
//! any other is copied first.
//!
//! The library's heuristic ranks algorithms for a problem (shapes, leading dimensions, batch strides, dtypes, alignment
//! of each address, epilogue). For large problems the first few are timed once on the real operands, in the library's
//! own output buffer; the choice is kept per problem. Nothing is timed while a graph is captured.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use burn_backend::{Scalar, Shape, TensorMetadata};
use burn_std::DType;
use cudarc::cublaslt::sys as lt;

use crate::device::Device;
use crate::driver::context::RelaxedCapture;
use crate::driver::event::Event;
use crate::driver::graph::current_pool;
use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::layout::{Layout, broadcast};
use crate::memory::Block;
use crate::ops::elementwise;
use crate::tensor::{CudaTensor, check};

static TF32: AtomicBool = AtomicBool::new(false);

pub(crate) fn allow_tf32(allow: bool) {
    TF32.store(allow, Ordering::Relaxed);
}

pub(crate) fn tf32_allowed() -> bool {
    TF32.load(Ordering::Relaxed)
}

/// Bytes of scratch memory that an algorithm may use; NVIDIA recommends 32 MiB for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;
/// Multiply-adds from which an algorithm's choice is measured: below, the host's share of a call dominates.
const TUNE_FROM: u128 = 1 << 28;
/// Algorithms that are measured once, and how many of them again for a steady figure.
const CANDIDATES: usize = 24;
const FINALISTS: usize = 4;
/// Fills of the workspace queued before a measurement: about 10 us each on an H200.
const LEAD_CLEARS: usize = 40;

fn status(call: &'static str, status: lt::cublasStatus_t) -> Result<()> {
    if status == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    let name = format!("{status:?}");
    Err(Error::Cuda { call, code: status as u32, message: "see the cuBLASLt documentation".into(), name })
}

/// cuBLASLt on one device.
#[derive(Debug, Default)]
pub(crate) struct Blas {
    handle: OnceLock<Handle>,
    opening: Mutex<()>,
    plans: Mutex<HashMap<Problem, Arc<Plan>>>,
}

#[derive(Debug)]
struct Handle(lt::cublasLtHandle_t);

// SAFETY: the library lets any thread use a handle; it is never destroyed.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Blas {
    fn handle(&self, device: &Device) -> Result<&Handle> {
        if let Some(handle) = self.handle.get() {
            return Ok(handle);
        }
        let _one = self.opening.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(handle) = self.handle.get() {
            return Ok(handle);
        }
        device.enter()?;
        let _relaxed = RelaxedCapture::enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a valid place and the device's context is current.
        status("cublasLtCreate", unsafe { lt::cublasLtCreate(&mut handle) })?;
        Ok(self.handle.get_or_init(|| Handle(handle)))
    }
}

/// One matrix operand as the library sees it: column-major, maybe to be transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Operand {
    transposed: bool,
    /// Elements from one column to the next.
    ld: i64,
    /// Elements from one matrix of the batch to the next.
    batch_stride: i64,
    /// The largest power of two up to 256 that divides the address.
    alignment: u32,
}

/// All that decides which algorithms are legal and which one is fastest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Problem {
    elem: Elem,
    out: Elem,
    tf32: bool,
    /// Row-major sizes: `out[m, n] = a[m, k] b[k, n]`.
    m: usize,
    n: usize,
    k: usize,
    batch: usize,
    a: Operand,
    b: Operand,
    out_ld: i64,
    out_batch_stride: i64,
    out_alignment: u32,
    /// Alignment of the bias, if there is one.
    bias: Option<u32>,
    /// Whether the product is added to what the output holds.
    adds: bool,
}

#[derive(Debug)]
struct Plan {
    desc: Desc,
    a: MatrixLayout,
    b: MatrixLayout,
    out: MatrixLayout,
    algo: lt::cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
    /// Held while the bias pointer inside `desc` is set and used.
    bias: Mutex<()>,
}

#[derive(Debug)]
struct Desc(lt::cublasLtMatmulDesc_t);
#[derive(Debug)]
struct MatrixLayout(lt::cublasLtMatrixLayout_t);
struct Preference(lt::cublasLtMatmulPreference_t);

// SAFETY: descriptors are plain data of the library; `Plan::bias` serialises the one change after creation.
unsafe impl Send for Desc {}
// SAFETY: as above.
unsafe impl Sync for Desc {}
// SAFETY: layouts do not change after creation.
unsafe impl Send for MatrixLayout {}
// SAFETY: as above.
unsafe impl Sync for MatrixLayout {}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: created by the library, dropped once.
        unsafe { lt::cublasLtMatmulDescDestroy(self.0) };
    }
}
impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: created by the library, dropped once.
        unsafe { lt::cublasLtMatrixLayoutDestroy(self.0) };
    }
}
impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created by the library, dropped once.
        unsafe { lt::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

fn data_type(elem: Elem) -> lt::cudaDataType {
    match elem {
        Elem::F64 => lt::cudaDataType::CUDA_R_64F,
        Elem::F16 => lt::cudaDataType::CUDA_R_16F,
        Elem::BF16 => lt::cudaDataType::CUDA_R_16BF,
        _ => lt::cudaDataType::CUDA_R_32F,
    }
}

impl Desc {
    fn set<T>(&self, attribute: lt::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        let at = std::ptr::from_ref(value).cast::<c_void>();
        // SAFETY: the library copies `size_of::<T>()` bytes from a valid reference.
        let code = unsafe { lt::cublasLtMatmulDescSetAttribute(self.0, attribute, at, size_of::<T>()) };
        status("cublasLtMatmulDescSetAttribute", code)
    }
}

impl MatrixLayout {
    fn new(elem: Elem, rows: u64, cols: u64, ld: i64, batch: usize, batch_stride: i64) -> Result<Self> {
        let mut layout = std::ptr::null_mut();
        // SAFETY: `layout` is a valid place.
        let code = unsafe { lt::cublasLtMatrixLayoutCreate(&mut layout, data_type(elem), rows, cols, ld) };
        status("cublasLtMatrixLayoutCreate", code)?;
        let this = MatrixLayout(layout);
        use lt::cublasLtMatrixLayoutAttribute_t::*;
        let batch = batch as i32;
        for (attribute, at, bytes) in [
            (CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::ptr::from_ref(&batch).cast::<c_void>(), 4),
            (CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, std::ptr::from_ref(&batch_stride).cast(), 8),
        ] {
            // SAFETY: the library copies that many bytes from a valid reference.
            let code = unsafe { lt::cublasLtMatrixLayoutSetAttribute(this.0, attribute, at, bytes) };
            status("cublasLtMatrixLayoutSetAttribute", code)?;
        }
        Ok(this)
    }
}

/// Addresses of one product.
#[derive(Debug, Clone, Copy)]
struct Addresses {
    a: u64,
    b: u64,
    out: u64,
    bias: u64,
}

impl Plan {
    /// Queues the product with an algorithm and scratch memory for it. The memory is this call's own: an algorithm may
    /// be several kernels, and another thread's product may come between them.
    fn run(
        &self,
        device: &Device,
        problem: &Problem,
        at: Addresses,
        algo: &lt::cublasLtMatmulAlgo_t,
        workspace: &Block,
    ) -> Result<()> {
        let handle = device.blas.handle(device)?;
        let factors = [1f64, if problem.adds { 1.0 } else { 0.0 }];
        let factors32 = factors.map(|x| x as f32);
        let (alpha, beta): (*const c_void, *const c_void) = if problem.elem == Elem::F64 {
            (std::ptr::from_ref(&factors[0]).cast(), std::ptr::from_ref(&factors[1]).cast())
        } else {
            (std::ptr::from_ref(&factors32[0]).cast(), std::ptr::from_ref(&factors32[1]).cast())
        };
        let _bias = if problem.bias.is_some() {
            let guard = self.bias.lock().unwrap_or_else(|e| e.into_inner());
            self.desc.set(lt::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at.bias)?;
            Some(guard)
        } else {
            None
        };
        // SAFETY: the plan describes these operands exactly (the problem is its key); they and the workspace are live
        // device memory until the stream has passed the product. Operands are swapped, see the module's docs.
        let code = unsafe {
            lt::cublasLtMatmul(
                handle.0,
                self.desc.0,
                alpha,
                at.b as *const c_void,
                self.b.0,
                at.a as *const c_void,
                self.a.0,
                beta,
                at.out as *const c_void,
                self.out.0,
                at.out as *mut c_void,
                self.out.0,
                algo,
                workspace.ptr() as *mut c_void,
                workspace.size_bytes(),
                device.context.stream().cast(),
            )
        };
        device.count_launch();
        status("cublasLtMatmul", code)
    }
}

/// Describes the problem to the library and picks an algorithm. `at` are operands to measure on; the flag tells whether
/// that was done, and the output overwritten.
fn plan(device: &'static Device, handle: &Handle, p: &Problem, at: Addresses) -> Result<(Plan, bool)> {
    use lt::cublasLtMatmulDescAttributes_t::*;
    let compute = match (p.elem, p.tf32) {
        (Elem::F64, _) => lt::cublasComputeType_t::CUBLAS_COMPUTE_64F,
        (Elem::F32, true) => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        _ => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F,
    };
    let scale = if p.elem == Elem::F64 { lt::cudaDataType::CUDA_R_64F } else { lt::cudaDataType::CUDA_R_32F };
    let mut desc = std::ptr::null_mut();
    // SAFETY: `desc` is a valid place.
    status("cublasLtMatmulDescCreate", unsafe { lt::cublasLtMatmulDescCreate(&mut desc, compute, scale) })?;
    let desc = Desc(desc);
    // The library's A is our b, its B our a.
    desc.set(CUBLASLT_MATMUL_DESC_TRANSA, &(p.b.transposed as i32))?;
    desc.set(CUBLASLT_MATMUL_DESC_TRANSB, &(p.a.transposed as i32))?;
    if p.bias.is_some() {
        desc.set(CUBLASLT_MATMUL_DESC_EPILOGUE, &lt::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
        desc.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at.bias)?;
    }
    let (m, n, k) = (p.m as u64, p.n as u64, p.k as u64);
    let sizes = |transposed: bool, rows: u64, cols: u64| if transposed { (cols, rows) } else { (rows, cols) };
    let (b_rows, b_cols) = sizes(p.b.transposed, n, k);
    let (a_rows, a_cols) = sizes(p.a.transposed, k, m);
    let a = MatrixLayout::new(p.elem, a_rows, a_cols, p.a.ld, p.batch, p.a.batch_stride)?;
    let b = MatrixLayout::new(p.elem, b_rows, b_cols, p.b.ld, p.batch, p.b.batch_stride)?;
    let out = MatrixLayout::new(p.out, n, m, p.out_ld, p.batch, p.out_batch_stride)?;

    let mut preference = std::ptr::null_mut();
    // SAFETY: `preference` is a valid place.
    let code = unsafe { lt::cublasLtMatmulPreferenceCreate(&mut preference) };
    status("cublasLtMatmulPreferenceCreate", code)?;
    let preference = Preference(preference);
    use lt::cublasLtMatmulPreferenceAttributes_t::*;
    let workspace = WORKSPACE_BYTES as u64;
    // Parts of a split inner dimension are added in f32: never in a 16-bit output.
    let reduction = lt::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    for (attribute, pointer, bytes) in [
        (CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::ptr::from_ref(&workspace).cast::<c_void>(), 8),
        (CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::ptr::from_ref(&reduction).cast(), 4),
        (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::ptr::from_ref(&p.b.alignment).cast(), 4),
        (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::ptr::from_ref(&p.a.alignment).cast(), 4),
        (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::ptr::from_ref(&p.out_alignment).cast(), 4),
        (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::ptr::from_ref(&p.out_alignment).cast(), 4),
    ] {
        // SAFETY: the library copies that many bytes from a valid reference.
        let code =
            unsafe { lt::cublasLtMatmulPreferenceSetAttribute(preference.0, attribute, pointer, bytes) };
        status("cublasLtMatmulPreferenceSetAttribute", code)?;
    }
    // SAFETY: an all-zero result is a valid place for the library to fill.
    let mut found: [lt::cublasLtMatmulHeuristicResult_t; CANDIDATES] = unsafe { std::mem::zeroed() };
    let mut count = 0;
    // SAFETY: all descriptors live, and `found` has the length that is passed.
    let code = unsafe {
        lt::cublasLtMatmulAlgoGetHeuristic(
            handle.0,
            desc.0,
            b.0,
            a.0,
            out.0,
            out.0,
            preference.0,
            CANDIDATES as i32,
            found.as_mut_ptr(),
            &mut count,
        )
    };
    status("cublasLtMatmulAlgoGetHeuristic", code)?;
    let usable: Vec<_> = found[..count.max(0) as usize]
        .iter()
        .filter(|r| {
            r.state == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS && r.workspaceSize <= WORKSPACE_BYTES
        })
        .collect();
    let Some(first) = usable.first() else {
        return status("cublasLtMatmulAlgoGetHeuristic", lt::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)
            .map(|()| unreachable!("the status is an error"));
    };
    let mut plan = Plan {
        desc,
        a,
        b,
        out,
        algo: first.algo,
        workspace_bytes: first.workspaceSize,
        bias: Mutex::new(()),
    };
    let work = p.m as u128 * p.n as u128 * p.k as u128 * p.batch as u128;
    let measured = work >= TUNE_FROM && usable.len() > 1 && current_pool().is_none();
    if measured {
        // Longer problems need fewer runs.
        let runs = ((1u128 << 36) / work).clamp(1, 20) as usize;
        let workspace = device.allocator.alloc(WORKSPACE_BYTES)?;
        let time = |algo: &lt::cublasLtMatmulAlgo_t, runs: usize| {
            measure(device, &workspace, runs, || plan.run(device, p, at, algo, &workspace))
                .map_err(|e| device.note(e))
        };
        let mut timed = Vec::with_capacity(usable.len());
        for candidate in &usable {
            match time(&candidate.algo, runs) {
                Ok(us) => timed.push((us, candidate)),
                Err(dead @ Error::ContextDead { .. }) => return Err(dead),
                // One that cannot run after all is no candidate.
                Err(error) => log::debug!("{p:?}: {error}"),
            }
        }
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        timed.truncate(FINALISTS);
        for (us, candidate) in &mut timed {
            *us = time(&candidate.algo, 4 * runs).unwrap_or(f64::INFINITY);
        }
        if let Some((us, best)) = timed.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)) {
            log::debug!("{p:?}: {us:.1} us, the best of {}", usable.len());
            (plan.algo, plan.workspace_bytes) = (best.algo, best.workspaceSize);
        }
    }
    Ok((plan, measured))
}

/// Device time of one run, in microseconds. `workspace` is overwritten.
pub(super) fn measure(
    device: &'static Device,
    workspace: &Block,
    runs: usize,
    run: impl Fn() -> Result<()>,
) -> Result<f64> {
    run()?;
    // Work in front, so that the host is ahead of the device: else short products would be timed by the host's pace.
    for _ in 0..LEAD_CLEARS {
        // SAFETY: the block is this caller's, and at least this large.
        unsafe { device.context.clear(workspace.ptr(), workspace.size_bytes()) }?;
    }
    let (start, end) = (Event::new(device.context, true)?, Event::new(device.context, true)?);
    start.record()?;
    for _ in 0..runs {
        run()?;
    }
    end.record()?;
    Ok(start.elapsed_us(&end)? / runs as f64)
}

/// The last two dimensions of a layout as the library can take them, or `None` when the matrix must be copied first.
/// Sizes of 1 leave the stride free, which then must still be legal: a leftover stride is replaced by the smallest one.
fn operand(layout: &Layout, address: u64) -> Option<Operand> {
    let rank = layout.rank();
    let (rows, cols) = (layout.dims()[rank - 2] as i64, layout.dims()[rank - 1] as i64);
    let (row, col) = (layout.strides()[rank - 2], layout.strides()[rank - 1]);
    let alignment = alignment(address);
    let dense = |inner_size: i64, inner: i64, outer_size: i64, outer: i64| {
        let inner_dense = inner_size == 1 || inner == 1;
        let ld = if outer_size == 1 { inner_size.max(1) } else { outer };
        (inner_dense && ld >= inner_size.max(1) && ld <= i32::MAX as i64).then_some(ld)
    };
    if let Some(ld) = dense(cols, col, rows, row) {
        return Some(Operand { transposed: false, ld, batch_stride: 0, alignment });
    }
    dense(rows, row, cols, col).map(|ld| Operand { transposed: true, ld, batch_stride: 0, alignment })
}

fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

/// The product of the last two dimensions; leading dimensions broadcast.
///
/// Shapes: `a [.., M, K]`, `b [.., K, N]` -> `[.., M, N]`.
///
/// # Errors
/// `Error::Shape`, `Error::DType` (also for integers), `Error::Device`.
pub(crate) fn matmul(a: &CudaTensor, b: &CudaTensor) -> Result<CudaTensor> {
    product("matmul", a, b, None)
}

/// [`matmul`] whose result is f32 where the operands are 16-bit floats: the sums as they are, not yet rounded.
///
/// # Errors
/// As [`matmul`].
pub(crate) fn matmul_wide(op: &'static str, a: &CudaTensor, b: &CudaTensor) -> Result<CudaTensor> {
    let (shape, _) = shape(op, a, b)?;
    let dtype = if a.elem().size_bytes() == 2 { DType::F32 } else { a.dtype() };
    let out = CudaTensor::empty(a.device(), shape, dtype, op)?;
    product_into(op, &out, a, b, Plus::Nothing)?;
    Ok(out)
}

/// Writes the product over `out [.., M, N]`, which is row-major in its last two dimensions. `init` broadcasts to `out`
/// and is added before the one rounding.
///
/// # Errors
/// As [`matmul`]; `Error::Shape` if `out` is not of the product's shape.
pub(crate) fn matmul_into(
    op: &'static str,
    out: &CudaTensor,
    a: &CudaTensor,
    b: &CudaTensor,
    init: Option<&CudaTensor>,
) -> Result<()> {
    let (shape, _) = shape(op, a, b)?;
    check::shape(op, out, shape.as_slice())?;
    check::same_dtype(op, &[out, a])?;
    product_into(op, out, a, b, init.map_or(Plus::Nothing, Plus::Init))
}

/// `x w + bias` with `x [.., K]`, `w [K, N]`, `bias [N]`.
pub(crate) fn linear(x: &CudaTensor, w: &CudaTensor, bias: Option<&CudaTensor>) -> Result<CudaTensor> {
    linear_as("linear", x, w, bias)
}

fn linear_as(
    op: &'static str,
    x: &CudaTensor,
    w: &CudaTensor,
    bias: Option<&CudaTensor>,
) -> Result<CudaTensor> {
    let shape_error = |detail: &str| Error::Shape {
        op,
        detail: detail.into(),
        shapes: [Some(x), Some(w), bias].iter().flatten().map(|t| t.dims().to_vec()).collect(),
    };
    let ([.., k], [rows, n]) = (x.dims(), w.dims()) else {
        return Err(shape_error("x must be [.., K] and the weight [K, N]"));
    };
    if k != rows {
        return Err(shape_error("x's last dimension must be the weight's first"));
    }
    if let Some(bias) = bias {
        if bias.dims() != [*n] {
            return Err(shape_error("the bias must be [N]"));
        }
        check::same_dtype(op, &[x, bias])?;
        check::same_device(op, &[x, bias])?;
    }
    let mut shape = x.dims().to_vec();
    let rank = shape.len();
    shape[rank - 1] = *n;
    let rows = shape[..rank - 1].iter().product();
    let flat = x.reshape(&[rows, *k])?;
    product(op, &flat, w, bias)?.reshape(&shape)
}

/// Gradient of `linear` with respect to `x`: `dy w^T`.
pub(crate) fn linear_x_backward(w: &CudaTensor, dy: &CudaTensor) -> Result<CudaTensor> {
    let transposed = w.layout().swap_dims(0, 1).ok_or_else(|| Error::Shape {
        op: "linear_x_backward",
        detail: "the weight must be [K, N]".into(),
        shapes: vec![w.dims().to_vec()],
    })?;
    linear_as("linear_x_backward", dy, &w.with_layout(transposed), None)
}

/// Gradient of `linear` with respect to the weight: `x^T dy` over all rows, one two-dimensional product.
pub(crate) fn linear_weight_backward(x: &CudaTensor, dy: &CudaTensor) -> Result<CudaTensor> {
    let ([lead_x @ .., k], [lead_y @ .., n]) = (x.dims(), dy.dims()) else {
        return Err(Error::Shape {
            op: "linear_weight_backward",
            detail: "x must be [.., K] and the gradient [.., N]".into(),
            shapes: vec![x.dims().to_vec(), dy.dims().to_vec()],
        });
    };
    if lead_x != lead_y {
        return Err(Error::Shape {
            op: "linear_weight_backward",
            detail: "leading dimensions differ".into(),
            shapes: vec![x.dims().to_vec(), dy.dims().to_vec()],
        });
    }
    let rows = lead_x.iter().product();
    let flat = x.reshape(&[rows, *k])?;
    let transposed = flat.layout().swap_dims(0, 1).expect("two dimensions");
    product("linear_weight_backward", &flat.with_layout(transposed), &dy.reshape(&[rows, *n])?, None)
}

/// What a product is added to before it is rounded.
#[derive(Debug, Clone, Copy)]
enum Plus<'a> {
    Nothing,
    /// `[N]`.
    Bias(&'a CudaTensor),
    /// Anything that broadcasts to the output: written to it first.
    Init(&'a CudaTensor),
}

/// The shape of a product, and its leading dimensions.
fn shape(op: &'static str, a: &CudaTensor, b: &CudaTensor) -> Result<(Shape, Shape)> {
    check::same_device(op, &[a, b])?;
    check::same_dtype(op, &[a, b])?;
    check::float(op, a)?;
    let shape_error = |detail: &str| Error::Shape {
        op,
        detail: detail.into(),
        shapes: vec![a.dims().to_vec(), b.dims().to_vec()],
    };
    let ([lead_a @ .., m, k], [lead_b @ .., rows, n]) = (a.dims(), b.dims()) else {
        return Err(shape_error("operands need two dimensions or more"));
    };
    if k != rows {
        return Err(shape_error("the inner dimensions differ"));
    }
    let lead =
        broadcast(lead_a, lead_b).ok_or_else(|| shape_error("the leading dimensions do not broadcast"))?;
    let mut shape = lead.to_vec();
    shape.extend([*m, *n]);
    Ok((Shape::from(shape), lead))
}

fn product(
    op: &'static str,
    a: &CudaTensor,
    b: &CudaTensor,
    bias: Option<&CudaTensor>,
) -> Result<CudaTensor> {
    let (shape, _) = shape(op, a, b)?;
    let out = CudaTensor::empty(a.device(), shape, a.dtype(), op)?;
    product_into(op, &out, a, b, bias.map_or(Plus::Nothing, Plus::Bias))?;
    Ok(out)
}

fn product_into(
    op: &'static str,
    out: &CudaTensor,
    a: &CudaTensor,
    b: &CudaTensor,
    plus: Plus,
) -> Result<()> {
    let (_, lead) = shape(op, a, b)?;
    if out.is_empty() {
        return Ok(());
    }
    let (k, n) = (b.dims()[b.dims().len() - 2], b.dims()[b.dims().len() - 1]);
    if k == 0 {
        return match plus {
            Plus::Bias(term) | Plus::Init(term) => elementwise::copy_into(out, term),
            Plus::Nothing => elementwise::fill(out, Scalar::Int(0)),
        };
    }
    let contiguous;
    let plus = match plus {
        Plus::Bias(bias) => {
            contiguous = bias.contiguous()?;
            Plus::Bias(&contiguous)
        }
        other => other,
    };
    let (a, b) = (dense(a)?, dense(b)?);
    // One matrix against a batch of row blocks is one tall product.
    let lead_b_len: usize = b.dims()[..b.layout().rank() - 2].iter().product();
    if lead_b_len == 1 && a.layout().rank() > 2 && out.layout().is_contiguous() {
        let rows: usize = a.dims()[..a.layout().rank() - 1].iter().product();
        if let (Some(flat), Some(b)) =
            (a.layout().reshape(&[rows, k]), b.layout().reshape(&[k, n]).map(|l| b.with_layout(l)))
        {
            let flat = a.with_layout(flat);
            let whole = !matches!(plus, Plus::Init(_));
            if whole && operand(flat.layout(), flat.ptr()).is_some() && operand(b.layout(), b.ptr()).is_some()
            {
                return batches(op, &flat, &b, &out.reshape(&[rows, n])?, plus);
            }
        }
    }
    let expand = |t: &CudaTensor| {
        let rank = t.layout().rank();
        let mut dims = lead.to_vec();
        dims.extend_from_slice(&t.dims()[rank - 2..]);
        t.with_layout(t.layout().expand(&dims).expect("the leading dimensions were broadcast"))
    };
    batches(op, &expand(&a), &expand(&b), out, plus)
}

/// The tensor, or a copy whose matrices the library can take.
fn dense(t: &CudaTensor) -> Result<CudaTensor> {
    match operand(t.layout(), t.ptr()) {
        Some(_) => Ok(t.clone()),
        None => {
            let copy = t.empty_like("matmul")?;
            elementwise::copy_into(&copy, t)?;
            match operand(copy.layout(), copy.ptr()) {
                Some(_) => Ok(copy),
                None => Err(Error::Shape {
                    op: "matmul",
                    detail: "a dimension of a matrix is beyond cuBLASLt's limit of 2^31 - 1".into(),
                    shapes: vec![t.dims().to_vec()],
                }),
            }
        }
    }
}

/// Runs products over equal leading dimensions: the longest loop over them as one strided batch, the others one by one.
fn batches(op: &'static str, a: &CudaTensor, b: &CudaTensor, out: &CudaTensor, plus: Plus) -> Result<()> {
    let lead = out.layout().rank() - 2;
    let mut nest = crate::layout::Nest::new(
        &out.dims()[..lead],
        [&a.layout().strides()[..lead], &b.layout().strides()[..lead], &out.layout().strides()[..lead]],
    );
    // The library's batch count and strides: negative ones and counts beyond i32 are walked here.
    let longest = (0..nest.sizes.len())
        .filter(|&d| nest.sizes[d] <= i32::MAX as usize && nest.strides[d].iter().all(|&s| s >= 0))
        .max_by_key(|&d| nest.sizes[d]);
    let (batch, strides) = match longest {
        Some(d) => (nest.sizes.remove(d), nest.strides.remove(d)),
        None => (1, [0; 3]),
    };
    let strides = if batch == 1 { [0; 3] } else { strides };
    let total: usize = nest.sizes.iter().product();
    let (size, out_size) = (a.elem().size_bytes() as i64, out.elem().size_bytes() as i64);
    let (bias, init) = match plus {
        Plus::Nothing => (None, None),
        Plus::Bias(bias) => (Some(bias), None),
        Plus::Init(init) => (None, Some(init)),
    };
    let addresses = |index: usize| {
        let mut offset = [0i64; 3];
        let mut rest = index;
        for d in (0..nest.sizes.len()).rev() {
            let i = (rest % nest.sizes[d]) as i64;
            rest /= nest.sizes[d];
            for (k, o) in offset.iter_mut().enumerate() {
                *o += i * nest.strides[d][k];
            }
        }
        Addresses {
            a: a.ptr().wrapping_add_signed(offset[0] * size),
            b: b.ptr().wrapping_add_signed(offset[1] * size),
            out: out.ptr().wrapping_add_signed(offset[2] * out_size),
            bias: bias.map_or(0, |t| t.ptr()),
        }
    };
    let within = |e: Error| e.within(op, &[a, b]);
    if let Some(init) = init {
        elementwise::copy_into(out, init)?;
        // Algorithms are measured on the output itself.
        let mut measured = false;
        for index in 0..if current_pool().is_none() { total } else { 0 } {
            measured |= planned(a, b, out, batch, strides, addresses(index), true).map_err(within)?.2;
        }
        if measured {
            elementwise::copy_into(out, init)?;
        }
    }
    let device = out.device();
    for index in 0..total {
        let at = addresses(index);
        let (problem, plan, _) = planned(a, b, out, batch, strides, at, init.is_some()).map_err(within)?;
        let workspace = device.allocator.alloc(plan.workspace_bytes).map_err(within)?;
        plan.run(device, &problem, at, &plan.algo, &workspace).map_err(|e| within(device.note(e)))?;
    }
    let read: smallvec::SmallVec<[&CudaTensor; 3]> = [Some(a), Some(b), bias].into_iter().flatten().collect();
    device.used(&[out], &read, None);
    Ok(())
}

/// One (batched) product and how to run it; the flag tells whether algorithms were measured for it just now.
fn planned(
    a: &CudaTensor,
    b: &CudaTensor,
    out: &CudaTensor,
    batch: usize,
    strides: [i64; 3],
    at: Addresses,
    adds: bool,
) -> Result<(Problem, Arc<Plan>, bool)> {
    let device = out.device();
    device.enter()?;
    let as_operand = |t: &CudaTensor, address: u64, batch_stride: i64| {
        let operand = operand(t.layout(), address).expect("dense() made it so");
        Operand { batch_stride, ..operand }
    };
    let rank = out.layout().rank();
    let (m, n) = (out.dims()[rank - 2], out.dims()[rank - 1]);
    let problem = Problem {
        elem: a.elem(),
        out: out.elem(),
        tf32: a.elem() == Elem::F32 && tf32_allowed(),
        m,
        n,
        k: a.dims()[rank - 1],
        batch,
        a: as_operand(a, at.a, strides[0]),
        b: as_operand(b, at.b, strides[1]),
        out_ld: n as i64,
        out_batch_stride: strides[2],
        out_alignment: alignment(at.out),
        bias: (at.bias != 0).then(|| alignment(at.bias)),
        adds,
    };
    let handle = device.blas.handle(device)?;
    let known = device.blas.plans.lock().unwrap_or_else(|e| e.into_inner()).get(&problem).cloned();
    if let Some(plan) = known {
        return Ok((problem, plan, false));
    }
    let (made, measured) = plan(device, handle, &problem, at)?;
    let made = Arc::new(made);
    // A choice made during a capture was not measured: it serves this capture only.
    if current_pool().is_none() {
        let mut plans = device.blas.plans.lock().unwrap_or_else(|e| e.into_inner());
        plans.entry(problem.clone()).or_insert_with(|| made.clone());
    }
    Ok((problem, made, measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dims: &[usize]) -> Layout {
        Layout::contiguous(Shape::from(dims.to_vec()))
    }

    #[test]
    fn matrices_are_taken_as_they_lie() {
        let a = layout(&[3, 5]);
        let op = operand(&a, 256).unwrap();
        assert_eq!((op.transposed, op.ld, op.alignment), (false, 5, 256));
        let op = operand(&a.swap_dims(0, 1).unwrap(), 4).unwrap();
        assert_eq!((op.transposed, op.ld, op.alignment), (true, 5, 4));
        let padded = layout(&[3, 8]).narrow(1, 2, 5);
        assert_eq!(operand(&padded, 0).map(|o| o.ld), Some(8));
    }

    #[test]
    fn a_single_row_with_a_leftover_stride_needs_no_copy() {
        // [1, 8, 2048] sliced at its second dimension and flattened: strides [16384, 1].
        let row = Layout::new(Shape::from(vec![1, 2048]), [16384, 1].into_iter().collect(), 0);
        assert_eq!(operand(&row, 0).map(|o| (o.transposed, o.ld)), Some((false, 2048)));
        let column = Layout::new(Shape::from(vec![4, 1]), [7, 9].into_iter().collect(), 0);
        assert_eq!(operand(&column, 0).map(|o| (o.transposed, o.ld)), Some((false, 7)));
    }

    #[test]
    fn matrices_without_a_dense_dimension_are_copied() {
        let strided = Layout::new(Shape::from(vec![3, 5]), [20, 2].into_iter().collect(), 0);
        assert_eq!(operand(&strided, 0), None);
        let expanded = layout(&[1, 5]).expand(&[3, 5]).unwrap();
        assert_eq!(
            operand(&expanded, 0),
            None,
            "rows on top of each other: the leading dimension would be 0"
        );
        let flipped = layout(&[3, 5]).flip(&[0]).unwrap();
        assert_eq!(operand(&flipped, 0), None);
    }
}
