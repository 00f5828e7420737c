//! `bftrainer solve`: allocation instances in, answers out, one JSON object a line. A line that
//! is no instance is reported and the rest goes on.

mod instance;
mod lines;

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bftrainer_core::allocation::{Allocator, DpSolver, Problem, Solution, published_bound};
use clap::{Args, ValueEnum};

use crate::solver::{MilpSolver, Settings};
use instance::{Answer, Instance, InstanceError};
use lines::Line;

/// Longest line that is read, bytes: a hundred times what 1,000 trainers take.
const MAX_LINE: usize = 16 << 20;

/// Longest time limit, seconds.
const MAX_LIMIT_S: f64 = 86_400.0;

/// How often progress is shown.
const PROGRESS: Duration = Duration::from_millis(500);

/// `bftrainer solve`.
#[derive(Debug, Args)]
pub struct SolveArgs {
    /// Instances, one JSON object a line; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Who solves: `dp` needs nodes that are alike and no caps; `auto` takes it where it can
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    solver: Choice,
    /// Let no trainer change by more than half the pool, as the authors' own code does by accident
    #[arg(long)]
    half_pool_bound: bool,
    /// Time limit for an instance of the mixed-integer program; beyond it, the best answer so far
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = limit)]
    limit: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Choice {
    Auto,
    Dp,
    Milp,
}

fn limit(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|limit| *limit > 0.0 && *limit <= MAX_LIMIT_S)
        .ok_or_else(|| format!("expected seconds, above 0 and at most {MAX_LIMIT_S}"))
}

/// Runs `bftrainer solve`: 0 when every line has its answer, 1 when one has not or an answer is
/// only what could be had after the solver's process failed, 2 when the file can't be read.
pub fn solve(args: &SolveArgs) -> ExitCode {
    let name = args.file.display().to_string();
    let (input, length): (Box<dyn BufRead>, u64) = if args.file == Path::new("-") {
        (Box::new(io::stdin().lock()), 0)
    } else {
        match open(&args.file) {
            Ok((file, length)) => (Box::new(BufReader::new(file)), length),
            Err(error) => {
                eprintln!("bftrainer: {name}: {error}");
                return ExitCode::from(2);
            }
        }
    };
    let mut solvers = Solvers::new(args);
    match answer_all(input, &name, length, &mut solvers) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever read the answers has enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bftrainer: {name}: {error}");
            ExitCode::from(2)
        }
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok((file, metadata.len()))
}

