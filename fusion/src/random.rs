pub(crate) fn counters(_d: burn_std::DType, len: usize) -> u64 { (len as u64).div_ceil(4) }
pub(crate) fn draw(shape: &burn_backend::Shape, _dist: burn_backend::Distribution, _dtype: burn_std::DType, _seed: u64, _offset: u64) -> Result<burn_backend::TensorData, String> { Ok(burn_backend::TensorData::zeros::<f32,_>(shape.clone())) }
