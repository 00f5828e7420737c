//! Scaling curves: a value (throughput, or what a metric makes of it) over the number of nodes.
//! A curve is checked when it is made and never changes; what the numbers are worth is the
//! business of `metric`, who gets nodes for them that of `allocation`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Most points a curve may be given.
pub const MAX_POINTS: usize = 64;
/// Smallest value a throughput may have; far below any rate, it keeps ratios finite.
pub const MIN_VALUE: f64 = 1e-100;
/// Largest value a curve may have; far above any rate, it keeps sums finite.
pub const MAX_VALUE: f64 = 1e100;

/// Why a list of points is no curve.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum CurveError {
    /// No point above 0 nodes.
    #[error("a scaling curve needs at least one point above 0 nodes")]
    Empty,
    /// More than [`MAX_POINTS`] points.
    #[error("a scaling curve of {0} points has too many; give at most {MAX_POINTS}")]
    TooManyPoints(usize),
    /// Node counts that don't rise strictly.
    #[error("the scaling curve's point at {1} nodes follows that at {0}; sort by nodes, each once")]
    NotSorted(u32, u32),
    /// A value that is negative, zero (where that is not allowed), not finite or absurd.
    #[error("the scaling curve's value {value} at {nodes} nodes is not a positive finite number")]
    BadValue {
        /// Node count of the point.
        nodes: u32,
        /// The value given.
        value: f64,
    },
    /// A point at 0 nodes with a value.
    #[error("the scaling curve's value at 0 nodes is {0}; it must be 0 or left out")]
    NotZeroAtZero(f64),
}

/// A place where a curve may bend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Knot {
    /// Node count.
    pub nodes: u32,
    /// Value at `nodes`.
    pub value: f64,
    /// Change of the value per node from here to the next knot, or for ever after the last.
    pub slope: f64,
}

/// A value over the node count, piecewise linear through measured points.
///
/// Below the first point a straight line from 0 at 0 nodes; beyond the last point the last
/// segment's slope goes on, but never below 0; a single point means a straight line through it
/// and the origin (arXiv 2106.12091, section 3, with the extension beyond the points ours).
/// A throughput curve is in samples per second, an objective curve in its metric's unit.
///
/// Cloning is cheap: the points are shared. JSON form: `[[nodes, value], ...]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u32, f64)>", into = "Vec<(u32, f64)>")]
pub struct Curve {
    /// (0, 0), the given points, and where a falling tail meets 0.
    knots: Arc<[Knot]>,
    given: usize,
}

impl Curve {
    /// A throughput curve through `points` (nodes >= 1, value > 0), sorted by nodes, at most
    /// [`MAX_POINTS`]. A leading (0, 0) is accepted and left out.
    ///
    /// # Errors
    /// [`CurveError`] names the first point that breaks a rule.
    pub fn new(points: &[(u32, f64)]) -> Result<Self, CurveError> {
        Self::checked(points, MIN_VALUE)
    }

    /// An objective curve: as [`Curve::new`], but values may be 0 (nodes that are worth nothing).
    ///
    /// # Errors
    /// [`CurveError`] names the first point that breaks a rule.
    pub fn objective(points: &[(u32, f64)]) -> Result<Self, CurveError> {
        Self::checked(points, 0.0)
    }

    /// Amdahl's law `1 / ((1 - parallel) + parallel / n)`, 1.0 at one node, with points at the
    /// powers of two up to `max_nodes` and at `max_nodes`: what a trainer is taken to do before
    /// it is measured. `parallel` outside 0..=1 counts as the nearest bound.
    pub fn amdahl(parallel: f64, max_nodes: u32) -> Self {
        let parallel = bounded(parallel, 1.0);
        let max_nodes = max_nodes.max(1);
        let points: Vec<(u32, f64)> = (0..32)
            .map(|power| 1 << power)
            .take_while(|&nodes| nodes < max_nodes)
            .chain([max_nodes])
            .map(|nodes| match nodes {
                1 => (1, 1.0),
                n => (n, 1.0 / ((1.0 - parallel) + parallel / f64::from(n))),
            })
            .collect();
        Self::from_checked(&points)
    }

    /// The value at `nodes`; 0 at 0 nodes, never negative.
    pub fn value(&self, nodes: u32) -> f64 {
        let after = self.knots.partition_point(|knot| knot.nodes <= nodes);
        self.knots[after - 1].at(nodes)
    }

    /// Appends the values at `low..=high` to `out`: the same numbers as [`Curve::value`], faster.
    pub fn append_values(&self, low: u32, high: u32, out: &mut Vec<f64>) {
        for (i, knot) in self.knots.iter().enumerate() {
            let end = match self.knots.get(i + 1) {
                Some(next) => high.min(next.nodes - 1),
                None => high,
            };
            out.extend((low.max(knot.nodes)..=end).map(|nodes| knot.at(nodes)));
        }
    }

