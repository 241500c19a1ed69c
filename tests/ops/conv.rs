//! Convolutions, pooling and embedding, forward and backward.

use burn_backend::ops::{ConvOptions, ConvTransposeOptions};
use burn_backend::{Backend, DType};

use crate::Family;
use crate::harness::family::large;
use crate::harness::{Arg, Body, Dense, Domain, Inputs, Rng, Tolerance, Value};

/// A convolution, with a bias if there is a third input.
#[derive(Debug)]
pub(crate) struct Conv2d(ConvOptions<2>);
impl Body for Conv2d {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let bias = inputs.len() == 3;
        let mut inputs = Inputs::new(inputs);
        let (x, weight) = (inputs.float(), inputs.float());
        let bias = bias.then(|| inputs.float());
        vec![Value::Float(B::conv2d(x, weight, bias, self.0.clone()))]
    }
}

#[derive(Debug)]
pub(crate) struct Conv1d(ConvOptions<1>);
impl Body for Conv1d {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, weight, bias) = (inputs.float(), inputs.float(), inputs.float());
        vec![Value::Float(B::conv1d(x, weight, Some(bias), self.0.clone()))]
    }
}

/// Input, weight and bias that fit together, and the length of each sum.
fn conv2d_args(rng: &mut Rng, dtype: DType) -> (Vec<Arg>, ConvOptions<2>, usize) {
    let groups = rng.pick(&[1, 1, 1, 2, 3, 4]);
    let (cin, cout) = (groups * rng.range(1, 5), groups * rng.range(1, 5));
    let kernel = [rng.range(1, 4), rng.range(1, 4)];
    let stride = [rng.range(1, 3), rng.range(1, 3)];
    let padding = [rng.below(3), rng.below(3)];
    let dilation = [rng.range(1, 2), rng.range(1, 2)];
    let limit = if rng.one_in(4) && large() { 33 } else { 12 };
    let smallest: [usize; 2] =
        std::array::from_fn(|d| (dilation[d] * (kernel[d] - 1) + 1).saturating_sub(2 * padding[d]).max(1));
    let image = smallest.map(|n| rng.range(n, n.max(limit)));
    let batch = rng.range(1, 4);
    let x = Arg::random(rng, &[batch, cin, image[0], image[1]], dtype, Domain::Normal);
    let weight = Arg::random(rng, &[cout, cin / groups, kernel[0], kernel[1]], dtype, Domain::Normal);
    let mut args = vec![x, weight];
    if rng.one_in(2) {
        args.push(Arg::plain(rng, &[cout], dtype, Domain::Normal));
    }
    let options = ConvOptions::new(stride, padding, dilation, groups);
    (args, options, cin / groups * kernel[0] * kernel[1])
}

fn conv(dtype: DType) {
    let mut family = Family::new("conv", dtype);
    family.cases("conv2d", 4.0, |family, rng| {
        let (args, options, n) = conv2d_args(rng, dtype);
        // The bias may be added to a product that is stored already.
        let tolerance =
            if args.len() == 3 { Tolerance::chain(dtype, 1, n) } else { Tolerance::sum(dtype, n) };
        family.check_both(&args, &Conv2d(options), tolerance, gradient(dtype, &args));
    });
    family.cases("conv2d of no images", 0.1, |family, rng| {
        let args = [[0, 3, 5, 5], [4, 3, 3, 3]].map(|s| Arg::plain(rng, &s, dtype, Domain::Normal));
        let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        let nothing = Dense::floats(&[0, 4, 5, 5], vec![]);
        family.check_values(&args, &Conv2d(options), &[nothing], Tolerance::exact());
    });
    family.cases("conv1d", 2.0, |family, rng| {
        let groups = rng.range(1, 2);
        let (cin, cout, kernel) = (groups * rng.range(1, 5), groups * rng.range(1, 5), rng.range(1, 4));
        let (batch, length) = (rng.range(1, 3), rng.range(8, 40));
        let args = [
            Arg::random(rng, &[batch, cin, length], dtype, Domain::Normal),
            Arg::random(rng, &[cout, cin / groups, kernel], dtype, Domain::Normal),
            Arg::plain(rng, &[cout], dtype, Domain::Normal),
        ];
        let options = ConvOptions::new([rng.range(1, 3)], [rng.below(3)], [rng.range(1, 2)], groups);
        let tolerance = Tolerance::chain(dtype, 1, cin / groups * kernel);
        // Burn's weight gradient of groups, which burn-flex has, takes too much where the stride leaves a rest. Kiln's is
        // that of `conv2d`.
        let gradient = Some(gradient(dtype, &args)).filter(|_| options.groups == 1 || options.stride == [1]);
        family.check_with(&args, &Conv1d(options), None, tolerance, gradient);
    });
    family.finish();
}

#[derive(Debug)]
pub(crate) struct ConvTranspose2d(ConvTransposeOptions<2>);
impl Body for ConvTranspose2d {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, weight, bias) = (inputs.float(), inputs.float(), inputs.float());
        vec![Value::Float(B::conv_transpose2d(x, weight, Some(bias), self.0.clone()))]
    }
}

