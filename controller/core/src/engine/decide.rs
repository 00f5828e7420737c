//! Who shall have which nodes: what there is to share out, and the decision.
//! `admit` says who takes part, `groups` which nodes are alike, `pose` makes the
//! allocation problem, `choose` picks the nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::forced::Forced;
use super::pose::{Limits, Round};
use super::{Decision, Engine};
use crate::node::{ClassId, NodeId};
use crate::trainer::{TrainerId, TrainerInfo};

/// The nodes that each trainer is to keep.
type Held = BTreeMap<TrainerId, Vec<NodeId>>;

/// The usable pool: who is to keep what, and what is free.
pub(super) struct Holdings {
    held: Held,
    pub free: Vec<NodeId>,
    /// Nodes among them that trainers keep off.
    pub kept_off: BTreeMap<TrainerId, BTreeSet<NodeId>>,
    /// How many nodes of each class there are.
    pub of_class: BTreeMap<ClassId, u32>,
}

impl Holdings {
    /// What a trainer is to keep.
    pub fn held(&self, trainer: TrainerId) -> &[NodeId] {
        self.held.get(&trainer).map_or(&[][..], Vec::as_slice)
    }
}

impl Engine {
    /// Decides how many nodes each trainer shall have, and which.
    pub(super) fn decide(&mut self, now_s: f64) {
        let mut limits = Limits::default();
        loop {
            let holdings = self.holdings(now_s);
            self.tell_forced_losses(now_s);
            if self.pool_in_doubt && !self.holds_too_much(&holdings) {
                // Slurm may be taking more: one decision when it is known what is left.
                return;
            }
            self.admit(now_s, &holdings.of_class);

            let round = self.solve(now_s, &holdings, &limits);
            let released = self.releases(now_s, &holdings, &round);
            if self.take_back_short(now_s, released.iter().flatten()) {
                continue;
            }
            let moves = self.moves(&holdings, &round, released);
            if let Some(shortage) = &moves.short {
                limits.note(&round, shortage);
                continue;
            }
            self.note_decisions(now_s, &holdings, &round);
            self.assign(&moves);
            self.last_round = Some(round);
            // Who got less for the nodes that it keeps off may get more by one step more.
            self.decision_due |= !limits.is_empty();
            return;
        }
    }

    fn note_decisions(&mut self, now_s: f64, holdings: &Holdings, round: &Round) {
        for (index, (trainer, to)) in round.shares().enumerate() {
            let from = round.problem.trainers[index].current;
            let held = holdings.held(trainer).len() as u32;
            if (from, held) == (to, to.nodes) {
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
                trainer,
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
    fn take_back_short<'n>(
        &mut self,
        now_s: f64,
        released: impl Iterator<Item = &'n NodeId>,
    ) -> bool {
        let is_short = |node: &&NodeId| self.is_short(**node, now_s);
        let short: Vec<NodeId> = released.filter(is_short).copied().collect();
        for node in &short {
            self.take_back(*node, Forced::ExpectedBack);
        }
        !short.is_empty()
    }

    fn take_back(&mut self, node: NodeId, why: Forced) {
        if let Some(trainer) = self.pool.get(node).and_then(|node| node.assigned) {
            self.note_forced_loss(trainer, node, why);
        }
        self.pool.update(node, |it| it.assigned = None);
    }

    /// Sorts the pool into held and free nodes, taking back those that are
    /// about to be needed, are in quarantine or failed their trainer.
    fn holdings(&mut self, now_s: f64) -> Holdings {
        // Looked for once: mostly there are none.
        let nodes = self.pool.iter();
        let ending = nodes.filter(|(_, node)| !self.outlasts(node, now_s));
        let ending: BTreeSet<NodeId> = ending.map(|(id, _)| id).collect();
        let (held, unusable) = self.kept_and_unusable(now_s, &ending);
        let mut holdings = Holdings {
            held,
            free: Vec::new(),
            kept_off: BTreeMap::new(),
            of_class: BTreeMap::new(),
        };
        if !self.pool_in_doubt {
            let free = self.pool.free().iter().copied();
            let is_usable = |id: &NodeId| !ending.contains(id) && !self.is_quarantined(*id, now_s);
            holdings.free.extend(free.filter(is_usable));
        }
        for (node, why) in unusable {
            // Others may have what this one can't.
            let is_free = matches!(why, Forced::Avoided(_) | Forced::Unfit);
            self.take_back(node, why);
            if is_free && !self.pool_in_doubt && self.is_usable(node, now_s) {
                holdings.free.push(node);
            }
        }
        let held = holdings.held.values().flatten();
        let usable = held.chain(&holdings.free).copied();
        holdings.kept_off = self.kept_off(now_s, usable.clone());
        holdings.of_class = self.of_class(usable);
        holdings
    }

    /// Of the assigned nodes those that each trainer keeps, and those that it can't keep and why;
    /// `ending` are nodes whose planned end is near.
    fn kept_and_unusable(
        &self,
        now_s: f64,
        ending: &BTreeSet<NodeId>,
    ) -> (Held, Vec<(NodeId, Forced)>) {
        let (mut kept, mut unusable) = (Held::new(), Vec::new());
        for (trainer, nodes) in self.pool.assigned() {
            let info = self.trainers.get(&trainer).map(|known| &known.info);
            let mut held = Vec::with_capacity(nodes.len());
            for id in nodes.iter().copied() {
                match self.why_taken_back(id, ending.contains(&id), trainer, info, now_s) {
                    None => held.push(id),
                    Some(why) => unusable.push((id, why)),
                }
            }
            if !held.is_empty() {
                kept.insert(trainer, held);
            }
        }
        (kept, unusable)
    }

    /// Why its trainer can't keep a node.
    fn why_taken_back(
        &self,
        id: NodeId,
        is_ending: bool,
        trainer: TrainerId,
        info: Option<&TrainerInfo>,
        now_s: f64,
    ) -> Option<Forced> {
        if self.is_quarantined(id, now_s) {
            Some(Forced::Quarantined)
        } else if let Some(avoidance) = self.avoidance_of(trainer, id, now_s) {
            Some(Forced::Avoided(avoidance.quarantine.reason.clone()))
        } else if info.is_some_and(|info| !self.allows(info, id)) {
            Some(Forced::Unfit)
        } else if is_ending {
            Some(Forced::ExpectedBack)
        } else {
            None
        }
    }
}
