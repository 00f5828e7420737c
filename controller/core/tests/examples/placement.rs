//! Who gets which nodes, when a task is placed, and what is said about it.

use bftrainer_core::engine::{Action, EngineConfig, Event, LossReason, PlaceFault};
use bftrainer_core::node::NodeId;
use bftrainer_core::pool::Phase;
use bftrainer_core::trainer::{TrainerId, TrainerInfo, TrainerState};

use super::*;

fn limits(actions: &[Action]) -> Vec<f64> {
    let limit = |action: &Action| match action {
        Action::Place { limit_s, .. } => Some(*limit_s),
        _ => None,
    };
    actions.iter().filter_map(limit).collect()
}

fn place_failed(trainer: u32, node: u32, fault: PlaceFault) -> Event {
    Event::PlaceFailed {
        trainer: TrainerId(trainer),
        node: NodeId(node),
        fault,
        reason: "its tasks wait for a limit".to_owned(),
    }
}

fn owned_by(owner_uid: u32, info: TrainerInfo) -> TrainerInfo {
    TrainerInfo { owner_uid, ..info }
}

fn admitted(bench: &Bench) -> Vec<u32> {
    let mut trainers: Vec<_> = bench
        .engine
        .trainers()
        .values()
        .filter(|trainer| trainer.state == TrainerState::Admitted)
        .collect();
    trainers.sort_by_key(|trainer| trainer.admission);
    trainers.iter().map(|trainer| trainer.info.id.0).collect()
}

#[test]
fn a_new_trainer_is_placed_once_and_the_rest_follow_its_hello() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle(0..4)]);
    let first = bench.tell(vec![Event::TrainerArrived(info(1, 1, 4))]);
    assert_eq!(placed(&first), [0]);
    assert_eq!(bench.assigned(1), [0, 1, 2, 3]);
    assert_eq!(bench.tell(vec![Event::Timer]), []);
    assert_eq!(placed(&bench.tell(vec![hello(1, 0)])), [1, 2, 3]);
}

#[test]
fn while_the_others_are_on_their_way_who_is_ready_waits_some_seconds_and_then_starts() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle(0..3), Event::TrainerArrived(info(1, 1, 3))]);
    bench.tell(vec![hello(1, 0)]);
    assert_eq!(bench.tell(vec![hello(1, 1)]), []);
    assert_eq!(bench.wake_s, Some(bench.now_s + 5.0));
    bench.now_s += 5.0;
    assert_eq!(bench.tell(vec![Event::Timer]), [start(1, 1, &[0, 1])]);
}

#[test]
fn a_limit_is_what_the_hole_allows_or_else_the_lease_or_the_longest_stay() {
    let mut bench = Bench::new(EngineConfig::default());
    let mut short = info(2, 1, 1);
    short.max_stay_s = Some(900.0);
    bench.tell(vec![Event::TrainerArrived(info(1, 1, 1))]);
    assert_eq!(
        limits(&bench.tell(vec![idle_until([0], Some(1300.0))])),
        [300.0]
    );
    bench.tell(vec![Event::TrainerArrived(short)]);
    assert_eq!(limits(&bench.tell(vec![idle([1])])), [900.0]);
    bench.tell(vec![Event::TrainerArrived(info(3, 1, 1))]);
    assert_eq!(limits(&bench.tell(vec![idle([2])])), [1800.0]);
}

#[test]
fn a_hole_of_less_than_a_minute_is_not_used() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![Event::TrainerArrived(info(1, 1, 1))]);
    assert_eq!(bench.live(vec![idle_until([0], Some(1059.0))]), []);
    assert_eq!(bench.assigned(1), [0; 0]);
    assert_eq!(
        placed(&bench.live(vec![idle_until([1], Some(1061.0))])),
        [1]
    );
}

