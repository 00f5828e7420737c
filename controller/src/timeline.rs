//! The pool and who had how much of it over the last day: means over half a minute each, in
//! bounded memory. Pure; the store keeps it over a restart.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::lanes::{self, Lanes};

/// Seconds of a point.
pub const STEP_S: i64 = 30;

/// Seconds that are kept.
pub const KEPT_S: i64 = 86_400;

/// Trainers of a point that are told apart; those that come later are counted together. With
/// 2,880 points of 12 bytes a trainer that makes 3 MB at most.
const MOST_SHARES: usize = 96;

/// The number under which trainers without a lane of their own are counted together.
pub const OTHERS: u32 = 0;

/// Mean numbers of nodes from its time on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Its beginning, epoch seconds, a multiple of [`STEP_S`].
    pub time_s: i64,
    /// Nodes idle or held by trainers.
    pub pool: f32,
    /// Of these, nodes that bear a worker.
    pub held: f32,
    /// Of these, nodes on which ranks run.
    pub training: f32,
    /// Nodes on which a trainer's ranks run: lane of the chart, array job id, nodes.
    pub shares: Vec<(u8, u32, f32)>,
}

/// Numbers of nodes as they are for some seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Nodes idle or held by trainers.
    pub pool: usize,
    /// Of these, nodes that bear a worker.
    pub held: usize,
}

/// A point that is not over yet: node-seconds.
#[derive(Clone, Debug, Default)]
struct Open {
    time_s: i64,
    covered_s: f64,
    pool_node_s: f64,
    held_node_s: f64,
    share_node_s: BTreeMap<(u8, u32), f64>,
}

impl Open {
    fn point(&self) -> Point {
        // Two decimals say all that there is to see.
        let mean = |node_s: f64| (node_s / self.covered_s * 100.0).round() as f32 / 100.0;
        Point {
            time_s: self.time_s,
            pool: mean(self.pool_node_s),
            held: mean(self.held_node_s),
            training: mean(self.share_node_s.values().sum()),
            shares: self
                .share_node_s
                .iter()
                .map(|((lane, trainer), node_s)| (*lane, *trainer, mean(*node_s)))
                .collect(),
        }
    }
}

/// The points of the last day, oldest first. Where nothing was seen there is none.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    points: VecDeque<Point>,
    open: Option<Open>,
    lanes: Lanes,
}

impl Timeline {
    /// Goes on from what was kept, oldest first.
    pub fn new(points: Vec<Point>) -> Self {
        Timeline {
            points: points.into(),
            ..Timeline::default()
        }
    }

    /// Adds `seconds` that ended at `now_s`, in which the numbers of nodes were these; `running`
    /// has each trainer's array job id and the nodes on which its ranks ran. The point that is
    /// over by that, if one is.
    pub fn add(
        &mut self,
        now_s: f64,
        seconds: f64,
        counts: Counts,
        running: &[(u32, usize)],
    ) -> Option<Point> {
        let time_s = (now_s as i64).div_euclid(STEP_S) * STEP_S;
        let closed = self.begin(time_s);
        let numbers: Vec<u64> = running.iter().map(|(id, _)| u64::from(*id)).collect();
        let lanes = self.lanes.of(&numbers);
        let open = self.open.get_or_insert_with(|| Open {
            time_s,
            ..Open::default()
        });
        open.covered_s += seconds;
        open.pool_node_s += counts.pool as f64 * seconds;
        open.held_node_s += counts.held as f64 * seconds;
        for (lane, (id, nodes)) in lanes.into_iter().zip(running) {
            let own = (lane as u8, *id);
            let is_told_apart = lane < lanes::MOST - 1
                && (open.share_node_s.len() < MOST_SHARES || open.share_node_s.contains_key(&own));
            let others = ((lanes::MOST - 1) as u8, OTHERS);
            let key = if is_told_apart { own } else { others };
            *open.share_node_s.entry(key).or_default() += *nodes as f64 * seconds;
        }
        closed
    }

