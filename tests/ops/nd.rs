//! Indices of several dimensions, and the cross product.

use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{Backend, DType};

use crate::Family;
use crate::harness::family::large;
use crate::harness::values::wrap;
use crate::harness::{Arg, Body, Dense, Domain, Inputs, Rng, Tolerance, Value, Values, shape};

#[derive(Debug)]
pub(crate) struct Cross(usize);
impl Body for Cross {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        vec![Value::Float(B::float_cross(inputs.float(), inputs.float(), self.0))]
    }
}

fn cross(dtype: DType) {
    let mut family = Family::new("matmul", dtype);
    family.cases("cross", 1.5, |family, rng| {
        let mut shape = shape::any(rng, large());
        let dim = rng.below(shape.len());
        shape[dim] = 3;
        let args = [(); 2].map(|()| Arg::random(rng, &shape, dtype, Domain::Normal));
        let gradient = Tolerance::chain(dtype, 8, 4 * shape.iter().product::<usize>());
        family.check_both(&args, &Cross(dim), Tolerance::sum(dtype, 2), gradient);
    });
    family.cases("cross of shapes that broadcast", 0.5, |family, rng| {
        let (_, mut a, mut b) = shape::broadcast_pair(rng, false);
        let dim = rng.below(a.len());
        (a[dim], b[dim]) = (3, 3);
        let args = [a, b].map(|shape| Arg::random(rng, &shape, dtype, Domain::Normal));
        // Burn's gradient is not summed over what was broadcast.
        family.check(&args, &Cross(dim), Tolerance::sum(dtype, 2));
    });
    family.cases("cross of many dimensions", 0.2, |family, rng| {
        let shape = shape::many(rng);
        let dim = shape.iter().position(|&size| size == 3).expect("one size is 3");
        let args = [(); 2].map(|()| Arg::reversed(rng, &shape, dtype, Domain::Normal));
        family.check(&args, &Cross(dim), Tolerance::sum(dtype, 2));
    });
    family.cases("cross with itself", 0.2, |family, rng| {
        let a = Arg::random(rng, &[5, 3, 7], dtype, Domain::Normal);
        let zeros = Dense::floats(&[5, 3, 7], vec![0.0; 105]);
        family.check_values(&[a.clone(), a], &Cross(1), &[zeros], Tolerance::exact());
    });
    family.finish();
}

#[derive(Debug)]
pub(crate) struct GatherNd;
impl Body for GatherNd {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        vec![match inputs.any() {
            Value::Float(x) => Value::Float(B::float_gather_nd(x, inputs.int())),
            Value::Int(x) => Value::Int(B::int_gather_nd(x, inputs.int())),
            Value::Bool(_) => panic!("Burn has no gather_nd for bools"),
        }]
    }
}

#[derive(Debug)]
pub(crate) struct ScatterNd(IndexingUpdateOp);
impl Body for ScatterNd {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let x = inputs.any();
        let held = x.clone();
        let y = match x {
            Value::Float(x) => Value::Float(B::float_scatter_nd(x, inputs.int(), inputs.float(), self.0)),
            Value::Int(x) => Value::Int(B::int_scatter_nd(x, inputs.int(), inputs.int(), self.0)),
            Value::Bool(_) => panic!("Burn has no scatter_nd for bools"),
        };
        vec![y, held]
    }
}

/// The shape of a tensor, indices of several of its dimensions, and the shape of what they name.
fn indices(rng: &mut Rng, x: Option<Vec<usize>>) -> (Vec<usize>, Arg, Vec<usize>) {
    let mut x = x.unwrap_or_else(|| shape::any(rng, false));
    // An index of nothing names all.
    let k = if rng.one_in(12) { 0 } else { rng.range(1, x.len()) };
    for size in &mut x[..k] {
        *size = (*size).max(1);
    }
    let mut lead = match rng.below(4) {
        0 => vec![rng.pick(&[1, 3, 8, 33])],
        1 => vec![rng.range(1, 5), rng.range(1, 7)],
        2 => vec![2, 1, 3],
        _ => vec![rng.pick(&[5, 0, 17])],
    };
    let slice: usize = x[k..].iter().product();
    while lead.iter().product::<usize>() * slice > 20_000 {
        lead = vec![lead.iter().product::<usize>() / 2];
    }
    let named = [&lead, &x[k..]].concat();
    let mut shape = lead;
    shape.push(k);
    let dtype = rng.pick(&[DType::I32, DType::I64]);
    let smallest = x[..k].iter().min().copied().unwrap_or(1);
    let arg = if rng.one_in(2) {
        Arg::random(rng, &shape, dtype, Domain::Index(smallest))
    } else {
        let elements = &mut rng.elements();
        let len: usize = shape.iter().product();
        // Few rows, so that they are named more than once.
        let few = |size: usize| if size > 4 { size.div_ceil(3) } else { size };
        let values = (0..len).map(|i| {
            let size = x[i % k];
            (size - 1 - elements.below(few(size))) as i128
        });
        Arg::new(Dense::ints(&shape, values.collect()), dtype)
    };
    (x, arg, named)
}

