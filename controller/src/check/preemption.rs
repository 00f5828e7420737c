//! Whether Slurm gives regular jobs the trainers' nodes at once.

use bftrainer::sys;

use super::Severity::{Error, Note, Warning};
use super::{Findings, Subject};

/// Seconds after KillWait in which slurmd has killed what ignored SIGTERM
/// (measured: 32.6 s at KillWait=30, 7.5 s at 5).
const AFTER_KILL_WAIT_S: u32 = 3;

/// KillWait beyond which it is worth a warning, seconds; Slurm's default is 30.
const LONG_KILL_WAIT_S: u32 = 60;

pub(super) fn check(subject: &Subject<'_>, findings: &mut Findings) {
    preempt_type(subject, findings);
    preempt_mode(subject, findings);
    priority_tiers(subject, findings);
    waits(subject, findings);
}

fn preempt_type(subject: &Subject<'_>, findings: &mut Findings) {
    let found = subject.site.conf.preempt_type.as_str();
    let means = match found {
        "preempt/partition_prio" => return,
        "preempt/qos" => "preemption by QOS is not tested with trainers, so it is refused",
        _ => "regular jobs would wait for trainers",
    };
    let found = if found.is_empty() {
        "preempt/none"
    } else {
        found
    };
    let remedy = "PreemptType=preempt/partition_prio";
    findings.add(Error, "PreemptType", found, means, remedy);
}

fn preempt_mode(subject: &Subject<'_>, findings: &mut Findings) {
    let name = &subject.ours.name;
    let cluster = subject.site.conf.preempt_mode;
    let mode = subject.ours.preempt_mode.unwrap_or(cluster);
    if mode & sys::PREEMPT_MODE_REQUEUE == 0 {
        findings.add(
            Error,
            format!("partition {name}: PreemptMode"),
            mode_name(mode),
            "regular jobs would wait for trainers, or trainers be lost when preempted",
            format!("PartitionName={name} ... PreemptMode=REQUEUE"),
        );
    }
    if cluster & sys::PREEMPT_MODE_REQUEUE == 0 {
        findings.add(
            Error,
            "PreemptMode",
            mode_name(cluster),
            "a partition's PreemptMode=REQUEUE is only sure to work where the cluster's is the same",
            "PreemptMode=REQUEUE",
        );
    } else if cluster & sys::PREEMPT_MODE_GANG != 0 {
        findings.add(
            Warning,
            "PreemptMode",
            mode_name(cluster),
            "gang scheduling is not tested with trainers",
            "PreemptMode=REQUEUE",
        );
    }
    let exempt_s = subject.site.conf.preempt_exempt_s;
    if exempt_s > 0 {
        findings.add(
            Error,
            "PreemptExemptTime",
            format!("{exempt_s} s"),
            "a regular job would wait this long for a trainer that has just been placed",
            "PreemptExemptTime=00:00:00",
        );
    }
}

fn mode_name(mode: u32) -> String {
    let names = [
        (sys::PREEMPT_MODE_SUSPEND, "SUSPEND"),
        (sys::PREEMPT_MODE_REQUEUE, "REQUEUE"),
        (sys::PREEMPT_MODE_CANCEL, "CANCEL"),
        (sys::PREEMPT_MODE_WITHIN, "WITHIN"),
        (sys::PREEMPT_MODE_GANG, "GANG"),
    ];
    let names: Vec<&str> = names
        .iter()
        .filter(|(bit, _)| mode & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    if names.is_empty() {
        "OFF".to_owned()
    } else {
        names.join(",")
    }
}

fn priority_tiers(subject: &Subject<'_>, findings: &mut Findings) {
    let ours = subject.ours;
    let not_above = subject
        .neighbours()
        .filter(|other| other.priority_tier <= ours.priority_tier);
    for other in not_above {
        let remedy = if ours.priority_tier > 0 {
            format!("PartitionName={} ... PriorityTier=0", ours.name)
        } else {
            format!("PartitionName={} ... PriorityTier=10", other.name)
        };
        let name = &other.name;
        findings.add(
            Error,
            format!("partition {}: PriorityTier", ours.name),
            format!(
                "{} is not below {}, that of {name}, which has nodes in common",
                ours.priority_tier, other.priority_tier
            ),
            format!("jobs in {name} would wait for trainers"),
            remedy,
        );
    }
    if subject.neighbours().next().is_none() {
        findings.add(
            Warning,
            format!("partition {}: Nodes", ours.name),
            "no other partition has any of these nodes",
            "there are no holes of other jobs to fill",
            format!(
                "PartitionName={} Nodes=... the nodes of the regular partitions",
                ours.name
            ),
        );
    }
}

fn waits(subject: &Subject<'_>, findings: &mut Findings) {
    let ours = subject.ours;
    let kill_wait_s = subject.site.conf.kill_wait_s;
    if ours.grace_s > 0 {
        findings.add(
            Warning,
            format!("partition {}: GraceTime", ours.name),
            format!("{} s", ours.grace_s),
            "ranks that ignore SIGTERM hold a node as much longer, and Slurm looks only every \
             30 s whether it is over",
            format!("PartitionName={} ... GraceTime=0", ours.name),
        );
    }
    let is_long = kill_wait_s > LONG_KILL_WAIT_S;
    findings.add(
        if is_long { Warning } else { Note },
        "KillWait",
        format!("{kill_wait_s} s"),
        format!(
            "agents give a node back in a few tenths of a second; ranks that ignore SIGTERM, or \
             whose agent is dead, hold it for {} s",
            kill_wait_s + AFTER_KILL_WAIT_S
        ),
        if is_long { "KillWait=30" } else { "" },
    );
}
