//! The TCP port for agents and users' commands: who connects proves who it is,
//! then joins as an agent or asks one question.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bftrainer::wire::{Answer, FromAgent, Request, ToAgent};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::Input;
use super::unproven::{Place, Unproven};
use crate::logging::Seldom;
use crate::net::{Connection, NetError, Settings, accept};

/// Connections that may be open at once; further ones are closed at once.
const MOST_CONNECTIONS: usize = 20_000;

/// Connections of one host that may be open unproven. A proof takes milliseconds, so a login
/// node's commands need far fewer at once; of more agents behind one address, after a restart,
/// those that are turned out come again. To hold all connections, twenty hosts must join.
const MOST_UNPROVEN: usize = 1024;

/// An agent sends at least a heartbeat in this time.
const AGENT_SILENCE: Duration = Duration::from_secs(300);

/// A command asks, and is answered, within this time.
const QUESTION: Duration = Duration::from_secs(20);

static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// Serves the port for ever.
pub async fn accept_all(
    listener: TcpListener,
    munge_socket: Option<PathBuf>,
    inputs: mpsc::UnboundedSender<Input>,
) {
    let settings = Arc::new(Settings::new(munge_socket));
    let open = Arc::new(AtomicUsize::new(0));
    let unproven = Unproven::new(MOST_UNPROVEN);
    let [mut failed, mut full, mut crowded] = std::array::from_fn(|_| Seldom::default());
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: others will be closed.
                if let Some(more) = failed.due() {
                    log::warn!("a connection could not be accepted: {error}{more}");
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        if open.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
            if let Some(more) = full.due() {
                log::warn!("{address} turned away: {MOST_CONNECTIONS} connections are open{more}");
            }
            continue;
        }
        let (place, is_crowded) = unproven.enter(address.ip());
        if is_crowded && let Some(more) = crowded.due() {
            log::warn!(
                "{} has {MOST_UNPROVEN} connections open without a proof who it is: the oldest \
                 gives way{more}",
                address.ip()
            );
        }
        open.fetch_add(1, Ordering::Relaxed);
        let (settings, inputs, open) = (settings.clone(), inputs.clone(), open.clone());
        tokio::spawn(async move {
            if let Err(error) = serve(stream, place, &settings, inputs).await {
                log::debug!("{address}: {error}");
            }
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

async fn serve(
    stream: TcpStream,
    place: Place,
    settings: &Settings,
    inputs: mpsc::UnboundedSender<Input>,
) -> Result<(), NetError> {
    let Some(accepted) = place.keep_for(accept(stream, settings)).await else {
        return Ok(());
    };
    let mut accepted = accepted?;
    let limit = || NetError::TimeOut(QUESTION.as_secs_f64(), "its request");
    let request = timeout(QUESTION, accepted.connection.read::<Request>())
        .await
        .map_err(|_| limit())??;
    match request {
        Request::Query(query) => {
            let uid = accepted.uid;
            let input = |answer| Input::Query { uid, query, answer };
            ask(accepted.connection, input, &inputs).await
        }
        Request::Set(set) => {
            let uid = accepted.uid;
            let input = |answer| Input::Set { uid, set, answer };
            ask(accepted.connection, input, &inputs).await
        }
        Request::Join(join) => {
            let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
            let (to_agent, messages) = mpsc::unbounded_channel();
            let joined = Input::Joined {
                connection,
                uid: accepted.uid,
                join,
                to_agent,
            };
            if inputs.send(joined).is_err() {
                return Ok(());
            }
            let result = converse(accepted.connection, connection, messages, &inputs).await;
            // Nobody listens any more only when the daemon stops.
            let _ = inputs.send(Input::Disconnected { connection });
            result
        }
    }
}

async fn ask(
    mut connection: Connection,
    input: impl FnOnce(oneshot::Sender<Answer>) -> Input,
    inputs: &mpsc::UnboundedSender<Input>,
) -> Result<(), NetError> {
    let (sender, receiver) = oneshot::channel();
    if inputs.send(input(sender)).is_err() {
        return Ok(());
    }
    let answer = match timeout(QUESTION, receiver).await {
        Ok(Ok(answer)) => answer,
        _ => Answer::Failed {
            reason: "the controller is busy; ask again".to_owned(),
        },
    };
    connection.write(&answer).await
}

/// Carries an agent's messages in and the brain's messages out until either ends.
async fn converse(
    connection: Connection,
    number: u64,
    mut messages: mpsc::UnboundedReceiver<ToAgent>,
    inputs: &mpsc::UnboundedSender<Input>,
) -> Result<(), NetError> {
    let (mut reader, mut writer) = connection.split::<FromAgent, ToAgent>();
    loop {
        tokio::select! {
            message = timeout(AGENT_SILENCE, reader.read()) => {
                let silence = NetError::TimeOut(AGENT_SILENCE.as_secs_f64(), "a heartbeat");
                let message = message.map_err(|_| silence)??;
                if inputs.send(Input::Agent { connection: number, message }).is_err() {
                    return Ok(());
                }
            }
            message = messages.recv() => match message {
                Some(message) => writer.write(&message).await?,
                // The brain has let the agent go.
                None => return Ok(()),
            }
        }
    }
}
