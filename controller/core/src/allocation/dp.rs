//! The exact solver for interchangeable nodes: dynamic programming over (trainers, nodes).
//! Cell p of the table's row j is the most that the first j trainers can be worth on p nodes; the
//! allocation is read back from the last row. No search, no time limit, no memory once warm.

use super::problem::{Problem, Share, TrainerDemand};
use super::solution::{Solution, Solver};

/// Largest table a problem may need: 512 MiB, 60 times what 100 trainers on 10,000 nodes take.
pub const MAX_TABLE_CELLS: u64 = 1 << 26;

/// Cells computed at once: their maxima stay in registers over all counts of a trainer.
const BLOCK: usize = 16;

/// The reward of a trainer that keeps its count, relative to the whole objective: far above
/// rounding (1e-16 a sum), far below any gain that matters.
pub(super) const STAY_BONUS: f64 = 1e-12;

/// Which of several best allocations is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ties {
    /// The one that changes the fewest trainers; differences of rounding size count as ties. What
    /// it gives away is at most 1e-12 of the objective per trainer that stays.
    #[default]
    Stay,
    /// From the last trainer to the first, `current` where it attains the maximum exactly, else
    /// the smallest count that does: the rule of the reference replays of the authors' policy.
    LastFirst,
}

/// Rules on top of the problem's; by default none, and ties stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rules {
    /// Most nodes by which any trainer may change; `None` for no bound.
    pub max_change: Option<u32>,
    /// How ties are broken.
    pub ties: Ties,
}

/// The solver with its buffers; keep one and solve with it again and again.
#[derive(Debug, Clone)]
pub struct DpSolver {
    choices: Vec<Choice>,
    /// Each trainer's values at `low..=high`, one after the other.
    values: Vec<f64>,
    table: Vec<f64>,
    solution: Solution,
    /// The widest vector instructions of this processor.
    arch: pulp::Arch,
}

impl DpSolver {
    /// A solver without buffers yet.
    pub fn new() -> Self {
        let solution = Solution {
            shares: Vec::new(),
            objective: 0.0,
            optimal: true,
            gap: 0.0,
            solver: Solver::Dp,
            fault: None,
            seconds: 0.0,
        };
        Self {
            choices: Vec::new(),
            values: Vec::new(),
            table: Vec::new(),
            solution,
            arch: pulp::Arch::new(),
        }
    }

    /// The best allocation; there always is one, as everybody may be given 0. Optimal to 1e-12
    /// per trainer (see [`Ties::Stay`]). The answer lives in the solver: clone it to keep it.
    ///
    /// The problem should pass [`Problem::validate`]; if it doesn't, the answer is still feasible.
    /// It should be uniform ([`Problem::is_uniform`]); if it isn't, nobody gets anything, which is
    /// feasible but not optimal.
    pub fn solve(&mut self, problem: &Problem) -> &Solution {
        self.run(problem, Rules::default());
        &self.solution
    }

    /// The best allocation under further rules; `None` when they leave none.
    pub fn solve_with(&mut self, problem: &Problem, rules: Rules) -> Option<&Solution> {
        let found = self.run(problem, rules);
        found.then_some(&self.solution)
    }

    /// What the authors' model of the problem answers, its faults included: no trainer changes by
    /// more than `floor((pool + 1) / 2)` nodes, and nothing is feasible for anybody (`None`) when
    /// one trainer's min is above pool + 1. For comparison with their replays only.
    pub fn solve_as_published(&mut self, problem: &Problem) -> Option<&Solution> {
        let rules = Rules {
            max_change: Some(published_bound(problem)?),
            ties: Ties::LastFirst,
        };
        self.solve_with(problem, rules)
    }

    fn run(&mut self, problem: &Problem, rules: Rules) -> bool {
        self.solution.optimal = problem.is_uniform();
        if !problem.is_uniform() {
            self.solution.gap = f64::INFINITY;
            self.solution.shares.clear();
            self.solution
                .shares
                .resize(problem.trainers.len(), Share::NONE);
            self.solution.objective = problem.value_of(&self.solution.shares);
            return rules.max_change.is_none();
        }
        self.solution.gap = 0.0;
        self.list_choices(problem, rules);
        if rules.ties == Ties::Stay {
            self.reward_staying(problem);
        }
        let layout = self.bound_rows(problem.pool_nodes());
        self.fill_table(layout);
        let found = self.trace_back(problem, layout);
        self.solution.objective = problem.value_of(&self.solution.shares);
        found
    }

