//! Reductions, scans, softmax and norms.

use std::any::Any;

use burn_backend::{Backend, BoolDType, DType, IntDType};

use crate::Family;
use crate::harness::{Arg, Body, Dense, Domain, Inputs, Rng, Tolerance, Value, Values};
use crate::harness::{family::large, plain, shape, values, values::round_to};

const OUT: BoolDType = BoolDType::Native;
const AT: IntDType = IntDType::I64;

/// A reduction of everything (`None`) or of one dimension.
#[derive(Debug)]
pub(crate) struct Reduce(&'static str, Option<usize>);

impl Body for Reduce {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        vec![match (Inputs::new(inputs).any(), self.1) {
            (Value::Float(x), None) => match self.0 {
                "sum" => Value::Float(B::float_sum(x)),
                "mean" => Value::Float(B::float_mean(x)),
                "prod" => Value::Float(B::float_prod(x)),
                "max" => Value::Float(B::float_max(x)),
                "min" => Value::Float(B::float_min(x)),
                "max_abs" => Value::Float(B::float_max_abs(x)),
                "any" => Value::Bool(B::float_any(x, OUT)),
                "all" => Value::Bool(B::float_all(x, OUT)),
                name => panic!("no op {name}"),
            },
            (Value::Float(x), Some(dim)) => match self.0 {
                "sum" => Value::Float(B::float_sum_dim(x, dim)),
                "mean" => Value::Float(B::float_mean_dim(x, dim)),
                "prod" => Value::Float(B::float_prod_dim(x, dim)),
                "max" => Value::Float(B::float_max_dim(x, dim)),
                "min" => Value::Float(B::float_min_dim(x, dim)),
                "max_abs" => Value::Float(B::float_max_abs_dim(x, dim)),
                "argmax" => Value::Int(B::float_argmax(x, dim, AT)),
                "argmin" => Value::Int(B::float_argmin(x, dim, AT)),
                "any" => Value::Bool(B::float_any_dim(x, dim, OUT)),
                "all" => Value::Bool(B::float_all_dim(x, dim, OUT)),
                "cumsum" => Value::Float(B::float_cumsum(x, dim)),
                "cumprod" => Value::Float(B::float_cumprod(x, dim)),
                "cummax" => Value::Float(B::float_cummax(x, dim)),
                "cummin" => Value::Float(B::float_cummin(x, dim)),
                name => panic!("no op {name}"),
            },
            (Value::Int(x), None) => match self.0 {
                "sum" => Value::Int(B::int_sum(x)),
                "mean" => Value::Int(B::int_mean(x)),
                "prod" => Value::Int(B::int_prod(x)),
                "max" => Value::Int(B::int_max(x)),
                "min" => Value::Int(B::int_min(x)),
                "max_abs" => Value::Int(B::int_max_abs(x)),
                "any" => Value::Bool(B::int_any(x, OUT)),
                "all" => Value::Bool(B::int_all(x, OUT)),
                name => panic!("no op {name}"),
            },
            (Value::Int(x), Some(dim)) => match self.0 {
                "sum" => Value::Int(B::int_sum_dim(x, dim)),
                "mean" => Value::Int(B::int_mean_dim(x, dim)),
                "prod" => Value::Int(B::int_prod_dim(x, dim)),
                "max" => Value::Int(B::int_max_dim(x, dim)),
                "min" => Value::Int(B::int_min_dim(x, dim)),
                "max_abs" => Value::Int(B::int_max_abs_dim(x, dim)),
                "argmax" => Value::Int(B::int_argmax(x, dim)),
                "argmin" => Value::Int(B::int_argmin(x, dim)),
                "any" => Value::Bool(B::int_any_dim(x, dim, OUT)),
                "all" => Value::Bool(B::int_all_dim(x, dim, OUT)),
                "cumsum" => Value::Int(B::int_cumsum(x, dim)),
                "cumprod" => Value::Int(B::int_cumprod(x, dim)),
                "cummax" => Value::Int(B::int_cummax(x, dim)),
                "cummin" => Value::Int(B::int_cummin(x, dim)),
                name => panic!("no op {name}"),
            },
            (Value::Bool(x), None) => {
                Value::Bool(if self.0 == "any" { B::bool_any(x) } else { B::bool_all(x) })
            }
            (Value::Bool(x), Some(dim)) => {
                Value::Bool(if self.0 == "any" { B::bool_any_dim(x, dim) } else { B::bool_all_dim(x, dim) })
            }
        }]
    }
}

