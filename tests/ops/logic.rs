//! Comparisons and masks of every dtype, and bool operations.

use burn_backend::{Backend, BoolDType, DType, Scalar};

use crate::Family;
use crate::harness::{Arg, BOOL, Body, Domain, Inputs, Tolerance, Value};
use crate::harness::{family::large, plain, shape};

const OUT: BoolDType = BoolDType::Native;

macro_rules! compare_body {
    ($($name:ident: $float:ident $int:ident, $float_elem:ident $int_elem:ident;)*) => {
        /// A comparison with a tensor, or with a scalar.
        #[derive(Debug)]
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
    let mut family = Family::new("logic", dtype);
    for &name in COMPARE {
        family.cases(name, 1.0, |family, rng| {
            let (_, left, right) = shape::broadcast_pair(rng, large());
            let domain = rng.pick(&[Domain::Whole, Domain::Special]);
            let args = [left, right].map(|s| Arg::random(rng, &s, dtype, domain));
            family.check(&args, &Compare(name, None), Tolerance::exact());
        });
        family.cases(&format!("{name} with a scalar"), 0.3, |family, rng| {
            let shape = shape::any(rng, false);
            let domain = rng.pick(&[Domain::Whole, Domain::Special]);
            let args = [Arg::random(rng, &shape, dtype, domain)];
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

fn int_compare(dtype: DType) {
    let mut family = Family::new("logic", dtype);
    for &name in COMPARE {
        family.cases(name, 0.25, |family, rng| {
            let (_, left, right) = shape::broadcast_pair(rng, false);
            let domain = rng.pick(&[Domain::Normal, Domain::Special]);
            let args = [left, right].map(|s| Arg::random(rng, &s, dtype, domain));
            let expected =
                plain::zip(&args[0].dense(), &args[1].dense(), |a, b| plain::int_binary(name, dtype, a, b));
            family.check_values(&args, &Compare(name, None), &[expected], Tolerance::exact());
        });
        family.cases(&format!("{name} with a scalar"), 0.15, |family, rng| {
            let shape = shape::any(rng, false);
            let args = [Arg::random(rng, &shape, dtype, Domain::Special)];
            let s = rng.pick(&[0, 1, 5]);
            let expected = plain::map(&args[0].dense(), |a| plain::int_binary(name, dtype, a, s.into()));
            family.check_values(&args, &Compare(name, Some(Scalar::Int(s))), &[expected], Tolerance::exact());
        });
    }
    family.finish();
}

#[derive(Debug)]
pub(crate) struct Predicate(&'static str);
impl Body for Predicate {
    fn run<B: Backend>(&self, inputs: Vec<Value<B>>) -> Vec<Value<B>> {
        let x = Inputs::new(inputs).float();
        vec![Value::Bool(if self.0 == "is_nan" { B::float_is_nan(x, OUT) } else { B::float_is_inf(x, OUT) })]
    }
}

/// Masks on tensors of any kind.
#[derive(Debug)]
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
    let mut family = Family::new("logic", dtype);
    let (value, share) = match dtype {
        _ if dtype.is_float() => (Scalar::Float(-1.5), 1.5),
        _ if dtype.is_bool() => (Scalar::Bool(true), 0.6),
        _ => (Scalar::Int(7), 0.3),
    };
    for name in ["fill", "where"] {
        family.cases(&format!("mask_{name}"), share, |family, rng| {
            let shape = shape::any(rng, large());
            let mut arg = |dtype| Arg::random(rng, &shape, dtype, Domain::Normal);
            let args = [arg(dtype), arg(BOOL), arg(dtype)];
            let args = if name == "fill" { &args[..2] } else { &args[..] };
            // An expanded view sums its gradient.
            let gradient = dtype.is_float().then(|| Tolerance::chain(dtype, 3, shape.iter().product()));
            family.check_with(args, &Mask(name, value), None, Tolerance::exact(), gradient);
        });
        family.cases(&format!("mask_{name} of many dimensions"), 0.1, |family, rng| {
            let shape = shape::many(rng);
            let mut arg = |dtype| Arg::reversed(rng, &shape, dtype, Domain::Normal);
            let args = [arg(dtype), arg(BOOL), arg(dtype)];
            let args = if name == "fill" { &args[..2] } else { &args[..] };
            family.check(args, &Mask(name, value), Tolerance::exact());
        });
    }
    family.finish();
}

#[derive(Debug)]
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

fn bool_ops(dtype: DType) {
    let mut family = Family::new("logic", dtype);
    for name in ["and", "or", "xor", "equal", "not_equal", "equal_elem", "not_equal_elem", "not"] {
        family.cases(name, 0.8, |family, rng| {
            let (out, left, right) = shape::broadcast_pair(rng, large());
            let (left, right) = if name.starts_with("not") && name != "not_equal" {
                (out.clone(), out)
            } else {
                (left, right)
            };
            let args = [left, right].map(|s| Arg::random(rng, &s, dtype, Domain::Bit));
            family.check(&args, &BoolOp(name), Tolerance::exact());
        });
    }
    family.finish();
}

crate::per_dtype!(float_compare: f32 f64 f16 bf16);
crate::per_dtype!(int_compare: i8 i16 i32 i64 u8 u16 u32 u64);
crate::per_dtype!(mask: f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64 bool);
crate::per_dtype!(bool_ops: bool);
