//! Unary, binary and scalar operations of floats.

use burn_backend::{Backend, DType, Scalar};

use crate::Family;
use crate::harness::{Arg, Body, Dense, Domain, Inputs, Rng, Tolerance, Value, Values};
use crate::harness::{family::large, plain, shape};

macro_rules! float_unary {
    ($($name:ident: $method:ident, $domain:ident;)*) => {
        pub(crate) struct FloatUnary(&'static str);
        pub(crate) const FLOAT_UNARY: &[(&str, Domain)] = &[$((stringify!($name), Domain::$domain)),*];
        impl Body for FloatUnary {
            fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
                let x = Inputs::new(inputs).float();
                vec![Value::Float(match self.0 {
                    $(stringify!($name) => B::$method(x),)*
                    name => panic!("no op {name}"),
                })]
            }
        }
    };
}

float_unary! {
    neg: float_neg, Normal;
    abs: float_abs, Normal;
    sign: float_sign, Normal;
    recip: float_recip, NotZero;
    exp: float_exp, Normal;
    log: float_log, Positive;
    log1p: float_log1p, Positive;
    sqrt: float_sqrt, Positive;
    cos: float_cos, Normal;
    sin: float_sin, Normal;
    tan: float_tan, Inside;
    cosh: float_cosh, Normal;
    sinh: float_sinh, Normal;
    tanh: float_tanh, Normal;
    acos: float_acos, Inside;
    acosh: float_acosh, AboveOne;
    asin: float_asin, Inside;
    asinh: float_asinh, Normal;
    atan: float_atan, Normal;
    atanh: float_atanh, Inside;
    erf: float_erf, Normal;
    floor: float_floor, Normal;
    ceil: float_ceil, Normal;
    trunc: float_trunc, Normal;
    round: float_round, Normal;
    relu: relu, Normal;
    gelu: gelu, Normal;
    sigmoid: sigmoid, Normal;
    log_sigmoid: log_sigmoid, Normal;
}

/// Ops whose results at infinities and NaN are not defined by IEEE or by Burn: only finite inputs.
const FINITE_ONLY: &[&str] = &["sign", "gelu", "relu", "log_sigmoid"];

fn unary(dtype: DType) {
    let mut family = Family::new(format!("unary {}", dtype.name()));
    for &(name, domain) in FLOAT_UNARY {
        family.cases(name, 0.6, |family, rng| {
            let shape = shape::any(rng, large());
            let args = [Arg::random(rng, &shape, dtype, domain)];
            family.check(&args, &FloatUnary(name), Tolerance::function(dtype));
        });
        // In f64 the reference overflows in acosh and asinh of the largest numbers, and loses digits in atanh near -1.
        let reference_fails = dtype == DType::F64 && matches!(name, "acosh" | "asinh" | "atanh");
        if !FINITE_ONLY.contains(&name) && !reference_fails {
            family.cases(&format!("{name} of special values"), 0.2, |family, rng| {
                let shape = shape::any(rng, false);
                let args = [Arg::random(rng, &shape, dtype, Domain::Special)];
                family.check(&args, &FloatUnary(name), Tolerance::function(dtype).times(2.0));
            });
        }
    }
    family.finish();
}

macro_rules! float_binary {
    ($($name:ident: $method:ident, $a:ident, $b:ident;)*) => {
        pub(crate) struct FloatBinary(&'static str);
        pub(crate) const FLOAT_BINARY: &[(&str, Domain, Domain)] = &[$((stringify!($name), Domain::$a, Domain::$b)),*];
        impl Body for FloatBinary {
            fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
                let mut inputs = Inputs::new(inputs);
                let (a, b) = (inputs.float(), inputs.float());
                vec![Value::Float(match self.0 {
                    $(stringify!($name) => B::$method(a, b),)*
                    name => panic!("no op {name}"),
                })]
            }
        }
    };
}

float_binary! {
    add: float_add, Normal, Normal;
    sub: float_sub, Normal, Normal;
    mul: float_mul, Normal, Normal;
    div: float_div, Normal, NotZero;
    powf: float_powf, Positive, Normal;
    atan2: float_atan2, NotZero, NotZero;
    prelu: prelu, Normal, Normal;
    relu_backward: relu_backward, Normal, Normal;
    gelu_backward: gelu_backward, Normal, Normal;
    sigmoid_backward: sigmoid_backward, Inside, Normal;
    log_sigmoid_backward: log_sigmoid_backward, Normal, Normal;
}

fn binary(dtype: DType) {
    let mut family = Family::new(format!("binary {}", dtype.name()));
    for &(name, a, b) in FLOAT_BINARY {
        let broadcasts = !name.ends_with("backward") && name != "prelu";
        family.cases(name, 1.0, |family, rng| {
            let (out, left, right) = shape::broadcast_pair(rng, large());
            let (left, right) = if broadcasts { (left, right) } else { (out.clone(), out) };
            let args = [Arg::random(rng, &left, dtype, a), Arg::random(rng, &right, dtype, b)];
            let tolerance = match name {
                "add" | "sub" | "mul" | "div" => Tolerance::rounded(dtype),
                _ => Tolerance::function(dtype).times(2.0),
            };
            family.check(&args, &FloatBinary(name), tolerance);
        });
        if matches!(name, "add" | "sub" | "mul" | "div" | "atan2") {
            family.cases(&format!("{name} of special values"), 0.3, |family, rng| {
                let (_, left, right) = shape::broadcast_pair(rng, false);
                let args = [left, right].map(|s| Arg::random(rng, &s, dtype, Domain::Special));
                family.check(&args, &FloatBinary(name), Tolerance::function(dtype));
            });
        }
    }
    // A remainder of rounded operands is exact, but jumps at multiples: whole operands make it comparable.
    family.cases("remainder", 1.0, |family, rng| {
        let (_, left, right) = shape::broadcast_pair(rng, large());
        let a = Arg::random(rng, &left, dtype, Domain::Whole);
        let mut b = Arg::random(rng, &right, dtype, Domain::Whole);
        if let Values::Float(v) = &mut b.base.values {
            v.iter_mut().filter(|v| **v == 0.0).for_each(|v| *v = 2.5);
        }
        let (x, y) = (a.dense(), b.dense());
        let expected = float_zip(&x, &y, |a, b| a - b * (a / b).floor());
        family.check_values(&[a, b], &Remainder, &[expected], Tolerance::exact());
    });
    family.finish();
}

