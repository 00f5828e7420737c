//! What comes from outside: regular jobs, users, failures.

use std::collections::BTreeSet;

use bftrainer_core::curve::Curve;
use bftrainer_core::engine::{EngineConfig, Event};
use bftrainer_core::node::NodeId;
use bftrainer_core::trainer::{Terms, TrainerId, TrainerInfo};
use proptest::prelude::*;

use super::agents::RanksState;
use super::classes::{Asks, Limits};
use super::{PROGRESS_S, Plan, Program, Setup, What, World};

/// Something from outside. Small numbers choose among what is there.
#[derive(Clone, Debug)]
pub enum Op {
    /// Regular jobs free some nodes, which may have a planned end.
    Free {
        first: u8,
        count: u8,
        stay_s: Option<u16>,
    },
    /// A regular job takes some nodes without notice.
    Take {
        first: u8,
        count: u8,
    },
    /// A planned use of some nodes is set, moved or called off.
    Plan {
        first: u8,
        count: u8,
        in_s: Option<u16>,
    },
    Submit {
        owner: u8,
        min: u8,
        more: u8,
        weight: u8,
        parallel: u8,
        asks: Asks,
    },
    /// A node's features change.
    Reclass {
        node: u8,
        class: u8,
    },
    Resize {
        trainer: u8,
        min: u8,
        more: u8,
    },
    Cancel {
        trainer: u8,
    },
    Finish {
        trainer: u8,
    },
    ProgramFails {
        trainer: u8,
        rank: u8,
        preempted: bool,
    },
    /// A node loses its power; Slurm may notice.
    Crash {
        node: u8,
        noticed: bool,
    },
    /// An agent is cut off for good while its ranks run on.
    CutOff {
        node: u8,
    },
    /// An agent's connection breaks for some tenths of a second.
    Flap {
        node: u8,
        away_ds: u8,
    },
    /// A task is cancelled or meets its limit.
    EndTask {
        node: u8,
    },
    /// A user releases a task of an admitted array.
    Release {
        trainer: u8,
        node: u8,
    },
    RestartController {
        away_ds: u8,
    },
    Doubt,
    /// The engine is rebuilt from a snapshot, beside the old one.
    Snapshot,
}

/// A sequence of what happens, each after some tenths of a second.
pub fn sequences(op: impl Strategy<Value = Op>) -> impl Strategy<Value = Vec<(u16, Op)>> {
    let delays_ds = prop_oneof![
        3 => Just(0u16),
        4 => 1u16..20,
        4 => 20u16..100,
        2 => 100u16..900,
    ];
    proptest::collection::vec((delays_ds, op), 1..40)
}

/// Nodes that come and go, trainers that come, change and end.
pub fn fair() -> impl Strategy<Value = Op> {
    let (number, count) = (any::<u8>(), 1u8..8);
    let end_s = proptest::option::of(20u16..400);
    prop_oneof![
        6 => (number, count.clone(), proptest::option::weighted(0.3, 20u16..400))
            .prop_map(|(first, count, stay_s)| Op::Free { first, count, stay_s }),
        3 => (number, count.clone()).prop_map(|(first, count)| Op::Take { first, count }),
        3 => (number, count, end_s).prop_map(|(first, count, in_s)| Op::Plan { first, count, in_s }),
        4 => (0u8..3, 1u8..5, 0u8..8, 1u8..4, 0u8..100, asks()).prop_map(
            |(owner, min, more, weight, parallel, asks)| {
                Op::Submit { owner, min, more, weight, parallel, asks }
            }
        ),
        1 => (number, number).prop_map(|(node, class)| Op::Reclass { node, class }),
        2 => (number, 1u8..5, 0u8..8)
            .prop_map(|(trainer, min, more)| Op::Resize { trainer, min, more }),
        1 => number.prop_map(|trainer| Op::Cancel { trainer }),
        1 => number.prop_map(|trainer| Op::Finish { trainer }),
        1 => Just(Op::Doubt),
        1 => Just(Op::Snapshot),
    ]
}

fn asks() -> impl Strategy<Value = Asks> {
    let classes = prop_oneof![Just(0u8), 1u8..8];
    let excluded = proptest::option::weighted(0.1, any::<u8>());
    (classes, excluded).prop_map(|(classes, excluded)| Asks { classes, excluded })
}

