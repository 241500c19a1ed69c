//! Launcher of `scatter.cu`: addition (or "or", or another reduction) at indices, and the choice of how.

use smallvec::{SmallVec, smallvec};

#[cfg(test)]
use super::gate::Instance;
#[cfg(test)]
use super::gather::OFFSET_TYPES;
use super::gather::{Along, LoopsArg, MAX_DIMS, THREADS, blocks, offset_type, strides_without};
use super::softmax::{all_aligned, pack_len};
use super::{Def, KernelSpec, LOOPS, WRAPPING, kernel_file};
use crate::device::Device;
use crate::driver::launch::{Kernel, Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::layout::{Nest, Strides};
use crate::tensor::CudaTensor;

kernel_file!(SCATTER, "scatter.cu", [&LOOPS, &WRAPPING]);

/// What is made of an element and the values for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduce {
    /// The sum; for bools "or".
    Add,
    Mul,
    Min,
    Max,
}

impl Reduce {
    /// Whether the result is one of the operands.
    fn is_extremum(self) -> bool {
        matches!(self, Reduce::Min | Reduce::Max)
    }

    /// `REDUCE` in scatter.cu.
    fn def(self) -> Option<(&'static str, Def)> {
        match self {
            Reduce::Add => None,
            Reduce::Mul => Some(("REDUCE", Def::Int(1))),
            Reduce::Min => Some(("REDUCE", Def::Int(2))),
            Reduce::Max => Some(("REDUCE", Def::Int(3))),
        }
    }
}

/// How values come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// A thread for each value, atomics. For floats the order of additions, and so the last bits, may change from run
    /// to run.
    Atomic,
    /// A thread for all values along the dimension, in their order.
    Lines,
    /// A block for all values along the last dimension, in one order, with the line of x in shared memory.
    Shared,
    /// Indices are sorted first; values with equal indices are added in their order.
    Sorted,
}

/// Indices sorted at once: sorting compares all with all, which for this many costs about as much as reading a row of
/// a few kilobytes for each.
const SORTED_AT_ONCE: usize = 1 << 15;
/// Above this many indices, sorting them in portions costs too much.
const SORTED_LIMIT: usize = 1 << 20;
/// A thread adds this many values in a row in a time that is short even when few threads do it.
const SHORT_LINE: usize = 128;
/// This many lines keep the device busy, so that each may be long.
const MANY_LINES: usize = 1 << 14;

/// Bytes of shared memory for a line of x.
const SHARED_BYTES: usize = 48 << 10;
/// A block adds this many values in a row in a time that is short even when few blocks do it.
const SHORT_SHARED_LINE: usize = 1 << 14;
/// This many blocks keep the device busy.
const MANY_SHARED_LINES: usize = 512;

/// Bytes in which sums of a float are kept.
fn sum_bytes(elem: Elem) -> usize {
    elem.size_bytes().max(4)
}

/// The method for `lines` lines of `count` values each along the indexed dimension, and of `last` elements of x where that
/// is the last dimension.
pub(crate) fn method(
    reduce: Reduce,
    elem: Elem,
    along: Along,
    lines: usize,
    count: usize,
    last: Option<usize>,
) -> Method {
    if !elem.is_float() {
        return Method::Atomic; // exact in any order
    }
    // The whole line is read and written, whatever the number of values.
    let shared = last.is_some_and(|size| size * sum_bytes(elem) <= SHARED_BYTES && count >= size / 8)
        && (count <= SHORT_SHARED_LINE || lines >= MANY_SHARED_LINES);
    match along {
        _ if reduce.is_extremum() && count > 1 => Method::Atomic, // likewise
        _ if count == 1 => Method::Lines,
        Along::Elements if shared && reduce == Reduce::Add => Method::Shared,
        Along::Slices if count <= SORTED_LIMIT => Method::Sorted,
        // Indices of a single line are those of a select.
        Along::Elements if lines == 1 && count > SHORT_LINE && count <= SORTED_LIMIT => Method::Sorted,
        Along::Elements if count <= SHORT_LINE || lines >= MANY_LINES => Method::Lines,
        _ => Method::Atomic,
    }
}

