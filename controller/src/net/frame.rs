//! Frames on a connection: a length (u32, big endian) and JSON.

use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use bftrainer::wire::{MAX_FRAME_BYTES, OLDEST_PROTOCOL};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, timeout, timeout_at};

use super::{NetError, Settings};

/// Bytes of a frame's length.
const HEAD_BYTES: usize = 4;

/// A connection whose sides have proved who they are.
#[derive(Debug)]
pub struct Connection {
    input: Input,
    output: Output,
    pub(super) peer_protocol: u16,
}

impl Connection {
    /// Over `stream`, which proves nothing yet.
    pub(super) fn new(stream: TcpStream, settings: &Settings) -> io::Result<Self> {
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
