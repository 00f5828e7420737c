//! The paper's own formulation over nodes (arXiv 2106.12091, section 3), as the reference to
//! compare with: who has which node, XOR with the map of now, big-M rows, SOS2 weights on the
//! curve's points with segment binaries, as HiGHS has no SOS2. Its constants are large enough
//! here, so that it has the optimum of the problem and not the half-pool fault.

use bftrainer_controller::solver::highs::{Highs, Model, Status};
use bftrainer_core::allocation::{Problem, TrainerDemand};

/// What came of it.
pub struct Result {
    pub status: Status,
    /// Value of the best allocation found; `None` without one.
    pub objective: Option<f64>,
    pub binaries: usize,
}

const BELOW: f64 = f64::NEG_INFINITY;

/// Solves `problem` (interchangeable nodes, curves with points up to each max) per node.
pub fn solve(problem: &Problem, limit_s: f64) -> Result {
    let nodes = problem.pool_nodes() as usize;
    let mut model = Model::default();
    let mut users: Vec<Vec<(usize, f64)>> = vec![Vec::new(); nodes];
    let mut first = 0;
    for demand in &problem.trainers {
        let held = demand.current.nodes as usize;
        add_trainer(&mut model, problem, demand, first, &mut users);
        first += held;
    }
    // A node has one trainer at most.
    for users in users {
        model.row(BELOW, 1.0, &users);
    }
    let binaries = model.integers();
    let run = match Highs::as_it_comes() {
        Some(mut highs) => highs.solve(&model, None, limit_s),
        None => panic!("HiGHS could not be started"),
    };
    let objective = run.solution.map(|values| model.value(&values));
    Result {
        status: run.status,
        objective,
        binaries,
    }
}

/// Adds a trainer that holds the nodes from `first` on.
fn add_trainer(
    model: &mut Model,
    problem: &Problem,
    demand: &TrainerDemand,
    first: usize,
    users: &mut [Vec<(usize, f64)>],
) {
    let (held, rate) = (demand.current.nodes as usize, demand.rate());
    let large = users.len() as f64;
    let count_now = held as f64;
    let mut count = Vec::new();
    let mut changes = Vec::new();
    for (node, users) in users.iter_mut().enumerate() {
        let has = (first..first + held).contains(&node);
        let x = model.column(0.0, 0.0, 1.0, true);
        // Whether the node changes hands: x XOR has, in four rows.
        let changed = model.column(0.0, 0.0, 1.0, true);
        let now = f64::from(u8::from(has));
        model.row(-now, f64::INFINITY, &[(changed, 1.0), (x, -1.0)]);
        model.row(now, f64::INFINITY, &[(changed, 1.0), (x, 1.0)]);
        model.row(BELOW, now, &[(changed, 1.0), (x, -1.0)]);
        model.row(BELOW, 2.0 - now, &[(changed, 1.0), (x, 1.0)]);
        users.push((x, 1.0));
        count.push((x, 1.0));
        changes.push((changed, 1.0));
    }
    let with = |terms: &[(usize, f64)], more: &[(usize, f64)]| [terms, more].concat();

    // 0 or min..=max.
    let runs = model.column(0.0, 0.0, 1.0, true);
    let least = f64::from(demand.min.max(1));
    let most = f64::from(demand.max);
    model.row(0.0, f64::INFINITY, &with(&count, &[(runs, -least)]));
    model.row(BELOW, 0.0, &with(&count, &[(runs, -most)]));

    // Grows, shrinks, or keeps every node; what changes is the difference of the counts.
    let up = model.column(-demand.up_s * rate, 0.0, 1.0, true);
    let down = model.column(-demand.down_s * rate, 0.0, 1.0, true);
    let large = large + count_now;
    model.row(BELOW, 1.0, &[(up, 1.0), (down, 1.0)]);
    model.row(BELOW, count_now, &with(&count, &[(up, -large)]));
    model.row(count_now, f64::INFINITY, &with(&count, &[(down, large)]));
    model.row(BELOW, 0.0, &with(&changes, &[(up, -large), (down, -large)]));
    let negated: Vec<(usize, f64)> = count.iter().map(|&(x, _)| (x, -1.0)).collect();
    let gains = with(&with(&changes, &negated), &[(up, large)]);
    model.row(BELOW, large - count_now, &gains);
    let losses = with(&with(&changes, &count), &[(down, large)]);
    model.row(BELOW, large + count_now, &losses);

    // The curve: a weight per point, two neighbours at most.
    let knots = demand.objective.knots().iter();
    let weights: Vec<(usize, u32)> = knots
        .map(|knot| {
            let worth = problem.horizon_s * knot.value;
            (model.column(worth, 0.0, 1.0, false), knot.nodes)
        })
        .collect();
    let segments: Vec<usize> = (1..weights.len())
        .map(|_| model.column(0.0, 0.0, 1.0, true))
        .collect();
    let ones = |columns: &mut dyn Iterator<Item = usize>| -> Vec<(usize, f64)> {
        columns.map(|column| (column, 1.0)).collect()
    };
    model.row(1.0, 1.0, &ones(&mut weights.iter().map(|weight| weight.0)));
    model.row(1.0, 1.0, &ones(&mut segments.iter().copied()));
    let at: Vec<(usize, f64)> = weights
        .iter()
        .map(|&(weight, nodes)| (weight, -f64::from(nodes)))
        .collect();
    model.row(0.0, 0.0, &with(&count, &at));
    for (i, &(weight, _)) in weights.iter().enumerate() {
        let around = [i.checked_sub(1), Some(i)].into_iter().flatten();
        let around = around.filter_map(|i| segments.get(i));
        let around: Vec<(usize, f64)> = around.map(|&segment| (segment, -1.0)).collect();
        model.row(BELOW, 0.0, &with(&[(weight, 1.0)], &around));
    }
}
