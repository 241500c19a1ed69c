//! Fourier transforms of real lines, and back.

use burn_backend::{Backend, DType};

use crate::Family;
use crate::harness::family::large;
use crate::harness::tolerance::epsilon;
use crate::harness::{Arg, Body, Dense, Domain, Inputs, Rng, Tolerance, Value};

#[derive(Debug)]
pub(crate) struct Rfft(usize, Option<usize>);
impl Body for Rfft {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let (re, im) = B::rfft(Inputs::new(inputs).float(), self.0, self.1);
        vec![Value::Float(re), Value::Float(im)]
    }
}

#[derive(Debug)]
pub(crate) struct Irfft(usize, Option<usize>);
impl Body for Irfft {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        vec![Value::Float(B::irfft(inputs.float(), inputs.float(), self.0, self.1))]
    }
}

/// There and back.
#[derive(Debug)]
pub(crate) struct RoundTrip(usize, usize);
impl Body for RoundTrip {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let (re, im) = B::rfft(Inputs::new(inputs).float(), self.0, None);
        vec![Value::Float(B::irfft(re, im, self.0, Some(self.1)))]
    }
}

type Complex = (f64, f64);

fn times((a, b): Complex, (c, d): Complex) -> Complex {
    (a * c - b * d, a * d + b * c)
}

/// `exp(-2 pi i k / n)` for `k < n`.
fn turn(k: usize, n: usize) -> Complex {
    let angle = -std::f64::consts::TAU * k as f64 / n as f64;
    (angle.cos(), angle.sin())
}

/// The transform: halves while it can, then the sums.
fn transform(x: &[Complex]) -> Vec<Complex> {
    let n = x.len();
    if n.is_multiple_of(2) && n > 0 {
        let part = |odd: usize| transform(&x.iter().skip(odd).step_by(2).copied().collect::<Vec<_>>());
        let (even, odd) = (part(0), part(1));
        let bin = |k: usize| {
            let (e, o) = (even[k % (n / 2)], times(turn(k, n), odd[k % (n / 2)]));
            (e.0 + o.0, e.1 + o.1)
        };
        return (0..n).map(bin).collect();
    }
    let turns: Vec<Complex> = (0..n).map(|k| turn(k, n)).collect();
    let bin = |k: usize| {
        x.iter().enumerate().fold((0.0, 0.0), |sum: Complex, (t, &x)| {
            let term = times(x, turns[k * t % n]);
            (sum.0 + term.0, sum.1 + term.1)
        })
    };
    (0..n).map(bin).collect()
}

/// `f` of the lines of all inputs along `dim`; the outputs' lines have `len` elements.
fn along<const OUT: usize>(
    inputs: &[&Dense],
    dim: usize,
    len: usize,
    f: impl Fn(&[Vec<f64>]) -> [Vec<f64>; OUT],
) -> [Dense; OUT] {
    let dims = &inputs[0].shape;
    let (outer, inner): (usize, usize) = (dims[..dim].iter().product(), dims[dim + 1..].iter().product());
    let mut shape = dims.clone();
    shape[dim] = len;
    let mut out = [(); OUT].map(|()| vec![0.0; outer * len * inner]);
    for o in 0..outer {
        for i in 0..inner {
            let line = |x: &&Dense| {
                (0..dims[dim]).map(|k| x.as_floats()[(o * dims[dim] + k) * inner + i]).collect::<Vec<f64>>()
            };
            let lines: Vec<_> = inputs.iter().map(line).collect();
            for (out, line) in out.iter_mut().zip(f(&lines)) {
                for (k, y) in line.into_iter().enumerate() {
                    out[(o * len + k) * inner + i] = y;
                }
            }
        }
    }
    out.map(|values| Dense::floats(&shape, values))
}

fn spectrum(x: &Dense, dim: usize, n: usize) -> [Dense; 2] {
    along(&[x], dim, n / 2 + 1, |lines| {
        let sample = |t: usize| (lines[0].get(t).copied().unwrap_or(0.0), 0.0);
        let bins = transform(&(0..n).map(sample).collect::<Vec<_>>());
        let bins = &bins[..n / 2 + 1];
        [bins.iter().map(|b| b.0).collect(), bins.iter().map(|b| b.1).collect()]
    })
}

