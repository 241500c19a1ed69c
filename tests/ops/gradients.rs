//! Gradients of single ops and chains under Burn's `Autodiff`, in every float dtype.

use burn_backend::ops::ConvOptions;
use burn_backend::{Backend, DType, Scalar, Slice};

use crate::Family;
use crate::harness::family::large;
use crate::harness::{Arg, BOOL, Body, Domain, Inputs, Rng, Tolerance, Value, shape};

/// One op or chain for each name; all return a float tensor first.
struct Op(&'static str);

impl Body for Op {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let x = inputs.float();
        let s = Scalar::Float(0.5);
        vec![Value::Float(match self.0 {
            "neg" => B::float_neg(x),
            "abs" => B::float_abs(x),
            "recip" => B::float_recip(x),
            "exp" => B::float_exp(x),
            "log" => B::float_log(x),
            "log1p" => B::float_log1p(x),
            "sqrt" => B::float_sqrt(x),
            "cos" => B::float_cos(x),
            "sin" => B::float_sin(x),
            "tanh" => B::float_tanh(x),
            "erf" => B::float_erf(x),
            "relu" => B::relu(x),
            "gelu" => B::gelu(x),
            "sigmoid" => B::sigmoid(x),
            "log_sigmoid" => B::log_sigmoid(x),
            "leaky_relu" => B::leaky_relu(x, s),
            "add_scalar" => B::float_add_scalar(x, s),
            "mul_scalar" => B::float_mul_scalar(x, s),
            "div_scalar" => B::float_div_scalar(x, s),
            "powf_scalar" => B::float_powf_scalar(x, Scalar::Float(1.5)),
            "clamp" => B::float_clamp(x, Scalar::Float(-0.5), s),
            "add" => B::float_add(x, inputs.float()),
            "sub" => B::float_sub(x, inputs.float()),
            "mul" => B::float_mul(x, inputs.float()),
            "div" => B::float_div(x, inputs.float()),
            "powf" => B::float_powf(x, inputs.float()),
            "mask_where" => B::float_mask_where(x, inputs.bool(), inputs.float()),
            "mask_fill" => B::float_mask_fill(x, inputs.bool(), s),
            "chain" => {
                let y = inputs.float();
                let a = B::float_tanh(B::float_add(B::float_mul(x.clone(), y.clone()), x.clone()));
                B::float_mul(B::sigmoid(B::float_sub(a, y)), B::float_exp(B::float_mul_scalar(x, s)))
            }
            name => panic!("no op {name}"),
        })]
    }
}

const UNARY: &[(&str, Domain)] = &[
    ("neg", Domain::Normal),
    ("abs", Domain::NotZero),
    ("recip", Domain::NotZero),
    ("exp", Domain::Inside),
    ("log", Domain::AboveOne),
    ("log1p", Domain::Positive),
    ("sqrt", Domain::AboveOne),
    ("cos", Domain::Normal),
    ("sin", Domain::Normal),
    ("tanh", Domain::Normal),
    ("erf", Domain::Normal),
    ("relu", Domain::NotZero),
    ("gelu", Domain::Normal),
    ("sigmoid", Domain::Normal),
    ("log_sigmoid", Domain::Normal),
    ("leaky_relu", Domain::NotZero),
    ("add_scalar", Domain::Normal),
    ("mul_scalar", Domain::Normal),
    ("div_scalar", Domain::Normal),
    ("powf_scalar", Domain::Positive),
    ("clamp", Domain::AboveOne),
];

