//! What agents, users' commands and the controller say to each other: JSON
//! frames over TCP, each preceded by its length as a big-endian u32.
//!
//! Both sides first prove who they are (munge): the server sends a nonce, the
//! client answers with a credential over both nonces, the server does the same.
//! Then the client sends one [`Request`].

use serde::{Deserialize, Serialize};

/// This build's protocol version.
pub const PROTOCOL: u16 = 1;

/// Oldest version that is still understood.
pub const OLDEST_PROTOCOL: u16 = 1;

/// Longest frame in bytes that an agent or a command may send, and an agent receives.
pub const MAX_FRAME_BYTES: usize = 64 * 1024;

/// Longest answer in bytes that a command accepts.
pub const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// The server's first frame.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerHello {
    /// The server's protocol version.
    pub protocol: u16,
    /// The oldest version that the server understands.
    pub oldest: u16,
    /// Fresh random text that the client's credential must carry.
    pub nonce: String,
}

/// The client's first frame.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientHello {
    /// The client's protocol version.
    pub protocol: u16,
    /// Fresh random text that the server's credential must carry.
    pub nonce: String,
    /// Munge credential over [`client_payload`].
    pub credential: String,
}

/// The server's answer to [`ClientHello`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum ServerProof {
    /// Welcome: a munge credential over [`server_payload`].
    Welcome {
        /// The credential.
        credential: String,
    },
    /// Refused, with one sentence.
    Refused {
        /// Why.
        reason: String,
    },
}

/// What the client's munge credential carries.
pub fn client_payload(server_nonce: &str, client_nonce: &str) -> String {
    format!("bftrainer client {server_nonce} {client_nonce}")
}

/// What the server's munge credential carries.
pub fn server_payload(server_nonce: &str, client_nonce: &str) -> String {
    format!("bftrainer server {server_nonce} {client_nonce}")
}

/// The first frame after both proofs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// A worker agent: [`FromAgent`] and [`ToAgent`] frames follow.
    Join(Join),
    /// A user's or administrator's question: one [`Answer`] follows.
    Query(Query),
    /// A change of a trainer's specification: one [`Answer`] follows, without rows.
    Set(Set),
}

/// Heartbeats that may stay away, either way, before the peer is lost.
pub const MISSED_HEARTBEATS: f64 = 3.0;

/// Who a worker agent is and what it is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// The trainer: Slurm's array job id.
    pub array_job_id: u32,
    /// The task in the array.
    pub array_task_id: u32,
    /// The task's own job id.
    pub job_id: u32,
    /// Slurm's count of restarts of the task.
    pub restart_count: u32,
    /// Slurm's name of the node.
    pub node: String,
    /// A free TCP port on the node, for the next generation's master.
    pub free_port: u16,
    /// The generation whose ranks run here now.
    pub generation: Option<u64>,
    /// That generation's node names in rank order; empty when none runs.
    pub members: Vec<String>,
    /// The submit time that the control folder carries, epoch seconds: when it
    /// is not the trainer's, the next two fields speak of an earlier trainer of
    /// the same number. `None`: no such folder.
    pub folder_submit_time_s: Option<i64>,
    /// The newest generation that the control folder knows; 0 when none.
    pub newest_generation: u64,
    /// The trainer's verdict in the control folder.
    pub verdict: Option<i32>,
    /// Whether the ranks outlive changes of membership: told to start another
    /// generation, they go on in it. Agents that don't say start them anew.
    #[serde(default)]
    pub live: bool,
}

/// A worker agent's messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum FromAgent {
    /// Alive; sent every heartbeat.
    Heartbeat,
    /// The ranks of `generation` run.
    Started {
        /// The generation.
        generation: u64,
    },
    /// No rank of `generation` runs any more.
    Stopped {
        /// The generation.
        generation: u64,
        /// How they ended.
        outcome: Outcome,
        /// A free TCP port for the next generation's master.
        free_port: u16,
    },
    /// The newest progress line.
    Progress(Progress),
    /// The agent's last message: Slurm signalled it, or its time is over.
    Leaving {
        /// Why, in words.
        reason: String,
        /// Whether Slurm wants the node back.
        preempted: bool,
    },
}

/// How a generation's ranks on one node ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum Outcome {
    /// They were told to stop, or ended as preempted (143, SIGTERM).
    Stopped,
    /// They exited 0; on rank 0's node the trainer is finished.
    Exited,
    /// They ended otherwise.
    Failed {
        /// The exit code, 128 + signal for a signal.
        exit_code: i32,
        /// In words: what and which rank.
        reason: String,
    },
    /// They were killed, or not started at all, because the control folder
    /// knows a newer generation: start one above it. Nobody's failure.
    Fenced {
        /// The number in the control folder.
        newest_generation: u64,
    },
}

/// A line of progress from rank 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Cumulative samples, as in the checkpoint.
    pub samples: u64,
    /// Epoch seconds at which they were reached.
    pub time_s: Option<f64>,
    /// The generation that reports.
    pub generation: Option<u64>,
    /// The loss.
    pub loss: Option<f64>,
    /// The epoch.
    pub epoch: Option<f64>,
    /// Samples in all.
    pub total: Option<u64>,
    /// Whether the program says it is done.
    #[serde(default)]
    pub done: bool,
}

