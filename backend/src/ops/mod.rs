//! What the backend can do, a file per family: check, allocate, launch. Burn's method tables (`burn/`) hand over to
//! these functions and do nothing else.

pub(crate) mod data;
pub(crate) mod elementwise;
pub(crate) mod matmul;
pub(crate) mod reduce;
pub(crate) mod view;
