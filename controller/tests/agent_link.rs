//! The agent and its controller: away, back, wrong, silent; fencing, verdicts,
//! progress, and leaving of its own accord.
#![cfg(feature = "slurm")]

mod support;

use std::time::{SystemTime, UNIX_EPOCH};

use bftrainer::wire::{FromAgent, Outcome, Progress, ToAgent};
use support::agent::lives;
use support::controller::{Peer, SUBMIT_TIME_S, joined, start};
use support::stage::Stage;
use support::{DEADLINE, own_uid, until};

/// A rank that writes its pid, then waits for the file `go` and ends as it says.
const WAITS: &str = "echo $$ > pid; until [ -e go ]; do sleep 0.02; done; exit $(cat go)";

async fn running(stage: &Stage, agent: &mut Peer, generation: u64) -> i32 {
    agent.start(generation).await;
    agent.started(generation).await;
    stage.dir.line("pid").await.parse().unwrap()
}

fn now_s() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs() as i64
}

fn limited(end_time_s: Option<i64>) -> ToAgent {
    let mut message = joined();
    if let ToAgent::Joined {
        end_time_s: end, ..
    } = &mut message
    {
        *end = end_time_s;
    }
    message
}

#[tokio::test]
async fn ranks_go_on_while_the_controller_is_away_and_are_reported_on_its_return() {
    let stage = Stage::set().await;
    let (mut task, mut agent) = stage.task(WAITS).await;
    let pid = running(&stage, &mut agent, 3).await;
    let stage = stage.restart_controller(agent).await;
    let mut agent = stage.controller.welcomed().await;
    assert_eq!(agent.join.generation, Some(3));
    assert_eq!(agent.join.members, ["n1"]);
    assert_eq!(agent.join.newest_generation, 3);
    assert_eq!(agent.join.folder_submit_time_s, Some(SUBMIT_TIME_S));
    assert!(lives(pid) && task.is_running());
    agent.stop(3, 0.0).await;
    assert_eq!(agent.stopped(3).await, Outcome::Stopped);
}

#[tokio::test]
async fn a_controller_that_falls_silent_is_connected_anew() {
    let stage = Stage::set().await;
    let (_task, mut silent) = stage.task(WAITS).await;
    let pid = running(&stage, &mut silent, 1).await;
    let mut message = joined();
    if let ToAgent::Joined { heartbeat_s, .. } = &mut message {
        *heartbeat_s = 0.1;
    }
    silent.send(message).await;
    // Its connection stays open, but nothing is answered any more.
    let agent = stage.controller.agent().await;
    assert_eq!(agent.join.generation, Some(1));
    assert!(lives(pid));
    drop(silent);
}

#[tokio::test]
async fn an_end_while_the_controller_was_away_is_told_afterwards() {
    let stage = Stage::set().await;
    let (_task, mut agent) = stage.task(WAITS).await;
    let pid = running(&stage, &mut agent, 3).await;
    let stage = stage.restart_controller(agent).await;
    std::fs::write(stage.dir.path().join("go"), "5").unwrap();
    until("the rank ends", || (!lives(pid)).then_some(())).await;
    loop {
        // It may have joined just before the rank's end was seen.
        let mut agent = stage.controller.welcomed().await;
        let outcome = agent.stopped(3).await;
        assert!(
            matches!(outcome, Outcome::Failed { exit_code: 5, .. }),
            "{outcome:?}"
        );
        if agent.join.generation.is_none() {
            return;
        }
    }
}

#[tokio::test]
async fn a_verdict_is_kept_until_the_controller_closes() {
    let stage = Stage::set().await;
    let (mut task, mut agent) = stage.task(WAITS).await;
    running(&stage, &mut agent, 3).await;
    std::fs::write(stage.dir.path().join("go"), "0").unwrap();
    let mut stage = stage;
    for _ in 0..2 {
        assert_eq!(agent.stopped(3).await, Outcome::Exited);
        stage = stage.restart_controller(agent).await;
        agent = stage.controller.welcomed().await;
        assert_eq!((agent.join.verdict, agent.join.generation), (Some(0), None));
    }
    assert_eq!(agent.stopped(3).await, Outcome::Exited);
    agent.send(ToAgent::Close { exit_code: 0 }).await;
    assert_eq!(task.exit_code().await, Some(0));
}

