//! `Profiler<B>`: a decorator that profiles any Burn backend.
//!
//! Nothing is implemented here yet.
