//! Launchers of `sort.cu`: how long the rows are, and how much of them is wanted, decides how they are sorted.

use burn_backend::TensorMetadata;
use burn_std::DType;

use super::cumulative::{CumulativeOp, cumulative};
#[cfg(test)]
use super::gate::Instance;
use super::softmax::Defs;
use super::{COMMON_REDUCE, Def, KernelSpec, kernel_file};
use crate::device::Device;
use crate::driver::launch::{Kernel, Launch};
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(SORT, "sort.cu", [&COMMON_REDUCE]);

/// Values of a digit (`DIGITS` in sort.cu).
const DIGITS: usize = 256;
/// Threads of a block of warps that each sort rows of their own.
const WARP_BLOCK: usize = 128;
/// Elements of a row that one warp holds: 8 a lane. Their number has 8 bits in `PairOf`.
const WARP_MOST: usize = 256;
/// Threads of a block that takes one tile of a long row. Two blocks of 64 registers a thread fill a multiprocessor.
const TILE_THREADS: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    /// `group` lanes a row, `items` elements each.
    Warp { group: usize, items: usize },
    /// A block a row.
    Block { threads: usize, items: usize },
    /// Tiles of the row give their first elements, unsorted, of which the same is asked again.
    Tiles { items: usize },
    /// A digit at a time over the whole row.
    Digits { items: usize },
}

/// Elements of a thread in the largest tile: as many as 64 registers hold, with where they stood and go. A digit's
/// elements of a tile, which are written together, are then 16 or 20 on average: about a line of memory.
fn tile_items(elem: Elem) -> usize {
    if matches!(elem.size_bytes(), 1 | 8) { 8 } else { 10 }
}

/// For rows of `n` elements of which the first `kept` are wanted.
fn method(elem: Elem, n: usize, kept: usize) -> Method {
    let items = tile_items(elem);
    let tile = TILE_THREADS * items;
    if n <= 32 {
        return Method::Warp { group: n.next_power_of_two().max(2), items: 1 };
    }
    if n <= WARP_MOST {
        return Method::Warp { group: 32, items: n.next_power_of_two() / 32 };
    }
    // A thread for each digit at least, and no more threads than that while these hold the row.
    if n <= DIGITS * 8 {
        return Method::Block { threads: DIGITS, items: n.next_power_of_two() / DIGITS };
    }
    if n <= tile {
        return Method::Block { threads: TILE_THREADS, items: if n <= TILE_THREADS * 8 { 8 } else { items } };
    }
    // Each round leaves a quarter or less.
    if kept <= tile / 4 { Method::Tiles { items } } else { Method::Digits { items } }
}

/// Indices as kernels write them: i32 and u32 are the same bits, and so are the 64-bit ones.
fn index_type(elem: Elem) -> Def {
    Def::Type(if elem.size_bytes() == 8 { Elem::U64 } else { Elem::U32 })
}

fn defs(case: &'static str, elem: Elem, threads: usize, items: usize) -> Defs {
    Defs::from_slice(&[
        ("T", Def::Type(elem)),
        (case, Def::Int(1)),
        ("THREADS", Def::Int(threads as i64)),
        ("ITEMS", Def::Int(items as i64)),
    ])
}

fn warp_defs(elem: Elem, index: Def, group: usize, items: usize) -> Defs {
    let mut defs = defs("CASE_WARP", elem, WARP_BLOCK, items);
    defs.extend([("IDX_T", index), ("GROUP", Def::Int(group as i64))]);
    defs
}

fn block_defs(case: &'static str, elem: Elem, index: Def, threads: usize, items: usize) -> Defs {
    let mut defs = defs(case, elem, threads, items);
    defs.push(("IDX_T", index));
    defs
}

fn count_defs(elem: Elem, items: usize, v: usize) -> Defs {
    let mut defs = defs("CASE_COUNT", elem, TILE_THREADS, items);
    defs.push(("V", Def::Int(v as i64)));
    defs
}

fn kernel(device: &Device, entry: &'static str, defs: &Defs) -> Result<Kernel> {
    device.kernel(&KernelSpec { file: &SORT, entry, defs })
}

/// What is written: of each row the first elements, and where they stood. Either may be left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sorted<'a> {
    pub(crate) values: Option<&'a CudaTensor>,
    /// Of a 4-byte or 8-byte integer dtype.
    pub(crate) indices: Option<&'a CudaTensor>,
}

impl<'a> Sorted<'a> {
    fn index_type(&self) -> Def {
        index_type(self.indices.map_or(Elem::U32, CudaTensor::elem))
    }

