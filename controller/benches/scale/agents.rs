//! Agents whose ranks are arithmetic: they connect, prove, join, beat and report as real ones do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bftrainer::wire::{FromAgent, Join, Outcome, Progress, Request, Start, ToAgent};
use bftrainer_controller::net::{self, NetError, Settings};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// From the order to start to running ranks.
const START: Duration = Duration::from_millis(300);

/// From the order to stop to the last rank's end.
const STOP: Duration = Duration::from_millis(200);

/// Between progress lines of rank 0.
const REPORT: Duration = Duration::from_secs(2);

/// Between heartbeats.
const BEAT: Duration = Duration::from_secs(2);

/// Samples per second of one node, and the exponent for more.
const SAMPLES_PER_S: f64 = 100.0;
const SCALING: f64 = 0.93;

/// What a task's agent is told from outside.
#[derive(Debug)]
enum Told {
    /// Slurm signals it.
    Leave { preempted: bool },
    /// Its node is gone.
    Lost,
}

/// All agents.
pub struct Agents {
    common: Arc<Common>,
    told: HashMap<(u32, u32), UnboundedSender<Told>>,
}

/// What agents share.
struct Common {
    controller: String,
    settings: Settings,
    exits: UnboundedSender<String>,
    /// By trainer.
    samples: Mutex<HashMap<u32, f64>>,
    /// Trainers that are to be finished: the next rank 0 that reports is done.
    to_finish: Mutex<u32>,
}

/// Which task it is.
#[derive(Clone)]
struct Identity {
    array: u32,
    task: u32,
    job_id: u32,
    restart_count: u32,
    node: String,
}

impl Agents {
    /// None yet. What the cluster must know of them comes out of the receiver, in lines.
    pub fn new(controller: String, settings: Settings) -> (Self, UnboundedReceiver<String>) {
        let (exits, received) = unbounded_channel();
        let common = Common {
            controller,
            settings,
            exits,
            samples: Mutex::default(),
            to_finish: Mutex::default(),
        };
        let agents = Agents {
            common: Arc::new(common),
            told: HashMap::new(),
        };
        (agents, received)
    }

    /// One more trainer is to be finished.
    pub fn finish_one(&self) {
        *lock(&self.common.to_finish) += 1;
    }

    /// What the cluster has said, if it is about a task.
    pub fn hear(&mut self, words: &[&str]) {
        let number = |at: usize| {
            words
                .get(at)
                .and_then(|word| word.parse().ok())
                .unwrap_or(0)
        };
        let key = (number(1), number(2));
        match words.first() {
            Some(&"run") => {
                let (sender, receiver) = unbounded_channel();
                self.told.insert(key, sender);
                let identity = Identity {
                    array: key.0,
                    task: key.1,
                    job_id: number(3),
                    restart_count: number(4),
                    node: words.get(5).map(|it| (*it).to_owned()).unwrap_or_default(),
                };
                tokio::spawn(live(identity, self.common.clone(), receiver));
            }
            Some(&"end") => self.tell(key, Told::Leave { preempted: false }),
            Some(&"preempt") => self.tell(key, Told::Leave { preempted: true }),
            Some(&"lose") => self.tell(key, Told::Lost),
            _ => {}
        }
    }

    fn tell(&mut self, key: (u32, u32), told: Told) {
        if let Some(sender) = self.told.remove(&key) {
            // It may have ended by itself.
            let _ = sender.send(told);
        }
    }
}

