//! Curves and costs that are learned: who is profiled, what decisions make of it.

use bftrainer_core::engine::{EngineConfig, Event};
use bftrainer_core::learning::COUNT_S;
use bftrainer_core::metric::Metric;
use bftrainer_core::trainer::{TrainerId, TrainerInfo};

use super::*;

fn learner() -> Bench {
    Bench::new(EngineConfig {
        learn: true,
        ..EngineConfig::default()
    })
}

/// A trainer of which nothing is known, of an owner whom all share.
fn unknown(id: u32, program: &str) -> TrainerInfo {
    TrainerInfo {
        owner_uid: 1000,
        program: Some(program.to_owned()),
        has_own_curve: false,
        ..info(id, 1, 64)
    }
}

/// Samples so far, by trainer.
type Counters = std::collections::BTreeMap<u32, f64>;

/// Lets all train for some time, a report of each every second, at `rate(trainer, nodes)`.
fn train(bench: &mut Bench, counters: &mut Counters, seconds: u32, rate: &dyn Fn(u32, u32) -> f64) {
    for _ in 0..seconds {
        bench.pass(1);
        let reports: Vec<Event> = bench
            .engine
            .trainers()
            .iter()
            .filter_map(|(id, trainer)| {
                let run = trainer.run.as_ref()?;
                let samples = counters.entry(id.0).or_default();
                *samples += rate(id.0, run.members.len() as u32);
                Some(progress(id.0, run.number, *samples as u64))
            })
            .collect();
        bench.live(reports);
    }
}

fn nodes_of(bench: &Bench, id: u32) -> usize {
    bench.running_on(id).len()
}

#[test]
fn a_program_is_profiled_from_many_nodes_to_few_while_others_use_the_rest() {
    let mut bench = learner();
    bench.live(vec![
        idle(0..40),
        Event::TrainerArrived(unknown(1, "a")),
        Event::TrainerArrived(TrainerInfo {
            has_own_curve: true,
            ..unknown(2, "b")
        }),
    ]);
    let rate = |_: u32, nodes: u32| 100.0 * f64::from(nodes).powf(0.9);
    let mut counters = Counters::new();
    let mut visited = Vec::new();
    for _ in 0..60 {
        assert!(nodes_of(&bench, 1) + nodes_of(&bench, 2) >= 38);
        visited.push(nodes_of(&bench, 1));
        train(&mut bench, &mut counters, 5, &rate);
    }
    visited.dedup();
    assert_eq!(visited[..3], [8, 2, 1]);
    assert!(visited[3] > 8, "{visited:?}");
    let curve = bench.engine.curve(TrainerId(1)).unwrap();
    for nodes in [1, 2, 8] {
        assert!((curve.value(nodes) / rate(1, nodes) - 1.0).abs() < 0.05);
    }
    let said: Vec<&str> = bench
        .decisions
        .iter()
        .map(|it| it.reason.as_str())
        .collect();
    let sentence = "T1: 8 -> 2 nodes: how it scales is not known; it is measured for 30 s each \
                    on 2 and 1";
    assert!(said.contains(&sentence), "{said:#?}");
}

#[test]
fn nobody_is_profiled_at_the_price_of_idle_nodes() {
    let mut bench = learner();
    bench.live(vec![idle(0..16), Event::TrainerArrived(unknown(1, "a"))]);
    let mut counters = Counters::new();
    for _ in 0..100 {
        train(&mut bench, &mut counters, 5, &|_, nodes| f64::from(nodes));
        assert_eq!(nodes_of(&bench, 1), 16);
    }
}

