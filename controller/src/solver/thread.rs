//! A thread of its own for the allocator, so that whoever asks need not wait.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use bftrainer_core::allocation::{Allocator, Problem, Solution};

/// What is done with an answer, on the solver's thread: sending it on.
type Deliver = Box<dyn FnOnce(Problem, Solution) + Send>;

/// Asks an allocator on a thread of its own, one problem after the other.
///
/// An answer belongs to the problem it comes with: the asker checks with [`Problem::check`] that
/// it still holds for what has become of the pool. Dropping it ends the thread after the problem
/// that it is at.
#[derive(Debug)]
pub struct SolverThread {
    questions: Sender<(Problem, Deliver)>,
}

impl SolverThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub fn start(allocator: Allocator) -> io::Result<Self> {
        let (questions, asked) = channel();
        std::thread::Builder::new()
            .name("solver".to_owned())
            .spawn(move || answer_all(allocator, &asked))?;
        Ok(Self { questions })
    }

    /// Has `problem` solved and hands it to `deliver` with the answer.
    ///
    /// # Errors
    /// Gives the problem back when the thread has ended, which only a panic brings about.
    pub fn ask(
        &self,
        problem: Problem,
        deliver: impl FnOnce(Problem, Solution) + Send + 'static,
    ) -> Result<(), Problem> {
        self.questions
            .send((problem, Box::new(deliver)))
            .map_err(|refused| refused.0.0)
    }
}

fn answer_all(mut allocator: Allocator, asked: &Receiver<(Problem, Deliver)>) {
    while let Ok((problem, deliver)) = asked.recv() {
        let solution = allocator.solve(&problem).clone();
        deliver(problem, solution);
    }
}
