//! What can happen to the solver's process: killed, stopped, out of memory, answering nonsense,
//! not there at all. Whoever asks gets a feasible answer that says so, in time, and the next
//! decision is solved again.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bftrainer_controller::solver::{MilpSolver, Settings};
use bftrainer_core::allocation::{
    Cap, Fault, GeneralSolver, NodeClass, Problem, Share, Solution, Solver, TrainerDemand,
};
use bftrainer_core::curve::Curve;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, gettid};

const LIMIT: Duration = Duration::from_secs(20);

fn settings() -> Settings {
    Settings {
        program: env!("CARGO_BIN_EXE_bftrainer").into(),
        ..Settings::default()
    }
}

/// Two classes, a cap, and more wishes than nodes.
fn problem(trainers: usize) -> Problem {
    let points = [(1, 10.0), (2, 19.0), (4, 33.0), (8, 64.0), (64, 300.0)];
    let demands = (0..trainers).map(|j| {
        let factor = 1.0 + j as f64 / trainers as f64;
        let curve = Curve::new(&points).unwrap().scaled(factor);
        TrainerDemand::new(Share::new(j % 2, (j % 3) as u32), 1, 64, curve)
            .with_costs(18.0, 12.0)
            .with_speeds(vec![1.0, 1.0 + factor / 3.0])
    });
    let classes = [("a100", 100), ("h100", 50)].map(|(name, nodes)| NodeClass {
        name: name.to_owned(),
        nodes,
    });
    let cap = Cap {
        trainers: (0..trainers / 2).collect(),
        max_nodes: 37,
    };
    Problem::with_classes(classes.to_vec(), 60.0, demands.collect()).with_caps(vec![cap])
}

fn assert_solved(solution: &Solution, problem: &Problem) {
    assert_eq!(problem.objective(&solution.shares), Ok(solution.objective));
    assert_eq!(solution.outcome(), "optimal");
    assert_eq!(solution.solver, Solver::Milp);
}

fn assert_fell_back(solution: &Solution, problem: &Problem, fault: Fault) {
    assert_eq!(problem.objective(&solution.shares), Ok(solution.objective));
    assert_eq!(solution.fault, Some(fault), "{solution:?}");
    assert!(!solution.optimal && solution.objective > 0.0);
    assert!(
        solution.gap.is_finite(),
        "a bound is known without the process"
    );
}

fn signal(milp: &MilpSolver, signal: Signal) {
    let id = milp.process().id().unwrap();
    kill(Pid::from_raw(id as i32), signal).unwrap();
}

/// Shell that writes a frame with this reply.
fn says(reply: &str) -> String {
    let (low, high) = (reply.len() % 256, reply.len() / 256);
    format!("printf '\\{low:03o}\\{high:03o}\\000\\000%s' '{reply}'")
}

/// A script in the solver's place; it is told nothing it would understand.
fn script(body: &str) -> (tempfile::TempDir, Settings) {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("solver");
    let mut file = std::fs::File::create(&path).unwrap();
    write!(file, "#!/bin/sh\n{body}\n").unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o755))
        .unwrap();
    drop(file);
    let settings = Settings {
        program: path,
        ..Settings::default()
    };
    (folder, settings)
}

#[test]
fn the_process_is_reused() {
    let mut milp = MilpSolver::new(settings(), LIMIT);
    let problem = problem(10);
    let first = milp.solve(&problem);
    assert_solved(&first, &problem);
    assert!(first.seconds > 0.0);
    let id = milp.process().id();
    assert_solved(&milp.solve(&problem), &problem);
    assert_eq!((milp.process().id(), milp.process().starts()), (id, 1));
}

