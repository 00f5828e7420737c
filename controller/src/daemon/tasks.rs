//! Arrays and their tasks: what Slurm says of each and what was asked of it.
//! A task is (array job id, array task id); its job id changes.

use std::collections::BTreeMap;

use bftrainer::spec::Spec;
use bftrainer::wire::Progress;

use super::left::Left;
use super::pace::Pace;
use crate::classes::Requirement;
use crate::slurm::{BaseState, JobRecord};

/// One trainer's array.
#[derive(Clone, Debug)]
pub struct Array {
    /// The array job id.
    pub id: u32,
    /// Owner's uid.
    pub owner_uid: u32,
    /// Owner's name.
    pub owner_name: String,
    /// Account.
    pub account: String,
    /// Job name.
    pub name: String,
    /// What tells its owner's programs apart.
    pub program: Option<String>,
    /// Submission, epoch seconds.
    pub submit_time_s: i64,
    /// Where it was submitted.
    pub work_dir: String,
    /// Time limit asked for, minutes: the longest stay on one node.
    pub stay_min: Option<u32>,
    /// What its tasks ask of a node; nothing when that can't be understood.
    pub requirement: Option<Requirement>,
    /// Nodes that they may not run on.
    pub excluded: Vec<String>,
    /// Where it is in its admission.
    pub admission: Admission,
    /// The exit code with which it ended.
    pub verdict: Option<i32>,
    /// Why it has failed.
    pub end_reason: Option<String>,
    /// Its tasks.
    pub tasks: BTreeMap<u32, Task>,
    /// The newest progress line.
    pub progress: Progress,
    /// How fast it has been lately.
    pub pace: Pace,
    /// Workers that Slurm took the node from.
    pub preemptions: u32,
    /// Whether its owner was told that its tasks must be requeueable.
    pub warned_of_requeue: bool,
    /// Node-seconds in which ranks ran.
    pub harvested_node_s: f64,
}

/// How far an array's admission is.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// Slurm was asked to hold it and to keep the specification.
    Asked(Spec),
    /// It takes part.
    Admitted(Spec),
    /// It does not, with the reason.
    Refused(String),
}

/// One task as Slurm last reported it.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Its own job id.
    pub job_id: u32,
    /// Base state.
    pub base: BaseState,
    /// Cleaning up.
    pub completing: bool,
    /// Other flags.
    pub flagged: bool,
    /// Held.
    pub held: bool,
    /// The node it runs on or ran on last.
    pub node: Option<String>,
    /// Start, epoch seconds.
    pub start_time_s: i64,
    /// End by its limit, epoch seconds.
    pub end_time_s: i64,
    /// Time limit, minutes.
    pub limit_min: Option<u32>,
    /// Restarts.
    pub restart_count: u32,
    /// Slurm's number for why it waits.
    pub wait_reason: u32,
    /// Whether Slurm may queue it again.
    pub requeue: bool,
    /// What was asked of it.
    pub plan: Plan,
    /// The nodes that it left.
    pub left: Left,
    /// It has ended and Slurm won't queue it again.
    pub given_up: bool,
    /// Since when it runs without an agent though its trainer has ended, epoch seconds.
    pub alone_since_s: Option<f64>,
}

/// What has become of what was asked of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// As asked, or nothing yet.
    AsAsked,
    /// It was to start on the node but is held: its launch failed, or somebody
    /// held it.
    NotStarted {
        /// Where.
        node: String,
    },
    /// It has left the node as told.
    Left {
        /// Where from.
        node: String,
    },
    /// It is no longer on the node, though nobody told it to leave.
    Lost {
        /// Where from.
        node: String,
        /// What Slurm shows instead.
        end: RunEnd,
    },
}

/// How a run ended that nobody told to leave its node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunEnd {
    /// Slurm has queued the task again.
    Requeued,
    /// A slurmctld that was killed before it had written the start down waits to start it: the
    /// task runs on, until its node registers.
    Forgotten,
    /// The task has ended.
    Over,
}

/// What was asked of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Nothing: it waits, held.
    Rest,
    /// To run on a node; Slurm has not answered.
    Placing {
        /// Where.
        node: String,
    },
    /// To run on a node; Slurm has agreed.
    Placed {
        /// Where.
        node: String,
        /// To be held again when it has not started by then, epoch seconds.
        deadline_s: f64,
    },
    /// It runs there.
    Runs {
        /// Where.
        node: String,
        /// In which of its runs.
        restart_count: u32,
    },
    /// It was told to leave the node.
    Leaving {
        /// Where from.
        node: String,
    },
    /// Its worker is gone though Slurm may not show it yet.
    Gone {
        /// In which of its runs.
        restart_count: u32,
        /// Since when, epoch seconds.
        since_s: f64,
    },
    /// To start on any node and end at once, as its trainer has ended.
    Closing {
        /// How often it had been restarted then.
        restart_count: u32,
    },
}

