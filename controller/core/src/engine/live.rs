//! Live trainers: their programs handle membership themselves. A new generation follows the
//! old one without a stop: newcomers start, leavers stop with their grace, and whoever stays
//! is told the new members and goes on. Where nobody would stay, or fewer than the trainer's
//! minimum, all stop and start as everybody else's ranks do.

use std::collections::{BTreeMap, BTreeSet};

use super::roster::Roster;
use super::{Action, Engine};
use crate::node::NodeId;
use crate::pool::Phase;
use crate::trainer::{Run, RunState, TrainerId};

/// The members of a live generation, by what becomes of them.
struct Members {
    /// In rank order.
    staying: Vec<NodeId>,
    /// Told to leave.
    leaving: Vec<NodeId>,
    /// Whether ranks of others are gone.
    has_lost: bool,
}

impl Engine {
    pub(super) fn is_live(&self, trainer: TrainerId) -> bool {
        let known = self.trainers.get(&trainer);
        known.is_some_and(|known| known.is_live)
    }

    /// Lets the next generation follow a running one when its membership has to change.
    pub(super) fn adjust_live(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        let Some(known) = self.trainers.get(&trainer) else {
            return;
        };
        let (min_nodes, restart_at_s) = (known.info.min_nodes, known.restart_at_s);
        let Some(run) = &known.run else {
            return;
        };
        let is_running = run.state == RunState::Running;
        let Some(members) = self.members(trainer, run, roster) else {
            // Some have not said yet whether they run.
            return;
        };
        let has_changed = members.has_lost || !members.leaving.is_empty();
        let newcomers = match roster.ready.as_slice() {
            ready if ready.is_empty() || now_s >= restart_at_s => ready,
            _ => {
                self.wake_at(restart_at_s);
                &[]
            }
        };
        let is_due = has_changed || is_running && self.may_join(now_s, newcomers, roster);
        if !is_due {
            return;
        }
        let is_enough = members.staying.len() + newcomers.len() >= min_nodes as usize;
        if members.staying.is_empty() || !is_enough {
            return self.adjust_running(now_s, trainer, roster);
        }
        self.let_go(now_s, trainer, &members);
        self.succeed(now_s, trainer, members.staying, newcomers);
    }

    /// `None` while it is not known of all of them whether they run.
    fn members(&self, trainer: TrainerId, run: &Run, roster: &Roster) -> Option<Members> {
        let mut members = Members {
            staying: Vec::new(),
            leaving: Vec::new(),
            has_lost: false,
        };
        let is_adopting = matches!(run.state, RunState::Adopting(_));
        for node in &run.members {
            let worker = self
                .pool
                .get(*node)
                .and_then(|pool_node| pool_node.worker_of(trainer));
            match worker.map(|worker| worker.phase) {
                Some(Phase::Member) if roster.is_assigned(*node) => {
                    members.staying.push(*node);
                }
                Some(Phase::Member) => members.leaving.push(*node),
                Some(Phase::Found) if is_adopting => return None,
                _ => members.has_lost = true,
            }
        }
        Some(members)
    }

    /// Whether it is time for the newcomers: all are ready, or the first has waited long
    /// enough for the others.
    fn may_join(&mut self, now_s: f64, newcomers: &[NodeId], roster: &Roster) -> bool {
        let Some(since_s) = roster.ready_since_s.filter(|_| !newcomers.is_empty()) else {
            return false;
        };
        let deadline_s = since_s + self.config.worker_start_timeout_s;
        if roster.pending == 0 || now_s >= deadline_s {
            return true;
        }
        self.wake_at(deadline_s);
        false
    }

    /// Stops the leavers' ranks.
    fn let_go(&mut self, now_s: f64, trainer: TrainerId, members: &Members) {
        self.learning.stopping(now_s, trainer, !members.has_lost);
        let Some(run) = self.run(trainer) else {
            return;
        };
        if !members.leaving.is_empty() {
            self.actions.push(Action::Stop {
                trainer,
                generation: run.number,
                nodes: members.leaving.clone(),
                grace_s: self.config.grace_s,
            });
        }
        for node in &members.leaving {
            self.set_phase(now_s, *node, trainer, Phase::Stale { may_save: true });
        }
    }

    /// The next generation: who stays keeps its place in the order of ranks.
    fn succeed(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        staying: Vec<NodeId>,
        newcomers: &[NodeId],
    ) {
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        let mut bereaved = known.run.take().map_or(BTreeMap::new(), |run| run.bereaved);
        bereaved.retain(|node, until_s| now_s < *until_s && staying.contains(node));
        let mut members = staying;
        members.extend(newcomers);
        known.generation = known.generation.saturating_add(1);
        known.starts += 1;
        known.blocked_reason = None;
        known.restart_began = Some((now_s, known.samples));
        known.run = Some(Run {
            number: known.generation,
            members,
            state: RunState::Starting(BTreeSet::new()),
            since_s: now_s,
            lost_member: false,
            bereaved,
        });
        for node in newcomers {
            self.set_phase(now_s, *node, trainer, Phase::Member);
        }
        self.tell_again(trainer);
    }

    /// Tells all members of a generation who its members are: newcomers start their ranks,
    /// the others go on, and those that know already say so again. Where a member has gone
    /// the next generation will tell.
    pub(super) fn tell_again(&mut self, trainer: TrainerId) {
        let Some(run) = self.run(trainer) else {
            return;
        };
        let is_there = |node: &NodeId| {
            let node = self.pool.get(*node);
            node.is_some_and(|it| it.keeps_worker_of(trainer))
        };
        let is_whole = run.members.iter().all(is_there);
        if is_whole && !matches!(run.state, RunState::Stopping { .. }) {
            let (generation, members) = (run.number, run.members.clone());
            self.actions.push(Action::Start {
                trainer,
                generation,
                members,
            });
        }
    }

    /// The ranks of a member have ended: it may come again as a newcomer.
    pub(super) fn part_with(&mut self, now_s: f64, trainer: TrainerId, node: NodeId) {
        self.set_phase(now_s, node, trainer, Phase::Ready);
        let own_end_s = self.run_mut(trainer).and_then(|run| {
            run.lost_member = true;
            run.bereaved.remove(&node)
        });
        // An end that a loss explains is no loss that explains others.
        if own_end_s.is_none_or(|until_s| now_s >= until_s) {
            self.bereave(now_s, trainer, node);
        }
    }

    /// The other members of a live generation have lost a peer: their ends soon after are
    /// put down to that.
    pub(super) fn bereave(&mut self, now_s: f64, trainer: TrainerId, lost: NodeId) {
        let until_s = now_s + self.config.collateral_window_s;
        if self.is_live(trainer)
            && let Some(run) = self.run_mut(trainer)
        {
            let others = run.members.iter().filter(|node| **node != lost);
            run.bereaved.extend(others.map(|node| (*node, until_s)));
        }
    }

    /// While a generation is being found out, an agent may know a newer one than those
    /// before it.
    pub(super) fn adopt_newer(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        generation: u64,
        members: Vec<NodeId>,
    ) {
        let Some(run) = self.run_mut(trainer) else {
            return;
        };
        let RunState::Adopting(confirmed) = &mut run.state else {
            return;
        };
        if generation <= run.number {
            return;
        }
        let (known, left_out): (BTreeSet<NodeId>, BTreeSet<NodeId>) =
            confirmed.iter().partition(|node| members.contains(*node));
        *confirmed = known;
        let older = std::mem::replace(&mut run.number, generation);
        run.members = members;
        self.tell_again(trainer);
        for node in left_out {
            self.kill_stale(now_s, trainer, node, older);
        }
    }
}