#[test]
fn a_process_that_died_between_decisions_costs_none() {
    let mut milp = MilpSolver::new(settings(), LIMIT);
    let problem = problem(10);
    assert_solved(&milp.solve(&problem), &problem);
    signal(&milp, Signal::SIGKILL);
    // Until it is gone.
    let id = milp.process().id().unwrap();
    let deadline = Instant::now() + LIMIT;
    while !std::fs::read_to_string(format!("/proc/{id}/stat"))
        .is_ok_and(|stat| stat.contains(") Z "))
    {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_solved(&milp.solve(&problem), &problem);
    assert_eq!(milp.process().starts(), 2);
}

/// Waits until the thread `asker` of this process sleeps: it has asked and waits.
fn wait_until_it_waits(asker: Pid) {
    let path = format!("/proc/self/task/{asker}/stat");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let stat = std::fs::read_to_string(&path).unwrap();
        // The state follows the name, which ends with the last parenthesis.
        if stat
            .rsplit(')')
            .next()
            .unwrap()
            .trim_start()
            .starts_with('S')
        {
            return;
        }
        assert!(Instant::now() < deadline, "{stat}");
        std::thread::yield_now();
    }
}

#[test]
fn a_process_that_dies_at_work_costs_one_decision() {
    let mut milp = MilpSolver::new(settings(), LIMIT);
    let problem = problem(10);
    // Stopped it can't answer; killed it never will.
    signal(&milp, Signal::SIGSTOP);
    let id = milp.process().id().unwrap();
    let asker = gettid();
    let killer = std::thread::spawn(move || {
        wait_until_it_waits(asker);
        kill(Pid::from_raw(id as i32), Signal::SIGKILL).unwrap();
    });
    let solution = milp.solve(&problem);
    killer.join().unwrap();
    assert_fell_back(&solution, &problem, Fault::Crash);
    assert_eq!(solution.outcome(), "greedy_after_crash");
    assert!(solution.quality().contains("the solver's process died"));
    assert_solved(&milp.solve(&problem), &problem);
}

#[test]
fn a_process_that_hangs_is_killed_at_the_limit() {
    let limit = Duration::from_millis(300);
    let mut milp = MilpSolver::new(settings(), limit);
    let problem = problem(10);
    let id = milp.process().id().unwrap();
    signal(&milp, Signal::SIGSTOP);
    let start = Instant::now();
    let solution = milp.solve(&problem);
    assert!(start.elapsed() >= limit);
    assert_fell_back(&solution, &problem, Fault::Timeout);
    assert_eq!(solution.outcome(), "greedy_after_timeout");
    let next = milp.solve_with(&problem, None, LIMIT).unwrap();
    assert_solved(&next, &problem);
    assert_ne!(milp.process().id(), Some(id));
}

#[test]
fn what_a_process_found_before_it_hung_is_taken() {
    // The first reply is written by hand, then nothing more comes.
    let shares = ["[0,1]"; 10].join(",");
    let reply = format!(
        "{{\"number\":1,\"last\":false,\"shares\":[{shares}],\"bound\":1e9,\"optimal\":false,\
         \"failed_status\":null,\"infeasible\":false}}"
    );
    let (_folder, settings) = script(&format!("{}; exec sleep 60", says(&reply)));
    let mut milp = MilpSolver::new(settings, Duration::from_secs(2));
    let problem = problem(10);
    let solution = milp.solve(&problem);
    assert_fell_back(&solution, &problem, Fault::Timeout);
    assert_eq!(solution.outcome(), "incumbent_after_timeout");
    assert_eq!(solution.shares, vec![Share::new(0, 1); 10]);
}

