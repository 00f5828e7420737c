//! Time per decision: the exact dynamic program, the mixed-integer program over counts, and the
//! paper's own program over nodes; then chains of events with node classes.
//!
//! `cargo bench --bench allocation [-- SECTION...]`, sections `uniform` and `classes`.

mod instances;
mod paper;
#[path = "../random/mod.rs"]
mod random;

use std::hint::black_box;
use std::time::{Duration, Instant};

use bftrainer_controller::solver::highs::Status;
use bftrainer_controller::solver::{DEFAULT_LIMIT, MilpSolver, Settings};
use bftrainer_core::allocation::{DpSolver, GeneralSolver, Problem};

use instances::{Chain, uniform};

/// Time limit of the paper's program, seconds.
const PAPER_LIMIT_S: f64 = 30.0;

/// The paper's program is not asked beyond this many trainers times nodes.
const PAPER_LARGEST: usize = 25_000;

/// Time for a long second look at what was not proven in time.
const PATIENT: Duration = Duration::from_secs(60);

fn main() {
    // Cargo adds `--bench`.
    let sections: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let is_wanted = |name: &str| sections.is_empty() || sections.iter().any(|s| s == name);
    if is_wanted("uniform") {
        uniform_table();
    }
    if is_wanted("classes") {
        classes_table();
    }
}

fn solver(limit: Duration) -> MilpSolver {
    let settings = Settings {
        program: env!("CARGO_BIN_EXE_bftrainer").into(),
        ..Settings::default()
    };
    MilpSolver::new(settings, limit)
}

fn uniform_table() {
    println!(
        "\nInterchangeable nodes, median seconds per decision (ratio to the dynamic program)\n"
    );
    println!(
        "| trainers | nodes | max | dynamic program | program over counts | program over nodes |"
    );
    println!("|---|---|---|---|---|---|");
    for (trainers, nodes, max) in [
        (10, 50, 64),
        (10, 200, 64),
        (10, 1000, 64),
        (20, 1000, 64),
        (50, 500, 64),
        (100, 100, 64),
        (100, 1000, 64),
        (100, 4000, 64),
        (10, 1000, 200),
        (10, 1000, 1000),
        (100, 4000, 1000),
    ] {
        let problems: Vec<Problem> = (0..25)
            .map(|seed| uniform(seed, trainers, nodes, max))
            .collect();
        let (dp_s, optima) = time_dp(&problems);
        let counts_s = time_counts(&problems, &optima);
        let paper = match trainers * nodes as usize {
            size if size > PAPER_LARGEST || max > 64 => "not run".to_owned(),
            _ => time_paper(&problems, &optima, dp_s),
        };
        println!(
            "| {trainers} | {nodes} | {max} | {} | {} ({}) | {paper} |",
            seconds(dp_s),
            seconds(counts_s),
            ratio(counts_s, dp_s),
        );
    }
}

/// Median time, and what each is worth.
fn time_dp(problems: &[Problem]) -> (f64, Vec<f64>) {
    let mut dp = DpSolver::new();
    let optima = problems.iter().map(|problem| dp.solve(problem).objective);
    let optima = optima.collect();
    let mut times = Vec::new();
    for problem in problems.iter().cycle().take(10 * problems.len()) {
        let start = Instant::now();
        black_box(dp.solve(black_box(problem)));
        times.push(start.elapsed().as_secs_f64());
    }
    (quantile(&mut times, 0.5), optima)
}

fn time_counts(problems: &[Problem], optima: &[f64]) -> f64 {
    let mut milp = solver(PATIENT);
    let mut times = Vec::new();
    for (problem, &optimum) in problems.iter().zip(optima) {
        let solution = milp.solve(problem);
        assert!(solution.optimal && is_near(solution.objective, optimum));
        times.push(solution.seconds);
    }
    quantile(&mut times, 0.5)
}

/// Up to three decisions, fewer when the first ones take long.
fn time_paper(problems: &[Problem], optima: &[f64], dp_s: f64) -> String {
    let begin = Instant::now();
    let (mut times, mut unproven) = (Vec::new(), 0);
    let mut binaries = 0;
    for (problem, &optimum) in problems.iter().zip(optima).take(3) {
        let start = Instant::now();
        let result = paper::solve(problem, PAPER_LIMIT_S);
        times.push(start.elapsed().as_secs_f64());
        binaries = result.binaries;
        if result.status == Status::Optimal {
            let objective = result.objective.unwrap_or(f64::NAN);
            assert!((objective - optimum).abs() <= 1e-5 * optimum.abs());
        } else {
            unproven += 1;
        }
        if begin.elapsed().as_secs_f64() > PAPER_LIMIT_S {
            break;
        }
    }
    let taken = times.len();
    let median = quantile(&mut times, 0.5);
    let proven = match unproven {
        0 => String::new(),
        n => format!(", {n} of {taken} not proven"),
    };
    format!(
        "{} ({}; {binaries} binaries{proven})",
        seconds(median),
        ratio(median, dp_s)
    )
}

fn classes_table() {
    println!("\nNode classes, a chain of events; every third scales each class by 0.3-1.7.");
    println!(
        "Limit {} s, the solver's process included\n",
        DEFAULT_LIMIT.as_secs_f64()
    );
    println!(
        "| trainers/classes/nodes | speeds | events | median | 95 % | longest | proven within the \
         limit | largest gap at the limit | below the optimum |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (trainers, classes, nodes, same_speed, events) in [
        (10, 4, 200, false, 60),
        (30, 4, 1000, false, 120),
        (30, 4, 1000, true, 120),
        (30, 8, 1000, false, 60),
        (100, 4, 4000, false, 60),
    ] {
        let mut chain = Chain::new(7, trainers, classes, nodes, same_speed);
        let speeds = if same_speed {
            "by class"
        } else {
            "by trainer and class"
        };
        let row = run_chain(&mut chain, events);
        println!("| {trainers}/{classes}/{nodes} | {speeds} | {events} | {row} |");
    }
}

fn run_chain(chain: &mut Chain, events: usize) -> String {
    let (mut hurried, mut patient) = (solver(DEFAULT_LIMIT), solver(PATIENT));
    let mut times = Vec::new();
    let (mut proven, mut gap, mut below) = (0, 0.0_f64, 0.0_f64);
    for _ in 0..events {
        let problem = chain.problem().clone();
        let solution = hurried.solve(&problem);
        assert!(solution.fault.is_none(), "{}", solution.quality());
        times.push(solution.seconds);
        if solution.optimal {
            proven += 1;
        } else {
            gap = gap.max(solution.gap);
            let best = patient.solve(&problem).objective;
            below = below.max((best - solution.objective) / best);
        }
        chain.advance(&solution.shares);
    }
    format!(
        "{:.3} | {:.3} | {:.3} | {proven} of {events} ({:.0} %) | {:.3} % | {:.3} %",
        quantile(&mut times, 0.5),
        quantile(&mut times, 0.95),
        quantile(&mut times, 1.0),
        100.0 * f64::from(proven) / events as f64,
        100.0 * gap,
        100.0 * below,
    )
}

fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(part * (values.len() - 1) as f64).round() as usize]
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

fn seconds(time_s: f64) -> String {
    match time_s {
        s if s < 1e-3 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

fn ratio(time_s: f64, base_s: f64) -> String {
    format!("x {:.0}", time_s / base_s)
}
