//! From one membership to the next: growing, shrinking, losses, the end, and a
//! controller that comes back.

use bftrainer_core::engine::{Action, EngineConfig, Event, LossReason, Outcome};
use bftrainer_core::node::NodeId;
use bftrainer_core::pool::Phase;
use bftrainer_core::trainer::{RunState, TrainerId};

use super::*;

/// A bench on which T1 trains on `count` nodes and may have up to `max_nodes`.
fn training(count: u32, max_nodes: u32) -> Bench {
    training_as(Vec::new(), count, max_nodes)
}

/// A new engine's first sight of T1's running tasks.
fn restarted(tasks: u32) -> Bench {
    restarted_as(Vec::new(), tasks)
}

fn hole_ends(hole_ends: &[(u32, Option<f64>)]) -> Event {
    let ends = hole_ends.iter();
    Event::Pool {
        joined: Vec::new(),
        left: Vec::new(),
        hole_ends: ends.map(|(node, end_s)| (NodeId(*node), *end_s)).collect(),
    }
}

#[test]
fn the_old_generation_trains_on_until_the_newcomers_are_ready() {
    let mut bench = training(2, 4);
    assert_eq!(placed(&bench.tell(vec![idle(2..4)])), [2, 3]);
    assert_eq!(bench.tell(vec![hello(1, 2)]), []);
    assert_eq!(bench.running_on(1), [0, 1]);
    assert_eq!(bench.tell(vec![hello(1, 3)]), [stop(1, 1, &[0, 1], 30.0)]);
    assert_eq!(bench.tell(vec![stopped(1, 0, 1, Outcome::Stopped)]), []);
    let actions = bench.tell(vec![stopped(1, 1, 1, Outcome::Stopped)]);
    assert_eq!(actions, [start(1, 2, &[0, 1, 2, 3])]);
}

#[test]
fn a_newcomer_that_never_gets_ready_stops_blocking_after_worker_start_timeout_s() {
    let mut bench = training(1, 3);
    bench.tell(vec![idle(1..3)]);
    bench.now_s += 10.0;
    assert_eq!(bench.tell(vec![hello(1, 1)]), []);
    bench.now_s += 289.0;
    assert_eq!(bench.tell(vec![Event::Timer]), []);
    bench.now_s += 1.0;
    let actions = bench.live(vec![Event::Timer]);
    assert_eq!(leaving(&actions), [2]);
    assert_eq!(bench.running_on(1), [0, 1]);
    assert!(bench.is_quarantined(2));
}

#[test]
fn a_shrink_stops_all_with_grace_then_one_leaves_and_the_others_go_on() {
    let mut bench = training(3, 3);
    let actions = bench.tell(vec![Event::TrainerChanged(info(1, 1, 2))]);
    assert_eq!(actions, [stop(1, 1, &[0, 1, 2], 30.0)]);
    bench.tell(vec![stopped(1, 0, 1, Outcome::Stopped)]);
    bench.tell(vec![stopped(1, 2, 1, Outcome::Stopped)]);
    let actions = bench.tell(vec![stopped(1, 1, 1, Outcome::Stopped)]);
    assert_eq!(actions[0], start(1, 2, &[0, 1]));
    assert_eq!(leaving(&actions), [2]);
    assert_eq!(bench.phase(2), Some(Phase::Leaving));
    bench.obey(actions);
    assert_eq!(bench.phase(2), None);
}

#[test]
fn when_the_master_is_lost_the_others_are_killed_and_go_on_under_another() {
    let mut bench = training(3, 3);
    let actions = bench.tell(vec![lost(1, 0, LossReason::Preempted)]);
    assert_eq!(actions, [stop(1, 1, &[1, 2], 0.0)]);
    let actions = bench.obey(actions);
    assert_eq!(actions.last(), Some(&start(1, 2, &[1, 2])));
}

#[test]
fn a_loss_hastens_a_stop_that_is_under_way() {
    let mut bench = training(3, 3);
    bench.tell(vec![Event::TrainerChanged(info(1, 1, 2))]);
    let actions = bench.tell(vec![lost(1, 0, LossReason::Silent)]);
    assert!(actions.contains(&stop(1, 1, &[1, 2], 0.0)), "{actions:?}");
}

