//! The wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Epoch seconds.
pub fn now_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}
