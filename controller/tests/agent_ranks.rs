//! How the agent starts, watches and ends ranks: the real binary, a controller
//! that does what the test says.
#![cfg(feature = "slurm")]

mod support;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bftrainer::wire::{FromAgent, Outcome, ToAgent};
use support::agent::{Task, lives, send};
use support::controller::{Peer, SUBMIT_TIME_S, start};
use support::stage::Stage;
use support::{DEADLINE, until};

/// A task with two ranks on its node, and its welcomed agent.
async fn two_ranks(stage: &Stage, script: &str) -> (Task, Peer) {
    let address = stage.controller.address();
    let arguments = ["run", "--ranks-per-node", "2", "--", "sh", "-c", script];
    let task = stage.dir.setup(&stage.munged, &address, arguments).run();
    (task, stage.controller.welcomed().await)
}

fn number(text: &str) -> i32 {
    text.trim().parse().unwrap()
}

#[tokio::test]
async fn ranks_start_and_stop_as_the_controller_says() {
    let stage = Stage::set().await;
    let script = r#"trap 'echo saved >> saves; exit 143' TERM
        echo "$BFT_GENERATION" >> starts; while :; do sleep 0.05; done"#;
    let (mut task, mut agent) = stage.task(script).await;
    assert_eq!(agent.join.node, "n1");
    assert_eq!((agent.join.array_job_id, agent.join.array_task_id), (40, 1));
    assert_eq!((agent.join.job_id, agent.join.restart_count), (41, 2));
    assert_eq!(
        (agent.join.generation, agent.join.newest_generation),
        (None, 0)
    );
    for generation in [1, 2] {
        agent.start(generation).await;
        agent.started(generation).await;
        until("the rank is up", || {
            (stage.dir.lines("starts").len() as u64 == generation).then_some(())
        })
        .await;
        agent.stop(generation, DEADLINE.as_secs_f64()).await;
        assert_eq!(agent.stopped(generation).await, Outcome::Stopped);
        assert_eq!(stage.dir.lines("saves").len() as u64, generation);
    }
    assert_eq!(stage.dir.lines("starts"), ["1", "2"]);
    let on_disk = std::fs::read_to_string(stage.dir.control("generation")).unwrap();
    assert_eq!(on_disk, "2\n");
    assert!(task.is_running());
}

