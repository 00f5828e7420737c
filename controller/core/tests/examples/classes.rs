//! Nodes that are not alike, and limits that trainers share.

use std::collections::BTreeSet;

use bftrainer_core::engine::Event;
use bftrainer_core::node::{ClassId, ClassInfo};
use bftrainer_core::trainer::{NodeCap, TrainerState};

use super::*;

fn of_class(class: u32, name: &str, speed: f64, members: &[u32]) -> Event {
    Event::NodeClass {
        class: ClassId(class),
        info: ClassInfo {
            name: name.to_owned(),
            speed,
        },
        nodes: nodes(members),
    }
}

/// Four slow and four fast nodes, not idle yet.
fn bench(fast_speed: f64) -> Bench {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![
        of_class(1, "a100", 1.0, &[0, 1, 2, 3]),
        of_class(2, "h100", fast_speed, &[4, 5, 6, 7]),
    ]);
    bench
}

fn only(classes: &[u32]) -> Terms {
    let classes: BTreeSet<ClassId> = classes.iter().copied().map(ClassId).collect();
    Terms {
        classes: Some(classes),
        ..Terms::default()
    }
}

fn capped(max_nodes: u32) -> Terms {
    let name = "user ada".to_owned();
    Terms {
        caps: vec![NodeCap { name, max_nodes }],
        ..Terms::default()
    }
}

fn with(terms: Terms, info: TrainerInfo) -> TrainerInfo {
    TrainerInfo { terms, ..info }
}

#[test]
fn classes_that_nobody_tells_apart_are_mixed() {
    let mut bench = bench(1.0);
    bench.live(vec![idle(0..8)]);
    bench.arrive(info(1, 1, 8));
    assert_eq!(bench.running_on(1), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(bench.last_reason(1).starts_with("T1: 0 -> 8 nodes: "));
}

#[test]
fn a_trainer_never_gets_nodes_of_a_class_that_it_may_not_use() {
    let mut bench = bench(1.0);
    bench.arrive(with(only(&[2]), info(1, 1, 8)));
    bench.live(vec![idle(0..6)]);
    assert_eq!(bench.running_on(1), [4, 5]);
    bench.live(vec![left([4, 5])]);
    assert!(bench.assigned(1).is_empty());
}

#[test]
fn one_that_holds_nodes_of_two_classes_keeps_one_when_somebody_tells_them_apart() {
    let mut bench = bench(1.0);
    bench.live(vec![idle(0..7)]);
    bench.arrive(info(1, 1, 8));
    assert_eq!(bench.running_on(1), [0, 1, 2, 3, 4, 5, 6]);
    bench.arrive(with(only(&[2]), info(2, 1, 8)));
    assert_eq!(bench.running_on(1), [0, 1, 2, 3]);
    assert_eq!(bench.running_on(2), [4, 5, 6]);
    let said = |reason: &&Decision| reason.reason.contains("7 nodes are no longer alike; ");
    assert!(bench.decisions.iter().any(|reason| said(&reason)));
}

#[test]
fn faster_nodes_are_moved_to_all_at_once_when_that_pays() {
    let mut bench = bench(3.0);
    bench.live(vec![idle(0..4)]);
    bench.arrive(info(1, 1, 4));
    assert_eq!(bench.running_on(1), [0, 1, 2, 3]);
    bench.live(vec![idle(4..8)]);
    bench.pass(60);
    assert_eq!(bench.running_on(1), [4, 5, 6, 7]);
    let reason = bench.last_reason(1);
    let start = "T1: 4 a100 nodes -> 4 h100 nodes: they are worth ";
    assert!(reason.starts_with(start), "{reason}");
}

#[test]
fn a_node_that_changes_its_class_under_a_trainer_is_given_back() {
    let mut bench = bench(1.0);
    bench.arrive(with(only(&[1]), info(1, 1, 8)));
    bench.live(vec![idle(0..4)]);
    assert_eq!(bench.running_on(1), [0, 1, 2, 3]);
    bench.live(vec![of_class(2, "h100", 1.0, &[3])]);
    assert_eq!(bench.running_on(1), [0, 1, 2]);
    assert_eq!(
        bench.last_reason(1),
        "T1: 4 -> 3 nodes: n3 is not what it asks for"
    );
}

#[test]
fn excluded_nodes_stay_idle_or_go_to_others() {
    let mut bench = bench(1.0);
    let terms = Terms {
        excluded: nodes(&[0, 2]).into_iter().collect(),
        ..Terms::default()
    };
    bench.arrive(with(terms, info(1, 1, 4)));
    bench.live(vec![idle(0..4)]);
    assert_eq!(bench.running_on(1), [1, 3]);
    bench.arrive(info(2, 1, 4));
    assert_eq!(bench.running_on(1), [1, 3]);
    assert_eq!(bench.running_on(2), [0, 2]);
}

#[test]
fn trainers_that_share_a_limit_never_have_more_together() {
    let mut bench = bench(1.0);
    bench.live(vec![idle(0..8)]);
    bench.arrive(with(capped(5), info(1, 1, 8)));
    assert_eq!(bench.running_on(1).len(), 5);
    bench.arrive(with(capped(5), info(2, 1, 8)));
    assert_eq!(bench.running_on(1).len() + bench.running_on(2).len(), 5);
    bench.arrive(with(capped(5), info(3, 6, 8)));
    assert!(bench.assigned(3).is_empty());
    assert_eq!(
        bench.engine.used_up_limit(TrainerId(3)).as_deref(),
        Some("user ada, 5 nodes")
    );
    // Who does not share it gets the rest.
    bench.arrive(info(4, 1, 8));
    assert_eq!(bench.running_on(4).len(), 3);
}

#[test]
fn the_sites_weights_decide_between_equals() {
    let mut bench = bench(1.0);
    let heavy = Terms {
        weight: 4.0,
        ..Terms::default()
    };
    bench.live(vec![idle(0..8)]);
    bench.arrive(info(1, 1, 8));
    bench.arrive(with(heavy, info(2, 1, 8)));
    assert!(bench.running_on(2).len() > bench.running_on(1).len());
}

#[test]
fn who_can_use_nothing_more_is_not_admitted_beyond_the_fewest() {
    let mut bench = Bench::new(EngineConfig {
        min_trainers: 1,
        ..EngineConfig::default()
    });
    bench.live(vec![
        of_class(1, "a100", 1.0, &[0, 1]),
        of_class(2, "h100", 1.0, &[2, 3]),
        idle(0..4),
    ]);
    bench.arrive(with(only(&[1]), info(1, 1, 8)));
    bench.arrive(with(only(&[1]), info(2, 1, 8)));
    bench.arrive(with(only(&[2]), info(3, 1, 8)));
    assert_eq!(bench.running_on(1), [0, 1]);
    assert_eq!(bench.trainer(2).state, TrainerState::Waiting);
    assert_eq!(bench.running_on(3), [2, 3]);
}

#[test]
fn everybody_is_told_why_it_has_what_it_has() {
    let mut bench = bench(1.0);
    bench.live(vec![idle(0..4)]);
    bench.arrive(info(1, 1, 4));
    bench.arrive(info(2, 9, 16));
    bench.live(vec![idle(4..5)]);
    let said = bench.engine.explain(TrainerId(1)).unwrap();
    assert_eq!(said, "stays at 4 nodes: as many as it can use");
    assert_eq!(bench.engine.explain(TrainerId(7)), None);
    let decided: u64 = bench.engine.outcomes().values().sum();
    assert_eq!(decided, bench.engine.times_decided());
    assert_eq!(bench.engine.outcomes().keys().count(), 1);
}
