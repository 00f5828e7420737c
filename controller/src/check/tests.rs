//! The rules against made-up sites: a good one is clean, and each fault of it
//! is named.

use super::*;
use crate::config::Config;
use crate::slurm::SiteConf;
use bftrainer::sys;

fn partition(name: &str, tier: u32) -> PartitionRecord {
    PartitionRecord {
        name: name.to_owned(),
        nodes: vec!["n1".to_owned(), "n2".to_owned()],
        priority_tier: tier,
        preempt_mode: Some(sys::PREEMPT_MODE_REQUEUE),
        grace_s: 0,
        shares_nodes: false,
        forces_sharing: false,
        default_time: Some(None),
        max_time: None,
        min_nodes: 1,
        qos: String::new(),
        suspends: false,
        is_up: true,
    }
}

fn good_site() -> Site {
    Site {
        conf: SiteConf {
            slurm_conf: "/etc/slurm/slurm.conf".into(),
            version: "22.05.8".to_owned(),
            slurm_user: "slurm".to_owned(),
            slurm_user_uid: 64_030,
            preempt_type: "preempt/partition_prio".to_owned(),
            preempt_mode: sys::PREEMPT_MODE_REQUEUE,
            preempt_exempt_s: 0,
            kill_wait_s: 30,
            prolog_at_allocation: true,
            max_array_size: 1001,
            max_job_count: 10_000,
            min_job_age_s: 300,
            job_requeue: true,
            priority_type: "priority/basic".to_owned(),
            fair_share_weight: 0,
            accounting_type: String::new(),
            accounting_enforce: 0,
            scheduler_type: "sched/backfill".to_owned(),
            scheduler_parameters: "batch_sched_delay=0".to_owned(),
            select_type: "select/cons_tres".to_owned(),
            can_suspend: false,
            suspends: false,
            suspend_except: Vec::new(),
            plugstack: "/etc/slurm/plugstack.conf".into(),
            plugin_dirs: Vec::new(),
        },
        partitions: vec![partition("batch", 10), partition("bftrainer", 1)],
        nodes: vec![("n1".to_owned(), "127.0.0.1".to_owned())],
        slurmctld_time_s: 0,
    }
}

fn judged(site: &Site) -> Vec<Finding> {
    let config = Config::parse("", Path::new("b.toml")).unwrap();
    let mut findings = Findings::default();
    judge_site(&config, site, &mut findings);
    findings.into_sorted()
}

#[test]
fn an_excluded_node_list_that_is_none_is_an_error() {
    let site = good_site();
    for list in ["n[1-", "n[x-y]", "n1-3]"] {
        let text = format!("exclude_nodes = [\"{list}\"]\n");
        let config = Config::parse(&text, Path::new("b.toml")).unwrap();
        let mut findings = Findings::default();
        judge_site(&config, &site, &mut findings);
        let found = findings.into_sorted();
        let expected = format!("\"{list}\" is no host list");
        assert_eq!(
            (found[0].severity, &found[0].finding),
            (Severity::Error, &expected)
        );
    }
}

#[test]
fn a_good_site_gets_the_note_on_kill_wait_alone() {
    let findings = judged(&good_site());
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].severity, Severity::Note);
    assert!(findings[0].means.contains("33 s"), "{findings:?}");
}

