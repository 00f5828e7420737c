//! Trainers whose programs handle membership themselves: who stays goes on.

use bftrainer_core::engine::{Action, EngineConfig, Event, LossReason, Outcome};
use bftrainer_core::pool::Phase;
use bftrainer_core::trainer::{RunState, TrainerId};

use super::*;

fn mode(trainer: u32, is_live: bool) -> Event {
    Event::TrainerMode {
        trainer: TrainerId(trainer),
        is_live,
    }
}

/// A bench on which the live T1 trains on `count` nodes and may have up to `max_nodes`.
fn training(count: u32, max_nodes: u32) -> Bench {
    training_as(vec![mode(1, true)], count, max_nodes)
}

/// A new engine's first sight of the live T1's running tasks.
fn restarted(tasks: u32) -> Bench {
    restarted_as(vec![mode(1, true)], tasks)
}

#[test]
fn newcomers_start_together_and_nobody_stops() {
    let mut bench = training(2, 4);
    assert_eq!(placed(&bench.tell(vec![idle(2..4)])), [2, 3]);
    assert_eq!(bench.tell(vec![hello(1, 3)]), []);
    let actions = bench.tell(vec![hello(1, 2)]);
    assert_eq!(actions, [start(1, 2, &[0, 1, 2, 3])]);
    bench.obey(actions);
    assert_eq!(bench.running_on(1), [0, 1, 2, 3]);
}

#[test]
fn who_leaves_stops_with_grace_while_the_others_go_on() {
    let mut bench = training(3, 3);
    let actions = bench.tell(vec![Event::TrainerChanged(info(1, 1, 2))]);
    assert_eq!(actions, [stop(1, 1, &[2], 30.0), start(1, 2, &[0, 1])]);
    bench.tell(vec![started(1, 0, 2), started(1, 1, 2)]);
    assert_eq!(bench.running_on(1), [0, 1]);
    assert_eq!(bench.phase(2), Some(Phase::Stale { may_save: true }));
    bench.now_s += 7.0;
    let actions = bench.tell(vec![stopped(1, 2, 1, Outcome::Stopped)]);
    assert_eq!(leaving(&actions), [2]);
    assert_eq!(bench.trainer(1).save_s, Some(7.0));
}

#[test]
fn ranks_that_are_killed_do_not_tell_how_long_saving_takes() {
    let mut bench = training(3, 3);
    bench.tell(vec![Event::TrainerChanged(info(1, 1, 2))]);
    bench.tell(vec![started(1, 0, 2), started(1, 1, 2)]);
    bench.now_s += 7.0;
    bench.tell(vec![stopped(1, 2, 1, Outcome::Stopped)]);
    bench.tell(vec![hello(1, 1)]);
    assert_eq!(bench.phase(1), Some(Phase::Stale { may_save: false }));
    bench.tell(vec![stopped(1, 1, 2, Outcome::Stopped)]);
    assert_eq!(bench.trainer(1).save_s, Some(7.0));
}

#[test]
fn who_does_not_leave_within_its_grace_and_ten_seconds_is_lost() {
    let mut bench = training(2, 2);
    let actions = bench.tell(vec![Event::TrainerChanged(info(1, 1, 1))]);
    assert_eq!(actions, [stop(1, 1, &[1], 30.0), start(1, 2, &[0])]);
    bench.tell(vec![started(1, 0, 2)]);
    assert_eq!(bench.pass(39), []);
    assert_eq!(leaving(&bench.pass(1)), [1]);
    assert_eq!(bench.running_on(1), [0]);
}

#[test]
fn when_rank_0_is_lost_the_next_in_order_is_rank_0() {
    let mut bench = training(3, 3);
    let actions = bench.tell(vec![lost(1, 0, LossReason::Preempted)]);
    assert_eq!(actions, [start(1, 2, &[1, 2])]);
    let actions = bench.tell(vec![
        started(1, 1, 2),
        started(1, 2, 2),
        stopped(1, 1, 2, Outcome::Exited),
    ]);
    let close = Action::Close {
        trainer: TrainerId(1),
        exit_code: 0,
    };
    assert!(actions.contains(&close), "{actions:?}");
}

#[test]
fn a_newcomer_that_is_lost_while_it_starts_holds_nobody_up() {
    let mut bench = training(1, 3);
    bench.tell(vec![idle(1..3)]);
    bench.tell(vec![hello(1, 1)]);
    assert_eq!(bench.tell(vec![hello(1, 2)]), [start(1, 2, &[0, 1, 2])]);
    bench.tell(vec![started(1, 0, 2)]);
    let actions = bench.tell(vec![lost(1, 1, LossReason::Preempted)]);
    assert_eq!(actions, [start(1, 3, &[0, 2])]);
    bench.obey(actions);
    assert_eq!(bench.running_on(1), [0, 2]);
}

#[test]
fn a_rank_that_fails_is_missed_by_the_others_and_its_node_avoided() {
    let mut bench = training(3, 3);
    let actions = bench.tell(vec![stopped(1, 1, 1, failed())]);
    assert!(actions.contains(&start(1, 2, &[0, 2])), "{actions:?}");
    assert_eq!(leaving(&actions), [1]);
    assert!(bench.avoids(1, 1));
    assert_eq!(bench.trainer(1).failures.len(), 1);
}

