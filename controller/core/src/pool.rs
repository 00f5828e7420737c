//! The pool: nodes that are plain idle or run a task of ours, and what each is
//! used for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

use serde::{Deserialize, Serialize, Serializer};

use crate::node::NodeId;
use crate::trainer::TrainerId;

static NO_NODES: BTreeSet<NodeId> = BTreeSet::new();

/// The pool's nodes. Which each trainer has, and where something is to be done, is kept at hand:
/// after most events that is a small part of a large pool.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "BTreeMap<NodeId, PoolNode>")]
pub struct Pool {
    /// By the nodes' numbers, which are dense.
    slots: Vec<Option<PoolNode>>,
    ids: BTreeSet<NodeId>,
    /// The nodes by whom they are assigned to, free ones under `None`.
    by_trainer: BTreeMap<Option<TrainerId>, BTreeSet<NodeId>>,
    /// Those that are not at rest.
    restless: BTreeSet<NodeId>,
}

impl Pool {
    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The nodes' numbers, sorted.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.ids.iter().copied()
    }

    /// The nodes, sorted by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &PoolNode)> {
        self.look_up(&self.ids)
    }

    /// The nodes, in the same order.
    pub fn nodes(&self) -> impl Iterator<Item = &PoolNode> {
        self.iter().map(|(_, node)| node)
    }

    /// A node, if it is there.
    pub fn get(&self, id: NodeId) -> Option<&PoolNode> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    /// The nodes that are assigned to nobody.
    pub(crate) fn free(&self) -> &BTreeSet<NodeId> {
        self.by_trainer.get(&None).unwrap_or(&NO_NODES)
    }

    /// The nodes that are assigned to `trainer`.
    pub(crate) fn assigned_to(&self, trainer: TrainerId) -> &BTreeSet<NodeId> {
        self.by_trainer.get(&Some(trainer)).unwrap_or(&NO_NODES)
    }

    /// The nodes that are assigned to each trainer that has any.
    pub(crate) fn assigned(&self) -> impl Iterator<Item = (TrainerId, &BTreeSet<NodeId>)> {
        let by_trainer = self.by_trainer.iter();
        by_trainer.filter_map(|(trainer, nodes)| Some(((*trainer)?, nodes)))
    }

    /// The nodes where something is to be done.
    pub(crate) fn restless(&self) -> impl Iterator<Item = (NodeId, &PoolNode)> {
        self.look_up(&self.restless)
    }

    /// The nodes that are assigned to `trainer` or bear a worker of its, sorted.
    pub(crate) fn nodes_of(&self, trainer: TrainerId) -> Vec<NodeId> {
        let assigned = self.assigned_to(trainer).iter().copied();
        let strays = self.restless();
        let strays = strays.filter(|(_, node)| node.stray() == Some(trainer));
        let mut nodes: Vec<NodeId> = assigned.chain(strays.map(|(id, _)| id)).collect();
        nodes.sort_unstable();
        nodes
    }

    /// Takes in a node, unless it is there already.
    pub(crate) fn join(&mut self, id: NodeId, node: PoolNode) {
        if !self.ids.insert(id) {
            return;
        }
        self.by_trainer.entry(node.assigned).or_default().insert(id);
        if !node.is_at_rest() {
            self.restless.insert(id);
        }
        let index = id.0 as usize;
        if self.slots.len() <= index {
            self.slots.resize(index + 1, None);
        }
        self.slots[index] = Some(node);
    }

    /// Takes a node out.
    pub(crate) fn remove(&mut self, id: NodeId) -> Option<PoolNode> {
        let node = self.slots.get_mut(id.0 as usize)?.take()?;
        self.ids.remove(&id);
        self.unlist(id, node.assigned);
        self.restless.remove(&id);
        Some(node)
    }

    /// Changes a node, if it is there, and returns what `change` does.
    pub(crate) fn update<T>(
        &mut self,
        id: NodeId,
        change: impl FnOnce(&mut PoolNode) -> T,
    ) -> Option<T> {
        let node = self.slots.get_mut(id.0 as usize)?.as_mut()?;
        let (before, was_at_rest) = (node.assigned, node.is_at_rest());
        let result = change(node);
        let (after, is_at_rest) = (node.assigned, node.is_at_rest());
        if before != after {
            self.unlist(id, before);
            self.by_trainer.entry(after).or_default().insert(id);
        }
        match (was_at_rest, is_at_rest) {
            (true, false) => self.restless.insert(id),
            (false, true) => self.restless.remove(&id),
            _ => false,
        };
        Some(result)
    }

    /// Takes a node off the list of whom it is assigned to.
    fn unlist(&mut self, id: NodeId, assigned: Option<TrainerId>) {
        if let Some(nodes) = self.by_trainer.get_mut(&assigned) {
            nodes.remove(&id);
            if nodes.is_empty() {
                self.by_trainer.remove(&assigned);
            }
        }
    }

    fn look_up<'p>(
        &'p self,
        ids: &'p BTreeSet<NodeId>,
    ) -> impl Iterator<Item = (NodeId, &'p PoolNode)> {
        ids.iter().map(|id| (*id, &self[*id]))
    }
}

