//! Launcher of `int_matmul.cu`.

#[cfg(test)]
use super::gate::Instance;
use super::gather::THREADS;
use super::{Def, KernelSpec, kernel_file};
use crate::driver::launch::{Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::layout::Nest;
use crate::tensor::CudaTensor;

kernel_file!(INT_MATMUL, "int_matmul.cu");

const TILE: u64 = 64;
const MAX_BATCH_DIMS: usize = 6;

/// Mirrors `Matmul` in int_matmul.cu: innermost batch dimension first.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct MatmulArg {
    m: u64,
    n: u64,
    k: u64,
    batch: u64,
    a_row: i64,
    a_col: i64,
    b_row: i64,
    b_col: i64,
    batch_dims: u32,
    batch_size: [u64; MAX_BATCH_DIMS],
    a_batch: [i64; MAX_BATCH_DIMS],
    b_batch: [i64; MAX_BATCH_DIMS],
}
kernel_arg!(MatmulArg);

fn defs(elem: Elem) -> [(&'static str, Def); 2] {
    // Sums modulo 2^32 keep all that a result of 32 bits or less needs.
    let wide = if elem.size_bytes() == 8 { Elem::U64 } else { Elem::U32 };
    [("T", Def::Type(elem)), ("WIDE", Def::Type(wide))]
}

/// `c [.., M, N] = a [.., M, K] b [.., K, N]`, where `a` and `b` are expanded to `c`'s batch dimensions and `c` is
/// row-major and not empty.
pub(crate) fn int_matmul(c: &CudaTensor, a: &CudaTensor, b: &CudaTensor) -> Result<()> {
    let lead = c.dims().len() - 2;
    let strides = [a, b].map(|t| &t.layout().strides()[..lead]);
    let nest = Nest::new(&c.dims()[..lead], strides);
    if nest.sizes.len() > MAX_BATCH_DIMS {
        // Row-major operands leave one batch dimension.
        return int_matmul(c, &a.contiguous()?, &b.contiguous()?);
    }
    let (m, n, k) = (c.dims()[lead] as u64, c.dims()[lead + 1] as u64, a.dims()[lead + 1] as u64);
    let batch: u64 = nest.sizes.iter().map(|&s| s as u64).product();
    let mut arg = MatmulArg {
        m,
        n,
        k,
        batch,
        a_row: a.layout().strides()[lead],
        a_col: a.layout().strides()[lead + 1],
        b_row: b.layout().strides()[lead],
        b_col: b.layout().strides()[lead + 1],
        batch_dims: nest.sizes.len() as u32,
        batch_size: [1; MAX_BATCH_DIMS],
        a_batch: [0; MAX_BATCH_DIMS],
        b_batch: [0; MAX_BATCH_DIMS],
    };
    for (d, (&size, strides)) in nest.sizes.iter().zip(&nest.strides).rev().enumerate() {
        arg.batch_size[d] = size as u64;
        [arg.a_batch[d], arg.b_batch[d]] = *strides;
    }
    let tiles = m.div_ceil(TILE) * n.div_ceil(TILE);
    if tiles > i32::MAX as u64 {
        return Err(Error::Argument { op: "int_matmul", detail: format!("{m} x {n} results are too many") });
    }
    let defs = defs(c.elem());
    let device = c.device();
    let kernel = device.kernel(&KernelSpec { file: &INT_MATMUL, entry: "int_matmul", defs: &defs })?;
    // A grid has at most 65535 blocks in y: the rest is looped over.
    let grid = [tiles as u32, batch.min(65535) as u32, 1];
    Launch::new(device, kernel).write(c).read(a).read(b).arg(arg).run(grid, THREADS as u32, 0)
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let elems = [Elem::I64, Elem::I32, Elem::I16, Elem::I8, Elem::U64, Elem::U32, Elem::U16, Elem::U8];
    elems.map(|elem| Instance::new(&INT_MATMUL, "int_matmul", &defs(elem))).into()
}
