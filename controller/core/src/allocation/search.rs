//! Good answers fast, without proof: a greedy one, and a local search by moves of one and of two
//! trainers, shaken again and again for as long as the caller likes. Deterministic for a given
//! number of shakes; it has no clock of its own.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::bound::Prices;
use super::problem::Share;
use super::table::ValueTable;

/// Gains below this part of the table's scale are rounding.
const ROUNDING: f64 = 1e-13;

/// Most trainers whose shares are drawn anew by one shake.
const SHAKEN: u64 = 4;

/// A feasible answer: every trainer begins with the least that it may have, and nodes go where
/// they add most per node, as long as they add anything. `None` when nothing is feasible, which
/// only a bound on changes can bring about.
pub fn greedy(table: &ValueTable) -> Option<Vec<Share>> {
    let mut search = Search::from_least(table)?;
    let mut jumps: BinaryHeap<Jump> = (0..table.trainers())
        .filter_map(|j| search.best_jump(j))
        .collect();
    while let Some(jump) = jumps.pop() {
        // Others may have taken the nodes meanwhile.
        match search.best_jump(jump.trainer) {
            Some(now) if now.to == jump.to => {
                search.set(jump.trainer, jump.to);
                jumps.extend(search.best_jump(jump.trainer));
            }
            Some(now) => jumps.push(now),
            None => {}
        }
    }
    Some(search.shares)
}

/// An answer that is being improved.
#[derive(Debug, Clone)]
pub struct Search<'t> {
    table: &'t ValueTable,
    shares: Vec<Share>,
    /// Nodes of each class that nobody has.
    free: Vec<u32>,
    /// Nodes that each cap leaves.
    room: Vec<u32>,
    random: Random,
}

impl<'t> Search<'t> {
    /// Starts from a feasible answer; `None` when it isn't.
    pub fn new(table: &'t ValueTable, shares: &[Share]) -> Option<Self> {
        let mut search = Self::empty(table);
        for (j, &share) in shares.iter().enumerate().take(table.trainers()) {
            if !table.value(j, share).is_finite() || share.nodes > search.limit(j, share.class) {
                return None;
            }
            search.set(j, share);
        }
        (shares.len() == table.trainers()).then_some(search)
    }

    /// Starts from what the trainers hold now, as far as it may be kept.
    pub fn from_current(table: &'t ValueTable) -> Option<Self> {
        let mut search = Self::from_least(table)?;
        for (j, held) in table.current().iter().enumerate() {
            search.release(j);
            let limit = search.limit(j, held.class).min(held.nodes);
            let (n, _) = table.best_up_to(j, held.class, limit);
            search.set(j, Share::new(held.class, n));
        }
        Some(search)
    }

    /// Starts from what each trainer would buy at these prices, as far as there is.
    pub fn from_prices(table: &'t ValueTable, prices: &Prices) -> Option<Self> {
        let mut search = Self::from_least(table)?;
        for j in 0..table.trainers() {
            let least = search.shares[j];
            search.release(j);
            let mut best = (table.value(j, least), least);
            for k in 0..table.classes() {
                let price = prices.per_node(table, j, k);
                let limit = search.limit(j, k).min(table.top(j, k)) as usize;
                for (n, value) in (0..).zip(&table.values(j, k)[..=limit]) {
                    let left = value - price * f64::from(n);
                    if left > best.0 {
                        best = (left, Share::new(k, n));
                    }
                }
            }
            search.set(j, best.1);
        }
        Some(search)
    }

    /// The answer so far.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// Its value.
    pub fn value(&self) -> f64 {
        self.table.total(&self.shares)
    }

    /// Moves single trainers and pairs until no such move gains anything, or `go_on` says no.
    pub fn settle(&mut self, go_on: &mut dyn FnMut() -> bool) {
        self.settle_from((0..self.shares.len()).rev().collect(), go_on);
    }

    /// Settles, then draws some shares anew and settles again, keeping what is better, while
    /// `go_on`, told the best value so far, says yes.
    pub fn run(&mut self, go_on: &mut dyn FnMut(f64) -> bool) {
        let before = self.value();
        self.settle(&mut || go_on(before));
        let (mut best, mut value) = (self.shares.clone(), self.value());
        while self.shares.len() > 1 && go_on(value) {
            let shaken = self.shake();
            self.settle_from(shaken, &mut || go_on(value));
            let reached = self.value();
            if reached > value + self.rounding() {
                (best, value) = (self.shares.clone(), reached);
            } else {
                self.restore(&best);
            }
        }
    }

