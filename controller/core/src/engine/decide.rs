//! Who shall have which nodes: what there is to share out, and the decision.
//! `admit` says who takes part, `groups` which nodes are alike, `pose` makes the
//! allocation problem, `choose` picks the nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::pose::{Limits, Round};
use super::{Decision, Engine};
use crate::node::{ClassId, NodeId};
use crate::trainer::TrainerId;

/// The usable pool: who is to keep what, and what is free.
pub(super) struct Holdings {
    held: BTreeMap<TrainerId, Vec<NodeId>>,
    pub free: Vec<NodeId>,
    /// Nodes among them that trainers keep off.
    pub kept_off: BTreeMap<TrainerId, BTreeSet<NodeId>>,
}

impl Holdings {
    /// What a trainer is to keep.
    pub fn held(&self, trainer: TrainerId) -> &[NodeId] {
        self.held.get(&trainer).map_or(&[][..], Vec::as_slice)
    }

    /// How many nodes of each class there are.
    pub fn of_class(&self, engine: &Engine) -> BTreeMap<ClassId, u32> {
        let mut of_class = BTreeMap::new();
        for node in self.held.values().flatten().chain(&self.free) {
            *of_class.entry(engine.class_of(*node)).or_default() += 1;
        }
        of_class
    }
}

impl Engine {
    /// Decides how many nodes each trainer shall have, and which.
    pub(super) fn decide(&mut self, now_s: f64) {
        let mut limits = Limits::default();
        loop {
            let holdings = self.holdings(now_s);
            if self.pool_in_doubt && !self.holds_too_much(&holdings) {
                // Slurm may be taking more: one decision when it is known what is left.
                self.wake_before_hole_ends();
                return;
            }
            let nodes = holdings.of_class(self);
            self.admit(&nodes);

            let mut round = self.pose(now_s, &holdings, &limits);
            self.solve(&mut round);
            if self.release_short(now_s, &holdings, &round) {
                continue;
            }
            let moves = self.moves(now_s, &holdings, &round);
            if let Some(shortage) = &moves.short {
                limits.note(&round, shortage);
                continue;
            }
            self.note_decisions(now_s, &holdings, &round);
            self.assign(&moves);
            self.last_round = Some(round);
            self.wake_before_hole_ends();
            return;
        }
    }

    fn solve(&mut self, round: &mut Round) {
        let solution = self.solver.solve(&round.problem);
        round.shares = solution.shares.clone();
        let is_flawed = !solution.optimal && !round.shares.is_empty();
        round.flaw = is_flawed.then(|| solution.quality());
        *self.outcomes.entry(solution.outcome()).or_default() += 1;
    }

    fn note_decisions(&mut self, now_s: f64, holdings: &Holdings, round: &Round) {
        for (index, (trainer, to)) in round.trainers.iter().zip(&round.shares).enumerate() {
            let from = round.problem.trainers[index].current;
            let held = holdings.held(*trainer).len() as u32;
            if (from, held) == (*to, to.nodes) {
                continue;
            }
            let lead = match held == from.nodes {
                true => format!("T{trainer}: "),
                // It held nodes that all were alike until now.
                false => format!("T{trainer}: {held} nodes are no longer alike; "),
            };
            let sentence = self.explain_share(round, index).unwrap_or_default();
            self.decisions.push(Decision {
                time_s: now_s,
                trainer: *trainer,
                from_nodes: held,
                to_nodes: to.nodes,
                reason: lead + &sentence,
            });
        }
    }

    /// Whether a trainer holds more than it may, as its bounds have changed.
    fn holds_too_much(&self, holdings: &Holdings) -> bool {
        holdings.held.iter().any(|(id, nodes)| {
            let most = self
                .trainers
                .get(id)
                .map_or(0, |known| known.info.max_nodes);
            nodes.len() as u32 > most
        })
    }

    /// Takes back nodes that would be released though nobody else could start on
    /// them before they are needed; whether there were any.
    fn release_short(&mut self, now_s: f64, holdings: &Holdings, round: &Round) -> bool {
        let mut short = Vec::new();
        for (trainer, to) in round.trainers.iter().zip(&round.shares) {
            let held = holdings.held(*trainer);
            let released = self.released(now_s, round, *trainer, held, *to);
            let is_short = |node: &NodeId| self.is_short(*node, now_s);
            short.extend(released.into_iter().filter(is_short));
        }
        for node in &short {
            self.take_back(now_s, *node, "is expected back");
        }
        !short.is_empty()
    }

    /// Whether the node is expected back too soon for a new worker.
    pub(super) fn is_short(&self, node: NodeId, now_s: f64) -> bool {
        let last_start_s = self.pool.get(&node).and_then(|it| self.last_start_s(it));
        last_start_s.is_some_and(|time_s| now_s >= time_s - self.start_lead_s())
    }

    fn take_back(&mut self, now_s: f64, node: NodeId, why: &str) {
        if let Some(trainer) = self.pool.get(&node).and_then(|node| node.assigned) {
            self.note_forced_change(now_s, trainer, node, why);
        }
        if let Some(pool_node) = self.pool.get_mut(&node) {
            pool_node.assigned = None;
        }
    }

    fn wake_before_hole_ends(&mut self) {
        let assigned = self.pool.values().filter(|node| node.assigned.is_some());
        let first_s = assigned
            .filter_map(|node| self.unusable_at_s(node))
            .reduce(f64::min);
        if let Some(time_s) = first_s {
            self.wake_at(time_s);
        }
    }

    /// Sorts the pool into held and free nodes, taking back those that are
    /// about to be needed, are in quarantine or failed their trainer.
    fn holdings(&mut self, now_s: f64) -> Holdings {
        let mut holdings = Holdings {
            held: BTreeMap::new(),
            free: Vec::new(),
            kept_off: BTreeMap::new(),
        };
        let nodes: Vec<NodeId> = self.pool.keys().copied().collect();
        for node in nodes {
            if let Some(why) = self.why_taken_back(node, now_s) {
                self.take_back(now_s, node, &why);
            }
            match self.pool[&node].assigned {
                Some(trainer) => holdings.held.entry(trainer).or_default().push(node),
                None if self.is_usable(node, now_s) && !self.pool_in_doubt => {
                    holdings.free.push(node);
                }
                None => {}
            }
            self.wake_after_quarantine(now_s, node);
        }
        let held = holdings.held.values().flatten();
        holdings.kept_off = self.kept_off(now_s, held.chain(&holdings.free).copied());
        holdings
    }

    /// Why the node's trainer can't keep it.
    fn why_taken_back(&self, node: NodeId, now_s: f64) -> Option<String> {
        let trainer = self.pool.get(&node)?.assigned?;
        if self.is_quarantined(node, now_s) {
            Some("is in quarantine".to_owned())
        } else if let Some(avoidance) = self.avoidance_of(trainer, node, now_s) {
            let reason = &avoidance.quarantine.reason;
            Some(format!("is avoided after a failure there ({reason})"))
        } else if !self.may_have(trainer, node) {
            Some("is not what it asks for".to_owned())
        } else if !self.is_usable(node, now_s) {
            Some("is expected back".to_owned())
        } else {
            None
        }
    }
}
