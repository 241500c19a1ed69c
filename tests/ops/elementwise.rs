//! Unary, binary and scalar operations of floats and integers.

use burn_backend::{Backend, DType, Scalar};

use crate::Family;
use crate::harness::{Arg, Body, Dense, Domain, Inputs, Rng, Tolerance, Value, Values};
use crate::harness::{family::large, plain, shape, values};

macro_rules! float_unary {
    ($($name:ident: $method:ident, $domain:ident;)*) => {
        #[derive(Debug)]
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

/// Of gradients of one op: a few stored steps, and the sums over what a view or a broadcast repeats.
fn gradient(dtype: DType, args: &[Arg], out: &[usize]) -> Tolerance {
    let repeats = args.iter().map(|arg| out.iter().product::<usize>() / arg.base.len().max(1));
    Tolerance::chain(dtype, 12, repeats.max().unwrap_or(1))
}

fn unary(dtype: DType) {
    let mut family = Family::new("elementwise", dtype);
    for &(name, domain) in FLOAT_UNARY {
        family.cases(name, 1.2, |family, rng| {
            let shape = shape::any(rng, large());
            let args = [Arg::random(rng, &shape, dtype, domain)];
            let gradient = gradient(dtype, &args, &shape);
            family.check_both(&args, &FloatUnary(name), Tolerance::function(dtype), gradient);
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
        #[derive(Debug)]
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
    powf: float_powf, AboveOne, Normal;
    atan2: float_atan2, NotZero, NotZero;
    prelu: prelu, Normal, Normal;
    relu_backward: relu_backward, Normal, Normal;
    gelu_backward: gelu_backward, Normal, Normal;
    sigmoid_backward: sigmoid_backward, Inside, Normal;
    log_sigmoid_backward: log_sigmoid_backward, Normal, Normal;
}

fn binary(dtype: DType) {
    let mut family = Family::new("elementwise", dtype);
    for &(name, a, b) in FLOAT_BINARY {
        let backward = name.ends_with("backward");
        family.cases(name, if backward { 0.5 } else { 2.2 }, |family, rng| {
            let (out, left, right) = shape::broadcast_pair(rng, large());
            let (left, right) =
                if backward || name == "prelu" { (out.clone(), out.clone()) } else { (left, right) };
            let args = [Arg::random(rng, &left, dtype, a), Arg::random(rng, &right, dtype, b)];
            let tolerance = match name {
                "add" | "sub" | "mul" | "div" => Tolerance::rounded(dtype),
                _ => Tolerance::function(dtype).times(2.0),
            };
            let gradient = (!backward).then(|| gradient(dtype, &args, &out));
            family.check_with(&args, &FloatBinary(name), None, tolerance, gradient);
        });
        if matches!(name, "add" | "sub" | "mul" | "div" | "atan2") {
            family.cases(&format!("{name} of special values"), 0.3, |family, rng| {
                let (_, left, right) = shape::broadcast_pair(rng, false);
                let args = [left, right].map(|s| Arg::random(rng, &s, dtype, Domain::Special));
                family.check(&args, &FloatBinary(name), Tolerance::function(dtype));
            });
        }
    }
    // Of small bases the gradient leaves the range of 16 bits.
    family.cases("powf of small bases", 0.5, |family, rng| {
        let (_, left, right) = shape::broadcast_pair(rng, large());
        let args = [
            Arg::random(rng, &left, dtype, Domain::Positive),
            Arg::random(rng, &right, dtype, Domain::Normal),
        ];
        family.check(&args, &FloatBinary("powf"), Tolerance::function(dtype).times(2.0));
    });
    // A remainder of rounded operands is exact, but jumps at multiples: whole operands make it comparable.
    family.cases("remainder", 1.0, |family, rng| {
        let (out, left, right) = shape::broadcast_pair(rng, large());
        let a = Arg::random(rng, &left, dtype, Domain::Whole);
        let mut b = Arg::random(rng, &right, dtype, Domain::Whole);
        if let Values::Float(v) = &mut b.base.values {
            v.iter_mut().filter(|v| **v == 0.0).for_each(|v| *v = 2.5);
        }
        let expected = float_zip(&a.dense(), &b.dense(), |a, b| a - b * (a / b).floor());
        let args = [a, b];
        let gradient = gradient(dtype, &args, &out);
        family.check_with(&args, &Remainder, Some(&[expected]), Tolerance::exact(), Some(gradient));
    });
    family.finish();
}

#[derive(Debug)]
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

#[derive(Debug)]
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
    let mut family = Family::new("elementwise", dtype);
    // Numbers of every float dtype, so that the scalar's own rounding does not matter.
    const SCALARS: &[f64] = &[0.5, 1.0, 2.0, 0.25, -0.75, -3.0];
    for &name in FLOAT_SCALAR {
        family.cases(&format!("{name} with a scalar"), 1.2, |family, rng| {
            let shape = shape::any(rng, large());
            let domain = if name.starts_with("pow") { Domain::AboveOne } else { Domain::Normal };
            let args = [Arg::random(rng, &shape, dtype, domain)];
            let body = FloatScalar(name, rng.pick(SCALARS));
            // hard_sigmoid clamps what it has rounded: at its corners the gradient depends on the dtype.
            let gradient = (name != "hard_sigmoid").then(|| gradient(dtype, &args, &shape));
            family.check_with(&args, &body, None, Tolerance::function(dtype), gradient);
        });
    }
    for name in ["powf", "powi"] {
        family.cases(&format!("{name} of small bases with a scalar"), 0.5, |family, rng| {
            let shape = shape::any(rng, large());
            let args = [Arg::random(rng, &shape, dtype, Domain::Positive)];
            family.check(&args, &FloatScalar(name, rng.pick(SCALARS)), Tolerance::function(dtype));
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

const INT_BINARY: &[&str] =
    &["add", "sub", "mul", "div", "remainder", "powi", "and", "or", "xor", "shl", "shr"];

/// An integer operation with a tensor, or with a scalar.
#[derive(Debug)]
pub(crate) struct IntBinary(&'static str, Option<i64>);
impl Body for IntBinary {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let a = inputs.int();
        let result = match self.1 {
            None => {
                let b = inputs.int();
                match self.0 {
                    "add" => B::int_add(a, b),
                    "sub" => B::int_sub(a, b),
                    "mul" => B::int_mul(a, b),
                    "div" => B::int_div(a, b),
                    "remainder" => B::int_remainder(a, b),
                    "powi" => B::int_powi(a, b),
                    "and" => B::bitwise_and(a, b),
                    "or" => B::bitwise_or(a, b),
                    "xor" => B::bitwise_xor(a, b),
                    "shl" => B::bitwise_left_shift(a, b),
                    "shr" => B::bitwise_right_shift(a, b),
                    name => panic!("no op {name}"),
                }
            }
            Some(s) => {
                let s = Scalar::Int(s);
                match self.0 {
                    "add" => B::int_add_scalar(a, s),
                    "sub" => B::int_sub_scalar(a, s),
                    "mul" => B::int_mul_scalar(a, s),
                    "div" => B::int_div_scalar(a, s),
                    "remainder" => B::int_remainder_scalar(a, s),
                    "powi" => B::int_powi_scalar(a, s),
                    "and" => B::bitwise_and_scalar(a, s),
                    "or" => B::bitwise_or_scalar(a, s),
                    "xor" => B::bitwise_xor_scalar(a, s),
                    "shl" => B::bitwise_left_shift_scalar(a, s),
                    "shr" => B::bitwise_right_shift_scalar(a, s),
                    name => panic!("no op {name}"),
                }
            }
        };
        vec![Value::Int(result)]
    }
}

#[derive(Debug)]
pub(crate) struct IntUnary(&'static str);
impl Body for IntUnary {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).int();
        vec![Value::Int(match self.0 {
            "neg" => B::int_neg(x),
            "abs" => B::int_abs(x),
            "sign" => B::int_sign(x),
            "not" => B::bitwise_not(x),
            "clamp" => B::int_clamp(x, Scalar::Int(2), Scalar::Int(5)),
            "clamp_min" => B::int_clamp_min(x, Scalar::Int(3)),
            "clamp_max" => B::int_clamp_max(x, Scalar::Int(4)),
            name => panic!("no op {name}"),
        })]
    }
}

fn int(dtype: DType) {
    let mut family = Family::new("elementwise", dtype);
    for &name in INT_BINARY {
        family.cases(name, 0.5, |family, rng| {
            let (_, left, right) = shape::broadcast_pair(rng, large());
            let domain = rng.pick(&[Domain::Normal, Domain::Special]);
            let right_domain = if name == "powi" { Domain::Index(6) } else { domain };
            let args =
                [Arg::random(rng, &left, dtype, domain), Arg::random(rng, &right, dtype, right_domain)];
            let expected =
                plain::zip(&args[0].dense(), &args[1].dense(), |a, b| plain::int_binary(name, dtype, a, b));
            family.check_values(&args, &IntBinary(name, None), &[expected], Tolerance::exact());
        });
        family.cases(&format!("{name} with a scalar"), 0.2, |family, rng| {
            let shape = shape::any(rng, false);
            let args = [Arg::random(rng, &shape, dtype, Domain::Special)];
            let s: i64 = match name {
                "powi" | "shl" | "shr" => rng.below(5) as i64,
                _ if values::int_limits(dtype).0 < 0 => rng.pick(&[1, 3, 7, 0, -1, -4]),
                _ => rng.pick(&[1, 3, 7, 0, 100]),
            };
            let expected = plain::map(&args[0].dense(), |a| plain::int_binary(name, dtype, a, s.into()));
            family.check_values(&args, &IntBinary(name, Some(s)), &[expected], Tolerance::exact());
        });
    }
    for name in ["neg", "abs", "sign", "not", "clamp", "clamp_min", "clamp_max"] {
        family.cases(name, 0.25, |family, rng| {
            let shape = shape::any(rng, false);
            let args = [Arg::random(rng, &shape, dtype, Domain::Special)];
            let expected = plain::map(&args[0].dense(), |a| {
                let y = match name {
                    "neg" => -a,
                    "abs" => a.abs(),
                    "sign" => a.signum(),
                    "not" => !a,
                    "clamp" => a.clamp(2, 5),
                    "clamp_min" => a.max(3),
                    _ => a.min(4),
                };
                values::wrap(y, dtype)
            });
            family.check_values(&args, &IntUnary(name), &[expected], Tolerance::exact());
        });
    }
    family.finish();
}

crate::body!(
    Chain
        | inputs
        | [{
            let (x, y) = (inputs.float(), inputs.float());
            let a = B::float_tanh(B::float_add(B::float_mul(x.clone(), y.clone()), x.clone()));
            let e = B::float_exp(B::float_mul_scalar(x, Scalar::Float(0.5)));
            Value::Float(B::float_mul(B::sigmoid(B::float_sub(a, y)), e))
        }]
);

/// A tensor and copies of it as the operands of the next ops: none may be overwritten by another.
#[derive(Debug)]
pub(crate) struct HeldOperand;
impl Body for HeldOperand {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).float();
        let twice = B::float_add(x.clone(), x.clone());
        let neg = B::float_neg(x.clone());
        let exp = B::float_exp(twice.clone());
        vec![Value::Float(exp), Value::Float(x), Value::Float(twice), Value::Float(neg)]
    }
}

fn chains(dtype: DType) {
    let mut family = Family::new("elementwise", dtype);
    family.cases("a chain of operations", 1.5, |family, rng| {
        let (out, left, right) = shape::broadcast_pair(rng, large());
        let args =
            [Arg::random(rng, &left, dtype, Domain::Normal), Arg::random(rng, &right, dtype, Domain::Inside)];
        let repeats = out.iter().product();
        family.check_both(&args, &Chain, Tolerance::chain(dtype, 8, 1), Tolerance::chain(dtype, 16, repeats));
    });
    family.cases("operands that are still held keep their values", 1.0, |family, rng: &mut Rng| {
        let shape = shape::any(rng, false);
        let args = [Arg::random(rng, &shape, dtype, Domain::Normal)];
        let gradient = gradient(dtype, &args, &shape);
        family.check_both(&args, &HeldOperand, Tolerance::chain(dtype, 8, 1), gradient);
    });
    family.finish();
}

crate::per_dtype!(unary: f32 f64 f16 bf16);
crate::per_dtype!(binary: f32 f64 f16 bf16);
crate::per_dtype!(scalar: f32 f64 f16 bf16);
crate::per_dtype!(chains: f32 f64 f16 bf16);
crate::per_dtype!(int: i8 i16 i32 i64 u8 u16 u32 u64);
