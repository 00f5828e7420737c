//! What the controller says and how the session answers.

use std::time::Duration;

use bftrainer::wire::{FromAgent, Join, Outcome, Start, ToAgent};
use tokio::time::Instant;

use super::departure::{Cause, Departure};
use super::generation::Generation;
use super::keeper::PREEMPTED;
use super::link::Event;
use super::log::say;
use super::ports::free_port;
use super::session::{Session, Trainer};
use super::starting::Preparing;
use super::times;

/// As many reasons for having no controller are told, each once, until it is joined.
const MOST_REASONS: usize = 8;

impl Session {
    /// Takes what happened on the link; the exit code when the trainer has ended.
    pub(super) async fn on_event(&mut self, event: Event) -> Option<u8> {
        match event {
            Event::Connected => {
                let join = self.describe().await;
                self.link.join(join);
            }
            Event::Down(reason) => {
                if self.joined {
                    self.joined = false;
                    self.alone_since = Instant::now();
                }
                if !self.down_reasons.contains(&reason) && self.down_reasons.len() < MOST_REASONS {
                    say!("no controller: {reason}");
                    self.down_reasons.push(reason);
                }
            }
            Event::Message(message) => return self.on_message(message).await,
        }
        None
    }

    /// The state, for a Join.
    async fn describe(&self) -> Join {
        let folder = self.folder.clone();
        let contents = tokio::task::spawn_blocking(move || folder.read())
            .await
            .unwrap_or_default();
        let recorded = contents
            .verdict
            .filter(|verdict| Some(verdict.submit_time_s) == contents.submit_time_s);
        // Ranks that are about to start count as running: they will be, or be told of.
        let running = self.generation.as_ref().map(|generation| &generation.start);
        let start = running.or(Preparing::start(&self.preparing));
        let members = start
            .map(|start| start.members.as_slice())
            .unwrap_or_default();
        Join {
            array_job_id: self.identity.array_job_id,
            array_task_id: self.identity.array_task_id,
            job_id: self.identity.job_id,
            restart_count: self.identity.restart_count,
            node: self.identity.node.clone(),
            free_port: free_port(),
            generation: start.map(|start| start.generation),
            members: members.iter().map(|member| member.node.clone()).collect(),
            folder_submit_time_s: contents.submit_time_s,
            newest_generation: contents.generation.max(self.newest_seen),
            verdict: self.verdict.or(recorded).map(|verdict| verdict.exit_code),
            live: self.work.live.is_some(),
        }
    }

    async fn on_message(&mut self, message: ToAgent) -> Option<u8> {
        match message {
            ToAgent::Heartbeat => {}
            ToAgent::Joined {
                min_nodes,
                max_nodes,
                submit_time_s,
                heartbeat_s,
                grace_s,
                end_time_s,
                time_s,
            } => {
                if let Some(ahead_s) = time_s.and_then(|time_s| self.clock.follow(time_s)) {
                    say!("the controller's clock is {ahead_s:+.0} s ahead: it is gone by");
                }
                self.trainer = Some(Trainer {
                    min_nodes,
                    max_nodes,
                    submit_time_s,
                    grace_s,
                    heartbeat: times::seconds(heartbeat_s).max(Duration::from_millis(20)),
                });
                self.end_time_s = end_time_s;
                self.on_joined();
            }
            ToAgent::Start(start) => self.on_start(start),
            ToAgent::Stop {
                generation,
                grace_s,
            } => self.on_stop(generation, times::seconds(grace_s)),
            ToAgent::Until { end_time_s } => self.end_time_s = end_time_s,
            ToAgent::Close { exit_code } => {
                say!("the trainer has ended with {exit_code}");
                if let Some(generation) = &mut self.generation {
                    generation.kill(Outcome::Stopped);
                }
                let known = self.verdict.map(|verdict| verdict.exit_code);
                if known != Some(exit_code) {
                    self.record_verdict(exit_code).await;
                }
                return Some(u8::try_from(exit_code).unwrap_or(1));
            }
            ToAgent::Ended => {
                say!("Slurm is ending this task");
                return Some(PREEMPTED);
            }
            // The reason follows as the connection's end.
            ToAgent::Refused { .. } => {
                if self.joined {
                    self.joined = false;
                    self.alone_since = Instant::now();
                }
                self.pending = None;
                Preparing::cancel(&mut self.preparing);
                let grace = self.grace();
                if let Some(generation) = &mut self.generation {
                    generation.stop(grace, Instant::now());
                }
            }
        }
        None
    }

    fn on_joined(&mut self) {
        say!(
            "joined trainer {} on {}",
            self.identity.array_job_id,
            self.identity.node
        );
        self.joined = true;
        self.down_reasons.clear();
        Departure::cancel(&mut self.departure, Cause::Alone);
        if self.generation.is_none()
            && let Some((generation, outcome)) = self.last_stopped.clone()
        {
            self.report_stopped(generation, outcome);
        }
    }

    fn on_start(&mut self, start: Start) {
        let number = start.generation;
        let here = start.members.get(start.node_rank as usize);
        if here.is_none_or(|member| member.node != self.identity.node) {
            let reason = format!(
                "node rank {} is not {}",
                start.node_rank, self.identity.node
            );
            let exit_code = i32::from(super::run::USAGE);
            return self.report_stopped(number, Outcome::Failed { exit_code, reason });
        }
        if self.departure.is_some() {
            return self.report_stopped(number, Outcome::Stopped);
        }
        if self.current().contains(&Some(number)) {
            if self.generation.as_ref().is_some_and(Generation::is_running) {
                self.link.send(FromAgent::Started { generation: number });
            }
            return;
        }
        if number <= self.newest_seen {
            let newest_generation = self.newest_seen;
            return self.report_stopped(number, Outcome::Fenced { newest_generation });
        }
        if self.work.live.is_some() && self.generation.is_some() {
            return self.update(start);
        }
        if let Some(generation) = &mut self.generation {
            generation.kill(Outcome::Stopped);
        }
        Preparing::cancel(&mut self.preparing);
        self.pending = Some(start);
    }

    fn on_stop(&mut self, number: u64, grace: Duration) {
        // It must not start here any more.
        self.newest_seen = self.newest_seen.max(number);
        let is_live = self.work.live.is_some();
        // Live ranks need not have heard of each generation in which they went on.
        let is_meant = |other: u64| other == number || is_live && other < number;
        self.pending.take_if(|start| is_meant(start.generation));
        if let Some(generation) = &mut self.generation
            && is_meant(generation.start.generation)
        {
            generation.start.generation = number;
            return generation.stop(grace, Instant::now());
        }
        if Preparing::number(&self.preparing).is_some_and(is_meant) {
            return Preparing::cancel_as(&mut self.preparing, number);
        }
        let outcome = match &self.last_stopped {
            Some((last, outcome)) if *last == number => outcome.clone(),
            _ => Outcome::Stopped,
        };
        self.report_stopped(number, outcome);
    }
}
