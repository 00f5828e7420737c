//! The engine against a model of Slurm, agents and trainers: whatever happens,
//! what it does makes sense, and when all is calm everybody trains.

mod examples;
mod model;

use bftrainer_core::engine::EngineConfig;
use model::classes::{Asks, Limits};
use model::ops::{Op, fair, foul, sequences, setups};
use model::{Setup, World};
use proptest::prelude::*;

/// After so long without disturbance all must be settled, seconds: the longest
/// quarantine, twice the longest wait for an agent, and some restarts.
const CALM_S: f64 = 1000.0;

fn live_through(setup: &Setup, ops: &[(u16, Op)]) -> World {
    let mut world = World::new(setup);
    world.run(ops);
    world.calm_down();
    world.pass(CALM_S);
    // A measured restart may just have changed what pays.
    for _ in 0..20 {
        if world.unsettled().is_some() {
            world.pass(30.0);
        }
    }
    world
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn in_fair_weather_all_is_used_and_nodes_are_vacated_in_time(
        setup in setups(false), ops in sequences(fair()),
    ) {
        let world = live_through(&setup, &ops);
        prop_assert_eq!(world.unsettled(), None);
        prop_assert_eq!(world.stray_ranks(), None);
    }
}

proptest! {
    #![proptest_config(cases(10000))]

    #[test]
    fn whatever_fails_everybody_trains_again_when_it_is_over(
        setup in setups(true), ops in sequences(foul()),
    ) {
        let world = live_through(&setup, &ops);
        prop_assert_eq!(world.unsettled(), None);
        prop_assert_eq!(world.stray_ranks(), None);
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn an_engine_rebuilt_from_a_snapshot_goes_on_as_the_old_one(
        setup in setups(true), before in sequences(foul()), after in sequences(fair()),
    ) {
        let mut world = World::new(&setup);
        world.run(&before);
        // Each call compares the two engines' actions and decisions.
        world.take_snapshot();
        world.run(&after);
        world.pass(100.0);
        prop_assert!(world.twins_agree());
    }

    #[test]
    fn decisions_are_made_whenever_they_would_change_something(
        setup in setups(true), ops in sequences(foul()),
    ) {
        // Each call compares the engine with one that decides anew, exactly: where nodes are
        // alike and nobody shares a limit.
        let limits = Limits { all: None, per_owner: None };
        let mut setup = Setup { free_restarts: true, classes: 1, limits, ..setup };
        // Every report changes a little of what is learned; a decision waits for more.
        setup.config.learn = false;
        live_through(&setup, &ops);
    }

    #[test]
    fn the_same_events_bring_about_the_same_actions(
        setup in setups(true), ops in sequences(foul()),
    ) {
        let run = || {
            let mut world = World::new(&setup);
            world.run(&ops);
            world.actions
        };
        prop_assert_eq!(run(), run());
    }
}

/// The setup of a case that the properties above have found.
fn recorded(seed: u64, nodes: u32, classes: u32, faults: bool) -> Setup {
    Setup {
        seed,
        nodes,
        begin_s: 0.0,
        config: EngineConfig {
            horizon_s: 60.0,
            vacate_lead_s: 5.0,
            worker_start_timeout_s: 40.0,
            adopt_timeout_s: 20.0,
            quarantine_max_s: 240.0,
            learn: false,
            ..EngineConfig::default()
        },
        faults,
        progress: true,
        classes,
        limits: Limits {
            all: None,
            per_owner: None,
        },
        free_restarts: faults,
    }
}

fn free(first: u8, count: u8) -> Op {
    Op::Free {
        first,
        count,
        stay_s: None,
    }
}

fn take(first: u8, count: u8) -> Op {
    Op::Take { first, count }
}

fn fails(trainer: u8, rank: u8, preempted: bool) -> Op {
    Op::ProgramFails {
        trainer,
        rank,
        preempted,
    }
}

fn submit(owner: u8, (min, more): (u8, u8), weight: u8, parallel: u8, excluded: Option<u8>) -> Op {
    let asks = Asks {
        classes: 0,
        excluded,
    };
    Op::Submit {
        owner,
        min,
        more,
        weight,
        parallel,
        asks,
    }
}

#[test]
fn a_better_class_of_which_it_may_have_too_few_keeps_no_trainer_from_growing_where_it_is() {
    let setup = recorded(27_488_933_486_143, 15, 3, false);
    let ops = [
        (0, submit(1, (2, 1), 3, 72, Some(72))),
        (0, submit(0, (1, 0), 1, 0, None)),
        (0, Op::Cancel { trainer: 31 }),
        (1, submit(1, (1, 1), 1, 15, None)),
        (0, free(194, 5)),
        (
            0,
            Op::Take {
                first: 34,
                count: 1,
            },
        ),
        (0, Op::Reclass { node: 37, class: 0 }),
        (20, free(54, 4)),
        (0, free(0, 5)),
    ];
    assert_eq!(live_through(&setup, &ops).unsettled(), None);
}

#[test]
fn what_saving_takes_is_known_before_the_next_generation_starts() {
    let setup = recorded(13_611_028_342_452_112_213, 10, 1, true);
    let ops = [
        (2, free(201, 6)),
        (
            0,
            Op::Resize {
                trainer: 0,
                min: 1,
                more: 0,
            },
        ),
        (0, Op::CutOff { node: 0 }),
        (0, Op::CutOff { node: 0 }),
        (0, Op::Reclass { node: 0, class: 0 }),
        (0, Op::Doubt),
        (
            0,
            Op::Plan {
                first: 56,
                count: 1,
                in_s: Some(156),
            },
        ),
        (13, Op::CutOff { node: 0 }),
        (15, Op::Reclass { node: 0, class: 0 }),
        (23, free(10, 1)),
        (18, Op::CutOff { node: 0 }),
        (17, submit(0, (1, 3), 1, 62, None)),
        (0, submit(1, (2, 6), 1, 63, None)),
        (95, free(110, 1)),
        (
            667,
            Op::Plan {
                first: 57,
                count: 1,
                in_s: None,
            },
        ),
        (90, free(103, 7)),
        (0, free(0, 1)),
        (
            475,
            Op::Take {
                first: 189,
                count: 2,
            },
        ),
        (
            8,
            Op::ProgramFails {
                trainer: 127,
                rank: 0,
                preempted: true,
            },
        ),
        (
            5,
            Op::Flap {
                node: 39,
                away_ds: 43,
            },
        ),
        (57, free(0, 1)),
    ];
    assert_eq!(live_through(&setup, &ops).unsettled(), None);
}

#[test]
fn who_missed_a_live_generation_is_not_told_of_it_once_a_member_has_gone() {
    let setup = recorded(10_671_512_076_716_976_567, 12, 1, true);
    let ops = [
        (9, free(160, 1)),
        (0, submit(0, (2, 5), 1, 1, None)),
        (21, Op::Doubt),
        (
            19,
            Op::ProgramFails {
                trainer: 0,
                rank: 0,
                preempted: false,
            },
        ),
        (0, free(112, 1)),
        (0, free(29, 5)),
        (7, Op::Snapshot),
        (29, Op::CutOff { node: 0 }),
        (72, Op::Doubt),
        (13, free(70, 1)),
        (
            0,
            Op::Crash {
                node: 142,
                noticed: true,
            },
        ),
        (549, Op::Reclass { node: 0, class: 0 }),
        (
            34,
            Op::Flap {
                node: 14,
                away_ds: 22,
            },
        ),
        (0, Op::EndTask { node: 92 }),
        (3, free(0, 1)),
        (0, Op::RestartController { away_ds: 1 }),
    ];
    assert_eq!(live_through(&setup, &ops).unsettled(), None);
}

#[test]
fn a_failure_that_a_loss_explained_may_count_by_its_peers_after_progress() {
    let mut setup = recorded(17_954_070_668_633_315_491, 13, 1, true);
    setup.config.min_trainers = 2;
    setup.config.plan_grid_s = 60.0;
    setup.config.plan_wait_s = 30.0;
    let ops = [
        (0, free(192, 2)),
        (206, take(0, 1)),
        (
            159,
            Op::Resize {
                trainer: 0,
                min: 1,
                more: 0,
            },
        ),
        (853, take(31, 6)),
        (
            5,
            Op::Free {
                first: 64,
                count: 5,
                stay_s: Some(118),
            },
        ),
        (77, submit(0, (3, 3), 1, 59, None)),
        (18, fails(0, 0, false)),
        (17, free(76, 1)),
        (628, fails(0, 0, false)),
        (
            11,
            Op::Plan {
                first: 10,
                count: 7,
                in_s: None,
            },
        ),
        (
            165,
            Op::Release {
                trainer: 0,
                node: 0,
            },
        ),
        (50, Op::Reclass { node: 0, class: 0 }),
        (19, fails(0, 0, true)),
        (46, fails(0, 0, false)),
        (809, submit(1, (2, 2), 1, 0, None)),
        (33, fails(62, 1, true)),
        (50, fails(156, 97, false)),
        (77, fails(126, 165, false)),
        (0, Op::Reclass { node: 0, class: 0 }),
        (62, fails(216, 0, false)),
        (127, fails(126, 0, false)),
    ];
    assert_eq!(live_through(&setup, &ops).unsettled(), None);
}

#[test]
fn a_generation_that_is_found_is_told_again_though_its_trainer_now_asks_for_more_nodes() {
    let mut setup = recorded(12_846_417_853_713_061_043, 12, 1, true);
    setup.config.min_trainers = 1;
    setup.config.plan_grid_s = 0.0;
    setup.config.plan_wait_s = 0.0;
    setup.progress = false;
    setup.free_restarts = false;
    let before = [
        (0, free(62, 5)),
        (0, Op::Snapshot),
        (0, Op::Doubt),
        (0, submit(0, (3, 2), 1, 1, None)),
        (62, take(7, 1)),
        (
            38,
            Op::Crash {
                node: 62,
                noticed: false,
            },
        ),
        (0, fails(0, 0, true)),
        (75, take(218, 4)),
        (0, Op::Finish { trainer: 0 }),
        (22, take(0, 1)),
        (16, fails(0, 0, false)),
        (4, Op::Reclass { node: 0, class: 0 }),
        (4, Op::Reclass { node: 0, class: 0 }),
        (5, free(4, 6)),
        (
            12,
            Op::Plan {
                first: 0,
                count: 1,
                in_s: None,
            },
        ),
        (9, Op::Reclass { node: 0, class: 0 }),
        (
            56,
            Op::Crash {
                node: 10,
                noticed: false,
            },
        ),
        (
            0,
            Op::Flap {
                node: 12,
                away_ds: 5,
            },
        ),
        (0, fails(0, 1, false)),
        (3, Op::RestartController { away_ds: 1 }),
        (
            0,
            Op::Resize {
                trainer: 0,
                min: 4,
                more: 0,
            },
        ),
    ];
    let after = [(0, free(0, 1))];
    let mut world = World::new(&setup);
    world.run(&before);
    world.take_snapshot();
    world.run(&after);
    world.pass(100.0);
    assert!(world.twins_agree());
}
