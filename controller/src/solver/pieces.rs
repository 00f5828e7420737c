//! The count formulation: a trainer's choice is one of a few pieces, runs of node counts over
//! which its value is concave, and a position in it. From the pieces the mixed-integer program
//! is made; the linear relaxation needs their hulls only.
//!
//! Piece [a, b]: binary z and, for each straight step of it, 0 <= d <= width z; its count is
//! a z + sum d, its value v(a) z + sum slope d. As the slopes fall, steps fill up in order.
//! The d may stay continuous where each is in one class row and the caps are nested: given the
//! binaries such a program has whole corners.

use bftrainer_core::allocation::{Prices, Problem, Share, ValueTable};

use super::highs::Model;

/// A run of counts of one trainer in one class.
#[derive(Debug, Clone, PartialEq)]
struct Piece {
    trainer: usize,
    class: usize,
    first: u32,
    /// Value at `first`.
    value: f64,
    /// Widths and slopes; the slopes don't rise.
    steps: Vec<(u32, f64)>,
    /// Column of z; those of the steps follow it.
    column: usize,
}

/// The mixed-integer program, and what its columns mean.
#[derive(Debug)]
pub struct Program {
    /// The program; its objective is in units of `unit`.
    pub model: Model,
    /// What one unit of its objective is worth.
    pub unit: f64,
    trainers: usize,
    pieces: Vec<Piece>,
}

/// The linear relaxation over the hulls of all trainers' values.
#[derive(Debug)]
pub struct Relaxation {
    /// The program; its objective is in units of `unit`.
    pub model: Model,
    /// What one unit of its objective is worth.
    pub unit: f64,
    trainers: usize,
}

/// Largest objective that HiGHS is given: far above its absolute tolerances.
const LARGEST: f64 = 1e5;

impl Relaxation {
    /// The relaxation of the problem behind `table`: a weight for every corner of every hull.
    pub fn new(table: &ValueTable) -> Self {
        let unit = unit(table);
        let mut model = Model::default();
        let mut shared = SharedRows::new(table);
        for j in 0..table.trainers() {
            let (none, least_sum) = no_nodes(table, j);
            model.offset += none / unit;
            let mut choice = Vec::new();
            for k in 0..table.classes() {
                for (n, value) in hull(table.values(j, k)) {
                    let column = model.column((value - none) / unit, 0.0, 1.0, false);
                    choice.push((column, 1.0));
                    shared.add(table, j, k, column, f64::from(n));
                }
            }
            model.row(least_sum, 1.0, &choice);
        }
        shared.append_to(&mut model, table);
        Self {
            model,
            unit,
            trainers: table.trainers(),
        }
    }

    /// The prices that the duals of its rows are.
    pub fn prices(&self, table: &ValueTable, duals: &[f64]) -> Prices {
        let mut prices = Prices::zero(table);
        let all = prices.class.iter_mut().chain(&mut prices.cap);
        for (price, dual) in all.zip(duals.iter().skip(self.trainers)) {
            *price = dual.abs() * self.unit;
        }
        prices
    }
}

impl Program {
    /// The program over the counts of `table` that `keep` marks (see
    /// [`bftrainer_core::allocation::survivors`]), and perhaps a few more. With `whole`, steps are
    /// integers everywhere, else only where they must be.
    pub fn new(problem: &Problem, table: &ValueTable, keep: &[bool], whole: bool) -> Self {
        let unit = unit(table);
        let are_nested = are_nested(problem);
        let mut program = Self {
            model: Model::default(),
            unit,
            trainers: table.trainers(),
            pieces: Vec::new(),
        };
        let mut shared = SharedRows::new(table);
        for j in 0..table.trainers() {
            let (none, mut least_sum) = no_nodes(table, j);
            let starts = (0..table.classes()).map(|k| table.start(j, k));
            if !starts.clone().any(|start| keep[start]) {
                least_sum = 1.0;
            }
            program.model.offset += none / unit;
            let is_whole = whole || (!are_nested && table.caps_of(j).len() > 1);
            let mut choice = Vec::new();
            for k in 0..table.classes() {
                for piece in pieces(problem, table, j, k, keep) {
                    choice.push((program.add(table, piece, none, is_whole, &mut shared), 1.0));
                }
            }
            program.model.row(least_sum, 1.0, &choice);
        }
        for piece in &program.pieces {
            for (i, &(width, _)) in piece.steps.iter().enumerate() {
                let entries = [
                    (piece.column + 1 + i, 1.0),
                    (piece.column, -f64::from(width)),
                ];
                program.model.row(f64::NEG_INFINITY, 0.0, &entries);
            }
        }
        shared.append_to(&mut program.model, table);
        program
    }

