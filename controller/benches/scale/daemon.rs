//! The process that is measured: the daemon's own loop on the simulated cluster. On its standard
//! output it says what befalls tasks, on its standard input it is told what agents do.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bftrainer_controller::clock::{SteadyClock, now_s};
use bftrainer_controller::config::Config;
use bftrainer_controller::daemon::{self, Change, ChangeKind, Sight, Slurmctld};
use bftrainer_controller::slurm::{SlurmError, SlurmSettings, TaskName};
use serde_json::json;

use crate::cluster::{Cluster, TaskKey};
use crate::records;

/// Threads that do what is not the daemon's work.
pub const FOREIGN_THREADS: [&str; 2] = ["cluster", "agents-say"];

/// The thread that would be in libslurm; here it makes the records, and takes as long.
pub const SLURM_THREAD: &str = "slurm";

/// Between two events.
const EVENT: Duration = Duration::from_millis(100);

/// The cluster, and what is measured at the daemon's door.
struct World {
    cluster: Cluster,
    /// When the last look was answered, until an order follows.
    answered: Option<Instant>,
    /// From a look's answer to the first order that follows from it, seconds.
    decided_s: Vec<f64>,
    looks: u64,
    orders: u64,
    records: usize,
}

impl World {
    /// Says what has befallen tasks and nodes.
    fn say(&mut self) {
        let mut output = std::io::stdout().lock();
        for line in self.cluster.take_said() {
            // Who listened has ended; then so does this process, soon.
            let _ = writeln!(output, "{line}");
        }
        let _ = output.flush();
    }

    fn figures(&self) -> serde_json::Value {
        json!({
            "decided_s": self.decided_s,
            "waits_s": self.cluster.waits_s,
            "looks": self.looks,
            "orders": self.orders,
            "events": self.cluster.events,
            "records": self.records,
            "running_tasks": self.cluster.running_tasks(),
            "tasks": self.cluster.tasks(),
        })
    }

    fn begin_to_measure(&mut self) {
        self.decided_s.clear();
        self.cluster.waits_s.clear();
        self.cluster.events = 0;
        (self.looks, self.orders) = (0, 0);
    }
}

/// The daemon's end of the world.
struct Door {
    world: Arc<Mutex<World>>,
    /// What libslurm takes for each record.
    record: Duration,
}

impl Slurmctld for Door {
    fn look(
        &mut self,
        partition: &str,
        everything: bool,
        _: &SteadyClock,
    ) -> Result<Sight, SlurmError> {
        let began = Instant::now();
        let used = thread_cpu();
        let mut world = lock(&self.world);
        let mut sight = Sight::default();
        let mut found = 0;
        if std::mem::take(&mut world.cluster.nodes_changed) || everything {
            sight.nodes = Some(records::nodes(&world.cluster));
            found += world.cluster.nodes.len();
        }
        if std::mem::take(&mut world.cluster.jobs_changed) || everything {
            let jobs = records::jobs(&world.cluster, partition, now_s());
            found += jobs.len();
            world.records = found;
            sight.jobs = Some(jobs);
        }
        if everything {
            let names = world.cluster.nodes.iter().map(|node| node.name.clone());
            sight.partition_nodes = Some(Ok(names.collect()));
            sight.reservations = Some(Vec::new());
        }
        drop(world);
        // As long as libslurm would be busy, and not asleep.
        while thread_cpu() - used < self.record * found as u32 {
            std::hint::spin_loop();
        }
        let mut world = lock(&self.world);
        world.looks += 1;
        world.answered = Some(Instant::now());
        sight.query_s = began.elapsed().as_secs_f64();
        Ok(sight)
    }

    fn apply(&mut self, change: &Change) -> Result<(), SlurmError> {
        let mut world = lock(&self.world);
        world.orders += 1;
        if let Some(answered) = world.answered.take() {
            world.decided_s.push(answered.elapsed().as_secs_f64());
        }
        let mut result = Ok(());
        for key in chosen(&world.cluster, &change.tasks) {
            let answer = match &change.kind {
                ChangeKind::Update(update) => world.cluster.update(now_s(), key, update),
                ChangeKind::RequeueHold | ChangeKind::Cancel => {
                    world.cluster.requeue_hold(now_s(), key)
                }
            };
            result = result.and(answer);
        }
        if let (TaskName::Array(id), ChangeKind::Update(update)) = (&change.tasks, &change.kind)
            && let (Some(array), Some(comment)) =
                (world.cluster.arrays.get_mut(id), &update.admin_comment)
        {
            array.admin_comment.clone_from(comment);
            // Comments of ended tasks can be written too.
            result = Ok(());
        }
        world.say();
        result
    }
}

fn chosen(cluster: &Cluster, tasks: &TaskName) -> Vec<TaskKey> {
    match (tasks, tasks.members()) {
        (TaskName::Array(id), _) => cluster.chosen(*id, None),
        (_, Some((id, tasks))) => cluster.chosen(id, Some(tasks)),
        _ => Vec::new(),
    }
}

/// Runs until SIGTERM, and says the figures.
pub fn serve(path: &Path, record: Duration) -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info"))
        .format_timestamp_millis()
        .init();
    let config = match Config::read(path) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let world = Arc::new(Mutex::new(World {
        cluster: Cluster::new(now_s()),
        answered: None,
        decided_s: Vec::new(),
        looks: 0,
        orders: 0,
        records: 0,
    }));
    start_foreign_threads(&world);
    let settings = SlurmSettings {
        slurmctld_time_s: now_s() as i64,
        slurm_user_uid: nix::unistd::Uid::effective().as_raw(),
        kill_wait_s: 30,
        backfill_interval_s: 30,
        backfill_resolution_s: 60,
        private_jobs: false,
        private_nodes: false,
        version: "simulated".to_owned(),
        private_usage: false,
    };
    let door = world.clone();
    let door = move || Door {
        world: door.clone(),
        record,
    };
    if let Err(error) = daemon::run_with(config, settings, door) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    println!("figures {}", lock(&world).figures());
    ExitCode::SUCCESS
}

fn start_foreign_threads(world: &Arc<Mutex<World>>) {
    let [cluster, agents] = FOREIGN_THREADS;
    let its = world.clone();
    let run_cluster = move || {
        let mut due = Instant::now();
        for number in 0_u64.. {
            due += EVENT;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let mut world = lock(&its);
            world.cluster.happen(now_s());
            world.cluster.pass(now_s());
            world.say();
            if number.is_multiple_of(10) {
                println!("filled {:.3}", world.cluster.filled());
            }
        }
    };
    let theirs = world.clone();
    let hear_agents = move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let mut world = lock(&theirs);
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["measure"] => world.begin_to_measure(),
                ["exit", array, task] => {
                    if let (Ok(array), Ok(task)) = (array.parse(), task.parse()) {
                        world.cluster.exited(now_s(), (array, task));
                    }
                }
                _ => eprintln!("not understood: {line}"),
            }
        }
    };
    let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
        let builder = thread::Builder::new().name(name.to_owned());
        builder.spawn(work).map(|_| ()).expect("a thread starts")
    };
    start(cluster, Box::new(run_cluster));
    start(agents, Box::new(hear_agents));
}

/// What this thread has used of a processor.
fn thread_cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a record of the right type, which the call fills in.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(code, 0, "every Linux has this clock");
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

fn lock(world: &Mutex<World>) -> std::sync::MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}
