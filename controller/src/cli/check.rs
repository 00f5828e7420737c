//! `bftrainer check`: what stands between this site and trainers that cost
//! nobody anything.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::table::{self, Column, Kind, OutputArgs, show_rows};
use crate::check::{self, Finding, Severity};
use crate::config::{Config, EX_CONFIG};
use crate::stdout;

/// `bftrainer check`: the configuration file, this host, and the live site.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 when nothing is found, or notes only; 1 when there are \
    errors or warnings; 78 when the configuration file is wrong."
)]
pub struct CheckArgs {
    #[command(flatten)]
    output: OutputArgs,
}

const CHECK: &[Column] = &[
    Column::new("SEVERITY", "severity", Kind::Plain),
    Column::new("ITEM", "item", Kind::Plain),
    Column::new("FINDING", "finding", Kind::Plain),
    Column::new("MEANS", "means", Kind::Plain),
    Column::new("REMEDY", "remedy", Kind::Plain),
];

/// Runs `bftrainer check`.
pub fn check(args: &CheckArgs) -> ExitCode {
    let output = &args.output;
    let config = match Config::read(&Config::path(output.config.as_deref())) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("bftrainer: {error}");
            return ExitCode::from(EX_CONFIG);
        }
    };
    let findings = match check::missing_slurm_conf() {
        Some(finding) => vec![finding],
        None => check::check(&config).unwrap_or_else(|error| vec![check::unanswered(&error)]),
    };
    let rows: Vec<Value> = findings.iter().map(Finding::row).collect();
    let printed = if output.json {
        stdout::print(&table::json(&rows))
    } else {
        stdout::print(&show_rows(&rows, CHECK, output))
    };
    let is_clean = findings.iter().all(|f| f.severity == Severity::Note);
    if is_clean { printed } else { ExitCode::FAILURE }
}