#[test]
fn a_node_that_waited_too_long_for_its_placement_is_given_back() {
    let mut bench = Bench::new(EngineConfig::default());
    let end_s = bench.now_s + 80.0;
    bench.tell(vec![idle_until(0..2, Some(end_s))]);
    let first = bench.tell(vec![Event::TrainerArrived(info(1, 1, 2))]);
    assert_eq!(placed(&first), [0]);
    // The first hello comes when there is less than a minute left.
    bench.now_s += 30.0;
    assert_eq!(placed(&bench.tell(vec![hello(1, 0)])), [0; 0]);
    assert_eq!(bench.assigned(1), [0]);
    assert_eq!(
        bench.last_reason(1),
        "T1: 2 -> 1 nodes: n1 is expected back"
    );
}

#[test]
fn nodes_in_doubt_are_left_alone_until_the_pool_is_seen_again() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle(0..2), Event::TrainerArrived(info(1, 1, 4))]);
    bench.tell(vec![Event::PoolDoubted]);
    assert_eq!(placed(&bench.tell(vec![hello(1, 0)])), [0; 0]);
    assert_eq!(placed(&bench.tell(vec![idle(2..4)])), [0; 0]);
    let seen = bench.tell(vec![left([1]), Event::PoolSeen]);
    assert_eq!(placed(&seen), [2, 3]);
}

#[test]
fn a_placement_whose_node_goes_to_others_is_called_off() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle([0]), Event::TrainerArrived(info(1, 1, 1))]);
    assert_eq!(leaving(&bench.tell(vec![left([0])])), [0]);
}

#[test]
fn neighbours_go_to_one_trainer() {
    let mut bench = Bench::new(EngineConfig::default());
    // Numbers and host order differ: these are n20, n3, n21, n4.
    bench.live(vec![
        idle([20, 3, 21, 4]),
        Event::TrainerArrived(info(1, 2, 2)),
        Event::TrainerArrived(info(2, 2, 2)),
    ]);
    assert_eq!(bench.running_on(1), [3, 4]);
    assert_eq!(bench.running_on(2), [20, 21]);
}

#[test]
fn nodes_that_joined_together_stay_together_and_the_latest_are_released_first() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![idle([8, 9]), Event::TrainerArrived(info(1, 1, 4))]);
    bench.live(vec![idle([1, 2])]);
    assert_eq!(bench.running_on(1), [1, 2, 8, 9]);
    bench.live(vec![Event::TrainerChanged(info(1, 1, 2))]);
    assert_eq!(bench.running_on(1), [8, 9]);
}

#[test]
fn a_new_task_does_not_take_over_a_node_that_is_expected_back() {
    let mut bench = Bench::new(EngineConfig::default());
    let end_s = bench.now_s + 300.0;
    bench.live(vec![
        idle_until([0], Some(end_s)),
        idle([1]),
        Event::TrainerArrived(info(1, 1, 2)),
    ]);
    bench.now_s = end_s - 30.0;
    // T1 must give a node, T2 wants one: it gets the one that stays.
    let actions = bench.live(vec![
        Event::TrainerChanged(info(1, 1, 1)),
        Event::TrainerArrived(info(2, 1, 1)),
    ]);
    assert_eq!(placed(&actions), [0; 0]);
    assert_eq!(bench.running_on(1), [1]);
}

#[test]
fn admission_goes_round_over_users_and_by_arrival_within_one() {
    let mut bench = Bench::new(EngineConfig {
        min_trainers: 4,
        ..EngineConfig::default()
    });
    let greedy = (1..=5).map(|id| Event::TrainerArrived(owned_by(7, info(id, 1, 1))));
    let others = [
        Event::TrainerArrived(owned_by(8, info(6, 1, 1))),
        Event::TrainerArrived(owned_by(9, info(7, 1, 1))),
    ];
    bench.tell(greedy.chain(others).collect());
    bench.tell(vec![idle(0..4)]);
    assert_eq!(admitted(&bench), [1, 6, 7, 2]);
}

