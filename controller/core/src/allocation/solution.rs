//! The answer to a problem: who gets what, how good it is, who found it, and what went wrong.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::Infeasible;
use super::problem::{Problem, Share};

/// An answer to a [`Problem`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Solution {
    /// What each trainer gets, in the problem's order.
    pub shares: Vec<Share>,
    /// Value of `shares`, in the objective's unit times seconds.
    pub objective: f64,
    /// Whether no allocation is better (up to rounding).
    pub optimal: bool,
    /// By how much, relative to `objective`, a better one could be at most; 0 when optimal,
    /// infinite when nothing is known.
    pub gap: f64,
    /// Who found it.
    pub solver: Solver,
    /// What kept the solver from its work, so that this is the best of what was there.
    pub fault: Option<Fault>,
    /// Seconds that it took; 0 where nobody had a clock.
    pub seconds: f64,
}

/// Who found a solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Solver {
    /// Exact dynamic programming, [`super::DpSolver`].
    Dp,
    /// The mixed-integer program, proven or at its time limit.
    Milp,
    /// Greedy and local search: feasible, when nothing better was to be had in time.
    Greedy,
}

/// What kept the solver of the mixed-integer program from its work. It costs one decision: the
/// best that was known then, or a greedy one, is taken, and the next one is solved again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Fault {
    /// Its process could not be started.
    Start,
    /// Its process died.
    Crash,
    /// It had not answered at the time limit and was killed.
    Timeout,
    /// It answered what is no answer, or none that is allowed.
    Garbled,
    /// It gave up with a status that says neither solved nor out of time.
    Status,
    /// The problem does not pass [`Problem::validate`].
    Problem,
}

impl Solution {
    /// A solver's answer, checked and valued here whoever gave it.
    ///
    /// # Errors
    /// [`Infeasible`] when the allocation is not allowed.
    pub fn new(
        problem: &Problem,
        shares: Vec<Share>,
        solver: Solver,
        optimal: bool,
        gap: f64,
    ) -> Result<Self, Infeasible> {
        let objective = problem.objective(&shares)?;
        Ok(Self {
            shares,
            objective,
            optimal,
            gap,
            solver,
            fault: None,
            seconds: 0.0,
        })
    }

    /// Nobody gets anything: allowed whatever the problem is.
    pub fn nothing(problem: &Problem) -> Self {
        let shares = vec![Share::NONE; problem.trainers.len()];
        Self {
            objective: problem.value_of(&shares),
            shares,
            optimal: false,
            gap: f64::INFINITY,
            solver: Solver::Greedy,
            fault: None,
            seconds: 0.0,
        }
    }

    /// The nodes of each trainer, whatever their class.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = u32> {
        self.shares.iter().map(|share| share.nodes)
    }

    /// How it came about in one word, for metrics: `optimal`, `incumbent`, or with a fault
    /// `incumbent_after_crash`, `greedy_after_timeout` and so on.
    pub fn outcome(&self) -> String {
        let found = match self.solver {
            _ if self.optimal => "optimal",
            Solver::Greedy => "greedy",
            Solver::Dp | Solver::Milp => "incumbent",
        };
        match self.fault {
            Some(fault) => format!("{found}_after_{}", fault.name()),
            None => found.to_owned(),
        }
    }

    /// How good it is, in words: "proven optimal", "at most 0.3 % below the optimum, as the
    /// solver's process died".
    pub fn quality(&self) -> String {
        let quality = if self.optimal {
            "proven optimal".to_owned()
        } else if self.gap.is_finite() {
            format!("at most {} % below the optimum", percent(self.gap))
        } else {
            "feasible, of unknown quality".to_owned()
        };
        match self.fault {
            Some(fault) => format!("{quality}, as {fault}"),
            None if self.optimal || self.solver == Solver::Greedy => quality,
            None => format!("{quality}, at the time limit"),
        }
    }
}

impl Fault {
    /// In one word, for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Crash => "crash",
            Self::Timeout => "timeout",
            Self::Garbled => "garbled",
            Self::Status => "status",
            Self::Problem => "problem",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "the solver's process could not be started",
            Self::Crash => "the solver's process died",
            Self::Timeout => "the solver did not answer in time and was killed",
            Self::Garbled => "the solver's answer made no sense",
            Self::Status => "the solver gave up",
            Self::Problem => "the problem can't be posed to the solver",
        })
    }
}

/// Two digits that matter, rounded up: what is said to be the most must not be less.
fn percent(gap: f64) -> String {
    let percent = 100.0 * gap;
    if percent <= 0.0 {
        return "0".to_owned();
    }
    let unit = 10_f64.powf(percent.log10().floor() - 1.0);
    let rounded = (percent / unit * (1.0 - 1e-12)).ceil() * unit;
    let decimals = (1.0 - percent.log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{rounded:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::Curve;

    fn solution(solver: Solver, optimal: bool, gap: f64, fault: Option<Fault>) -> Solution {
        let curve = Curve::new(&[(1, 1.0)]).unwrap();
        let demand = super::super::TrainerDemand::new(0, 1, 4, curve);
        let problem = Problem::new(4, 60.0, vec![demand]);
        let solution = Solution::new(&problem, vec![Share::from(2)], solver, optimal, gap);
        Solution {
            fault,
            ..solution.unwrap()
        }
    }

    #[test]
    fn the_outcome_is_one_word_for_each_way_it_can_come_about() {
        let outcome = |solver, optimal, fault| solution(solver, optimal, 0.01, fault).outcome();
        assert_eq!(outcome(Solver::Dp, true, None), "optimal");
        assert_eq!(outcome(Solver::Milp, false, None), "incumbent");
        assert_eq!(outcome(Solver::Greedy, false, None), "greedy");
        assert_eq!(
            outcome(Solver::Milp, false, Some(Fault::Timeout)),
            "incumbent_after_timeout"
        );
        assert_eq!(
            outcome(Solver::Greedy, false, Some(Fault::Crash)),
            "greedy_after_crash"
        );
    }

    #[test]
    fn the_quality_is_said_with_the_gap_and_the_fault() {
        let quality = |gap, fault| solution(Solver::Milp, false, gap, fault).quality();
        assert_eq!(
            quality(0.003_21, None),
            "at most 0.33 % below the optimum, at the time limit"
        );
        assert_eq!(
            quality(0.12, Some(Fault::Crash)),
            "at most 12 % below the optimum, as the solver's process died"
        );
        assert_eq!(
            quality(f64::INFINITY, Some(Fault::Start)),
            "feasible, of unknown quality, as the solver's process could not be started"
        );
        assert_eq!(
            solution(Solver::Dp, true, 0.0, None).quality(),
            "proven optimal"
        );
    }
}
