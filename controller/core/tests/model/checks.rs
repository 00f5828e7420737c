//! What must be true of every action and after every decision.

use std::collections::{BTreeMap, BTreeSet};

use bftrainer_core::engine::{Action, Decision, Engine, Event, LossReason};
use bftrainer_core::node::NodeId;
use bftrainer_core::pool::{Phase, PoolNode};
use bftrainer_core::trainer::{RunState, TrainerId, TrainerState};

use super::agents::RanksState;
use super::{Plan, Task, World, copy};

/// Rounding of epoch seconds.
const ROUNDING_S: f64 = 1e-5;

impl World {
    /// Keeps books of what the engine knows.
    pub(super) fn note_told(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Pool {
                    left,
                    joined,
                    hole_ends,
                } => {
                    for node in left {
                        self.mark_gone(*node, None);
                    }
                    for (node, hole_end_s) in joined.iter().chain(hole_ends) {
                        if let Some(known) = self.nodes.get_mut(node) {
                            known.told_end_s = hole_end_s.map(|end_s| (end_s, self.now_s));
                        }
                    }
                }
                Event::WorkerLost {
                    trainer,
                    node,
                    reason: LossReason::Silent,
                } => self.give_up(*node, *trainer),
                Event::WorkerLost { trainer, node, .. }
                | Event::WorkerGone { trainer, node }
                | Event::PlaceFailed { trainer, node, .. } => {
                    self.mark_gone(*node, Some(*trainer));
                }
                Event::WorkerFound { trainer, node } => {
                    let now_s = self.now_s;
                    for task in self.tasks.values_mut() {
                        if task.trainer == *trainer && task.node == *node && task.runs() {
                            task.known_since_s = Some(now_s);
                        }
                    }
                }
                Event::WorkerReady { trainer, node, .. } => {
                    for task in self.tasks.values_mut() {
                        if task.trainer == *trainer && task.node == *node {
                            task.heard |= task.agent.joined_life == self.life;
                        }
                    }
                }
                Event::WorkerStopped {
                    trainer,
                    generation,
                    ..
                } => {
                    if let Some(program) = self.trainers.get_mut(trainer) {
                        program.heard_of_end(self.now_s, *generation);
                    }
                }
                Event::Progress {
                    trainer, samples, ..
                } => {
                    if let Some(program) = self.trainers.get_mut(trainer) {
                        let window_s = self.config.collateral_window_s;
                        program.heard(self.now_s, *samples, window_s);
                    }
                }
                Event::PoolDoubted => self.told_in_doubt = true,
                Event::PoolSeen => self.told_in_doubt = false,
                _ => {}
            }
        }
    }

    /// A task that was found and not adopted is none of the engine's workers.
    pub(super) fn note_unwanted(&mut self, events: &[Event]) {
        for event in events {
            if let Event::WorkerFound { trainer, node } = event
                && self
                    .engine
                    .pool()
                    .get(*node)
                    .is_none_or(|node| node.worker_of(*trainer).is_none())
            {
                self.mark_gone(*node, Some(*trainer));
            }
        }
    }

    fn mark_gone(&mut self, node: NodeId, trainer: Option<TrainerId>) {
        for task in self.tasks.values_mut() {
            if task.node == node && trainer.is_none_or(|trainer| task.trainer == trainer) {
                task.told_gone |= task.known_since_s.is_some();
            }
        }
    }

    /// The engine no longer counts on a task that may still be there.
    fn give_up(&mut self, node: NodeId, trainer: TrainerId) {
        for task in self.tasks.values_mut() {
            if task.node == node && task.trainer == trainer {
                task.given_up |= task.known_since_s.is_some();
            }
        }
    }

    /// The tasks that the engine believes to be on `node`.
    fn believed_on(&self, node: NodeId) -> impl Iterator<Item = &Task> {
        self.tasks.values().filter(move |task| {
            task.node == node && task.known_since_s.is_some() && !task.told_gone
        })
    }

    pub(super) fn check_action(&mut self, action: &Action) {
        match action {
            Action::Place {
                trainer,
                node,
                limit_s,
            } => self.check_place(*trainer, *node, *limit_s),
            Action::Leave { trainer, node, .. } => {
                self.check_leave(*trainer, *node);
                self.give_up(*node, *trainer);
            }
            Action::Start {
                trainer,
                generation,
                members,
            } => self.check_start(*trainer, *generation, members),
            Action::Stop {
                trainer,
                nodes,
                grace_s,
                ..
            } => {
                assert!(*grace_s >= 0.0 && *grace_s <= self.config.grace_s);
                assert!(!nodes.is_empty(), "a stop names no node");
                for node in nodes {
                    let mut there = self.believed_on(*node);
                    let there = there.any(|task| task.trainer == *trainer && !task.given_up);
                    assert!(there, "a stop names {node:?}, which has no worker");
                }
            }
            Action::Fail {
                trainer, reason, ..
            } => {
                if let Some(program) = self.trainers.get(trainer) {
                    assert!(
                        program.failures_s.len() >= self.config.failures,
                        "T{trainer} failed after failures at {:?}: {reason}",
                        program.failures_s
                    );
                }
            }
            Action::Close { .. } | Action::WakeAt { .. } => {}
        }
    }

    fn check_place(&self, trainer: TrainerId, node: NodeId, limit_s: f64) {
        if let Some(other) = self.believed_on(node).next() {
            panic!("T{trainer} is placed on {node:?}, where {other:?} is");
        }
        let pool_node = &self.engine.pool()[node];
        assert_eq!(pool_node.assigned, Some(trainer));
        let hole_s = self.room_s(pool_node);
        assert!(
            hole_s >= self.config.min_hole_s - ROUNDING_S,
            "T{trainer} is placed on {node:?} though its hole ends in {hole_s} s"
        );
        assert!(limit_s > 0.0 && limit_s <= hole_s && limit_s <= self.config.lease_s);
        assert!(
            !self.told_in_doubt,
            "T{trainer} is placed while free nodes are in doubt"
        );
        let known = &self.engine.trainers()[&trainer];
        assert_eq!(known.state, TrainerState::Admitted);
        assert!(limit_s <= known.info.max_stay_s.unwrap_or(f64::INFINITY));
        let engine = &self.engine;
        let quarantine = engine.quarantine_of(node, self.now_s);
        assert_eq!(quarantine, None, "T{trainer} is placed on {node:?}");
        let avoidance = engine.avoidance_of(trainer, node, self.now_s);
        assert_eq!(avoidance, None, "T{trainer} is placed on {node:?}");
    }

    /// Nobody who can still be reached is sent away while ranks run.
    fn check_leave(&self, trainer: TrainerId, node: NodeId) {
        for task in self.believed_on(node) {
            let closing = self
                .trainers
                .get(&trainer)
                .is_none_or(|known| known.closing);
            if task.trainer == trainer
                && !closing
                && !task.given_up
                && task.agent.connected
                && task.agent.joined_life == self.life
                && matches!(task.plan, Plan::Placed | Plan::Runs)
                && let Some(ranks) = &task.agent.ranks
                && !ranks.is_hung
                && ranks.state != (RanksState::Preparing { cancelled: true })
            {
                panic!("T{trainer} leaves {node:?} though its ranks run: {ranks:?}");
            }
        }
    }

    /// Whether the engine waits for the hello of a task that was found on `node`.
    fn is_unheard(&self, trainer: TrainerId, node: NodeId) -> bool {
        let pool_node = self.engine.pool().get(node);
        let worker = pool_node.and_then(|pool_node| pool_node.worker_of(trainer));
        worker.is_some_and(|worker| worker.phase == Phase::Found)
    }

    fn check_start(&mut self, trainer: TrainerId, generation: u64, members: &[NodeId]) {
        let known = &self.engine.trainers()[&trainer];
        let started = self.trainers.get(&trainer).map(|program| program.started);
        let is_there = {
            let mut ranks = self.ranks_of(trainer);
            ranks.any(|(_, _, ranks)| ranks.generation == generation)
        };
        if known.is_live && (started == Some(generation) || is_there) {
            // Live members are told again of the one in which they are, whatever has
            // happened to others since, and whichever engine started it.
            return;
        }
        let (min, max) = (known.info.min_nodes, known.info.max_nodes);
        assert!(
            (min..=max).contains(&(members.len() as u32)),
            "T{trainer}, {min}-{max} nodes, starts on {members:?}"
        );
        let distinct: BTreeSet<&NodeId> = members.iter().collect();
        assert_eq!(distinct.len(), members.len(), "{members:?}");
        for node in members {
            let connected = |task: &Task| task.trainer == trainer && task.heard && !task.given_up;
            // What live members are told again need not reach those that are still awaited.
            let is_awaited = known.is_live && self.is_unheard(trainer, *node);
            assert!(
                is_awaited || self.believed_on(*node).any(connected),
                "T{trainer} starts on {node:?}, which has no agent"
            );
        }
        for (_, task, ranks) in self.ranks_of(trainer).filter(|_| !known.is_live) {
            // Who was found and does not say hello may run what it likes; the
            // fence keeps ranks that hang from ever running.
            let patience_s = self.config.adopt_timeout_s - ROUNDING_S;
            let is_expected = task.known_since_s.is_some_and(|since_s| {
                !task.told_gone
                    && !ranks.is_hung
                    && !task.given_up
                    && (task.heard || self.now_s < since_s + patience_s)
            });
            assert!(
                !is_expected,
                "T{trainer} starts generation {generation} on {members:?} while {:?} runs {ranks:?}",
                task.node
            );
        }
        if let Some(program) = self.trainers.get_mut(&trainer) {
            assert!(
                generation > program.started,
                "T{trainer} starts generation {generation} after {}",
                program.started
            );
            program.started = generation;
        }
    }

    pub(super) fn check_wake_up(&self, actions: &[Action]) {
        let wake_ups = actions
            .iter()
            .filter(|action| matches!(action, Action::WakeAt { .. }));
        assert!(wake_ups.count() <= 1);
        if let Some(time_s) = self.timer_s {
            assert!(
                time_s > self.now_s,
                "the wake-up at {time_s} is not after {}",
                self.now_s
            );
        }
    }

    /// Where restarts cost nothing, what was decided is still the best: a decision that
    /// nothing calls for changes nothing.
    pub(super) fn check_nothing_is_due(&self) {
        if !self.free_restarts || self.told_in_doubt {
            return;
        }
        let mut nodes = self.engine.pool().ids();
        let is_kept_off = |node: &NodeId| {
            let mut trainers = self.engine.trainers().values();
            self.engine.avoided_by(*node, self.now_s).next().is_some()
                || trainers.any(|known| known.info.terms.excluded.contains(node))
        };
        if nodes.any(|node| is_kept_off(&node)) {
            // Around nodes that one trainer keeps off the best may take two steps.
            return;
        }
        let mut forced = copy(&self.engine);
        forced.set_config(self.config.clone());
        forced.handle(self.now_s, Vec::new());
        let decisions = forced.take_decisions();
        assert_eq!(decisions, [], "not decided though it was due");
        let assigned = |engine: &Engine| -> Vec<_> {
            let nodes = engine.pool().iter();
            nodes.map(|(id, node)| (id, node.assigned)).collect()
        };
        assert_eq!(assigned(&forced), assigned(&self.engine));
    }

    pub(super) fn check_state(
        &self,
        before: &BTreeMap<NodeId, TrainerId>,
        events: &[Event],
        decisions: &[Decision],
    ) {
        let after = self.assigned();
        for (id, trainer) in self.engine.trainers() {
            let nodes = after.values().filter(|owner| *owner == id).count() as u32;
            let (min, max) = (trainer.info.min_nodes, trainer.info.max_nodes);
            // In doubt nothing is decided: what is left after a loss is left as it is.
            assert!(
                self.told_in_doubt || nodes == 0 || (min..=max).contains(&nodes),
                "T{id} has {nodes} nodes and may have {min}-{max}"
            );
            assert!(nodes == 0 || trainer.state == TrainerState::Admitted);
            self.check_nothing_moves(*id, before, &after, events);
            let Some(run) = &trainer.run else { continue };
            let has_worker = |node: &NodeId| {
                let node = self.engine.pool().get(*node);
                node.is_some_and(|node| node.may_run(*id))
            };
            // Live members that are still to say hello may go on.
            let is_awaited = trainer.is_live
                && matches!(run.state, RunState::Adopting(_))
                && run.members.iter().any(|node| self.is_unheard(*id, *node));
            assert!(
                matches!(run.state, RunState::Stopping { .. })
                    || is_awaited
                    || run.members.iter().all(has_worker),
                "T{id} has lost a member of {run:?} and nothing follows"
            );
        }
        if !self.told_in_doubt {
            // In doubt a worker that was found may be where it should not be.
            self.check_terms(&after);
        }
        for decision in decisions {
            let (from, to) = (decision.from_nodes, decision.to_nodes);
            let trainer = format!("T{}: ", decision.trainer);
            let change = format!("{trainer}{from} -> {to} nodes: ");
            let is_plain = decision.reason.starts_with(&change) && from != to;
            let names_classes = self.classes > 1 && decision.reason.starts_with(&trainer);
            assert!(is_plain || names_classes, "{decision:?}");
        }
    }

    /// Nobody both gains and loses nodes, but for those that are taken away.
    fn check_nothing_moves(
        &self,
        id: TrainerId,
        before: &BTreeMap<NodeId, TrainerId>,
        after: &BTreeMap<NodeId, TrainerId>,
        events: &[Event],
    ) {
        let was_forced = events.iter().any(|event| match event {
            Event::PlaceFailed { trainer, .. } | Event::WorkerFound { trainer, .. } => {
                *trainer == id
            }
            _ => false,
        });
        let nodes_of = |map: &BTreeMap<NodeId, TrainerId>| -> BTreeSet<NodeId> {
            let nodes = map.iter().filter(|(_, owner)| **owner == id);
            nodes.map(|(node, _)| *node).collect()
        };
        let (before, after) = (nodes_of(before), nodes_of(after));
        let gained: Vec<&NodeId> = after.difference(&before).collect();
        let given: Vec<&NodeId> = before
            .difference(&after)
            .filter(|node| self.could_be_kept(id, **node))
            // Whoever goes to other nodes gives all that are not like them.
            .filter(|node| gained.iter().all(|gained| self.are_alike(**gained, **node)))
            .collect();
        assert!(
            was_forced || gained.is_empty() || given.is_empty(),
            "T{id} gains {gained:?} and gives {given:?}"
        );
    }

    fn could_be_kept(&self, trainer: TrainerId, id: NodeId) -> bool {
        let Some(node) = self.engine.pool().get(id) else {
            return false;
        };
        let hole_s = self.room_s(node);
        let needed_s = self.config.min_hole_s.max(self.config.vacate_lead_s);
        let engine = &self.engine;
        self.may_have(trainer, id)
            && hole_s > needed_s + ROUNDING_S
            && engine.quarantine_of(id, self.now_s).is_none()
            && engine.avoidance_of(trainer, id, self.now_s).is_none()
    }

    /// How long a new worker could stay on a node, by backfill's reckoning.
    fn room_s(&self, node: &PoolNode) -> f64 {
        let grid_s = self.config.plan_grid_s;
        node.hole_end_s.map_or(f64::INFINITY, |end_s| {
            let end_s = if grid_s > 0.0 {
                (end_s / grid_s).floor() * grid_s
            } else {
                end_s
            };
            end_s - self.config.plan_wait_s - self.now_s
        })
    }

    /// A node with a planned use has been vacated when that comes, provided that
    /// the engine knew and nothing is broken.
    pub(super) fn check_vacated(&self, node: NodeId) {
        let Some((end_s, since_s)) = self.nodes[&node].told_end_s else {
            return;
        };
        let knew_s = end_s - since_s;
        if self.is_fair && knew_s > self.config.vacate_lead_s {
            let there = self
                .tasks
                .values()
                .find(|task| task.node == node && task.runs() && task.agent.alive);
            assert!(there.is_none(), "{node:?} is not vacated: {there:?}");
        }
    }
}
