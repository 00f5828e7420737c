//! The programs' part of the world: progress, failures, the end, and what the
//! loss of a peer does to the others.

use bftrainer_core::engine::{Event, Outcome};
use bftrainer_core::node::NodeId;
use bftrainer_core::trainer::TrainerId;

use super::agents::RanksState;
use super::{PROGRESS_S, Program, Task, What, World};

impl World {
    /// Ranks whose peer is gone hang, or end with an error after a while.
    pub(super) fn bereave(&mut self, trainer: TrainerId, generation: u64) {
        let peers: Vec<(u64, u64)> = self
            .ranks_of(trainer)
            .filter(|(_, _, ranks)| {
                ranks.generation == generation && ranks.state == RanksState::Running
            })
            .map(|(id, _, ranks)| (id, ranks.serial))
            .collect();
        for (id, serial) in peers {
            if self.dice.chance(0.6) {
                self.plan_within(0.15, 6.0, What::Collateral(id, serial));
            }
        }
    }

    pub(super) fn collateral(&mut self, id: u64, serial: u64) {
        let is_current = |task: &Task| {
            let ranks = task.agent.ranks.as_ref();
            ranks.is_some_and(|ranks| ranks.serial == serial && ranks.state == RanksState::Running)
        };
        if self.tasks.get(&id).is_some_and(is_current) {
            let reason = "its peer is gone".to_owned();
            let exit_code = 1;
            self.end_ranks_within(id, 0.02, Outcome::Failed { exit_code, reason });
        }
    }

    /// A rank ends with an error of its own.
    pub(super) fn program_fails(&mut self, id: u64, exit_code: i32) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let (trainer, node) = (task.trainer, task.node);
        let Some(ranks) = &task.agent.ranks else {
            return;
        };
        if ranks.state != RanksState::Running {
            return;
        }
        let generation = ranks.generation;
        if let Some(program) = self.trainers.get_mut(&trainer) {
            program.failing.insert(generation);
        }
        self.trace(|| format!("T{trainer}'s program fails on {node:?}"));
        let outcome = match exit_code {
            143 => Outcome::Stopped,
            _ => Outcome::Failed {
                exit_code,
                reason: format!("local rank 0 exited {exit_code}"),
            },
        };
        self.end_ranks_within(id, 0.02, outcome);
        self.bereave(trainer, generation);
    }

    /// Rank 0 exits 0, and so do the others.
    pub(super) fn program_finishes(&mut self, trainer: TrainerId) {
        let Some((_, members)) = self.whole_generation(trainer) else {
            return;
        };
        if let Some(program) = self.trainers.get_mut(&trainer) {
            program.verdict = Some(0);
        }
        for node in members {
            if let Some(id) = self.ranks_on(trainer, node) {
                self.end_ranks_within(id, 1.0, Outcome::Exited);
            }
        }
    }

    fn ranks_on(&self, trainer: TrainerId, node: NodeId) -> Option<u64> {
        let mut ranks = self.ranks_of(trainer);
        ranks.find_map(|(id, task, _)| (task.node == node).then_some(id))
    }

    /// The newest generation and its members when the ranks of all of them run.
    pub(super) fn whole_generation(&self, trainer: TrainerId) -> Option<(u64, Vec<NodeId>)> {
        let newest = self.trainers.get(&trainer)?.folder_generation;
        let running = || {
            self.ranks_of(trainer).filter(|(_, _, ranks)| {
                ranks.generation == newest && ranks.state == RanksState::Running
            })
        };
        let members = running().next()?.2.members.clone();
        let is_whole = members
            .iter()
            .all(|node| running().any(|(_, task, _)| task.node == *node));
        is_whole.then_some((newest, members))
    }

    pub(super) fn make_progress(&mut self, trainer: TrainerId) {
        if !self.trainers.contains_key(&trainer) {
            return;
        }
        self.plan(PROGRESS_S, What::Progress(trainer));
        let Some((generation, members)) = self.whole_generation(trainer) else {
            return;
        };
        let saves = self.dice.chance(0.3);
        let Some(program) = self.trainers.get_mut(&trainer) else {
            return;
        };
        program.samples += 10 * members.len() as u64;
        if saves {
            program.checkpoint = program.samples;
        }
        let samples = program.samples;
        if let Some(master) = self.ranks_on(trainer, members[0])
            && self.progress
        {
            self.report(
                master,
                Event::Progress {
                    trainer,
                    generation,
                    samples,
                },
            );
        }
    }
}

impl Program {
    /// The engine hears that ranks of a generation have ended: a failure of the
    /// program's or its node's, or collateral of one.
    pub(super) fn heard_of_end(&mut self, now_s: f64, generation: u64) {
        // Live ranks that fail may belong to another generation by the time they have ended.
        let failed = self.failing.range(..=generation).next_back().copied();
        let failed = failed.filter(|number| self.is_live || *number == generation);
        if failed.is_some_and(|number| self.failing.remove(&number)) {
            if self.failures_s.is_empty() {
                self.failures_at_samples = self.heard_samples;
            }
            self.failures_s.push(now_s);
        }
    }

    /// A progress line has reached the engine. A failure that a loss explained may still
    /// count by what it does to the peers, within `window_s`.
    pub(super) fn heard(&mut self, now_s: f64, samples: u64, window_s: f64) {
        self.heard_samples = samples;
        if samples > self.failures_at_samples {
            self.failures_s.retain(|heard_s| now_s < heard_s + window_s);
            self.failures_at_samples = samples;
        }
    }
}