impl Plan {
    /// The node on which a worker is wanted or runs.
    pub fn node(&self) -> Option<&str> {
        match self {
            Plan::Placing { node }
            | Plan::Placed { node, .. }
            | Plan::Runs { node, .. }
            | Plan::Leaving { node } => Some(node),
            Plan::Rest | Plan::Gone { .. } | Plan::Closing { .. } => None,
        }
    }
}

impl Task {
    /// The task in `record`, before anything was asked of it.
    pub fn new(record: &JobRecord) -> Self {
        let mut task = Task {
            job_id: record.job_id,
            base: record.base,
            completing: false,
            flagged: false,
            held: false,
            node: None,
            start_time_s: 0,
            end_time_s: 0,
            limit_min: None,
            restart_count: 0,
            wait_reason: 0,
            requeue: true,
            plan: Plan::Rest,
            // Slurm's submit time is that of the last requeue.
            left: match record.restart_count {
                0 => Left::default(),
                _ => Left::some_node(record.submit_time_s as f64),
            },
            given_up: false,
            alone_since_s: None,
        };
        task.refresh(record);
        task
    }

    /// Takes over what Slurm says now.
    pub fn refresh(&mut self, record: &JobRecord) {
        self.job_id = record.job_id;
        self.base = record.base;
        self.completing = record.completing;
        self.flagged = record.flagged;
        self.held = record.priority == 0;
        self.node = record.nodes.first().cloned();
        self.start_time_s = record.start_time_s;
        self.end_time_s = record.end_time_s;
        self.limit_min = record.limit_min;
        self.restart_count = record.restart_count;
        self.wait_reason = record.wait_reason;
        self.requeue = record.requeue;
    }

    /// Compares what was asked with what Slurm shows at `now_s`; the plan then
    /// is what still stands. `joined_run` is the run (restarts before it) from which an
    /// agent has joined. A worker that is gone for Slurm's eyes too after `patience_s`
    /// counts as found again.
    pub fn turn(&mut self, now_s: f64, patience_s: f64, joined_run: Option<u32>) -> Turn {
        let runs_on = |node: &str| self.runs() && self.node.as_deref() == Some(node);
        let is_forgotten = joined_run.is_some_and(|it| self.is_forgotten(it));
        match self.plan.clone() {
            Plan::Rest | Plan::Closing { .. } => Turn::AsAsked,
            Plan::Placing { node } | Plan::Placed { node, .. } if runs_on(&node) => {
                let restart_count = self.restart_count;
                self.plan = Plan::Runs {
                    node,
                    restart_count,
                };
                Turn::AsAsked
            }
            Plan::Placing { .. } => Turn::AsAsked,
            Plan::Placed { .. } if self.waits() && !self.held => Turn::AsAsked,
            Plan::Placed { node, .. } if self.waits() && !is_forgotten => {
                self.plan = Plan::Rest;
                Turn::NotStarted { node }
            }
            Plan::Runs {
                node,
                restart_count,
            } if runs_on(&node) && self.restart_count == restart_count => Turn::AsAsked,
            Plan::Placed { node, .. } => self.lost(node, joined_run, now_s),
            Plan::Runs {
                node,
                restart_count,
            } => self.lost(node, Some(restart_count), now_s),
            Plan::Leaving { .. } if self.runs() => Turn::AsAsked,
            Plan::Leaving { node } => {
                self.leave(&node, now_s);
                Turn::Left { node }
            }
            Plan::Gone {
                restart_count,
                since_s,
            } => {
                let same_run = self.runs() && self.restart_count == restart_count;
                if !same_run || now_s - since_s > patience_s {
                    // One that lingers is found as a worker that nobody placed.
                    self.plan = Plan::Rest;
                }
                Turn::AsAsked
            }
        }
    }

    /// It is no longer on `node`, where the run after `begun` restarts had begun.
    fn lost(&mut self, node: String, begun: Option<u32>, now_s: f64) -> Turn {
        let is_forgotten = begun.is_some_and(|restart_count| self.is_forgotten(restart_count));
        let end = match self.base {
            BaseState::Pending if is_forgotten => RunEnd::Forgotten,
            BaseState::Pending => RunEnd::Requeued,
            _ => RunEnd::Over,
        };
        self.leave(&node, now_s);
        Turn::Lost { node, end }
    }

