//! What the engine is told and what it answers.

use serde::{Deserialize, Serialize};

use crate::node::{ClassId, ClassInfo, NodeId};
use crate::trainer::{TrainerId, TrainerInfo};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The pool changed.
    Pool {
        /// New nodes with the epoch seconds of their planned ends.
        joined: Vec<(NodeId, Option<f64>)>,
        /// Nodes that are no longer idle or ours.
        left: Vec<NodeId>,
        /// Nodes whose planned ends changed.
        hole_ends: Vec<(NodeId, Option<f64>)>,
    },
    /// Nodes are of a class from now on. Nodes of which nothing is said are of class 0, which has
    /// no name and speed 1.
    NodeClass {
        /// The class.
        class: ClassId,
        /// What is known of it.
        info: ClassInfo,
        /// Its new nodes, in the pool or not.
        nodes: Vec<NodeId>,
    },
    /// Slurm has just given out nodes: until [`Event::PoolSeen`], free nodes may
    /// be taken already and are left alone.
    PoolDoubted,
    /// The pool is known again.
    PoolSeen,
    /// A trainer came.
    TrainerArrived(TrainerInfo),
    /// What a trainer asks for changed.
    TrainerChanged(TrainerInfo),
    /// A trainer is no more: all its tasks have ended.
    TrainerGone {
        /// The trainer.
        trainer: TrainerId,
    },
    /// What a trainer's agents say of its program.
    TrainerMode {
        /// The trainer.
        trainer: TrainerId,
        /// Whether ranks that stay go on through changes of membership; else all start anew.
        is_live: bool,
    },
    /// A task runs that this engine did not place.
    WorkerFound {
        /// Whose.
        trainer: TrainerId,
        /// Where.
        node: NodeId,
    },
    /// An agent said hello, for the first time or again.
    WorkerReady {
        /// Whose.
        trainer: TrainerId,
        /// Where.
        node: NodeId,
        /// The generation whose ranks run there, with its nodes in rank order.
        running: Option<(u64, Vec<NodeId>)>,
        /// The newest generation that the trainer's files know.
        newest_generation: u64,
    },
    /// The ranks of a generation run on a node.
    WorkerStarted {
        /// Whose.
        trainer: TrainerId,
        /// Where.
        node: NodeId,
        /// Which generation.
        generation: u64,
    },
    /// No rank of a generation runs on a node any more.
    WorkerStopped {
        /// Whose.
        trainer: TrainerId,
        /// Where.
        node: NodeId,
        /// Which generation.
        generation: u64,
        /// How they ended.
        outcome: Outcome,
    },
    /// A worker is lost.
    WorkerLost {
        /// Whose.
        trainer: TrainerId,
        /// Where.
        node: NodeId,
        /// Why.
        reason: LossReason,
    },
    /// A worker that was told to leave has left.
    WorkerGone {
        /// Whose.
        trainer: TrainerId,
        /// Where.
        node: NodeId,
    },
    /// A placement did not come about.
    PlaceFailed {
        /// Whose.
        trainer: TrainerId,
        /// Where.
        node: NodeId,
        /// Whose fault it is.
        fault: PlaceFault,
        /// In words.
        reason: String,
    },
    /// A progress line.
    Progress {
        /// Whose.
        trainer: TrainerId,
        /// The generation that reports.
        generation: u64,
        /// Cumulative samples.
        samples: u64,
    },
    /// A verdict that stood in the trainer's files.
    Finished {
        /// Whose.
        trainer: TrainerId,
        /// The exit code.
        exit_code: i32,
    },
    /// The time asked for by [`Action::WakeAt`] has come.
    Timer,
}

/// How a generation's ranks on one node ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// As told, or as preempted.
    Stopped,
    /// The trainer's files know a newer generation; nobody's failure.
    Fenced {
        /// That generation.
        newest_generation: u64,
    },
    /// All with 0.
    Exited,
    /// Otherwise.
    Failed {
        /// The exit code.
        exit_code: i32,
        /// In words.
        reason: String,
    },
}

/// Why a worker is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LossReason {
    /// Slurm took the node.
    Preempted,
    /// The agent is silent or its process ended without a word.
    Silent,
    /// The task ended or was taken away by its owner or its time limit.
    Ended,
}

/// Whose fault a failed placement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlaceFault {
    /// The node is put into quarantine.
    Node,
    /// The node's or the trainer's: the trainer keeps off the node, as after a failure of
    /// its program there, and is paused when that goes on.
    NodeOrTrainer,
    /// The trainer waits.
    Trainer,
    /// Nobody's: the node went elsewhere in the same moment.
    Nobody,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// Let one of the trainer's tasks run on a node.
    Place {
        /// Whose.
        trainer: TrainerId,
        /// Where.
        node: NodeId,
        /// Time limit that fits, seconds.
        limit_s: f64,
    },
    /// Take a worker off a node; its ranks have stopped or are to be killed.
    Leave {
        /// Whose.
        trainer: TrainerId,
        /// Where.
        node: NodeId,
        /// In words.
        reason: String,
    },
    /// Start a generation. Live members that run go on in it.
    Start {
        /// Whose.
        trainer: TrainerId,
        /// Its number.
        generation: u64,
        /// Its nodes in rank order.
        members: Vec<NodeId>,
    },
    /// Stop the ranks of a generation on some nodes.
    Stop {
        /// Whose.
        trainer: TrainerId,
        /// Which generation.
        generation: u64,
        /// Where.
        nodes: Vec<NodeId>,
        /// Seconds from SIGTERM to SIGKILL; 0 kills at once.
        grace_s: f64,
    },
    /// The trainer has finished: close its tasks with this code.
    Close {
        /// Whose.
        trainer: TrainerId,
        /// The exit code.
        exit_code: i32,
    },
    /// The trainer has failed: close its tasks with this code and say why.
    Fail {
        /// Whose.
        trainer: TrainerId,
        /// The exit code.
        exit_code: i32,
        /// In words.
        reason: String,
    },
    /// Send [`Event::Timer`] at this time, unless another event comes first.
    WakeAt {
        /// Epoch seconds.
        time_s: f64,
    },
}

/// A change of a trainer's nodes, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// When, epoch seconds.
    pub time_s: f64,
    /// Whose nodes.
    pub trainer: TrainerId,
    /// Nodes before.
    pub from_nodes: u32,
    /// Nodes after.
    pub to_nodes: u32,
    /// In words.
    pub reason: String,
}