#[test]
fn more_are_admitted_while_those_that_run_cannot_use_the_whole_pool() {
    let mut bench = Bench::new(EngineConfig {
        min_trainers: 1,
        ..EngineConfig::default()
    });
    bench.tell(
        (1..=4)
            .map(|id| Event::TrainerArrived(info(id, 1, 4)))
            .collect(),
    );
    bench.tell(vec![idle(0..6)]);
    assert_eq!(admitted(&bench), [1, 2]);
}

#[test]
fn new_settings_count_from_the_next_event_on() {
    let mut bench = Bench::new(EngineConfig {
        min_trainers: 1,
        ..EngineConfig::default()
    });
    bench.tell(vec![
        idle(0..2),
        Event::TrainerArrived(info(1, 1, 2)),
        Event::TrainerArrived(info(2, 1, 2)),
    ]);
    assert_eq!(admitted(&bench), [1]);
    bench.engine.set_config(EngineConfig::default());
    bench.tell(vec![Event::Timer]);
    assert_eq!(admitted(&bench), [1, 2]);
}

#[test]
fn nobody_is_admitted_to_an_empty_pool() {
    let mut bench = Bench::new(EngineConfig {
        min_trainers: 1,
        ..EngineConfig::default()
    });
    bench.tell(
        (1..=4)
            .map(|id| Event::TrainerArrived(info(id, 1, 4)))
            .collect(),
    );
    assert_eq!(admitted(&bench), [0; 0]);
    bench.tell(vec![idle(0..2), Event::PoolDoubted]);
    assert_eq!(admitted(&bench), [0; 0]);
    bench.tell(vec![Event::PoolSeen]);
    assert_eq!(admitted(&bench), [1]);
}

#[test]
fn a_trainer_whose_min_does_not_fit_lets_others_pass() {
    let mut bench = Bench::new(EngineConfig {
        min_trainers: 1,
        ..EngineConfig::default()
    });
    bench.live(vec![
        idle(0..4),
        Event::TrainerArrived(info(1, 8, 16)),
        Event::TrainerArrived(info(2, 1, 4)),
    ]);
    assert_eq!(admitted(&bench), [2]);
    assert_eq!(bench.running_on(2), [0, 1, 2, 3]);
}

#[test]
fn weights_share_out_what_one_owner_has_and_bring_him_no_more() {
    let split = |first: f64, second: f64| {
        let mut bench = Bench::new(EngineConfig::default());
        let weighted = |id: u32, owner_uid: u32, weight: f64| {
            let info = owned_by(owner_uid, info(id, 1, 12));
            Event::TrainerArrived(TrainerInfo { weight, ..info })
        };
        bench.live(vec![
            idle(0..12),
            weighted(1, 7, first),
            weighted(2, 7, second),
            weighted(3, 8, 1.0),
        ]);
        [1, 2, 3].map(|id| bench.assigned(id).len())
    };
    let [first, second, other] = split(1.0, 1.0);
    assert_eq!(first, second);
    assert!(other > first, "{other} against {first}");
    assert_eq!(split(100.0, 100.0), split(1.0, 1.0));
    let [light, heavy, _] = split(1.0, 3.0);
    assert!(heavy > light, "{heavy} against {light}");
}

#[test]
fn a_trainer_that_a_limit_holds_up_trains_on_the_nodes_that_it_has() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle(0..4), Event::TrainerArrived(info(1, 1, 4))]);
    bench.tell(vec![hello(1, 0)]);
    bench.tell(vec![hello(1, 1)]);
    let actions = bench.tell(vec![
        place_failed(1, 2, PlaceFault::Trainer),
        place_failed(1, 3, PlaceFault::Trainer),
    ]);
    assert_eq!(actions, [start(1, 1, &[0, 1])]);
    bench.obey(actions);
    // Others may use the rest; a minute later it tries again.
    let actions = bench.arrive(info(2, 1, 1));
    assert_eq!(placed(&actions), [2]);
    assert_eq!(placed(&bench.pass(60)), [3]);
}

