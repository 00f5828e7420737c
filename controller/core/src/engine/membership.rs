//! From assigned nodes to running ranks: placements, and one generation after
//! the other. The old generation trains on until the newcomers are ready.

use std::collections::{BTreeMap, BTreeSet};

use super::{Action, Engine, LossReason};
use crate::node::NodeId;
use crate::pool::{Phase, PoolNode, Worker};
use crate::trainer::{Run, RunState, TrainerId, TrainerState};

/// An agent that was told to stop answers within the grace and this, seconds.
const STOP_ANSWER_S: f64 = 10.0;

/// A worker that was told to leave and is still there is told again, seconds.
const LEAVE_AGAIN_S: f64 = 60.0;

/// A trainer's nodes, as far as they matter to its membership.
struct Roster {
    /// Assigned, with an agent that is connected.
    ready: Vec<NodeId>,
    /// Assigned, with no agent yet; the time since which the oldest is awaited.
    pending: usize,
    /// Assigned or not, with a worker of the trainer's.
    workers: BTreeSet<NodeId>,
    /// Assigned.
    assigned: BTreeSet<NodeId>,
    /// The time at which the longest-waiting ready newcomer became ready.
    ready_since_s: Option<f64>,
}

impl Engine {
    /// Brings every trainer a step nearer to what was decided.
    pub(super) fn drive(&mut self, now_s: f64) {
        self.list_restless(now_s);
        let trainers: Vec<TrainerId> = self.restless.keys().copied().collect();
        for trainer in trainers {
            self.drive_generation(now_s, trainer);
            self.dismiss(trainer, now_s);
            self.place(now_s, trainer);
        }
    }

    /// Lists the trainers that are not as they shall be, with their nodes; for all
    /// others there is nothing to do.
    fn list_restless(&mut self, now_s: f64) {
        let mut restless: BTreeMap<TrainerId, Vec<NodeId>> = BTreeMap::new();
        let trainers = &self.trainers;
        for trainer in trainers.values() {
            let runs = trainer
                .run
                .as_ref()
                .is_none_or(|run| matches!(run.state, RunState::Running) && !run.lost_member);
            let waits = now_s < trainer.resume_at_s || trainer.assembling_since_s.is_some();
            if !runs || waits {
                restless.insert(trainer.info.id, Vec::new());
            }
        }
        for node in self.pool.values().filter(|node| !node.is_at_rest()) {
            for trainer in node.trainers() {
                restless.entry(trainer).or_default();
            }
        }
        restless.retain(|trainer, _| {
            let known = trainers.get(trainer);
            known.is_some_and(|known| known.state != TrainerState::Closing)
        });
        if !restless.is_empty() {
            for (id, node) in &self.pool {
                for trainer in node.trainers() {
                    if let Some(nodes) = restless.get_mut(&trainer) {
                        nodes.push(*id);
                    }
                }
            }
        }
        self.restless = restless;
    }

    /// The nodes of a trainer that [`Engine::drive`] takes a step further: assigned
    /// to it or with a worker of it.
    fn nodes_of(&self, trainer: TrainerId) -> impl Iterator<Item = (NodeId, &PoolNode)> {
        let nodes = self.restless.get(&trainer).map_or(&[][..], Vec::as_slice);
        nodes
            .iter()
            .filter_map(|id| Some((*id, self.pool.get(id)?)))
    }

    fn roster(&self, trainer: TrainerId) -> Roster {
        let mut roster = Roster {
            ready: Vec::new(),
            pending: 0,
            workers: BTreeSet::new(),
            assigned: BTreeSet::new(),
            ready_since_s: None,
        };
        for (id, node) in self.nodes_of(trainer) {
            let worker = node.worker_of(trainer);
            if worker.is_some() {
                roster.workers.insert(id);
            }
            if node.assigned != Some(trainer) {
                continue;
            }
            roster.assigned.insert(id);
            match worker.map(|worker| (worker.phase, worker.since_s)) {
                Some((Phase::Ready, since_s)) => {
                    roster.ready.push(id);
                    roster.ready_since_s = Some(
                        roster
                            .ready_since_s
                            .map_or(since_s, |old_s| old_s.min(since_s)),
                    );
                }
                Some((Phase::Member, _)) => {}
                _ => roster.pending += 1,
            }
        }
        roster
    }

