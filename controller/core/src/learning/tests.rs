//! Learning from the reports of simulated programs: noisy, warming up, falling back.

use proptest::prelude::*;

use super::*;
use crate::trainer::Terms;

/// A program that processes `rate(n)` samples per second on n nodes.
struct Program<'a> {
    rate: &'a dyn Fn(u32) -> f64,
    samples: f64,
    generation: u64,
    now_s: f64,
    dice: u64,
}

impl Program<'_> {
    /// A number from -1 to 1.
    fn noise(&mut self) -> f64 {
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.dice >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    }

    /// Trains on `nodes` nodes for `seconds`, a report each half second, up to 0.4 s late; the
    /// first three seconds are slow, and each second's throughput differs by up to 8 %.
    fn run(&mut self, learning: &mut Learning, trainer: TrainerId, nodes: u32, seconds: f64) {
        self.generation += 1;
        learning.started(self.now_s, trainer, self.generation, nodes, 1.0);
        let began_s = self.now_s;
        let mut said_s = 0.0f64;
        while self.now_s < began_s + seconds {
            said_s = said_s.max(self.now_s + 0.2 + 0.2 * self.noise());
            learning.progress(said_s, trainer, self.generation, self.samples as u64);
            let speed = if self.now_s < began_s + WARM_UP_S {
                0.2
            } else {
                1.0
            };
            self.samples += 0.5 * speed * (self.rate)(nodes) * (1.0 + 0.08 * self.noise());
            self.now_s += 0.5;
        }
        learning.stopping(self.now_s, trainer, true);
        self.now_s += 5.0;
    }
}

fn program(rate: &dyn Fn(u32) -> f64) -> Program<'_> {
    Program {
        rate,
        samples: 0.0,
        generation: 0,
        now_s: 1.8e9,
        dice: 7,
    }
}

fn info(id: u32, program: Option<&str>) -> TrainerInfo {
    TrainerInfo {
        id: TrainerId(id),
        owner_uid: 1000,
        program: program.map(str::to_owned),
        has_own_curve: false,
        min_nodes: 1,
        max_nodes: 64,
        weight: 1.0,
        curve: Curve::amdahl(0.98, 64),
        up_s: 20.0,
        down_s: 10.0,
        max_stay_s: None,
        terms: Terms::default(),
    }
}

fn estimated(learning: &mut Learning, info: &TrainerInfo) -> Curve {
    learning.refresh(info.id, &info.curve);
    learning.curve(info.id).unwrap().clone()
}

/// Follows the plan to its end; the seconds of running that it took.
fn follow_plan(learning: &mut Learning, trainer: TrainerId, program: &mut Program) -> f64 {
    let mut ran_s = 0.0;
    while let Some(nodes) = learning.plan(trainer).and_then(Plan::most_nodes) {
        program.run(learning, trainer, nodes, COUNT_S + 10.0);
        ran_s += COUNT_S + 10.0;
        assert!(ran_s < 2.0 * LONGEST_S, "a plan has no end");
    }
    ran_s
}

#[test]
fn a_plan_teaches_the_curve_at_a_bounded_cost() {
    for parallel in [0.9, 0.98, 0.999] {
        let rate = |nodes: u32| 300.0 / ((1.0 - parallel) + parallel / f64::from(nodes));
        let mut learning = Learning::default();
        let one = info(1, None);
        learning.arrived(&one);
        let ran_s = follow_plan(&mut learning, one.id, &mut program(&rate));
        assert!(ran_s <= 4.0 * (COUNT_S + 10.0));
        let curve = estimated(&mut learning, &one);
        for nodes in [1, 2, 8] {
            let ratio = curve.value(nodes) / rate(nodes);
            assert!((ratio - 1.0).abs() < 0.05, "{parallel} {nodes}: {ratio}");
        }
        let ratio = curve.value(32) / rate(32);
        assert!((ratio - 1.0).abs() < 0.2, "{parallel}: {ratio}");
    }
}

#[test]
fn a_program_is_profiled_once_by_one_trainer_and_known_to_all_of_its_owner() {
    let rate = |nodes: u32| 100.0 / (0.2 + 0.8 / f64::from(nodes));
    let mut learning = Learning::default();
    let (one, two) = (info(1, Some("train.sh")), info(2, Some("train.sh")));
    let other = TrainerInfo {
        owner_uid: 1001,
        ..info(3, Some("train.sh"))
    };
    for trainer in [&one, &two, &other] {
        learning.arrived(trainer);
    }
    assert!(learning.plan(one.id).is_some());
    assert!(learning.plan(two.id).is_none());
    assert!(learning.plan(other.id).is_some(), "another owner's program");
    follow_plan(&mut learning, one.id, &mut program(&rate));
    let curve = estimated(&mut learning, &two);
    assert!((curve.value(4) / rate(4) - 1.0).abs() < 0.05);
    learning.gone(one.id);
    learning.gone(two.id);
    let later = info(4, Some("train.sh"));
    learning.arrived(&later);
    assert!(learning.plan(later.id).is_none());
    assert!((estimated(&mut learning, &later).value(4) / rate(4) - 1.0).abs() < 0.05);
}

