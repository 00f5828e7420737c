//! Slurm's accounting: dumps of `sacct -a -X -D -P -o JobID,NodeList,Start,End` (more columns may
//! follow; they are found by name) and of `sacctmgr -P show event` for nodes that were down or
//! drained.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::TraceError;
use super::hostlist;
use super::input::{File, Lines};
use super::occupancy::Occupancy;

/// Where columns are in a dump, and how lines are told apart from others.
struct Columns {
    job: Option<usize>,
    nodes: usize,
    start: usize,
    end: usize,
}

/// Names that a column may have.
const NODES: [&str; 2] = ["NodeList", "NodeName"];
const START: [&str; 3] = ["Start", "TimeStart", "Time Start"];
const END: [&str; 3] = ["End", "TimeEnd", "Time End"];

/// Reads a dump into `occupancy`; times without a zone are in `zone`.
pub(super) fn read(
    file: File,
    zone: &TimeZone,
    occupancy: &mut Occupancy,
) -> Result<(), TraceError> {
    let path = file.path.clone();
    let mut lines = Lines::new(file);
    let Some((_, header)) = lines.next().transpose()? else {
        return Err(TraceError::file(
            &path,
            "empty; expected a dump of sacct -P",
        ));
    };
    let names: Vec<&str> = header.split('|').map(str::trim).collect();
    let column = |any: &[&str]| {
        let found = names.iter().position(|name| any.contains(name));
        let problem = "the header has no such column; use sacct -a -X -D -P -o \
                       JobID,NodeList,Start,End";
        found.ok_or_else(|| TraceError::line(&path, 1, any[0], problem))
    };
    let columns = Columns {
        job: names.iter().position(|name| *name == "JobID"),
        nodes: column(&NODES)?,
        start: column(&START)?,
        end: column(&END)?,
    };
    for line in lines {
        let (number, line) = line?;
        if line.trim().is_empty() {
            continue;
        }
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let wrong = |name: &str, problem: String| TraceError::line(&path, number, name, problem);
        let field = |index: usize, name: &str| {
            fields
                .get(index)
                .copied()
                .ok_or_else(|| wrong(name, format!("missing; the line has {}", fields.len())))
        };
        // Steps run within their job.
        if let Some(index) = columns.job
            && field(index, "JobID")?.contains('.')
        {
            continue;
        }
        let list = field(columns.nodes, NODES[0])?;
        if list.is_empty() || list.starts_with("None") {
            continue;
        }
        let read_time = |index: usize, name: &str| {
            parse_time(field(index, name)?, zone).map_err(|problem| wrong(name, problem))
        };
        let Some(start) = read_time(columns.start, START[0])? else {
            continue;
        };
        let end_s = match read_time(columns.end, END[0])? {
            Some(end) => Some(end.not_before(start.first_s).ok_or_else(|| {
                let text = field(columns.end, END[0]).unwrap_or_default();
                wrong(END[0], format!("{text} lies before the start"))
            })?),
            None => None,
        };
        let hosts = hostlist::expand(list).map_err(|problem| wrong(NODES[0], problem))?;
        for host in hosts {
            let node = occupancy.nodes.number(&host);
            occupancy.add(node, start.first_s, end_s);
        }
    }
    Ok(())
}

/// A time; in the hour that a clock repeats in autumn there are two.
#[derive(Clone, Copy)]
struct Time {
    first_s: f64,
    second_s: f64,
}

impl Time {
    fn not_before(self, other_s: f64) -> Option<f64> {
        [self.first_s, self.second_s]
            .into_iter()
            .find(|time_s| *time_s >= other_s)
    }
}

/// Epoch seconds, a zoned time, or a local one; `None` for Unknown and None.
fn parse_time(text: &str, zone: &TimeZone) -> Result<Option<Time>, String> {
    if text.is_empty() || text == "Unknown" || text == "None" {
        return Ok(None);
    }
    let same = |time_s: f64| {
        Ok(Some(Time {
            first_s: time_s,
            second_s: time_s,
        }))
    };
    if let Some(seconds) = text.parse::<f64>().ok().filter(|time_s| time_s.is_finite()) {
        return same(seconds);
    }
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return same(time.as_second() as f64);
    }
    let wrong = || format!("`{text}` is not a time such as 2021-02-10T20:21:15");
    let local = text.parse::<DateTime>().map_err(|_| wrong())?;
    let ambiguous = zone.to_ambiguous_timestamp(local);
    let first = ambiguous.earlier().map_err(|_| wrong())?;
    let second = ambiguous.later().map_err(|_| wrong())?;
    Ok(Some(Time {
        first_s: first.as_second().min(second.as_second()) as f64,
        second_s: first.as_second().max(second.as_second()) as f64,
    }))
}