fn signal(re: &Dense, im: &Dense, dim: usize, n: usize) -> [Dense; 1] {
    along(&[re, im], dim, n, |lines| {
        let bin = |k: usize| {
            let part = |p: usize| lines[p].get(k).copied().unwrap_or(0.0);
            (part(0), if k == 0 || 2 * k == n { 0.0 } else { part(1) })
        };
        // The conjugate of the conjugates' transform is the inverse one, times n.
        let conjugate = |k: usize| if k <= n / 2 { (bin(k).0, -bin(k).1) } else { bin(n - k) };
        let samples = transform(&(0..n).map(conjugate).collect::<Vec<_>>());
        [samples.iter().map(|x| x.0 / n as f64).collect()]
    })
}

/// Lengths for each way to transform: sums, shared memory, with a chirp; below, at and above its limits.
fn length(rng: &mut Rng) -> usize {
    match rng.below(4) {
        0 => rng.range(1, 40),
        1 => 1 << rng.range(0, 11),
        2 => rng.pick(&[15, 16, 17, 63, 64, 65, 66, 100, 127, 128, 129, 255, 257]),
        _ => rng.range(60, 400),
    }
}

/// A shape with a dimension of this length.
fn shape_with(rng: &mut Rng, n: usize) -> (Vec<usize>, usize) {
    let mut shape = match rng.below(4) {
        0 => vec![1],
        1 => vec![rng.range(1, 5), 1],
        2 => vec![1, rng.range(1, 40)],
        _ => vec![rng.range(1, 3), 1, rng.range(1, 4)],
    };
    let dim = shape.iter().rposition(|&size| size == 1).unwrap_or(0);
    if n > 300 {
        shape.iter_mut().for_each(|size| *size = (*size).min(3));
    }
    shape[dim] = n;
    (shape, dim)
}

/// Errors grow with the logarithm of the length, and those of all outputs with the largest of any; a chirp is three
/// transforms of twice the length.
fn tolerance(dtype: DType, n: usize, expected: &[Dense]) -> Tolerance {
    let chirp = n > 64 && !n.is_power_of_two();
    let tolerance = Tolerance::sum(dtype, n.ilog2() as usize + 1).times(if chirp { 12.0 } else { 2.0 });
    let all = expected.iter().flat_map(|x| x.as_floats());
    let most = all.fold(1.0f64, |most, x| most.max(x.abs()));
    Tolerance { relative: 1.5 * epsilon(dtype), absolute: tolerance.of_max * (most + 1.0), of_max: 0.0 }
}

fn rfft(dtype: DType) {
    let mut family = Family::new("fft", dtype);
    family.cases("rfft", 2.0, |family, rng| {
        let n = length(rng);
        let (shape, dim) = shape_with(rng, n);
        let args = [Arg::random(rng, &shape, dtype, Domain::Normal)];
        let expected = spectrum(&args[0].dense(), dim, n);
        family.check_values(&args, &Rfft(dim, None), &expected, tolerance(dtype, n, &expected));
    });
    family.cases("rfft of another length", 2.0, |family, rng| {
        let (given, n) = (rng.pick(&[0, 1, 2, 7, 16, 33, 130, 300]), length(rng));
        let (shape, dim) = shape_with(rng, given);
        let args = [Arg::random(rng, &shape, dtype, Domain::Normal)];
        let expected = spectrum(&args[0].dense(), dim, n);
        family.check_values(&args, &Rfft(dim, Some(n)), &expected, tolerance(dtype, n, &expected));
    });
    family.cases("rfft of burn-flex", 0.5, |family, rng| {
        let n = 1 << rng.range(0, 9);
        let given = rng.pick(&[1, 5, 16, 100]);
        let (shape, dim) = shape_with(rng, given);
        let args = [Arg::distinct(rng, &shape, dtype, Domain::Normal)];
        // Its f64 has twiddles of f32.
        let tolerance = Tolerance::sum(if dtype == DType::F64 { DType::F32 } else { dtype }, 9);
        family.check(&args, &Rfft(dim, Some(n)), tolerance);
    });
    family.cases("rfft of no lines", 0.1, |family, rng| {
        let args = [Arg::plain(rng, &[0, 8, 3], dtype, Domain::Normal)];
        let none = Dense::floats(&[0, 5, 3], vec![]);
        family.check_values(&args, &Rfft(1, None), &[none.clone(), none], Tolerance::exact());
    });
    family.finish();
}

