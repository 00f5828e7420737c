//! The thread that speaks to slurmctld: looks and changes, one after the other,
//! so that a look that is reported after a change has seen it.

use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use super::Input;
use crate::clock::SteadyClock;
use crate::slurm::{
    JobRecord, JobSelection, NodeRecord, ReservationRecord, Slurm, SlurmError, TaskName, TaskUpdate,
};

/// Regular jobs that have started within this time are looked at: they may have
/// preempted ours, seconds.
const STARTED_LATELY_S: i64 = 120;

/// What the thread is asked to do.
#[derive(Debug)]
pub enum Order {
    /// One node and one job query.
    Look {
        /// Also what bears no time of change: backfill's plans, the
        /// reservations and the partition's node list.
        everything: bool,
    },
    /// A change of tasks.
    Change(Change),
}

/// A change of tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Which tasks.
    pub tasks: TaskName,
    /// How.
    pub kind: ChangeKind,
    /// What it is for; handed back with the result.
    pub purpose: Purpose,
}

/// How tasks are changed.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangeKind {
    /// Fields are updated.
    Update(TaskUpdate),
    /// Running or ended tasks are requeued, held.
    RequeueHold,
    /// Tasks are cancelled.
    Cancel,
}

/// What a change is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Purpose {
    /// An array is held by the administrator and gets its accepted specification.
    Admit,
    /// An array is held and told why.
    Refuse,
    /// An admitted array gets another specification.
    Respecify,
    /// A task is let run on a node.
    Place {
        /// Where.
        node: String,
    },
    /// A worker leaves its node.
    Leave {
        /// Where from.
        node: String,
    },
    /// Tasks that nobody placed, or that did not start, are held.
    Hold,
    /// Tasks that ended without a verdict are queued again.
    Revive,
    /// Tasks whose owner forbade it may be queued again.
    AllowRequeue,
    /// A running task's time limit is moved.
    Extend,
    /// An ended trainer's comment, or the release of its rest.
    Close,
}

/// What the thread reports.
#[derive(Debug)]
pub enum Report {
    /// What a look saw.
    Seen(Sight),
    /// A look failed: nothing is known, nothing changes.
    Blind(SlurmError),
    /// A change's result.
    Changed(Change, Result<(), SlurmError>),
}

/// What a look saw; `None` is unchanged or not asked for.
#[derive(Debug, Default)]
pub struct Sight {
    /// All nodes.
    pub nodes: Option<Vec<NodeRecord>>,
    /// The jobs that matter.
    pub jobs: Option<Vec<JobRecord>>,
    /// Reservations that have not ended.
    pub reservations: Option<Vec<ReservationRecord>>,
    /// The partition's nodes, or why there are none.
    pub partition_nodes: Option<Result<Vec<String>, SlurmError>>,
    /// How far slurmctld's clock is ahead of ours, seconds; 0 when they may agree.
    pub clock_ahead_s: f64,
    /// How long slurmctld took, seconds.
    pub query_s: f64,
}

/// What the thread speaks to: libslurm, or what stands for a cluster that is not there.
pub trait Slurmctld: 'static {
    /// Looks at nodes and jobs that matter to `partition`, at a time of `clock`; when `everything`
    /// is asked for, none of it may be left out as unchanged. What a failed look has seen is seen
    /// again by the next.
    fn look(
        &mut self,
        partition: &str,
        everything: bool,
        clock: &SteadyClock,
    ) -> Result<Sight, SlurmError>;

    /// Makes a change.
    fn apply(&mut self, change: &Change) -> Result<(), SlurmError>;
}

/// Starts the thread. It ends when the returned sender is dropped.
pub fn start<S: Slurmctld>(
    slurm: impl FnOnce() -> S + Send + 'static,
    partition: String,
    clock: SteadyClock,
    inputs: UnboundedSender<Input>,
) -> std::io::Result<mpsc::Sender<Order>> {
    let (orders, received) = mpsc::channel();
    thread::Builder::new()
        .name("slurm".to_owned())
        .spawn(move || {
            let mut slurm = slurm();
            for order in received {
                let report = match order {
                    Order::Look { everything } => {
                        match slurm.look(&partition, everything, &clock) {
                            Ok(sight) => Report::Seen(sight),
                            Err(error) => Report::Blind(error),
                        }
                    }
                    Order::Change(change) => {
                        let result = slurm.apply(&change);
                        Report::Changed(change, result)
                    }
                };
                if inputs.send(Input::Slurm(report)).is_err() {
                    return;
                }
            }
        })?;
    Ok(orders)
}

impl Slurmctld for Slurm {
    fn look(
        &mut self,
        partition: &str,
        everything: bool,
        clock: &SteadyClock,
    ) -> Result<Sight, SlurmError> {
        let sight = look(self, partition, everything, clock);
        if sight.is_err() {
            self.forget();
        }
        sight
    }

    fn apply(&mut self, change: &Change) -> Result<(), SlurmError> {
        match &change.kind {
            ChangeKind::Update(update) => self.update(&change.tasks, update),
            ChangeKind::RequeueHold => self.requeue_hold(&change.tasks),
            ChangeKind::Cancel => self.cancel(&change.tasks),
        }
    }
}

fn look(
    slurm: &mut Slurm,
    partition: &str,
    everything: bool,
    clock: &SteadyClock,
) -> Result<Sight, SlurmError> {
    let began = Instant::now();
    if everything {
        // Backfill's plans change no job: slurmctld would say that nothing has.
        slurm.forget();
    }
    // Nodes first: a task that starts in between is then seen running on a
    // node that still looks idle, and not the other way round.
    let nodes = slurm.load_nodes()?;
    let jobs = slurm.load_jobs(&JobSelection {
        partition,
        started_since_s: clock.now_s() as i64 - STARTED_LATELY_S,
    })?;
    let mut sight = Sight {
        nodes,
        jobs,
        ..Sight::default()
    };
    if everything {
        sight.reservations = Some(slurm.load_reservations()?);
        let asked_s = clock.now_s();
        let (names, time_s) = slurm.partition_nodes(partition)?;
        sight.clock_ahead_s = SteadyClock::apart_s(asked_s, clock.now_s(), time_s);
        sight.partition_nodes = Some(names.ok_or_else(|| {
            SlurmError::NotFound(format!(
                "Slurm has no partition \"{partition}\": add it to slurm.conf or correct `partition`"
            ))
        }));
    }
    sight.query_s = began.elapsed().as_secs_f64();
    Ok(sight)
}
