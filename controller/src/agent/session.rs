//! The agent's loop: what the controller says, how ranks end, what time it is.
//!
//! All state is here and changes on one thread; whatever may block (file system,
//! munge, slurmctld) runs beside it, so that a signal is always heard at once.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bftrainer::wire::{FromAgent, Outcome, Start};
use tokio::signal::unix::SignalKind;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::control_folder::{ControlFolder, Verdict};
use super::departure::{self, Cause, Departure};
use super::generation::Generation;
use super::identity::Identity;
use super::keeper::Kept;
use super::link::Link;
use super::live::Live;
use super::log::say;
use super::ports::free_port;
use super::processes::{self, Reaped};
use super::progress::{Inbox, Relay};
use super::settings::Settings;
use super::signals::Signals;
use super::starting::Preparing;
use super::tee::Tee;
use super::times;
use crate::clock::SteadyClock;

/// Rank 0's output may take so long to be copied after its end.
const DRAIN_WITHIN: Duration = Duration::from_secs(2);

/// The loop looks at the clock at least so often: wall-clock limits may move.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Times that writing the verdict is tried, a second apart.
const VERDICT_TRIES: u32 = 5;

/// What the user asked to run.
#[derive(Clone, Debug)]
pub struct Work {
    /// COMMAND and its arguments.
    pub command: Vec<OsString>,
    /// Ranks that a node has room for.
    pub slots: u32,
    /// COMMAND deals out the ranks itself.
    pub per_node: bool,
    /// COMMAND goes on through changes of membership.
    pub live: Option<Live>,
    /// The user's folder for checkpoints, instead of ours.
    pub ckpt_dir: Option<PathBuf>,
}

/// What the controller said of the trainer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trainer {
    pub min_nodes: u32,
    pub max_nodes: u32,
    pub submit_time_s: i64,
    pub grace_s: f64,
    pub heartbeat: Duration,
}

/// The agent of one run of one task.
#[derive(Debug)]
pub struct Session {
    pub(super) identity: Identity,
    pub(super) work: Work,
    pub(super) folder: ControlFolder,
    pub(super) inbox: Option<Inbox>,
    pub(super) trainer: Option<Trainer>,
    pub(super) preparing: Option<Preparing>,
    pub(super) generation: Option<Generation>,
    pub(super) tee: Option<Tee>,
    pub(super) link: Link,
    /// The highest generation that was started or prepared here.
    pub(super) newest_seen: u64,
    /// To be started when the present one has ended.
    pub(super) pending: Option<Start>,
    pub(super) relay: Relay,
    pub(super) orphan_wait: Duration,
    pub(super) joined: bool,
    /// Why there was no controller, as told since the last time there was one.
    pub(super) down_reasons: Vec<String>,
    /// Since when it has been idle or without a controller, whichever is later.
    pub(super) alone_since: Instant,
    /// Goes by the controller's, once it is known.
    pub(super) clock: SteadyClock,
    pub(super) end_time_s: Option<i64>,
    /// How the last generation ended, told again after each Join.
    pub(super) last_stopped: Option<(u64, Outcome)>,
    pub(super) verdict: Option<Verdict>,
    pub(super) fence_at: Instant,
    pub(super) fence_read: Option<JoinHandle<u64>>,
    pub(super) departure: Option<Departure>,
}