    /// Closes the point before that of `time_s`, and forgets what is too old, or not yet, as
    /// the clock was set back.
    fn begin(&mut self, time_s: i64) -> Option<Point> {
        let closed = self.open.take_if(|open| open.time_s != time_s)?.point();
        self.points.push_back(closed.clone());
        while self.points.back().is_some_and(|it| it.time_s >= time_s) {
            self.points.pop_back();
        }
        while self
            .points
            .front()
            .is_some_and(|it| it.time_s <= time_s - KEPT_S)
        {
            self.points.pop_front();
        }
        Some(closed)
    }

    /// The newest points, `most` at most, oldest first; the last one may not be over yet.
    pub fn newest(&self, most: usize) -> Vec<Point> {
        let open = self.open.as_ref().map(Open::point);
        let closed = most.saturating_sub(usize::from(open.is_some()));
        let skipped = self.points.len().saturating_sub(closed);
        self.points
            .iter()
            .skip(skipped)
            .cloned()
            .chain(open)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_draws_the_last_lane_in_grey() {
        let script = include_str!("daemon/page/charts.js");
        assert!(script.contains(&format!("const LAST_LANE = {};", lanes::MOST - 1)));
    }

    const NODES: Counts = Counts { pool: 8, held: 4 };

    #[test]
    fn a_point_is_the_mean_over_what_was_seen_of_it() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.add(1010.0, 5.0, NODES, &[(7, 4)]), None);
        let none = Counts::default();
        assert_eq!(timeline.add(1015.0, 5.0, none, &[(7, 2), (9, 1)]), None);
        let [open] = &timeline.newest(10)[..] else {
            panic!("one point");
        };
        assert_eq!((open.time_s, open.pool, open.held), (990, 4.0, 2.0));
        assert_eq!(open.training, 3.5);
        assert_eq!(open.shares, [(0, 7, 3.0), (1, 9, 0.5)]);
        let closed = timeline.add(1020.0, 1.0, NODES, &[]).unwrap();
        assert_eq!(&closed, open);
        assert_eq!(timeline.newest(10).len(), 2);
        assert_eq!(timeline.newest(1)[0].time_s, 1020);
    }

    #[test]
    fn a_day_is_kept_and_no_more_and_in_bounded_memory() {
        let mut timeline = Timeline::default();
        let crowd: Vec<(u32, usize)> = (1..500).map(|id| (id, 2)).collect();
        for step in 0..4000 {
            let others: Vec<(u32, usize)> = (500..540).map(|id| (id + step * 50, 1)).collect();
            let now_s = f64::from(step) * 30.0;
            timeline.add(now_s, 1.0, NODES, &crowd);
            for shift in 1..4 {
                let moved: Vec<_> = others
                    .iter()
                    .map(|(id, n)| (id + shift * 999, *n))
                    .collect();
                timeline.add(now_s + f64::from(shift), 1.0, NODES, &moved);
            }
        }
        let points = timeline.newest(usize::MAX);
        assert_eq!(points.len() as i64, KEPT_S / STEP_S);
        assert!(points.iter().all(|it| it.shares.len() <= MOST_SHARES + 1));
        // Nobody is lost.
        assert_eq!(points[0].training, (2.0 * 499.0 + 3.0 * 40.0) / 4.0);
    }

    #[test]
    fn a_clock_that_is_set_back_leaves_no_point_of_the_future() {
        let mut timeline = Timeline::default();
        for now_s in [1000.0, 1040.0, 1070.0, 900.0, 930.0] {
            timeline.add(now_s, 1.0, NODES, &[]);
        }
        let times: Vec<i64> = timeline.newest(9).iter().map(|it| it.time_s).collect();
        assert_eq!(times, [900, 930]);
    }

    #[test]
    fn what_was_kept_goes_on() {
        let kept = Point {
            time_s: 960,
            pool: 3.0,
            ..Point::default()
        };
        let mut timeline = Timeline::new(vec![kept.clone()]);
        timeline.add(1000.0, 1.0, NODES, &[]);
        assert_eq!(timeline.newest(9)[0], kept);
        assert_eq!(timeline.newest(9).len(), 2);
    }
}
