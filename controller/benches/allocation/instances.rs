//! Problems to measure with: networks of the paper on a pool that changes, drawn from a seed.

use bftrainer_core::allocation::{NodeClass, Problem, Share, TrainerDemand};
use bftrainer_core::curve::Curve;
use bftrainer_core::metric::Metric;

use crate::random::Random;

/// Node counts at which the paper measured.
const COUNTS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Samples per second on Summit at [`COUNTS`] nodes (arXiv 2106.12091): AlexNet, VGG-16,
/// ResNet-18, DenseNet, MNASNet, ShuffleNet, MobileNet.
const NETWORKS: [[f64; 7]; 7] = [
    [
        7115.3, 13071.7, 21066.1, 40484.9, 74002.9, 130762.0, 202135.4,
    ],
    [1193.3, 2389.2, 4691.7, 9257.9, 18348.9, 36208.5, 70151.7],
    [
        5218.8, 10582.5, 20436.0, 39584.0, 78023.8, 144762.5, 262723.0,
    ],
    [989.9, 1952.5, 3849.8, 7608.1, 14993.2, 28812.2, 57773.9],
    [3245.7, 6001.9, 11489.3, 23075.6, 43899.7, 83474.2, 160493.6],
    [2831.0, 5259.0, 9988.0, 20379.2, 38895.3, 74125.1, 145081.5],
    [3039.9, 5893.0, 11386.0, 22024.8, 42488.4, 82268.3, 155213.8],
];

/// Seconds over which a decision must pay.
const HORIZON_S: f64 = 60.0;

/// A trainer of a random network that holds nothing.
fn trainer(random: &mut Random, max: u32) -> TrainerDemand {
    let network = &NETWORKS[random.below(NETWORKS.len())];
    let points: Vec<(u32, f64)> = COUNTS.into_iter().zip(*network).collect();
    let curve = Curve::new(&points).expect("the table above is a curve");
    let objective = Metric::default().objective(&curve, random.between(0.5, 1.5));
    TrainerDemand::new(0, 1 + random.below(3) as u32, max, objective)
        .with_costs(random.between(17.0, 19.0), random.between(11.0, 13.0))
}

/// A pool of interchangeable nodes that was full a moment ago and has changed by a tenth.
pub fn uniform(seed: u64, trainers: usize, nodes: u32, max: u32) -> Problem {
    let mut random = Random::new(seed);
    let mut demands: Vec<_> = (0..trainers).map(|_| trainer(&mut random, max)).collect();
    let mut left = (f64::from(nodes) * random.between(0.9, 1.0)) as u32;
    let share = (2 * nodes / trainers as u32).min(max);
    for demand in &mut demands {
        let held = (random.below(share as usize + 1) as u32).min(left);
        demand.current = if held >= demand.min { held } else { 0 }.into();
        left -= demand.current.nodes;
    }
    Problem::new(nodes, HORIZON_S, demands)
}

/// A pool of several classes, as it changes from event to event.
pub struct Chain {
    random: Random,
    base: Vec<u32>,
    problem: Problem,
    events: usize,
    /// Whether a class is as fast for every trainer as for any other.
    same_speed: bool,
}

/// Speed factors of the classes, repeated for more classes.
const SPEEDS: [f64; 4] = [1.0, 1.4, 1.8, 2.6];

impl Chain {
    /// Classes of unequal size, `nodes` in all.
    pub fn new(seed: u64, trainers: usize, classes: usize, nodes: u32, same_speed: bool) -> Self {
        let weight: usize = (1..=classes).sum();
        let base: Vec<u32> = (1..=classes)
            .map(|k| nodes * k as u32 / weight as u32)
            .collect();
        let named = base.iter().enumerate().map(|(k, &nodes)| NodeClass {
            name: format!("class{k}"),
            nodes,
        });
        let problem = Problem::with_classes(named.collect(), HORIZON_S, Vec::new());
        let mut chain = Self {
            random: Random::new(seed),
            base,
            problem,
            events: 0,
            same_speed,
        };
        for _ in 0..trainers {
            let trainer = chain.trainer();
            chain.problem.trainers.push(trainer);
        }
        chain
    }

    /// The problem as it is now.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The trainers take what they were given, then something changes: every class a little, or
    /// with every third event a lot; now and then a trainer ends and another one comes.
    pub fn advance(&mut self, shares: &[Share]) {
        for (demand, &share) in self.problem.trainers.iter_mut().zip(shares) {
            demand.current = share;
        }
        self.events += 1;
        let spread = if self.events.is_multiple_of(3) {
            0.7
        } else {
            0.05
        };
        for (class, base) in self.problem.classes.iter_mut().zip(&self.base) {
            let factor = self.random.between(1.0 - spread, 1.0 + spread);
            class.nodes = (f64::from(*base) * factor).round() as u32;
        }
        self.lose_nodes();
        if self.random.real() < 0.3 {
            let j = self.random.below(self.problem.trainers.len());
            self.problem.trainers[j] = self.trainer();
        }
    }

    fn lose_nodes(&mut self) {
        for (k, class) in self.problem.classes.iter().enumerate() {
            let holders: Vec<usize> = (0..self.problem.trainers.len())
                .filter(|&j| self.problem.trainers[j].current.class == k)
                .collect();
            let held = |trainers: &[TrainerDemand]| -> u32 {
                holders.iter().map(|&j| trainers[j].current.nodes).sum()
            };
            while held(&self.problem.trainers) > class.nodes {
                let j = holders[self.random.below(holders.len())];
                let has = self.problem.trainers[j].current.nodes;
                self.problem.trainers[j].current = Share::new(k, has.saturating_sub(1));
            }
        }
    }

    fn trainer(&mut self) -> TrainerDemand {
        let classes = self.base.len();
        let must = self.random.below(classes);
        let speeds = (0..classes).map(|k| {
            let own = match self.same_speed {
                true => 1.0,
                false => self.random.between(0.8, 1.2),
            };
            let may = k == must || self.random.real() < 0.8;
            if may {
                SPEEDS[k % SPEEDS.len()] * own
            } else {
                0.0
            }
        });
        let speeds = speeds.collect();
        trainer(&mut self.random, 64).with_speeds(speeds)
    }
}
