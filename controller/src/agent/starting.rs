//! From a Start to running ranks: first the control folder, on a thread beside
//! the loop, then the processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bftrainer::wire::{FromAgent, Outcome, Start};
use thiserror::Error;
use tokio::task::JoinHandle;

use super::control_folder::{ControlFolder, FolderError};
use super::environment::Placement;
use super::generation::Generation;
use super::log::say;
use super::ranks::Rank;
use super::session::{Session, finished};
use super::tee::Tee;

/// The node of rank 0 makes the folder; it must be seen here within this time.
const SEEN_WITHIN: Duration = Duration::from_secs(30);

/// How often the folder is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Exit codes for a folder that can't be used (sysexits.h) and a COMMAND that
/// can't be started (a shell's).
const FOLDER_UNUSABLE: i32 = 74;
const NO_COMMAND: i32 = 127;

/// A generation whose control folder is being prepared.
#[derive(Debug)]
pub(super) struct Preparing {
    start: Start,
    /// Live ranks run already, and go on in it.
    is_update: bool,
    cancelled: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), PrepareError>>>,
}

/// Why a generation can't start here.
#[derive(Debug, Error)]
pub(super) enum PrepareError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("stopped before it began")]
    Cancelled,
    #[error(
        "{0} is not seen here {1:.0} s after the first node made it: submit trainers from a \
         folder that all nodes share"
    )]
    NotShared(String, f64),
}

impl Preparing {
    /// The number of the generation that is prepared.
    pub fn number(preparing: &Option<Preparing>) -> Option<u64> {
        preparing
            .as_ref()
            .map(|preparing| preparing.start.generation)
    }

    /// The generation that is prepared and will start, unless it fails.
    pub fn start(preparing: &Option<Preparing>) -> Option<&Start> {
        let preparing = preparing.as_ref()?;
        let is_cancelled = preparing.cancelled.load(Ordering::Relaxed);
        (!is_cancelled).then_some(&preparing.start)
    }