fn elementwise(dtype: DType) {
    let mut family = Family::new(format!("gradient of elementwise {}", dtype.name()));
    for &(name, domain) in UNARY {
        family.cases(name, 0.15, |family, rng| {
            let shape = shape::any(rng, false);
            let args = [Arg::random(rng, &shape, dtype, domain)];
            let n: usize = args[0].base.shape.iter().product();
            family.check_gradient(&args, &Op(name), Tolerance::chain(dtype, 6, shape_len(&shape) / n.max(1)));
        });
    }
    for name in ["add", "sub", "mul", "div", "powf", "chain"] {
        family.cases(name, 0.5, |family, rng| {
            let (out, left, right) = shape::broadcast_pair(rng, large());
            let domain = if name == "powf" { Domain::AboveOne } else { Domain::Normal };
            let second = if name == "div" { Domain::NotZero } else { Domain::Inside };
            let args = [Arg::random(rng, &left, dtype, domain), Arg::random(rng, &right, dtype, second)];
            // Broadcast operands sum their gradients over what they were stretched by, and so do expanded views.
            family.check_gradient(&args, &Op(name), Tolerance::chain(dtype, 12, shape_len(&out)));
        });
    }
    for name in ["mask_fill", "mask_where"] {
        family.cases(name, 0.3, |family, rng| {
            let shape = shape::any(rng, false);
            let mut arg = |dtype| Arg::random(rng, &shape, dtype, Domain::Normal);
            let args = [arg(dtype), arg(BOOL), arg(dtype)];
            let args = if name == "mask_fill" { &args[..2] } else { &args[..] };
            family.check_gradient(args, &Op(name), Tolerance::chain(dtype, 3, shape_len(&shape)));
        });
    }
    family.finish();
}

fn shape_len(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Reductions, softmax, norms along a dimension.
struct Along(&'static str, usize);
impl Body for Along {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, dim) = (inputs.float(), self.1);
        vec![Value::Float(match self.0 {
            "sum" => B::float_sum(x),
            "sum_dim" => B::float_sum_dim(x, dim),
            "mean" => B::float_mean(x),
            "mean_dim" => B::float_mean_dim(x, dim),
            "max_dim" => B::float_max_dim(x, dim),
            "min_dim" => B::float_min_dim(x, dim),
            "cumsum" => B::float_cumsum(x, dim),
            "softmax" => B::softmax(x, dim),
            "log_softmax" => B::log_softmax(x, dim),
            "layer_norm" => B::layer_norm(x, inputs.float(), Some(inputs.float()), 1e-5),
            name => panic!("no op {name}"),
        })]
    }
}

fn along(dtype: DType) {
    let mut family = Family::new(format!("gradient of reductions {}", dtype.name()));
    for name in [
        "sum",
        "sum_dim",
        "mean",
        "mean_dim",
        "max_dim",
        "min_dim",
        "cumsum",
        "softmax",
        "log_softmax",
        "layer_norm",
    ] {
        family.cases(name, 0.4, |family, rng| {
            let rank = rng.range(1, 4);
            let mut shape = shape::filled(rng, rank, false);
            let last = rank - 1;
            let dim = if name == "layer_norm" { last } else { rng.below(rank) };
            if name == "layer_norm" {
                shape[last] = shape[last].max(4);
            }
            let mut x = match name {
                // Equal elements have no deviation to divide by.
                "layer_norm" => Arg::distinct(rng, &shape, dtype, Domain::Normal),
                _ => Arg::random(rng, &shape, dtype, Domain::Normal),
            };
            if name.starts_with("max") || name.starts_with("min") {
                // Ties would make the gradient a matter of taste: all elements differ.
                distinct(&mut x, rng);
            }
            let mut args = vec![x];
            if name == "layer_norm" {
                args.extend([0; 2].map(|_| Arg::plain(rng, &shape[last..], dtype, Domain::Normal)));
            }
            let depth = if name == "layer_norm" { 40 } else { 16 };
            let tolerance = Tolerance::chain(dtype, depth, shape_len(&shape));
            family.check_gradient(&args, &Along(name, dim), tolerance);
        });
    }
    family.finish();
}

/// Values that are far enough apart to be different numbers in every float dtype, in random order, and no view that
/// repeats any.
fn distinct(x: &mut Arg, rng: &mut Rng) {
    let count = shape_len(&x.shape).min(199);
    let shape = vec![1; x.shape.len() - 1].into_iter().chain([count.max(1)]).collect::<Vec<_>>();
    let values = rng.permutation(count.max(1)).into_iter().map(|k| k as f64 - 100.0).collect();
    *x = Arg::new(crate::harness::Dense::floats(&shape, values), x.dtype);
}

