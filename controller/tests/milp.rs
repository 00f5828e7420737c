//! The mixed-integer program against the vectors, against every allowed allocation of small
//! problems with classes and caps, and against greedy and local search on larger ones.

use std::time::Duration;

use bftrainer_controller::solver::milp::{Failure, Milp, Progress};
use bftrainer_core::allocation::{
    Cap, DpSolver, GeneralSolver, HeuristicSolver, NodeClass, Problem, Share, TrainerDemand,
    ValueTable, enumerate, greedy, published_bound,
};
use bftrainer_core::curve::Curve;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde::Deserialize;

const LIMIT: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Vector {
    id: u32,
    pool: u32,
    tfwd: f64,
    trainers: Vec<VectorTrainer>,
    objective: f64,
    objective_half_pool_bound: Option<f64>,
}

#[derive(Deserialize)]
struct VectorTrainer {
    current: u32,
    min: u32,
    max: u32,
    scale_up_cost_s: f64,
    scale_down_cost_s: f64,
    curve: Vec<(u32, f64)>,
}

fn vectors() -> Vec<(Vector, Problem)> {
    let lines = include_str!("../core/tests/instances.jsonl").lines();
    lines
        .map(|line| {
            let vector: Vector = serde_json::from_str(line).unwrap();
            let trainers = vector.trainers.iter().map(|t| {
                TrainerDemand::new(t.current, t.min, t.max, Curve::objective(&t.curve).unwrap())
                    .with_costs(t.scale_up_cost_s, t.scale_down_cost_s)
            });
            let problem = Problem::new(vector.pool, vector.tfwd, trainers.collect());
            (vector, problem)
        })
        .collect()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// What two sums of a problem's values may differ by: an objective near nothing can be the
/// difference of large ones.
fn margin(problem: &Problem) -> f64 {
    let table = ValueTable::new(problem, None);
    let rows = (0..problem.trainers.len()).flat_map(|j| {
        let row = |k| table.values(j, k).iter().copied();
        (0..problem.classes.len()).flat_map(row).collect::<Vec<_>>()
    });
    let sizes = rows.filter(|value| value.is_finite()).map(f64::abs);
    1e-9 * sizes.fold(0.0, f64::max)
}

/// Solved to the end, with what was reported on the way checked as well.
fn solve(milp: &mut Milp, problem: &Problem, max_change: Option<u32>) -> Option<f64> {
    let mut reports: Vec<Progress> = Vec::new();
    let solved = milp.solve(problem, max_change, LIMIT, &mut |progress| {
        reports.push(progress.clone());
    });
    let progress = match solved {
        Ok(progress) => progress,
        Err(Failure::Infeasible) => return None,
        Err(failure) => panic!("{failure:?} for {problem:?}"),
    };
    assert!(progress.optimal);
    let objective = problem.objective(&progress.shares).unwrap();
    let margin = margin(problem);
    for report in reports {
        assert!(problem.objective(&report.shares).unwrap() <= objective + margin);
        assert!(report.bound >= objective - margin, "{report:?} {objective}");
    }
    Some(objective)
}

#[test]
fn every_vector_reaches_its_optimum_with_and_without_the_half_pool_bound() {
    let mut milp = Milp::new().unwrap();
    let vectors = vectors();
    assert_eq!(vectors.len(), 302);
    for (vector, problem) in vectors {
        let objective = solve(&mut milp, &problem, None).unwrap();
        assert!(
            near(objective, vector.objective),
            "vector {}: {objective} instead of {}",
            vector.id,
            vector.objective
        );
        let bounded =
            published_bound(&problem).and_then(|bound| solve(&mut milp, &problem, Some(bound)));
        match (bounded, vector.objective_half_pool_bound) {
            (None, None) => {}
            (Some(objective), Some(expected)) if near(objective, expected) => {}
            other => panic!("vector {}: {other:?}", vector.id),
        }
    }
}

fn any_curve(most: u32) -> impl Strategy<Value = Curve> {
    let rough = prop::collection::btree_map(1..=most, 0.0_f64..100.0, 1..6);
    let even = prop::collection::btree_map(1..=most, (0_u8..5).prop_map(f64::from), 1..6);
    prop_oneof![rough, even]
        .prop_map(|points| Curve::objective(&points.into_iter().collect::<Vec<_>>()).unwrap())
}

fn any_demand(classes: usize, most: u32) -> impl Strategy<Value = TrainerDemand> {
    let speed = prop_oneof![1 => Just(0.0), 2 => Just(1.0), 2 => 0.5..2.0];
    let costs = prop_oneof![Just((0.0, 0.0)), (0.0..30.0, 0.0..30.0)];
    let held = (0..classes, 0..=most).prop_map(|(class, nodes)| Share::new(class, nodes));
    let speeds = prop::collection::vec(speed, classes);
    (held, 0..=most, 1..=most, any_curve(most), costs, speeds).prop_map(
        |(held, min, more, curve, (up_s, down_s), speeds)| {
            TrainerDemand::new(held, min, (min / 2).saturating_add(more), curve)
                .with_costs(up_s, down_s)
                .with_speeds(speeds)
        },
    )
}

/// Caps overlap at random: nested ones and others.
fn any_problem(
    trainers: std::ops::RangeInclusive<usize>,
    most: u32,
    pool: u32,
) -> impl Strategy<Value = Problem> {
    (1_usize..5, trainers).prop_flat_map(move |(classes, trainers)| {
        let nodes = prop::collection::vec(0..=pool, classes);
        let demands = prop::collection::vec(any_demand(classes, most), trainers);
        let members = prop::collection::btree_set(0..trainers.max(1), 0..=trainers);
        let caps = prop::collection::vec((members, 0..=2 * most), 0..4);
        let horizon = prop_oneof![1 => Just(0.0), 4 => 1.0..100.0];
        (nodes, demands, caps, horizon).prop_map(|(nodes, demands, caps, horizon_s)| {
            let named = nodes.iter().enumerate().map(|(k, &nodes)| NodeClass {
                name: format!("class{k}"),
                nodes,
            });
            let caps = caps.into_iter().map(|(members, max_nodes)| Cap {
                trainers: members.into_iter().filter(|&j| j < demands.len()).collect(),
                max_nodes,
            });
            let caps = caps.collect();
            Problem::with_classes(named.collect(), horizon_s, demands).with_caps(caps)
        })
    })
}

fn run(cases: u32, problems: impl Strategy<Value = Problem>, test: impl Fn(&mut Milp, &Problem)) {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..Default::default()
    };
    let milp = std::cell::RefCell::new(Milp::new().unwrap());
    let tested = TestRunner::new(config).run(&problems, |problem| {
        test(&mut milp.borrow_mut(), &problem);
        Ok(())
    });
    tested.unwrap();
}

