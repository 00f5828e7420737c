//! From assigned nodes to running ranks: placements, and one generation after
//! the other. The old generation trains on until the newcomers are ready.

use std::collections::{BTreeMap, BTreeSet};

use super::{Action, Engine, LossReason};
use crate::node::NodeId;
use crate::pool::{Phase, Worker};
use crate::trainer::{Run, RunState, TrainerId, TrainerState};

/// An agent that was told to stop answers within the grace and this, seconds.
const STOP_ANSWER_S: f64 = 10.0;

/// A worker that was told to leave and is still there is told again, seconds.
const LEAVE_AGAIN_S: f64 = 60.0;

/// A trainer's nodes, as far as they matter to its membership; all lists are sorted.
struct Roster {
    /// Assigned, or with a worker of the trainer's.
    nodes: Vec<NodeId>,
    /// Assigned, with an agent that is connected and runs no ranks.
    ready: Vec<NodeId>,
    /// How many are assigned without such an agent or a member.
    pending: usize,
    /// Assigned or not, where ranks of the trainer's run or may run.
    running: Vec<NodeId>,
    /// Assigned.
    assigned: Vec<NodeId>,
    /// The time at which the longest-waiting ready newcomer became ready.
    ready_since_s: Option<f64>,
    /// Until when workers that were found may run ranks of which their agents, on
    /// their way back, will tell, epoch seconds.
    adopts_until_s: Option<f64>,
    /// Whether ranks of an older generation are being killed.
    has_stale: bool,
}

impl Roster {
    fn may_run_on(&self, node: NodeId) -> bool {
        self.running.binary_search(&node).is_ok()
    }

    fn is_assigned(&self, node: NodeId) -> bool {
        self.assigned.binary_search(&node).is_ok()
    }
}

impl Engine {
    /// Brings every trainer a step nearer to what was decided.
    pub(super) fn drive(&mut self, now_s: f64) {
        for (trainer, nodes) in self.restless() {
            let roster = self.roster(now_s, trainer, nodes);
            self.drive_generation(now_s, trainer, &roster);
            self.dismiss(now_s, trainer, &roster);
            self.place(now_s, trainer, &roster.nodes);
        }
    }

    /// The trainers that are not as they shall be, each with its nodes: for all others
    /// there is nothing to do.
    fn restless(&self) -> BTreeMap<TrainerId, Vec<NodeId>> {
        let unfinished = self.trainers.values().filter(|trainer| {
            let run = trainer.run.as_ref();
            let runs = run.is_some_and(|run| run.state == RunState::Running && !run.lost_member);
            trainer.state == TrainerState::Admitted && !runs
        });
        let unfinished = unfinished.map(|trainer| (trainer.info.id, Vec::new()));
        let mut restless: BTreeMap<TrainerId, Vec<NodeId>> = unfinished.collect();
        for (id, node) in self.pool.restless() {
            if let Some(trainer) = node.assigned {
                restless.entry(trainer).or_default();
            }
            if let Some(trainer) = node.stray() {
                restless.entry(trainer).or_default().push(id);
            }
        }
        restless.retain(|trainer, nodes| {
            nodes.extend(self.pool.assigned_to(*trainer));
            nodes.sort_unstable();
            let known = self.trainers.get(trainer);
            known.is_some_and(|known| known.state != TrainerState::Closing)
        });
        restless
    }

    fn roster(&self, now_s: f64, trainer: TrainerId, nodes: Vec<NodeId>) -> Roster {
        let mut roster = Roster {
            nodes: Vec::new(),
            ready: Vec::new(),
            pending: 0,
            running: Vec::with_capacity(nodes.len()),
            assigned: Vec::with_capacity(nodes.len()),
            ready_since_s: None,
            adopts_until_s: None,
            has_stale: false,
        };
        for id in &nodes {
            let node = &self.pool[*id];
            let worker = node.worker_of(trainer);
            if node.may_run(trainer) {
                roster.running.push(*id);
            }
            match worker.map(|worker| (worker.phase, worker.since_s)) {
                Some((Phase::Stale, _)) => roster.has_stale = true,
                Some((Phase::Found, since_s)) => {
                    let until_s = since_s + self.config.adopt_timeout_s;
                    if now_s < until_s {
                        let latest_s = roster.adopts_until_s.map_or(until_s, |s| s.max(until_s));
                        roster.adopts_until_s = Some(latest_s);
                    }
                }
                _ => {}
            }
            if node.assigned != Some(trainer) {
                continue;
            }
            roster.assigned.push(*id);
            match worker.map(|worker| (worker.phase, worker.since_s)) {
                Some((Phase::Ready, since_s)) => {
                    roster.ready.push(*id);
                    let first_s = roster.ready_since_s.map_or(since_s, |s| s.min(since_s));
                    roster.ready_since_s = Some(first_s);
                }
                Some((Phase::Member, _)) => {}
                _ => roster.pending += 1,
            }
        }
        roster.nodes = nodes;
        roster
    }

