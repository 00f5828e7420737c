//! Arrays: what Slurm says of each trainer and what is known of it.

use std::collections::BTreeMap;

use bftrainer::spec::Spec;
use bftrainer::wire::Progress;

use super::pace::Pace;
use super::task::{Plan, Task};
use crate::classes::Requirement;
use crate::slurm::JobRecord;

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
mod tests {
    use super::*;
    use crate::daemon::task::tests::record;
    use crate::slurm::BaseState;

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
}
