//! Unary, binary, scalar, comparison, mask, clamp and bitwise operations.

use burn_backend::{Backend, BoolDType, DType, Scalar};

use crate::Family;
use crate::harness::{Arg, BOOL, Body, Dense, Domain, INTS, Inputs, Rng, Tolerance, Value, Values};
use crate::harness::{family::large, plain, shape, values::int_limits};

const OUT: BoolDType = BoolDType::Native;

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
        if !FINITE_ONLY.contains(&name) {
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
    let (left, right) = (plain::zip(&position(a), &position(b), |p, _| p), plain::zip(&position(a), &position(b), |_, q| q));
    let values = left.as_ints().iter().zip(right.as_ints());
    let values = values.map(|(&p, &q)| f(a.as_floats()[p as usize], b.as_floats()[q as usize])).collect();
    Dense::floats(&left.shape, values)
}

pub(crate) struct FloatScalar(&'static str, f64);
const FLOAT_SCALAR: &[&str] =
    &["add", "sub", "mul", "div", "powf", "clamp_min", "clamp_max", "clamp", "leaky_relu", "hard_sigmoid", "powi"];
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

macro_rules! compare_body {
    ($($name:ident: $float:ident $int:ident, $float_elem:ident $int_elem:ident;)*) => {
        /// A comparison with a tensor, or with a scalar.
        pub(crate) struct Compare(&'static str, Option<Scalar>);
        const COMPARE: &[&str] = &[$(stringify!($name)),*];
        impl Body for Compare {
            fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
                let mut inputs = Inputs::new(inputs);
                let a = inputs.any();
                let result = match (self.0, self.1) {
                    $((stringify!($name), None) => match a {
                        Value::Float(a) => B::$float(a, inputs.float(), OUT),
                        a => B::$int(a.int(), inputs.int(), OUT),
                    },
                    (stringify!($name), Some(s)) => match a {
                        Value::Float(a) => B::$float_elem(a, s, OUT),
                        a => B::$int_elem(a.int(), s, OUT),
                    },)*
                    (name, _) => panic!("no op {name}"),
                };
                vec![Value::Bool(result)]
            }
        }
    };
}

compare_body! {
    equal: float_equal int_equal, float_equal_elem int_equal_elem;
    not_equal: float_not_equal int_not_equal, float_not_equal_elem int_not_equal_elem;
    greater: float_greater int_greater, float_greater_elem int_greater_elem;
    greater_equal: float_greater_equal int_greater_equal, float_greater_equal_elem int_greater_equal_elem;
    lower: float_lower int_lower, float_lower_elem int_lower_elem;
    lower_equal: float_lower_equal int_lower_equal, float_lower_equal_elem int_lower_equal_elem;
}

fn float_compare(dtype: DType) {
    let mut family = Family::new(format!("compare {}", dtype.name()));
    for &name in COMPARE {
        family.cases(name, 0.8, |family, rng| {
            let (_, left, right) = shape::broadcast_pair(rng, large());
            let domain = rng.pick(&[Domain::Whole, Domain::Special]);
            let args = [left, right].map(|s| Arg::random(rng, &s, dtype, domain));
            family.check(&args, &Compare(name, None), Tolerance::exact());
        });
        family.cases(&format!("{name} with a scalar"), 0.3, |family, rng| {
            let shape = shape::any(rng, false);
            let args = [Arg::random(rng, &shape, dtype, Domain::Whole)];
            let s = Scalar::Float(rng.pick(&[0.0, 1.0, -2.0]));
            family.check(&args, &Compare(name, Some(s)), Tolerance::exact());
        });
    }
    for name in ["is_nan", "is_inf"] {
        family.cases(name, 0.4, |family, rng| {
            let shape = shape::any(rng, false);
            let args = [Arg::random(rng, &shape, dtype, Domain::Special)];
            family.check(&args, &Predicate(name), Tolerance::exact());
        });
    }
    family.finish();
}

pub(crate) struct Predicate(&'static str);
impl Body for Predicate {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).float();
        vec![Value::Bool(if self.0 == "is_nan" { B::float_is_nan(x, OUT) } else { B::float_is_inf(x, OUT) })]
    }
}

const INT_BINARY: &[&str] =
    &["add", "sub", "mul", "div", "remainder", "powi", "and", "or", "xor", "shl", "shr"];

