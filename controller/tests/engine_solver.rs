//! The engine with the solver's process: whatever happens to that, the engine goes on, what
//! happened is counted, and the reasons of its decisions say so.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bftrainer_controller::solver::{MilpSolver, Settings};
use bftrainer_core::allocation::{GeneralSolver, Problem, Solution};
use bftrainer_core::curve::Curve;
use bftrainer_core::engine::{Action, Engine, EngineConfig, Event};
use bftrainer_core::node::{ClassId, ClassInfo, NodeId};
use bftrainer_core::trainer::{NodeCap, Terms, TrainerId, TrainerInfo};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const LIMIT: Duration = Duration::from_secs(20);

fn settings() -> Settings {
    Settings {
        program: env!("CARGO_BIN_EXE_bftrainer").into(),
        ..Settings::default()
    }
}

/// A solver whose process gets a signal before each problem.
#[derive(Debug)]
struct Signalled(MilpSolver, Signal);

impl GeneralSolver for Signalled {
    fn solve(&mut self, problem: &Problem) -> Solution {
        if let Some(id) = self.0.process().id() {
            kill(Pid::from_raw(id as i32), self.1).unwrap();
        }
        self.0.solve(problem)
    }
}

fn engine(solver: Box<dyn GeneralSolver>) -> Engine {
    let mut engine = Engine::new(EngineConfig::default());
    engine.set_solver(solver);
    for n in 0..8 {
        engine.names.intern(&format!("n{n}"));
    }
    engine
}

/// Two classes of nodes, of which the first trainer may use one, and a limit for both trainers.
fn events() -> Vec<Event> {
    let trainer = |id: u32, classes: Option<ClassId>| {
        let caps = vec![NodeCap {
            name: "all trainers".to_owned(),
            max_nodes: 7,
        }];
        Event::TrainerArrived(TrainerInfo {
            id: TrainerId(id),
            owner_uid: id,
            min_nodes: 1,
            max_nodes: 8,
            weight: 1.0,
            curve: Curve::amdahl(0.98, 8),
            up_s: 1.0,
            down_s: 1.0,
            max_stay_s: None,
            terms: Terms {
                classes: classes.map(|class| [class].into()),
                caps,
                ..Terms::default()
            },
        })
    };
    let class = |class: u32, name: &str, nodes: [u32; 4]| Event::NodeClass {
        class: ClassId(class),
        info: ClassInfo {
            name: name.to_owned(),
            speed: 1.0,
        },
        nodes: nodes.map(NodeId).to_vec(),
    };
    vec![
        class(1, "a100", [0, 1, 2, 3]),
        class(2, "h100", [4, 5, 6, 7]),
        trainer(1, Some(ClassId(2))),
        trainer(2, None),
        Event::Pool {
            joined: (0..8).map(|n| (NodeId(n), None)).collect(),
            left: Vec::new(),
            hole_ends: Vec::new(),
        },
    ]
}

/// Both trainers get nodes of their own class, seven in all, and start.
fn assert_goes_on(engine: &mut Engine) -> Vec<String> {
    let actions = engine.handle(1000.0, events());
    let placed = |action: &&Action| matches!(action, Action::Place { .. });
    assert_eq!(actions.iter().filter(placed).count(), 2, "{actions:?}");
    let of = |id: u32| {
        let pool = engine.pool().iter();
        let nodes = pool.filter(|(_, node)| node.assigned == Some(TrainerId(id)));
        nodes.map(|(node, _)| node.0).collect::<Vec<u32>>()
    };
    let (one, other) = (of(1), of(2));
    assert!(one.iter().all(|node| *node >= 4), "{one:?}");
    assert!(other.iter().all(|node| *node < 4), "{other:?}");
    assert_eq!(one.len() + other.len(), 7);
    let decisions = engine.take_decisions();
    decisions.into_iter().map(|it| it.reason).collect()
}