/// The same, and whatever can go wrong.
pub fn foul() -> impl Strategy<Value = Op> {
    let number = any::<u8>();
    prop_oneof![
        20 => fair(),
        3 => (number, number, any::<bool>()).prop_map(
            |(trainer, rank, preempted)| Op::ProgramFails { trainer, rank, preempted }
        ),
        2 => (number, any::<bool>()).prop_map(|(node, noticed)| Op::Crash { node, noticed }),
        2 => number.prop_map(|node| Op::CutOff { node }),
        3 => (number, 1u8..45).prop_map(|(node, away_ds)| Op::Flap { node, away_ds }),
        2 => number.prop_map(|node| Op::EndTask { node }),
        2 => (number, number).prop_map(|(trainer, node)| Op::Release { trainer, node }),
        2 => (1u8..100).prop_map(|away_ds| Op::RestartController { away_ds }),
    ]
}

pub fn setups(faults: bool) -> impl Strategy<Value = Setup> {
    let begin_s = prop_oneof![Just(0.0), Just(1_800_000_000.3)];
    let limits = (
        prop_oneof![Just(1usize), Just(2), Just(30)],
        prop_oneof![Just(40.0), Just(300.0)],
        prop_oneof![4 => Just(5.0), 2 => Just(5.3), 1 => Just(90.1)],
        prop_oneof![2 => Just((0.0, 0.0)), 1 => Just((60.0, 30.0))],
        any::<bool>(),
    );
    let limit = || proptest::option::weighted(0.2, 0u32..12);
    let site = (
        prop_oneof![2 => Just(1u32), 1 => Just(2), 1 => Just(3)],
        (limit(), limit()).prop_map(|(all, per_owner)| Limits { all, per_owner }),
    );
    (any::<u64>(), 3u32..17, begin_s, limits, any::<bool>(), site).prop_map(
        move |(seed, nodes, begin_s, limits, progress, (classes, site_limits))| {
            let (min_trainers, worker_start_timeout_s, vacate_lead_s, plan, learn) = limits;
            let (plan_grid_s, plan_wait_s) = plan;
            Setup {
                seed,
                nodes,
                begin_s,
                config: EngineConfig {
                    min_trainers,
                    worker_start_timeout_s,
                    vacate_lead_s,
                    plan_grid_s,
                    plan_wait_s,
                    quarantine_max_s: 240.0,
                    learn,
                    ..EngineConfig::default()
                },
                faults,
                progress,
                classes,
                limits: site_limits,
                free_restarts: false,
            }
        },
    )
}

impl World {
    pub fn run(&mut self, ops: &[(u16, Op)]) {
        for (after_ds, op) in ops {
            self.pass(f64::from(*after_ds) / 10.0);
            self.trace(|| format!("{op:?}"));
            self.apply(op);
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Free {
                first,
                count,
                stay_s,
            } => {
                for node in self.block(first, count) {
                    let Some(freed) = self.nodes.get_mut(&node) else {
                        continue;
                    };
                    if !freed.idle {
                        freed.idle = true;
                        freed.dead = false;
                        self.plan_use(node, stay_s);
                    }
                }
            }
            Op::Take { first, count } => {
                for node in self.block(first, count) {
                    if self.nodes[&node].idle {
                        self.take_node(node);
                    }
                }
            }
            Op::Plan { first, count, in_s } => {
                for node in self.block(first, count) {
                    if self.nodes[&node].idle {
                        self.plan_use(node, in_s);
                    }
                }
            }
            Op::Submit {
                owner,
                min,
                more,
                weight,
                parallel,
                asks,
            } => {
                let terms = self.terms(owner, asks);
                self.submit(TrainerInfo {
                    terms,
                    ..info(owner, min, more, weight, parallel)
                });
            }
            Op::Reclass { node, class } => {
                let node = self.block(node, 1)[0];
                self.reclass(node, class);
            }
            Op::Resize { trainer, min, more } => self.resize(trainer, min, more),
            Op::Cancel { trainer } => {
                if let Some(trainer) = self.some_trainer(trainer) {
                    self.cancel(trainer);
                }
            }
            Op::Finish { trainer } => {
                if let Some(trainer) = self.some_trainer(trainer) {
                    self.program_finishes(trainer);
                }
            }
            Op::ProgramFails {
                trainer,
                rank,
                preempted,
            } => {
                let running: Vec<u64> = self
                    .some_trainer(trainer)
                    .into_iter()
                    .flat_map(|trainer| self.ranks_of(trainer))
                    .filter(|(_, _, ranks)| ranks.state == RanksState::Running)
                    .map(|(id, _, _)| id)
                    .collect();
                if let Some(id) = chosen(&running, rank) {
                    self.program_fails(id, if preempted { 143 } else { 1 });
                }
            }
            Op::Crash { node, noticed } => {
                let node = self.block(node, 1)[0];
                self.crash(node);
                if noticed {
                    self.take_node(node);
                }
            }
            Op::CutOff { node } => {
                if let Some(id) = self.some_task(node) {
                    self.disconnect(id, None);
                }
            }
            Op::Flap { node, away_ds } => {
                if let Some(id) = self.some_task(node) {
                    self.disconnect(id, Some(f64::from(away_ds) / 10.0));
                }
            }
            Op::EndTask { node } => {
                if let Some(id) = self.some_task(node) {
                    self.end_task(id);
                }
            }
            Op::Release { trainer, node } => self.release(trainer, node),
            Op::RestartController { away_ds } => {
                self.restart_controller(f64::from(away_ds) / 10.0);
            }
            Op::Doubt => self.doubt(),
            Op::Snapshot => self.take_snapshot(),
        }
    }

