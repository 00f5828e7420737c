//! The solver for node classes and caps.

pub mod highs;
pub mod milp;
mod pieces;
