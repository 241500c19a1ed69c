//! Attention with each of its options: masks, bias, causality, scale and softcap.

use burn_backend::ops::AttentionModuleOptions;
use burn_backend::{Backend, DType};

use crate::Family;
use crate::harness::family::large;
use crate::harness::{Arg, BOOL, Body, Dense, Domain, Inputs, Tolerance, Value};

/// Query, key and value, then the mask and the bias if there are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attention {
    mask: bool,
    bias: bool,
    options: AttentionModuleOptions,
}
impl Body for Attention {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (q, k, v) = (inputs.float(), inputs.float(), inputs.float());
        let mask = self.mask.then(|| inputs.bool());
        let bias = self.bias.then(|| inputs.float());
        vec![Value::Float(B::attention(q, k, v, mask, bias, self.options))]
    }
}

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Shares of 16 bits are stored before the second product.
fn tolerance(dtype: DType, depth: usize, keys: usize) -> Tolerance {
    Tolerance::chain(dtype, 2, depth + keys)
}

fn attention(dtype: DType) {
    let mut family = Family::new("attention", dtype);
    family.cases("attention", 5.0, |family, rng| {
        let (batch, heads) = (rng.range(1, 3), rng.range(1, 3));
        let queries = rng.pick(&[0, 1, 2, 3, 7, 16, 33]);
        // A warp's row, a block's, and one that is walked.
        let keys = match rng.below(8) {
            0 if large() => rng.pick(&[4_097, 5_000]),
            1 => rng.pick(&[257, 300, 1_030]),
            _ => rng.pick(&[0, 1, 2, 5, 31, 32, 33, 64, 129, 256]),
        };
        let queries = if keys > 256 { queries.min(3) } else { queries };
        let (depth, width) = (rng.pick(&[1, 3, 8, 16]), rng.pick(&[1, 2, 8, 17]));
        let (mask, bias) = (rng.one_in(2), rng.one_in(2));
        let options = AttentionModuleOptions {
            scale: rng.one_in(3).then_some(0.3),
            softcap: rng.one_in(3).then_some(1.5),
            is_causal: rng.one_in(2),
        };
        let mut args = vec![
            Arg::random(rng, &[batch, heads, queries, depth], dtype, Domain::Normal),
            Arg::random(rng, &[batch, heads, keys, depth], dtype, Domain::Normal),
            Arg::random(rng, &[batch, heads, keys, width], dtype, Domain::Normal),
        ];
        let scores = |rng: &mut crate::harness::Rng| {
            [batch, heads, queries, keys].map(|n| if rng.one_in(4) && n > 0 { 1 } else { n })
        };
        if mask {
            let shape = scores(rng);
            args.push(Arg::random(rng, &shape, BOOL, Domain::Bit));
        }
        if bias {
            let shape = scores(rng);
            args.push(Arg::random(rng, &shape, dtype, Domain::Normal));
        }
        let body = Attention { mask, bias, options };
        let tolerance = tolerance(dtype, depth, keys);
        if queries == 0 || keys == 0 {
            let shape = [batch, heads, queries, width];
            let zeros = Dense::floats(&shape, vec![0.0; shape.iter().product()]);
            family.check_values(&args, &body, &[zeros], tolerance);
        } else {
            family.check(&args, &body, tolerance);
        }
    });
    family.finish();
}

crate::per_dtype!(attention: f32 f64 f16 bf16);