#[tokio::test]
async fn a_newer_generation_in_the_control_folder_stops_the_ranks_at_once() {
    let stage = Stage::set().await;
    let script = "trap 'echo saved > saved' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let setup = stage
        .dir
        .task(&stage.munged, &stage.controller.address(), script);
    let _task = setup.run();
    let mut agent = stage.controller.agent().await;
    let mut message = joined();
    if let ToAgent::Joined { heartbeat_s, .. } = &mut message {
        *heartbeat_s = 2.0;
    }
    agent.send(message).await;
    let pid = running(&stage, &mut agent, 3).await;
    std::fs::write(stage.dir.control("generation"), "4\n").unwrap();
    let newest_generation = 4;
    assert_eq!(
        agent.stopped(3).await,
        Outcome::Fenced { newest_generation }
    );
    assert!(!lives(pid));
    assert!(stage.dir.lines("saved").is_empty());
}

#[tokio::test]
async fn a_finished_rank_0_of_an_older_generation_ends_nothing() {
    let stage = Stage::set().await;
    let (_task, mut agent) = stage.task(WAITS).await;
    running(&stage, &mut agent, 3).await;
    std::fs::write(stage.dir.control("generation"), "4\n").unwrap();
    std::fs::write(stage.dir.path().join("go"), "0").unwrap();
    let newest_generation = 4;
    assert_eq!(
        agent.stopped(3).await,
        Outcome::Fenced { newest_generation }
    );
    assert!(!stage.dir.control("finished").exists());
}

#[tokio::test]
async fn a_generation_below_the_control_folders_does_not_start() {
    let stage = Stage::set().await;
    stage.dir.make_control(SUBMIT_TIME_S, 9);
    let (_task, mut agent) = stage.task(WAITS).await;
    assert_eq!(agent.join.newest_generation, 9);
    let newest_generation = 9;
    for (generation, node_rank) in [(8, 0), (9, 0)] {
        agent
            .send(ToAgent::Start(start(generation, node_rank, &["n1"])))
            .await;
        let outcome = agent.stopped(generation).await;
        assert_eq!(outcome, Outcome::Fenced { newest_generation });
    }
    running(&stage, &mut agent, 10).await;
}

#[tokio::test]
async fn another_node_does_not_start_below_the_control_folders_generation() {
    let stage = Stage::set().await;
    stage.dir.make_control(SUBMIT_TIME_S, 9);
    let (_task, mut agent) = stage.task(WAITS).await;
    agent.send(ToAgent::Start(start(8, 1, &["n0", "n1"]))).await;
    let newest_generation = 9;
    assert_eq!(
        agent.stopped(8).await,
        Outcome::Fenced { newest_generation }
    );
    // Rank 0's node has already written the same number: that is no hindrance.
    std::fs::write(stage.dir.control("generation"), "10\n").unwrap();
    agent
        .send(ToAgent::Start(start(10, 1, &["n0", "n1"])))
        .await;
    agent.started(10).await;
}

#[tokio::test]
async fn an_earlier_trainers_folder_is_moved_aside_with_its_checkpoints() {
    let stage = Stage::set().await;
    stage.dir.make_control(SUBMIT_TIME_S - 1000, 9);
    std::fs::create_dir(stage.dir.control("ckpt")).unwrap();
    std::fs::write(stage.dir.control("ckpt/model"), "old").unwrap();
    let finished = format!("exit_code=0\nsubmit_time={}\n", SUBMIT_TIME_S - 1000);
    std::fs::write(stage.dir.control("finished"), finished).unwrap();
    let (_task, mut agent) = stage.task(WAITS).await;
    assert_eq!(agent.join.folder_submit_time_s, Some(SUBMIT_TIME_S - 1000));
    running(&stage, &mut agent, 1).await;
    assert!(stage.dir.control("ckpt").is_dir());
    for name in ["ckpt/model", "finished"] {
        assert!(!stage.dir.control(name).exists());
    }
    let entries = std::fs::read_dir(stage.dir.path()).unwrap().flatten();
    let stale = entries
        .map(|entry| entry.path())
        .find(|path| path.join("ckpt/model").exists());
    assert!(
        stale
            .unwrap()
            .display()
            .to_string()
            .contains(".bftrainer-40.stale-")
    );
}

#[tokio::test]
async fn other_nodes_wait_for_the_first_ones_control_folder() {
    let stage = Stage::set().await;
    let (_task, mut agent) = stage.task(WAITS).await;
    agent.send(ToAgent::Start(start(1, 1, &["n0", "n1"]))).await;
    agent.stop(1, 30.0).await;
    assert_eq!(agent.stopped(1).await, Outcome::Stopped);
    agent.send(ToAgent::Start(start(2, 1, &["n0", "n1"]))).await;
    stage.dir.make_control(SUBMIT_TIME_S, 2);
    agent.started(2).await;
}