/// An agent's life, over all its connections.
async fn live(identity: Identity, common: Arc<Common>, mut told: UnboundedReceiver<Told>) {
    let mut running = None;
    loop {
        match talk(&identity, &common, &mut told, &mut running).await {
            Ok(()) => return,
            // The controller has let it go, for Slurm has, or is about to.
            Err(NetError::Closed) => sleep(Duration::from_secs(1)).await,
            Err(error) => {
                eprintln!("{}_{}: {error}", identity.array, identity.task);
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// One connection; `Ok` when the agent has ended.
async fn talk(
    identity: &Identity,
    common: &Common,
    told: &mut UnboundedReceiver<Told>,
    running: &mut Option<Start>,
) -> Result<(), NetError> {
    let uid = nix::unistd::Uid::effective().as_raw();
    let mut connection = net::connect(&common.controller, uid, &common.settings).await?;
    connection
        .write(&Request::Join(join(identity, running.as_ref())))
        .await?;
    let (mut reader, mut writer) = connection.split::<ToAgent, FromAgent>();
    let (mut beat, mut report) = (every(BEAT), every(REPORT));
    let mut reported = Instant::now();
    loop {
        let answer = tokio::select! {
            message = reader.read() => match answer(message?, identity, common, running).await {
                Some(answer) => answer,
                None => return Ok(()),
            },
            order = told.recv() => match order {
                Some(Told::Leave { preempted }) => {
                    let reason = "Slurm wants the node".to_owned();
                    return writer.write(&FromAgent::Leaving { reason, preempted }).await;
                }
                Some(Told::Lost) | None => return Ok(()),
            },
            _ = beat.tick() => Some(FromAgent::Heartbeat),
            _ = report.tick() => {
                let passed = std::mem::replace(&mut reported, Instant::now()).elapsed();
                progress(identity, common, running, passed)
            }
        };
        if let Some(answer) = answer {
            writer.write(&answer).await?;
        }
    }
}

/// The answer to a message, if there is one; `None` when the agent ends.
async fn answer(
    message: ToAgent,
    identity: &Identity,
    common: &Common,
    running: &mut Option<Start>,
) -> Option<Option<FromAgent>> {
    match message {
        ToAgent::Start(start) => {
            sleep(START).await;
            let generation = start.generation;
            *running = Some(start);
            Some(Some(FromAgent::Started { generation }))
        }
        ToAgent::Stop { generation, .. } => {
            if running.take().is_some() {
                sleep(STOP).await;
            }
            Some(Some(stopped(generation, Outcome::Stopped)))
        }
        ToAgent::Close { .. } => {
            let line = format!("exit {} {}", identity.array, identity.task);
            // Nobody listens any more at the end.
            let _ = common.exits.send(line);
            None
        }
        ToAgent::Ended | ToAgent::Refused { .. } => None,
        ToAgent::Joined { .. } | ToAgent::Heartbeat | ToAgent::Until { .. } => Some(None),
    }
}

fn stopped(generation: u64, outcome: Outcome) -> FromAgent {
    FromAgent::Stopped {
        generation,
        outcome,
        free_port: 29_500,
    }
}

/// What rank 0 has got done in the time that has passed, or its end.
fn progress(
    identity: &Identity,
    common: &Common,
    running: &mut Option<Start>,
    passed: Duration,
) -> Option<FromAgent> {
    let start = running.as_ref().filter(|start| start.node_rank == 0)?;
    let generation = start.generation;
    let mut to_finish = lock(&common.to_finish);
    if *to_finish > 0 {
        *to_finish -= 1;
        *running = None;
        return Some(stopped(generation, Outcome::Exited));
    }
    let rate = SAMPLES_PER_S * (start.members.len() as f64).powf(SCALING);
    let mut all = lock(&common.samples);
    let samples = all.entry(identity.array).or_default();
    *samples += rate * passed.as_secs_f64();
    Some(FromAgent::Progress(Progress {
        samples: *samples as u64,
        generation: Some(generation),
        ..Progress::default()
    }))
}

fn join(identity: &Identity, running: Option<&Start>) -> Join {
    let members = running.map(|start| start.members.iter().map(|it| it.node.clone()));
    Join {
        array_job_id: identity.array,
        array_task_id: identity.task,
        job_id: identity.job_id,
        restart_count: identity.restart_count,
        node: identity.node.clone(),
        free_port: 29_500,
        generation: running.map(|start| start.generation),
        members: members.map(Iterator::collect).unwrap_or_default(),
        folder_submit_time_s: None,
        newest_generation: 0,
        verdict: None,
        live: false,
    }
}

fn every(period: Duration) -> tokio::time::Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
