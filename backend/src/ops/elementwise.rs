//! Elementwise operations: one table of expressions, one way to run them.
//!
//! Operands broadcast against each other. An operand given by value whose buffer nobody else holds, and which has the
//! output's shape and element size, is overwritten instead of allocating. Otherwise the output's elements lie in the order
//! of the first operand that has its shape, so that transposed tensors and channels that come last stay so.

use burn_backend::{Scalar, Shape, TensorMetadata};
use burn_std::DType;

use crate::device::Device;
use crate::driver::launch::ScalarArg;
use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::kernels::elementwise::{Op, elementwise};
use crate::kernels::transpose::transpose;
use crate::layout::{Layout, broadcast};
use crate::tensor::{CudaTensor, check};

macro_rules! ops {
    ($($(#[$doc:meta])* $ident:ident = $name:literal: $expr:literal;)*) => {
        $($(#[$doc])* pub(crate) static $ident: Op = Op { name: $name, expr: $expr };)*
        /// Every operation of the table.
        #[cfg(test)]
        pub(crate) static ALL: &[&Op] = &[$(&$ident),*];
    };
}

ops! {
    // Of no input.
    FILL = "full": "s0";
    /// `s0 + i * s1`
    ARANGE = "arange": "wrapping_add(s0, wrapping_mul((S_T)i, s1))";

    // Of one input.
    COPY = "copy": "a";
    NEG = "neg": "m_neg(a)";
    ABS = "abs": "m_abs(a)";
    SIGN = "sign": "m_sign(a)";
    NOT = "not": "!a";
    BITWISE_NOT = "bitwise_not": "~a";
    RECIP = "recip": "1 / a";
    EXP = "exp": "m_exp(a)";
    LOG = "log": "m_log(a)";
    LOG1P = "log1p": "m_log1p(a)";
    SQRT = "sqrt": "m_sqrt(a)";
    COS = "cos": "m_cos(a)";
    SIN = "sin": "m_sin(a)";
    TAN = "tan": "m_tan(a)";
    COSH = "cosh": "m_cosh(a)";
    SINH = "sinh": "m_sinh(a)";
    TANH = "tanh": "m_tanh(a)";
    ACOS = "acos": "m_acos(a)";
    ACOSH = "acosh": "m_acosh(a)";
    ASIN = "asin": "m_asin(a)";
    ASINH = "asinh": "m_asinh(a)";
    ATAN = "atan": "m_atan(a)";
    ATANH = "atanh": "m_atanh(a)";
    ERF = "erf": "m_erf(a)";
    FLOOR = "floor": "m_floor(a)";
    CEIL = "ceil": "m_ceil(a)";
    TRUNC = "trunc": "m_trunc(a)";
    /// Ties to even.
    ROUND = "round": "m_rint(a)";
    IS_NAN = "is_nan": "is_nan(a)";
    IS_INF = "is_inf": "m_abs(a) == Limits<Compute<A_T>>::highest()";
    RELU = "relu": "a <= 0 ? (Compute<A_T>)0 : a";
    GELU = "gelu": "m_gelu<A_T>(a)";
    SIGMOID = "sigmoid": "m_sigmoid(a)";
    LOG_SIGMOID = "log_sigmoid": "m_log_sigmoid(a)";

    // Of one input and scalars.
    ADD_SCALAR = "add_scalar": "wrapping_add(a, s0)";
    SUB_SCALAR = "sub_scalar": "wrapping_sub(a, s0)";
    MUL_SCALAR = "mul_scalar": "wrapping_mul(a, s0)";
    DIV_SCALAR = "div_scalar": "m_div(a, s0)";
    REM_SCALAR = "remainder_scalar": "m_rem(a, s0)";
    POW_SCALAR = "powf_scalar": "m_pow(a, s0)";
    /// Integer base and exponent.
    IPOW_SCALAR = "powi_scalar": "m_ipow(a, s0)";
    CLAMP = "clamp": "m_clamp(a, s0, s1)";
    CLAMP_MIN = "clamp_min": "a < s0 ? s0 : a";
    CLAMP_MAX = "clamp_max": "a > s0 ? s0 : a";
    LEAKY_RELU = "leaky_relu": "a < 0 ? a * s0 : a";
    HARD_SIGMOID = "hard_sigmoid": "m_clamp(a * s0 + s1, (Compute<A_T>)0, (Compute<A_T>)1)";
    AND_SCALAR = "bitwise_and_scalar": "a & s0";
    OR_SCALAR = "bitwise_or_scalar": "a | s0";
    XOR_SCALAR = "bitwise_xor_scalar": "a ^ s0";
    SHL_SCALAR = "bitwise_left_shift_scalar": "m_shl(a, s0)";
    SHR_SCALAR = "bitwise_right_shift_scalar": "m_shr(a, s0)";
    EQUAL_SCALAR = "equal_elem": "a == s0";
    NOT_EQUAL_SCALAR = "not_equal_elem": "a != s0";
    GREATER_SCALAR = "greater_elem": "a > s0";
    GREATER_EQUAL_SCALAR = "greater_equal_elem": "a >= s0";
    LOWER_SCALAR = "lower_elem": "a < s0";
    LOWER_EQUAL_SCALAR = "lower_equal_elem": "a <= s0";

    // Of two inputs.
    ADD = "add": "wrapping_add(a, b)";
    SUB = "sub": "wrapping_sub(a, b)";
    MUL = "mul": "wrapping_mul(a, b)";
    DIV = "div": "m_div(a, b)";
    REM = "remainder": "m_rem(a, b)";
    POW = "powf": "m_pow(a, b)";
    IPOW = "powi": "m_ipow(a, b)";
    ATAN2 = "atan2": "m_atan2(a, b)";
    AND = "bitwise_and": "a & b";
    OR = "bitwise_or": "a | b";
    XOR = "bitwise_xor": "a ^ b";
    SHL = "bitwise_left_shift": "m_shl(a, b)";
    SHR = "bitwise_right_shift": "m_shr(a, b)";
    EQUAL = "equal": "a == b";
    NOT_EQUAL = "not_equal": "a != b";
    GREATER = "greater": "a > b";
    GREATER_EQUAL = "greater_equal": "a >= b";
    LOWER = "lower": "a < b";
    LOWER_EQUAL = "lower_equal": "a <= b";
    PRELU = "prelu": "a < 0 ? a * b : a";
    /// Of output and output gradient.
    RELU_BACKWARD = "relu_backward": "a <= 0 ? (Compute<B_T>)0 : b";
    /// Of input and output gradient.
    GELU_BACKWARD = "gelu_backward": "m_gelu_grad(a) * b";
    /// Of output and output gradient.
    SIGMOID_BACKWARD = "sigmoid_backward": "a * (1 - a) * b";
    /// Of input and output gradient.
    LOG_SIGMOID_BACKWARD = "log_sigmoid_backward": "m_sigmoid(-a) * b";
    /// Where the mask `b`: the scalar.
    MASK_FILL = "mask_fill": "b ? s0 : a";

    // Of three inputs.
    /// Where the mask `b`: `c`.
    MASK_WHERE = "mask_where": "b ? c : a";
}

/// Runs `op` on inputs that broadcast to one shape, into a fresh tensor of `dtype` or one of the inputs' buffers.
fn run<const N: usize>(
    op: &'static Op,
    inputs: [CudaTensor; N],
    dtype: DType,
    scalars: [ScalarArg; 2],
    scalar_elem: Elem,
) -> Result<CudaTensor> {
    check::same_device(op.name, &inputs.each_ref())?;
    let mut shape = inputs[0].layout().shape().clone();
    for input in &inputs[1..] {
        if input.dims() != shape.as_slice() {
            shape = broadcast(shape.as_slice(), input.dims()).ok_or_else(|| Error::Shape {
                op: op.name,
                detail: "the shapes do not broadcast".into(),
                shapes: inputs.iter().map(|t| t.dims().to_vec()).collect(),
            })?;
        }
    }
    let elem = Elem::of(op.name, dtype)?;
    // Whatever operand is overwritten: sums over the result depend on its order, and must not on who holds an operand.
    let layout = match inputs.iter().find(|t| t.layout().shape() == &shape && !t.layout().repeats()) {
        Some(like) => like.layout().packed(),
        None => Layout::contiguous(shape),
    };
    if let Some(k) = inputs.iter().position(|t| may_overwrite(t, &layout, elem)) {
        let out = inputs[k].clone().with_dtype(dtype, op.name)?;
        elementwise(op, &out, &inputs.each_ref(), scalars, scalar_elem)?;
        return Ok(out);
    }
    let out =
        CudaTensor::empty(inputs[0].device(), layout.shape().clone(), dtype, op.name)?.into_layout(layout);
    elementwise(op, &out, &inputs.each_ref(), scalars, scalar_elem)?;
    Ok(out)
}

/// Whether an operand's buffer can take an output of this layout: nobody else sees it, and each element lies where the
/// output's will.
fn may_overwrite(input: &CudaTensor, layout: &Layout, elem: Elem) -> bool {
    input.is_unique()
        && input.elem().size_bytes() == elem.size_bytes()
        && input.fills_storage()
        && input.layout().steps_as(layout)
}

fn no_scalars() -> [ScalarArg; 2] {
    [ScalarArg::default(); 2]
}

/// `op(x)`, in `x`'s dtype.
pub(crate) fn unary(op: &'static Op, x: CudaTensor) -> Result<CudaTensor> {
    let (dtype, elem) = (x.dtype(), x.elem());
    run(op, [x], dtype, no_scalars(), elem)
}

/// `op(x)` of a float tensor.
pub(crate) fn unary_float(op: &'static Op, x: CudaTensor) -> Result<CudaTensor> {
    check::float(op.name, &x)?;
    unary(op, x)
}

/// `op(x)`, in a bool dtype.
pub(crate) fn unary_to(op: &'static Op, x: CudaTensor, dtype: DType) -> Result<CudaTensor> {
    let elem = x.elem();
    run(op, [x], dtype, no_scalars(), elem)
}

/// `op(x, scalar)`, in `x`'s dtype.
pub(crate) fn scalar(op: &'static Op, x: CudaTensor, s0: Scalar) -> Result<CudaTensor> {
    scalar2(op, x, s0, Scalar::Int(0))
}

/// `op(x, s0, s1)`, in `x`'s dtype.
pub(crate) fn scalar2(op: &'static Op, x: CudaTensor, s0: Scalar, s1: Scalar) -> Result<CudaTensor> {
    let (dtype, elem) = (x.dtype(), x.elem());
    run(op, [x], dtype, [ScalarArg::value(elem, s0), ScalarArg::value(elem, s1)], elem)
}

/// `op(x, scalar)` in a bool dtype.
pub(crate) fn compare_scalar(op: &'static Op, x: CudaTensor, s0: Scalar, dtype: DType) -> Result<CudaTensor> {
    let elem = x.elem();
    run(op, [x], dtype, [ScalarArg::value(elem, s0), ScalarArg::default()], elem)
}

/// `op(a, b)`, in their dtype.
pub(crate) fn binary(op: &'static Op, a: CudaTensor, b: CudaTensor) -> Result<CudaTensor> {
    check::same_dtype(op.name, &[&a, &b])?;
    let (dtype, elem) = (a.dtype(), a.elem());
    run(op, [a, b], dtype, no_scalars(), elem)
}

/// `op(a, b)` in a bool dtype.
pub(crate) fn compare(op: &'static Op, a: CudaTensor, b: CudaTensor, dtype: DType) -> Result<CudaTensor> {
    check::same_dtype(op.name, &[&a, &b])?;
    let elem = a.elem();
    run(op, [a, b], dtype, no_scalars(), elem)
}

/// Where `mask`: `value`, else `x`.
pub(crate) fn mask_fill(x: CudaTensor, mask: CudaTensor, value: Scalar) -> Result<CudaTensor> {
    mask_is_bool("mask_fill", &mask)?;
    let (dtype, elem) = (x.dtype(), x.elem());
    run(&MASK_FILL, [x, mask], dtype, [ScalarArg::value(elem, value), ScalarArg::default()], elem)
}

/// Where `mask`: `value`'s element, else `x`'s.
pub(crate) fn mask_where(x: CudaTensor, mask: CudaTensor, value: CudaTensor) -> Result<CudaTensor> {
    mask_is_bool("mask_where", &mask)?;
    check::same_dtype("mask_where", &[&x, &value])?;
    let (dtype, elem) = (x.dtype(), x.elem());
    run(&MASK_WHERE, [x, mask, value], dtype, no_scalars(), elem)
}

fn mask_is_bool(op: &'static str, mask: &CudaTensor) -> Result<()> {
    if mask.elem() == Elem::B8 {
        return Ok(());
    }
    Err(Error::DType { op, detail: "the mask must be a bool tensor".into(), dtypes: vec![mask.dtype()] })
}

/// The elements converted to `dtype`: float to integer saturates (NaN gives 0), integer to integer keeps the low bits,
/// and anything but 0 is true.
pub(crate) fn cast(x: CudaTensor, dtype: DType) -> Result<CudaTensor> {
    if x.dtype() == dtype {
        return Ok(x);
    }
    if x.elem() == Elem::of("cast", dtype)? {
        return x.with_dtype(dtype, "cast");
    }
    unary_to(&COPY, x, dtype)
}

/// A tensor of one value.
pub(crate) fn full(
    device: &'static Device,
    shape: impl Into<Shape>,
    value: Scalar,
    dtype: DType,
    op: &'static str,
) -> Result<CudaTensor> {
    let out = CudaTensor::empty(device, shape, dtype, op)?;
    fill(&out, value)?;
    Ok(out)
}

/// A tensor of zeros.
pub(crate) fn zeros(
    device: &'static Device,
    shape: impl Into<Shape>,
    dtype: DType,
    op: &'static str,
) -> Result<CudaTensor> {
    full(device, shape, Scalar::Int(0), dtype, op)
}

/// Sets every element of `out`, which may be a view.
#[allow(unsafe_code)]
pub(crate) fn fill(out: &CudaTensor, value: Scalar) -> Result<()> {
    let scalar = ScalarArg::value(out.elem(), value);
    if out.elem().scalar_bits(value) == 0 && out.layout().is_contiguous() && !out.is_empty() {
        let device = out.device();
        device.enter()?;
        // SAFETY: a contiguous tensor covers exactly this range of its live storage.
        unsafe { device.context.clear(out.ptr(), out.len() * out.elem().size_bytes()) }
            .map_err(|e| device.note(e))?;
        device.used(&[out], &[], None);
        return Ok(());
    }
    elementwise(&FILL, out, &[], [scalar, ScalarArg::default()], out.elem())
}

/// `start, start + step, ..` below `end`.
pub(crate) fn arange(
    device: &'static Device,
    start: i64,
    end: i64,
    step: usize,
    dtype: DType,
) -> Result<CudaTensor> {
    if step == 0 {
        return Err(Error::Argument { op: "arange", detail: "the step must not be 0".into() });
    }
    let len = if end > start { (end.abs_diff(start) as usize).div_ceil(step) } else { 0 };
    let out = CudaTensor::empty(device, [len], dtype, "arange")?;
    let bits = |x: i64| ScalarArg::value(out.elem(), Scalar::Int(x));
    elementwise(&ARANGE, &out, &[], [bits(start), bits(step as i64)], out.elem())?;
    Ok(out)
}

/// Writes `source` over `target`, which may be a view; `source` broadcasts to its shape and is converted to its dtype.
/// The two must not overlap, unless they are the same elements.
pub(crate) fn copy_into(target: &CudaTensor, source: &CudaTensor) -> Result<()> {
    check::same_device("copy", &[target, source])?;
    if source.layout().expand(target.dims()).is_none() {
        return Err(Error::Shape {
            op: "copy",
            detail: "the source does not broadcast to the target".into(),
            shapes: vec![target.dims().to_vec(), source.dims().to_vec()],
        });
    }
    if target.elem() == source.elem() && transpose(target, source)? {
        return Ok(());
    }
    elementwise(&COPY, target, &[source], no_scalars(), source.elem())
}

/// For tests that compile every expression.
#[cfg(test)]
pub(crate) mod examples {
    use super::Op;
    use crate::dtype::Elem;

    /// Inputs that the expression names.
    fn inputs(op: &Op) -> usize {
        let names = |x: char| {
            op.expr.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == x.to_string())
        };
        ['a', 'b', 'c'].into_iter().filter(|&x| names(x)).count()
    }

    /// The dtypes that an operation is for: every float, and an integer of each kind of arithmetic.
    pub(crate) fn dtypes(op: &Op) -> Vec<Elem> {
        let any = [
            "full",
            "copy",
            "neg",
            "abs",
            "sign",
            "add",
            "sub",
            "mul",
            "div",
            "remainder",
            "add_scalar",
            "sub_scalar",
            "mul_scalar",
            "div_scalar",
            "remainder_scalar",
            "clamp",
            "clamp_min",
            "clamp_max",
            "equal",
            "not_equal",
            "greater",
            "greater_equal",
            "lower",
            "lower_equal",
            "equal_elem",
            "not_equal_elem",
            "greater_elem",
            "greater_equal_elem",
            "lower_elem",
            "lower_equal_elem",
            "mask_fill",
            "mask_where",
        ];
        let ints = vec![Elem::I32, Elem::U8, Elem::I64];
        let floats = vec![Elem::F32, Elem::F64, Elem::F16, Elem::BF16];
        match op.name {
            "not" => vec![Elem::B8],
            name if any.contains(&name) => [ints, floats].concat(),
            name if name.starts_with("bitwise") || name.starts_with("powi") || name == "arange" => ints,
            _ => floats,
        }
    }

    /// The element types of `op`'s output and inputs for tensors of `elem`.
    pub(crate) fn operands(op: &Op, elem: Elem) -> Vec<Elem> {
        let bool_out =
            ["equal", "not_equal", "greater", "lower", "is_"].iter().any(|p| op.name.starts_with(p));
        let mut elems = vec![elem; 1 + inputs(op)];
        if bool_out {
            elems[0] = Elem::B8;
        }
        if op.name.starts_with("mask") {
            elems[2] = Elem::B8;
        }
        elems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{Compiler, Nvrtc};
    use crate::kernels::elementwise::contiguous_source;

    #[test]
    fn expressions_name_only_what_an_elementwise_kernel_has() {
        for op in ALL {
            let mut depth = 0i32;
            for c in op.expr.chars() {
                depth += (c == '(') as i32 - (c == ')') as i32;
                assert!(depth >= 0, "{}", op.name);
            }
            assert_eq!(depth, 0, "{}: {}", op.name, op.expr);
            assert!(!op.expr.contains(['#', '\n', ';']), "{}: {}", op.name, op.expr);
        }
    }

    /// Needs NVRTC, but no GPU; says so where it is not installed.
    #[test]
    fn every_expression_compiles_for_its_dtypes() {
        if let Err(why) = Nvrtc.version() {
            println!("SKIPPED: {why}");
            return;
        }
        for op in ALL {
            for elem in examples::dtypes(op) {
                let source = contiguous_source(op, &examples::operands(op, elem)).unwrap();
                if let Err(error) = Nvrtc.compile(&source, "sm_90a") {
                    panic!("{} for {elem:?}: {error}", op.name);
                }
            }
        }
    }
}
