//! Node transitions: CSV with the columns `time,node,state`; `state` is `idle` or `busy`. An
//! optional column `end` gives the planned end of an idle node's hole, epoch seconds.

use std::collections::VecDeque;
use std::path::PathBuf;

use bftrainer_core::replay::PoolEvent;
use csv::{ByteRecord, Reader, ReaderBuilder};

use super::assemble::Assembler;
use super::input::{File, Meter};
use super::{Events, TraceError};

/// A stream of events from transitions.
pub(super) struct Transitions {
    path: PathBuf,
    reader: Reader<Box<dyn std::io::BufRead>>,
    columns: Columns,
    record: ByteRecord,
    assembler: Assembler,
    ready: VecDeque<PoolEvent>,
    ended: bool,
    meter: Meter,
}

struct Columns {
    time: usize,
    node: usize,
    state: usize,
    end: Option<usize>,
}

impl Transitions {
    pub(super) fn new(file: File, assembler: Assembler) -> Result<Self, TraceError> {
        let path = file.path;
        let mut reader = ReaderBuilder::new()
            .flexible(true)
            .quoting(false)
            .buffer_capacity(1 << 16)
            .from_reader(file.text);
        let header = reader
            .byte_headers()
            .map_err(|error| csv_error(&path, error))?;
        let column = |name: &str| {
            let found = header
                .iter()
                .position(|field| field.trim_ascii() == name.as_bytes());
            let problem = "the header has no such column; expected time,node,state";
            found.ok_or_else(|| TraceError::line(&path, 1, name, problem))
        };
        let columns = Columns {
            time: column("time")?,
            node: column("node")?,
            state: column("state")?,
            end: column("end").ok(),
        };
        Ok(Transitions {
            path,
            reader,
            columns,
            record: ByteRecord::new(),
            assembler,
            ready: VecDeque::new(),
            ended: false,
            meter: file.meter,
        })
    }

    /// Takes in one row; false at the end of the file.
    fn read_row(&mut self) -> Result<bool, TraceError> {
        let more = self
            .reader
            .read_byte_record(&mut self.record)
            .map_err(|error| csv_error(&self.path, error))?;
        if !more {
            return Ok(false);
        }
        let line = self.record.position().map_or(0, csv::Position::line);
        let (path, record) = (&self.path, &self.record);
        let wrong = |name: &str, problem: String| TraceError::line(path, line, name, problem);
        let field = |index: usize, name: &str| {
            let bytes = record
                .get(index)
                .ok_or_else(|| wrong(name, "missing; expected time,node,state".to_owned()))?;
            std::str::from_utf8(bytes.trim_ascii()).map_err(|_| wrong(name, "not UTF-8".to_owned()))
        };
        let seconds = |text: &str, name: &str| {
            let number = text.parse::<f64>().ok().filter(|time_s| time_s.is_finite());
            number.ok_or_else(|| wrong(name, format!("`{text}` is not a number of seconds")))
        };
        let time_s = seconds(field(self.columns.time, "time")?, "time")?;
        if let Some(now_s) = self.assembler.now_s().filter(|now_s| time_s < *now_s) {
            let problem = format!("{time_s} comes after {now_s}; sort the rows by time");
            return Err(wrong("time", problem));
        }
        let node = field(self.columns.node, "node")?;
        if node.is_empty() {
            return Err(wrong("node", "empty".to_owned()));
        }
        let idle = match field(self.columns.state, "state")? {
            "idle" => true,
            "busy" => false,
            other => {
                let problem = format!("`{other}` is neither idle nor busy");
                return Err(wrong("state", problem));
            }
        };
        let end_s = match self.columns.end.map(|index| field(index, "end")) {
            Some(Ok(text)) if !text.is_empty() => Some(seconds(text, "end")?),
            _ => None,
        };
        let complete = self.assembler.transition(time_s, node, idle, end_s);
        self.ready.extend(complete);
        Ok(true)
    }
}

impl Iterator for Transitions {
    type Item = Result<PoolEvent, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.ended {
            match self.read_row() {
                Ok(true) => {}
                Ok(false) => {
                    self.ended = true;
                    self.ready.extend(self.assembler.finish());
                }
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }
}

impl Events for Transitions {
    fn first_s(&self) -> Option<f64> {
        self.assembler.first_s()
    }

    fn share(&self) -> f64 {
        self.meter.share()
    }
}

fn csv_error(path: &std::path::Path, error: csv::Error) -> TraceError {
    let line = error.position().map_or(1, csv::Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(source) => TraceError::io(path, source),
        kind => TraceError::line(path, line, "the row", format!("{kind:?}")),
    }
}
