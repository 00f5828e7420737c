//! Node classes and caps without a library: what greedy, local search, bounds and reductions
//! promise, against every allowed allocation of small problems.

use bftrainer_core::allocation::{
    Allocator, Cap, HeuristicSolver, Infeasible, NodeClass, Prices, Problem, ProblemError, Search,
    Share, Solver, TrainerDemand, ValueTable, bound, enumerate, estimate_prices, greedy, reduce,
    survivors,
};
use bftrainer_core::curve::Curve;
use proptest::prelude::*;

fn classes(nodes: &[u32]) -> Vec<NodeClass> {
    let named = nodes.iter().enumerate().map(|(k, &nodes)| NodeClass {
        name: format!("class{k}"),
        nodes,
    });
    named.collect()
}

/// Worth `per_node` a node and second at speed 1, rescaled for nothing.
fn linear(current: Share, max: u32, per_node: f64) -> TrainerDemand {
    TrainerDemand::new(current, 1, max, Curve::objective(&[(1, per_node)]).unwrap())
}

fn cap(trainers: &[usize], max_nodes: u32) -> Cap {
    Cap {
        trainers: trainers.to_vec(),
        max_nodes,
    }
}

#[test]
fn a_change_of_class_costs_growing_and_shrinking() {
    let demand = linear(Share::new(0, 2), 4, 10.0)
        .with_costs(3.0, 2.0)
        .with_speeds(vec![0.5, 1.0]);
    let problem = Problem::with_classes(classes(&[4, 4]), 60.0, vec![demand]);
    let value = |class, nodes| problem.value(0, Share::new(class, nodes)).unwrap();
    assert_eq!(value(0, 2), 600.0);
    assert_eq!(value(0, 3), 900.0 - 3.0 * 10.0);
    assert_eq!(value(0, 1), 300.0 - 2.0 * 10.0);
    assert_eq!(value(1, 2), 1200.0 - 5.0 * 10.0);
    assert_eq!(value(1, 0), -2.0 * 10.0);
    assert_eq!(problem.value(0, Share::new(0, 5)), None);
}

#[test]
fn an_allocation_must_keep_to_classes_and_caps() {
    let demands = [vec![1.0, 0.0], vec![1.0, 1.0], vec![1.0, 1.0]]
        .map(|speeds| linear(Share::NONE, 8, 1.0).with_speeds(speeds));
    let problem = Problem::with_classes(classes(&[4, 6]), 60.0, demands.to_vec())
        .with_caps(vec![cap(&[0, 1, 1], 5)]);
    let check = |shares: [(usize, u32); 3]| {
        let shares = shares.map(|(class, nodes)| Share::new(class, nodes));
        problem.check(&shares)
    };
    assert_eq!(check([(0, 2), (1, 3), (1, 3)]), Ok(()));
    assert!(matches!(
        check([(1, 2), (0, 0), (0, 0)]),
        Err(Infeasible::BadClass {
            trainer: 0,
            class: 1
        })
    ));
    assert!(matches!(
        check([(0, 0), (7, 1), (0, 0)]),
        Err(Infeasible::BadClass {
            trainer: 1,
            class: 7
        })
    ));
    assert!(matches!(
        check([(0, 1), (0, 2), (0, 2)]),
        Err(Infeasible::ClassExceeded {
            class: 0,
            given: 5,
            ..
        })
    ));
    assert!(matches!(
        check([(0, 3), (1, 3), (0, 0)]),
        Err(Infeasible::CapExceeded {
            cap: 0,
            given: 6,
            ..
        })
    ));
}

#[test]
fn indices_and_speeds_are_checked() {
    let with = |demand: TrainerDemand, caps| {
        let problem = Problem::with_classes(classes(&[4]), 60.0, vec![demand]);
        problem.with_caps(caps).validate()
    };
    let plain = || linear(Share::NONE, 8, 1.0);
    assert_eq!(with(plain(), vec![cap(&[0], 3)]), Ok(()));
    assert!(matches!(
        with(plain(), vec![cap(&[1], 3)]),
        Err(ProblemError::UnknownTrainer { trainer: 1, .. })
    ));
    assert!(matches!(
        with(linear(Share::new(1, 2), 8, 1.0), vec![]),
        Err(ProblemError::UnknownClass { class: 1, .. })
    ));
    assert!(matches!(
        with(plain().with_speeds(vec![1.0, 1.0]), vec![]),
        Err(ProblemError::UnknownClass { class: 1, .. })
    ));
    for speed in [-1.0, f64::NAN, f64::INFINITY, 1e9] {
        assert!(matches!(
            with(plain().with_speeds(vec![speed]), vec![]),
            Err(ProblemError::BadSpeed { .. })
        ));
    }
    let huge = linear(Share::NONE, u32::MAX, 1.0).with_speeds(vec![1.0, 2.0]);
    let problem = Problem::with_classes(classes(&[u32::MAX; 2]), 60.0, vec![huge]);
    assert!(matches!(
        problem.validate(),
        Err(ProblemError::TooLarge { .. })
    ));
}

