//! The authors' policy and heuristic against logs of their own replayer. The data are read from
//! the folder named in BFTRAINER_DATA, else from ../shared/data beside the repository.

use std::io::Write;
use std::path::{Path, PathBuf};

use bftrainer_controller::replay::{
    Observer, Policy, Replay, ReplayError, Setup, StepLog, read_trainers, run,
};
use bftrainer_controller::trace::{self, NodeChoice, Source, Window, read_node_list};
use bftrainer_core::metric::Metric;
use bftrainer_core::replay::{
    Admission, Latency, Objective, PoolEvent, Published, PublishedPolicy, Queue, Step,
};

/// Where the authors' replays begin.
const START_S: f64 = 1_612_988_475.0;

/// The folder with the recorded data, or `None` after saying that it is missing.
fn data() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let folder = std::env::var_os("BFTRAINER_DATA").map_or(beside, PathBuf::from);
    if folder.join("summit-2021-idle-events.csv.gz").is_file() {
        return Some(folder);
    }
    // Unlike println!, this is shown without --nocapture, too.
    let _ = writeln!(
        std::io::stderr(),
        "no recorded data in {}: set BFTRAINER_DATA to compare with the authors' replays",
        folder.display()
    );
    None
}

/// A log of the first `nodes` nodes.
fn source(data: &Path, name: &str, nodes: usize) -> Source {
    Source {
        choice: NodeChoice {
            list: Some(read_node_list(&data.join("summit-2021-nodes.txt")).unwrap()),
            first: Some(nodes),
        },
        ..Source::new(data.join(format!("summit-2021-{name}.csv.gz")))
    }
}

struct Reference {
    file: &'static str,
    trainers: &'static str,
    nodes: usize,
    states: u64,
    horizon_s: f64,
    policy: Policy,
    objective: Objective,
}

/// The runs of reference/index.csv, each with at most ten trainers at once.
const REFERENCES: [Reference; 6] = [
    Reference {
        file: "r1-hps1000-64n-300ev-T120-J10.csv",
        trainers: "trainers-hps-shufflenet-1000J.json",
        nodes: 64,
        states: 300,
        horizon_s: 120.0,
        policy: Policy::Paper,
        objective: Objective::File,
    },
    Reference {
        file: "r2-imgps-64n-300ev-T60-J10.csv",
        trainers: "trainers-ImageNet-imgps-1001J.json",
        nodes: 64,
        states: 300,
        horizon_s: 60.0,
        policy: Policy::Paper,
        objective: Objective::File,
    },
    Reference {
        file: "r3-spdup-256n-200ev-T300-J10.csv",
        trainers: "trainers-ImageNet-spdup-1001J.json",
        nodes: 256,
        states: 200,
        horizon_s: 300.0,
        policy: Policy::Paper,
        objective: Objective::Metric(Metric::Speedup { exponent: 1.0 }),
    },
    Reference {
        file: "r4-hps10-64n-1000ev-T30-J10.csv",
        trainers: "trainers-hps-shufflenet-10J.json",
        nodes: 64,
        states: 1000,
        horizon_s: 30.0,
        policy: Policy::Paper,
        objective: Objective::File,
    },
    Reference {
        file: "r5-hps1000-64n-300ev-equalshare-J10.csv",
        trainers: "trainers-hps-shufflenet-1000J.json",
        nodes: 64,
        states: 300,
        horizon_s: 10.0,
        policy: Policy::EqualShare,
        objective: Objective::File,
    },
    Reference {
        file: "r6-hps1000-64n-1000ev-T120-J10.csv",
        trainers: "trainers-hps-shufflenet-1000J.json",
        nodes: 64,
        states: 1000,
        horizon_s: 120.0,
        policy: Policy::Paper,
        objective: Objective::File,
    },
];

struct Log(Option<StepLog>);

impl Observer for Log {
    fn step(&mut self, step: &Step, _: &Replay) -> Result<(), ReplayError> {
        self.0.as_mut().unwrap().write(step).unwrap();
        Ok(())
    }
}

fn rows(path: &Path) -> Vec<Vec<f64>> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    let header = reader
        .headers()
        .unwrap()
        .iter()
        .collect::<Vec<_>>()
        .join(",");
    assert_eq!(
        header,
        "time,Thr,Rate,ReScost,evt,Nleft,Npre,Njoin,nJob,nNd,nJrun,nNrun,PreCost"
    );
    let numbers = |row: csv::StringRecord| row.iter().map(|x| x.parse().unwrap()).collect();
    reader.records().map(|row| numbers(row.unwrap())).collect()
}

