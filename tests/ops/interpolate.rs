//! Images of another size, and images sampled at given places.

use burn_backend::ops::{GridSampleOptions, GridSamplePaddingMode, InterpolateMode, InterpolateOptions};
use burn_backend::{Backend, DType};

use crate::Family;
use crate::harness::{Arg, Body, Dense, Domain, Inputs, Rng, Tolerance, Value};

fn mode(name: &str) -> InterpolateMode {
    match name {
        "nearest" => InterpolateMode::Nearest,
        "bilinear" => InterpolateMode::Bilinear,
        "bicubic" => InterpolateMode::Bicubic,
        _ => InterpolateMode::Lanczos3,
    }
}

const MODES: [&str; 4] = ["nearest", "bilinear", "bicubic", "lanczos"];

/// The image, or with a second input its gradient.
#[derive(Debug)]
pub(crate) struct Interpolate(&'static str, bool, [usize; 2]);
impl Body for Interpolate {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let backward = inputs.len() == 2;
        let mut inputs = Inputs::new(inputs);
        let options = InterpolateOptions::new(mode(self.0)).with_align_corners(self.1);
        let x = inputs.float();
        vec![Value::Float(match backward {
            false => B::interpolate(x, self.2, options),
            true => B::interpolate_backward(x, inputs.float(), self.2, options),
        })]
    }
}