#[test]
fn garbage_is_no_answer() {
    let reply = |body: &str| format!("{}; exec cat >/dev/null", says(body));
    let not_allowed = "{\"number\":1,\"last\":true,\"shares\":[[0,1000]],\"bound\":1,\
                       \"optimal\":true,\"failed_status\":null,\"infeasible\":false}";
    let not_asked = not_allowed.replace("\"number\":1", "\"number\":2");
    for body in [
        "head -c 1000 /dev/zero; exec cat >/dev/null".to_owned(),
        "printf '\\377\\376\\375\\374\\001'; exec cat >/dev/null".to_owned(),
        "echo This is HiGHS 1.16; exec cat >/dev/null".to_owned(),
        reply("{}"),
        reply(not_allowed),
        reply(&not_asked),
        reply(&not_allowed.replace("[[0,1000]]", "null")),
        reply(
            &not_allowed
                .replace("[[0,1000]]", "null")
                .replace("\"infeasible\":false", "\"infeasible\":true"),
        ),
    ] {
        let (_folder, settings) = script(&body);
        let mut milp = MilpSolver::new(settings, LIMIT);
        let problem = problem(10);
        assert_fell_back(&milp.solve(&problem), &problem, Fault::Garbled);
    }
}

#[test]
fn a_status_that_says_nothing_costs_the_decision_but_not_the_process() {
    let reply = "{\"number\":1,\"last\":true,\"shares\":null,\"bound\":null,\"optimal\":false,\
                 \"failed_status\":15,\"infeasible\":false}";
    let (_folder, settings) = script(&format!("{}; exec cat >/dev/null", says(reply)));
    let mut milp = MilpSolver::new(settings, LIMIT);
    let (problem, id) = (problem(10), milp.process().id());
    let solution = milp.solve(&problem);
    assert_fell_back(&solution, &problem, Fault::Status);
    assert_eq!(solution.outcome(), "greedy_after_status");
    assert_eq!(milp.process().id(), id);
}

#[test]
fn a_process_that_ends_at_once_or_is_not_there_is_a_fault_each_time() {
    let problem = problem(10);
    let (_folder, ends) = script("exit 1");
    let mut milp = MilpSolver::new(ends, LIMIT);
    for _ in 0..3 {
        assert_fell_back(&milp.solve(&problem), &problem, Fault::Crash);
    }
    let missing = Settings {
        program: "/nonexistent/bftrainer".into(),
        ..Settings::default()
    };
    let solution = MilpSolver::new(missing, LIMIT).solve(&problem);
    assert_fell_back(&solution, &problem, Fault::Start);
}

#[test]
fn the_memory_limit_ends_the_process_and_not_the_decision() {
    let small = Settings {
        memory_mb: 64,
        ..settings()
    };
    let mut milp = MilpSolver::new(small, LIMIT);
    // 12 million values.
    let mut problem = problem(300);
    for class in &mut problem.classes {
        class.nodes = 20_000;
    }
    for demand in &mut problem.trainers {
        demand.max = 20_000;
    }
    let solution = milp.solve(&problem);
    assert_fell_back(&solution, &problem, Fault::Crash);
}

#[test]
fn a_problem_that_makes_no_sense_is_answered_without_asking() {
    let mut milp = MilpSolver::new(settings(), LIMIT);
    let mut problem = problem(4);
    problem.horizon_s = f64::NAN;
    let solution = milp.solve(&problem);
    assert_eq!(solution.fault, Some(Fault::Problem));
    assert_eq!(problem.check(&solution.shares), Ok(()));
}

#[test]
fn a_bound_on_changes_that_leaves_nothing_is_said() {
    let curve = Curve::new(&[(1, 1.0)]).unwrap();
    let problem = Problem::new(2, 60.0, vec![TrainerDemand::new(20, 1, 64, curve)]);
    let mut milp = MilpSolver::new(settings(), LIMIT);
    assert_eq!(milp.solve_with(&problem, Some(17), LIMIT), None);
    let solution = milp.solve_with(&problem, Some(18), LIMIT).unwrap();
    assert_eq!(solution.shares, [Share::new(0, 2)]);
}

#[test]
fn no_process_is_left_behind() {
    let mut milp = MilpSolver::new(settings(), LIMIT);
    milp.solve(&problem(4));
    let id = milp.process().id().unwrap();
    signal(&milp, Signal::SIGSTOP);
    drop(milp);
    assert!(kill(Pid::from_raw(id as i32), None).is_err());
}
