//! Metrics: what a node is worth to a trainer. A metric turns a throughput curve and a weight
//! into the objective curve that every solver maximises, so that all see the same function.

use serde::{Deserialize, Serialize};

use crate::curve::Curve;

/// Exponent of the default metric.
pub const DEFAULT_EXPONENT: f64 = 0.8;

/// What the allocation maximises, summed over trainers.
///
/// Measured, endless ImageNet mix on 1,024 nodes of the Summit trace, total samples and the mean
/// speed-up of the network that fares worst: throughput 199.4e9 and 2.9 (DenseNet); speed-up
/// 214.9e9 and 0.70 (AlexNet); speed-up^0.8 215.8e9 and 2.4 (AlexNet).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Metric {
    /// `weight * (O(n) / O(1)) ^ exponent`, no unit: fair between fast and slow models. Exponent
    /// 1 gives nodes to those that scale best and starves the worst scaler; below 1 the first
    /// nodes of each trainer count more. The exponent is applied to the curve's points, between
    /// them the objective is linear; the speed-up is at most n, everywhere.
    Speedup {
        /// Above 0, at most 1.
        exponent: f64,
    },
    /// `weight * O(n)`, samples per second: favours models that process many samples per second,
    /// whatever a sample costs, and starves slow ones.
    Throughput,
    /// `weight * O(n) / O(1)`, no unit, up to the first node that adds less than `floor * O(1)`;
    /// that one and all after it are worth nothing. Favours models that scale well, and leaves
    /// nodes idle that nobody uses well.
    Efficiency {
        /// What a node must add, as a part of a single node's throughput; above 0, at most 1.
        floor: f64,
    },
}

impl Metric {
    /// The objective curve of a trainer with this throughput `curve` (samples per second; any
    /// unit will do for speed-up) and `weight` (no unit). A weight that is not positive makes
    /// all nodes worth nothing: the trainer keeps only what nobody else can use.
    pub fn objective(&self, curve: &Curve, weight: f64) -> Curve {
        match *self {
            Self::Throughput => curve.scaled(weight),
            Self::Speedup { exponent } => {
                let linear = curve.clamped_to_linear();
                linear.map(|nodes, _| weight * linear.speedup(nodes).powf(exponent))
            }
            Self::Efficiency { floor } => {
                let linear = curve.clamped_to_linear();
                let speedup = linear.map(|nodes, _| weight * linear.speedup(nodes));
                speedup.flat_beyond(growth_limit(&linear, floor))
            }
        }
    }

    /// The most nodes that a trainer with this throughput `curve` and these bounds is to be given:
    /// `max`, but for [`Metric::Efficiency`], which stops the growth where a node adds too little.
    /// Never below `min`: that is what the trainer needs to run at all.
    pub fn most_nodes(&self, curve: &Curve, min: u32, max: u32) -> u32 {
        match *self {
            Self::Efficiency { floor } => {
                max.min(growth_limit(&curve.clamped_to_linear(), floor).max(min))
            }
            _ => max,
        }
    }

    /// What multiplies the objective on nodes that are `factor` times as fast: speed-up is over
    /// one node of speed 1, whatever the class.
    pub fn class_speed(&self, factor: f64) -> f64 {
        match *self {
            Self::Speedup { exponent } => factor.powf(exponent),
            Self::Throughput | Self::Efficiency { .. } => factor,
        }
    }
}

/// The count after which a node first adds less than `floor` times a single node's throughput.
fn growth_limit(curve: &Curve, floor: f64) -> u32 {
    // A straight line's slopes differ by rounding.
    let least = floor * curve.value(1) * (1.0 - 1e-9);
    let mut knots = curve.knots().iter().skip(1);
    knots
        .find(|knot| knot.slope < least)
        .map_or(u32::MAX, |knot| knot.nodes)
}

