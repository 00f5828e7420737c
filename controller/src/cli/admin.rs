//! Administrators' commands, and what was harvested.

use std::path::PathBuf;
use std::process::ExitCode;

use bftrainer::wire::{AdminCommand, Query, Request};
use clap::{Args, Subcommand};

use super::table::{Column, Kind, OutputArgs};
use super::{ask, ask_and_show};
use crate::stdout;

/// Where the controller is to be found.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// Configuration file [default: $BFTRAINER_CONF, else /etc/bftrainer/bftrainer.toml]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    order: AdminOrder,
}

/// `bftrainer admin ORDER`.
#[derive(Debug, Subcommand)]
pub enum AdminOrder {
    /// Take no more idle nodes; trainers share what they have
    Pause,
    /// End a pause or a drain
    Resume,
    /// Give all nodes back; trainers stay in the queue
    Drain,
    /// Leave nodes alone from now on, and give back those that are held
    Exclude {
        /// Host list, as n[1-4]
        nodes: String,
        /// Why, for bftrainer show
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Harvest excluded nodes again
    Include {
        /// Host list, as n[1-4]
        nodes: String,
    },
    /// Read bftrainer.toml again; a wrong one changes nothing
    Reload,
}

/// `bftrainer history`: node-hours harvested.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Only the last N days, today included
    #[arg(long, value_name = "N")]
    days: Option<u32>,
    #[command(flatten)]
    output: OutputArgs,
}

const HISTORY: &[Column] = &[
    Column::new("DAY", "day", Kind::Plain),
    Column::new("USER", "user", Kind::Plain),
    Column::new("ACCOUNT", "account", Kind::Plain),
    Column::new("NODE_HOURS", "harvested_node_s", Kind::Hours),
];

/// Runs `bftrainer history`.
pub fn history(args: &HistoryArgs) -> ExitCode {
    ask_and_show(Query::History { days: args.days }, HISTORY, &args.output)
}

/// Runs `bftrainer admin`.
pub fn admin(args: AdminArgs) -> ExitCode {
    let command = match args.order {
        AdminOrder::Pause => AdminCommand::Pause,
        AdminOrder::Resume => AdminCommand::Resume,
        AdminOrder::Drain => AdminCommand::Drain,
        AdminOrder::Exclude { nodes, reason } => AdminCommand::Exclude { nodes, reason },
        AdminOrder::Include { nodes } => AdminCommand::Include { nodes },
        AdminOrder::Reload => AdminCommand::Reload,
    };
    match ask::ask(
        Request::Query(Query::Command(command)),
        args.config.as_deref(),
    ) {
        Ok(rows) => {
            let said = rows.iter().filter_map(|row| row["done"].as_str());
            stdout::print(&said.map(|line| format!("{line}\n")).collect::<String>())
        }
        Err(error) => {
            eprintln!("bftrainer: {error}");
            ExitCode::FAILURE
        }
    }
}
