//! Launcher of the reductions (`reduce.cu`): turns a layout into kept loops around the reduced one, and chooses the
//! case, the pack width and the number of chunks.

use burn_std::DType;
use smallvec::SmallVec;

#[cfg(test)]
use super::gate::Instance;
use super::{COMMON_REDUCE, Def, KernelSpec, WRAPPING, kernel_file};
use crate::driver::launch::{Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::layout::{Layout, Nest, row_major};
use crate::tensor::CudaTensor;

kernel_file!(REDUCE, "reduce.cu", [&COMMON_REDUCE, &WRAPPING]);

const THREADS: u64 = 256;
/// Blocks per multiprocessor to aim at when one row or column block is cut into chunks: two to three waves, so that
/// blocks which finish early leave no multiprocessor idle for long, while the partial results stay few.
const BLOCKS_PER_SM: u64 = 16;
/// Up to this many bytes a row is left to one warp: 32 lanes x 16 bytes x 8 loads. Beyond it a block has enough for
/// all its threads.
const WARP_ROW_BYTES: u64 = 4096;
/// A chunk of a row has at least this many bytes: one batch of four 16-byte loads for each of the 256 threads.
const ROW_CHUNK_BYTES: u64 = 16 << 10;
/// A chunk of columns has at least this many elements for each thread: two batches of loads.
const COLUMN_CHUNK_LOADS: u64 = 16;

/// A reduction, by the name of its struct in `reduce.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReduceOp {
    Sum,
    Mean,
    Prod,
    Max,
    Min,
    MaxAbs,
    Any,
    All,
    /// Maximum and the lowest index where it stands.
    MaxAt,
    /// Minimum and the lowest index where it stands.
    MinAt,
}

impl ReduceOp {
    fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "Sum",
            ReduceOp::Mean => "Mean",
            ReduceOp::Prod => "Prod",
            ReduceOp::Max => "Max",
            ReduceOp::Min => "Min",
            ReduceOp::MaxAbs => "MaxAbs",
            ReduceOp::Any => "Any",
            ReduceOp::All => "All",
            ReduceOp::MaxAt => "MaxAt",
            ReduceOp::MinAt => "MinAt",
        }
    }

    /// Bytes of what is accumulated (`A` in `reduce.cu`).
    fn partial_bytes(self, elem: Elem, wide_index: bool) -> usize {
        let compute = match elem {
            Elem::F16 | Elem::BF16 => 4,
            other => other.size_bytes(),
        };
        match self {
            ReduceOp::Sum | ReduceOp::Mean if elem.is_float() => compute,
            ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Prod => 8,
            ReduceOp::Max | ReduceOp::Min | ReduceOp::MaxAbs => compute,
            ReduceOp::Any | ReduceOp::All => 4,
            ReduceOp::MaxAt | ReduceOp::MinAt if wide_index || compute == 8 => 16,
            ReduceOp::MaxAt | ReduceOp::MinAt => 8,
        }
    }
}

/// A kept loop: size, stride in the input and in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Loop {
    size: u64,
    stride: i64,
    out_stride: i64,
}

const ONCE: Loop = Loop { size: 1, stride: 0, out_stride: 0 };

/// The input as two kept loops around (or inside) the reduced one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Geometry {
    /// Elements to reduce, and their stride.
    size: u64,
    stride: i64,
    outer: Loop,
    inner: Loop,
    /// The inner kept loop has stride 1 and threads run along it; otherwise the reduced elements have stride 1.
    columns: bool,
}

