//! Who shall have which nodes: admission, the allocation, the choice of nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::forced::Forced;
use super::{Decision, Engine};
use crate::allocation::{Problem, TrainerDemand};
use crate::node::NodeId;
use crate::pool::Phase;
use crate::trainer::{Trainer, TrainerId, TrainerState};

/// What a node is sorted by: those that joined together, then neighbours.
type NodeKey = (u64, u32);

/// The usable pool: who is to keep what, and what is free.
struct Holdings {
    held: BTreeMap<TrainerId, Vec<NodeId>>,
    free: Vec<NodeId>,
    /// Nodes among them that trainers keep off.
    kept_off: BTreeMap<TrainerId, BTreeSet<NodeId>>,
}

impl Holdings {
    /// How many nodes there are.
    fn usable(&self) -> u32 {
        (self.free.len() + self.held.values().map(Vec::len).sum::<usize>()) as u32
    }
}

/// Which nodes change hands.
#[derive(Default)]
struct Moves {
    released: Vec<NodeId>,
    given: Vec<(TrainerId, NodeId)>,
    /// A trainer for which too few nodes are left that it does not keep off, and
    /// the most that it can have.
    short: Option<(TrainerId, u32)>,
}

impl Engine {
    /// Decides how many nodes each trainer shall have, and which.
    pub(super) fn decide(&mut self, now_s: f64) {
        let mut caps = BTreeMap::new();
        loop {
            let holdings = self.holdings(now_s);
            let held_nodes = |trainer| holdings.held.get(&trainer).map_or(0, Vec::len);
            self.tell_forced_losses(now_s, held_nodes);
            if self.pool_in_doubt && !self.holds_too_much(&holdings) {
                // Slurm may be taking more: one decision when it is known what is left.
                return;
            }
            self.admit(holdings.usable());

            let trainers = self.participants();
            let problem = self.problem(now_s, &trainers, &holdings, &caps);
            let solution = self.solver.solve(&problem);
            let counts: Vec<(TrainerId, u32, u32)> = trainers
                .iter()
                .zip(solution.nodes())
                .zip(&problem.trainers)
                .map(|((trainer, nodes), demand)| (*trainer, demand.current.nodes, nodes))
                .collect();
            if self.release_short(now_s, &holdings, &counts) {
                continue;
            }
            let moves = self.moves(now_s, holdings, &counts);
            if let Some((trainer, most)) = moves.short {
                caps.insert(trainer, most);
                continue;
            }
            for (index, (trainer, from, to)) in counts.iter().enumerate() {
                if from != to {
                    let reason = self.explain(&problem, index, *trainer, *to);
                    self.decisions.push(Decision {
                        time_s: now_s,
                        trainer: *trainer,
                        from_nodes: *from,
                        to_nodes: *to,
                        reason,
                    });
                }
            }
            self.assign(moves);
            // Who got less for the nodes that it keeps off may get more by one step more.
            self.decision_due |= !caps.is_empty();
            return;
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
    fn release_short(
        &mut self,
        now_s: f64,
        holdings: &Holdings,
        counts: &[(TrainerId, u32, u32)],
    ) -> bool {
        let mut short = Vec::new();
        for (trainer, from, to) in counts.iter().filter(|(_, from, to)| to < from) {
            let nodes = holdings.held.get(trainer).map_or(&[][..], Vec::as_slice);
            let released = self.to_release(now_s, *trainer, nodes, from - to);
            short.extend(
                released
                    .into_iter()
                    .filter(|node| self.is_short(*node, now_s)),
            );
        }
        for node in &short {
            self.take_back(*node, Forced::ExpectedBack);
        }
        !short.is_empty()
    }

    /// Whether the node is expected back too soon for a new worker.
    fn is_short(&self, node: NodeId, now_s: f64) -> bool {
        let last_start_s = self.pool.get(&node).and_then(|it| self.last_start_s(it));
        last_start_s.is_some_and(|time_s| now_s >= time_s - self.start_lead_s())
    }

    fn take_back(&mut self, node: NodeId, why: Forced) {
        if let Some(trainer) = self.pool.get(&node).and_then(|node| node.assigned) {
            self.note_forced_loss(trainer, node, why);
        }
        if let Some(pool_node) = self.pool.get_mut(&node) {
            pool_node.assigned = None;
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
        let mut unusable = Vec::new();
        for (id, node) in &self.pool {
            let is_quarantined = self.is_quarantined(*id, now_s);
            let usable = !is_quarantined && self.outlasts(node, now_s);
            let is_avoided = |trainer| self.avoidance_of(trainer, *id, now_s).is_some();
            match node.assigned {
                Some(_) if is_quarantined => unusable.push((*id, Forced::Quarantined)),
                Some(trainer) if is_avoided(trainer) => unusable.push((*id, Forced::Avoided)),
                Some(trainer) if usable => holdings.held.entry(trainer).or_default().push(*id),
                Some(_) => unusable.push((*id, Forced::ExpectedBack)),
                None if usable && !self.pool_in_doubt => holdings.free.push(*id),
                None => {}
            }
        }
        for (node, why) in unusable {
            self.take_back(node, why);
            // Others may have what one trainer keeps off.
            if why == Forced::Avoided && !self.pool_in_doubt && self.is_usable(node, now_s) {
                holdings.free.push(node);
            }
        }
        let held = holdings.held.values().flatten();
        holdings.kept_off = self.kept_off(now_s, held.chain(&holdings.free).copied());
        holdings
    }

    /// Admits trainers while those that run could not use the whole pool or are
    /// fewer than `min_trainers`: the user with the fewest first, of these the one
    /// whose turn was longest ago, first come first served within one. A trainer whose min does not fit neither counts nor is
    /// admitted; a pool that is in doubt says nothing about what fits.
    fn admit(&mut self, pool_nodes: u32) {
        while !self.pool_in_doubt {
            let (mut count, mut could_use) = (0usize, 0u64);
            let mut per_owner: BTreeMap<u32, usize> = BTreeMap::new();
            for trainer in self.trainers.values() {
                if trainer.state == TrainerState::Admitted {
                    *per_owner.entry(trainer.info.owner_uid).or_default() += 1;
                    if trainer.info.min_nodes <= pool_nodes {
                        count += 1;
                        could_use += u64::from(trainer.info.max_nodes);
                    }
                }
            }
            if count >= self.config.min_trainers && could_use >= u64::from(pool_nodes) {
                return;
            }
            let next = self
                .trainers
                .values()
                .filter(|trainer| trainer.state == TrainerState::Waiting)
                .filter(|trainer| trainer.info.min_nodes <= pool_nodes)
                .min_by_key(|trainer| {
                    let owner = trainer.info.owner_uid;
                    let running = per_owner.get(&owner).copied().unwrap_or(0);
                    (running, self.served.get(&owner), trainer.arrival)
                })
                .map(|trainer| trainer.info.id);
            let Some(trainer) = next.and_then(|id| self.trainers.get_mut(&id)) else {
                return;
            };
            trainer.state = TrainerState::Admitted;
            trainer.admission = self.admissions;
            self.served.insert(trainer.info.owner_uid, self.admissions);
            self.admissions += 1;
        }
    }

    /// The trainers that take part, in admission order.
    fn participants(&self) -> Vec<TrainerId> {
        let mut trainers: Vec<(u64, TrainerId)> = self
            .trainers
            .values()
            .filter(|trainer| trainer.state == TrainerState::Admitted)
            .map(|trainer| (trainer.admission, trainer.info.id))
            .collect();
        trainers.sort_unstable();
        trainers.into_iter().map(|(_, id)| id).collect()
    }

    fn problem(
        &self,
        now_s: f64,
        trainers: &[TrainerId],
        holdings: &Holdings,
        caps: &BTreeMap<TrainerId, u32>,
    ) -> Problem {
        let pool_nodes = holdings.usable();
        let mut owner_weights: BTreeMap<u32, f64> = BTreeMap::new();
        for id in trainers {
            let info = &self.trainers[id].info;
            *owner_weights.entry(info.owner_uid).or_default() += info.weight;
        }
        let demands = trainers
            .iter()
            .map(|id| {
                let trainer = &self.trainers[id];
                let info = &trainer.info;
                let weight = info.weight / owner_weights[&info.owner_uid];
                let held = holdings.held.get(id).map_or(&[][..], Vec::as_slice);
                let current = held.len() as u32;
                // What does not run yet, or has to restart anyway, loses nothing when more
                // nodes come; workers that were found most likely run.
                let is_found = |node: &NodeId| {
                    let worker = self.pool[node].worker_of(*id);
                    worker.is_some_and(|worker| worker.phase == Phase::Found)
                };
                let runs = Self::is_undisturbed(trainer) || held.iter().any(is_found);
                let up_s = if runs { trainer.up_s() } else { 0.0 };
                // Who waits for reasons of its own keeps the nodes where its workers
                // are and gets no more.
                let max = if now_s < trainer.resume_at_s {
                    let kept = held
                        .iter()
                        .filter(|node| self.pool[*node].keeps_worker_of(*id));
                    info.max_nodes.min(kept.count() as u32)
                } else {
                    info.max_nodes
                };
                let kept_off = holdings.kept_off.get(id).map_or(0, BTreeSet::len) as u32;
                let most = caps.get(id).copied().unwrap_or(u32::MAX);
                let max = max.min(pool_nodes - kept_off).min(most);
                let objective = self.config.metric.objective(&info.curve, weight);
                TrainerDemand::new(current, info.min_nodes, max, objective)
                    .with_costs(up_s, trainer.down_s())
            })
            .collect();
        Problem::new(pool_nodes, self.config.horizon_s, demands)
    }

    /// "T4: 6 -> 8 nodes: 2 more are worth 1,840 samples over 60 s against a
    /// restart of 3.1 s".
    fn explain(&self, problem: &Problem, index: usize, trainer: TrainerId, to: u32) -> String {
        let from = problem.trainers[index].current.nodes;
        let known = &self.trainers[&trainer];
        let curve = &known.info.curve;
        let samples = |nodes: u32| curve.value(nodes) * problem.horizon_s;
        let horizon_s = problem.horizon_s;
        let lead = format!("T{trainer}: {from} -> {to} nodes");
        if to > from {
            let gain = samples(to) - samples(from);
            let restart = if problem.trainers[index].up_s == 0.0 {
                match known.run {
                    Some(_) => "with a restart under way".to_owned(),
                    None => "with nothing running that would have to restart".to_owned(),
                }
            } else {
                format!("against a restart of {:.1} s", known.up_s())
            };
            format!(
                "{lead}: {} more {} worth {gain:.0} samples over {horizon_s:.0} s {restart}",
                to - from,
                if to - from == 1 { "is" } else { "are" },
            )
        } else if from < known.info.min_nodes {
            format!(
                "{lead}: {from} are fewer than its min of {}",
                known.info.min_nodes
            )
        } else if from > problem.trainers[index].max {
            let most = problem.trainers[index].max;
            let why = match &known.blocked_reason {
                Some(reason) if most < known.info.max_nodes => format!(" while {reason}"),
                _ => String::new(),
            };
            format!("{lead}: it may have {most} at most{why}")
        } else {
            let loss = samples(from) - samples(to);
            format!(
                "{lead}: {} fewer cost {loss:.0} samples over {horizon_s:.0} s and a restart of \
                 {:.1} s; others gain more from them",
                from - to,
                known.down_s(),
            )
        }
    }

    /// Whether `trainer` has a generation that would go on if nothing were changed.
    fn is_undisturbed(trainer: &Trainer) -> bool {
        Self::has_running_generation(trainer)
            && trainer.run.as_ref().is_some_and(|run| !run.lost_member)
    }

    fn key(&self, node: NodeId) -> NodeKey {
        let join_event = self
            .pool
            .get(&node)
            .map_or(u64::MAX, |node| node.join_event);
        (join_event, self.names.rank(node))
    }

    /// The `count` of a trainer's `nodes` that it misses least: those where it has no
    /// worker, those on which it does not run, those that are expected back, then the highest keys.
    fn to_release(
        &self,
        now_s: f64,
        trainer: TrainerId,
        nodes: &[NodeId],
        count: u32,
    ) -> Vec<NodeId> {
        let mut nodes = nodes.to_vec();
        nodes.sort_by_cached_key(|node| {
            (
                self.pool[node].keeps_worker_of(trainer),
                self.is_settled(*node, trainer),
                !self.is_short(*node, now_s),
                Reverse(self.key(*node)),
            )
        });
        nodes.truncate(count as usize);
        nodes
    }

    /// Shrinking trainers release nodes; then the free nodes, sorted by key, go
    /// to the growing ones: first to those that keep off most of them, then in the
    /// order of the median key that each holds.
    fn moves(&self, now_s: f64, holdings: Holdings, counts: &[(TrainerId, u32, u32)]) -> Moves {
        let mut moves = Moves::default();
        for (trainer, from, to) in counts.iter().filter(|(_, from, to)| to < from) {
            let nodes = holdings.held.get(trainer).map_or(&[][..], Vec::as_slice);
            let released = self.to_release(now_s, *trainer, nodes, from - to);
            moves.released.extend(released);
        }
        let mut free = [&holdings.free[..], &moves.released[..]].concat();
        free.sort_by_cached_key(|node| self.key(*node));

        let growing = counts.iter().filter(|(_, from, to)| to > from);
        let mut growing: Vec<&(TrainerId, u32, u32)> = growing.collect();
        // Trainers without nodes come last.
        growing.sort_by_cached_key(|(trainer, _, _)| {
            let kept_off = holdings.kept_off.get(trainer);
            let kept_off = kept_off.map_or(0, |nodes| {
                free.iter().filter(|node| nodes.contains(node)).count()
            });
            let median = self.median_key(holdings.held.get(trainer));
            (Reverse(kept_off), median.is_none(), median)
        });
        for (trainer, from, to) in growing {
            let wanted = (to - from) as usize;
            let kept_off = holdings.kept_off.get(trainer);
            let may_have = |node: &NodeId| kept_off.is_none_or(|nodes| !nodes.contains(node));
            let given: BTreeSet<NodeId> = {
                let fit = free.iter().copied().filter(|node| may_have(node));
                fit.take(wanted).collect()
            };
            free.retain(|node| !given.contains(node));
            if given.len() < wanted {
                moves.short = Some((*trainer, from + given.len() as u32));
                return moves;
            }
            moves
                .given
                .extend(given.into_iter().map(|node| (*trainer, node)));
        }
        moves
    }

    fn median_key(&self, nodes: Option<&Vec<NodeId>>) -> Option<NodeKey> {
        let mut keys: Vec<NodeKey> = nodes?.iter().map(|node| self.key(*node)).collect();
        keys.sort_unstable();
        keys.get(keys.len() / 2).copied()
    }

    fn assign(&mut self, moves: Moves) {
        let released = moves.released.into_iter().map(|node| (node, None));
        let given = moves.given.into_iter();
        let given = given.map(|(trainer, node)| (node, Some(trainer)));
        for (node, assigned) in released.chain(given) {
            if let Some(pool_node) = self.pool.get_mut(&node) {
                pool_node.assigned = assigned;
            }
        }
    }

    /// Whether `trainer`'s worker on `node` runs or could run ranks.
    fn is_settled(&self, node: NodeId, trainer: TrainerId) -> bool {
        self.pool
            .get(&node)
            .and_then(|node| node.worker_of(trainer))
            .is_some_and(|worker| {
                matches!(worker.phase, Phase::Member | Phase::Ready | Phase::Found)
            })
    }
}
