//! Tensors of more than 2^31 elements: every index variant of every kernel family where an index, an offset, a product of
//! strides or a count passes 2^31 (and 2^32, where bytes are the elements).
//!
//! `cargo test --release --features gpu --test gpu -- --ignored --test-threads 1 large::` on a device with 64 GB free.
//! Out of memory is a failure; nothing is skipped. Each test prints the most memory that it held.
//!
//! A large input is a short pattern of whole numbers, repeated: its length, [`PERIOD`], shares no large factor with a
//! power of two, so an index that lost its high bits reads another value. Expected values are short tables made on
//! the host (or, for floats that round, by the same operation on a small tensor that the host checks). Results are
//! compared as a whole, on the device, in parts of at most [`PART`] elements, where all indices are small and only
//! addresses are far; a few elements at the start, around 2^31 and 2^32, and at the end are read to the host too.
//!
//! `Cuda` has one tensor type for floats, integers and bools, and most of its methods of one name are one function: the
//! tests call whichever has the fewest arguments.

use std::sync::RwLockWriteGuard;
use std::sync::atomic::{AtomicBool, Ordering};

use burn_autodiff::Autodiff;
use burn_backend::ops::{
    ActivationOps, AttentionModuleOptions, BoolTensorOps, ConvOptions, DeformConvOptions, FloatTensorOps,
    IntTensorOps, InterpolateMode, InterpolateOptions, ModuleOps, QTensorOps,
};
use burn_backend::quantization::{QuantLevel, QuantScheme, QuantValue, QuantizationParametersPrimitive};
use burn_backend::tensor::{FloatTensor, IndexingUpdateOp};
use burn_backend::{
    AutodiffBackend, Backend, BoolDType, DType, Distribution, FloatDType, IntDType, Scalar, Shape, Slice,
    TensorData, TensorMetadata,
};
use kiln::{Cuda, CudaDevice, Fusion};

use crate::harness::count::{Counts, Covered};
use crate::harness::family::{alone, caught};
use crate::harness::{BOOL, Value};

type Tensor = FloatTensor<Cuda>;

/// The first number that an i32 cannot hold.
const EDGE: usize = 1 << 31;
/// Elements of the input pattern: 2^4 * 3^2 * 7^2.
const PERIOD: usize = 7056;
/// Elements compared at once.
const PART: usize = 1 << 29;
/// Rows of 1008 elements (a pack's multiple, a seventh of the pattern) that pass 2^31 elements: a multiple of 7.
const ROWS: usize = 2_131_003;
const COLS: usize = PERIOD / 7;
const NATIVE: BoolDType = BoolDType::Native;

/// Element `i` of the pattern: 0 to 250.
fn v(i: usize) -> f64 {
    let k = i % PERIOD;
    ((k * k + 3 * k) % 251) as f64
}

/// Runs alone with nothing cached, and leaves nothing cached. A test that passes is one case in the report, of the dtype that most
/// of it is about.
struct Alone {
    name: &'static str,
    family: &'static str,
    dtype: DType,
    covered: Covered,
    _guard: RwLockWriteGuard<'static, ()>,
}

/// Whether the test that runs has taken a tensor with an odd size.
static ODD: AtomicBool = AtomicBool::new(false);

fn note_sizes(sizes: &[usize]) {
    if sizes.iter().any(|&n| n % 2 == 1 && n > 1) {
        ODD.store(true, Ordering::Relaxed);
    }
}

fn begin(name: &'static str, family: &'static str, dtype: DType) -> Alone {
    let guard = alone();
    ODD.store(false, Ordering::Relaxed);
    // The first tensor opens the device.
    drop(upload(&[0.0], &[1], DType::F32));
    device().empty_cache().expect("nothing is captured");
    device().reset_peak_memory().expect("the device is open");
    Alone { name, family, dtype, covered: Covered::default(), _guard: guard }
}

impl Alone {
    /// Operands are views.
    fn views(mut self) -> Self {
        self.covered.views = true;
        self
    }

    /// Gradients are compared.
    fn gradients(mut self) -> Self {
        self.covered.gradient = true;
        self
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let mut counts = Counts::default();
            counts.add(Covered { edge: ODD.load(Ordering::Relaxed), ..self.covered });
            counts.report(self.family, self.dtype, 0);
        }
        if let Ok(stats) = device().memory_stats() {
            println!("{}: at most {:.1} GB", self.name, stats.peak_live_bytes as f64 / 1e9);
        }
        let _ = device().empty_cache();
    }
}

fn device() -> CudaDevice {
    CudaDevice::default()
}

fn upload(values: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    let data = match dtype {
        BOOL => TensorData::new(values.iter().map(|&x| x != 0.0).collect::<Vec<_>>(), shape.to_vec()),
        _ => TensorData::new(values.to_vec(), shape.to_vec()).convert_dtype(dtype),
    };
    let (Value::Float(t) | Value::Int(t) | Value::Bool(t)) = Value::<Cuda>::new(data, &device());
    t
}

fn value_of(x: Tensor) -> Value<Cuda> {
    match x.dtype() {
        dtype if dtype.is_float() => Value::Float(x),
        dtype if dtype.is_bool() => Value::Bool(x),
        _ => Value::Int(x),
    }
}

/// All elements, in row-major order. For small tensors.
fn read(x: Tensor) -> Vec<f64> {
    assert!(x.len() <= 1 << 24, "{} elements are not for the host", x.len());
    value_of(x).read().iter::<f64>().collect()
}

fn flag(x: Tensor) -> bool {
    read(x)[0] != 0.0
}

fn reshape(x: Tensor, shape: &[usize]) -> Tensor {
    note_sizes(shape);
    as_shape(x, shape)
}

/// A reshape for a comparison.
fn as_shape(x: Tensor, shape: &[usize]) -> Tensor {
    Cuda::int_reshape(x, Shape::from(shape.to_vec()))
}

fn flat(x: Tensor) -> Tensor {
    let len = x.len();
    as_shape(x, &[len])
}

/// The ranges `start..end` of the first dimensions.
fn part(x: &Tensor, ranges: &[[usize; 2]]) -> Tensor {
    let slices: Vec<_> = ranges.iter().map(|&[a, b]| Slice::new(a as isize, Some(b as isize), 1)).collect();
    Cuda::int_slice(x.clone(), &slices)
}

/// Elements `at..at + len` of a flat tensor, on the host.
fn peek(x: &Tensor, at: usize, len: usize) -> Vec<f64> {
    read(part(x, &[[at, at + len]]))
}

fn cast(x: Tensor, dtype: DType) -> Tensor {
    if dtype.is_float() { Cuda::int_into_float(x, dtype.into()) } else { Cuda::int_cast(x, dtype.into()) }
}

fn add(x: Tensor, y: i64) -> Tensor {
    Cuda::int_add_scalar(x, Scalar::Int(y))
}

fn full(n: usize, value: i64, dtype: DType) -> Tensor {
    note_sizes(&[n]);
    let shape = Shape::from(vec![n]);
    if dtype.is_float() {
        Cuda::float_full(shape, Scalar::Int(value), &device(), dtype.into())
    } else {
        Cuda::int_full(shape, Scalar::Int(value), &device(), dtype.into())
    }
}

fn zeros(n: usize, dtype: DType) -> Tensor {
    note_sizes(&[n]);
    let shape = Shape::from(vec![n]);
    match dtype {
        BOOL => Cuda::bool_zeros(shape, &device(), NATIVE),
        _ if dtype.is_float() => Cuda::float_zeros(shape, &device(), dtype.into()),
        _ => Cuda::int_zeros(shape, &device(), dtype.into()),
    }
}

fn ids(values: &[usize]) -> Tensor {
    let values: Vec<i64> = values.iter().map(|&i| i as i64).collect();
    let len = values.len();
    Cuda::int_from_data(TensorData::new(values, [len]), &device())
}

/// `table` over and over: `n` elements, at the start of their storage.
fn tiled(table: &[f64], n: usize, dtype: DType) -> Tensor {
    note_sizes(&[n]);
    let rows = n.div_ceil(table.len());
    let row = upload(table, &[1, table.len()], dtype);
    let all = Cuda::int_expand(row, Shape::from(vec![rows, table.len()]));
    let all = as_shape(all, &[rows * table.len()]);
    if all.len() == n { all } else { part(&all, &[[0, n]]) }
}

/// `f(0), f(1), ...`
fn table(len: usize, f: impl Fn(usize) -> f64) -> Vec<f64> {
    (0..len).map(f).collect()
}

/// The pattern; for bools, whether its elements are multiples of 3.
fn pattern(n: usize, dtype: DType) -> Tensor {
    let bit = |i: usize| (v(i) % 3.0 == 0.0) as u8 as f64;
    if dtype == BOOL { tiled(&table(PERIOD, bit), n, BOOL) } else { tiled(&table(PERIOD, v), n, dtype) }
}

/// Zeros, but for these elements.
fn marked(n: usize, marks: &[(usize, i64)], dtype: DType) -> Tensor {
    let mut x = zeros(n, dtype);
    for &(at, value) in marks {
        let slices = [Slice::new(at as isize, Some(at as isize + 1), 1)];
        x = Cuda::int_slice_assign(x, &slices, upload(&[value as f64], &[1], dtype));
    }
    for &(at, value) in marks {
        assert_eq!(peek(&x, at, 1), [value as f64], "the mark at {at}");
    }
    x
}

/// Elements that differ from 0: counted in parts.
fn nonzero(x: &Tensor) -> usize {
    let x = flat(x.clone());
    let mut count = 0;
    for start in (0..x.len()).step_by(PART) {
        let some = part(&x, &[[start, (start + PART).min(x.len())]]);
        let bits =
            if x.dtype() == BOOL { some } else { Cuda::int_not_equal_elem(some, Scalar::Int(0), NATIVE) };
        let sum = Cuda::int_sum(Cuda::bool_into_int(bits, IntDType::I32));
        count += read(sum)[0] as usize;
    }
    count
}

/// Fails with the first place where the two differ. `got` is a part that starts at element `first`; `expected` broadcasts.
#[track_caller]
fn compare(what: &str, got: Tensor, expected: Tensor, first: usize) {
    let equal = Cuda::int_equal(got.clone(), expected.clone(), NATIVE);
    if flag(Cuda::bool_all(equal.clone())) {
        return;
    }
    let wrong = equal.len() - nonzero(&equal);
    let at = Cuda::float_argmin(bytes(flat(equal)), 0, IntDType::I64);
    let at = read(at)[0] as usize;
    let expected = Cuda::int_expand(expected, got.shape());
    let (got, expected) = (peek(&flat(got), at, 1)[0], peek(&flat(expected), at, 1)[0]);
    panic!("{what}: element {} is {got}, not {expected}; {wrong} of its part differ", first + at);
}

fn bytes(x: Tensor) -> Tensor {
    Cuda::bool_into_int(x, IntDType::U8)
}

/// Compares all of `y`, taken as `[outer, times, len]`, with `expected [outer, 1, len]`.
#[track_caller]
fn check_repeats(what: &str, y: &Tensor, [outer, times, len]: [usize; 3], expected: &Tensor) {
    assert_eq!((y.len(), expected.len()), (outer * times * len, outer * len), "{what}: sizes");
    let y = as_shape(y.clone(), &[outer, times, len]);
    let expected = as_shape(expected.clone(), &[outer, 1, len]);
    let (outers, many) = match times * len {
        slab if slab <= PART => ((PART / slab).min(outer), times),
        _ => (1, (PART / len).max(1)),
    };
    for o in (0..outer).step_by(outers) {
        for t in (0..times).step_by(many) {
            let o_range = [o, (o + outers).min(outer)];
            let got = part(&y, &[o_range, [t, (t + many).min(times)]]);
            compare(what, got, part(&expected, &[o_range]), (o * times + t) * len);
        }
    }
}

/// Compares all of `y`, in row-major order, with `expected` over and over.
#[track_caller]
fn check(what: &str, y: &Tensor, expected: &[f64]) {
    let (y, len) = (flat(y.clone()), expected.len());
    let (n, dtype) = (y.len(), y.dtype());
    // What the host sees.
    let mut places = vec![0, n.saturating_sub(16)];
    places.extend([EDGE - 8, 2 * EDGE - 8].into_iter().filter(|at| at + 16 <= n));
    for at in places {
        let got = peek(&y, at, 16.min(n - at));
        let expected: Vec<_> = (at..at + got.len()).map(|i| expected[i % len]).collect();
        assert_eq!(got, expected, "{what}: {dtype:?} elements from {at} of {n}");
    }
    // All, on the device: whole repetitions, then the rest.
    let (times, expected) = (n / len, upload(expected, &[len], dtype));
    if times > 0 {
        check_repeats(what, &part(&y, &[[0, times * len]]), [1, times, len], &expected);
    }
    if n > times * len {
        let rest = n - times * len;
        compare(what, part(&y, &[[times * len, n]]), part(&expected, &[[0, rest]]), times * len);
    }
}

/// Compares with `start, start + step, ...`.
#[track_caller]
fn check_arange(what: &str, y: &Tensor, start: i64, step: i64) {
    const LEN: usize = 1 << 28;
    let dtype: IntDType = y.dtype().into();
    let counted = Cuda::int_arange_step(0..LEN as i64 * step, step as usize, &device(), dtype);
    for first in (0..y.len()).step_by(LEN) {
        let some = part(y, &[[first, (first + LEN).min(y.len())]]);
        let expected = add(part(&counted, &[[0, some.len()]]), start + first as i64 * step);
        compare(what, some, expected, first);
    }
}

/// All of `y` is its first `len` elements over and over; returns those.
#[track_caller]
fn check_tiles(what: &str, y: &Tensor, len: usize) -> Vec<f64> {
    let y = flat(y.clone());
    assert_eq!(y.len() % len, 0, "{what}: whole tiles");
    let tile = read(part(&y, &[[0, len]]));
    check(what, &y, &tile);
    tile
}

#[track_caller]
fn near(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let close = (g - e).abs() <= tolerance * e.abs().max(1e-6);
        assert!(close, "{what}: element {i} is {g}, not {e} within {tolerance} of it");
    }
}

fn wrap(x: f64) -> f64 {
    x.rem_euclid(256.0)
}

