//! From what Slurm shows to what the engine is told: arrays that come, change
//! and go, tasks that start and stop, nodes that join and leave the pool.

use std::collections::{BTreeMap, BTreeSet};

use bftrainer::spec::{AdminComment, COMMENT_PREFIX, Spec};
use bftrainer_core::curve::Curve;
use bftrainer_core::engine::{Event, LossReason, PlaceFault};
use bftrainer_core::node::NodeId;
use bftrainer_core::trainer::{TrainerId, TrainerInfo, TrainerState};

use super::agents::Agents;
use super::brain::Brain;
use super::slurm_thread::{ChangeKind, Purpose, Sight};
use super::tasks::{Admission, Array, Plan, Task};
use crate::slurm::{BaseState, JobRecord, NodeBase, TaskName, TaskUpdate, is_limit_reason};

/// What an array's AdminComment starts with when it was refused.
const REFUSED_PREFIX: &str = "bftrainer refused: ";

/// A node that our worker has left on our order may be cleaned up this long
/// before it counts as gone, seconds.
const DEPARTURE_S: f64 = 10.0;

/// A task whose worker is gone and that still runs after this is found again
/// and removed by force, seconds over KillWait.
const GONE_S: f64 = 5.0;

impl Brain {
    pub(super) fn observe(&mut self, now_s: f64, sight: Sight, events: &mut Vec<Event>) {
        if let Some(names) = sight.partition_nodes {
            let excluded: BTreeSet<String> = self
                .config
                .exclude_nodes
                .iter()
                .flat_map(|list| crate::slurm::hosts(list))
                .collect();
            self.partition_nodes = names
                .into_iter()
                .filter(|n| !excluded.contains(n))
                .collect();
        }
        if let Some(reservations) = sight.reservations {
            self.reservations = reservations;
        }
        if let Some(nodes) = sight.nodes {
            self.nodes = nodes
                .into_iter()
                .map(|node| (node.name.clone(), node))
                .collect();
        }
        let mut found = Vec::new();
        if let Some(jobs) = sight.jobs {
            self.planned = planned_uses(&jobs, &self.config.partition);
            self.observe_jobs(now_s, &jobs, events, &mut found);
        }
        self.observe_deadlines(now_s, events);
        self.observe_pool(now_s, events);
        events.extend(found);
        self.has_seen = true;
        if self.look_began_after_doubt() {
            events.push(Event::PoolSeen);
        }
        self.unpark(now_s, events);
        self.renew_limits(now_s);
    }

    fn observe_jobs(
        &mut self,
        now_s: f64,
        jobs: &[JobRecord],
        events: &mut Vec<Event>,
        found: &mut Vec<Event>,
    ) {
        let mut seen: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        self.plain_jobs = 0;
        for job in jobs {
            let tagged = job.comment.starts_with(COMMENT_PREFIX)
                || job.admin_comment.starts_with(COMMENT_PREFIX);
            if job.partition != self.config.partition {
                if tagged && self.mentioned.insert(job.job_id) {
                    log::warn!(
                        "job {} carries a trainer's comment in partition {}: left alone",
                        job.job_id,
                        job.partition
                    );
                }
                continue;
            }
            if !tagged {
                self.plain_jobs += 1;
                continue;
            }
            self.observe_array(job, events);
            let key = if job.array_job_id == 0 {
                job.job_id
            } else {
                job.array_job_id
            };
            let tasks = seen.entry(key).or_default();
            tasks.extend(&job.array_tasks);
            if let Some(array) = self.arrays.get_mut(&job.array_job_id) {
                for id in &job.array_tasks {
                    array
                        .tasks
                        .entry(*id)
                        .and_modify(|task| task.refresh(job))
                        .or_insert_with(|| Task::new(job));
                }
            }
        }
        let known: Vec<u32> = self.arrays.keys().copied().collect();
        for id in known {
            let present = seen.remove(&id).unwrap_or_default();
            self.observe_tasks(now_s, id, &present, events, found);
        }
    }

