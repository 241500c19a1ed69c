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

/// The windows of a convolution over images of one size: the last `dims` of depth, height and width. The dimensions
/// before have size, kernel, stride and dilation 1 and no padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Windows {
    pub(crate) dims: usize,
    pub(crate) channels: usize,
    pub(crate) size: [usize; 3],
    pub(crate) out: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) pad: [usize; 3],
    pub(crate) dilation: [usize; 3],
}

/// Mirrors `Conv` in im2col.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ConvArg {
    batch: u64,
    channels: i32,
    kernel_len: i32,
    size: [i32; 3],
    out: [i32; 3],
    kernel: [i32; 3],
    stride: [i32; 3],
    pad: [i32; 3],
    dilation: [i32; 3],
    x_stride: [i64; 5],
    col_batch: i64,
    col_row: i64,
}
kernel_arg!(ConvArg);

impl Windows {
    /// Elements of a kernel.
    pub(crate) fn kernel_len(&self) -> usize {
        self.kernel.iter().product()
    }

    /// L: output pixels.
    pub(crate) fn pixels(&self) -> usize {
        self.out.iter().product()
    }

    fn arg(&self, batch: usize, x_stride: [i64; 5], (col_batch, col_row): (i64, i64)) -> ConvArg {
        let narrow = |x: [usize; 3]| x.map(|x| x as i32);
        ConvArg {
            batch: batch as u64,
            channels: self.channels as i32,
            kernel_len: self.kernel_len() as i32,
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

fn defs(case: &'static str, elem: Elem, col: Elem, dims: usize, threads: u64) -> [(&'static str, Def); 5] {
    [
        ("T", Def::Type(elem)),
        ("COL_T", Def::Type(col)),
        ("DIMS", Def::Int(dims as i64)),
        // Divisions of 32-bit numbers are several times cheaper than those of 64-bit ones.
        ("INDEX", Def::Type(if threads < 1 << 31 { Elem::U32 } else { Elem::U64 })),
        (case, Def::Int(1)),
    ]
}

/// Fills `col` from `x [B, C, ..]` of any strides. `col_strides`: those of the image and of the row `(c, kernel
/// element)`; within a row, output pixels are contiguous.
pub(crate) fn im2col(
    col: &CudaTensor,
    col_strides: (i64, i64),
    x: &CudaTensor,
    windows: &Windows,
) -> Result<()> {
    debug_assert!(col.elem() == x.elem() && x.dims().len() == windows.dims + 2);
    let strides = x.layout().strides();
    let mut x_stride = [strides[0], strides[1], 0, 0, 0];
    x_stride[5 - windows.dims..].copy_from_slice(&strides[2..]);
    let batch = x.dims()[0];
    let threads = (batch * windows.channels * windows.pixels()) as u64;
    let defs = defs("CASE_IM2COL", x.elem(), col.elem(), windows.dims, threads);
    let device = col.device();
    let kernel = device.kernel(&KernelSpec { file: &IM2COL, entry: "im2col", defs: &defs })?;
    let arg = windows.arg(batch, x_stride, col_strides);
    Launch::new(device, kernel).write(col).read(x).arg(arg).run([blocks(threads), 1, 1], THREADS as u32, 0)
}

/// Sums row-major `col [B, (c, kernel element), output pixel]`, which is f32 for 16-bit floats, and `bias [C]` into
/// row-major `dx [B, C, ..]`, which is overwritten.
pub(crate) fn col2im(
    dx: &CudaTensor,
    col: &CudaTensor,
    bias: Option<&CudaTensor>,
    windows: &Windows,
) -> Result<()> {
    debug_assert!(dx.layout().is_contiguous() && bias.is_none_or(|b| b.layout().is_contiguous()));
    let row = windows.pixels();
    let image = windows.channels * windows.kernel_len() * row;
    let threads = dx.len() as u64;
    let defs = defs("CASE_COL2IM", dx.elem(), col.elem(), windows.dims, threads);
    let device = dx.device();
    let kernel = device.kernel(&KernelSpec { file: &IM2COL, entry: "col2im", defs: &defs })?;
    let launch = Launch::new(device, kernel).write(dx).read(col);
    let launch = match bias {
        Some(bias) => launch.read(bias),
        None => launch.null(),
    };
    let arg = windows.arg(dx.dims()[0], [0; 5], (image as i64, row as i64));
    launch.arg(arg).run([blocks(threads), 1, 1], THREADS as u32, 0)
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::BF16] {
        let wide = if elem.size_bytes() == 2 { Elem::F32 } else { elem };
        for (case, entry, col) in [("CASE_IM2COL", "im2col", elem), ("CASE_COL2IM", "col2im", wide)] {
            for n in [1, 1 << 31] {
                all.extend(
                    [1, 2, 3].map(|dims| Instance::new(&IM2COL, entry, &defs(case, elem, col, dims, n))),
                );
            }
        }
    }
    all
}
