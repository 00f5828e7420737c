//! Which trainers are not as they shall be, and how their nodes stand.

use std::collections::BTreeMap;

use super::Engine;
use crate::node::NodeId;
use crate::pool::Phase;
use crate::trainer::{RunState, TrainerId, TrainerState};

/// A trainer's nodes, as far as they matter to its membership; all lists are sorted.
pub(super) struct Roster {
    /// Assigned, or with a worker of the trainer's.
    pub nodes: Vec<NodeId>,
    /// Assigned, with an agent that is connected and runs no ranks.
    pub ready: Vec<NodeId>,
    /// How many are assigned without such an agent or a member.
    pub pending: usize,
    /// Assigned or not, where ranks of the trainer's run or may run.
    pub running: Vec<NodeId>,
    /// Assigned.
    pub assigned: Vec<NodeId>,
    /// The time at which the longest-waiting ready newcomer became ready.
    pub ready_since_s: Option<f64>,
    /// Until when workers that were found may run ranks of which their agents, on
    /// their way back, will tell, epoch seconds.
    pub adopts_until_s: Option<f64>,
    /// Whether ranks of an older generation are ending.
    pub has_stale: bool,
}

impl Roster {
    pub fn may_run_on(&self, node: NodeId) -> bool {
        self.running.binary_search(&node).is_ok()
    }

    pub fn is_assigned(&self, node: NodeId) -> bool {
        self.assigned.binary_search(&node).is_ok()
    }
}

impl Engine {
    /// The trainers that are not as they shall be, each with its nodes: for all others
    /// there is nothing to do.
    pub(super) fn restless(&self) -> BTreeMap<TrainerId, Vec<NodeId>> {
        let unfinished = self.trainers.values().filter(|trainer| {
            let run = trainer.run.as_ref();
            let runs = run.is_some_and(|run| run.state == RunState::Running && !run.lost_member);
            trainer.state == TrainerState::Admitted && !runs
        });
        let unfinished = unfinished.map(|trainer| (trainer.info.id, Vec::new()));
        let mut restless: BTreeMap<TrainerId, Vec<NodeId>> = unfinished.collect();
        for (id, node) in self.pool.restless() {
            if let Some(trainer) = node.assigned {
                restless.entry(trainer).or_default();
            }
            if let Some(trainer) = node.stray() {
                restless.entry(trainer).or_default().push(id);
            }
        }
        restless.retain(|trainer, nodes| {
            nodes.extend(self.pool.assigned_to(*trainer));
            nodes.sort_unstable();
            let known = self.trainers.get(trainer);
            known.is_some_and(|known| known.state != TrainerState::Closing)
        });
        restless
    }

    pub(super) fn roster(&self, now_s: f64, trainer: TrainerId, nodes: Vec<NodeId>) -> Roster {
        let mut roster = Roster {
            nodes: Vec::new(),
            ready: Vec::new(),
            pending: 0,
            running: Vec::with_capacity(nodes.len()),
            assigned: Vec::with_capacity(nodes.len()),
            ready_since_s: None,
            adopts_until_s: None,
            has_stale: false,
        };
        for id in &nodes {
            let node = &self.pool[*id];
            let worker = node.worker_of(trainer);
            if node.may_run(trainer) {
                roster.running.push(*id);
            }
            match worker.map(|worker| (worker.phase, worker.since_s)) {
                Some((Phase::Stale { .. }, _)) => roster.has_stale = true,
                Some((Phase::Found, since_s)) => {
                    let until_s = since_s + self.config.adopt_timeout_s;
                    if now_s < until_s {
                        let latest_s = roster.adopts_until_s.map_or(until_s, |s| s.max(until_s));
                        roster.adopts_until_s = Some(latest_s);
                    }
                }
                _ => {}
            }
            if node.assigned != Some(trainer) {
                continue;
            }
            roster.assigned.push(*id);
            match worker.map(|worker| (worker.phase, worker.since_s)) {
                Some((Phase::Ready, since_s)) => {
                    roster.ready.push(*id);
                    let first_s = roster.ready_since_s.map_or(since_s, |s| s.min(since_s));
                    roster.ready_since_s = Some(first_s);
                }
                Some((Phase::Member, _)) => {}
                _ => roster.pending += 1,
            }
        }
        roster.nodes = nodes;
        roster
    }
}
