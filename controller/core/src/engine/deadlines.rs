//! What is done about workers and generations of which nothing is heard.

use super::{Engine, LossReason};
use crate::pool::{Phase, Worker};
use crate::trainer::{Run, RunState, TrainerState};

/// An agent that was told to stop answers within the grace and this, seconds.
pub(super) const STOP_ANSWER_S: f64 = 10.0;

/// A worker that was told to leave and is still there is told again, seconds.
const LEAVE_AGAIN_S: f64 = 60.0;

impl Engine {
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
    pub(super) fn run_deadline_s(&self, run: &Run) -> Option<f64> {
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
            Phase::Stale { may_save: true } => self.config.grace_s + STOP_ANSWER_S,
            Phase::Stale { may_save: false } => STOP_ANSWER_S,
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