    fn add(
        &mut self,
        table: &ValueTable,
        mut piece: Piece,
        none: f64,
        is_whole: bool,
        shared: &mut SharedRows,
    ) -> usize {
        let Piece {
            trainer: j,
            class: k,
            ..
        } = piece;
        let worth = (piece.value - none) / self.unit;
        piece.column = self.model.column(worth, 0.0, 1.0, true);
        shared.add(table, j, k, piece.column, f64::from(piece.first));
        for &(width, slope) in &piece.steps {
            let most = f64::from(width);
            let column = self.model.column(slope / self.unit, 0.0, most, is_whole);
            shared.add(table, j, k, column, 1.0);
        }
        let column = piece.column;
        self.pieces.push(piece);
        column
    }

    /// The columns' values for an allocation; `None` when it is not in the program.
    pub fn columns(&self, shares: &[Share]) -> Option<Vec<f64>> {
        let mut values = vec![0.0; self.model.columns()];
        for (j, share) in shares
            .iter()
            .enumerate()
            .filter(|(_, share)| share.nodes > 0)
        {
            let piece = self.pieces.iter().find(|piece| {
                let width: u32 = piece.steps.iter().map(|(width, _)| width).sum();
                let counts = piece.first..=piece.first + width;
                piece.trainer == j && piece.class == share.class && counts.contains(&share.nodes)
            })?;
            values[piece.column] = 1.0;
            let mut left = share.nodes - piece.first;
            for (i, &(width, _)) in piece.steps.iter().enumerate() {
                values[piece.column + 1 + i] = f64::from(width.min(left));
                left -= width.min(left);
            }
        }
        Some(values)
    }

    /// The allocation that the columns' values stand for, counts rounded to whole ones.
    pub fn shares(&self, values: &[f64]) -> Vec<Share> {
        let mut shares = vec![Share::NONE; self.trainers];
        for piece in &self.pieces {
            if values[piece.column] > 0.5 {
                let steps = &values[piece.column + 1..][..piece.steps.len()];
                let count = f64::from(piece.first) + steps.iter().sum::<f64>();
                shares[piece.trainer] = Share::new(piece.class, count.round() as u32);
            }
        }
        shares
    }
}

/// The rows that trainers share: one per class, one per cap.
struct SharedRows {
    classes: Vec<Vec<(usize, f64)>>,
    caps: Vec<Vec<(usize, f64)>>,
}

impl SharedRows {
    fn new(table: &ValueTable) -> Self {
        Self {
            classes: vec![Vec::new(); table.classes()],
            caps: vec![Vec::new(); table.cap_nodes().len()],
        }
    }

    fn add(&mut self, table: &ValueTable, j: usize, k: usize, column: usize, nodes: f64) {
        if nodes == 0.0 {
            return;
        }
        self.classes[k].push((column, nodes));
        for &cap in table.caps_of(j) {
            self.caps[cap].push((column, nodes));
        }
    }

    fn append_to(self, model: &mut Model, table: &ValueTable) {
        let most = table.class_nodes().iter().chain(table.cap_nodes());
        for (row, &most) in self.classes.iter().chain(&self.caps).zip(most) {
            model.row(f64::NEG_INFINITY, f64::from(most), row);
        }
    }
}

/// The value of no nodes, and the least that trainer `j`'s choices must add up to: 0 when it may
/// have no nodes, else 1 (and no value is subtracted).
fn no_nodes(table: &ValueTable, j: usize) -> (f64, f64) {
    let none = table.value(j, Share::NONE);
    if none.is_finite() {
        (none, 0.0)
    } else if table.classes() == 0 {
        (0.0, 0.0)
    } else {
        (0.0, 1.0)
    }
}

