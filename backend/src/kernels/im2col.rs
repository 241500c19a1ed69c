//! Launchers of `im2col.cu`: a convolution's columns and back.

#[cfg(test)]
use super::gate::Instance;
use super::gather::{THREADS, blocks};
use super::{Def, KernelSpec, kernel_file};
use crate::driver::launch::{Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(IM2COL, "im2col.cu");

/// The windows of a two-dimensional convolution over images of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Windows {
    pub(crate) channels: usize,
    pub(crate) size: [usize; 2],
    pub(crate) out: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) pad: [usize; 2],
    pub(crate) dilation: [usize; 2],
}

/// Mirrors `Conv` in im2col.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ConvArg {
    batch: u64,
    channels: i32,
    size: [i32; 2],
    out: [i32; 2],
    kernel: [i32; 2],
    stride: [i32; 2],
    pad: [i32; 2],
    dilation: [i32; 2],
    x_stride: [i64; 4],
    col_batch: i64,
    col_row: i64,
}
kernel_arg!(ConvArg);

impl Windows {
    fn arg(&self, batch: usize, x_stride: [i64; 4], (col_batch, col_row): (i64, i64)) -> ConvArg {
        let narrow = |x: [usize; 2]| x.map(|x| x as i32);
        ConvArg {
            batch: batch as u64,
            channels: self.channels as i32,
            size: narrow(self.size),
            out: narrow(self.out),
            kernel: narrow(self.kernel),
            stride: narrow(self.stride),
            pad: narrow(self.pad),
            dilation: narrow(self.dilation),
            x_stride,
            col_batch,
            col_row,
        }
    }
}

fn defs(case: &'static str, elem: Elem, threads: u64) -> [(&'static str, Def); 3] {
    [
        ("T", Def::Type(elem)),
        // Divisions of 32-bit numbers are several times cheaper than those of 64-bit ones.
        ("INDEX", Def::Type(if threads < 1 << 31 { Elem::U32 } else { Elem::U64 })),
        (case, Def::Int(1)),
    ]
}

fn run(
    case: &'static str,
    entry: &'static str,
    to: &CudaTensor,
    from: &CudaTensor,
    threads: u64,
    arg: ConvArg,
) -> Result<()> {
    let defs = defs(case, to.elem(), threads);
    let device = to.device();
    let kernel = device.kernel(&KernelSpec { file: &IM2COL, entry, defs: &defs })?;
    Launch::new(device, kernel).write(to).read(from).arg(arg).run([blocks(threads), 1, 1], THREADS as u32, 0)
}

/// Fills `col` from `x [B, C, H, W]` of any strides. `col_strides`: those of the image and of the row `(c, kh, kw)`;
/// within a row, `(oh, ow)` is contiguous.
pub(crate) fn im2col(
    col: &CudaTensor,
    col_strides: (i64, i64),
    x: &CudaTensor,
    windows: &Windows,
) -> Result<()> {
    let strides = x.layout().strides();
    let x_stride = [strides[0], strides[1], strides[2], strides[3]];
    let batch = x.dims()[0];
    let threads = (batch * windows.channels * windows.out[0] * windows.out[1]) as u64;
    run("CASE_IM2COL", "im2col", col, x, threads, windows.arg(batch, x_stride, col_strides))
}

/// Sums row-major `col [B, (c, kh, kw), (oh, ow)]` into row-major `dx [B, C, H, W]`, which is overwritten.
pub(crate) fn col2im(dx: &CudaTensor, col: &CudaTensor, windows: &Windows) -> Result<()> {
    let row = windows.out[0] * windows.out[1];
    let image = windows.channels * windows.kernel[0] * windows.kernel[1] * row;
    let arg = windows.arg(dx.dims()[0], [0; 4], (image as i64, row as i64));
    run("CASE_COL2IM", "col2im", dx, col, dx.len() as u64, arg)
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::BF16] {
        for (case, entry) in [("CASE_IM2COL", "im2col"), ("CASE_COL2IM", "col2im")] {
            all.extend([1, 1 << 31].map(|n| Instance::new(&IM2COL, entry, &defs(case, elem, n))));
        }
    }
    all
}
