//! Frames and the handshake of `bftrainer::wire`, both sides.
//!
//! A frame is its length (u32, big endian) and JSON. Nothing is reserved for a
//! length that a peer merely claims, a frame that has begun must be whole within
//! the frame time-out, and no peer can hold a connection open unproven for
//! longer than the handshake time-out.

use std::io;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use bftrainer::wire::{
    ClientHello, MAX_FRAME_BYTES, OLDEST_PROTOCOL, PROTOCOL, ServerHello, ServerProof,
    client_payload, server_payload,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, timeout, timeout_at};

use crate::munge::{self, Credential, MungeError};

/// Bytes of a frame's length.
const HEAD_BYTES: usize = 4;

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
    /// The client's gid.
    pub gid: u32,
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
    match check_client(&client, &hello.nonce, settings).await {
        Ok(proof) => {
            let credential = encode(server_payload(&hello.nonce, &client.nonce), settings).await?;
            connection
                .write(&ServerProof::Welcome { credential })
                .await?;
            connection.peer_protocol = client.protocol;
            Ok(Accepted {
                uid: proof.uid,
                gid: proof.gid,
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
    // SAFETY: the buffer is writable for the length that is passed.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), NONCE_BYTES, 0) };
    if usize::try_from(got) != Ok(NONCE_BYTES) {
        return Err(io::Error::last_os_error());
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A connection whose sides have proved who they are.
#[derive(Debug)]
pub struct Connection {
    input: Input,
    output: Output,
    peer_protocol: u16,
}

impl Connection {
    fn new(stream: TcpStream, settings: &Settings) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (read_half, write_half) = stream.into_split();
        Ok(Connection {
            input: Input {
                half: read_half,
                bytes: Vec::new(),
                most: MAX_FRAME_BYTES,
                timeout: settings.frame_timeout,
                deadline: None,
            },
            output: Output {
                half: write_half,
                timeout: settings.frame_timeout,
            },
            peer_protocol: OLDEST_PROTOCOL,
        })
    }

    /// The peer's protocol version.
    pub fn peer_protocol(&self) -> u16 {
        self.peer_protocol
    }

    /// Takes frames of up to `most` bytes instead of [`MAX_FRAME_BYTES`].
    pub fn set_max_read(&mut self, most: usize) {
        self.input.most = most;
    }

    /// The next message; waits without limit for its first byte.
    pub async fn read<T: DeserializeOwned>(&mut self) -> Result<T, NetError> {
        self.input.read().await
    }

    /// Sends one message, whole within the frame time-out.
    pub async fn write<T: Serialize>(&mut self, message: &T) -> Result<(), NetError> {
        self.output.write(message).await
    }

    /// The two halves, for messages `In` and `Out` only.
    pub fn split<In, Out>(self) -> (Reader<In>, Writer<Out>) {
        (
            Reader(self.input, PhantomData),
            Writer(self.output, PhantomData),
        )
    }
}

/// The receiving half of a [`Connection`].
#[derive(Debug)]
pub struct Reader<T>(Input, PhantomData<fn() -> T>);

impl<T: DeserializeOwned> Reader<T> {
    /// The next message; waits without limit for its first byte. Cancel safe: a
    /// part that was read stays for the next call.
    pub async fn read(&mut self) -> Result<T, NetError> {
        self.0.read().await
    }
}

/// The sending half of a [`Connection`].
#[derive(Debug)]
pub struct Writer<T>(Output, PhantomData<fn(T)>);

impl<T: Serialize> Writer<T> {
    /// Sends one message, whole within the frame time-out. Not cancel safe: a
    /// call that was dropped may leave half a frame, so drop the connection too.
    pub async fn write(&mut self, message: &T) -> Result<(), NetError> {
        self.0.write(message).await
    }
}

#[derive(Debug)]
struct Input {
    half: OwnedReadHalf,
    bytes: Vec<u8>,
    most: usize,
    timeout: Duration,
    /// When the frame that has begun must be whole.
    deadline: Option<Instant>,
}

impl Input {
    async fn read<T: DeserializeOwned>(&mut self) -> Result<T, NetError> {
        loop {
            if let Some(end) = self.frame_end()? {
                let message = serde_json::from_slice(&self.bytes[HEAD_BYTES..end]);
                self.bytes.drain(..end);
                self.deadline = None;
                return message.map_err(NetError::Garbage);
            }
            if !self.bytes.is_empty() && self.deadline.is_none() {
                self.deadline = Some(Instant::now() + self.timeout);
            }
            let more = self.half.read_buf(&mut self.bytes);
            let got = match self.deadline {
                None => more.await?,
                Some(deadline) => timeout_at(deadline, more).await.map_err(|_| {
                    NetError::TimeOut(self.timeout.as_secs_f64(), "the rest of a frame")
                })??,
            };
            if got == 0 {
                return Err(NetError::Closed);
            }
        }
    }

    /// Where the first frame ends in the bytes that came, if it is whole.
    fn frame_end(&self) -> Result<Option<usize>, NetError> {
        let Some(head) = self.bytes.first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let bytes = u32::from_be_bytes(*head) as usize;
        if bytes > self.most {
            return Err(NetError::TooLong {
                bytes,
                most: self.most,
            });
        }
        let end = HEAD_BYTES + bytes;
        Ok((self.bytes.len() >= end).then_some(end))
    }
}

#[derive(Debug)]
struct Output {
    half: OwnedWriteHalf,
    timeout: Duration,
}

impl Output {
    async fn write<T: Serialize>(&mut self, message: &T) -> Result<(), NetError> {
        let mut frame = vec![0; HEAD_BYTES];
        serde_json::to_writer(&mut frame, message).map_err(io::Error::from)?;
        let bytes = frame.len() - HEAD_BYTES;
        let head = u32::try_from(bytes).map_err(|_| NetError::TooLong {
            bytes,
            most: u32::MAX as usize,
        })?;
        frame[..HEAD_BYTES].copy_from_slice(&head.to_be_bytes());
        timeout(self.timeout, self.half.write_all(&frame))
            .await
            .map_err(|_| NetError::TimeOut(self.timeout.as_secs_f64(), "reading our frame"))??;
        Ok(())
    }
}
