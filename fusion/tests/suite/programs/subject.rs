//! [`Subject`]: what a backend must have so that programs run on it.

use burn_backend::{Backend, DType, Distribution, FloatDType, IntDType, Shape};
use burn_flex::Flex;
use kiln_fusion::{DrawState, GraphCompiler};

/// A backend that programs run on.
pub(crate) trait Subject: Backend {
    /// Kiln's random floats. A backend that counts draws itself leaves `draws` alone.
    fn random_float(
        shape: Shape,
        distribution: Distribution,
        device: &Self::Device,
        dtype: FloatDType,
        draws: &mut DrawState,
    ) -> Self::FloatTensorPrimitive;

    /// Kiln's random integers.
    fn random_int(
        shape: Shape,
        distribution: Distribution,
        device: &Self::Device,
        dtype: IntDType,
        draws: &mut DrawState,
    ) -> Self::IntTensorPrimitive;
}

/// Takes the counters of a draw: one makes 16 bytes, that is four numbers up to f32 and two of any other dtype.
pub(crate) fn take_counters(draws: &mut DrawState, dtype: DType, len: usize) -> DrawState {
    let state = *draws;
    let per_counter = if matches!(dtype, DType::F32 | DType::F16 | DType::BF16) { 4 } else { 2 };
    draws.offset += (len as u64).div_ceil(per_counter);
    state
}

/// [`Subject`] for a backend that draws at a place which it is told.
macro_rules! draws_as_told {
    ($backend:ty) => {
        impl Subject for $backend {
            fn random_float(
                shape: Shape,
                distribution: Distribution,
                device: &Self::Device,
                dtype: FloatDType,
                draws: &mut DrawState,
            ) -> Self::FloatTensorPrimitive {
                let state = take_counters(draws, dtype.into(), shape.num_elements());
                <Self as GraphCompiler>::draw_float(shape, distribution, device, dtype.into(), state)
            }

            fn random_int(
                shape: Shape,
                distribution: Distribution,
                device: &Self::Device,
                dtype: IntDType,
                draws: &mut DrawState,
            ) -> Self::IntTensorPrimitive {
                let state = take_counters(draws, dtype.into(), shape.num_elements());
                <Self as GraphCompiler>::draw_int(shape, distribution, device, dtype.into(), state)
            }
        }
    };
}
#[allow(unused_imports)] // by the programs on `Cuda`
pub(crate) use draws_as_told;

draws_as_told!(Flex);
