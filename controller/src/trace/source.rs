//! What is read: a log in one of several formats, told by its first line, and how.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;

use super::assemble::Assembler;
use super::input::{File, Lines};
use super::occupancy::Occupancy;
use super::swf::Schedule;
use super::transitions::Transitions;
use super::{Events, Trace, TraceError, Window, parse_time, sacct, swf};

/// Which nodes of a log count.
#[derive(Clone, Debug, Default)]
pub struct NodeChoice {
    /// The nodes in their order; `None`: in the order in which the log names them.
    pub list: Option<Vec<String>>,
    /// Only the first so many of them.
    pub first: Option<usize>,
}

/// A log and what is wanted of it.
#[derive(Clone, Debug)]
pub struct Source {
    /// The log.
    pub path: PathBuf,
    /// Nodes that were down or drained: a dump of `sacctmgr -P show event`.
    pub node_events: Option<PathBuf>,
    /// Which nodes count.
    pub choice: NodeChoice,
    /// Which part is wanted.
    pub window: Window,
    /// Processors of a node, for logs that count processors.
    pub procs_per_node: u32,
    /// How jobs without places are placed.
    pub schedule: Schedule,
    /// Zone of times that have none.
    pub zone: TimeZone,
}

impl Source {
    /// All of the log at `path`, times without a zone in UTC.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Source {
            path: path.into(),
            node_events: None,
            choice: NodeChoice::default(),
            window: Window::default(),
            procs_per_node: 1,
            schedule: Schedule::Log,
            zone: TimeZone::UTC,
        }
    }
}

/// The options that say what is read.
#[derive(clap::Args, Clone, Debug)]
pub struct SourceArgs {
    /// The log: node transitions (CSV with time,node,state), a dump of sacct -P, or SWF; plain,
    /// .gz or .zst
    pub trace: PathBuf,
    /// Nodes that were down or drained: a dump of sacctmgr -P show event
    #[arg(long, value_name = "FILE")]
    pub node_events: Option<PathBuf>,
    /// Only the first so many nodes
    #[arg(long, value_name = "N")]
    pub nodes: Option<usize>,
    /// The nodes in their order, one a line
    #[arg(long, value_name = "FILE")]
    pub node_list: Option<PathBuf>,
    /// Begin at this time: epoch seconds or 2021-02-10T20:21:15
    #[arg(long, value_name = "T", value_parser = check_time)]
    pub from: Option<String>,
    /// End after so many states, the first one included
    #[arg(long, value_name = "K")]
    pub events: Option<u64>,
    /// End at this time
    #[arg(long, value_name = "T", value_parser = check_time)]
    pub until: Option<String>,
    /// SWF: processors of a node
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub procs_per_node: u32,
    /// SWF: when jobs start
    #[arg(long, value_enum, default_value_t)]
    pub schedule: Schedule,
    /// Zone of times that have none, in a dump of sacct, --from and --until, such as Europe/Berlin;
    /// else this machine's
    #[arg(long, value_name = "ZONE", value_parser = parse_zone)]
    pub time_zone: Option<TimeZone>,
}

/// Times are read when their zone is known; a wrong one is refused with the other options.
fn check_time(text: &str) -> Result<String, String> {
    parse_time(text, &TimeZone::UTC).map(|_| text.to_owned())
}

fn parse_zone(text: &str) -> Result<TimeZone, String> {
    TimeZone::get(text).map_err(|error| error.to_string())
}

impl SourceArgs {
    /// What is to be read.
    ///
    /// # Errors
    /// [`TraceError`] when the list of nodes can't be read, or a time does not exist in the zone.
    pub fn source(&self) -> Result<Source, TraceError> {
        let zone = self.time_zone.clone().unwrap_or_else(TimeZone::system);
        let time_s = |text: &Option<String>| {
            let time_s = text.as_deref().map(|text| parse_time(text, &zone));
            let time_s = time_s.transpose();
            time_s.map_err(|problem| TraceError::file(&self.trace, problem))
        };
        let list = self.node_list.as_deref().map(read_node_list).transpose()?;
        Ok(Source {
            path: self.trace.clone(),
            node_events: self.node_events.clone(),
            choice: NodeChoice {
                list,
                first: self.nodes,
            },
            window: Window {
                from_s: time_s(&self.from)?,
                states: self.events,
                until_s: time_s(&self.until)?,
            },
            procs_per_node: self.procs_per_node,
            schedule: self.schedule,
            zone,
        })
    }
}

/// Reads a list of nodes, one a line.
///
/// # Errors
/// [`TraceError`] when the file can't be read or is not UTF-8.
pub fn read_node_list(path: &Path) -> Result<Vec<String>, TraceError> {
    let mut names = Vec::new();
    for line in Lines::new(File::open(path)?) {
        let (_, line) = line?;
        let name = line.trim();
        if !name.is_empty() && !name.starts_with('#') {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Opens a log.
///
/// # Errors
/// [`TraceError`] names the file, and the line and field where there is one.
pub fn open(source: &Source) -> Result<Trace, TraceError> {
    open_file(source, File::open(&source.path)?)
}

/// As [`open`], with the log's bytes in memory.
///
/// # Errors
/// As from [`open`].
pub fn open_bytes(source: &Source, bytes: Vec<u8>) -> Result<Trace, TraceError> {
    let length = bytes.len() as u64;
    let file = File::from_reader(&source.path, Cursor::new(bytes), length)
        .map_err(|error| TraceError::io(&source.path, error))?;
    open_file(source, file)
}

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Transitions,
    Sacct,
    Swf,
}

impl Format {
    /// Told by the first line.
    fn of(head: &[u8]) -> Self {
        let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let is_number = |byte: &u8| byte.is_ascii_digit() || b" \t\r.-+".contains(byte);
        if line.contains(&b'|') {
            Format::Sacct
        } else if line.first() == Some(&b';') || (!line.is_empty() && line.iter().all(is_number)) {
            Format::Swf
        } else {
            Format::Transitions
        }
    }
}

fn open_file(source: &Source, mut file: File) -> Result<Trace, TraceError> {
    let mut occupancy = Occupancy::default();
    let events: Box<dyn Events> = match Format::of(file.peek()?) {
        Format::Transitions => {
            let assembler = Assembler::new(&source.choice);
            Box::new(Transitions::new(file, assembler)?)
        }
        Format::Sacct => {
            sacct::read(file, &source.zone, &mut occupancy)?;
            if let Some(path) = &source.node_events {
                sacct::read(File::open(path)?, &source.zone, &mut occupancy)?;
            }
            Box::new(occupancy.events(&source.choice))
        }
        Format::Swf => {
            swf::read(file, source.procs_per_node, source.schedule, &mut occupancy)?;
            Box::new(occupancy.events(&source.choice))
        }
    };
    Trace::new(source.path.clone(), events, &source.choice, &source.window)
}
