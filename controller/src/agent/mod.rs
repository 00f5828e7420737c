//! The worker agent: `bftrainer run`, `bftrainer task` and `bftrainer progress`.
//!
//! Two processes per task. The *keeper*, the process that Slurm started, only
//! passes signals on and, when the agent has ended for whatever reason, leaves
//! no process behind. The *agent*, its child, speaks to the controller and
//! starts and stops the ranks. Nothing here has privileges: all runs as the user.
//!
//! How a task ends, from strongest to weakest:
//! * a signal from Slurm: ranks are killed at once, exit 143;
//! * the controller's Close: the verdict's code;
//! * Slurm's limit comes near without renewal: ranks are stopped with their
//!   grace, the task is requeued and held;
//! * no controller, or one that refuses this agent, while no rank runs, for
//!   `orphan_wait_s`: requeued and held. Ranks that run when a controller is
//!   lost go on; ranks of an agent that is refused are stopped with their grace;
//! * a requeueing that fails is tried again until the end.

pub mod call;
mod control_folder;
mod departure;
mod dialogue;
mod environment;
mod generation;
mod identity;
mod keeper;
mod link;
mod live;
mod log;
mod ports;
mod processes;
pub mod progress;
mod ranks;
mod report_folder;
pub mod run;
mod session;
mod settings;
mod signals;
mod starting;
pub mod task;
mod tee;
mod times;

pub use departure::leave_at_s;
