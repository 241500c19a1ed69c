//! Launcher of the cumulative operations (`cumulative.cu`).

use burn_std::DType;

#[cfg(test)]
use super::gate::Instance;
use super::softmax::{Defs, all_aligned, around, pack_len};
use super::{COMMON_REDUCE, Def, KernelSpec, WRAPPING, kernel_file};
use crate::driver::launch::Launch;
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(CUMULATIVE, "cumulative.cu", [&COMMON_REDUCE, &WRAPPING]);

/// An operation, by the name of its struct in `cumulative.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CumulativeOp {
    Sum,
    Prod,
    Max,
    Min,
}

impl CumulativeOp {
    fn name(self) -> &'static str {
        match self {
            CumulativeOp::Sum => "Sum",
            CumulativeOp::Prod => "Prod",
            CumulativeOp::Max => "Max",
            CumulativeOp::Min => "Min",
        }
    }
}

/// Bytes of a chunk's total, at most (`A` in `cumulative.cu`).
const TOTAL_BYTES: u64 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    v: u64,
    block: u64,
    /// Threads a row and elements a thread and tile, when elements to scan are neighbours.
    row: Option<(u64, u64)>,
    /// Blocks for each chunk.
    blocks: u64,
    chunk: u64,
    chunks: u64,
}

fn plan(
    (outer, size, inner): (u64, u64, u64),
    elem: Elem,
    sm_count: u64,
    aligned: impl Fn(u64) -> bool,
) -> Plan {
    let cut = |wanted: u64, step: u64| {
        let chunk = size.div_ceil(wanted.max(1)).next_multiple_of(step);
        (chunk, size.div_ceil(chunk))
    };
    if inner == 1 {
        let v = pack_len(elem, 16, |v, bytes| size.is_multiple_of(v) && aligned(bytes));
        // Enough elements a thread to pay for the exchange between threads.
        let items = v.max(if elem.size_bytes() <= 2 { 8 } else { 4 });
        // A warp each for short rows: the exchange is then shuffles alone.
        if size <= 1024 {
            let (group, block) = (32, 128);
            let blocks = outer.div_ceil(block / group);
            return Plan { v, block, row: Some((group, items)), blocks, chunk: size, chunks: 1 };
        }
        let block = 256;
        let tile = block * items;
        // Eight blocks of 256 threads fill a multiprocessor; a chunk of four tiles pays for its start.
        let (chunk, chunks) = cut((8 * sm_count / outer).min(size / (4 * tile)), tile);
        return Plan { v, block, row: Some((block, items)), blocks: outer, chunk, chunks };
    }
    let kept = outer * inner;
    let mut v = pack_len(elem, 16, |v, bytes| inner.is_multiple_of(v) && aligned(bytes));
    // Threads that fill the device matter more than long packs, down to 4 bytes.
    while v > 1 && v * elem.size_bytes() as u64 > 4 && kept / v < 512 * sm_count {
        v /= 2;
    }
    let block = 128;
    // Each chunk reads the totals before it, so there are at most 64, and each has 64 elements or more.
    let (chunk, chunks) = cut((1024 * sm_count / (kept / v)).min(size / 64).min(64), 1);
    Plan { v, block, row: None, blocks: (kept / v).div_ceil(block), chunk, chunks }
}

/// Entry point and macros. `totals`: of the launch that writes the chunks' totals.
fn defs(op: CumulativeOp, elem: Elem, plan: &Plan, totals: bool) -> (&'static str, Defs) {
    let mut defs = Defs::from_slice(&[
        ("T", Def::Type(elem)),
        ("OP", Def::Text(op.name())),
        ("V", Def::Int(plan.v as i64)),
        ("BLOCK", Def::Int(plan.block as i64)),
        ("TOTALS", Def::Int(totals as i64)),
    ]);
    let entry = match plan.row {
        Some((group, items)) => {
            defs.extend([
                ("CASE_ROWS", Def::Int(1)),
                ("GROUP", Def::Int(group as i64)),
                ("ITEMS", Def::Int(items as i64)),
            ]);
            "cumulative_rows"
        }
        None => {
            defs.push(("CASE_COLUMNS", Def::Int(1)));
            "cumulative_columns"
        }
    };
    (entry, defs)
}

