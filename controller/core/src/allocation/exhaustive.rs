//! Every allowed allocation, one by one: what other solvers are compared with in tests. The work
//! grows with the product of all trainers' choices; keep the problem small.

use super::problem::{Problem, Share};

/// All allocations that `problem` allows, with their values, in no particular order; with
/// `max_change`, those in which no trainer's count differs by more from the one it holds now.
pub fn enumerate(problem: &Problem, max_change: Option<u32>) -> Vec<(Vec<Share>, f64)> {
    let bound = max_change.unwrap_or(u32::MAX);
    let mut all = vec![Vec::new()];
    for demand in &problem.trainers {
        let of_class = |(class, nodes): (usize, u32)| {
            (1..=nodes.min(demand.max)).map(move |n| Share::new(class, n))
        };
        let classes = problem.classes.iter().map(|class| class.nodes).enumerate();
        let choices: Vec<Share> = std::iter::once(Share::NONE)
            .chain(classes.flat_map(of_class))
            .filter(|share| demand.allows(*share))
            .filter(|share| share.nodes.abs_diff(demand.current.nodes) <= bound)
            .collect();
        let longer = |shares: &Vec<Share>| {
            let shares = shares.clone();
            choices
                .clone()
                .into_iter()
                .map(move |share| [&shares[..], &[share]].concat())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all.into_iter()
        .filter_map(|shares| {
            let value = problem.objective(&shares).ok()?;
            Some((shares, value))
        })
        .collect()
}