#[test]
fn a_trainer_that_a_limit_keeps_from_its_first_start_keeps_no_nodes() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle(0..4), Event::TrainerArrived(info(1, 1, 4))]);
    bench.tell(vec![place_failed(1, 0, PlaceFault::Trainer)]);
    assert_eq!(bench.assigned(1), [0; 0]);
    let reason = bench.last_reason(1);
    assert_eq!(
        reason,
        "T1: 3 -> 0 nodes: it may have 0 at most while its tasks wait for a limit"
    );
}

#[test]
fn a_failed_placement_tries_another_node_when_the_node_is_to_blame() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle(0..2), Event::TrainerArrived(info(1, 1, 1))]);
    let actions = bench.tell(vec![place_failed(1, 0, PlaceFault::Node)]);
    assert_eq!(placed(&actions), [1]);
    assert!(bench.is_quarantined(0));
}

#[test]
fn a_task_that_fails_before_its_hello_keeps_its_trainer_off_the_node_and_two_trainers_all() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle(0..2), Event::TrainerArrived(info(1, 1, 1))]);
    let actions = bench.tell(vec![place_failed(1, 0, PlaceFault::NodeOrTrainer)]);
    assert_eq!(placed(&actions), [1]);
    assert!(!bench.is_quarantined(0));
    assert_eq!(placed(&bench.arrive(info(2, 1, 1))), [0]);
    bench.tell(vec![place_failed(2, 0, PlaceFault::NodeOrTrainer)]);
    assert!(bench.is_quarantined(0));
}

#[test]
fn a_trainer_whose_tasks_fail_wherever_they_start_waits_longer_each_time() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![idle(0..8), Event::TrainerArrived(info(1, 1, 4))]);
    let fail = |bench: &mut Bench, node| {
        let actions = bench.tell(vec![place_failed(1, node, PlaceFault::NodeOrTrainer)]);
        placed(&actions)
    };
    assert_eq!(fail(&mut bench, 0), [1]);
    assert_eq!(fail(&mut bench, 1), [2]);
    assert_eq!(fail(&mut bench, 2), [0; 0]);
    assert_eq!(bench.assigned(1), [0; 0]);
    let wait = |bench: &mut Bench, pause_s: f64| {
        assert_eq!(bench.trainer(1).resume_at_s, bench.now_s + pause_s);
        bench.now_s = bench.wake_s.expect("a time to go on");
        bench.tell(vec![Event::Timer])
    };
    assert_eq!(placed(&wait(&mut bench, 60.0)), [0]);
    assert_eq!(fail(&mut bench, 0), [0; 0]);
    // What ails it is mended meanwhile: as any other it gets what it asks for.
    let actions = wait(&mut bench, 120.0);
    assert_eq!(placed(&actions).len(), 1);
    bench.obey(actions);
    assert_eq!(bench.running_on(1).len(), 4);
    assert_eq!(bench.trainer(1).failed_starts, 0);
}

#[test]
fn tasks_that_fail_to_start_do_not_pause_a_trainer_that_trains_elsewhere() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![idle(0..2), Event::TrainerArrived(info(1, 2, 4))]);
    for node in 2..6 {
        assert_eq!(placed(&bench.tell(vec![idle(node..node + 1)])), [node]);
        bench.tell(vec![place_failed(1, node, PlaceFault::NodeOrTrainer)]);
    }
    bench.live(vec![idle(6..7)]);
    assert_eq!(bench.running_on(1), [0, 1, 6]);
}

