//! What the service manager is told (sd_notify(3)); nothing where there is none.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        log::warn!("the service manager could not be told: {error}");
    }
}

/// The daemon serves.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The daemon waits for something before it can serve.
pub fn waiting(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// The configuration is read again.
pub fn reloading() {
    let mut states = vec![NotifyState::Reloading];
    states.extend(NotifyState::monotonic_usec_now().ok());
    tell(&states);
}

/// The daemon ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Tells the service manager's watchdog that the event loop turns.
#[derive(Debug)]
pub struct Watchdog {
    every: Option<Duration>,
    told: Option<Instant>,
}

impl Watchdog {
    /// As the service manager wants it (WATCHDOG_USEC).
    pub fn new() -> Self {
        Watchdog {
            every: sd_notify::watchdog_enabled().map(|limit| limit / 3),
            told: None,
        }
    }

    /// The event loop has turned.
    pub fn turned(&mut self) {
        let Some(every) = self.every else { return };
        if self.told.is_none_or(|told| told.elapsed() >= every) {
            self.told = Some(Instant::now());
            tell(&[NotifyState::Watchdog]);
        }
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Self::new()
    }
}
