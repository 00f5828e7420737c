//! bftrainerd, the controller, and bftrainer, the command line and worker agent.

#[cfg(feature = "slurm")]
pub mod agent;
#[cfg(feature = "slurm")]
pub mod munge;
#[cfg(feature = "slurm")]
pub mod net;
#[cfg(feature = "slurm")]
pub mod slurm_conf;