    fn drive_generation(&mut self, now_s: f64, trainer: TrainerId) {
        let roster = self.roster(trainer);
        let Some(known) = self.trainers.get(&trainer) else {
            return;
        };
        let Some(run) = &known.run else {
            self.start_generation(now_s, trainer, &roster);
            return;
        };
        match &run.state {
            RunState::Stopping { .. } => self.await_stop(now_s, trainer, &roster),
            RunState::Adopting(_)
                if run.members.iter().all(|node| roster.workers.contains(node)) =>
            {
                let deadline_s = run.since_s + self.config.adopt_timeout_s;
                self.wake_at(deadline_s);
            }
            _ => self.adjust_running(now_s, trainer, &roster),
        }
    }

    /// Stops a running generation when its membership has to change.
    fn adjust_running(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        let Some((run, is_running)) = self.trainers.get(&trainer).and_then(|known| {
            let run = known.run.as_ref()?;
            Some((run, matches!(run.state, RunState::Running)))
        }) else {
            return;
        };
        let lost = run
            .members
            .iter()
            .any(|node| !roster.workers.contains(node));
        let leaving = run
            .members
            .iter()
            .any(|node| !roster.assigned.contains(node));
        if lost {
            self.stop_run(now_s, trainer, 0.0, None);
        } else if leaving {
            self.stop_run(now_s, trainer, self.config.grace_s, None);
        } else if let Some(since_s) = roster.ready_since_s
            && is_running
        {
            let deadline_s = since_s + self.config.worker_start_timeout_s;
            if roster.pending == 0 || now_s >= deadline_s {
                self.stop_run(now_s, trainer, self.config.grace_s, None);
            } else {
                self.wake_at(deadline_s);
            }
        }
        self.await_stop(now_s, trainer, roster);
    }

    /// Goes on waiting for members that were told to stop; when nobody is left to
    /// wait for, the next generation follows at once.
    fn await_stop(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        let Some(run) = self
            .trainers
            .get_mut(&trainer)
            .and_then(|known| known.run.as_mut())
        else {
            return;
        };
        let RunState::Stopping {
            waiting,
            deadline_s,
            grace_s,
        } = &mut run.state
        else {
            return;
        };
        waiting.retain(|node| roster.workers.contains(node));
        if waiting.is_empty() {
            self.end_generation(now_s, trainer);
            let roster = self.roster(trainer);
            self.start_generation(now_s, trainer, &roster);
            return;
        }
        if run.lost_member && *grace_s > 0.0 {
            // Whoever waits for the lost peer in a collective does not see SIGTERM.
            *grace_s = 0.0;
            self.actions.push(Action::Stop {
                trainer,
                generation: run.number,
                nodes: waiting.iter().copied().collect(),
                grace_s: 0.0,
            });
        }
        let deadline_s = *deadline_s;
        self.wake_at(deadline_s);
    }

    /// Tells the generation's remaining members to stop. `answered` is a member
    /// whose ranks have ended already.
    pub(super) fn stop_run(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        grace_s: f64,
        answered: Option<NodeId>,
    ) {
        let pool = &self.pool;
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        let Some(run) = &mut known.run else {
            return;
        };
        let waiting: BTreeSet<NodeId> = run
            .members
            .iter()
            .copied()
            .filter(|node| {
                Some(*node) != answered
                    && pool
                        .get(node)
                        .is_some_and(|node| node.worker_of(trainer).is_some())
            })
            .collect();
        if !waiting.is_empty() {
            self.actions.push(Action::Stop {
                trainer,
                generation: run.number,
                nodes: waiting.iter().copied().collect(),
                grace_s,
            });
        }
        known.restart_began = Some((now_s, known.samples));
        run.state = RunState::Stopping {
            waiting,
            deadline_s: now_s + grace_s + STOP_ANSWER_S,
            grace_s,
        };
    }

    fn end_generation(&mut self, now_s: f64, trainer: TrainerId) {
        let Some(run) = self
            .trainers
            .get_mut(&trainer)
            .and_then(|known| known.run.take())
        else {
            return;
        };
        for node in run.members {
            if let Some(pool_node) = self.pool.get_mut(&node)
                && let Some(worker) = &mut pool_node.worker
                && worker.trainer == trainer
                && worker.phase == Phase::Member
            {
                worker.phase = Phase::Ready;
                worker.since_s = now_s;
            }
        }
    }