#[test]
fn when_the_profiled_trainer_goes_another_takes_over() {
    let mut learning = Learning::default();
    learning.arrived(&info(1, Some("a")));
    learning.arrived(&info(2, Some("a")));
    learning.gone(TrainerId(1));
    assert!(learning.plan(TrainerId(2)).is_some());
}

#[test]
fn whose_owner_has_told_a_curve_is_not_profiled_but_measured() {
    let rate = |nodes: u32| 50.0 * f64::from(nodes);
    let mut learning = Learning::default();
    let told = TrainerInfo {
        has_own_curve: true,
        ..info(1, None)
    };
    learning.arrived(&told);
    assert!(learning.plan(told.id).is_none());
    program(&rate).run(&mut learning, told.id, 4, 60.0);
    assert!((estimated(&mut learning, &told).value(4) / 200.0 - 1.0).abs() < 0.05);
}

#[test]
fn a_program_that_reports_nothing_is_not_profiled_for_ever() {
    let mut learning = Learning::default();
    learning.arrived(&info(1, None));
    assert_eq!(learning.next_plan_end_s(), None);
    learning.started(100.0, TrainerId(1), 1, 8, 1.0);
    assert_eq!(learning.next_plan_end_s(), Some(100.0 + LONGEST_S));
    learning.end_plans(100.0 + LONGEST_S);
    assert_eq!(learning.plan(TrainerId(1)), None);
    learning.arrived(&info(1, None));
    assert_eq!(learning.plan(TrainerId(1)), None, "never again");
}

#[test]
fn a_trainer_alone_is_forgotten_with_it() {
    let mut learning = Learning::default();
    learning.arrived(&info(1, None));
    learning.gone(TrainerId(1));
    assert_eq!(learning, Learning::default());
}

#[test]
fn reports_of_another_generation_say_nothing() {
    let mut learning = Learning::default();
    learning.arrived(&info(1, None));
    learning.started(0.0, TrainerId(1), 5, 2, 1.0);
    for (second, generation) in (0..100).zip([4, 6].into_iter().cycle()) {
        assert!(!learning.progress(f64::from(second), TrainerId(1), generation, second as u64));
    }
    assert!(!learning.profile(TrainerId(1)).unwrap().is_measured());
}

#[test]
fn rescales_in_order_and_rollbacks_tell_their_cost() {
    let mut learning = Learning::default();
    let one = info(1, None);
    learning.arrived(&one);
    learning.started(0.0, one.id, 1, 2, 1.0);
    learning.progress(10.0, one.id, 1, 500);
    for (generation, nodes, in_order) in [(2, 4, true), (3, 3, false), (4, 3, true), (5, 2, true)] {
        learning.stopping(10.0, one.id, in_order);
        learning.started(10.0, one.id, generation, nodes, 1.0);
        learning.progress(20.0, one.id, generation, if in_order { 500 } else { 400 });
        learning.restarted(20.0, one.id, f64::from(nodes));
    }
    let profile = learning.profile(one.id).unwrap();
    assert_eq!((profile.up_s(), profile.down_s()), (Some(4.0), Some(2.0)));
    assert_eq!(profile.redone(), Some(100.0));
}

#[test]
fn it_survives_being_written_and_read() {
    let rate = |nodes: u32| 100.0 * f64::from(nodes);
    let mut learning = Learning::default();
    let one = info(1, Some("a"));
    learning.arrived(&one);
    program(&rate).run(&mut learning, one.id, 8, 20.0);
    let text = serde_json::to_string(&learning).unwrap();
    let mut read: Learning = serde_json::from_str(&text).unwrap();
    assert_eq!(read.plan(one.id), learning.plan(one.id));
    let curves = [&mut learning, &mut read].map(|it| estimated(it, &one));
    assert_eq!(curves[0], curves[1]);
}

proptest! {
    #[test]
    fn visited_counts_are_learned_within_ten_per_cent(
        parallel in 0.5f64..1.0,
        visits in proptest::collection::vec((1u32..=64, 60.0f64..200.0), 1..12),
    ) {
        let rate = |nodes: u32| 1000.0 / ((1.0 - parallel) + parallel / f64::from(nodes));
        let mut learning = Learning::default();
        let one = info(1, None);
        learning.arrived(&one);
        let mut program = program(&rate);
        for (nodes, seconds) in &visits {
            program.run(&mut learning, one.id, *nodes, *seconds);
        }
        let curve = estimated(&mut learning, &one);
        for (nodes, _) in visits {
            let ratio = curve.value(nodes) / rate(nodes);
            prop_assert!((ratio - 1.0).abs() < 0.1, "{} nodes: {}", nodes, ratio);
        }
    }
}
