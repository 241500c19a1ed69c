//! Launchers of `fft.cu`, and the choice of how a length is transformed.

use burn_std::DType;

#[cfg(test)]
use super::gate::Instance;
use super::gather::{THREADS, blocks};
use super::{Def, KernelSpec, kernel_file};
use crate::device::Device;
use crate::driver::launch::{Kernel, Launch, kernel_arg};
use crate::dtype::Elem;
use crate::error::Result;
use crate::layout::Layout;
use crate::tensor::CudaTensor;

kernel_file!(FFT, "fft.cu");

/// The type of workspaces and of all arithmetic.
fn acc(elem: Elem) -> Elem {
    if elem == Elem::F64 { Elem::F64 } else { Elem::F32 }
}

/// The longest complex line in shared memory (`CAPACITY` in fft.cu): 32 KiB.
pub(crate) fn capacity(elem: Elem) -> usize {
    if acc(elem) == Elem::F64 { 2048 } else { 4096 }
}

/// How a real length is transformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// A sum for each bin: shorter than what the other ways prepare.
    Direct,
    /// At once, as a complex line of this length in shared memory.
    Shared(usize),
    /// As complex lines of this length in a workspace; `odd` ones are the real line itself.
    Workspace { len: usize, odd: bool },
}

/// The way for `n` samples.
pub(crate) fn plan(elem: Elem, n: usize) -> Plan {
    match n {
        16.. if n.is_power_of_two() && n / 2 <= capacity(elem) => Plan::Shared(n / 2),
        ..=64 => Plan::Direct,
        _ if n.is_multiple_of(2) => Plan::Workspace { len: n / 2, odd: false },
        _ => Plan::Workspace { len: n, odd: true },
    }
}

/// The two factors of a power of two that does not fit shared memory: the first always does, the second if it can.
fn split(len: usize, capacity: usize) -> [usize; 2] {
    let first = (1 << (len.ilog2() / 2)).min(capacity);
    [first, len / first]
}

fn defs(case: &'static str, elem: Elem) -> [(&'static str, Def); 2] {
    [("T", Def::Type(elem)), (case, Def::Int(1))]
}

fn shared_defs(case: &'static str, elem: Elem, count: usize) -> [(&'static str, Def); 3] {
    [("T", Def::Type(elem)), ("COUNT", Def::Int(count as i64)), (case, Def::Int(1))]
}

