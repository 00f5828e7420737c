//! The allocation: how many nodes of which class each trainer gets.
//! One problem type and one solution type for every solver. It knows counts only: which nodes,
//! and when to ask, is decided elsewhere; the mixed-integer program, which needs a library in C++
//! and a clock, lives in the controller and is plugged in as a [`GeneralSolver`].

mod allocator;
mod bound;
pub mod dp;
mod error;
mod exhaustive;
mod explain;
mod problem;
mod reduce;
mod search;
mod solution;
mod table;

pub use allocator::{Allocator, GeneralSolver, HeuristicSolver, heuristic, relative_gap};
pub use bound::{Prices, bound, estimate_prices, survivors};
pub use dp::{DpSolver, Rules, Ties, published_bound};
pub use error::{Infeasible, MAX_SECONDS, MAX_SPEED, ProblemError};
pub use exhaustive::enumerate;
pub use explain::Words;
pub use problem::{Cap, MAX_VALUES, NodeClass, Problem, Share, TrainerDemand};
pub use reduce::{Reduced, reduce};
pub use search::{Search, greedy};
pub use solution::{Fault, Solution, Solver};
pub use table::ValueTable;