#[tokio::test]
async fn a_start_may_be_repeated_replaced_and_is_never_taken_backwards() {
    let stage = Stage::set().await;
    let (_task, mut agent) = stage.task(WAITS).await;
    let pid = running(&stage, &mut agent, 5).await;
    agent.start(5).await;
    agent.started(5).await;
    assert!(lives(pid));
    agent.start(4).await;
    let newest_generation = 5;
    assert_eq!(
        agent.stopped(4).await,
        Outcome::Fenced { newest_generation }
    );
    assert!(lives(pid));
    agent.start(6).await;
    assert_eq!(agent.stopped(5).await, Outcome::Stopped);
    agent.started(6).await;
    assert!(!lives(pid));
}

#[tokio::test]
async fn a_start_for_another_node_is_not_followed() {
    let stage = Stage::set().await;
    let (_task, mut agent) = stage.task(WAITS).await;
    agent.send(ToAgent::Start(start(1, 0, &["n2", "n1"]))).await;
    let outcome = agent.stopped(1).await;
    assert!(
        matches!(outcome, Outcome::Failed { exit_code: 64, .. }),
        "{outcome:?}"
    );
    agent.send(ToAgent::Start(start(2, 7, &["n1"]))).await;
    assert!(matches!(agent.stopped(2).await, Outcome::Failed { .. }));
}

#[tokio::test]
async fn without_a_controller_nothing_trains_and_the_task_asks_to_be_requeued() {
    let stage = Stage::set().await;
    let address = stage.controller.address();
    let setup = stage
        .dir
        .task(&stage.munged, &address, WAITS)
        .with("BFT_ORPHAN_WAIT_S", "0.2");
    let Stage {
        munged,
        controller,
        dir,
    } = stage;
    drop(controller);
    let mut task = setup.run();
    // There is no Slurm here, so it can only say so, and go on trying.
    until("it tries", || {
        let words = dir.lines("err").join("\n");
        words
            .contains("40_1 could not be requeued, trying again")
            .then_some(())
    })
    .await;
    assert!(task.is_running() && dir.lines("pid").is_empty());
    // A controller that comes back just then finds it willing.
    let controller = support::controller::Controller::listen_on(&address, munged.settings()).await;
    let stage = Stage {
        munged,
        controller,
        dir,
    };
    let mut agent = stage.controller.welcomed().await;
    running(&stage, &mut agent, 1).await;
}

#[tokio::test]
async fn a_refused_agent_lets_its_ranks_save_and_asks_again() {
    let stage = Stage::set().await;
    let script =
        "trap 'echo saved > saved; exit 143' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let (_task, mut agent) = stage.task(script).await;
    running(&stage, &mut agent, 1).await;
    let reason = "job 41 is not known".to_owned();
    agent.send(ToAgent::Refused { reason }).await;
    assert_eq!(stage.dir.line("saved").await, "saved");
    let again = loop {
        let agent = stage.controller.agent().await;
        if agent.join.generation.is_none() {
            break agent;
        }
    };
    assert_eq!(again.join.newest_generation, 1);
    assert!(stage.words().contains("job 41 is not known"));
}

#[tokio::test]
async fn a_server_that_is_not_the_controller_is_not_joined() {
    let stage = Stage::set().await;
    let setup = stage
        .dir
        .task(&stage.munged, &stage.controller.address(), WAITS);
    let mut task = setup
        .with("BFT_CONTROLLER_UID", &(own_uid() + 1).to_string())
        .run();
    let accept = async {
        // The handshake's server half succeeds; the client hangs up.
        loop {
            let _ = tokio::time::timeout(DEADLINE, stage.controller.handshake()).await;
        }
    };
    let said = until("it says so", || {
        stage.words().contains("not trusted").then_some(())
    });
    tokio::select! { () = said => {}, () = accept => {} }
    assert!(task.is_running());
}

#[tokio::test]
async fn near_slurms_limit_ranks_are_stopped_and_the_task_asks_to_be_requeued() {
    let stage = Stage::set().await;
    let (mut task, mut agent) = stage.task(WAITS).await;
    running(&stage, &mut agent, 1).await;
    agent.send(limited(Some(now_s() + 60))).await;
    agent
        .send(ToAgent::Until {
            end_time_s: Some(now_s() + 5),
        })
        .await;
    let words = agent.next_event().await;
    assert!(
        matches!(&words, Some(FromAgent::Leaving { preempted: false, reason }) if reason.contains("limit")),
        "{words:?}"
    );
    assert_eq!(agent.stopped(1).await, Outcome::Stopped);
    until("it tries", || {
        stage
            .words()
            .contains("40_1 could not be requeued, trying again")
            .then_some(())
    })
    .await;
    // Not even the controller can start a generation in the last seconds, but a
    // renewed limit makes the task one like any other.
    agent.start(2).await;
    assert_eq!(agent.stopped(2).await, Outcome::Stopped);
    agent
        .send(ToAgent::Until {
            end_time_s: Some(now_s() + 3600),
        })
        .await;
    agent.start(3).await;
    agent.started(3).await;
    assert!(task.is_running());
}