    fn launch(&self, device: &'static Device, kernel: Kernel) -> Launch<'a> {
        let mut launch = Launch::new(device, kernel);
        for out in [self.values, self.indices] {
            launch = match out {
                Some(out) => launch.write(out),
                None => launch.null(),
            };
        }
        launch
    }
}

fn read_if<'a>(launch: Launch<'a>, tensor: Option<&'a CudaTensor>) -> Launch<'a> {
    match tensor {
        Some(tensor) => launch.read(tensor),
        None => launch.null(),
    }
}

/// Sorts the rows of `x [rows, n]`, row-major and not empty, with `n < 2^32`, and writes the first `kept` of each to
/// `out [rows, kept]`.
pub(crate) fn sort(
    op: &'static str,
    out: Sorted,
    x: &CudaTensor,
    n: usize,
    kept: usize,
    descending: bool,
) -> Result<()> {
    debug_assert!(x.layout().is_contiguous() && n <= u32::MAX as usize && (1..=n).contains(&kept));
    let sizes = (x.len() / n, n, kept);
    match method(x.elem(), n, kept) {
        Method::Tiles { items } => tiles(op, out, x, None, sizes, items, descending),
        Method::Digits { items } => digits(op, out, x, sizes, items, descending),
        _ => short(op, out, x, None, sizes, descending),
    }
}

/// Rows that a warp or a block holds; `from` is what to write for an element in place of where it stands.
fn short(
    op: &'static str,
    out: Sorted,
    x: &CudaTensor,
    from: Option<&CudaTensor>,
    (rows, n, kept): (usize, usize, usize),
    descending: bool,
) -> Result<()> {
    let (device, elem, index) = (x.device(), x.elem(), out.index_type());
    match method(elem, n, kept) {
        Method::Warp { group, items } => {
            let kernel = kernel(device, "sort_warp", &warp_defs(elem, index, group, items))?;
            let launch = read_if(out.launch(device, kernel).read(x), from);
            let launch = launch.arg(rows as u64).arg(n as u32).arg(kept as u32).arg(descending as u32);
            let blocks = rows.div_ceil(WARP_BLOCK / group) as u32;
            launch.op(op).run([blocks, 1, 1], WARP_BLOCK as u32, 0)
        }
        Method::Block { threads, items } => {
            let defs = block_defs("CASE_BLOCK", elem, index, threads, items);
            let kernel = kernel(device, "sort_block", &defs)?;
            let launch = read_if(out.launch(device, kernel).read(x), from);
            let launch = launch.arg(n as u32).arg(kept as u32).arg(descending as u32);
            launch.op(op).run([rows as u32, 1, 1], threads as u32, 0)
        }
        method => unreachable!("{method:?} for rows of {n}"),
    }
}

/// Long rows of which few elements are wanted: those of each tile, in their order, and again, until a block holds the row.
fn tiles(
    op: &'static str,
    out: Sorted,
    x: &CudaTensor,
    from: Option<&CudaTensor>,
    (rows, n, kept): (usize, usize, usize),
    items: usize,
    descending: bool,
) -> Result<()> {
    let tile = TILE_THREADS * items;
    if n <= tile {
        return short(op, out, x, from, (rows, n, kept), descending);
    }
    let (device, tiles) = (x.device(), n.div_ceil(tile));
    let left = (tiles - 1) * kept + kept.min(n - (tiles - 1) * tile);
    let values = CudaTensor::empty(device, [rows, left], x.dtype(), op)?;
    let indices = out.indices.map(|_| CudaTensor::empty(device, [rows, left], DType::U32, op)).transpose()?;
    let first = Sorted { values: Some(&values), indices: indices.as_ref() };
    let defs = block_defs("CASE_SELECT", x.elem(), first.index_type(), TILE_THREADS, items);
    let kernel = kernel(device, "sort_select", &defs)?;
    read_if(first.launch(device, kernel).read(x), from)
        .arg(n as u32)
        .arg(tiles as u32)
        .arg(kept as u32)
        .arg(left as u64)
        .arg(descending as u32)
        .op(op)
        .run([(rows * tiles) as u32, 1, 1], TILE_THREADS as u32, 0)?;
    self::tiles(op, out, &values, indices.as_ref(), (rows, left, kept), items, descending)
}

/// Whole long rows, a digit a pass. The passes write in turn to memory of their own and to the output, where that holds
/// all that a pass writes; the last one writes the output.
fn digits(
    op: &'static str,
    out: Sorted,
    x: &CudaTensor,
    (rows, n, kept): (usize, usize, usize),
    items: usize,
    descending: bool,
) -> Result<()> {
    let (device, elem) = (x.device(), x.elem());
    let bytes = elem.size_bytes();
    let tile = TILE_THREADS * items;
    let tiles = n.div_ceil(tile);
    let temporary =
        |wanted: bool, dtype| wanted.then(|| CudaTensor::empty(device, [rows, n], dtype, op)).transpose();
    let many = bytes > 1;
    let indexed = out.indices.is_some();
    let whole = |tensor: Option<&CudaTensor>| tensor.filter(|_| kept == n).cloned();
    let (a, a_from) = (temporary(many, x.dtype())?, temporary(many && indexed, DType::U32)?);
    // The second place is only written by the last pass but one, and those before it.
    let more = bytes > 2;
    let (b, b_from) = (
        match whole(out.values) {
            Some(values) => Some(values),
            None => temporary(more, x.dtype())?,
        },
        match whole(out.indices) {
            Some(indices) => Some(indices),
            None => temporary(more && indexed, DType::U32)?,
        },
    );
    let counts = CudaTensor::empty(device, [rows * DIGITS, tiles], DType::U32, op)?;
    let mut v = 16 / bytes;
    while v > 1 && !n.is_multiple_of(v) {
        v /= 2;
    }
    let grid = [(rows * tiles) as u32, 1, 1];
    for pass in 0..bytes {
        let shift = 8 * pass as u32;
        // Counted from the end: the last pass but one writes `a`.
        let (to_a, from_a) = ((bytes - pass) % 2 == 0, (bytes - pass) % 2 == 1);
        let source = |first, a, b| {
            if pass == 0 {
                first
            } else if from_a {
                a
            } else {
                b
            }
        };
        let keys = source(Some(x), a.as_ref(), b.as_ref()).expect("a pass has elements");
        let from = source(None, a_from.as_ref(), b_from.as_ref());
        let last = pass + 1 == bytes;
        let (to, left) = match (last, to_a) {
            (true, _) => (out, kept),
            (false, true) => (Sorted { values: a.as_ref(), indices: a_from.as_ref() }, n),
            (false, false) => (Sorted { values: b.as_ref(), indices: b_from.as_ref() }, n),
        };
        let mut v = v;
        while v > 1 && !keys.aligned_to(v * bytes) {
            v /= 2;
        }
        let count = kernel(device, "sort_count", &count_defs(elem, items, v))?;
        Launch::new(device, count)
            .write(&counts)
            .read(keys)
            .arg(n as u32)
            .arg(tiles as u32)
            .arg(shift)
            .arg(descending as u32)
            .op(op)
            .run(grid, TILE_THREADS as u32, 0)?;
        cumulative(op, CumulativeOp::Sum, &counts, &counts, 1)?;
        // Until the last pass, indices are u32, wherever they lie.
        let index = if last { out.index_type() } else { Def::Type(Elem::U32) };
        let scatter =
            kernel(device, "sort_scatter", &block_defs("CASE_SCATTER", elem, index, TILE_THREADS, items))?;
        read_if(to.launch(device, scatter).read(keys), from)
            .read(&counts)
            .arg(n as u32)
            .arg(tiles as u32)
            .arg(shift)
            .arg(left as u32)
            .arg(descending as u32)
            .op(op)
            .run(grid, TILE_THREADS as u32, 0)?;
    }
    Ok(())
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    use Elem::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    let mut all = Vec::new();
    let wide = Def::Type(U64);
    for elem in [F32, F64, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8] {
        let items = tile_items(elem);
        let floats = elem.is_float();
        for (group, items) in [(32, 8), (32, 1), (2, 1)] {
            if floats || group == 32 && items == 8 {
                all.push(Instance::new(&SORT, "sort_warp", &warp_defs(elem, wide, group, items)));
            }
        }
        let mut block = |case, entry, threads, items| {
            all.push(Instance::new(&SORT, entry, &block_defs(case, elem, wide, threads, items)));
        };
        block("CASE_BLOCK", "sort_block", TILE_THREADS, items);
        block("CASE_SELECT", "sort_select", TILE_THREADS, items);
        block("CASE_SCATTER", "sort_scatter", TILE_THREADS, items);
        if floats {
            block("CASE_BLOCK", "sort_block", DIGITS, 8);
        }
        for v in [1, 16 / elem.size_bytes()] {
            all.push(Instance::new(&SORT, "sort_count", &count_defs(elem, items, v)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_held_by_what_sorts_it() {
        for elem in [Elem::U8, Elem::BF16, Elem::F32, Elem::F64] {
            let tile = TILE_THREADS * tile_items(elem);
            for n in (1..300).chain([511, 512, 513, 2048, 2049, 4096, 4097, 5120, 5121, 1 << 20]) {
                for kept in [1, n / 2, n].map(|k| k.max(1)) {
                    match method(elem, n, kept) {
                        Method::Warp { group, items } => {
                            assert!(group * items >= n && group <= 32 && n <= WARP_MOST, "{n}");
                            assert!(group.is_power_of_two() && items.is_power_of_two());
                        }
                        Method::Block { threads, items } => {
                            assert!(threads * items >= n && threads >= DIGITS, "{n}");
                            assert!(items <= tile_items(elem) && n > WARP_MOST);
                        }
                        Method::Tiles { items } => {
                            assert!(TILE_THREADS * items == tile && n > tile && kept <= tile / 4, "{n}")
                        }
                        Method::Digits { .. } => assert!(n > tile && kept > tile / 4, "{n}"),
                    }
                }
            }
        }
    }

    #[test]
    fn the_kernel_file_agrees_on_the_number_of_digits() {
        assert!(SORT.text.contains(&format!("#define DIGITS {DIGITS}\n")));
    }
}
