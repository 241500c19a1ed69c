//! Launcher of `gather.cu`: gather and select.

use smallvec::SmallVec;

#[cfg(test)]
use super::gate::Instance;
use super::{Def, KernelSpec, LOOPS, kernel_file};
use crate::driver::launch::{FastDiv, Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::layout::{Nest, Strides};
use crate::tensor::CudaTensor;

kernel_file!(GATHER, "gather.cu", [&LOOPS]);

pub(super) const THREADS: u64 = 256;
pub(super) const MAX_DIMS: usize = 8;
const OPERANDS: usize = 3;

/// What an index tensor names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Along {
    /// An element for each of its own: gather and scatter.
    Elements,
    /// A slice of the indexed dimension for each: select.
    Slices,
}

impl Along {
    /// The strides of `index` in loops over the tensor of gathered (or scattered) elements, which has `rank` dimensions.
    pub(crate) fn index_strides(self, index: &CudaTensor, rank: usize, dim: usize) -> Strides {
        match self {
            Along::Elements => index.layout().strides().into(),
            Along::Slices => {
                let mut strides: Strides = SmallVec::from_elem(0, rank);
                strides[dim] = index.layout().strides()[0];
                strides
            }
        }
    }
}

/// The strides of `tensor`, with 0 in `dim`.
pub(super) fn strides_without(tensor: &CudaTensor, dim: usize) -> Strides {
    let mut strides: Strides = tensor.layout().strides().into();
    strides[dim] = 0;
    strides
}

/// Mirrors `Loops` in gather.cu and scatter.cu: innermost loop first.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct LoopsArg {
    dims: u32,
    size32: [FastDiv; MAX_DIMS],
    size: [u64; MAX_DIMS],
    stride: [[i64; OPERANDS]; MAX_DIMS],
}
kernel_arg!(LoopsArg);

impl LoopsArg {
    /// At most [`MAX_DIMS`] loops, of which the innermost counts packs of `v` elements.
    pub(super) fn new<const N: usize>(nest: &Nest<N>, v: usize) -> LoopsArg {
        const { assert!(N <= OPERANDS) };
        let mut arg = LoopsArg {
            dims: nest.sizes.len() as u32,
            size32: [FastDiv::default(); MAX_DIMS],
            size: [1; MAX_DIMS],
            stride: [[0; OPERANDS]; MAX_DIMS],
        };
        for (d, (&size, strides)) in nest.sizes.iter().zip(&nest.strides).rev().enumerate() {
            let (size, step) = if d == 0 { (size / v, v as i64) } else { (size, 1) };
            arg.size[d] = size as u64;
            // Sizes of 2^31 and more go with 64-bit offsets, which do not use this field.
            arg.size32[d] =
                u32::try_from(size).ok().filter(|&s| s < 1 << 31).map_or_else(FastDiv::default, FastDiv::new);
            for (to, from) in arg.stride[d].iter_mut().zip(strides) {
                *to = from * step;
            }
        }
        arg
    }
}

/// The type of offsets in a kernel.
pub(super) fn offset_type<const N: usize>(nest: &Nest<N>) -> Def {
    Def::Type(if nest.fits_u31() { Elem::I32 } else { Elem::I64 })
}

/// Blocks for one thread each of `n` items; beyond 2^31 blocks the threads loop.
pub(super) fn blocks(n: u64) -> u32 {
    n.div_ceil(THREADS).min(i32::MAX as u64) as u32
}

/// Elements per pack: 16 bytes if the rows that are copied whole allow it, else less. `aligned` tells whether x and y
/// both begin at a multiple of so many bytes.
fn pack_len(nest: &Nest<2>, dim_stride: i64, elem_bytes: usize, aligned: impl Fn(usize) -> bool) -> usize {
    let inner = nest.sizes.len() - 1;
    if nest.strides[inner] != [0, 1] {
        return 1;
    }
    let fits = |v: usize| {
        nest.sizes[inner].is_multiple_of(v)
            && dim_stride % v as i64 == 0
            && nest.strides[..inner].iter().all(|s| s[1] % v as i64 == 0)
            && aligned(v * elem_bytes)
    };
    let mut v = 16 / elem_bytes;
    while v > 1 && !fits(v) {
        v /= 2;
    }
    v
}