fn assert_counted(engine: &Engine, outcomes: &[(&str, u64)]) {
    let counted = engine.outcomes().iter();
    let counted: Vec<(&str, u64)> = counted.map(|(how, times)| (how.as_str(), *times)).collect();
    assert_eq!(counted, outcomes);
}

fn assert_said(reasons: &[String], said: &str) {
    assert!(!reasons.is_empty());
    for reason in reasons {
        assert!(reason.contains(said), "{said} in {reason}");
    }
}

/// Has something happen after which everybody is to be decided about anew.
fn decide_again(engine: &mut Engine) {
    let left = Event::Pool {
        joined: Vec::new(),
        left: vec![NodeId(0)],
        hole_ends: Vec::new(),
    };
    engine.handle(1001.0, vec![left]);
}

#[test]
fn a_process_that_works_is_asked_and_its_answer_is_the_best() {
    let mut engine = engine(Box::new(MilpSolver::new(settings(), LIMIT)));
    let reasons = assert_goes_on(&mut engine);
    assert_counted(&engine, &[("optimal", 1)]);
    assert!(
        reasons
            .iter()
            .all(|reason| !reason.contains("the decision is"))
    );
    assert!(engine.last_solution().is_some_and(|it| it.optimal));
}

#[test]
fn one_that_is_killed_at_work_or_before_costs_no_decision_that_is_not_made() {
    let mut engine = engine(Box::new(Signalled(
        MilpSolver::new(settings(), LIMIT),
        Signal::SIGKILL,
    )));
    assert_goes_on(&mut engine);
    decide_again(&mut engine);
    // A process that was seen to be dead is replaced before it is asked.
    let counted = engine.outcomes();
    assert_eq!(counted.values().sum::<u64>(), 2, "{counted:?}");
    let known = ["greedy_after_crash", "optimal"];
    assert!(
        counted.keys().all(|how| known.contains(&how.as_str())),
        "{counted:?}"
    );
}

#[test]
fn one_that_hangs_is_killed_and_said_so() {
    let limit = Duration::from_millis(200);
    let mut engine = engine(Box::new(Signalled(
        MilpSolver::new(settings(), limit),
        Signal::SIGSTOP,
    )));
    let reasons = assert_goes_on(&mut engine);
    assert_counted(&engine, &[("greedy_after_timeout", 1)]);
    assert_said(&reasons, "the solver did not answer in time and was killed");
    // Growing nodes must not have to wait for a better time.
    decide_again(&mut engine);
    assert_eq!(engine.times_decided(), 2);
}

#[test]
fn one_that_answers_garbage_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("solver");
    let mut file = std::fs::File::create(&program).unwrap();
    file.write_all(b"#!/bin/sh\nhead -c 1000 /dev/zero; exec cat >/dev/null\n")
        .unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o755))
        .unwrap();
    drop(file);
    let garbled = Settings {
        program,
        ..Settings::default()
    };
    let mut engine = engine(Box::new(MilpSolver::new(garbled, LIMIT)));
    let reasons = assert_goes_on(&mut engine);
    assert_counted(&engine, &[("greedy_after_garbled", 1)]);
    assert_said(&reasons, "the solver's answer made no sense");
}

#[test]
fn one_without_the_memory_to_start_is_a_fault_of_its_own() {
    let small = Settings {
        memory_mb: 1,
        ..settings()
    };
    let mut engine = engine(Box::new(MilpSolver::new(small, LIMIT)));
    let reasons = assert_goes_on(&mut engine);
    assert_counted(&engine, &[("greedy_after_crash", 1)]);
    assert_said(&reasons, "the solver's process died");
}

#[test]
fn an_engine_from_a_snapshot_does_without_until_it_is_given_one() {
    let first = engine(Box::new(MilpSolver::new(settings(), LIMIT)));
    let snapshot = serde_json::to_string(&first).unwrap();
    let mut engine: Engine = serde_json::from_str(&snapshot).unwrap();
    let reasons = assert_goes_on(&mut engine);
    assert_counted(&engine, &[("greedy", 1)]);
    assert_said(&reasons, "below the optimum");
}
