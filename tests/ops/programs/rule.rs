//! [`Rule`]: how an operation's results are compared with burn-flex's.

use burn_backend::{DType, TensorData};
use kiln_surface::Op;

use super::fit::bare;
use crate::harness::{Dense, Tolerance, Values};

/// How near results must be.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Copies, comparisons, extrema.
    Exact,
    /// Rounded once.
    Rounded,
    /// A function of each element.
    Function,
    /// Sums and products.
    Sum,
    /// More than one stored step; so many times as far.
    Chain(f64),
}

/// How an operation's results are compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    kind: Kind,
    /// Operands beyond this have no defined results, or sums of them lose all digits.
    limit: f64,
    /// What it does with NaN is a rule of its own in Kiln.
    orders: bool,
}

/// Numbers that sums and whole formulas are compared for.
const TAME: f64 = 1e3;

#[rustfmt::skip]
fn kind(name: &str) -> Kind {
    match name {
        "to_device" | "repeat_dim" | "transpose" | "swap_dims" | "permute" | "flip" | "reshape" | "gather" | "gather_nd" | "select"
        | "slice" | "slice_assign" | "mask_where" | "zeros" | "ones" | "cat" | "expand" | "unfold" | "unfold4d" | "embedding"
        | "max" | "min" | "max_dim" | "min_dim" | "max_dim_with_indices" | "min_dim_with_indices" | "max_abs" | "max_abs_dim"
        | "cummin" | "cummax" | "topk" | "sort" | "sort_with_indices" | "argsort" | "neg" | "abs" | "sign" | "round" | "floor"
        | "ceil" | "trunc" | "relu" | "relu_backward" | "max_pool1d" | "max_pool2d" | "max_pool1d_with_indices"
        | "max_pool2d_with_indices" | "argmax" | "argmin" | "equal" | "not_equal" | "greater" | "greater_equal" | "lower"
        | "lower_equal" | "equal_elem" | "not_equal_elem" | "greater_elem" | "greater_equal_elem" | "lower_elem"
        | "lower_equal_elem" | "any" | "all" | "any_dim" | "all_dim" | "is_nan" | "is_inf" | "into_int" => Kind::Exact,
        "full" | "mask_fill" | "clamp" | "clamp_min" | "clamp_max" | "cast" | "into_float" | "add" | "sub" | "mul" | "div" =>
            Kind::Rounded,
        "add_scalar" | "sub_scalar" | "mul_scalar" | "div_scalar" | "recip" | "exp" | "log" | "log1p" | "sqrt" | "cos" | "sin"
        | "tan" | "cosh" | "sinh" | "tanh" | "acos" | "acosh" | "asin" | "asinh" | "atan" | "atanh" | "atan2" | "erf" | "gelu"
        | "sigmoid" | "log_sigmoid" | "leaky_relu" | "prelu" | "hard_sigmoid" | "powf" | "powi" | "powi_scalar"
        | "powi_scalar_impl" | "powf_scalar" | "powf_scalar_impl" | "gelu_backward" | "sigmoid_backward"
        | "log_sigmoid_backward" | "random" | "remainder" | "remainder_scalar" => Kind::Function,
        "sum" | "sum_dim" | "mean" | "mean_dim" | "cumsum" | "prod" | "prod_dim" | "cumprod" | "matmul" | "linear"
        | "select_add" | "scatter_add" => Kind::Sum,
        "layer_norm" => Kind::Chain(300.0),
        "ctc_loss" | "grid_sample_2d" => Kind::Chain(20.0),
        // Columns, and shares, are stored before the product.
        "deform_conv2d" | "deform_conv2d_backward" | "attention" => Kind::Chain(2.0),
        _ if name.contains("conv") || name.contains("pool") => Kind::Sum,
        _ => Kind::Chain(1.0),
    }
}