impl Session {
    /// An agent with socket in folder `reports`; starts connecting at once.
    pub fn new(
        identity: Identity,
        settings: Settings,
        work: Work,
        reports: Option<&Path>,
    ) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Session {
            folder: ControlFolder::new(&identity.submit_dir, identity.array_job_id),
            identity,
            work,
            inbox: reports.map(Inbox::open).transpose()?,
            trainer: None,
            preparing: None,
            generation: None,
            tee: None,
            orphan_wait: settings.orphan_wait,
            link: Link::start(settings),
            newest_seen: 0,
            pending: None,
            relay: Relay::default(),
            joined: false,
            down_reasons: Vec::new(),
            alone_since: now,
            clock: SteadyClock::start(),
            end_time_s: None,
            last_stopped: None,
            verdict: None,
            fence_at: now,
            fence_read: None,
            departure: None,
        })
    }

    /// Runs to the end; the exit code.
    pub async fn run(mut self, kept: Kept) -> u8 {
        let signals = (|| io::Result::Ok((Signals::ending()?, Signals::others()?)))();
        let (mut ending, others) = match signals {
            Ok(signals) => signals,
            Err(error) => {
                say!("signals can't be handled: {error}");
                return 1;
            }
        };
        kept.unblock_signals();
        let code = tokio::select! {
            biased;
            _ = ending.next() => None,
            code = self.serve(others) => Some(code),
        };
        match code {
            Some(code) => code,
            None => self.leave(kept.is_orphan()).await,
        }
    }

    /// The loop; the exit code when the trainer or this task's time is over.
    async fn serve(&mut self, mut others: Signals) -> u8 {
        loop {
            let wake_at = self.wake_at();
            tokio::select! {
                event = self.link.event() => {
                    if let Some(code) = self.on_event(event).await {
                        return code;
                    }
                }
                signal = others.next() => self.on_signal(signal),
                datagram = next_datagram(&self.inbox) => self.on_datagram(&datagram),
                prepared = Preparing::done(&mut self.preparing) => self.on_prepared(prepared),
                newest = finished(&mut self.fence_read) => self.on_fence(newest),
                answer = Departure::answer(&mut self.departure) => self.on_requeued(answer),
                () = sleep_until(wake_at) => {}
            }
            if let Some(code) = self.advance().await {
                return code;
            }
        }
    }

    /// What is due now, whatever woke the loop.
    async fn advance(&mut self) -> Option<u8> {
        self.reap();
        let now = Instant::now();
        if let Some(generation) = &mut self.generation {
            generation.advance(now);
            self.reap();
        }
        self.end_generation(now).await;
        if let Some(progress) = self.relay.due(now) {
            self.link.send(FromAgent::Progress(progress));
        }
        if (self.is_idle() || self.may_update())
            && let Some(start) = self.pending.take()
        {
            self.prepare(start);
        }
        if self.generation.is_some() && self.fence_read.is_none() && now >= self.fence_at {
            let folder = self.folder.clone();
            let live_on = self.work.live.map(|_| self.identity.node.clone());
            self.fence_read = Some(tokio::task::spawn_blocking(move || match live_on {
                Some(node) => folder.generation_without(&node),
                None => folder.generation(),
            }));
            self.fence_at = now + self.heartbeat();
        }
        self.depart_if_due(now);
        departure::advance(self, now)
    }

    /// Hands each ended child's status to the generation.
    fn reap(&mut self) {
        loop {
            match processes::reap() {
                Reaped::Child(pid, status) => {
                    if let Some(generation) = &mut self.generation {
                        generation.on_exit(pid, status, Instant::now());
                    }
                }
                Reaped::NoneEnded => return,
                Reaped::NoChildren => {
                    if let Some(generation) = &mut self.generation {
                        generation.on_no_children();
                    }
                    return;
                }
            }
        }
    }

    /// When the generation's last process is gone: its last words, its verdict,
    /// and the report.
    async fn end_generation(&mut self, now: Instant) {
        let Some((outcome, start)) = self
            .generation
            .as_ref()
            .and_then(|generation| Some((generation.end(now)?, generation.start.clone())))
        else {
            return;
        };
        while let Some(datagram) = self.inbox.as_ref().and_then(Inbox::take) {
            self.on_datagram(&datagram);
        }
        self.generation = None;
        self.forget_update(start.generation);
        self.fence_read = None;
        if let Some(progress) = self.relay.rest() {
            self.link.send(FromAgent::Progress(progress));
        }
        if let Some(tee) = self.tee.take() {
            tee.drained(DRAIN_WITHIN).await;
        }
        let mut outcome = outcome;
        if outcome == Outcome::Exited && start.node_rank == 0 {
            // A node that was cut off does not end its successors' trainer.
            let folder = self.folder.clone();
            let read = tokio::task::spawn_blocking(move || folder.generation()).await;
            match read {
                Ok(newest_generation) if newest_generation > start.generation => {
                    outcome = Outcome::Fenced { newest_generation };
                }
                _ => self.record_verdict(0).await,
            }
        }
        say!("generation {}: {}", start.generation, in_words(&outcome));
        self.alone_since = Instant::now();
        self.report_stopped(start.generation, outcome);
    }

    /// Tells the controller that no rank of `generation` runs, now and after the
    /// next Join.
    pub(super) fn report_stopped(&mut self, generation: u64, outcome: Outcome) {
        self.last_stopped = Some((generation, outcome.clone()));
        self.link.send(FromAgent::Stopped {
            generation,
            outcome,
            free_port: free_port(),
        });
    }

    /// Writes `finished`, so that the array's other tasks end without training.
    pub(super) async fn record_verdict(&mut self, exit_code: i32) {
        let Some(trainer) = self.trainer else {
            return;
        };
        let verdict = Verdict {
            exit_code,
            submit_time_s: trainer.submit_time_s,
        };
        self.verdict = Some(verdict);
        for turn in 1..=VERDICT_TRIES {
            let folder = self.folder.clone();
            let write = move || folder.write_finished(verdict).map_err(|e| e.to_string());
            match tokio::task::spawn_blocking(write).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => say!("the verdict can't be recorded: {error}"),
                Err(error) => say!("the verdict can't be recorded: {error}"),
            }
            if turn < VERDICT_TRIES {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    fn on_signal(&self, signal: SignalKind) {
        if signal != SignalKind::child()
            && let Some(generation) = &self.generation
        {
            generation.signal(signal.as_raw_value());
        }
    }

    fn on_datagram(&mut self, datagram: &[u8]) {
        if let Some(generation) = &self.generation
            && generation.start.node_rank == 0
        {
            let is_live = self.work.live.is_some();
            self.relay
                .take(datagram, generation.start.generation, is_live);
        }
    }

    fn on_fence(&mut self, newest_generation: u64) {
        if let Some(generation) = &mut self.generation
            && newest_generation > generation.start.generation
        {
            say!("generation {newest_generation} runs elsewhere: stopping at once");
            generation.kill(Outcome::Fenced { newest_generation });
        }
    }

    /// Begins to leave when Slurm's limit comes near, or after too long without
    /// controller and ranks.
    fn depart_if_due(&mut self, now: Instant) {
        let now_s = self.clock.now_s();
        if let Some(end_time_s) = self.end_time_s {
            let (end_s, grace) = (end_time_s as f64, self.grace());
            let leave_s = departure::leave_at_s(self.clock.began_s(), end_s, grace.as_secs_f64());
            if now_s < leave_s {
                Departure::cancel(&mut self.departure, Cause::LimitNear);
            } else if self.departure.is_none() {
                say!("Slurm's limit is {:.0} s away: leaving", end_s - now_s);
                self.begin_departure(Cause::LimitNear, now);
                let left = times::seconds(end_s - now_s - departure::KILL_BEFORE_END_S);
                if let Some(generation) = &mut self.generation {
                    generation.stop(grace.min(left), now);
                }
            }
        }
        if self.departure.is_none() && !self.joined && self.is_idle() && now >= self.orphaned_at() {
            let waited_s = self.orphan_wait.as_secs_f64();
            say!("no controller for {waited_s:.0} s: having this task requeued and held");
            self.begin_departure(Cause::Alone, now);
        }
    }

    fn begin_departure(&mut self, cause: Cause, now: Instant) {
        self.link.send(FromAgent::Leaving {
            reason: cause.to_string(),
            preempted: false,
        });
        Preparing::cancel(&mut self.preparing);
        self.pending = None;
        self.departure = Some(Departure::new(cause, now));
    }

    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        let mut at = now + LOOK_AGAIN;
        let generation = self.generation.as_ref();
        let moments = [
            generation.and_then(|generation| generation.wake_at(now)),
            generation
                .filter(|_| self.fence_read.is_none())
                .map(|_| self.fence_at),
            self.relay.wake_at(),
            self.departure.as_ref().and_then(Departure::wake_at),
            (!self.joined && self.departure.is_none() && self.is_idle())
                .then(|| self.orphaned_at()),
            self.end_time_s
                .filter(|_| self.departure.is_none())
                .map(|end_time_s| {
                    let grace_s = self.grace().as_secs_f64();
                    let (began_s, end_s) = (self.clock.began_s(), end_time_s as f64);
                    let leave_s = departure::leave_at_s(began_s, end_s, grace_s);
                    now + times::seconds(leave_s - self.clock.now_s())
                }),
        ];
        for moment in moments.into_iter().flatten() {
            at = at.min(moment);
        }
        at
    }

    /// No rank runs and none is about to.
    pub(super) fn is_idle(&self) -> bool {
        self.generation.is_none() && self.preparing.is_none()
    }

    /// The generations that run, are prepared or wait.
    pub(super) fn current(&self) -> [Option<u64>; 3] {
        [
            self.generation
                .as_ref()
                .map(|generation| generation.start.generation),
            Preparing::number(&self.preparing),
            self.pending.as_ref().map(|start| start.generation),
        ]
    }

    fn orphaned_at(&self) -> Instant {
        self.alone_since + self.orphan_wait
    }

    pub(super) fn grace(&self) -> Duration {
        self.trainer
            .map_or(Duration::ZERO, |trainer| times::seconds(trainer.grace_s))
    }

    fn heartbeat(&self) -> Duration {
        self.trainer
            .map_or(Duration::from_secs(2), |trainer| trainer.heartbeat)
    }
}

fn in_words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Stopped => "stopped".to_owned(),
        Outcome::Exited => "finished".to_owned(),
        Outcome::Failed { reason, .. } => format!("failed: {reason}"),
        Outcome::Fenced { newest_generation } => {
            format!("given up for generation {newest_generation}")
        }
    }
}

/// The next datagram; never when there is no inbox or it is broken.
async fn next_datagram(inbox: &Option<Inbox>) -> Vec<u8> {
    if let Some(inbox) = inbox
        && let Ok(datagram) = inbox.next().await
    {
        return datagram;
    }
    std::future::pending().await
}

/// The result of a thread; never when there is none or it was lost.
pub(super) async fn finished<T>(thread: &mut Option<JoinHandle<T>>) -> T {
    if let Some(handle) = thread {
        let result = handle.await;
        *thread = None;
        if let Ok(result) = result {
            return result;
        }
    }
    std::future::pending().await
}
