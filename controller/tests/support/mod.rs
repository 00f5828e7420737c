//! What the agent's tests share: a munged of their own, a controller that
//! speaks the real protocol and does what the test says, and the real binary.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod agent;
pub mod controller;
pub mod munged;
pub mod stage;

use std::time::{Duration, Instant};

/// No wait is longer; generous, because machines may be busy.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// Waits until `state` gives something.
pub async fn until<T>(what: &str, mut state: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = state() {
            return found;
        }
        assert!(Instant::now() < give_up, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for `future`.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(result) => result,
        Err(_) => panic!("in vain: {what}"),
    }
}

/// This process's user.
pub fn own_uid() -> u32 {
    nix::unistd::getuid().as_raw()
}
