//! What of Slurm's scheduling delays placements or hides plans, and what is
//! refused until it has been tested.

use super::Severity::{Error, Note, Warning};
use super::{Findings, Subject};
use crate::slurm::option_value;

/// Slurm's defaults (slurm.conf(5), SchedulerParameters).
const DEFAULT_BATCH_SCHED_DELAY_S: f64 = 3.0;
const DEFAULT_BF_INTERVAL_S: f64 = 30.0;

/// A longer sched_min_interval delays placements, microseconds.
const LONG_SCHED_INTERVAL_US: f64 = 1e6;

const FAST: &str = "SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000";

pub(super) fn check(subject: &Subject<'_>, findings: &mut Findings) {
    parameters(subject, findings);
    plugins(subject, findings);
    power_saving(subject, findings);
}

fn parameters(subject: &Subject<'_>, findings: &mut Findings) {
    let parameters = &subject.site.conf.scheduler_parameters;
    let number = |name| option_value(parameters, name).and_then(|v| v.parse::<f64>().ok());
    let batch_delay_s = number("batch_sched_delay").unwrap_or(DEFAULT_BATCH_SCHED_DELAY_S);
    if batch_delay_s > 0.0 {
        findings.add(
            if batch_delay_s > DEFAULT_BATCH_SCHED_DELAY_S {
                Warning
            } else {
                Note
            },
            "SchedulerParameters: batch_sched_delay",
            format!("{batch_delay_s} s"),
            "a placement starts up to that much later than it could",
            FAST,
        );
    }
    let interval_us = number("sched_min_interval").unwrap_or(0.0);
    if interval_us > LONG_SCHED_INTERVAL_US {
        findings.add(
            Warning,
            "SchedulerParameters: sched_min_interval",
            format!("{interval_us} microseconds"),
            "a placement starts up to that much later than it could",
            FAST,
        );
    }
    if parameters.split(',').any(|word| word.trim() == "defer") {
        findings.add(
            Warning,
            "SchedulerParameters: defer",
            "set",
            "a placement waits for Slurm's next scheduling cycle; not tested with trainers",
            "SchedulerParameters= without defer",
        );
    }
    let backfill_s = number("bf_interval").unwrap_or(DEFAULT_BF_INTERVAL_S);
    if backfill_s > DEFAULT_BF_INTERVAL_S {
        findings.add(
            Warning,
            "SchedulerParameters: bf_interval",
            format!("{backfill_s} s"),
            "planned starts are known that late, and nodes with a planned start are used that late",
            "SchedulerParameters=bf_interval=30",
        );
    }
}

fn plugins(subject: &Subject<'_>, findings: &mut Findings) {
    let conf = &subject.site.conf;
    if !conf.prolog_at_allocation {
        findings.add(
            Warning,
            "PrologFlags",
            "Alloc is missing",
            "a job's nodes send their hints at its first step only, or never: what it takes is \
             seen at the next look",
            "PrologFlags=Alloc",
        );
    }
    if conf.scheduler_type != "sched/backfill" {
        findings.add(
            Warning,
            "SchedulerType",
            conf.scheduler_type.as_str(),
            "no job's start is planned, so trainers never leave ahead of one: each is preempted",
            "SchedulerType=sched/backfill",
        );
    }
    if conf.select_type == "select/linear" {
        findings.add(
            Warning,
            "SelectType",
            conf.select_type.as_str(),
            "not tested with trainers",
            "SelectType=select/cons_tres",
        );
    }
}

fn power_saving(subject: &Subject<'_>, findings: &mut Findings) {
    let conf = &subject.site.conf;
    let name = &subject.ours.name;
    let mut partitions = subject.neighbours().chain([subject.ours]);
    let suspends = conf.suspends || partitions.any(|partition| partition.suspends);
    if conf.can_suspend && suspends && !conf.suspend_except.contains(name) {
        findings.add(
            Error,
            "SuspendTime",
            "idle nodes are powered down",
            "trainers would keep nodes powered, and power them up: not tested, so it is refused",
            format!("SuspendExcParts={name}"),
        );
    }
}
