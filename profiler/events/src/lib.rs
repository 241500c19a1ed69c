//! The event sink: crates emit, the profiler reads.
//!
//! Nothing is implemented here yet. The crate has no dependencies and stays at the bottom of the workspace.
