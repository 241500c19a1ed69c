//! Launchers of softmax and log_softmax (`softmax.cu`), and how a row is spread over threads that hold it in registers.

use smallvec::SmallVec;

#[cfg(test)]
use super::gate::Instance;
use super::{COMMON_REDUCE, COMMON_SOFTMAX, Def, KernelSpec, kernel_file};
use crate::driver::launch::Launch;
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(SOFTMAX, "softmax.cu", [&COMMON_REDUCE, &COMMON_SOFTMAX]);

/// Macros of an instance, without a heap allocation for each launch.
pub(crate) type Defs = SmallVec<[(&'static str, Def); 12]>;

/// A row held in registers: `group` threads with `n` packs of `v` elements each, `block` threads a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowInRegisters {
    pub(crate) v: u64,
    pub(crate) n: u64,
    pub(crate) group: u64,
    pub(crate) block: u64,
}

impl RowInRegisters {
    /// `None` when a row of `size` elements is too long. `aligned(bytes)` tells whether all addresses are multiples.
    pub(crate) fn new(size: u64, elem: Elem, aligned: impl Fn(u64) -> bool) -> Option<RowInRegisters> {
        // Compute values of a thread: 32 in f32, 8 in f64, leave a block of 1024 threads (64 registers each) without
        // spills.
        Self::of_values(if elem == Elem::F64 { 8 } else { 32 }, size, elem, aligned)
    }

    /// As [`RowInRegisters::new`], with at most `values` elements of the row in a thread.
    pub(crate) fn of_values(
        values: u64,
        size: u64,
        elem: Elem,
        aligned: impl Fn(u64) -> bool,
    ) -> Option<RowInRegisters> {
        let v = pack_len(elem, 16, |v, bytes| size.is_multiple_of(v) && aligned(bytes));
        // Single elements are kept to 16, whose loads and predicates cost more than their values.
        let n_max = (values / v).min(16);
        let packs = size / v;
        // Lanes of one warp as long as they can hold the row: they exchange by shuffles alone.
        let group = if packs <= 32 * n_max {
            packs.next_power_of_two().min(32)
        } else {
            packs.div_ceil(n_max).next_power_of_two()
        };
        // Several rows share a block of 128 threads when they take a warp or less.
        let block = if group > 32 { group } else { 128 };
        (group <= 1024).then_some(RowInRegisters { v, n: packs.div_ceil(group).max(1), group, block })
    }

    pub(crate) fn blocks(&self, rows: u64) -> u64 {
        rows.div_ceil(self.block / self.group)
    }

    /// The fullest threads of each kind, for the compile gate: in the largest block, in one warp, and in single
    /// elements.
    #[cfg(test)]
    pub(super) fn examples(elem: Elem) -> [RowInRegisters; 4] {
        let values = if elem == Elem::F64 { 8 } else { 32 };
        let bytes = elem.size_bytes() as u64;
        let row = |size, aligned: u64| {
            RowInRegisters::new(size, elem, |bytes| bytes <= aligned).expect("the row fits")
        };
        let examples =
            [row(1024 * values, 16), row(32 * values, 16), row(1024 * values.min(16), bytes), row(8, bytes)];
        assert_eq!(examples.map(|r| r.group), [1024, 32, 1024, 8]);
        examples
    }

    pub(crate) fn defs(&self) -> [(&'static str, Def); 4] {
        [
            ("V", Def::Int(self.v as i64)),
            ("N", Def::Int(self.n as i64)),
            ("GROUP", Def::Int(self.group as i64)),
            ("BLOCK", Def::Int(self.block as i64)),
        ]
    }
}

/// The longest pack of at most `max_bytes` and 8 elements for which `fits(elements, bytes)`.
pub(crate) fn pack_len(elem: Elem, max_bytes: u64, fits: impl Fn(u64, u64) -> bool) -> u64 {
    let bytes = elem.size_bytes() as u64;
    let mut v = (max_bytes / bytes).clamp(1, 8);
    while v > 1 && !fits(v, v * bytes) {
        v /= 2;
    }
    v
}

/// Whether all addresses are multiples of `bytes`.
pub(crate) fn all_aligned(tensors: &[&CudaTensor], bytes: u64) -> bool {
    tensors.iter().all(|t| t.aligned_to(bytes as usize))
}

/// Sizes around a dimension of a row-major tensor: the product of those before, its own, the product of those after.
pub(crate) fn around(dims: &[usize], dim: usize) -> (u64, u64, u64) {
    let product = |d: &[usize]| d.iter().product::<usize>() as u64;
    (product(&dims[..dim]), dims[dim] as u64, product(&dims[dim + 1..]))
}

/// Threads of a block in the column case.
const COLUMN_BLOCK: u64 = 256;

/// Pack length and threads along the columns.
fn columns(
    kept: u64,
    size: u64,
    inner: u64,
    elem: Elem,
    sm_count: u64,
    aligned: impl Fn(u64) -> bool,
) -> (u64, u64) {
    let mut v = pack_len(elem, 16, |v, bytes| inner.is_multiple_of(v) && aligned(bytes));
    // Eight elements for each thread along the reduced dimension, as long as a warp still reads along the columns.
    let y = (size / 8).clamp(1, 8).next_power_of_two();
    // Too few blocks leave multiprocessors idle: then shorter packs, of 4 bytes at least.
    while v > 1 && v * elem.size_bytes() as u64 > 4 && kept / v < 2 * sm_count * (COLUMN_BLOCK / y) {
        v /= 2;
    }
    (v, (COLUMN_BLOCK / y).min((kept / v).next_power_of_two()))
}

/// Which function, and of `-x` instead of `x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Softmax {
    pub(crate) log: bool,
    pub(crate) negate: bool,
}

impl Softmax {
    fn defs(self, elem: Elem, case: Case) -> Defs {
        let mut defs = Defs::from_slice(&[
            ("T", Def::Type(elem)),
            ("LOG", Def::Int(self.log as i64)),
            ("NEGATE", Def::Int(self.negate as i64)),
        ]);
        let pack = |v: u64| ("V", Def::Int(v as i64));
        let block = |block: u64| ("BLOCK", Def::Int(block as i64));
        match case {
            Case::Columns { v, threads } => defs.extend([
                ("CASE_COLUMNS", Def::Int(1)),
                pack(v),
                ("X", Def::Int(threads as i64)),
                block(COLUMN_BLOCK),
            ]),
            Case::Registers(row) => {
                defs.push(("CASE_REGISTERS", Def::Int(1)));
                defs.extend_from_slice(&row.defs());
            }
            Case::Online { v } => {
                defs.extend([("CASE_ONLINE", Def::Int(1)), pack(v), block(online_block(elem))]);
            }
            Case::Backward(row) => {
                defs.push(("CASE_BACKWARD", Def::Int(1)));
                defs.extend_from_slice(&row.defs());
            }
        }
        defs
    }
}

/// How an instance walks its rows.
#[derive(Debug, Clone, Copy)]
enum Case {
    /// `threads` threads along packs of `v` columns.
    Columns {
        v: u64,
        threads: u64,
    },
    Registers(RowInRegisters),
    Online {
        v: u64,
    },
    Backward(RowInRegisters),
}

/// Threads of a block in the online case: one block to a multiprocessor, whose rows stay in L2 between the passes. f64
/// needs twice the registers.
fn online_block(elem: Elem) -> u64 {
    if elem == Elem::F64 { 512 } else { 1024 }
}

/// `y = softmax(x)` along `dim`; both row-major and of the same shape, `y` may be `x`.
pub(crate) fn softmax(function: Softmax, y: &CudaTensor, x: &CudaTensor, dim: usize) -> Result<()> {
    debug_assert!(x.layout().is_contiguous() && y.layout().is_contiguous() && x.dims() == y.dims());
    if y.is_empty() {
        return Ok(());
    }
    let (outer, size, inner) = around(x.dims(), dim);
    let (device, elem) = (x.device(), x.elem());
    let aligned = |bytes| all_aligned(&[x, y], bytes);
    let launch = |case: Case| -> Result<Launch<'_>> {
        let defs = function.defs(elem, case);
        let kernel = device.kernel(&KernelSpec { file: &SOFTMAX, entry: "softmax", defs: &defs })?;
        Ok(Launch::new(device, kernel).write(y).read(x))
    };
    if inner > 1 {
        let (v, threads) = columns(outer * inner, size, inner, elem, device.props.sm_count as u64, aligned);
        let blocks = (outer * inner / v).div_ceil(threads) as u32;
        return launch(Case::Columns { v, threads })?.arg(outer).arg(size).arg(inner).run(
            [blocks, 1, 1],
            COLUMN_BLOCK as u32,
            0,
        );
    }
    if let Some(row) = RowInRegisters::new(size, elem, aligned) {
        return launch(Case::Registers(row))?.arg(outer).arg(size as u32).run(
            [row.blocks(outer) as u32, 1, 1],
            row.block as u32,
            0,
        );
    }
    // The kernel finds the 16-byte boundaries itself, which x and y must share.
    let together = x.ptr() % 16 == y.ptr() % 16;
    let v = if together { 16 / elem.size_bytes() as u64 } else { 1 };
    launch(Case::Online { v })?.arg(size).run([outer as u32, 1, 1], online_block(elem) as u32, 0)
}