#[test]
fn who_does_not_answer_a_stop_is_lost_after_the_grace_and_ten_seconds() {
    let mut bench = training(2, 2);
    bench.tell(vec![Event::TrainerChanged(info(1, 1, 1))]);
    bench.tell(vec![stopped(1, 0, 1, Outcome::Stopped)]);
    bench.now_s += 39.0;
    assert_eq!(bench.tell(vec![Event::Timer]), []);
    bench.now_s += 1.0;
    let actions = bench.tell(vec![Event::Timer]);
    assert_eq!(leaving(&actions), [1]);
    assert!(actions.contains(&start(1, 2, &[0])));
}

#[test]
fn a_member_that_never_reports_its_start_is_lost() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle(0..2), Event::TrainerArrived(info(1, 1, 2))]);
    bench.tell(vec![hello(1, 0)]);
    assert_eq!(bench.tell(vec![hello(1, 1)]), [start(1, 1, &[0, 1])]);
    bench.tell(vec![started(1, 0, 1)]);
    bench.now_s += 300.0;
    let actions = bench.tell(vec![Event::Timer]);
    assert_eq!(leaving(&actions), [1]);
    assert!(actions.contains(&stop(1, 1, &[0], 0.0)));
}

#[test]
fn a_leave_that_came_to_nothing_is_repeated() {
    let mut bench = training(2, 2);
    let actions = bench.tell(vec![Event::TrainerChanged(info(1, 1, 1))]);
    assert_eq!(actions, [stop(1, 1, &[0, 1], 30.0)]);
    bench.tell(vec![stopped(1, 0, 1, Outcome::Stopped)]);
    let actions = bench.tell(vec![stopped(1, 1, 1, Outcome::Stopped)]);
    assert_eq!(leaving(&actions), [1]);
    bench.now_s += 60.0;
    assert_eq!(leaving(&bench.tell(vec![Event::Timer])), [1]);
    // An agent that says hello there has not heard of it either.
    assert_eq!(leaving(&bench.tell(vec![hello(1, 1)])), [1]);
}

#[test]
fn a_node_is_vacated_ahead_of_its_planned_end() {
    let mut bench = training(2, 2);
    let end_s = bench.now_s + 100.0;
    bench.live(vec![hole_ends(&[(1, Some(end_s))])]);
    assert_eq!(bench.pass(94), []);
    let actions = bench.pass(1);
    assert_eq!(actions[0], stop(1, 1, &[0, 1], 30.0));
    assert_eq!(leaving(&actions), [1]);
    assert_eq!(bench.running_on(1), [0]);
    // Who knows better in time keeps the node.
    let mut bench = training(1, 1);
    bench.live(vec![hole_ends(&[(0, Some(end_s))])]);
    bench.pass(50);
    bench.live(vec![hole_ends(&[(0, None)])]);
    assert_eq!(bench.pass(60), []);
}

#[test]
fn a_node_is_vacated_by_the_measured_save_time_and_three_seconds_ahead() {
    let mut bench = training(2, 2);
    let end_s = bench.now_s + 112.0;
    bench.live(vec![hole_ends(&[(0, Some(end_s))])]);
    bench.tell(vec![Event::TrainerChanged(info(1, 1, 1))]);
    bench.now_s += 12.0;
    bench.tell(vec![stopped(1, 0, 1, Outcome::Stopped)]);
    let actions = bench.tell(vec![stopped(1, 1, 1, Outcome::Stopped)]);
    bench.obey(actions);
    assert_eq!(bench.pass(84), []);
    assert_eq!(leaving(&bench.pass(1)), [0]);
}

#[test]
fn rank_0_decides_that_a_trainer_is_finished() {
    let mut bench = training(2, 2);
    assert_eq!(bench.tell(vec![stopped(1, 1, 1, Outcome::Exited)]), []);
    let actions = bench.tell(vec![stopped(1, 0, 1, Outcome::Exited)]);
    let trainer = TrainerId(1);
    let exit_code = 0;
    assert_eq!(actions, [Action::Close { trainer, exit_code }]);
    // Its nodes go to others when its workers have left them.
    bench.tell(vec![Event::TrainerArrived(info(2, 1, 2))]);
    let gone = |node| Event::WorkerGone {
        trainer,
        node: NodeId(node),
    };
    assert_eq!(placed(&bench.tell(vec![gone(0)])), [0]);
}

#[test]
fn a_generation_whose_members_all_come_back_goes_on_undisturbed() {
    let mut bench = restarted(3);
    for node in 0..3 {
        assert_eq!(bench.tell(vec![back(1, node, 7, &[0, 1, 2])]), []);
    }
    assert_eq!(bench.running_on(1), [0, 1, 2]);
    assert_eq!(bench.pass(400), []);
}