    /// Admits a new array, or looks again at one that was refused.
    fn observe_array(&mut self, job: &JobRecord, events: &mut Vec<Event>) {
        let id = job.array_job_id;
        if let Some(array) = self.arrays.get(&id)
            && !matches!(array.admission, Admission::Refused(_))
        {
            return;
        }
        if matches!(
            job.base,
            BaseState::Complete | BaseState::Cancelled | BaseState::Failed
        ) {
            // The records of an ended array stay for MinJobAge.
            return;
        }
        if let Some(kept) = AdminComment::parse(&job.admin_comment) {
            let mut array = Array::new(job, Admission::Admitted(kept.spec), kept.exit_code);
            array.submit_time_s = kept.submitted_s;
            log::info!("T{id} of {} found, admitted before", array.owner_name);
            self.arrays.insert(id, array);
            self.announce(id, events);
            return;
        }
        let key = if id == 0 { job.job_id } else { id };
        match self.validate(job) {
            Ok(spec) => {
                let array = Array::new(job, Admission::Asked(spec.clone()), None);
                let comment = AdminComment {
                    spec,
                    submitted_s: array.submit_time_s,
                    exit_code: None,
                    reason: None,
                };
                let update = TaskUpdate {
                    hold: Some(true),
                    admin_comment: Some(comment.to_string()),
                    ..TaskUpdate::default()
                };
                self.arrays.insert(id, array);
                self.change(
                    TaskName::Array(id),
                    ChangeKind::Update(update),
                    Purpose::Admit,
                );
            }
            Err(reason) => {
                let comment = format!("{REFUSED_PREFIX}{reason}");
                let told = job.admin_comment == comment
                    || self
                        .arrays
                        .get(&key)
                        .is_some_and(|array| array.admission == Admission::Refused(reason.clone()));
                if !told {
                    log::warn!("job {key} is held: {reason}");
                    let update = TaskUpdate {
                        hold: (job.base == BaseState::Pending).then_some(true),
                        admin_comment: Some(comment),
                        ..TaskUpdate::default()
                    };
                    self.change(
                        TaskName::Array(key),
                        ChangeKind::Update(update),
                        Purpose::Refuse,
                    );
                }
                self.arrays
                    .insert(key, Array::new(job, Admission::Refused(reason), None));
            }
        }
    }

    fn validate(&self, job: &JobRecord) -> Result<Spec, String> {
        let spec = match Spec::from_comment(&job.comment) {
            Some(Ok(spec)) => spec,
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err("the comment carries no specification".to_owned()),
        };
        if job.array_job_id == 0 {
            return Err(format!(
                "it is no job array; submit it with --array=0-{}",
                spec.max_nodes - 1
            ));
        }
        if job.node_count > 1 {
            return Err("its tasks want more than one node; submit it with -N1".to_owned());
        }
        if !job.exclusive {
            return Err("its tasks share nodes; submit it with --exclusive".to_owned());
        }
        if !job.requeue {
            return Err("its tasks can't be requeued; submit it with --requeue".to_owned());
        }
        // Split tasks have records of their own; the array is whole at its first sight.
        let tasks = self
            .arrays
            .get(&job.array_job_id)
            .map_or(0, |array| array.tasks.len())
            .max(job.array_tasks.len()) as u32;
        if spec.max_nodes > tasks {
            return Err(format!(
                "it asks for up to {} nodes but has {tasks} tasks; submit it with --array=0-{}",
                spec.max_nodes,
                spec.max_nodes - 1
            ));
        }
        let all: u32 = self
            .arrays
            .values()
            .filter(|array| array.id != job.array_job_id)
            .filter(|array| !matches!(array.admission, Admission::Refused(_)))
            .map(Array::open_tasks)
            .sum();
        if all + tasks > self.config.max_tasks {
            return Err(format!(
                "trainers would have {} tasks in all, more than max_tasks = {}; it is admitted \
                 when others have ended",
                all + tasks,
                self.config.max_tasks
            ));
        }
        Ok(spec)
    }

    /// Tells the engine of an admitted array.
    pub(super) fn announce(&mut self, id: u32, events: &mut Vec<Event>) {
        let Some(info) = self.trainer_info(id) else {
            return;
        };
        events.push(Event::TrainerArrived(info));
        if let Some(exit_code) = self.arrays.get(&id).and_then(|array| array.verdict) {
            events.push(Event::Finished {
                trainer: TrainerId(id),
                exit_code,
            });
        }
    }

    fn trainer_info(&self, id: u32) -> Option<TrainerInfo> {
        let array = self.arrays.get(&id)?;
        let spec = array.spec()?;
        let open = array.open_tasks();
        let max_nodes = if open == 0 {
            spec.max_nodes
        } else {
            spec.max_nodes.min(open)
        };
        let curve = (!spec.curve.is_empty())
            .then(|| Curve::new(&spec.curve).ok())
            .flatten()
            .map(|curve| curve.clamped_to_linear());
        Some(TrainerInfo {
            id: TrainerId(id),
            owner_uid: array.owner_uid,
            min_nodes: spec.min_nodes,
            max_nodes,
            weight: spec.weight,
            curve: curve
                .unwrap_or_else(|| Curve::amdahl(self.config.parallel_fraction, spec.max_nodes)),
            up_s: spec.up_s.unwrap_or(self.config.up_s),
            down_s: spec.down_s.unwrap_or(self.config.down_s),
            max_stay_s: array.stay_min.map(|minutes| f64::from(minutes) * 60.0),
        })
    }