fn conv_transpose(dtype: DType) {
    let mut family = Family::new("conv", dtype);
    family.cases("conv_transpose2d", 1.0, |family, rng| {
        let groups = rng.range(1, 2);
        let (cin, cout) = (groups * rng.range(1, 4), groups * rng.range(1, 4));
        let (kernel, size) = ([rng.range(1, 4), rng.range(1, 3)], [rng.range(1, 9), rng.range(1, 12)]);
        let batch = rng.range(1, 3);
        let args = [
            Arg::random(rng, &[batch, cin, size[0], size[1]], dtype, Domain::Normal),
            Arg::random(rng, &[cin, cout / groups, kernel[0], kernel[1]], dtype, Domain::Normal),
            Arg::plain(rng, &[cout], dtype, Domain::Normal),
        ];
        let (stride, dilation) = ([rng.range(1, 3), rng.range(1, 2)], [rng.range(1, 2), 1]);
        // At most half of the kernel, so that something is left.
        let padding = [rng.below(kernel[0] / 2 + 1), rng.below(kernel[1] / 2 + 1)];
        let padding = [0, 1].map(|d| if size[d] == 1 { 0 } else { padding[d] });
        let padding_out = stride.map(|s| rng.below(s));
        let options = ConvTransposeOptions::new(stride, padding, padding_out, dilation, groups);
        let tolerance = Tolerance::chain(dtype, 2, cin / groups * kernel[0] * kernel[1]);
        family.check_both(&args, &ConvTranspose2d(options), tolerance, gradient(dtype, &args));
    });
    family.finish();
}

/// Gradients of weights and biases sum over the batch and the image.
fn gradient(dtype: DType, args: &[Arg]) -> Tolerance {
    Tolerance::chain(dtype, 6, 9 * args[0].shape.iter().product::<usize>())
}

/// Backward ops called as they are, without autodiff.
#[derive(Debug)]
pub(crate) struct ConvBackward(ConvOptions<2>);
impl Body for ConvBackward {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, weight, bias) = (inputs.float(), inputs.float(), inputs.float());
        let y = B::conv2d(x.clone(), weight.clone(), Some(bias.clone()), self.0.clone());
        // A gradient that is a view: expanded from one element.
        let shape = burn_backend::TensorMetadata::shape(&y);
        let one = B::float_mean(B::float_abs(bias.clone()));
        let one = B::float_reshape(one, [1, 1, 1, 1].into());
        let grad = B::float_expand(one, shape);
        vec![
            Value::Float(B::conv2d_x_backward(x.clone(), weight.clone(), grad.clone(), self.0.clone())),
            Value::Float(B::conv2d_weight_backward(x.clone(), weight, grad.clone(), self.0.clone())),
            Value::Float(B::conv2d_bias_backward(x, bias, grad)),
        ]
    }
}

fn conv_backward(dtype: DType) {
    let mut family = Family::new("conv", dtype);
    family.cases("conv2d x, weight and bias", 1.0, |family, rng| {
        let (mut args, options, n) = conv2d_args(rng, dtype);
        args.truncate(2);
        let cout = args[1].shape[0];
        args.push(Arg::plain(rng, &[cout], dtype, Domain::Normal));
        let tolerance = Tolerance::chain(dtype, 3, n + 4 * 33 * 33);
        family.check(&args, &ConvBackward(options), tolerance);
    });
    family.finish();
}

/// Windows of a pooling op.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    flag: bool,
    ceil: bool,
}

impl Window {
    fn random(rng: &mut Rng) -> Self {
        let kernel = [rng.range(1, 4), rng.range(1, 4)];
        Window {
            kernel,
            stride: [rng.range(1, 3), rng.range(1, 3)],
            // At most half the kernel, as everywhere.
            padding: kernel.map(|k| rng.below(k / 2 + 1)),
            dilation: [1, 1],
            flag: rng.one_in(2),
            ceil: rng.one_in(4),
        }
    }

    fn image(&self, rng: &mut Rng, dtype: DType) -> Arg {
        let limit = if rng.one_in(4) && large() { 40 } else { 14 };
        let (batch, channels) = (rng.range(1, 3), rng.range(1, 5));
        let [h, w] = self.kernel.map(|k| rng.range(2 * k, limit.max(2 * k)));
        Arg::random(rng, &[batch, channels, h, w], dtype, Domain::Normal)
    }
}

#[derive(Debug)]
pub(crate) struct Pool(&'static str, Window);
impl Body for Pool {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let (x, w) = (Inputs::new(inputs).float(), self.1);
        match self.0 {
            "avg" => vec![Value::Float(B::avg_pool2d(x, w.kernel, w.stride, w.padding, w.flag, w.ceil))],
            "max" => vec![Value::Float(B::max_pool2d(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil))],
            "max with indices" => {
                let y = B::max_pool2d_with_indices(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil);
                vec![Value::Float(y.output), Value::Int(y.indices)]
            }
            _ => vec![Value::Float(B::adaptive_avg_pool2d(x, w.kernel))],
        }
    }
}