#[tokio::test]
async fn the_environment_of_a_rank_is_the_contracts_table() {
    let stage = Stage::set().await;
    let controller = stage.controller.address();
    let script =
        "env -0 > env.$LOCAL_RANK.new; mv env.$LOCAL_RANK.new env.$LOCAL_RANK; exec sleep 900";
    let setup = stage
        .dir
        .setup(
            &stage.munged,
            &controller,
            ["run", "--ranks-per-node", "2", "--", "sh", "-c", script],
        )
        .with("RANK", "77")
        .with("BFT_DEADLINE", "5")
        .with("_SLURM_SPANK_OPTION_bftrainer_bftrainer", "nodes=1-4");
    stage.dir.make_control(SUBMIT_TIME_S, 6);
    let task = setup.run();
    let mut agent = stage.controller.welcomed().await;
    let mut message = start(7, 1, &["n0", "n1", "n2"]);
    message.deadline_s = Some(1_796_099_999);
    agent.send(ToAgent::Start(message)).await;
    agent.started(7).await;
    let dir = stage.dir.path().display();
    let common = [
        ("BFT_TRAINER_ID", "40".to_owned()),
        ("BFT_NODE", "n1".to_owned()),
        ("BFT_NODE_ADDR", "127.0.0.2".to_owned()),
        ("BFT_MODE", "restart".to_owned()),
        ("BFT_GENERATION", "7".to_owned()),
        ("BFT_NUM_NODES", "3".to_owned()),
        ("BFT_NODE_RANK", "1".to_owned()),
        ("BFT_MIN_NODES", "1".to_owned()),
        ("BFT_MAX_NODES", "4".to_owned()),
        ("BFT_HOSTFILE", format!("{dir}/.bftrainer-40/hostfile")),
        ("BFT_CONTROL_DIR", format!("{dir}/.bftrainer-40")),
        ("BFT_CKPT_DIR", format!("{dir}/.bftrainer-40/ckpt")),
        ("BFT_GRACE", "30".to_owned()),
        ("BFT_DEADLINE", "1796099999".to_owned()),
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ("MASTER_PORT", "23456".to_owned()),
        ("WORLD_SIZE", "6".to_owned()),
        ("LOCAL_WORLD_SIZE", "2".to_owned()),
        ("GROUP_RANK", "1".to_owned()),
        ("GROUP_WORLD_SIZE", "3".to_owned()),
    ];
    for local in [0, 1] {
        let path = stage.dir.path().join(format!("env.{local}"));
        let text = until("the rank's environment", || {
            std::fs::read_to_string(&path).ok()
        })
        .await;
        let mut found: BTreeMap<&str, &str> = text
            .split('\0')
            .filter_map(|pair| pair.split_once('='))
            .collect();
        let report = found.remove("BFT_REPORT").unwrap();
        let socket = report.strip_prefix("unix://").unwrap();
        assert!(std::fs::exists(socket).unwrap());
        let (rank, local) = ((2 + local).to_string(), local.to_string());
        let mut expected: BTreeMap<&str, &str> = common
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        expected.extend([("RANK", rank.as_str()), ("LOCAL_RANK", local.as_str())]);
        // All else comes from the task's own environment, or is the shell's.
        found.retain(|name, value| {
            let inherited = setup
                .variables
                .get(*name)
                .is_some_and(|given| given == value);
            expected.contains_key(name)
                || !inherited && !["PWD", "_", "SHLVL", "OLDPWD"].contains(name)
        });
        assert_eq!(found, expected);
    }
    let hosts = std::fs::read_to_string(stage.dir.control("hostfile")).unwrap();
    assert_eq!(hosts, "# generation 7\nn0:2\nn1:2\nn2:2\n");
    assert!(stage.dir.control("ckpt").is_dir());
    drop(task);
}

#[tokio::test]
async fn per_node_starts_command_once_and_leaves_the_ranks_to_it() {
    let stage = Stage::set().await;
    let script = r#"echo "$MASTER_ADDR:$MASTER_PORT $BFT_NUM_NODES $BFT_NODE_RANK ${RANK-no} ${WORLD_SIZE-no} ${LOCAL_RANK-no}" >> starts
        exec sleep 900"#;
    let setup = stage
        .dir
        .setup(
            &stage.munged,
            &stage.controller.address(),
            ["run", "--per-node", "sh", "-c", script],
        )
        .with("SLURM_GPUS_ON_NODE", "4")
        .with("RANK", "7");
    let _task = setup.run();
    let mut agent = stage.controller.welcomed().await;
    agent.start(1).await;
    agent.started(1).await;
    assert_eq!(
        stage.dir.line("starts").await,
        "127.0.0.1:23456 1 0 no no no"
    );
    agent.stop(1, 0.0).await;
    assert_eq!(agent.stopped(1).await, Outcome::Stopped);
    assert_eq!(stage.dir.lines("starts").len(), 1);
    let hosts = std::fs::read_to_string(stage.dir.control("hostfile")).unwrap();
    assert_eq!(hosts, "# generation 1\nn1:4\n");
}

#[tokio::test]
async fn there_is_a_rank_for_each_allocated_gpu() {
    let stage = Stage::set().await;
    let script = r#"echo "$RANK $WORLD_SIZE" >> starts; exec sleep 900"#;
    let setup = stage
        .dir
        .task(&stage.munged, &stage.controller.address(), script);
    let _task = setup.with("SLURM_GPUS_ON_NODE", "3").run();
    let mut agent = stage.controller.welcomed().await;
    agent.start(1).await;
    agent.started(1).await;
    let ranks = until("three ranks", || {
        let mut ranks = stage.dir.lines("starts");
        ranks.sort();
        (ranks.len() == 3).then_some(ranks)
    });
    assert_eq!(ranks.await, ["0 3", "1 3", "2 3"]);
}