// --- elementwise --------------------------------------------------------------------------------------------------------

fn contiguous(dtype: DType) {
    let n = EDGE + 5000;
    let x = pattern(n, dtype);
    let to = |y: f64| if dtype == DType::U8 { wrap(y) } else { y };
    let plus = add(x.clone(), 3);
    check("x + 3", &plus, &table(PERIOD, |i| v(i) + 3.0));
    let sum = Cuda::int_add(x.clone(), plus);
    check("x + (x + 3)", &sum, &table(PERIOD, |i| to(2.0 * v(i) + 3.0)));
    // Nobody else holds the sum: in place.
    let twice = Cuda::int_mul_scalar(sum, Scalar::Int(2));
    check("2 (x + (x + 3)), in place", &twice, &table(PERIOD, |i| to(4.0 * v(i) + 6.0)));
    drop(twice);
    check("x itself", &x, &table(PERIOD, v));
    // One element later: no packs.
    let odd = add(part(&x, &[[1, n]]), 1);
    check("x[1..] + 1", &odd, &table(PERIOD, |i| v(i + 1) + 1.0));
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn elementwise_contiguous_bytes() {
    let _alone = begin("elementwise_contiguous_bytes", "elementwise", DType::U8);
    contiguous(DType::U8);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn elementwise_contiguous_f16() {
    let _alone = begin("elementwise_contiguous_f16", "elementwise", DType::F16);
    contiguous(DType::F16);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn elementwise_contiguous_f32() {
    let _alone = begin("elementwise_contiguous_f32", "elementwise", DType::F32);
    contiguous(DType::F32);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn elementwise_bools() {
    let _alone = begin("elementwise_bools", "logic", BOOL).views();
    let bit = |i: usize| v(i) % 3.0 == 0.0;
    let number = |b: bool| b as u8 as f64;
    let x = pattern(2 * EDGE + 5000, BOOL);
    let later = part(&x, &[[1, x.len()]]);
    let here = part(&x, &[[0, later.len()]]);
    check("not", &Cuda::bool_not(x.clone()), &table(PERIOD, |i| number(!bit(i))));
    let both = Cuda::bool_and(here.clone(), later.clone());
    check("and", &both, &table(PERIOD, |i| number(bit(i) & bit(i + 1))));
    check("xor", &Cuda::bool_xor(here, later), &table(PERIOD, |i| number(bit(i) ^ bit(i + 1))));
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn elementwise_sizes_at_the_edges() {
    let _alone = begin("elementwise_sizes_at_the_edges", "elementwise", DType::U8).views();
    let x = pattern(2 * EDGE + 8, DType::U8);
    for n in [EDGE - 1, EDGE, EDGE + 1, 2 * EDGE - 1, 2 * EDGE, 2 * EDGE + 1] {
        for skip in [0, 1, 4] {
            let y = add(part(&x, &[[skip, skip + n]]), 1);
            check(&format!("x[{skip}..][..{n}] + 1"), &y, &table(PERIOD, |i| v(i + skip) + 1.0));
        }
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn elementwise_broadcast() {
    let _alone = begin("elementwise_broadcast", "elementwise", DType::U8);
    let dtype = DType::F16;
    let x = reshape(pattern(ROWS * COLS, dtype), &[ROWS, COLS]);
    let column = reshape(tiled(&table(7, |r| r as f64), ROWS, dtype), &[ROWS, 1]);
    let row = upload(&table(COLS, |c| (c % 5) as f64), &[1, COLS], dtype);
    let expected = |f: fn(f64, usize, usize) -> f64| table(PERIOD, |i| f(v(i), i / COLS, i % COLS));
    let y = Cuda::int_add(x.clone(), row.clone());
    check("a row added", &y, &expected(|x, _, c| x + (c % 5) as f64));
    let y = Cuda::int_add(x.clone(), column.clone());
    check("a column added", &y, &expected(|x, r, _| x + r as f64));
    drop((y, x));
    let y = Cuda::int_add(column, row);
    check("a column and a row", &y, &expected(|_, r, c| (r + c % 5) as f64));
    drop(y);
    // Rows that no pack divides.
    let (rows, cols) = (PERIOD * 303, 1007);
    let x = reshape(pattern(rows * cols, DType::U8), &[rows, cols]);
    let row = upload(&table(cols, |c| (c % 5) as f64), &[cols], DType::U8);
    let y = Cuda::int_add(x, row);
    assert!(y.len() > EDGE);
    check("rows of 1007", &y, &table(PERIOD * cols, |i| v(i) + (i % cols % 5) as f64));
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn elementwise_transposed() {
    let _alone = begin("elementwise_transposed", "elementwise", DType::U8).views();
    // Along a column, 1000 r + c repeats modulo PERIOD after 882 rows.
    let (rows, cols, repeat) = (882 * 2436, 1000, 882);
    let x = reshape(pattern(rows * cols, DType::U8), &[rows, cols]);
    assert!(x.len() > EDGE);
    let t = Cuda::int_transpose(x);
    let expected = upload(
        &table(cols * repeat, |i| v(i % repeat * cols + i / repeat) + 1.0),
        &[cols, 1, repeat],
        DType::U8,
    );
    check_repeats("x^T + 1", &add(t.clone(), 1), [cols, rows / repeat, repeat], &expected);
    let copied = add(flat(t), 1);
    check_repeats("a copy of x^T", &copied, [cols, rows / repeat, repeat], &expected);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn elementwise_permuted() {
    let _alone = begin("elementwise_permuted", "elementwise", DType::U8).views();
    let (a, b, c) = (PERIOD * 1416, 5, 43);
    let x = reshape(pattern(a * b * c, DType::U8), &[a, b, c]);
    assert!(x.len() > EDGE);
    let permuted = Cuda::int_permute(x, &[2, 1, 0]);
    let y = add(permuted.clone(), 1);
    // y[k, j, i] = x[i, j, k] + 1
    let expected = table(c * b * PERIOD, |at| {
        let (k, j, i) = (at / PERIOD / b, at / PERIOD % b, at % PERIOD);
        v((i * b + j) * c + k) + 1.0
    });
    let expected = upload(&expected, &[c * b, 1, PERIOD], DType::U8);
    check_repeats("three loops", &y, [c * b, a / PERIOD, PERIOD], &expected);
    drop(y);
    check_repeats("a copy of three loops", &add(flat(permuted), 1), [c * b, a / PERIOD, PERIOD], &expected);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn slices_beyond_the_edge_steps_and_flips() {
    let _alone = begin("slices_beyond_the_edge_steps_and_flips", "layout", DType::U8).views();
    let n = 2 * EDGE + 10_000;
    let x = pattern(n, DType::U8);
    let slice = |start: usize, end: usize, step: isize| {
        Cuda::int_slice(x.clone(), &[Slice::new(start as isize, Some(end as isize), step)])
    };
    for (start, end) in [(EDGE - 3, EDGE + 4096), (EDGE + 1005, n - 7), (2 * EDGE + 1, n)] {
        let y = add(slice(start, end, 1), 1);
        check(&format!("x[{start}..{end}] + 1"), &y, &table(PERIOD, |i| v(start + i) + 1.0));
    }
    for (start, step) in [(1, 2), (5, 3), (EDGE + 2, 7)] {
        let y = add(slice(start, n, step as isize), 1);
        check(&format!("x[{start}..; {step}] + 1"), &y, &table(PERIOD, |i| v(start + step * i) + 1.0));
    }
    // Backwards, from a multiple of the period so that the table needs no negative numbers.
    let back = |last: usize, step: usize| {
        let turn = PERIOD * step;
        table(PERIOD, move |i| v(last % PERIOD + turn - step * i) + 1.0)
    };
    check("a flip", &add(Cuda::int_flip(x.clone(), &[0]), 1), &back(n - 1, 1));
    check("step -1 from the middle", &add(slice(EDGE - 9, n - 5, -1), 1), &back(n - 6, 1));
    check("step -2", &add(slice(0, n, -2), 1), &back(n - 1, 2));
    // Rows from beyond the edge, their columns backwards.
    let rows = n / 1000;
    let m = reshape(slice(0, rows * 1000, 1), &[rows, 1000]);
    let first = (EDGE / 1000).next_multiple_of(441) + 441;
    let some = part(&m, &[[first, first + 882], [3, 999]]);
    let y = add(Cuda::int_flip(some, &[1]), 1);
    let expected = |i: usize| v((first + i / 996) * 1000 + 998 - i % 996) + 1.0;
    check("rows backwards", &y, &table(882 * 996, expected));
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn constants() {
    let _alone = begin("constants", "elementwise", DType::U8);
    let n = 2 * EDGE + 3;
    check("full", &full(n, 7, DType::U8), &[7.0]);
    // Where the sevens were.
    check("zeros", &zeros(n, DType::U8), &[0.0]);
    check("ones", &Cuda::int_ones(Shape::from(vec![n]), &device(), IntDType::U8), &[1.0]);
    check("bool ones", &Cuda::bool_ones(Shape::from(vec![n]), &device(), NATIVE), &[1.0]);
    check("full", &full(n, -3, DType::F16), &[-3.0]);
    check("zeros", &zeros(n, DType::F16), &[0.0]);
    for n in [EDGE - 1, EDGE, EDGE + 1] {
        check("full at the edge", &full(n, -5, DType::I16), &[-5.0]);
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn ranges() {
    let _alone = begin("ranges", "elementwise", DType::I64);
    let edge = EDGE as i64;
    let all = Cuda::int_arange(-edge..edge, &device(), IntDType::I32);
    assert_eq!(all.len(), 2 * EDGE);
    check_arange("every i32", &all, -edge, 1);
    drop(all);
    let some = Cuda::int_arange(5..edge + 25, &device(), IntDType::I64);
    check_arange("i64", &some, 5, 1);
    drop(some);
    let steps = Cuda::int_arange_step(-7..3 * edge + 20, 3, &device(), IntDType::I64);
    assert_eq!(steps.len(), EDGE + 9);
    check_arange("i64 in steps of 3", &steps, -7, 3);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn casts() {
    let _alone = begin("casts", "cast", DType::U8);
    let n = EDGE + 5000;
    let x = pattern(n, DType::U8);
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::I16, DType::I64, DType::F64] {
        let y = cast(x.clone(), dtype);
        check(&format!("u8 to {dtype:?}"), &y, &table(PERIOD, v));
        check(&format!("{dtype:?} to u8"), &cast(y, DType::U8), &table(PERIOD, v));
    }
    let bits = Cuda::int_greater_elem(x, Scalar::Int(100), NATIVE);
    let expected = table(PERIOD, |i| (v(i) > 100.0) as u8 as f64);
    check("bool to i32", &Cuda::bool_into_int(bits.clone(), IntDType::I32), &expected);
    check("bool to bf16", &Cuda::bool_into_float(bits, DType::BF16.into()), &expected);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn comparisons() {
    let _alone = begin("comparisons", "logic", DType::U8).views();
    let n = 2 * EDGE + 5000;
    let x = pattern(n, DType::U8);
    let number = |b: bool| b as u8 as f64;
    let (here, later) = (part(&x, &[[0, n - 1]]), part(&x, &[[1, n]]));
    let y = Cuda::int_greater(here.clone(), later.clone(), NATIVE);
    check("greater", &y, &table(PERIOD, |i| number(v(i) > v(i + 1))));
    let y = Cuda::int_lower_equal(here, later, NATIVE);
    check("lower_equal", &y, &table(PERIOD, |i| number(v(i) <= v(i + 1))));
    let y = Cuda::int_equal_elem(x, Scalar::Int(4), NATIVE);
    check("equal_elem", &y, &table(PERIOD, |i| number(v(i) == 4.0)));
    drop(y);
    let marks = [(0, 1), (EDGE - 1, 2), (EDGE, 3), (EDGE + 1, 4), (2 * EDGE, 5), (n - 1, 6)];
    let y = marked(n, &marks, DType::U8);
    let differ = Cuda::int_not_equal(y, zeros(n, DType::U8), NATIVE);
    assert_eq!(nonzero(&differ), marks.len());
    assert!(marks.iter().all(|&(at, _)| peek(&differ, at, 1) == [1.0]));
    drop(differ);
    let x = reshape(pattern(ROWS * COLS, DType::F16), &[ROWS, COLS]);
    let column = reshape(tiled(&table(7, |r| 100.0 + r as f64), ROWS, DType::F16), &[ROWS, 1]);
    let y = Cuda::int_lower(x, column, NATIVE);
    check("lower than a column", &y, &table(PERIOD, |i| number(v(i) < 100.0 + (i / COLS) as f64)));
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn masks() {
    let _alone = begin("masks", "logic", DType::U8);
    let n = EDGE + 5000;
    let bit = |i: usize| v(i) % 3.0 == 0.0;
    let mask = pattern(n, BOOL);
    for dtype in [DType::U8, DType::F16, DType::F32] {
        let x = pattern(n, dtype);
        let y = Cuda::int_mask_fill(x.clone(), mask.clone(), Scalar::Int(77));
        check("mask_fill", &y, &table(PERIOD, |i| if bit(i) { 77.0 } else { v(i) }));
        let y = Cuda::int_mask_where(x, mask.clone(), y);
        check("mask_where", &y, &table(PERIOD, |i| if bit(i) { 77.0 } else { v(i) }));
    }
    // A value of one element, a mask of one row.
    let x = reshape(pattern(ROWS * COLS, DType::F16), &[ROWS, COLS]);
    let mask = upload(&table(COLS, |c| (c % 5 == 0) as u8 as f64), &[1, COLS], BOOL);
    let y = Cuda::int_mask_where(x, mask, upload(&[-1.0], &[1, 1], DType::F16));
    check(
        "a row as the mask",
        &y,
        &table(PERIOD, |i| if (i % COLS).is_multiple_of(5) { -1.0 } else { v(i) }),
    );
}

// --- reductions ---------------------------------------------------------------------------------------------------------

/// The sum of the pattern's first `n` elements.
fn pattern_sum(n: usize) -> f64 {
    let whole: f64 = (0..PERIOD).map(v).sum();
    (n / PERIOD) as f64 * whole + (0..n % PERIOD).map(v).sum::<f64>()
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn sums_of_everything() {
    let _alone = begin("sums_of_everything", "reduce", DType::U8).views();
    let x = pattern(2 * EDGE + 16, DType::U8);
    for n in [EDGE - 1, EDGE, EDGE + 1, 2 * EDGE - 1, 2 * EDGE, 2 * EDGE + 3] {
        let x = part(&x, &[[0, n]]);
        assert_eq!(read(Cuda::int_sum(x.clone())), [wrap(pattern_sum(n))], "sum of {n} bytes");
        assert_eq!(read(Cuda::int_mean(x)), [(pattern_sum(n) / n as f64).trunc()], "mean of {n} bytes");
    }
    drop(x);
    let n = EDGE + 11;
    let wide = cast(pattern(n, DType::U8), DType::I64);
    assert_eq!(read(Cuda::int_sum(wide)), [pattern_sum(n)], "sum of i64");
    let y = pattern(n, DType::F32);
    near("sum of f32", &read(Cuda::float_sum(y.clone())), &[pattern_sum(n)], 1e-5);
    near("mean of f32", &read(Cuda::float_mean(y)), &[pattern_sum(n) / n as f64], 1e-5);
    assert_eq!(
        read(Cuda::int_prod(add(marked(n, &[(n - 1, 2), (EDGE, 4)], DType::U8), 1))),
        [15.0],
        "product"
    );
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn sums_and_means_in_16_bits() {
    let _alone = begin("sums_and_means_in_16_bits", "reduce", DType::F16);
    // A number of bf16.
    let n = EDGE + (1 << 24);
    let ones = full(n, 1, DType::BF16);
    assert_eq!(read(Cuda::float_sum(ones.clone())), [n as f64], "sum of ones");
    assert_eq!(read(Cuda::float_mean(ones)), [1.0], "mean of ones");
    for dtype in [DType::BF16, DType::F16] {
        let x = tiled(&[0.0, 1.0, 0.0, 3.0], n, dtype);
        assert_eq!(read(Cuda::float_mean(x)), [1.0], "mean of 0, 1, 0, 3 in {dtype:?}");
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn extrema_of_everything() {
    let _alone = begin("extrema_of_everything", "reduce", DType::U8);
    let n = 2 * EDGE + 9;
    for at in [0, EDGE - 1, EDGE, EDGE + 1, 2 * EDGE - 1, 2 * EDGE, n - 1] {
        let x = marked(n, &[(at, 3)], DType::U8);
        assert_eq!(read(Cuda::int_max(x.clone())), [3.0], "max, at {at}");
        assert_eq!(read(Cuda::float_argmax(x.clone(), 0, IntDType::I64)), [at as f64], "argmax");
        assert_eq!(read(Cuda::int_any(x.clone(), NATIVE)), [1.0], "any, at {at}");
        let x = Cuda::int_sub_scalar(x, Scalar::Int(3)); // 253, but 0 there
        assert_eq!(read(Cuda::int_min(x.clone())), [0.0], "min, at {at}");
        let (least, index) = Cuda::float_min_dim_with_indices(x.clone(), 0, IntDType::I64);
        assert_eq!((read(least), read(index)), (vec![0.0], vec![at as f64]), "min_dim_with_indices");
        assert_eq!(read(Cuda::int_all(x, NATIVE)), [0.0], "all, at {at}");
    }
    let none = zeros(n, DType::U8);
    assert_eq!(read(Cuda::int_any(none.clone(), NATIVE)), [0.0]);
    assert_eq!(read(Cuda::float_argmax(none.clone(), 0, IntDType::I64)), [0.0], "the first of equals");
    assert_eq!(read(Cuda::int_all(add(none, 1), NATIVE)), [1.0]);
    // Two of the largest: the first counts.
    let x = marked(n, &[(EDGE + 5, 9), (2 * EDGE + 5, 9)], DType::U8);
    assert_eq!(read(Cuda::float_argmax(x, 0, IntDType::I64)), [(EDGE + 5) as f64]);
    for dtype in [DType::F16, DType::BF16] {
        let x = marked(EDGE + 77, &[(EDGE + 70, -2)], dtype);
        assert_eq!(read(Cuda::float_argmin(x.clone(), 0, IntDType::I64)), [(EDGE + 70) as f64], "{dtype:?}");
        assert_eq!(read(Cuda::float_max_abs(x.clone())), [2.0], "{dtype:?}");
        let (max, index) = Cuda::float_max_dim_with_indices(x, 0, IntDType::U32);
        assert_eq!((read(max), read(index)), (vec![0.0], vec![0.0]), "{dtype:?}");
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn indices_that_do_not_fit_their_dtype_are_refused() {
    let _alone = begin("indices_that_do_not_fit_their_dtype_are_refused", "reduce", DType::U8);
    let x = marked(EDGE + 1, &[(EDGE, 1)], DType::U8);
    let error = caught(|| Cuda::float_argmax(x.clone(), 0, IntDType::I32)).expect_err("2^31 is no i32");
    assert!(error.contains("do not fit"), "{error}");
    assert_eq!(read(Cuda::float_argmax(part(&x, &[[0, EDGE]]), 0, IntDType::I32)), [0.0]);
    assert_eq!(read(Cuda::float_argmax(part(&x, &[[1, EDGE + 1]]), 0, IntDType::I32)), [(EDGE - 1) as f64]);
    assert_eq!(read(Cuda::float_argmax(x, 0, IntDType::U32)), [EDGE as f64]);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn reductions_of_two_long_rows() {
    let _alone = begin("reductions_of_two_long_rows", "reduce", DType::U8);
    // [2, n] over the last dimension; [n, 2] over the first.
    let n = EDGE + 504;
    let x = pattern(2 * n, DType::U8);
    let rows = reshape(x.clone(), &[2, n]);
    let second = pattern_sum(2 * n) - pattern_sum(n);
    let expected = [wrap(pattern_sum(n)), wrap(second)];
    assert_eq!(read(Cuda::int_sum_dim(rows.clone(), 1)), expected, "sums of rows");
    let means = [pattern_sum(n) / n as f64, second / n as f64].map(f64::trunc);
    assert_eq!(read(Cuda::int_mean_dim(rows, 1)), means, "means of rows");
    let columns = reshape(x, &[n, 2]);
    let even = (n / (PERIOD / 2)) as f64 * (0..PERIOD / 2).map(|i| v(2 * i)).sum::<f64>()
        + (0..n % (PERIOD / 2)).map(|i| v(2 * i)).sum::<f64>();
    let expected = [wrap(even), wrap(pattern_sum(2 * n) - even)];
    assert_eq!(read(Cuda::int_sum_dim(columns, 0)), expected, "sums of columns");
    let x = marked(2 * n, &[(n - 1, 1), (2 * EDGE + 400, 1), (n + EDGE + 3, 2)], DType::U8);
    let at = Cuda::float_argmax(reshape(x.clone(), &[2, n]), 1, IntDType::I64);
    assert_eq!(read(at), [(n - 1) as f64, (EDGE + 3) as f64], "argmax in rows");
    let at = Cuda::float_argmax(reshape(x, &[n, 2]), 0, IntDType::I64);
    assert_eq!(read(at), [(EDGE + 200) as f64, ((n + EDGE + 3) / 2) as f64], "argmax in columns");
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn reductions_of_many_short_rows() {
    let _alone = begin("reductions_of_many_short_rows", "reduce", DType::U8);
    let n = 504 * 4_261_000;
    assert!(n > EDGE);
    let x = pattern(2 * n, DType::U8);
    let pairs = reshape(x.clone(), &[n, 2]);
    let pair = |i: usize| (v(2 * i), v(2 * i + 1));
    let y = Cuda::int_sum_dim(pairs.clone(), 1);
    check("sums of pairs", &y, &table(PERIOD, |i| wrap(pair(i).0 + pair(i).1)));
    let y = Cuda::int_max_dim(pairs.clone(), 1);
    check("maxima of pairs", &y, &table(PERIOD, |i| pair(i).0.max(pair(i).1)));
    let y = Cuda::float_argmax(pairs.clone(), 1, IntDType::U8);
    check("argmax of pairs", &y, &table(PERIOD, |i| (pair(i).1 > pair(i).0) as u8 as f64));
    let bits = Cuda::int_greater_elem(pairs, Scalar::Int(200), NATIVE);
    let y = Cuda::bool_any_dim(bits, 1);
    check("any of pairs", &y, &table(PERIOD, |i| (pair(i).0.max(pair(i).1) > 200.0) as u8 as f64));
    drop(y);
    let y = Cuda::int_sum_dim(reshape(x.clone(), &[2 * n, 1]), 1);
    check("sums of single elements", &y, &table(PERIOD, v));
    drop((x, y));
    let x = reshape(pattern(2 * n, DType::F16), &[n, 2]);
    let y = Cuda::float_sum_dim(x, 1);
    check("sums of f16 pairs", &y, &table(PERIOD, |i| pair(i).0 + pair(i).1));
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn reductions_over_the_first_and_middle_dimensions() {
    let _alone = begin("reductions_over_the_first_and_middle_dimensions", "reduce", DType::U8);
    // Two rows, more than 2^31 columns.
    let n = COLS * ROWS + 504;
    let x = reshape(pattern(2 * n, DType::U8), &[2, n]);
    let pair = |i: usize| (v(i), v(n + i));
    let y = Cuda::int_sum_dim(x.clone(), 0);
    check("sums over two rows", &y, &table(PERIOD, |i| wrap(pair(i).0 + pair(i).1)));
    let y = Cuda::float_argmin(x.clone(), 0, IntDType::U8);
    check("argmin over two rows", &y, &table(PERIOD, |i| (pair(i).1 < pair(i).0) as u8 as f64));
    let y = Cuda::int_all_dim(x, 0, NATIVE);
    check("all over two rows", &y, &table(PERIOD, |i| (pair(i).0.min(pair(i).1) > 0.0) as u8 as f64));
    drop(y);
    // Columns that are no multiple of a pack, and three dimensions.
    let n = (EDGE / 2 + 504) / 504 * 504 + 503;
    let x = reshape(pattern(6 * n, DType::U8), &[2, 3, n]);
    let y = Cuda::int_sum_dim(x, 1);
    assert!(y.len() > EDGE);
    for a in 0..2 {
        let at = |b: usize, i: usize| v((a * 3 + b) * n + i);
        let some = part(&y, &[[a, a + 1]]);
        check("sums over the middle", &some, &table(PERIOD, |i| wrap(at(0, i) + at(1, i) + at(2, i))));
    }
    drop(y);
    let (a, b) = (2200, 1024);
    let x = reshape(pattern(a * b * COLS, DType::U8), &[a, b, COLS]);
    assert!(x.len() > EDGE);
    let y = Cuda::int_sum_dim(x.clone(), 1);
    let sum = |at: usize| (0..b).map(|k| v((at / COLS * b + k) * COLS + at % COLS)).sum::<f64>();
    let sums = table(PERIOD, |i| wrap(sum(i)));
    assert_eq!(read(y), table(a * COLS, |i| sums[i % PERIOD]), "sums over 1024 in the middle");
    let y = Cuda::int_sum_dim(reshape(x.clone(), &[a * b, COLS]), 0);
    let rows: Vec<_> = (0..7).map(|r| (a * b / 7 + (r < a * b % 7) as usize) as f64).collect();
    let sum = |c: usize| (0..7).map(|r| rows[r] * v(r * COLS + c)).sum::<f64>();
    assert_eq!(read(y), table(COLS, |c| wrap(sum(c))), "sums over the first");
    let y = Cuda::int_max_dim(reshape(x, &[a, b * COLS]), 1);
    assert_eq!(read(y), vec![(0..PERIOD).map(v).fold(0.0, f64::max); a], "maxima over the last");
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn argmax_over_the_first_dimension_of_a_column_slice() {
    let _alone = begin("argmax_over_the_first_dimension_of_a_column_slice", "reduce", DType::U8).views();
    let (n, k) = (70_000, 300);
    let mut x = reshape(zeros(n * 105 * k, DType::U8), &[n, 105, k]);
    assert!(x.len() > EDGE);
    let one = upload(&[1.0], &[1, 1, 1], DType::U8);
    let place = |j: usize, c: usize| (n - 1 - (j * 131 + c * 17) % 5000, j, c);
    let places: Vec<_> = (100..105).flat_map(|j| (7..k).step_by(41).map(move |c| (j, c))).collect();
    for &(j, c) in &places {
        let (r, j, c) = place(j, c);
        let range = [r, j, c].map(|i| Slice::new(i as isize, Some(i as isize + 1), 1));
        x = Cuda::int_slice_assign(x, &range, one.clone());
    }
    let some = part(&x, &[[0, n], [100, 105], [7, k]]);
    let (max, at) = Cuda::float_max_dim_with_indices(some, 0, IntDType::I64);
    let (max, at) = (read(max), read(at));
    let width = k - 7;
    for j in 100..105 {
        for c in 7..k {
            let i = (j - 100) * width + c - 7;
            let expected = match places.contains(&(j, c)) {
                true => (1.0, place(j, c).0 as f64),
                false => (0.0, 0.0),
            };
            assert_eq!((max[i], at[i]), expected, "column ({j}, {c})");
        }
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn gradients_of_a_bias() {
    let _alone = begin("gradients_of_a_bias", "reduce", DType::BF16).gradients();
    // Sums of 0 and 1 over all rows, rounded once to bf16.
    let bit = |i: usize| (v(i) % 2.0 == 0.0) as u8 as f64;
    let x = reshape(tiled(&table(PERIOD, bit), ROWS * COLS, DType::BF16), &[ROWS, COLS]);
    let got = read(Cuda::linear_bias_backward(x));
    let sum = |c: usize| (ROWS / 7) as f64 * (0..7).map(|r| bit(r * COLS + c)).sum::<f64>();
    let expected = read(upload(&table(COLS, sum), &[COLS], DType::BF16));
    assert_eq!(got, expected);
}

// --- scans and rows -----------------------------------------------------------------------------------------------------

/// Running sums, modulo 256, of `len` numbers.
fn running(len: usize, f: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut sum = 0.0;
    let mut next = |x| {
        sum = wrap(sum + x);
        sum
    };
    table(len, f).into_iter().map(&mut next).collect()
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn cumulative_along_one_long_dimension() {
    let _alone = begin("cumulative_along_one_long_dimension", "cumulative", DType::U8);
    let n = EDGE + 5000;
    // 256 periods bring the sum back to 0 modulo 256.
    let y = Cuda::int_cumsum(pattern(n, DType::U8), 0);
    check("cumsum of bytes", &y, &running(256 * PERIOD, v));
    drop(y);
    let odd = Cuda::int_cumsum(part(&pattern(n, DType::U8), &[[1, n]]), 0);
    check("cumsum of x[1..]", &odd, &running(256 * PERIOD, |i| v(i + 1)));
    drop(odd);
    let pairs = reshape(pattern(2 * n, DType::U8), &[n, 2]);
    let y = Cuda::int_cumsum(pairs, 0);
    let columns = [0, 1].map(|j| running(256 * PERIOD / 2, move |i| v(2 * i + j)));
    check("cumsum of two columns", &y, &table(256 * PERIOD, |i| columns[i % 2][i / 2]));
    drop(y);
    let y = Cuda::int_cummax(marked(n, &[(9, 1), (EDGE + 4, 5)], DType::U8), 0);
    assert_eq!(nonzero(&y), n - 9, "cummax");
    assert_eq!(nonzero(&Cuda::int_sub_scalar(y, Scalar::Int(1))), 9 + n - EDGE - 4, "cummax");
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn sorts_of_more_than_2_to_the_31() {
    let _alone = begin("sorts_of_more_than_2_to_the_31", "sort", DType::U8);
    let n = EDGE + 5000;
    // One row, one digit and two.
    for (dtype, low, high) in [(DType::U8, 1, 5), (DType::I16, 3, 300)] {
        let x = marked(n, &[(9, low), (EDGE + 4, high)], dtype);
        let (y, at) = Cuda::float_sort_with_indices(x.clone(), 0, false, IntDType::U32);
        assert_eq!((peek(&y, n - 3, 3), nonzero(&y)), (vec![0.0, low as f64, high as f64], 2), "{dtype:?}");
        assert_eq!(peek(&at, n - 2, 2), [9.0, (EDGE + 4) as f64], "{dtype:?}");
        assert_eq!(
            (peek(&at, 7, 4), peek(&at, EDGE + 2, 3)),
            (vec![7., 8., 10., 11.], [3, 5, 6].map(|k| (EDGE + k) as f64).to_vec())
        );
        drop((y, at));
        let at = Cuda::float_argtopk(x.clone(), 0, 3, IntDType::I64);
        assert_eq!(peek(&at, 0, 3), [(EDGE + 4) as f64, 9.0, 0.0], "{dtype:?}");
        let error =
            caught(|| drop(Cuda::float_argsort(x, 0, true, IntDType::I32))).expect_err("an i32 is too small");
        assert!(error.contains("2147483647"), "{error}");
    }
    // Many rows: of a warp, of a block, of several tiles.
    for cols in [112, COLS, 7056] {
        let rows = EDGE / cols + 9;
        let x = reshape(
            marked(rows * cols, &[(5, 2), (EDGE + 3, 7), (rows * cols - 4, 9)], DType::U8),
            &[rows, cols],
        );
        let y = Cuda::float_sort(x, 1, true);
        assert_eq!(nonzero(&y), 3, "rows of {cols}");
        let y = flat(y);
        for (at, value) in [(5, 2.0), (EDGE + 3, 7.0), (rows * cols - 4, 9.0)] {
            assert_eq!(peek(&y, at / cols * cols, 2), [value, 0.0], "rows of {cols}");
        }
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn argwhere_beyond_the_edge() {
    let _alone = begin("argwhere_beyond_the_edge", "sort", BOOL);
    for n in [EDGE + 5000, 2 * EDGE + 5000] {
        let half = n / 2;
        let x = reshape(marked(n, &[(9, 1), (EDGE + 4, 1), (n - 1, 1)], BOOL), &[2, half]);
        let places = burn_backend::read_sync(Cuda::bool_argwhere(x, IntDType::I64));
        let row = |at: usize| [(at / half) as f64, (at % half) as f64];
        assert_eq!(read(flat(places)), [row(9), row(EDGE + 4), row(n - 1)].concat());
    }
}

/// As many as make other libraries' counts pass 2^31 on the way, and more than that.
#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn argwhere_of_nothing_but_ones() {
    let _alone = begin("argwhere_of_nothing_but_ones", "sort", BOOL);
    for (n, dtype) in [(2_121_269_248, IntDType::I32), (EDGE + 5000, IntDType::I64)] {
        let x = Cuda::bool_ones(Shape::from(vec![n]), &device(), NATIVE);
        let places = burn_backend::read_sync(Cuda::bool_argwhere(x, dtype));
        assert_eq!(places.shape().to_vec(), [n, 1]);
        check_arange("the places of ones", &flat(places), 0, 1);
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn cumsum_counts_beyond_the_edge() {
    let _alone = begin("cumsum_counts_beyond_the_edge", "cumulative", DType::I64);
    let n = EDGE + 5000;
    let y = Cuda::int_cumsum(full(n, 1, DType::I64), 0);
    check_arange("cumsum of ones", &y, 1, 1);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn cumsum_of_many_rows_and_columns() {
    let _alone = begin("cumsum_of_many_rows_and_columns", "cumulative", DType::U8);
    let ones = reshape(full(ROWS * COLS, 1, DType::F32), &[ROWS, COLS]);
    let y = Cuda::float_cumsum(ones, 1);
    check("cumsum along rows of ones", &y, &table(COLS, |c| c as f64 + 1.0));
    drop(y);
    let x = reshape(pattern(ROWS * COLS, DType::U8), &[ROWS, COLS]);
    let rows = (0..7).flat_map(|r| running(COLS, |c| v(r * COLS + c)));
    check("cumsum along rows", &Cuda::int_cumsum(x.clone(), 1), &rows.collect::<Vec<_>>());
    let columns: Vec<_> = (0..COLS).map(|c| running(256 * 7, |r| v(r * COLS + c))).collect();
    let y = Cuda::int_cumsum(x, 0);
    check("cumsum along columns", &y, &table(256 * PERIOD, |i| columns[i % COLS][i / COLS]));
    drop(y);
    // Rows of many tiles.
    let cols = 102 * PERIOD;
    let x = reshape(pattern(3000 * cols, DType::U8), &[3000, cols]);
    assert!(x.len() > EDGE);
    check("cumsum along long rows", &Cuda::int_cumsum(x, 1), &running(cols, v));
}

fn soft(row: &[f64]) -> Vec<f64> {
    let max = row.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x));
    let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
    row.iter().map(|x| (x - max).exp() / sum).collect()
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn softmax_of_rows() {
    let _alone = begin("softmax_of_rows", "softmax", DType::BF16);
    let small = |i: usize| v(i) / 64.0;
    // Rows in registers; rows too long for them; rows that no pack divides.
    for (rows, cols) in [(ROWS, COLS), (7 * 4682, 65_544), (7 * 320_000, 1001)] {
        assert!(rows * cols > EDGE);
        let values = table(7 * cols, |i| small(i + i / cols * 13));
        let x = reshape(tiled(&values, rows * cols, DType::BF16), &[rows, cols]);
        let expected: Vec<_> = values.chunks(cols).flat_map(soft).collect();
        let tile = check_tiles("softmax", &Cuda::softmax(x.clone(), 1), 7 * cols);
        near("softmax", &tile, &expected, 0.01);
        let tile = check_tiles("log_softmax", &Cuda::log_softmax(x, 1), 7 * cols);
        let expected: Vec<_> = expected.iter().map(|y| y.ln()).collect();
        near("log_softmax", &tile, &expected, 0.01);
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn softmax_of_columns() {
    let _alone = begin("softmax_of_columns", "softmax", DType::BF16);
    let (outer, size) = (7 * 9224, 33);
    let small = |i: usize| v(i) / 64.0;
    let len = 7 * size * COLS;
    let values = table(len, |i| small(i + i / (size * COLS) * 13));
    let x = reshape(tiled(&values, outer * size * COLS, DType::BF16), &[outer, size, COLS]);
    assert!(x.len() > EDGE);
    let tile = check_tiles("softmax in the middle", &Cuda::softmax(x, 1), len);
    let mut expected = vec![0.0; len];
    for (o, c) in (0..7).flat_map(|o| (0..COLS).map(move |c| (o, c))) {
        let at = |r: usize| (o * size + r) * COLS + c;
        let column = table(size, |r| values[at(r)]);
        soft(&column).into_iter().enumerate().for_each(|(r, y)| expected[at(r)] = y);
    }
    near("softmax in the middle", &tile, &expected, 0.01);
    // Two rows of more than 2^30.
    let n = PERIOD * 152_400 + 504;
    assert!(2 * n > EDGE);
    let values = table(PERIOD, small);
    let x = reshape(tiled(&values, 2 * n, DType::BF16), &[2, n]);
    let y = Cuda::softmax(x, 0);
    for r in 0..2 {
        let row = flat(part(&y, &[[r, r + 1]]));
        let tile = peek(&row, 0, PERIOD);
        check("softmax of two", &row, &tile);
        let expected = table(PERIOD, |i| {
            let two = [0, 1].map(|r| values[(r * n + i) % PERIOD]);
            soft(&two)[r]
        });
        near("softmax of two", &tile, &expected, 0.01);
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn layer_norm_of_rows() {
    let _alone = begin("layer_norm_of_rows", "layer_norm", DType::BF16);
    for (rows, cols) in [(ROWS, COLS), (7 * 4682, 65_544), (7 * 320_000, 1001)] {
        let values = table(7 * cols, |i| v(i + i / cols * 13));
        let x = reshape(tiled(&values, rows * cols, DType::BF16), &[rows, cols]);
        let gamma = table(cols, |c| 1.0 + (c % 4) as f64);
        let beta = table(cols, |c| (c % 3) as f64);
        let [g, b] = [&gamma, &beta].map(|t| upload(t, &[cols], DType::BF16));
        let tile = check_tiles("layer_norm", &Cuda::layer_norm(x, g, Some(b), 1e-5), 7 * cols);
        let expected = values.chunks(cols).flat_map(|row| {
            let mean = row.iter().sum::<f64>() / cols as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64;
            let (gamma, beta) = (&gamma, &beta);
            row.iter()
                .enumerate()
                .map(move |(c, x)| (x - mean) / (variance + 1e-5).sqrt() * gamma[c] + beta[c])
        });
        let expected: Vec<_> = expected.collect();
        for (i, (g, e)) in tile.iter().zip(&expected).enumerate() {
            assert!((g - e).abs() < 0.05, "layer_norm: element {i} is {g}, not {e}");
        }
    }
}

// --- indices ------------------------------------------------------------------------------------------------------------

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn gather_and_select_from_beyond_the_edge() {
    let _alone = begin("gather_and_select_from_beyond_the_edge", "index", DType::U8).views();
    let n = 2 * EDGE + 5000;
    let at = [n - 1, 0, EDGE - 1, EDGE, EDGE + 1, 2 * EDGE - 1, 2 * EDGE, 2 * EDGE + 1, 1];
    for dtype in [DType::U8, DType::F16] {
        let x = pattern(n, dtype);
        let expected: Vec<_> = at.iter().map(|&i| v(i)).collect();
        assert_eq!(read(Cuda::int_select(x.clone(), 0, ids(&at))), expected, "select, {dtype:?}");
        assert_eq!(read(Cuda::int_gather(0, x, ids(&at))), expected, "gather, {dtype:?}");
    }
    let x = reshape(pattern(ROWS * COLS, DType::U8), &[ROWS, COLS]);
    let rows = [ROWS - 1, 3, ROWS - 2, EDGE / COLS, EDGE / COLS + 1];
    let got = read(Cuda::int_select(x.clone(), 0, ids(&rows)));
    assert_eq!(got, table(rows.len() * COLS, |i| v(rows[i / COLS] * COLS + i % COLS)), "rows");
    // From a view: columns of the transpose.
    let got = Cuda::int_select(Cuda::int_transpose(x.clone()), 1, ids(&rows));
    assert_eq!(
        read(Cuda::int_transpose(got)),
        table(rows.len() * COLS, |i| v(rows[i / COLS] * COLS + i % COLS)),
        "columns of a transposed view"
    );
    // 64 columns of every row, from a base beyond the edge.
    let some = part(&x, &[[ROWS - 700, ROWS]]);
    let columns: Vec<_> = (0..64).map(|k| k * 13 % COLS).collect();
    let got = read(Cuda::int_select(some, 1, ids(&columns)));
    assert_eq!(got, table(700 * 64, |i| v((ROWS - 700 + i / 64) * COLS + columns[i % 64])), "columns");
}

/// Keys and values of a cache in blocks, of which a table names those of a sequence, as in paged attention. Burn has no
/// operation for it: blocks are selected, or named with the place in them, and a block's number times its stride passes
/// 2^31.
#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn blocks_of_a_cache_that_a_table_names() {
    let _alone = begin("blocks_of_a_cache_that_a_table_names", "index", DType::BF16).views();
    let (block, heads, d, dtype) = (16, 4, 128, DType::BF16);
    // Keys, then values.
    let stride = 2 * block * heads * d;
    let blocks = EDGE / stride + 9;
    let small = |i: usize| w(i) / 4.0;
    let cache = reshape(tiled(&table(PERIOD, small), blocks * stride, dtype), &[blocks, 2, block, heads, d]);
    assert!(cache.len() > EDGE);
    let named = [blocks - 1, 3, EDGE / stride, EDGE / stride - 1, 0, blocks - 2];
    let tokens = named.len() * block;
    let element = |b: usize, i: usize| small((named[b] * stride + i) % PERIOD);
    let chosen = Cuda::int_select(cache.clone(), 0, ids(&named));
    assert_eq!(read(chosen.clone()), table(named.len() * stride, |i| element(i / stride, i % stride)));
    // [blocks, 2, block, heads, d] -> two of [1, heads, tokens, d].
    let both = Cuda::int_permute(chosen, &[1, 3, 0, 2, 4]);
    let half = |x: &Tensor, k: usize| reshape(part(x, &[[k, k + 1]]), &[1, heads, tokens, d]);
    let (keys, values) = (half(&both, 0), half(&both, 1));
    // The same from the host.
    let plain = |k: usize| {
        let at = |i: usize| {
            let (h, t, c) = (i / d / tokens, i / d % tokens, i % d);
            element(t / block, ((k * block + t % block) * heads + h) * d + c)
        };
        upload(&table(heads * tokens * d, at), &[1, heads, tokens, d], dtype)
    };
    let query = upload(&table(heads * d, |i| w(5 * i + 1) / 4.0), &[1, heads, 1, d], dtype);
    let attend = |k, v| read(Cuda::attention(query.clone(), k, v, None, None, Default::default()));
    near("attention over the blocks", &attend(keys, values), &attend(plain(0), plain(1)), 0.01);
    // One token's keys: the block, "keys", the place in the block.
    let places = reshape(ids(&[blocks - 1, 0, 15, EDGE / stride, 1, 2]), &[2, 3]);
    let expected =
        [((blocks - 1) * 2 * block + 15) * heads * d, ((EDGE / stride * 2 + 1) * block + 2) * heads * d];
    let got = read(Cuda::int_gather_nd(cache.clone(), places));
    assert_eq!(got, table(2 * heads * d, |i| small((expected[i / (heads * d)] + i % (heads * d)) % PERIOD)));
    // Blocks that there are not.
    for at in [blocks, 2 * blocks, EDGE, 2 * EDGE + 1] {
        out_of_range("a block that there is not", Cuda::int_select(cache.clone(), 0, ids(&[1, at])));
        let place = reshape(ids(&[at, 0, 0]), &[1, 3]);
        out_of_range("a place in no block", Cuda::int_gather_nd(cache.clone(), place));
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn quantised_values_beyond_the_edge() {
    let _alone = begin("quantised_values_beyond_the_edge", "quantized", DType::F32).views();
    let n = ROWS * COLS;
    assert!(n > EDGE && n.is_multiple_of(PERIOD));
    let x = reshape(pattern(n, DType::BF16), &[ROWS, COLS]);
    let even = |i: usize| (v(i) / 2.0).round() * 2.0;
    let index = tiled(&table(COLS, |c| ((c + 5) % COLS) as f64), COLS, DType::I32);
    let shifted = |i: usize| i / COLS * COLS + (i % COLS + 5) % COLS;
    for level in [QuantLevel::Tensor, QuantLevel::block([16])] {
        let scheme = QuantScheme::default().with_value(QuantValue::Q8S).with_level(level);
        let count = if level == QuantLevel::Tensor { 1 } else { n / 16 };
        let scales = QuantizationParametersPrimitive { scales: full(count, 2, DType::F32) };
        let q = Cuda::quantize(x.clone(), &scheme, scales);
        let turned = |q| Cuda::dequantize(q, FloatDType::BF16);
        check("quantised", &turned(q.clone()), &table(PERIOD, even));
        let flipped = Cuda::q_flip(q.clone(), &[0, 1]);
        check("a view of all", &turned(flipped), &table(PERIOD, |i| even(PERIOD - 1 - i)));
        let columns = Cuda::q_select(q, 1, index.clone());
        check("select of all columns", &turned(columns), &table(PERIOD, |i| even(shifted(i))));
    }
    let scheme = QuantScheme::default().with_value(QuantValue::Q4S);
    let most = (0..PERIOD).map(v).fold(0.0, f64::max) as f32;
    let scale = 2.0 * most / 14.0;
    let expected = table(PERIOD, |i| f64::from((v(i) as f32 * (1.0 / scale)).round() * scale));
    let y = Cuda::dequantize(Cuda::quantize_dynamic(x, &scheme), FloatDType::F32);
    check("quantised by its own range", &y, &expected);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn gather_and_select_into_large_results() {
    let _alone = begin("gather_and_select_into_large_results", "index", DType::U8);
    let index = tiled(&table(7, |r| (3 * r % 7) as f64), ROWS, DType::I32);
    let expected = table(PERIOD, |i| v(3 * (i / COLS) % 7 * COLS + i % COLS));
    for dtype in [DType::U8, DType::BF16] {
        let x = reshape(pattern(PERIOD, dtype), &[7, COLS]);
        check("select of many rows", &Cuda::int_select(x.clone(), 0, index.clone()), &expected);
        if dtype.is_float() {
            let ids = reshape(index.clone(), &[1, ROWS]);
            check("embedding", &Cuda::embedding(x, ids), &expected);
        }
    }
    // Columns: no packs.
    let x = reshape(pattern(ROWS * COLS, DType::U8), &[ROWS, COLS]);
    let index = tiled(&table(COLS, |c| ((c + 5) % COLS) as f64), COLS, DType::I32);
    let shifted = |i: usize| i / COLS * COLS + (i % COLS + 5) % COLS;
    check("select of all columns", &Cuda::int_select(x.clone(), 1, index), &table(PERIOD, |i| v(shifted(i))));
    let index = tiled(&table(COLS, |c| ((c + 5) % COLS) as f64), ROWS * COLS, DType::I32);
    let y = Cuda::int_gather(1, x, reshape(index, &[ROWS, COLS]));
    check("gather along rows", &y, &table(PERIOD, |i| v(shifted(i))));
    drop(y);
    let n = COLS * ROWS + 504;
    let x = reshape(pattern(2 * n, DType::U8), &[2, n]);
    let index = reshape(tiled(&[0.0, 1.0], n, DType::I32), &[1, n]);
    let y = Cuda::int_gather(0, x, index);
    check("gather of one of two", &y, &table(PERIOD, |i| v(i % 2 * n + i)));
}

#[track_caller]
fn out_of_range(what: &str, x: Tensor) {
    match value_of(x).try_read() {
        Ok(data) => panic!("{what}: no error, but {:?}", data.iter::<f64>().take(4).collect::<Vec<_>>()),
        Err(error) => {
            let text = format!("{error:?}");
            assert!(text.contains("out of range"), "{what}: {text}");
        }
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn indices_out_of_range_beyond_the_edge() {
    let _alone = begin("indices_out_of_range_beyond_the_edge", "index", DType::U8);
    let small = || upload(&table(10, v), &[10], DType::F32);
    // Their low 32 bits would be in range.
    for at in [EDGE, 2 * EDGE, 2 * EDGE + 3, 1 << 40] {
        out_of_range("select", Cuda::int_select(small(), 0, ids(&[1, at])));
        out_of_range("gather", Cuda::int_gather(0, small(), ids(&[at])));
        out_of_range(
            "scatter",
            Cuda::float_scatter_add(0, small(), ids(&[at]), upload(&[1.0], &[1], DType::F32)),
        );
        let two = upload(&[1.0, 2.0], &[2], DType::F32);
        out_of_range("select_add", Cuda::float_select_add(small(), 0, ids(&[0, at]), two));
    }
    let n = 2 * EDGE + 5;
    let x = pattern(n, DType::U8);
    assert_eq!(read(Cuda::int_select(x.clone(), 0, ids(&[n - 1]))), [v(n - 1)]);
    for at in [n, n + 1, 2 * n, usize::MAX] {
        out_of_range("one past the end", Cuda::int_select(x.clone(), 0, ids(&[0, at])));
    }
    // Everything works afterwards, and x is whole.
    check("x after the errors", &x, &table(PERIOD, v));
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn additions_at_indices_beyond_the_edge() {
    let _alone = begin("additions_at_indices_beyond_the_edge", "index", DType::U8);
    let n = 2 * EDGE + 16;
    let at = [n - 1, EDGE, 0, 2 * EDGE, EDGE, EDGE - 1, n - 1, EDGE];
    let values: Vec<_> = (1..=at.len()).map(|x| x as f64).collect();
    let total =
        |place: usize| at.iter().zip(&values).filter(|(i, _)| **i == place).map(|(_, x)| x).sum::<f64>();
    let verify = |what: &str, y: &Tensor| {
        assert_eq!(nonzero(y), 5, "{what}: places");
        for &i in &at {
            assert_eq!(peek(y, i, 1), [total(i)], "{what}: element {i}");
        }
    };
    for dtype in [DType::U8, DType::F16] {
        let value = || upload(&values, &[at.len()], dtype);
        verify("scatter_add", &Cuda::float_scatter_add(0, zeros(n, dtype), ids(&at), value()));
        verify("select_add", &Cuda::float_select_add(zeros(n, dtype), 0, ids(&at), value()));
    }
    // A single line of more than 128 values: sorted.
    let many: Vec<_> = (0..200).map(|k| if k % 2 == 0 { 2 * EDGE + k % 8 } else { EDGE + k % 8 }).collect();
    let y = Cuda::float_scatter_add(0, zeros(n, DType::F16), ids(&many), full(200, 1, DType::F16));
    assert_eq!(nonzero(&y), 8, "a long line");
    assert_eq!(peek(&y, 2 * EDGE, 8), [25.0, 0.0, 25.0, 0.0, 25.0, 0.0, 25.0, 0.0]);
    assert_eq!(peek(&y, EDGE, 8), [0.0, 25.0, 0.0, 25.0, 0.0, 25.0, 0.0, 25.0]);
    drop(y);
    let bits = upload(&[1.0; 8], &[8], BOOL);
    let y = Cuda::bool_scatter_or(0, zeros(n, BOOL), ids(&at), bits.clone());
    assert_eq!(nonzero(&y), 5, "scatter_or");
    let y = Cuda::bool_select_or(y, 0, ids(&[n - 2, n - 1]), part(&bits, &[[0, 2]]));
    assert_eq!((nonzero(&y), peek(&y, n - 3, 3)), (6, vec![0.0, 1.0, 1.0]), "select_or");
    drop(y);
    // Rows of a large matrix.
    for dtype in [DType::U8, DType::BF16] {
        let x = reshape(zeros(ROWS * COLS, dtype), &[ROWS, COLS]);
        let rows = [ROWS - 1, EDGE / COLS + 1, 0, ROWS - 1];
        let value = reshape(pattern(4 * COLS, dtype), &[4, COLS]);
        let y = Cuda::float_select_add(x, 0, ids(&rows), Cuda::int_div_scalar(value, Scalar::Int(4)));
        let quarter = |i: usize| if dtype == DType::U8 { (v(i) / 4.0).trunc() } else { v(i) / 4.0 };
        let last = table(COLS, |c| quarter(c) + quarter(3 * COLS + c));
        let last = read(upload(&last, &[COLS], dtype));
        assert_eq!(read(part(&y, &[[ROWS - 1, ROWS]])), last, "{dtype:?}: the last row");
        let row = EDGE / COLS + 1;
        assert_eq!(
            read(part(&y, &[[row, row + 1]])),
            table(COLS, |c| quarter(COLS + c)),
            "{dtype:?}: row {row}"
        );
        let places = |r: usize| (0..COLS).filter(|c| quarter(r * COLS + c) != 0.0).count();
        let both = (0..COLS).filter(|c| quarter(*c) + quarter(3 * COLS + c) != 0.0).count();
        assert_eq!(nonzero(&y), places(1) + places(2) + both, "{dtype:?}: places");
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn additions_of_large_values() {
    let _alone = begin("additions_of_large_values", "index", DType::U8).gradients();
    // y[r, (c + 5) % COLS] = x[r, (c + 5) % COLS] + x[r, c]: one thread an element in u8, one a line in f16.
    for dtype in [DType::U8, DType::F16] {
        let index = tiled(&table(COLS, |c| ((c + 5) % COLS) as f64), ROWS * COLS, DType::I32);
        let x = reshape(pattern(ROWS * COLS, dtype), &[ROWS, COLS]);
        let y = Cuda::float_scatter_add(1, x.clone(), reshape(index, &[ROWS, COLS]), x);
        let to = |x: f64| if dtype == DType::U8 { wrap(x) } else { x };
        let before = |i: usize| i / COLS * COLS + (i % COLS + COLS - 5) % COLS;
        check("scatter_add", &y, &table(PERIOD, |i| to(v(i) + v(before(i)))));
    }
    // Sorted: 2^20 rows of 2100 into 7.
    let (rows, cols) = (1 << 20, 2100);
    let ones = reshape(full(rows * cols, 1, DType::F32), &[rows, cols]);
    let index = tiled(&table(7, |r| r as f64), rows, DType::I32);
    let zero = reshape(zeros(7 * cols, DType::F32), &[7, cols]);
    let y = read(Cuda::float_select_add(zero, 0, index.clone(), ones.clone()));
    let count = |r: usize| (rows / 7 + (r < rows % 7) as usize) as f64;
    assert_eq!(y, table(7 * cols, |i| count(i / cols)), "select_add");
    let weights = reshape(zeros(7 * cols, DType::F32), &[7, cols]);
    let y = read(Cuda::embedding_backward(weights, ones, index));
    assert_eq!(y, table(7 * cols, |i| count(i / cols)), "embedding_backward");
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn slice_assign_beyond_the_edge() {
    let _alone = begin("slice_assign_beyond_the_edge", "layout", DType::U8);
    let n = 2 * EDGE + 10_000;
    let assign = |x: Tensor, start: usize, end: usize, step: isize, value: Tensor| {
        Cuda::int_slice_assign(x, &[Slice::new(start as isize, Some(end as isize), step)], value)
    };
    // A few elements, in place and into a copy.
    let x = zeros(n, DType::U8);
    let y = assign(x.clone(), EDGE - 2, EDGE + 3, 1, upload(&[1., 2., 3., 4., 5.], &[5], DType::U8));
    assert_eq!((nonzero(&x), nonzero(&y)), (0, 5));
    let y = assign(y, n - 9, n, 4, upload(&[6., 7., 8.], &[3], DType::U8));
    assert_eq!(peek(&y, n - 9, 9), [6., 0., 0., 0., 7., 0., 0., 0., 8.]);
    let y = assign(y, 2 * EDGE, 2 * EDGE + 3, -1, upload(&[1., 2., 3.], &[3], DType::U8));
    assert_eq!(peek(&y, 2 * EDGE - 1, 5), [0., 3., 2., 1., 0.]);
    assert_eq!((peek(&y, EDGE - 3, 7), nonzero(&y)), (vec![0., 1., 2., 3., 4., 5., 0.], 11));
    drop(x);
    // Many.
    let y = assign(y, 5, n - 3, 1, pattern(n - 8, DType::U8));
    assert_eq!((peek(&y, 0, 5), peek(&y, n - 3, 3)), (vec![0.; 5], vec![0., 0., 8.]));
    check("a large range", &part(&y, &[[5, n - 3]]), &table(PERIOD, v));
    let y = assign(y, 0, n, 2, upload(&[255.0], &[1], DType::U8));
    // Position 5 + i held v(i): the odd ones still do.
    check(
        "every second",
        &part(&y, &[[5, n - 3]]),
        &table(PERIOD, |i| if i % 2 == 1 { 255.0 } else { v(i) }),
    );
    drop(y);
    // The last columns of all rows: few elements, which lie up to 2^32 apart.
    let m = reshape(zeros(2 * ROWS * COLS, DType::U8), &[2 * ROWS, COLS]);
    let value = reshape(pattern(2 * ROWS * 16, DType::U8), &[2 * ROWS, 16]);
    let slices = [Slice::full(), Slice::new(COLS as isize - 16, None, 1)];
    let y = Cuda::int_slice_assign(m, &slices, value);
    let expected = |i: usize| match i % COLS {
        c if c < COLS - 16 => 0.0,
        c => v(i / COLS * 16 + c + 16 - COLS),
    };
    check("columns", &y, &table(COLS * PERIOD / 16, expected));
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn joined_and_repeated() {
    let _alone = begin("joined_and_repeated", "layout", DType::U8).views();
    let n = EDGE + 1003;
    let y = Cuda::int_cat(vec![pattern(n, DType::U8), zeros(5, DType::U8), pattern(n, DType::U8)], 0);
    assert_eq!(peek(&y, n, 5), [0.0; 5]);
    check("cat, the first", &part(&y, &[[0, n]]), &table(PERIOD, v));
    check("cat, the last", &part(&y, &[[n + 5, 2 * n + 5]]), &table(PERIOD, v));
    drop(y);
    let x = reshape(pattern(ROWS * COLS, DType::U8), &[ROWS, COLS]);
    let y =
        Cuda::int_cat(vec![part(&x, &[[0, ROWS], [0, 16]]), x.clone(), part(&x, &[[0, ROWS], [3, 8]])], 1);
    let cols = 16 + COLS + 5;
    let expected = |i: usize| {
        let (r, c) = (i / cols, i % cols);
        v(r * COLS
            + if c < 16 {
                c
            } else if c < 16 + COLS {
                c - 16
            } else {
                c - 16 - COLS + 3
            })
    };
    check("cat of columns", &y, &table(7 * cols, expected));
    drop(y);
    let y = Cuda::int_repeat_dim(x, 0, 2);
    check("repeat_dim 0", &y, &table(PERIOD, v));
    drop(y);
    let y = Cuda::int_repeat_dim(reshape(pattern(PERIOD, DType::U8), &[1, PERIOD]), 0, EDGE / PERIOD + 9);
    check("many repeats", &y, &table(PERIOD, v));
    drop(y);
    let x = reshape(pattern(3528 * 1000, DType::U8), &[3528, 1000]);
    let y = Cuda::int_repeat_dim(x.clone(), 1, 700);
    assert!(y.len() > EDGE);
    check_repeats("repeat_dim 1", &y, [3528, 700, 1000], &x);
    drop(y);
    let windows = Cuda::int_unfold(pattern(EDGE, DType::U8), 0, 3, 2);
    assert!(windows.len() > EDGE);
    check("unfold", &add(windows, 1), &table(PERIOD / 2 * 3, |i| v(i / 3 * 2 + i % 3) + 1.0));
}

// --- products, windows --------------------------------------------------------------------------------------------------

/// Small whole numbers, so that products and sums are exact in any order: 0 to 3.
fn w(i: usize) -> f64 {
    v(i) % 4.0
}

/// Rounded as `dtype` rounds.
fn rounded(values: &[f64], dtype: DType) -> Vec<f64> {
    read(upload(values, &[values.len()], dtype))
}

/// `x [rows, k] y [k, n]` on the host.
fn product(x: &[f64], y: &[f64], k: usize, n: usize) -> Vec<f64> {
    table(x.len() / k * n, |i| (0..k).map(|q| x[i / n * k + q] * y[q * n + i % n]).sum())
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn products_with_a_tall_operand() {
    let _alone = begin("products_with_a_tall_operand", "matmul", DType::BF16).views().gradients();
    let (n, dtype) = (8, DType::BF16);
    let (left, right) = (table(PERIOD, w), table(COLS * n, |i| w(3 * i + 1)));
    let expected = rounded(&product(&left, &right, COLS, n), dtype);
    let x = reshape(tiled(&left, ROWS * COLS, dtype), &[ROWS, COLS]);
    let y = upload(&right, &[COLS, n], dtype);
    check("[M, K] [K, 8]", &Cuda::float_matmul(x.clone(), y.clone()), &expected);
    let bias = upload(&table(n, |c| c as f64), &[n], dtype);
    let with_bias = product(&left, &right, COLS, n);
    let with_bias: Vec<_> = with_bias.iter().enumerate().map(|(i, y)| y + (i % n) as f64).collect();
    check("linear", &Cuda::linear(x.clone(), y, Some(bias)), &rounded(&with_bias, dtype));
    // The tall operand as a transposed view: x^T dy, of [ROWS, 8] ones, is 8 times the sums of x's columns.
    let ones = reshape(full(ROWS * n, 1, dtype), &[ROWS, n]);
    let got = read(Cuda::linear_weight_backward(x, ones));
    let sum = |c: usize| (ROWS / 7) as f64 * (0..7).map(|r| left[r * COLS + c]).sum::<f64>();
    assert_eq!(got, rounded(&table(COLS * n, |i| sum(i / n)), dtype), "x^T dy");
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn products_of_many_matrices() {
    let _alone = begin("products_of_many_matrices", "matmul", DType::BF16).views();
    let (batch, m, k, n, dtype) = (7 * 6100, 50, COLS, 4, DType::BF16);
    let left = table(7 * m * k, |i| w(i + i / (m * k) * 29));
    let right = table(7 * k * n, |i| w(5 * i + 2));
    let x = reshape(tiled(&left, batch * m * k, dtype), &[batch, m, k]);
    assert!(x.len() > EDGE);
    let y = reshape(tiled(&right, batch * k * n, dtype), &[batch, k, n]);
    let one = |b: usize| product(&left[b * m * k..][..m * k], &right[b * k * n..][..k * n], k, n);
    let expected: Vec<_> = (0..7).flat_map(one).collect();
    check("a batch", &Cuda::float_matmul(x.clone(), y), &rounded(&expected, dtype));
    let y = reshape(upload(&right[..k * n], &[k, n], dtype), &[1, k, n]);
    let expected = rounded(&product(&left, &right[..k * n], k, n), dtype);
    check("a batch with one matrix", &Cuda::float_matmul(x.clone(), y.clone()), &expected);
    // The other way round: y^T x^T, with strides of the batch beyond the edge from the last matrices on.
    let swapped = Cuda::float_matmul(Cuda::float_transpose(y), Cuda::float_transpose(x));
    let matrix = product(&left, &right[..k * n], k, n);
    let expected = table(7 * n * m, |i| {
        let (b, c, r) = (i / (n * m), i / m % n, i % m);
        matrix[(b * m + r) * n + c]
    });
    check("one matrix with a transposed batch", &swapped, &rounded(&expected, dtype));
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn products_of_keys_stored_by_position() {
    let _alone = begin("products_of_keys_stored_by_position", "matmul", DType::BF16).views();
    // Keys [T, B, D] seen as [B, T, D]: a row stride times a row passes 2^31.
    let (t, b, d, dtype) = (7 * 3429, 704, 128, DType::BF16);
    let rows = table(7 * d, w);
    let keys = reshape(tiled(&rows, t * b * d, dtype), &[t, b, d]);
    assert!(keys.len() > EDGE);
    let keys = Cuda::int_permute(keys, &[1, 0, 2]);
    let queries = table(d * 2, |i| w(3 * i + 1));
    let scores = Cuda::float_matmul(keys.clone(), upload(&queries, &[1, d, 2], dtype));
    // Key (b, t) is row (t * 704 + b) % 7.
    let one = product(&rows, &queries, d, 2);
    let expected = rounded(&table(7 * 14, |i| one[(i / 2 % 7 * b + i / 14) % 7 * 2 + i % 2]), dtype);
    let expected = table(b * 14, |i| expected[i / 14 % 7 * 14 + i % 14]);
    check_repeats("keys by queries", &scores, [b, t / 7, 14], &upload(&expected, &[b, 14], dtype));
    drop(scores);
    let ones = reshape(full(t, 1, dtype), &[1, 1, t]);
    let sums = rounded(&table(d, |c| (t / 7) as f64 * (0..7).map(|r| rows[r * d + c]).sum::<f64>()), dtype);
    check("sums of keys", &Cuda::float_matmul(ones, keys), &sums);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn slices_at_a_high_row_joined_and_multiplied() {
    let _alone = begin("slices_at_a_high_row_joined_and_multiplied", "matmul", DType::BF16).views();
    let (rows, n, dtype) = (70, 8, DType::BF16);
    let x = reshape(tiled(&table(PERIOD, w), ROWS * COLS, dtype), &[ROWS, COLS]);
    let starts = [ROWS - rows, ROWS - 4 * rows - 3];
    let parts = starts.map(|r| part(&x, &[[r, r + rows]]));
    let y = table(2 * COLS * n, |i| w(3 * i + 1));
    let got = Cuda::float_matmul(Cuda::int_cat(parts.to_vec(), 1), upload(&y, &[2 * COLS, n], dtype));
    let left = table(rows * 2 * COLS, |i| {
        let (r, c) = (i / (2 * COLS), i % (2 * COLS));
        w(((starts[c / COLS] + r) * COLS + c % COLS) % PERIOD)
    });
    assert_eq!(read(got), rounded(&product(&left, &y, 2 * COLS, n), dtype));
}

/// The same with gradients, and captured: sums and products of whole numbers, so that all of it is exact.
fn gradients_of_slices<B>() -> [Vec<f64>; 3]
where
    B: AutodiffBackend<Device = CudaDevice>,
{
    type Of<B, const D: usize> = burn_tensor::Tensor<B, D>;
    let (rows, n, dtype) = (70, 8, DType::BF16);
    let make = |values: Vec<f64>, shape: [usize; 2]| {
        Of::<B, 2>::from_data(TensorData::new(values, shape).convert_dtype(dtype), (&device(), dtype))
    };
    let x = make(table(PERIOD, w), [1, PERIOD]).expand([ROWS / 7, PERIOD]).reshape([ROWS, COLS]);
    let x = x.detach().require_grad();
    let y = make(table(2 * COLS * n, |i| w(3 * i + 1)), [2 * COLS, n]).require_grad();
    let starts = [ROWS - rows, ROWS - 4 * rows - 3];
    let parts = starts.map(|r| x.clone().slice([r..r + rows, 0..COLS]));
    let z = Of::cat(parts.to_vec(), 1).matmul(y.clone());
    let gradients = z.clone().sum().backward();
    let read = |data: TensorData| data.iter::<f64>().collect::<Vec<_>>();
    let dx = x.grad(&gradients).expect("x is a leaf");
    // Of each row the first elements, and what is largest in it.
    let first = dx.clone().slice([0..ROWS, 0..3]).into_data();
    let largest = dx.max_abs_dim(1).into_data();
    let dy = y.grad(&gradients).expect("y is a leaf").into_data();
    let (first, largest) = (read(first), read(largest));
    let row_sum = |c: usize| (0..n).map(|k| w(3 * (c * n + k) + 1)).sum::<f64>();
    // In a slice, and elsewhere.
    let row = |k: usize| table(COLS, |c| row_sum(k * COLS + c));
    let row = |k: usize| (row(k)[..3].to_vec(), row(k).into_iter().fold(0.0, f64::max));
    let (of, none) = ([row(0), row(1)], (vec![0.0; 3], 0.0));
    for r in 0..ROWS {
        let slice = starts.iter().position(|&start| (start..start + rows).contains(&r));
        let (start, most) = slice.map_or(&none, |k| &of[k]);
        assert!(first[3 * r..3 * r + 3] == *start && largest[r] == *most, "the gradient of row {r}");
    }
    [read(z.into_data()), read(dy), largest]
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn gradients_of_slices_at_a_high_row() {
    let _alone = begin("gradients_of_slices_at_a_high_row", "matmul", DType::BF16).views().gradients();
    let eager = gradients_of_slices::<Autodiff<Cuda>>();
    // Interpreted, captured and replayed.
    for round in 0..4 {
        assert!(gradients_of_slices::<Autodiff<Fusion<Cuda>>>() == eager, "captured, round {round}");
    }
    Fusion::<Cuda>::forget_plans(&device());
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn products_with_a_large_result() {
    let _alone = begin("products_with_a_large_result", "matmul", DType::BF16).views();
    let (m, k, n, dtype) = (7 * 9400, 16, 7 * 4704, DType::BF16);
    assert!(m * n > EDGE);
    let (left, right) = (table(7 * k, w), table(7 * k, |i| w(3 * i + 1)));
    let x = reshape(tiled(&left, m * k, dtype), &[m, k]);
    let y = reshape(tiled(&right, n * k, dtype), &[n, k]);
    // Rows and columns repeat after 7.
    let small = |r: usize, c: usize| (0..k).map(|q| left[r * k + q] * right[c * k + q]).sum::<f64>();
    let expected = upload(&table(49, |i| small(i / 7, i % 7)), &[7, 1, 7], dtype);
    let expected = Cuda::float_expand(expected, Shape::from(vec![7, n / 7, 7]));
    let expected = reshape(expected, &[1, 1, 7 * n]);
    let z = Cuda::float_matmul(x, Cuda::float_transpose(y));
    check_repeats("[M, 16] [16, N]", &z, [1, m / 7, 7 * n], &expected);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn a_product_along_more_than_the_library_takes_is_right_or_an_error() {
    let _alone =
        begin("a_product_along_more_than_the_library_takes_is_right_or_an_error", "matmul", DType::BF16);
    // Ones are summed: 2^31 + 2^24 is a number of bf16.
    let k = EDGE + (1 << 24);
    let x = full(k, 1, DType::BF16);
    let (row, column) = (reshape(x.clone(), &[1, k]), reshape(x, &[k, 1]));
    match caught(|| read(Cuda::float_matmul(row, column))) {
        Ok(got) => assert_eq!(got, [k as f64]),
        Err(text) => assert!(text.contains("matmul"), "{text}"),
    }
    let again = upload(&[2.0], &[1, 1], DType::BF16);
    assert_eq!(read(Cuda::float_matmul(again.clone(), again)), [4.0], "afterwards");
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn products_of_integers() {
    let _alone = begin("products_of_integers", "matmul", DType::U8).views();
    let (n, dtype) = (4, DType::U8);
    let (left, right) = (table(PERIOD, v), table(COLS * n, |i| v(3 * i + 1)));
    let wrapped = |x: Vec<f64>| x.into_iter().map(wrap).collect::<Vec<_>>();
    let x = reshape(tiled(&left, ROWS * COLS, dtype), &[ROWS, COLS]);
    let y = upload(&right, &[COLS, n], dtype);
    let expected = wrapped(product(&left, &right, COLS, n));
    check("[M, K] [K, 4]", &Cuda::int_matmul(x.clone(), y), &expected);
    // The tall operand as a transposed view; sums over all rows.
    let ones = reshape(full(ROWS, 1, dtype), &[ROWS, 1]);
    let got = read(Cuda::int_matmul(Cuda::int_transpose(x), ones));
    let sum = |c: usize| (ROWS / 7) as f64 * (0..7).map(|r| left[r * COLS + c]).sum::<f64>();
    assert_eq!(got, wrapped(table(COLS, sum)), "x^T 1");
    // More matrices than a grid has rows.
    let (batch, m, k) = (7 * 11_000, 28, COLS);
    let x = reshape(pattern(batch * m * k, dtype), &[batch, m, k]);
    assert!(x.len() > EDGE);
    let y = upload(&right[..k], &[1, k, 1], dtype);
    let expected = wrapped(product(&left, &right[..k], k, 1));
    check("a batch", &Cuda::int_matmul(x, y), &expected);
    // A large result.
    let (m, n) = (PERIOD * 10, PERIOD * 5);
    let x = reshape(pattern(m, dtype), &[m, 1]);
    let y = reshape(pattern(n, dtype), &[1, n]);
    let z = Cuda::int_matmul(x, y);
    assert!(z.len() > EDGE);
    let row = pattern(n, dtype);
    for r in [0, 1, 2, 30_000, EDGE / n, EDGE / n + 1, m - 1] {
        let expected = table(PERIOD, |c| wrap(v(r) * v(c)));
        check(&format!("row {r}"), &part(&z, &[[r, r + 1]]), &expected);
    }
    // All of it, with the elementwise product of parts.
    for start in (0..m).step_by(PERIOD) {
        let column = reshape(pattern(PERIOD, dtype), &[PERIOD, 1]);
        let expected = Cuda::int_mul(column, reshape(row.clone(), &[1, n]));
        compare("an outer product", part(&z, &[[start, start + PERIOD]]), expected, start * n);
    }
}

/// Planes of 512 x 512, seven of them over and over: more than 2^31 elements.
fn planes(dtype: DType) -> (Tensor, Tensor) {
    const SIDE: usize = 512;
    let values = table(7 * SIDE * SIDE, |i| v(i + i / (SIDE * SIDE) * 29));
    let many = 7 * 1172;
    let small = upload(&values, &[7, 1, SIDE, SIDE], dtype);
    let large = reshape(tiled(&values, many * SIDE * SIDE, dtype), &[many, 1, SIDE, SIDE]);
    assert!(large.len() > EDGE);
    (small, large)
}

/// All of `large` is `small` over and over.
#[track_caller]
fn same_planes(what: &str, small: &Tensor, large: &Tensor) {
    let len = small.len();
    assert_eq!(large.len(), 1172 * len, "{what}");
    check_repeats(what, large, [1, 1172, len], small);
    // And that is not all zeros.
    assert!(nonzero(small) > len / 16, "{what}: {} of {len} are not 0", nonzero(small));
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn pooling() {
    let _alone = begin("pooling", "pool", DType::BF16).gradients();
    let (small, large) = planes(DType::BF16);
    // The host checks a few windows of the small planes.
    let values = read(small.clone());
    let at = |p: usize, r: usize, c: usize| values[(p * 512 + r) * 512 + c];
    let window =
        |p: usize, r: usize, c: usize| [at(p, r, c), at(p, r, c + 1), at(p, r + 1, c), at(p, r + 1, c + 1)];
    // More outputs than inputs: 513 x 513.
    let avg = |x: Tensor| Cuda::avg_pool2d(x, [2, 2], [1, 1], [1, 1], true, false);
    let max = |x: Tensor| Cuda::max_pool2d(x, [2, 2], [1, 1], [1, 1], [1, 1], false);
    let (few, many) = (max(small.clone()), max(large.clone()));
    same_planes("max_pool2d", &few, &many);
    let host = read(few);
    for (p, r, c) in [(0, 0, 0), (3, 200, 311), (6, 510, 510)] {
        let expected = window(p, r, c).into_iter().fold(0.0, f64::max);
        assert_eq!(host[(p * 513 + r + 1) * 513 + c + 1], expected, "max_pool2d at {p}, {r}, {c}");
    }
    drop(many);
    let (few, many) = (avg(small.clone()), avg(large.clone()));
    same_planes("avg_pool2d", &few, &many);
    let host = read(few.clone());
    let expected = rounded(&[window(5, 17, 400).iter().sum::<f64>() / 4.0], DType::BF16);
    assert_eq!(host[(5 * 513 + 18) * 513 + 401], expected[0], "avg_pool2d");
    let back = |x: &Tensor, dy: &Tensor| {
        Cuda::avg_pool2d_backward(x.clone(), dy.clone(), [2, 2], [1, 1], [1, 1], true, false)
    };
    same_planes("avg_pool2d_backward", &back(&small, &few), &back(&large, &many));
    drop(many);
    let with = |x: &Tensor| Cuda::max_pool2d_with_indices(x.clone(), [2, 2], [1, 1], [1, 1], [1, 1], false);
    let (few, many) = (with(&small), with(&large));
    same_planes("max_pool2d_with_indices", &few.output, &many.output);
    same_planes("indices", &few.indices, &many.indices);
    let back = |x: &Tensor, dy: Tensor, at: Tensor| {
        let (kernel, one) = ([2, 2], [1, 1]);
        Cuda::max_pool2d_with_indices_backward(x.clone(), kernel, one, one, one, false, dy, at).x_grad
    };
    let (few, many) = (back(&small, few.output, few.indices), back(&large, many.output, many.indices));
    same_planes("max_pool2d_with_indices_backward", &few, &many);
    drop((few, many));
    let adaptive = |x: &Tensor| Cuda::adaptive_avg_pool2d(x.clone(), [520, 515]);
    let (few, many) = (adaptive(&small), adaptive(&large));
    same_planes("adaptive_avg_pool2d", &few, &many);
    let back = Cuda::adaptive_avg_pool2d_backward;
    same_planes("adaptive_avg_pool2d_backward", &back(small, few), &back(large, many));
}

/// A kernel element that is moved by a whole pixel reads what one further on reads.
#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn deformable_convolution_of_many_images() {
    let _alone = begin("deformable_convolution_of_many_images", "conv", DType::BF16).gradients();
    let dtype = DType::BF16;
    let (small, large) = planes(dtype);
    let weight = upload(&[2.0], &[1, 1, 1, 1], dtype);
    let options = || DeformConvOptions::new([1, 1], [0, 0], [1, 1], 1, 1);
    let offsets = |x: &Tensor| {
        let planes = x.shape().to_vec()[0];
        let [down, right] = [0, 1].map(|by| reshape(full(planes << 18, by, dtype), &[planes, 1, 512, 512]));
        Cuda::float_cat(vec![down, right], 1)
    };
    let conv = |x: &Tensor| Cuda::deform_conv2d(x.clone(), offsets(x), weight.clone(), None, None, options());
    let (few, many) = (conv(&small), conv(&large));
    let (x, y) = (read(small.clone()), read(few.clone()));
    for (p, r, c) in [(0, 0, 0), (3, 200, 311), (6, 511, 510), (6, 511, 511)] {
        let at = (p * 512 + r) * 512 + c;
        assert_eq!(y[at], if c < 511 { 2.0 * x[at + 1] } else { 0.0 }, "deform_conv2d at {p}, {r}, {c}");
    }
    same_planes("deform_conv2d", &few, &many);
    let back = |x: &Tensor, dy: &Tensor| {
        let offset = offsets(x);
        let grads = Cuda::deform_conv2d_backward(
            x.clone(),
            offset,
            weight.clone(),
            None,
            None,
            dy.clone(),
            options(),
        );
        (grads.x_grad, grads.offset_grad)
    };
    let (small_grads, large_grads) = (back(&small, &few), back(&large, &many));
    same_planes("the gradient of x", &small_grads.0, &large_grads.0);
    same_planes("the gradient of the offset", &small_grads.1, &large_grads.1);
}

/// More scores than 2^31, in parts of a head's queries. Equal scores make each query the mean of the values that it sees.
#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn attention_of_many_scores() {
    let _alone = begin("attention_of_many_scores", "attention", DType::BF16);
    const LONG: usize = 50_000;
    const { assert!(LONG * LONG > EDGE) };
    for dtype in [DType::F32, DType::BF16] {
        let zeros = reshape(zeros(2 * LONG * 8, dtype), &[1, 2, LONG, 8]);
        // The second head's values are those of the first, negative.
        let values = table(2 * LONG, |i| if i < LONG { v(i) } else { -v(i - LONG) });
        let value = upload(&values, &[1, 2, LONG, 1], dtype);
        let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
        let y = read(Cuda::attention(zeros.clone(), zeros.clone(), value, None, None, options));
        let mut sum = 0.0;
        for (i, value) in values[..LONG].iter().enumerate() {
            sum += value;
            let mean = sum / (i + 1) as f64;
            let relative = if dtype == DType::F32 { 1e-3 } else { 2e-2 };
            let tolerance = relative * mean.abs() + 1e-3;
            for (head, y) in [(0, y[i]), (1, -y[LONG + i])] {
                assert!((y - mean).abs() <= tolerance, "{dtype:?}, head {head}, query {i}: {y}, not {mean}");
            }
        }
    }
}

/// Of two tensors, the norm of the difference over that of the second.
fn distance(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut x.iter().zip(y).map(|(x, y)| x - y)) / norm(&mut y.iter().copied())
}

/// Not large, but too much for a CPU: a length at which another library's kernel gave up, and a short one.
#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn attention_of_thirty_heads() {
    let _alone = begin("attention_of_thirty_heads", "attention", DType::BF16).views();
    for (length, d) in [(4096, 128), (32, 128)] {
        let draw = || {
            let normal = Distribution::Normal(0.0, 1.0);
            Cuda::float_random(Shape::from(vec![1, 30, length, d]), normal, &device(), FloatDType::BF16)
        };
        let [q, k, v] = [draw(), draw(), draw()];
        let y = Cuda::attention(q.clone(), k.clone(), v.clone(), None, None, Default::default());
        let y = read(cast(y, DType::F32));
        let [q, k, v] = [q, k, v].map(|x| cast(x, DType::F32));
        let scores = Cuda::float_matmul(q, Cuda::float_transpose(k));
        let scores = Cuda::float_mul_scalar(scores, Scalar::Float(1.0 / (d as f64).sqrt()));
        let expected = read(Cuda::float_matmul(Cuda::softmax(scores, 3), v));
        let far = distance(&y, &expected);
        assert!(far < 0.01, "length {length}: {far} of the reference");
    }
}

/// Keys and values [T, B, D] seen as [B, 1, T, D]: a row's stride times a row passes 2^31, in the gradients too.
#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn gradients_of_attention_over_keys_stored_by_position() {
    let _alone = begin("gradients_of_attention_over_keys_stored_by_position", "attention", DType::BF16)
        .views()
        .gradients();
    type Of<const D: usize> = burn_tensor::Tensor<Autodiff<Cuda>, D>;
    type Plain<const D: usize> = burn_tensor::Tensor<Cuda, D>;
    let (t, b, d, queries, dtype) = (24_000, 704, 128, 16, DType::BF16);
    assert!(t * b * d > EDGE);
    let draw =
        |shape: [usize; 4]| Plain::<4>::random(shape, Distribution::Normal(0.0, 1.0), (&device(), dtype));
    let stored = || draw([1, t, b, d]).reshape([t, b, d]);
    let (q, k, v) = (draw([b, 1, queries, d]), stored(), stored());
    let weight = draw([b, 1, queries, d]);
    // Gradients of q, k and v, stored as those are.
    let gradients = |q: Plain<4>, k: Plain<3>, v: Plain<3>, weight: Plain<4>| {
        let leaf = |x| Of::<3>::from_inner(x).require_grad();
        let (k, v) = (leaf(k), leaf(v));
        let q = Of::<4>::from_inner(q).require_grad();
        let view = |x: &Of<3>| x.clone().permute([1, 0, 2]).unsqueeze_dim::<4>(1);
        let y = burn_tensor::module::attention(q.clone(), view(&k), view(&v), None, None, Default::default());
        let gradients = (y * Of::<4>::from_inner(weight)).sum().backward();
        let grad = |x: &Of<3>| x.grad(&gradients).expect("a leaf");
        (q.grad(&gradients).expect("a leaf"), grad(&k), grad(&v))
    };
    let (dq, dk, dv) = gradients(q.clone(), k.clone(), v.clone(), weight.clone());
    let host = |x: TensorData| x.iter::<f64>().collect::<Vec<_>>();
    for (name, largest) in [("keys", dk.clone().max_abs()), ("values", dv.clone().max_abs())] {
        let largest = host(largest.into_data())[0];
        assert!(largest.is_finite() && largest > 0.0, "the gradient of {name} reaches {largest}");
    }
    for i in [0, 1, b / 2, b - 2, b - 1] {
        let of = |x: &Plain<4>| x.clone().narrow(0, i, 1);
        // The copies are small tensors in row-major order.
        let column = |x: &Plain<3>| x.clone().narrow(1, i, 1) + 0.0;
        let (q, k, v) = gradients(of(&q), column(&k), column(&v), of(&weight));
        for (name, got, expected) in [
            ("q", of(&dq).into_data(), q.into_data()),
            ("k", column(&dk).into_data(), k.into_data()),
            ("v", column(&dv).into_data(), v.into_data()),
        ] {
            let far = distance(&host(got), &host(expected));
            assert!(far < 0.02, "the gradient of {name}, {i}: {far} of that of this one alone");
        }
    }
}

fn no_padding() -> ConvOptions<2> {
    ConvOptions::new([1, 1], [0, 0], [1, 1], 1)
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn convolution_of_many_images() {
    let _alone = begin("convolution_of_many_images", "conv", DType::BF16).gradients();
    let dtype = DType::BF16;
    let (small, large) = planes(dtype);
    let weight = upload(&[1., 0., -1., 2., 1., 0., 0., -1., 1.], &[1, 1, 3, 3], dtype);
    let options = || ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    let conv = |x: &Tensor| Cuda::conv2d(x.clone(), weight.clone(), None, options());
    let (few, many) = (conv(&small), conv(&large));
    let x = read(small.clone());
    let at = |p: usize, r: usize, c: usize| x[(p * 512 + r) * 512 + c];
    let y = at(4, 99, 299) - at(4, 99, 301) + 2. * at(4, 100, 299) + at(4, 100, 300) - at(4, 101, 300)
        + at(4, 101, 301);
    assert_eq!(peek(&flat(few.clone()), (4 * 512 + 100) * 512 + 300, 1), rounded(&[y], dtype));
    same_planes("conv2d", &few, &many);
    let back =
        |x: &Tensor, dy: &Tensor| Cuda::conv2d_x_backward(x.clone(), weight.clone(), dy.clone(), options());
    same_planes("conv2d_x_backward", &back(&small, &few), &back(&large, &many));
    drop(many);
    // Of the sum of all outputs: each weight's gradient is the sum of the pixels that it met.
    let ones = reshape(full(large.len(), 1, dtype), &large.shape().to_vec());
    let got = read(Cuda::conv2d_weight_backward(large, weight, ones, options()));
    let sum = |k: usize| {
        let (dr, dc) = (k / 3, k % 3);
        let range = |d: usize| d.saturating_sub(1)..512 - 1usize.saturating_sub(d);
        let planes = (0..7).flat_map(|p| range(dr).flat_map(move |r| range(dc).map(move |c| (p, r, c))));
        1172.0 * planes.map(|(p, r, c)| at(p, r, c)).sum::<f64>()
    };
    near("conv2d_weight_backward", &got, &table(9, sum), 0.01);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn convolution_of_one_large_image() {
    let _alone = begin("convolution_of_one_large_image", "conv", DType::BF16).gradients();
    // [1, 64, 5804, 5804]: more threads than 2^31 in im2col, more than 2^32 columns.
    const H: usize = 5804;
    const C: usize = 64;
    let dtype = DType::BF16;
    // Row r of all rows (of all channels) is row r % 7 of `rows`.
    let rows = table(7 * H, |i| w(i + i / H * 29));
    let x = reshape(tiled(&rows, C * H * H, dtype), &[1, C, H, H]);
    assert!(x.len() > EDGE);
    let weights = table(2 * C * 2, |i| [1., 0., -1., 1., 0., 2., 0.][i % 7]);
    let weight = upload(&weights, &[2, C, 2, 1], dtype);
    let y = Cuda::conv2d(x.clone(), weight.clone(), None, no_padding());
    // y[o, h] repeats along h after 7 rows; H - 1 is a multiple of 7.
    assert_eq!((H - 1) % 7, 0);
    let expected = table(2 * 7 * H, |i| {
        let (o, h, c) = (i / (7 * H), i / H % 7, i % H);
        let tap = |q: usize, k: usize| weights[(o * C + q) * 2 + k] * rows[(q * H + h + k) % 7 * H + c];
        (0..C).map(|q| tap(q, 0) + tap(q, 1)).sum()
    });
    let expected = upload(&expected, &[2, 7 * H], dtype);
    check_repeats("conv2d", &y, [2, (H - 1) / 7, 7 * H], &expected);
    drop(y);
    // dy of ones: dx[c, h] = the sum over o of the weights that met row h: both inside, one at the borders.
    let ones = reshape(full(2 * (H - 1) * H, 1, dtype), &[1, 2, H - 1, H]);
    let dx = Cuda::conv2d_x_backward(x.clone(), weight.clone(), ones.clone(), no_padding());
    drop(x);
    let sum = |c: usize, k: usize| weights[c * 2 + k] + weights[(C + c) * 2 + k];
    let dx = reshape(dx, &[C, H, H]);
    let inside = part(&dx, &[[0, C], [1, H - 1]]);
    for c in 0..C {
        let some = part(&inside, &[[c, c + 1]]);
        compare("dx inside", some, upload(&[sum(c, 0) + sum(c, 1)], &[1, 1, 1], dtype), (c * H + 1) * H);
        for (h, k) in [(0, 0), (H - 1, 1)] {
            let row = part(&dx, &[[c, c + 1], [h, h + 1]]);
            compare("dx at a border", row, upload(&[sum(c, k)], &[1, 1, 1], dtype), (c * H + h) * H);
        }
    }
}

// --- random numbers, copies ---------------------------------------------------------------------------------------------

/// Philox4x32-10 (Salmon et al., SC 2011) of a counter, under a seed.
fn philox(counter: u64, seed: u64) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = [counter as u32, (counter >> 32) as u32, 0, 0];
    let [mut k0, mut k1] = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let (p0, p1) = (0xD251_1F53u64 * c0 as u64, 0xCD9E_8D57u64 * c2 as u64);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        (k0, k1) = (k0.wrapping_add(0x9E37_79B9), k1.wrapping_add(0xBB67_AE85));
    }
    [c0, c1, c2, c3]
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn random_numbers_beyond_the_edge() {
    let _alone = begin("random_numbers_beyond_the_edge", "random", DType::F32);
    const SEED: u64 = 0x0123_4567_89ab_cdef;
    let draw = |n: usize, dtype: DType| {
        Cuda::seed(&device(), SEED);
        let shape = Shape::from(vec![n]);
        match dtype.is_float() {
            true => Cuda::float_random(shape, Distribution::Default, &device(), dtype.into()),
            false => Cuda::int_random(shape, Distribution::Default, &device(), dtype.into()),
        }
    };
    let places = |n: usize| {
        let all = [0, EDGE - 100, 2 * EDGE - 100, 4 * EDGE - 100, n - 1003];
        all.into_iter().filter(move |at| at + 1003 <= n)
    };
    // Bytes: two a counter, their low 8 bits; the counter passes 2^31.
    let n = 2 * EDGE + 2000;
    let x = draw(n, DType::U8);
    for at in places(n) {
        let expected = table(1003, |i| (philox((at + i) as u64 / 2, SEED)[(at + i) % 2 * 2] & 255) as f64);
        assert_eq!(peek(&x, at, 1003), expected, "bytes from {at}");
    }
    // No part repeats another: about one byte in 256 is equal.
    let (first, rest) = (part(&x, &[[0, PART]]), part(&x, &[[2 * EDGE - PART, 2 * EDGE]]));
    let equal = nonzero(&Cuda::int_equal(first, rest, NATIVE)) as f64 / PART as f64;
    assert!((equal * 256.0 - 1.0).abs() < 0.01, "{equal} of two parts are equal");
    drop(x);
    // Floats: four a counter. f32 is exact; f16 rounds, below 1.
    let n = EDGE + 2000;
    let x = draw(n, DType::F32);
    let uniform = |i: usize| (philox(i as u64 / 4, SEED)[i % 4] >> 8) as f64 / (1 << 24) as f64;
    for at in places(n) {
        assert_eq!(peek(&x, at, 1003), table(1003, |i| uniform(at + i)), "f32 from {at}");
    }
    near("the mean of f32", &read(Cuda::float_mean(x)), &[0.5], 1e-3);
    let n = 4 * EDGE + 2000;
    let x = draw(n, DType::F16);
    for at in places(n) {
        let below_one = 1.0 - 1.0 / 2048.0;
        let expected: Vec<_> = rounded(&table(1003, |i| uniform(at + i)), DType::F16);
        let expected: Vec<_> = expected.into_iter().map(|u| u.min(below_one)).collect();
        assert_eq!(peek(&x, at, 1003), expected, "f16 from {at}");
    }
    near("the mean of f16", &read(Cuda::float_mean(x)), &[0.5], 1e-3);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn copies_of_more_than_four_gigabytes() {
    let _alone = begin("copies_of_more_than_four_gigabytes", "layout", DType::U8).views();
    let n = 2 * EDGE + 100_003;
    let period: Vec<u8> = (0..PERIOD).map(|i| v(i) as u8).collect();
    let host: Vec<u8> = period.iter().copied().cycle().take(n).collect();
    let x = Cuda::int_from_data(TensorData::new(host, [n]), &device());
    check("uploaded", &x, &table(PERIOD, v));
    let y = value_of(pattern(n, DType::U8)).read();
    let bytes: &[u8] = y.as_bytes();
    assert_eq!(bytes.len(), n);
    assert!(bytes.chunks(PERIOD).all(|chunk| chunk == &period[..chunk.len()]), "downloaded");
    drop(y);
    // A copy of a view: what is downloaded was made contiguous first.
    let flipped = value_of(Cuda::int_flip(part(&x, &[[3, n]]), &[0])).read();
    let bytes: &[u8] = flipped.as_bytes();
    let back: Vec<u8> = (0..PERIOD).map(|i| period[((n - 1) % PERIOD + PERIOD - i) % PERIOD]).collect();
    assert!(
        bytes.len() == n - 3 && bytes.chunks(PERIOD).all(|chunk| chunk == &back[..chunk.len()]),
        "a flip"
    );
}

// --- indices of several dimensions, images, transforms ---------------------------------------------------------------------

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn slices_named_by_two_indices() {
    let _alone = begin("slices_named_by_two_indices", "index", DType::U8);
    let last = ROWS / 7 - 1;
    let at = || reshape(ids(&[0, 3, last, 6, last, 0]), &[3, 2]);
    let x = reshape(pattern(ROWS * COLS, DType::U8), &[ROWS / 7, 7, COLS]);
    let expected: Vec<f64> = [3, 6, 0].iter().flat_map(|row| table(COLS, |i| v(row * COLS + i))).collect();
    check("gather_nd", &Cuda::int_gather_nd(x.clone(), at()), &expected);
    drop(x);
    for how in [IndexingUpdateOp::Assign, IndexingUpdateOp::Add, IndexingUpdateOp::Max] {
        let x = reshape(zeros(ROWS * COLS, DType::U8), &[ROWS / 7, 7, COLS]);
        let values = reshape(full(3 * COLS, 1, DType::U8), &[3, COLS]);
        let y = flat(Cuda::int_scatter_nd(x, at(), values, how));
        assert_eq!(nonzero(&y), 3 * COLS, "{how:?}");
        for row in [3, 7 * last + 6, 7 * last] {
            assert_eq!(peek(&y, row * COLS, COLS), vec![1.0; COLS], "{how:?} of row {row}");
        }
    }
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn cross_products() {
    let _alone = begin("cross_products", "elementwise", DType::F16);
    let n = EDGE / 3 + 7;
    let rows = |values: &[f64]| reshape(tiled(values, 3 * n, DType::F16), &[n, 3]);
    let y = Cuda::float_cross(rows(&[1.0, 2.0, 3.0]), rows(&[3.0, 5.0, 7.0]), 1);
    check("cross", &y, &[-1.0, 2.0, -1.0]);
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn many_images_of_another_size() {
    let _alone = begin("many_images_of_another_size", "interpolate", DType::F16).gradients();
    let n = EDGE / 128 + 3;
    let options = || InterpolateOptions::new(InterpolateMode::Nearest);
    let x = reshape(tiled(&table(128, v), 128 * n, DType::F16), &[n, 1, 8, 16]);
    let y = Cuda::interpolate(x.clone(), [16, 16], options());
    check("interpolate", &y, &table(256, |i| v(i / 32 * 16 + i % 16)));
    let dx = Cuda::interpolate_backward(x, y, [16, 16], options());
    check("interpolate_backward", &dx, &table(128, |i| 2.0 * v(i)));
}

#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn transforms_of_many_lines() {
    let _alone = begin("transforms_of_many_lines", "fft", DType::F32);
    let n = (EDGE / 48 + 1) * 3;
    let pulses = table(48, |i| if i % 16 == 0 { 1.0 + (i / 16) as f64 } else { 0.0 });
    let x = reshape(tiled(&pulses, 16 * n, DType::F32), &[n, 16]);
    let (re, im) = Cuda::rfft(x, 1, None);
    check("the real part", &re, &table(27, |i| 1.0 + (i / 9) as f64));
    assert_eq!(nonzero(&im), 0, "the imaginary part");
    check("irfft", &Cuda::irfft(re, im, 1, None), &pulses);
}

/// Longer than two factors in shared memory.
#[test]
#[ignore = "needs up to 60 GB of device memory"]
fn a_transform_in_three_factors() {
    let _alone = begin("a_transform_in_three_factors", "fft", DType::F32);
    let n = 1 << 26;
    let (re, im) = Cuda::rfft(marked(n, &[(3, 1)], DType::F32), 0, None);
    for first in [0, 12_345_678, n / 2 - 8] {
        let angle = |k: usize| std::f64::consts::TAU * 3.0 * (first + k) as f64 / n as f64;
        for (got, expected) in [
            (peek(&re, first, 8), table(8, |k| angle(k).cos())),
            (peek(&im, first, 8), table(8, |k| -angle(k).sin())),
        ] {
            let close = got.iter().zip(&expected).all(|(g, e)| (g - e).abs() < 1e-5);
            assert!(close, "bins from {first}: {got:?}, not {expected:?}");
        }
    }
    let x = Cuda::irfft(re, im, 0, None);
    let got = peek(&x, 0, 8);
    assert!(got.iter().zip([0.0, 0.0, 0.0, 1.0, 0.0]).all(|(g, e)| (g - e).abs() < 1e-4), "{got:?}");
}
