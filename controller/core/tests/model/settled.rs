//! What must be true when nothing has happened for a while.

use bftrainer_core::node::NodeId;
use bftrainer_core::pool::{Phase, PoolNode};
use bftrainer_core::trainer::{Run, RunState, TrainerId, TrainerState};

use super::World;
use super::agents::RanksState;

impl World {
    /// Says what is not as it should be when nothing has happened for a while.
    pub fn unsettled(&self) -> Option<String> {
        let after = self.assigned();
        for (id, node) in self.engine.pool().iter() {
            if let Some(wrong) = self.unsettled_node(id, node) {
                return Some(wrong);
            }
        }
        for (id, trainer) in self.engine.trainers() {
            let nodes: Vec<NodeId> = after
                .iter()
                .filter(|(_, owner)| *owner == id)
                .map(|(node, _)| *node)
                .collect();
            let is_on = |run: &Run, nodes: &[NodeId]| {
                let mut members = run.members.clone();
                if trainer.is_live {
                    // In the order in which they came.
                    members.sort();
                }
                members == nodes
            };
            match (&trainer.state, &trainer.run) {
                (TrainerState::Closing, _) => return Some(format!("T{id} has not ended")),
                (_, None) if nodes.is_empty() => {}
                (_, Some(run)) if run.state == RunState::Running && is_on(run, &nodes) => {
                    if self.whole_generation(*id) != Some((run.number, run.members.clone())) {
                        return Some(format!("T{id}'s ranks do not run: {run:?}"));
                    }
                }
                (_, run) => return Some(format!("T{id} has {nodes:?} and runs {run:?}")),
            }
            if let Some(wrong) = self.unused_gain(*id) {
                return Some(wrong);
            }
        }
        None
    }

    fn unsettled_node(&self, id: NodeId, node: &PoolNode) -> Option<String> {
        let Some(worker) = &node.worker else {
            return None;
        };
        let is_member = worker.phase == Phase::Member && node.assigned == Some(worker.trainer);
        (!is_member).then(|| {
            format!(
                "{id:?} is assigned to {:?} and has {worker:?}",
                node.assigned
            )
        })
    }

    /// Free nodes that would be worth something to an admitted trainer.
    fn unused_gain(&self, id: TrainerId) -> Option<String> {
        let trainer = &self.engine.trainers()[&id];
        if trainer.state != TrainerState::Admitted {
            return None;
        }
        let held: Vec<NodeId> = self
            .assigned()
            .into_iter()
            .filter_map(|(node, owner)| (owner == id).then_some(node))
            .collect();
        let free: Vec<NodeId> = self
            .engine
            .pool()
            .iter()
            .filter(|(node, pool_node)| {
                let engine = &self.engine;
                pool_node.assigned.is_none()
                    && engine.is_usable(*node, self.now_s)
                    && engine.avoidance_of(id, *node, self.now_s).is_none()
                    && self.may_have(id, *node)
            })
            .map(|(node, _)| node)
            .collect();
        // Without nodes it could have any that are alike, else more of the same.
        let like = held.first().map_or(&free[..], std::slice::from_ref);
        let alike = like.iter().map(|like| {
            let free = free.iter().filter(|node| self.are_alike(*like, **node));
            free.count() as u32
        });
        let free = alike.max().unwrap_or(0).min(self.left_of_caps(id));
        let has = held.len() as u32;
        if self.engine.plan(id).is_some() {
            // It may be held to fewer than it could use.
            return None;
        }
        let info = &trainer.info;
        let curve = self.engine.curve(id).unwrap_or(&info.curve);
        let objective = self.config.metric.objective(curve, 1.0);
        let (up_s, _) = self.engine.rescale_costs_s(id);
        let cost = up_s * objective.value(has);
        let worth = |nodes| self.config.horizon_s * (objective.value(nodes) - objective.value(has));
        let better = (info.min_nodes.max(has + 1)..=info.max_nodes.min(has + free))
            .find(|nodes| worth(*nodes) > cost * (1.0 + 1e-9) + 1e-9);
        better.map(|nodes| format!("T{id} has {has} nodes, gains by {nodes}, and {free} are free"))
    }

    /// Ranks that run though their controller wants none there.
    pub fn stray_ranks(&self) -> Option<String> {
        self.tasks.values().find_map(|task| {
            let ranks = task.agent.ranks.as_ref()?;
            let run = self.engine.trainers().get(&task.trainer)?.run.as_ref();
            let wanted = run.is_some_and(|run| {
                run.number == ranks.generation && ranks.state == RanksState::Running
            });
            (!wanted).then(|| format!("{task:?}"))
        })
    }
}
