//! What one test of the agent plays on.

use super::agent::{SubmitDir, Task};
use super::controller::{Controller, Peer};
use super::munged::Munged;

/// Munged, controller and submit directory of one test.
pub struct Stage {
    pub munged: Munged,
    pub controller: Controller,
    pub dir: SubmitDir,
}

impl Stage {
    pub async fn set() -> Self {
        let munged = Munged::start();
        let controller = Controller::listen(munged.settings()).await;
        let dir = SubmitDir::new();
        Stage {
            munged,
            controller,
            dir,
        }
    }

    /// A task that runs `script` as its ranks, and its welcomed agent.
    pub async fn task(&self, script: &str) -> (Task, Peer) {
        let setup = self
            .dir
            .task(&self.munged, &self.controller.address(), script);
        let task = setup.run();
        (task, self.controller.welcomed().await)
    }

    /// The controller goes and another comes in its place, with no connection kept.
    pub async fn restart_controller(mut self, peer: Peer) -> Self {
        let address = self.controller.address();
        drop(peer);
        drop(self.controller);
        self.controller = Controller::listen_on(&address, self.munged.settings()).await;
        self
    }

    /// All that the task has said on stderr.
    pub fn words(&self) -> String {
        self.dir.lines("err").join("\n")
    }
}
