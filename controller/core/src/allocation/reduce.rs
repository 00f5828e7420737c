//! Makes a problem smaller without changing its optimum: classes that are alike for every trainer
//! become one, classes that nobody may use and caps that can't bind go, a cap on one trainer
//! becomes its max. What is left is often a problem over interchangeable nodes.

use super::problem::{Cap, NodeClass, Problem, Share};

/// A smaller problem, and what its classes stand for.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Reduced {
    /// The smaller problem; its trainers are the original's.
    pub problem: Problem,
    /// The original classes that each of its classes stands for.
    pub groups: Vec<Vec<usize>>,
}

/// Reduces `problem`, which should pass [`Problem::validate`].
///
/// The optimum of the smaller problem is never below the original's, and the same where nodes of
/// classes that are alike may be mixed in one trainer; [`Reduced::expand`] finds out whether an
/// answer needs that.
pub fn reduce(problem: &Problem) -> Reduced {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for class in 0..problem.classes.len() {
        let speeds = |k: usize| problem.trainers.iter().map(move |demand| demand.speed(k));
        if speeds(class).all(|speed| speed.is_none()) {
            continue;
        }
        match groups
            .iter_mut()
            .find(|group| speeds(group[0]).eq(speeds(class)))
        {
            Some(group) => group.push(class),
            None => groups.push(vec![class]),
        }
    }
    let mut smaller = problem.clone();
    smaller.classes = groups
        .iter()
        .map(|group| {
            let nodes: u64 = group
                .iter()
                .map(|&class| u64::from(problem.classes[class].nodes))
                .sum();
            NodeClass {
                name: problem.classes[group[0]].name.clone(),
                nodes: u32::try_from(nodes).unwrap_or(u32::MAX),
            }
        })
        .collect();
    for (demand, original) in smaller.trainers.iter_mut().zip(&problem.trainers) {
        demand.speeds = groups
            .iter()
            .map(|group| original.speed(group[0]).unwrap_or(0.0))
            .collect();
        // Nodes of a class that nobody may use have no rate that a change could cost.
        let held = original.current;
        let group = groups.iter().position(|group| group.contains(&held.class));
        demand.current = group.map_or(Share::NONE, |class| Share::new(class, held.nodes));
        if demand.speeds.iter().all(|&speed| speed == 1.0) {
            demand.speeds.clear();
        }
    }
    reduce_caps(&mut smaller);
    Reduced {
        problem: smaller,
        groups,
    }
}

fn reduce_caps(problem: &mut Problem) {
    let trainers = problem.trainers.len();
    for cap in std::mem::take(&mut problem.caps) {
        let members: Vec<usize> = cap.members(trainers).collect();
        let pool = problem.pool_nodes();
        let wanted = members
            .iter()
            .map(|&j| u64::from(problem.trainers[j].max.min(pool)));
        let most = wanted.sum::<u64>().min(u64::from(pool));
        match (&members[..], &mut problem.classes[..]) {
            _ if u64::from(cap.max_nodes) >= most => {}
            ([j], _) => {
                let demand = &mut problem.trainers[*j];
                demand.max = demand.max.min(cap.max_nodes);
            }
            (all, [class]) if all.len() == trainers => {
                class.nodes = class.nodes.min(cap.max_nodes);
            }
            _ => problem.caps.push(Cap {
                trainers: members,
                max_nodes: cap.max_nodes,
            }),
        }
    }
}

impl Reduced {
    /// Whether every class stands for one of the original's.
    pub fn keeps_classes(&self) -> bool {
        self.groups.iter().all(|group| group.len() == 1)
    }

    /// `shares` of the smaller problem in the classes of `original`, one class per trainer: who
    /// stays stays in its class, the others are packed, the largest first. `None` when they don't
    /// fit; that need not mean that they can't.
    pub fn expand(&self, original: &Problem, shares: &[Share]) -> Option<Vec<Share>> {
        let mut free: Vec<u32> = original.classes.iter().map(|class| class.nodes).collect();
        let mut expanded = vec![Share::NONE; shares.len()];
        let mut movers = Vec::new();
        for (j, share) in shares
            .iter()
            .enumerate()
            .filter(|(_, share)| share.nodes > 0)
        {
            let held = original.trainers.get(j)?.current;
            let group = self.groups.get(share.class)?;
            if held.nodes > 0 && group.contains(&held.class) {
                let class = free.get_mut(held.class)?;
                *class = class.checked_sub(share.nodes)?;
                expanded[j] = Share::new(held.class, share.nodes);
            } else {
                movers.push((j, share.nodes, group));
            }
        }
        movers.sort_by_key(|(j, nodes, _)| (u32::MAX - nodes, *j));
        for (j, nodes, group) in movers {
            let fits = group.iter().copied().filter(|&class| free[class] >= nodes);
            let class = fits.min_by_key(|&class| (free[class], class))?;
            free[class] -= nodes;
            expanded[j] = Share::new(class, nodes);
        }
        Some(expanded)
    }
}