impl Geometry {
    /// `None` when the kernels would need a copy: more than two kept loops, or nothing of stride 1.
    fn new(layout: &Layout, dim: usize) -> Option<Geometry> {
        let kept = |s: &[i64]| -> SmallVec<[i64; 6]> {
            s.iter().enumerate().filter(|&(d, _)| d != dim).map(|(_, &s)| s).collect()
        };
        let mut out_dims: SmallVec<[usize; 6]> = layout.dims().into();
        let size = std::mem::replace(&mut out_dims[dim], 1) as u64;
        let out_strides = kept(&row_major(&out_dims));
        out_dims.remove(dim);
        let nest = Nest::new(&out_dims, [&kept(layout.strides()), &out_strides]);
        let at = |k: usize| Loop {
            size: nest.sizes[k] as u64,
            stride: nest.strides[k][0],
            out_stride: nest.strides[k][1],
        };
        let (outer, inner) = match nest.sizes.len() {
            1 => (ONCE, at(0)),
            2 => (at(0), at(1)),
            _ => return None,
        };
        let stride = layout.strides()[dim];
        let rows = Geometry { size, stride: 1, outer, inner, columns: false };
        // With at most one element the stride does not matter, but threads along a kept loop read better.
        match () {
            () if stride == 1 && size > 1 => Some(rows),
            () if inner.stride == 1 => Some(Geometry { stride, columns: true, ..rows }),
            () if outer.stride == 1 => {
                Some(Geometry { stride, outer: inner, inner: outer, columns: true, ..rows })
            }
            () if size <= 1 => Some(rows),
            () => None,
        }
    }

    fn kept(&self) -> u64 {
        self.outer.size * self.inner.size
    }
}

/// What to launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// `lanes` lanes of a warp a row.
    Rows { lanes: u64 },
    /// A block a chunk of a row.
    Row,
    /// `x` threads along packs of `v` columns, `256 / x` along the reduced elements.
    Columns { v: u64, x: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    case: Case,
    /// Blocks along the kept elements, for each chunk.
    blocks: u64,
    /// Reduced elements in a chunk, and the number of chunks.
    chunk: u64,
    chunks: u64,
}

