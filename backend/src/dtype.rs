//! Element types of device buffers and their names in kernels.

use burn_backend::Scalar;
use burn_std::{BoolStore, DType};
use num_traits::ToPrimitive;

use crate::error::{Error, Result};

/// An element type as kernels know it; the name is the type's in `common/prelude.cuh`.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Elem {
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    B8,
}

impl Elem {
    /// The element type that stores `dtype`, or an error naming `op` when the backend has none.
    pub(crate) fn of(op: &'static str, dtype: DType) -> Result<Elem> {
        Ok(match dtype {
            DType::F64 => Elem::F64,
            // Flex32 promises at most f32's precision.
            DType::F32 | DType::Flex32 => Elem::F32,
            DType::F16 => Elem::F16,
            DType::BF16 => Elem::BF16,
            DType::I64 => Elem::I64,
            DType::I32 => Elem::I32,
            DType::I16 => Elem::I16,
            DType::I8 => Elem::I8,
            DType::U64 => Elem::U64,
            DType::U32 => Elem::U32,
            DType::U16 => Elem::U16,
            DType::U8 => Elem::U8,
            DType::Bool(BoolStore::Native | BoolStore::U8) => Elem::B8,
            DType::Bool(BoolStore::U32) | DType::QFloat(_) => {
                return Err(Error::DType {
                    op,
                    detail: "this dtype is not supported on CUDA".into(),
                    dtypes: vec![dtype],
                });
            }
        })
    }

    /// The type's name in kernels.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Elem::F64 => "f64",
            Elem::F32 => "f32",
            Elem::F16 => "f16",
            Elem::BF16 => "bf16",
            Elem::I64 => "i64",
            Elem::I32 => "i32",
            Elem::I16 => "i16",
            Elem::I8 => "i8",
            Elem::U64 => "u64",
            Elem::U32 => "u32",
            Elem::U16 => "u16",
            Elem::U8 => "u8",
            Elem::B8 => "b8",
        }
    }

    /// Bytes of one element.
    pub(crate) fn size_bytes(self) -> usize {
        match self {
            Elem::F64 | Elem::I64 | Elem::U64 => 8,
            Elem::F32 | Elem::I32 | Elem::U32 => 4,
            Elem::F16 | Elem::BF16 | Elem::I16 | Elem::U16 => 2,
            Elem::I8 | Elem::U8 | Elem::B8 => 1,
        }
    }

    /// Whether it is a floating-point type.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Elem::F64 | Elem::F32 | Elem::F16 | Elem::BF16)
    }

    /// Whether it is an integer type.
    pub(crate) fn is_int(self) -> bool {
        !self.is_float() && self != Elem::B8
    }

    /// The name of the type that arithmetic on it is done in (`Compute<T>` in the prelude).
    pub(crate) fn compute_name(self) -> &'static str {
        match self {
            Elem::F16 | Elem::BF16 => "f32",
            Elem::B8 => "bool",
            other => other.name(),
        }
    }

    /// The 8 bytes in which a scalar of this type travels to a kernel (`ScalarArg` in the prelude): an `f64` for
    /// float types, else a 64-bit integer. A float given to an integer type saturates and takes NaN to 0.
    pub(crate) fn scalar_bits(self, value: Scalar) -> u64 {
        if self.is_float() {
            return value.to_f64().unwrap_or(f64::NAN).to_bits();
        }
        match value {
            Scalar::Float(x) if self == Elem::U64 => x as u64,
            Scalar::Float(x) => x as i64 as u64,
            Scalar::Int(x) => x as u64,
            Scalar::UInt(x) => x,
            Scalar::Bool(x) => x as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_travel_in_the_type_of_the_tensor() {
        assert_eq!(Elem::BF16.scalar_bits(Scalar::Int(3)), 3f64.to_bits());
        assert_eq!(Elem::I32.scalar_bits(Scalar::Float(-2.9)), -2i64 as u64);
        assert_eq!(Elem::U64.scalar_bits(Scalar::UInt(u64::MAX)), u64::MAX);
        assert_eq!(Elem::I8.scalar_bits(Scalar::Float(f64::NAN)), 0);
        assert_eq!(Elem::B8.scalar_bits(Scalar::Bool(true)), 1);
    }

    #[test]
    fn unsupported_dtypes_are_named() {
        let error = Elem::of("float_add", DType::Bool(BoolStore::U32)).unwrap_err().to_string();
        assert!(error.contains("float_add") && error.contains("Bool(U32)"), "{error}");
    }
}