    /// What has become of an array's tasks; `present` are those that Slurm shows.
    fn observe_tasks(
        &mut self,
        now_s: f64,
        id: u32,
        present: &BTreeSet<u32>,
        events: &mut Vec<Event>,
        found: &mut Vec<Event>,
    ) {
        let trainer = TrainerId(id);
        let Some(array) = self.arrays.get_mut(&id) else {
            return;
        };
        let open_before = self
            .engine
            .trainers()
            .get(&trainer)
            .map(|known| known.info.max_nodes);
        let mut to_hold = Vec::new();
        let mut to_revive = Vec::new();
        let mut completed = false;
        let admitted = array.spec().is_some();
        let closing = array.verdict.is_some();
        array.tasks.retain(|task_id, task| {
            if present.contains(task_id) {
                return true;
            }
            // A cancelled task that never ran leaves no record; others go after MinJobAge.
            if let Some(node) = task.plan.node()
                && let Some(node) = self.engine.names.id(node)
            {
                events.push(Event::WorkerLost {
                    trainer,
                    node,
                    reason: LossReason::Ended,
                });
            }
            false
        });
        if array.tasks.is_empty() || array.tasks.values().all(Task::ended) && closing {
            self.forget_array(id, events);
            return;
        }
        if !admitted {
            return;
        }
        for (task_id, task) in &mut array.tasks {
            let worker_node = task.plan.node().map(|node| self.engine.names.intern(node));
            match task.plan.clone() {
                Plan::Placing { node } | Plan::Placed { node, .. }
                    if task.runs() && task.node.as_deref() == Some(&node) =>
                {
                    task.plan = Plan::Runs {
                        node,
                        restart_count: task.restart_count,
                    };
                }
                Plan::Placing { .. } => {}
                Plan::Placed { .. } if task.waits() && !task.held => {}
                Plan::Placed { node, .. } if task.waits() => {
                    // Somebody held it, or its launch failed and Slurm held it.
                    task.plan = Plan::Rest;
                    if let Some(worker_node) = worker_node {
                        events.push(Event::PlaceFailed {
                            trainer,
                            node: worker_node,
                            fault: PlaceFault::Node,
                            reason: format!("T{id}: Slurm could not start a task on {node}"),
                        });
                    }
                }
                Plan::Runs {
                    node,
                    restart_count,
                } if task.runs()
                    && task.restart_count == restart_count
                    && task.node.as_deref() == Some(&node) => {}
                Plan::Leaving { node } if !task.runs() => {
                    task.plan = Plan::Rest;
                    task.left = Some((node.clone(), now_s));
                    self.departures.insert(node, now_s);
                    if let Some(node) = worker_node {
                        events.push(Event::WorkerGone { trainer, node });
                    }
                }
                Plan::Leaving { .. } => {}
                Plan::Gone {
                    restart_count,
                    since_s,
                } => {
                    let patience_s = f64::from(self.settings.kill_wait_s) + GONE_S;
                    let same_run = task.runs() && task.restart_count == restart_count;
                    if !same_run || now_s - since_s > patience_s {
                        task.plan = Plan::Rest;
                    }
                }
                Plan::Placed { node, .. } | Plan::Runs { node, .. } => {
                    task.plan = Plan::Rest;
                    task.left = Some((node, now_s));
                    self.agents.remove((id, *task_id));
                    let requeued = task.base == BaseState::Pending;
                    let reason = if requeued {
                        LossReason::Preempted
                    } else {
                        LossReason::Ended
                    };
                    if let Some(node) = worker_node
                        && !closing
                    {
                        events.push(Event::WorkerLost {
                            trainer,
                            node,
                            reason,
                        });
                    }
                }
                Plan::Rest => {}
            }
            if task.plan == Plan::Rest && !closing {
                if task.runs() {
                    if let Some(node) = task.node.clone() {
                        let restart_count = task.restart_count;
                        task.plan = Plan::Runs {
                            node: node.clone(),
                            restart_count,
                        };
                        let node = self.engine.names.intern(&node);
                        found.push(Event::WorkerFound { trainer, node });
                    }
                } else if task.waits() && !task.held {
                    to_hold.push(*task_id);
                } else if task.ended() && task.base == BaseState::Complete {
                    completed = true;
                } else if task.ended() && task.base == BaseState::Failed {
                    to_revive.push(*task_id);
                }
            }
        }
        if array.tasks.values().all(Task::ended) && to_revive.is_empty() {
            self.forget_array(id, events);
            return;
        }
        if closing {
            self.release_rest(id);
        }
        if completed {
            // Its script ended well without our agent: so has the trainer.
            events.push(Event::Finished {
                trainer,
                exit_code: 0,
            });
        }
        if !to_hold.is_empty() {
            let update = TaskUpdate {
                hold: Some(true),
                ..TaskUpdate::default()
            };
            self.change(
                tasks(id, to_hold),
                ChangeKind::Update(update),
                Purpose::Hold,
            );
        }
        if !to_revive.is_empty() && !completed {
            log::warn!("T{id}: tasks {to_revive:?} ended without a verdict and are queued again");
            self.change(tasks(id, to_revive), ChangeKind::RequeueHold, Purpose::Hold);
        }
        if let Some(info) = self.trainer_info(id)
            && open_before.is_some_and(|max_nodes| max_nodes != info.max_nodes)
        {
            events.push(Event::TrainerChanged(info));
        }
    }