#[test]
fn the_authors_logs_are_reproduced_row_by_row() {
    let Some(data) = data() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for reference in REFERENCES {
        let setup = Setup {
            source: Source {
                window: Window {
                    from_s: Some(START_S),
                    states: Some(reference.states),
                    until_s: None,
                },
                // A thousand events on 64 nodes take longer than a day.
                ..match reference.states {
                    1000 => source(&data, "64n-1000ev", reference.nodes),
                    _ => source(&data, "1day", reference.nodes),
                }
            },
            policy: reference.policy,
            horizon_s: reference.horizon_s,
            objective: reference.objective,
            admission: Admission::AtMost(10),
            repeat: false,
            latency: Latency::default(),
            unknown: None,
            judge: false,
            efficiency: false,
        };
        let path = folder.path().join(reference.file);
        let mut log = Log(Some(StepLog::create(&path).unwrap()));
        let trainers = data.join(reference.trainers);
        run(
            &setup,
            |start_s| read_trainers(&trainers, start_s),
            &mut log,
        )
        .unwrap();
        log.0.take().unwrap().finish().unwrap();

        let (ours, theirs) = (
            rows(&path),
            rows(&data.join("reference").join(reference.file)),
        );
        assert_eq!(ours.len(), theirs.len(), "{}", reference.file);
        for (ours, theirs) in ours.iter().zip(&theirs) {
            for (a, b) in ours.iter().zip(theirs) {
                // Both logs are written with six decimals.
                let near = (a - b).abs() <= 1e-9 * b.abs() + 1.1e-6;
                assert!(near, "{}: {ours:?} is not {theirs:?}", reference.file);
            }
        }
    }
}

/// A part of the log in memory, so that it is read once for many replays.
struct Recorded {
    idle: Vec<bftrainer_core::node::NodeId>,
    events: Vec<PoolEvent>,
}

fn record(data: &Path, nodes: usize) -> Recorded {
    let source = Source {
        window: Window {
            from_s: Some(START_S),
            ..Window::default()
        },
        ..source(data, "idle-events", nodes)
    };
    let trace = trace::open(&source).unwrap();
    Recorded {
        idle: trace.idle.iter().map(|(node, _)| *node).collect(),
        events: trace.map(Result::unwrap).collect(),
    }
}

/// Every so many rows of the sweep are compared: 49 runs of the whole trace.
const EVERY: usize = 5;

#[test]
fn totals_of_whole_traces_are_the_authors() {
    let Some(data) = data() else {
        return;
    };
    let recorded = [1024, 4734].map(|nodes| (nodes, record(&data, nodes)));
    let mut reader = csv::Reader::from_path(data.join("reference/summary-sweep.csv")).unwrap();
    let header = reader.headers().unwrap().clone();
    let column = |name: &str| header.iter().position(|field| field == name).unwrap();
    let [queue, scenario, nodes, most, policy, horizon, samples] = [
        "queue", "scenario", "nodes", "maxJ", "policy", "Tfwd", "samples",
    ]
    .map(column);
    let rows: Vec<csv::StringRecord> = reader
        .records()
        .map(Result::unwrap)
        .filter(|row| row[queue].starts_with("as_is") || row[queue].starts_with("endless ("))
        .step_by(EVERY)
        .collect();
    assert!(rows.len() >= 40);
    let compare = |row: &csv::StringRecord| {
        let number = |index: usize| row[index].parse::<f64>().unwrap();
        let trainers = data.join(format!("trainers-{}.json", &row[scenario]));
        let specs = read_trainers(&trainers, START_S).unwrap();
        let endless = row[queue].starts_with("endless");
        let queue = Queue::new(specs, endless);
        let policy = match &row[policy] {
            "milp" => PublishedPolicy::Optimal {
                horizon_s: number(horizon),
                objective: Objective::File,
            },
            _ => PublishedPolicy::EqualShare,
        };
        let recorded = recorded
            .iter()
            .find(|(count, _)| *count as f64 == number(nodes));
        let (_, recorded) = recorded.unwrap();
        let most = number(most) as usize;
        let mut replay = Published::new(policy, most, queue, START_S, &recorded.idle);
        for event in &recorded.events {
            replay.step(event);
            if replay.is_done() {
                break;
            }
        }
        let ratio = replay.tally().samples / number(samples);
        // Runs on endless lists were made with other ties, which 14 days amplify.
        let tolerance = if endless { 0.006 } else { 1e-6 };
        let near = (ratio - 1.0).abs() < tolerance;
        assert!(near, "{row:?}: {ratio} of the samples");
    };
    std::thread::scope(|scope| {
        for half in rows.chunks(rows.len().div_ceil(2)) {
            scope.spawn(move || half.iter().for_each(compare));
        }
    });
}
