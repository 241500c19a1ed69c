//! Launchers of `deform.cu`: the columns of a deformable convolution, and their gradients.

#[cfg(test)]
use super::gate::Instance;
use super::gather::{THREADS, blocks};
use super::im2col::Windows;
use super::{Def, KernelSpec, kernel_file};
use crate::driver::launch::{Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(DEFORM, "deform.cu");

/// `CHANNELS` in deform.cu: enough to share a sample's place and shares, few enough to leave many threads.
const CHANNELS: usize = 16;

/// Windows of two dimensions whose kernel elements are moved by offsets, one for each group of channels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Samples {
    pub(crate) windows: Windows,
    /// Divide the channels.
    pub(crate) groups: usize,
}

/// Mirrors `Deform` in deform.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DeformArg {
    batch: u64,
    channels: i32,
    groups: i32,
    group_channels: i32,
    taps: i32,
    pixels: i32,
    cells: i32,
    size: [i32; 2],
    out: [i32; 2],
    kernel: [i32; 2],
    stride: [i32; 2],
    pad: [i32; 2],
    dilation: [i32; 2],
    col_batch: i64,
    col_row: i64,
}
kernel_arg!(DeformArg);

impl Samples {
    /// Of an image and a group of channels.
    pub(crate) fn len(&self) -> usize {
        self.windows.kernel_len() * self.windows.pixels()
    }

    /// Places between pixels, those outside of the border included.
    pub(crate) fn cells(&self) -> usize {
        (self.windows.size[1] + 1) * (self.windows.size[2] + 1)
    }

    fn arg(&self, batch: usize, (col_batch, col_row): (i64, i64)) -> DeformArg {
        let w = &self.windows;
        let last = |x: [usize; 3]| [x[1] as i32, x[2] as i32];
        DeformArg {
            batch: batch as u64,
            channels: w.channels as i32,
            groups: self.groups as i32,
            group_channels: (w.channels / self.groups) as i32,
            taps: w.kernel_len() as i32,
            pixels: w.pixels() as i32,
            cells: self.cells() as i32,
            size: last(w.size),
            out: last(w.out),
            kernel: last(w.kernel),
            stride: last(w.stride),
            pad: last(w.pad),
            dilation: last(w.dilation),
            col_batch,
            col_row,
        }
    }