#[test]
fn a_generation_of_which_one_member_does_not_come_back_starts_over_without_it() {
    let mut bench = restarted(3);
    bench.tell(vec![back(1, 0, 7, &[0, 1, 2]), back(1, 2, 7, &[0, 1, 2])]);
    assert_eq!(bench.pass(19), []);
    let actions = bench.pass(1);
    assert_eq!(leaving(&actions), [1]);
    assert!(actions.contains(&stop(1, 7, &[0, 2], 0.0)));
    assert!(actions.contains(&start(1, 8, &[0, 2])));
}

#[test]
fn a_generation_of_which_one_member_comes_back_without_ranks_starts_over_at_once() {
    for order in [[0, 1], [1, 0]] {
        let mut bench = restarted(2);
        let mut actions = Vec::new();
        for node in order {
            let event = if node == 0 {
                back(1, 0, 7, &[0, 1])
            } else {
                Event::WorkerReady {
                    trainer: TrainerId(1),
                    node: NodeId(1),
                    running: None,
                    newest_generation: 7,
                }
            };
            actions.extend(bench.live(vec![event]));
        }
        assert_eq!(actions.last(), Some(&start(1, 8, &[0, 1])), "{actions:?}");
        assert!(!bench.is_quarantined(1));
    }
}

#[test]
fn nothing_starts_while_workers_that_were_found_may_run_ranks() {
    let mut bench = restarted(2);
    // The newcomer of the old controller's last days is back first.
    bench.tell(vec![hello(1, 1)]);
    assert_eq!(bench.pass(10), []);
    bench.live(vec![back(1, 0, 7, &[0])]);
    assert_eq!(bench.run(1).number, 8);
    assert_eq!(bench.running_on(1), [0, 1]);
}

#[test]
fn workers_that_were_found_are_not_dismissed_before_they_say_hello() {
    let mut bench = restarted(2);
    assert_eq!(bench.tell(vec![Event::TrainerChanged(info(1, 1, 1))]), []);
    bench.tell(vec![back(1, 0, 7, &[0, 1])]);
    let actions = bench.tell(vec![back(1, 1, 7, &[0, 1])]);
    assert_eq!(actions, [stop(1, 7, &[0, 1], 30.0)]);
}

#[test]
fn ranks_of_an_older_generation_are_killed_before_another_starts() {
    let mut bench = restarted(2);
    let behind = Event::WorkerReady {
        trainer: TrainerId(1),
        node: NodeId(0),
        running: Some((6, nodes(&[0, 1]))),
        newest_generation: 7,
    };
    assert_eq!(bench.tell(vec![behind]), [stop(1, 6, &[0], 0.0)]);
    assert_eq!(bench.phase(0), Some(Phase::Stale { may_save: false }));
    bench.tell(vec![hello(1, 1)]);
    assert_eq!(bench.pass(8), []);
    let actions = bench.tell(vec![stopped(1, 0, 6, Outcome::Stopped)]);
    assert_eq!(actions, [start(1, 8, &[0, 1])]);
}

#[test]
fn a_generation_gets_a_number_above_the_newest_in_the_trainers_files() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle([0]), Event::TrainerArrived(info(1, 1, 1))]);
    let actions = bench.tell(vec![Event::WorkerReady {
        trainer: TrainerId(1),
        node: NodeId(0),
        running: None,
        newest_generation: 41,
    }]);
    assert_eq!(actions, [start(1, 42, &[0])]);
    let newest_generation = 50;
    let fenced = Outcome::Fenced { newest_generation };
    assert_eq!(bench.tell(vec![stopped(1, 0, 42, fenced)]), []);
    assert_eq!(bench.pass(1), [start(1, 51, &[0])]);
    assert!(!bench.avoids(1, 0));
}

#[test]
fn an_agent_that_reconnects_with_its_ranks_changes_nothing() {
    let mut bench = training(2, 2);
    assert_eq!(bench.tell(vec![back(1, 1, 1, &[0, 1])]), []);
    assert_eq!(bench.running_on(1), [0, 1]);
}

