//! The tasks of an array: what Slurm says of each and what was asked of it. A task is
//! (array job id, array task id); its job id changes.

use super::left::{Left, SAME_NODE_PAUSE_S};
use crate::slurm::{BaseState, JobRecord};

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
    /// When it was queued again last, epoch seconds.
    pub requeue_time_s: Option<i64>,
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
            requeue_time_s: None,
            wait_reason: 0,
            requeue: true,
            plan: Plan::Rest,
            left: Left::default(),
            given_up: false,
            alone_since_s: None,
        };
        task.refresh(record);
        if let Some(time_s) = task.requeue_time_s {
            task.left = Left::some_node(time_s as f64);
        }
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
        // Slurm's submit time is that of the last requeue.
        self.requeue_time_s = (record.restart_count > 0).then_some(record.submit_time_s);
        self.wait_reason = record.wait_reason;
        self.requeue = record.requeue;
    }

    /// Compares what was asked with what Slurm shows at `now_s`; the plan then
    /// is what still stands. `joined_run` is the run (restarts before it) from which an
    /// agent has joined. A worker that is gone for Slurm's eyes too after `patience_s`
    /// counts as found again.
    pub fn turn(&mut self, now_s: f64, patience_s: f64, joined_run: Option<u32>) -> Turn {
        let runs_on = |node: &str| self.runs() && self.node.as_deref() == Some(node);
        // The run that has begun as far as is known.
        let begun = match self.plan {
            Plan::Runs { restart_count, .. } => Some(restart_count),
            _ => joined_run,
        };
        let is_forgotten = begun.is_some_and(|restart_count| self.is_forgotten(restart_count));
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
            Plan::Placed { node, .. } | Plan::Runs { node, .. } => {
                self.leave(&node, now_s);
                let end = match self.base {
                    BaseState::Pending if is_forgotten => RunEnd::Forgotten,
                    BaseState::Pending => RunEnd::Requeued,
                    _ => RunEnd::Over,
                };
                Turn::Lost { node, end }
            }
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

    /// Whether it waits and is to be released to end with its trainer: it was not yet, and may
    /// start on whatever node, the one that it left last included.
    pub fn waits_for_closing(&self, now_s: f64) -> bool {
        let restart_count = self.restart_count;
        let is_settled = |requeue_time_s| now_s - requeue_time_s as f64 >= SAME_NODE_PAUSE_S;
        self.waits()
            && self.requeue_time_s.is_none_or(is_settled)
            && (self.held || self.plan != Plan::Closing { restart_count })
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
    fn a_task_that_has_just_left_a_node_is_not_released_to_end_there() {
        let mut shown = record(0);
        shown.base = BaseState::Pending;
        shown.priority = 0;
        shown.submit_time_s = 100;
        // It never ran: its submission matters to no node.
        assert!(Task::new(&shown).waits_for_closing(100.5));
        shown.restart_count = 1;
        let mut task = Task::new(&shown);
        assert!(!task.waits_for_closing(100.5));
        assert!(task.waits_for_closing(111.0));
        let restart_count = 1;
        task.plan = Plan::Closing { restart_count };
        task.held = false;
        assert!(!task.waits_for_closing(111.0), "it was released");
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