/// The share of an op's cases; integers come in eight dtypes.
fn share(dtype: DType, of_float: f64) -> f64 {
    if dtype.is_float() { of_float } else { 0.3 * of_float }
}

fn gather_nd(dtype: DType) {
    let mut family = Family::new("index", dtype);
    family.cases("gather_nd", share(dtype, 1.5), |family, rng| {
        let (x, index, named) = indices(rng, None);
        let args = [Arg::random(rng, &x, dtype, Domain::Normal), index];
        let n: usize = named.iter().product();
        let gradient = dtype.is_float().then(|| Tolerance::chain(dtype, 8 + n.min(40), 4 * n));
        if named.contains(&0) {
            let none = if dtype.is_float() { Values::Float(vec![]) } else { Values::Int(vec![]) };
            let expected = Dense { shape: named, values: none };
            return family.check_values(&args, &GatherNd, &[expected], Tolerance::exact());
        }
        family.check_with(&args, &GatherNd, None, Tolerance::exact(), gradient);
    });
    family.finish();
}

/// By Kiln's rules: integers wrap, NaN is both extrema, the last assignment stays.
fn scattered(x: &Dense, index: &Dense, values: &Dense, how: IndexingUpdateOp, dtype: DType) -> Dense {
    let k = *index.shape.last().expect("indices have a dimension");
    let slice: usize = x.shape[k..].iter().product();
    let rows = index.as_ints().chunks(k.max(1)).take(if k == 0 { 0 } else { usize::MAX });
    let rows: Vec<usize> = match k {
        0 => vec![0; index.shape[..index.shape.len() - 1].iter().product()],
        _ => rows
            .map(|at| at.iter().zip(&x.shape).fold(0, |row, (&i, &size)| row * size + i as usize))
            .collect(),
    };
    let places = rows
        .iter()
        .enumerate()
        .flat_map(|(n, &row)| (0..slice).map(move |s| (row * slice + s, n * slice + s)));
    let mut out = x.clone();
    match (&mut out.values, &values.values) {
        (Values::Float(out), Values::Float(values)) => {
            for (to, from) in places {
                let (a, b) = (out[to], values[from]);
                out[to] = match how {
                    IndexingUpdateOp::Assign => b,
                    IndexingUpdateOp::Add => a + b,
                    IndexingUpdateOp::Mul => a * b,
                    _ if a.is_nan() || b.is_nan() => f64::NAN,
                    IndexingUpdateOp::Min => a.min(b),
                    IndexingUpdateOp::Max => a.max(b),
                };
            }
        }
        (Values::Int(out), Values::Int(values)) => {
            for (to, from) in places {
                let (a, b) = (out[to], values[from]);
                out[to] = match how {
                    IndexingUpdateOp::Assign => b,
                    IndexingUpdateOp::Add => wrap(a + b, dtype),
                    IndexingUpdateOp::Mul => wrap(a.wrapping_mul(b), dtype),
                    IndexingUpdateOp::Min => a.min(b),
                    IndexingUpdateOp::Max => a.max(b),
                };
            }
        }
        _ => panic!("operands of two kinds"),
    }
    out
}

const HOW: [IndexingUpdateOp; 5] = [
    IndexingUpdateOp::Assign,
    IndexingUpdateOp::Add,
    IndexingUpdateOp::Mul,
    IndexingUpdateOp::Min,
    IndexingUpdateOp::Max,
];