/// Whether `method` rounds to x's dtype more than once, so that a 16-bit `x` must be an f32 workspace.
pub(crate) fn rounds_often(reduce: Reduce, method: Method, count: usize) -> bool {
    match method {
        _ if reduce.is_extremum() => false,
        Method::Shared => false,
        Method::Atomic => true,
        Method::Lines => count > 1,
        Method::Sorted => count > SORTED_AT_ONCE,
    }
}

/// `x[i with index[i] in dimension dim] += value[i]` (or another reduction), for a row-major `x` in its own dtype or, for
/// 16-bit values, in f32; i32 or i64 indices; no operand empty.
#[allow(clippy::too_many_arguments)]
pub(crate) fn scatter(
    op: &'static str,
    reduce: Reduce,
    x: &CudaTensor,
    dim: usize,
    index: &CudaTensor,
    value: &CudaTensor,
    along: Along,
    method: Method,
) -> Result<()> {
    debug_assert!(x.layout().is_contiguous() && matches!(index.elem(), Elem::I32 | Elem::I64));
    debug_assert!(method != Method::Shared, "has its own launcher");
    if method == Method::Sorted {
        return sorted(reduce, x, dim, &index.contiguous()?, &value.contiguous()?, op);
    }
    let index_strides = along.index_strides(index, value.dims().len(), dim);
    let done = looped(reduce, x, dim, index, &index_strides, value, method, op)?;
    if !done {
        // Row-major operands leave at most three loops.
        let (index, value) = (index.contiguous()?, value.contiguous()?);
        let index_strides = along.index_strides(&index, value.dims().len(), dim);
        looped(reduce, x, dim, &index, &index_strides, &value, method, op)?;
    }
    Ok(())
}

