//! Administrators' commands: root's and SlurmUser's alone.

use bftrainer::wire::{AdminCommand, Answer};
use bftrainer_core::engine::EngineConfig;
use serde_json::json;

use super::brain::{Brain, milp_solver};
use super::orders::Mode;
use crate::config::Config;

impl Brain {
    /// Does what `uid` commands, if it may, and says what was done.
    pub(super) fn command(&mut self, uid: u32, command: &AdminCommand) -> Answer {
        if !self.is_administrator(uid) {
            return Answer::Failed {
                reason: format!(
                    "only root and SlurmUser (uid {}) may do this, and you are uid {uid}",
                    self.settings.slurm_user_uid
                ),
            };
        }
        match self.done(command) {
            Ok(said) => {
                log::info!("uid {uid}: {said}");
                Answer::Rows {
                    rows: vec![json!({ "done": said })],
                }
            }
            Err(reason) => {
                log::warn!("uid {uid}: {reason}");
                Answer::Failed { reason }
            }
        }
    }

    /// Whether `uid` is root or SlurmUser.
    pub(super) fn is_administrator(&self, uid: u32) -> bool {
        uid == 0 || uid == self.settings.slurm_user_uid
    }

    fn done(&mut self, command: &AdminCommand) -> Result<String, String> {
        let before = self.admin_orders.clone();
        let said = match command {
            AdminCommand::Reload => return self.reload(),
            AdminCommand::Pause => {
                self.admin_orders.mode = Mode::Paused;
                "paused: no idle node is taken, trainers share what they have".to_owned()
            }
            AdminCommand::Resume => {
                self.admin_orders.mode = Mode::Running;
                "resumed: idle nodes are given to trainers".to_owned()
            }
            AdminCommand::Drain => {
                self.admin_orders.mode = Mode::Drained;
                "drained: all nodes are given back, trainers stay in the queue".to_owned()
            }
            AdminCommand::Exclude { nodes, reason } => {
                let names = self.known_nodes(nodes)?;
                let said = format!("excluded: {}", names.join(","));
                let excluded = names.into_iter().map(|name| (name, reason.clone()));
                self.admin_orders.excluded.extend(excluded);
                said
            }
            AdminCommand::Include { nodes } => {
                let names = host_list(nodes)?;
                let missing: Vec<&String> = names
                    .iter()
                    .filter(|name| !self.admin_orders.excluded.contains_key(*name))
                    .collect();
                if let Some(name) = missing.first() {
                    return Err(format!(
                        "{name} was not excluded by command; bftrainer show lists those, and \
                         exclude_nodes in bftrainer.toml holds the others"
                    ));
                }
                self.admin_orders
                    .excluded
                    .retain(|name, _| !names.contains(name));
                format!("included again: {}", names.join(","))
            }
        };
        if let Err(error) = self.admin_orders.keep() {
            self.admin_orders = before;
            return Err(format!(
                "nothing was done, as it can't be kept in the state directory: {error}"
            ));
        }
        self.look_at_everything();
        Ok(said)
    }

    fn known_nodes(&self, list: &str) -> Result<Vec<String>, String> {
        let names = host_list(list)?;
        match names
            .iter()
            .find(|name| !self.partition_nodes.contains(*name))
        {
            Some(name) => Err(format!(
                "{name} is not in partition {}, or not harvested anyway",
                self.config.partition
            )),
            None => Ok(names),
        }
    }

    /// Reads the configuration again; a wrong one changes nothing. The sentence to say of it.
    ///
    /// # Errors
    /// The sentence that says what is wrong.
    pub(super) fn reload(&mut self) -> Result<String, String> {
        let new = Config::read(&self.config.path)
            .map_err(|error| format!("the old configuration stays: {error}"))?;
        for list in &new.exclude_nodes {
            host_list(list)
                .map_err(|error| format!("the old configuration stays: exclude_nodes: {error}"))?;
        }
        let old = std::mem::replace(&mut self.config, new);
        let fixed = self.config.keep_fixed(&old);
        self.engine.set_config(EngineConfig {
            plan_grid_s: f64::from(self.settings.backfill_resolution_s),
            plan_wait_s: f64::from(self.settings.backfill_interval_s),
            ..self.config.engine.clone()
        });
        let solver_settings = |config: &Config| (config.solver_limit, config.solver_memory_mb);
        if solver_settings(&self.config) != solver_settings(&old) {
            self.engine.set_solver(milp_solver(&self.config));
        }
        self.classes.renew_speeds(&self.config.sharing);
        let mut events = Vec::new();
        self.observe_classes(&mut events);
        self.review_trainers(&mut events);
        self.immediate_events.extend(events);
        self.look_at_everything();
        let mut said = format!("configuration {} is in force", self.config.path.display());
        if !fixed.is_empty() {
            said += &format!(
                ", except {}, which need a restart of bftrainerd",
                fixed.join(", ")
            );
        }
        Ok(said)
    }
}

fn host_list(list: &str) -> Result<Vec<String>, String> {
    crate::slurm::hosts(list)
        .filter(|names| !names.is_empty())
        .ok_or_else(|| format!("\"{list}\" names no node; expected a host list as n[1-4]"))
}
