//! Whose fault a failure is: the program's, its node's, or nobody's.

use bftrainer_core::engine::{
    Action, EngineConfig, Event, LossReason, NodeFaults, Outcome, PlaceFault,
};
use bftrainer_core::trainer::{RunState, TrainerId};

use super::*;

fn training_on(count: u32) -> Bench {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![
        idle(0..count),
        Event::TrainerArrived(info(1, 1, count)),
    ]);
    bench
}

/// T1's ranks on `node` fail; the others end with them, and all starts over.
fn fail_on(bench: &mut Bench, node: u32) -> Vec<Action> {
    let generation = bench.run(1).number;
    bench.live(vec![stopped(1, node, generation, failed())])
}

fn is_failed(actions: &[Action]) -> bool {
    actions
        .iter()
        .any(|action| matches!(action, Action::Fail { .. }))
}

fn trains(bench: &Bench) -> bool {
    let run = bench.trainer(1).run.as_ref();
    run.is_some_and(|run| run.state == RunState::Running)
}

#[test]
fn failures_on_three_different_nodes_fail_the_trainer() {
    let mut bench = training_on(4);
    let mut actions = Vec::new();
    for node in 0..3 {
        actions.extend(fail_on(&mut bench, node));
        assert!(bench.avoids(1, node) && !bench.is_quarantined(node));
        actions.extend(bench.pass(4));
        assert!(!is_failed(&actions));
    }
    // The last one might still be explained by a loss.
    let actions = bench.pass(4);
    let reason = "failed 3 times in a row on different nodes without progress, last: local rank \
                  0 exited 1";
    assert_eq!(
        actions,
        [Action::Fail {
            trainer: TrainerId(1),
            exit_code: 1,
            reason: reason.to_owned(),
        }]
    );
    // It was not the nodes' fault.
    assert!((0..4).all(|node| !bench.avoids(1, node)));
    assert_eq!(bench.engine.faults(), &NodeFaults::default());
}

#[test]
fn failures_that_a_loss_explains_are_nobodys() {
    let mut bench = training_on(6);
    for victim in 3..6 {
        let generation = bench.run(1).number;
        let survivor = bench.running_on(1)[0];
        let actions = bench.tell(vec![stopped(1, survivor, generation, failed())]);
        assert!(bench.avoids(1, survivor));
        bench.now_s += 6.0;
        bench.tell(vec![lost(1, victim, LossReason::Preempted)]);
        assert!(!bench.avoids(1, survivor));
        assert_eq!(bench.trainer(1).failures, []);
        // The victim does not answer.
        let mut left = actions;
        for action in &mut left {
            if let Action::Stop { nodes, .. } = action {
                nodes.retain(|node| node.0 != victim);
            }
        }
        bench.obey(left);
        bench.pass(2);
        assert!(trains(&bench));
    }
    assert_eq!(bench.engine.faults(), &NodeFaults::default());
}

#[test]
fn a_failure_after_a_loss_is_collateral_even_in_the_same_event() {
    let events = || {
        [
            lost(1, 2, LossReason::Preempted),
            stopped(1, 0, 1, failed()),
        ]
    };
    let mut one_by_one = training_on(3);
    for event in events() {
        one_by_one.tell(vec![event]);
    }
    let mut at_once = training_on(3);
    at_once.tell(events().to_vec());
    for bench in [one_by_one, at_once] {
        assert_eq!(bench.trainer(1).failures, []);
        assert!(!bench.avoids(1, 0));
    }
}

#[test]
fn a_member_that_does_not_answer_the_stop_after_a_failure_explains_it() {
    let mut bench = training_on(3);
    bench.tell(vec![stopped(1, 0, 1, failed())]);
    bench.tell(vec![stopped(1, 1, 1, Outcome::Stopped)]);
    // Its agent was dead when the controller came: nobody missed its heartbeats.
    assert_eq!(leaving(&bench.pass(10)), [2]);
    assert_eq!(bench.trainer(1).failures, []);
    assert!(!bench.avoids(1, 0));
}

#[test]
fn the_loss_of_a_worker_that_never_trained_explains_nothing() {
    let mut bench = training_on(2);
    bench.live(vec![Event::TrainerChanged(info(1, 1, 3))]);
    bench.tell(vec![idle([2])]);
    bench.tell(vec![stopped(1, 0, 1, failed())]);
    bench.tell(vec![lost(1, 2, LossReason::Ended)]);
    assert_eq!(bench.trainer(1).failures.len(), 1);
    assert!(bench.avoids(1, 0));
}

