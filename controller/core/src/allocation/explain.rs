//! Says in a sentence why a trainer gets what it gets: what the change is worth over the horizon,
//! and what it costs.

use super::problem::{Problem, Share};

/// What a sentence says that the problem does not know.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    /// The trainer's throughput on a share, samples per second.
    pub samples_per_s: &'a dyn Fn(Share) -> f64,
    /// Why growing costs nothing, where it does: "nothing running that would have to restart".
    pub free_restart: &'a str,
}

impl Problem {
    /// Why trainer `j` gets `to`, as "6 -> 8 nodes: 2 more are worth 1840 samples over 60 s
    /// against a restart of 3.1 s". Panics when there is no trainer `j`.
    pub fn explain(&self, j: usize, to: Share, words: Words) -> String {
        let demand = &self.trainers[j];
        let from = demand.current;
        let over = |share: Share| (words.samples_per_s)(share) * self.horizon_s;
        let amount = |value: f64| format!("{value:.0} samples over {:.0} s", self.horizon_s);
        let lead = self.lead(from, to);
        if from.nodes > 0 && to.nodes > 0 && from.class != to.class {
            return format!(
                "{lead}: they are worth {}, {:.0} before, {}",
                amount(over(to)),
                over(from),
                self.against(j, to, words),
            );
        }
        if to.nodes > from.nodes {
            let more = to.nodes - from.nodes;
            let gain = amount(over(to) - over(from));
            let verb = if more == 1 { "is" } else { "are" };
            let against = self.against(j, to, words);
            format!("{lead}: {more} more {verb} worth {gain} {against}")
        } else if to.nodes < from.nodes && from.nodes < demand.min {
            let (has, min) = (from.nodes, demand.min);
            format!("{lead}: {has} are fewer than its min of {min}")
        } else if from.nodes > demand.max {
            format!("{lead}: it may have {} at most", demand.max)
        } else if to.nodes < from.nodes {
            format!(
                "{lead}: {} fewer cost {} and a restart of {:.1} s; others gain more from them",
                from.nodes - to.nodes,
                amount(over(from) - over(to)),
                demand.rescale_s(to),
            )
        } else if to.nodes == 0 {
            let min = demand.min.max(1);
            format!("{lead}: no {min} nodes that it may use are worth more to it than to others")
        } else if to.nodes >= demand.max {
            format!("{lead}: as many as it can use")
        } else {
            let next = Share::new(to.class, to.nodes + 1);
            let gain = amount(over(next) - over(to));
            format!(
                "{lead}: 1 more would be worth {gain} {}",
                self.against(j, next, words)
            )
        }
    }

    /// What a change costs.
    fn against(&self, j: usize, to: Share, words: Words) -> String {
        match self.trainers[j].rescale_s(to) {
            0.0 => format!("with {}", words.free_restart),
            restart_s => format!("against a restart of {restart_s:.1} s"),
        }
    }

    fn lead(&self, from: Share, to: Share) -> String {
        let class = |share| match self.class_name(share) {
            "" => String::new(),
            name => format!("{name} "),
        };
        let either = if to.nodes > 0 { to } else { from };
        if from == to {
            format!("stays at {} {}nodes", to.nodes, class(either))
        } else if from.nodes > 0 && to.nodes > 0 && from.class != to.class {
            let (before, after) = (class(from), class(to));
            format!("{} {before}nodes -> {} {after}nodes", from.nodes, to.nodes)
        } else {
            format!("{} -> {} {}nodes", from.nodes, to.nodes, class(either))
        }
    }

    fn class_name(&self, share: Share) -> &str {
        match self.classes.get(share.class) {
            Some(class) if share.nodes > 0 => &class.name,
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NodeClass, TrainerDemand};
    use super::*;
    use crate::curve::Curve;

    fn problem(current: Share) -> Problem {
        let curve = Curve::new(&[(1, 10.0), (2, 18.0), (4, 20.0)]).unwrap();
        let demand = TrainerDemand::new(current, 1, 4, curve)
            .with_costs(3.1, 2.0)
            .with_speeds(vec![1.0, 1.8]);
        let classes = [("a100", 8), ("h100", 4)].map(|(name, nodes)| NodeClass {
            name: name.to_owned(),
            nodes,
        });
        Problem::with_classes(classes.to_vec(), 60.0, vec![demand])
    }

    fn explained(problem: &Problem, to: Share) -> String {
        let words = Words {
            samples_per_s: &|share| problem.trainers[0].rate_on(share),
            free_restart: "nothing running that would have to restart",
        };
        problem.explain(0, to, words)
    }

    fn said(from: Share, to: Share) -> String {
        explained(&problem(from), to)
    }

    #[test]
    fn growth_is_weighed_against_the_restart() {
        assert_eq!(
            said(Share::new(0, 1), Share::new(0, 2)),
            "1 -> 2 a100 nodes: 1 more is worth 480 samples over 60 s against a restart of 3.1 s"
        );
        let mut idle = problem(Share::NONE);
        idle.trainers[0].up_s = 0.0;
        assert_eq!(
            explained(&idle, Share::new(1, 2)),
            "0 -> 2 h100 nodes: 2 more are worth 1944 samples over 60 s with nothing running that \
             would have to restart"
        );
    }

    #[test]
    fn shrinking_names_the_loss() {
        assert_eq!(
            said(Share::new(0, 2), Share::NONE),
            "2 -> 0 a100 nodes: 2 fewer cost 1080 samples over 60 s and a restart of 2.0 s; others \
             gain more from them"
        );
    }

    #[test]
    fn bounds_that_forbid_what_it_has_are_named() {
        let mut few = problem(Share::new(0, 2));
        few.trainers[0].min = 3;
        assert_eq!(
            explained(&few, Share::NONE),
            "2 -> 0 a100 nodes: 2 are fewer than its min of 3"
        );
        let mut many = problem(Share::new(0, 2));
        many.trainers[0].max = 1;
        assert_eq!(
            explained(&many, Share::new(0, 1)),
            "2 -> 1 a100 nodes: it may have 1 at most"
        );
    }

    #[test]
    fn a_change_of_class_names_both() {
        assert_eq!(
            said(Share::new(0, 2), Share::new(1, 1)),
            "2 a100 nodes -> 1 h100 nodes: they are worth 1080 samples over 60 s, 1080 before, \
             against a restart of 5.1 s"
        );
    }

    #[test]
    fn who_stays_is_told_why_as_well() {
        assert_eq!(
            said(Share::new(0, 4), Share::new(0, 4)),
            "stays at 4 a100 nodes: as many as it can use"
        );
        assert_eq!(
            said(Share::new(0, 2), Share::new(0, 2)),
            "stays at 2 a100 nodes: 1 more would be worth 60 samples over 60 s against a restart \
             of 3.1 s"
        );
        assert_eq!(
            said(Share::NONE, Share::NONE),
            "stays at 0 nodes: no 1 nodes that it may use are worth more to it than to others"
        );
    }
}
