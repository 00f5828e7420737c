//! `bftrainer task`: what becomes of a batch script.
#![cfg(feature = "slurm")]

mod support;

use std::os::unix::fs::PermissionsExt;

use bftrainer::wire::Outcome;
use support::agent::{Setup, SubmitDir};
use support::controller::SUBMIT_TIME_S;
use support::stage::Stage;
use support::until;

fn write_script(dir: &SubmitDir, text: &str) -> String {
    let path = dir.path().join("slurm_script");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    path.display().to_string()
}

fn task(stage: &Stage, tagged: bool, script: &str) -> Setup {
    let script = write_script(&stage.dir, script);
    let address = stage.controller.address();
    let mut setup = stage.dir.setup(
        &stage.munged,
        &address,
        ["task", "--", &script, "-a", "b c"],
    );
    if tagged {
        setup.arguments.insert(1, "--tagged".into());
    }
    setup.with("_SLURM_SPANK_OPTION_bftrainer_bftrainer", "nodes=1-4")
}

const SHOWS: &str = "#!/bin/sh\necho \"$$ [$1] [$2] ${_SLURM_SPANK_OPTION_bftrainer_bftrainer-gone} \
                     ${BFT_GENERATION-plain}\" >> ran\nexit 9\n";

#[tokio::test]
async fn a_job_that_is_no_array_task_becomes_its_script() {
    let stage = Stage::set().await;
    let mut setup = task(&stage, false, SHOWS);
    setup.variables.remove("SLURM_ARRAY_JOB_ID");
    let mut task = setup.run();
    let pid = task.keeper();
    assert_eq!(task.exit_code().await, Some(9));
    assert_eq!(
        stage.dir.lines("ran"),
        [format!("{pid} [-a] [b c] gone plain")]
    );
}

#[tokio::test]
async fn a_script_that_calls_the_agent_itself_is_left_alone() {
    let stage = Stage::set().await;
    let script = format!("{SHOWS}srun bftrainer run -- train\n");
    let mut task = task(&stage, true, &script).run();
    let pid = task.keeper();
    assert_eq!(task.exit_code().await, Some(9));
    assert_eq!(
        stage.dir.lines("ran"),
        [format!("{pid} [-a] [b c] gone plain")]
    );
}

#[tokio::test]
async fn a_trainers_script_runs_once_per_generation_under_the_agent() {
    let stage = Stage::set().await;
    let _task = task(&stage, true, SHOWS).run();
    let mut agent = stage.controller.welcomed().await;
    for generation in [1, 2] {
        agent.start(generation).await;
        agent.started(generation).await;
        let outcome = agent.stopped(generation).await;
        assert!(matches!(outcome, Outcome::Failed { exit_code: 9, .. }));
    }
    let ran = stage.dir.lines("ran");
    assert!(ran[0].ends_with("[-a] [b c] gone 1"), "{ran:?}");
    assert!(ran[1].ends_with("[-a] [b c] gone 2"), "{ran:?}");
}

#[tokio::test]
async fn nothing_runs_before_slurmctld_has_said_what_the_job_is() {
    // Untagged: is it a trainer at all? Tagged with a verdict: is it this one's?
    for tagged in [false, true] {
        let stage = Stage::set().await;
        if tagged {
            stage.dir.make_control(SUBMIT_TIME_S, 3);
            std::fs::write(
                stage.dir.control("finished"),
                "exit_code=0\nsubmit_time=5\n",
            )
            .unwrap();
        }
        let mut task = task(&stage, tagged, SHOWS).run();
        until("it asks", || {
            stage
                .words()
                .contains("job 41 could not be looked up, trying again")
                .then_some(())
        })
        .await;
        assert!(task.is_running() && stage.dir.lines("ran").is_empty());
        assert_eq!(task.processes(), [task.keeper()]);
    }
}

#[tokio::test]
async fn a_script_that_cannot_be_run_says_why() {
    let stage = Stage::set().await;
    let setup = stage.dir.setup(
        &stage.munged,
        "127.0.0.1:1",
        ["task", "--", "/no/such/script"],
    );
    let mut setup = setup;
    setup.variables.remove("SLURM_ARRAY_JOB_ID");
    assert_eq!(setup.run().exit_code().await, Some(126));
    assert!(stage.words().contains("/no/such/script"));
}
