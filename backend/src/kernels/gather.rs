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

/// Mirrors `Loops` in common/loops.cuh: innermost loop first.
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

/// What a thread moves at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unit {
    /// Elements that one index names, which lie side by side in x.
    v: usize,
    /// Indices that lie side by side.
    items: usize,
}

impl Unit {
    const ONE: Unit = Unit { v: 1, items: 1 };

    fn len(self) -> usize {
        self.v * self.items
    }
}

/// Units a thread when there are enough of them to keep the device busy: each is a load that waits for another.
const UNROLL: u64 = 4;
/// Indices at once: eight loads of x, which do not wait for each other.
const MOST_ITEMS: usize = 8;

/// 16 bytes of y if the rows that are copied whole allow it, or the indices of its elements, else less. `aligned` tells
/// whether an operand begins at a multiple of so many bytes.
fn unit(
    nest: &Nest<2>,
    dim_stride: i64,
    elem_bytes: usize,
    index_bytes: usize,
    aligned: impl Fn(Operand, usize) -> bool,
) -> Unit {
    let inner = nest.sizes.len() - 1;
    let outer = |k: usize, n: usize| nest.strides[..inner].iter().all(|s| s[k] % n as i64 == 0);
    let largest = |most: usize, fits: &dyn Fn(usize) -> bool| {
        let mut n = most;
        while n > 1 && !(nest.sizes[inner].is_multiple_of(n) && fits(n)) {
            n /= 2;
        }
        n
    };
    match nest.strides[inner] {
        [0, 1] => {
            let v = largest(16 / elem_bytes, &|v| {
                let bytes = v * elem_bytes;
                dim_stride % v as i64 == 0
                    && outer(1, v)
                    && aligned(Operand::X, bytes)
                    && aligned(Operand::Y, bytes)
            });
            Unit { v, ..Unit::ONE }
        }
        [1, _] => {
            let items = largest(MOST_ITEMS.min(16 / elem_bytes), &|n| {
                outer(0, n)
                    && aligned(Operand::Index, (n * index_bytes).min(16))
                    && aligned(Operand::Y, n * elem_bytes)
            });
            Unit { items, ..Unit::ONE }
        }
        _ => Unit::ONE,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operand {
    Index,
    X,
    Y,
}

/// An unsigned type of this width, for what is only moved.
pub(super) fn word(elem_bytes: usize) -> Elem {
    match elem_bytes {
        1 => Elem::U8,
        2 => Elem::U16,
        4 => Elem::U32,
        _ => Elem::U64,
    }
}

fn defs(elem_bytes: usize, index: Elem, unit: Unit, unroll: u64, offset: Def) -> [(&'static str, Def); 6] {
    [
        ("T", Def::Type(word(elem_bytes))),
        ("IDX_T", Def::Type(index)),
        ("V", Def::Int(unit.v as i64)),
        ("ITEMS", Def::Int(unit.items as i64)),
        ("UNROLL", Def::Int(unroll as i64)),
        ("OFFSET", offset),
    ]
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
    let unit = unit(&nest, dim_stride, bytes, index.elem().size_bytes(), |operand, bytes| match operand {
        Operand::Index => index.aligned_to(bytes),
        Operand::X => x.aligned_to(bytes),
        Operand::Y => y.aligned_to(bytes),
    });
    let units = (y.len() / unit.len()) as u64;
    let device = y.device();
    let busy = units >= UNROLL * THREADS * 8 * device.props.sm_count as u64;
    let unroll = if unit.items == 1 && busy { UNROLL } else { 1 };
    let defs = defs(bytes, index.elem(), unit, unroll, offset_type(&nest));
    let kernel = device.kernel(&KernelSpec { file: &GATHER, entry: "gather", defs: &defs })?;
    let item_stride = nest.strides[nest.sizes.len() - 1][1];
    Launch::new(device, kernel)
        .write(y)
        .read(x)
        .read(index)
        .arg(units)
        .arg(dim_stride)
        .arg(x.dims()[dim] as i64)
        .arg(item_stride)
        .arg(LoopsArg::new(&nest, unit.len()))
        .faults(op)
        .run([blocks(units.div_ceil(unroll)), 1, 1], THREADS as u32, 0)
}

/// Both types of [`offset_type`].
#[cfg(test)]
pub(super) const OFFSET_TYPES: [Def; 2] = [Def::Type(Elem::I32), Def::Type(Elem::I64)];

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for bytes in [1, 2, 4, 8] {
        let most = 16 / bytes;
        let row = Unit { v: most, ..Unit::ONE };
        let items = Unit { items: MOST_ITEMS.min(most), ..Unit::ONE };
        for (unit, unroll) in [(Unit::ONE, 1), (Unit::ONE, UNROLL), (row, UNROLL), (items, 1)] {
            for index in [Elem::I32, Elem::I64] {
                let instance =
                    |offset| Instance::new(&GATHER, "gather", &defs(bytes, index, unit, unroll, offset));
                all.extend(OFFSET_TYPES.map(instance));
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
        let pack = |nest: &Nest<2>, dim_stride, bytes, most: usize| {
            let unit = unit(nest, dim_stride, bytes, 8, |_, bytes| bytes <= most);
            assert_eq!(unit.items, 1);
            unit.v
        };
        // select on dimension 0 of [10, 64] and on dimension 1 of [4, 10, 6]
        let rows = Nest::new(&[3, 64], [&[1, 0], &[0, 1]]);
        assert_eq!(pack(&rows, 64, 4, 16), 4);
        assert_eq!(pack(&rows, 64, 1, 16), 16);
        assert_eq!(pack(&rows, 64, 4, 8), 2);
        assert_eq!(pack(&rows, 65, 4, 16), 1);
        let inner = Nest::new(&[4, 3, 6], [&[0, 1, 0], &[60, 0, 1]]);
        assert_eq!(pack(&inner, 6, 4, 16), 2);
        let arg = LoopsArg::new(&inner, 2);
        assert_eq!((arg.dims, &arg.size[..4]), (3, &[3, 3, 4, 1][..]));
        assert_eq!(arg.stride[..3], [[0, 2, 0], [1, 0, 0], [0, 60, 0]]);
    }

    #[test]
    fn indices_that_lie_side_by_side_are_read_at_once() {
        let items = |nest: &Nest<2>, bytes, index_bytes, most: usize| {
            let unit = unit(nest, 1, bytes, index_bytes, |_, bytes| bytes <= most);
            assert_eq!(unit.v, 1);
            unit.items
        };
        // gather on dimension 1 of [3, 64], and on dimension 0.
        let rows = Nest::new(&[3, 64], [&[64, 1], &[100, 0]]);
        assert_eq!([1, 2, 4, 8].map(|bytes| items(&rows, bytes, 8, 16)), [8, 8, 4, 2]);
        assert_eq!([1, 2, 4, 8].map(|bytes| items(&rows, bytes, 4, 8)), [2, 2, 2, 1]);
        assert_eq!(items(&Nest::new(&[3, 64], [&[64, 1], &[0, 1]]), 2, 8, 16), 8);
        // Rows of an odd length, or that do not begin at a multiple.
        assert_eq!(items(&Nest::new(&[3, 63], [&[63, 1], &[100, 0]]), 4, 8, 16), 1);
        assert_eq!(items(&Nest::new(&[3, 64], [&[66, 1], &[100, 0]]), 4, 8, 16), 2);
        // An index that is read backwards.
        assert_eq!(items(&Nest::new(&[3, 64], [&[64, -1], &[100, 0]]), 4, 8, 16), 1);
    }
}