#[tokio::test]
async fn exit_codes_mean_what_the_contract_says() {
    let stage = Stage::set().await;
    let failed = |exit_code, reason: &str| Outcome::Failed {
        exit_code,
        reason: reason.to_owned(),
    };
    let (_task, mut agent) = stage.task("eval \"$(cat what)\"").await;
    let cases = [
        ("exit 143", Outcome::Stopped),
        ("kill -TERM $$", Outcome::Stopped),
        ("exit 1", failed(1, "local rank 0 exited 1")),
        (
            "kill -SEGV $$",
            failed(139, "local rank 0 died by signal 11"),
        ),
    ];
    for ((what, outcome), generation) in cases.into_iter().zip(1..) {
        std::fs::write(stage.dir.path().join("what"), what).unwrap();
        agent.start(generation).await;
        agent.started(generation).await;
        assert_eq!(agent.stopped(generation).await, outcome, "{what}");
    }
}

#[tokio::test]
async fn a_failed_rank_ends_its_neighbours() {
    let stage = Stage::set().await;
    let script = "[ $LOCAL_RANK = 1 ] && exit 3; exec sleep 900";
    let (task, mut agent) = two_ranks(&stage, script).await;
    agent.start(1).await;
    agent.started(1).await;
    let reason = "local rank 1 exited 3".to_owned();
    let exit_code = 3;
    assert_eq!(
        agent.stopped(1).await,
        Outcome::Failed { exit_code, reason }
    );
    assert_eq!(task.processes().len(), 2);
}

#[tokio::test]
async fn when_rank_0_has_finished_the_others_do_not_hold_the_trainer_for_long() {
    let stage = Stage::set().await;
    let script = "[ $LOCAL_RANK = 0 ] && exit 0; exec sleep 900";
    let (_task, mut agent) = two_ranks(&stage, script).await;
    agent.start(1).await;
    agent.started(1).await;
    assert_eq!(agent.stopped(1).await, Outcome::Exited);
    assert!(stage.dir.control("finished").exists());
}

#[tokio::test]
async fn an_exit_0_on_another_node_than_rank_0s_is_no_verdict() {
    let stage = Stage::set().await;
    let (_task, mut agent) = stage.task("exit 0").await;
    stage.dir.make_control(SUBMIT_TIME_S, 0);
    agent.send(ToAgent::Start(start(1, 1, &["n0", "n1"]))).await;
    agent.started(1).await;
    assert_eq!(agent.stopped(1).await, Outcome::Exited);
    assert!(!stage.dir.control("finished").exists());
}

