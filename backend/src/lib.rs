//! Cuda backend.