#[test]
fn an_agent_that_joins_ends_the_pause_that_its_peers_brought_about() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![idle(0..1), Event::TrainerArrived(info(1, 1, 4))]);
    bench.tell(vec![lost(1, 0, LossReason::Preempted)]);
    assert_eq!(placed(&bench.tell(vec![idle(1..5)])), [1, 2, 3, 4]);
    let fail = |node| place_failed(1, node, PlaceFault::NodeOrTrainer);
    bench.tell(vec![fail(1), fail(2), fail(3)]);
    assert!(bench.trainer(1).resume_at_s > bench.now_s);
    bench.live(vec![hello(1, 4)]);
    assert_eq!(bench.running_on(1), [4]);
    bench.live(vec![idle(5..6)]);
    assert_eq!(bench.running_on(1), [4, 5]);
}

#[test]
fn a_paused_trainer_keeps_nobody_from_admission() {
    let mut bench = Bench::new(EngineConfig {
        min_trainers: 1,
        ..EngineConfig::default()
    });
    bench.live(vec![idle(0..2), Event::TrainerArrived(info(1, 1, 2))]);
    bench.arrive(info(2, 1, 2));
    assert_eq!(bench.assigned(2), [0; 0]);
    let limited = |node| place_failed(1, node, PlaceFault::Trainer);
    bench.tell(vec![
        lost(1, 0, LossReason::Ended),
        lost(1, 1, LossReason::Ended),
    ]);
    bench.live(vec![limited(0), limited(1)]);
    assert_eq!(bench.running_on(2), [0, 1]);
}

#[test]
fn a_trainers_end_is_its_last_decision() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![idle(0..4), Event::TrainerArrived(info(1, 1, 4))]);
    let finished = Event::Finished {
        trainer: TrainerId(1),
        exit_code: 0,
    };
    bench.live(vec![lost(1, 3, LossReason::Preempted), finished]);
    let last: Vec<&str> = bench.decisions[1..]
        .iter()
        .map(|it| it.reason.as_str())
        .collect();
    assert_eq!(
        last,
        [
            "T1: 4 -> 3 nodes: n3 was taken by Slurm",
            "T1: 3 -> 0 nodes: its training has ended",
        ]
    );
}

#[test]
fn a_placement_that_fails_after_its_hello_is_the_loss_of_a_worker() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![idle(0..2), Event::TrainerArrived(info(1, 1, 2))]);
    let actions = bench.tell(vec![place_failed(1, 1, PlaceFault::Node)]);
    assert_eq!(leaving(&actions), [1]);
    assert!(actions.contains(&stop(1, 1, &[0], 0.0)));
    assert_eq!(bench.phase(1), Some(Phase::Leaving));
}

#[test]
fn decisions_say_why_in_numbers() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![idle(0..2), Event::TrainerArrived(info(1, 1, 6))]);
    assert_eq!(
        bench.last_reason(1),
        "T1: 0 -> 2 nodes: 2 more are worth 118 samples over 60 s with nothing running that \
         would have to restart"
    );
    bench.live(vec![idle(2..4)]);
    assert_eq!(
        bench.last_reason(1),
        "T1: 2 -> 4 nodes: 2 more are worth 109 samples over 60 s against a restart of 1.0 s"
    );
    bench.arrive(info(2, 1, 2));
    assert_eq!(
        bench.last_reason(1),
        "T1: 4 -> 2 nodes: 2 fewer cost 109 samples over 60 s and a restart of 1.0 s; others \
         gain more from them"
    );
    bench.live(vec![left([1])]);
    assert_eq!(bench.last_reason(1), "T1: 2 -> 1 nodes: n1 left the pool");
    bench.live(vec![idle(20..21)]);
    bench.live(vec![lost(1, 20, LossReason::Preempted)]);
    assert_eq!(
        bench.last_reason(1),
        "T1: 2 -> 1 nodes: n20 was taken by Slurm"
    );
    bench.live(vec![idle(10..15)]);
    let decisions = bench.decisions.len();
    bench.live(vec![left(10..15), Event::TrainerChanged(info(2, 1, 2))]);
    let reasons: Vec<&str> = bench.decisions[decisions..]
        .iter()
        .map(|decision| decision.reason.as_str())
        .collect();
    assert_eq!(
        reasons,
        ["T1: 6 -> 1 nodes: n10, n11, n12, n13 and 1 more left the pool"]
    );
    bench.live(vec![Event::TrainerChanged(info(2, 1, 1))]);
    assert_eq!(
        bench.last_reason(2),
        "T2: 2 -> 1 nodes: it may have 1 at most"
    );
    bench.live(vec![Event::TrainerChanged(info(1, 4, 6))]);
    assert_eq!(
        bench.last_reason(1),
        "T1: 2 -> 0 nodes: 2 are fewer than its min of 4"
    );
}

