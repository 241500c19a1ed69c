//! Launchers of `argwhere.cu`: which elements are true.

use burn_std::DType;

use super::cumulative::{CumulativeOp, cumulative};
#[cfg(test)]
use super::gate::Instance;
use super::{COMMON_REDUCE, Def, KernelSpec, kernel_file};
use crate::driver::launch::{Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::layout::row_major;
use crate::tensor::CudaTensor;

kernel_file!(ARGWHERE, "argwhere.cu", [&COMMON_REDUCE]);

const THREADS: u32 = 256;
/// Elements of a block.
const TILE: usize = 8192;
/// Coordinates that a launch writes (`MOST_DIMS` in argwhere.cu).
const MOST_DIMS: usize = 8;

/// Mirrors `Dims` in argwhere.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DimsArg {
    size: [u64; MOST_DIMS],
    stride: [u64; MOST_DIMS],
    used: u32,
}
kernel_arg!(DimsArg);

fn pack_len(x: &CudaTensor) -> i64 {
    if x.aligned_to(16) { 16 } else { 1 }
}

fn count_defs(v: i64) -> [(&'static str, Def); 2] {
    [("V", Def::Int(v)), ("CASE_COUNT", Def::Int(1))]
}

fn write_defs(v: i64, index: Elem, flat: Elem) -> [(&'static str, Def); 4] {
    [("V", Def::Int(v)), ("CASE_WRITE", Def::Int(1)), ("IDX_T", Def::Type(index)), ("FLAT", Def::Type(flat))]
}

/// The trues in each tile of `x` and all before it, as i64; the last one is the number of all. `x` is row-major and not
/// empty.
pub(crate) fn argwhere_counts(op: &'static str, x: &CudaTensor) -> Result<CudaTensor> {
    debug_assert!(x.layout().is_contiguous() && x.elem() == Elem::B8);
    let device = x.device();
    let tiles = x.len().div_ceil(TILE);
    let counts = CudaTensor::empty(device, [tiles], DType::I64, op)?;
    let defs = count_defs(pack_len(x));
    let kernel = device.kernel(&KernelSpec { file: &ARGWHERE, entry: "argwhere_count", defs: &defs })?;
    let launch = Launch::new(device, kernel).write(&counts).read(x).arg(x.len() as u64).op(op);
    launch.run([tiles as u32, 1, 1], THREADS, 0)?;
    cumulative(op, CumulativeOp::Sum, &counts, &counts, 0)?;
    Ok(counts)
}

/// The coordinates of the trues of `x` to `out [trues, rank]`, of i32 or i64, with the counts of [`argwhere_counts`].
pub(crate) fn argwhere_write(
    op: &'static str,
    out: &CudaTensor,
    x: &CudaTensor,
    counts: &CudaTensor,
) -> Result<()> {
    let device = x.device();
    let flat = if x.len() <= u32::MAX as usize { Elem::U32 } else { Elem::U64 };
    let defs = write_defs(pack_len(x), out.elem(), flat);
    let kernel = device.kernel(&KernelSpec { file: &ARGWHERE, entry: "argwhere_write", defs: &defs })?;
    let (sizes, strides) = (x.dims(), row_major(x.dims()));
    for first in (0..sizes.len()).step_by(MOST_DIMS) {
        let used = MOST_DIMS.min(sizes.len() - first);
        let mut dims = DimsArg { size: [1; MOST_DIMS], stride: [1; MOST_DIMS], used: used as u32 };
        for d in 0..used {
            dims.size[d] = sizes[first + d] as u64;
            dims.stride[d] = strides[first + d] as u64;
        }
        Launch::new(device, kernel)
            .write(out)
            .read(x)
            .read(counts)
            .arg(x.len() as u64)
            .arg(sizes.len() as u32)
            .arg(first as u32)
            .arg(dims)
            .op(op)
            .run([counts.len() as u32, 1, 1], THREADS, 0)?;
    }
    Ok(())
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for v in [1, 16] {
        all.push(Instance::new(&ARGWHERE, "argwhere_count", &count_defs(v)));
        for (index, flat) in [(Elem::I32, Elem::U32), (Elem::I64, Elem::U32), (Elem::I64, Elem::U64)] {
            all.push(Instance::new(&ARGWHERE, "argwhere_write", &write_defs(v, index, flat)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_file_agrees_on_the_sizes() {
        for line in [
            format!("#define THREADS {THREADS}\n"),
            format!("#define TILE {TILE}\n"),
            format!("#define MOST_DIMS {MOST_DIMS}\n"),
        ] {
            assert!(ARGWHERE.text.contains(&line), "{line}");
        }
    }
}
