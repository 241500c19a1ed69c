//! [`Interpret<B>`]: any backend, as one that can be captured.

use std::marker::PhantomData;

use burn_backend::Backend;
use kiln_surface::{delegate_backend, delegate_ops, with_backend_methods};

use crate::compiler::GraphCompiler;

/// The backend `B`, as one whose graphs are interpreted: `Fusion<Interpret<B>>` works for every `B`.
///
/// A crate cannot implement [`GraphCompiler`] for a backend of another crate; this wrapper has the tensors of `B` and
/// calls its methods.
pub struct Interpret<B>(PhantomData<fn() -> B>);

impl<B> Clone for Interpret<B> {
    fn clone(&self) -> Self {
        Interpret(PhantomData)
    }
}

impl<B> Default for Interpret<B> {
    fn default() -> Self {
        Interpret(PhantomData)
    }
}

impl<B> std::fmt::Debug for Interpret<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interpret")
    }
}

delegate_backend! { impl [B: Backend] for [Interpret<B>] by [B] }
with_backend_methods! { delegate_ops! { impl [B: Backend] for [Interpret<B>] by [B] } }

impl<B: Backend> GraphCompiler for Interpret<B> {
    type Executable = ();
}
