//! The deciding part of BFTrainer: pool, trainers, allocation and engine.
//!
//! Nothing here does I/O, reads a clock or knows Slurm: the daemon and the
//! replay run the same engine and differ only in what executes its actions.

#![forbid(unsafe_code)]

pub mod allocation;
pub mod curve;
pub mod engine;
pub mod metric;
pub mod node;
pub mod pool;
pub mod replay;
pub mod trainer;
