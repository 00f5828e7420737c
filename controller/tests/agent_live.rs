//! Live ranks: the real binary goes on through generations as the controller tells them.
#![cfg(feature = "slurm")]

mod support;

use std::collections::BTreeMap;

use bftrainer::wire::{FromAgent, Outcome, ToAgent};
use support::agent::{Task, lives};
use support::controller::{Peer, SUBMIT_TIME_S, start};
use support::stage::Stage;
use support::{DEADLINE, until};

/// Writes its pid once its handlers are there, then a line for each signal.
const PROGRAM: &str = r#"trap 'echo notified >> signals' USR1
    trap 'echo leaving >> signals; exit 143' TERM
    echo $$ >> pids; while :; do sleep 0.02; done"#;

/// A live task that runs `script`, and its welcomed agent.
async fn live(stage: &Stage, script: &str) -> (Task, Peer) {
    let address = stage.controller.address();
    let arguments = [
        "run", "--live", "--notify", "USR1", "--", "sh", "-c", script,
    ];
    let task = stage.dir.setup(&stage.munged, &address, arguments).run();
    let peer = stage.controller.welcomed().await;
    assert!(peer.join.live);
    (task, peer)
}

async fn told(agent: &mut Peer, generation: u64, node_rank: u32, nodes: &[&str]) {
    let message = start(generation, node_rank, nodes);
    agent.send(ToAgent::Start(message)).await;
    agent.started(generation).await;
}

fn hosts(stage: &Stage) -> String {
    std::fs::read_to_string(stage.dir.control("hostfile")).unwrap()
}

async fn lines(stage: &Stage, name: &str, count: usize) -> Vec<String> {
    until(&format!("{name} has {count} lines"), || {
        let lines = stage.dir.lines(name);
        (lines.len() == count).then_some(lines)
    })
    .await
}

#[tokio::test]
async fn ranks_go_on_and_are_notified_of_a_new_host_file() {
    let stage = Stage::set().await;
    let (_task, mut agent) = live(&stage, PROGRAM).await;
    told(&mut agent, 1, 0, &["n1"]).await;
    let pid = stage.dir.line("pids").await;
    told(&mut agent, 2, 0, &["n1", "n2"]).await;
    assert_eq!(hosts(&stage), "# generation 2\nn1:1\nn2:1\n");
    lines(&stage, "signals", 1).await;
    told(&mut agent, 3, 0, &["n1"]).await;
    assert_eq!(hosts(&stage), "# generation 3\nn1:1\n");
    assert_eq!(lines(&stage, "signals", 2).await, ["notified", "notified"]);
    // Told again it says so again.
    told(&mut agent, 3, 0, &["n1"]).await;
    let on_disk = std::fs::read_to_string(stage.dir.control("generation")).unwrap();
    assert_eq!(on_disk, "3\n");
    // It may have missed a generation.
    agent.stop(4, DEADLINE.as_secs_f64()).await;
    assert_eq!(agent.stopped(4).await, Outcome::Stopped);
    assert_eq!(stage.dir.lines("pids"), [pid]);
    assert_eq!(stage.dir.lines("signals")[2..], ["leaving"]);
    told(&mut agent, 5, 0, &["n1"]).await;
    lines(&stage, "pids", 2).await;
}

#[tokio::test]
async fn ranks_that_do_not_catch_the_signal_yet_are_not_killed_by_it() {
    let stage = Stage::set().await;
    let script = r#"echo $$ >> pids; while [ ! -e go ]; do sleep 0.02; done; exit 0"#;
    let (_task, mut agent) = live(&stage, script).await;
    told(&mut agent, 1, 0, &["n1"]).await;
    stage.dir.line("pids").await;
    for generation in 2..6 {
        told(&mut agent, generation, 0, &["n1"]).await;
    }
    std::fs::write(stage.dir.path().join("go"), "").unwrap();
    assert_eq!(agent.stopped(5).await, Outcome::Exited);
}

#[tokio::test]
async fn the_environment_says_live_and_nothing_that_changes() {
    let stage = Stage::set().await;
    let script = "env -0 > env.new; mv env.new env; exec sleep 900";
    let address = stage.controller.address();
    let arguments = ["run", "--live", "--", "sh", "-c", script];
    let setup = stage.dir.setup(&stage.munged, &address, arguments);
    let setup = setup.with("MASTER_ADDR", "n9").with("RANK", "4");
    stage.dir.make_control(SUBMIT_TIME_S, 6);
    let _task = setup.run();
    let mut agent = stage.controller.welcomed().await;
    told(&mut agent, 7, 1, &["n0", "n1"]).await;
    let text = until("the environment", || {
        std::fs::read_to_string(stage.dir.path().join("env")).ok()
    })
    .await;
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    let found: BTreeMap<&str, &str> = pairs.collect();
    for (name, value) in [
        ("BFT_MODE", Some("live")),
        ("BFT_GENERATION", Some("7")),
        ("BFT_NODE", Some("n1")),
        ("BFT_NODE_ADDR", Some("127.0.0.2")),
        ("BFT_NODE_RANK", Some("1")),
        ("MASTER_ADDR", None),
        ("MASTER_PORT", None),
        ("RANK", None),
        ("WORLD_SIZE", None),
    ] {
        assert_eq!(found.get(name).copied(), value, "{name}");
    }
}