    /// All tasks of an array have ended: what is known of it becomes history.
    fn forget_array(&mut self, id: u32, events: &mut Vec<Event>) {
        self.remember_ended(id);
        if let Some(array) = self.arrays.remove(&id)
            && array.spec().is_some()
        {
            events.push(Event::TrainerGone {
                trainer: TrainerId(id),
            });
        }
    }

    /// Placements that Slurm has not carried out in time.
    fn observe_deadlines(&mut self, now_s: f64, events: &mut Vec<Event>) {
        let mut late = Vec::new();
        for (id, array) in &self.arrays {
            for (task_id, task) in &array.tasks {
                if let Plan::Placed { node, deadline_s } = &task.plan
                    && task.waits()
                    && (now_s > *deadline_s || is_limit_reason(task.wait_reason))
                {
                    late.push((*id, *task_id, node.clone(), task.wait_reason));
                }
            }
        }
        for (id, task_id, node, wait_reason) in late {
            let is_idle = self
                .nodes
                .get(&node)
                .is_some_and(|node| node.base == NodeBase::Idle && !node.flagged);
            let (fault, reason) = if is_limit_reason(wait_reason) {
                let reason = "its tasks wait for a limit of its user, account or QOS (see squeue)";
                (PlaceFault::Trainer, reason.to_owned())
            } else if is_idle {
                (
                    PlaceFault::Node,
                    format!("T{id}: no task started on {node} in time"),
                )
            } else {
                (PlaceFault::Nobody, String::new())
            };
            let node = self.engine.names.intern(&node);
            let trainer = TrainerId(id);
            events.push(Event::PlaceFailed {
                trainer,
                node,
                fault,
                reason,
            });
            if let Some(task) = self
                .arrays
                .get_mut(&id)
                .and_then(|a| a.tasks.get_mut(&task_id))
            {
                task.plan = Plan::Rest;
            }
            let update = TaskUpdate {
                hold: Some(true),
                ..TaskUpdate::default()
            };
            self.change(
                tasks(id, vec![task_id]),
                ChangeKind::Update(update),
                Purpose::Hold,
            );
        }
    }

