//! The commands of `bftrainer` that ask the controller and show its answer.

mod admin;
mod ask;
mod check;
mod logs;
mod set;
mod table;

use std::process::ExitCode;

use clap::Args;

pub use admin::{AdminArgs, HistoryArgs, admin, history};
pub use check::{CheckArgs, check};
pub use logs::{LogsArgs, logs};
pub use set::{SetArgs, set};
pub use table::OutputArgs;

use bftrainer::wire::{Query, Request};
use table::{Column, Kind, show_rows};

use crate::stdout;

/// `bftrainer queue`: the trainers.
#[derive(Debug, Args)]
pub struct QueueArgs {
    #[command(flatten)]
    output: OutputArgs,
}

/// `bftrainer nodes`: the pool.
#[derive(Debug, Args)]
pub struct NodesArgs {
    #[command(flatten)]
    output: OutputArgs,
}

/// A trainer's array job id, as squeue shows it before the underscore.
fn job_id(text: &str) -> Result<u32, &'static str> {
    text.parse()
        .map_err(|_| "expected the number of a trainer's array, as 4711, without that of a task")
}

/// `bftrainer show`: one trainer, or the totals.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The trainer's array job id; without it the controller's totals
    #[arg(value_name = "JOBID", value_parser = job_id)]
    array_job_id: Option<u32>,
    #[command(flatten)]
    output: OutputArgs,
}

/// `bftrainer why`: the last decisions and their reasons.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// Only decisions about this trainer
    #[arg(value_name = "JOBID", value_parser = job_id)]
    array_job_id: Option<u32>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Exit code for a use that can't work, as clap's.
const USAGE: u8 = 2;

const QUEUE: &[Column] = &[
    Column::new("JOBID", "jobid", Kind::Plain),
    Column::new("NAME", "name", Kind::Plain),
    Column::new("USER", "user", Kind::Plain),
    Column::new("STATE", "state", Kind::Plain),
    Column::new("NODES", "nodes", Kind::Plain),
    Column::new("MIN", "min", Kind::Plain),
    Column::new("MAX", "max", Kind::Plain),
    Column::new("SAMPLES", "samples", Kind::Plain),
    Column::new("TOTAL", "total", Kind::Plain),
    Column::new("EPOCH", "epoch", Kind::Plain),
    Column::new("LOSS", "loss", Kind::Decimals(4)),
    Column::new("RESCALES", "rescales", Kind::Plain),
    Column::new("PREEMPTIONS", "preemptions", Kind::Plain),
    Column::new("NODE_HOURS", "harvested_node_s", Kind::Hours),
    Column::new("REASON", "reason", Kind::Plain),
];

const NODES: &[Column] = &[
    Column::new("NODE", "node", Kind::Plain),
    Column::new("USE", "use", Kind::Plain),
    Column::new("JOBID", "jobid", Kind::Plain),
    Column::new("JOINED", "joined", Kind::Time),
    Column::new("HOLE_END", "hole_end", Kind::Time),
    Column::new("CLASS", "class", Kind::Plain),
    Column::new("REASON", "reason", Kind::Plain),
];

const WHY: &[Column] = &[
    Column::new("TIME", "time", Kind::Time),
    Column::new("JOBID", "jobid", Kind::Plain),
    Column::new("FROM", "from", Kind::Plain),
    Column::new("TO", "to", Kind::Plain),
    Column::new("REASON", "reason", Kind::Plain),
];

/// Runs `bftrainer queue`.
pub fn queue(args: &QueueArgs) -> ExitCode {
    ask_and_show(Query::Queue, QUEUE, &args.output)
}

/// Runs `bftrainer nodes`.
pub fn nodes(args: &NodesArgs) -> ExitCode {
    ask_and_show(Query::Nodes, NODES, &args.output)
}

/// Runs `bftrainer why`.
pub fn why(args: &WhyArgs) -> ExitCode {
    let query = Query::Why {
        array_job_id: args.array_job_id,
    };
    ask_and_show(query, WHY, &args.output)
}

/// Runs `bftrainer show`.
pub fn show(args: &ShowArgs) -> ExitCode {
    let query = Query::Show {
        array_job_id: args.array_job_id,
    };
    if args.output.noheader && !args.output.parsable2 {
        eprintln!("bftrainer: show without -P prints Key=value lines, which have no header for -h");
        return ExitCode::from(USAGE);
    }
    answer_with(query, &args.output, |rows| {
        if args.output.parsable2 {
            return table::parsable_rows(rows, !args.output.noheader);
        }
        rows.iter().map(table::key_value_lines).collect()
    })
}

fn ask_and_show(query: Query, columns: &[Column], output: &OutputArgs) -> ExitCode {
    answer_with(query, output, |rows| show_rows(rows, columns, output))
}

fn answer_with(
    query: Query,
    output: &OutputArgs,
    render: impl FnOnce(&[serde_json::Value]) -> String,
) -> ExitCode {
    match ask::ask(Request::Query(query), output.config.as_deref()) {
        Ok(rows) if output.json => stdout::print(&table::json(&rows)),
        Ok(rows) => stdout::print(&render(&rows)),
        Err(error) => {
            eprintln!("bftrainer: {error}");
            ExitCode::FAILURE
        }
    }
}
