//! Launchers of layer_norm and its gradients (`layer_norm.cu`).

use burn_std::DType;

#[cfg(test)]
use super::gate::Instance;
use super::softmax::{Defs, RowInRegisters, all_aligned, around, pack_len};
use super::{COMMON_REDUCE, Def, KernelSpec, kernel_file};
use crate::driver::launch::Launch;
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(LAYER_NORM, "layer_norm.cu", [&COMMON_REDUCE]);

/// How an instance walks its rows.
#[derive(Debug, Clone, Copy)]
enum Case {
    Registers(RowInRegisters),
    /// Packs of `v` elements.
    Loop {
        v: u64,
    },
    Backward(RowInRegisters),
}

/// As many threads as there are: rows that do not fit into registers are few, and are read three times from L2.
const LOOP_BLOCK: u64 = 1024;

fn defs(elem: Elem, case: Case) -> Defs {
    let mut defs = Defs::from_slice(&[("T", Def::Type(elem))]);
    match case {
        Case::Registers(row) => {
            defs.push(("CASE_REGISTERS", Def::Int(1)));
            defs.extend_from_slice(&row.defs());
        }
        Case::Backward(row) => {
            defs.push(("CASE_BACKWARD", Def::Int(1)));
            defs.extend_from_slice(&row.defs());
        }
        Case::Loop { v } => defs.extend([
            ("CASE_LOOP", Def::Int(1)),
            ("V", Def::Int(v as i64)),
            ("BLOCK", Def::Int(LOOP_BLOCK as i64)),
        ]),
    }
    defs
}

/// `y = (x - mean) / sqrt(variance + eps) * gamma + beta` over the last dimension. All row-major; `y` may be `x`;
/// `gamma` and `beta` have its size and dtype.
pub(crate) fn layer_norm(
    y: &CudaTensor,
    x: &CudaTensor,
    gamma: &CudaTensor,
    beta: Option<&CudaTensor>,
    eps: f64,
) -> Result<()> {
    debug_assert!([x, y, gamma].into_iter().chain(beta).all(|t| t.layout().is_contiguous()));
    if y.is_empty() {
        return Ok(());
    }
    let (rows, size, _) = around(x.dims(), x.dims().len() - 1);
    let (device, elem) = (x.device(), x.elem());
    let aligned = |bytes| all_aligned(&[x, y, gamma, beta.unwrap_or(gamma)], bytes);
    let (case, blocks, block) = match RowInRegisters::new(size, elem, aligned) {
        Some(row) => (Case::Registers(row), row.blocks(rows), row.block),
        None => {
            let v = pack_len(elem, 16, |v, bytes| size.is_multiple_of(v) && aligned(bytes));
            (Case::Loop { v }, rows, LOOP_BLOCK)
        }
    };
    let defs = defs(elem, case);
    let kernel = device.kernel(&KernelSpec { file: &LAYER_NORM, entry: "layer_norm", defs: &defs })?;
    let launch = Launch::new(device, kernel).write(y).read(x).read(gamma);
    let launch = match beta {
        Some(beta) => launch.read(beta),
        None => launch.null(),
    };
    launch.arg(rows).arg(size as u32).arg(eps).run([blocks as u32, 1, 1], block as u32, 0)
}

/// Elements of a row in a thread of the backward case, which keeps four values of each.
fn backward_values(elem: Elem) -> u64 {
    if elem == Elem::F64 { 4 } else { 8 }
}

/// Larger blocks have too few registers for a thread.
const BACKWARD_BLOCK: u64 = 512;
/// Threads of the backward case on a multiprocessor, which leaves each 64 registers.
const BACKWARD_THREADS: u64 = 1024;

/// The gradient of the input, into `dx`, and `[P, 2, C]` partial sums, in f32 (f64 for f64), of those of gamma and beta:
/// over the first dimension they are to be added. All row-major and, but for `gamma`, of one shape; `dx` may be `x` or `dy`.
/// `None`, and nothing is done, when rows are too long for registers.
pub(crate) fn layer_norm_backward(
    op: &'static str,
    dx: &CudaTensor,
    dy: &CudaTensor,
    x: &CudaTensor,
    gamma: &CudaTensor,
    eps: f64,
) -> Result<Option<CudaTensor>> {
    debug_assert!([x, dx, dy, gamma].into_iter().all(|t| t.layout().is_contiguous()) && !x.is_empty());
    let (rows, size, _) = around(x.dims(), x.dims().len() - 1);
    let (device, elem) = (x.device(), x.elem());
    let aligned = |bytes| all_aligned(&[x, dx, dy, gamma], bytes);
    let row = RowInRegisters::of_values(backward_values(elem), size, elem, aligned);
    let Some(row) = row.filter(|row| row.block <= BACKWARD_BLOCK) else {
        return Ok(None);
    };
    let blocks = row.blocks(rows).min(device.props.sm_count as u64 * (BACKWARD_THREADS / row.block));
    let sums = [(blocks * row.block / row.group) as usize, 2, size as usize];
    let dtype = if elem == Elem::F64 { DType::F64 } else { DType::F32 };
    let partial = CudaTensor::empty(device, sums, dtype, op)?;
    let defs = defs(elem, Case::Backward(row));
    let kernel =
        device.kernel(&KernelSpec { file: &LAYER_NORM, entry: "layer_norm_backward", defs: &defs })?;
    Launch::new(device, kernel)
        .write(dx)
        .write(&partial)
        .read(dy)
        .read(x)
        .read(gamma)
        .arg(rows)
        .arg(size as u32)
        .arg(eps)
        .run([blocks as u32, 1, 1], row.block as u32, 0)?;
    Ok(Some(partial))
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::BF16] {
        let looped = [16 / elem.size_bytes() as u64, 1].map(|v| Case::Loop { v });
        let cases = RowInRegisters::examples(elem).map(Case::Registers).into_iter().chain(looped);
        all.extend(cases.map(|case| Instance::new(&LAYER_NORM, "layer_norm", &defs(elem, case))));
        // The largest block, and a warp, with packs and with single elements.
        let (values, bytes) = (backward_values(elem), elem.size_bytes() as u64);
        for (threads, aligned) in [(BACKWARD_BLOCK, 16), (32, 16), (BACKWARD_BLOCK, bytes), (32, bytes)] {
            let row = RowInRegisters::of_values(values, threads * values, elem, |bytes| bytes <= aligned);
            let defs = defs(elem, Case::Backward(row.expect("the row fits")));
            all.push(Instance::new(&LAYER_NORM, "layer_norm_backward", &defs));
        }
    }
    all
}
