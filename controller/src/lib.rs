//! The controller of BFTrainer: the daemon, the commands, and the worker agent.

pub mod assets;
pub mod config;
mod lanes;
pub mod replay;
pub mod solve;
pub mod solver;
mod stdout;
pub mod trace;

#[cfg(feature = "slurm")]
pub mod agent;
#[cfg(feature = "slurm")]
pub mod check;
#[cfg(feature = "slurm")]
pub mod classes;
#[cfg(feature = "slurm")]
pub mod cli;
#[cfg(feature = "slurm")]
pub mod clock;
#[cfg(feature = "slurm")]
pub mod daemon;
#[cfg(feature = "slurm")]
pub mod http;
#[cfg(feature = "slurm")]
pub mod logging;
#[cfg(feature = "slurm")]
pub mod manual;
#[cfg(feature = "slurm")]
pub mod metrics;
#[cfg(feature = "slurm")]
pub mod munge;
#[cfg(feature = "slurm")]
pub mod net;
#[cfg(feature = "slurm")]
pub mod service;
#[cfg(feature = "slurm")]
pub mod slurm;
#[cfg(feature = "slurm")]
pub mod slurm_conf;
#[cfg(feature = "slurm")]
pub mod store;
#[cfg(feature = "slurm")]
pub mod timeline;
