//! Trainers: what is known of each, its current generation, its failures.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::curve::Curve;
use crate::node::{ClassId, NodeId};

/// A trainer: Slurm's array job id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TrainerId(pub u32);

impl std::fmt::Display for TrainerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a trainer asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerInfo {
    /// Its id.
    pub id: TrainerId,
    /// Whose it is.
    pub owner_uid: u32,
    /// Fewest nodes, at least 1.
    pub min_nodes: u32,
    /// Most nodes.
    pub max_nodes: u32,
    /// Importance among the owner's trainers.
    pub weight: f64,
    /// What tells its owner's programs apart, as its script: trainers of one program scale
    /// alike. `None`: not known.
    pub program: Option<String>,
    /// Throughput over node count, as far as it is not measured.
    pub curve: Curve,
    /// Whether `curve` is its owner's word.
    pub has_own_curve: bool,
    /// Seconds without progress when nodes join, before it is measured.
    pub up_s: f64,
    /// Seconds without progress when nodes leave, before it is measured.
    pub down_s: f64,
    /// The longest a worker may stay on one node, seconds.
    pub max_stay_s: Option<f64>,
    /// What the site lets it have.
    pub terms: Terms,
}

/// What the site lets a trainer have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// By what its weight is multiplied; set by administrators.
    pub weight: f64,
    /// The classes of nodes that it may use; `None` is all.
    pub classes: Option<BTreeSet<ClassId>>,
    /// Nodes that it may not use, whatever their class.
    pub excluded: BTreeSet<NodeId>,
    /// Limits that it shares with others.
    pub caps: Vec<NodeCap>,
}

/// At most so many nodes for all trainers that bear this limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCap {
    /// Whose limit it is, as "user ann".
    pub name: String,
    /// Most nodes together.
    pub max_nodes: u32,
}

impl Default for Terms {
    /// Every node, without limits.
    fn default() -> Self {
        Terms {
            weight: 1.0,
            classes: None,
            excluded: BTreeSet::new(),
            caps: Vec::new(),
        }
    }
}

/// Exit code of a program that SIGTERM stopped, and a shell's for one that it killed:
/// preempted, which is no failure.
pub const PREEMPTED_EXIT_CODE: i32 = 143;

/// A trainer's life as the engine sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TrainerState {
    /// Not admitted yet.
    Waiting,
    /// Takes part in decisions.
    Admitted,
    /// Ended; its tasks are being closed.
    Closing,
}

/// A trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trainer {
    /// What it asks for.
    pub info: TrainerInfo,
    /// Where it is in its life.
    pub state: TrainerState,
    /// Position in the order of arrival.
    pub arrival: u64,
    /// Position in the order of admission.
    pub admission: u64,
    /// Whether an agent of it ever said hello.
    pub greeted: bool,
    /// Whether its program handles membership itself: ranks that stay go on through
    /// changes of the others.
    pub is_live: bool,
    /// The newest generation's number.
    pub generation: u64,
    /// The generation that runs, starts or stops.
    pub run: Option<Run>,
    /// Since when no generation runs though nodes are assigned, epoch seconds.
    pub assembling_since_s: Option<f64>,
    /// No generation is started before this time, epoch seconds.
    pub restart_at_s: f64,
    /// Nothing is placed before this time, epoch seconds: its tasks meet a limit, or fail
    /// wherever they start.
    pub resume_at_s: f64,
    /// Tasks in a row that failed before their agents had joined.
    pub failed_starts: usize,
    /// Why one of the two lies ahead.
    pub blocked_reason: Option<String>,
    /// Cumulative samples of the newest progress line.
    pub samples: u64,
    /// Measured seconds from one generation's stop to the next one's progress.
    pub restart_s: Option<f64>,
    /// Measured seconds from the order to stop until all ranks had saved and ended.
    pub save_s: Option<f64>,
    /// When the restart that is being measured began, and the samples then.
    pub restart_began: Option<(f64, u64)>,
    /// Failures in a row without growth of samples.
    pub failures: Vec<Failure>,
    /// Samples when the oldest of `failures` happened.
    pub failures_at_samples: u64,
    /// Generations that were started.
    pub starts: u64,
}

impl Trainer {
    /// A trainer that has just come.
    pub fn new(info: TrainerInfo, arrival: u64) -> Self {
        Trainer {
            info,
            state: TrainerState::Waiting,
            arrival,
            admission: 0,
            greeted: false,
            is_live: false,
            generation: 0,
            run: None,
            assembling_since_s: None,
            restart_at_s: 0.0,
            resume_at_s: 0.0,
            failed_starts: 0,
            blocked_reason: None,
            samples: 0,
            restart_s: None,
            save_s: None,
            restart_began: None,
            failures: Vec::new(),
            failures_at_samples: 0,
            starts: 0,
        }
    }

    /// Nothing is placed before `time_s`, epoch seconds, unless it pauses for longer already.
    pub fn pause_until(&mut self, time_s: f64, reason: String) {
        if time_s > self.resume_at_s {
            self.resume_at_s = time_s;
            self.blocked_reason = Some(reason);
        }
    }

    /// Memberships after the first one.
    pub fn rescales(&self) -> u64 {
        self.starts.saturating_sub(1)
    }

    /// Seconds without progress when nodes join: measured, else as told.
    pub fn up_s(&self) -> f64 {
        self.restart_s.unwrap_or(self.info.up_s)
    }

    /// Seconds without progress when nodes leave: measured, else as told.
    pub fn down_s(&self) -> f64 {
        self.restart_s.unwrap_or(self.info.down_s)
    }
}

/// One generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its number.
    pub number: u64,
    /// Its nodes in rank order.
    pub members: Vec<NodeId>,
    /// How far it is.
    pub state: RunState,
    /// When it was started or found, epoch seconds.
    pub since_s: f64,
    /// Whether a member was lost: failures are then collateral.
    pub lost_member: bool,
    /// Of a live trainer: members that have outlived another one, and until when a failure
    /// of theirs is put down to that, epoch seconds.
    pub bereaved: BTreeMap<NodeId, f64>,
}

/// How far a generation is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RunState {
    /// Found running; these members have confirmed it.
    Adopting(BTreeSet<NodeId>),
    /// Started; the ranks of these members run.
    Starting(BTreeSet<NodeId>),
    /// The ranks of all members run.
    Running,
    /// Told to stop; these members have not answered.
    Stopping {
        /// Members that have not answered.
        waiting: BTreeSet<NodeId>,
        /// Who has not answered by then is lost, epoch seconds.
        deadline_s: f64,
        /// Seconds from SIGTERM to SIGKILL that they were given.
        grace_s: f64,
    },
}

/// Ranks that ended with an error that nothing else explains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Where it was seen first.
    pub node: NodeId,
    /// In which generation.
    pub generation: u64,
    /// When, epoch seconds.
    pub time_s: f64,
    /// The exit code.
    pub exit_code: i32,
    /// In words.
    pub reason: String,
    /// Whether the trainer keeps off the node for it.
    pub brought_avoidance: bool,
}