/// Lines that come while `script` runs, up to its end.
async fn progress_of(script: &str, node_rank: u32) -> Vec<Progress> {
    let stage = Stage::set().await;
    let controller = stage.controller.address();
    let setup = stage.dir.task(&stage.munged, &controller, script);
    let _task = setup
        .with("BFTRAINER", env!("CARGO_BIN_EXE_bftrainer"))
        .run();
    let mut agent = stage.controller.welcomed().await;
    let nodes = if node_rank == 0 {
        ["n1", "n2"]
    } else {
        ["n0", "n1"]
    };
    stage.dir.make_control(SUBMIT_TIME_S, 0);
    agent
        .send(ToAgent::Start(start(1, node_rank, &nodes)))
        .await;
    agent.started(1).await;
    let mut lines = Vec::new();
    loop {
        match agent.next().await {
            Some(FromAgent::Progress(progress)) => lines.push(progress),
            Some(FromAgent::Stopped { outcome, .. }) => {
                assert_eq!(outcome, Outcome::Stopped, "{}", stage.words());
                return lines;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn progress_is_passed_on_and_the_last_line_comes_before_the_end() {
    let script = r#""$BFTRAINER" progress --samples 100 --loss 2.5 --total 900
        for n in 2 3 4 5 6 7 8; do "$BFTRAINER" progress --samples ${n}00; done
        BFT_GENERATION=9 "$BFTRAINER" progress --samples 5
        "$BFTRAINER" progress --samples 900 --epoch 3 --done; exit 143"#;
    let lines = progress_of(script, 0).await;
    let first = lines.first().unwrap();
    assert_eq!(
        (first.samples, first.loss, first.total),
        (100, Some(2.5), Some(900))
    );
    let last = lines.last().unwrap();
    assert_eq!(
        (last.samples, last.epoch, last.done),
        (900, Some(3.0), true)
    );
    assert!(
        lines
            .iter()
            .all(|line| line.generation == Some(1) && line.time_s.is_some())
    );
    assert!(lines.is_sorted_by_key(|line| line.samples), "{lines:?}");
}

#[tokio::test]
async fn only_rank_0s_node_passes_progress_on() {
    let script = r#""$BFTRAINER" progress --samples 100; exit 143"#;
    assert_eq!(progress_of(script, 1).await, []);
}

#[test]
fn outside_of_a_trainer_progress_is_a_silent_success() {
    for report in [None, Some("unix:///nonexistent/socket")] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_bftrainer"));
        command
            .args(["progress", "--samples", "3"])
            .env_remove("BFT_REPORT");
        command.envs(report.map(|report| ("BFT_REPORT", report)));
        let output = command.output().unwrap();
        assert!(output.status.success());
        assert_eq!(output.stderr.is_empty(), report.is_none());
    }
}

#[tokio::test]
async fn the_agents_words_are_few_and_its_folder_in_tmp_is_gone() {
    let stage = Stage::set().await;
    let temp = stage.dir.path().join("t");
    std::fs::create_dir(&temp).unwrap();
    let setup = stage
        .dir
        .task(&stage.munged, &stage.controller.address(), WAITS);
    let mut task = setup.with("TMPDIR", temp.to_str().unwrap()).run();
    let mut agent = stage.controller.welcomed().await;
    running(&stage, &mut agent, 1).await;
    assert_eq!(std::fs::read_dir(&temp).unwrap().count(), 1);
    agent.stop(1, 0.0).await;
    agent.stopped(1).await;
    agent.send(ToAgent::Close { exit_code: 0 }).await;
    assert_eq!(task.exit_code().await, Some(0));
    let expected = [
        "bftrainer: joined trainer 40 on n1",
        "bftrainer: generation 1 starts on 1 nodes, this is node rank 0",
        "bftrainer: generation 1: stopped",
        "bftrainer: the trainer has ended with 0",
    ];
    assert_eq!(stage.dir.lines("err"), expected);
    assert_eq!(std::fs::read_dir(&temp).unwrap().count(), 0);
}
