//! Classes of nodes: which nodes are of which, and which of them a trainer may use.

use std::collections::{BTreeMap, BTreeSet};

use bftrainer_core::engine::Event;
use bftrainer_core::node::{ClassId, ClassInfo, NodeId};
use bftrainer_core::trainer::{Terms, TrainerId};

use super::array::Array;
use super::brain::Brain;
use crate::classes::{NodeTraits, Requirement};
use crate::config::Sharing;

/// The classes that were ever seen.
#[derive(Debug, Default)]
pub(super) struct NodeClasses {
    /// By their number.
    known: Vec<(NodeTraits, ClassInfo)>,
    /// What the engine was told.
    of: BTreeMap<NodeId, ClassId>,
}

impl NodeClasses {
    /// The class of nodes with these traits, perhaps a new one.
    fn class_of(&mut self, traits: &NodeTraits, speed: f64) -> ClassId {
        let known = self.known.iter().position(|(known, _)| known == traits);
        let index = known.unwrap_or_else(|| {
            let names = traits.names();
            let is_new = |name: &&String| self.known.iter().all(|(_, info)| info.name != **name);
            let name = names.iter().find(is_new).unwrap_or(&names[0]).clone();
            self.known.push((traits.clone(), ClassInfo { name, speed }));
            self.known.len() - 1
        });
        ClassId(index as u32)
    }

    /// Takes the classes' speeds from new settings; the engine is told of all nodes again.
    pub(super) fn renew_speeds(&mut self, sharing: &Sharing) {
        for (traits, info) in &mut self.known {
            info.speed = sharing.speed(&traits.features);
        }
        self.of.clear();
    }

    /// The classes on which a task can run.
    fn allowed(&self, requirement: &Requirement) -> BTreeSet<ClassId> {
        let classes = (0..).map(ClassId).zip(&self.known);
        let allowed = classes.filter(|(_, (traits, _))| requirement.allows(traits));
        allowed.map(|(class, _)| class).collect()
    }

    /// The name of a node's class, once it was seen.
    pub(super) fn name_of(&self, node: NodeId) -> Option<&str> {
        self.of.get(&node).map(|class| self.name(*class))
    }

    /// The names of those of `classes`, or without them of all, that nodes are of now.
    pub(super) fn names(&self, classes: Option<&BTreeSet<ClassId>>) -> Vec<&str> {
        let present: BTreeSet<ClassId> = self.of.values().copied().collect();
        let present = present.into_iter();
        let named = present.filter(|class| classes.is_none_or(|classes| classes.contains(class)));
        named.map(|class| self.name(class)).collect()
    }

    fn name(&self, class: ClassId) -> &str {
        self.known
            .get(class.0 as usize)
            .map_or("", |(_, info)| &info.name)
    }
}

impl Brain {
    /// Tells the engine of nodes whose class is new, and of trainers that may use a new class.
    pub(super) fn observe_classes(&mut self, events: &mut Vec<Event>) {
        let known_before = self.classes.known.len();
        let mut told: BTreeMap<ClassId, Vec<NodeId>> = BTreeMap::new();
        for (name, node) in &self.nodes {
            if !self.partition_nodes.contains(name) {
                continue;
            }
            let id = self.engine.names.intern(name);
            let speed = self.config.sharing.speed(&node.traits.features);
            let class = self.classes.class_of(&node.traits, speed);
            if self.classes.of.insert(id, class) != Some(class) {
                told.entry(class).or_default().push(id);
            }
        }
        for (class, nodes) in told {
            let info = self.classes.known[class.0 as usize].1.clone();
            events.push(Event::NodeClass { class, info, nodes });
        }
        if self.classes.known.len() > known_before {
            self.review_trainers(events);
        }
    }

    /// Tells the engine of trainers for which classes or settings now say something else.
    pub(super) fn review_trainers(&self, events: &mut Vec<Event>) {
        for id in self.arrays.keys() {
            let known = self.engine.trainers().get(&TrainerId(*id));
            if let (Some(known), Some(info)) = (known, self.trainer_info(*id))
                && known.info != info
            {
                events.push(Event::TrainerChanged(info));
            }
        }
    }

    /// What the site lets the array's trainer have.
    pub(super) fn terms(&self, array: &Array) -> Terms {
        let sharing = &self.config.sharing;
        let excluded = array.excluded.iter();
        Terms {
            weight: sharing.weight(&array.owner_name, &array.account),
            classes: match &array.requirement {
                Some(requirement) if requirement.is_none() => None,
                Some(requirement) => Some(self.classes.allowed(requirement)),
                None => Some(BTreeSet::new()),
            },
            excluded: excluded
                .filter_map(|name| self.engine.names.id(name))
                .collect(),
            caps: sharing.caps(&array.owner_name, &array.account),
        }
    }
}
