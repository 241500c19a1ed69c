//! Matrix products and linear layers, forward and backward.

use burn_backend::{Backend, DType};

use crate::Family;
use crate::harness::{Arg, Body, Dense, Domain, Inputs, Rng, Tolerance, Value};
use crate::harness::{family::large, plain, shape, values::wrap};

#[derive(Debug)]
pub(crate) struct Matmul;
impl Body for Matmul {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        vec![match inputs.any() {
            Value::Float(a) => Value::Float(B::float_matmul(a, inputs.float())),
            a => Value::Int(B::int_matmul(a.int(), inputs.int())),
        }]
    }
}

/// Sizes around tiles and vector widths; 0 now and then.
fn size(rng: &mut Rng, limit: usize) -> usize {
    let empty = rng.one_in(30);
    let sizes = [1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 100, 127, 128, 129, 200, 256, 257];
    let size = rng.pick(&sizes).min(limit);
    if empty { 0 } else { size }
}

/// `[.., M, K]` and `[.., K, N]` whose batch dimensions broadcast; up to four of those.
fn operands(rng: &mut Rng, large: bool) -> (Vec<usize>, Vec<usize>) {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    rng.part(|rng| {
        for _ in 0..rng.pick(&[0, 0, 1, 1, 2, 3, 4]) {
            let batch = rng.range(1, if large { 4 } else { 3 });
            a.push(if rng.one_in(4) { 1 } else { batch });
            b.push(if rng.one_in(4) { 1 } else { batch });
        }
    });
    let few = a.len() < 3;
    let limit = if rng.one_in(4) && large && few { 257 } else { 40 };
    let limit = if few { limit } else { 17 };
    let [m, k, n] = [0; 3].map(|_| size(rng, limit));
    a.extend([m, k]);
    b.extend([k, n]);
    (a, b)
}

/// As operands come from a transposition: the last two dimensions exchanged in memory.
fn transposed(rng: &mut Rng, shape: &[usize], dtype: DType) -> Arg {
    let rank = shape.len();
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    let mut base = shape.to_vec();
    base.swap(rank - 2, rank - 1);
    let mut arg = Arg::plain(rng, &base, dtype, Domain::Normal);
    arg.views = vec![shape::Step::Permute(axes)];
    arg.shape = shape.to_vec();
    arg
}

fn operand(rng: &mut Rng, shape: &[usize], dtype: DType) -> Arg {
    match rng.below(4) {
        0 => Arg::plain(rng, shape, dtype, Domain::Normal),
        1 => transposed(rng, shape, dtype),
        _ => Arg::random(rng, shape, dtype, Domain::Normal),
    }
}

fn matmul(dtype: DType) {
    let mut family = Family::new("matmul", dtype);
    family.cases("matmul", 5.0, |family, rng| {
        let (left, right) = operands(rng, large());
        let args = [operand(rng, &left, dtype), operand(rng, &right, dtype)];
        let k = left[left.len() - 1];
        // Broadcast batches and expanded views sum their gradients.
        let longest = left.iter().product::<usize>().max(right.iter().product());
        let gradient = Tolerance::chain(dtype, 6, 8 * longest);
        family.check_both(&args, &Matmul, Tolerance::sum(dtype, k), gradient);
    });
    family.cases("a row times a matrix, a matrix times a column", 1.0, |family, rng| {
        let (n, k) = (size(rng, 257).max(1), rng.pick(&[1, 16, 100, 1000, 2048]));
        let (left, right) = if rng.one_in(2) { ([1, k], [k, n]) } else { ([n, k], [k, 1]) };
        let args = [operand(rng, &left, dtype), operand(rng, &right, dtype)];
        let gradient = Tolerance::chain(dtype, 6, n * k);
        family.check_both(&args, &Matmul, Tolerance::sum(dtype, k), gradient);
    });
    family.finish();
}

fn int_matmul(dtype: DType) {
    let mut family = Family::new("matmul", dtype);
    family.cases("int_matmul", 1.4, |family, rng| {
        let (left, right) = operands(rng, false);
        let args = [left, right].map(|s| Arg::random(rng, &s, dtype, Domain::Special));
        let expected = plain_matmul(&args[0].dense(), &args[1].dense(), dtype);
        family.check_values(&args, &Matmul, &[expected], Tolerance::exact());
    });
    family.finish();
}