/// The gradient of the input from `y` (the output) and `dy`, along the last dimension. All row-major and of the same
/// shape. False, and nothing is done, when rows are too long for registers.
pub(crate) fn softmax_backward(log: bool, dx: &CudaTensor, y: &CudaTensor, dy: &CudaTensor) -> Result<bool> {
    debug_assert!([dx, y, dy].iter().all(|t| t.layout().is_contiguous() && t.dims() == y.dims()));
    if y.is_empty() {
        return Ok(true);
    }
    let (rows, size, _) = around(y.dims(), y.dims().len() - 1);
    let (device, elem) = (y.device(), y.elem());
    let Some(row) = RowInRegisters::new(size, elem, |bytes| all_aligned(&[dx, y, dy], bytes)) else {
        return Ok(false);
    };
    let defs = Softmax { log, negate: false }.defs(elem, Case::Backward(row));
    let kernel = device.kernel(&KernelSpec { file: &SOFTMAX, entry: "softmax_backward", defs: &defs })?;
    Launch::new(device, kernel).write(dx).read(y).read(dy).arg(rows).arg(size as u32).run(
        [row.blocks(rows) as u32, 1, 1],
        row.block as u32,
        0,
    )?;
    Ok(true)
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let plain = Softmax { log: false, negate: false };
    let log = Softmax { log: true, negate: false };
    let softmin = Softmax { log: false, negate: true };
    let mut all = Vec::new();
    for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::BF16] {
        let mut add = |function: Softmax, case: Case| {
            let entry = if matches!(case, Case::Backward(_)) { "softmax_backward" } else { "softmax" };
            all.push(Instance::new(&SOFTMAX, entry, &function.defs(elem, case)));
        };
        for row in RowInRegisters::examples(elem) {
            for function in [plain, log] {
                add(function, Case::Registers(row));
                add(function, Case::Backward(row));
            }
        }
        add(softmin, Case::Registers(RowInRegisters::examples(elem)[0]));
        let pack = 16 / elem.size_bytes() as u64;
        for function in [plain, log] {
            add(function, Case::Online { v: pack });
            // One row of threads and many, long packs and single elements.
            add(function, Case::Columns { v: pack, threads: 32 });
            add(function, Case::Columns { v: pack, threads: COLUMN_BLOCK });
        }
        add(plain, Case::Online { v: 1 });
        add(plain, Case::Columns { v: 1, threads: 32 });
        add(softmin, Case::Online { v: pack });
        add(softmin, Case::Columns { v: pack, threads: 32 });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_hold_rows_up_to_their_limit() {
        for elem in [Elem::F64, Elem::F32, Elem::F16] {
            for size in (1..400)
                .chain([512, 1000, 1001, 1024, 4096, 8191, 8192, 16384, 20_000, 32_768, 40_000, 100_001])
            {
                let Some(r) = RowInRegisters::new(size, elem, |_| true) else {
                    assert!(size > 8192, "{elem:?} {size}");
                    continue;
                };
                assert!(size <= r.group * r.n * r.v && size % r.v == 0, "{elem:?} {size} {r:?}");
                assert!(r.n * r.v <= if elem == Elem::F64 { 8 } else { 32 }, "{elem:?} {size} {r:?}");
                assert!(r.group.is_power_of_two() && r.block % r.group == 0 && r.block % 32 == 0);
                assert!(r.group <= 32 || r.group == r.block);
            }
        }
        let r = RowInRegisters::new(16384, Elem::BF16, |_| true).unwrap();
        assert_eq!((r.v, r.n, r.group, r.block), (8, 4, 512, 512));
        let r = RowInRegisters::new(64, Elem::BF16, |_| true).unwrap();
        assert_eq!((r.v, r.n, r.group, r.block), (8, 1, 8, 128));
        let r = RowInRegisters::new(64, Elem::BF16, |bytes| bytes <= 2).unwrap();
        assert_eq!((r.v, r.n, r.group), (1, 2, 32));
    }

    #[test]
    fn few_columns_get_shorter_packs() {
        assert_eq!(columns(1 << 20, 1024, 1 << 20, Elem::BF16, 132, |_| true), (8, 32));
        assert_eq!(columns(8192, 1024, 8192, Elem::BF16, 132, |_| true), (2, 32));
        assert_eq!(columns(3, 1024, 3, Elem::F32, 132, |_| true), (1, 4));
        assert_eq!(columns(1 << 20, 4, 1 << 20, Elem::F32, 132, |_| true), (4, 256));
    }
}
