//! Frames and the handshake of `bftrainer::wire`, both sides.
//!
//! A frame is its length (u32, big endian) and JSON. Nothing is reserved for a
//! length that a peer merely claims, a frame that has begun must be whole within
//! the frame time-out, and no peer can hold a connection open unproven for
//! longer than the handshake time-out.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bftrainer::wire::{
    ClientHello, OLDEST_PROTOCOL, PROTOCOL, ServerHello, ServerProof, client_payload,
    server_payload,
};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::munge::{self, Credential, MungeError};

mod frame;

pub use frame::{Connection, Reader, Writer};

/// Bytes of randomness in a nonce.
const NONCE_BYTES: usize = 16;

/// Why a connection could not be made or ended.
#[derive(Debug, Error)]
pub enum NetError {
    /// No TCP connection.
    #[error("{address} can't be reached: {error}")]
    Connect {
        /// Host and port.
        address: String,
        /// The system's words.
        error: io::Error,
    },
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// Reading or writing failed.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// The peer was too slow.
    #[error("the peer was silent for {0:.1} s while {1} was due")]
    TimeOut(f64, &'static str),
    /// A frame beyond the limit.
    #[error("a frame of {bytes} bytes: at most {most} are taken")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// A frame that is not the expected message.
    #[error("the peer sent something else than the expected message: {0}")]
    Garbage(serde_json::Error),
    /// Munge failed on this side.
    #[error(transparent)]
    Munge(#[from] MungeError),
    /// The server's credential is not the controller's.
    #[error("the server runs as uid {uid}, not as the controller's uid {expected}: not trusted")]
    WrongServer {
        /// Whose credential it was.
        uid: u32,
        /// The controller's uid.
        expected: u32,
    },
    /// A credential that answers another conversation.
    #[error("the peer's credential does not belong to this connection")]
    WrongCredential,
    /// No common protocol version.
    #[error(
        "the controller speaks protocol {server_oldest} to {server}, this program \
         {OLDEST_PROTOCOL} to {PROTOCOL}: install versions at most one apart"
    )]
    Version {
        /// The server's version.
        server: u16,
        /// The oldest that the server understands.
        server_oldest: u16,
    },
    /// The server refused, with its sentence.
    #[error("refused: {0}")]
    Refused(String),
    /// A munge call did not come back.
    #[error("the munge call was lost")]
    Lost,
}

/// What both sides of a connection go by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// munged's socket; `None` for libmunge's default.
    pub munge_socket: Option<PathBuf>,
    /// From the first byte to both proofs.
    pub handshake_timeout: Duration,
    /// For a frame that has begun, either way.
    pub frame_timeout: Duration,
}

impl Settings {
    /// The default time-outs (10 s each) with munged at `munge_socket`.
    pub fn new(munge_socket: Option<PathBuf>) -> Self {
        Settings {
            munge_socket,
            handshake_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(10),
        }
    }
}

/// Connects to the controller at `address` (`host:port`) and proves both sides:
/// ours to it, and that it runs as `server_uid`.
pub async fn connect(
    address: &str,
    server_uid: u32,
    settings: &Settings,
) -> Result<Connection, NetError> {
    let unreachable = |error| NetError::Connect {
        address: address.to_owned(),
        error,
    };
    let limit = settings.handshake_timeout;
    let stream = timeout(limit, TcpStream::connect(address))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(unreachable)?;
    timeout(limit, prove_to_server(stream, server_uid, settings))
        .await
        .unwrap_or(Err(NetError::TimeOut(limit.as_secs_f64(), "its proof")))
}

