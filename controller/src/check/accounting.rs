//! Who pays for node-hours in the holes, and what limits hold trainers back.

use std::process::Command;

use super::Severity::{Note, Warning};
use super::{Findings, Subject};
use crate::slurm::ENFORCE_LIMITS;

const FREE: &str = "sacctmgr add qos bftrainer set UsageFactor=0; \
                    PartitionName=... QOS=bftrainer";

pub(super) fn check(subject: &Subject<'_>, findings: &mut Findings) {
    let factor = match subject.ours.qos.as_str() {
        "" => Some(1.0),
        qos => usage_factor(qos),
    };
    fair_share(subject, factor, findings);
    limits(subject, findings);
}

fn fair_share(subject: &Subject<'_>, factor: Option<f64>, findings: &mut Findings) {
    let conf = &subject.site.conf;
    let name = &subject.ours.name;
    let counts = conf.priority_type == "priority/multifactor" && conf.fair_share_weight > 0;
    if !counts || factor == Some(0.0) {
        return;
    }
    let item = format!("partition {name}: QOS");
    match factor {
        Some(factor) => findings.add(
            Warning,
            item,
            if subject.ours.qos.is_empty() {
                "none, and PriorityWeightFairshare is set".to_owned()
            } else {
                format!(
                    "{} has UsageFactor={factor}, and PriorityWeightFairshare is set",
                    subject.ours.qos
                )
            },
            "node-hours in the holes lower their users' fair share: training there costs them \
             priority for regular jobs",
            FREE.replace("PartitionName=...", &format!("PartitionName={name} ...")),
        ),
        None => findings.add(
            Note,
            item,
            format!("sacctmgr does not say what {} counts", subject.ours.qos),
            "with a UsageFactor above 0 node-hours in the holes lower their users' fair share",
            format!("sacctmgr modify qos {} set UsageFactor=0", subject.ours.qos),
        ),
    }
}

fn limits(subject: &Subject<'_>, findings: &mut Findings) {
    if subject.site.conf.accounting_enforce & ENFORCE_LIMITS == 0 {
        return;
    }
    findings.add(
        Note,
        "AccountingStorageEnforce",
        "limits",
        "every task of a trainer counts for MaxSubmitJobs, every running one for MaxJobs and \
         GrpTRES; one that is held back by a limit waits, with the reason in bftrainer queue",
        "sacctmgr modify qos bftrainer set MaxSubmitJobsPerUser=-1 MaxJobsPerUser=-1 \
         Flags+=OverPartQOS where the trainers' own limits shall hold",
    );
}

/// UsageFactor of a QOS by sacctmgr; `None` when it can't be asked.
fn usage_factor(qos: &str) -> Option<f64> {
    let output = Command::new("sacctmgr")
        .args([
            "--noheader",
            "--parsable2",
            "--readonly",
            "show",
            "qos",
            qos,
        ])
        .arg("format=UsageFactor")
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&output.stdout);
    said.trim().parse().ok().filter(|_| output.status.success())
}
