//! [`infer`]: shape and dtype of what an operation gives, from those of its inputs.
//!
//! `rule.rs` is one `match` over [`Op`], grouped by rule; `sizes.rs` has the arithmetic on shapes. What a rule says is what burn-flex gives, and a test compares the two for
//! every operation. Sizes are multiplied and added with checks, so that no input makes a rule panic or wrap.
//!
//! Where Burn's signature does not name the dtype of a result, backends differ; [`Defaults`] holds what they choose.
//!
//! A mismatch of dtypes is an error only where burn-flex refuses it in every build: a matrix product. Elsewhere the
//! result takes the dtype of the first operand, and the backend decides whether it takes the mix.

mod rule;
mod sizes;

use burn_backend::{DType, FloatDType, IntDType, Shape, Slice};
use smallvec::SmallVec;
use thiserror::Error;

use crate::op::{Op, ValueId};

/// What is known of a tensor without its values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Meta {
    /// The size of each dimension.
    pub shape: Shape,
    /// The type of the elements.
    pub dtype: DType,
}

impl Meta {
    /// A tensor of the given shape and dtype.
    pub fn new(shape: impl Into<Shape>, dtype: impl Into<DType>) -> Self {
        Self { shape: shape.into(), dtype: dtype.into() }
    }
}

/// The dtypes that a backend chooses where Burn's signature names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Defaults {
    /// Of float results of quantised operands: the device's default float.
    pub float: FloatDType,
    /// Of indices: `int_argmax`, `int_argmin`, `int_argsort`, `int_argtopk`, the `int_.._with_indices` operations and
    /// the indices of max pooling.
    pub index: IntDType,
}

impl Default for Defaults {
    /// Those of burn-flex.
    fn default() -> Self {
        Self { float: FloatDType::F32, index: IntDType::I64 }
    }
}

/// An operation whose inputs do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{op}: {reason}; inputs: {}", describe(.inputs))]
pub struct InferError {
    /// The name of the operation.
    pub op: &'static str,
    /// Its inputs, in the order of the arguments.
    pub inputs: Vec<Meta>,
    /// What is wrong.
    pub reason: Reason,
}

/// What is wrong with the inputs or attributes of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Reason {
    /// A dimension that the tensor does not have.
    #[error("dimension {dim} of a tensor of rank {rank}")]
    Dim {
        /// The dimension asked for.
        dim: usize,
        /// The rank of the tensor.
        rank: usize,
    },
    /// A tensor of the wrong rank.
    #[error("rank {actual} where {expected} is needed")]
    Rank {
        /// The rank needed.
        expected: usize,
        /// The rank found.
        actual: usize,
    },
    /// Two sizes that must agree.
    #[error("{what}: {left} and {right} do not fit")]
    Size {
        /// Which sizes.
        what: &'static str,
        /// One of them.
        left: usize,
        /// The other.
        right: usize,
    },
    /// Two shapes that must agree or broadcast.
    #[error("{what}: {left:?} and {right:?} do not fit")]
    Shapes {
        /// Which shapes.
        what: &'static str,
        /// One of them.
        left: Box<[usize]>,
        /// The other.
        right: Box<[usize]>,
    },
    /// Two dtypes that must agree.
    #[error("dtypes {left:?} and {right:?} differ")]
    DTypes {
        /// One of them.
        left: DType,
        /// The other.
        right: DType,
    },
    /// A dtype that the operation has no meaning for.
    #[error("dtype {0:?}")]
    DType(DType),
    /// A size or number of elements beyond `isize::MAX`.
    #[error("the result has too many elements")]
    Overflow,
    /// An attribute that makes no sense by itself.
    #[error("{what} {value}")]
    Attribute {
        /// Which attribute.
        what: &'static str,
        /// Its value.
        value: usize,
    },
    /// A window (kernel with dilation, or slice of an unfold) that is larger than what it slides over.
    #[error("a window of {window} over {size}")]
    Window {
        /// The size of the window.
        window: usize,
        /// The padded size of the dimension.
        size: usize,
    },
    /// Axes that are not a permutation of the dimensions, or name one twice.
    #[error("axes {0:?}")]
    Axes(Vec<usize>),
    /// More slices than dimensions, or a step of zero.
    #[error("slices {0:?}")]
    Slices(Vec<Slice>),
    /// No tensors to concatenate.
    #[error("no tensors")]
    Empty,
    /// An operation of another crate, which knows its rule.
    #[error("an extension, whose rule is not known here")]
    Extension,
}