/// The controller's messages to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum ToAgent {
    /// Joined: what the agent needs to know of its trainer.
    Joined {
        /// Fewest nodes.
        min_nodes: u32,
        /// Most nodes.
        max_nodes: u32,
        /// When the trainer was submitted, epoch seconds, as the controller found
        /// it at admission (Slurm's own moves at each requeue).
        submit_time_s: i64,
        /// Seconds between heartbeats.
        heartbeat_s: f64,
        /// Seconds from SIGTERM to SIGKILL of ranks.
        grace_s: f64,
        /// Epoch seconds at which Slurm's limit ends the task.
        end_time_s: Option<i64>,
        /// The time by which the controller goes, slurmctld's, epoch seconds. Controllers
        /// that don't say leave the agent to its host's clock.
        #[serde(default)]
        time_s: Option<f64>,
    },
    /// Alive: the answer to each [`FromAgent::Heartbeat`]. An agent that hears
    /// nothing for three heartbeats connects anew.
    Heartbeat,
    /// Start the ranks of a generation; live ranks that run go on in it.
    Start(Start),
    /// Stop the ranks of `generation`, live ones of an older one as well: SIGTERM, SIGKILL after `grace_s` (0: at once).
    Stop {
        /// The generation.
        generation: u64,
        /// Seconds between SIGTERM and SIGKILL.
        grace_s: f64,
    },
    /// The trainer has ended: exit with this code.
    Close {
        /// The verdict's exit code.
        exit_code: i32,
    },
    /// The limit has moved.
    Until {
        /// Epoch seconds at which Slurm's limit ends the task.
        end_time_s: Option<i64>,
    },
    /// Slurm is ending this task, though its signal may not have arrived (one that
    /// meets a task while it is being launched is lost): exit at once.
    Ended,
    /// Go: this agent is not wanted, with the reason.
    Refused {
        /// Why.
        reason: String,
    },
}

/// One generation as one node sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The generation's number.
    pub generation: u64,
    /// This node's rank among the members.
    pub node_rank: u32,
    /// All members in rank order.
    pub members: Vec<Member>,
    /// The port that the first member's agent picked.
    pub master_port: u16,
    /// Epoch seconds by which this node is expected back.
    pub deadline_s: Option<i64>,
}

/// A node of a generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Slurm's name of the node.
    pub node: String,
    /// Its address from Slurm.
    pub address: String,
}

/// Users' and administrators' questions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum Query {
    /// The trainers.
    Queue,
    /// The pool's nodes.
    Nodes,
    /// One trainer, or the controller's totals.
    Show {
        /// The trainer; `None` for the totals.
        array_job_id: Option<u32>,
    },
    /// The last decisions with their reasons.
    Why {
        /// Only those that name this trainer.
        array_job_id: Option<u32>,
    },
    /// Node-hours harvested, by day, user and account.
    History {
        /// The last days only, today included; `None` for all.
        days: Option<u32>,
    },
    /// An administrator's command.
    Command(AdminCommand),
}

/// What root and SlurmUser may command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum AdminCommand {
    /// No more idle nodes are taken.
    Pause,
    /// A pause or a drain ends.
    Resume,
    /// All nodes are given back; trainers stay.
    Drain,
    /// Nodes are left alone.
    Exclude {
        /// Host list.
        nodes: String,
        /// Why.
        reason: String,
    },
    /// Excluded nodes are harvested again.
    Include {
        /// Host list.
        nodes: String,
    },
    /// The configuration is read again.
    Reload,
}

/// A trainer's specification is to be changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Set {
    /// The trainer.
    pub array_job_id: u32,
    /// `KEY=VALUE,...` of a specification.
    pub changes: String,
}

/// The controller's answer to a [`Query`] or a [`Set`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum Answer {
    /// Rows, ready to be shown.
    Rows {
        /// Objects with the columns as keys.
        rows: Vec<serde_json::Value>,
    },
    /// Refused or failed, with one sentence.
    Failed {
        /// Why.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use std::fmt::Debug;

    fn comes_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: T) {
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<T>(&text).unwrap(), message, "{text}");
    }

    #[test]
    fn messages_within_messages_come_back_as_they_were_sent() {
        comes_back(Request::Query(Query::Show {
            array_job_id: Some(7),
        }));
        comes_back(Request::Query(Query::Command(AdminCommand::Exclude {
            nodes: "n[1-4]".into(),
            reason: "fan".into(),
        })));
        comes_back(Request::Query(Query::Command(AdminCommand::Pause)));
        comes_back(Request::Join(Join {
            array_job_id: 7,
            array_task_id: 1,
            job_id: 9,
            restart_count: 0,
            node: "n1".into(),
            free_port: 1,
            generation: Some(3),
            members: vec!["n1".into()],
            folder_submit_time_s: None,
            newest_generation: 3,
            verdict: Some(0),
            live: true,
        }));
        for outcome in [
            Outcome::Stopped,
            Outcome::Failed {
                exit_code: 1,
                reason: "x".into(),
            },
            Outcome::Fenced {
                newest_generation: 9,
            },
        ] {
            comes_back(FromAgent::Stopped {
                generation: 3,
                outcome,
                free_port: 1,
            });
        }
        comes_back(FromAgent::Progress(Progress::default()));
        comes_back(ToAgent::Start(Start {
            generation: 3,
            node_rank: 0,
            members: Vec::new(),
            master_port: 1,
            deadline_s: None,
        }));
        comes_back(Answer::Rows {
            rows: vec![serde_json::json!({"t": 1})],
        });
    }

    #[test]
    fn an_agent_that_does_not_say_is_not_live() {
        let join = r#"{"array_job_id": 7, "array_task_id": 1, "job_id": 9, "restart_count": 0,
            "node": "n1", "free_port": 1, "generation": null, "members": [],
            "folder_submit_time_s": null, "newest_generation": 0, "verdict": null}"#;
        assert!(!serde_json::from_str::<Join>(join).unwrap().live);
    }
}
