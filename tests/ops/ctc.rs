//! Connectionist temporal classification: the loss and its gradient.

use burn_backend::{Backend, DType};

use crate::Family;
use crate::harness::{Arg, Body, Dense, Domain, Inputs, Rng, Tolerance, Value};

/// The loss for the negatives of its first input; with a fifth input, the gradient.
#[derive(Debug)]
pub(crate) struct Ctc(usize);
impl Body for Ctc {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let backward = inputs.len() == 5;
        let mut inputs = Inputs::new(inputs);
        let log_probs = B::float_neg(inputs.float());
        let (targets, steps, lengths) = (inputs.int(), inputs.int(), inputs.int());
        vec![Value::Float(match backward {
            false => B::ctc_loss(log_probs, targets, steps, lengths, self.0),
            true => B::ctc_loss_backward(log_probs, targets, steps, lengths, inputs.float(), self.0),
        })]
    }
}

/// The probability of a target by counting: the sum over all ways to spend the steps on it, in probabilities, and its
/// derivative by each log-probability.
fn plain(args: &[Arg], blank: usize) -> [Dense; 2] {
    let log_probs = args[0].dense();
    let [t, n, c] = log_probs.shape[..] else { panic!("log-probabilities have three dimensions") };
    let ints = [1, 2, 3].map(|k| args[k].dense().as_ints().to_vec());
    let dy = args.get(4).map_or(vec![1.0; n], |dy| dy.dense().as_floats().to_vec());
    let longest = args[1].shape[1];
    let (mut losses, mut dx) = (Vec::new(), vec![0.0; t * n * c]);
    for (batch, &dy) in dy.iter().enumerate() {
        let target = &ints[0][batch * longest..][..ints[2][batch] as usize];
        let mut states = vec![blank; 2 * target.len() + 1];
        for (k, &label) in target.iter().enumerate() {
            states[2 * k + 1] = label as usize;
        }
        let from = |s: usize| {
            let over = s >= 2 && states[s] != blank && states[s] != states[s - 2];
            s.saturating_sub(if over { 2 } else { 1 })..=s
        };
        let steps = (ints[1][batch] as usize).clamp(1, t);
        let log_p = |t: usize, s: usize| -log_probs.as_floats()[(t * n + batch) * c + states[s]];
        let sum = |terms: &[f64]| {
            let most = terms.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x));
            if most.is_infinite() {
                most
            } else {
                most + terms.iter().map(|x| (x - most).exp()).sum::<f64>().ln()
            }
        };
        let none = f64::NEG_INFINITY;
        let mut alpha: Vec<Vec<f64>> =
            vec![(0..states.len()).map(|s| if s < 2 { log_p(0, s) } else { none }).collect()];
        for t in 1..steps {
            let before = &alpha[t - 1];
            let next = |s: usize| log_p(t, s) + sum(&before[from(s)]);
            alpha.push((0..states.len()).map(next).collect());
        }
        let mut beta = vec![
            (0..states.len()).map(|s| if s + 2 >= states.len() { 0.0 } else { none }).collect::<Vec<_>>(),
        ];
        for t in (1..steps).rev() {
            let later = beta.last().expect("there is one");
            let before = |s: usize| {
                let to: Vec<f64> = (s..states.len().min(s + 3))
                    .filter(|&k| from(k).contains(&s))
                    .map(|k| later[k] + log_p(t, k))
                    .collect();
                sum(&to)
            };
            let row = (0..states.len()).map(before).collect();
            beta.push(row);
        }
        beta.reverse();
        let ends: Vec<f64> = alpha[steps - 1].iter().zip(&beta[steps - 1]).map(|(a, b)| a + b).collect();
        let loss = -sum(&ends);
        losses.push(loss);
        for (t, (alpha, beta)) in alpha.iter().zip(&beta).enumerate() {
            for (s, (a, b)) in alpha.iter().zip(beta).enumerate() {
                if loss.is_finite() {
                    dx[(t * n + batch) * c + states[s]] -= dy * (a + b + loss).exp();
                }
            }
        }
    }
    [Dense::floats(&[n], losses), Dense::floats(&[t, n, c], dx)]
}

/// Sequences that are long enough for their targets.
fn args(rng: &mut Rng, dtype: DType, longest: usize, int: DType) -> (Vec<Arg>, usize) {
    let (n, c) = (rng.range(1, 4), rng.range(2, 6));
    let t = 2 * longest + 1 + rng.below(9);
    let blank = rng.below(c);
    let elements = &mut rng.elements();
    // A target has no blanks.
    let targets = (0..n * longest).map(|_| ((blank + 1 + elements.below(c - 1)) % c) as i128).collect();
    let steps = (0..n).map(|_| elements.range(2 * longest + 1, t) as i128).collect();
    let lengths = (0..n).map(|_| elements.range(0, longest) as i128).collect();
    let all = vec![
        Arg::random(rng, &[t, n, c], dtype, Domain::Positive),
        Arg::new(Dense::ints(&[n, longest], targets), int),
        Arg::new(Dense::ints(&[n], steps), int),
        Arg::new(Dense::ints(&[n], lengths), int),
    ];
    (all, blank)
}