    /// Value at `nodes` over the value at one node, at most `nodes`; no unit.
    pub fn speedup(&self, nodes: u32) -> f64 {
        let one = self.value(1);
        if one > 0.0 {
            (self.value(nodes) / one).min(f64::from(nodes))
        } else {
            0.0
        }
    }

    /// This curve with no more than linear speed-up over its value at one node, anywhere: what a
    /// user may claim, so that nobody gets nodes by an inflated curve.
    ///
    /// Points above the straight line are lowered onto it. Where the slope beyond the last point
    /// would overtake linear, one more point caps it (in a full curve the last point is lowered
    /// instead).
    pub fn clamped_to_linear(&self) -> Self {
        let one = self.value(1);
        let mut points: Vec<(u32, f64)> = self
            .points()
            .iter()
            .map(|knot| (knot.nodes, knot.value.min(one * f64::from(knot.nodes))))
            .collect();
        if let [.., (before, low), (nodes, value)] = points[..] {
            let capped = low + one * f64::from(nodes - before);
            if value > capped {
                if points.len() == MAX_POINTS || nodes == u32::MAX {
                    points.pop();
                    points.push((nodes, capped));
                } else {
                    points.push((nodes + 1, value + one));
                }
            }
        }
        Self::from_checked(&points)
    }

    /// This curve with every value times `factor`; a factor that is not positive gives 0.
    pub fn scaled(&self, factor: f64) -> Self {
        self.map(|_, value| value * factor)
    }

    /// This curve up to `nodes` (at least 1), and from there on what it is worth there. Of a curve
    /// of almost [`MAX_POINTS`] points below `nodes` the last ones become a straight line.
    pub(crate) fn flat_beyond(&self, nodes: u32) -> Self {
        let nodes = nodes.max(1);
        let points = self.points().iter().map(|knot| (knot.nodes, knot.value));
        let mut points: Vec<(u32, f64)> = points.filter(|point| point.0 < nodes).collect();
        if nodes == u32::MAX {
            return self.clone();
        }
        points.truncate(MAX_POINTS - 2);
        let value = self.value(nodes);
        points.extend([(nodes, value), (nodes + 1, value)]);
        Self::from_checked(&points)
    }

    /// The points it was made of, in the order of nodes.
    pub fn points(&self) -> &[Knot] {
        &self.knots[1..=self.given]
    }

    /// Every place where it may bend, from (0, 0) on; linear between them and after the last.
    pub fn knots(&self) -> &[Knot] {
        &self.knots
    }

    /// The curve through the same node counts with other values, kept within 0..=[`MAX_VALUE`].
    pub(crate) fn map(&self, value: impl Fn(u32, f64) -> f64) -> Self {
        let points: Vec<(u32, f64)> = self
            .points()
            .iter()
            .map(|knot| {
                let mapped = value(knot.nodes, knot.value);
                (knot.nodes, bounded(mapped, MAX_VALUE))
            })
            .collect();
        Self::from_checked(&points)
    }

    fn checked(points: &[(u32, f64)], least: f64) -> Result<Self, CurveError> {
        let points = match points {
            [(0, value), rest @ ..] if *value == 0.0 => rest,
            [(0, value), ..] => return Err(CurveError::NotZeroAtZero(*value)),
            all => all,
        };
        if points.is_empty() {
            return Err(CurveError::Empty);
        }
        if points.len() > MAX_POINTS {
            return Err(CurveError::TooManyPoints(points.len()));
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(CurveError::NotSorted(pair[0].0, pair[1].0));
        }
        let allowed = least..=MAX_VALUE;
        if let Some(&(nodes, value)) = points.iter().find(|(_, value)| !allowed.contains(value)) {
            return Err(CurveError::BadValue { nodes, value });
        }
        Ok(Self::from_checked(points))
    }

    /// Points must be non-empty, strictly sorted from 1 node on, values in 0..=MAX_VALUE.
    fn from_checked(points: &[(u32, f64)]) -> Self {
        let mut knots = Vec::with_capacity(points.len() + 3);
        let mut last = Knot {
            nodes: 0,
            value: 0.0,
            slope: 0.0,
        };
        for &(nodes, value) in points {
            last.slope = (value - last.value) / f64::from(nodes - last.nodes);
            knots.push(last);
            last = Knot {
                nodes,
                value,
                slope: last.slope,
            };
        }
        knots.push(last);
        end_at_zero(&mut knots);
        Self {
            knots: knots.into(),
            given: points.len(),
        }
    }
}

