//! Launcher of `grid_sample.cu`.

use burn_backend::ops::{GridSampleOptions, GridSamplePaddingMode, InterpolateMode};

#[cfg(test)]
use super::gate::Instance;
use super::gather::{THREADS, blocks};
use super::interpolate::{mode_def, plane_blocks};
use super::{Def, KernelSpec, TAPS, kernel_file};
use crate::driver::launch::Launch;
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(GRID_SAMPLE, "grid_sample.cu", [&TAPS]);

fn defs(elem: Elem, options: &GridSampleOptions, places: u64) -> [(&'static str, Def); 5] {
    let padding = match options.padding_mode {
        GridSamplePaddingMode::Zeros => 0,
        GridSamplePaddingMode::Border => 1,
        GridSamplePaddingMode::Reflection => 2,
    };
    [
        ("T", Def::Type(elem)),
        ("MODE", mode_def(&options.mode)),
        ("PADDING", Def::Int(padding)),
        ("ALIGN_CORNERS", Def::Int(options.align_corners as i64)),
        // Divisions of 32-bit numbers are several times cheaper than those of 64-bit ones.
        ("INDEX", Def::Type(if places < 1 << 31 { Elem::U32 } else { Elem::U64 })),
    ]
}

/// `x [N, C, H, W]`, `grid [N, OH, OW, 2]` -> `y [N, C, OH, OW]`, all row-major and not empty; not the Lanczos mode.
pub(crate) fn grid_sample(
    y: &CudaTensor,
    x: &CudaTensor,
    grid: &CudaTensor,
    options: &GridSampleOptions,
) -> Result<()> {
    debug_assert!(!matches!(options.mode, InterpolateMode::Lanczos3));
    let device = y.device();
    let places = grid.len() as u64 / 2;
    let defs = defs(y.elem(), options, places);
    let kernel = device.kernel(&KernelSpec { file: &GRID_SAMPLE, entry: "grid_sample", defs: &defs })?;
    let (channels, along) = (y.dims()[1] as u64, blocks(places));
    Launch::new(device, kernel)
        .write(y)
        .read(x)
        .read(grid)
        .arg(places)
        .arg((y.dims()[2] * y.dims()[3]) as u64)
        .arg(channels)
        .arg(x.dims()[2] as i32)
        .arg(x.dims()[3] as i32)
        .run([along, plane_blocks(along, channels), 1], THREADS as u32, 0)
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    use GridSamplePaddingMode::{Border, Reflection, Zeros};
    let mut all = Vec::new();
    for mode in [InterpolateMode::Nearest, InterpolateMode::Bilinear, InterpolateMode::Bicubic] {
        for padding in [Zeros, Border, Reflection] {
            for (elem, places) in [(Elem::F32, 1), (Elem::F64, 1), (Elem::BF16, 1), (Elem::F32, 1 << 31)] {
                let mut options = GridSampleOptions::new(mode.clone()).with_padding_mode(padding);
                options.align_corners = false;
                let defs = defs(elem, &options, places);
                all.push(Instance::new(&GRID_SAMPLE, "grid_sample", &defs));
            }
        }
    }
    all
}