#[test]
fn every_fault_is_found_with_its_severity_and_a_remedy() {
    type Spoil = fn(&mut Site);
    let faults: &[(Spoil, Severity, &str, &str)] = &[
        (
            |s| s.partitions.truncate(1),
            Severity::Error,
            "partition bftrainer",
            "PartitionName=",
        ),
        (
            |s| s.conf.preempt_type.clear(),
            Severity::Error,
            "PreemptType",
            "partition_prio",
        ),
        (
            |s| s.conf.preempt_type = "preempt/qos".to_owned(),
            Severity::Error,
            "PreemptType",
            "partition_prio",
        ),
        (
            |s| s.conf.preempt_mode = sys::PREEMPT_MODE_CANCEL,
            Severity::Error,
            "PreemptMode",
            "PreemptMode=REQUEUE",
        ),
        (
            |s| s.partitions[1].preempt_mode = Some(0),
            Severity::Error,
            "partition bftrainer: PreemptMode",
            "PreemptMode=REQUEUE",
        ),
        (
            |s| s.conf.preempt_exempt_s = 60,
            Severity::Error,
            "PreemptExemptTime",
            "PreemptExemptTime=",
        ),
        (
            |s| s.partitions[0].priority_tier = 1,
            Severity::Error,
            "partition bftrainer: PriorityTier",
            "PriorityTier=0",
        ),
        (
            |s| s.partitions[0].nodes = vec!["n9".to_owned()],
            Severity::Warning,
            "partition bftrainer: Nodes",
            "Nodes=",
        ),
        (
            |s| s.conf.kill_wait_s = 300,
            Severity::Warning,
            "KillWait",
            "KillWait=30",
        ),
        (
            |s| s.partitions[1].grace_s = 10,
            Severity::Warning,
            "partition bftrainer: GraceTime",
            "GraceTime=0",
        ),
        (
            |s| s.partitions[1].is_up = false,
            Severity::Warning,
            "partition bftrainer: State",
            "State=UP",
        ),
        (
            |s| s.partitions[1].forces_sharing = true,
            Severity::Error,
            "partition bftrainer: OverSubscribe",
            "OverSubscribe=NO",
        ),
        (
            |s| s.partitions[1].max_time = Some(5),
            Severity::Warning,
            "partition bftrainer: MaxTime",
            "MaxTime=UNLIMITED",
        ),
        (
            |s| s.conf.max_job_count = 8000,
            Severity::Error,
            "MaxJobCount",
            "MaxJobCount=",
        ),
        (
            |s| s.conf.max_array_size = 1,
            Severity::Warning,
            "MaxArraySize",
            "MaxArraySize=3",
        ),
        (
            |s| s.conf.job_requeue = false,
            Severity::Warning,
            "JobRequeue",
            "JobRequeue=1",
        ),
        (
            |s| s.conf.min_job_age_s = 2,
            Severity::Warning,
            "MinJobAge",
            "MinJobAge=300",
        ),
        (
            |s| s.conf.prolog_at_allocation = false,
            Severity::Warning,
            "PrologFlags",
            "PrologFlags=Alloc",
        ),
        (
            |s| (s.conf.can_suspend, s.conf.suspends) = (true, true),
            Severity::Error,
            "SuspendTime",
            "SuspendExcParts=bftrainer",
        ),
        (
            |s| (s.conf.can_suspend, s.partitions[0].suspends) = (true, true),
            Severity::Error,
            "SuspendTime",
            "SuspendExcParts=bftrainer",
        ),
        (
            |s| s.conf.scheduler_parameters = "defer".to_owned(),
            Severity::Warning,
            "SchedulerParameters: defer",
            "without defer",
        ),
        (
            |s| {
                s.conf.priority_type = "priority/multifactor".to_owned();
                s.conf.fair_share_weight = 1000;
            },
            Severity::Warning,
            "partition bftrainer: QOS",
            "UsageFactor=0",
        ),
    ];
    for (spoil, severity, item, remedy) in faults {
        let mut site = good_site();
        spoil(&mut site);
        let findings = judged(&site);
        let found = findings
            .iter()
            .any(|f| f.severity == *severity && f.item == *item && f.remedy.contains(remedy));
        assert!(found, "{item}: {findings:#?}");
    }
}

#[test]
fn nodes_that_power_saving_leaves_alone_are_fine() {
    let mut site = good_site();
    site.conf.suspends = true;
    assert_eq!(judged(&site).len(), 1, "there is no SuspendProgram");
    site.conf.can_suspend = true;
    site.conf.suspend_except = vec!["bftrainer".to_owned()];
    assert_eq!(judged(&site).len(), 1);
}

#[test]
fn only_errors_that_may_all_pass_are_waited_for() {
    let found = |severities: &[(Severity, bool)]| {
        let mut findings = Findings::default();
        for (severity, may_pass) in severities {
            let item = may_pass.to_string();
            findings.add(*severity, item, "", "", "");
            findings.last_may_pass(*may_pass);
        }
        passing(&findings.0).map(|finding| finding.item.clone())
    };
    let (error, warning) = (Severity::Error, Severity::Warning);
    assert_eq!(found(&[]), None);
    assert_eq!(found(&[(warning, false)]), None);
    assert_eq!(found(&[(error, false)]), None);
    assert_eq!(found(&[(error, true), (error, false)]), None);
    let passes = Some("true".to_owned());
    assert_eq!(found(&[(warning, false), (error, true)]), passes);
}
