//! A cluster of the tests' own: one schedule, written as each kind of log, is the same pool to
//! all readers, and the replay on it does what the recorded one does. Needs no recorded data.

use bftrainer_controller::replay::{Outcome, Policy, Setup, run, trainers_from_text};
use bftrainer_controller::trace::{Source, Stats, open};
use bftrainer_core::metric::Metric;
use bftrainer_core::replay::{Admission, Guess, Latency, Learns, Objective, Unknown};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const NODES: usize = 24;
const JOBS: usize = 400;
/// 2026-03-01T00:00:00 UTC, when the first job starts.
const BEGIN_S: u64 = 1_772_323_200;

struct Job {
    submit_s: u64,
    start_s: u64,
    end_s: u64,
    nodes: Vec<usize>,
}

/// First come, first served: whoever is first in the queue waits for enough nodes, and so do all
/// behind it. The first job has all nodes, so that each log names them all.
fn schedule() -> Vec<Job> {
    let mut dice = 7u64;
    let mut roll = move |sides: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (dice >> 33) % sides
    };
    let (mut submit_s, mut last_start_s) = (0, 0);
    let mut free_at_s = [0; NODES];
    let mut jobs: Vec<Job> = Vec::new();
    for number in 0..JOBS {
        let (count, run_s) = match number {
            0 => (NODES, 600),
            _ => (1 + roll(16) as usize, 60 + roll(7200)),
        };
        let mut nodes: Vec<usize> = (0..NODES).collect();
        nodes.sort_by_key(|node| (free_at_s[*node].max(submit_s), *node));
        nodes.truncate(count);
        let ready_s = nodes.iter().map(|node| free_at_s[*node]).max();
        let start_s = ready_s.unwrap_or(0).max(submit_s).max(last_start_s);
        nodes.sort_unstable();
        for node in &nodes {
            free_at_s[*node] = start_s + run_s;
        }
        jobs.push(Job {
            submit_s,
            start_s,
            end_s: start_s + run_s,
            nodes,
        });
        (submit_s, last_start_s) = (submit_s + roll(2400), start_s);
    }
    jobs
}

fn transitions(jobs: &[Job]) -> String {
    let mut changes: Vec<(u64, usize, i32)> = Vec::new();
    for job in jobs {
        for node in &job.nodes {
            changes.extend([(job.start_s, *node, 1), (job.end_s, *node, -1)]);
        }
    }
    changes.sort_unstable();
    let mut text = "time,node,state\n".to_owned();
    for (time_s, node, change) in changes {
        let state = if change > 0 { "busy" } else { "idle" };
        writeln!(text, "{},n{node:02},{state}", BEGIN_S + time_s).unwrap();
    }
    text
}

fn sacct(jobs: &[Job]) -> String {
    let time = |seconds: u64| {
        let time = jiff::Timestamp::from_second((BEGIN_S + seconds) as i64).unwrap();
        time.to_zoned_datetime(jiff::tz::TimeZone::UTC)
            .datetime()
            .to_string()
    };
    let mut text = "JobID|State|Start|End|NodeList\n".to_owned();
    for (number, job) in jobs.iter().enumerate() {
        let nodes: Vec<String> = job.nodes.iter().map(|node| format!("{node:02}")).collect();
        let (start, end) = (time(job.start_s), time(job.end_s));
        let nodes = nodes.join(",");
        writeln!(text, "{}|COMPLETED|{start}|{end}|n[{nodes}]", number + 1).unwrap();
    }
    text
}

/// Nodes of four processors.
fn swf(jobs: &[Job]) -> String {
    let mut text = format!("; UnixStartTime: {BEGIN_S}\n; MaxProcs: {}\n", 4 * NODES);
    for (number, job) in jobs.iter().enumerate() {
        let (wait_s, run_s) = (job.start_s - job.submit_s, job.end_s - job.start_s);
        let (number, procs) = (number + 1, 4 * job.nodes.len());
        writeln!(
            text,
            "{number} {} {wait_s} {run_s} {procs} -1 -1 {procs} {run_s} -1 1 1 1 1 1 -1 -1 -1",
            job.submit_s
        )
        .unwrap();
    }
    text
}

