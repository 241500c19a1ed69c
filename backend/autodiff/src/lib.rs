//! `Autodiff<B>`: Burn's autodiff with the big operations kept whole.
//!
//! Nothing is implemented here yet; use Burn's own `Autodiff`. The crate will hold a newtype that overrides softmax,
//! layer norm, attention and their like, which Burn's `Autodiff` decomposes before a backend sees them.
