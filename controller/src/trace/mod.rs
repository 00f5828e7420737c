//! Logs of idle nodes: readers of several formats behind one stream of pool events.
//!
//! `source` says what is read, `input` opens files, `assemble` and `occupancy` turn what is read
//! into events, `window` cuts out what is to be replayed; one file for each format does the rest.

mod assemble;
mod command;
mod convert;
mod easy;
mod error;
mod hostlist;
mod input;
mod occupancy;
mod sacct;
mod source;
mod stats;
mod swf;
mod transitions;
mod window;

use bftrainer_core::replay::PoolEvent;
use jiff::tz::TimeZone;

pub use command::{TraceCommand, command};
pub use convert::convert;
pub use error::TraceError;
pub use source::{NodeChoice, Source, SourceArgs, open, open_bytes, read_node_list};
pub use stats::Stats;
pub use swf::Schedule;
pub use window::{Trace, Window};

/// A stream of events with the time of the log's first entry.
pub(crate) trait Events: Iterator<Item = Result<PoolEvent, TraceError>> {
    /// Epoch seconds of the first entry that was read, even of a node that doesn't count.
    fn first_s(&self) -> Option<f64>;

    /// Part of the log that is behind, from 0 to 1.
    fn share(&self) -> f64;
}

/// Reads a time: epoch seconds, or a date and time; one without a zone is in `zone`.
///
/// # Errors
/// A sentence when it is neither.
pub fn parse_time(text: &str, zone: &TimeZone) -> Result<f64, String> {
    if let Some(seconds) = text.parse::<f64>().ok().filter(|s| s.is_finite()) {
        return Ok(seconds);
    }
    let zoned = text.parse::<jiff::Timestamp>().ok();
    let local = || {
        let time = text.parse::<jiff::civil::DateTime>().ok()?;
        Some(time.to_zoned_datetime(zone.clone()).ok()?.timestamp())
    };
    match zoned.or_else(local) {
        Some(time) => Ok(time.as_millisecond() as f64 / 1000.0),
        None => Err(format!(
            "`{text}` is neither epoch seconds nor a time like 2021-02-10T20:21:15"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_without_a_zone_is_in_the_given_one() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        assert_eq!(
            parse_time("2021-02-10T20:21:15", &berlin),
            Ok(1_612_984_875.0)
        );
        assert_eq!(
            parse_time("2021-02-10T20:21:15", &TimeZone::UTC),
            Ok(1_612_988_475.0)
        );
        assert_eq!(
            parse_time("2021-02-10T20:21:15Z", &berlin),
            Ok(1_612_988_475.0)
        );
        assert_eq!(parse_time("1612988475", &berlin), Ok(1_612_988_475.0));
        assert!(parse_time("yesterday", &berlin).is_err());
    }
}