#[test]
fn classes_that_are_alike_become_one_and_useless_ones_go() {
    let speeds = [vec![1.0, 2.0, 1.0, 0.0], vec![1.5, 1.5, 1.5, 0.0]];
    let demands = speeds.map(|speeds| linear(Share::new(2, 1), 8, 1.0).with_speeds(speeds));
    let problem = Problem::with_classes(classes(&[3, 4, 5, 6]), 60.0, demands.to_vec());
    let reduced = reduce(&problem);
    assert_eq!(reduced.groups, [vec![0, 2], vec![1]]);
    let nodes: Vec<u32> = reduced.problem.classes.iter().map(|c| c.nodes).collect();
    assert_eq!(nodes, [8, 4]);
    assert_eq!(reduced.problem.trainers[0].current, Share::new(0, 1));
    // Who stays stays in its class; the other one is put where it fits.
    let expand = |a, b| {
        let shares = [Share::new(0, a), Share::new(1, b)];
        reduced.expand(&problem, &shares)
    };
    assert_eq!(expand(5, 4), Some(vec![Share::new(2, 5), Share::new(1, 4)]));
    assert_eq!(expand(6, 4), None);
}

#[test]
fn caps_that_are_something_simpler_leave_a_problem_over_equal_nodes() {
    let demands: Vec<_> = (0..3).map(|_| linear(Share::NONE, 8, 1.0)).collect();
    let caps = vec![cap(&[0, 1, 2], 10), cap(&[1], 2), cap(&[0, 2], 16)];
    let problem = Problem::new(20, 60.0, demands).with_caps(caps);
    let reduced = reduce(&problem);
    assert!(reduced.problem.is_uniform());
    assert_eq!(reduced.problem.pool_nodes(), 10);
    assert_eq!(reduced.problem.trainers[1].max, 2);
    let mut allocator = Allocator::default();
    let solution = allocator.solve(&problem);
    assert_eq!((solution.solver, solution.optimal), (Solver::Dp, true));
    assert_eq!(problem.check(&solution.shares), Ok(()));
    assert_eq!(solution.nodes().sum::<u32>(), 10);
}

#[test]
fn nodes_that_are_alike_are_not_mixed_in_one_trainer() {
    let demand = linear(Share::NONE, 8, 1.0).with_speeds(vec![1.0, 1.0]);
    let problem = Problem::with_classes(classes(&[3, 4]), 60.0, vec![demand]);
    let mut allocator = Allocator::default();
    assert_eq!(allocator.solve(&problem).shares, [Share::new(1, 4)]);
    let mixed = reduce(&problem).problem;
    assert_eq!(allocator.solve(&mixed).shares, [Share::new(0, 7)]);
}

#[test]
fn equal_answers_move_nobody() {
    let held = [Share::new(0, 2), Share::new(1, 3), Share::new(0, 1)];
    let demands = held.map(|held| linear(held, 6, 0.1).with_speeds(vec![1.0, 1.0 + 1e-15]));
    let problem = Problem::with_classes(classes(&[3, 3]), 60.0, demands.to_vec());
    let solution = Allocator::default().solve(&problem).clone();
    assert_eq!(solution.shares, held);
}

#[test]
fn a_problem_that_makes_no_sense_gets_a_feasible_answer() {
    let curve = Curve::new(&[(1, 1.0)]).unwrap();
    let demand = TrainerDemand::new(Share::new(9, 3), 1, 4, curve)
        .with_costs(f64::NAN, f64::INFINITY)
        .with_speeds(vec![1.0, f64::NAN, -3.0]);
    let problem = Problem::with_classes(classes(&[4, 4]), f64::NAN, vec![demand; 3])
        .with_caps(vec![cap(&[7, 0], 3)]);
    let solution = Allocator::default().solve(&problem).clone();
    assert_eq!(problem.check(&solution.shares), Ok(()));
    let empty = Problem::with_classes(Vec::new(), 60.0, vec![linear(Share::NONE, 3, 1.0)])
        .with_caps(vec![cap(&[0], 2)]);
    assert_eq!(Allocator::default().solve(&empty).shares, [Share::NONE]);
}

#[test]
fn a_problem_survives_json() {
    let curve = Curve::objective(&[(2, 0.0), (4, 0.1 + 0.2)]).unwrap();
    let demand = TrainerDemand::new(Share::new(1, 2), 2, 4, curve)
        .with_costs(3.0, 1.0)
        .with_speeds(vec![0.0, 1.8]);
    let problem =
        Problem::with_classes(classes(&[4, 4]), 60.0, vec![demand]).with_caps(vec![cap(&[0], 3)]);
    let text = serde_json::to_string(&problem).unwrap();
    assert_eq!(serde_json::from_str::<Problem>(&text).unwrap(), problem);
}

fn any_curve(most: u32) -> impl Strategy<Value = Curve> {
    prop::collection::btree_map(1..=most, 0.0_f64..100.0, 1..5)
        .prop_map(|points| Curve::objective(&points.into_iter().collect::<Vec<_>>()).unwrap())
}

