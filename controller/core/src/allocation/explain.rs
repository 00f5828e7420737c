//! Says in a sentence why a trainer gets what it gets: what the change is worth over the horizon,
//! and what it costs. The numbers are given in the unit of the reader's choice.

use super::problem::{Problem, Share};

/// What the nodes are worth, in a unit that readers know.
#[derive(Clone, Copy)]
pub struct Worth<'a> {
    /// The unit, as "samples"; may be empty.
    pub unit: &'a str,
    /// Units per second on a share.
    pub per_s: &'a dyn Fn(Share) -> f64,
}

impl Problem {
    /// Why trainer `j` gets `to`, as "6 -> 8 nodes: 2 more are worth 1840 samples over 60 s
    /// against a restart of 3.1 s". Panics when there is no trainer `j`.
    pub fn explain(&self, j: usize, to: Share, worth: Worth) -> String {
        let demand = &self.trainers[j];
        let from = demand.current;
        let over = |share: Share| (worth.per_s)(share) * self.horizon_s;
        let amount = |value: f64| {
            let unit = match worth.unit {
                "" => String::new(),
                unit => format!(" {unit}"),
            };
            format!("{value:.0}{unit} over {:.0} s", self.horizon_s)
        };
        let restart = match demand.rescale_s(to) {
            0.0 => "with nothing running that would have to restart".to_owned(),
            restart_s => format!("against a restart of {restart_s:.1} s"),
        };
        if from.nodes > 0 && to.nodes > 0 && from.class != to.class {
            return format!(
                "{} -> {}: they are worth {}, {:.0} before, {restart}",
                self.described(from),
                self.described(to),
                amount(over(to)),
                over(from),
            );
        }
        let lead = self.lead(from, to);
        if to.nodes > from.nodes {
            let more = to.nodes - from.nodes;
            let gain = amount(over(to) - over(from));
            let verb = if more == 1 { "is" } else { "are" };
            format!("{lead}: {more} more {verb} worth {gain} {restart}")
        } else if to.nodes < from.nodes {
            let loss = amount(over(from) - over(to));
            format!(
                "{lead}: {} fewer cost {loss} and a restart of {:.1} s; others gain more from them",
                from.nodes - to.nodes,
                demand.rescale_s(to),
            )
        } else if to.nodes == 0 {
            format!(
                "{lead}: no {} nodes that it may use are worth more to it than to others",
                demand.min.max(1)
            )
        } else if to.nodes >= demand.max {
            format!("{lead}: as many as it can use")
        } else {
            let next = Share::new(to.class, to.nodes + 1);
            format!(
                "{lead}: 1 more would be worth {} against a restart of {:.1} s",
                amount(over(next) - over(to)),
                demand.rescale_s(next),
            )
        }
    }

    /// The same in the unit of the objective.
    pub fn explain_value(&self, j: usize, to: Share) -> String {
        let worth = Worth {
            unit: "",
            per_s: &|share| self.trainers[j].rate_on(share),
        };
        self.explain(j, to, worth)
    }

    fn lead(&self, from: Share, to: Share) -> String {
        let share = if to.nodes > 0 { to } else { from };
        let class = match self.class_name(share) {
            "" => String::new(),
            name => format!("{name} "),
        };
        if from.nodes == to.nodes {
            format!("stays at {} {class}nodes", to.nodes)
        } else {
            format!("{} -> {} {class}nodes", from.nodes, to.nodes)
        }
    }

    fn described(&self, share: Share) -> String {
        format!("{} {} nodes", share.nodes, self.class_name(share))
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

    fn said(from: Share, to: Share) -> String {
        let problem = problem(from);
        let worth = Worth {
            unit: "samples",
            per_s: &|share| problem.trainers[0].rate_on(share),
        };
        problem.explain(0, to, worth)
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
            idle.explain_value(0, Share::new(1, 2)),
            "0 -> 2 h100 nodes: 2 more are worth 1944 over 60 s with nothing running that would \
             have to restart"
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