fn defs(elem_bytes: usize, index: Elem, v: usize, offset: Def) -> [(&'static str, Def); 4] {
    let word = match elem_bytes {
        1 => Elem::U8,
        2 => Elem::U16,
        4 => Elem::U32,
        _ => Elem::U64,
    };
    [("T", Def::Type(word)), ("IDX_T", Def::Type(index)), ("V", Def::Int(v as i64)), ("OFFSET", offset)]
}

/// `y[i] = x[i with index[i] in dimension dim]`, for a row-major `y` of the result's shape and i32 or i64 indices.
pub(crate) fn gather(
    op: &'static str,
    y: &CudaTensor,
    x: &CudaTensor,
    dim: usize,
    index: &CudaTensor,
    along: Along,
) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    debug_assert!(y.layout().is_contiguous() && matches!(index.elem(), Elem::I32 | Elem::I64));
    let index_strides = along.index_strides(index, y.dims().len(), dim);
    let nest = Nest::new(y.dims(), [&index_strides, &strides_without(x, dim)]);
    if nest.sizes.len() > MAX_DIMS {
        // Row-major operands leave at most three loops.
        return gather(op, y, &x.contiguous()?, dim, &index.contiguous()?, along);
    }
    let bytes = x.elem().size_bytes();
    let dim_stride = x.layout().strides()[dim];
    let v = pack_len(&nest, dim_stride, bytes, |bytes| x.aligned_to(bytes) && y.aligned_to(bytes));
    let defs = defs(bytes, index.elem(), v, offset_type(&nest));
    let device = y.device();
    let kernel = device.kernel(&KernelSpec { file: &GATHER, entry: "gather", defs: &defs })?;
    let packs = (y.len() / v) as u64;
    Launch::new(device, kernel)
        .write(y)
        .read(x)
        .read(index)
        .arg(packs)
        .arg(dim_stride)
        .arg(x.dims()[dim] as i64)
        .arg(LoopsArg::new(&nest, v))
        .faults(op)
        .run([blocks(packs), 1, 1], THREADS as u32, 0)
}

/// Both types of [`offset_type`].
#[cfg(test)]
pub(super) const OFFSET_TYPES: [Def; 2] = [Def::Type(Elem::I32), Def::Type(Elem::I64)];

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for bytes in [1, 2, 4, 8] {
        for v in [1, 16 / bytes] {
            for index in [Elem::I32, Elem::I64] {
                all.extend(
                    OFFSET_TYPES
                        .map(|offset| Instance::new(&GATHER, "gather", &defs(bytes, index, v, offset))),
                );
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_copied_in_the_widest_pack_that_divides_them() {
        // select on dimension 0 of [10, 64] and on dimension 1 of [4, 10, 6]
        let rows = Nest::new(&[3, 64], [&[1, 0], &[0, 1]]);
        assert_eq!(pack_len(&rows, 64, 4, |_| true), 4);
        assert_eq!(pack_len(&rows, 64, 1, |_| true), 16);
        assert_eq!(pack_len(&rows, 64, 4, |bytes| bytes <= 8), 2);
        assert_eq!(pack_len(&rows, 65, 4, |_| true), 1);
        let inner = Nest::new(&[4, 3, 6], [&[0, 1, 0], &[60, 0, 1]]);
        assert_eq!(pack_len(&inner, 6, 4, |_| true), 2);
        // A gather has an index for each element.
        let elements = Nest::new(&[3, 64], [&[64, 1], &[0, 1]]);
        assert_eq!(pack_len(&elements, 64, 4, |_| true), 1);
        let arg = LoopsArg::new(&inner, 2);
        assert_eq!((arg.dims, &arg.size[..4]), (3, &[3, 3, 4, 1][..]));
        assert_eq!(arg.stride[..3], [[0, 2, 0], [1, 0, 0], [0, 60, 0]]);
    }
}