    /// Strides of row-major columns.
    fn col_strides(&self) -> (i64, i64) {
        let pixels = self.windows.pixels();
        ((self.windows.channels * self.windows.kernel_len() * pixels) as i64, pixels as i64)
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

/// A kernel's macro, entry point and number of threads; `pointers` gives it its tensors.
fn run<'a>(
    (case, entry): (&'static str, &'static str),
    like: &CudaTensor,
    threads: usize,
    arg: DeformArg,
    pointers: impl FnOnce(Launch<'a>) -> Launch<'a>,
) -> Result<()> {
    let (device, threads) = (like.device(), threads as u64);
    let defs = defs(case, like.elem(), threads);
    let kernel = device.kernel(&KernelSpec { file: &DEFORM, entry, defs: &defs })?;
    pointers(Launch::new(device, kernel)).arg(arg).run([blocks(threads), 1, 1], THREADS as u32, 0)
}

fn read_mask<'a>(launch: Launch<'a>, mask: Option<&'a CudaTensor>) -> Launch<'a> {
    match mask {
        Some(mask) => launch.read(mask),
        None => launch.null(),
    }
}

const COLUMNS: (&str, &str) = ("CASE_COLUMNS", "deform_columns");
const OFFSETS: (&str, &str) = ("CASE_OFFSETS", "deform_offsets");
const COUNT: (&str, &str) = ("CASE_COUNT", "deform_count");
const FILL: (&str, &str) = ("CASE_FILL", "deform_fill");
const SORT: (&str, &str) = ("CASE_SORT", "deform_sort");
const X: (&str, &str) = ("CASE_X", "deform_x");

/// Fills `col` from row-major `x`, `offset` and `mask`. `col_strides`: those of the image and of the row `(c, kernel
/// element)`; within a row, output pixels are contiguous.
pub(crate) fn columns(
    col: &CudaTensor,
    col_strides: (i64, i64),
    x: &CudaTensor,
    offset: &CudaTensor,
    mask: Option<&CudaTensor>,
    samples: &Samples,
) -> Result<()> {
    debug_assert!([x, offset].into_iter().chain(mask).all(|t| t.layout().is_contiguous()));
    let batch = x.dims()[0];
    let parts = (samples.windows.channels / samples.groups).div_ceil(CHANNELS);
    let threads = batch * samples.groups * parts * samples.len();
    let arg = samples.arg(batch, col_strides);
    run(COLUMNS, x, threads, arg, |launch| read_mask(launch.write(col).read(x).read(offset), mask))
}

/// Gradients of offset and mask from that of the row-major columns, which is f32 for 16-bit floats.
pub(crate) fn offsets(
    d_offset: &CudaTensor,
    d_mask: Option<&CudaTensor>,
    x: &CudaTensor,
    offset: &CudaTensor,
    mask: Option<&CudaTensor>,
    d_col: &CudaTensor,
    samples: &Samples,
) -> Result<()> {
    let batch = x.dims()[0];
    let arg = samples.arg(batch, samples.col_strides());
    run(OFFSETS, x, batch * samples.groups * samples.len(), arg, |launch| {
        let launch = launch.write(d_offset);
        let launch = match d_mask {
            Some(d_mask) => launch.write(d_mask),
            None => launch.null(),
        };
        read_mask(launch.read(x).read(offset), mask).read(d_col)
    })
}

/// Adds to `count [B, groups, cells + 1]` (i32) the samples of each cell, one place further on.
pub(crate) fn count(count: &CudaTensor, offset: &CudaTensor, samples: &Samples) -> Result<()> {
    let batch = offset.dims()[0];
    let arg = samples.arg(batch, (0, 0));
    run(COUNT, offset, batch * samples.groups * samples.len(), arg, |launch| {
        launch.update(count).read(offset)
    })
}

/// Lists the samples of each cell in `ids [B, groups, samples]` (i32), in their order. `starts` is the cumulative sum
/// of `count`, which ends as zeros.
pub(crate) fn list(
    ids: &CudaTensor,
    count: &CudaTensor,
    starts: &CudaTensor,
    offset: &CudaTensor,
    samples: &Samples,
) -> Result<()> {
    let batch = offset.dims()[0];
    let arg = samples.arg(batch, (0, 0));
    run(FILL, offset, batch * samples.groups * samples.len(), arg, |launch| {
        launch.write(ids).update(count).read(starts).read(offset)
    })?;
    run(SORT, offset, batch * samples.groups * samples.cells(), arg, |launch| launch.update(ids).read(starts))
}

/// Gradient of row-major `x` from that of the row-major columns and the lists of [`list`].
pub(crate) fn x(
    dx: &CudaTensor,
    offset: &CudaTensor,
    mask: Option<&CudaTensor>,
    d_col: &CudaTensor,
    starts: &CudaTensor,
    ids: &CudaTensor,
    samples: &Samples,
) -> Result<()> {
    let arg = samples.arg(dx.dims()[0], samples.col_strides());
    run(X, dx, dx.len(), arg, |launch| {
        read_mask(launch.write(dx).read(offset), mask).read(d_col).read(starts).read(ids)
    })
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for elem in [Elem::F32, Elem::F64, Elem::F16, Elem::BF16] {
        for (case, entry) in [COLUMNS, OFFSETS, COUNT, FILL, SORT, X] {
            all.extend([1, 1 << 31].map(|n| Instance::new(&DEFORM, entry, &defs(case, elem, n))));
        }
    }
    all
}