#[tokio::test]
async fn who_becomes_rank_0_reports_is_logged_and_decides() {
    let stage = Stage::set().await;
    let script = r#"trap 'echo heard >> signals' USR1; echo $$ >> pids; echo before
        while [ ! -s signals ]; do sleep 0.02; done
        echo after; "$BFTRAINER" progress --samples 12; while [ ! -e go ]; do sleep 0.02; done"#;
    let address = stage.controller.address();
    let arguments = [
        "run", "--live", "--notify", "USR1", "--", "sh", "-c", script,
    ];
    let setup = stage.dir.setup(&stage.munged, &address, arguments);
    let setup = setup.with("BFTRAINER", env!("CARGO_BIN_EXE_bftrainer"));
    stage.dir.make_control(SUBMIT_TIME_S, 1);
    let mut task = setup.run();
    let mut agent = stage.controller.welcomed().await;
    told(&mut agent, 1, 1, &["n0", "n1"]).await;
    assert_eq!(stage.dir.line("out").await, "before");
    told(&mut agent, 2, 0, &["n1"]).await;
    let progress = loop {
        if let Some(FromAgent::Progress(progress)) = agent.next().await {
            break progress;
        }
    };
    assert_eq!((progress.samples, progress.generation), (12, Some(2)));
    std::fs::write(stage.dir.path().join("go"), "").unwrap();
    assert_eq!(agent.stopped(2).await, Outcome::Exited);
    let log = std::fs::read_to_string(stage.dir.control("rank0.log")).unwrap();
    assert_eq!(log, "after\n");
    assert_eq!(stage.dir.lines("out"), ["before", "after"]);
    assert!(stage.dir.control("finished").exists());
    agent.send(ToAgent::Close { exit_code: 0 }).await;
    assert_eq!(task.exit_code().await, Some(0));
}

#[tokio::test]
async fn a_node_that_a_newer_host_file_leaves_out_stops_at_once() {
    let stage = Stage::set().await;
    let (_task, mut agent) = live(&stage, PROGRAM).await;
    told(&mut agent, 1, 0, &["n1", "n2"]).await;
    let pid = stage.dir.line("pids").await.parse().unwrap();
    // A generation of which it has not heard, but to which it belongs.
    std::fs::write(
        stage.dir.control("hostfile"),
        "# generation 3\nn2:1\nn1:1\n",
    )
    .unwrap();
    std::fs::write(stage.dir.control("generation"), "3\n").unwrap();
    told(&mut agent, 3, 1, &["n2", "n1"]).await;
    assert!(lives(pid));
    std::fs::write(stage.dir.control("hostfile"), "# generation 4\nn2:1\n").unwrap();
    std::fs::write(stage.dir.control("generation"), "4\n").unwrap();
    let fenced = Outcome::Fenced {
        newest_generation: 4,
    };
    assert_eq!(agent.stopped(3).await, fenced);
    assert!(!lives(pid));
}

#[tokio::test]
async fn an_agent_that_comes_back_tells_of_the_generation_in_which_it_went_on() {
    let stage = Stage::set().await;
    let (_task, mut agent) = live(&stage, PROGRAM).await;
    told(&mut agent, 1, 0, &["n1", "n2"]).await;
    told(&mut agent, 2, 0, &["n1", "n3"]).await;
    let pid: i32 = stage.dir.line("pids").await.parse().unwrap();
    let stage = stage.restart_controller(agent).await;
    let agent = stage.controller.welcomed().await;
    assert_eq!(agent.join.generation, Some(2));
    assert_eq!(agent.join.members, ["n1", "n3"]);
    assert!(lives(pid));
}

#[tokio::test]
async fn a_signal_that_says_something_else_is_refused() {
    let stage = Stage::set().await;
    let arguments = ["run", "--live", "--notify", "TERM", "--", "true"];
    let mut task = stage.dir.setup(&stage.munged, "", arguments).run();
    assert_eq!(task.exit_code().await, Some(2));
    let words = stage.words();
    assert!(
        words.contains("expected USR1, USR2, HUP or WINCH"),
        "{words}"
    );
}