/// Under Burn's `Autodiff`, which takes it apart: every query has a key, since a share of nothing is no number there.
fn attention_gradients(dtype: DType) {
    let mut family = Family::new("attention", dtype);
    family.cases("gradients of attention", 2.0, |family, rng| {
        let (batch, heads, queries) = (rng.range(1, 3), rng.range(1, 3), rng.pick(&[1, 2, 4, 7]));
        let (keys, depth, width) = (queries + rng.pick(&[0, 1, 9]), rng.range(1, 4), rng.range(1, 4));
        let shapes = [(queries, depth), (keys, depth), (keys, width)];
        let mut args: Vec<Arg> = shapes
            .iter()
            .map(|&(rows, columns)| Arg::random(rng, &[batch, heads, rows, columns], dtype, Domain::Normal))
            .collect();
        let bias = rng.one_in(2);
        if bias {
            let shape = [batch, heads, queries, keys].map(|n| if rng.one_in(4) { 1 } else { n });
            args.push(Arg::random(rng, &shape, dtype, Domain::Normal));
        }
        let options = AttentionModuleOptions {
            scale: rng.one_in(3).then_some(0.3),
            softcap: rng.one_in(2).then_some(2.0),
            is_causal: rng.one_in(2),
        };
        let body = Attention { bias, options, mask: false };
        let sums = 4 * batch * heads * queries * keys;
        family.check_gradient(&args, &body, Tolerance::chain(dtype, 24, sums));
    });
    family.finish();
}

crate::per_dtype!(attention_gradients: f32 f64 f16 bf16);

/// One case with explicit inputs and outputs.
fn check(op: &str, args: &[Arg], body: Attention, expected: Dense, tolerance: Tolerance) {
    let mut family = Family::new("attention", args[0].dtype);
    family.cases(op, 0.0, |family, _| {
        family.check_values(args, &body, std::slice::from_ref(&expected), tolerance)
    });
    family.finish();
}

fn floats(shape: &[usize], values: &[f64]) -> Dense {
    Dense::floats(shape, values.to_vec())
}

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// Two queries, two keys, width 4; the second key is removed, and holds what must not show.
#[test]
fn a_removed_key_shows_in_nothing() {
    let shape = [1, 1, 2, 4];
    let q = [0.5, -1.0, 2.0, 0.25, 1.0, 1.0, -1.0, 0.0];
    let clean = [1.0, -2.0, 0.5, 3.0, 4.0, 5.0, 6.0, 7.0];
    let with = |at: usize, value: f64| {
        let mut values = clean;
        values[at] = value;
        values
    };
    let expected = floats(&shape, &[&clean[..4], &clean[..4]].concat());
    for dtype in FLOATS {
        for (k, v) in [
            (clean, clean),
            (with(4, NAN), clean),
            (with(7, INF), clean),
            (clean, with(4, NAN)),
            (clean, with(6, -INF)),
            (with(5, NAN), [clean[0], clean[1], clean[2], clean[3], NAN, NAN, INF, NAN]),
        ] {
            let qkv = [q, k, v].map(|values| Arg::new(floats(&shape, &values), dtype));
            let mask = Arg::new(Dense::ints(&[1, 1, 2, 2], vec![0, 1, 0, 1]), BOOL);
            let masked = Attention { mask: true, ..Attention::default() };
            let args = [&qkv[..], &[mask]].concat();
            check("a masked key", &args, masked, expected.clone(), Tolerance::rounded(dtype));
            // A bias of -inf removes as well.
            let bias = Arg::new(floats(&[1, 1, 1, 2], &[0.0, -INF]), dtype);
            let biased = Attention { bias: true, ..Attention::default() };
            // ... unless the key makes its score NaN, to which a bias is added.
            if k.iter().all(|k| k.is_finite()) {
                let args = [&qkv[..], &[bias]].concat();
                check(
                    "a key with a bias of -inf",
                    &args,
                    biased,
                    expected.clone(),
                    Tolerance::rounded(dtype),
                );
            }
        }
    }
}

/// The first query sees the first key alone, the second sees the NaN.
#[test]
fn a_key_shows_where_it_is_seen() {
    for dtype in FLOATS {
        let args = [
            Arg::new(floats(&[1, 1, 2, 1], &[1.0, 1.0]), dtype),
            Arg::new(floats(&[1, 1, 2, 1], &[1.0, 1.0]), dtype),
            Arg::new(floats(&[1, 1, 2, 2], &[3.0, 5.0, NAN, 7.0]), dtype),
        ];
        let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
        let expected = floats(&[1, 1, 2, 2], &[3.0, 5.0, NAN, 6.0]);
        let body = Attention { options, ..Default::default() };
        check("causal with a NaN", &args, body, expected, Tolerance::rounded(dtype));
    }
}

