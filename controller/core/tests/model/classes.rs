//! Classes of nodes and shared limits in the model, and what must be true of them after every
//! decision.

use std::collections::{BTreeMap, BTreeSet};

use bftrainer_core::engine::Event;
use bftrainer_core::node::{ClassId, ClassInfo, NodeId};
use bftrainer_core::trainer::{NodeCap, Terms, TrainerId, TrainerState};

use super::World;

/// Speeds of the classes; two are as fast as each other, and may be mixed by those who may use
/// both, as long as nobody takes part who may use only one.
const SPEEDS: [f64; 3] = [1.0, 1.0, 1.8];

/// What tells classes apart at the moment: speed, and the trainers that may use them.
type Kind = (u64, Vec<TrainerId>);

/// What a trainer's array asks for, in small numbers.
#[derive(Clone, Copy, Debug)]
pub struct Asks {
    /// A bit for each class that it may use; 0 is all.
    pub classes: u8,
    /// A node that it may not use.
    pub excluded: Option<u8>,
}

/// Limits of the site.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub all: Option<u32>,
    pub per_owner: Option<u32>,
}

impl World {
    /// What a site with `classes` classes and these limits lets a trainer have.
    pub(super) fn terms(&self, owner: u8, asks: Asks) -> Terms {
        let classes: BTreeSet<ClassId> = (0..self.classes)
            .filter(|class| asks.classes >> class & 1 == 1)
            .map(ClassId)
            .collect();
        let cap =
            |name: String, most: Option<u32>| most.map(|max_nodes| NodeCap { name, max_nodes });
        let caps = [
            cap("all".to_owned(), self.limits.all),
            cap(format!("user {owner}"), self.limits.per_owner),
        ];
        Terms {
            weight: 1.0,
            classes: (!classes.is_empty()).then_some(classes),
            excluded: asks
                .excluded
                .map(|node| NodeId(u32::from(node) % self.nodes.len() as u32))
                .into_iter()
                .collect(),
            caps: caps.into_iter().flatten().collect(),
        }
    }

    /// A node's class changes, as its features do.
    pub(super) fn reclass(&mut self, node: NodeId, class: u8) {
        let class = ClassId(u32::from(class) % self.classes);
        self.class_of.insert(node, class);
        self.tell(class_event(class, vec![node]));
    }

    /// What the engine is told of all nodes.
    pub(super) fn class_events(&self) -> Vec<Event> {
        let mut nodes: BTreeMap<ClassId, Vec<NodeId>> = BTreeMap::new();
        for (node, class) in &self.class_of {
            nodes.entry(*class).or_default().push(*node);
        }
        let events = nodes.into_iter();
        events
            .map(|(class, nodes)| class_event(class, nodes))
            .collect()
    }

    fn kind(&self, node: NodeId) -> Kind {
        let class = self.class_of[&node];
        let trainers = self.engine.trainers().iter();
        let may_use = trainers.filter(|(_, known)| {
            let classes = known.info.terms.classes.as_ref();
            known.state == TrainerState::Admitted
                && classes.is_none_or(|classes| classes.contains(&class))
        });
        let may_use = may_use.map(|(id, _)| *id).collect();
        (SPEEDS[class.0 as usize].to_bits(), may_use)
    }

    /// Whether the site lets a trainer have a node.
    pub(super) fn may_have(&self, trainer: TrainerId, node: NodeId) -> bool {
        let terms = &self.engine.trainers()[&trainer].info.terms;
        let classes = terms.classes.as_ref();
        classes.is_none_or(|classes| classes.contains(&self.class_of[&node]))
            && !terms.excluded.contains(&node)
    }

    /// Whether two nodes may be mixed in one trainer at the moment.
    pub(super) fn are_alike(&self, a: NodeId, b: NodeId) -> bool {
        self.kind(a) == self.kind(b)
    }

    /// Nobody has nodes that it may not use, or that are not alike, or more than a limit allows.
    pub(super) fn check_terms(&self, assigned: &BTreeMap<NodeId, TrainerId>) {
        let mut capped: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
        for (id, trainer) in self.engine.trainers() {
            let nodes = || assigned.iter().filter(|(_, owner)| *owner == id);
            for (node, _) in nodes() {
                assert!(self.may_have(*id, *node), "T{id} may not use {node:?}");
            }
            let kinds: BTreeSet<Kind> = nodes().map(|(node, _)| self.kind(*node)).collect();
            assert!(
                kinds.len() < 2,
                "T{id} has nodes that are not alike: {kinds:?}"
            );
            for cap in &trainer.info.terms.caps {
                let (used, _) = capped.entry(&cap.name).or_insert((0, cap.max_nodes));
                *used += nodes().count() as u32;
            }
        }
        for (name, (used, most)) in capped {
            assert!(used <= most, "{name} has {used} nodes and may have {most}");
        }
    }

    /// How many more nodes the shared limits let a trainer have.
    pub(super) fn left_of_caps(&self, trainer: TrainerId) -> u32 {
        let trainers = self.engine.trainers();
        let assigned = self.assigned();
        let caps = trainers[&trainer].info.terms.caps.iter();
        let left = caps.map(|cap| {
            let bears = |id: &TrainerId| trainers[id].info.terms.caps.contains(cap);
            let used = assigned.values().filter(|id| bears(id)).count() as u32;
            cap.max_nodes - used
        });
        left.min().unwrap_or(u32::MAX)
    }
}

fn class_event(class: ClassId, nodes: Vec<NodeId>) -> Event {
    let info = ClassInfo {
        name: format!("kind{}", class.0),
        speed: SPEEDS[class.0 as usize],
    };
    Event::NodeClass { class, info, nodes }
}
