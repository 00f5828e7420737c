//! A controller that does what the test says, over the real protocol.

use bftrainer::wire::{FromAgent, Join, Member, Outcome, Request, Start, ToAgent};
use bftrainer_controller::net::{self, Settings, Writer};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::within;

/// When the tests' trainer was submitted.
pub const SUBMIT_TIME_S: i64 = 1_796_043_852;

/// Listens for agents.
pub struct Controller {
    listener: TcpListener,
    settings: Settings,
}

impl Controller {
    /// On a free port.
    pub async fn listen(settings: Settings) -> Self {
        Self::listen_on("127.0.0.1:0", settings).await
    }

    /// On a given address, as a controller that comes back.
    pub async fn listen_on(address: &str, settings: Settings) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        Controller { listener, settings }
    }

    /// Where agents find it.
    pub fn address(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }

    /// The server's half of one handshake, whatever comes of it.
    pub async fn handshake(&self) {
        let (stream, _) = self.listener.accept().await.unwrap();
        let _ = net::accept(stream, &self.settings).await;
    }

    /// The next agent that joins.
    pub async fn agent(&self) -> Peer {
        within("an agent joins", async {
            let (stream, _) = self.listener.accept().await.unwrap();
            let accepted = net::accept(stream, &self.settings).await.unwrap();
            assert_eq!(accepted.uid, super::own_uid());
            let mut connection = accepted.connection;
            let Request::Join(join) = connection.read().await.unwrap() else {
                panic!("an agent asks to join first");
            };
            let (mut reader, writer) = connection.split::<FromAgent, ToAgent>();
            let (heard, messages) = mpsc::unbounded_channel();
            let task = tokio::spawn(async move {
                while let Ok(message) = reader.read().await {
                    if heard.send(message).is_err() {
                        return;
                    }
                }
            });
            Peer {
                join,
                messages,
                writer,
                task,
            }
        })
        .await
    }

    /// The next agent that joins, welcomed.
    pub async fn welcomed(&self) -> Peer {
        let mut peer = self.agent().await;
        peer.send(joined()).await;
        peer
    }
}

/// One connected agent. Dropping it cuts the connection.
pub struct Peer {
    /// How it joined.
    pub join: Join,
    messages: mpsc::UnboundedReceiver<FromAgent>,
    writer: Writer<ToAgent>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Peer {
    pub async fn send(&mut self, message: ToAgent) {
        self.writer.write(&message).await.unwrap();
    }

    /// Starts a generation on this agent's node alone.
    pub async fn start(&mut self, generation: u64) {
        let message = start(generation, 0, &[&self.join.node]);
        self.send(ToAgent::Start(message)).await;
    }

    pub async fn stop(&mut self, generation: u64, grace_s: f64) {
        self.send(ToAgent::Stop {
            generation,
            grace_s,
        })
        .await;
    }

    /// The next message; heartbeats are answered. `None` at the end.
    pub async fn next(&mut self) -> Option<FromAgent> {
        within("the agent says something", async {
            loop {
                match self.messages.recv().await {
                    Some(FromAgent::Heartbeat) => {
                        let _ = self.writer.write(&ToAgent::Heartbeat).await;
                    }
                    other => return other,
                }
            }
        })
        .await
    }

    /// The next message that is no progress.
    pub async fn next_event(&mut self) -> Option<FromAgent> {
        loop {
            match self.next().await {
                Some(FromAgent::Progress(_)) => {}
                other => return other,
            }
        }
    }

    /// Waits until the ranks of `generation` run.
    pub async fn started(&mut self, generation: u64) {
        let expected = FromAgent::Started { generation };
        assert_eq!(self.next_event().await, Some(expected));
    }

    /// How `generation` ends.
    pub async fn stopped(&mut self, generation: u64) -> Outcome {
        match self.next_event().await {
            Some(FromAgent::Stopped {
                generation: number,
                outcome,
                free_port,
            }) => {
                assert_eq!(number, generation);
                assert_ne!(free_port, 0);
                outcome
            }
            other => panic!("not the end of generation {generation}: {other:?}"),
        }
    }
}

/// The usual welcome. Heartbeats are rare, so that a busy machine misses none.
pub fn joined() -> ToAgent {
    ToAgent::Joined {
        min_nodes: 1,
        max_nodes: 4,
        submit_time_s: SUBMIT_TIME_S,
        heartbeat_s: 10.0,
        grace_s: 30.0,
        end_time_s: None,
        time_s: None,
    }
}

/// A generation on `nodes`, as the node of `node_rank` sees it.
pub fn start(generation: u64, node_rank: u32, nodes: &[&str]) -> Start {
    let members = nodes.iter().zip(1..).map(|(node, number)| Member {
        node: (*node).to_owned(),
        address: format!("127.0.0.{number}"),
    });
    Start {
        generation,
        node_rank,
        members: members.collect(),
        master_port: 23_456,
        deadline_s: None,
    }
}