/// A power of two, so that dividing by it changes no digit.
fn unit(table: &ValueTable) -> f64 {
    let scale = table.scale();
    if scale > 0.0 && scale.is_finite() {
        (scale / LARGEST)
            .log2()
            .round()
            .exp2()
            .max(f64::MIN_POSITIVE)
    } else {
        1.0
    }
}

/// Corners of the upper hull of the values that are allowed, as (count, value); without that of
/// no nodes, which every hull has.
fn hull(values: &[f64]) -> Vec<(u32, f64)> {
    let mut corners: Vec<(u32, f64)> = Vec::new();
    for (n, &value) in (0_u32..).zip(values) {
        if !value.is_finite() {
            continue;
        }
        while let [.., a, b] = corners[..] {
            let (to_b, to_n) = (f64::from(b.0 - a.0), f64::from(n - a.0));
            // b lies on or below the line from a to the new point.
            if (b.1 - a.1) * to_n <= (value - a.1) * to_b {
                corners.pop();
            } else {
                break;
            }
        }
        corners.push((n, value));
    }
    corners.retain(|corner| corner.0 > 0);
    corners
}

/// The pieces of trainer `j` in class `k`, as few as its values allow.
fn pieces(problem: &Problem, table: &ValueTable, j: usize, k: usize, keep: &[bool]) -> Vec<Piece> {
    let demand = &problem.trainers[j];
    let (values, start) = (table.values(j, k), table.start(j, k));
    let top = table.top(j, k);
    // Counts at which the value may jump: all below are of one kind, all above of another.
    let current = match demand.current {
        held if held.class == k => held.nodes,
        _ => 0,
    };
    let mut ends: Vec<u32> = demand
        .objective
        .knots()
        .iter()
        .map(|knot| knot.nodes)
        .collect();
    ends.extend([current.saturating_sub(1), current, top]);
    ends.sort_unstable();
    ends.dedup();

    let mut pieces: Vec<Piece> = Vec::new();
    let mut first = 1;
    // Where the last piece ends, and whether the next may go on there.
    let mut last: Option<(u32, f64)> = None;
    for end in ends.into_iter().filter(|&end| end >= 1) {
        let end = end.min(top);
        let kept = |&n: &u32| keep[start + n as usize] && values[n as usize].is_finite();
        let low = (first..=end).find(kept);
        let high = (first..=end).rev().find(kept);
        if let (Some(low), Some(high)) = (low, high) {
            let at = |n: u32| values[n as usize];
            let slope = |a: u32, b: u32| (at(b) - at(a)) / f64::from(b - a);
            let goes_on = last.filter(|&(before, falling)| {
                let jumps = current > 0 && (before == current || low == current);
                low == before + 1 && !jumps && slope(before, high) <= falling
            });
            match (goes_on, pieces.last_mut()) {
                (Some((before, _)), Some(piece)) => {
                    let step = slope(before, high);
                    piece.steps.push((high - before, step));
                    last = Some((high, step));
                }
                _ => {
                    let steps = match high > low {
                        true => vec![(high - low, slope(low, high))],
                        false => Vec::new(),
                    };
                    let falling = steps.first().map_or(f64::INFINITY, |step| step.1);
                    pieces.push(Piece {
                        trainer: j,
                        class: k,
                        first: low,
                        value: at(low),
                        steps,
                        column: 0,
                    });
                    last = Some((high, falling));
                }
            }
        }
        first = first.max(end + 1);
    }
    pieces
}

