//! The exact answer with node classes and caps: a bound from the linear relaxation, a good answer
//! from local search, counts left out that can't belong to a better one, HiGHS on the rest.
//! Runs in the solver's process; see `process` for what happens when it misbehaves.

use std::time::{Duration, Instant};

use bftrainer_core::allocation::{
    Prices, Problem, Search, Share, ValueTable, bound, estimate_prices, greedy, survivors,
};

use super::highs::{Highs, Run, Status};
use super::pieces::{Program, Relaxation};

/// Local search before HiGHS is asked ends when it has found nothing better for so long ...
const PATIENCE: Duration = Duration::from_millis(20);
/// ... and at the latest after this part of the limit, and after this time.
const SEARCH_SHARE: u32 = 5;
const SEARCH: Duration = Duration::from_millis(100);

/// Largest part of the objective by which HiGHS's bound may be above whole counts.
const TOLERANCE: f64 = 1e-8;

/// HiGHS's status for a program without a solution, which ours never are.
const INFEASIBLE: i32 = 8;

/// What is known so far, or in the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The best allocation.
    pub shares: Vec<Share>,
    /// What no allocation exceeds, in the objective's unit times seconds.
    pub bound: f64,
    /// Whether no allocation is better (up to rounding).
    pub optimal: bool,
}

/// Why there is no proof and no limit was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No allocation is allowed at all; only a bound on changes can bring that about.
    Infeasible,
    /// HiGHS gave up on the mixed-integer program; what was found is the best there is.
    Status(i32),
}

/// The solver with its instance of HiGHS; keep one and solve with it again and again.
#[derive(Debug)]
pub struct Milp {
    highs: Highs,
}

impl Milp {
    /// A solver; `None` when there is no memory for it.
    pub fn new() -> Option<Self> {
        let highs = Highs::new()?;
        Some(Self { highs })
    }

    /// Solves `problem`, which must pass [`Problem::validate`], within `limit`; with `max_change`
    /// no trainer's count changes by more. `report` is told of each better answer or bound.
    ///
    /// # Errors
    /// [`Failure`]; what was reported last still holds.
    pub fn solve(
        &mut self,
        problem: &Problem,
        max_change: Option<u32>,
        limit: Duration,
        report: &mut dyn FnMut(&Progress),
    ) -> Result<Progress, Failure> {
        let start = Instant::now();
        let table = ValueTable::new(problem, max_change);
        let mut known = Progress {
            shares: greedy(&table).ok_or(Failure::Infeasible)?,
            bound: f64::INFINITY,
            optimal: false,
        };
        let prices = self.relax(&table, limit, table.total(&known.shares));
        known.bound = bound(&table, &prices);
        let search_until = start + SEARCH.min(limit / SEARCH_SHARE);
        known.shares = search(&table, &prices, &known, search_until);
        let value = table.total(&known.shares);
        known.optimal = value >= known.bound - rounding(&table);
        // A sum of rounded prices may fall short of what was found.
        known.bound = known.bound.max(value);
        report(&known);
        if known.optimal {
            return Ok(known);
        }

        let keep = survivors(&table, &prices, value);
        // Steps are whole by themselves, but for numerical trouble.
        for whole in [false, true] {
            let program = Program::new(problem, &table, &keep, whole);
            let begin = program.columns(&known.shares);
            let left = limit.saturating_sub(start.elapsed()).as_secs_f64();
            let run = self.highs.solve(&program.model, begin.as_deref(), left);
            take(&table, &program, &run, &mut known)?;
            if known.optimal || run.status != Status::Optimal {
                break;
            }
        }
        Ok(known)
    }

    /// Prices from the duals of the linear relaxation, else estimated ones.
    fn relax(&mut self, table: &ValueTable, limit: Duration, value: f64) -> Prices {
        let relaxation = Relaxation::new(table);
        let run = self
            .highs
            .solve(&relaxation.model, None, limit.as_secs_f64());
        match run.status {
            Status::Optimal => relaxation.prices(table, &run.row_duals),
            _ => estimate_prices(table, value),
        }
    }
}

/// Takes over what HiGHS found and proved about the counts that were left to it; all others are
/// no better than what was known.
fn take(
    table: &ValueTable,
    program: &Program,
    run: &Run,
    known: &mut Progress,
) -> Result<(), Failure> {
    match run.status {
        Status::Optimal | Status::Limit => {}
        Status::Infeasible => return Err(Failure::Status(INFEASIBLE)),
        Status::Failed(code) => return Err(Failure::Status(code)),
    }
    let value = table.total(&known.shares);
    let found = run.solution.as_ref().map(|values| program.shares(values));
    let mut found = found.and_then(|shares| Search::new(table, &shares));
    if let Some(found) = &mut found {
        found.settle(&mut || true);
        if found.value() > value + rounding(table) {
            known.shares = found.shares().to_vec();
        }
    }
    let value = value.max(table.total(&known.shares));
    let most = value.max(run.bound * program.unit);
    // What HiGHS takes for optimal must have survived the rounding to whole nodes.
    let tolerance = TOLERANCE * table.scale().max(value.abs());
    known.optimal = run.status == Status::Optimal && most - value <= tolerance;
    known.bound = match known.optimal {
        true => value,
        false => known.bound.min(most).max(value),
    };
    Ok(())
}

