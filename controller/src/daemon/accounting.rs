//! What was harvested, and how fast: node-seconds and latencies.

use std::collections::{BTreeMap, VecDeque};

use bftrainer_core::pool::Phase;
use bftrainer_core::trainer::{RunState, Trainer};

use super::brain::Brain;
use crate::metrics::{Departure, Metrics};
use crate::store::Record;
use crate::timeline::Counts;

/// Latencies that are kept for the quantiles.
const KEPT_LATENCIES: usize = 4096;

/// A gap between two integrations that is no longer believed, seconds: the
/// daemon was stopped or the clock was set.
const LONGEST_GAP_S: f64 = 60.0;

/// A hole whose planned end is nearer can't be used: Slurm counts limits in
/// minutes, seconds.
const USABLE_HOLE_S: f64 = 60.0;

/// Node-seconds are handed to the store this often, seconds.
const KEEP_S: f64 = 60.0;

/// Totals since the daemon's start.
#[derive(Debug, Default)]
pub struct Accounting {
    /// Until when everything is summed up, epoch seconds.
    summed_until_s: f64,
    /// Node-seconds of the pool: idle, or held by our tasks.
    pub pool_node_s: f64,
    /// Of these, on nodes that could be given to a trainer, as their planned end is
    /// unknown or far enough away, or on which ranks run that came when it was.
    pub usable_node_s: f64,
    /// Node-seconds in which ranks ran.
    pub harvested_node_s: f64,
    /// Workers lost to Slurm: epoch seconds and node.
    pub preemptions: VecDeque<(f64, String)>,
    /// Node-seconds by user and account that the store has not got yet.
    unkept: BTreeMap<(String, String), f64>,
    kept_at_s: f64,
    placed_s: BTreeMap<String, f64>,
    leave_ordered_s: BTreeMap<String, f64>,
    /// From the decision to ranks running, seconds.
    pub start_s: VecDeque<f64>,
    /// From the order to leave to Slurm's answer, seconds.
    pub release_s: VecDeque<f64>,
    /// The same and more, for Prometheus.
    pub metrics: Metrics,
}

impl Accounting {
    /// A worker was ordered to `node`.
    pub fn placed(&mut self, node: &str, now_s: f64) {
        self.placed_s.insert(node.to_owned(), now_s);
    }

    /// Ranks run on `node`.
    pub fn started(&mut self, node: &str, now_s: f64) {
        if let Some(placed_s) = self.placed_s.remove(node) {
            keep(&mut self.start_s, now_s - placed_s);
            self.metrics.start_s.observe(now_s - placed_s);
        }
    }

    /// The worker on `node` was ordered away.
    pub fn leave_ordered(&mut self, node: &str, now_s: f64) {
        self.placed_s.remove(node);
        self.leave_ordered_s.insert(node.to_owned(), now_s);
    }

    /// The worker on `node` has left.
    pub fn left(&mut self, node: &str, now_s: f64) {
        if let Some(ordered_s) = self.leave_ordered_s.remove(node) {
            keep(&mut self.release_s, now_s - ordered_s);
            self.metrics.release_s.observe(now_s - ordered_s);
        }
    }

    /// The worker on `node` is gone, though nobody told it to leave.
    pub fn taken(&mut self, node: &str) {
        self.placed_s.remove(node);
    }

    /// Slurm took `node` from its worker at `time_s`.
    pub fn preempted(&mut self, node: &str, departure: Departure, time_s: f64) {
        self.metrics.preempted(departure);
        keep(&mut self.preemptions, (time_s, node.to_owned()));
    }
}

fn keep<T>(queue: &mut VecDeque<T>, value: T) {
    if queue.len() == KEPT_LATENCIES {
        queue.pop_front();
    }
    queue.push_back(value);
}

/// The `q`-quantile (nearest rank) of `values`; `None` when there are none.
pub fn quantile(values: &VecDeque<f64>, q: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    sorted.get(((last as f64) * q).round() as usize).copied()
}

/// Nodes on which ranks of `trainer` run now.
pub fn running_nodes(trainer: &Trainer) -> usize {
    match &trainer.run {
        Some(run) => match &run.state {
            RunState::Running | RunState::Adopting(_) => run.members.len(),
            RunState::Starting(started) => started.len(),
            RunState::Stopping { waiting, .. } => waiting.len(),
        },
        None => 0,
    }
}

impl Brain {
    /// Sums up node-seconds of the state as it was until `now_s`.
    pub(super) fn integrate(&mut self, now_s: f64) {
        let gap_s = now_s - self.accounting.summed_until_s;
        self.accounting.summed_until_s = now_s;
        if !self.has_seen || gap_s <= 0.0 || gap_s > LONGEST_GAP_S {
            return;
        }
        let mut counts = Counts::default();
        let mut usable = 0usize;
        for node in self.engine.pool().nodes() {
            // A worker on its way out no longer offers its node.
            if node.worker.as_ref().is_some_and(|worker| {
                worker.phase == Phase::Leaving && self.is_closing(worker.trainer)
            }) {
                continue;
            }
            counts.pool += 1;
            counts.held += usize::from(node.worker.is_some());
            let left_s = node.hole_end_s.map_or(f64::INFINITY, |end_s| end_s - now_s);
            let trains = node
                .worker
                .as_ref()
                .is_some_and(|worker| worker.phase == Phase::Member);
            usable += usize::from(trains || left_s >= USABLE_HOLE_S);
        }
        self.accounting.pool_node_s += counts.pool as f64 * gap_s;
        self.accounting.usable_node_s += usable as f64 * gap_s;
        let metrics = &self.accounting.metrics;
        metrics.pool_node_s.inc_by(counts.pool as f64 * gap_s);
        metrics.usable_node_s.inc_by(usable as f64 * gap_s);
        metrics.held_node_s.inc_by(counts.held as f64 * gap_s);
        let mut running = Vec::new();
        for (id, trainer) in self.engine.trainers() {
            let nodes = running_nodes(trainer);
            if nodes > 0 {
                running.push((id.0, nodes));
            }
            let node_s = nodes as f64 * gap_s;
            self.accounting.harvested_node_s += node_s;
            self.accounting.metrics.harvested_node_s.inc_by(node_s);
            if let Some(array) = self.arrays.get_mut(&id.0) {
                array.harvested_node_s += node_s;
                if node_s > 0.0 {
                    let key = (array.owner_name.clone(), array.account.clone());
                    *self.accounting.unkept.entry(key).or_default() += node_s;
                }
            }
        }
        if let Some(point) = self.timeline.add(now_s, gap_s, counts, &running) {
            self.store.keep(Record::Timeline(point));
        }
        if now_s - self.accounting.kept_at_s >= KEEP_S {
            self.keep_harvest(now_s);
            self.keep_learned(now_s);
        }
    }

    /// Hands the node-seconds that were harvested lately to the store.
    pub(super) fn keep_harvest(&mut self, now_s: f64) {
        self.accounting.kept_at_s = now_s;
        for ((user, account), node_s) in std::mem::take(&mut self.accounting.unkept) {
            let day = (now_s / 86_400.0) as i64;
            self.store.keep(Record::Harvest {
                day,
                user,
                account,
                node_s,
            });
        }
    }
}