impl Default for Metric {
    fn default() -> Self {
        Self::Speedup {
            exponent: DEFAULT_EXPONENT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u32, f64)]) -> Curve {
        Curve::new(points).unwrap()
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs()
    }

    #[test]
    fn the_default_is_speed_up_to_the_power_of_four_fifths() {
        assert_eq!(Metric::default(), Metric::Speedup { exponent: 0.8 });
    }

    #[test]
    fn the_exponent_is_applied_to_the_points_and_the_rest_is_straight() {
        let objective = Metric::default().objective(&curve(&[(2, 20.0), (4, 30.0)]), 0.5);
        let (two, four) = (0.5 * 2_f64.powf(0.8), 0.5 * 3_f64.powf(0.8));
        assert!(near(objective.value(1), two / 2.0));
        assert!(near(objective.value(2), two));
        assert!(near(objective.value(3), f64::midpoint(two, four)));
        assert!(near(objective.value(6), four + (four - two)));
    }

    #[test]
    fn speed_up_does_not_depend_on_the_unit_of_throughput() {
        let slow = curve(&[(1, 1.0), (4, 3.0)]);
        let fast = slow.scaled(1024.0);
        let metric = Metric::default();
        assert_eq!(metric.objective(&slow, 1.0), metric.objective(&fast, 1.0));
    }

    #[test]
    fn no_claim_is_worth_more_than_linear_speed_up() {
        let linear = Metric::Speedup { exponent: 1.0 };
        let claim = curve(&[(1, 1.0), (15, 1.0), (16, 900.0)]);
        let objective = linear.objective(&claim, 1.0);
        assert!((0..500).all(|n| objective.value(n) <= f64::from(n) * (1.0 + 1e-12)));
    }

    #[test]
    fn throughput_is_the_weighted_curve() {
        let objective = Metric::Throughput.objective(&curve(&[(1, 10.0), (2, 18.0)]), 2.0);
        assert_eq!([1, 2, 3].map(|n| objective.value(n)), [20.0, 36.0, 52.0]);
    }

    #[test]
    fn without_a_positive_weight_nodes_are_worth_nothing() {
        for weight in [0.0, -1.0, f64::NAN] {
            for metric in [Metric::Throughput, Metric::default()] {
                assert_eq!(metric.objective(&curve(&[(1, 10.0)]), weight).value(8), 0.0);
            }
        }
    }

    #[test]
    fn a_node_that_adds_too_little_is_worth_nothing_and_not_given() {
        // Each node adds 10, 8, 8, 3, then 9 again.
        let curve = curve(&[(1, 10.0), (2, 18.0), (3, 26.0), (4, 29.0), (8, 65.0)]);
        for (floor, limit) in [
            (0.05, 64),
            (0.3, 64),
            (0.5, 3),
            (0.8, 3),
            (0.9, 1),
            (1.0, 1),
        ] {
            let metric = Metric::Efficiency { floor };
            assert_eq!(metric.most_nodes(&curve, 1, 64), limit, "{floor}");
            let objective = metric.objective(&curve, 2.0);
            for nodes in 1..=64 {
                let expected = 0.2 * curve.value(nodes.min(limit));
                assert!(near(objective.value(nodes), expected), "{floor} {nodes}");
            }
        }
        let metric = Metric::Efficiency { floor: 0.9 };
        assert_eq!(metric.most_nodes(&curve, 4, 64), 4);
        assert_eq!(metric.most_nodes(&curve, 4, 2), 2);
        assert_eq!(Metric::Throughput.most_nodes(&curve, 1, 64), 64);
    }

    #[test]
    fn linear_growth_passes_every_floor() {
        let line = curve(&[(3, 0.3), (7, 0.7), (50, 5.0)]);
        let metric = Metric::Efficiency { floor: 1.0 };
        assert_eq!(metric.most_nodes(&line, 1, 1000), 1000);
    }

    #[test]
    fn speed_counts_as_the_metric_counts_throughput() {
        assert_eq!(Metric::Throughput.class_speed(1.8), 1.8);
        assert!(near(Metric::default().class_speed(1.8), 1.8_f64.powf(0.8)));
        assert_eq!(Metric::Efficiency { floor: 0.5 }.class_speed(1.8), 1.8);
    }

    #[test]
    fn settings_read_as_their_names() {
        let metric: Metric = serde_json::from_str(r#"{"speedup":{"exponent":0.5}}"#).unwrap();
        assert_eq!(metric, Metric::Speedup { exponent: 0.5 });
        assert_eq!(
            serde_json::from_str::<Metric>(r#""throughput""#).unwrap(),
            Metric::Throughput
        );
    }
}