fn describe(inputs: &[Meta]) -> String {
    let inputs: Vec<_> = inputs.iter().map(|meta| format!("{:?}{:?}", meta.dtype, &meta.shape[..])).collect();
    if inputs.is_empty() { "none".into() } else { inputs.join(", ") }
}

/// What an operation gives, one [`Meta`] per tensor.
pub type Outputs = SmallVec<[Meta; 2]>;

/// Shape and dtype of what `op` gives on burn-flex, or on another backend with the same [`Defaults`].
///
/// # Errors
/// [`InferError`] if inputs and attributes do not fit together, if the number of elements of a result overflows, and
/// for an extension.
///
/// # Examples
/// ```
/// use burn_backend::DType;
/// use kiln_surface::{Meta, Op, ValueId, infer};
///
/// let values = [Meta::new([4, 1, 3], DType::F32), Meta::new([1, 5, 3], DType::F32)];
/// let op = Op::float_add { lhs: ValueId(0), rhs: ValueId(1) };
/// let sum = infer(&op, &|value| &values[value.0 as usize])?;
/// assert_eq!(sum[0], Meta::new([4, 5, 3], DType::F32));
/// # Ok::<(), kiln_surface::InferError>(())
/// ```
pub fn infer<'a>(op: &Op, meta: &dyn Fn(ValueId) -> &'a Meta) -> Result<Outputs, InferError> {
    infer_with(op, meta, &Defaults::default())
}

/// [`infer`] for a backend with other defaults.
///
/// # Errors
/// As for [`infer`].
pub fn infer_with<'a>(
    op: &Op,
    meta: &dyn Fn(ValueId) -> &'a Meta,
    defaults: &Defaults,
) -> Result<Outputs, InferError> {
    rule::rule(op, meta, defaults).and_then(checked).map_err(|reason| {
        let mut inputs = Vec::new();
        op.inputs(&mut |value| inputs.push(meta(value).clone()));
        InferError { op: op.name(), inputs, reason }
    })
}

/// The number of elements of a shape, sizes of zero counted as one, or `Overflow`: so are strides that do not fit.
fn checked(outputs: Outputs) -> Result<Outputs, Reason> {
    for meta in &outputs {
        let sizes = meta.shape.iter().map(|&size| size.max(1));
        let bytes = sizes.chain([element_bytes(meta.dtype)]).try_fold(1usize, usize::checked_mul);
        bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or(Reason::Overflow)?;
    }
    Ok(outputs)
}

/// Bytes of an element; quantised values count as one, whatever their packing.
pub(crate) fn element_bytes(dtype: DType) -> usize {
    match dtype {
        DType::QFloat(_) => 1,
        _ => dtype.size(),
    }
}

#[cfg(test)]
mod tests {
    use burn_std::device::DeviceId;
    use smallvec::smallvec;

    use super::*;

    fn f32s(shapes: &[&[usize]]) -> Vec<Meta> {
        shapes.iter().map(|&shape| Meta::new(Shape::from(shape.to_vec()), DType::F32)).collect()
    }

    fn infer_on(op: Op, inputs: &[Meta]) -> Result<Outputs, InferError> {
        infer(&op, &|value| &inputs[value.0 as usize])
    }

    fn reason(op: Op, shapes: &[&[usize]]) -> Reason {
        infer_on(op, &f32s(shapes)).expect_err("inputs that do not fit").reason
    }

    const A: ValueId = ValueId(0);
    const B: ValueId = ValueId(1);

    #[test]
    fn an_error_names_the_op_its_inputs_and_the_reason() {
        let inputs = f32s(&[&[2, 3], &[2, 4]]);
        let error = infer_on(Op::float_add { lhs: A, rhs: B }, &inputs).unwrap_err();
        let text = "float_add: shapes: [2, 3] and [2, 4] do not fit; inputs: F32[2, 3], F32[2, 4]";
        assert_eq!(error.to_string(), text);
        assert_eq!((error.op, error.inputs), ("float_add", inputs));
    }

