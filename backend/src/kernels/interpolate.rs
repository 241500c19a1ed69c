//! Launcher of `interpolate.cu`.

use burn_backend::ops::InterpolateMode;

#[cfg(test)]
use super::gate::Instance;
use super::gather::{THREADS, blocks};
use super::{Def, KernelSpec, TAPS, kernel_file};
use crate::driver::launch::{Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::tensor::CudaTensor;

kernel_file!(INTERPOLATE, "interpolate.cu", [&TAPS]);

/// One dimension. Mirrors `Scale` in interpolate.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    ratio: f64,
    size: i32,
    out: i32,
    align_corners: u32,
}
kernel_arg!(Scale);

impl Scale {
    /// Sizes below 2^31.
    pub(crate) fn new(size: usize, out: usize, align_corners: bool) -> Self {
        let ratio = match align_corners {
            true => (size as f64 - 1.0) / out.saturating_sub(1).max(1) as f64,
            false => size as f64 / out as f64,
        };
        Scale { ratio, size: size as i32, out: out as i32, align_corners: align_corners as u32 }
    }
}

/// `MODE` in common/taps.cuh.
pub(super) fn mode_def(mode: &InterpolateMode) -> Def {
    Def::Int(match mode {
        InterpolateMode::Nearest => 0,
        InterpolateMode::Bilinear => 1,
        InterpolateMode::Bicubic => 2,
        InterpolateMode::Lanczos3 => 3,
    })
}

/// Divisions of 32-bit numbers are several times cheaper than those of 64-bit ones.
fn index_type(n: u64) -> Def {
    Def::Type(if n < 1 << 31 { Elem::U32 } else { Elem::U64 })
}

fn forward_defs(elem: Elem, mode: &InterpolateMode, pixels: u64) -> [(&'static str, Def); 4] {
    [
        ("T", Def::Type(elem)),
        ("MODE", mode_def(mode)),
        ("INDEX", index_type(pixels)),
        ("CASE_FORWARD", Def::Int(1)),
    ]
}

fn backward_defs(elem: Elem, from: Elem, mode: &InterpolateMode, n: u64) -> [(&'static str, Def); 5] {
    [
        ("T", Def::Type(elem)),
        ("IN_T", Def::Type(from)),
        ("MODE", mode_def(mode)),
        ("INDEX", index_type(n)),
        ("CASE_BACKWARD", Def::Int(1)),
    ]
}

/// Blocks along the planes: as many as keep a large device busy together with `blocks` of pixels, so that a thread uses
/// its weights again where there are more planes.
pub(super) fn plane_blocks(blocks: u32, planes: u64) -> u32 {
    const BUSY: u32 = 4096;
    BUSY.div_ceil(blocks.max(1)).min(planes.min(65_535) as u32)
}

/// `x [planes, H, W]` -> `y [planes, OH, OW]`, both row-major and not empty.
pub(crate) fn interpolate(
    y: &CudaTensor,
    x: &CudaTensor,
    planes: usize,
    [rows, columns]: [Scale; 2],
    mode: &InterpolateMode,
) -> Result<()> {
    let device = y.device();
    let pixels = rows.out as u64 * columns.out as u64;
    let defs = forward_defs(y.elem(), mode, pixels);
    let kernel = device.kernel(&KernelSpec { file: &INTERPOLATE, entry: "interpolate", defs: &defs })?;
    let along = blocks(pixels);
    Launch::new(device, kernel).write(y).read(x).arg(planes as u64).arg(rows).arg(columns).run(
        [along, plane_blocks(along, planes as u64), 1],
        THREADS as u32,
        0,
    )
}

/// One dimension of the gradient: `g [lines, out, inner]` -> `dx [lines, in, inner]`, both row-major; `dx` not empty.
pub(crate) fn interpolate_backward(
    dx: &CudaTensor,
    g: &CudaTensor,
    inner: usize,
    scale: Scale,
    mode: &InterpolateMode,
) -> Result<()> {
    let (device, n) = (dx.device(), dx.len() as u64);
    let defs = backward_defs(dx.elem(), g.elem(), mode, n);
    let kernel = device.kernel(&KernelSpec { file: &INTERPOLATE, entry: "interpolate", defs: &defs })?;
    Launch::new(device, kernel).write(dx).read(g).arg(n).arg(inner as u64).arg(scale).run(
        [blocks(n), 1, 1],
        THREADS as u32,
        0,
    )
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    use InterpolateMode::{Bicubic, Bilinear, Lanczos3, Nearest};
    let mut all = Vec::new();
    let mut add = |defs: &[(&'static str, Def)]| all.push(Instance::new(&INTERPOLATE, "interpolate", defs));
    for mode in [Nearest, Bilinear, Bicubic, Lanczos3] {
        for elem in [Elem::F32, Elem::F64, Elem::BF16] {
            let acc = if elem == Elem::F64 { Elem::F64 } else { Elem::F32 };
            for n in [1, 1 << 31] {
                add(&forward_defs(elem, &mode, n));
                add(&backward_defs(elem, acc, &mode, n));
                add(&backward_defs(acc, elem, &mode, n));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_are_spread_until_the_device_is_busy() {
        assert_eq!(plane_blocks(1, 1), 1);
        assert_eq!(plane_blocks(1, 1 << 40), 4096);
        assert_eq!(plane_blocks(100, 64), 41);
        assert_eq!(plane_blocks(1 << 20, 64), 1);
    }

    #[test]
    fn one_output_is_aligned_with_the_first_corner() {
        assert_eq!(Scale::new(5, 1, true).ratio, 4.0);
        assert_eq!(Scale::new(5, 3, true).ratio, 2.0);
        assert_eq!(Scale::new(5, 10, false).ratio, 0.5);
    }
}