const WHOLE: &[&str] = &["sum", "mean", "prod", "max", "min", "max_abs", "any", "all"];
const ALONG: &[&str] = &["sum", "mean", "prod", "max", "min", "max_abs", "argmax", "argmin", "any", "all"];
const SCANS: &[&str] = &["cumsum", "cumprod", "cummax", "cummin"];

/// Ops that are an error, or have no value, over nothing.
fn needs_elements(op: &str, dtype: DType) -> bool {
    matches!(op, "max" | "min" | "max_abs" | "argmax" | "argmin") || (op == "mean" && !dtype.is_float())
}

/// Values whose products stay in range, and with ties and zeros where those matter.
fn domain(op: &str, special: bool, dtype: DType) -> Domain {
    match op {
        // Sums that wrap.
        "sum" | "mean" | "cumsum" if special && !dtype.is_float() => Domain::Special,
        "any" | "all" => Domain::Bit,
        "prod" | "cumprod" => Domain::AboveOne,
        "max" | "min" | "max_abs" | "argmax" | "argmin" | "cummax" | "cummin" if special => Domain::Special,
        "max" | "min" | "argmax" | "argmin" => Domain::Whole,
        _ => Domain::Normal,
    }
}

fn arg(rng: &mut Rng, op: &str, shape: &[usize], dtype: DType) -> Arg {
    let special = rng.one_in(3);
    let mut arg = Arg::random(rng, shape, dtype, domain(op, special, dtype));
    // Products of many numbers near 1, so that none overflows.
    if op.ends_with("prod")
        && let Values::Float(values) = &mut arg.base.values
    {
        let n = shape.iter().product::<usize>().max(4) as f64;
        let mut signs = rng.elements();
        for v in values {
            let near_one = 1.0 + (*v - 2.5) / n;
            *v = round_to(near_one, dtype) * if signs.one_in(2) { -1.0 } else { 1.0 };
        }
    }
    arg
}

/// Of the gradient, if the op has one and the values too: a NaN spreads differently in other precisions.
fn gradient(op: &str, args: &[Arg], dtype: DType) -> Option<Tolerance> {
    let none = !dtype.is_float() || matches!(op, "any" | "all" | "argmax" | "argmin");
    let finite = || args[0].base.as_floats().iter().all(|v| v.is_finite() && v.abs() < 100.0);
    let len = args[0].shape.iter().product();
    let depth = if op == "cumprod" { 32 } else { 16 };
    (!none && finite()).then(|| Tolerance::chain(dtype, depth, len))
}

fn tolerance(op: &str, dtype: DType, n: usize) -> Tolerance {
    match op {
        "sum" | "mean" | "prod" | "cumsum" if dtype.is_float() => Tolerance::sum(dtype, n),
        // A scan by blocks multiplies in another order; each factor rounds once.
        "cumprod" if dtype.is_float() => Tolerance::sum(dtype, n * n / 64 + n),
        _ => Tolerance::exact(),
    }
}

/// The share of an op's cases; integers come in eight dtypes.
fn share(dtype: DType, of_float: f64) -> f64 {
    if dtype.is_float() || dtype.is_bool() { of_float } else { 0.25 * of_float }
}

/// Whether there is such an op for this dtype.
fn exists(op: &str, dtype: DType) -> bool {
    !dtype.is_bool() || matches!(op, "any" | "all")
}

fn reduce(dtype: DType) {
    let mut family = Family::new("reduce", dtype);
    for op in WHOLE.iter().copied().filter(|op| exists(op, dtype)) {
        family.cases(&format!("{op} of all"), share(dtype, 1.3), |family, rng| {
            let shape = shape::any(rng, large());
            let shape =
                if needs_elements(op, dtype) { shape.iter().map(|d| *d.max(&1)).collect() } else { shape };
            let args = [arg(rng, op, &shape, dtype)];
            let expected = plain::whole(op, &args[0].dense(), dtype);
            let tolerance = tolerance(op, dtype, shape.iter().product());
            let gradient = gradient(op, &args, dtype);
            family.check_with(&args, &Reduce(op, None), Some(&[expected]), tolerance, gradient);
        });
    }
    for op in ALONG.iter().copied().filter(|op| exists(op, dtype)) {
        along(&mut family, op, share(dtype, 1.3), dtype);
    }
    for op in ["max", "min"].into_iter().filter(|op| exists(op, dtype)) {
        family.cases(&format!("{op} with indices"), share(dtype, 0.8), |family, rng| {
            let mut shape = shape::any(rng, large());
            let dim = rng.below(shape.len());
            shape[dim] = shape[dim].max(1);
            let args = [arg(rng, op, &shape, dtype)];
            let x = args[0].dense();
            let at = if op == "max" { "argmax" } else { "argmin" };
            let expected = [plain::along(op, &x, dim, dtype), plain::along(at, &x, dim, dtype)];
            let gradient = gradient(op, &args, dtype);
            let body = WithIndices(op, dim);
            family.check_with(&args, &body, Some(&expected), Tolerance::exact(), gradient);
        });
    }
    family.finish();
}