fn source(path: PathBuf) -> Source {
    Source {
        procs_per_node: 4,
        ..Source::new(path)
    }
}

fn written(folder: &Path) -> [PathBuf; 3] {
    let jobs = schedule();
    let logs = [
        ("log.csv", transitions(&jobs)),
        ("log.txt", sacct(&jobs)),
        ("log.swf", swf(&jobs)),
    ];
    logs.map(|(name, text)| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    })
}

#[test]
fn each_kind_of_log_tells_of_the_same_pool() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = schedule();
    let busy_node_s: u64 = jobs
        .iter()
        .map(|job| job.nodes.len() as u64 * (job.end_s - job.start_s))
        .sum();
    let span_s = jobs.iter().map(|job| job.end_s).max().unwrap();
    let idle_node_s = (NODES as u64 * span_s - busy_node_s) as f64;
    for path in written(folder.path()) {
        let stats = Stats::of(open(&source(path.clone())).unwrap()).unwrap();
        assert_eq!(stats.nodes, NODES, "{path:?}");
        assert_eq!(stats.from, BEGIN_S as f64, "{path:?}");
        assert_eq!(stats.span_s, span_s as f64, "{path:?}");
        assert_eq!(stats.idle_node_s, idle_node_s, "{path:?}");
    }
}

const TRAINERS: &str = r#"
[[trainer]]
name = "net"
count = 20
min = 1
max = 8
samples = 2e6
up_s = 18
down_s = 12
curve = [[1, 100], [2, 190], [4, 360], [8, 600]]
"#;

fn replayed(path: &Path, policy: Policy, unknown: Option<Unknown>) -> Outcome {
    let setup = Setup {
        unknown,
        judge: policy == Policy::Bftrainer,
        source: source(path.to_owned()),
        policy,
        horizon_s: 60.0,
        objective: Objective::Metric(Metric::Throughput),
        admission: Admission::AtMost(10),
        repeat: true,
        latency: Latency::default(),
        efficiency: true,
    };
    let trainers = |start_s| trainers_from_text(Path::new("t.toml"), TRAINERS, start_s);
    run(&setup, trainers, &mut ()).unwrap()
}

#[test]
fn samples_and_node_time_add_up_and_ours_gains_most() {
    let folder = tempfile::tempdir().unwrap();
    let [path, ..] = written(folder.path());
    let policies = [Policy::Bftrainer, Policy::Paper, Policy::EqualShare];
    let [ours, paper, equal_share] = policies.map(|policy| {
        let outcome = replayed(&path, policy, None);
        let tally = &outcome.tally;
        assert!(tally.used_node_s <= tally.usable_node_s, "{policy:?}");
        assert!(tally.usable_node_s <= tally.idle_node_s, "{policy:?}");
        let efficiency = outcome.efficiency().unwrap();
        assert!((0.5..1.0).contains(&efficiency), "{policy:?}: {efficiency}");
        tally.clone()
    });
    let lost = ours.preemption_samples + ours.rescale_samples + ours.overshoot_samples;
    let whole = ours.samples + lost;
    assert!((whole / ours.gross_samples - 1.0).abs() < 1e-9);
    assert_eq!(ours.overshoot_samples, 0.0);
    assert!(ours.samples > paper.samples && ours.samples > equal_share.samples);
}

#[test]
fn decisions_are_worth_less_the_less_is_known_and_never_more_than_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let [path, ..] = written(folder.path());
    let guess = Unknown {
        learns: Learns::Never,
        guess: Guess::Linear,
        noise: 0.0,
    };
    let [known, guessed] = [None, Some(guess)].map(|unknown| {
        let outcome = replayed(&path, Policy::Bftrainer, unknown);
        outcome.decision_value().unwrap()
    });
    assert!(known > 0.9 && known <= 1.0, "{known}");
    assert!(guessed < known, "{guessed} {known}");
    assert_eq!(replayed(&path, Policy::Paper, None).decision_value(), None);
}