impl Index<NodeId> for Pool {
    type Output = PoolNode;

    /// Panics when the node is not there.
    fn index(&self, id: NodeId) -> &PoolNode {
        self.get(id).expect("a node of the pool")
    }
}

impl From<BTreeMap<NodeId, PoolNode>> for Pool {
    fn from(nodes: BTreeMap<NodeId, PoolNode>) -> Self {
        let mut pool = Pool::default();
        for (id, node) in nodes {
            pool.join(id, node);
        }
        pool
    }
}

impl Serialize for Pool {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// One node of the pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolNode {
    /// Number of the event with which it joined; neighbours that join together
    /// tend to leave together.
    pub join_event: u64,
    /// When it joined, epoch seconds.
    pub joined_s: f64,
    /// When Slurm plans to use it, epoch seconds.
    pub hole_end_s: Option<f64>,
    /// The trainer that shall have it.
    pub assigned: Option<TrainerId>,
    /// The worker that is there, which may still be another trainer's.
    pub worker: Option<Worker>,
}

impl PoolNode {
    /// A free node.
    pub fn new(join_event: u64, joined_s: f64, hole_end_s: Option<f64>) -> Self {
        PoolNode {
            join_event,
            joined_s,
            hole_end_s,
            assigned: None,
            worker: None,
        }
    }

    /// Whether nothing is to be done here: free, or used by whom it is assigned to.
    pub fn is_at_rest(&self) -> bool {
        match (self.assigned, &self.worker) {
            (Some(trainer), Some(worker)) => {
                worker.trainer == trainer && worker.phase == Phase::Member
            }
            (assigned, worker) => assigned.is_none() && worker.is_none(),
        }
    }

    /// Whose worker is here, if it is not that of whom the node is assigned to.
    pub fn stray(&self) -> Option<TrainerId> {
        let worker = self.worker.as_ref().map(|worker| worker.trainer);
        worker.filter(|trainer| self.assigned != Some(*trainer))
    }

    /// The worker here when it is `trainer`'s.
    pub fn worker_of(&self, trainer: TrainerId) -> Option<&Worker> {
        self.worker
            .as_ref()
            .filter(|worker| worker.trainer == trainer)
    }

    /// The same, to be changed.
    pub(crate) fn worker_of_mut(&mut self, trainer: TrainerId) -> Option<&mut Worker> {
        self.worker
            .as_mut()
            .filter(|worker| worker.trainer == trainer)
    }

    /// The worker here, if it is `trainer`'s, is no more.
    pub(crate) fn take_worker_of(&mut self, trainer: TrainerId) {
        self.worker.take_if(|worker| worker.trainer == trainer);
    }

