//! Admission: which trainers take part in decisions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::Engine;
use super::groups::Groups;
use crate::node::ClassId;
use crate::trainer::{TrainerId, TrainerInfo, TrainerState};

/// Nodes that the trainers that take part leave to others.
struct Rest<'e> {
    groups: Groups,
    /// Nodes of each group that there are, and that nobody could use.
    nodes: Vec<u32>,
    unused: Vec<u32>,
    /// What is left of each shared limit.
    caps: BTreeMap<&'e str, u32>,
    /// Trainers that can run.
    runnable: usize,
}

impl Engine {
    /// Admits trainers while those that run could not use the whole pool or are
    /// fewer than `min_trainers`: the user with the fewest first, of these the one
    /// whose turn was longest ago, first come first served within one. A trainer whose
    /// min does not fit neither counts nor is admitted; a pool that is in doubt says
    /// nothing about what fits.
    pub(super) fn admit(&mut self, now_s: f64, nodes: &BTreeMap<ClassId, u32>) {
        while !self.pool_in_doubt {
            let rest = self.rest(now_s, nodes);
            let is_short_of_trainers = rest.runnable < self.config.min_trainers;
            let mut running: BTreeMap<u32, usize> = BTreeMap::new();
            for info in self.infos(TrainerState::Admitted) {
                *running.entry(info.owner_uid).or_default() += 1;
            }
            let next = self
                .infos(TrainerState::Waiting)
                .filter(|info| is_short_of_trainers || rest.has_for(info))
                .filter(|info| rest.fits(info, nodes))
                .min_by_key(|info| {
                    let owner = info.owner_uid;
                    let running = running.get(&owner).copied().unwrap_or(0);
                    let arrival = self.trainers[&info.id].arrival;
                    (running, self.served.get(&owner), arrival)
                })
                .map(|info| info.id);
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
    pub(super) fn participants(&self) -> Vec<TrainerId> {
        let mut trainers: Vec<TrainerId> = self
            .infos(TrainerState::Admitted)
            .map(|info| info.id)
            .collect();
        trainers.sort_unstable_by_key(|id| self.trainers[id].admission);
        trainers
    }

    fn infos(&self, state: TrainerState) -> impl Iterator<Item = &TrainerInfo> {
        let trainers = self.trainers.values();
        trainers
            .filter(move |trainer| trainer.state == state)
            .map(|trainer| &trainer.info)
    }

    /// What the trainers that take part could not use of so many nodes of each class, each at
    /// its max; who has least choice chooses first. Who is paused uses nothing.
    fn rest(&self, now_s: f64, nodes: &BTreeMap<ClassId, u32>) -> Rest<'_> {
        let trainers = self.participants();
        let classes: BTreeSet<ClassId> = nodes.keys().copied().collect();
        let groups = self.groups(&classes, &trainers);
        let of_group = groups.all.iter().map(|group| {
            let nodes = group.classes.iter().map(|class| nodes[class]);
            nodes.sum()
        });
        let of_group: Vec<u32> = of_group.collect();
        let mut rest = Rest {
            unused: of_group.clone(),
            nodes: of_group,
            groups,
            caps: BTreeMap::new(),
            runnable: 0,
        };
        let choices = |j: usize| {
            let groups = rest.groups.all.iter();
            groups.filter(|group| group.may_use[j]).count()
        };
        let mut order: Vec<usize> = (0..trainers.len()).collect();
        order.sort_by_cached_key(|&j| choices(j));
        for j in order {
            let known = &self.trainers[&trainers[j]];
            if now_s >= known.resume_at_s {
                rest.serve(j, &known.info);
            }
        }
        rest
    }
}

impl<'e> Rest<'e> {
    /// Lets the trainer at position `j` have as many nodes of one group as it could use.
    fn serve(&mut self, j: usize, info: &'e TrainerInfo) {
        let groups = self.groups.all.iter().enumerate();
        let usable = groups.filter(|(_, group)| group.may_use[j]);
        let usable: Vec<usize> = usable.map(|(index, _)| index).collect();
        let largest = usable.iter().map(|&index| self.nodes[index]).max();
        if info.min_nodes > largest.unwrap_or(0).min(most(info)) {
            return;
        }
        self.runnable += 1;
        let best = usable
            .into_iter()
            .min_by_key(|&index| Reverse(self.unused[index]));
        let Some(best) = best else { return };
        let taken = info
            .max_nodes
            .min(self.unused[best])
            .min(self.left_of_caps(info));
        self.unused[best] -= taken;
        for cap in &info.terms.caps {
            let left = self.caps.entry(&cap.name).or_insert(cap.max_nodes);
            *left -= taken;
        }
    }

    /// What is left of the limits that a trainer shares.
    fn left_of_caps(&self, info: &TrainerInfo) -> u32 {
        let caps = info.terms.caps.iter();
        let left = caps.map(|cap| {
            let left = self.caps.get(cap.name.as_str());
            left.copied().unwrap_or(cap.max_nodes)
        });
        left.min().unwrap_or(u32::MAX)
    }

    /// Whether a trainer could use nodes that nobody else could.
    fn has_for(&self, info: &TrainerInfo) -> bool {
        let mut groups = self.groups.all.iter().zip(&self.unused);
        self.left_of_caps(info) > 0
            && groups.any(|(group, unused)| {
                let mut classes = group.classes.iter();
                *unused > 0 && classes.any(|class| Engine::may_use(info, *class))
            })
    }

    /// Whether a trainer could run, were it alone on the nodes of one group.
    fn fits(&self, info: &TrainerInfo, nodes: &BTreeMap<ClassId, u32>) -> bool {
        let largest = self.groups.all.iter().map(|group| {
            let classes = group.classes.iter();
            let usable = classes.filter(|class| Engine::may_use(info, **class));
            usable.map(|class| nodes[class]).sum::<u32>()
        });
        info.min_nodes <= largest.max().unwrap_or(0).min(most(info))
    }
}

/// The most nodes that the limits which a trainer shares leave to it alone.
fn most(info: &TrainerInfo) -> u32 {
    let caps = info.terms.caps.iter();
    caps.map(|cap| cap.max_nodes).min().unwrap_or(u32::MAX)
}