    fn block(&self, first: u8, count: u8) -> Vec<NodeId> {
        let nodes = self.nodes.len() as u32;
        (0..u32::from(count).min(nodes))
            .map(|n| NodeId((u32::from(first) + n) % nodes))
            .collect()
    }

    fn plan_use(&mut self, node: NodeId, in_s: Option<u16>) {
        let hole_end_s = in_s.map(|in_s| self.now_s + f64::from(in_s));
        if let Some(planned) = self.nodes.get_mut(&node) {
            planned.hole_end_s = hole_end_s;
        }
        if let (Some(in_s), Some(hole_end_s)) = (in_s, hole_end_s) {
            self.plan(f64::from(in_s), What::PlannedUse(node, hole_end_s));
        }
    }

    fn submit(&mut self, mut info: TrainerInfo) {
        self.newest_trainer += 1;
        let trainer = TrainerId(self.newest_trainer);
        info.id = trainer;
        let is_live = self.dice.chance(0.3);
        let program = Program {
            tasks: info.max_nodes as usize,
            info: info.clone(),
            folder_generation: 0,
            folder_members: Vec::new(),
            is_live,
            verdict: None,
            closing: false,
            samples: 0,
            checkpoint: 0,
            started: 0,
            failing: BTreeSet::new(),
            failures_s: Vec::new(),
            failures_at_samples: 0,
            heard_samples: 0,
        };
        self.trainers.insert(trainer, program);
        self.plan(PROGRESS_S, What::Progress(trainer));
        self.tell(Event::TrainerArrived(info));
    }

    fn resize(&mut self, trainer: u8, min: u8, more: u8) {
        let Some(program) = self
            .some_trainer(trainer)
            .and_then(|trainer| self.trainers.get_mut(&trainer))
        else {
            return;
        };
        program.info.min_nodes = u32::from(min);
        program.info.max_nodes = u32::from(min + more).min(program.tasks as u32);
        let info = program.info.clone();
        self.tell(Event::TrainerChanged(info));
    }

    /// A user releases a task of his own accord; it starts on an idle node.
    fn release(&mut self, trainer: u8, node: u8) {
        let node = self.block(node, 1)[0];
        let Some(trainer) = self.some_trainer(trainer) else {
            return;
        };
        let free = &self.nodes[&node];
        let has_own = self
            .tasks
            .values()
            .any(|task| task.trainer == trainer && task.node == node);
        if free.idle && !free.dead && !self.is_occupied(node) && !has_own {
            let id = self.new_task(trainer, node, Plan::Rest);
            self.try_start(id);
        }
    }

    fn some_trainer(&self, number: u8) -> Option<TrainerId> {
        let open: Vec<TrainerId> = self
            .trainers
            .iter()
            .filter(|(_, program)| program.verdict.is_none())
            .map(|(id, _)| *id)
            .collect();
        chosen(&open, number)
    }

    fn some_task(&self, number: u8) -> Option<u64> {
        let running: Vec<u64> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.runs() && task.agent.connected)
            .map(|(id, _)| *id)
            .collect();
        chosen(&running, number)
    }
}

fn chosen<T: Copy>(list: &[T], number: u8) -> Option<T> {
    (!list.is_empty()).then(|| list[usize::from(number) % list.len()])
}

fn info(owner: u8, min: u8, more: u8, weight: u8, parallel: u8) -> TrainerInfo {
    let (min_nodes, max_nodes) = (u32::from(min), u32::from(min + more));
    TrainerInfo {
        program: parallel
            .is_multiple_of(2)
            .then(|| format!("program {parallel}")),
        has_own_curve: weight > 1,
        id: TrainerId(0),
        owner_uid: u32::from(owner),
        min_nodes,
        max_nodes,
        weight: f64::from(weight),
        curve: Curve::amdahl(f64::from(parallel) / 100.0, max_nodes),
        up_s: 20.0,
        down_s: 10.0,
        max_stay_s: None,
        terms: Terms::default(),
    }
}