/// Whether every line has its answer.
fn answer_all(
    mut input: impl BufRead,
    name: &str,
    length: u64,
    solvers: &mut Solvers,
) -> io::Result<bool> {
    let mut output = io::stdout().lock();
    let mut progress = Progress::new(length);
    let (mut number, mut answered, mut failed) = (0_u64, 0_u64, 0_u64);
    while let Some(line) = lines::next(&mut input, MAX_LINE, &mut progress.taken)? {
        number += 1;
        let line = match line {
            Line::Bytes(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
            other => other,
        };
        let (answer, complaint) = answer(&line, solvers);
        if let Some(complaint) = complaint {
            failed += 1;
            progress.clear();
            eprintln!("bftrainer: {name}:{number}: {complaint}");
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err((id, error)) => Answer::failed(id, format!("line {number}: {error}")),
        };
        answered += 1;
        serde_json::to_writer(&mut output, &answer)?;
        output.write_all(b"\n")?;
        output.flush()?;
        progress.show(answered, failed);
    }
    progress.clear();
    if answered == 0 {
        eprintln!("bftrainer: {name}: no instance in it");
    }
    Ok(failed == 0)
}

/// The answer to a line, and what is to be said about it.
fn answer(
    line: &Line,
    solvers: &mut Solvers,
) -> (
    Result<Answer, (serde_json::Value, InstanceError)>,
    Option<String>,
) {
    let refused = |id, error: InstanceError| {
        let complaint = error.to_string();
        (Err((id, error)), Some(complaint))
    };
    let Line::Bytes(line) = line else {
        return refused(serde_json::Value::Null, InstanceError::TooLong(MAX_LINE));
    };
    let instance = match Instance::parse(line) {
        Ok(instance) => instance,
        Err(error) => return refused(Instance::id_of(line), error),
    };
    let solved = instance
        .problem()
        .and_then(|problem| solvers.solve(&instance, &problem));
    match solved {
        Ok(solution) => {
            let complaint = solution.fault.map(|_| solution.quality());
            (Ok(Answer::found(&instance, &solution)), complaint)
        }
        Err(error) => refused(instance.id, error),
    }
}

/// The solvers, each begun when it is first needed.
struct Solvers {
    choice: Choice,
    half_pool_bound: bool,
    limit: Duration,
    dp: DpSolver,
    allocator: Option<Allocator>,
    milp: Option<MilpSolver>,
}

impl Solvers {
    fn new(args: &SolveArgs) -> Self {
        Self {
            choice: args.solver,
            half_pool_bound: args.half_pool_bound,
            limit: Duration::from_secs_f64(args.limit),
            dp: DpSolver::new(),
            allocator: None,
            milp: None,
        }
    }

    fn solve(&mut self, instance: &Instance, problem: &Problem) -> Result<Solution, InstanceError> {
        let start = Instant::now();
        let mut solution = match self.choice {
            _ if self.half_pool_bound => self.solve_bounded(instance, problem)?,
            Choice::Dp if !problem.is_uniform() => return Err(InstanceError::NotUniform),
            Choice::Auto if !problem.is_uniform() => {
                let limit = self.limit;
                let milp = || MilpSolver::new(Settings::default(), limit);
                let begin = || Allocator::new(Box::new(milp()));
                let allocator = self.allocator.get_or_insert_with(begin);
                allocator.solve(problem).clone()
            }
            Choice::Auto | Choice::Dp => self.dp.solve(problem).clone(),
            Choice::Milp => {
                let solved = self.milp(problem, None);
                solved.ok_or(InstanceError::Infeasible)?
            }
        };
        solution.objective = problem.objective(&solution.shares)?;
        solution.seconds = start.elapsed().as_secs_f64();
        Ok(solution)
    }

    fn solve_bounded(
        &mut self,
        instance: &Instance,
        problem: &Problem,
    ) -> Result<Solution, InstanceError> {
        if instance.has_classes() || !problem.is_uniform() {
            return Err(InstanceError::HalfPool);
        }
        let solution = match (self.choice, published_bound(problem)) {
            (Choice::Milp, Some(bound)) => self.milp(problem, Some(bound)),
            (Choice::Milp, None) => None,
            _ => self.dp.solve_as_published(problem).cloned(),
        };
        solution.ok_or(InstanceError::Infeasible)
    }

    fn milp(&mut self, problem: &Problem, max_change: Option<u32>) -> Option<Solution> {
        let begin = || MilpSolver::new(Settings::default(), self.limit);
        let milp = self.milp.get_or_insert_with(begin);
        milp.solve_with(problem, max_change, self.limit)
    }
}

/// How far it is, on a terminal that shows nothing else.
struct Progress {
    taken: u64,
    length: u64,
    shown: Instant,
    is_wanted: bool,
    is_visible: bool,
}

impl Progress {
    fn new(length: u64) -> Self {
        Self {
            taken: 0,
            length,
            shown: Instant::now(),
            is_wanted: io::stderr().is_terminal() && !io::stdout().is_terminal(),
            is_visible: false,
        }
    }

    fn show(&mut self, answered: u64, failed: u64) {
        if !self.is_wanted || self.shown.elapsed() < PROGRESS {
            return;
        }
        let part = match self.length {
            0 => String::new(),
            length => format!(", {} %", 100 * self.taken.min(length) / length),
        };
        eprint!("\r{answered} answered, {failed} failed{part} ");
        self.shown = Instant::now();
        self.is_visible = true;
    }

    fn clear(&mut self) {
        if self.is_visible {
            eprint!("\r\x1b[K");
            self.is_visible = false;
        }
    }
}
