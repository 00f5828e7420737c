//! The worker agent: `bftrainer run`, `bftrainer task` and `bftrainer progress`.
//!
//! Two processes per task. The *keeper*, the process that Slurm started, only
//! passes signals on and, when the agent has ended for whatever reason, leaves
//! no process behind. The *agent*, its child, speaks to the controller and
//! starts and stops the ranks. Nothing here has privileges: all runs as the user.

pub mod call;
mod control_folder;
mod departure;
mod dialogue;
mod environment;
mod generation;
mod identity;
mod keeper;
mod link;
mod log;
mod ports;
mod processes;
pub mod progress;
mod ranks;
pub mod run;
mod session;
mod settings;
mod signals;
mod starting;
pub mod task;
mod tee;
mod times;