/// More queries than keys: the first see none.
#[test]
fn a_query_without_keys_gives_zeros() {
    for dtype in FLOATS {
        let args = [
            Arg::new(floats(&[1, 1, 4, 1], &[1.0, NAN, 2.0, 3.0]), dtype),
            Arg::new(floats(&[1, 1, 2, 1], &[1.0, 1.0]), dtype),
            Arg::new(floats(&[1, 1, 2, 1], &[4.0, 8.0]), dtype),
        ];
        let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
        let expected = floats(&[1, 1, 4, 1], &[0.0, 0.0, 4.0, 6.0]);
        let body = Attention { options, ..Default::default() };
        check("causal with few keys", &args, body, expected, Tolerance::rounded(dtype));
        let mask = Arg::new(Dense::ints(&[1, 1, 1, 1], vec![1]), BOOL);
        let args = [&args[..], &[mask]].concat();
        let body = Attention { mask: true, ..Default::default() };
        check("all masked", &args, body, floats(&[1, 1, 4, 1], &[0.0; 4]), Tolerance::exact());
    }
}

/// A finite fill value is a score, and a row of nothing else is a mean.
#[test]
fn a_leading_tile_at_the_lowest_number_stays_finite() {
    let mut family = Family::new("attention", DType::F32);
    family.cases("a tile at the lowest number", 0.3, |family, rng| {
        let (queries, depth) = (3, 8);
        for (keys, low) in [(192, 128), (441, 128), (64, 64), (5_000, 4_500)] {
            let lowest: Vec<f64> = (0..keys).map(|j| if j < low { f32::MIN as f64 } else { 0.0 }).collect();
            let args = [
                Arg::random(rng, &[1, 2, queries, depth], DType::F32, Domain::Normal),
                Arg::random(rng, &[1, 2, keys, depth], DType::F32, Domain::Normal),
                Arg::random(rng, &[1, 2, keys, depth], DType::F32, Domain::Normal),
                Arg::new(floats(&[1, 1, 1, keys], &lowest), DType::F32),
            ];
            let body = Attention { bias: true, ..Default::default() };
            if low < keys {
                family.check(&args, &body, tolerance(DType::F32, depth, keys));
                continue;
            }
            // In f32 the scores vanish beside it.
            let v = args[2].dense();
            let v = v.as_floats();
            let mean = |i: usize| {
                let (head, d) = (i / (queries * depth), i % depth);
                (0..keys).map(|j| v[(head * keys + j) * depth + d]).sum::<f64>() / keys as f64
            };
            let expected = (0..2 * queries * depth).map(mean).collect();
            let expected = [Dense::floats(&[1, 2, queries, depth], expected)];
            family.check_values(&args, &body, &expected, tolerance(DType::F32, depth, keys));
        }
    });
    family.finish();
}

/// As in cross attention, both ways.
#[test]
fn many_queries_and_few_keys_and_the_reverse() {
    let (heads, many, few, depth) = if large() { (6, 1_024, 32, 64) } else { (2, 100, 32, 8) };
    for dtype in [DType::F32, DType::BF16] {
        let mut family = Family::new("attention", dtype);
        family.cases("lengths that differ", 0.2, |family, rng| {
            for (queries, keys) in [(many, few), (few, many)] {
                let args = [queries, keys, keys]
                    .map(|n| Arg::random(rng, &[1, heads, n, depth], dtype, Domain::Normal));
                family.check(&args, &Attention::default(), tolerance(dtype, depth, keys));
            }
        });
        family.finish();
    }
}
