//! Jobs without places are given nodes: at their recorded starts, or by a scheduler that serves
//! first come, first served and backfills (EASY: a job may pass others when it does not delay the
//! first in the queue by what was requested; Lifka 1995).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use super::occupancy::Occupancy;
use super::swf::Job;

/// Waiting jobs that are looked at for backfill, as schedulers bound it too.
const BACKFILL_DEPTH: usize = 500;

/// Running jobs: when each ends, until when it may stay by its request, and its nodes. Times are
/// not negative, so their bits sort as they do.
type Running = BinaryHeap<Reverse<(u64, u64, Vec<u32>)>>;

/// Places jobs at their recorded starts on the free nodes with the lowest numbers. Where the log
/// has more on the machine than fits, the rest is left out.
pub(super) fn as_recorded(mut jobs: Vec<Job>, machine: usize, occupancy: &mut Occupancy) {
    jobs.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
    let mut free: BTreeSet<u32> = (0..machine as u32).collect();
    let mut running = Running::new();
    for job in jobs {
        while next_end_s(&running) <= job.start_s
            && let Some(Reverse((_, _, nodes))) = running.pop()
        {
            free.extend(nodes);
        }
        let nodes = take(&mut free, job.nodes);
        let end_s = job.start_s + job.run_s;
        for node in &nodes {
            occupancy.add(*node, job.start_s, Some(end_s));
        }
        running.push(Reverse((bits(end_s), bits(end_s), nodes)));
    }
}

fn bits(time_s: f64) -> u64 {
    time_s.max(0.0).to_bits()
}

fn next_end_s(running: &Running) -> f64 {
    let first = running.peek();
    first.map_or(f64::INFINITY, |Reverse((end, _, _))| f64::from_bits(*end))
}

fn take(free: &mut BTreeSet<u32>, count: usize) -> Vec<u32> {
    let nodes: Vec<u32> = free.iter().take(count).copied().collect();
    for node in &nodes {
        free.remove(node);
    }
    nodes
}

/// The machine while jobs are scheduled on it.
struct Machine<'a> {
    free: BTreeSet<u32>,
    running: Running,
    /// How many nodes running jobs give back by which time, by their requests.
    requested: BTreeMap<u64, usize>,
    waiting: VecDeque<Job>,
    /// Planned ends of idle nodes.
    planned: BTreeMap<u32, f64>,
    occupancy: &'a mut Occupancy,
}

/// Schedules jobs anew, and notes when idle nodes are planned to be used again: those that the
/// first in the queue will take when it can start.
pub(super) fn backfilled(mut jobs: Vec<Job>, machine: usize, occupancy: &mut Occupancy) {
    jobs.sort_by(|a, b| a.submit_s.total_cmp(&b.submit_s));
    let mut jobs = VecDeque::from(jobs);
    let mut machine = Machine {
        free: (0..machine as u32).collect(),
        running: Running::new(),
        requested: BTreeMap::new(),
        waiting: VecDeque::new(),
        planned: BTreeMap::new(),
        occupancy,
    };
    loop {
        let submit_s = jobs.front().map_or(f64::INFINITY, |job| job.submit_s);
        let end_s = next_end_s(&machine.running);
        let now_s = submit_s.min(end_s);
        if now_s.is_infinite() {
            break;
        }
        machine.end_jobs(now_s);
        while jobs.front().is_some_and(|job| job.submit_s <= now_s) {
            machine.waiting.extend(jobs.pop_front());
        }
        machine.schedule(now_s);
    }
}

impl Machine<'_> {
    fn end_jobs(&mut self, now_s: f64) {
        while next_end_s(&self.running) <= now_s
            && let Some(Reverse((_, requested, nodes))) = self.running.pop()
        {
            if let Some(count) = self.requested.get_mut(&requested) {
                *count -= nodes.len();
                if *count == 0 {
                    self.requested.remove(&requested);
                }
            }
            self.free.extend(nodes);
        }
    }

    fn schedule(&mut self, now_s: f64) {
        while let Some(job) = self.waiting.front().copied()
            && job.nodes <= self.free.len()
        {
            self.waiting.pop_front();
            self.start(job, now_s);
        }
        let Some(first) = self.waiting.front().copied() else {
            self.plan(now_s, None);
            return;
        };
        let (mut start_s, mut spare) = self.reservation(first.nodes, now_s);
        let mut index = 1;
        while index < self.waiting.len().min(BACKFILL_DEPTH) && !self.free.is_empty() {
            let job = self.waiting[index];
            let ends_before = now_s + job.requested_s <= start_s;
            if job.nodes <= self.free.len() && (ends_before || job.nodes <= spare) {
                self.waiting.remove(index);
                self.start(job, now_s);
                (start_s, spare) = self.reservation(first.nodes, now_s);
            } else {
                index += 1;
            }
        }
        self.plan(
            now_s,
            Some((start_s, self.free.len().saturating_sub(spare))),
        );
    }

    fn start(&mut self, job: Job, now_s: f64) {
        let nodes = take(&mut self.free, job.nodes);
        let end_s = now_s + job.run_s;
        for node in &nodes {
            self.occupancy.add(*node, now_s, Some(end_s));
            self.planned.remove(node);
        }
        let requested = bits(now_s + job.requested_s);
        *self.requested.entry(requested).or_default() += nodes.len();
        self.running.push(Reverse((bits(end_s), requested, nodes)));
    }

    /// When `nodes` nodes will be free by what was requested, and how many of those that are free
    /// now are not needed then.
    fn reservation(&self, nodes: usize, now_s: f64) -> (f64, usize) {
        let mut available = self.free.len();
        for (end, count) in &self.requested {
            available += count;
            if available >= nodes {
                return (f64::from_bits(*end).max(now_s), available - nodes);
            }
        }
        // Wider than the machine: it waits for ever and holds up nobody.
        (f64::INFINITY, self.free.len())
    }

    /// Notes which idle nodes the first in the queue waits for: those with the lowest numbers.
    fn plan(&mut self, now_s: f64, reservation: Option<(f64, usize)>) {
        let mut planned: BTreeMap<u32, f64> = BTreeMap::new();
        if let Some((start_s, count)) = reservation.filter(|(start_s, _)| start_s.is_finite()) {
            planned.extend(self.free.iter().take(count).map(|node| (*node, start_s)));
        }
        for node in self.planned.keys() {
            if !planned.contains_key(node) && self.free.contains(node) {
                self.occupancy.plan(now_s, *node, None);
            }
        }
        for (node, end_s) in &planned {
            if self.planned.get(node) != Some(end_s) {
                self.occupancy.plan(now_s, *node, Some(*end_s));
            }
        }
        self.planned = planned;
    }
}