#[tokio::test]
async fn a_command_that_is_not_there_is_a_failure_with_its_name() {
    let stage = Stage::set().await;
    let setup = stage.dir.setup(
        &stage.munged,
        &stage.controller.address(),
        ["run", "--", "no-such-program"],
    );
    let _task = setup.run();
    let mut agent = stage.controller.welcomed().await;
    agent.start(1).await;
    match agent.stopped(1).await {
        Outcome::Failed {
            exit_code: 127,
            reason,
        } => assert!(reason.contains("no-such-program"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_verdict_is_recorded_before_it_is_told_and_close_ends_the_task() {
    let stage = Stage::set().await;
    let (mut task, mut agent) = stage.task("echo done; exit 0").await;
    agent.start(1).await;
    agent.started(1).await;
    assert_eq!(agent.stopped(1).await, Outcome::Exited);
    let verdict = std::fs::read_to_string(stage.dir.control("finished")).unwrap();
    assert_eq!(
        verdict,
        format!("exit_code=0\nsubmit_time={SUBMIT_TIME_S}\n")
    );
    agent.send(ToAgent::Close { exit_code: 0 }).await;
    assert_eq!(task.exit_code().await, Some(0));
    task.is_gone().await;
}

#[tokio::test]
async fn close_ends_even_running_ranks_with_the_verdicts_code() {
    let stage = Stage::set().await;
    let (mut task, mut agent) = stage
        .task("trap '' TERM; while :; do sleep 0.05; done")
        .await;
    agent.start(1).await;
    agent.started(1).await;
    agent.send(ToAgent::Close { exit_code: 7 }).await;
    assert_eq!(task.exit_code().await, Some(7));
    task.is_gone().await;
    let verdict = std::fs::read_to_string(stage.dir.control("finished")).unwrap();
    assert!(verdict.starts_with("exit_code=7\n"));
}

#[tokio::test]
async fn a_rank_that_ignores_sigterm_is_killed_after_the_grace() {
    let stage = Stage::set().await;
    let script = "trap 'echo asked >> asked' TERM; echo up > up; while :; do sleep 0.05; done";
    let (_task, mut agent) = stage.task(script).await;
    agent.start(1).await;
    agent.started(1).await;
    stage.dir.line("up").await;
    let asked = Instant::now();
    agent.stop(1, 0.5).await;
    assert_eq!(agent.stopped(1).await, Outcome::Stopped);
    assert!(asked.elapsed() >= Duration::from_millis(500));
    assert_eq!(stage.dir.lines("asked"), ["asked"]);

    // Without grace there is no SIGTERM.
    agent.start(2).await;
    agent.started(2).await;
    agent.stop(2, 0.0).await;
    assert_eq!(agent.stopped(2).await, Outcome::Stopped);
    assert_eq!(stage.dir.lines("asked"), ["asked"]);
}

#[tokio::test]
async fn a_program_below_a_shell_gets_sigterm_and_its_grace() {
    // The shell dies of SIGTERM at once; the program it started still saves.
    let stage = Stage::set().await;
    let script = r#"sh -c 'trap "sleep 0.3; echo saved > saved; exit 143" TERM
        echo up > up; while :; do sleep 0.05; done'; echo never"#;
    let (_task, mut agent) = stage.task(script).await;
    agent.start(1).await;
    agent.started(1).await;
    stage.dir.line("up").await;
    agent.stop(1, DEADLINE.as_secs_f64()).await;
    assert_eq!(agent.stopped(1).await, Outcome::Stopped);
    assert_eq!(stage.dir.lines("saved"), ["saved"]);
}

#[tokio::test]
async fn stopping_what_does_not_run_is_answered_at_once() {
    let stage = Stage::set().await;
    let (_task, mut agent) = stage.task("exit 4").await;
    agent.stop(9, 30.0).await;
    assert_eq!(agent.stopped(9).await, Outcome::Stopped);
    agent.start(10).await;
    agent.started(10).await;
    let failed = agent.stopped(10).await;
    assert!(matches!(failed, Outcome::Failed { exit_code: 4, .. }));
    // A Stop that crossed the end on its way is answered with that end.
    agent.stop(10, 30.0).await;
    assert_eq!(agent.stopped(10).await, failed);
}

/// A rank with a daemon (double fork, new session, own group) and a child in a
/// session of its own, both deaf to everything that can be ignored.
const BROOD: &str = r#"deaf="trap '' TERM HUP INT; while :; do sleep 0.05; done"
    (setsid sh -c "($deaf) & echo \$! > daemon; exit 0" &)
    setsid sh -c "echo \$\$ > session; $deaf" &
    until [ -s daemon ] && [ -s session ]; do sleep 0.01; done
    echo up > up; while :; do sleep 0.05; done"#;

async fn brood(stage: &Stage, agent: &mut Peer) -> [i32; 2] {
    agent.start(1).await;
    agent.started(1).await;
    stage.dir.line("up").await;
    let pids = [
        number(&stage.dir.line("daemon").await),
        number(&stage.dir.line("session").await),
    ];
    assert!(pids.into_iter().all(lives));
    pids
}

#[tokio::test]
async fn no_process_is_left_after_stop_however_it_hid() {
    let stage = Stage::set().await;
    let (task, mut agent) = stage.task(BROOD).await;
    let pids = brood(&stage, &mut agent).await;
    agent.stop(1, 0.2).await;
    assert_eq!(agent.stopped(1).await, Outcome::Stopped);
    assert!(!pids.into_iter().any(lives));
    // Keeper and agent.
    assert_eq!(task.processes().len(), 2);
}

#[tokio::test]
async fn no_process_is_left_after_the_agent_is_killed() {
    let stage = Stage::set().await;
    let (mut task, mut agent) = stage.task(BROOD).await;
    brood(&stage, &mut agent).await;
    send(task.agent().await, libc::SIGKILL);
    assert_eq!(task.exit_code().await, Some(137));
    assert!(task.processes().is_empty());
    assert_eq!(agent.next_event().await, None);
    let words = std::fs::read_to_string(stage.dir.path().join("err")).unwrap();
    assert!(words.contains("requeueing 40_1"), "{words}");
}

#[tokio::test]
async fn no_process_is_left_after_the_keeper_is_killed() {
    let stage = Stage::set().await;
    let (mut task, mut agent) = stage.task(BROOD).await;
    brood(&stage, &mut agent).await;
    task.signal(libc::SIGKILL);
    task.end().await;
    let words = agent.next_event().await;
    assert!(
        matches!(&words, Some(FromAgent::Leaving { preempted: false, reason }) if reason.contains("keeper")),
        "{words:?}"
    );
    task.is_gone().await;
}

#[tokio::test]
async fn the_folder_of_a_killed_task_is_removed_by_the_next_one_and_no_other() {
    let stage = Stage::set().await;
    let temp = tempfile::tempdir().unwrap();
    let run = || {
        let (munged, controller) = (&stage.munged, stage.controller.address());
        let setup = stage.dir.task(munged, &controller, "exec sleep 1000");
        setup.with("TMPDIR", temp.path().to_str().unwrap()).run()
    };
    let sockets = || -> HashSet<PathBuf> {
        let folders = std::fs::read_dir(temp.path()).unwrap().flatten();
        folders.map(|entry| entry.path().join("report")).collect()
    };
    let mut killed = run();
    let _first = stage.controller.welcomed().await;
    let left = sockets();
    let _living = run();
    let _second = stage.controller.welcomed().await;
    let living: HashSet<_> = sockets().difference(&left).cloned().collect();
    assert_eq!((left.len(), living.len()), (1, 1));

    let agent = killed.agent().await;
    killed.signal(libc::SIGKILL);
    killed.end().await;
    until("its agent ends", || (!lives(agent)).then_some(())).await;
    assert_eq!(sockets().len(), 2);
    let _next = run();
    let _third = stage.controller.welcomed().await;
    until("the killed one's folder is gone", || {
        sockets().is_disjoint(&left).then_some(())
    })
    .await;
    assert!(living.iter().all(|path| path.exists()));
    assert_eq!(sockets().len(), 2);
}

#[tokio::test]
async fn no_process_is_left_after_preemption_and_the_controller_is_told() {
    let stage = Stage::set().await;
    let (mut task, mut agent) = stage.task(BROOD).await;
    brood(&stage, &mut agent).await;
    task.signal(libc::SIGTERM);
    assert_eq!(task.exit_code().await, Some(143));
    assert!(task.processes().is_empty());
    let words = agent.next_event().await;
    assert!(
        matches!(
            words,
            Some(FromAgent::Leaving {
                preempted: true,
                ..
            })
        ),
        "{words:?}"
    );
}

#[tokio::test]
async fn a_preempted_node_is_free_at_once_even_when_the_controller_hangs() {
    let stage = Stage::set().await;
    let script = "trap '' TERM; echo up > up; while :; do sleep 0.05; done";
    let (mut task, mut agent) = stage.task(script).await;
    agent.start(1).await;
    agent.started(1).await;
    stage.dir.line("up").await;
    // Nobody reads at the other end from here on.
    let since = Instant::now();
    task.signal(libc::SIGTERM);
    assert_eq!(task.exit_code().await, Some(143));
    let took = since.elapsed();
    assert!(task.processes().is_empty());
    // A few tenths of a second on an idle machine; KillWait is 30 s.
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn slurms_sigterm_to_every_process_is_no_failure_and_no_verdict() {
    // What exits 0, or 1, because it was signalled, has neither finished nor failed.
    for code in [0, 1] {
        let stage = Stage::set().await;
        let script = format!("trap 'exit {code}' TERM; echo up > up; while :; do sleep 0.05; done");
        let (mut task, mut agent) = stage.task(&script).await;
        agent.start(1).await;
        agent.started(1).await;
        stage.dir.line("up").await;
        let inner = task.agent().await;
        let all = task.processes();
        let (ours, ranks): (Vec<i32>, Vec<i32>) = all
            .into_iter()
            .partition(|pid| [task.keeper(), inner].contains(pid));
        for pid in ranks.into_iter().chain(ours) {
            send(pid, libc::SIGTERM);
        }
        assert_eq!(task.exit_code().await, Some(143));
        let words = agent.next_event().await;
        assert!(
            matches!(
                words,
                Some(FromAgent::Leaving {
                    preempted: true,
                    ..
                })
            ),
            "{words:?}"
        );
        assert!(!stage.dir.control("finished").exists());
    }
}

#[tokio::test]
async fn rank_0s_output_goes_to_the_task_and_to_its_log_over_all_generations() {
    let stage = Stage::set().await;
    let script = r#"echo "out $BFT_GENERATION"; echo "err $BFT_GENERATION" >&2
        [ -t 0 ] || read line || echo no input; exit 143"#;
    let (_task, mut agent) = stage.task(script).await;
    for generation in [1, 2] {
        agent.start(generation).await;
        agent.started(generation).await;
        assert_eq!(agent.stopped(generation).await, Outcome::Stopped);
    }
    assert_eq!(
        stage.dir.lines("out"),
        ["out 1", "no input", "out 2", "no input"]
    );
    let log = std::fs::read_to_string(stage.dir.control("rank0.log")).unwrap();
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort();
    assert_eq!(
        lines,
        ["err 1", "err 2", "no input", "no input", "out 1", "out 2"]
    );
    assert!(stage.dir.lines("err").contains(&"err 2".to_owned()));
}

#[tokio::test]
async fn users_signals_reach_the_ranks() {
    let stage = Stage::set().await;
    let script = "trap 'echo usr1 > signal' USR1; echo up > up; while :; do sleep 0.05; done";
    let (task, mut agent) = stage.task(script).await;
    agent.start(1).await;
    agent.started(1).await;
    stage.dir.line("up").await;
    task.signal(libc::SIGUSR1);
    assert_eq!(stage.dir.line("signal").await, "usr1");
}

#[tokio::test]
async fn outside_of_a_trainer_a_sentence_says_what_to_do() {
    let stage = Stage::set().await;
    let mut setup = stage.dir.task(&stage.munged, "127.0.0.1:1", "exit 0");
    setup.variables.remove("SLURM_ARRAY_JOB_ID");
    let mut task = setup.run();
    assert_eq!(task.exit_code().await, Some(64));
    let words = stage.dir.lines("err");
    assert!(words[0].contains("sbatch --bftrainer"), "{words:?}");
}

#[tokio::test]
async fn of_several_agents_that_srun_started_on_a_node_one_stays() {
    let stage = Stage::set().await;
    let setup = stage.dir.task(&stage.munged, "127.0.0.1:1", "exit 0");
    let mut task = setup.with("SLURM_LOCALID", "1").run();
    assert_eq!(task.exit_code().await, Some(0));
    assert!(stage.words().contains("--ranks-per-node"));
}
