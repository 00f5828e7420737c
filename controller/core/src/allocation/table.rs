//! The value of every share that every trainer may be given, as a table: what the searches and
//! bounds for classes and caps work on. It is made once per decision.

use super::dp::STAY_BONUS;
use super::problem::{Problem, Share};

/// Values over (trainer, class, nodes), and what limits them together.
#[derive(Debug, Clone)]
pub struct ValueTable {
    classes: usize,
    /// Row `trainer * classes + class`.
    rows: Vec<Row>,
    values: Vec<f64>,
    /// The best count up to each count, the smallest of equals.
    best: Vec<u32>,
    /// Nodes of each class.
    class_nodes: Vec<u32>,
    /// Nodes that each cap allows.
    cap_nodes: Vec<u32>,
    /// The caps that each trainer is in.
    caps: Vec<Vec<usize>>,
    current: Vec<Share>,
    scale: f64,
}

/// Counts 0..=top of one trainer in one class.
#[derive(Debug, Clone, Copy)]
struct Row {
    start: usize,
    top: u32,
}

impl ValueTable {
    /// The values of `problem`; with `max_change`, only of counts that differ by no more from the
    /// one held now (for interchangeable nodes). Staying is rewarded by a trifle, so that of
    /// answers that are equal but for rounding the one that moves fewest trainers is the best.
    ///
    /// The problem should pass [`Problem::validate`].
    pub fn new(problem: &Problem, max_change: Option<u32>) -> Self {
        let trainers = problem.trainers.len();
        let classes = problem.classes.len();
        let mut table = Self {
            classes,
            rows: Vec::with_capacity(trainers * classes),
            values: Vec::new(),
            best: Vec::new(),
            class_nodes: problem.classes.iter().map(|class| class.nodes).collect(),
            cap_nodes: problem.caps.iter().map(|cap| cap.max_nodes).collect(),
            caps: vec![Vec::new(); trainers],
            current: problem
                .trainers
                .iter()
                .map(|demand| demand.current)
                .collect(),
            scale: 0.0,
        };
        for (index, cap) in problem.caps.iter().enumerate() {
            for j in cap.members(trainers) {
                table.caps[j].push(index);
            }
        }
        for j in 0..trainers {
            for k in 0..classes {
                table.add_row(problem, j, k, max_change.unwrap_or(u32::MAX));
            }
        }
        table.reward_staying();
        table.find_best();
        table
    }

    /// Number of trainers.
    pub fn trainers(&self) -> usize {
        self.current.len()
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Nodes of each class.
    pub fn class_nodes(&self) -> &[u32] {
        &self.class_nodes
    }

    /// Nodes that each cap allows.
    pub fn cap_nodes(&self) -> &[u32] {
        &self.cap_nodes
    }

    /// The caps that trainer `j` is in, ascending.
    pub fn caps_of(&self, j: usize) -> &[usize] {
        &self.caps[j]
    }

    /// What each trainer holds now.
    pub fn current(&self) -> &[Share] {
        &self.current
    }

    /// A lower bound of the largest objective's size: what rounding is measured against.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The values of trainer `j` on 0..=top nodes of class `k`; minus infinity where not allowed.
    pub fn values(&self, j: usize, k: usize) -> &[f64] {
        let row = self.rows[j * self.classes + k];
        &self.values[row.start..=row.start + row.top as usize]
    }

    /// Where the values of trainer `j` in class `k` begin in a list of all values.
    pub fn start(&self, j: usize, k: usize) -> usize {
        self.rows[j * self.classes + k].start
    }

    /// Number of all values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Most nodes of class `k` that trainer `j` can have.
    pub fn top(&self, j: usize, k: usize) -> u32 {
        self.rows[j * self.classes + k].top
    }

    /// The best count of at most `limit` nodes, and its value.
    pub fn best_up_to(&self, j: usize, k: usize, limit: u32) -> (u32, f64) {
        let row = self.rows[j * self.classes + k];
        let n = self.best[row.start + limit.min(row.top) as usize];
        (n, self.values[row.start + n as usize])
    }

    /// The value of a share; minus infinity when it is not allowed.
    pub fn value(&self, j: usize, share: Share) -> f64 {
        if share.class >= self.classes || share.nodes > self.top(j, share.class) {
            return f64::NEG_INFINITY;
        }
        self.values[self.start(j, share.class) + share.nodes as usize]
    }

    /// The values of all shares together, in the order of trainers.
    pub fn total(&self, shares: &[Share]) -> f64 {
        let values = shares.iter().enumerate();
        values.fold(0.0, |sum, (j, &share)| sum + self.value(j, share))
    }

    fn add_row(&mut self, problem: &Problem, j: usize, k: usize, max_change: u32) {
        let demand = &problem.trainers[j];
        let start = self.values.len();
        let capped = self.caps[j].iter().map(|&cap| self.cap_nodes[cap]).min();
        let top = match demand.speed(k) {
            Some(_) => demand
                .max
                .min(self.class_nodes[k])
                .min(capped.unwrap_or(u32::MAX)),
            None => 0,
        };
        let top = if top < demand.min { 0 } else { top };
        let (speed, rate) = (demand.speed(k).unwrap_or(0.0), demand.rate());
        demand.objective.append_values(0, top, &mut self.values);
        for (n, value) in (0..).zip(&mut self.values[start..]) {
            let share = Share::new(k, n);
            let is_allowed = demand.allows(share) && n.abs_diff(demand.current.nodes) <= max_change;
            *value = match is_allowed {
                true => problem.horizon_s * (speed * *value) - demand.rescale_s(share) * rate,
                false => f64::NEG_INFINITY,
            };
        }
        self.rows.push(Row { start, top });
    }

    fn reward_staying(&mut self) {
        let held: Vec<f64> = (0..self.trainers())
            .map(|j| self.value(j, self.current[j]))
            .collect();
        let staying: f64 = held.iter().filter(|value| value.is_finite()).sum();
        let largest = |a: f64, b: f64| if b > a { b } else { a };
        self.scale = self.values.iter().copied().fold(staying.max(0.0), largest);
        for (j, value) in held.iter().enumerate() {
            if !value.is_finite() {
                continue;
            }
            // No nodes are the first count of every class.
            let current = self.current[j];
            let classes = match current.nodes {
                0 => 0..self.classes,
                _ => current.class..current.class + 1,
            };
            for k in classes {
                let at = self.start(j, k) + current.nodes as usize;
                self.values[at] += STAY_BONUS * self.scale;
            }
        }
    }

    fn find_best(&mut self) {
        self.best.resize(self.values.len(), 0);
        for row in &self.rows {
            let mut best = 0;
            for n in 0..=row.top as usize {
                if self.values[row.start + n] > self.values[row.start + best] {
                    best = n;
                }
                self.best[row.start + n] = best as u32;
            }
        }
    }
}