    /// The pool: plain idle nodes, and those that run a task of ours.
    fn observe_pool(&mut self, now_s: f64, events: &mut Vec<Event>) {
        self.departures
            .retain(|_, time_s| now_s - *time_s < DEPARTURE_S);
        let mut ours = BTreeSet::new();
        let mut closing = BTreeSet::new();
        for array in self.arrays.values() {
            for task in array.tasks.values() {
                match (&task.plan, &task.node) {
                    (Plan::Runs { node, .. } | Plan::Leaving { node }, _) => {
                        ours.insert(node.clone());
                    }
                    (_, Some(node))
                        if array.verdict.is_some() && (task.runs() || task.completing) =>
                    {
                        closing.insert(node.clone());
                    }
                    _ => {}
                }
            }
        }
        let lost: BTreeSet<NodeId> = events
            .iter()
            .filter_map(|event| match event {
                Event::WorkerLost {
                    node,
                    reason: LossReason::Preempted,
                    ..
                } => Some(*node),
                _ => None,
            })
            .collect();
        let mut joined = Vec::new();
        let mut left = Vec::new();
        let mut hole_ends = Vec::new();
        for (name, node) in &self.nodes {
            let id = self.engine.names.intern(name);
            let known = self.engine.pool().get(&id).filter(|_| !lost.contains(&id));
            let in_partition = self.partition_nodes.contains(name);
            let idle = node.base == NodeBase::Idle && !node.flagged && !node.completing;
            let is_ours = ours.contains(name);
            let passing = known.is_some()
                && !node.flagged
                && (closing.contains(name) || self.departures.contains_key(name));
            let belongs = in_partition && (idle || is_ours || passing);
            // A node that is being drained or reserved under our worker is expected back now.
            let hole_end_s = if is_ours && (node.flagged || !in_partition) {
                Some(now_s.floor())
            } else {
                self.planned.get(name).map(|end_s| *end_s as f64)
            };
            match known {
                Some(pool_node) if belongs || is_ours => {
                    let changed = match (pool_node.hole_end_s, hole_end_s) {
                        (Some(old_s), Some(new_s)) => {
                            // "Now" moves on; its first value stands.
                            (old_s - new_s).abs() >= 1.0 && !(old_s <= now_s && new_s <= now_s)
                        }
                        (old, new) => old != new,
                    };
                    if changed {
                        hole_ends.push((id, hole_end_s));
                    }
                }
                Some(_) => left.push(id),
                None if belongs && !lost.contains(&id) => joined.push((id, hole_end_s)),
                None => {}
            }
        }
        for id in self.engine.pool().keys() {
            if !self.nodes.contains_key(self.engine.names.name(*id)) {
                left.push(*id);
            }
        }
        if !(joined.is_empty() && left.is_empty() && hole_ends.is_empty()) {
            events.push(Event::Pool {
                joined,
                left,
                hole_ends,
            });
        }
    }

    /// Lets joins in that waited for Slurm to show their tasks.
    fn unpark(&mut self, now_s: f64, events: &mut Vec<Event>) {
        for parked in self.agents.take_parked() {
            if Agents::is_overdue(&parked, now_s) {
                self.refuse_agent(
                    &parked,
                    "Slurm does not show this task running on this node",
                );
            } else {
                self.consider_join(now_s, parked, events);
            }
        }
    }

    /// Raises the limits of workers in time, so that none ends in TIMEOUT.
    fn renew_limits(&mut self, now_s: f64) {
        let lease_s = self.config.engine.lease_s;
        let mut renewals = Vec::new();
        for (id, array) in &self.arrays {
            if array.verdict.is_some() {
                continue;
            }
            for (task_id, task) in &array.tasks {
                let Plan::Runs { node, .. } = &task.plan else {
                    continue;
                };
                let Some(limit_min) = task.limit_min else {
                    continue;
                };
                let left_s = task.end_time_s as f64 - now_s;
                if left_s > lease_s / 2.0 {
                    continue;
                }
                let until_s = self
                    .planned
                    .get(node)
                    .map_or(now_s + lease_s, |end_s| *end_s as f64);
                let fits_min = ((until_s - task.start_time_s as f64) / 60.0).floor() as u32;
                let wanted_min = array
                    .stay_min
                    .map_or(fits_min, |stay_min| fits_min.min(stay_min));
                if wanted_min > limit_min {
                    renewals.push((*id, *task_id, wanted_min));
                }
            }
        }
        for (id, task_id, limit_min) in renewals {
            let update = TaskUpdate {
                limit_min: Some(limit_min),
                ..TaskUpdate::default()
            };
            self.change(
                tasks(id, vec![task_id]),
                ChangeKind::Update(update),
                Purpose::Extend,
            );
        }
        self.tell_ends();
    }

    /// Whether the engine still counts on the trainer.
    pub(super) fn is_closing(&self, trainer: TrainerId) -> bool {
        self.engine
            .trainers()
            .get(&trainer)
            .is_some_and(|known| known.state == TrainerState::Closing)
    }
}

/// Names some tasks of an array.
pub(super) fn tasks(array_job_id: u32, array_task_ids: Vec<u32>) -> TaskName {
    match array_task_ids.as_slice() {
        [array_task_id] => TaskName::Task {
            array_job_id,
            array_task_id: *array_task_id,
        },
        _ => TaskName::Tasks {
            array_job_id,
            array_task_ids,
        },
    }
}

/// When regular jobs are planned to use each node, epoch seconds.
fn planned_uses(jobs: &[JobRecord], our_partition: &str) -> BTreeMap<String, i64> {
    let mut planned: BTreeMap<String, i64> = BTreeMap::new();
    for job in jobs {
        if job.base != BaseState::Pending || job.partition == our_partition {
            continue;
        }
        for node in &job.planned_nodes {
            let start_s = planned.entry(node.clone()).or_insert(i64::MAX);
            *start_s = job.start_time_s.min(*start_s);
        }
    }
    planned
}
