//! Launcher of `quantize.cu`: scales, quantised values, and the way back.

use burn_std::DType;

#[cfg(test)]
use super::gate::Instance;
use super::gather::{LoopsArg, THREADS, blocks};
use super::{COMMON_REDUCE, Def, KernelSpec, LOOPS, QUANTIZED, kernel_file};
use crate::driver::launch::{FastDiv, Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::layout::Nest;
use crate::tensor::CudaTensor;

kernel_file!(QUANTIZE, "quantize.cu", [&COMMON_REDUCE, &LOOPS, &QUANTIZED]);

/// Elements of a whole tensor that one block takes the maximum of: enough for each thread to have several loads under way.
const CHUNK: u64 = 1 << 14;
/// Segments up to this many elements are a warp's: a block would wait at its barrier for little work.
const WARP_SEGMENT: u64 = 2048;

/// Which of the stored values share a scale: `size` neighbours, or all if it is 0. Mirrors `Groups` in quantized.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Groups {
    size: u64,
    size32: FastDiv,
}
kernel_arg!(Groups);

impl Groups {
    pub(super) fn new(size: u64) -> Groups {
        let size32 = u32::try_from(size).ok().filter(|s| (1..1 << 31).contains(s));
        Groups { size, size32: size32.map_or_else(FastDiv::default, FastDiv::new) }
    }
}