fn plain_matmul(a: &Dense, b: &Dense, dtype: DType) -> Dense {
    let rank = a.shape.len();
    let (m, k, n) = (a.shape[rank - 2], a.shape[rank - 1], b.shape[rank - 1]);
    let batches = |d: &Dense| {
        let dims = d.shape[..rank - 2].to_vec();
        let len: usize = dims.iter().product();
        Dense::ints(&dims, (0..len as i128).collect())
    };
    let (left, right) = (batches(a), batches(b));
    let (of_a, of_b) = (plain::zip(&left, &right, |x, _| x), plain::zip(&left, &right, |_, y| y));
    let mut out = Vec::new();
    for (&x, &y) in of_a.as_ints().iter().zip(of_b.as_ints()) {
        for row in 0..m {
            for col in 0..n {
                let sum = (0..k).fold(0i128, |sum, l| {
                    let (p, q) = ((x as usize * m + row) * k + l, (y as usize * k + l) * n + col);
                    let product = wrap(a.as_ints()[p].wrapping_mul(b.as_ints()[q]), DType::I64);
                    wrap(sum + product, DType::I64)
                });
                out.push(wrap(sum, dtype));
            }
        }
    }
    let mut shape = of_a.shape.clone();
    shape.extend([m, n]);
    Dense::ints(&shape, out)
}

#[derive(Debug)]
pub(crate) struct Linear(&'static str);
impl Body for Linear {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (a, b) = (inputs.float(), inputs.float());
        vec![Value::Float(match self.0 {
            "linear" => B::linear(a, b, None),
            "linear with bias" => B::linear(a, b, Some(inputs.float())),
            "linear_x_backward" => B::linear_x_backward(b, a),
            "linear_weight_backward" => B::linear_weight_backward(a, b),
            _ => B::linear_bias_backward(a),
        })]
    }
}

fn linear(dtype: DType) {
    let mut family = Family::new("matmul", dtype);
    for op in
        ["linear", "linear with bias", "linear_x_backward", "linear_weight_backward", "linear_bias_backward"]
    {
        let backward = op.ends_with("backward");
        family.cases(op, if backward { 0.6 } else { 2.0 }, |family, rng| {
            let rank = rng.range(2, 6);
            let limit = if rng.one_in(4) && large() && rank < 5 { 257 } else { 33 };
            let case_is_empty = rng.one_in(10);
            let (inner, outer) = (size(rng, limit).max(1), size(rng, limit).max(1));
            let mut x: Vec<usize> = rng.part(|rng| {
                (1..rank).map(|d| rng.pick(&[1, 2, 3, 5, 8]).min(if d < 4 { 8 } else { 2 })).collect()
            });
            if case_is_empty {
                x[0] = 0;
            }
            let rows: usize = x.iter().product();
            let mut y = x.clone();
            x.push(inner);
            y.push(outer);
            let weight = [inner, outer];
            let shapes = match op {
                "linear" | "linear with bias" => [&x[..], &weight[..]],
                "linear_x_backward" => [&y[..], &weight[..]],
                "linear_weight_backward" => [&x[..], &y[..]],
                _ => [&y[..], &y[..]],
            };
            let mut args = shapes.map(|s| operand(rng, s, dtype)).to_vec();
            args.push(Arg::plain(rng, &[outer], dtype, Domain::Normal));
            args.truncate(if op == "linear with bias" { 3 } else { 2 });
            if case_is_empty {
                // Flex crashes on these.
                let shape = match op {
                    "linear" | "linear with bias" => y,
                    "linear_x_backward" => x,
                    "linear_weight_backward" => weight.to_vec(),
                    _ => vec![outer],
                };
                let zeros = Dense::floats(&shape, vec![0.0; shape.iter().product()]);
                return family.check_values(&args, &Linear(op), &[zeros], Tolerance::exact());
            }
            let n = inner.max(outer).max(rows);
            // The bias may be added to a product that is stored already.
            let with_bias = op == "linear with bias";
            let tolerance = if with_bias { Tolerance::chain(dtype, 1, n) } else { Tolerance::sum(dtype, n) };
            let gradient = (!backward).then(|| Tolerance::chain(dtype, 6, 4 * n * n.min(64)));
            family.check_with(&args, &Linear(op), None, tolerance, gradient);
        });
    }
    family.finish();
}

crate::per_dtype!(matmul: f32 f64 f16 bf16);
crate::per_dtype!(int_matmul: i8 i16 i32 i64 u8 u16 u32 u64);
crate::per_dtype!(linear: f32 f64 f16 bf16);