fn kernel(device: &Device, defs: &[(&'static str, Def)]) -> Result<Kernel> {
    device.kernel(&KernelSpec { file: &FFT, entry: "fft", defs })
}

fn each(launch: Launch, n: u64) -> Result<()> {
    launch.run([blocks(n), 1, 1], THREADS as u32, 0)
}

fn complex(op: &'static str, like: &CudaTensor, lines: usize, len: usize) -> Result<CudaTensor> {
    let dtype = if acc(like.elem()) == Elem::F64 { DType::F64 } else { DType::F32 };
    CudaTensor::empty(like.device(), vec![lines, len, 2], dtype, op)
}

/// `x [lines, length]`, cut or followed by zeros to `n` samples, -> `re, im [lines, n / 2 + 1]`; row-major, lines and `n`
/// above 0.
pub(crate) fn rfft(
    op: &'static str,
    re: &CudaTensor,
    im: &CudaTensor,
    x: &CudaTensor,
    n: usize,
) -> Result<()> {
    let (device, elem) = (x.device(), x.elem());
    let (lines, length) = (x.dims()[0], x.dims()[1]);
    let spectrum = |case, count| {
        let kernel = match count {
            Some(count) => kernel(device, &shared_defs(case, elem, count)),
            None => kernel(device, &defs(case, elem)),
        };
        kernel.map(|kernel| Launch::new(device, kernel).op(op).write(re).write(im))
    };
    match plan(elem, n) {
        Plan::Direct => each(
            spectrum("CASE_DIRECT", None)?.read(x).arg(lines as u64).arg(length as u64).arg(n as u64),
            re.len() as u64,
        ),
        Plan::Shared(count) => {
            let grid = lines.div_ceil(capacity(elem) / count) as u32;
            // What lies behind n samples is cut off: the kernel reads `2 * count` of them.
            spectrum("CASE_RFFT", Some(count))?.read(x).arg(lines as u64).arg(length as u64).run(
                [grid, 1, 1],
                THREADS as u32,
                0,
            )
        }
        Plan::Workspace { len, odd } => {
            let z = complex(op, x, lines, len)?;
            let pack =
                Launch::new(device, kernel(device, &defs("CASE_PACK", elem))?).op(op).write(&z).read(x);
            let pack = pack.arg(lines as u64).arg(length as u64).arg(len as u64).arg(odd as u32);
            each(pack, (lines * len) as u64)?;
            let z = transform(op, &z, false)?;
            let unpack = spectrum("CASE_UNPACK", None)?.read(&z);
            each(unpack.arg(lines as u64).arg(len as u64).arg(odd as u32), re.len() as u64)
        }
    }
}

/// `re, im [lines, bins]`, cut or followed by zeros to `n / 2 + 1` bins, -> `y [lines, n]`; row-major, `y` not empty.
pub(crate) fn irfft(op: &'static str, y: &CudaTensor, re: &CudaTensor, im: &CudaTensor) -> Result<()> {
    let (device, elem) = (y.device(), y.elem());
    let (lines, bins, n) = (y.dims()[0], re.dims()[1], y.dims()[1]);
    match plan(elem, n) {
        Plan::Direct => {
            let kernel = kernel(device, &defs("CASE_DIRECT_INVERSE", elem))?;
            let launch = Launch::new(device, kernel).op(op).write(y).read(re).read(im);
            each(launch.arg(lines as u64).arg(bins as u64).arg(n as u64), y.len() as u64)
        }
        Plan::Shared(count) => {
            let kernel = kernel(device, &shared_defs("CASE_IRFFT", elem, count))?;
            let grid = lines.div_ceil(capacity(elem) / count) as u32;
            let launch = Launch::new(device, kernel).op(op).write(y).read(re).read(im);
            launch.arg(lines as u64).arg(bins as u64).run([grid, 1, 1], THREADS as u32, 0)
        }
        Plan::Workspace { len, odd } => {
            let z = complex(op, y, lines, len)?;
            let repack = Launch::new(device, kernel(device, &defs("CASE_REPACK", elem))?).op(op).write(&z);
            let repack = repack.read(re).read(im).arg(lines as u64).arg(bins as u64);
            each(repack.arg(len as u64).arg(odd as u32), (lines * len) as u64)?;
            let z = transform(op, &z, true)?;
            let real =
                Launch::new(device, kernel(device, &defs("CASE_REAL", elem))?).op(op).write(y).read(&z);
            each(real.arg(lines as u64).arg(len as u64).arg(odd as u32), y.len() as u64)
        }
    }
}

/// Transforms of `z [lines, len, 2]`, of any length above 8; the inverse ones are not scaled.
fn transform(op: &'static str, z: &CudaTensor, inverse: bool) -> Result<CudaTensor> {
    let (lines, len) = (z.dims()[0], z.dims()[1]);
    if len.is_power_of_two() {
        return power_of_two(op, z, lines, len, [inverse; 2]);
    }
    let (device, elem) = (z.device(), z.elem());
    let size = (2 * len - 1).next_power_of_two();
    let launch = |case| kernel(device, &defs(case, elem)).map(|kernel| Launch::new(device, kernel).op(op));
    let (l, h, m) = (lines as u64, len as u64, size as u64);
    let chirp = complex(op, z, 1, size)?;
    each(launch("CASE_CHIRP")?.write(&chirp).arg(h).arg(m), m)?;
    let chirp = power_of_two(op, &chirp, 1, size, [false; 2])?;
    let a = complex(op, z, lines, size)?;
    let flag = inverse as u32;
    each(launch("CASE_CHIRP_IN")?.write(&a).read(z).arg(l).arg(h).arg(m).arg(flag), l * m)?;
    let a = power_of_two(op, &a, lines, size, [false; 2])?;
    each(launch("CASE_CHIRP_MUL")?.update(&a).read(&chirp).arg(l).arg(m), l * m)?;
    // The product is conjugated: this is the conjugate of the inverse.
    let a = power_of_two(op, &a, lines, size, [false; 2])?;
    let y = complex(op, z, lines, len)?;
    each(launch("CASE_CHIRP_OUT")?.write(&y).read(&a).arg(l).arg(h).arg(m).arg(flag), l * h)?;
    Ok(y)
}

/// Mirrors `Strides` in fft.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct StridesArg {
    outer: u64,
    line: u64,
    element: u64,
}

/// Mirrors `Geometry` in fft.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct GeometryArg {
    lines: u64,
    inner: u64,
    from: StridesArg,
    to: StridesArg,
    turns: u64,
    conj_in: u32,
    conj_out: u32,
}
kernel_arg!(GeometryArg);

fn strides(outer: usize, line: usize, element: usize) -> StridesArg {
    StridesArg { outer: outer as u64, line: line as u64, element: element as u64 }
}

fn complex_lines(
    op: &'static str,
    y: &CudaTensor,
    x: &CudaTensor,
    count: usize,
    geometry: GeometryArg,
) -> Result<()> {
    let device = y.device();
    let kernel = kernel(device, &shared_defs("CASE_COMPLEX", y.elem(), count))?;
    let grid = geometry.lines.div_ceil((capacity(y.elem()) / count) as u64) as u32;
    Launch::new(device, kernel).op(op).write(y).read(x).arg(geometry).run([grid, 1, 1], THREADS as u32, 0)
}