#[test]
fn two_thousand_small_problems_are_solved_as_brute_force_does() {
    run(2000, any_problem(0..=4, 5, 5), |milp, problem| {
        let all = enumerate(problem, None);
        let best = all.iter().map(|(_, value)| *value).max_by(f64::total_cmp);
        let objective = solve(milp, problem, None).unwrap();
        assert!(
            (objective - best.unwrap()).abs() <= margin(problem),
            "{objective} {best:?}"
        );
    });
}

#[test]
fn larger_problems_are_solved_no_worse_than_greedy_and_local_search() {
    run(150, any_problem(5..=15, 40, 100), |milp, problem| {
        let objective = solve(milp, problem, None).unwrap();
        let least = objective + margin(problem);
        let table = ValueTable::new(problem, None);
        let greedy = greedy(&table).unwrap();
        assert!(problem.objective(&greedy).unwrap() <= least);
        let searched = HeuristicSolver { shakes: 20 }.solve(problem);
        assert!(searched.objective <= least);
        // Its own bound holds as well.
        let most = searched.objective + searched.gap * searched.objective.abs();
        assert!(objective <= most + margin(problem));
    });
}

#[test]
fn interchangeable_nodes_are_solved_as_the_dynamic_program_does() {
    let problems = (any_problem(1..=12, 60, 100), prop::option::of(0_u32..30)).prop_map(
        |(mut problem, bound)| {
            problem.caps.clear();
            problem.classes.truncate(1);
            for demand in &mut problem.trainers {
                demand.speeds.truncate(1);
                demand.current.class = 0;
            }
            (problem, bound)
        },
    );
    let mut milp = Milp::new().unwrap();
    let mut runner = TestRunner::deterministic();
    for _ in 0..200 {
        let (problem, bound) = problems.new_tree(&mut runner).unwrap().current();
        let rules = bftrainer_core::allocation::Rules {
            max_change: bound,
            ..Default::default()
        };
        let mut dp = DpSolver::new();
        let expected = dp.solve_with(&problem, rules).map(|s| s.objective);
        match (solve(&mut milp, &problem, bound), expected) {
            (None, None) => {}
            (Some(a), Some(b)) if (a - b).abs() <= 1e-9 * a.abs().max(1.0) => {}
            other => panic!("{other:?} for {problem:?}"),
        }
    }
}

#[test]
fn at_the_limit_there_is_an_incumbent_with_a_gap_that_holds() {
    let mut milp = Milp::new().unwrap();
    let mut runner = TestRunner::deterministic();
    let problems = any_problem(12..=12, 64, 150);
    for _ in 0..20 {
        let problem = problems.new_tree(&mut runner).unwrap().current();
        let hurried = milp
            .solve(&problem, None, Duration::ZERO, &mut |_| {})
            .unwrap();
        let objective = problem.objective(&hurried.shares).unwrap();
        let best = solve(&mut milp, &problem, None).unwrap();
        assert!(objective <= best + margin(&problem));
        assert!(hurried.bound >= best - margin(&problem));
    }
}
