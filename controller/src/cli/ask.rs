//! One question to the controller.

use std::path::Path;
use std::time::Duration;

use bftrainer::wire::{Answer, MAX_ANSWER_BYTES, Request};
use serde_json::Value;
use thiserror::Error;

use crate::config::{Config, ConfigError};
use crate::net::{self, NetError, Settings};
use crate::slurm_conf::{self, SlurmConf};

/// How long the controller may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// The configuration can't be read.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Nobody says who the controller must be.
    #[error("slurm.conf's SlurmUser is unknown on this host; is SLURM_CONF right?")]
    SlurmUser,
    /// No conversation with the controller.
    #[error("{0}{advice}", advice = net_advice(.0))]
    Net(#[from] NetError),
    /// The controller took too long.
    #[error("the controller has not answered in {} s", PATIENCE.as_secs())]
    TimeOut,
    /// The controller refused.
    #[error("{0}")]
    Refused(String),
    /// The system refused something.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// What may be behind an error that does not say so itself.
fn net_advice(error: &NetError) -> &'static str {
    match error {
        NetError::Connect { .. } => "; is bftrainerd running?",
        NetError::Closed | NetError::Io(_) | NetError::TimeOut(..) => {
            "; bftrainerd's log says more"
        }
        _ => "",
    }
}

/// Asks the controller named in the configuration.
pub fn ask(request: Request, config: Option<&Path>) -> Result<Vec<Value>, AskError> {
    let config = Config::read(&Config::path(config))?;
    let server_uid = SlurmConf::find().slurm_uid().ok_or(AskError::SlurmUser)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = runtime.block_on(async {
        let conversation = async {
            let settings = Settings::new(
                config
                    .munge_socket
                    .clone()
                    .or_else(slurm_conf::munge_socket),
            );
            let mut connection = net::connect(&config.controller, server_uid, &settings).await?;
            connection.set_max_read(MAX_ANSWER_BYTES);
            connection.write(&request).await?;
            connection.read::<Answer>().await
        };
        tokio::time::timeout(PATIENCE, conversation).await
    });
    match answer.map_err(|_| AskError::TimeOut)?? {
        Answer::Rows { rows } => Ok(rows),
        Answer::Failed { reason } => Err(AskError::Refused(reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::munge::MungeError;

    #[test]
    fn only_a_controller_that_can_not_be_reached_is_asked_after() {
        let unreachable = NetError::Connect {
            address: "head:7115".to_owned(),
            error: std::io::ErrorKind::ConnectionRefused.into(),
        };
        let asked = "is bftrainerd running?";
        assert!(AskError::Net(unreachable).to_string().contains(asked));
        let munge = || MungeError::NotRunning("/run/munge".to_owned(), "no socket".to_owned());
        for error in [
            NetError::Munge(munge()),
            NetError::Refused(munge().to_string()),
        ] {
            let text = AskError::Net(error).to_string();
            assert!(text.contains("munged does not answer"), "{text}");
            assert!(!text.contains("bftrainerd"), "{text}");
        }
    }
}
