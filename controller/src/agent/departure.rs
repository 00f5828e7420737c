//! Leaving the node: at once when Slurm says so; by having the task requeued
//! and held when its time is nearly over or no controller is found, so that no
//! task ends as TIMEOUT and none trains alone.

use std::fmt;
use std::time::Duration;

use bftrainer::wire::FromAgent;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::call::Call;
use super::keeper::PREEMPTED;
use super::log::say;
use super::processes::{self, Reaped};
use super::session::{Session, finished};
use super::times::BackOff;

/// Beyond the grace, so long before Slurm's limit a task leaves, seconds.
const LEAVE_MARGIN_S: f64 = 15.0;

/// Of a short limit only this part is given up, but at least `LEAST_MARGIN_S`.
const LEAVE_SHARE: f64 = 0.1;

/// See [`LEAVE_SHARE`], seconds.
const LEAST_MARGIN_S: f64 = 5.0;

/// Ranks that still save are killed so long before Slurm's limit, seconds.
pub const KILL_BEFORE_END_S: f64 = 3.0;

/// One try of the requeueing.
const TRY_WITHIN: Duration = Duration::from_secs(15);

/// Slurm signals a requeued task at once; after this time the agent just ends.
const SIGNAL_WITHIN: Duration = Duration::from_secs(10);

/// The last words to the controller.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(200);

/// Killed ranks that are not reaped after this time are left to the keeper.
const REAP_WITHIN: Duration = Duration::from_millis(200);

/// Why a task leaves of its own accord.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cause {
    /// No controller, no ranks.
    Alone,
    /// Slurm's limit would end the task as TIMEOUT.
    LimitNear,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Alone => "no controller",
            Cause::LimitNear => "Slurm's limit is near and was not renewed",
        })
    }
}

/// A task that is having itself requeued.
#[derive(Debug)]
pub(super) struct Departure {
    cause: Cause,
    back_off: BackOff,
    next_try: Instant,
    call: Option<JoinHandle<Result<(), String>>>,
    requeued: Option<Instant>,
    said: bool,
}

impl Departure {
    /// Begins at once, when no rank is left.
    pub fn new(cause: Cause, now: Instant) -> Self {
        Departure {
            cause,
            back_off: BackOff::new(Duration::from_millis(500), Duration::from_secs(10)),
            next_try: now,
            call: None,
            requeued: None,
            said: false,
        }
    }

    /// Gives it up when its `cause` is gone, unless it has succeeded.
    pub fn cancel(departure: &mut Option<Departure>, cause: Cause) {
        if departure
            .as_ref()
            .is_some_and(|it| it.cause == cause && it.requeued.is_none())
        {
            *departure = None;
        }
    }

    /// The answer to a requeueing under way; never when there is none. Cancel safe.
    pub async fn answer(departure: &mut Option<Departure>) -> Result<(), String> {
        match departure {
            Some(departure) => finished(&mut departure.call).await,
            None => std::future::pending().await,
        }
    }

    /// When [`advance`] has something to do.
    pub fn wake_at(&self) -> Option<Instant> {
        match self.requeued {
            Some(requeued) => Some(requeued + SIGNAL_WITHIN),
            None => self.call.is_none().then_some(self.next_try),
        }
    }
}

/// When to leave, epoch seconds, for a task that began at `began_s`, has a limit
/// at `end_s`, and whose ranks may take `grace_s` to save.
pub fn leave_at_s(began_s: f64, end_s: f64, grace_s: f64) -> f64 {
    let share_s = ((end_s - began_s) * LEAVE_SHARE).max(LEAST_MARGIN_S);
    end_s - (grace_s + LEAVE_MARGIN_S).min(share_s)
}

/// Takes the next step of a departure; the exit code when it is complete.
pub(super) fn advance(session: &mut Session, now: Instant) -> Option<u8> {
    let is_idle = session.is_idle();
    let departure = session.departure.as_mut()?;
    if let Some(requeued) = departure.requeued {
        return (now >= requeued + SIGNAL_WITHIN).then_some(PREEMPTED);
    }
    if is_idle && departure.call.is_none() && now >= departure.next_try {
        departure.next_try = now + departure.back_off.wait();
        let call = Call::requeue_hold(&session.identity.task()).map_err(|e| e.to_string());
        departure.call = Some(tokio::task::spawn_blocking(move || {
            call?.requeued(TRY_WITHIN)
        }));
    }
    None
}

impl Session {
    /// A requeueing was answered.
    pub(super) fn on_requeued(&mut self, answer: Result<(), String>) {
        let Some(departure) = &mut self.departure else {
            return;
        };
        match answer {
            Ok(()) => departure.requeued = Some(Instant::now()),
            Err(reason) if !departure.said => {
                departure.said = true;
                let task = self.identity.task();
                say!("{task} could not be requeued, trying again: {reason}");
            }
            Err(_) => {}
        }
    }

    /// The end by a signal: no rank survives it by more than moments, and the
    /// controller is told if it listens. The exit code. When the keeper was
    /// killed, Slurm would call the task FAILED, so it is requeued.
    pub(super) async fn leave(&mut self, keeper_is_gone: bool) -> u8 {
        if let Some(generation) = &self.generation {
            generation.signal(libc::SIGKILL);
        }
        processes::kill_descendants();
        let has_left = self
            .departure
            .as_ref()
            .is_some_and(|it| it.requeued.is_some());
        let words = async {
            if !has_left {
                let reason = match keeper_is_gone {
                    true => "the agent's keeper was killed",
                    false => "Slurm ended the task",
                };
                let message = FromAgent::Leaving {
                    reason: reason.to_owned(),
                    preempted: !keeper_is_gone,
                };
                self.link.send_last(message, LAST_WORDS_WITHIN).await;
            }
        };
        let reaped = timeout(REAP_WITHIN, reap_all());
        let _ = tokio::join!(words, reaped);
        if let Some(tee) = self.tee.take() {
            tee.drained(Duration::from_millis(100)).await;
        }
        if keeper_is_gone {
            self.requeue_without_keeper().await;
        }
        PREEMPTED
    }

    async fn requeue_without_keeper(&mut self) {
        // Nobody cleans up behind this process any more.
        let _ = timeout(Duration::from_secs(20), reap_all()).await;
        let task = self.identity.task();
        say!("the agent's keeper was killed; requeueing {task}");
        let call = Call::requeue_hold(&task).map_err(|error| error.to_string());
        let thread = tokio::task::spawn_blocking(move || call?.requeued(TRY_WITHIN));
        if let Ok(Err(reason)) = thread.await {
            say!("{task} could not be requeued: {reason}");
        }
    }
}

/// Kills and reaps until no descendant is left.
async fn reap_all() {
    loop {
        match processes::reap() {
            Reaped::NoChildren => return,
            Reaped::Child(..) => {}
            Reaped::NoneEnded => {
                sleep(Duration::from_millis(5)).await;
                processes::kill_descendants();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_leaves_with_its_grace_and_a_margin_but_keeps_most_of_a_short_limit() {
        assert_eq!(leave_at_s(0.0, 1800.0, 30.0), 1755.0);
        assert_eq!(leave_at_s(0.0, 120.0, 30.0), 108.0);
        assert_eq!(leave_at_s(0.0, 30.0, 30.0), 25.0);
        assert_eq!(leave_at_s(0.0, 1800.0, 600.0), 1620.0);
    }
}
