//! What a log holds: how much is idle, for how long, how many nodes at a time.

use std::collections::HashMap;
use std::fmt;

use bftrainer_core::node::NodeId;
use serde::Serialize;

use super::{Trace, TraceError};

/// Bounds of the histogram of holes, seconds; the last bin has no end.
const HOLE_BOUNDS_S: [f64; 12] = [
    0.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14_400.0, 43_200.0,
];

/// Statistics of a log.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// Form of the JSON.
    pub schema: &'static str,
    /// Begin, epoch seconds.
    pub from: f64,
    /// Length, seconds.
    pub span_s: f64,
    /// Nodes that the log names.
    pub nodes: usize,
    /// Events.
    pub events: u64,
    /// Nodes that joined or left.
    pub transitions: u64,
    /// Idle node-seconds.
    pub idle_node_s: f64,
    /// Idle share of all node-time, of the nodes that the log names.
    pub idle_share: f64,
    /// Nodes in the pool over time.
    pub pool: Pool,
    /// Holes by length; those that the log's borders cut are not among them.
    pub holes: Vec<Bin>,
    /// Mean length of a hole, seconds.
    pub mean_hole_s: f64,
}

/// Nodes in the pool over time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Pool {
    /// Mean.
    pub mean: f64,
    /// So many or fewer half of the time.
    pub median: usize,
    /// So many or fewer 95 % of the time.
    pub p95: usize,
    /// Most.
    pub max: usize,
}

/// Holes of about the same length.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Bin {
    /// From this length on, seconds.
    pub from_s: f64,
    /// Number of holes.
    pub holes: u64,
    /// Share of all holes.
    pub share: f64,
    /// Share of the node-time in holes.
    pub node_time_share: f64,
}

impl Stats {
    /// Reads all of `trace`.
    ///
    /// # Errors
    /// [`TraceError`] where the log can't be read.
    pub fn of(trace: Trace) -> Result<Self, TraceError> {
        let (start_s, mut nodes) = (trace.start_s, trace.names.len());
        // Since when each node is idle; `None` when it was so from the beginning.
        let mut idle: HashMap<NodeId, Option<f64>> =
            trace.idle.iter().map(|(node, _)| (*node, None)).collect();
        // Seconds by the number of nodes in the pool.
        let mut seconds: Vec<f64> = Vec::new();
        let mut bins = [(0u64, 0.0); HOLE_BOUNDS_S.len()];
        let (mut now_s, mut events, mut transitions) = (start_s, 0, 0);
        for event in trace {
            let event = event?;
            nodes += event.new_names.len();
            events += 1;
            transitions += (event.left.len() + event.joined.len()) as u64;
            if seconds.len() <= idle.len() {
                seconds.resize(idle.len() + 1, 0.0);
            }
            seconds[idle.len()] += event.time_s - now_s;
            now_s = event.time_s;
            for node in event.left {
                if let Some(Some(since_s)) = idle.remove(&node) {
                    let length_s = now_s - since_s;
                    let bin = HOLE_BOUNDS_S.partition_point(|bound_s| *bound_s <= length_s);
                    let (count, node_s) = &mut bins[bin.saturating_sub(1)];
                    *count += 1;
                    *node_s += length_s;
                }
            }
            idle.extend(
                event
                    .joined
                    .into_iter()
                    .map(|(node, _)| (node, Some(now_s))),
            );
        }
        let span_s = now_s - start_s;
        let holes = bins.iter().map(|(count, _)| count).sum::<u64>();
        let hole_node_s = bins.iter().fold(0.0, |sum, (_, node_s)| sum + node_s);
        let idle_node_s = (0u32..)
            .zip(&seconds)
            .fold(0.0, |sum, (pool, time_s)| sum + f64::from(pool) * time_s);
        Ok(Stats {
            schema: "bftrainer.trace-stats/1",
            from: start_s,
            span_s,
            nodes,
            events,
            transitions,
            idle_node_s,
            idle_share: share(idle_node_s, span_s * nodes as f64),
            pool: Pool {
                mean: share(idle_node_s, span_s),
                median: quantile(&seconds, 0.5),
                p95: quantile(&seconds, 0.95),
                max: seconds
                    .iter()
                    .rposition(|time_s| *time_s > 0.0)
                    .unwrap_or(0),
            },
            holes: HOLE_BOUNDS_S
                .iter()
                .zip(bins)
                .map(|(from_s, (count, node_s))| Bin {
                    from_s: *from_s,
                    holes: count,
                    share: share(count as f64, holes as f64),
                    node_time_share: share(node_s, hole_node_s),
                })
                .collect(),
            mean_hole_s: share(hole_node_s, holes as f64),
        })
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// The pool that is not exceeded for `part` of the time.
fn quantile(seconds: &[f64], part: f64) -> usize {
    let mut left_s = part * seconds.iter().fold(0.0, |sum, time_s| sum + time_s);
    for (pool, time_s) in seconds.iter().enumerate() {
        left_s -= time_s;
        if left_s <= 0.0 {
            return pool;
        }
    }
    seconds.len().saturating_sub(1)
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "span   {:.2} days, {} nodes, {} events, {} transitions",
            self.span_s / 86_400.0,
            self.nodes,
            self.events,
            self.transitions
        )?;
        writeln!(
            f,
            "idle   {:.1} node-hours, {:.2} % of the nodes' time",
            self.idle_node_s / 3600.0,
            100.0 * self.idle_share
        )?;
        writeln!(
            f,
            "pool   mean {:.1}, median {}, 95 % {}, most {}",
            self.pool.mean, self.pool.median, self.pool.p95, self.pool.max
        )?;
        writeln!(f, "holes  mean {:.0} s", self.mean_hole_s)?;
        write!(
            f,
            "{:>10} {:>10} {:>8} {:>10}",
            "from s", "holes", "share", "node-time"
        )?;
        for bin in &self.holes {
            write!(
                f,
                "\n{:>10} {:>10} {:>7.2}% {:>9.2}%",
                bin.from_s,
                bin.holes,
                100.0 * bin.share,
                100.0 * bin.node_time_share
            )?;
        }
        Ok(())
    }
}