pub(crate) struct Remainder;
impl Body for Remainder {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        vec![Value::Float(B::float_remainder(inputs.float(), inputs.float()))]
    }
}

/// `f` of each pair, broadcast.
fn float_zip(a: &Dense, b: &Dense, f: impl Fn(f64, f64) -> f64) -> Dense {
    let position = |d: &Dense| {
        let positions = (0..d.len()).map(|p| p as i128).collect();
        Dense::ints(&d.shape, positions)
    };
    let (left, right) =
        (plain::zip(&position(a), &position(b), |p, _| p), plain::zip(&position(a), &position(b), |_, q| q));
    let values = left.as_ints().iter().zip(right.as_ints());
    let values = values.map(|(&p, &q)| f(a.as_floats()[p as usize], b.as_floats()[q as usize])).collect();
    Dense::floats(&left.shape, values)
}

pub(crate) struct FloatScalar(&'static str, f64);
const FLOAT_SCALAR: &[&str] = &[
    "add",
    "sub",
    "mul",
    "div",
    "powf",
    "clamp_min",
    "clamp_max",
    "clamp",
    "leaky_relu",
    "hard_sigmoid",
    "powi",
];
impl Body for FloatScalar {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let (x, s) = (Inputs::new(inputs).float(), Scalar::Float(self.1));
        vec![Value::Float(match self.0 {
            "add" => B::float_add_scalar(x, s),
            "sub" => B::float_sub_scalar(x, s),
            "mul" => B::float_mul_scalar(x, s),
            "div" => B::float_div_scalar(x, s),
            "powf" => B::float_powf_scalar(x, s),
            "powi" => B::float_powi_scalar(x, Scalar::Int(self.1 as i64 * 2 + 1)),
            "clamp_min" => B::float_clamp_min(x, s),
            "clamp_max" => B::float_clamp_max(x, s),
            "clamp" => B::float_clamp(x, s, Scalar::Float(self.1 + 0.5)),
            "leaky_relu" => B::leaky_relu(x, s),
            "hard_sigmoid" => B::hard_sigmoid(x, Scalar::Float(0.25), Scalar::Float(0.5)),
            name => panic!("no op {name}"),
        })]
    }
}

fn scalar(dtype: DType) {
    let mut family = Family::new(format!("scalar {}", dtype.name()));
    for &name in FLOAT_SCALAR {
        family.cases(name, 0.6, |family, rng| {
            let shape = shape::any(rng, large());
            let domain = if name.starts_with("pow") { Domain::Positive } else { Domain::Normal };
            let args = [Arg::random(rng, &shape, dtype, domain)];
            // Numbers of every float dtype, so that the scalar's own rounding does not matter.
            let s = rng.pick(&[0.5, -0.75, 1.0, 2.0, -3.0, 0.25]);
            family.check(&args, &FloatScalar(name, s), Tolerance::function(dtype));
        });
    }
    for (name, s) in [("clamp_min", 0.5), ("clamp_max", -0.5), ("clamp", -0.25)] {
        family.cases(&format!("{name} of special values"), 0.3, |family, rng| {
            let shape = shape::any(rng, false);
            let args = [Arg::random(rng, &shape, dtype, Domain::Special)];
            let x = args[0].dense();
            // NaN stays.
            let clamp = |v: f64| match name {
                _ if v.is_nan() => v,
                "clamp_min" => v.max(s),
                "clamp_max" => v.min(s),
                _ => v.clamp(s, s + 0.5),
            };
            let expected = Dense::floats(&x.shape, x.as_floats().iter().map(|&v| clamp(v)).collect());
            family.check_values(&args, &FloatScalar(name, s), &[expected], Tolerance::exact());
        });
    }
    family.finish();
}

/// A tensor and a copy of it as the operand of the next op: none may be overwritten by the other.
#[test]
fn operands_that_are_still_held_keep_their_values() {
    let mut family = Family::new("held operands");
    family.cases("x + x, then x again", 1.0, |family, rng: &mut Rng| {
        let shape = shape::any(rng, false);
        let args = [Arg::random(rng, &shape, DType::F32, Domain::Normal)];
        family.check(&args, &HeldOperand, Tolerance::function(DType::F32));
    });
    family.finish();
}

pub(crate) struct HeldOperand;
impl Body for HeldOperand {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).float();
        let twice = B::float_add(x.clone(), x.clone());
        let neg = B::float_neg(x.clone());
        let exp = B::float_exp(twice.clone());
        vec![Value::Float(x), Value::Float(twice), Value::Float(neg), Value::Float(exp)]
    }
}

crate::per_dtype!(unary: f32 f64 f16 bf16);
crate::per_dtype!(binary: f32 f64 f16 bf16);
crate::per_dtype!(scalar: f32 f64 f16 bf16);