#[test]
fn an_agent_that_never_heard_of_the_start_brings_about_another() {
    let mut bench = training(2, 2);
    let actions = bench.tell(vec![hello(1, 1)]);
    assert_eq!(actions, [stop(1, 1, &[0, 1], 0.0)]);
    let actions = bench.obey(actions);
    assert_eq!(actions.last(), Some(&start(1, 2, &[0, 1])));
}

#[test]
fn ranks_whose_agent_reconnects_while_they_save_keep_the_rest_of_their_grace() {
    let mut bench = training(2, 2);
    bench.tell(vec![Event::TrainerChanged(info(1, 1, 1))]);
    bench.now_s += 10.0;
    let actions = bench.tell(vec![back(1, 1, 1, &[0, 1])]);
    assert_eq!(actions, [stop(1, 1, &[1], 20.0)]);
}

#[test]
fn a_restart_is_measured_from_the_stop_to_progress_but_not_while_nodes_are_missing() {
    let mut bench = training(2, 3);
    bench.now_s += 2.0;
    bench.tell(vec![progress(1, 1, 100)]);
    assert_eq!(bench.trainer(1).restart_s, Some(2.0));
    bench.live(vec![idle([2])]);
    bench.now_s += 4.0;
    bench.tell(vec![progress(1, 2, 110)]);
    assert_eq!(bench.trainer(1).restart_s, Some(3.0));
    bench.live(vec![left(0..3)]);
    bench.now_s += 7200.0;
    bench.live(vec![idle(0..3)]);
    bench.now_s += 5.0;
    bench.tell(vec![progress(1, 3, 120)]);
    assert_eq!(bench.trainer(1).restart_s, Some(4.0));
}

#[test]
fn an_engine_that_loses_everything_at_once_has_nothing_to_stop() {
    let mut bench = training(3, 3);
    assert_eq!(bench.tell(vec![left(0..3)]), []);
    assert!(bench.trainer(1).run.is_none());
    assert!(bench.engine.pool().is_empty());
}

#[test]
fn a_generation_that_starts_waits_for_nobody_who_is_lost_meanwhile() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle(0..2), Event::TrainerArrived(info(1, 1, 2))]);
    bench.tell(vec![hello(1, 0)]);
    bench.tell(vec![hello(1, 1)]);
    bench.tell(vec![started(1, 0, 1)]);
    assert!(matches!(bench.run(1).state, RunState::Starting(_)));
    let actions = bench.live(vec![lost(1, 1, LossReason::Preempted)]);
    assert_eq!(actions.last(), Some(&start(1, 2, &[0])));
}

#[test]
fn a_generation_with_a_member_named_twice_is_not_believed() {
    let mut bench = restarted(2);
    let actions = bench.tell(vec![back(1, 0, 7, &[0, 1, 1])]);
    assert_eq!(actions, [stop(1, 7, &[0], 0.0)]);
    assert!(bench.trainer(1).run.is_none());
}

#[test]
fn an_agent_on_a_node_that_its_trainer_has_no_more_is_sent_home() {
    let mut bench = training(2, 2);
    assert_eq!(leaving(&bench.tell(vec![hello(1, 7)])), [7]);
    bench.live(vec![lost(1, 1, LossReason::Ended), left([1])]);
    assert_eq!(leaving(&bench.tell(vec![hello(1, 1)])), [1]);
}

#[test]
fn a_generation_that_is_still_to_be_adopted_is_not_disturbed_for_a_little_more() {
    let mut bench = Bench::new(EngineConfig::default());
    let mut slow = info(1, 1, 3);
    slow.up_s = 100.0;
    let arrived = Event::TrainerArrived(slow);
    let seen = vec![arrived, idle(0..3), found(1, 0), found(1, 1)];
    assert_eq!(bench.tell(seen), []);
    bench.live(vec![back(1, 0, 7, &[0, 1]), back(1, 1, 7, &[0, 1])]);
    assert_eq!(bench.pass(60), []);
    assert_eq!(bench.running_on(1), [0, 1]);
}

#[test]
fn a_found_worker_without_ranks_is_kept_from_starting_those_that_it_was_told_to_start() {
    let mut bench = restarted(1);
    let actions = bench.tell(vec![Event::WorkerReady {
        trainer: TrainerId(1),
        node: NodeId(0),
        running: None,
        newest_generation: 7,
    }]);
    assert_eq!(actions, [stop(1, 7, &[0], 0.0)]);
    let actions = bench.obey(actions);
    assert_eq!(actions.last(), Some(&start(1, 8, &[0])));
}