#[test]
fn failures_of_those_that_outlived_a_peer_are_put_down_to_that() {
    for end in [lost(1, 0, LossReason::Silent), stopped(1, 0, 1, failed())] {
        let mut bench = training(3, 3);
        let own = bench.tell(vec![end]);
        assert!(own.contains(&start(1, 2, &[1, 2])), "{own:?}");
        let counted = bench.trainer(1).failures.len();
        bench.now_s += 5.0;
        let actions = bench.tell(vec![stopped(1, 2, 2, failed())]);
        assert_eq!(actions, [start(1, 3, &[1, 2])]);
        assert_eq!(bench.trainer(1).failures.len(), counted);
        // Started anew it has lost nobody.
        bench.tell(vec![started(1, 1, 3), started(1, 2, 3)]);
        bench.tell(vec![stopped(1, 2, 3, failed())]);
        assert_eq!(bench.trainer(1).failures.len(), counted + 1);
    }
}

#[test]
fn three_failures_without_progress_on_different_nodes_end_a_live_trainer_too() {
    let mut bench = training(4, 4);
    let mut generation = 1;
    let mut actions = Vec::new();
    for node in [1, 2, 3] {
        actions = bench.live(vec![stopped(1, node, generation, failed())]);
        generation = bench.run(1).number;
        actions.extend(bench.pass(9));
    }
    let is_verdict = |action: &Action| matches!(action, Action::Fail { exit_code: 1, .. });
    assert!(actions.iter().any(is_verdict), "{actions:?}");
}

#[test]
fn below_its_minimum_all_stop() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![
        idle(0..3),
        Event::TrainerArrived(info(1, 3, 3)),
        mode(1, true),
    ]);
    let actions = bench.tell(vec![lost(1, 0, LossReason::Preempted)]);
    assert!(actions.contains(&stop(1, 1, &[1, 2], 0.0)), "{actions:?}");
    let actions = bench.obey(actions);
    assert_eq!(leaving(&actions), [1, 2]);
    assert_eq!(bench.trainer(1).run, None);
}

#[test]
fn a_trainer_that_goes_to_other_nodes_altogether_saves_first() {
    let mut bench = training(1, 1);
    bench.tell(vec![idle([5])]);
    // Its only node is expected back.
    let end_s = bench.now_s + 4.0;
    let hole_end = Event::Pool {
        joined: Vec::new(),
        left: Vec::new(),
        hole_ends: vec![(NodeId(0), Some(end_s))],
    };
    let actions = bench.tell(vec![hole_end]);
    assert!(actions.contains(&stop(1, 1, &[0], 30.0)), "{actions:?}");
    bench.obey(actions);
    assert_eq!(bench.running_on(1), [5]);
}

#[test]
fn a_controller_that_comes_back_stops_nobody() {
    let mut bench = restarted(3);
    for node in 0..3 {
        assert_eq!(bench.tell(vec![back(1, node, 5, &[0, 1, 2])]), []);
    }
    assert_eq!(bench.running_on(1), [0, 1, 2]);
    assert_eq!(bench.run(1).number, 5);
}

#[test]
fn members_that_had_not_heard_of_the_newest_generation_are_told_again() {
    let mut bench = restarted(3);
    assert_eq!(bench.tell(vec![back(1, 0, 4, &[0, 1, 2])]), []);
    // Node 2 was told to leave and had not heard it.
    let actions = bench.tell(vec![back(1, 1, 5, &[0, 1])]);
    assert_eq!(actions, [start(1, 5, &[0, 1])]);
    assert_eq!(bench.running_on(1), [0, 1]);
    let actions = bench.tell(vec![back(1, 2, 4, &[0, 1, 2])]);
    assert_eq!(actions, [stop(1, 4, &[2], 0.0)]);
    let actions = bench.live(vec![stopped(1, 2, 4, Outcome::Stopped)]);
    assert_eq!(actions, [start(1, 6, &[0, 1, 2])]);
}

#[test]
fn a_member_that_missed_a_start_while_it_was_away_is_told_again() {
    let mut bench = training(2, 3);
    bench.tell(vec![idle([2])]);
    assert_eq!(bench.tell(vec![hello(1, 2)]), [start(1, 2, &[0, 1, 2])]);
    bench.tell(vec![started(1, 0, 2), started(1, 2, 2)]);
    let actions = bench.tell(vec![back(1, 1, 1, &[0, 1])]);
    assert_eq!(actions, [start(1, 2, &[0, 1, 2])]);
    assert_eq!(bench.running_on(1), [0, 1, 2]);
}

#[test]
fn a_member_whose_ranks_ended_while_it_was_away_comes_again_as_a_newcomer() {
    let mut bench = training(3, 3);
    let actions = bench.tell(vec![hello(1, 0)]);
    // It may be about to start some.
    assert_eq!(actions, [stop(1, 1, &[0], 0.0), start(1, 2, &[1, 2])]);
    bench.obey(actions);
    assert_eq!(bench.running_on(1), [1, 2, 0]);
    assert_eq!(bench.trainer(1).failures, []);
}

#[test]
fn nobody_is_taken_for_a_member_before_all_that_were_found_have_said_hello() {
    let mut bench = restarted(3);
    assert_eq!(bench.tell(vec![back(1, 0, 5, &[0, 1, 2])]), []);
    assert_eq!(bench.tell(vec![hello(1, 1)]), [stop(1, 5, &[1], 0.0)]);
    assert_eq!(bench.tell(vec![stopped(1, 1, 5, Outcome::Stopped)]), []);
    assert!(matches!(bench.run(1).state, RunState::Adopting(_)));
    let actions = bench.tell(vec![back(1, 2, 5, &[0, 1, 2])]);
    assert_eq!(actions, [start(1, 6, &[0, 2, 1])]);
}
