//! The signals that the agent hears, as streams.

use std::future::Future;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Several signals as one stream.
pub struct Signals(Vec<(SignalKind, Signal)>);

impl Signals {
    /// Those that end the agent.
    pub fn ending() -> io::Result<Self> {
        Self::of([
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
            SignalKind::quit(),
        ])
    }

    /// A child's end, and what is passed on to the ranks.
    pub fn others() -> io::Result<Self> {
        Self::of([
            SignalKind::child(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
        ])
    }

    fn of(kinds: impl IntoIterator<Item = SignalKind>) -> io::Result<Self> {
        let streams = kinds.into_iter().map(|kind| Ok((kind, signal(kind)?)));
        Ok(Signals(streams.collect::<io::Result<_>>()?))
    }

    /// The next of them. Cancel safe.
    pub fn next(&mut self) -> impl Future<Output = SignalKind> {
        std::future::poll_fn(|context| {
            for (kind, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*kind);
                }
            }
            std::task::Poll::Pending
        })
    }
}