    fn leave(&mut self, node: &str, now_s: f64) {
        self.plan = Plan::Rest;
        self.left.leaves(node, now_s);
    }

    /// Whether a task of an ended trainer has run for `patience_s` without an agent that
    /// could end it, and was not told to leave; says so once in that time.
    pub fn is_left_alone(&mut self, has_agent: bool, now_s: f64, patience_s: f64) -> bool {
        let may_run_on = matches!(
            self.plan,
            Plan::Rest | Plan::Runs { .. } | Plan::Gone { .. }
        );
        if has_agent || !self.runs() || !may_run_on {
            self.alone_since_s = None;
            return false;
        }
        let since_s = *self.alone_since_s.get_or_insert(now_s);
        let is_too_long = now_s - since_s > patience_s;
        if is_too_long {
            self.alone_since_s = None;
        }
        is_too_long
    }

    /// Whether Slurm shows a run that has begun, the one after `restart_count` restarts, as
    /// still to be started.
    pub fn is_forgotten(&self, restart_count: u32) -> bool {
        self.waits() && self.restart_count <= restart_count
    }

    /// Whether it runs now.
    pub fn runs(&self) -> bool {
        self.base == BaseState::Running && !self.completing
    }

    /// Whether it waits and nothing else.
    pub fn waits(&self) -> bool {
        self.base == BaseState::Pending && !self.completing && !self.flagged
    }

    /// Whether it waits and was not yet released to end with its trainer.
    pub fn waits_for_closing(&self) -> bool {
        let restart_count = self.restart_count;
        self.waits() && (self.held || self.plan != Plan::Closing { restart_count })
    }

    /// Whether it has ended for good.
    pub fn ended(&self) -> bool {
        !self.completing
            && matches!(
                self.base,
                BaseState::Complete | BaseState::Cancelled | BaseState::Failed
            )
    }
}

/// Most bytes of a command line that tells programs apart; what is longer may be cut.
const MAX_PROGRAM_BYTES: usize = 1000;

/// Job name, script and arguments: another argument may mean another network. What was
/// given with `--wrap`, or is too long, can't be told apart.
fn program(record: &JobRecord) -> Option<String> {
    let program = format!("{} {}", record.name, record.command);
    let is_known = !record.command.is_empty() && program.len() <= MAX_PROGRAM_BYTES;
    is_known.then_some(program)
}

impl Array {
    /// The array in `record`, with no tasks yet.
    pub fn new(record: &JobRecord, admission: Admission, verdict: Option<i32>) -> Self {
        Array {
            id: record.array_job_id,
            owner_uid: record.user_id,
            owner_name: record.user_name.clone(),
            account: record.account.clone(),
            name: record.name.clone(),
            program: program(record),
            submit_time_s: record.submit_time_s,
            work_dir: record.work_dir.clone(),
            stay_min: record.limit_min,
            requirement: Requirement::new(&record.request).ok(),
            excluded: record.request.excluded.clone(),
            admission,
            verdict,
            end_reason: None,
            tasks: BTreeMap::new(),
            progress: Progress::default(),
            pace: Pace::default(),
            preemptions: 0,
            warned_of_requeue: false,
            harvested_node_s: 0.0,
        }
    }

    /// The specification when the array takes part.
    pub fn spec(&self) -> Option<&Spec> {
        match &self.admission {
            Admission::Admitted(spec) => Some(spec),
            Admission::Asked(_) | Admission::Refused(_) => None,
        }
    }

    /// Tasks that have not ended.
    pub fn open_tasks(&self) -> u32 {
        self.tasks.values().filter(|task| !task.ended()).count() as u32
    }

    /// The waiting task that left `node` longest ago, and not after `before_s`, epoch seconds.
    pub fn free_task(&mut self, node: &str, before_s: f64) -> Option<(u32, &mut Task)> {
        let left_s = |task: &Task| task.left.left_s(node);
        self.tasks
            .iter_mut()
            .filter(|(_, task)| task.plan == Plan::Rest && task.waits())
            .filter(|(_, task)| left_s(task) <= before_s)
            .min_by(|(_, a), (_, b)| left_s(a).total_cmp(&left_s(b)))
            .map(|(id, task)| (*id, task))
    }

