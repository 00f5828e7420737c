//! The exact solver against vectors that a second program and a MILP agree on, against brute
//! force, and against what it promises: feasible always, and nothing moves without gain.

use bftrainer_core::allocation::{
    DpSolver, Infeasible, Problem, ProblemError, Rules, Share, Solution, Solver, Ties,
    TrainerDemand, enumerate,
};
use bftrainer_core::curve::Curve;
use proptest::prelude::*;
use serde::Deserialize;

/// ShuffleNet's samples per second on Summit (arXiv 2106.12091): not concave.
const SHUFFLENET: [(u32, f64); 7] = [
    (1, 2831.0),
    (2, 5259.0),
    (4, 9988.0),
    (8, 20379.2),
    (16, 38895.3),
    (32, 74125.1),
    (64, 145081.5),
];

#[derive(Deserialize)]
struct Vector {
    id: u32,
    pool: u32,
    tfwd: f64,
    trainers: Vec<VectorTrainer>,
    objective: f64,
    objective_half_pool_bound: Option<f64>,
    one_optimal: Vec<u32>,
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
    let lines = include_str!("instances.jsonl").lines();
    let vectors: Vec<_> = lines
        .map(|line| {
            let vector: Vector = serde_json::from_str(line).unwrap();
            let trainers = vector.trainers.iter().map(|t| {
                TrainerDemand::new(t.current, t.min, t.max, Curve::objective(&t.curve).unwrap())
                    .with_costs(t.scale_up_cost_s, t.scale_down_cost_s)
            });
            let problem = Problem::new(vector.pool, vector.tfwd, trainers.collect());
            (vector, problem)
        })
        .collect();
    assert_eq!(vectors.len(), 302);
    vectors
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

fn shufflenet(current: u32, min: u32, max: u32) -> TrainerDemand {
    TrainerDemand::new(current, min, max, Curve::new(&SHUFFLENET).unwrap()).with_costs(18.0, 12.0)
}

/// Worth `per_node` a node and second, rescaled for nothing.
fn linear(current: u32, max: u32, per_node: f64) -> TrainerDemand {
    TrainerDemand::new(current, 1, max, Curve::objective(&[(1, per_node)]).unwrap())
}

fn solve(problem: &Problem) -> Vec<u32> {
    counts(DpSolver::new().solve(problem))
}

fn counts(solution: &Solution) -> Vec<u32> {
    solution.nodes().collect()
}

fn currents(problem: &Problem) -> Vec<u32> {
    problem
        .trainers
        .iter()
        .map(|demand| demand.current.nodes)
        .collect()
}

fn with_currents(problem: &Problem, nodes: &[u32]) -> Problem {
    let mut next = problem.clone();
    for (demand, &n) in next.trainers.iter_mut().zip(nodes) {
        demand.current = n.into();
    }
    next
}

fn changed(problem: &Problem, nodes: &[u32]) -> usize {
    problem
        .trainers
        .iter()
        .zip(nodes)
        .filter(|(demand, n)| demand.current.nodes != **n)
        .count()
}

#[test]
fn every_vector_reaches_its_optimum() {
    let mut solver = DpSolver::new();
    for (vector, problem) in vectors() {
        assert_eq!(problem.validate(), Ok(()));
        assert!(near(
            problem.objective(&vector.one_optimal).unwrap(),
            vector.objective
        ));
        for ties in [Ties::Stay, Ties::LastFirst] {
            let rules = Rules {
                ties,
                ..Rules::default()
            };
            let solution = solver.solve_with(&problem, rules).unwrap();
            assert_eq!(problem.objective(&solution.shares), Ok(solution.objective));
            assert!(
                near(solution.objective, vector.objective),
                "vector {}: {} instead of {}",
                vector.id,
                solution.objective,
                vector.objective
            );
        }
    }
}

#[test]
fn every_vector_reaches_its_optimum_under_the_half_pool_bound() {
    let mut solver = DpSolver::new();
    for (vector, problem) in vectors() {
        let solution = solver.solve_as_published(&problem);
        match (solution, vector.objective_half_pool_bound) {
            (None, None) => {}
            (Some(solution), Some(objective)) => {
                assert!(problem.check(&solution.shares).is_ok());
                assert!(near(solution.objective, objective), "vector {}", vector.id);
            }
            (solution, expected) => panic!("vector {}: {solution:?}, {expected:?}", vector.id),
        }
    }
}

#[test]
fn one_trainer_on_ten_idle_nodes_gets_ten() {
    let problem = Problem::new(10, 60.0, vec![shufflenet(0, 1, 64)]);
    assert_eq!(solve(&problem), [10]);
    assert_eq!(
        counts(DpSolver::new().solve_as_published(&problem).unwrap()),
        [5]
    );
}

#[test]
fn an_empty_pool_gives_nobody_anything() {
    let problem = Problem::new(0, 60.0, vec![shufflenet(0, 1, 64), shufflenet(3, 1, 64)]);
    assert_eq!(solve(&problem), [0, 0]);
}

#[test]
fn without_trainers_the_answer_is_empty_and_worth_zero() {
    let mut solver = DpSolver::new();
    let solution = solver.solve(&Problem::new(10, 60.0, vec![])).clone();
    assert!(solution.shares.is_empty() && solution.optimal && solution.solver == Solver::Dp);
    assert_eq!(solution.objective.to_string(), "0");
}

#[test]
fn a_min_above_the_pool_stops_nobody_else() {
    let problem = Problem::new(4, 60.0, vec![shufflenet(0, 8, 64), shufflenet(0, 1, 64)]);
    assert_eq!(solve(&problem), [0, 4]);
    assert_eq!(DpSolver::new().solve_as_published(&problem), None);
}

#[test]
fn all_or_nothing_curves_are_seen_through() {
    let steep = Curve::new(&[(7, 1e-6), (8, 100.0)]).unwrap();
    let flat = Curve::new(&[(1, 10.0), (8, 11.0)]).unwrap();
    let mut trainers = vec![TrainerDemand::new(0, 1, 8, steep)];
    trainers.extend((0..3).map(|_| TrainerDemand::new(0, 1, 8, flat.clone())));
    assert_eq!(
        solve(&Problem::new(8, 60.0, trainers.clone())),
        [8, 0, 0, 0]
    );
    assert_eq!(
        solve(&Problem::new(7, 60.0, trainers)).iter().sum::<u32>(),
        7
    );
}

#[test]
fn a_trainer_that_holds_more_than_its_max_is_brought_down() {
    let problem = Problem::new(100, 60.0, vec![shufflenet(20, 1, 8), shufflenet(4, 1, 0)]);
    assert_eq!(solve(&problem), [8, 0]);
}

#[test]
fn a_trainer_that_holds_more_than_the_pool_is_brought_down() {
    assert_eq!(
        solve(&Problem::new(5, 60.0, vec![shufflenet(20, 1, 64)])),
        [5]
    );
}

#[test]
fn growing_must_pay_within_the_horizon() {
    let holds_eight = || vec![shufflenet(8, 1, 64)];
    assert_eq!(solve(&Problem::new(9, 60.0, holds_eight())), [8]);
    assert_eq!(solve(&Problem::new(9, 600.0, holds_eight())), [9]);
}

#[test]
fn equal_trainers_keep_what_they_hold() {
    for per_node in [1.0, 0.1, 1.0 / 3.0, 2831.0 / 7.0] {
        let held = [1, 7, 0, 3, 5, 2];
        let trainers = held.iter().map(|&n| linear(n, 18, per_node)).collect();
        assert_eq!(solve(&Problem::new(18, 0.7, trainers)), held);
    }
}

#[test]
fn of_equally_good_answers_the_one_that_moves_fewest_trainers_is_taken() {
    let trainers = [2, 2, 2].map(|n| linear(n, 4, 0.1)).to_vec();
    let problem = Problem::new(8, 60.0, trainers);
    assert_eq!(changed(&problem, &solve(&problem)), 1);
}

#[test]
fn the_published_rule_serves_the_last_trainer_first() {
    let trainers = [1, 1].map(|n| linear(n, 3, 1.0)).to_vec();
    let problem = Problem::new(3, 60.0, trainers);
    assert_eq!(
        counts(DpSolver::new().solve_as_published(&problem).unwrap()),
        [2, 1]
    );
    let newcomers = Problem::new(6, 60.0, [0, 0, 0].map(|n| linear(n, 3, 1.0)).to_vec());
    let rules = Rules {
        ties: Ties::LastFirst,
        ..Rules::default()
    };
    assert_eq!(
        counts(DpSolver::new().solve_with(&newcomers, rules).unwrap()),
        [3, 3, 0]
    );
}

#[test]
fn a_node_that_is_worth_nothing_is_not_taken() {
    let flat = Curve::new(&[(4, 10.0), (8, 10.0)]).unwrap();
    let problem = Problem::new(8, 60.0, vec![TrainerDemand::new(0, 1, 8, flat)]);
    assert_eq!(solve(&problem), [4]);
}

#[test]
fn a_bound_on_changes_can_leave_no_answer() {
    let problem = Problem::new(2, 60.0, vec![shufflenet(20, 1, 64)]);
    let rules = |bound| Rules {
        max_change: Some(bound),
        ..Rules::default()
    };
    let mut solver = DpSolver::new();
    assert_eq!(solver.solve_with(&problem, rules(17)), None);
    assert_eq!(counts(solver.solve_with(&problem, rules(18)).unwrap()), [2]);
    assert_eq!(counts(solver.solve(&problem)), [2]);
}

#[test]
fn a_huge_max_needs_no_huge_table() {
    let greedy = |current| linear(current, u32::MAX, 1.0);
    let problem = Problem::new(100, 60.0, vec![greedy(0), greedy(u32::MAX)]);
    assert_eq!(problem.validate(), Ok(()));
    assert_eq!(solve(&problem).iter().sum::<u32>(), 100);
    let small = Problem::new(u32::MAX, 60.0, vec![linear(0, 3, 1.0)]);
    assert_eq!(small.validate(), Ok(()));
    assert_eq!(solve(&small), [3]);
}

#[test]
fn a_problem_that_makes_no_sense_is_refused() {
    let huge = Problem::new(u32::MAX, 60.0, vec![linear(0, u32::MAX, 1.0)]);
    assert!(matches!(
        huge.validate(),
        Err(ProblemError::TooLarge { .. })
    ));
    let endless = Problem::new(1, f64::INFINITY, vec![]);
    assert!(matches!(
        endless.validate(),
        Err(ProblemError::BadHorizon(_))
    ));
    let paid = Problem::new(1, 60.0, vec![linear(0, 1, 1.0).with_costs(1.0, -1.0)]);
    assert!(matches!(
        paid.validate(),
        Err(ProblemError::BadCost { trainer: 0, .. })
    ));
}

/// What `validate` would have refused.
fn unchecked() -> Problem {
    let trainers = (0..40).map(|n| shufflenet(n, 1, 64).with_costs(f64::INFINITY, f64::NAN));
    Problem::new(1000, f64::NAN, trainers.collect())
}

#[test]
fn even_an_unchecked_problem_gets_a_feasible_answer() {
    let problem = unchecked();
    assert_eq!(problem.check(&solve(&problem)), Ok(()));
}

#[test]
fn an_answer_from_elsewhere_is_checked() {
    let problem = Problem::new(4, 60.0, vec![shufflenet(0, 2, 3), shufflenet(0, 1, 64)]);
    let answer = |nodes: &[u32]| {
        let shares = nodes.iter().map(|&n| Share::from(n)).collect();
        Solution::new(&problem, shares, Solver::Milp, false, 0.01)
    };
    assert!(matches!(answer(&[2]), Err(Infeasible::WrongLength { .. })));
    assert!(matches!(
        answer(&[1, 0]),
        Err(Infeasible::BadCount {
            trainer: 0,
            nodes: 1,
            ..
        })
    ));
    assert!(matches!(
        answer(&[4, 0]),
        Err(Infeasible::BadCount {
            trainer: 0,
            nodes: 4,
            ..
        })
    ));
    assert!(matches!(
        answer(&[2, 3]),
        Err(Infeasible::ClassExceeded { given: 5, .. })
    ));
    assert!(near(
        answer(&[2, 2]).unwrap().objective,
        60.0 * 2.0 * 5259.0
    ));
}

#[test]
fn a_used_solver_answers_as_a_new_one_does() {
    let mut used = DpSolver::new();
    used.solve(&unchecked());
    for (_, problem) in vectors().iter().rev() {
        assert_eq!(used.solve(problem), DpSolver::new().solve(problem));
    }
}

fn any_objective(most_nodes: u32) -> impl Strategy<Value = Curve> {
    let rough = prop::collection::btree_map(1..=most_nodes, 0.0_f64..100.0, 1..6);
    let even = prop::collection::btree_map(1..=most_nodes, (0_u8..5).prop_map(f64::from), 1..6);
    prop_oneof![rough, even]
        .prop_map(|points| Curve::objective(&points.into_iter().collect::<Vec<_>>()).unwrap())
}

fn any_demand(most_nodes: u32) -> impl Strategy<Value = TrainerDemand> {
    let costs = prop_oneof![Just((0.0, 0.0)), (0.0..30.0, 0.0..30.0)];
    (
        0..=most_nodes,
        0..=most_nodes,
        0..=most_nodes,
        any_objective(most_nodes),
        costs,
    )
        .prop_map(|(current, min, max, objective, (up_s, down_s))| {
            TrainerDemand::new(current, min, max, objective).with_costs(up_s, down_s)
        })
}

fn any_problem(trainers: usize, most_nodes: u32, most_pool: u32) -> impl Strategy<Value = Problem> {
    let demands = prop::collection::vec(any_demand(most_nodes), 0..=trainers);
    let horizon = prop_oneof![Just(0.0), Just(1.0), 1.0..1000.0];
    (0..=most_pool, horizon, demands)
        .prop_map(|(pool, horizon_s, trainers)| Problem::new(pool, horizon_s, trainers))
}

/// As after a decision: everybody holds what it may hold, together no more than the pool.
fn settled(problem: &Problem) -> Problem {
    with_currents(problem, &solve(problem))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn small_problems_are_solved_as_brute_force_does(
        problem in prop_oneof![any_problem(4, 9, 10), any_problem(3, 24, 60)],
        bound in prop::option::of(0_u32..12),
    ) {
        for ties in [Ties::Stay, Ties::LastFirst] {
            let rules = Rules { max_change: bound, ties };
            let mut solver = DpSolver::new();
            let found = solver.solve_with(&problem, rules);
            let all = enumerate(&problem, rules.max_change);
            let best = all.iter().map(|(_, value)| *value).max_by(f64::total_cmp);
            prop_assert_eq!(found.map(|solution| solution.objective).is_some(), best.is_some());
            if let (Some(found), Some(best)) = (found, best) {
                prop_assert!(all.iter().any(|(shares, _)| *shares == found.shares));
                prop_assert!((found.objective - best).abs() <= 1e-9 * best.abs().max(1.0));
            }
        }
    }

    #[test]
    fn no_equally_good_answer_moves_fewer_trainers(problem in any_problem(4, 9, 10)) {
        let problem = settled(&problem);
        let found = solve(&problem);
        let value = problem.objective(&found).unwrap();
        let as_good = enumerate(&problem, None)
            .into_iter()
            .filter(|(_, other)| *other >= value);
        let fewest = as_good.map(|(shares, _)| {
            let nodes: Vec<u32> = shares.iter().map(|share| share.nodes).collect();
            changed(&problem, &nodes)
        }).min();
        prop_assert_eq!(Some(changed(&problem, &found)), fewest);
    }

    #[test]
    fn large_problems_get_feasible_answers_no_worse_than_staying(
        problem in any_problem(60, 200, 3000),
    ) {
        let mut solver = DpSolver::new();
        let stay = solver.solve(&problem).clone();
        prop_assert!(problem.check(&stay.shares).is_ok());
        if let Ok(value) = problem.objective(&currents(&problem)) {
            prop_assert!(stay.objective >= value - 1e-9 * value.abs());
        }
        let rules = Rules { ties: Ties::LastFirst, ..Rules::default() };
        let other = solver.solve_with(&problem, rules).unwrap();
        prop_assert!(near(stay.objective, other.objective));
    }

    #[test]
    fn where_growing_and_shrinking_cost_the_same_nothing_moves_again(
        problem in any_problem(20, 40, 200),
    ) {
        let mut problem = problem;
        for demand in &mut problem.trainers {
            demand.down_s = demand.up_s;
        }
        let settled = settled(&problem);
        prop_assert_eq!(solve(&settled), currents(&settled));
    }

    #[test]
    fn solving_again_never_lowers_the_rate_and_soon_moves_nothing(
        problem in any_problem(20, 40, 200),
    ) {
        let rate = |problem: &Problem| -> f64 {
            problem.trainers.iter().map(TrainerDemand::rate).sum()
        };
        let mut problem = settled(&problem);
        for round in 0.. {
            let next = settled(&problem);
            if next == problem {
                break;
            }
            if problem.horizon_s > 0.0 {
                prop_assert!(rate(&next) >= rate(&problem) * (1.0 - 1e-9));
            }
            prop_assert!(round < 10);
            problem = next;
        }
    }
}
