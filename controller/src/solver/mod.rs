//! The solver for node classes and caps: the mixed-integer program of the allocation on HiGHS, in
//! a process of its own that is reused, limited in memory, and killed at the time limit. Whatever
//! happens to it costs one decision at most, which is then the best known so far or a greedy one.
//!
//! ```text
//! Allocator (core)  nodes alike: DpSolver. Else ->
//!   MilpSolver      checks the problem, asks, falls back          (here)
//!     Process       starts, asks with a deadline, kills           (process)
//!       ===== frames over a socket =====                          (frame)
//!     child         serves until its input ends                   (child)
//!       Milp        bound, local search, HiGHS on the rest        (milp, pieces, highs)
//! ```
//!
//! A decision may take as long as the limit: whoever asks must be able to wait for that.

pub mod child;
pub mod frame;
pub mod highs;
pub mod milp;
mod pieces;
pub mod process;

use std::time::{Duration, Instant};

use bftrainer_core::allocation::{
    Fault, GeneralSolver, Problem, Solution, Solver, ValueTable, heuristic, relative_gap,
};

pub use process::Settings;
use process::{Heard, Process};

/// Time limit of a decision unless set otherwise.
pub const DEFAULT_LIMIT: Duration = Duration::from_millis(500);

/// Address space of the process unless set otherwise, MiB: many times what a hundred trainers on
/// thousands of nodes take.
pub const DEFAULT_MEMORY_MB: u64 = 1024;

/// Greedy and local search in the solver's place take this long at most.
const FALLBACK: Duration = Duration::from_millis(20);

/// The mixed-integer program in a process of its own.
#[derive(Debug)]
pub struct MilpSolver {
    process: Process,
    limit: Duration,
}

impl MilpSolver {
    /// A solver whose process is being started.
    pub fn new(settings: Settings, limit: Duration) -> Self {
        let mut process = Process::new(settings);
        if let Err(error) = process.ensure() {
            log::warn!("the solver's process could not be started: {error}");
        }
        Self { process, limit }
    }

    /// The process, for tests and for messages.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The best allocation that changes no trainer's count by more than `max_change`; `None` when
    /// there is none, which cannot be without that bound.
    pub fn solve_with(
        &mut self,
        problem: &Problem,
        max_change: Option<u32>,
        limit: Duration,
    ) -> Option<Solution> {
        let start = Instant::now();
        let mut solution = match problem.validate() {
            Ok(()) => self.ask(problem, max_change, limit)?,
            Err(error) => {
                log::warn!("no solver can be asked: {error}");
                nothing(problem, Fault::Problem)
            }
        };
        solution.seconds = start.elapsed().as_secs_f64();
        if let Some(fault) = solution.fault {
            log::warn!("a decision is {} ({})", solution.quality(), fault.name());
        }
        Some(solution)
    }

    fn ask(
        &mut self,
        problem: &Problem,
        max_change: Option<u32>,
        limit: Duration,
    ) -> Option<Solution> {
        let heard = self.process.ask(problem, max_change, limit);
        if heard.infeasible && heard.fault.is_none() {
            // If that is wrong, greedy finds something.
            return fallback(problem, max_change, Fault::Garbled);
        }
        match (known(problem, &heard), heard.fault) {
            (Some(mut solution), fault) => {
                solution.fault = fault;
                Some(solution)
            }
            (None, fault) => fallback(problem, max_change, fault.unwrap_or(Fault::Garbled)),
        }
    }
}

impl GeneralSolver for MilpSolver {
    fn solve(&mut self, problem: &Problem) -> Solution {
        let solution = self.solve_with(problem, None, self.limit);
        solution.unwrap_or_else(|| nothing(problem, Fault::Problem))
    }
}

/// The best that the process has told.
fn known(problem: &Problem, heard: &Heard) -> Option<Solution> {
    let shares = heard.shares.clone()?;
    let objective = problem.objective(&shares).ok()?;
    let gap = match heard.optimal {
        true => 0.0,
        false => relative_gap(objective, heard.bound.unwrap_or(f64::INFINITY)),
    };
    Solution::new(problem, shares, Solver::Milp, heard.optimal, gap).ok()
}

/// What can be found in this process in a moment; `None` when nothing is feasible.
fn fallback(problem: &Problem, max_change: Option<u32>, fault: Fault) -> Option<Solution> {
    let table = ValueTable::new(problem, max_change);
    let until = Instant::now() + FALLBACK;
    let mut solution = heuristic(problem, &table, &mut |_| Instant::now() < until)?;
    solution.fault = Some(fault);
    Some(solution)
}

/// Nobody gets anything: allowed whatever the problem is.
fn nothing(problem: &Problem, fault: Fault) -> Solution {
    let mut solution = Solution::nothing(problem);
    solution.fault = Some(fault);
    solution
}
