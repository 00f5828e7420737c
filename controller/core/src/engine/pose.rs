//! The allocation problem of the moment, and the answer in words.

use std::collections::{BTreeMap, BTreeSet};

use super::Engine;
use super::choose::Shortage;
use super::decide::Holdings;
use super::groups::Groups;
use crate::allocation::{Cap, NodeClass, Problem, Share, Solution, TrainerDemand, Words};
use crate::learning::COUNT_S;
use crate::node::{ClassId, NodeId};
use crate::pool::Phase;
use crate::trainer::{Trainer, TrainerId};

/// A decision's problem, what its indices mean, and the answer once there is one.
#[derive(Debug)]
pub(super) struct Round {
    pub trainers: Vec<TrainerId>,
    pub groups: Groups,
    pub problem: Problem,
    pub solution: Solution,
}

impl Round {
    /// The trainers and what each gets.
    pub fn shares(&self) -> impl Iterator<Item = (TrainerId, Share)> {
        self.trainers
            .iter()
            .copied()
            .zip(self.solution.shares.iter().copied())
    }
}

/// What an earlier answer for the same moment took for granted that is not there.
#[derive(Debug, Default)]
pub(super) struct Limits {
    most: BTreeMap<TrainerId, u32>,
    /// Where a trainer can't have its min, or what it would leave other nodes for.
    forbidden: BTreeSet<(TrainerId, ClassId)>,
}

impl Limits {
    /// Whether nothing was learnt.
    pub fn is_empty(&self) -> bool {
        self.most.is_empty() && self.forbidden.is_empty()
    }

    /// Learns from a shortage.
    pub fn note(&mut self, round: &Round, shortage: &Shortage) {
        let Shortage {
            trainer,
            group,
            most,
            would_move,
        } = *shortage;
        let index = round.trainers.iter().position(|id| *id == trainer);
        let min = index.map_or(0, |index| round.problem.trainers[index].min);
        if would_move || most < min {
            let classes = round.groups.all[group].classes.iter();
            self.forbidden
                .extend(classes.map(|class| (trainer, *class)));
        } else {
            self.most.insert(trainer, most);
        }
    }
}

impl Engine {
    /// Decides how much of what is usable each trainer shall have.
    pub(super) fn solve(&mut self, now_s: f64, holdings: &Holdings, limits: &Limits) -> Round {
        let trainers = self.participants();
        self.refresh_curves(now_s, &trainers);
        let groups = self.groups(&holdings.of_class.keys().copied().collect(), &trainers);
        let problem = self.problem(now_s, holdings, limits, &trainers, &groups);
        let solution = self.solver.solve(&problem).clone();
        *self.outcomes.entry(solution.outcome()).or_default() += 1;
        Round {
            trainers,
            groups,
            problem,
            solution,
        }
    }

    /// How much of what is usable each trainer could have, and what it is worth.
    fn problem(
        &self,
        now_s: f64,
        holdings: &Holdings,
        limits: &Limits,
        trainers: &[TrainerId],
        groups: &Groups,
    ) -> Problem {
        let mut nodes = vec![0; groups.all.len()];
        for (class, count) in &holdings.of_class {
            if let Some(group) = groups.of(*class) {
                nodes[group] += count;
            }
        }
        let profiled = self.profiled(trainers, nodes.iter().sum());
        let weights = self.weights(trainers);
        let demands = trainers.iter().zip(weights).enumerate();
        let demands = demands.map(|(j, (id, weight))| {
            let trainer = &self.trainers[id];
            let info = &trainer.info;
            let held = holdings.held(*id);
            let within_reach = self.reach(j, holdings.kept_off.get(id), groups, &nodes);
            let most = limits.most.get(id).copied().unwrap_or(u32::MAX);
            let most = most.min(profiled.get(id).copied().unwrap_or(most));
            let max = self.max(now_s, trainer, held).min(within_reach).min(most);
            let curve = self.curve(*id).unwrap_or(&info.curve);
            let objective = self.config.metric.objective(curve, weight);
            let home = self.home(groups, *id, held);
            TrainerDemand::new(home, info.min_nodes, max, objective)
                .with_costs(self.up_s(trainer, held), self.rescale_costs_s(*id).1)
                .with_speeds(self.speeds(j, *id, groups, limits))
        });
        let demands = demands.collect();
        let classes = nodes.iter().enumerate().map(|(index, &nodes)| NodeClass {
            name: self.group_name(groups, index),
            nodes,
        });
        Problem::with_classes(classes.collect(), self.config.horizon_s, demands)
            .with_caps(self.caps(trainers))
    }

    /// Each trainer's weight: its part of its owner's, times what administrators say.
    fn weights(&self, trainers: &[TrainerId]) -> Vec<f64> {
        let infos = || trainers.iter().map(|id| &self.trainers[id].info);
        let mut of_owner: BTreeMap<u32, f64> = BTreeMap::new();
        for info in infos() {
            *of_owner.entry(info.owner_uid).or_default() += info.weight;
        }
        let weights =
            infos().map(|info| info.weight / of_owner[&info.owner_uid] * info.terms.weight);
        weights.collect()
    }

    /// What a trainer holds of the group where most of it runs; it can keep no other nodes.
    fn home(&self, groups: &Groups, trainer: TrainerId, held: &[NodeId]) -> Share {
        if groups.all.len() == 1 {
            return Share::new(0, held.len() as u32);
        }
        // Nodes where it runs, all nodes.
        let mut counts = vec![(0, 0); groups.all.len()];
        for node in held {
            if let Some(group) = groups.of(self.class_of(*node)) {
                counts[group].0 += u32::from(self.is_settled(*node, trainer));
                counts[group].1 += 1;
            }
        }
        let counts = counts.into_iter().enumerate().rev();
        let home = counts.max_by_key(|(_, counts)| *counts);
        home.map_or(Share::NONE, |(group, (_, nodes))| Share::new(group, nodes))
    }

