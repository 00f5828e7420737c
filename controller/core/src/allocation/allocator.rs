//! Whom to ask: the exact dynamic program where nodes are alike, else a solver for the general
//! problem, which the controller provides.

use std::fmt;

use super::bound::{bound, estimate_prices};
use super::dp::DpSolver;
use super::problem::Problem;
use super::reduce::reduce;
use super::search::{Search, greedy};
use super::solution::{Solution, Solver};
use super::table::ValueTable;

/// A solver for problems with node classes and caps.
pub trait GeneralSolver: fmt::Debug + Send {
    /// A feasible answer, whatever happens; its quality stands in it.
    fn solve(&mut self, problem: &Problem) -> Solution;
}

/// Answers every problem: by [`DpSolver`] where nodes are alike once reduced, else by the general
/// solver that it was given. A trainer uses one class at a time, even of classes that are alike;
/// who may mix those solves [`reduce`]'s problem, which is also faster.
#[derive(Debug)]
pub struct Allocator {
    dp: DpSolver,
    general: Box<dyn GeneralSolver>,
    solution: Option<Solution>,
}

impl Allocator {
    /// An allocator that asks `general` where nodes differ or caps bind.
    pub fn new(general: Box<dyn GeneralSolver>) -> Self {
        Self {
            dp: DpSolver::new(),
            general,
            solution: None,
        }
    }

    /// The answer, feasible whatever the problem is; it lives in the allocator: clone it to keep
    /// it. Interchangeable nodes cost no more than with [`DpSolver`] alone.
    pub fn solve(&mut self, problem: &Problem) -> &Solution {
        if problem.is_uniform() {
            return self.dp.solve(problem);
        }
        let solution = match self.solve_reduced(problem) {
            Some(solution) => solution,
            None => self.general.solve(problem),
        };
        self.solution.insert(solution)
    }

    /// The answer to the smaller problem, if it is one to `problem` and as good there.
    fn solve_reduced(&mut self, problem: &Problem) -> Option<Solution> {
        problem.validate().ok()?;
        let reduced = reduce(problem);
        let smaller = &reduced.problem;
        let found = match smaller.is_uniform() {
            true => self.dp.solve(smaller).clone(),
            false if reduced.keeps_classes() && smaller.caps.len() == problem.caps.len() => {
                return None;
            }
            false => self.general.solve(smaller),
        };
        let shares = reduced.expand(problem, &found.shares)?;
        let objective = problem.objective(&shares).ok()?;
        let is_as_good = objective >= found.objective - 1e-12 * found.objective.abs();
        is_as_good.then_some(Solution {
            shares,
            objective,
            ..found
        })
    }
}

impl Default for Allocator {
    fn default() -> Self {
        Self::new(Box::new(HeuristicSolver::default()))
    }
}

/// Greedy and local search: no proof, but deterministic, and it needs nothing outside this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeuristicSolver {
    /// How often the local search is shaken.
    pub shakes: u32,
}

impl Default for HeuristicSolver {
    fn default() -> Self {
        Self { shakes: 100 }
    }
}

impl GeneralSolver for HeuristicSolver {
    fn solve(&mut self, problem: &Problem) -> Solution {
        if problem.validate().is_err() {
            return Solution::nothing(problem);
        }
        let table = ValueTable::new(problem, None);
        let mut left = u64::from(self.shakes) * table.trainers() as u64;
        let mut go_on = |_: f64| {
            left = left.saturating_sub(1);
            left > 0
        };
        heuristic(problem, &table, &mut go_on).unwrap_or_else(|| Solution::nothing(problem))
    }
}

/// The best of greedy and local search while `go_on`, told the best value so far, says yes, with
/// a gap from estimated prices. `None` when nothing is feasible.
pub fn heuristic(
    problem: &Problem,
    table: &ValueTable,
    go_on: &mut dyn FnMut(f64) -> bool,
) -> Option<Solution> {
    let mut best = Search::new(table, &greedy(table)?)?;
    best.settle(&mut || go_on(f64::NEG_INFINITY));
    if let Some(mut kept) = Search::from_current(table) {
        kept.run(go_on);
        if kept.value() >= best.value() {
            best = kept;
        }
    }
    let shares = best.shares().to_vec();
    let value = problem.objective(&shares).ok()?;
    let most = bound(table, &estimate_prices(table, value));
    let gap = relative_gap(value, most);
    Solution::new(problem, shares, Solver::Greedy, false, gap).ok()
}

/// By how much, relative to `value`, the optimum can be above it when it is at most `most`.
pub fn relative_gap(value: f64, most: f64) -> f64 {
    let above = most - value;
    if above <= 0.0 {
        0.0
    } else if value.abs() > 0.0 && above.is_finite() {
        above / value.abs()
    } else {
        f64::INFINITY
    }
}
