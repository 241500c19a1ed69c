//! Launcher of `nd.cu`: the rows that indices of several dimensions name, and assignment to them.

#[cfg(test)]
use super::gate::Instance;
use super::gather::{THREADS, blocks, word};
use super::{Def, KernelSpec, kernel_file};
use crate::driver::launch::{Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(ND, "nd.cu");

/// Columns of the indices that one launch takes (`DIMS` in nd.cu).
const DIMS: usize = 8;

/// Mirrors `Dims` in nd.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DimsArg {
    size: [i64; DIMS],
    stride: [i64; DIMS],
    columns: u64,
    first: u32,
    count: u32,
}
kernel_arg!(DimsArg);

fn flat_defs(index: Elem, first: bool) -> [(&'static str, Def); 3] {
    [("IDX_T", Def::Type(index)), ("FIRST", Def::Int(first as i64)), ("CASE_FLAT", Def::Int(1))]
}

fn last_defs(key: Elem) -> [(&'static str, Def); 2] {
    [("KEY_T", Def::Type(key)), ("CASE_LAST", Def::Int(1))]
}

fn assign_defs(elem_bytes: usize, v: usize, key: Elem) -> [(&'static str, Def); 4] {
    [
        ("T", Def::Type(word(elem_bytes))),
        ("V", Def::Int(v as i64)),
        ("KEY_T", Def::Type(key)),
        ("CASE_ASSIGN", Def::Int(1)),
    ]
}

/// The type of [`last`]'s table for `n` updates, which are counted from 1.
pub(crate) fn key(n: usize) -> burn_std::DType {
    if n < u32::MAX as usize { burn_std::DType::U32 } else { burn_std::DType::U64 }
}

/// `row[n] = sum over k of index[n, k] * stride[k]`, for a row-major `index [N, K]` of i32 or i64, `row [N]` of i64, and
/// the K sizes and strides, of which none is 0 and there is at least one.
pub(crate) fn flat(
    op: &'static str,
    row: &CudaTensor,
    index: &CudaTensor,
    sizes: &[usize],
    strides: &[usize],
) -> Result<()> {
    let (n, device) = (row.len() as u64, row.device());
    for first in (0..sizes.len()).step_by(DIMS) {
        let count = (sizes.len() - first).min(DIMS);
        let padded =
            |from: &[usize]| std::array::from_fn(|k| if k < count { from[first + k] as i64 } else { 0 });
        let dims = DimsArg {
            size: padded(sizes),
            stride: padded(strides),
            columns: sizes.len() as u64,
            first: first as u32,
            count: count as u32,
        };
        let defs = flat_defs(index.elem(), first == 0);
        let kernel = device.kernel(&KernelSpec { file: &ND, entry: "nd", defs: &defs })?;
        let launch = Launch::new(device, kernel);
        let launch = if first == 0 { launch.write(row) } else { launch.update(row) };
        launch.read(index).arg(n).arg(dims).faults(op).run([blocks(n), 1, 1], THREADS as u32, 0)?;
    }
    Ok(())
}

/// `last[row[n]] = n + 1` for the last such `n`; `last` holds zeros before.
pub(crate) fn last(last: &CudaTensor, row: &CudaTensor) -> Result<()> {
    let (n, device) = (row.len() as u64, row.device());
    let kernel = device.kernel(&KernelSpec { file: &ND, entry: "nd", defs: &last_defs(last.elem()) })?;
    Launch::new(device, kernel).update(last).read(row).arg(n).run([blocks(n), 1, 1], THREADS as u32, 0)
}

/// `x[row[n], :] = value[n, :]` where `last[row[n]]` is `n + 1`; `x [R, inner]` and `value [N, inner]` row-major.
pub(crate) fn assign(x: &CudaTensor, value: &CudaTensor, row: &CudaTensor, last: &CudaTensor) -> Result<()> {
    let device = x.device();
    let (n, inner, bytes) = (row.len(), value.dims()[1], x.elem().size_bytes());
    let mut v = 16 / bytes;
    while v > 1 && !(inner.is_multiple_of(v) && x.aligned_to(v * bytes) && value.aligned_to(v * bytes)) {
        v /= 2;
    }
    let defs = assign_defs(bytes, v, last.elem());
    let kernel = device.kernel(&KernelSpec { file: &ND, entry: "nd", defs: &defs })?;
    let packs = (inner / v) as u64;
    Launch::new(device, kernel).update(x).read(value).read(row).read(last).arg(n as u64).arg(packs).run(
        [blocks(n as u64 * packs), 1, 1],
        THREADS as u32,
        0,
    )
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    let mut add = |defs: &[(&'static str, Def)]| all.push(Instance::new(&ND, "nd", defs));
    for index in [Elem::I32, Elem::I64] {
        add(&flat_defs(index, true));
        add(&flat_defs(index, false));
    }
    for key in [Elem::U32, Elem::U64] {
        add(&last_defs(key));
        for bytes in [1, 2, 4, 8] {
            add(&assign_defs(bytes, 1, key));
            add(&assign_defs(bytes, 16 / bytes, key));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_file_agrees_on_the_columns() {
        assert!(ND.text.contains(&format!("#define DIMS {DIMS}\n")));
    }

    #[test]
    fn the_table_holds_every_position() {
        assert_eq!(key(1 << 20), burn_std::DType::U32);
        assert_eq!(key(u32::MAX as usize), burn_std::DType::U64);
    }
}
