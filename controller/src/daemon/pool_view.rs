//! The pool as Slurm shows it: plain idle nodes, and those with a task of ours.

use std::collections::{BTreeMap, BTreeSet};

use bftrainer_core::engine::{Event, LossReason};
use bftrainer_core::node::NodeId;

use super::brain::Brain;
use super::task::Plan;
use crate::agent::leave_at_s;
use crate::slurm::{NodeBase, NodeRecord};

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

/// Nodes on which tasks of ours are, by name.
#[derive(Default)]
struct HeldNodes {
    /// Where one was placed and has not left.
    ours: BTreeSet<String>,
    /// Where others of ended trainers still are.
    closing: BTreeSet<String>,
}

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
        let held = self.held_nodes();
        self.forget_taken(now_s, &held.ours);
        let lost: BTreeSet<NodeId> = events.iter().filter_map(preempted_node).collect();
        let stay_ends = self.stay_ends();
        let mut joined = Vec::new();
        let mut left = Vec::new();
        let mut hole_ends = Vec::new();
        for (name, node) in &self.nodes {
            let id = self.engine.names.intern(name);
            let known = self.engine.pool().get(id).filter(|_| !lost.contains(&id));
            let is_ours = held.ours.contains(name);
            let in_use = is_ours || known.is_some_and(|pool_node| pool_node.assigned.is_some());
            let is_offered =
                self.partition_nodes.contains(name) && self.admin_orders.allow(name, in_use);
            let is_passing = known.is_some() && self.is_passing(name, node, &held);
            let belongs = is_offered && (is_ours || is_passing || self.is_idle(name, node));
            // A node that is being drained or reserved under our worker is expected back now.
            let hole_end_s = if is_ours && (node.flagged || !is_offered) {
                Some(now_s.floor())
            } else {
                let planned_s = self.planned.get(name).map(|end_s| *end_s as f64);
                let ends = [planned_s, stay_ends.get(name).copied()];
                ends.into_iter().flatten().reduce(f64::min)
            };
            match known {
                Some(_) if !belongs && !is_ours => left.push(id),
                Some(pool_node) if has_moved(pool_node.hole_end_s, hole_end_s, now_s) => {
                    hole_ends.push((id, hole_end_s));
                }
                None if belongs && !lost.contains(&id) => joined.push((id, hole_end_s)),
                _ => {}
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

    /// The nodes on which tasks of ours are.
    fn held_nodes(&self) -> HeldNodes {
        let mut held = HeldNodes::default();
        for array in self.arrays.values() {
            let is_closing = array.verdict.is_some();
            for task in array.tasks.values() {
                match (&task.plan, &task.node) {
                    (Plan::Runs { node, .. } | Plan::Leaving { node }, _) => {
                        held.ours.insert(node.clone());
                    }
                    (_, Some(node)) if is_closing && (task.runs() || task.completing) => {
                        held.closing.insert(node.clone());
                    }
                    _ => {}
                }
            }
        }
        held
    }

    /// Whether a trainer could have the node at once.
    fn is_idle(&self, name: &str, node: &NodeRecord) -> bool {
        node.base == NodeBase::Idle
            && !node.flagged
            && !node.completing
            && !self.taken.contains_key(name)
    }

    /// Whether the node is only cleaned up after a task of ours.
    fn is_passing(&self, name: &str, node: &NodeRecord, held: &HeldNodes) -> bool {
        let is_cleaned_up = node.completing && self.departures.contains_key(name);
        !node.flagged && (held.closing.contains(name) || is_cleaned_up)
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

fn preempted_node(event: &Event) -> Option<NodeId> {
    match event {
        Event::WorkerLost {
            node,
            reason: LossReason::Preempted,
            ..
        } => Some(*node),
        _ => None,
    }
}

/// Whether a hole's end is another one; "now" moves on, its first value stands.
fn has_moved(old_s: Option<f64>, new_s: Option<f64>, now_s: f64) -> bool {
    match (old_s, new_s) {
        (Some(old_s), Some(new_s)) => {
            (old_s - new_s).abs() >= 1.0 && !(old_s <= now_s && new_s <= now_s)
        }
        (old_s, new_s) => old_s != new_s,
    }
}
