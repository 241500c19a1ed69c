//! What the backend can do, a file per family: check, allocate, launch. Burn's method tables (`burn/`) hand over to
//! these functions and do nothing else.

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod ctc;
pub(crate) mod cudnn;
pub(crate) mod cumulative;
pub(crate) mod data;
pub(crate) mod deform;
pub(crate) mod elementwise;
pub(crate) mod fft;
pub(crate) mod grid_sample;
pub(crate) mod index;
pub(crate) mod int_matmul;
pub(crate) mod interpolate;
pub(crate) mod matmul;
pub(crate) mod nd;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod quantize;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod view;