#[test]
fn one_broken_node_among_eight_never_fails_a_trainer() {
    let mut bench = training_on(8);
    let broken = 5;
    let mut failures = 0;
    for _ in 0..4 * 3600 {
        let mut actions = bench.pass(1);
        if trains(&bench) && bench.running_on(1).contains(&broken) {
            failures += 1;
            actions.extend(fail_on(&mut bench, broken));
        }
        assert!(!is_failed(&actions));
    }
    // After 60, 120, 240, ... s it is tried again, at last once an hour.
    assert!((6..12).contains(&failures), "{failures}");
    assert_eq!(bench.running_on(1), [0, 1, 2, 3, 4, 6, 7]);
}

/// How long T1 keeps off n0 from now on.
fn avoidance_s(bench: &Bench) -> f64 {
    let avoidance = bench
        .engine
        .avoidance_of(TrainerId(1), NodeId(0), bench.now_s);
    avoidance.map_or(0.0, |avoidance| avoidance.quarantine.until_s - bench.now_s)
}

#[test]
fn an_avoidance_doubles_up_to_an_hour_and_progress_there_ends_the_row() {
    let mut bench = training_on(1);
    let hour = 3600.0;
    for expected_s in [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, hour, hour] {
        fail_on(&mut bench, 0);
        assert_eq!(avoidance_s(&bench), expected_s);
        bench.pass(expected_s as u32 + 10);
        assert!(trains(&bench));
    }
    let generation = bench.run(1).number;
    bench.tell(vec![progress(1, generation, 100)]);
    assert_eq!(bench.engine.faults(), &NodeFaults::default());
}

#[test]
fn an_hour_without_a_failure_ends_the_row_too() {
    let mut bench = training_on(1);
    fail_on(&mut bench, 0);
    bench.pass(70);
    fail_on(&mut bench, 0);
    assert_eq!(avoidance_s(&bench), 120.0);
    bench.pass(120 + 3600);
    fail_on(&mut bench, 0);
    assert_eq!(avoidance_s(&bench), 60.0);
}

#[test]
fn progress_ends_a_row_of_failures() {
    let mut bench = training_on(6);
    for node in 0..6 {
        fail_on(&mut bench, node);
        bench.pass(20);
        let generation = bench.run(1).number;
        let samples = 100 * u64::from(node + 1);
        bench.live(vec![progress(1, generation, samples)]);
        assert_eq!(bench.trainer(1).failures, []);
    }
}

#[test]
fn samples_that_are_only_made_again_are_no_progress() {
    let mut bench = training_on(4);
    bench.live(vec![progress(1, 1, 500)]);
    fail_on(&mut bench, 0);
    bench.pass(1);
    let generation = bench.run(1).number;
    bench.live(vec![progress(1, generation, 400)]);
    bench.live(vec![progress(1, generation, 500)]);
    assert_eq!(bench.trainer(1).failures.len(), 1);
}

#[test]
fn each_restart_after_a_failure_waits_twice_as_long_up_to_about_a_minute() {
    let mut bench = training_on(1);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let generation = bench.run(1).number;
        // The program ends itself by SIGTERM: no node is to blame.
        bench.live(vec![stopped(1, 0, generation, Outcome::Stopped)]);
        let failed_s = bench.now_s;
        while !trains(&bench) {
            bench.pass(1);
            assert!(bench.now_s < failed_s + 100.0);
        }
        pauses.push(bench.now_s - failed_s);
    }
    assert_eq!(pauses, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0]);
    assert_eq!(bench.engine.faults(), &NodeFaults::default());
}

#[test]
fn a_node_where_no_agent_says_hello_is_quarantined_and_another_is_tried() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle(0..2), Event::TrainerArrived(info(1, 1, 1))]);
    bench.now_s += 300.0;
    let actions = bench.tell(vec![Event::Timer]);
    assert_eq!(leaving(&actions), [0]);
    assert_eq!(placed(&actions), [1]);
    assert!(bench.is_quarantined(0));
}

