//! A quantised tensor on a CUDA device: packed integers, their scales, and a layout over them.
//!
//! # What is stored
//!
//! A value `q` of a scheme stands for `scale * q`. Values lie in 32-bit words, the first in the lowest bits:
//!
//! | store | bits of a value |
//! |---|---|
//! | `Native` | 8, whatever the value is |
//! | `PackedU32(0)` | 8, 4 or 2, across the whole tensor in row-major order |
//!
//! So a tensor's words are the bytes that `TensorData` holds (`burn_std`'s `QuantizedBytes`), but for what fills the last
//! word. Scales are f32, rounded to the precision that the scheme names. They belong to all values, or, for blocks, to runs
//! of so many neighbours as a block has elements, counted in row-major order through the whole tensor: that is what Burn's
//! `compute_range` and `QuantizedBytes` mean by a block of more than one dimension, too.
//!
//! # Moving values
//!
//! Dimensions are permuted, flipped, expanded, sliced and reshaped by a new layout over the same values, which keep the
//! scale of their place in storage: nothing is computed and nothing is lost. Where values must be copied (select, gather,
//! a reshape that the strides do not allow), their scales are copied with them: one for as many neighbours of the result as
//! are sure to share it, at worst one for each.
//!
//! Burn's format has one scale for a block of the result. A tensor whose blocks hold values of several scales is quantised
//! anew when it is read to the host, as burn-flex does at each operation.

use burn_backend::quantization::{QuantLevel, QuantMode, QuantParam, QuantScheme, QuantStore, QuantValue};
use burn_backend::{QTensorPrimitive, Shape, TensorMetadata};
use burn_std::DType;

use crate::device::Device;
use crate::dtype::Elem;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::tensor::CudaTensor;

/// A quantised tensor on a CUDA device. Clones and views share the memory.
#[derive(Debug, Clone)]
pub struct CudaQTensor {
    /// The values, packed; a vector of u32.
    pub(crate) words: CudaTensor,
    /// A vector of f32.
    pub(crate) scales: CudaTensor,
    /// Over the values, in storage order.
    pub(crate) layout: Layout,
    /// Neighbours in storage that share a scale; 0: all.
    pub(crate) group: u64,
    pub(crate) scheme: QuantScheme,
}

impl CudaQTensor {
    pub(crate) fn device(&self) -> &'static Device {
        self.words.device()
    }

    /// The sizes of the dimensions.
    pub fn dims(&self) -> &[usize] {
        self.layout.dims()
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.layout.is_empty()
    }

    /// The layout over the stored values.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bits of a stored value.
    pub(crate) fn bits(&self) -> usize {
        stored_bits(&self.scheme)
    }

    /// Another view of the same values.
    pub(crate) fn with_layout(mut self, layout: Layout) -> CudaQTensor {
        self.layout = layout;
        self
    }

    /// Whether the words hold this tensor's values alone, in row-major order.
    pub(crate) fn is_packed(&self) -> bool {
        self.layout.offset() == 0
            && self.layout.is_contiguous()
            && self.words.len() == words_for(self.len(), self.bits())
    }
}

impl TensorMetadata for CudaQTensor {
    fn dtype(&self) -> DType {
        DType::QFloat(self.scheme)
    }

    fn shape(&self) -> Shape {
        self.layout.shape().clone()
    }

    fn rank(&self) -> usize {
        self.layout.rank()
    }
}

impl QTensorPrimitive for CudaQTensor {
    fn scheme(&self) -> &QuantScheme {
        &self.scheme
    }
}

/// Bits of a stored value.
pub(crate) fn stored_bits(scheme: &QuantScheme) -> usize {
    match scheme.store {
        QuantStore::PackedU32(_) => scheme.value.size_bits(),
        QuantStore::Native | QuantStore::PackedNative(_) => 8,
    }
}

/// Words of `len` values.
pub(crate) fn words_for(len: usize, bits: usize) -> usize {
    len.div_ceil(32 / bits)
}

/// Values that share a scale; 0: all.
pub(crate) fn group_of(scheme: &QuantScheme) -> u64 {
    match scheme.level {
        QuantLevel::Tensor => 0,
        // A product: `num_elements` may overflow on the way only if it does not fit 40 bits, which five sizes of u8 do.
        QuantLevel::Block(block) => block.num_elements() as u64,
    }
}