/// Matrix products and convolutions.
enum Product {
    Matmul,
    Linear,
    Conv(ConvOptions<2>),
}
impl Body for Product {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (a, b) = (inputs.float(), inputs.float());
        vec![Value::Float(match self {
            Product::Matmul => B::float_matmul(a, b),
            Product::Linear => B::linear(a, b, Some(inputs.float())),
            Product::Conv(options) => B::conv2d(a, b, Some(inputs.float()), options.clone()),
        })]
    }
}

fn product(dtype: DType) {
    let mut family = Family::new(format!("gradient of products {}", dtype.name()));
    family.cases("matmul", 1.0, |family, rng| {
        let [m, k, n] = [0; 3].map(|_| rng.pick(&[1, 2, 3, 8, 9, 16, 17, 33]));
        let batch = rng.range(1, 3);
        let (a, b) = match rng.below(4) {
            0 => (vec![m, k], vec![k, n]),
            1 => (vec![batch, m, k], vec![batch, k, n]),
            2 => (vec![1, m, k], vec![batch, k, n]),
            _ => (vec![2, batch, m, k], vec![2, 1, k, n]),
        };
        let args = [a, b].map(|s| Arg::random(rng, &s, dtype, Domain::Normal));
        let tolerance = Tolerance::chain(dtype, 6, m.max(n).max(k) * 8);
        family.check_gradient(&args, &Product::Matmul, tolerance);
    });
    family.cases("linear", 1.0, |family, rng| {
        let (inner, outer) = (rng.pick(&[1, 3, 8, 16, 17, 64]), rng.pick(&[1, 3, 8, 16, 17, 64]));
        let rank = rng.range(2, 4);
        let mut x: Vec<usize> = (1..rank).map(|_| rng.range(1, 5)).collect();
        let rows = shape_len(&x);
        x.push(inner);
        let args = [x, vec![inner, outer], vec![outer]].map(|s| Arg::random(rng, &s, dtype, Domain::Normal));
        let tolerance = Tolerance::chain(dtype, 6, inner.max(outer).max(rows));
        family.check_gradient(&args, &Product::Linear, tolerance);
    });
    family.cases("conv2d", 0.7, |family, rng| {
        let groups = rng.pick(&[1, 1, 2]);
        let (cin, cout) = (groups * rng.range(1, 4), groups * rng.range(1, 4));
        let kernel = [rng.range(1, 3), rng.range(1, 3)];
        let (batch, image) = (rng.range(1, 3), [rng.range(5, 12), rng.range(5, 12)]);
        let args = [
            Arg::random(rng, &[batch, cin, image[0], image[1]], dtype, Domain::Normal),
            Arg::random(rng, &[cout, cin / groups, kernel[0], kernel[1]], dtype, Domain::Normal),
            Arg::plain(rng, &[cout], dtype, Domain::Normal),
        ];
        let two = |rng: &mut Rng, low, high| [rng.range(low, high), rng.range(low, high)];
        let options = ConvOptions::new(two(rng, 1, 2), two(rng, 0, 1), two(rng, 1, 2), groups);
        let tolerance = Tolerance::chain(dtype, 6, batch * image[0] * image[1] * 9);
        family.check_gradient(&args, &Product::Conv(options), tolerance);
    });
    family.finish();
}

/// Pools, indexed reads and writes, views and copies.
enum Move {
    AvgPool,
    MaxPool,
    AdaptivePool,
    Gather(usize),
    Scatter(usize),
    Select(usize),
    SelectAdd(usize),
    Embedding,
    SliceAssign(Vec<Slice>),
    Cat(usize),
    Repeat(usize),
}
impl Body for Move {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let x = inputs.float();
        vec![Value::Float(match *self {
            Move::AvgPool => B::avg_pool2d(x, [3, 2], [2, 1], [1, 0], true, false),
            Move::MaxPool => B::max_pool2d(x, [3, 2], [2, 1], [1, 0], [1, 1], false),
            Move::AdaptivePool => B::adaptive_avg_pool2d(x, [3, 4]),
            Move::Gather(dim) => B::float_gather(dim, x, inputs.int()),
            Move::Scatter(dim) => B::float_scatter_add(dim, x, inputs.int(), inputs.float()),
            Move::Select(dim) => B::float_select(x, dim, inputs.int()),
            Move::SelectAdd(dim) => B::float_select_add(x, dim, inputs.int(), inputs.float()),
            Move::Embedding => B::embedding(x, inputs.int()),
            Move::SliceAssign(ref slices) => B::float_slice_assign(x, slices, inputs.float()),
            Move::Cat(dim) => B::float_cat(vec![x, inputs.float(), inputs.float()], dim),
            Move::Repeat(dim) => B::float_repeat_dim(x, dim, 3),
        })]
    }
}

