//! Logs of idle nodes: readers of several formats behind one stream of pool events.
//!
//! `input` opens files, `assemble` turns transitions into events, `window` cuts out what is to be
//! replayed; one file for each format does the rest.

mod assemble;
mod error;
mod input;
mod transitions;
mod window;

use std::path::{Path, PathBuf};

use bftrainer_core::replay::PoolEvent;

pub use error::TraceError;
pub use window::{Trace, Window};

use assemble::Assembler;

/// Which nodes of a log count.
#[derive(Clone, Debug, Default)]
pub struct NodeChoice {
    /// The nodes in their order; `None`: in the order in which the log names them.
    pub list: Option<Vec<String>>,
    /// Only the first so many of them.
    pub first: Option<usize>,
}

/// Reads a list of nodes, one a line.
///
/// # Errors
/// [`TraceError`] when the file can't be read or is not UTF-8.
pub fn read_node_list(path: &Path) -> Result<Vec<String>, TraceError> {
    let file = input::File::open(path)?;
    let mut names = Vec::new();
    for line in input::Lines::new(file) {
        let (_, line) = line?;
        let name = line.trim();
        if !name.is_empty() && !name.starts_with('#') {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Opens the log at `path`, whatever its format, for the nodes in `choice`.
///
/// # Errors
/// [`TraceError`] names the file, and the line and field where there is one.
pub fn open(path: &Path, choice: &NodeChoice, window: &Window) -> Result<Trace, TraceError> {
    let file = input::File::open(path)?;
    let events = transitions::Transitions::new(file, Assembler::new(choice))?;
    Trace::new(PathBuf::from(path), Box::new(events), choice, window)
}

/// A stream of events with the time of the log's first entry.
pub(crate) trait Events: Iterator<Item = Result<PoolEvent, TraceError>> {
    /// Epoch seconds of the first entry that was read, even of a node that doesn't count.
    fn first_s(&self) -> Option<f64>;
}

/// Reads a time: epoch seconds, or a date and time with or without a zone; without one it is UTC.
///
/// # Errors
/// A sentence when it is neither.
pub fn parse_time(text: &str) -> Result<f64, String> {
    if let Some(seconds) = text.parse::<f64>().ok().filter(|s| s.is_finite()) {
        return Ok(seconds);
    }
    let zoned = text.parse::<jiff::Timestamp>().ok();
    let local = || {
        let time = text.parse::<jiff::civil::DateTime>().ok()?;
        Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    match zoned.or_else(local) {
        Some(time) => Ok(time.as_millisecond() as f64 / 1000.0),
        None => Err(format!(
            "`{text}` is neither epoch seconds nor a time like 2021-02-10T20:21:15"
        )),
    }
}