/// The type that scales are rounded to.
pub(crate) fn param_elem(scheme: &QuantScheme) -> Elem {
    match scheme.param {
        QuantParam::F16 => Elem::F16,
        QuantParam::BF16 => Elem::BF16,
        _ => Elem::F32,
    }
}

/// The range of values.
pub(crate) fn range_of(scheme: &QuantScheme) -> [i32; 2] {
    let (low, high) = scheme.value.range();
    [low as i32, high as i32]
}

/// Whether the scheme is one that the kernels have.
///
/// # Errors
/// `Error::DType` with what is missing.
pub(crate) fn check_scheme(op: &'static str, scheme: &QuantScheme) -> Result<()> {
    let QuantMode::Symmetric = scheme.mode;
    let detail = match scheme {
        QuantScheme { value: QuantValue::E4M3 | QuantValue::E5M2 | QuantValue::E2M1, .. } => {
            "quantised values that are floats (E4M3, E5M2, E2M1) are not supported".into()
        }
        QuantScheme { param: QuantParam::UE8M0 | QuantParam::UE4M3, .. } => {
            "scales of 8 bits (UE8M0, UE4M3) are not supported".into()
        }
        QuantScheme { store: QuantStore::PackedNative(_), .. } => {
            format!("{:?} has no native packing; store it as PackedU32(0) or Native", scheme.value)
        }
        QuantScheme { store: QuantStore::PackedU32(dim), .. } if *dim != 0 => {
            format!(
                "values are packed along the innermost dimension only, PackedU32(0), not PackedU32({dim})"
            )
        }
        QuantScheme { level: QuantLevel::Block(block), .. } if block.num_elements() == 0 => {
            "a block has no elements".into()
        }
        _ => return Ok(()),
    };
    Err(Error::DType { op, detail, dtypes: vec![DType::QFloat(*scheme)] })
}

/// The number of scales of `len` values.
///
/// # Errors
/// `Error::Shape` if the blocks do not come out even.
pub(crate) fn scale_count(op: &'static str, scheme: &QuantScheme, shape: &[usize]) -> Result<usize> {
    let len: usize = shape.iter().product();
    match group_of(scheme) {
        0 => Ok(1),
        group if (len as u64).is_multiple_of(group) => Ok((len as u64 / group) as usize),
        group => Err(Error::Shape {
            op,
            detail: format!("{len} elements do not make whole blocks of {group}"),
            shapes: vec![shape.to_vec()],
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheme(value: QuantValue, store: QuantStore) -> QuantScheme {
        QuantScheme::default().with_value(value).with_store(store)
    }

    #[test]
    fn schemes_that_have_no_kernels_say_what_is_missing() {
        let packed = QuantStore::PackedU32(0);
        for value in [
            QuantValue::Q8F,
            QuantValue::Q8S,
            QuantValue::Q4F,
            QuantValue::Q4S,
            QuantValue::Q2F,
            QuantValue::Q2S,
        ] {
            for store in [packed, QuantStore::Native] {
                assert!(check_scheme("quantize", &scheme(value, store)).is_ok());
            }
        }
        let refused = [
            (scheme(QuantValue::E4M3, packed), "E4M3"),
            (scheme(QuantValue::Q8S, packed).with_param(QuantParam::UE8M0), "UE8M0"),
            (scheme(QuantValue::Q8S, QuantStore::PackedNative(0)), "no native packing"),
            (scheme(QuantValue::Q4S, QuantStore::PackedU32(1)), "PackedU32(1)"),
            (scheme(QuantValue::Q4S, packed).with_level(QuantLevel::block([4, 0])), "no elements"),
        ];
        for (scheme, part) in refused {
            let text = check_scheme("quantize", &scheme).unwrap_err().to_string();
            assert!(text.starts_with("quantize: ") && text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_word_holds_as_many_values_as_fit() {
        assert_eq!([words_for(0, 8), words_for(5, 8), words_for(8, 4), words_for(17, 2)], [0, 2, 1, 2]);
        let blocks = QuantScheme::default().with_level(QuantLevel::block([2, 4]));
        assert_eq!(scale_count("quantize", &blocks, &[3, 8]).unwrap(), 3);
        let text = scale_count("quantize", &blocks, &[3, 5]).unwrap_err().to_string();
        assert!(text.contains("15 elements do not make whole blocks of 8"), "{text}");
    }
}