    /// Free, if it is assigned to `trainer`.
    pub(crate) fn unassign_from(&mut self, trainer: TrainerId) {
        self.assigned.take_if(|assigned| *assigned == trainer);
    }

    /// Whether a worker of `trainer`'s is here that was not told to leave.
    pub fn keeps_worker_of(&self, trainer: TrainerId) -> bool {
        self.worker_of(trainer)
            .is_some_and(|worker| worker.phase != Phase::Leaving)
    }

    /// Whether ranks of `trainer`'s run here, as far as is known.
    pub fn may_run(&self, trainer: TrainerId) -> bool {
        self.worker_of(trainer).is_some_and(|worker| {
            matches!(
                worker.phase,
                Phase::Found | Phase::Member | Phase::Stale { .. }
            )
        })
    }
}

/// A task of a trainer on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// Whose it is.
    pub trainer: TrainerId,
    /// How far it is.
    pub phase: Phase,
    /// Since when, epoch seconds.
    pub since_s: f64,
}

/// How far a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Released in Slurm; its agent has not said hello.
    Placed,
    /// Its task was found running; its agent has not said hello.
    Found,
    /// Its agent is connected and runs no ranks.
    Ready,
    /// It belongs to the trainer's current generation.
    Member,
    /// It runs ranks that are told to stop: of an older generation, or of a live one that it
    /// leaves.
    Stale {
        /// Whether they have the grace to save.
        may_save: bool,
    },
    /// Told to leave; its task goes back to the queue.
    Leaving,
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 4] = [Phase::Placed, Phase::Ready, Phase::Member, Phase::Leaving];

    fn change(node: &mut PoolNode, random: &mut fastrand::Rng) {
        let trainer = |random: &mut fastrand::Rng| match random.u32(0..4) {
            0 => None,
            number => Some(TrainerId(number)),
        };
        node.assigned = trainer(random);
        node.worker = trainer(random).map(|trainer| Worker {
            trainer,
            phase: PHASES[random.usize(..PHASES.len())],
            since_s: 0.0,
        });
    }

    #[test]
    fn lists_say_what_the_nodes_say_whatever_changes() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut pool = Pool::default();
        for _ in 0..10_000 {
            let id = NodeId(random.u32(0..50));
            match random.u32(0..8) {
                0 => drop(pool.remove(id)),
                1 => pool.join(id, PoolNode::new(0, 0.0, None)),
                _ => drop(pool.update(id, |node| change(node, &mut random))),
            }
            let nodes: BTreeMap<NodeId, PoolNode> =
                pool.iter().map(|(id, node)| (id, node.clone())).collect();
            assert_eq!(pool.len(), nodes.len());
            let told = |is_listed: &dyn Fn(&PoolNode) -> bool| -> Vec<NodeId> {
                let listed = nodes.iter().filter(|(_, node)| is_listed(node));
                listed.map(|(id, _)| *id).collect()
            };
            let restless: Vec<NodeId> = pool.restless().map(|(id, _)| id).collect();
            assert_eq!(restless, told(&|node| !node.is_at_rest()));
            assert!(
                pool.free()
                    .iter()
                    .eq(&told(&|node| node.assigned.is_none()))
            );
            for trainer in (1..4).map(TrainerId) {
                let assigned = told(&|node| node.assigned == Some(trainer));
                assert!(pool.assigned_to(trainer).iter().eq(&assigned));
                let of_trainer = told(&|node| {
                    node.assigned == Some(trainer) || node.worker_of(trainer).is_some()
                });
                assert_eq!(pool.nodes_of(trainer), of_trainer);
            }
            let trainers: BTreeSet<TrainerId> =
                nodes.values().filter_map(|it| it.assigned).collect();
            assert!(pool.assigned().map(|(id, _)| id).eq(trainers));
        }
    }
}