type Defs = SmallVec<[(&'static str, Def); 12]>;

/// The macros that all instances of one reduction share. `wide`: positions along the dimension need 64 bits.
fn shared_defs(op: ReduceOp, elem: Elem, out: Elem, idx: Elem, wide: bool) -> [(&'static str, Def); 5] {
    [
        ("T", Def::Type(elem)),
        ("OUT_T", Def::Type(out)),
        ("IDX_T", Def::Type(idx)),
        ("OP", Def::Text(op.name())),
        ("INDEX", Def::Text(if wide { "u64" } else { "u32" })),
    ]
}

/// Entry point and further macros of `case`. `split`: into chunks.
fn case_defs(case: Case, split: bool) -> (&'static str, Defs) {
    let partial = ("PARTIAL", Def::Int(split as i64));
    match case {
        Case::Rows { lanes } => (
            "reduce_rows",
            Defs::from_slice(&[("CASE_ROWS", Def::Int(1)), ("LANES", Def::Int(lanes as i64))]),
        ),
        Case::Row => ("reduce_row", Defs::from_slice(&[("CASE_ROW", Def::Int(1)), partial])),
        Case::Columns { v, x } => {
            let defs = [
                ("CASE_COLUMNS", Def::Int(1)),
                partial,
                ("V", Def::Int(v as i64)),
                ("X", Def::Int(x as i64)),
            ];
            ("reduce_columns", Defs::from_slice(&defs))
        }
    }
}

/// Entry point and further macros of the kernel that joins chunks, with `threads` threads along the kept elements.
fn partials_defs(threads: u64) -> (&'static str, Defs) {
    ("reduce_partials", Defs::from_slice(&[("CASE_PARTIALS", Def::Int(1)), ("X", Def::Int(threads as i64))]))
}

/// `aligned(bytes)` tells whether the input's address is a multiple of `bytes`.
fn plan(g: &Geometry, elem_bytes: u64, sm_count: u64, aligned: impl Fn(u64) -> bool) -> Plan {
    // Cuts `size` into at most `wanted` chunks whose lengths are multiples of `step`.
    let cut = |wanted: u64, step: u64| {
        let chunk = g.size.div_ceil(wanted.max(1)).next_multiple_of(step).max(1);
        (chunk, g.size.div_ceil(chunk).max(1))
    };
    let target = BLOCKS_PER_SM * sm_count;
    if !g.columns {
        let (rows, row_bytes) = (g.kept(), g.size * elem_bytes);
        if row_bytes <= WARP_ROW_BYTES {
            let lanes = row_bytes.div_ceil(16).next_power_of_two().clamp(1, 32);
            let blocks = rows.div_ceil(THREADS / lanes);
            return Plan { case: Case::Rows { lanes }, blocks, chunk: g.size, chunks: 1 };
        }
        let (chunk, chunks) = cut((target / rows).min(row_bytes / ROW_CHUNK_BYTES), 16 / elem_bytes);
        return Plan { case: Case::Row, blocks: rows, chunk, chunks };
    }
    let steps = [
        g.inner.size,
        if g.size > 1 { g.stride.unsigned_abs() } else { 0 },
        if g.outer.size > 1 { g.outer.stride.unsigned_abs() } else { 0 },
    ];
    // Eight columns a thread at most: more would hold too many accumulators.
    let mut v = (16 / elem_bytes).min(8);
    while v > 1 && !(steps.iter().all(|s| s.is_multiple_of(v)) && aligned(v * elem_bytes)) {
        v /= 2;
    }
    let columns = g.kept() / v;
    // Rows of threads: each should have at least eight elements to reduce; 32 threads (a warp) along the columns read
    // 512 contiguous bytes, which is as good as more.
    let y = (g.size / 8).clamp(1, 8).next_power_of_two();
    let x = (THREADS / y).min(columns.next_power_of_two());
    let y = THREADS / x;
    let blocks = columns.div_ceil(x);
    let (chunk, chunks) = cut((target / blocks).min(g.size / (y * COLUMN_CHUNK_LOADS)), y);
    Plan { case: Case::Columns { v, x }, blocks, chunk, chunks }
}

/// Mirrors `Target` in reduce.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Target {
    out: u64,
    idx: u64,
    partials: u64,
}

/// Mirrors `Rows` in reduce.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Rows {
    rows: u64,
    inner: u64,
    outer_stride: i64,
    inner_stride: i64,
}

/// Mirrors `Columns` in reduce.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Columns {
    outer: u64,
    inner: u64,
    outer_stride: i64,
    reduce_stride: i64,
    out_outer: u64,
    out_inner: u64,
}

kernel_arg!(Target, Rows, Columns);