fn cumulative(dtype: DType) {
    let mut family = Family::new("cumulative", dtype);
    for &op in SCANS {
        along(&mut family, op, share(dtype, 2.0), dtype);
    }
    family.finish();
}

/// Cases of a reduction or scan of one dimension.
fn along(family: &mut Family, op: &'static str, share: f64, dtype: DType) {
    family.cases(op, share, |family, rng| {
        let mut shape = shape::any(rng, large());
        let dim = rng.below(shape.len());
        if needs_elements(op, dtype) {
            shape[dim] = shape[dim].max(1);
        }
        let args = [arg(rng, op, &shape, dtype)];
        let gradient = gradient(op, &args, dtype);
        compare_along(family, &args, op, dim, gradient);
    });
    // Beyond what a block takes at once: chunks whose results are combined.
    family.cases(&format!("{op} of a long dimension"), 0.2, |family, rng| {
        let (shape, dim) = shape::long(rng);
        let args = [arg(rng, op, &shape, dtype)];
        compare_along(family, &args, op, dim, None);
    });
}

fn compare_along(
    family: &mut Family,
    args: &[Arg; 1],
    op: &'static str,
    dim: usize,
    gradient: Option<Tolerance>,
) {
    let dtype = args[0].dtype;
    let expected = plain::along(op, &args[0].dense(), dim, dtype);
    let tolerance = tolerance(op, dtype, args[0].shape[dim]);
    family.check_with(args, &Reduce(op, Some(dim)), Some(&[expected]), tolerance, gradient);
}

#[derive(Debug)]
pub(crate) struct WithIndices(&'static str, usize);
impl Body for WithIndices {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        match Inputs::new(inputs).any() {
            Value::Float(x) => {
                let (values, indices) = match self.0 {
                    "max" => B::float_max_dim_with_indices(x, self.1, AT),
                    _ => B::float_min_dim_with_indices(x, self.1, AT),
                };
                vec![Value::Float(values), Value::Int(indices)]
            }
            x => {
                let (values, indices) = match self.0 {
                    "max" => B::int_max_dim_with_indices(x.int(), self.1),
                    _ => B::int_min_dim_with_indices(x.int(), self.1),
                };
                vec![Value::Int(values), Value::Int(indices)]
            }
        }
    }
}

/// `softmax`, `log_softmax` and `softmin` along a dimension.
#[derive(Debug)]
pub(crate) struct Softmax(&'static str, usize);
impl Body for Softmax {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).float();
        vec![Value::Float(match self.0 {
            "softmax" => B::softmax(x, self.1),
            "log_softmax" => B::log_softmax(x, self.1),
            _ => B::softmin(x, self.1),
        })]
    }
}

fn softmax_tolerance(op: &str, dtype: DType, n: usize) -> Tolerance {
    match op {
        // Reaches the size of its inputs, which are stored rounded.
        "log_softmax" => Tolerance::sum(dtype, n).times(2.0),
        _ => Tolerance::share(dtype, n).times(2.0),
    }
}

