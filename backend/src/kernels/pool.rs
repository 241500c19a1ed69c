//! Launcher of `pool.cu`.

#[cfg(test)]
use super::gate::Instance;
use super::gather::{THREADS, blocks};
use super::{Def, KernelSpec, kernel_file};
use crate::driver::launch::{Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(POOL, "pool.cu");

/// Mirrors `Pool` in pool.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pool {
    pub(crate) planes: u64,
    pub(crate) size: [i32; 2],
    pub(crate) out: [i32; 2],
    pub(crate) kernel: [i32; 2],
    pub(crate) stride: [i32; 2],
    pub(crate) pad: [i32; 2],
    pub(crate) dilation: [i32; 2],
    pub(crate) count_include_pad: u32,
}
kernel_arg!(Pool);

/// One of the kernels, with its tensors; all row-major.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Case<'a> {
    Avg { y: &'a CudaTensor, x: &'a CudaTensor },
    AvgBackward { dx: &'a CudaTensor, dy: &'a CudaTensor },
    Max { y: &'a CudaTensor, x: &'a CudaTensor },
    MaxIndices { y: &'a CudaTensor, indices: &'a CudaTensor, x: &'a CudaTensor },
    MaxBackward { dx: &'a CudaTensor, dy: &'a CudaTensor, indices: &'a CudaTensor },
    Adaptive { y: &'a CudaTensor, x: &'a CudaTensor },
    AdaptiveBackward { dx: &'a CudaTensor, dy: &'a CudaTensor },
}

/// The macros of an instance for `n` output elements.
fn defs(case: &'static str, elem: Elem, index: Elem, n: u64) -> [(&'static str, Def); 4] {
    [
        ("T", Def::Type(elem)),
        // Divisions of 32-bit numbers are several times cheaper than those of 64-bit ones.
        ("INDEX", Def::Type(if n < 1 << 31 { Elem::U32 } else { Elem::U64 })),
        ("IDX_T", Def::Type(index)),
        (case, Def::Int(1)),
    ]
}

/// Runs a pooling kernel; `indices` are i32 or i64.
pub(crate) fn pool(case: Case, p: Pool) -> Result<()> {
    let (out, name) = match case {
        Case::Avg { y, .. } => (y, "CASE_AVG"),
        Case::AvgBackward { dx, .. } => (dx, "CASE_AVG_BACKWARD"),
        Case::Max { y, .. } => (y, "CASE_MAX"),
        Case::MaxIndices { y, .. } => (y, "CASE_MAX_INDICES"),
        Case::MaxBackward { dx, .. } => (dx, "CASE_MAX_BACKWARD"),
        Case::Adaptive { y, .. } => (y, "CASE_ADAPTIVE"),
        Case::AdaptiveBackward { dx, .. } => (dx, "CASE_ADAPTIVE_BACKWARD"),
    };
    let n = out.len() as u64;
    let index = match case {
        Case::MaxIndices { indices, .. } | Case::MaxBackward { indices, .. } => indices.elem(),
        _ => Elem::I32,
    };
    let defs = defs(name, out.elem(), index, n);
    let device = out.device();
    let kernel = device.kernel(&KernelSpec { file: &POOL, entry: "pool", defs: &defs })?;
    let launch = Launch::new(device, kernel).write(out);
    let launch = match case {
        Case::Avg { x, .. } | Case::Adaptive { x, .. } => launch.read(x),
        Case::AvgBackward { dy, .. } | Case::AdaptiveBackward { dy, .. } => launch.read(dy),
        Case::Max { x, .. } => launch.null().read(x),
        Case::MaxIndices { indices, x, .. } => launch.write(indices).read(x),
        Case::MaxBackward { dy, indices, .. } => launch.read(dy).read(indices),
    };
    launch.arg(p).run([blocks(n), 1, 1], THREADS as u32, 0)
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::BF16] {
        let mut add = |case, index, n| all.push(Instance::new(&POOL, "pool", &defs(case, elem, index, n)));
        for n in [1, 1 << 31] {
            for case in
                ["CASE_AVG", "CASE_AVG_BACKWARD", "CASE_MAX", "CASE_ADAPTIVE", "CASE_ADAPTIVE_BACKWARD"]
            {
                add(case, Elem::I32, n);
            }
            for case in ["CASE_MAX_INDICES", "CASE_MAX_BACKWARD"] {
                add(case, Elem::I32, n);
                add(case, Elem::I64, n);
            }
        }
    }
    all
}
