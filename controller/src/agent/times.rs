//! Durations, jitter and back-off.

use std::time::Duration;

/// Longer waits than a year are waits of a year: no sum with a clock overflows.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// `seconds` as a duration of at most a year; 0 for what is negative or no number.
pub fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, LONGEST.as_secs_f64()).max(0.0))
}

/// Random bits, from the system; only spread depends on them.
pub fn random_u16() -> u16 {
    let mut bytes = [0u8; 2];
    // Zeros that stay cost spread only.
    let _ = getrandom::fill(&mut bytes);
    u16::from_ne_bytes(bytes)
}

/// Waits that double from `first` to `most`, each spread over 50-100 %.
#[derive(Clone, Debug)]
pub struct BackOff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl BackOff {
    /// Starts at `first`, ends at `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        BackOff {
            first,
            most,
            next: first,
        }
    }

    /// The next wait.
    pub fn wait(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.most);
        whole.mul_f64(0.5 + f64::from(random_u16()) / f64::from(u16::MAX) / 2.0)
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_seconds_is_too_odd() {
        for (odd, duration) in [
            (f64::NAN, Duration::ZERO),
            (-5.0, Duration::ZERO),
            (f64::INFINITY, LONGEST),
            (1e300, LONGEST),
            (1.5, Duration::from_millis(1500)),
        ] {
            assert_eq!(seconds(odd), duration, "{odd}");
        }
    }

    #[test]
    fn waits_double_up_to_the_most_and_are_spread() {
        let mut back_off = BackOff::new(Duration::from_millis(200), Duration::from_secs(5));
        let waits: Vec<f64> = (0..8).map(|_| back_off.wait().as_secs_f64()).collect();
        for (wait, whole) in waits.iter().zip([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]) {
            assert!(
                (whole * 0.499..=whole * 1.001).contains(wait),
                "{wait} of {whole}"
            );
        }
        back_off.reset();
        assert!(back_off.wait() <= Duration::from_millis(200));
    }
}