fn softmax(dtype: DType) {
    let mut family = Family::new("softmax", dtype);
    for op in ["softmax", "log_softmax", "softmin"] {
        family.cases(op, 2.5, |family, rng| {
            let mut shape = shape::any(rng, large());
            let dim = if rng.one_in(2) { rng.below(shape.len()) } else { shape.len() - 1 };
            shape[dim] = shape[dim].max(1);
            let args = [Arg::random(rng, &shape, dtype, Domain::Normal)];
            let tolerance = softmax_tolerance(op, dtype, shape[dim]);
            let n = shape.iter().product();
            let gradient = Tolerance::chain(dtype, 16, n);
            // In f64 the reference is no more exact, and where a view repeats an element its errors add up.
            let of_max = gradient.of_max + 8.0 * f64::EPSILON * n as f64;
            family.check_both(&args, &Softmax(op, dim), tolerance, Tolerance { of_max, ..gradient });
        });
    }
    for op in ["softmax", "log_softmax", "softmin"] {
        family.cases(&format!("{op} of a long dimension"), 0.6, |family, rng| {
            let (shape, dim) = shape::long(rng);
            let args = [Arg::random(rng, &shape, dtype, Domain::Normal)];
            family.check(&args, &Softmax(op, dim), softmax_tolerance(op, dtype, shape[dim]));
        });
    }
    for op in ["softmax", "log_softmax"] {
        // Each thread has a sum by then, which has to be brought to the new maximum.
        family.cases(&format!("{op} of long rows that end in their largest element"), 0.3, |family, rng| {
            let (rows, cols) = (rng.range(1, 3), rng.pick(&[16_391, 33_003, 70_001]));
            let mut x = values::dense(rng, &[rows, cols], dtype, Domain::Inside);
            if let Values::Float(values) = &mut x.values {
                values.chunks_mut(cols).for_each(|row| row[cols - 1] = 5.0);
            }
            family.check(&[Arg::new(x, dtype)], &Softmax(op, 1), softmax_tolerance(op, dtype, cols));
        });
    }
    for op in ["softmax", "log_softmax"] {
        family.cases(&format!("{op} of rows with -inf and large numbers"), 0.3, |family, rng| {
            let (rows, cols) = (rng.range(1, 9), rng.range(2, 70));
            let mut drawn = rng.elements();
            let mut values: Vec<f64> =
                (0..rows * cols).map(|_| (drawn.below(41) as f64 - 20.0) * 2.0).collect();
            for row in values.chunks_mut(cols) {
                row[0] = 30.0;
                row[cols - 1] = f64::NEG_INFINITY;
            }
            let args = [Arg::new(Dense::floats(&[rows, cols], values), dtype)];
            family.check(&args, &Softmax(op, 1), softmax_tolerance(op, dtype, cols));
        });
    }
    family.finish();
}

#[derive(Debug)]
pub(crate) struct LayerNorm(bool);
impl Body for LayerNorm {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, gamma) = (inputs.float(), inputs.float());
        let beta = self.0.then(|| inputs.float());
        vec![Value::Float(B::layer_norm(x, gamma, beta, 1e-5))]
    }
}

fn layer_norm(dtype: DType) {
    let mut family = Family::new("layer_norm", dtype);
    for with_gradient in [false, true] {
        let op = if with_gradient { "layer_norm and its gradients" } else { "layer_norm" };
        family.cases(op, 3.5, |family, rng| {
            let mut shape = shape::any(rng, large());
            let cols = shape.len() - 1;
            // Few or equal elements have no deviation to divide by: no matter forward, but in gradients.
            shape[cols] = shape[cols].max(if with_gradient { 4 } else { 2 });
            let bias = rng.one_in(2);
            let x = match with_gradient {
                true => Arg::distinct(rng, &shape, dtype, Domain::Normal),
                false => Arg::random(rng, &shape, dtype, Domain::Normal),
            };
            let mut parameter = || Arg::plain(rng, &shape[cols..], dtype, Domain::Normal);
            let args = [x, parameter(), parameter()];
            let args = if bias { &args[..] } else { &args[..2] };
            // The rounding of the mean is divided by the deviation.
            let spread = deviation(&args[0].dense(), shape[cols]);
            let tolerance = Tolerance::sum(dtype, shape[cols]).times(2.0);
            let tolerance = Tolerance { of_max: tolerance.of_max * (1.0 + 2.0 / spread), ..tolerance };
            let gradient = with_gradient.then(|| Tolerance::chain(dtype, 40, shape.iter().product()));
            family.check_with(args, &LayerNorm(bias), None, tolerance, gradient);
        });
    }
    family.cases("layer_norm of long rows", 0.4, |family, rng| {
        let shape = [rng.range(1, 3), rng.pick(&[4_097, 16_392, 33_003])];
        let mut parameter = || Arg::plain(rng, &shape[1..], dtype, Domain::Normal);
        let parameters = [parameter(), parameter()];
        let [gamma, beta] = parameters;
        let args = [Arg::random(rng, &shape, dtype, Domain::Normal), gamma, beta];
        let spread = deviation(&args[0].dense(), shape[1]);
        let tolerance = Tolerance::sum(dtype, shape[1]).times(2.0);
        let tolerance = Tolerance { of_max: tolerance.of_max * (1.0 + 2.0 / spread), ..tolerance };
        family.check(&args, &LayerNorm(true), tolerance);
    });
    family.finish();
}