fn scatter_nd(dtype: DType) {
    let mut family = Family::new("index", dtype);
    for how in HOW {
        let chosen = matches!(how, IndexingUpdateOp::Assign | IndexingUpdateOp::Min | IndexingUpdateOp::Max);
        family.cases(&format!("scatter_nd {how:?}"), share(dtype, 1.0), |family, rng| {
            let (x, index, named) = indices(rng, None);
            // Special integers have the limits of their dtype; sums and products of special floats are of any size.
            let domain = match rng.below(3) {
                0 if chosen || !dtype.is_float() => Domain::Special,
                _ => Domain::Normal,
            };
            let args = [Arg::random(rng, &x, dtype, domain), index, Arg::random(rng, &named, dtype, domain)];
            let n: usize = named.iter().product();
            let updated = scattered(&args[0].dense(), &args[1].dense(), &args[2].dense(), how, dtype);
            let expected = [updated, args[0].dense()];
            let tolerance =
                if chosen || !dtype.is_float() { Tolerance::exact() } else { Tolerance::sum(dtype, 40) };
            // burn-flex has no rule for NaN in an extremum, so its gradients have none.
            let smooth = dtype.is_float() && domain == Domain::Normal;
            let gradient = smooth.then(|| Tolerance::chain(dtype, 8 + n.min(40), 4 * n));
            family.check_with(&args, &ScatterNd(how), Some(&expected), tolerance, gradient);
        });
    }
    family.finish();
}

/// One tensor of two elements, and two values for the first of them.
fn both_for_the_first(dtype: DType, x: f64, values: [f64; 2], how: IndexingUpdateOp, expected: f64) {
    let mut family = Family::new("index", dtype);
    family.cases(&format!("{how:?} of {values:?} into {x}"), 0.01, |family, _| {
        let dense = |shape: &[usize], values: &[f64]| match dtype.is_float() {
            true => Dense::floats(shape, values.to_vec()),
            false => Dense::ints(shape, values.iter().map(|&v| v as i128).collect()),
        };
        let args = [
            Arg::new(dense(&[2], &[x, x]), dtype),
            Arg::new(Dense::ints(&[2, 1], vec![0, 0]), DType::I32),
            Arg::new(dense(&[2], &values), dtype),
        ];
        let expected = [dense(&[2], &[expected, x]), dense(&[2], &[x, x])];
        family.check_values(&args, &ScatterNd(how), &expected, Tolerance::exact());
    });
    family.finish();
}

#[test]
fn no_update_of_a_repeated_index_is_lost() {
    use IndexingUpdateOp::{Add, Assign, Max, Min, Mul};
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::I8] {
        both_for_the_first(dtype, 0.0, [2.0, 3.0], Max, 3.0);
        both_for_the_first(dtype, 0.0, [3.0, 2.0], Max, 3.0);
        both_for_the_first(dtype, 5.0, [2.0, 3.0], Min, 2.0);
        both_for_the_first(dtype, 5.0, [2.0, 3.0], Mul, 30.0);
        both_for_the_first(dtype, 5.0, [2.0, 3.0], Add, 10.0);
        both_for_the_first(dtype, 5.0, [2.0, 3.0], Assign, 3.0);
        both_for_the_first(dtype, 5.0, [3.0, 2.0], Assign, 2.0);
        if dtype.is_float() {
            both_for_the_first(dtype, -inf, [1.0, 0.5], Max, 1.0);
            both_for_the_first(dtype, inf, [1.0, 0.5], Min, 0.5);
            both_for_the_first(dtype, 1.0, [nan, 5.0], Max, nan);
            both_for_the_first(dtype, 1.0, [-5.0, nan], Min, nan);
            both_for_the_first(dtype, nan, [1.0, 2.0], Max, nan);
            both_for_the_first(dtype, nan, [1.0, 2.0], Assign, 2.0);
        }
    }
}

/// Products of more values than are sorted at once, and of rows that begin in one group of positions and end in another.
#[test]
fn many_products_meet_in_few_rows() {
    let mut family = Family::new("index", DType::F32);
    family.cases("scatter_nd of many products", 0.1, |family, rng| {
        let n = if large() { 40_000 } else { 300 };
        let elements = &mut rng.elements();
        let rows = (0..n).map(|_| elements.below(7) as i128).collect();
        let factors = (0..3 * n).map(|_| elements.uniform(0.99, 1.01) as f32 as f64).collect();
        let args = [
            Arg::plain(rng, &[7, 3], DType::F32, Domain::Normal),
            Arg::new(Dense::ints(&[n, 1], rows), DType::I64),
            Arg::new(Dense::floats(&[n, 3], factors), DType::F32),
        ];
        let how = IndexingUpdateOp::Mul;
        let updated = scattered(&args[0].dense(), &args[1].dense(), &args[2].dense(), how, DType::F32);
        let expected = [updated, args[0].dense()];
        family.check_values(&args, &ScatterNd(how), &expected, Tolerance::sum(DType::F32, n));
    });
    family.finish();
}

crate::per_dtype!(cross: f32 f64 f16 bf16);
crate::per_dtype!(gather_nd: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64);
crate::per_dtype!(scatter_nd: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64);