#[test]
fn a_node_whose_agent_falls_silent_is_used_again_only_when_its_task_is_gone() {
    let mut bench = training_on(2);
    let actions = bench.tell(vec![lost(1, 1, LossReason::Silent)]);
    assert_eq!(leaving(&actions), [1]);
    // Slurm can't reach it.
    for action in actions {
        if !matches!(action, Action::Leave { .. }) {
            bench.obey(vec![action]);
        }
    }
    assert_eq!(bench.running_on(1), [0]);
    bench.now_s += 61.0;
    let actions = bench.tell(vec![Event::Timer]);
    assert_eq!((placed(&actions), leaving(&actions)), (vec![], vec![1]));
    bench.live(vec![Event::WorkerGone {
        trainer: TrainerId(1),
        node: NodeId(1),
    }]);
    assert_eq!(bench.running_on(1), [0, 1]);
}

#[test]
fn what_a_worker_that_takes_no_part_reports_is_no_failure_of_the_generation() {
    let mut bench = training_on(2);
    bench.live(vec![Event::TrainerChanged(info(1, 1, 4))]);
    bench.tell(vec![idle(2..4)]);
    bench.tell(vec![hello(1, 2)]);
    assert_eq!(bench.tell(vec![stopped(1, 2, 1, failed())]), []);
    assert_eq!(bench.running_on(1), [0, 1]);
    assert_eq!(bench.trainer(1).failures, []);
}

#[test]
fn one_users_broken_program_keeps_no_node_from_others() {
    let mut bench = training_on(4);
    fail_on(&mut bench, 0);
    fail_on_after_pause(&mut bench, 1);
    assert!(bench.avoids(1, 0) && bench.avoids(1, 1));
    assert_eq!(bench.running_on(1), [2, 3]);
    // Another user's trainer may use them at once, and gets those that T1 keeps off.
    bench.arrive(info(2, 2, 2));
    assert_eq!(bench.running_on(2), [0, 1]);
    assert_eq!(bench.running_on(1), [2, 3]);
}

/// As [`fail_on`], after the pause before the next restart.
fn fail_on_after_pause(bench: &mut Bench, node: u32) {
    bench.pass(2);
    fail_on(bench, node);
    bench.pass(4);
}

#[test]
fn a_node_where_two_trainers_fail_is_quarantined_for_all() {
    let mut bench = training_on(1);
    fail_on(&mut bench, 0);
    bench.arrive(info(2, 1, 1));
    let generation = bench.run(2).number;
    bench.live(vec![stopped(2, 0, generation, failed())]);
    assert!(bench.is_quarantined(0));
    bench.arrive(info(3, 1, 1));
    assert_eq!(bench.assigned(3), [0; 0]);
    let left_alone = bench.engine.left_alone(TrainerId(3), bench.now_s);
    assert_eq!(left_alone.as_deref(), Some("1 node is in quarantine"));
    // The first one's end unjudged does not lift what the second one has seen.
    bench.tell(vec![Event::TrainerGone {
        trainer: TrainerId(1),
    }]);
    assert!(bench.avoids(2, 0) && !bench.is_quarantined(0));
    // Its time over, it is tried again.
    bench.pass(70);
    assert!(!bench.avoids(2, 0));
}

#[test]
fn failures_of_one_owners_trainers_keep_no_node_from_others() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle(0..1)]);
    for id in 1..4 {
        let trainer = TrainerInfo {
            owner_uid: 1000,
            ..info(id, 1, 1)
        };
        bench.tell(vec![Event::TrainerArrived(trainer)]);
        bench.tell(vec![place_fault(id, 0, PlaceFault::NodeOrTrainer)]);
        assert!(bench.avoids(id, 0) && !bench.is_quarantined(0));
    }
    // Nor does the end of one of them.
    bench.tell(vec![Event::TrainerGone {
        trainer: TrainerId(1),
    }]);
    assert!(!bench.is_quarantined(0));
    bench.arrive(info(4, 1, 1));
    assert_eq!(bench.running_on(4), [0]);
    // Another owner's trainer has no part in the mistake.
    let generation = bench.run(4).number;
    bench.live(vec![stopped(4, 0, generation, failed())]);
    assert!(bench.is_quarantined(0));
}