/// Whether of any two caps one holds all trainers of the other, or none.
fn are_nested(problem: &Problem) -> bool {
    let sets: Vec<std::collections::BTreeSet<usize>> = problem
        .caps
        .iter()
        .map(|cap| cap.trainers.iter().copied().collect())
        .collect();
    sets.iter().enumerate().all(|(i, a)| {
        let others = sets[i + 1..].iter();
        others
            .clone()
            .all(|b| a.is_disjoint(b) || a.is_subset(b) || b.is_subset(a))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bftrainer_core::allocation::{Cap, NodeClass, TrainerDemand};
    use bftrainer_core::curve::Curve;

    fn problem(current: u32, points: &[(u32, f64)]) -> Problem {
        let curve = Curve::objective(points).unwrap();
        let demand = TrainerDemand::new(current, 2, 20, curve).with_costs(3.0, 2.0);
        Problem::new(20, 10.0, vec![demand])
    }

    fn all_pieces(problem: &Problem) -> Vec<Piece> {
        let table = ValueTable::new(problem, None);
        pieces(problem, &table, 0, 0, &vec![true; table.len()])
    }

    /// Every count's value as the pieces give it.
    fn covered(pieces: &[Piece]) -> Vec<(u32, f64)> {
        let mut covered = Vec::new();
        for piece in pieces {
            let (mut n, mut value) = (piece.first, piece.value);
            covered.push((n, value));
            for &(width, slope) in &piece.steps {
                for _ in 0..width {
                    (n, value) = (n + 1, value + slope);
                    covered.push((n, value));
                }
            }
        }
        covered
    }

    #[test]
    fn pieces_give_every_count_its_value_once() {
        for current in [0, 1, 2, 3, 7, 8, 9, 20, 25] {
            for points in [
                &[(1, 10.0), (4, 30.0), (8, 40.0), (16, 60.0)][..],
                &[(1, 10.0), (4, 11.0), (8, 40.0), (9, 41.0), (13, 13.0)],
                &[(20, 20.0)],
            ] {
                let problem = problem(current, points);
                let pieces = all_pieces(&problem);
                let covered = covered(&pieces);
                let counts: Vec<u32> = covered.iter().map(|(n, _)| *n).collect();
                assert_eq!(counts, (2..=20).collect::<Vec<_>>(), "{current} {points:?}");
                for (n, value) in covered {
                    let expected = problem.value(0, n).unwrap();
                    assert!(
                        (value - expected).abs() < 1e-9,
                        "{current} {points:?} at {n}"
                    );
                }
                for piece in &pieces {
                    assert!(piece.steps.windows(2).all(|pair| pair[1].1 <= pair[0].1));
                }
            }
        }
    }

    #[test]
    fn a_concave_curve_without_costs_is_one_piece() {
        let mut concave = problem(0, &[(1, 10.0), (4, 30.0), (8, 40.0), (16, 44.0)]);
        assert_eq!(all_pieces(&concave).len(), 1);
        concave.trainers[0].current = 8.into();
        assert_eq!(all_pieces(&concave).len(), 3);
    }

    #[test]
    fn an_allocation_becomes_columns_and_comes_back() {
        let problem = problem(7, &[(1, 10.0), (4, 11.0), (8, 40.0), (9, 41.0)]);
        let table = ValueTable::new(&problem, None);
        let program = Program::new(&problem, &table, &vec![true; table.len()], true);
        for n in (0..=20).filter(|&n| n != 1) {
            let share = Share::new(0, n);
            let columns = program.columns(&[share]).unwrap();
            assert_eq!(program.shares(&columns), [share]);
        }
        assert_eq!(program.columns(&[Share::new(0, 1)]), None);
    }

    #[test]
    fn hulls_have_corners_only() {
        let corners = hull(&[0.0, 1.0, 3.0, 4.0, 4.5, 5.0, f64::NEG_INFINITY, 5.2]);
        let counts: Vec<u32> = corners.iter().map(|(n, _)| *n).collect();
        assert_eq!(counts, [2, 3, 5, 7]);
    }

    #[test]
    fn overlapping_caps_are_not_nested() {
        let cap = |trainers: &[usize]| Cap {
            trainers: trainers.to_vec(),
            max_nodes: 5,
        };
        let with = |caps: &[&[usize]]| {
            let classes = vec![NodeClass {
                name: String::new(),
                nodes: 9,
            }];
            let caps = caps.iter().map(|trainers| cap(trainers)).collect();
            Problem::with_classes(classes, 1.0, Vec::new()).with_caps(caps)
        };
        assert!(are_nested(&with(&[&[0, 1], &[2], &[0, 1, 2], &[1]])));
        assert!(!are_nested(&with(&[&[0, 1], &[1, 2]])));
    }
}
