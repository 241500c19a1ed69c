//! Where the values of a variable lie, as far as that is known: [`range`].

use burn_backend::{DType, Distribution, Scalar};
use kiln_surface::arguments::Values;
use kiln_surface::{Meta, Op};

use super::fit::bare;

/// Numbers from `low` to `high`, both included; booleans are 0 and 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    low: f64,
    high: f64,
}

impl Range {
    pub(crate) fn of(values: Values) -> Self {
        match values {
            Values::Float { low, high } => Range { low, high },
            // No index at all is one of an empty dimension.
            Values::Int { low, high } => Range { low: low as f64, high: high as f64 - 1.0 },
            Values::Bool => Range { low: 0.0, high: 1.0 },
            Values::Quantized { low } => Range { low: low.into(), high: 127.0 },
        }
    }

    pub(crate) fn within(&self, other: &Range) -> bool {
        self.low >= other.low && self.high <= other.high
    }

    fn join(self, other: Range) -> Range {
        Range { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    fn mul(self, other: Range) -> Range {
        let products =
            [self.low * other.low, self.low * other.high, self.high * other.low, self.high * other.high];
        Range {
            low: products.into_iter().fold(f64::INFINITY, f64::min),
            high: products.into_iter().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// The values of result number `output`, from those of the operands.
pub(crate) fn range(
    op: &Op,
    output: usize,
    operands: &[Option<Range>],
    first: Option<&Meta>,
    scalars: &[Scalar],
    dtype: DType,
) -> Option<Range> {
    let range = guess(op, output, operands, first, scalars)?;
    let (low, high) = match dtype {
        DType::I8 => (-128.0, 127.0),
        DType::U8 => (0.0, 255.0),
        dtype if dtype.is_uint() => (0.0, 1e4),
        DType::F16 | DType::BF16 => (-1e3, 1e3),
        _ => (-1e4, 1e4),
    };
    range.within(&Range { low, high }).then_some(range)
}

fn guess(
    op: &Op,
    output: usize,
    operands: &[Option<Range>],
    first: Option<&Meta>,
    scalars: &[Scalar],
) -> Option<Range> {
    let a = || operands.first().copied().flatten();
    let b = || operands.get(1).copied().flatten();
    let unit = Range { low: 0.0, high: 1.0 };
    // Runs vary a scalar upwards.
    let scalar = scalars.first().and_then(|scalar| match scalar {
        Scalar::Float(value) => Some(Range { low: *value, high: value + 0.5 }),
        Scalar::Int(value) => Some(Range { low: *value as f64, high: *value as f64 + 2.0 }),
        Scalar::UInt(value) => Some(Range { low: *value as f64, high: *value as f64 + 2.0 }),
        Scalar::Bool(_) => None,
    });
    let name = op.name();
    if name.starts_with("q_") || name.contains("quantize") {
        return None;
    }
    // What a dimension has an index for.
    if output == 1 && name.contains("with_indices") || name.contains("arg") {
        return index_range(op, first?);
    }
    Some(match bare(name) {
        "reshape"
        | "slice"
        | "transpose"
        | "swap_dims"
        | "permute"
        | "flip"
        | "expand"
        | "repeat_dim"
        | "unfold"
        | "sort"
        | "sort_with_indices"
        | "max"
        | "min"
        | "max_dim"
        | "min_dim"
        | "max_dim_with_indices"
        | "min_dim_with_indices"
        | "topk"
        | "select"
        | "gather"
        | "gather_nd"
        | "cummin"
        | "cummax"
        | "to_device"
        | "into_float"
        | "interpolate" => a()?,
        "cast" => {
            let Range { low, high } = a()?;
            Range { low: low - low.abs() / 64.0, high: high + high.abs() / 64.0 }
        }
        "into_int" => {
            let Range { low, high } = a()?;
            Range { low: low.floor(), high: high.ceil() }
        }
        "cat" => {
            let mut all = a()?;
            for other in operands {
                all = all.join((*other)?);
            }
            all
        }
        "slice_assign" => a()?.join(b()?),
        "mask_where" => a()?.join(operands.get(2).copied().flatten()?),
        "mask_fill" => a()?.join(scalar?),
        "full" => scalar?,
        "zeros" | "ones" | "empty" => unit,
        "add" => Range { low: a()?.low + b()?.low, high: a()?.high + b()?.high },
        "sub" => Range { low: a()?.low - b()?.high, high: a()?.high - b()?.low },
        "add_scalar" => Range { low: a()?.low + scalar?.low, high: a()?.high + scalar?.high },
        "sub_scalar" => Range { low: a()?.low - scalar?.high, high: a()?.high - scalar?.low },
        "mul" => a()?.mul(b()?),
        "mul_scalar" => a()?.mul(scalar?),
        "neg" => Range { low: -a()?.high, high: -a()?.low },
        "abs" => Range { low: 0.0, high: a()?.high.max(-a()?.low) },
        "relu" => Range { low: 0.0, high: a()?.high.max(0.0) },
        "exp" => Range { low: 0.0, high: a()?.high.exp() * 1.01 },
        "sigmoid" | "softmax" | "softmin" | "equal" | "greater" | "lower" | "not" | "and" | "or" | "xor" => {
            unit
        }
        "tanh" | "sin" | "cos" | "erf" | "sign" => Range { low: -1.0, high: 1.0 },
        "round" | "floor" | "ceil" | "trunc" => Range { low: a()?.low.floor(), high: a()?.high.ceil() },
        _ if name.ends_with("_random") => match op.draw()?.distribution {
            Distribution::Uniform(low, high) => Range { low, high },
            Distribution::Bernoulli(_) => unit,
            _ => return None,
        },
        _ => return None,
    })
}

/// The indices that an operation gives, which are below the size of its dimension.
fn index_range(op: &Op, first: &Meta) -> Option<Range> {
    use Op::*;
    let dim = match op {
        float_argmax { dim, .. }
        | float_argmin { dim, .. }
        | float_argsort { dim, .. }
        | float_max_dim_with_indices { dim, .. }
        | float_min_dim_with_indices { dim, .. }
        | float_sort_with_indices { dim, .. }
        | int_argmax { dim, .. }
        | int_argmin { dim, .. }
        | int_argsort { dim, .. }
        | int_max_dim_with_indices { dim, .. }
        | int_min_dim_with_indices { dim, .. }
        | int_sort_with_indices { dim, .. } => *dim,
        _ => return None,
    };
    let size = *first.shape.iter().nth(dim)?;
    (size > 0).then_some(Range { low: 0.0, high: size as f64 - 1.0 })
}
