//! The pool as Slurm shows it: plain idle nodes, and those with a task of ours.

use std::collections::{BTreeMap, BTreeSet};

use bftrainer_core::engine::{Event, LossReason};
use bftrainer_core::node::NodeId;

use super::brain::Brain;
use super::tasks::Plan;
use crate::agent::leave_at_s;
use crate::slurm::NodeBase;

/// A node that our worker has left on our order may be cleaned up this long
/// before it counts as gone, seconds.
const DEPARTURE_S: f64 = 10.0;

/// Over bf_interval, a node that Slurm took from us is left to it so long, seconds.
const TAKEN_MARGIN_S: f64 = 2.0;

/// Where the agent of a run that slurmctld has forgotten still waits to be ended, the node is
/// left alone, so long at most, seconds.
pub(super) const FORGOTTEN_S: f64 = 60.0;

/// A trainer's workers whose longest stay ends are told to leave so long before their
/// agents would leave by themselves, one by one, seconds.
const ORDERLY_LEAD_S: f64 = 5.0;

impl Brain {
    /// When workers must be told to leave because their longest stay on one node
    /// (`-t`) is over, epoch seconds by node.
    fn stay_ends(&self) -> BTreeMap<String, f64> {
        let grace_s = self.config.engine.grace_s;
        let mut ends = BTreeMap::new();
        for array in self.arrays.values().filter(|array| array.verdict.is_none()) {
            let Some(stay_min) = array.stay_min else {
                continue;
            };
            for task in array.tasks.values() {
                if let Plan::Runs { node, .. } = &task.plan
                    && task.start_time_s > 0
                {
                    let began_s = task.start_time_s as f64;
                    let end_s = began_s + f64::from(stay_min) * 60.0;
                    let leave_s = leave_at_s(began_s, end_s, grace_s) - ORDERLY_LEAD_S;
                    ends.insert(node.clone(), leave_s.floor());
                }
            }
        }
        ends
    }

    /// The pool: plain idle nodes, and those that run a task of ours.
    pub(super) fn observe_pool(&mut self, now_s: f64, events: &mut Vec<Event>) {
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
        self.forget_taken(now_s, &ours);
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
        let stay_ends = self.stay_ends();
        for (name, node) in &self.nodes {
            let id = self.engine.names.intern(name);
            let known = self.engine.pool().get(id).filter(|_| !lost.contains(&id));
            let is_ours = ours.contains(name);
            let in_use = is_ours || known.is_some_and(|pool_node| pool_node.assigned.is_some());
            let in_partition =
                self.partition_nodes.contains(name) && self.admin_orders.allow(name, in_use);
            let idle = node.base == NodeBase::Idle
                && !node.flagged
                && !node.completing
                && !self.taken.contains_key(name);
            let passing = known.is_some()
                && !node.flagged
                && (closing.contains(name)
                    || node.completing && self.departures.contains_key(name));
            let belongs = in_partition && (idle || is_ours || passing);
            // A node that is being drained or reserved under our worker is expected back now.
            let hole_end_s = if is_ours && (node.flagged || !in_partition) {
                Some(now_s.floor())
            } else {
                let planned_s = self.planned.get(name).map(|end_s| *end_s as f64);
                let ends = [planned_s, stay_ends.get(name).copied()];
                ends.into_iter().flatten().reduce(f64::min)
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
        for id in self.engine.pool().ids() {
            if !self.nodes.contains_key(self.engine.names.name(id)) {
                left.push(id);
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

    /// Nodes that Slurm took from us are anybody's again when it has had time to use
    /// them, or is seen to have used them.
    fn forget_taken(&mut self, now_s: f64, ours: &BTreeSet<String>) {
        // A job that backfill starts gets its node in the cycle after the preemption.
        // Were it ours again by then, Slurm would have to preempt again.
        let taken_for_s = f64::from(self.settings.backfill_interval_s) + TAKEN_MARGIN_S;
        let in_use: Vec<String> = self
            .taken
            .iter()
            .filter(|(name, time_s)| {
                self.look_began_after(**time_s) && !ours.contains(*name) && self.is_in_use(name)
            })
            .map(|(name, _)| name.clone())
            .collect();
        let forgotten: BTreeSet<String> = self
            .agents
            .parked()
            .iter()
            .filter(|parked| self.is_forgotten(parked))
            .map(|parked| parked.join.node.clone())
            .collect();
        self.taken.retain(|name, time_s| {
            let held_s = match forgotten.contains(name) {
                true => taken_for_s.max(FORGOTTEN_S),
                false => taken_for_s,
            };
            now_s - *time_s < held_s && !in_use.contains(name)
        });
    }

    fn is_in_use(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|node| {
            matches!(node.base, NodeBase::Allocated | NodeBase::Mixed) && !node.completing
        })
    }
}
