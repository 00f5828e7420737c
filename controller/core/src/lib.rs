//! The deciding part of BFTrainer: pool, trainers, allocation and engine.
//!
//! Nothing here does I/O, reads a clock or knows Slurm: what executes the
//! engine's actions is the caller's.

#![forbid(unsafe_code)]

pub mod allocation;
pub mod curve;
pub mod engine;
pub mod learning;
pub mod metric;
pub mod node;
pub mod pool;
pub mod trainer;