fn pool(dtype: DType) {
    let mut family = Family::new("pool", dtype);
    for op in ["avg", "max", "max with indices", "adaptive"] {
        family.cases(op, 1.6, |family, rng| {
            let mut window = Window::random(rng);
            if op.starts_with("max") && rng.one_in(4) {
                window.dilation = [2, 1];
            }
            let args = [window.image(rng, dtype)];
            let tolerance =
                if op.starts_with("max") { Tolerance::exact() } else { Tolerance::sum(dtype, 16) };
            // Where a window reaches over the edge, burn-flex's gradient divides by the whole window, unlike its values.
            let over_the_edge = op == "avg" && window.flag && window.ceil;
            let gradient = Tolerance::chain(dtype, 8, args[0].shape.iter().product());
            let gradient = Some(gradient).filter(|_| !over_the_edge);
            family.check_with(&args, &Pool(op, window), None, tolerance, gradient);
        });
    }
    family.finish();
}

/// The edges of windows are products of two sizes, which pass 2^31 long before a size does.
#[test]
fn adaptive_pool_of_a_long_line_has_its_windows_in_place() {
    let mut family = Family::new("pool", DType::F32);
    family.cases("adaptive of a long line", 0.2, |family, rng| {
        let window = Window { kernel: [1, 50_000], ..Window::random(rng) };
        let args = [Arg::random(rng, &[1, 1, 1, 100_000], DType::F32, Domain::Normal)];
        family.check(&args, &Pool("adaptive", window), Tolerance::sum(DType::F32, 2));
    });
    family.finish();
}

/// Windows that reach over the edge count only what is inside of the padding, in the gradient as in the values.
#[test]
fn avg_pool_in_ceil_mode_has_the_gradient_of_its_values() {
    let mut family = Family::new("pool", DType::F64);
    family.cases("avg over the edge", 0.2, |family, rng| {
        #[derive(Debug)]
        struct Both;
        impl Body for Both {
            fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
                let mut inputs = Inputs::new(inputs);
                let (x, grad) = (inputs.float(), inputs.float());
                let y = B::avg_pool2d(x.clone(), [1, 3], [1, 2], [0, 0], true, true);
                let dx = B::avg_pool2d_backward(x, grad, [1, 3], [1, 2], [0, 0], true, true);
                vec![Value::Float(y), Value::Float(dx)]
            }
        }
        let args = [[1, 1, 1, 6], [1, 1, 1, 3]].map(|s| Arg::random(rng, &s, DType::F64, Domain::Whole));
        let (x, g) = (args[0].dense(), args[1].dense());
        let (x, g) = (x.as_floats(), g.as_floats());
        let y = vec![(x[0] + x[1] + x[2]) / 3.0, (x[2] + x[3] + x[4]) / 3.0, (x[4] + x[5]) / 2.0];
        let (a, b, c) = (g[0] / 3.0, g[1] / 3.0, g[2] / 2.0);
        let expected =
            [Dense::floats(&[1, 1, 1, 3], y), Dense::floats(&[1, 1, 1, 6], vec![a, a, a + b, b, b + c, c])];
        family.check_values(&args, &Both, &expected, Tolerance::rounded(DType::F64).times(2.0));
    });
    family.finish();
}

#[derive(Debug)]
pub(crate) struct Embedding(bool);
impl Body for Embedding {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (weights, at) = (inputs.float(), inputs.int());
        vec![Value::Float(match self.0 {
            false => B::embedding(weights, at),
            true => B::embedding_backward(weights, inputs.float(), at),
        })]
    }
}

fn embedding(dtype: DType) {
    let mut family = Family::new("index", dtype);
    for backward in [false, true] {
        family.cases(if backward { "embedding_backward" } else { "embedding" }, 1.0, |family, rng| {
            let (vocabulary, width) = (rng.range(1, 60), rng.pick(&[1, 3, 8, 16, 33, 128]));
            let (batch, tokens) = (rng.range(1, 4), rng.range(1, 40));
            let index = rng.pick(&[DType::I32, DType::I64]);
            let args = [
                Arg::random(rng, &[vocabulary, width], dtype, Domain::Normal),
                Arg::random(rng, &[batch, tokens], index, Domain::Index(vocabulary)),
                Arg::random(rng, &[batch, tokens, width], dtype, Domain::Normal),
            ];
            let tolerance =
                if backward { Tolerance::chain(dtype, 1 + tokens / 4, tokens) } else { Tolerance::exact() };
            let args = if backward { &args[..] } else { &args[..2] };
            let gradient = (!backward).then(|| Tolerance::chain(dtype, 8 + tokens, batch * tokens));
            family.check_with(args, &Embedding(backward), None, tolerance, gradient);
        });
    }
    family.finish();
}

crate::per_dtype!(conv: f32 f64 f16 bf16);
crate::per_dtype!(conv_backward: f32 f64 f16 bf16);
crate::per_dtype!(conv_transpose: f32 f64 f16 bf16);
crate::per_dtype!(pool: f32 f64 f16 bf16);
crate::per_dtype!(embedding: f32 f64 f16 bf16);
