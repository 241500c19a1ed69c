//! Training over many GPUs: communicators, FSDP, DDP, sharded checkpoints and data loading.
//!
//! Nothing is implemented here yet.
