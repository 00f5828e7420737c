//! The Standard Workload Format of the Parallel Workloads Archive: 18 columns, comments after `;`,
//! -1 for what is not known (www.cs.huji.ac.il/labs/parallel/workload/swf.html).

use super::TraceError;
use super::easy;
use super::input::{File, Lines};
use super::occupancy::Occupancy;

/// Most nodes of a machine.
const MAX_NODES: u64 = 1 << 20;

/// How a log of jobs without places becomes one of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Schedule {
    /// Jobs start when they did
    #[default]
    Log,
    /// First come, first served with EASY backfill, simulated; holes' planned ends are then known
    Easy,
}

/// A job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Job {
    /// Epoch seconds.
    pub(super) submit_s: f64,
    /// Recorded start, epoch seconds.
    pub(super) start_s: f64,
    /// How long it runs, seconds.
    pub(super) run_s: f64,
    /// How long it asked for, seconds; at least `run_s`.
    pub(super) requested_s: f64,
    /// How many nodes it has.
    pub(super) nodes: usize,
}

/// The columns that matter.
const COLUMNS: usize = 18;
const SUBMIT: (usize, &str) = (1, "submit time");
const WAIT: (usize, &str) = (2, "wait time");
const RUN: (usize, &str) = (3, "run time");
const ALLOCATED: (usize, &str) = (4, "allocated processors");
const REQUESTED: (usize, &str) = (7, "requested processors");
const REQUESTED_TIME: (usize, &str) = (8, "requested time");

/// Reads a log into `occupancy`.
pub(super) fn read(
    file: File,
    procs_per_node: u32,
    schedule: Schedule,
    occupancy: &mut Occupancy,
) -> Result<(), TraceError> {
    let path = file.path.clone();
    let procs_per_node = f64::from(procs_per_node.max(1));
    let (mut jobs, mut epoch_s, mut machine) = (Vec::new(), 0.0, None);
    for line in Lines::new(file) {
        let (number, line) = line?;
        let line = line.trim();
        if let Some(comment) = line.strip_prefix(';') {
            let wrong = |key: &str| {
                let problem = "not a number of the expected size";
                TraceError::line(&path, number, key, problem)
            };
            if let Some((key, value)) = comment.split_once(':') {
                let value = value.split_whitespace().next().unwrap_or_default();
                let number = value
                    .parse::<f64>()
                    .ok()
                    .filter(|number| number.is_finite());
                match key.trim() {
                    "UnixStartTime" => epoch_s = number.ok_or_else(|| wrong("UnixStartTime"))?,
                    "MaxNodes" if machine.is_none() => machine = number,
                    "MaxProcs" => machine = number.map(|procs| (procs / procs_per_node).ceil()),
                    _ => {}
                }
            }
        } else if !line.is_empty() {
            let job = parse_job(line, procs_per_node, epoch_s)
                .map_err(|(field, problem)| TraceError::line(&path, number, field, problem))?;
            jobs.extend(job);
        }
    }
    if jobs.is_empty() {
        return Err(TraceError::file(
            &path,
            "no job that ran; is the file complete?",
        ));
    }
    let widest = jobs.iter().map(|job| job.nodes).max().unwrap_or(1);
    let machine = machine
        .filter(|nodes| (1.0..=MAX_NODES as f64).contains(nodes))
        .map_or(widest, |nodes| (nodes as usize).max(widest));
    // The names are padded so that they sort.
    let width = machine.to_string().len();
    for node in 1..=machine {
        occupancy.nodes.number(&format!("n{node:0width$}"));
    }
    match schedule {
        Schedule::Log => easy::as_recorded(jobs, machine, occupancy),
        Schedule::Easy => easy::backfilled(jobs, machine, occupancy),
    }
    Ok(())
}

/// A job of one line; `None` when it never ran.
fn parse_job(
    line: &str,
    procs_per_node: f64,
    epoch_s: f64,
) -> Result<Option<Job>, (&'static str, String)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    if fields.len() != COLUMNS {
        let problem = format!("{} columns; expected {COLUMNS}", fields.len());
        return Err(("the line", problem));
    }
    let number = |(index, name): (usize, &'static str)| {
        let text = fields[index];
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| (name, format!("`{text}` is not a number")))
    };
    let known = |column: (usize, &'static str)| number(column).map(|x| (x >= 0.0).then_some(x));
    let (submit_s, run_s) = (known(SUBMIT)?, known(RUN)?);
    let procs = match known(ALLOCATED)? {
        Some(procs) => Some(procs),
        None => known(REQUESTED)?,
    };
    let wait_s = known(WAIT)?.unwrap_or(0.0);
    let requested_s = known(REQUESTED_TIME)?;
    let (Some(submit_s), Some(run_s), Some(procs)) = (submit_s, run_s, procs) else {
        return Ok(None);
    };
    if run_s == 0.0 || procs == 0.0 {
        return Ok(None);
    }
    let nodes = (procs / procs_per_node).ceil();
    if nodes > MAX_NODES as f64 {
        let problem = format!("{procs} processors are more than {MAX_NODES} nodes");
        return Err((ALLOCATED.1, problem));
    }
    let submit_s = epoch_s + submit_s;
    Ok(Some(Job {
        submit_s,
        start_s: submit_s + wait_s,
        run_s,
        requested_s: requested_s.unwrap_or(run_s).max(run_s),
        nodes: nodes as usize,
    }))
}