/// The best of several starts after local search, which ends at `until` or at the bound.
fn search(table: &ValueTable, prices: &Prices, known: &Progress, until: Instant) -> Vec<Share> {
    let enough = known.bound - rounding(table);
    let mut go_on = || Instant::now() < until;
    let mut best = known.shares.clone();
    let mut value = table.total(&best);
    let starts = [
        Search::from_prices(table, prices),
        Search::new(table, &known.shares),
    ];
    for mut start in starts.into_iter().flatten() {
        start.settle(&mut go_on);
        if start.value() > value {
            (best, value) = (start.shares().to_vec(), start.value());
        }
    }
    // Of equals, the one that began with what the trainers hold.
    let held = Search::from_current(table).map(|mut held| {
        held.settle(&mut go_on);
        held
    });
    if let Some(held) = held.filter(|held| held.value() >= value - rounding(table)) {
        (best, value) = (held.shares().to_vec(), held.value());
    }
    if let Some(mut search) = Search::new(table, &best) {
        let (mut reached, mut since) = (value, Instant::now());
        search.run(&mut |value| {
            let now = Instant::now();
            if value > reached {
                (reached, since) = (value, now);
            }
            value < enough && now < until.min(since + PATIENCE)
        });
        if search.value() > value {
            best = search.shares().to_vec();
        }
    }
    best
}

/// Differences below this are rounding.
fn rounding(table: &ValueTable) -> f64 {
    1e-12 * table.scale()
}

#[cfg(test)]
mod tests {
    use bftrainer_core::allocation::{Cap, NodeClass, TrainerDemand};
    use bftrainer_core::curve::Curve;
    use proptest::prelude::*;

    use super::*;

    /// Trainers of a network that scales neither well nor evenly, on three classes, two caps.
    fn any_problem() -> impl Strategy<Value = Problem> {
        let trainer = (
            0..3_usize,
            0..40_u32,
            1..4_u32,
            prop::array::uniform3(prop_oneof![1 => Just(0.0), 3 => 0.5..2.0]),
            prop::collection::vec(0.3..1.0, 6),
            0.0..20.0,
        );
        let trainers = prop::collection::vec(trainer, 8..16);
        let nodes = prop::array::uniform3(0..120_u32);
        (trainers, nodes, 10..150_u32, 10..150_u32).prop_map(|(trainers, nodes, a, b)| {
            let demands = trainers
                .into_iter()
                .map(|(class, held, min, speeds, adds, cost_s)| {
                    let counts = [1, 2, 4, 8, 16, 32];
                    let mut value = 0.0;
                    let points = counts
                        .into_iter()
                        .zip(adds)
                        .map(|(nodes, add): (u32, f64)| {
                            value += add * f64::from(nodes.max(2) / 2);
                            (nodes, value)
                        });
                    let curve = Curve::objective(&points.collect::<Vec<_>>()).unwrap();
                    TrainerDemand::new(Share::new(class, held), min, 64, curve)
                        .with_costs(cost_s, cost_s / 2.0)
                        .with_speeds(speeds.to_vec())
                });
            let demands: Vec<_> = demands.collect();
            let classes = nodes.map(|nodes| NodeClass {
                name: String::new(),
                nodes,
            });
            let half = demands.len() / 2;
            let caps = [(0..half + 2, a), (half..demands.len(), b)];
            let caps = caps.map(|(trainers, max_nodes)| Cap {
                trainers: trainers.collect(),
                max_nodes,
            });
            Problem::with_classes(classes.to_vec(), 60.0, demands).with_caps(caps.to_vec())
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 40,
            failure_persistence: None,
            ..Default::default()
        })]

        #[test]
        fn what_is_left_out_is_not_missed(problem in any_problem()) {
            let limit = Duration::from_secs(60);
            let solved = Milp::new().unwrap().solve(&problem, None, limit, &mut |_| {});
            let objective = problem.objective(&solved.unwrap().shares).unwrap();

            let table = ValueTable::new(&problem, None);
            let all = vec![true; table.len()];
            let program = Program::new(&problem, &table, &all, true);
            let run = Highs::as_it_comes().unwrap().solve(&program.model, None, 60.0);
            prop_assert_eq!(run.status, Status::Optimal);
            let shares = program.shares(&run.solution.unwrap());
            let reference = problem.objective(&shares).unwrap();
            prop_assert!((objective - reference).abs() <= 1e-8 * objective.abs());
        }
    }
}
