//! What no allocation can exceed: with a price on the nodes of each class and under each cap every
//! trainer decides alone, and what they are worth then, the prices of all nodes added, is an upper
//! bound (Lagrangian relaxation). The better the prices, the closer it is; the duals of the linear
//! relaxation are the best. Counts that would pull the bound below a known answer can be left out.

use super::table::ValueTable;

/// Steps of [`estimate_prices`] at most, and values that it looks at in all.
const ESTIMATE_STEPS: usize = 200;
const ESTIMATE_WORK: usize = 50_000_000;

/// What a node costs, in the objective's unit times seconds; none is negative.
#[derive(Debug, Clone, PartialEq)]
pub struct Prices {
    /// Per class.
    pub class: Vec<f64>,
    /// Per cap.
    pub cap: Vec<f64>,
}

impl Prices {
    /// All nodes for nothing.
    pub fn zero(table: &ValueTable) -> Self {
        Self {
            class: vec![0.0; table.class_nodes().len()],
            cap: vec![0.0; table.cap_nodes().len()],
        }
    }

    /// What trainer `j` pays for a node of class `k`.
    pub fn per_node(&self, table: &ValueTable, j: usize, k: usize) -> f64 {
        let caps = table.caps_of(j).iter().map(|&cap| self.cap[cap]);
        self.class[k] + caps.sum::<f64>()
    }

    /// What all nodes and caps cost together.
    fn total(&self, table: &ValueTable) -> f64 {
        let class = self.class.iter().zip(table.class_nodes());
        let cap = self.cap.iter().zip(table.cap_nodes());
        class
            .chain(cap)
            .map(|(price, &nodes)| price * f64::from(nodes))
            .sum()
    }
}

/// An upper bound of the objective, whatever the (not negative) prices are.
pub fn bound(table: &ValueTable, prices: &Prices) -> f64 {
    let trainers = (0..table.trainers()).map(|j| best_at(table, prices, j).0);
    prices.total(table) + trainers.sum::<f64>()
}

/// Which of all values (see [`ValueTable::start`]) can belong to an answer worth `floor` or more.
pub fn survivors(table: &ValueTable, prices: &Prices, floor: f64) -> Vec<bool> {
    let most = bound(table, prices);
    // Rounding of a sum over the trainers.
    let least = floor - 1e-12 * table.scale().max(floor.abs());
    let mut keep = vec![false; table.len()];
    for j in 0..table.trainers() {
        let (best, _, _) = best_at(table, prices, j);
        for k in 0..table.classes() {
            let price = prices.per_node(table, j, k);
            let start = table.start(j, k);
            for (n, value) in table.values(j, k).iter().enumerate() {
                let with = most - best + value - price * n as f64;
                keep[start + n] = with >= least;
            }
        }
    }
    keep
}

/// Prices for a bound where no linear program can be solved, by subgradient steps towards `known`,
/// the value of an allowed answer (Polyak's rule).
pub fn estimate_prices(table: &ValueTable, known: f64) -> Prices {
    let mut prices = Prices::zero(table);
    let (mut best, mut least) = (prices.clone(), bound(table, &prices));
    let mut relaxation = 1.0;
    let steps = (ESTIMATE_WORK / table.len().max(1)).clamp(2, ESTIMATE_STEPS);
    for step in 0..steps {
        // How much more than there is the trainers would take at these prices.
        let mut class_excess: Vec<f64> = negated(table.class_nodes());
        let mut cap_excess: Vec<f64> = negated(table.cap_nodes());
        let mut value = prices.total(table);
        for j in 0..table.trainers() {
            let (worth, k, n) = best_at(table, &prices, j);
            value += worth;
            if n > 0 {
                class_excess[k] += f64::from(n);
                for &cap in table.caps_of(j) {
                    cap_excess[cap] += f64::from(n);
                }
            }
        }
        if value < least {
            (best, least) = (prices.clone(), value);
        } else if step % 10 == 9 {
            relaxation *= 0.7;
        }
        let square: f64 = class_excess.iter().chain(&cap_excess).map(|e| e * e).sum();
        if !value.is_finite() || value <= known || square == 0.0 {
            break;
        }
        let length = relaxation * (value - known) / square;
        let class = prices.class.iter_mut().zip(&class_excess);
        for (price, excess) in class.chain(prices.cap.iter_mut().zip(&cap_excess)) {
            *price = (*price + length * excess).max(0.0);
        }
    }
    best
}

/// The most that trainer `j` is worth at these prices, the nodes paid, and where: class, count.
fn best_at(table: &ValueTable, prices: &Prices, j: usize) -> (f64, usize, u32) {
    let mut best = (f64::NEG_INFINITY, 0, 0);
    for k in 0..table.classes() {
        let price = prices.per_node(table, j, k);
        for (n, value) in (0_u32..).zip(table.values(j, k)) {
            let left = value - price * f64::from(n);
            if left > best.0 {
                best = (left, k, n);
            }
        }
    }
    if table.classes() == 0 {
        (0.0, 0, 0)
    } else {
        best
    }
}

fn negated(nodes: &[u32]) -> Vec<f64> {
    nodes.iter().map(|&nodes| -f64::from(nodes)).collect()
}