#[test]
fn nodes_go_from_a_program_that_scales_badly_to_one_that_scales_well() {
    let mut bench = learner();
    bench.live(vec![
        idle(0..32),
        Event::TrainerArrived(unknown(1, "bad")),
        Event::TrainerArrived(unknown(2, "good")),
    ]);
    let rate = |trainer: u32, nodes: u32| match trainer {
        1 => 100.0 / (0.3 + 0.7 / f64::from(nodes)),
        _ => 100.0 * f64::from(nodes),
    };
    let seconds = 8 * (COUNT_S as u32 + 10) + 200;
    train(&mut bench, &mut Counters::new(), seconds, &rate);
    let (bad, good) = (nodes_of(&bench, 1), nodes_of(&bench, 2));
    assert!(bad <= 6 && good >= 26, "{bad} {good}");
}

#[test]
fn what_one_trainer_has_shown_the_next_one_of_its_program_need_not_show_again() {
    let mut bench = learner();
    bench.live(vec![
        idle(0..24),
        Event::TrainerArrived(unknown(1, "a")),
        Event::TrainerArrived(unknown(2, "b")),
    ]);
    let rate = |trainer: u32, nodes: u32| match trainer {
        2 => 1000.0 * f64::from(nodes),
        _ => 100.0 / (0.5 + 0.5 / f64::from(nodes)),
    };
    let mut counters = Counters::new();
    train(&mut bench, &mut counters, 400, &rate);
    bench.live(vec![Event::TrainerGone {
        trainer: TrainerId(1),
    }]);
    bench.live(vec![Event::TrainerArrived(unknown(3, "a"))]);
    assert!(bench.engine.plan(TrainerId(3)).is_none());
    let known = bench.engine.curve(TrainerId(3)).unwrap();
    assert!((known.speedup(8) - rate(3, 8) / 100.0).abs() < 0.2);
}

#[test]
fn by_throughput_an_unknown_trainer_is_tried_beside_a_measured_one() {
    let mut bench = Bench::new(EngineConfig {
        learn: true,
        metric: Metric::Throughput,
        ..EngineConfig::default()
    });
    bench.live(vec![idle(0..16), Event::TrainerArrived(unknown(1, "slow"))]);
    let rate = |trainer: u32, nodes: u32| {
        let one = if trainer == 1 { 1e3 } else { 5e3 };
        one * f64::from(nodes).powf(0.9)
    };
    let mut counters = Counters::new();
    train(&mut bench, &mut counters, 200, &rate);
    assert_eq!(nodes_of(&bench, 1), 16);
    bench.live(vec![Event::TrainerArrived(unknown(2, "fast"))]);
    train(&mut bench, &mut counters, 600, &rate);
    assert!(nodes_of(&bench, 2) >= 14, "{}", nodes_of(&bench, 2));
}

#[test]
fn measured_costs_of_growing_and_shrinking_replace_what_was_told() {
    let mut bench = learner();
    bench.live(vec![
        idle(0..2),
        Event::TrainerArrived(TrainerInfo {
            up_s: 300.0,
            down_s: 200.0,
            ..info(1, 1, 8)
        }),
    ]);
    assert_eq!(bench.engine.rescale_costs_s(TrainerId(1)), (300.0, 200.0));
    bench.now_s += 1.0;
    bench.live(vec![progress(1, 1, 100)]);
    bench.now_s += 1.0;
    let shrunk = TrainerInfo {
        up_s: 300.0,
        down_s: 200.0,
        ..info(1, 1, 1)
    };
    bench.live(vec![Event::TrainerChanged(shrunk)]);
    bench.now_s += 4.0;
    bench.live(vec![progress(1, 2, 200)]);
    assert_eq!(bench.engine.rescale_costs_s(TrainerId(1)), (4.0, 4.0));
}

#[test]
fn without_the_setting_nothing_is_learned() {
    let mut bench = Bench::new(EngineConfig::default());
    bench.live(vec![idle(0..16), Event::TrainerArrived(unknown(1, "a"))]);
    train(&mut bench, &mut Counters::new(), 100, &|_, _| 7.0);
    assert!(bench.engine.learning().profiles().is_empty());
    assert_eq!(
        bench.engine.curve(TrainerId(1)),
        Some(&unknown(1, "a").curve)
    );
}