fn moves(dtype: DType) {
    let mut family = Family::new(format!("gradient of pools and indexing {}", dtype.name()));
    for (name, body) in
        [("avg_pool2d", Move::AvgPool), ("max_pool2d", Move::MaxPool), ("adaptive", Move::AdaptivePool)]
    {
        family.cases(name, 0.4, |family, rng| {
            let shape = [rng.range(1, 3), rng.range(1, 4), rng.range(6, 14), rng.range(6, 14)];
            let mut x = Arg::random(rng, &shape, dtype, Domain::Normal);
            if name == "max_pool2d" {
                // Ties, also from expanded views, would make the gradient a matter of taste.
                let len = 12 * 13;
                let values = rng.permutation(len).into_iter().map(|k| k as f64 - 100.0).collect();
                x = Arg::new(crate::harness::Dense::floats(&[1, 1, 12, 13], values), dtype);
            }
            family.check_gradient(&[x], &body, Tolerance::chain(dtype, 8, 64));
        });
    }
    for name in ["gather", "scatter", "select", "select_add", "embedding", "slice_assign", "cat", "repeat"] {
        family.cases(name, 0.4, |family, rng| {
            let rank = if name == "embedding" { 2 } else { rng.range(1, 3) };
            let shape = shape::filled(rng, rank, false);
            let dim = rng.below(rank);
            let x = Arg::random(rng, &shape, dtype, Domain::Normal);
            let count = rng.pick(&[1, 3, 8, 33]);
            let (mut whole, mut update) = (shape.clone(), shape.clone());
            (whole[dim], update[dim]) = (count, count);
            let index = Arg::random(rng, &whole, DType::I64, Domain::Index(shape[dim]));
            let line = Arg::random(rng, &[count], DType::I64, Domain::Index(shape[dim]));
            let values = Arg::random(rng, &update, dtype, Domain::Normal);
            let (body, args) = match name {
                "gather" => (Move::Gather(dim), vec![x, index]),
                "scatter" => (Move::Scatter(dim), vec![x, index, values]),
                "select" => (Move::Select(dim), vec![x, line]),
                "select_add" => (Move::SelectAdd(dim), vec![x, line, values]),
                "embedding" => {
                    let at = Arg::random(rng, &[2, count], DType::I64, Domain::Index(shape[0]));
                    (Move::Embedding, vec![x, at])
                }
                "slice_assign" => {
                    let slices: Vec<_> =
                        shape.iter().map(|&n| Slice::new(0, Some(n.div_ceil(2) as isize), 1)).collect();
                    let part: Vec<_> = shape.iter().map(|n| n.div_ceil(2)).collect();
                    (Move::SliceAssign(slices), vec![x, Arg::random(rng, &part, dtype, Domain::Normal)])
                }
                "cat" => {
                    let more = Arg::random(rng, &shape, dtype, Domain::Normal);
                    (Move::Cat(dim), vec![x, values, more])
                }
                _ => (Move::Repeat(dim), vec![x]),
            };
            family.check_gradient(&args, &body, Tolerance::chain(dtype, 8 + count, 2_000));
        });
    }
    family.finish();
}

crate::per_dtype!(elementwise: f32 f64 f16 bf16);
crate::per_dtype!(along: f32 f64 f16 bf16);
crate::per_dtype!(product: f32 f64 f16 bf16);
crate::per_dtype!(moves: f32 f64 f16 bf16);