impl Rule {
    pub(crate) fn of(op: &Op) -> Self {
        let name = bare(op.name());
        let kind = match (kind(name), op) {
            // cuBLASLt rounds a 16-bit product before it adds the bias, for some shapes.
            (
                Kind::Sum,
                Op::conv1d { bias: Some(_), .. }
                | Op::conv2d { bias: Some(_), .. }
                | Op::conv3d { bias: Some(_), .. },
            ) => Kind::Chain(1.0),
            (kind, _) => kind,
        };
        let orders =
            name.contains("max") || name.contains("min") || name.contains("sort") || name.contains("topk");
        let orders = (orders && name != "softmin" && name != "softmax") || name.starts_with("clamp");
        // burn-flex divides by padding that lies outside of the padded image too.
        let other_divisor = matches!(
            op,
            Op::avg_pool1d_backward { ceil_mode: true, count_include_pad: true, .. }
                | Op::avg_pool2d_backward { ceil_mode: true, count_include_pad: true, .. }
        );
        let limit = match (kind, name) {
            _ if other_divisor => -1.0,
            // Each index must name an element of its window, and a program's indices do not.
            (_, "max_pool1d_with_indices_backward" | "max_pool2d_with_indices_backward") => -1.0,
            (Kind::Sum | Kind::Chain(_), _) => TAME,
            (
                _,
                "gelu"
                | "gelu_backward"
                | "log_sigmoid"
                | "log_sigmoid_backward"
                | "hard_sigmoid"
                | "relu_backward",
            ) => TAME,
            (_, "leaky_relu" | "prelu" | "sigmoid_backward" | "sign" | "relu") => f64::MAX,
            // The remainder of a large quotient is of its last digits; an integer holds no larger number.
            (_, "remainder" | "remainder_scalar" | "into_int") => 1e5,
            (_, "acosh" | "asinh" | "atanh") => 1e15,
            _ => f64::INFINITY,
        };
        Rule { kind, limit, orders }
    }

    /// Whether burn-flex gets floats as they are and not in f64.
    pub(crate) fn native(&self) -> bool {
        matches!(self.kind, Kind::Exact | Kind::Rounded)
    }

    /// Whether what these operands give is defined.
    pub(crate) fn defined(&self, operands: &[TensorData]) -> bool {
        operands.iter().filter(|data| data.dtype.is_float()).all(|data| {
            let dense = Dense::of(data);
            let values = dense.as_floats();
            (self.limit.is_infinite() || values.iter().all(|x| x.abs() <= self.limit))
                && !(self.orders && values.iter().any(|x| x.is_nan()))
        })
    }

    /// Whether these results can be compared.
    pub(crate) fn comparable(&self, results: &[Dense]) -> bool {
        let sums = matches!(self.kind, Kind::Sum | Kind::Chain(_));
        !sums
            || results.iter().all(|result| match &result.values {
                Values::Float(values) => values.iter().all(|x| x.abs() < 1e15),
                Values::Int(_) => true,
            })
    }

    pub(crate) fn tolerance(&self, dtype: DType, operands: &[TensorData]) -> Tolerance {
        if !dtype.is_float() {
            return Tolerance::exact();
        }
        let terms = operands.iter().map(|data| data.shape.num_elements()).max().unwrap_or(1);
        // Terms are as large as products of operands.
        let sizes = operands
            .iter()
            .filter(|data| data.dtype.is_float())
            .map(|data| Dense::of(data).as_floats().iter().fold(1.0f64, |most, x| most.max(x.abs())));
        let size: f64 = sizes.product();
        match self.kind {
            Kind::Exact => Tolerance::exact(),
            Kind::Rounded => Tolerance::rounded(dtype),
            Kind::Function => Tolerance::function(dtype).times(2.0),
            Kind::Sum => Tolerance::sum(dtype, terms).times(size),
            Kind::Chain(times) => Tolerance::chain(dtype, 8, terms).times(size * times),
        }
    }
}