/// The macros for offsets into a storage of `len` values whose scales are shared by `group`, in 32 bits where all fit.
pub(super) fn offsets(narrow: bool, len: u64, group: u64) -> [(&'static str, Def); 2] {
    let narrow = narrow && len < 1 << 31 && group < 1 << 31;
    let (signed, unsigned) = if narrow { (Elem::I32, Elem::U32) } else { (Elem::I64, Elem::U64) };
    [("OFFSET", Def::Type(signed)), ("UINDEX", Def::Type(unsigned))]
}

/// The values that a storage of words has room for.
pub(crate) fn room(words: &CudaTensor, bits: usize) -> u64 {
    words.len() as u64 * (32 / bits) as u64
}

fn max_defs(elem: Elem, param: Elem, v: u64, lanes: u64) -> [(&'static str, Def); 5] {
    [
        ("CASE_MAX", Def::Int(1)),
        ("T", Def::Type(elem)),
        ("PARAM", Def::Type(param)),
        ("V", Def::Int(v as i64)),
        ("LANES", Def::Int(lanes as i64)),
    ]
}

/// `out[k]` is the largest magnitude of elements `[k * size, (k + 1) * size)` of `x`, or the scale that takes it to the end
/// of a range of width `range` if that is not 0.
fn maximum(out: &CudaTensor, x: &CudaTensor, size: u64, range: f32, param: Elem) -> Result<()> {
    let segments = out.len() as u64;
    let elem = x.elem();
    let fits =
        |v: u64| (segments == 1 || size.is_multiple_of(v)) && x.aligned_to(v as usize * elem.size_bytes());
    let mut v = 16 / elem.size_bytes() as u64;
    while v > 1 && !fits(v) {
        v /= 2;
    }
    let lanes = if size <= WARP_SEGMENT { 32 } else { THREADS };
    let defs = max_defs(elem, param, v, lanes);
    let device = x.device();
    let kernel = device.kernel(&KernelSpec { file: &QUANTIZE, entry: "quantize", defs: &defs })?;
    let launch = Launch::new(device, kernel).op("quantize_dynamic").write(out).read(x);
    let inverse = if range == 0.0 { 0.0 } else { 1.0 / f64::from(range) };
    let launch = launch.arg(x.len() as u64).arg(segments).arg(size).arg(inverse);
    launch.run([blocks(segments * lanes), 1, 1], THREADS as u32, 0)
}

/// The scales (f32, rounded to `param`) that take the largest magnitude of each `group` elements of a row-major `x`, or of
/// all if it is 0, to the end of a range of width `range`.
pub(crate) fn scales_of(
    scales: &CudaTensor,
    x: &CudaTensor,
    group: u64,
    range: f32,
    param: Elem,
) -> Result<()> {
    if scales.is_empty() {
        return Ok(());
    }
    let n = x.len() as u64;
    if group != 0 {
        return maximum(scales, x, group, range, param);
    }
    if n <= CHUNK {
        return maximum(scales, x, n.max(1), range, param);
    }
    let parts = CudaTensor::empty(x.device(), [n.div_ceil(CHUNK) as usize], DType::F32, "quantize_dynamic")?;
    maximum(&parts, x, CHUNK, 0.0, param)?;
    maximum(scales, &parts, parts.len() as u64, range, param)
}

fn check_defs(elem: Elem, param: Elem) -> [(&'static str, Def); 3] {
    [("CASE_CHECK", Def::Int(1)), ("T", Def::Type(elem)), ("PARAM", Def::Type(param))]
}

/// Scales that the user gives (row-major, any float dtype), as f32 rounded to `param` and fit to be divided by.
pub(crate) fn usable_scales(out: &CudaTensor, scales: &CudaTensor, param: Elem) -> Result<()> {
    let defs = check_defs(scales.elem(), param);
    let (device, n) = (out.device(), out.len() as u64);
    let kernel = device.kernel(&KernelSpec { file: &QUANTIZE, entry: "quantize", defs: &defs })?;
    let launch = Launch::new(device, kernel).write(out).read(scales).arg(n);
    launch.run([blocks(n), 1, 1], THREADS as u32, 0)
}

fn quantize_defs(elem: Elem, bits: usize, v: usize, n: u64, group: u64) -> [(&'static str, Def); 6] {
    let [offset, index] = offsets(true, n, group);
    [
        ("CASE_QUANTIZE", Def::Int(1)),
        ("T", Def::Type(elem)),
        ("BITS", Def::Int(bits as i64)),
        ("V", Def::Int(v as i64)),
        offset,
        index,
    ]
}

/// Whether the values of each word from value `base` on share a scale.
fn whole(base: u64, group: u64, bits: usize) -> u32 {
    let per_word = (32 / bits) as u64;
    (group == 0 || group.is_multiple_of(per_word) && base.is_multiple_of(per_word)) as u32
}

/// `words = clamp(round(x / scale), low, high)` for a row-major `x`; `scales` is f32.
pub(crate) fn quantize(
    words: &CudaTensor,
    x: &CudaTensor,
    scales: &CudaTensor,
    bits: usize,
    group: u64,
    [low, high]: [i32; 2],
) -> Result<()> {
    let n = x.len() as u64;
    let v = if x.aligned_to((32 / bits * x.elem().size_bytes()).min(16)) { 32 / bits } else { 1 };
    let defs = quantize_defs(x.elem(), bits, v, n, group);
    let device = x.device();
    let kernel = device.kernel(&KernelSpec { file: &QUANTIZE, entry: "quantize", defs: &defs })?;
    let launch = Launch::new(device, kernel).write(words).read(x).read(scales);
    let launch = launch.arg(n).arg(Groups::new(group)).arg(whole(0, group, bits)).arg(low).arg(high);
    launch.run([blocks(words.len() as u64), 1, 1], THREADS as u32, 0)
}

fn dequantize_defs(elem: Elem, bits: usize, len: u64, group: u64) -> [(&'static str, Def); 5] {
    let [offset, index] = offsets(true, len, group);
    [("CASE_DEQUANTIZE", Def::Int(1)), ("T", Def::Type(elem)), ("BITS", Def::Int(bits as i64)), offset, index]
}

/// `y = scale * value` for as many neighbours in storage as `y` (fresh, row-major) has elements, from value `base` on, which
/// begins a word.
pub(crate) fn dequantize(
    y: &CudaTensor,
    words: &CudaTensor,
    scales: &CudaTensor,
    bits: usize,
    base: u64,
    group: u64,
) -> Result<()> {
    let n = y.len() as u64;
    debug_assert!(base.is_multiple_of((32 / bits) as u64));
    let defs = dequantize_defs(y.elem(), bits, room(words, bits), group);
    let device = y.device();
    let kernel = device.kernel(&KernelSpec { file: &QUANTIZE, entry: "quantize", defs: &defs })?;
    let launch = Launch::new(device, kernel).op("dequantize").write(y).read(words).read(scales);
    let launch = launch.arg(n).arg(base).arg(Groups::new(group)).arg(whole(base, group, bits));
    launch.run([blocks(n.div_ceil((32 / bits) as u64)), 1, 1], THREADS as u32, 0)
}

fn view_defs(elem: Elem, bits: usize, narrow: bool, len: u64, group: u64) -> [(&'static str, Def); 5] {
    let [offset, index] = offsets(narrow, len, group);
    [
        ("CASE_DEQUANTIZE_VIEW", Def::Int(1)),
        ("T", Def::Type(elem)),
        ("BITS", Def::Int(bits as i64)),
        offset,
        index,
    ]
}

/// As [`dequantize`] for values that `nest` walks (its second operand) from value `base` on, in at most 8 loops.
pub(crate) fn dequantize_view(
    y: &CudaTensor,
    words: &CudaTensor,
    scales: &CudaTensor,
    bits: usize,
    base: u64,
    group: u64,
    nest: &Nest<2>,
) -> Result<()> {
    let n = y.len() as u64;
    let defs = view_defs(y.elem(), bits, nest.fits_u31(), room(words, bits), group);
    let device = y.device();
    let kernel = device.kernel(&KernelSpec { file: &QUANTIZE, entry: "quantize", defs: &defs })?;
    let launch = Launch::new(device, kernel).op("dequantize").write(y).read(words).read(scales);
    let launch = launch.arg(n).arg(base).arg(LoopsArg::new(nest, 1)).arg(Groups::new(group));
    launch.run([blocks(n), 1, 1], THREADS as u32, 0)
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    let mut add = |defs: &[(&'static str, Def)]| all.push(Instance::new(&QUANTIZE, "quantize", defs));
    for elem in [Elem::F32, Elem::F64, Elem::F16] {
        for lanes in [32, THREADS] {
            add(&max_defs(elem, Elem::F16, 16 / elem.size_bytes() as u64, lanes));
        }
        add(&check_defs(elem, Elem::F16));
    }
    // The widest and the narrowest elements, with the fewest and the most values in a word.
    for elem in [Elem::F64, Elem::F16] {
        for bits in [8, 2] {
            for len in [1, 1 << 31] {
                add(&quantize_defs(elem, bits, 32 / bits, len, 32));
                add(&dequantize_defs(elem, bits, len, 32));
                add(&view_defs(elem, bits, true, len, 32));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_narrow_where_values_and_groups_fit() {
        let narrow = |loops, len, group| offsets(loops, len, group)[0].1 == Def::Type(Elem::I32);
        assert!(narrow(true, (1 << 31) - 1, 32) && narrow(true, 8, 0));
        assert!(!narrow(true, 1 << 31, 32) && !narrow(false, 8, 32) && !narrow(true, 8, 1 << 31));
    }

    #[test]
    fn a_word_has_one_scale_where_groups_are_whole_words() {
        assert_eq!([whole(0, 32, 4), whole(3, 0, 4), whole(8, 32, 4)], [1, 1, 1]);
        assert_eq!([whole(0, 4, 4), whole(0, 6, 8), whole(2, 32, 8)], [0, 0, 0]);
    }
}