fn any_demand(classes: usize, most: u32) -> impl Strategy<Value = TrainerDemand> {
    let speed = prop_oneof![1 => Just(0.0), 2 => Just(1.0), 2 => 0.5..2.0];
    let costs = prop_oneof![Just((0.0, 0.0)), (0.0..30.0, 0.0..30.0)];
    let held = (0..classes, 0..=most).prop_map(|(class, nodes)| Share::new(class, nodes));
    let speeds = prop::collection::vec(speed, classes);
    (held, 0..=most, 0..=most, any_curve(most), costs, speeds).prop_map(
        |(held, min, max, curve, (up_s, down_s), speeds)| {
            TrainerDemand::new(held, min, max, curve)
                .with_costs(up_s, down_s)
                .with_speeds(speeds)
        },
    )
}

fn any_problem(trainers: usize, most: u32) -> impl Strategy<Value = Problem> {
    (1_usize..4).prop_flat_map(move |classes| {
        let nodes = prop::collection::vec(0..=most, classes);
        let demands = prop::collection::vec(any_demand(classes, most), 0..=trainers);
        let members = prop::collection::vec(0..trainers.max(1), 0..=trainers);
        let caps = prop::collection::vec((members, 0..=2 * most), 0..3);
        (nodes, demands, caps, prop_oneof![Just(0.0), 1.0..100.0]).prop_map(
            |(nodes, demands, caps, horizon_s)| {
                let caps = caps.into_iter().map(|(members, max_nodes)| Cap {
                    trainers: members.into_iter().filter(|&j| j < demands.len()).collect(),
                    max_nodes,
                });
                let caps = caps.collect();
                Problem::with_classes(self::classes(&nodes), horizon_s, demands).with_caps(caps)
            },
        )
    })
}

fn optimum(problem: &Problem) -> f64 {
    let all = enumerate(problem, None);
    all.iter()
        .map(|(_, value)| *value)
        .fold(f64::NEG_INFINITY, f64::max)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn small_problems_are_bounded_from_above_and_reached_from_below(problem in any_problem(3, 5)) {
        prop_assert_eq!(problem.validate(), Ok(()));
        let best = optimum(&problem);
        let table = ValueTable::new(&problem, None);
        let found = greedy(&table).unwrap();
        let first = problem.objective(&found).unwrap();
        prop_assert!(first <= best + 1e-9 * best.abs().max(1.0));

        let prices = estimate_prices(&table, first);
        for prices in [prices, Prices::zero(&table)] {
            prop_assert!(bound(&table, &prices) >= best - 1e-9 * best.abs().max(1.0));
            // What is left out belongs to no answer that is as good as the best.
            let keep = survivors(&table, &prices, best);
            let all = enumerate(&problem, None);
            for (shares, _) in all.iter().filter(|(_, value)| near(*value, best)) {
                let kept = shares.iter().enumerate().all(|(j, share)| {
                    keep[table.start(j, share.class) + share.nodes as usize]
                });
                prop_assert!(kept);
            }
        }

        let mut search = Search::new(&table, &found).unwrap();
        let mut shakes = 0..100;
        search.run(&mut |_| shakes.next().is_some());
        let improved = problem.objective(search.shares()).unwrap();
        prop_assert!(improved >= first - 1e-9 * first.abs().max(1.0));
        prop_assert!(improved <= best + 1e-9 * best.abs().max(1.0));
    }

    #[test]
    fn two_trainers_are_solved_by_their_pair_move(problem in any_problem(2, 8)) {
        let best = optimum(&problem);
        let table = ValueTable::new(&problem, None);
        let mut search = Search::new(&table, &greedy(&table).unwrap()).unwrap();
        search.settle(&mut || true);
        prop_assert!(near(problem.objective(search.shares()).unwrap(), best));
    }

    #[test]
    fn a_reduced_problem_is_worth_as_much_where_nodes_may_be_mixed(problem in any_problem(3, 4)) {
        let reduced = reduce(&problem);
        let (before, after) = (optimum(&problem), optimum(&reduced.problem));
        if reduced.keeps_classes() {
            prop_assert!(near(before, after), "{} {}", before, after);
        } else {
            prop_assert!(after >= before - 1e-9 * before.abs().max(1.0));
        }
        for (shares, value) in enumerate(&reduced.problem, None) {
            if let Some(expanded) = reduced.expand(&problem, &shares) {
                let nodes = |shares: &[Share]| -> Vec<u32> {
                    shares.iter().map(|share| share.nodes).collect()
                };
                prop_assert_eq!(nodes(&expanded), nodes(&shares));
                prop_assert!(near(problem.objective(&expanded).unwrap(), value));
            }
        }
    }

    #[test]
    fn large_problems_get_feasible_answers_no_worse_than_staying(problem in any_problem(40, 100)) {
        let mut allocator = Allocator::new(Box::new(HeuristicSolver { shakes: 5 }));
        let solution = allocator.solve(&problem);
        prop_assert_eq!(problem.objective(&solution.shares), Ok(solution.objective));
        prop_assert!(solution.gap >= 0.0);
        let held: Vec<Share> = problem.trainers.iter().map(|demand| demand.current).collect();
        if let Ok(value) = problem.objective(&held) {
            prop_assert!(solution.objective >= value - 1e-9 * value.abs().max(1.0));
        }
    }
}