    /// Has it end as stopped.
    pub fn cancel(preparing: &mut Option<Preparing>) {
        if let Some(preparing) = preparing {
            preparing.cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// As [`cancel`](Self::cancel), for a trainer whose generation has another number by now.
    pub fn cancel_as(preparing: &mut Option<Preparing>, number: u64) {
        Self::cancel(preparing);
        if let Some(preparing) = preparing {
            preparing.start.generation = number;
        }
    }

    /// Waits until it is prepared; never when there is none. Cancel safe.
    pub async fn done(preparing: &mut Option<Preparing>) -> Result<(), PrepareError> {
        match preparing {
            Some(preparing) => finished(&mut preparing.thread).await,
            None => std::future::pending().await,
        }
    }
}

impl Session {
    /// Prepares the control folder for `start`.
    pub(super) fn prepare(&mut self, start: Start) {
        let Some(trainer) = self.trainer else {
            return;
        };
        self.newest_seen = self.newest_seen.max(start.generation);
        let cancelled = Arc::new(AtomicBool::new(false));
        let preparation = Preparation {
            folder: self.folder.clone(),
            start: start.clone(),
            submit_time_s: trainer.submit_time_s,
            slots: self.work.slots,
            own_checkpoints: self.work.ckpt_dir.is_none(),
            cancelled: Arc::clone(&cancelled),
        };
        self.preparing = Some(Preparing {
            start,
            is_update: self.generation.is_some(),
            cancelled,
            thread: Some(tokio::task::spawn_blocking(move || preparation.run())),
        });
    }

    /// Starts the ranks of the generation that has been prepared.
    pub(super) fn on_prepared(&mut self, result: Result<(), PrepareError>) {
        let Some(preparing) = self.preparing.take() else {
            return;
        };
        let Preparing {
            start, cancelled, ..
        } = preparing;
        let number = start.generation;
        let result = match result {
            Ok(()) if cancelled.load(Ordering::Relaxed) => Err(PrepareError::Cancelled),
            result => result,
        };
        match result {
            result if preparing.is_update => self.on_updated(&start, result),
            Ok(()) => self.start_ranks(start),
            Err(error) => {
                say!("generation {number} does not start here: {error}");
                let outcome = self.outcome_of(error);
                self.report_stopped(number, outcome);
            }
        }
    }

    /// How a generation ends that could not be prepared.
    pub(super) fn outcome_of(&mut self, error: PrepareError) -> Outcome {
        match error {
            PrepareError::Cancelled => Outcome::Stopped,
            PrepareError::Folder(FolderError::Fenced { newest }) => {
                self.newest_seen = self.newest_seen.max(newest);
                Outcome::Fenced {
                    newest_generation: newest,
                }
            }
            error => Outcome::Failed {
                exit_code: FOLDER_UNUSABLE,
                reason: error.to_string(),
            },
        }
    }

    fn start_ranks(&mut self, start: Start) {
        let Some(trainer) = self.trainer else {
            return;
        };
        let number = start.generation;
        say!(
            "generation {number} starts on {} nodes, this is node rank {}",
            start.members.len(),
            start.node_rank
        );
        let ckpt_dir = self.work.ckpt_dir.clone();
        let ckpt_dir = ckpt_dir.unwrap_or_else(|| self.folder.file("ckpt"));
        let placement = Placement {
            start: &start,
            trainer_id: self.identity.array_job_id,
            node: &self.identity.node,
            min_nodes: trainer.min_nodes,
            max_nodes: trainer.max_nodes,
            grace_s: trainer.grace_s,
            deadline_s: start.deadline_s,
            control_dir: self.folder.path(),
            ckpt_dir: &ckpt_dir,
            report: self.inbox.as_ref().map(|inbox| inbox.path()),
            ranks_per_node: (!self.work.per_node).then_some(self.work.slots),
            is_live: self.work.live.is_some(),
        };
        let (mut ranks, mut failure) = (Vec::new(), None);
        for local in 0..placement.ranks_per_node.unwrap_or(1) {
            let is_rank_0 = start.node_rank == 0 && local == 0;
            let variables = placement.variables(local);
            // A live rank may become rank 0 later.
            let is_piped = is_rank_0 || self.work.live.is_some();
            match Rank::start(&self.work.command, &variables, is_piped) {
                Ok((rank, output)) => {
                    ranks.push(rank);
                    if let Some((stdout, stderr)) = output {
                        let log = self.folder.file("rank0.log");
                        match Tee::start(stdout, stderr, log, is_rank_0) {
                            Ok(tee) => self.tee = Some(tee),
                            Err(error) => failure = Some(format!("the rank's output: {error}")),
                        }
                    }
                }
                Err(error) => {
                    let program = self.work.command[0].display();
                    failure = Some(format!("{program} can't be started: {error}"));
                }
            }
            if failure.is_some() {
                break;
            }
        }
        let mut generation = Generation::new(start, ranks);
        match failure {
            Some(reason) => generation.kill(Outcome::Failed {
                exit_code: NO_COMMAND,
                reason,
            }),
            None => self.link.send(FromAgent::Started { generation: number }),
        }
        self.generation = Some(generation);
    }
}

/// The work on the control folder before a generation's ranks start here.
struct Preparation {
    folder: ControlFolder,
    start: Start,
    submit_time_s: i64,
    slots: u32,
    own_checkpoints: bool,
    cancelled: Arc<AtomicBool>,
}

impl Preparation {
    fn run(self) -> Result<(), PrepareError> {
        let Start {
            generation,
            node_rank,
            ref members,
            ..
        } = self.start;
        if node_rank == 0 {
            self.folder.own(self.submit_time_s)?;
            self.folder.claim(generation)?;
        } else {
            self.wait_for_folder()?;
            self.folder.check(generation)?;
        }
        if self.own_checkpoints {
            self.folder.make_checkpoints()?;
        }
        self.folder
            .write_hostfile(generation, members, self.slots)?;
        Ok(())
    }

    /// Until the folder is this trainer's: before, a rank would find an earlier
    /// trainer's checkpoints in it.
    fn wait_for_folder(&self) -> Result<(), PrepareError> {
        let give_up = Instant::now() + SEEN_WITHIN;
        while self.folder.read().submit_time_s != Some(self.submit_time_s) {
            if self.cancelled.load(Ordering::Relaxed) {
                return Err(PrepareError::Cancelled);
            }
            if Instant::now() > give_up {
                let path = self.folder.path().display().to_string();
                return Err(PrepareError::NotShared(path, SEEN_WITHIN.as_secs_f64()));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }
}