    /// The task whose worker is, or shall be, on `node`: one that runs there before
    /// one that is to start, and that before one that leaves.
    pub fn task_on(&self, node: &str) -> Option<u32> {
        self.tasks
            .iter()
            .filter(|(_, task)| task.plan.node() == Some(node))
            .min_by_key(|(_, task)| match task.plan {
                Plan::Runs { .. } => 0,
                Plan::Placed { .. } => 1,
                Plan::Placing { .. } => 2,
                Plan::Leaving { .. } => 3,
                // These have no node.
                Plan::Rest | Plan::Gone { .. } | Plan::Closing { .. } => 4,
            })
            .map(|(id, _)| *id)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::classes::NodeRequest;

    /// A running task of array 100.
    pub(in crate::daemon) fn record(array_task_id: u32) -> JobRecord {
        JobRecord {
            command: String::new(),
            job_id: 100 + array_task_id,
            array_job_id: 100,
            array_tasks: vec![array_task_id],
            base: BaseState::Running,
            completing: false,
            flagged: false,
            partition: "bftrainer".to_owned(),
            name: String::new(),
            comment: String::new(),
            admin_comment: String::new(),
            user_id: 1000,
            user_name: "ada".to_owned(),
            account: String::new(),
            work_dir: "/home/ada".to_owned(),
            nodes: vec!["n1".to_owned()],
            planned_nodes: Vec::new(),
            start_time_s: 0,
            end_time_s: 0,
            submit_time_s: 0,
            limit_min: None,
            priority: 1,
            wait_reason: 0,
            restart_count: 0,
            requeue: true,
            exclusive: true,
            node_count: 1,
            request: NodeRequest::default(),
        }
    }

    #[test]
    fn of_two_tasks_on_a_node_the_one_that_runs_counts() {
        let refused = Admission::Refused(String::new());
        let mut array = Array::new(&record(0), refused, None);
        let node = || "n1".to_owned();
        let plans = [
            Plan::Leaving { node: node() },
            Plan::Placing { node: node() },
            Plan::Placed {
                node: node(),
                deadline_s: 0.0,
            },
            Plan::Runs {
                node: node(),
                restart_count: 0,
            },
        ];
        for (id, plan) in (0..).zip(plans) {
            let mut task = Task::new(&record(id));
            task.plan = plan;
            array.tasks.insert(id, task);
            assert_eq!(array.task_on("n1"), Some(id));
        }
        assert_eq!(array.task_on("n2"), None);
    }

    #[test]
    fn a_run_that_waits_to_be_started_again_was_forgotten_unless_it_was_requeued() {
        for (base, restart_count, end) in [
            (BaseState::Pending, 0, RunEnd::Forgotten),
            (BaseState::Pending, 1, RunEnd::Requeued),
            (BaseState::Failed, 0, RunEnd::Over),
        ] {
            let node = "n1".to_owned();
            let mut task = Task::new(&record(0));
            task.plan = Plan::Runs {
                node: node.clone(),
                restart_count: 0,
            };
            task.base = base;
            task.restart_count = restart_count;
            assert_eq!(task.turn(100.0, 10.0, None), Turn::Lost { node, end });
            assert_eq!(task.left.left_s("n1"), 100.0);
        }
    }

    #[test]
    fn of_the_tasks_that_wait_the_one_that_left_the_node_longest_ago_comes_back() {
        let mut array = Array::new(&record(0), Admission::Refused(String::new()), None);
        for (id, left_at_s) in [(0, 105.0), (1, 100.0)] {
            let mut task = Task::new(&record(id));
            task.base = BaseState::Pending;
            task.left.leaves("n1", left_at_s);
            array.tasks.insert(id, task);
        }
        let mut free = |node, before_s| array.free_task(node, before_s).map(|(id, _)| id);
        assert_eq!(free("n1", 99.0), None);
        assert_eq!(free("n1", 102.0), Some(1));
        assert_eq!(free("n1", 110.0), Some(1));
        assert_eq!(free("n2", 99.0), Some(0));
    }

    #[test]
    fn a_task_without_agent_is_left_alone_after_the_patience_and_no_sooner() {
        let mut shown = record(0);
        shown.base = BaseState::Running;
        let mut task = Task::new(&shown);
        assert!(!task.is_left_alone(false, 100.0, 10.0));
        assert!(!task.is_left_alone(false, 109.0, 10.0));
        assert!(!task.is_left_alone(true, 111.0, 10.0));
        assert!(!task.is_left_alone(false, 112.0, 10.0));
        assert!(task.is_left_alone(false, 123.0, 10.0));
        assert!(!task.is_left_alone(false, 124.0, 10.0), "told once");
        task.base = BaseState::Complete;
        assert!(!task.is_left_alone(false, 200.0, 10.0));
    }
}
