//! The link to the controller: connects, proves, joins, beats, and connects
//! anew when the controller is gone. What is said while there is no connection
//! is dropped: the next Join tells the state as it is then.

use std::time::Duration;

use bftrainer::wire::{FromAgent, Join, MISSED_HEARTBEATS, Request, ToAgent};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::settings::Settings;
use super::times::{self, BackOff};
use crate::net::{self, Connection, NetError};

/// The answer to Join must come within this time.
const JOINED_WITHIN: Duration = Duration::from_secs(10);

/// Between heartbeats until the controller says otherwise, seconds.
const HEARTBEAT_S: f64 = 2.0;

/// Messages from the controller that may wait for the session.
const QUEUED_EVENTS: usize = 64;

/// What happens on the link.
#[derive(Debug)]
pub enum Event {
    /// Connected and proved: a Join is wanted.
    Connected,
    /// The controller says something.
    Message(ToAgent),
    /// No connection, and why.
    Down(String),
}

#[derive(Debug)]
enum Order {
    Join(Box<Join>),
    Send(FromAgent),
    Last(FromAgent, oneshot::Sender<()>),
}

/// The session's end of the link.
#[derive(Debug)]
pub struct Link {
    events: mpsc::Receiver<Event>,
    orders: mpsc::UnboundedSender<Order>,
}

impl Link {
    /// Starts connecting, on the current runtime.
    pub fn start(settings: Settings) -> Self {
        let (send_events, events) = mpsc::channel(QUEUED_EVENTS);
        let (orders, receive_orders) = mpsc::unbounded_channel();
        let keeper = Connector {
            settings,
            events: send_events,
            orders: receive_orders,
            back_off: BackOff::new(Duration::from_millis(200), Duration::from_secs(5)),
        };
        tokio::spawn(keeper.run());
        Link { events, orders }
    }

    /// The next event. Cancel safe.
    pub async fn event(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            // The connector lives as long as this end does.
            None => std::future::pending().await,
        }
    }

    /// The answer to [`Event::Connected`].
    pub fn join(&self, join: Join) {
        let _ = self.orders.send(Order::Join(Box::new(join)));
    }

    /// Says something, if there is a connection.
    pub fn send(&self, message: FromAgent) {
        let _ = self.orders.send(Order::Send(message));
    }

    /// Says something and waits until it is on its way, at most `limit`.
    pub async fn send_last(&self, message: FromAgent, limit: Duration) {
        let (done, sent) = oneshot::channel();
        if self.orders.send(Order::Last(message, done)).is_ok() {
            let _ = tokio::time::timeout(limit, sent).await;
        }
    }
}

/// The end of a connection, in words.
type Reason = String;

struct Connector {
    settings: Settings,
    events: mpsc::Sender<Event>,
    orders: mpsc::UnboundedReceiver<Order>,
    back_off: BackOff,
}

impl Connector {
    async fn run(mut self) {
        loop {
            let reason = match self.connect().await {
                Ok(connection) => self.talk(connection).await,
                Err(reason) => reason,
            };
            if self.events.send(Event::Down(reason)).await.is_err() {
                return;
            }
            let wait = sleep(self.back_off.wait());
            tokio::pin!(wait);
            loop {
                tokio::select! {
                    () = &mut wait => break,
                    order = self.orders.recv() => if order.is_none() { return },
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<Connection, Reason> {
        let address = self.settings.controller.clone()?;
        let uid = self.settings.controller_uid.clone()?;
        net::connect(&address, uid, &self.settings.net)
            .await
            .map_err(|error| error.to_string())
    }

    /// Joins and passes messages both ways until the connection ends.
    async fn talk(&mut self, mut connection: Connection) -> Reason {
        if self.events.send(Event::Connected).await.is_err() {
            return String::new();
        }
        let join = loop {
            match self.orders.recv().await {
                Some(Order::Join(join)) => break *join,
                Some(Order::Send(_) | Order::Last(..)) => {}
                None => return String::new(),
            }
        };
        match connection.write(&Request::Join(join)).await {
            Ok(()) => match self.pump(connection).await {
                Ok(reason) => reason,
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        }
    }

    async fn pump(&mut self, connection: Connection) -> Result<Reason, NetError> {
        let (mut reader, mut writer) = connection.split::<ToAgent, FromAgent>();
        let mut beat = heartbeat(HEARTBEAT_S);
        let mut patience = JOINED_WITHIN;
        let mut silent_until = Instant::now() + patience;
        loop {
            tokio::select! {
                message = reader.read() => {
                    let message = message?;
                    if let ToAgent::Joined { heartbeat_s, .. } = message {
                        beat = heartbeat(heartbeat_s);
                        patience = times::seconds(heartbeat_s * MISSED_HEARTBEATS)
                            .max(Duration::from_millis(100));
                        self.back_off.reset();
                    }
                    silent_until = Instant::now() + patience;
                    let refusal = match &message {
                        ToAgent::Refused { reason } => Some(reason.clone()),
                        _ => None,
                    };
                    if message != ToAgent::Heartbeat
                        && self.events.send(Event::Message(message)).await.is_err()
                    {
                        return Ok(String::new());
                    }
                    if let Some(reason) = refusal {
                        return Ok(format!("it refused this agent: {reason}"));
                    }
                }
                order = self.orders.recv() => match order {
                    Some(Order::Send(message)) => writer.write(&message).await?,
                    Some(Order::Last(message, done)) => {
                        writer.write(&message).await?;
                        let _ = done.send(());
                    }
                    Some(Order::Join(_)) => {}
                    None => return Ok(String::new()),
                },
                _ = beat.tick() => writer.write(&FromAgent::Heartbeat).await?,
                () = sleep_until(silent_until) => {
                    return Ok(format!("no answer for {:.1} s", patience.as_secs_f64()));
                }
            }
        }
    }
}

fn heartbeat(seconds: f64) -> tokio::time::Interval {
    let period = times::seconds(seconds).max(Duration::from_millis(20));
    let mut beat = interval(period);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}