/// Forward transforms of `x`, seen as `[lines, len, 2]`, of which input and output may be conjugated.
fn power_of_two(
    op: &'static str,
    x: &CudaTensor,
    lines: usize,
    len: usize,
    [conj_in, conj_out]: [bool; 2],
) -> Result<CudaTensor> {
    let y = complex(op, x, lines, len)?;
    if len <= capacity(x.elem()) {
        let all = strides(len, 0, 1);
        let geometry = GeometryArg {
            lines: lines as u64,
            inner: 1,
            from: all,
            to: all,
            turns: 0,
            conj_in: conj_in as u32,
            conj_out: conj_out as u32,
        };
        complex_lines(op, &y, x, len, geometry)?;
        return Ok(y);
    }
    let [first, second] = split(len, capacity(x.elem()));
    let columns = GeometryArg {
        lines: (lines * second) as u64,
        inner: second as u64,
        from: strides(len, 1, second),
        to: strides(len, 1, second),
        turns: len as u64,
        conj_in: conj_in as u32,
        conj_out: 0,
    };
    complex_lines(op, &y, x, first, columns)?;
    if second > capacity(x.elem()) {
        let rows = power_of_two(op, &y, lines * first, second, [false, conj_out])?;
        let rows = rows.reshape(&[lines, first, second, 2])?;
        let columns = rows.layout().permute(&[0, 2, 1, 3]).expect("axes of four dimensions");
        return rows.with_layout(columns).contiguous()?.reshape(&[lines, len, 2]);
    }
    let rows = GeometryArg {
        lines: (lines * first) as u64,
        inner: first as u64,
        from: strides(len, second, 1),
        to: strides(len, 1, first),
        turns: 0,
        conj_in: 0,
        conj_out: conj_out as u32,
    };
    let out = complex(op, x, lines, len)?;
    complex_lines(op, &out, &y, second, rows)?;
    Ok(out)
}

/// `tensor` with `dim` as its last dimension, and its shape as `[lines, size of dim]`.
pub(crate) fn lines_along(tensor: &CudaTensor, dim: usize) -> (Layout, [usize; 2]) {
    let last = tensor.dims().len() - 1;
    let layout = tensor.layout().swap_dims(dim, last).expect("the dimension was checked");
    let (size, lines) = (tensor.dims()[dim], layout.dims()[..last].iter().product());
    (layout, [lines, size])
}

/// What the compile gate compiles.
#[cfg(test)]
pub(super) fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    let mut add = |defs: &[(&'static str, Def)]| all.push(Instance::new(&FFT, "fft", defs));
    for elem in [Elem::F32, Elem::F64] {
        for case in [
            "CASE_DIRECT",
            "CASE_DIRECT_INVERSE",
            "CASE_PACK",
            "CASE_UNPACK",
            "CASE_REPACK",
            "CASE_REAL",
            "CASE_CHIRP",
            "CASE_CHIRP_IN",
            "CASE_CHIRP_MUL",
            "CASE_CHIRP_OUT",
        ] {
            add(&defs(case, elem));
        }
        for case in ["CASE_RFFT", "CASE_IRFFT", "CASE_COMPLEX"] {
            for count in [8, 16, 512, 1024, capacity(elem)] {
                add(&shared_defs(case, elem, count));
            }
        }
    }
    add(&shared_defs("CASE_RFFT", Elem::BF16, 4096));
    add(&shared_defs("CASE_IRFFT", Elem::BF16, 4096));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_transformed_in_the_shortest_way() {
        assert_eq!(plan(Elem::F32, 1), Plan::Direct);
        assert_eq!(plan(Elem::F32, 12), Plan::Direct);
        assert_eq!(plan(Elem::F32, 16), Plan::Shared(8));
        assert_eq!(plan(Elem::F32, 60), Plan::Direct);
        assert_eq!(plan(Elem::BF16, 8192), Plan::Shared(4096));
        assert_eq!(plan(Elem::F64, 8192), Plan::Workspace { len: 4096, odd: false });
        assert_eq!(plan(Elem::F32, 100), Plan::Workspace { len: 50, odd: false });
        assert_eq!(plan(Elem::F32, 101), Plan::Workspace { len: 101, odd: true });
    }

    #[test]
    fn long_lines_are_cut_into_factors_that_fit() {
        assert_eq!(split(8192, 4096), [64, 128]);
        assert_eq!(split(1 << 24, 4096), [4096, 4096]);
        assert_eq!(split(1 << 25, 4096), [4096, 8192]);
        assert_eq!(split(1 << 26, 2048), [2048, 1 << 15]);
    }
}
