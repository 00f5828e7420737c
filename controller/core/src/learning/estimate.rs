//! A scaling curve from the counts that were measured and a prior.
//!
//! The prior's seconds per sample, stretched and shifted (`a * t(n) + b`, least squares), are
//! the shape; between the measured counts the ratio of measured to shape is interpolated over
//! ln n, beyond them it stays. Neighbouring counts steady each other, so that noise on single
//! counts does not look like steps of the curve. The result is never above linear speed-up.

use crate::curve::{Curve, MAX_POINTS, MAX_VALUE, MIN_VALUE};

use super::profile::Profile;

/// Measured for so long, a count has half of its full weight, seconds.
const HALF_WEIGHT_S: f64 = 60.0;

/// Counts whose ratio is less than about this far apart steady each other, in ln n.
const NEIGHBOURHOOD: f64 = 0.25;

/// How strongly the prior's shape resists the measurements, in weights of a count.
const STIFFNESS: f64 = 0.02;

/// What the shape weighs at a measured count, in weights of a count.
const DOUBT: f64 = 0.1;

/// The curve has points up to here at every count, then more and more widely.
const DENSE_NODES: u32 = 8;

/// A measured count.
#[derive(Clone, Copy, Debug)]
struct Point {
    nodes: u32,
    /// Seconds per sample, measured.
    step_s: f64,
    /// From 0 to 1.
    weight: f64,
}

/// Seconds per sample as the prior says, stretched and shifted.
struct Shape<'a> {
    prior: &'a Curve,
    stretch: f64,
    shift_s: f64,
    /// Beyond this count speed-up is linear at most.
    last: u32,
}

/// The curve of a program of which `profile` is known, up to `max_nodes`, in samples per
/// second; without measurements it is the prior, which any unit will do for.
pub fn estimate(profile: &Profile, prior: &Curve, max_nodes: u32) -> Curve {
    let points: Vec<Point> = profile
        .rates()
        .iter()
        .map(|(&nodes, rate)| Point {
            nodes,
            step_s: 1.0 / rate.samples_per_s,
            weight: rate.seconds / (rate.seconds + HALF_WEIGHT_S),
        })
        .filter(|point| point.step_s.is_finite() && point.step_s > 0.0)
        .collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return prior.clone();
    };
    let shape = Shape::fitted(prior, &points);
    let ratios = ratios(&shape, &points);
    let (first, last) = (first.nodes, last.nodes);
    let values: Vec<(u32, f64)> = grid(max_nodes.max(last))
        .into_iter()
        .map(|nodes| {
            let ratio = interpolated(&ratios, nodes.clamp(first, last));
            (
                nodes,
                (ratio / shape.step_s(nodes)).clamp(MIN_VALUE, MAX_VALUE),
            )
        })
        .collect();
    // The values are finite and positive and the counts rise: it is a curve.
    Curve::new(&values).map_or_else(|_| prior.clone(), |curve| curve.clamped_to_linear())
}

impl<'a> Shape<'a> {
    /// Weighted least squares of the relative error of `stretch * t + shift`, the shift held
    /// back a little: in units of the mean step, two normal equations.
    fn fitted(prior: &'a Curve, points: &[Point]) -> Self {
        let step_s = |nodes: u32| 1.0 / prior.value(nodes).max(MIN_VALUE);
        let weights: f64 = points.iter().map(|point| point.weight).sum();
        let mean = |value: &dyn Fn(&Point) -> f64| {
            points.iter().map(|p| p.weight * value(p)).sum::<f64>() / weights
        };
        let scale = 1.0 / mean(&|point| step_s(point.nodes) / point.step_s);
        let unit_s = mean(&|point| point.step_s);
        let (mut xx, mut xy, mut yy, mut x1, mut y1) = (STIFFNESS, 0.0, STIFFNESS, STIFFNESS, 0.0);
        for point in points {
            let x = scale * step_s(point.nodes) / point.step_s;
            let y = unit_s / point.step_s;
            xx += point.weight * x * x;
            xy += point.weight * x * y;
            yy += point.weight * y * y;
            x1 += point.weight * x;
            y1 += point.weight * y;
        }
        let determinant = xx * yy - xy * xy;
        let (stretch, shift) = if points.len() > 1 && determinant > 1e-9 * xx * yy {
            (
                (x1 * yy - y1 * xy) / determinant,
                (y1 * xx - x1 * xy) / determinant,
            )
        } else {
            (1.0, 0.0)
        };
        // A shape that would fall with the prior's rise tells of noise.
        let (stretch, shift) = if stretch > 0.05 {
            (stretch, shift)
        } else {
            (1.0, 0.0)
        };
        Shape {
            prior,
            stretch: stretch * scale,
            shift_s: shift * unit_s,
            last: points.last().map_or(1, |point| point.nodes),
        }
    }