    fn start_generation(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        let assemble_s = self.config.assemble_s;
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        if roster.ready.is_empty() {
            known.assembling_since_s = None;
            return;
        }
        if now_s < known.resume_at_s {
            let time_s = known.resume_at_s;
            self.wake_at(time_s);
            return;
        }
        let since_s = *known.assembling_since_s.get_or_insert(now_s);
        if roster.pending > 0 && now_s < since_s + assemble_s {
            self.wake_at(since_s + assemble_s);
            return;
        }
        if (roster.ready.len() as u32) < known.info.min_nodes {
            return;
        }
        known.generation += 1;
        known.assembling_since_s = None;
        known.blocked_reason = None;
        known.starts += 1;
        if known.restart_began.is_none() {
            known.restart_began = Some((now_s, known.samples));
        }
        let run = Run {
            number: known.generation,
            members: roster.ready.clone(),
            state: RunState::Starting(BTreeSet::new()),
            since_s: now_s,
            lost_member: false,
        };
        self.actions.push(Action::Start {
            trainer,
            generation: run.number,
            members: run.members.clone(),
        });
        known.run = Some(run);
        for node in &roster.ready {
            self.set_phase(now_s, *node, trainer, Phase::Member);
        }
    }

    /// Sends home workers that are not wanted and run nothing.
    fn dismiss(&mut self, trainer: TrainerId, now_s: f64) {
        let mut dismissed = Vec::new();
        for (id, node) in self.nodes_of(trainer) {
            if node.assigned != Some(trainer)
                && node
                    .worker_of(trainer)
                    .is_some_and(|worker| matches!(worker.phase, Phase::Placed | Phase::Ready))
            {
                dismissed.push(id);
            }
        }
        for node in dismissed {
            self.set_phase(now_s, node, trainer, Phase::Leaving);
            self.actions.push(Action::Leave {
                trainer,
                node,
                reason: "the node goes to others or is expected back".to_owned(),
            });
        }
    }

    /// Places workers on assigned nodes; a trainer's first one alone.
    fn place(&mut self, now_s: f64, trainer: TrainerId) {
        let Some(known) = self.trainers.get(&trainer) else {
            return;
        };
        if now_s < known.resume_at_s {
            let time_s = known.resume_at_s;
            self.wake_at(time_s);
            return;
        }
        if self.pool_in_doubt {
            return;
        }
        let placed = self.nodes_of(trainer).any(|(_, node)| {
            node.worker_of(trainer)
                .is_some_and(|worker| worker.phase == Phase::Placed)
        });
        let most = match (known.greeted, placed) {
            (true, _) => usize::MAX,
            (false, true) => 0,
            (false, false) => 1,
        };
        let stay_s = known
            .info
            .max_stay_s
            .unwrap_or(f64::INFINITY)
            .min(self.config.lease_s);
        let vacant: Vec<(NodeId, f64)> = self
            .nodes_of(trainer)
            .filter(|(_, node)| node.assigned == Some(trainer) && node.worker.is_none())
            .take(most)
            .map(|(id, node)| {
                let hole_s = node.hole_end_s.map_or(f64::INFINITY, |end_s| end_s - now_s);
                (id, hole_s.min(stay_s))
            })
            .collect();
        for (node, limit_s) in vacant {
            if let Some(pool_node) = self.pool.get_mut(&node) {
                pool_node.worker = Some(Worker {
                    trainer,
                    phase: Phase::Placed,
                    since_s: now_s,
                });
            }
            self.actions.push(Action::Place {
                trainer,
                node,
                limit_s,
            });
        }
    }

    fn set_phase(&mut self, now_s: f64, node: NodeId, trainer: TrainerId, phase: Phase) {
        if let Some(pool_node) = self.pool.get_mut(&node)
            && let Some(worker) = &mut pool_node.worker
            && worker.trainer == trainer
        {
            worker.phase = phase;
            worker.since_s = now_s;
        }
    }

    pub(super) fn worker_ready(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        node: NodeId,
        running: Option<(u64, Vec<NodeId>)>,
        newest_generation: u64,
    ) {
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        if known.state == TrainerState::Closing {
            return;
        }
        let worker = self
            .pool
            .get(&node)
            .and_then(|node| node.worker_of(trainer));
        let Some(phase) = worker.map(|worker| worker.phase) else {
            return self.send_home(trainer, node, "it was given up or never wanted");
        };
        known.greeted = true;
        known.generation = known.generation.max(newest_generation);
        match running {
            Some((generation, members)) => {
                known.generation = known.generation.max(generation);
                self.reported_running(now_s, trainer, node, generation, members);
            }
            None => match phase {
                Phase::Placed => self.set_phase(now_s, node, trainer, Phase::Ready),
                Phase::Stale => self.set_phase(now_s, node, trainer, Phase::Ready),
                Phase::Member => self.member_without_ranks(now_s, trainer, node),
                Phase::Ready | Phase::Leaving => {}
            },
        }
    }