#[test]
fn a_trainer_whose_min_rises_gets_that_many_or_none() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![idle(0..3), Event::TrainerArrived(info(1, 1, 3))]);
    bench.live(vec![Event::TrainerChanged(info(1, 4, 6))]);
    assert_eq!(bench.running_on(1), [0; 0]);
    assert!((0..3).all(|node| bench.phase(node).is_none()));
    bench.live(vec![idle([3])]);
    assert_eq!(bench.running_on(1), [0, 1, 2, 3]);
}

#[test]
fn a_task_that_somebody_released_is_kept_where_a_node_is_to_spare() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![idle(0..2), Event::TrainerArrived(info(1, 1, 1))]);
    bench.live(vec![Event::TrainerArrived(info(2, 3, 3))]);
    // T1 runs on n0; T2 gets no node of its own.
    bench.tell(vec![found(1, 1)]);
    bench.now_s += 1.0;
    assert_eq!(leaving(&bench.tell(vec![hello(1, 1)])), [1]);
}

#[test]
fn a_task_that_runs_on_a_node_that_is_not_ours_is_sent_home() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.tell(vec![Event::TrainerArrived(info(1, 1, 2)), idle([0])]);
    assert_eq!(leaving(&bench.tell(vec![found(1, 9)])), [9]);
    // Its placement on n0 is under way when T2's task turns up there.
    bench.tell(vec![Event::TrainerArrived(info(2, 1, 2))]);
    assert_eq!(leaving(&bench.tell(vec![found(2, 0)])), [0]);
    assert_eq!(bench.phase(0), Some(Phase::Placed));
}

#[test]
fn lines_of_progress_decide_nothing_and_leave_the_wake_up_as_it_is() {
    let mut bench = Bench::new(EngineConfig::default());
    let end_s = bench.now_s + 300.0;
    let arrived = Event::TrainerArrived(info(1, 1, 1));
    bench.live(vec![idle_until([0], Some(end_s)), arrived]);
    let time_s = end_s - 5.0;
    for samples in 1..9 {
        bench.now_s += 10.0;
        let actions = bench
            .engine
            .handle(bench.now_s, vec![progress(1, 1, samples)]);
        assert_eq!(actions, [Action::WakeAt { time_s }]);
    }
    bench.now_s = time_s;
    let actions = bench.tell(vec![progress(1, 1, 9)]);
    assert_eq!(actions, [stop(1, 1, &[0], 30.0)]);
}

#[test]
fn who_has_to_restart_anyway_takes_what_was_not_worth_a_restart() {
    let mut bench = Bench::new(EngineConfig::default());
    let dear = TrainerInfo {
        up_s: 100.0,
        ..info(1, 1, 4)
    };
    bench.live(vec![idle(0..3), Event::TrainerArrived(dear)]);
    bench.live(vec![idle([3])]);
    assert_eq!(bench.assigned(1), [0, 1, 2]);
    let decisions = bench.decisions.len();
    bench.live(vec![left([0])]);
    assert_eq!(bench.running_on(1), [1, 2, 3]);
    // One for the loss, one for the gain, and none while that is carried out.
    assert_eq!(bench.decisions.len(), decisions + 2);
    assert_eq!(
        bench.last_reason(1),
        "T1: 2 -> 3 nodes: 1 more is worth 54 samples over 60 s with a restart under way"
    );
}
