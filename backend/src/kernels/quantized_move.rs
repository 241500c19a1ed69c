//! Launcher of `quantized_move.cu`: packed values, and their scales, in another order.

#[cfg(test)]
use super::gate::Instance;
use super::gather::{LoopsArg, THREADS, blocks};
use super::quantize::{Groups, offsets, room};
use super::{Def, KernelSpec, LOOPS, QUANTIZED, kernel_file};
use crate::driver::launch::Launch;
use crate::dtype::Elem;
use crate::error::Result;
use crate::layout::Nest;
use crate::tensor::CudaTensor;

kernel_file!(QUANTIZED_MOVE, "quantized_move.cu", [&LOOPS, &QUANTIZED]);

/// Which stored values are moved, in which order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    /// Bits of a stored value.
    pub(crate) bits: usize,
    /// The first value's place in storage (with index 0).
    pub(crate) base: u64,
    /// At most 8 loops over the values: strides of `index`, and of the stored values.
    pub(crate) nest: &'a Nest<2>,
    /// Indices (i32 or i64) into a dimension of this stride and size.
    pub(crate) index: Option<(&'a CudaTensor, i64, usize)>,
}

type Defs = [(&'static str, Def); 7];

fn defs(
    case: &'static str,
    bits: usize,
    out_bits: usize,
    index: Option<Elem>,
    offsets: [(&'static str, Def); 2],
) -> Defs {
    let [offset, unsigned] = offsets;
    [
        (case, Def::Int(1)),
        ("BITS", Def::Int(bits as i64)),
        ("OUT_BITS", Def::Int(out_bits as i64)),
        ("INDEXED", Def::Int(index.is_some() as i64)),
        ("IDX_T", Def::Type(index.unwrap_or(Elem::I32))),
        offset,
        unsigned,
    ]
}

impl<'a> Source<'a> {
    fn defs(&self, case: &'static str, out_bits: usize, room: u64, group: u64) -> Defs {
        let index = self.index.map(|(index, ..)| index.elem());
        defs(case, self.bits, out_bits, index, offsets(self.nest.fits_u31(), room, group))
    }

    fn index(&self, launch: Launch<'a>) -> Launch<'a> {
        match self.index {
            Some((index, ..)) => launch.read(index),
            None => launch.null(),
        }
    }

    fn dim(&self) -> (i64, i64) {
        self.index.map_or((0, 1), |(_, stride, size)| (stride, size as i64))
    }
}

/// Moves `n` values into `y` (u32, or bytes from a multiple of 4 on), `out_bits` bits each.
pub(crate) fn values<'a>(
    op: &'static str,
    y: &'a CudaTensor,
    out_bits: usize,
    n: u64,
    words: &'a CudaTensor,
    source: Source<'a>,
) -> Result<()> {
    let defs = source.defs("CASE_VALUES", out_bits, room(words, source.bits), 0);
    let device = y.device();
    let kernel =
        device.kernel(&KernelSpec { file: &QUANTIZED_MOVE, entry: "quantized_move", defs: &defs })?;
    let (dim_stride, dim_size) = source.dim();
    let launch = source.index(Launch::new(device, kernel).write(y).read(words));
    let launch = launch.arg(n).arg(source.base).arg(dim_stride).arg(dim_size);
    let launch = launch.arg(LoopsArg::new(source.nest, 1)).faults(op);
    launch.run([blocks(n.div_ceil((32 / out_bits) as u64)), 1, 1], THREADS as u32, 0)
}

/// Moves the scales of `n` values, of which each `run` share one, into `y`; in storage each `group` share one.
#[allow(clippy::too_many_arguments)]
pub(crate) fn scales<'a>(
    op: &'static str,
    y: &'a CudaTensor,
    run: u64,
    n: u64,
    words: &CudaTensor,
    scales: &'a CudaTensor,
    group: u64,
    source: Source<'a>,
) -> Result<()> {
    let defs = source.defs("CASE_SCALES", 8, room(words, source.bits), group);
    let device = y.device();
    let kernel =
        device.kernel(&KernelSpec { file: &QUANTIZED_MOVE, entry: "quantized_move", defs: &defs })?;
    let (dim_stride, dim_size) = source.dim();
    let launch = source.index(Launch::new(device, kernel).write(y).read(scales));
    let launch = launch.arg(n).arg(run).arg(source.base).arg(dim_stride).arg(dim_size);
    let launch = launch.arg(LoopsArg::new(source.nest, 1)).arg(Groups::new(group)).faults(op);
    launch.run([blocks(y.len() as u64), 1, 1], THREADS as u32, 0)
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for index in [None, Some(Elem::I64)] {
        for narrow in [true, false] {
            let mut add = |case, bits, out_bits| {
                let defs = defs(case, bits, out_bits, index, offsets(narrow, 1, 32));
                all.push(Instance::new(&QUANTIZED_MOVE, "quantized_move", &defs));
            };
            for (bits, out_bits) in [(8, 8), (2, 2), (2, 8)] {
                add("CASE_VALUES", bits, out_bits);
            }
            add("CASE_SCALES", 8, 8);
        }
    }
    all
}