/// Reduces `dim` of `x` into `out` (values) and `idx` (indices, with `MaxAt` and `MinAt`), at least one of them: fresh
/// row-major tensors of `x`'s shape with `dim` of size 1. `name` is the operation's in errors.
///
/// An empty `dim` gives the neutral value; the caller refuses operations that have none.
pub(crate) fn reduce(
    name: &'static str,
    op: ReduceOp,
    x: &CudaTensor,
    dim: usize,
    out: Option<&CudaTensor>,
    idx: Option<&CudaTensor>,
) -> Result<()> {
    if out.into_iter().chain(idx).any(|t| t.is_empty()) {
        return Ok(());
    }
    let copy;
    let (x, g) = match Geometry::new(x.layout(), dim) {
        Some(g) => (x, g),
        None => {
            copy = x.contiguous()?;
            let g = Geometry::new(copy.layout(), dim).expect("row-major tensors need no copy");
            (&copy, g)
        }
    };
    let device = x.device();
    let elem = x.elem();
    let plan = plan(&g, elem.size_bytes() as u64, device.props.sm_count as u64, |bytes| {
        x.aligned_to(bytes as usize)
    });

    let wide = g.size >= 1 << 31;
    let split = plan.chunks > 1;
    let partials = if split {
        let bytes = plan.chunks as usize * g.kept() as usize * op.partial_bytes(elem, wide);
        Some(CudaTensor::empty(device, [bytes], DType::U8, name)?)
    } else {
        None
    };
    let target = Target {
        out: out.map_or(0, CudaTensor::ptr),
        idx: idx.map_or(0, CudaTensor::ptr),
        partials: partials.as_ref().map_or(0, CudaTensor::ptr),
    };
    let out_elem = out.or(idx).map_or(elem, CudaTensor::elem);
    let shared = shared_defs(op, elem, out_elem, idx.map_or(out_elem, CudaTensor::elem), wide);
    let launch = |(entry, defs): (&'static str, Defs)| -> Result<Launch<'_>> {
        let defs: Defs = shared.into_iter().chain(defs).collect();
        let kernel = device.kernel(&KernelSpec { file: &REDUCE, entry, defs: &defs })?;
        Ok(Launch::new(device, kernel).op(name).arg(target))
    };
    let written: SmallVec<[&CudaTensor; 2]> = out.into_iter().chain(idx).collect();
    let first_written: SmallVec<[&CudaTensor; 2]> = match &partials {
        Some(partials) => SmallVec::from_slice(&[partials]),
        None => written.clone(),
    };
    // Beyond u32 (no memory holds that) the driver refuses the launch.
    let grid = [u32::try_from(plan.blocks * plan.chunks).unwrap_or(u32::MAX), 1, 1];
    let columns = Columns {
        outer: g.outer.size,
        inner: g.inner.size,
        outer_stride: g.outer.stride,
        reduce_stride: g.stride,
        out_outer: g.outer.out_stride as u64,
        out_inner: g.inner.out_stride as u64,
    };
    let rows = Rows {
        rows: g.kept(),
        inner: g.inner.size,
        outer_stride: g.outer.stride,
        inner_stride: g.inner.stride,
    };
    let first = launch(case_defs(plan.case, split))?.read(x);
    match plan.case {
        Case::Rows { .. } => first.arg(rows).arg(g.size).arg(g.size),
        Case::Row => first.arg(rows).arg(g.size).arg(plan.chunk).arg(g.size),
        Case::Columns { .. } => {
            first.arg(columns).arg(g.size).arg(plan.chunk).arg(plan.blocks as u32).arg(g.size)
        }
    }
    .uses(&first_written, &[])
    .run(grid, THREADS as u32, 0)?;

    let Some(partials) = &partials else { return Ok(()) };
    // Few kept elements leave more threads for the chunks of each.
    let threads = g.kept().next_power_of_two().min(32);
    launch(partials_defs(threads))?
        .arg(if g.columns { columns } else { Columns { out_outer: g.inner.size, out_inner: 1, ..columns } })
        .arg(plan.chunks)
        .arg(g.size)
        .uses(&written, &[partials])
        .run([g.kept().div_ceil(threads) as u32, 1, 1], THREADS as u32, 0)
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    use Elem::{B8, BF16, F16, F32, F64, I32, I64, U8};
    let mut all = Vec::new();
    let mut add = |op: ReduceOp, elem: Elem, out: Elem, idx: Elem, wide: bool| {
        let v = (16 / elem.size_bytes() as u64).min(8);
        let cases = [Case::Rows { lanes: 32 }, Case::Row, Case::Columns { v, x: 32 }];
        // Chunks end with a plain store instead of the result's conversion.
        let split = cases[1..].iter().filter(|_| elem == F32).map(|&case| case_defs(case, true));
        let cases = cases.into_iter().map(|case| case_defs(case, false)).chain(split);
        for (entry, defs) in cases.chain([partials_defs(32)]) {
            let defs: Defs = shared_defs(op, elem, out, idx, wide).into_iter().chain(defs).collect();
            all.push(Instance::new(&REDUCE, entry, &defs));
        }
    };
    for (op, elems) in [
        (ReduceOp::Sum, &[F32, F64, F16, BF16, I64, U8][..]),
        (ReduceOp::Mean, &[F32, F64, I64]),
        (ReduceOp::Prod, &[F32, BF16, I64]),
        (ReduceOp::Max, &[F32, F64, BF16, I64, U8]),
        (ReduceOp::Min, &[F32]),
        (ReduceOp::MaxAbs, &[F32, I64]),
    ] {
        elems.iter().for_each(|&elem| add(op, elem, elem, elem, false));
    }
    // What a sum over several dimensions keeps in between.
    add(ReduceOp::Sum, BF16, F32, F32, false);
    for elem in [B8, F32] {
        add(ReduceOp::Any, elem, B8, B8, false);
    }
    add(ReduceOp::All, B8, B8, B8, false);
    for (wide, elems) in [(false, &[F32, F64, BF16, I64, U8][..]), (true, &[F32, F64])] {
        elems.iter().for_each(|&elem| add(ReduceOp::MaxAt, elem, elem, I64, wide));
    }
    add(ReduceOp::MinAt, F32, F32, I32, false);
    let defs = |case| {
        let (entry, defs) = case_defs(case, false);
        let shared = shared_defs(ReduceOp::Sum, F32, F32, F32, false);
        Instance::new(&REDUCE, entry, &shared.into_iter().chain(defs).collect::<Defs>())
    };
    let narrow = [Case::Rows { lanes: 1 }, Case::Columns { v: 1, x: 1 }, Case::Columns { v: 4, x: THREADS }];
    all.extend(narrow.map(defs));
    all
}

#[cfg(test)]
mod tests {
    use burn_backend::Shape;

    use super::*;

    fn layout(dims: &[usize]) -> Layout {
        Layout::contiguous(Shape::from(dims.to_vec()))
    }

    fn plan_of(layout: &Layout, dim: usize, elem_bytes: u64) -> (Geometry, Plan) {
        let g = Geometry::new(layout, dim).unwrap();
        (g, plan(&g, elem_bytes, 132, |_| true))
    }

    /// Every input element is reached once, from the right output, by the loops of the geometry.
    fn check_geometry(l: &Layout, dim: usize) -> bool {
        let Some(g) = Geometry::new(l, dim) else { return false };
        let stride = if g.columns { g.stride } else { 1 };
        let mut got: Vec<(i64, i64)> = vec![];
        for o in 0..g.outer.size as i64 {
            for i in 0..g.inner.size as i64 {
                // The row kernels take the kept loops to be the output in order.
                let at = match g.columns {
                    true => o * g.outer.out_stride + i * g.inner.out_stride,
                    false => o * g.inner.size as i64 + i,
                };
                for r in 0..g.size as i64 {
                    got.push((at, l.offset() + o * g.outer.stride + i * g.inner.stride + r * stride));
                }
            }
        }
        let mut want: Vec<(i64, i64)> = vec![(0, l.offset())];
        let mut out_dims = l.dims().to_vec();
        out_dims[dim] = 1;
        let out_strides = row_major(&out_dims);
        for d in 0..l.rank() {
            let out_stride = if d == dim { 0 } else { out_strides[d] };
            want = want
                .iter()
                .flat_map(|&(a, x)| {
                    (0..l.dims()[d] as i64).map(move |k| (a + k * out_stride, x + k * l.strides()[d]))
                })
                .collect();
        }
        got.sort_unstable();
        want.sort_unstable();
        assert_eq!(got, want, "{l:?} over {dim}: {g:?}");
        true
    }

    #[test]
    fn geometries_name_every_element_once() {
        let views = [
            layout(&[5]),
            layout(&[4, 6]),
            layout(&[2, 3, 4]),
            layout(&[1, 3, 1]),
            layout(&[2, 1, 4]),
            layout(&[4, 6]).permute(&[1, 0]).unwrap(),
            layout(&[2, 3, 4]).permute(&[1, 0, 2]).unwrap(),
            layout(&[2, 3, 4]).permute(&[2, 0, 1]).unwrap(),
            layout(&[2, 3, 4]).permute(&[2, 1, 0]).unwrap(),
            layout(&[4, 6]).narrow(1, 1, 3),
            layout(&[4, 6]).narrow(1, 2, 1),
            layout(&[4, 6]).flip(&[0]).unwrap(),
            layout(&[4, 6]).flip(&[1]).unwrap(),
            layout(&[4, 1]).expand(&[4, 3]).unwrap(),
            layout(&[2, 3, 4, 5]).permute(&[3, 1, 2, 0]).unwrap(),
        ];
        let mut copies = 0;
        for l in &views {
            for dim in 0..l.rank() {
                copies += !check_geometry(l, dim) as usize;
            }
        }
        assert!(copies > 0, "some need a copy");
        for l in &views {
            for dim in 0..l.rank() {
                assert!(
                    check_geometry(&Layout::contiguous(l.shape().clone()), dim),
                    "row-major {:?}",
                    l.dims()
                );
            }
        }
    }

    #[test]
    fn a_transposed_matrix_needs_no_copy() {
        let t = layout(&[64, 128]).permute(&[1, 0]).unwrap();
        assert!(!Geometry::new(&t, 0).unwrap().columns);
        assert!(Geometry::new(&t, 1).unwrap().columns);
    }

    #[test]
    fn large_reductions_fill_the_device() {
        let x = layout(&[16384, 8192]);
        let (_, rows) = plan_of(&x, 1, 2);
        assert_eq!((rows.case, rows.blocks, rows.chunks), (Case::Row, 16384, 1));
        let (_, columns) = plan_of(&x, 0, 2);
        assert_eq!((columns.case, columns.blocks), (Case::Columns { v: 8, x: 32 }, 32));
        assert!(columns.chunks * columns.blocks >= 12 * 132, "{columns:?}");
        let (_, all) = plan_of(&layout(&[1 << 27]), 0, 2);
        assert!(all.case == Case::Row && all.chunks >= 12 * 132, "{all:?}");
    }

    #[test]
    fn chunks_cover_the_dimension_once() {
        for dims in [[1, 1 << 20], [3, 100_003], [100_003, 3], [70_001, 64], [5000, 33], [2, 4097], [2, 2049]]
        {
            for dim in 0..2 {
                for bytes in [1, 2, 4, 8] {
                    let (g, p) = plan_of(&layout(&dims), dim, bytes);
                    assert!((p.chunks - 1) * p.chunk < g.size && g.size <= p.chunks * p.chunk, "{g:?} {p:?}");
                }
            }
        }
    }

    #[test]
    fn packs_respect_sizes_strides_and_addresses() {
        let v = |l: &Layout, align: u64| {
            let g = Geometry::new(l, 0).unwrap();
            match plan(&g, 2, 132, |bytes| align.is_multiple_of(bytes)).case {
                Case::Columns { v, .. } => v,
                case => panic!("{case:?}"),
            }
        };
        assert_eq!(v(&layout(&[10, 64]), 16), 8);
        assert_eq!(v(&layout(&[10, 60]), 16), 4);
        assert_eq!(v(&layout(&[10, 63]), 16), 1);
        assert_eq!(v(&layout(&[10, 64]), 4), 2);
        assert_eq!(v(&layout(&[10, 66]).narrow(1, 0, 64), 16), 2);
        assert_eq!(v(&layout(&[1, 66]).narrow(1, 0, 64), 16), 8);
    }

    #[test]
    fn empty_dimensions_have_one_empty_chunk() {
        let (g, p) = plan_of(&layout(&[0, 4]), 0, 4);
        assert_eq!((g.size, g.kept(), p.chunks), (0, 4, 1));
        let (g, p) = plan_of(&layout(&[4, 0]), 1, 4);
        assert_eq!((g.size, g.kept(), p.chunks), (0, 4, 1));
    }
}