    /// Seconds without progress when the trainer grows. What does not run yet, or has to restart
    /// anyway, loses nothing; workers that were found most likely run.
    fn up_s(&self, trainer: &Trainer, held: &[NodeId]) -> f64 {
        let is_found = |node: &NodeId| {
            let worker = self.pool[*node].worker_of(trainer.info.id);
            worker.is_some_and(|worker| worker.phase == Phase::Found)
        };
        match self.would_go_on(trainer) || held.iter().any(is_found) {
            true => self.rescale_costs_s(trainer.info.id).0,
            false => 0.0,
        }
    }

    /// Whether `trainer` has a generation that goes on if nothing is changed.
    fn would_go_on(&self, trainer: &Trainer) -> bool {
        let restarts = trainer.run.as_ref().is_some_and(|run| run.lost_member);
        Self::has_running_generation(trainer) && !(restarts && self.config.joint_restarts)
    }

    /// The most nodes that a trainer wants. Who waits for reasons of its own keeps the nodes
    /// where its workers are and gets no more.
    fn max(&self, now_s: f64, trainer: &Trainer, held: &[NodeId]) -> u32 {
        let info = &trainer.info;
        let metric = &self.config.metric;
        let curve = self.curve(info.id).unwrap_or(&info.curve);
        let max = metric.most_nodes(curve, info.min_nodes, info.max_nodes);
        if now_s >= trainer.resume_at_s {
            return max;
        }
        let kept = held
            .iter()
            .filter(|node| self.pool[**node].keeps_worker_of(info.id));
        max.min(kept.count() as u32)
    }

    /// The most nodes of one group that the trainer at position `j` does not keep off.
    fn reach(
        &self,
        j: usize,
        kept_off: Option<&BTreeSet<NodeId>>,
        groups: &Groups,
        nodes: &[u32],
    ) -> u32 {
        let mut reach = nodes.to_vec();
        for node in kept_off.into_iter().flatten() {
            if let Some(group) = groups.of(self.class_of(*node)) {
                reach[group] -= 1;
            }
        }
        let groups = groups.all.iter().zip(reach);
        let usable = groups.filter(|(group, _)| group.may_use[j]);
        usable.map(|(_, nodes)| nodes).max().unwrap_or(0)
    }

    /// What multiplies the objective of the trainer at position `j` on nodes of each group.
    fn speeds(&self, j: usize, id: TrainerId, groups: &Groups, limits: &Limits) -> Vec<f64> {
        let is_forbidden = |class: &ClassId| limits.forbidden.contains(&(id, *class));
        let groups = groups.all.iter();
        groups
            .map(
                |group| match group.may_use[j] && !group.classes.iter().any(is_forbidden) {
                    true => self.config.metric.class_speed(group.speed),
                    false => 0.0,
                },
            )
            .collect()
    }

    fn caps(&self, trainers: &[TrainerId]) -> Vec<Cap> {
        let mut caps: BTreeMap<&str, Cap> = BTreeMap::new();
        for (j, id) in trainers.iter().enumerate() {
            for shared in &self.trainers[id].info.terms.caps {
                let cap = caps.entry(&shared.name).or_insert_with(|| Cap {
                    trainers: Vec::new(),
                    max_nodes: shared.max_nodes,
                });
                cap.max_nodes = cap.max_nodes.min(shared.max_nodes);
                cap.trainers.push(j);
            }
        }
        caps.into_values().collect()
    }

    /// Why a trainer was given in the last decision what it was given, in words. `None` when it
    /// did not take part.
    pub fn explain(&self, trainer: TrainerId) -> Option<String> {
        let round = self.last_round.as_ref()?;
        let index = round.trainers.iter().position(|id| *id == trainer)?;
        self.explain_share(round, index)
    }

    /// "6 -> 8 nodes: 2 more are worth 1840 samples over 60 s against a restart of 3.1 s".
    pub(super) fn explain_share(&self, round: &Round, index: usize) -> Option<String> {
        let known = self.trainers.get(round.trainers.get(index)?)?;
        let to = *round.solution.shares.get(index)?;
        let samples_per_s = |share: Share| {
            let speed = round.groups.all.get(share.class).map_or(1.0, |it| it.speed);
            let curve = self.curve(known.info.id).unwrap_or(&known.info.curve);
            curve.value(share.nodes) * speed
        };
        let words = Words {
            samples_per_s: &samples_per_s,
            free_restart: match known.run {
                Some(_) => "a restart under way",
                None => "nothing running that would have to restart",
            },
        };
        let demand = &round.problem.trainers[index];
        let mut sentence = match self.plan(known.info.id) {
            Some(plan) if plan.most_nodes() == Some(to.nodes) => format!(
                "{} -> {} nodes: how it scales is not known; it is measured for {COUNT_S:.0} s \
                 each on {}",
                demand.current.nodes,
                to.nodes,
                plan.counts()
            ),
            _ => round.problem.explain(index, to, words),
        };
        if let Some(reason) = &known.blocked_reason
            && demand.current.nodes > demand.max
            && demand.max < known.info.max_nodes
        {
            sentence += &format!(" while {reason}");
        }
        if !round.solution.optimal {
            sentence += &format!("; the decision is {}", round.solution.quality());
        }
        Some(sentence)
    }
}