    fn drive_generation(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        let run = self.run(trainer);
        match run.map(|run| &run.state) {
            None => self.start_generation(now_s, trainer, roster),
            Some(RunState::Stopping { .. }) => self.await_stop(now_s, trainer, roster),
            Some(RunState::Adopting(_))
                if run
                    .is_some_and(|run| run.members.iter().all(|node| roster.may_run_on(*node))) => {
            }
            Some(_) => self.adjust_running(now_s, trainer, roster),
        }
        let run = self.run(trainer);
        if let Some(deadline_s) = run.and_then(|run| self.run_deadline_s(run)) {
            self.wake_at(deadline_s);
        }
    }

    fn run(&self, trainer: TrainerId) -> Option<&Run> {
        self.trainers.get(&trainer)?.run.as_ref()
    }

    /// Stops a running generation when its membership has to change.
    fn adjust_running(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        let Some((run, is_running)) = self.trainers.get(&trainer).and_then(|known| {
            let run = known.run.as_ref()?;
            Some((run, matches!(run.state, RunState::Running)))
        }) else {
            return;
        };
        let lost = run.members.iter().any(|node| !roster.may_run_on(*node));
        let leaving = run.members.iter().any(|node| !roster.is_assigned(*node));
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
        waiting.retain(|node| roster.may_run_on(*node));
        if waiting.is_empty() {
            let began_s = *deadline_s - *grace_s - STOP_ANSWER_S;
            if *grace_s > 0.0 && !run.lost_member {
                self.measure_save(trainer, now_s - began_s);
            }
            self.end_generation(now_s, trainer);
            let roster = self.roster(now_s, trainer, roster.nodes.clone());
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

    fn measure_save(&mut self, trainer: TrainerId, save_s: f64) {
        let lead_s = self.vacate_lead_s(trainer);
        if let Some(known) = self.trainers.get_mut(&trainer) {
            let usual_s = known.save_s.map_or(save_s, |old_s| (old_s + save_s) / 2.0);
            known.save_s = Some(usual_s.max(save_s));
        }
        self.decision_due |= self.vacate_lead_s(trainer) != lead_s;
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
        self.learning.stopping(now_s, trainer, grace_s > 0.0);
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
                Some(*node) != answered && pool.get(*node).is_some_and(|node| node.may_run(trainer))
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
            self.pool.update(node, |it| {
                if let Some(worker) = it.worker_of_mut(trainer)
                    && worker.phase == Phase::Member
                {
                    worker.phase = Phase::Ready;
                    worker.since_s = now_s;
                }
            });
        }
    }

    fn start_generation(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        if let Some(until_s) = roster.adopts_until_s {
            self.wake_at(until_s);
            return;
        }
        if roster.has_stale {
            return;
        }
        let assemble_s = self.config.assemble_s;
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        // Time in which nodes are awaited is no part of what a restart costs.
        let restart_began = known.restart_began.take();
        if roster.ready.is_empty() {
            known.assembling_since_s = None;
            return;
        }
        if now_s < known.restart_at_s {
            let time_s = known.restart_at_s;
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
        known.generation = known.generation.saturating_add(1);
        known.assembling_since_s = None;
        known.blocked_reason = None;
        known.starts += 1;
        known.restart_began = restart_began.or(Some((now_s, known.samples)));
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
    fn dismiss(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        if let Some(until_s) = roster.adopts_until_s {
            self.wake_at(until_s);
        }
        let nodes = roster.nodes.iter();
        for id in nodes.filter(|id| !roster.is_assigned(**id)) {
            let phase = self.pool[*id].worker_of(trainer).map(|worker| worker.phase);
            let may_confirm = || {
                let run = self.run(trainer);
                run.is_some_and(|run| run.members.contains(id))
            };
            let is_dismissed = match phase {
                Some(Phase::Placed | Phase::Ready) => true,
                Some(Phase::Found) => roster.adopts_until_s.is_none() && !may_confirm(),
                _ => false,
            };
            if is_dismissed {
                self.set_phase(now_s, *id, trainer, Phase::Leaving);
                let reason = "the node goes to others or is expected back";
                self.send_home(trainer, *id, reason);
            }
        }
    }

    /// Places workers on assigned nodes; a trainer's first one alone.
    fn place(&mut self, now_s: f64, trainer: TrainerId, nodes: &[NodeId]) {
        let Some(known) = self.trainers.get(&trainer) else {
            return;
        };
        let time_s = known.resume_at_s.max(known.restart_at_s);
        if now_s < time_s {
            self.wake_at(time_s);
            return;
        }
        if self.pool_in_doubt {
            return;
        }
        let is_awaited = |id: &NodeId| {
            let worker = self.pool[*id].worker_of(trainer);
            worker.is_some_and(|worker| matches!(worker.phase, Phase::Placed | Phase::Found))
        };
        let most = match known.greeted {
            true => usize::MAX,
            false if nodes.iter().any(is_awaited) => 0,
            false => 1,
        };
        let stay_s = known
            .info
            .max_stay_s
            .unwrap_or(f64::INFINITY)
            .min(self.config.lease_s);
        let mut vacant: Vec<(NodeId, f64)> = nodes
            .iter()
            .map(|id| (*id, &self.pool[*id]))
            .filter(|(_, node)| node.assigned == Some(trainer) && node.worker.is_none())
            .map(|(id, node)| (id, self.room_s(node, now_s).min(stay_s)))
            .collect();
        // The first one goes where it may stay longest.
        vacant.sort_by(|(_, a_s), (_, b_s)| b_s.total_cmp(a_s));
        vacant.truncate(most);
        for (node, limit_s) in vacant {
            let worker = Worker {
                trainer,
                phase: Phase::Placed,
                since_s: now_s,
            };
            self.pool.update(node, |it| it.worker = Some(worker));
            self.actions.push(Action::Place {
                trainer,
                node,
                limit_s,
            });
        }
    }

    pub(super) fn set_phase(&mut self, now_s: f64, node: NodeId, trainer: TrainerId, phase: Phase) {
        self.pool.update(node, |it| {
            if let Some(worker) = it.worker_of_mut(trainer) {
                worker.phase = phase;
                worker.since_s = now_s;
            }
        });
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
        let worker = self.pool.get(node).and_then(|node| node.worker_of(trainer));
        let Some(phase) = worker.map(|worker| worker.phase) else {
            return self.send_home(trainer, node, "it was given up or never wanted");
        };
        if phase == Phase::Leaving {
            return self.send_home(trainer, node, "it was told to leave and is still there");
        }
        known.greeted = true;
        known.generation = known.generation.max(newest_generation);
        match running {
            Some((generation, members)) => {
                known.generation = known.generation.max(generation);
                self.reported_running(now_s, trainer, node, generation, members);
            }
            None => match phase {
                Phase::Found
                    if self
                        .run(trainer)
                        .is_some_and(|run| run.members.contains(&node)) =>
                {
                    self.set_phase(now_s, node, trainer, Phase::Member);
                    self.member_without_ranks(now_s, trainer, node);
                }
                Phase::Found if newest_generation > 0 => {
                    // It may be about to start ranks: it answers when it is told to stop.
                    self.kill_stale(now_s, trainer, node, newest_generation);
                }
                Phase::Placed | Phase::Found | Phase::Stale => {
                    self.set_phase(now_s, node, trainer, Phase::Ready);
                }
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
        // What an agent says need not make sense.
        let distinct: BTreeSet<&NodeId> = members.iter().collect();
        let is_sound = members.contains(&node) && distinct.len() == members.len();
        if known.run.is_none() && newest && is_sound {
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
            return self.kill_stale(now_s, trainer, node, generation);
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
            RunState::Stopping {
                waiting,
                deadline_s,
                grace_s,
            } => {
                waiting.insert(node);
                let left_s = (*deadline_s - STOP_ANSWER_S - now_s).clamp(0.0, *grace_s);
                self.actions.push(Action::Stop {
                    trainer,
                    generation,
                    nodes: vec![node],
                    grace_s: left_s,
                });
            }
        }
        self.set_phase(now_s, node, trainer, Phase::Member);
        self.measure(now_s, trainer);
    }

    /// The worker runs, or is about to run, ranks of a generation that is not the
    /// trainer's current one.
    fn kill_stale(&mut self, now_s: f64, trainer: TrainerId, node: NodeId, generation: u64) {
        self.set_phase(now_s, node, trainer, Phase::Stale);
        self.actions.push(Action::Stop {
            trainer,
            generation,
            nodes: vec![node],
            grace_s: 0.0,
        });
    }

    /// A member came back without ranks: they ended, it never heard of the start,
    /// or it is about to start them; it answers when it is told to stop.
    fn member_without_ranks(&mut self, now_s: f64, trainer: TrainerId, node: NodeId) {
        let Some(run) = self
            .trainers
            .get_mut(&trainer)
            .and_then(|known| known.run.as_mut())
        else {
            return;
        };
        if let RunState::Stopping { waiting, .. } = &run.state {
            if waiting.contains(&node) {
                self.actions.push(Action::Stop {
                    trainer,
                    generation: run.number,
                    nodes: vec![node],
                    grace_s: 0.0,
                });
            }
        } else {
            run.lost_member = true;
            self.stop_run(now_s, trainer, 0.0, None);
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
        self.measure(now_s, trainer);
    }

    /// Deadlines of workers and generations.
    pub(super) fn check_deadlines(&mut self, now_s: f64) {
        let (mut silent, mut still_there) = (Vec::new(), Vec::new());
        for (id, node) in self.pool.restless() {
            if let Some(worker) = &node.worker
                && self
                    .worker_deadline_s(worker)
                    .is_some_and(|deadline_s| now_s >= deadline_s)
            {
                match worker.phase {
                    Phase::Leaving => still_there.push((worker.trainer, id)),
                    _ => silent.push((worker.trainer, id)),
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
                RunState::Adopting(heard) | RunState::Starting(heard)
                    if self
                        .run_deadline_s(run)
                        .is_some_and(|deadline_s| now_s >= deadline_s) =>
                {
                    silent.extend(
                        run.members
                            .iter()
                            .filter(|node| !heard.contains(node))
                            .map(|node| (trainer.info.id, *node)),
                    );
                }
                _ => {}
            }
        }
        for (trainer, node) in silent {
            self.worker_lost(now_s, trainer, node, LossReason::Silent);
        }
        for (trainer, node) in still_there {
            // A leave may have come to nothing: Slurm refuses it while a task starts.
            self.set_phase(now_s, node, trainer, Phase::Leaving);
            self.send_home(trainer, node, "it was told to leave and is still there");
        }
    }

    /// Until when all members of a generation must have been heard of.
    fn run_deadline_s(&self, run: &Run) -> Option<f64> {
        match run.state {
            RunState::Adopting(_) => Some(run.since_s + self.config.adopt_timeout_s),
            RunState::Starting(_) => Some(run.since_s + self.config.worker_start_timeout_s),
            RunState::Running | RunState::Stopping { .. } => None,
        }
    }

    /// When something has to be done about a worker of whom nothing is heard.
    fn worker_deadline_s(&self, worker: &Worker) -> Option<f64> {
        let is_closing = || {
            let known = self.trainers.get(&worker.trainer);
            known.is_none_or(|known| known.state == TrainerState::Closing)
        };
        let patience_s = match worker.phase {
            Phase::Placed | Phase::Found => self.config.worker_start_timeout_s,
            Phase::Leaving if !is_closing() => LEAVE_AGAIN_S,
            Phase::Stale => STOP_ANSWER_S,
            Phase::Leaving | Phase::Ready | Phase::Member => return None,
        };
        Some(worker.since_s + patience_s)
    }

    pub(super) fn wake_at_workers_deadlines(&mut self) {
        // Where all is as it shall be nothing is awaited.
        let nodes = self.pool.restless().map(|(_, node)| node);
        let workers = nodes.filter_map(|node| node.worker.as_ref());
        let first_s = workers
            .filter_map(|worker| self.worker_deadline_s(worker))
            .reduce(f64::min);
        if let Some(time_s) = first_s {
            self.wake_at(time_s);
        }
    }
}
