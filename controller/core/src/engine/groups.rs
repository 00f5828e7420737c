//! Which nodes are alike for those who share them out: classes that the same trainers may use, at
//! the same speed, are one group, whose nodes may be mixed in one trainer.

use std::collections::{BTreeMap, BTreeSet};

use super::Engine;
use crate::node::{ClassId, NodeId};
use crate::trainer::{NodeCap, TrainerId, TrainerInfo};

/// Classes that nobody tells apart.
#[derive(Debug)]
pub(super) struct Group {
    pub classes: Vec<ClassId>,
    /// Throughput on its nodes over that on nodes of speed 1.
    pub speed: f64,
    /// Which of the trainers, by their position, may use it.
    pub may_use: Vec<bool>,
}

/// All groups of some classes.
#[derive(Debug)]
pub(super) struct Groups {
    pub all: Vec<Group>,
    of_class: BTreeMap<ClassId, usize>,
}

impl Groups {
    /// The group of a class that is there.
    pub fn of(&self, class: ClassId) -> Option<usize> {
        self.of_class.get(&class).copied()
    }
}

impl Engine {
    /// Groups those of `classes` that `trainers` can't tell apart, in the order of classes.
    pub(super) fn groups(&self, classes: &BTreeSet<ClassId>, trainers: &[TrainerId]) -> Groups {
        let mut groups = Groups {
            all: Vec::new(),
            of_class: BTreeMap::new(),
        };
        for &class in classes {
            let speed = self.speed(class);
            let may_use: Vec<bool> = trainers
                .iter()
                .map(|id| Self::may_use(&self.trainers[id].info, class))
                .collect();
            let is_like = |group: &Group| group.speed == speed && group.may_use == may_use;
            let index = groups.all.iter().position(is_like).unwrap_or_else(|| {
                groups.all.push(Group {
                    classes: Vec::new(),
                    speed,
                    may_use,
                });
                groups.all.len() - 1
            });
            groups.all[index].classes.push(class);
            groups.of_class.insert(class, index);
        }
        groups
    }

    /// What to call a group; nothing when there is no other.
    pub(super) fn group_name(&self, groups: &Groups, index: usize) -> String {
        if groups.all.len() < 2 {
            return String::new();
        }
        let name = |class: &ClassId| {
            self.classes
                .get(class)
                .map_or("", |info| info.name.as_str())
        };
        match &groups.all[index].classes[..] {
            [] => String::new(),
            [class] => name(class).to_owned(),
            [class, other] => format!("{} or {}", name(class), name(other)),
            [class, others @ ..] => format!("{} or {} others", name(class), others.len()),
        }
    }

    /// The first limit that a trainer shares and that leaves it no room, as "user ann, 64 nodes".
    pub fn used_up_limit(&self, trainer: TrainerId) -> Option<String> {
        let info = &self.trainers.get(&trainer)?.info;
        let assigned = || self.pool.assigned();
        let is_used_up = |cap: &&NodeCap| {
            let bears = |id: &TrainerId| {
                let other = self.trainers.get(id);
                other.is_some_and(|known| known.info.terms.caps.contains(cap))
            };
            let used = assigned().filter(|(id, _)| bears(id));
            let used: usize = used.map(|(_, nodes)| nodes.len()).sum();
            let used = used as u32;
            cap.max_nodes.saturating_sub(used) < info.min_nodes.max(1)
        };
        let cap = info.terms.caps.iter().find(is_used_up)?;
        Some(format!("{}, {} nodes", cap.name, cap.max_nodes))
    }

    /// The class of a node.
    pub(super) fn class_of(&self, node: NodeId) -> ClassId {
        self.class_of.get(&node).copied().unwrap_or_default()
    }

    /// How many of the nodes are of each class.
    pub(super) fn of_class(&self, nodes: impl Iterator<Item = NodeId>) -> BTreeMap<ClassId, u32> {
        let classes: Vec<ClassId> = nodes.map(|node| self.class_of(node)).collect();
        let mut counts = BTreeMap::new();
        // Neighbours are mostly alike.
        for run in classes.chunk_by(|one, next| one == next) {
            *counts.entry(run[0]).or_default() += run.len() as u32;
        }
        counts
    }

    /// Throughput on nodes of a class over that on nodes of speed 1.
    pub(super) fn speed(&self, class: ClassId) -> f64 {
        self.classes.get(&class).map_or(1.0, |info| info.speed)
    }

    /// Whether a trainer may use nodes of a class.
    pub(super) fn may_use(trainer: &TrainerInfo, class: ClassId) -> bool {
        let classes = trainer.terms.classes.as_ref();
        classes.is_none_or(|classes| classes.contains(&class))
    }

    /// Whether a trainer may use this very node, as far as the site is concerned.
    pub fn may_have(&self, trainer: TrainerId, node: NodeId) -> bool {
        let known = self.trainers.get(&trainer);
        known.is_none_or(|known| self.allows(&known.info, node))
    }

    pub(super) fn allows(&self, info: &TrainerInfo, node: NodeId) -> bool {
        Self::may_use(info, self.class_of(node)) && !info.terms.excluded.contains(&node)
    }
}