fn irfft(dtype: DType) {
    let mut family = Family::new("fft", dtype);
    family.cases("irfft", 2.0, |family, rng| {
        let n = 2 * length(rng);
        let (shape, dim) = shape_with(rng, n / 2 + 1);
        let args = [(); 2].map(|()| Arg::random(rng, &shape, dtype, Domain::Normal));
        let expected = signal(&args[0].dense(), &args[1].dense(), dim, n);
        family.check_values(&args, &Irfft(dim, None), &expected, tolerance(dtype, n, &expected));
    });
    family.cases("irfft of another length", 2.0, |family, rng| {
        let (bins, n) = (rng.pick(&[0, 1, 2, 5, 9, 33, 130]), length(rng));
        let (shape, dim) = shape_with(rng, bins);
        let args = [(); 2].map(|()| Arg::random(rng, &shape, dtype, Domain::Normal));
        let expected = signal(&args[0].dense(), &args[1].dense(), dim, n);
        family.check_values(&args, &Irfft(dim, Some(n)), &expected, tolerance(dtype, n, &expected));
    });
    family.cases("irfft of burn-flex", 0.5, |family, rng| {
        let n = 1 << rng.range(0, 9);
        let bins = rng.pick(&[1, 5, 17, 100]);
        let (shape, dim) = shape_with(rng, bins);
        let args = [(); 2].map(|()| Arg::random(rng, &shape, dtype, Domain::Normal));
        let tolerance = Tolerance::sum(if dtype == DType::F64 { DType::F32 } else { dtype }, 9);
        family.check(&args, &Irfft(dim, Some(n)), tolerance);
    });
    family.cases("irfft of rfft", 1.0, |family, rng| {
        let n = length(rng);
        let (shape, dim) = shape_with(rng, n);
        let args = [Arg::random(rng, &shape, dtype, Domain::Normal)];
        // The spectrum is stored, each bin with an error of its own.
        let expected = args[0].dense();
        let tolerance = tolerance(dtype, n, std::slice::from_ref(&expected));
        let stored = Tolerance::chain(dtype, 2, n.ilog2() as usize + 1);
        let tolerance =
            Tolerance { absolute: 2.0 * tolerance.absolute, of_max: 2.0 * stored.of_max, ..stored };
        family.check_values(&args, &RoundTrip(dim, n), &[expected], tolerance);
    });
    family.finish();
}

/// Lines that do not fit shared memory.
fn long(dtype: DType) {
    let mut family = Family::new("fft", dtype);
    let mut lengths = vec![4096, 8192, 1 << 14, 1 << 15, 5_000, 4_099];
    if large() {
        lengths.extend([1 << 17, 1 << 18, 65_537, 40_000]);
    }
    for n in lengths {
        family.cases(&format!("of {n}"), 0.01, |family, rng| {
            let args = [Arg::plain(rng, &[2, n], dtype, Domain::Normal)];
            let expected = spectrum(&args[0].dense(), 1, n);
            family.check_values(&args, &Rfft(1, None), &expected, tolerance(dtype, n, &expected));
            let args = [(); 2].map(|()| Arg::plain(rng, &[n / 2 + 1], dtype, Domain::Normal));
            let expected = signal(&args[0].dense(), &args[1].dense(), 0, n);
            family.check_values(&args, &Irfft(0, Some(n)), &expected, tolerance(dtype, n, &expected));
        });
    }
    family.finish();
}

crate::per_dtype!(rfft: f32 f64 f16 bf16);
crate::per_dtype!(irfft: f32 f64 f16 bf16);
crate::per_dtype!(long: f32 f64);
