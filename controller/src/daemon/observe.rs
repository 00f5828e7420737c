//! From what Slurm shows to what the engine is told: arrays that come, change
//! and go, tasks that start and stop, nodes that join and leave the pool.

use std::collections::{BTreeMap, BTreeSet};

use bftrainer::spec::COMMENT_PREFIX;
use bftrainer::wire::ToAgent;
use bftrainer_core::engine::Event;
use bftrainer_core::trainer::{TrainerId, TrainerState};

use super::agents::{Agents, Parked};
use super::brain::Brain;
use super::pool_view::FORGOTTEN_S;
use super::slurm_thread::Sight;
use super::task::{Plan, Task};
use crate::slurm::{BaseState, JobRecord, ReservationRecord, SlurmError, TaskName};

impl Brain {
    pub(super) fn observe(&mut self, now_s: f64, sight: Sight, events: &mut Vec<Event>) {
        if let Some(names) = self.known_partition(sight.partition_nodes) {
            let excluded: BTreeSet<String> = self
                .config
                .exclude_nodes
                .iter()
                .flat_map(|list| crate::slurm::hosts(list).unwrap_or_default())
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
        // Trainers are announced with the classes that they may use.
        self.observe_classes(events);
        let mut found = Vec::new();
        if let Some(jobs) = sight.jobs {
            self.planned_by_jobs = planned_uses(&jobs, &self.config.partition);
            for (node, start_s) in regular_starts(&jobs, &self.config.partition) {
                let last_s = self.regular_starts.entry(node).or_insert(start_s);
                *last_s = start_s.max(*last_s);
            }
            self.observe_jobs(now_s, &jobs, events, &mut found);
        } else {
            self.observe_time(now_s, events, &mut found);
        }
        self.planned = self.planned_by_jobs.clone();
        add_reservations(&mut self.planned, &self.reservations);
        self.observe_deadlines(now_s, events);
        self.count_preemptions(now_s);
        self.observe_pool(now_s, events);
        events.extend(found);
        self.has_seen = true;
        if self.look_began_after(self.doubted_at_s) {
            events.push(Event::PoolSeen);
        }
        self.unpark(now_s, events);
        self.renew_limits(now_s);
    }

    /// The partition's nodes when Slurm has it; a partition that is gone changes
    /// nothing until it is back.
    fn known_partition(
        &mut self,
        seen: Option<Result<Vec<String>, SlurmError>>,
    ) -> Option<Vec<String>> {
        match seen? {
            Ok(names) => {
                if std::mem::replace(&mut self.lacks_partition, false) {
                    log::info!("Slurm has partition {} again", self.config.partition);
                }
                Some(names)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.lacks_partition, true) {
                    log::warn!("{error}; its last known nodes are used until it is back");
                }
                None
            }
        }
    }

    fn observe_jobs(
        &mut self,
        now_s: f64,
        jobs: &[JobRecord],
        events: &mut Vec<Event>,
        found: &mut Vec<Event>,
    ) {
        let mut seen: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        // Tasks that were touched have records of their own.
        let mut sizes: BTreeMap<u32, u32> = BTreeMap::new();
        for job in jobs {
            *sizes.entry(job.array_job_id).or_default() += job.array_tasks.len() as u32;
        }
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
            self.observe_array(job, sizes[&job.array_job_id], events);
            // A job that is no array is shown as one task, with why it is refused.
            let (key, ids) = match job.array_job_id {
                0 => (job.job_id, vec![0]),
                array_job_id => (array_job_id, job.array_tasks.clone()),
            };
            seen.entry(key).or_default().extend(&ids);
            if let Some(array) = self.arrays.get_mut(&key) {
                for id in &ids {
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

    /// No job has changed, but time has passed.
    fn observe_time(&mut self, now_s: f64, events: &mut Vec<Event>, found: &mut Vec<Event>) {
        let known: Vec<(u32, BTreeSet<u32>)> = self
            .arrays
            .iter()
            .map(|(id, array)| (*id, array.tasks.keys().copied().collect()))
            .collect();
        for (id, present) in known {
            self.observe_tasks(now_s, id, &present, events, found);
        }
    }

    /// Lets joins in that waited for Slurm to show their tasks.
    fn unpark(&mut self, now_s: f64, events: &mut Vec<Event>) {
        for parked in self.agents.take_parked() {
            let is_gone = self.task_of(&parked).is_some_and(|task| {
                let placed = matches!(task.plan, Plan::Placing { .. } | Plan::Placed { .. });
                !placed && !task.runs()
            });
            let seen_since = self.look_began_after(parked.since_s);
            if is_gone && seen_since && !self.is_forgotten(&parked) {
                // The agent may have gone by itself.
                let _ = parked.to_agent.send(ToAgent::Ended);
            } else {
                self.consider_join(now_s, parked, events);
            }
        }
        for parked in self.agents.take_parked() {
            let is_waited_for = now_s - parked.since_s < FORGOTTEN_S && self.is_forgotten(&parked);
            if is_waited_for {
                // Without an answer it would connect anew, and its node be free meanwhile.
                let _ = parked.to_agent.send(ToAgent::Heartbeat);
            }
            let is_overdue = !is_waited_for && Agents::is_overdue(&parked, now_s);
            if is_overdue && self.look_began_after(parked.since_s) {
                let reason = "Slurm does not show this task running on this node";
                self.refuse_agent(&parked, reason);
            } else {
                self.agents.park(parked);
            }
        }
    }

    /// Whether it is the agent of a run that slurmctld has forgotten, and will end.
    pub(super) fn is_forgotten(&self, parked: &Parked) -> bool {
        self.task_of(parked)
            .is_some_and(|task| task.is_forgotten(parked.join.restart_count))
    }

    fn task_of(&self, parked: &Parked) -> Option<&Task> {
        let array = self.arrays.get(&parked.join.array_job_id)?;
        array.tasks.get(&parked.join.array_task_id)
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

/// Nodes on which regular jobs have started lately, with the epoch second.
fn regular_starts<'a>(
    jobs: &'a [JobRecord],
    our_partition: &'a str,
) -> impl Iterator<Item = (String, i64)> {
    jobs.iter()
        .filter(move |job| job.base != BaseState::Pending && job.partition != our_partition)
        .flat_map(|job| {
            job.nodes
                .iter()
                .map(|node| (node.clone(), job.start_time_s))
        })
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

/// A reservation never preempts: its start ends a hole.
pub(super) fn add_reservations(
    planned: &mut BTreeMap<String, i64>,
    reservations: &[ReservationRecord],
) {
    for reservation in reservations {
        for node in &reservation.nodes {
            let start_s = planned.entry(node.clone()).or_insert(i64::MAX);
            *start_s = reservation.start_time_s.min(*start_s);
        }
    }
}