impl Knot {
    fn at(&self, nodes: u32) -> f64 {
        (self.value + self.slope * f64::from(nodes - self.nodes)).max(0.0)
    }
}

impl TryFrom<Vec<(u32, f64)>> for Curve {
    type Error = CurveError;

    fn try_from(points: Vec<(u32, f64)>) -> Result<Self, CurveError> {
        Self::new(&points)
    }
}

impl From<Curve> for Vec<(u32, f64)> {
    fn from(curve: Curve) -> Self {
        curve
            .points()
            .iter()
            .map(|knot| (knot.nodes, knot.value))
            .collect()
    }
}

/// `value` within 0..=`most`; NaN counts as 0.
fn bounded(value: f64, most: f64) -> f64 {
    if value > 0.0 { value.min(most) } else { 0.0 }
}

/// Lets a falling tail bend where it would go below 0, at whole node counts, so that the curve
/// stays linear between its knots.
fn end_at_zero(knots: &mut Vec<Knot>) {
    let Some(last) = knots.last_mut().filter(|knot| knot.slope < 0.0) else {
        return;
    };
    let positive = (last.value / -last.slope).floor();
    if f64::from(last.nodes) + positive >= f64::from(u32::MAX) {
        return;
    }
    let nodes = last.nodes + positive as u32;
    let value = last.at(nodes);
    if nodes == last.nodes {
        last.slope = -value;
    } else {
        knots.push(Knot {
            nodes,
            value,
            slope: -value,
        });
    }
    knots.push(Knot {
        nodes: nodes + 1,
        value: 0.0,
        slope: 0.0,
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn curve(points: &[(u32, f64)]) -> Curve {
        Curve::new(points).unwrap()
    }

    fn values(curve: &Curve, counts: &[u32]) -> Vec<f64> {
        counts.iter().map(|&nodes| curve.value(nodes)).collect()
    }

    #[test]
    fn between_points_the_curve_is_straight_and_below_the_first_it_goes_to_zero() {
        let curve = curve(&[(2, 10.0), (4, 30.0), (8, 40.0)]);
        assert_eq!(
            values(&curve, &[0, 1, 2, 3, 4, 6, 8]),
            [0.0, 5.0, 10.0, 20.0, 30.0, 35.0, 40.0]
        );
    }

    #[test]
    fn beyond_the_last_point_the_last_slope_goes_on() {
        let curve = curve(&[(1, 10.0), (2, 18.0)]);
        assert_eq!(values(&curve, &[3, 10]), [26.0, 82.0]);
    }

    #[test]
    fn a_single_point_is_a_straight_line_through_the_origin() {
        let curve = curve(&[(4, 10.0)]);
        assert_eq!(values(&curve, &[0, 1, 4, 8]), [0.0, 2.5, 10.0, 20.0]);
    }

    #[test]
    fn a_falling_curve_ends_at_zero_and_stays_linear_between_knots() {
        let curve = curve(&[(1, 10.0), (2, 7.0)]);
        assert_eq!(
            values(&curve, &[3, 4, 5, 6, u32::MAX]),
            [4.0, 1.0, 0.0, 0.0, 0.0]
        );
        let knots: Vec<_> = curve
            .knots()
            .iter()
            .map(|knot| (knot.nodes, knot.slope))
            .collect();
        assert_eq!(
            knots,
            [(0, 10.0), (1, -3.0), (2, -3.0), (4, -1.0), (5, 0.0)]
        );
        assert_eq!(curve.points().len(), 2);
        let steep = Curve::new(&[(1, 10.0), (2, 1.0)]).unwrap();
        assert_eq!(values(&steep, &[2, 3, 4]), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_curve_that_hardly_falls_is_good_for_any_node_count() {
        let curve = curve(&[(1, 1.0), (2, 1.0 - 1e-12)]);
        assert!(curve.value(u32::MAX) > 0.99);
    }

    #[test]
    fn bad_points_are_refused_with_a_sentence() {
        let said = |points: &[(u32, f64)]| Curve::new(points).unwrap_err().to_string();
        assert_eq!(
            said(&[]),
            "a scaling curve needs at least one point above 0 nodes"
        );
        assert_eq!(said(&[(0, 0.0)]), said(&[]));
        assert!(said(&[(0, 1.0), (1, 2.0)]).contains("at 0 nodes is 1; it must be 0"));
        assert!(said(&[(2, 1.0), (2, 2.0)]).contains("2 nodes follows that at 2"));
        assert!(said(&[(1, 1.0), (0, 0.0)]).contains("0 nodes follows that at 1"));
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e200, 1e-200] {
            assert!(said(&[(3, value)]).contains("at 3 nodes is not a positive finite number"));
        }
        let many: Vec<_> = (1..=65).map(|n| (n, 1.0)).collect();
        assert!(said(&many).contains("65 points"));
        assert!(Curve::new(&many[..64]).is_ok());
    }

    #[test]
    fn only_an_objective_may_be_worth_nothing() {
        let flat = Curve::objective(&[(0, 0.0), (6, 0.0), (12, 0.0)]).unwrap();
        assert_eq!(values(&flat, &[0, 6, 12, 100]), [0.0; 4]);
        assert_eq!(flat.speedup(6), 0.0);
        assert!(Curve::objective(&[(1, -1.0)]).is_err());
    }

    #[test]
    fn json_is_a_list_of_pairs_and_is_checked() {
        let curve: Curve = serde_json::from_str("[[0,0.0],[1,2831.0],[2,5259]]").unwrap();
        assert_eq!(
            serde_json::to_string(&curve).unwrap(),
            "[[1,2831.0],[2,5259.0]]"
        );
        let error = serde_json::from_str::<Curve>("[[2,1.0],[1,2.0]]").unwrap_err();
        assert!(error.to_string().contains("sort by nodes"));
    }

    #[test]
    fn amdahl_is_one_at_one_node_and_right_at_powers_of_two() {
        let curve = Curve::amdahl(0.98, 100);
        assert_eq!(curve.value(1), 1.0);
        assert!((curve.value(64) - 1.0 / (0.02 + 0.98 / 64.0)).abs() < 1e-12);
        assert_eq!(curve.points().last().unwrap().nodes, 100);
        assert_eq!(Curve::amdahl(0.98, 1).points().len(), 1);
        assert_eq!(Curve::amdahl(0.98, u32::MAX).points().len(), 33);
        assert_eq!(Curve::amdahl(f64::NAN, 8).value(8), 1.0);
        assert_eq!(Curve::amdahl(7.0, 8).value(8), 8.0);
    }

    #[test]
    fn speed_up_is_relative_to_one_node_and_at_most_linear() {
        let curve = curve(&[(2, 20.0), (4, 30.0), (8, 200.0)]);
        assert_eq!([1, 2, 4, 8].map(|n| curve.speedup(n)), [1.0, 2.0, 3.0, 8.0]);
    }

    #[test]
    fn a_user_cannot_claim_more_than_linear_beyond_the_points_either() {
        let claim = curve(&[(1, 1.0), (15, 1.0), (16, 16.0)]).clamped_to_linear();
        assert_eq!(values(&claim, &[15, 16, 64]), [1.0, 16.0, 64.0]);
        let honest = curve(&[(1, 10.0), (2, 18.0), (4, 30.0)]);
        assert_eq!(honest.clamped_to_linear(), honest);
    }

    fn any_curve(most: usize) -> impl Strategy<Value = Curve> {
        prop::collection::btree_map(1_u32..500, 1e-3_f64..1e6, 1..=most)
            .prop_map(|points| curve(&points.into_iter().collect::<Vec<_>>()))
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..Default::default()
        })]

        #[test]
        fn a_table_of_values_is_the_curve_to_the_last_bit(
            curve in any_curve(10), low in 0_u32..600, size in 0_u32..600,
        ) {
            let mut table = Vec::new();
            curve.append_values(low, low + size, &mut table);
            let one_by_one: Vec<_> = (low..=low + size).map(|nodes| curve.value(nodes)).collect();
            prop_assert_eq!(table, one_by_one);
        }

        #[test]
        fn clamping_bounds_every_count_and_is_done_once(curve in any_curve(MAX_POINTS)) {
            let clamped = curve.clamped_to_linear();
            let one = curve.value(1);
            for nodes in (0..700).chain([10_000, u32::MAX]) {
                let linear = one * f64::from(nodes);
                prop_assert!(clamped.value(nodes) <= linear * (1.0 + 1e-9));
            }
            prop_assert!(clamped.points().len() <= MAX_POINTS);
            let again = clamped.clamped_to_linear();
            for nodes in 0..700 {
                let (first, second) = (clamped.value(nodes), again.value(nodes));
                prop_assert!((first - second).abs() <= 1e-9 * first);
            }
        }

        #[test]
        fn a_curve_survives_json(curve in any_curve(10)) {
            // serde_json reads a number to within its last bit.
            let text = serde_json::to_string(&curve).unwrap();
            let read: Curve = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(read.points().len(), curve.points().len());
            for (read, given) in read.points().iter().zip(curve.points()) {
                prop_assert_eq!(read.nodes, given.nodes);
                prop_assert!((read.value - given.value).abs() <= 1e-15 * given.value);
            }
        }
    }
}