    /// Seconds per sample on `nodes` nodes.
    fn step_s(&self, nodes: u32) -> f64 {
        let at = |nodes: u32| {
            let prior_s = 1.0 / self.prior.value(nodes).max(MIN_VALUE);
            // A shift below zero must not make a step take no time.
            (self.stretch * prior_s + self.shift_s).max(self.stretch * prior_s * 0.1)
        };
        if nodes <= self.last {
            return at(nodes);
        }
        at(nodes).max(at(self.last) * f64::from(self.last) / f64::from(nodes))
    }
}

/// Measured over shape at each measured count, steadied by its neighbours: (ln n, ratio).
fn ratios(shape: &Shape, points: &[Point]) -> Vec<(f64, f64)> {
    let raw: Vec<(f64, f64, f64)> = points
        .iter()
        .map(|point| {
            let ratio = shape.step_s(point.nodes) / point.step_s;
            (f64::from(point.nodes).ln(), ratio, point.weight)
        })
        .collect();
    raw.iter()
        .map(|&(at, _, _)| {
            // Single counts that differ from the shape are noise, until measured for long.
            let (mut sum, mut weights) = (DOUBT, DOUBT);
            for &(other, ratio, weight) in &raw {
                let distance = (other - at) / NEIGHBOURHOOD;
                if distance.abs() < 4.0 {
                    let nearness = weight * (-0.5 * distance * distance).exp();
                    sum += nearness * ratio;
                    weights += nearness;
                }
            }
            (at, sum / weights)
        })
        .collect()
}

/// The ratio at `nodes`, linear in ln n between measured counts.
fn interpolated(ratios: &[(f64, f64)], nodes: u32) -> f64 {
    let at = f64::from(nodes).ln();
    let after = ratios.partition_point(|(other, _)| *other <= at);
    match (after.checked_sub(1).map(|i| ratios[i]), ratios.get(after)) {
        (Some((low, low_ratio)), Some(&(high, high_ratio))) => {
            low_ratio + (high_ratio - low_ratio) * (at - low) / (high - low)
        }
        (Some((_, ratio)), None) | (None, Some(&(_, ratio))) => ratio,
        (None, None) => 1.0,
    }
}

