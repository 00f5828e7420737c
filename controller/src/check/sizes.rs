//! Whether Slurm's tables hold the trainers' arrays beside all other jobs.

use super::Severity::{Error, Warning};
use super::{Findings, Subject};

/// Share of MaxJobCount that trainers' tasks may take before it is worth a warning.
const MOST_OF_JOB_TABLE: f64 = 0.8;

/// Ended tasks must be seen before Slurm forgets them, seconds.
const SHORTEST_JOB_AGE_S: u32 = 60;

pub(super) fn check(subject: &Subject<'_>, findings: &mut Findings) {
    let conf = &subject.site.conf;
    let max_tasks = subject.config.max_tasks;
    let raise = format!(
        "MaxJobCount={} in slurm.conf (needs a restart of slurmctld), or a smaller max_tasks in \
         bftrainer.toml",
        max_tasks.saturating_mul(2).max(10_000)
    );
    if max_tasks >= conf.max_job_count {
        findings.add(
            Error,
            "MaxJobCount",
            format!("{}, not above max_tasks ({max_tasks})", conf.max_job_count),
            "trainers' tasks could fill Slurm's job table, and regular jobs be refused",
            raise,
        );
    } else if f64::from(max_tasks) > MOST_OF_JOB_TABLE * f64::from(conf.max_job_count) {
        findings.add(
            Warning,
            "MaxJobCount",
            format!(
                "{}, of which max_tasks leaves {} to other jobs",
                conf.max_job_count,
                conf.max_job_count - max_tasks
            ),
            "when trainers' tasks fill Slurm's job table, regular jobs are refused",
            raise,
        );
    }
    let nodes = subject.ours.nodes.len();
    if (conf.max_array_size as usize) < nodes {
        findings.add(
            Warning,
            "MaxArraySize",
            format!(
                "{}, less than the {nodes} nodes of the partition",
                conf.max_array_size
            ),
            format!("no trainer can use more than {} nodes", conf.max_array_size),
            format!("MaxArraySize={}", nodes + 1),
        );
    }
    if !conf.job_requeue {
        findings.add(
            Warning,
            "JobRequeue",
            "0",
            "a trainer that is tagged by comment without --requeue is refused, as preemption \
             would end its tasks",
            "JobRequeue=1, or have users write --requeue",
        );
    }
    if conf.min_job_age_s < SHORTEST_JOB_AGE_S {
        findings.add(
            Warning,
            "MinJobAge",
            format!("{} s", conf.min_job_age_s),
            "Slurm may forget an ended task before bftrainerd has seen how it ended",
            "MinJobAge=300",
        );
    }
}