fn instance(device: &Device, defs: &[(&'static str, Def)]) -> Result<Kernel> {
    device.kernel(&KernelSpec { file: &SCATTER, entry: "scatter", defs })
}

/// Without the element at `dim`.
pub(super) fn without<T: Copy>(from: &[T], dim: usize) -> SmallVec<[T; 6]> {
    from.iter().enumerate().filter(|&(d, _)| d != dim).map(|(_, &x)| x).collect()
}

/// The macros of `Atomic` and `Lines`.
fn looped_defs(
    reduce: Reduce,
    lines: bool,
    elem: Elem,
    value: Elem,
    index: Elem,
    offset: Def,
) -> SmallVec<[(&'static str, Def); 6]> {
    let mut defs = smallvec![
        ("T", Def::Type(elem)),
        ("VAL_T", Def::Type(value)),
        ("IDX_T", Def::Type(index)),
        ("OFFSET", offset),
        (if lines { "CASE_LINES" } else { "CASE_ATOMIC" }, Def::Int(1)),
    ];
    defs.extend(reduce.def());
    defs
}

/// The macros of `Sorted`'s first step.
fn rank_defs(key: Elem, index: Elem) -> [(&'static str, Def); 3] {
    [("KEY_T", Def::Type(key)), ("IDX_T", Def::Type(index)), ("CASE_RANK", Def::Int(1))]
}

/// The macros of `Sorted`'s later steps, in packs of `v` elements.
fn add_defs(
    reduce: Reduce,
    case: &'static str,
    elem: Elem,
    value: Elem,
    key: Elem,
    v: usize,
) -> SmallVec<[(&'static str, Def); 6]> {
    let mut defs = smallvec![
        ("T", Def::Type(elem)),
        ("VAL_T", Def::Type(value)),
        ("KEY_T", Def::Type(key)),
        ("V", Def::Int(v as i64)),
        (case, Def::Int(1)),
    ];
    defs.extend(reduce.def());
    defs
}

/// `Atomic` and `Lines`; false when the strides leave more loops than the kernel takes.
#[allow(clippy::too_many_arguments)]
fn looped(
    reduce: Reduce,
    x: &CudaTensor,
    dim: usize,
    index: &CudaTensor,
    index_strides: &Strides,
    value: &CudaTensor,
    method: Method,
    op: &'static str,
) -> Result<bool> {
    let device = x.device();
    let (x_strides, value_strides) = (strides_without(x, dim), value.layout().strides());
    let lines = method == Method::Lines;
    let nest = if lines {
        let shape = without(value.dims(), dim);
        let strides = [&index_strides[..], &x_strides[..], value_strides].map(|s| without(s, dim));
        Nest::new(&shape, [&strides[0], &strides[1], &strides[2]])
    } else {
        Nest::new(value.dims(), [index_strides, &x_strides, value_strides])
    };
    if nest.sizes.len() > MAX_DIMS {
        return Ok(false);
    }
    let defs = looped_defs(reduce, lines, x.elem(), value.elem(), index.elem(), offset_type(&nest));
    let kernel = instance(device, &defs)?;
    let count = value.dims()[dim] as u64;
    let items = if lines { value.len() as u64 / count } else { value.len() as u64 };
    let mut launch = Launch::new(device, kernel).update(x).read(value).read(index).arg(items);
    if lines {
        launch = launch.arg(count).arg(index_strides[dim]).arg(value_strides[dim]);
    }
    launch
        .arg(x.layout().strides()[dim])
        .arg(x.dims()[dim] as i64)
        .arg(LoopsArg::new(&nest, 1))
        .faults(op)
        .run([blocks(items), 1, 1], THREADS as u32, 0)?;
    Ok(true)
}

/// Threads that add up one line in shared memory (`LINE_THREADS` in scatter.cu).
const LINE_THREADS: u32 = 128;
/// Places for a line in shared memory; the smallest that fits is taken.
const SHARED_SIZES: [usize; 6] = [1024, 2048, 4096, 6144, 8192, 12288];

fn shared_defs(elem: Elem, index: Elem, offset: Def, places: usize, v: u64) -> [(&'static str, Def); 7] {
    [
        ("T", Def::Type(elem)),
        ("VAL_T", Def::Type(elem)),
        ("IDX_T", Def::Type(index)),
        ("OFFSET", offset),
        ("SIZE", Def::Int(places as i64)),
        ("V", Def::Int(v as i64)),
        ("CASE_SHARED", Def::Int(1)),
    ]
}

/// Addition as in [`scatter`], by [`Method::Shared`], along the last dimension, of what `from` holds; `from` may be `x`. Both row-major
/// and of one shape, `index` and `value` of the same but for the last dimension.
pub(crate) fn scatter_shared(
    op: &'static str,
    (x, from): (&CudaTensor, &CudaTensor),
    index: &CudaTensor,
    value: &CudaTensor,
) -> Result<()> {
    debug_assert!(x.layout().is_contiguous() && from.layout().is_contiguous());
    let last = x.dims().len() - 1;
    let (device, size, count) = (x.device(), x.dims()[last], value.dims()[last]);
    let strides = [index, x, value].map(|t| without(t.layout().strides(), last));
    let nest = Nest::new(&without(value.dims(), last), [&strides[0], &strides[1], &strides[2]]);
    if nest.sizes.len() > MAX_DIMS {
        // Row-major operands leave one loop.
        return scatter_shared(op, (x, from), &index.contiguous()?, &value.contiguous()?);
    }
    let v =
        pack_len(x.elem(), 16, |v, bytes| (size as u64).is_multiple_of(v) && all_aligned(&[x, from], bytes));
    let places = SHARED_SIZES.into_iter().find(|&places| size <= places).expect("the line fits");
    let defs = shared_defs(x.elem(), index.elem(), offset_type(&nest), places, v);
    let kernel = instance(device, &defs)?;
    let lines = (value.len() / count) as u64;
    Launch::new(device, kernel)
        .write(x)
        .read(from)
        .read(value)
        .read(index)
        .arg(lines)
        .arg(count as u64)
        .arg(index.layout().strides()[last])
        .arg(value.layout().strides()[last])
        .arg(size as u32)
        .arg(LoopsArg::new(&nest, 1))
        .faults(op)
        .run([lines.min(i32::MAX as u64) as u32, 1, 1], LINE_THREADS, 0)
}

/// Mirrors `Shape` in scatter.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ShapeArg {
    dim_size: u64,
    inner: u64,
    outer: u64,
    value_rows: u64,
    first: u64,
    n: u32,
}
kernel_arg!(ShapeArg);

/// Sorted positions that a thread adds up (`GROUP` in scatter.cu).
const GROUP: usize = 32;
const RANK_THREADS: usize = 128;

/// `value` and `index` (one index a slice) row-major.
fn sorted(
    reduce: Reduce,
    x: &CudaTensor,
    dim: usize,
    index: &CudaTensor,
    value: &CudaTensor,
    op: &'static str,
) -> Result<()> {
    use burn_std::DType;
    let device = x.device();
    let outer: usize = x.dims()[..dim].iter().product();
    let inner: usize = x.dims()[dim + 1..].iter().product();
    let dim_size = x.dims()[dim];
    let count = value.dims()[dim];
    // The largest key stands for "none".
    let (key, key_dtype) =
        if dim_size < u32::MAX as usize { (Elem::U32, DType::U32) } else { (Elem::U64, DType::U64) };
    let (x_bytes, value_bytes) = (x.elem().size_bytes(), value.elem().size_bytes());
    let mut v = 16 / value_bytes;
    while v > 1
        && !(inner.is_multiple_of(v)
            && value.aligned_to(v * value_bytes)
            && x.aligned_to((v * x_bytes).min(16)))
    {
        v /= 2;
    }
    let rank = instance(device, &rank_defs(key, index.elem()))?;
    let add = |case: &'static str| instance(device, &add_defs(reduce, case, x.elem(), value.elem(), key, v));
    let (rows, carry_over) = (add("CASE_ROWS")?, add("CASE_CARRY")?);

    let most = count.min(SORTED_AT_ONCE);
    let temporary = |shape: Vec<usize>, dtype| CudaTensor::empty(device, shape, dtype, "select_add");
    let order = temporary(vec![most], DType::U32)?;
    let row = temporary(vec![most], key_dtype)?;
    let acc = if x.elem() == Elem::F64 { DType::F64 } else { DType::F32 };
    // No run spans the groups when there is only one.
    let sums = vec![if most > GROUP { most.div_ceil(GROUP) } else { 0 }, outer * inner];
    let (head, carry) = (temporary(sums.clone(), acc)?, temporary(sums, acc)?);
    for first in (0..count).step_by(SORTED_AT_ONCE) {
        let n = (count - first).min(SORTED_AT_ONCE);
        let shape = ShapeArg {
            dim_size: dim_size as u64,
            inner: inner as u64,
            outer: outer as u64,
            value_rows: count as u64,
            first: first as u64,
            n: n as u32,
        };
        let portion =
            index.with_layout(index.layout().reshape(&[count]).expect("row-major").narrow(0, first, n));
        Launch::new(device, rank)
            .write(&order)
            .write(&row)
            .read(&portion)
            .arg(n as u32)
            .arg(dim_size as i64)
            .faults(op)
            .run([n.div_ceil(RANK_THREADS) as u32, 1, 1], RANK_THREADS as u32, 0)?;
        let groups = n.div_ceil(GROUP);
        let threads = (groups * outer * (inner / v)) as u64;
        let grid = [threads.div_ceil(THREADS) as u32, 1, 1];
        Launch::new(device, rows)
            .update(x)
            .write(&head)
            .write(&carry)
            .read(value)
            .read(&order)
            .read(&row)
            .arg(shape)
            .run(grid, THREADS as u32, 0)?;
        if groups > 1 {
            Launch::new(device, carry_over).update(x).read(&head).read(&carry).read(&row).arg(shape).run(
                grid,
                THREADS as u32,
                0,
            )?;
        }
    }
    Ok(())
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    use Elem::{B8, BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    use Reduce::{Add, Max, Min, Mul};
    let mut all = Vec::new();
    let mut add = |defs: &[(&'static str, Def)]| all.push(Instance::new(&SCATTER, "scatter", defs));
    // Each has its own atomic addition; values of 16 bits come with an f32 x.
    for elem in [F32, F64, I64, U64, I32, U32, I16, U16, I8, U8, B8] {
        add(&looped_defs(Add, false, elem, elem, I64, OFFSET_TYPES[0]));
    }
    for (elem, value) in [(F32, F32), (F64, F64), (F32, BF16), (F16, F16), (BF16, BF16)] {
        for index in [I32, I64] {
            add(&looped_defs(Add, true, elem, value, index, OFFSET_TYPES[0]));
        }
        add(&looped_defs(Add, true, elem, value, I64, OFFSET_TYPES[1]));
        for v in [1, 16 / value.size_bytes()] {
            add(&add_defs(Add, "CASE_ROWS", elem, value, U32, v));
            add(&add_defs(Add, "CASE_CARRY", elem, value, U32, v));
        }
        add(&add_defs(Add, "CASE_ROWS", elem, value, U64, 16 / value.size_bytes()));
        add(&add_defs(Add, "CASE_CARRY", elem, value, U64, 16 / value.size_bytes()));
    }
    for (elem, value) in [(F32, F32), (F32, F16), (F32, BF16), (F64, F64), (I64, I64), (U8, U8)] {
        add(&looped_defs(Add, false, elem, value, I32, OFFSET_TYPES[1]));
    }
    for reduce in [Mul, Min, Max] {
        for elem in [F32, F64, F16, BF16, I64, U64, I32, I16, U8] {
            let wide = reduce == Mul && matches!(elem, F16 | BF16);
            add(&looped_defs(reduce, false, if wide { F32 } else { elem }, elem, I64, OFFSET_TYPES[1]));
        }
        for elem in [F32, F64, BF16] {
            add(&looped_defs(reduce, true, elem, elem, I64, OFFSET_TYPES[0]));
        }
    }
    for (elem, value) in [(F32, F32), (F64, F64), (BF16, BF16), (F16, F16)] {
        add(&add_defs(Mul, "CASE_ROWS", elem, value, U32, 16 / value.size_bytes()));
        add(&add_defs(Mul, "CASE_CARRY", elem, value, U32, 16 / value.size_bytes()));
    }
    for elem in [F32, F64, F16, BF16] {
        let most = SHARED_BYTES / sum_bytes(elem);
        let v = 16 / elem.size_bytes() as u64;
        for places in SHARED_SIZES.into_iter().filter(|&places| places <= most) {
            add(&shared_defs(elem, I64, OFFSET_TYPES[0], places, v));
        }
        add(&shared_defs(elem, I32, OFFSET_TYPES[1], 1024, 1));
    }
    for (key, index) in [(U32, I32), (U32, I64), (U64, I64)] {
        add(&rank_defs(key, index));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_added_in_a_fixed_order_unless_that_is_slow() {
        use Along::{Elements, Slices};
        use Reduce::{Add, Max, Mul};
        assert_eq!(method(Add, Elem::I32, Elements, 1, 1 << 20, None), Method::Atomic);
        assert_eq!(method(Add, Elem::BF16, Slices, 4096, 16384, None), Method::Sorted);
        assert_eq!(method(Add, Elem::F32, Elements, 8192, 1, None), Method::Lines);
        assert_eq!(method(Add, Elem::F32, Elements, 1, 100_000, None), Method::Sorted);
        assert_eq!(method(Add, Elem::F32, Elements, 4, 100_000, None), Method::Atomic);
        assert_eq!(method(Add, Elem::F32, Elements, 1 << 20, 4096, None), Method::Lines);
        assert_eq!(method(Add, Elem::F32, Slices, 1, 1 << 22, None), Method::Atomic);
        assert_eq!(method(Mul, Elem::F32, Slices, 1, 4096, None), Method::Sorted);
        assert_eq!(method(Max, Elem::F32, Slices, 1, 4096, None), Method::Atomic);
        let last = |elem, lines, count, size| method(Add, elem, Elements, lines, count, Some(size));
        assert_eq!(last(Elem::F32, 16384, 4096, 8192), Method::Shared);
        assert_eq!(last(Elem::BF16, 1, 4096, 12288), Method::Shared);
        // Too long for shared memory; hardly any of the line is touched.
        assert_eq!(last(Elem::F64, 16384, 4096, 6145), Method::Lines);
        assert_eq!(last(Elem::F32, 16384, 100, 8192), Method::Lines);
        assert_eq!(last(Elem::F32, 16384, 1, 1), Method::Lines);
    }

    #[test]
    fn sixteen_bit_sums_are_rounded_once() {
        use Reduce::{Add, Max};
        assert!(!rounds_often(Add, Method::Lines, 1) && rounds_often(Add, Method::Lines, 2));
        assert!(
            !rounds_often(Add, Method::Sorted, SORTED_AT_ONCE)
                && rounds_often(Add, Method::Sorted, SORTED_AT_ONCE + 1)
        );
        assert!(rounds_often(Add, Method::Atomic, 2) && !rounds_often(Max, Method::Atomic, 2));
    }

    #[test]
    fn the_kernel_file_agrees_on_the_group_size() {
        assert!(SCATTER.text.contains(&format!("#define GROUP {GROUP}\n")));
        assert!(SCATTER.text.contains(&format!("#define RANK_THREADS {RANK_THREADS}\n")));
    }
}