    fn empty(table: &'t ValueTable) -> Self {
        Self {
            table,
            shares: vec![Share::NONE; table.trainers()],
            free: table.class_nodes().to_vec(),
            room: table.cap_nodes().to_vec(),
            random: Random(0x9E37_79B9_7F4A_7C15),
        }
    }

    /// Every trainer with the least it may have: 0, but for bounds on changes.
    fn from_least(table: &'t ValueTable) -> Option<Self> {
        let mut search = Self::empty(table);
        for j in 0..table.trainers() {
            let least = (0..table.classes()).filter_map(|k| {
                let n = table
                    .values(j, k)
                    .iter()
                    .position(|value| value.is_finite())?;
                Some(Share::new(k, n as u32))
            });
            let least = least.min_by_key(|share| share.nodes);
            let share = match least {
                Some(share) => share,
                None if table.classes() == 0 => Share::NONE,
                None => return None,
            };
            if share.nodes > 0 && share.nodes > search.limit(j, share.class) {
                return None;
            }
            search.set(j, share);
        }
        Some(search)
    }

    /// The jump to more nodes (of the same class, if it has any) that gains most per node.
    fn best_jump(&self, j: usize) -> Option<Jump> {
        let has = self.shares[j];
        let value = self.table.value(j, has);
        let mut best: Option<Jump> = None;
        for k in 0..self.table.classes() {
            if has.nodes > 0 && k != has.class {
                continue;
            }
            let limit = (has.nodes + self.limit(j, k)).min(self.table.top(j, k)) as usize;
            let values = &self.table.values(j, k)[..=limit];
            for (n, &to) in (0_u32..).zip(values).skip(has.nodes as usize + 1) {
                let gain = (to - value) / f64::from(n - has.nodes);
                if gain > best.as_ref().map_or(0.0, |best| best.gain) {
                    best = Some(Jump {
                        gain,
                        trainer: j,
                        to: Share::new(k, n),
                    });
                }
            }
        }
        best
    }

    fn settle_from(&mut self, mut active: Vec<usize>, go_on: &mut dyn FnMut() -> bool) {
        while let Some(i) = active.pop() {
            if !go_on() {
                return;
            }
            if self.shares.len() == 1 {
                self.improve_two(i, None);
            }
            for j in 0..self.shares.len() {
                if i != j && self.improve_two(i, Some(j)) {
                    for moved in [j, i] {
                        if !active.contains(&moved) {
                            active.push(moved);
                        }
                    }
                }
            }
        }
    }

    /// Gives trainer `i`, and `j` with it, the best that the others leave them; whether that is
    /// better than what they had.
    fn improve_two(&mut self, i: usize, j: Option<usize>) -> bool {
        let had = (self.shares[i], j.map(|j| self.shares[j]));
        self.release(i);
        if let Some(j) = j {
            self.release(j);
        }
        let before = self.table.value(i, had.0)
            + j.zip(had.1)
                .map_or(0.0, |(j, share)| self.table.value(j, share));
        let found = match j {
            Some(j) => self.best_pair(i, j, before + self.rounding()),
            None => self.best_alone(i, before + self.rounding()),
        };
        let (first, second) = found.unwrap_or((had.0, had.1.unwrap_or(Share::NONE)));
        self.set(i, first);
        if let Some(j) = j {
            self.set(j, second);
        }
        found.is_some()
    }

    fn best_alone(&self, i: usize, least: f64) -> Option<(Share, Share)> {
        let mut best = (least, None);
        for k in 0..self.table.classes() {
            let (n, value) = self.table.best_up_to(i, k, self.limit(i, k));
            if value > best.0 {
                best = (value, Some((Share::new(k, n), Share::NONE)));
            }
        }
        best.1
    }