async fn prove_to_server(
    stream: TcpStream,
    server_uid: u32,
    settings: &Settings,
) -> Result<Connection, NetError> {
    let mut connection = Connection::new(stream, settings)?;
    let server: ServerHello = connection.read().await?;
    if server.protocol < OLDEST_PROTOCOL || server.oldest > PROTOCOL {
        return Err(NetError::Version {
            server: server.protocol,
            server_oldest: server.oldest,
        });
    }
    let nonce = nonce()?;
    let hello = ClientHello {
        protocol: PROTOCOL,
        credential: encode(client_payload(&server.nonce, &nonce), settings).await?,
        nonce,
    };
    connection.write(&hello).await?;
    match connection.read().await? {
        ServerProof::Refused { reason } => Err(NetError::Refused(reason)),
        ServerProof::Welcome { credential } => {
            let proof = decode(credential, settings).await?;
            if proof.uid != server_uid {
                return Err(NetError::WrongServer {
                    uid: proof.uid,
                    expected: server_uid,
                });
            }
            if proof.payload != server_payload(&server.nonce, &hello.nonce).into_bytes() {
                return Err(NetError::WrongCredential);
            }
            connection.peer_protocol = server.protocol;
            Ok(connection)
        }
    }
}

/// A client that has proved who it is.
#[derive(Debug)]
pub struct Accepted {
    /// The client's uid.
    pub uid: u32,
    /// The connection, on which its request comes next.
    pub connection: Connection,
}

/// The server's side of the handshake. A client that is refused is told why.
pub async fn accept(stream: TcpStream, settings: &Settings) -> Result<Accepted, NetError> {
    let limit = settings.handshake_timeout;
    timeout(limit, prove_to_client(stream, settings))
        .await
        .unwrap_or(Err(NetError::TimeOut(limit.as_secs_f64(), "its proof")))
}

async fn prove_to_client(stream: TcpStream, settings: &Settings) -> Result<Accepted, NetError> {
    let mut connection = Connection::new(stream, settings)?;
    let hello = ServerHello {
        protocol: PROTOCOL,
        oldest: OLDEST_PROTOCOL,
        nonce: nonce()?,
    };
    connection.write(&hello).await?;
    let client: ClientHello = connection.read().await?;
    let checked = async {
        let proof = check_client(&client, &hello.nonce, settings).await?;
        let payload = server_payload(&hello.nonce, &client.nonce);
        Ok::<_, NetError>((proof, encode(payload, settings).await?))
    };
    match checked.await {
        Ok((proof, credential)) => {
            connection
                .write(&ServerProof::Welcome { credential })
                .await?;
            connection.peer_protocol = client.protocol;
            Ok(Accepted {
                uid: proof.uid,
                connection,
            })
        }
        Err(error) => {
            let reason = error.to_string();
            connection.write(&ServerProof::Refused { reason }).await?;
            Err(error)
        }
    }
}

async fn check_client(
    client: &ClientHello,
    server_nonce: &str,
    settings: &Settings,
) -> Result<Credential, NetError> {
    if client.protocol < OLDEST_PROTOCOL {
        return Err(NetError::Refused(format!(
            "the controller speaks protocol {OLDEST_PROTOCOL} to {PROTOCOL}, the program {}: \
             install versions at most one apart",
            client.protocol
        )));
    }
    let proof = decode(client.credential.clone(), settings).await?;
    if proof.payload != client_payload(server_nonce, &client.nonce).into_bytes() {
        return Err(NetError::WrongCredential);
    }
    Ok(proof)
}

async fn encode(payload: String, settings: &Settings) -> Result<String, NetError> {
    let socket = settings.munge_socket.clone();
    let call = move || munge::encode(payload.as_bytes(), socket.as_deref());
    Ok(tokio::task::spawn_blocking(call)
        .await
        .map_err(|_| NetError::Lost)??)
}

async fn decode(credential: String, settings: &Settings) -> Result<Credential, NetError> {
    let socket = settings.munge_socket.clone();
    let call = move || munge::decode(&credential, socket.as_deref());
    Ok(tokio::task::spawn_blocking(call)
        .await
        .map_err(|_| NetError::Lost)??)
}

/// Fresh random text from the system.
fn nonce() -> io::Result<String> {
    let mut bytes = [0u8; NONCE_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