    fn list_choices(&mut self, problem: &Problem, rules: Rules) {
        self.choices.clear();
        self.values.clear();
        for demand in &problem.trainers {
            let choice = Choice::new(demand, problem, rules.max_change, self.values.len());
            self.choices.push(choice);
            if choice.top() == 0 {
                continue;
            }
            demand
                .objective
                .append_values(choice.low, choice.high, &mut self.values);
            let (speed, rate) = (demand.speed(0).unwrap_or(0.0), demand.rate());
            for (n, value) in (choice.low..).zip(&mut self.values[choice.offset..]) {
                let cost_s = demand.rescale_s(Share::from(n));
                *value = problem.horizon_s * (speed * *value) - cost_s * rate;
            }
        }
    }

    /// Makes staying worth a trifle: of allocations that are equally good but for rounding the one
    /// that moves fewest trainers wins. The trifle is relative to a lower bound of the optimum:
    /// what all are worth if they stay, or one trainer's best if that is more.
    fn reward_staying(&mut self, problem: &Problem) {
        let staying: f64 = problem
            .trainers
            .iter()
            .zip(&self.choices)
            .filter_map(|(demand, choice)| choice.value(demand.current.nodes, &self.values))
            .sum();
        let scale = self.values.iter().copied().fold(staying.max(0.0), larger);
        for (demand, choice) in problem.trainers.iter().zip(&mut self.choices) {
            choice.add(demand.current.nodes, STAY_BONUS * scale, &mut self.values);
        }
    }

    /// Sets which cells of each row can matter: no trainer prefix uses more than the sum of its
    /// maxima, and what the trainers after it can't use is left to it.
    fn bound_rows(&mut self, pool_nodes: u32) -> Layout {
        let total: u64 = self
            .choices
            .iter()
            .map(|choice| u64::from(choice.top()))
            .sum();
        let pool = total.min(u64::from(pool_nodes)) as usize;
        let widest = self
            .choices
            .iter()
            .map(|choice| choice.top())
            .max()
            .unwrap_or(0) as usize;
        let (mut before, mut after) = (0, total as usize);
        for choice in &mut self.choices {
            before += choice.top() as usize;
            after -= choice.top() as usize;
            choice.first_cell = pool.saturating_sub(after);
            choice.last_cell = pool.min(before);
        }
        Layout {
            pool,
            pad: widest,
            stride: widest + pool + 1 + BLOCK,
        }
    }

    fn fill_table(&mut self, layout: Layout) {
        let Layout { pad, stride, .. } = layout;
        let cells = (self.choices.len() + 1) * stride;
        if self.table.len() < cells {
            self.table.resize(cells, 0.0);
        }
        let (mut row, mut rest) = self.table.split_at_mut(stride);
        row[..pad].fill(f64::NEG_INFINITY);
        row[pad..].fill(0.0);
        for (i, choice) in self.choices.iter().enumerate() {
            let (next, after) = rest.split_at_mut(stride);
            next[..pad].fill(f64::NEG_INFINITY);
            self.arch.dispatch(Relaxation {
                choice,
                row,
                next,
                pad,
                values: &self.values,
            });
            if let Some(following) = self.choices.get(i + 1) {
                let last = pad + choice.last_cell;
                let value = next[last];
                next[last + 1..=pad + following.last_cell + BLOCK - 1].fill(value);
            }
            (row, rest) = (next, after);
        }
    }

    /// Reads the allocation back from the last row to the first; false when there is none.
    fn trace_back(&mut self, problem: &Problem, layout: Layout) -> bool {
        let Layout { pool, pad, stride } = layout;
        let shares = &mut self.solution.shares;
        shares.clear();
        shares.resize(self.choices.len(), Share::NONE);
        if self.table[self.choices.len() * stride + pad + pool] == f64::NEG_INFINITY {
            return false;
        }
        let mut left = pool;
        for (j, choice) in self.choices.iter().enumerate().rev() {
            // Beyond its last cell a row goes on as it ends.
            left = left.min(choice.last_cell);
            let row = &self.table[j * stride + pad..][..=left];
            let target = self.table[(j + 1) * stride + pad + left];
            let attains = |n: u32| {
                let value = choice.value(n, &self.values).filter(|_| n as usize <= left);
                value.is_some_and(|value| row[left - n as usize] + value == target)
            };
            let current = problem.trainers[j].current.nodes;
            let n = if attains(current) {
                current
            } else {
                choice.counts().find(|&n| attains(n)).unwrap_or(0)
            };
            shares[j] = Share::from(n);
            left -= n as usize;
        }
        true
    }
}

impl Default for DpSolver {
    fn default() -> Self {
        Self::new()
    }
}

/// Most nodes by which the authors' model lets a trainer change: an accident of its constants.
/// `None` when it is infeasible for everybody, as one trainer's min is above the pool + 1.
pub fn published_bound(problem: &Problem) -> Option<u32> {
    let pool = problem.pool_nodes();
    let mut demands = problem.trainers.iter();
    demands
        .all(|demand| demand.min <= pool.saturating_add(1))
        .then(|| pool.div_ceil(2))
}