/// `y[r] = op(x[0], .., x[r])` along `dim`; both row-major and of the same shape, `y` may be `x`.
pub(crate) fn cumulative(
    name: &'static str,
    op: CumulativeOp,
    y: &CudaTensor,
    x: &CudaTensor,
    dim: usize,
) -> Result<()> {
    debug_assert!(x.layout().is_contiguous() && y.layout().is_contiguous() && x.dims() == y.dims());
    if y.is_empty() {
        return Ok(());
    }
    let sizes @ (outer, size, inner) = around(x.dims(), dim);
    let (device, elem) = (x.device(), x.elem());
    let plan = plan(sizes, elem, device.props.sm_count as u64, |bytes| all_aligned(&[x, y], bytes));
    let totals = if plan.chunks > 1 {
        let bytes = plan.chunks * outer * inner * TOTAL_BYTES;
        Some(CudaTensor::empty(device, [bytes as usize], DType::U8, name)?)
    } else {
        None
    };
    // First the chunks' totals, if there is more than one chunk, then the result.
    for with_totals in [true, false] {
        if with_totals && totals.is_none() {
            continue;
        }
        let (entry, defs) = defs(op, elem, &plan, with_totals);
        let kernel = device.kernel(&KernelSpec { file: &CUMULATIVE, entry, defs: &defs })?;
        let launch =
            Launch::new(device, kernel).arg(y.ptr()).arg(totals.as_ref().map_or(0, CudaTensor::ptr)).read(x);
        let launch = match (&totals, with_totals) {
            (Some(totals), true) => launch.uses(&[totals], &[]),
            (Some(totals), false) => launch.uses(&[y], &[totals]),
            (None, _) => launch.uses(&[y], &[]),
        };
        let launch = match plan.row {
            Some(_) => launch.arg(outer).arg(size).arg(plan.chunk).arg(plan.chunks as u32),
            None => launch.arg(outer).arg(size).arg(inner).arg(plan.chunk).arg(plan.blocks as u32),
        };
        launch.run([(plan.blocks * plan.chunks) as u32, 1, 1], plan.block as u32, 0)?;
    }
    Ok(())
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    use CumulativeOp::{Max, Min, Prod, Sum};
    use Elem::{BF16, F16, F32, F64, I64, U8};
    let mut all = Vec::new();
    // A long row, short rows, and columns enough for the longest packs.
    let sizes = [(1, 1 << 24, 1), (1 << 20, 1024, 1), (1, 1 << 20, 1 << 20)];
    for (op, elems, aligned) in [
        (Sum, &[F32, F64, F16, BF16, I64, U8][..], 16),
        (Prod, &[F32, I64], 16),
        (Max, &[F32, F64, BF16, U8], 16),
        (Min, &[F32], 16),
        (Sum, &[F32, BF16], 2),
    ] {
        for &elem in elems {
            for plan in sizes.map(|sizes| plan(sizes, elem, 132, |bytes| bytes <= aligned)) {
                for totals in [true, false] {
                    let (entry, defs) = defs(op, elem, &plan, totals);
                    // Short rows have one chunk, so no totals.
                    if !(totals && plan.row.is_some_and(|(group, _)| group == 32)) {
                        all.push(Instance::new(&CUMULATIVE, entry, &defs));
                    }
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_dimension_in_whole_packs() {
        for sizes in
            [(1, 1 << 27, 1), (1, 1_000_003, 1), (5000, 1025, 1), (1, 16384, 8192), (3, 100, 7), (2, 1, 1)]
        {
            for elem in [Elem::U8, Elem::BF16, Elem::F32, Elem::F64] {
                let p = plan(sizes, elem, 132, |_| true);
                assert!(
                    (p.chunks - 1) * p.chunk < sizes.1 && sizes.1 <= p.chunks * p.chunk,
                    "{sizes:?} {p:?}"
                );
                if let Some((group, items)) = p.row {
                    assert!(p.chunks == 1 || (group == p.block && p.chunk % p.v == 0), "{sizes:?} {p:?}");
                    assert!(
                        items % p.v == 0 && sizes.1 % p.v == 0 && p.block % group == 0,
                        "{sizes:?} {p:?}"
                    );
                } else {
                    assert!(sizes.2 % p.v == 0);
                }
            }
        }
        assert!(plan((1, 1 << 27, 1), Elem::BF16, 132, |_| true).chunks > 512);
        assert!(plan((1, 16384, 8192), Elem::BF16, 132, |_| true).chunks > 16);
    }
}