#[test]
fn a_trainers_end_lifts_no_quarantine_that_another_one_caused() {
    let refused = place_fault(2, 0, PlaceFault::Node);
    for fault in [lost(2, 0, LossReason::Silent), refused] {
        let mut bench = training_on(1);
        fail_on(&mut bench, 0);
        bench.arrive(info(2, 1, 1));
        bench.tell(vec![fault]);
        assert!(bench.is_quarantined(0));
        bench.tell(vec![Event::TrainerGone {
            trainer: TrainerId(1),
        }]);
        assert!(bench.is_quarantined(0) && !bench.avoids(1, 0));
    }
}

fn place_fault(trainer: u32, node: u32, fault: PlaceFault) -> Event {
    Event::PlaceFailed {
        trainer: TrainerId(trainer),
        node: NodeId(node),
        fault,
        reason: "Slurm could not start a task there".to_owned(),
    }
}

#[test]
fn progress_of_one_trainer_takes_back_what_others_say_against_a_node() {
    let mut bench = training_on(1);
    fail_on(&mut bench, 0);
    bench.arrive(info(2, 1, 1));
    bench.live(vec![progress(2, 1, 100)]);
    let generation = bench.run(2).number;
    bench.live(vec![stopped(2, 0, generation, failed())]);
    assert!(bench.avoids(1, 0) && bench.avoids(2, 0) && !bench.is_quarantined(0));
}

#[test]
fn a_trainer_that_keeps_off_all_nodes_is_told_so_and_tried_again() {
    let mut bench = training_on(2);
    fail_on(&mut bench, 0);
    fail_on_after_pause(&mut bench, 1);
    assert_eq!(bench.assigned(1), [0; 0]);
    let left_alone = bench.engine.left_alone(TrainerId(1), bench.now_s);
    let expected = "n0 and n1 are avoided after a failure there (local rank 0 exited 1)";
    assert_eq!(left_alone.as_deref(), Some(expected));
    bench.pass(70);
    assert_eq!(bench.running_on(1), [0, 1]);
}

#[test]
fn two_trainers_share_the_nodes_that_neither_keeps_off() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![idle(0..2)]);
    bench.arrive(info(1, 1, 1));
    fail_on(&mut bench, 0);
    bench.pass(2);
    assert_eq!(bench.running_on(1), [1]);
    bench.arrive(info(2, 1, 1));
    assert_eq!(bench.running_on(2), [0]);
    bench.live(vec![stopped(2, 0, 1, failed())]);
    // Both have failed there: it is the node's fault.
    assert!(bench.is_quarantined(0));
    assert_eq!(bench.running_on(1), [1]);
    assert_eq!(bench.assigned(2), [0; 0]);
}

#[test]
fn a_program_that_ends_itself_as_preempted_again_and_again_fails() {
    let mut bench = training_on(1);
    let mut last = Vec::new();
    for times in 0..9 {
        assert!(!is_failed(&last), "after {times}");
        let generation = bench.run(1).number;
        last = bench.live(vec![stopped(1, 0, generation, Outcome::Stopped)]);
        last.extend(bench.pass(70));
    }
    let [
        Action::Fail {
            exit_code, reason, ..
        },
    ] = &last[..]
    else {
        panic!("{last:?}");
    };
    let expected = "ended 9 times in a row though nobody stopped it, without progress, last: it \
                    ended by itself as preempted";
    assert_eq!((*exit_code, reason.as_str()), (143, expected));
}

#[test]
fn a_control_folder_that_always_knows_a_newer_generation_fails_the_trainer() {
    let mut bench = training_on(4);
    let mut last = Vec::new();
    for times in 0..9 {
        assert!(!is_failed(&last), "after {times}");
        let newest_generation = bench.run(1).number + 5;
        let generation = bench.run(1).number;
        let fenced = Outcome::Fenced { newest_generation };
        last = bench.live(vec![stopped(1, times % 4, generation, fenced)]);
        last.extend(bench.pass(70));
    }
    assert!(is_failed(&last), "{last:?}");
}

#[test]
fn after_an_hour_of_training_without_reports_a_row_of_failures_is_over() {
    let mut bench = training_on(4);
    for node in 0..4 {
        bench.pass(3700);
        assert!(!is_failed(&fail_on(&mut bench, node)));
        assert!(!is_failed(&bench.pass(20)));
        assert_eq!(bench.trainer(1).failures.len(), 1);
    }
}