fn ctc(dtype: DType) {
    let mut family = Family::new("ctc", dtype);
    family.cases("ctc_loss", 3.4, |family, rng| {
        let longest = rng.range(1, 6);
        let (args, blank) = args(rng, dtype, longest, DType::I64);
        let terms = args[0].shape.iter().product();
        let gradient = Tolerance::chain(dtype, 8, terms);
        family.check_both(&args, &Ctc(blank), Tolerance::sum(dtype, terms), gradient);
    });
    family.cases("ctc_loss_backward", 1.6, |family, rng| {
        let longest = rng.range(0, 6);
        let int = rng.pick(&[DType::I64, DType::I32, DType::U8]);
        let (mut args, blank) = args(rng, dtype, longest, int);
        args.push(Arg::random(rng, &[args[0].shape[1]], dtype, Domain::Normal));
        let terms = args[0].shape.iter().product();
        let [loss, dx] = plain(&args, blank);
        family.check_values(&args[..4], &Ctc(blank), &[loss], Tolerance::sum(dtype, terms));
        family.check_values(&args, &Ctc(blank), &[dx], Tolerance::sum(dtype, terms));
    });
    family.finish();
}

/// More states than shared memory has rows for.
#[test]
fn long_targets() {
    let mut family = Family::new("ctc", DType::F32);
    family.cases("long", 0.01, |family, rng| {
        let (t, s, c) = (620, 560, 40);
        let elements = &mut rng.elements();
        let targets = (0..s).map(|k| (1 + (k * k + elements.below(3)) % (c - 1)) as i128).collect();
        let args = [
            Arg::plain(rng, &[t, 1, c], DType::F32, Domain::Positive),
            Arg::new(Dense::ints(&[1, s], targets), DType::I64),
            Arg::new(Dense::ints(&[1], vec![t as i128]), DType::I64),
            Arg::new(Dense::ints(&[1], vec![540]), DType::I64),
            Arg::new(Dense::floats(&[1], vec![1.5]), DType::F32),
        ];
        let [loss, dx] = plain(&args, 0);
        assert!(loss.as_floats()[0].is_finite(), "the target fits");
        let tolerance = Tolerance::sum(DType::F32, t);
        family.check_values(&args[..4], &Ctc(0), &[loss], tolerance);
        // Errors of the loss, of about a thousand, are those of each share.
        family.check_values(&args, &Ctc(0), &[dx], Tolerance { relative: 1e-3, ..tolerance });
    });
    family.finish();
}

/// A target that does not fit its steps has an infinite loss, and no gradient.
#[test]
fn a_target_without_an_alignment() {
    let mut family = Family::new("ctc", DType::F32);
    family.cases("no alignment", 0.01, |family, _| {
        let ints =
            |shape: &[usize], values: &[i128]| Arg::new(Dense::ints(shape, values.to_vec()), DType::I64);
        let mut args = vec![
            Arg::new(Dense::floats(&[2, 2, 3], vec![1.0; 12]), DType::F32),
            // Equal labels need a blank between.
            ints(&[2, 2], &[1, 1, 1, 2]),
            ints(&[2], &[2, 2]),
            ints(&[2], &[2, 2]),
        ];
        let loss = Dense::floats(&[2], vec![f64::INFINITY, 2.0]);
        family.check_values(&args, &Ctc(0), &[loss], Tolerance::rounded(DType::F32));
        args.push(Arg::new(Dense::floats(&[2], vec![2.0, 3.0]), DType::F32));
        let mut dx = vec![0.0; 12];
        (dx[4], dx[11]) = (-3.0, -3.0);
        family.check_values(&args, &Ctc(0), &[Dense::floats(&[2, 2, 3], dx)], Tolerance::rounded(DType::F32));
    });
    family.finish();
}

#[test]
fn no_sequences() {
    let mut family = Family::new("ctc", DType::F32);
    family.cases("none", 0.01, |family, _| {
        let ints = |shape: &[usize]| Arg::new(Dense::ints(shape, vec![]), DType::I64);
        let x = Arg::new(Dense::floats(&[4, 0, 3], vec![]), DType::F32);
        let mut args = vec![x, ints(&[0, 2]), ints(&[0]), ints(&[0])];
        family.check_values(&args, &Ctc(0), &[Dense::floats(&[0], vec![])], Tolerance::exact());
        args.push(Arg::new(Dense::floats(&[0], vec![]), DType::F32));
        family.check_values(&args, &Ctc(0), &[Dense::floats(&[4, 0, 3], vec![])], Tolerance::exact());
    });
    family.finish();
}

crate::per_dtype!(ctc: f32 f64 f16 bf16);
