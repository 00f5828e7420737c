//! Live ranks: told of another generation they go on, with a new host file and, if asked,
//! a signal. Only the control folder is prepared anew, beside them.

use bftrainer::wire::{FromAgent, Start};
use nix::sys::signal::Signal;

use super::control_folder::FolderError;
use super::generation::Generation;
use super::log::say;
use super::processes;
use super::session::Session;
use super::starting::{PrepareError, Preparing};

/// How COMMAND learns of another generation.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// Sent to its processes that catch it.
    pub notify: Option<Signal>,
}

/// Reads the name of a signal that may say "the host file has changed".
pub fn parse_signal(name: &str) -> Result<Signal, String> {
    const ALLOWED: [Signal; 4] = [
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGHUP,
        Signal::SIGWINCH,
    ];
    let bare = name.strip_prefix("SIG").unwrap_or(name);
    let signal = ALLOWED
        .into_iter()
        .find(|signal| signal.as_str() == format!("SIG{bare}"));
    signal.ok_or_else(|| "expected USR1, USR2, HUP or WINCH".to_owned())
}

impl Session {
    /// The ranks that run here belong to another generation from now on. Ranks that are
    /// ending end as members of it.
    pub(super) fn update(&mut self, start: Start) {
        let Some(generation) = &mut self.generation else {
            return;
        };
        self.newest_seen = self.newest_seen.max(start.generation);
        generation.start = start.clone();
        if let Some(tee) = &self.tee {
            tee.set_first(start.node_rank == 0);
        }
        Preparing::cancel(&mut self.preparing);
        self.pending = generation.is_running().then_some(start);
    }

    /// Whether the control folder may be prepared for ranks that run already.
    pub(super) fn may_update(&self) -> bool {
        self.work.live.is_some() && self.preparing.is_none()
    }

    /// The ranks ended as members of generation `number` before its folder was prepared.
    pub(super) fn forget_update(&mut self, number: u64) {
        self.pending.take_if(|start| start.generation == number);
        if Preparing::number(&self.preparing) == Some(number) {
            Preparing::cancel(&mut self.preparing);
        }
    }

    /// The control folder is as the ranks that run shall find it.
    pub(super) fn on_updated(&mut self, start: &Start, result: Result<(), PrepareError>) {
        let number = start.generation;
        let is_newest = |generation: &Generation| generation.start.generation == number;
        if !self.generation.as_ref().is_some_and(is_newest) {
            return;
        }
        match result {
            Ok(()) => {
                say!(
                    "generation {number}: the ranks go on, on {} nodes, this is node rank {}",
                    start.members.len(),
                    start.node_rank
                );
                if let Some(signal) = self.work.live.and_then(|live| live.notify) {
                    processes::notify_descendants(signal as i32);
                }
                self.link.send(FromAgent::Started { generation: number });
            }
            Err(PrepareError::Cancelled) => {}
            Err(PrepareError::Folder(FolderError::Fenced { .. })) if start.node_rank > 0 => {
                // A newer one is being told, or its host file leaves this node out.
            }
            Err(error) => {
                say!("the ranks can't go on in generation {number}: {error}");
                let outcome = self.outcome_of(error);
                if let Some(generation) = &mut self.generation {
                    generation.kill(outcome);
                }
            }
        }
    }
}
