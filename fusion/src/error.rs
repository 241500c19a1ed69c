//! What goes wrong when a captured operation runs.

use burn_backend::ExecutionError;
use kiln_surface::Meta;

/// An operation that failed when its trace ran. Values that depend on it fail with the same failure.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The name of the operation.
    pub op: String,
    /// Shapes and dtypes of the tensors it read.
    pub inputs: Vec<Meta>,
    /// Its position in the trace, from 0.
    pub position: usize,
    /// The number of operations in the trace.
    pub trace_len: usize,
    /// What the backend said.
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}(", self.op)?;
        for (k, input) in self.inputs.iter().enumerate() {
            let comma = if k > 0 { ", " } else { "" };
            write!(f, "{comma}{:?} {:?}", input.shape.as_slice(), input.dtype)?;
        }
        let Failure { position, trace_len, message, .. } = self;
        write!(f, "), operation {position} of a trace of {trace_len}: {message}")
    }
}

impl std::error::Error for Failure {}

impl From<&Failure> for ExecutionError {
    fn from(failure: &Failure) -> Self {
        ExecutionError::WithContext { reason: failure.to_string() }
    }
}
