//! Random tensors: shape, range, moments, and what the numbers depend on.

use burn_backend::ops::{FloatTensorOps, IntTensorOps};
use burn_backend::{Backend, DType, Distribution, Shape};

use crate::harness::{
    Covered, Dense, FLOATS, INTS, Rng, Value,
    family::{caught, drawing},
    shape,
    values::int_limits,
};
use crate::{Family, Subject};

fn draw(shape: &[usize], distribution: Distribution, dtype: DType) -> Vec<f64> {
    let (shape, device) = (Shape::from(shape.to_vec()), Default::default());
    let value: Value<Subject> = if dtype.is_float() {
        Value::Float(Subject::float_random(shape.clone(), distribution, &device, dtype.into()))
    } else {
        Value::Int(Subject::int_random(shape.clone(), distribution, &device, dtype.into()))
    };
    let data = value.read();
    assert_eq!((data.dtype, &data.shape), (dtype, &shape));
    match Dense::of(&data).values {
        crate::harness::Values::Float(v) => v,
        crate::harness::Values::Int(v) => v.into_iter().map(|x| x as f64).collect(),
    }
}

fn seed(seed: u64) {
    Subject::seed(&Default::default(), seed);
}

fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n)
}

/// Five standard errors, and what rounding to the dtype shifts.
fn near(got: f64, expected: f64, deviation: f64, n: usize, dtype: DType) -> bool {
    let rounding = dtype.finfo().map_or(0.0, |i| i.epsilon) * (expected.abs() + deviation);
    (got - expected).abs() <= 5.0 * deviation / (n as f64).sqrt() + rounding
}

const N: usize = 40_000;

/// A distribution, and the range and the moments of its numbers.
struct Drawn {
    distribution: Distribution,
    range: std::ops::Range<f64>,
    mean: f64,
    deviation: f64,
}

fn any_distribution(rng: &mut Rng, dtype: DType) -> Drawn {
    let unbounded = f64::NEG_INFINITY..f64::INFINITY;
    match rng.below(3) {
        0 if dtype.is_float() => Drawn {
            distribution: Distribution::Default,
            range: 0.0..1.0,
            mean: 0.5,
            deviation: (1.0f64 / 12.0).sqrt(),
        },
        1 if dtype.is_float() => {
            let (mean, deviation) = (rng.range(0, 8) as f64 - 4.0, rng.range(1, 4) as f64);
            Drawn { distribution: Distribution::Normal(mean, deviation), range: unbounded, mean, deviation }
        }
        0 | 1 => {
            let (low, width) = (rng.range(0, 5), rng.range(2, 60));
            let (low, high) = (low as f64, (low + width) as f64);
            let n = width as f64;
            Drawn {
                distribution: Distribution::Uniform(low, high),
                range: low..high,
                mean: low + (n - 1.0) / 2.0,
                deviation: ((n * n - 1.0) / 12.0).sqrt(),
            }
        }
        _ => {
            let p: f64 = rng.pick(&[0.5, 0.25, 0.75, 0.0, 1.0]);
            let deviation = (p * (1.0 - p)).sqrt();
            // Never, and always.
            let range = if p == 1.0 {
                1.0..1.5
            } else if p == 0.0 {
                0.0..0.5
            } else {
                0.0..1.5
            };
            Drawn { distribution: Distribution::Bernoulli(p), range, mean: p, deviation }
        }
    }
}

/// Shape, range and mean of any distribution; the same numbers again from the same seed, as many as there are.
fn distributions(dtype: DType) {
    let mut family = Family::drawing("random", dtype);
    let share = if dtype.is_float() { 5.5 } else { 1.4 };
    family.cases("distributions", share, |family, rng| {
        let shape = shape::any(rng, false);
        let drawn = any_distribution(rng, dtype);
        let start = rng.below(1 << 30) as u64;
        let n: usize = shape.iter().product();
        let outcome = caught(|| {
            seed(start);
            let values = draw(&shape, drawn.distribution, dtype);
            seed(start);
            let longer = draw(&[n + 5], drawn.distribution, dtype);
            (values, longer)
        });
        let outcome = outcome.and_then(|(values, longer)| {
            let what = format!("{:?} {shape:?} from seed {start}", drawn.distribution);
            let mean = moments(&values).0;
            if values[..] != longer[..n] {
                Err(format!("{what}: a longer tensor of the same seed begins otherwise"))
            } else if let Some(v) = values.iter().find(|v| !drawn.range.contains(v)) {
                Err(format!("{what}: {v} is outside {:?}", drawn.range))
            } else if n >= 64 && !near(mean, drawn.mean, 1.4 * drawn.deviation, n, dtype) {
                // Seven standard errors: thousands of cases must not fail by chance.
                Err(format!("{what}: mean {mean}, expected {}", drawn.mean))
            } else {
                Ok(())
            }
        });
        let of_shape = Dense::ints(&shape, vec![0; n]);
        family.expect(&[], Covered::of(&[], &[of_shape], false), outcome);
    });
    family.finish();
}