    /// The best that two trainers without nodes can be given, if it is above `least`.
    fn best_pair(&self, i: usize, j: usize, least: f64) -> Option<(Share, Share)> {
        let table = self.table;
        let (caps_i, caps_j) = (table.caps_of(i), table.caps_of(j));
        let room = |caps: &[usize], others: &[usize], shared: bool| {
            let caps = caps.iter().filter(|cap| others.contains(cap) == shared);
            caps.map(|&cap| self.room[cap]).min().unwrap_or(u32::MAX)
        };
        let (room_i, room_j) = (room(caps_i, caps_j, false), room(caps_j, caps_i, false));
        let together = room(caps_i, caps_j, true);
        let best_of = |t: usize, room: u32| {
            let bests = (0..table.classes()).map(|k| {
                let limit = self.free[k].min(room).min(together);
                table.best_up_to(t, k, limit).1
            });
            bests.fold(f64::NEG_INFINITY, |a, b| if b > a { b } else { a })
        };
        let best_j = best_of(j, room_j);
        if best_of(i, room_i) + best_j <= least {
            return None;
        }
        let mut best = (least, None);
        for k in 0..table.classes() {
            let limit_i = self.free[k].min(room_i).min(together);
            let alone = table.best_up_to(i, k, limit_i);
            if alone.1 + best_j <= best.0 {
                continue;
            }
            for l in 0..table.classes() {
                let limit_j = self.free[l].min(room_j).min(together);
                let other = table.best_up_to(j, l, limit_j);
                if alone.1 + other.1 <= best.0 {
                    continue;
                }
                let both = if k == l {
                    together.min(self.free[k])
                } else {
                    together
                };
                if alone.0 + other.0 <= both {
                    let shares = (Share::new(k, alone.0), Share::new(l, other.0));
                    best = (alone.1 + other.1, Some(shares));
                    continue;
                }
                let limit = limit_i.min(table.top(i, k)) as usize;
                for (n, value) in (0_u32..).zip(&table.values(i, k)[..=limit]) {
                    let (m, rest) = table.best_up_to(j, l, limit_j.min(both - n));
                    if value + rest > best.0 {
                        best = (value + rest, Some((Share::new(k, n), Share::new(l, m))));
                    }
                }
            }
        }
        best.1
    }

    /// Draws the shares of some trainers anew; who they are.
    fn shake(&mut self) -> Vec<usize> {
        let trainers = self.shares.len() as u64;
        let mut shaken = Vec::new();
        for _ in 0..2 + self.random.below(SHAKEN - 1) {
            let j = self.random.below(trainers) as usize;
            let had = self.shares[j];
            self.release(j);
            let k = self.random.below(self.table.classes().max(1) as u64) as usize;
            let limit = self.limit(j, k).min(self.table.top(j, k));
            let limit = self.random.below(u64::from(limit) + 1) as u32;
            let (n, value) = self.table.best_up_to(j, k, limit);
            self.set(
                j,
                if value.is_finite() {
                    Share::new(k, n)
                } else {
                    had
                },
            );
            shaken.push(j);
        }
        shaken
    }

    fn restore(&mut self, shares: &[Share]) {
        for j in 0..shares.len() {
            self.release(j);
        }
        for (j, &share) in shares.iter().enumerate() {
            self.set(j, share);
        }
    }

    /// Most nodes of class `k` that trainer `j` may have on top of what it has.
    fn limit(&self, j: usize, k: usize) -> u32 {
        let caps = self.table.caps_of(j).iter().map(|&cap| self.room[cap]);
        let free = self.free.get(k).copied().unwrap_or(0);
        caps.fold(free, u32::min)
    }

    fn release(&mut self, j: usize) {
        let share = std::mem::take(&mut self.shares[j]);
        if share.nodes > 0 {
            self.free[share.class] += share.nodes;
            for &cap in self.table.caps_of(j) {
                self.room[cap] += share.nodes;
            }
        }
    }

    /// Gives trainer `j` a share instead of what it has; there must be room for it.
    fn set(&mut self, j: usize, share: Share) {
        self.release(j);
        if share.nodes > 0 {
            self.free[share.class] -= share.nodes;
            for &cap in self.table.caps_of(j) {
                self.room[cap] -= share.nodes;
            }
        }
        self.shares[j] = share;
    }

    fn rounding(&self) -> f64 {
        ROUNDING * self.table.scale()
    }
}

/// A step of the greedy answer.
#[derive(Debug, Clone, Copy)]
struct Jump {
    /// Per node.
    gain: f64,
    trainer: usize,
    to: Share,
}

impl Ord for Jump {
    fn cmp(&self, other: &Self) -> Ordering {
        let earlier = other.trainer.cmp(&self.trainer);
        self.gain.total_cmp(&other.gain).then(earlier)
    }
}

impl PartialOrd for Jump {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Jump {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Jump {}

/// Numbers that look random (xorshift64*, Vigna 2016), the same in every run.
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    /// 0..limit; 0 for a limit of 0.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        (high * limit.min(1 << 32)) >> 32
    }
}
