//! Launcher of `cross.cu`.

#[cfg(test)]
use super::gate::Instance;
#[cfg(test)]
use super::gather::OFFSET_TYPES;
use super::gather::{LoopsArg, MAX_DIMS, THREADS, blocks, offset_type};
use super::scatter::without;
use super::{Def, KernelSpec, LOOPS, kernel_file};
use crate::driver::launch::Launch;
use crate::dtype::Elem;
use crate::error::Result;
use crate::layout::Nest;
use crate::tensor::CudaTensor;

kernel_file!(CROSS, "cross.cu", [&LOOPS]);

fn defs(elem: Elem, offset: Def) -> [(&'static str, Def); 2] {
    [("T", Def::Type(elem)), ("OFFSET", offset)]
}

/// `y = a x b` along `dim`, whose size is 3, for a row-major `y`; all of one shape, and none empty.
pub(crate) fn cross(y: &CudaTensor, a: &CudaTensor, b: &CudaTensor, dim: usize) -> Result<()> {
    let shape = without(y.dims(), dim);
    let strides = [a, b, y].map(|t| without(t.layout().strides(), dim));
    let nest = Nest::new(&shape, [&strides[0], &strides[1], &strides[2]]);
    // The dimension of 3 belongs to the offsets.
    let all = Nest::new(y.dims(), [a, b, y].map(|t| t.layout().strides()));
    if nest.sizes.len() > MAX_DIMS {
        // Row-major operands leave at most two loops.
        return cross(y, &a.contiguous()?, &b.contiguous()?, dim);
    }
    let device = y.device();
    let defs = defs(y.elem(), offset_type(&all));
    let kernel = device.kernel(&KernelSpec { file: &CROSS, entry: "cross", defs: &defs })?;
    let n = (y.len() / 3) as u64;
    let stride = |t: &CudaTensor| t.layout().strides()[dim];
    Launch::new(device, kernel)
        .write(y)
        .read(a)
        .read(b)
        .arg(n)
        .arg(stride(a))
        .arg(stride(b))
        .arg(stride(y))
        .arg(LoopsArg::new(&nest, 1))
        .run([blocks(n), 1, 1], THREADS as u32, 0)
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::BF16] {
        all.extend(OFFSET_TYPES.map(|offset| Instance::new(&CROSS, "cross", &defs(elem, offset))));
    }
    all
}