/// The smallest deviation of a row, as layer_norm sees it.
fn deviation(x: &Dense, cols: usize) -> f64 {
    let variance = |row: &[f64]| {
        let mean = row.iter().sum::<f64>() / cols as f64;
        row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / cols as f64
    };
    x.as_floats().chunks(cols).map(|row| (variance(row) + 1e-5).sqrt()).fold(1.0, f64::min)
}

/// What Burn's traits have no method for; of the device under test alone.
#[derive(Debug)]
struct LayerNormBackward;
impl Body for LayerNormBackward {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let inputs: Box<dyn Any> = Box::new(inputs);
        let mut inputs = Inputs::new(*inputs.downcast::<Vec<Value<kiln::Cuda>>>().expect("for `Cuda` alone"));
        let (dy, x, gamma) = (inputs.float(), inputs.float(), inputs.float());
        let gradients = kiln::Cuda::layer_norm_backward(dy, x, gamma, 1e-5);
        let outputs: Box<dyn Any> = Box::new(gradients.map(Value::<kiln::Cuda>::Float).to_vec());
        *outputs.downcast().expect("for `Cuda` alone")
    }
}

/// Its values in f64.
fn layer_norm_gradients(dy: &[f64], x: &[f64], gamma: &[f64]) -> [Vec<f64>; 3] {
    let cols = gamma.len();
    let mean = |row: &mut dyn Iterator<Item = f64>| row.sum::<f64>() / cols as f64;
    let (mut dx, mut dgamma, mut dbeta) = (Vec::new(), vec![0.0; cols], vec![0.0; cols]);
    for (x, dy) in x.chunks(cols).zip(dy.chunks(cols)) {
        let middle = mean(&mut x.iter().copied());
        let rstd = 1.0 / (mean(&mut x.iter().map(|v| (v - middle).powi(2))) + 1e-5).sqrt();
        let h: Vec<f64> = x.iter().map(|v| (v - middle) * rstd).collect();
        let g: Vec<f64> = dy.iter().zip(gamma).map(|(d, scale)| d * scale).collect();
        let (mean_g, mean_gh) =
            (mean(&mut g.iter().copied()), mean(&mut g.iter().zip(&h).map(|(g, h)| g * h)));
        for c in 0..cols {
            dx.push((g[c] - mean_g - h[c] * mean_gh) * rstd);
            dgamma[c] += dy[c] * h[c];
            dbeta[c] += dy[c];
        }
    }
    [dx, dgamma, dbeta]
}

fn layer_norm_backward(dtype: DType) {
    let mut family = Family::new("layer_norm", dtype);
    family.cases("layer_norm's gradients in one pass", 3.0, |family, rng| {
        let shape = match rng.below(3) {
            // More rows than the device has blocks; rows of more than a warp, and too long for registers.
            0 => vec![rng.pick(&[1000, 2500]), rng.pick(&[5, 8, 33])],
            1 => vec![rng.range(1, 3), rng.pick(&[257, 1024, 4_097, 8_192, 8_200])],
            _ => shape::any(rng, large()),
        };
        let cols = *shape.last().expect("at least one dimension");
        let x = Arg::random(rng, &shape, dtype, Domain::Normal);
        let dy = Arg::random(rng, &shape, dtype, Domain::Normal);
        let args = [dy, x, Arg::random(rng, &[cols], dtype, Domain::Normal)];
        let [dy, x, gamma] = [&args[0], &args[1], &args[2]].map(Arg::dense);
        let expected = match x.len() {
            0 => [vec![], vec![0.0; cols], vec![0.0; cols]],
            _ => layer_norm_gradients(dy.as_floats(), x.as_floats(), gamma.as_floats()),
        };
        let shapes = [&shape[..], &[cols], &[cols]];
        let expected: Vec<_> =
            shapes.into_iter().zip(expected).map(|(shape, values)| Dense::floats(shape, values)).collect();
        let spread = if x.len() > 0 { deviation(&x, cols) } else { 1.0 };
        let tolerance = Tolerance::sum(dtype, x.len().max(1)).times(2.0);
        let tolerance = Tolerance { of_max: tolerance.of_max * (1.0 + 4.0 / (spread * spread)), ..tolerance };
        family.check_values(&args, &LayerNormBackward, &expected, tolerance);
    });
    family.finish();
}

crate::per_dtype!(reduce: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64 bool);
crate::per_dtype!(cumulative: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64);
crate::per_dtype!(softmax: f32 f64 f16 bf16);
crate::per_dtype!(layer_norm: f32 f64 f16 bf16);
crate::per_dtype!(layer_norm_backward: f32 f64 f16 bf16);