fn cubic(x: f64) -> f64 {
    let (a, x) = (-0.75, x.abs());
    match x {
        ..1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        ..2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

fn lanczos(x: f64) -> f64 {
    let sinc =
        |x: f64| if x == 0.0 { 1.0 } else { (std::f64::consts::PI * x).sin() / (std::f64::consts::PI * x) };
    if x.abs() < 3.0 { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}

/// The elements that output `o` is made of, with weights.
fn taps(name: &str, align: bool, size: usize, out: usize, o: usize) -> Vec<(usize, f64)> {
    let last = size as i64 - 1;
    let position = match align {
        true => o as f64 * ((size as f64 - 1.0) / (out.max(2) - 1) as f64),
        false => (o as f64 + 0.5) * (size as f64 / out as f64) - 0.5,
    };
    let low = position.floor() as i64;
    let clamped = |i: i64| i.clamp(0, last) as usize;
    match name {
        "nearest" => vec![(o * size / out, 1.0)],
        "bilinear" => {
            let low = low.max(0);
            let t = (position - low as f64).max(0.0);
            vec![(clamped(low), 1.0 - t), (clamped(low + 1), t)]
        }
        "bicubic" => (low - 1..=low + 2).map(|i| (clamped(i), cubic(position - i as f64))).collect(),
        _ => {
            let inside = (low - 2..=low + 3).filter(|i| (0..=last).contains(i));
            let all: Vec<_> = inside.map(|i| (i as usize, lanczos(position - i as f64))).collect();
            let sum: f64 = all.iter().map(|(_, w)| w).sum();
            all.into_iter().map(|(i, w)| (i, w / sum)).collect()
        }
    }
}

/// The image of another size; or, with its gradient, that of the image.
fn plain(name: &str, align: bool, x: &Dense, out: [usize; 2], dy: Option<&Dense>) -> Dense {
    let [b, c, h, w] = x.shape[..] else { panic!("images have four dimensions") };
    let rows: Vec<_> = (0..out[0]).map(|o| taps(name, align, h, out[0], o)).collect();
    let columns: Vec<_> = (0..out[1]).map(|o| taps(name, align, w, out[1], o)).collect();
    let shape = [b, c, out[0], out[1]];
    let (mut y, mut dx) = (vec![0.0; shape.iter().product()], vec![0.0; x.len()]);
    for plane in 0..b * c {
        for (i, row) in rows.iter().enumerate() {
            for (j, column) in columns.iter().enumerate() {
                let to = (plane * out[0] + i) * out[1] + j;
                for &(k, v) in row {
                    for &(l, u) in column {
                        let from = (plane * h + k) * w + l;
                        y[to] += v * u * x.as_floats()[from];
                        if let Some(dy) = dy {
                            dx[from] += v * u * dy.as_floats()[to];
                        }
                    }
                }
            }
        }
    }
    if dy.is_some() { Dense::floats(&x.shape, dx) } else { Dense::floats(&shape, y) }
}

fn sizes(rng: &mut Rng) -> ([usize; 4], [usize; 2]) {
    let mut size = || rng.range(1, 12);
    let (mut image, mut out) = ([size(), size()], [size(), size()]);
    match rng.below(8) {
        0 => out = image,
        1 => out = image.map(|n| 3 * n),
        2 => image = out.map(|n| 2 * n),
        3 => (image[1], out[1]) = (rng.range(20, 90), rng.range(20, 300)),
        _ => {}
    }
    let (mut batch, mut channels) = (rng.range(1, 3), rng.range(1, 4));
    match rng.below(24) {
        0 => batch = 0,
        1 => channels = 0,
        2 => out[0] = 0,
        _ => {}
    }
    ([batch, channels, image[0], image[1]], out)
}

fn interpolate(dtype: DType) {
    let mut family = Family::new("interpolate", dtype);
    for name in MODES {
        family.cases(name, 1.0, |family, rng| {
            let (shape, out) = sizes(rng);
            let args = [Arg::random(rng, &shape, dtype, Domain::Normal)];
            let body = Interpolate(name, rng.one_in(2), out);
            let expected = plain(name, body.1, &args[0].dense(), out, None);
            let tolerance = if name == "nearest" { Tolerance::exact() } else { Tolerance::sum(dtype, 36) };
            // burn-flex has no gradient of the Lanczos mode, and rounds the position of the nearest one.
            let differentiable = matches!(name, "bilinear" | "bicubic") && !out.contains(&0);
            let sums = 4 * shape.iter().chain(&out).product::<usize>().min(4_000);
            let gradient = differentiable.then(|| Tolerance::chain(dtype, 8, sums));
            family.check_with(&args, &body, Some(&[expected]), tolerance, gradient);
        });
        family.cases(&format!("{name} backward"), 1.0, |family, rng| {
            let (shape, out) = sizes(rng);
            let args = [shape, [shape[0], shape[1], out[0], out[1]]]
                .map(|shape| Arg::random(rng, &shape, dtype, Domain::Normal));
            let body = Interpolate(name, rng.one_in(2), out);
            let expected = plain(name, body.1, &args[0].dense(), out, Some(&args[1].dense()));
            let terms = 36 * (1 + out[0] / shape[2]) * (1 + out[1] / shape[3]);
            family.check_values(&args, &body, &[expected], Tolerance::sum(dtype, terms));
        });
    }
    // What the plain loops say is what burn-flex says.
    for name in &MODES[1..] {
        family.cases(&format!("{name} of burn-flex"), 0.5, |family, rng| {
            let (shape, out) = sizes(rng);
            let (shape, out) = (shape.map(|n| n.max(1)), out.map(|n| n.max(1)));
            let args = [Arg::random(rng, &shape, dtype, Domain::Normal)];
            // burn-flex's positions are rounded, and are as large as the image.
            let tolerance = Tolerance::sum(dtype, 36);
            let of_max = tolerance.of_max + 512.0 * f64::EPSILON;
            let body = Interpolate(name, rng.one_in(2), out);
            family.check(&args, &body, Tolerance { of_max, ..tolerance });
        });
    }
    family.finish();
}

/// More pixels and planes than a launch has threads for at once, and a pixel of many.
#[test]
fn large_images_are_resized() {
    let mut family = Family::new("interpolate", DType::F32);
    for name in MODES {
        family.cases(&format!("{name} of large images"), 0.1, |family, rng| {
            for (shape, out) in
                [([2, 3, 40, 50], [61, 93]), ([1, 1, 3, 700], [2, 5]), ([40, 25, 1, 2], [2, 1])]
            {
                let dy = [shape[0], shape[1], out[0], out[1]];
                let args = [shape, dy].map(|shape| Arg::random(rng, &shape, DType::F32, Domain::Normal));
                let dense = [0, 1].map(|k| args[k].dense());
                let body = Interpolate(name, rng.one_in(2), out);
                let expected = plain(name, body.1, &dense[0], out, None);
                let tolerance =
                    if name == "nearest" { Tolerance::exact() } else { Tolerance::sum(DType::F32, 36) };
                family.check_values(&args[..1], &body, &[expected], tolerance);
                let expected = plain(name, body.1, &dense[0], out, Some(&dense[1]));
                family.check_values(&args, &body, &[expected], Tolerance::sum(DType::F32, 100));
            }
        });
    }
    family.finish();
}

/// Pixels outside of the image have no part in the Lanczos mode, whatever stands at its edge.
#[test]
fn pixels_beyond_the_edge_are_left_out() {
    let mut family = Family::new("interpolate", DType::F32);
    family.cases("lanczos beside infinity", 0.05, |family, _| {
        let mut x = vec![1.0; 12];
        x[0] = f64::INFINITY;
        let args = [Arg::new(Dense::floats(&[1, 1, 1, 12], x), DType::F32)];
        // Output 7 of 12 is made of elements 5 to 10 alone.
        #[derive(Debug)]
        struct Seventh;
        impl Body for Seventh {
            fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
                let y = Interpolate("lanczos", false, [1, 12]).run::<B>(inputs).remove(0);
                let slice = |start, end| burn_backend::Slice::new(start, Some(end), 1);
                vec![y.slice(&[slice(0, 1), slice(0, 1), slice(0, 1), slice(7, 8)])]
            }
        }
        let expected = Dense::floats(&[1, 1, 1, 1], vec![1.0]);
        family.check_values(&args, &Seventh, &[expected], Tolerance::rounded(DType::F32));
    });
    family.finish();
}

const PADDINGS: [GridSamplePaddingMode; 3] =
    [GridSamplePaddingMode::Zeros, GridSamplePaddingMode::Border, GridSamplePaddingMode::Reflection];

#[derive(Debug)]
pub(crate) struct GridSample(&'static str, GridSamplePaddingMode, bool);
impl Body for GridSample {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let options =
            GridSampleOptions::new(mode(self.0)).with_padding_mode(self.1).with_align_corners(self.2);
        vec![Value::Float(B::float_grid_sample_2d(inputs.float(), inputs.float(), options))]
    }
}

/// The bicubic mode, which burn-flex has not: padding is that of each pixel.
fn bicubic(x: &Dense, grid: &Dense, padding: GridSamplePaddingMode, align: bool) -> Dense {
    let ([n, c, h, w], [_, oh, ow, _]) =
        (x.shape[..].try_into().unwrap(), grid.shape[..].try_into().unwrap());
    let position = |g: f64, size: usize| match align {
        true => (g + 1.0) * (size as f64 - 1.0) / 2.0,
        false => (g + 1.0) * size as f64 / 2.0 - 0.5,
    };
    // Walks back and forth, a step at a time.
    let reflected = |i: i64, size: usize| {
        let last = size as i64 - 1;
        let (mut at, mut step) = (0i64, 1i64);
        for _ in 0..i.abs() - (i < 0 && !align) as i64 {
            match (at + step < 0 || at + step > last, align) {
                (false, _) => at += step,
                (true, false) => step = -step,
                (true, true) if last > 0 => {
                    step = -step;
                    at += step;
                }
                (true, true) => {}
            }
        }
        at as usize
    };
    let element = |i: i64, size: usize| match padding {
        GridSamplePaddingMode::Zeros => (0..size as i64).contains(&i).then_some(i as usize),
        GridSamplePaddingMode::Border => Some(i.clamp(0, size as i64 - 1) as usize),
        GridSamplePaddingMode::Reflection => Some(reflected(i, size)),
    };
    let mut y = Vec::with_capacity(n * c * oh * ow);
    for image in 0..n {
        for channel in 0..c {
            for place in 0..oh * ow {
                let g = &grid.as_floats()[2 * (image * oh * ow + place)..][..2];
                let (px, py) = (position(g[0], w), position(g[1], h));
                let mut sum = 0.0;
                for k in py.floor() as i64 - 1..=py.floor() as i64 + 2 {
                    for l in px.floor() as i64 - 1..=px.floor() as i64 + 2 {
                        let (Some(row), Some(column)) = (element(k, h), element(l, w)) else { continue };
                        let value = x.as_floats()[((image * c + channel) * h + row) * w + column];
                        sum += cubic(py - k as f64) * cubic(px - l as f64) * value;
                    }
                }
                y.push(sum);
            }
        }
    }
    Dense::floats(&[n, c, oh, ow], y)
}

fn grid_sample(dtype: DType) {
    let mut family = Family::new("interpolate", dtype);
    for name in &MODES[..3] {
        for padding in PADDINGS {
            family.cases(&format!("grid_sample {name} {padding:?}"), 0.7, |family, rng| {
                let (n, c) = (rng.range(1, 3), rng.range(1, 4));
                let [h, w, oh, ow] = [(); 4].map(|()| rng.range(1, 9));
                let args =
                    [[n, c, h, w], [n, oh, ow, 2]].map(|s| Arg::random(rng, &s, dtype, Domain::Normal));
                let body = GridSample(name, padding, rng.one_in(2));
                let tolerance = Tolerance::sum(dtype, 16);
                if *name == "bicubic" {
                    let expected = bicubic(&args[0].dense(), &args[1].dense(), padding, body.2);
                    return family.check_values(&args, &body, &[expected], tolerance);
                }
                // Under Autodiff the operation is Burn's composition, whose positions have the tensors' dtype.
                let exact = *name == "bilinear" && matches!(dtype, DType::F32 | DType::F64);
                let gradient = exact.then(|| Tolerance::chain(dtype, 60, 4 * n * c * h * w * oh * ow));
                family.check_with(&args, &body, None, tolerance, gradient);
            });
        }
    }
    family.cases("grid_sample of nothing", 0.1, |family, rng| {
        let (args, y) = match rng.below(3) {
            0 => ([[0, 2, 3, 3], [0, 4, 5, 2]], [0, 2, 4, 5]),
            1 => ([[2, 0, 3, 3], [2, 4, 5, 2]], [2, 0, 4, 5]),
            _ => ([[2, 2, 3, 0], [2, 0, 5, 2]], [2, 2, 0, 5]),
        };
        let args = args.map(|s| Arg::plain(rng, &s, dtype, Domain::Normal));
        let body = GridSample("bilinear", PADDINGS[0], true);
        family.check_values(&args, &body, &[Dense::floats(&y, vec![])], Tolerance::exact());
    });
    family.finish();
}

/// A place that is no number gives none; one infinitely far is outside.
#[test]
fn places_far_away_and_nowhere() {
    let mut family = Family::new("interpolate", DType::F32);
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for name in &MODES[..3] {
        for (padding, far) in [(PADDINGS[0], 0.0), (PADDINGS[1], 5.0), (PADDINGS[2], nan)] {
            family.cases(&format!("far {name} {padding:?}"), 0.01, |family, _| {
                let args = [
                    Arg::new(Dense::floats(&[1, 1, 2, 3], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), DType::F32),
                    Arg::new(Dense::floats(&[1, 1, 2, 2], vec![inf, inf, nan, 0.0]), DType::F32),
                ];
                let expected = Dense::floats(&[1, 1, 1, 2], vec![far, nan]);
                family.check_values(
                    &args,
                    &GridSample(name, padding, false),
                    &[expected],
                    Tolerance::exact(),
                );
            });
        }
    }
    family.finish();
}

crate::per_dtype!(interpolate: f32 f64 f16 bf16);
crate::per_dtype!(grid_sample: f32 f64 f16 bf16);