/// Node counts at which the curve may bend: all up to [`DENSE_NODES`], then four to each
/// doubling, up to and with `max_nodes`.
fn grid(max_nodes: u32) -> Vec<u32> {
    let mut counts: Vec<u32> = (1..=DENSE_NODES.min(max_nodes)).collect();
    let mut step = 2;
    let mut nodes = DENSE_NODES;
    while nodes < max_nodes && counts.len() < MAX_POINTS - 1 {
        nodes = nodes.saturating_add(step).min(max_nodes);
        counts.push(nodes);
        if nodes >= step.saturating_mul(8) {
            step = step.saturating_mul(2);
        }
    }
    if nodes < max_nodes {
        counts.push(max_nodes);
    }
    counts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::meter::Window;
    use super::*;

    fn measured(rates: &[(u32, f64)], seconds: f64) -> Profile {
        let mut profile = Profile::default();
        for &(nodes, samples_per_s) in rates {
            let window = Window {
                samples_per_s,
                length_s: seconds,
            };
            profile.add_window(0.0, nodes, window);
        }
        profile
    }

    fn amdahl(parallel: f64, nodes: u32) -> f64 {
        500.0 / ((1.0 - parallel) + parallel / f64::from(nodes))
    }

    #[test]
    fn without_measurements_the_prior_holds() {
        let prior = Curve::amdahl(0.98, 64);
        assert_eq!(estimate(&Profile::default(), &prior, 64), prior);
    }

    #[test]
    fn one_measured_count_scales_the_prior() {
        let prior = Curve::amdahl(0.98, 64);
        let curve = estimate(&measured(&[(4, 300.0)], 60.0), &prior, 64);
        for nodes in [1, 2, 4, 8, 32, 64] {
            let expected = 300.0 * prior.value(nodes) / prior.value(4);
            assert!(
                (curve.value(nodes) / expected - 1.0).abs() < 1e-6,
                "{nodes}"
            );
        }
    }

    #[test]
    fn a_poor_scaler_is_known_after_three_small_counts() {
        let rates = [1, 2, 8].map(|nodes| (nodes, amdahl(0.9, nodes)));
        let curve = estimate(&measured(&rates, 60.0), &Curve::amdahl(0.98, 64), 64);
        for nodes in [1, 2, 4, 8, 16, 64] {
            let ratio = curve.value(nodes) / amdahl(0.9, nodes);
            assert!((ratio - 1.0).abs() < 0.05, "{nodes}: {ratio}");
        }
    }

    #[test]
    fn a_peak_is_found_once_counts_around_it_are_measured() {
        let rates = [
            (1, 100.0),
            (8, 700.0),
            (16, 1000.0),
            (24, 900.0),
            (64, 500.0),
        ];
        let curve = estimate(&measured(&rates, 600.0), &Curve::amdahl(0.98, 64), 64);
        let best = (1..=64).max_by(|a, b| curve.value(*a).total_cmp(&curve.value(*b)));
        assert!((14..=20).contains(&best.unwrap()), "{best:?}");
    }

    #[test]
    fn the_users_curve_is_a_prior_and_no_truth() {
        let claim = Curve::new(&[(1, 100.0), (64, 6400.0)]).unwrap();
        let rates = [1, 4, 16].map(|nodes| (nodes, amdahl(0.9, nodes)));
        let curve = estimate(&measured(&rates, 600.0), &claim, 64);
        for (nodes, rate) in rates {
            assert!((curve.value(nodes) / rate - 1.0).abs() < 0.05, "{nodes}");
        }
        assert!(curve.speedup(64) < 15.0);
    }

    #[test]
    fn the_grid_fits_into_a_curve_for_any_maximum() {
        for max_nodes in (1..300).chain([1000, 4734, 100_000, u32::MAX]) {
            let counts = grid(max_nodes);
            assert_eq!(counts.last(), Some(&max_nodes));
            assert!(counts.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(counts.len() <= MAX_POINTS);
        }
    }

    proptest! {
        #[test]
        fn whatever_was_measured_gives_a_curve_that_is_linear_at_most(
            rates in proptest::collection::btree_map(1u32..100, (1e-6f64..1e12, 1f64..2000.0), 0..20),
            parallel in 0.0f64..=1.0, max in 1u32..200,
        ) {
            let mut profile = Profile::default();
            for (&nodes, &(samples_per_s, length_s)) in &rates {
                profile.add_window(0.0, nodes, Window { samples_per_s, length_s });
            }
            let curve = estimate(&profile, &Curve::amdahl(parallel, max), max);
            for nodes in 1..=max {
                let linear = curve.value(1) * f64::from(nodes);
                prop_assert!(curve.value(nodes) <= linear * (1.0 + 1e-9));
                prop_assert!(curve.value(nodes).is_finite());
            }
        }

        #[test]
        fn noise_of_five_per_cent_is_steadied(
            noise in proptest::collection::vec(-0.08f64..0.08, 64),
            parallel in 0.9f64..0.999,
        ) {
            let rates: Vec<(u32, f64)> = (1..=64)
                .map(|nodes| (nodes, amdahl(parallel, nodes) * (1.0 + noise[nodes as usize - 1])))
                .collect();
            let curve = estimate(&measured(&rates, 30.0), &Curve::amdahl(0.98, 64), 64);
            let squares = (8..=64).map(|n| (curve.value(n) / amdahl(parallel, n) - 1.0).powi(2));
            let error = (squares.sum::<f64>() / 57.0).sqrt();
            prop_assert!(error < 0.03, "{}", error);
        }
    }
}