    #[test]
    fn dimensions_must_exist() {
        let sum = Op::float_sum_dim { tensor: A, dim: 2 };
        assert_eq!(reason(sum, &[&[2, 3]]), Reason::Dim { dim: 2, rank: 2 });
        let axes = Op::float_permute { tensor: A, axes: smallvec![0, 0] };
        assert_eq!(reason(axes, &[&[2, 3]]), Reason::Axes(vec![0, 0]));
        assert_eq!(
            reason(Op::float_transpose { tensor: A }, &[&[2]]),
            Reason::Rank { expected: 2, actual: 1 }
        );
    }

    #[test]
    fn inner_dimensions_and_dtypes_of_a_matmul_must_agree() {
        let matmul = Op::float_matmul { lhs: A, rhs: B };
        let inner = Reason::Size { what: "inner dimensions", left: 3, right: 4 };
        assert_eq!(reason(matmul.clone(), &[&[2, 3], &[4, 5]]), inner);
        let mixed = [Meta::new([2, 3], DType::F32), Meta::new([3, 2], DType::F16)];
        let dtypes = Reason::DTypes { left: DType::F32, right: DType::F16 };
        assert_eq!(infer_on(matmul, &mixed).unwrap_err().reason, dtypes);
    }

    #[test]
    fn too_many_elements_are_an_error() {
        let half = 1 << 32;
        let add = Op::float_add { lhs: A, rhs: B };
        assert_eq!(reason(add, &[&[half, 1], &[1, half]]), Reason::Overflow);
        let repeat = Op::float_repeat_dim { tensor: A, dim: 0, times: usize::MAX };
        assert_eq!(reason(repeat, &[&[2]]), Reason::Overflow);
        let device = DeviceId::new(0, 0);
        let zeros = Op::float_zeros { shape: [half, half, 0].into(), device, dtype: FloatDType::F32 };
        assert_eq!(
            reason(zeros, &[]),
            Reason::Overflow,
            "strides are counted although there are no elements"
        );
        let range = Op::int_arange { range: i64::MIN..i64::MAX, device, dtype: IntDType::I64 };
        assert_eq!(reason(range, &[]), Reason::Overflow);
    }

    #[test]
    fn slices_count_from_the_end_and_are_clamped() {
        let slice = |slices: &[Slice]| {
            let op = Op::float_slice { tensor: A, slices: slices.to_vec() };
            infer_on(op, &f32s(&[&[10, 4]])).map(|outputs| outputs[0].shape.to_vec())
        };
        assert_eq!(slice(&[Slice::new(-3, None, 1)]).unwrap(), [3, 4]);
        assert_eq!(slice(&[Slice::new(0, Some(100), 3), Slice::new(1, Some(-1), -1)]).unwrap(), [4, 2]);
        assert_eq!(slice(&[Slice::new(5, Some(2), 1)]).unwrap(), [0, 4]);
        assert_eq!(slice(&[Slice::new(isize::MIN, Some(isize::MAX), isize::MIN)]).unwrap(), [1, 4]);
        let zero = Slice { start: 0, end: None, step: 0 };
        assert_eq!(slice(&[zero]).unwrap_err().reason, Reason::Slices(vec![zero]));
    }

    #[test]
    fn windows_must_fit_and_move() {
        let unfold = |size, step| Op::float_unfold { tensor: A, dim: 0, size, step };
        assert_eq!(reason(unfold(5, 1), &[&[4]]), Reason::Window { window: 5, size: 4 });
        assert_eq!(reason(unfold(2, 0), &[&[4]]), Reason::Attribute { what: "stride", value: 0 });
        let pool = Op::max_pool1d {
            x: A,
            kernel_size: usize::MAX,
            stride: 1,
            padding: usize::MAX,
            dilation: usize::MAX,
            ceil_mode: true,
        };
        assert_eq!(reason(pool, &[&[1, 1, 4]]), Reason::Overflow);
    }
}