/// An integer operation with a tensor, or with a scalar.
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
    let mut family = Family::new(format!("int elementwise {}", dtype.name()));
    for &name in INT_BINARY {
        family.cases(name, 0.8, |family, rng| {
            let (_, left, right) = shape::broadcast_pair(rng, large());
            let domain = rng.pick(&[Domain::Normal, Domain::Special]);
            let right_domain = if name == "powi" { Domain::Index(6) } else { domain };
            let args = [Arg::random(rng, &left, dtype, domain), Arg::random(rng, &right, dtype, right_domain)];
            let expected =
                plain::zip(&args[0].dense(), &args[1].dense(), |a, b| plain::int_binary(name, dtype, a, b));
            family.check_values(&args, &IntBinary(name, None), &[expected], Tolerance::exact());
        });
        family.cases(&format!("{name} with a scalar"), 0.3, |family, rng| {
            let shape = shape::any(rng, false);
            let args = [Arg::random(rng, &shape, dtype, Domain::Special)];
            let s: i64 = match name {
                "powi" | "shl" | "shr" => rng.below(5) as i64,
                _ if int_limits(dtype).0 < 0 => rng.pick(&[1, 3, -1, -4, 7, 0]),
                _ => rng.pick(&[1, 3, 7, 0, 100]),
            };
            let expected = plain::map(&args[0].dense(), |a| plain::int_binary(name, dtype, a, s.into()));
            family.check_values(&args, &IntBinary(name, Some(s)), &[expected], Tolerance::exact());
        });
    }
    for name in ["neg", "abs", "sign", "not", "clamp", "clamp_min", "clamp_max"] {
        family.cases(name, 0.4, |family, rng| {
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
                crate::harness::values::wrap(y, dtype)
            });
            family.check_values(&args, &IntUnary(name), &[expected], Tolerance::exact());
        });
    }
    for &name in COMPARE {
        family.cases(name, 0.3, |family, rng| {
            let (_, left, right) = shape::broadcast_pair(rng, false);
            let domain = rng.pick(&[Domain::Normal, Domain::Special]);
            let args = [left, right].map(|s| Arg::random(rng, &s, dtype, domain));
            let expected =
                plain::zip(&args[0].dense(), &args[1].dense(), |a, b| plain::int_binary(name, dtype, a, b));
            family.check_values(&args, &Compare(name, None), &[expected], Tolerance::exact());
        });
        family.cases(&format!("{name} with a scalar"), 0.2, |family, rng| {
            let shape = shape::any(rng, false);
            let args = [Arg::random(rng, &shape, dtype, Domain::Special)];
            let s = rng.pick(&[0, 1, 5]);
            let expected = plain::map(&args[0].dense(), |a| plain::int_binary(name, dtype, a, s.into()));
            family.check_values(&args, &Compare(name, Some(Scalar::Int(s))), &[expected], Tolerance::exact());
        });
    }
    family.finish();
}

/// Masks on tensors of any kind.
pub(crate) struct Mask(&'static str, Scalar);
impl Body for Mask {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (x, mask) = (inputs.any(), inputs.bool());
        vec![match (self.0, x) {
            ("fill", x) => crate::per_kind!(x; float_mask_fill int_mask_fill bool_mask_fill; mask, self.1),
            (_, Value::Float(x)) => Value::Float(B::float_mask_where(x, mask, inputs.float())),
            (_, Value::Int(x)) => Value::Int(B::int_mask_where(x, mask, inputs.int())),
            (_, Value::Bool(x)) => Value::Bool(B::bool_mask_where(x, mask, inputs.bool())),
        }]
    }
}

fn mask(dtype: DType) {
    let mut family = Family::new(format!("mask {}", dtype.name()));
    let value = match dtype {
        _ if dtype.is_float() => Scalar::Float(-1.5),
        _ if dtype.is_bool() => Scalar::Bool(true),
        _ => Scalar::Int(7),
    };
    for name in ["fill", "where"] {
        family.cases(name, 0.6, |family, rng| {
            let shape = shape::any(rng, large());
            let mut arg = |dtype| Arg::random(rng, &shape, dtype, Domain::Normal);
            let args = [arg(dtype), arg(BOOL), arg(dtype)];
            let args = if name == "fill" { &args[..2] } else { &args[..] };
            family.check(args, &Mask(name, value), Tolerance::exact());
        });
    }
    family.finish();
}

pub(crate) struct BoolOp(&'static str);
impl Body for BoolOp {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let mut inputs = Inputs::new(inputs);
        let (a, b) = (inputs.bool(), inputs.bool());
        vec![Value::Bool(match self.0 {
            "and" => B::bool_and(a, b),
            "or" => B::bool_or(a, b),
            "xor" => B::bool_xor(a, b),
            "equal" => B::bool_equal(a, b),
            "not_equal" => B::bool_not_equal(a, b),
            "equal_elem" => B::bool_equal_elem(a, Scalar::Bool(false)),
            "not_equal_elem" => B::bool_not_equal_elem(a, Scalar::Bool(false)),
            "not" => B::bool_not(a),
            name => panic!("no op {name}"),
        })]
    }
}

#[test]
fn bool_ops() {
    let mut family = Family::new("bool");
    for name in ["and", "or", "xor", "equal", "not_equal", "equal_elem", "not_equal_elem", "not"] {
        family.cases(name, 0.8, |family, rng| {
            let (out, left, right) = shape::broadcast_pair(rng, large());
            let (left, right) = if name.starts_with("not") && name != "not_equal" { (out.clone(), out) } else { (left, right) };
            let args = [left, right].map(|s| Arg::random(rng, &s, BOOL, Domain::Bit));
            family.check(&args, &BoolOp(name), Tolerance::exact());
        });
    }
    family.finish();
}

#[test]
fn int_masks_and_bool_masks() {
    INTS.into_iter().chain([BOOL]).for_each(mask);
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
crate::per_dtype!(float_compare: f32 f64 f16 bf16);
crate::per_dtype!(mask: f32 f64 f16 bf16);
crate::per_dtype!(int: i8 i16 i32 i64 u8 u16 u32 u64);