crate::per_dtype!(distributions: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64);

#[test]
fn floats_have_the_range_and_moments_of_their_distribution() {
    let _drawing = drawing();
    seed(11);
    for dtype in FLOATS {
        let u = draw(&[N], Distribution::Default, dtype);
        assert!(u.iter().all(|v| (0.0..1.0).contains(v)), "{dtype:?}: outside [0, 1)");
        let (mean, variance) = moments(&u);
        assert!(near(mean, 0.5, 0.289, N, dtype), "{dtype:?}: mean {mean}");
        assert!((variance - 1.0 / 12.0).abs() < 2e-3, "{dtype:?}: variance {variance}");

        let u = draw(&[7, 1_001], Distribution::Uniform(-3.0, 5.0), dtype);
        assert!(u.iter().all(|v| (-3.0..5.0).contains(v)), "{dtype:?}: outside [-3, 5)");
        let z = draw(&[N], Distribution::Normal(2.0, 0.5), dtype);
        let (mean, variance) = moments(&z);
        assert!(near(mean, 2.0, 0.5, N, dtype), "{dtype:?}: mean {mean}");
        assert!((variance.sqrt() - 0.5).abs() < 0.02, "{dtype:?}: deviation {}", variance.sqrt());
        let b = draw(&[N], Distribution::Bernoulli(0.3), dtype);
        assert!(b.iter().all(|&v| v == 0.0 || v == 1.0));
        assert!(near(moments(&b).0, 0.3, 0.46, N, dtype), "{dtype:?}: {}", moments(&b).0);
    }
}

#[test]
fn uniform_bf16_never_rounds_up_to_one() {
    let _drawing = drawing();
    seed(5);
    let u = draw(&[1 << 20], Distribution::Default, DType::BF16);
    let max = u.iter().fold(0.0f64, |m, &v| m.max(v));
    assert!(max < 1.0 && max > 0.98, "the largest of 2^20 is {max}");
}

#[test]
fn integers_stay_in_range() {
    let _drawing = drawing();
    seed(3);
    for dtype in INTS {
        let u = draw(&[5_000], Distribution::Uniform(2.0, 7.0), dtype);
        assert!(u.iter().all(|v| (2.0..7.0).contains(v)), "{dtype:?}");
        assert!((2..7).all(|k| u.contains(&(k as f64))), "{dtype:?}: not all of 2..7 are drawn");
        let b = draw(&[5_000], Distribution::Bernoulli(0.5), dtype);
        assert!(b.iter().all(|&v| v == 0.0 || v == 1.0), "{dtype:?}");
        let any = draw(&[5_000], Distribution::Default, dtype);
        let high = int_limits(dtype).1 as f64;
        assert!(any.iter().any(|v| v.abs() > high / 2.0), "{dtype:?}: only small numbers");
    }
}

#[test]
fn the_seed_decides_the_numbers_and_calls_differ() {
    let _drawing = drawing();
    for dtype in FLOATS {
        seed(42);
        let first = draw(&[1_000], Distribution::Default, dtype);
        let second = draw(&[1_000], Distribution::Default, dtype);
        seed(42);
        assert_eq!(first, draw(&[1_000], Distribution::Default, dtype));
        assert_eq!(second, draw(&[1_000], Distribution::Default, dtype));
        assert_ne!(first, second);
        seed(43);
        assert_ne!(first, draw(&[1_000], Distribution::Default, dtype));
    }
}

#[test]
fn an_element_does_not_depend_on_the_size_of_the_tensor() {
    let _drawing = drawing();
    for distribution in [Distribution::Default, Distribution::Normal(0.0, 1.0), Distribution::Bernoulli(0.5)]
    {
        for dtype in FLOATS {
            seed(7);
            let long = draw(&[100_003], distribution, dtype);
            for shape in [vec![1], vec![5], vec![33, 31], vec![4_097]] {
                seed(7);
                let short = draw(&shape, distribution, dtype);
                assert_eq!(short, long[..short.len()], "{dtype:?} {distribution:?} {shape:?}");
            }
        }
    }
}

#[test]
fn empty_random_tensors() {
    let _drawing = drawing();
    assert!(draw(&[0], Distribution::Default, DType::F32).is_empty());
    assert!(draw(&[3, 0, 2], Distribution::Normal(0.0, 1.0), DType::F16).is_empty());
}

#[test]
fn a_random_tensor_nobody_reads_still_takes_its_numbers() {
    let _drawing = drawing();
    seed(1);
    draw(&[100], Distribution::Default, DType::F32);
    let after = draw(&[100], Distribution::Default, DType::F32);
    seed(1);
    drop(Subject::float_random([100].into(), Distribution::Default, &Default::default(), DType::F32.into()));
    assert_eq!(after, draw(&[100], Distribution::Default, DType::F32));
}