    /// An agent that comes back says that it runs ranks.
    fn reported_running(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        node: NodeId,
        generation: u64,
        members: Vec<NodeId>,
    ) {
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        let newest = generation == known.generation;
        if known.run.is_none() && newest && members.contains(&node) {
            known.run = Some(Run {
                number: generation,
                members,
                state: RunState::Adopting(BTreeSet::new()),
                since_s: now_s,
                lost_member: false,
            });
        }
        let Some(run) = known
            .run
            .as_mut()
            .filter(|run| run.number == generation && run.members.contains(&node))
        else {
            self.set_phase(now_s, node, trainer, Phase::Stale);
            self.actions.push(Action::Stop {
                trainer,
                generation,
                nodes: vec![node],
                grace_s: 0.0,
            });
            return;
        };
        match &mut run.state {
            RunState::Adopting(confirmed) => {
                confirmed.insert(node);
                if confirmed.len() == run.members.len() {
                    run.state = RunState::Running;
                }
            }
            RunState::Starting(started) => {
                started.insert(node);
                if started.len() == run.members.len() {
                    run.state = RunState::Running;
                }
            }
            RunState::Running => {}
            RunState::Stopping { .. } => self.actions.push(Action::Stop {
                trainer,
                generation,
                nodes: vec![node],
                grace_s: 0.0,
            }),
        }
        self.set_phase(now_s, node, trainer, Phase::Member);
    }

    /// A member came back without ranks: they ended, or it never heard of the start.
    fn member_without_ranks(&mut self, now_s: f64, trainer: TrainerId, node: NodeId) {
        let Some(run) = self
            .trainers
            .get_mut(&trainer)
            .and_then(|known| known.run.as_mut())
        else {
            return;
        };
        if let RunState::Stopping { waiting, .. } = &mut run.state {
            waiting.remove(&node);
        } else {
            run.lost_member = true;
            self.stop_run(now_s, trainer, 0.0, Some(node));
        }
    }

    pub(super) fn worker_started(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        node: NodeId,
        generation: u64,
    ) {
        let Some(run) = self.run_of(trainer, generation) else {
            return;
        };
        if let RunState::Starting(started) = &mut run.state {
            started.insert(node);
            if started.len() == run.members.len() {
                run.state = RunState::Running;
                run.since_s = now_s;
            }
        }
    }

    /// Deadlines of workers and generations.
    pub(super) fn check_deadlines(&mut self, now_s: f64) {
        self.judge_failures(now_s);
        let mut silent = Vec::new();
        for (id, node) in &self.pool {
            if let Some(worker) = &node.worker
                && worker.phase == Phase::Placed
            {
                let deadline_s = worker.since_s + self.config.worker_start_timeout_s;
                if now_s >= deadline_s {
                    silent.push((worker.trainer, *id));
                } else {
                    self.wake_at_s = Some(self.wake_at_s.map_or(deadline_s, |s| s.min(deadline_s)));
                }
            }
        }
        for trainer in self.trainers.values() {
            let Some(run) = &trainer.run else {
                continue;
            };
            match &run.state {
                RunState::Stopping {
                    waiting,
                    deadline_s,
                    ..
                } if now_s >= *deadline_s => {
                    silent.extend(waiting.iter().map(|node| (trainer.info.id, *node)));
                }
                RunState::Adopting(confirmed)
                    if now_s >= run.since_s + self.config.adopt_timeout_s =>
                {
                    silent.extend(
                        run.members
                            .iter()
                            .filter(|node| !confirmed.contains(node))
                            .map(|node| (trainer.info.id, *node)),
                    );
                }
                _ => {}
            }
        }
        for (trainer, node) in silent {
            self.worker_lost(now_s, trainer, node, LossReason::Silent);
        }
        self.repeat_leaves(now_s);
    }

    /// A leave may have come to nothing: Slurm refuses it while a task starts.
    fn repeat_leaves(&mut self, now_s: f64) {
        for (id, node) in &mut self.pool {
            if let Some(worker) = &mut node.worker
                && worker.phase == Phase::Leaving
                && self
                    .trainers
                    .get(&worker.trainer)
                    .is_some_and(|known| known.state != TrainerState::Closing)
            {
                if now_s >= worker.since_s + LEAVE_AGAIN_S {
                    worker.since_s = now_s;
                    self.actions.push(Action::Leave {
                        trainer: worker.trainer,
                        node: *id,
                        reason: "it was told to leave and is still there".to_owned(),
                    });
                }
                let again_s = worker.since_s + LEAVE_AGAIN_S;
                self.wake_at_s = Some(self.wake_at_s.map_or(again_s, |s| s.min(again_s)));
            }
        }
    }
}
