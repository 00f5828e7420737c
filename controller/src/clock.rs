//! The wall clock, and one that nobody sets.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Clocks that are no further apart agree, as far as whole seconds and the way of an answer tell.
const AGREE_S: f64 = 2.0;

/// Epoch seconds.
pub fn now_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// A clock that who sets the host's clock does not move.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    began_s: f64,
    began: Instant,
}

impl SteadyClock {
    /// Agrees with the host's clock now.
    pub fn start() -> Self {
        SteadyClock {
            began_s: now_s(),
            began: Instant::now(),
        }
    }

    /// When it began, epoch seconds.
    pub fn began_s(&self) -> f64 {
        self.began_s
    }

    /// Epoch seconds.
    pub fn now_s(&self) -> f64 {
        self.began_s + self.began.elapsed().as_secs_f64()
    }

    /// Moves to another clock's time, epoch seconds, unless they agree; by how much, seconds.
    pub fn follow(&mut self, time_s: f64) -> Option<f64> {
        let apart_s = time_s - self.now_s();
        let is_moved = apart_s.abs() > AGREE_S;
        if is_moved {
            self.began_s += apart_s;
        }
        is_moved.then_some(apart_s)
    }

    /// How far another clock is ahead, that was asked and answered at these times of this one, with
    /// whole seconds; 0 when they may agree.
    pub fn apart_s(asked_s: f64, answered_s: f64, time_s: i64) -> f64 {
        let time_s = time_s as f64;
        let least_s = (time_s - answered_s).max(0.0) + (time_s + 1.0 - asked_s).min(0.0);
        if least_s.abs() > AGREE_S {
            least_s
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_agrees_is_not_followed_and_one_that_does_not_is() {
        let mut clock = SteadyClock::start();
        let (now_s, began_s) = (clock.now_s(), clock.began_s());
        assert_eq!(clock.follow(now_s + 1.0), None);
        let moved_s = clock.follow(now_s - 3600.0).unwrap();
        assert!((moved_s + 3600.0).abs() < 60.0);
        assert!(clock.now_s() < now_s - 3000.0);
        assert!((began_s - clock.began_s() - 3600.0).abs() < 60.0);
    }

    #[test]
    fn an_answer_that_is_late_or_cut_to_seconds_tells_of_no_other_clock() {
        assert_eq!(SteadyClock::apart_s(100.7, 109.2, 100), 0.0);
        assert_eq!(SteadyClock::apart_s(100.7, 109.2, 111), 0.0);
        assert_eq!(SteadyClock::apart_s(100.5, 100.5, 160), 59.5);
        assert_eq!(SteadyClock::apart_s(100.5, 101.0, 40), -59.5);
    }
}