/// Cells of the table that `problem` needs; eight bytes each.
pub(super) fn table_cells(problem: &Problem) -> u64 {
    let pool = u64::from(problem.pool_nodes());
    let widest = problem
        .trainers
        .iter()
        .map(|demand| u64::from(demand.max).min(pool))
        .max();
    let stride = widest.unwrap_or(0) + problem.usable_nodes() + 1 + BLOCK as u64;
    (problem.trainers.len() as u64 + 1).saturating_mul(stride)
}

/// Shape of the table: a row per trainer and one before the first; each row starts with `pad`
/// cells of minus infinity that stand for negative numbers of nodes.
#[derive(Debug, Clone, Copy)]
struct Layout {
    pool: usize,
    pad: usize,
    stride: usize,
}

/// The counts that one trainer may be given: 0, if `zero` is finite, and `low..=high`.
#[derive(Debug, Clone, Copy)]
struct Choice {
    /// Value of 0 nodes; minus infinity when not allowed.
    zero: f64,
    low: u32,
    high: u32,
    /// Where its values begin.
    offset: usize,
    /// First and last cell of its row that matter.
    first_cell: usize,
    last_cell: usize,
}

/// A trainer's step through the table, for whatever vector instructions there are.
struct Relaxation<'t> {
    choice: &'t Choice,
    row: &'t [f64],
    next: &'t mut [f64],
    pad: usize,
    values: &'t [f64],
}

impl pulp::NullaryFnOnce for Relaxation<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.choice
            .relax(self.row, self.next, self.pad, self.values);
    }
}

impl Choice {
    fn new(
        demand: &TrainerDemand,
        problem: &Problem,
        max_change: Option<u32>,
        offset: usize,
    ) -> Self {
        let current = demand.current.nodes;
        let bound = max_change.unwrap_or(u32::MAX);
        let zero = match current <= bound {
            true => demand.value_over(problem.horizon_s, Share::NONE),
            false => f64::NEG_INFINITY,
        };
        let low = demand.min.max(1).max(current.saturating_sub(bound));
        let usable = demand.speed(0).map_or(0, |_| problem.pool_nodes());
        let high = demand.max.min(usable).min(current.saturating_add(bound));
        Self {
            zero,
            low,
            high,
            offset,
            first_cell: 0,
            last_cell: 0,
        }
    }

    /// Most nodes it may be given.
    fn top(&self) -> u32 {
        if self.low <= self.high { self.high } else { 0 }
    }

    fn counts(&self) -> impl Iterator<Item = u32> {
        std::iter::once(0).chain(self.low..=self.high)
    }

    fn value(&self, n: u32, values: &[f64]) -> Option<f64> {
        if n == 0 {
            return (self.zero > f64::NEG_INFINITY).then_some(self.zero);
        }
        let allowed = (self.low..=self.high).contains(&n);
        allowed.then(|| values[self.offset + (n - self.low) as usize])
    }

    fn add(&mut self, n: u32, bonus: f64, values: &mut [f64]) {
        if n == 0 {
            self.zero += bonus;
        } else if (self.low..=self.high).contains(&n) {
            values[self.offset + (n - self.low) as usize] += bonus;
        }
    }

    /// `next[p] = max over n of row[p - n] + value(n)` for the cells that matter, and up to a
    /// block beyond them. Cell p is at index `pad + p` of both rows.
    #[inline(always)]
    fn relax(&self, row: &[f64], next: &mut [f64], pad: usize, values: &[f64]) {
        let (low, top) = (self.low as usize, self.top() as usize);
        let values = match top {
            0 => &[],
            _ => &values[self.offset..=self.offset + top - low],
        };
        for first in (self.first_cell..=self.last_cell).step_by(BLOCK) {
            let at = pad + first;
            let mut best = [0.0; BLOCK];
            for (best, before) in best.iter_mut().zip(&row[at..at + BLOCK]) {
                *best = before + self.zero;
            }
            // Window i of `span`, counted from its end, begins at cell `first - (low + i)`.
            let span = match top {
                0 => &[],
                _ => &row[at - top..at - low + BLOCK],
            };
            for (window, value) in span.windows(BLOCK).rev().zip(values) {
                for (best, before) in best.iter_mut().zip(window) {
                    *best = larger(*best, before + value);
                }
            }
            next[at..at + BLOCK].copy_from_slice(&best);
        }
    }
}

/// The larger of two; unlike `f64::max` one machine instruction, as neither is NaN.
#[inline(always)]
fn larger(a: f64, b: f64) -> f64 {
    if b > a { b } else { a }
}
