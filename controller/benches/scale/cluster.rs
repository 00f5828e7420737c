//! A cluster that is not there: nodes, regular jobs and arrays of trainers that behave as under
//! slurmctld, with their times. Pure but for what it says in lines.

use std::collections::{BTreeMap, BTreeSet};

use bftrainer_controller::slurm::{SlurmError, TaskUpdate};

use crate::random::Random;

pub const NODES: usize = 5000;
pub const TRAINERS: usize = 200;

/// Most nodes of trainers, in turns; 64 in the mean.
const MAXIMA: [u32; 5] = [16, 32, 64, 96, 112];

/// Regular jobs have this share of the nodes.
const BUSY: f64 = 0.8;

/// A regular job has up to so many nodes.
const LARGEST_JOB: usize = 6;

/// A node's clean-up after a job, seconds.
const CLEAN_UP_S: f64 = 0.3;

/// This share of the events is a node that fails or comes back.
const FAILURES: f64 = 0.01;

/// This share of the regular jobs is planned, so long before, seconds.
const PLANNED: f64 = 0.5;
const PLANNED_AHEAD_S: (f64, f64) = (30.0, 90.0);

/// An ended array is remembered so long, seconds.
const MIN_JOB_AGE_S: f64 = 300.0;

/// Array job id and array task id.
pub type TaskKey = (u32, u32);

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Use {
    Idle,
    CleanedUp { until_s: f64 },
    Regular,
    Trainer(TaskKey),
    Down,
}

pub struct Node {
    pub name: String,
    pub used: Use,
    /// Since when it has been idle after a regular job, until somebody wants it.
    pub freed_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    Pending,
    Running,
    Ended,
}

pub struct Task {
    pub job_id: u32,
    pub state: State,
    pub is_held: bool,
    /// Whether it was ever touched: then it has a record of its own.
    pub is_split: bool,
    /// Where it is, or is to be.
    pub node: Option<usize>,
    pub start_s: f64,
    pub limit_min: u32,
    pub restart_count: u32,
}

pub struct Array {
    pub max_nodes: u32,
    pub admin_comment: String,
    pub submit_s: f64,
    pub ended_s: Option<f64>,
    pub tasks: Vec<Task>,
}

pub struct Job {
    pub id: u32,
    pub nodes: Vec<usize>,
    pub start_s: f64,
}

pub struct Cluster {
    pub nodes: Vec<Node>,
    pub arrays: BTreeMap<u32, Array>,
    pub running: Vec<Job>,
    /// Jobs with the time of their start to come.
    pub planned: Vec<Job>,
    pub nodes_changed: bool,
    pub jobs_changed: bool,
    /// From a node's last regular job to the order to use it, seconds.
    pub waits_s: Vec<f64>,
    pub events: u64,
    released: BTreeSet<TaskKey>,
    busy_nodes: usize,
    next_id: u32,
    random: Random,
    /// Lines for whoever plays the agents.
    said: Vec<String>,
}

impl Cluster {
    /// A cluster whose regular jobs run and whose trainers have just been submitted.
    pub fn new(now_s: f64) -> Self {
        let nodes = (1..=NODES).map(|number| Node {
            name: format!("n{number:04}"),
            used: Use::Idle,
            freed_s: None,
        });
        let mut cluster = Cluster {
            nodes: nodes.collect(),
            arrays: BTreeMap::new(),
            running: Vec::new(),
            planned: Vec::new(),
            nodes_changed: true,
            jobs_changed: true,
            waits_s: Vec::new(),
            events: 0,
            released: BTreeSet::new(),
            busy_nodes: 0,
            next_id: 1000,
            random: Random::new(1),
            said: Vec::new(),
        };
        while (cluster.busy_nodes as f64) < BUSY * NODES as f64 {
            let nodes = cluster.choose_nodes();
            cluster.start_job(now_s, nodes);
        }
        for _ in 0..TRAINERS {
            cluster.submit_trainer(now_s);
        }
        cluster
    }

    /// What has been said since the last call.
    pub fn take_said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }

    /// Share of the nodes that are free of regular jobs on which a worker of ours is.
    pub fn filled(&self) -> f64 {
        let used = |node: &&Node| matches!(node.used, Use::Trainer(_));
        let held = self.nodes.iter().filter(used).count();
        held as f64 / (NODES - self.busy_nodes).max(1) as f64
    }

    /// Tasks that run.
    pub fn running_tasks(&self) -> usize {
        let tasks = self.arrays.values().flat_map(|array| &array.tasks);
        tasks.filter(|task| task.state == State::Running).count()
    }

    /// Tasks of arrays that have not ended.
    pub fn tasks(&self) -> usize {
        let open = self.arrays.values().filter(|array| array.ended_s.is_none());
        open.map(|array| array.tasks.len()).sum()
    }

    fn new_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    fn submit_trainer(&mut self, now_s: f64) {
        let id = self.new_id();
        let max_nodes = MAXIMA[id as usize % MAXIMA.len()];
        // Each task has a job id of its own when it is split.
        self.next_id += max_nodes;
        let task = |number| Task {
            job_id: id + number,
            state: State::Pending,
            is_held: true,
            is_split: false,
            node: None,
            start_s: 0.0,
            limit_min: 30,
            restart_count: 0,
        };
        let array = Array {
            max_nodes,
            admin_comment: String::new(),
            submit_s: now_s,
            ended_s: None,
            tasks: (0..max_nodes).map(task).collect(),
        };
        self.arrays.insert(id, array);
        self.jobs_changed = true;
    }

    // What happens.

    /// One event: a regular job ends, starts or is planned, a node fails or comes back.
    pub fn happen(&mut self, now_s: f64) {
        self.events += 1;
        if self.random.real() < FAILURES {
            let number = self.random.below(NODES);
            self.fail_or_mend(number);
        } else if (self.busy_nodes as f64) < BUSY * NODES as f64 {
            let nodes = self.choose_nodes();
            if self.random.real() < PLANNED {
                let (soonest_s, latest_s) = PLANNED_AHEAD_S;
                let start_s = now_s + self.random.between(soonest_s, latest_s);
                let id = self.new_id();
                self.planned.push(Job { id, nodes, start_s });
                self.jobs_changed = true;
            } else {
                self.start_job(now_s, nodes);
            }
        } else {
            let job = self
                .running
                .swap_remove(self.random.below(self.running.len()));
            self.end_job(now_s, &job);
        }
    }

    /// Time passes: nodes are clean, planned jobs start, released tasks too.
    pub fn pass(&mut self, now_s: f64) {
        for node in &mut self.nodes {
            if matches!(node.used, Use::CleanedUp { until_s } if until_s <= now_s) {
                node.used = Use::Idle;
                self.nodes_changed = true;
            }
        }
        while let Some(due) = self.planned.iter().position(|job| job.start_s <= now_s) {
            let job = self.planned.swap_remove(due);
            self.start_job(now_s, job.nodes);
        }
        for key in self.released.clone() {
            self.start_if_possible(now_s, key);
        }
        self.arrays.retain(|_, array| {
            array
                .ended_s
                .is_none_or(|end_s| now_s - end_s < MIN_JOB_AGE_S)
        });
    }

    /// Neighbours that no regular job has or is planned for.
    fn choose_nodes(&mut self) -> Vec<usize> {
        let count = 1 + self.random.below(LARGEST_JOB);
        let first = self.random.below(NODES);
        let planned: BTreeSet<usize> = self
            .planned
            .iter()
            .flat_map(|job| job.nodes.iter().copied())
            .collect();
        let is_free = |number: &usize| {
            let used = self.nodes[*number].used;
            matches!(used, Use::Idle | Use::Trainer(_)) && !planned.contains(number)
        };
        let around = (first..NODES).chain(0..first);
        around.filter(is_free).take(count).collect()
    }

    fn start_job(&mut self, now_s: f64, mut nodes: Vec<usize>) {
        nodes.retain(|number| !matches!(self.nodes[*number].used, Use::Regular | Use::Down));
        for number in &nodes {
            if let Use::Trainer(key) = self.nodes[*number].used {
                self.requeue(key, false);
                self.said.push(format!("preempt {} {}", key.0, key.1));
            }
            let node = &mut self.nodes[*number];
            node.used = Use::Regular;
            node.freed_s = None;
            self.said.push(format!("hint {}", node.name));
        }
        self.busy_nodes += nodes.len();
        let id = self.new_id();
        self.running.push(Job {
            id,
            nodes,
            start_s: now_s,
        });
        self.nodes_changed = true;
        self.jobs_changed = true;
    }

    fn end_job(&mut self, now_s: f64, job: &Job) {
        self.busy_nodes -= job.nodes.len();
        for number in &job.nodes {
            let is_planned = self.planned.iter().any(|job| job.nodes.contains(number));
            let node = &mut self.nodes[*number];
            let until_s = now_s + CLEAN_UP_S;
            node.used = Use::CleanedUp { until_s };
            node.freed_s = (!is_planned).then_some(until_s);
            self.said.push(format!("hint {}", node.name));
        }
        self.nodes_changed = true;
        self.jobs_changed = true;
    }

    fn fail_or_mend(&mut self, number: usize) {
        let used = self.nodes[number].used;
        match used {
            Use::Down => self.nodes[number].used = Use::Idle,
            Use::Idle => self.nodes[number].used = Use::Down,
            Use::Trainer(key) => {
                self.requeue(key, false);
                self.said.push(format!("lose {} {}", key.0, key.1));
                self.nodes[number].used = Use::Down;
            }
            Use::Regular | Use::CleanedUp { .. } => {}
        }
        self.nodes[number].freed_s = None;
        self.nodes_changed = true;
    }

    // Tasks.

    fn task_mut(&mut self, (array, task): TaskKey) -> Option<&mut Task> {
        self.jobs_changed = true;
        self.arrays.get_mut(&array)?.tasks.get_mut(task as usize)
    }

    /// Puts the task back into the queue; its node is somebody else's or to be cleaned up.
    fn requeue(&mut self, key: TaskKey, is_held: bool) -> Option<usize> {
        let task = self.task_mut(key)?;
        let node = task.node.take();
        task.state = State::Pending;
        task.is_held = is_held;
        task.restart_count += 1;
        node
    }

    fn clean_up(&mut self, now_s: f64, node: Option<usize>) {
        if let Some(number) = node {
            let until_s = now_s + CLEAN_UP_S;
            self.nodes[number].used = Use::CleanedUp { until_s };
            self.nodes_changed = true;
        }
    }

    fn start_if_possible(&mut self, now_s: f64, key: TaskKey) {
        let task = self
            .arrays
            .get(&key.0)
            .and_then(|array| array.tasks.get(key.1 as usize))
            .filter(|task| task.state == State::Pending && !task.is_held);
        let Some(number) = task.and_then(|task| task.node) else {
            self.released.remove(&key);
            return;
        };
        if self.nodes[number].used != Use::Idle {
            return;
        }
        self.released.remove(&key);
        self.nodes[number].used = Use::Trainer(key);
        self.nodes_changed = true;
        let name = self.nodes[number].name.clone();
        if let Some(task) = self.task_mut(key) {
            task.state = State::Running;
            task.start_s = now_s;
            let (job_id, restarts) = (task.job_id, task.restart_count);
            let line = format!("run {} {} {job_id} {restarts} {name}", key.0, key.1);
            self.said.push(line);
        }
    }

    /// A task has ended by itself.
    pub fn exited(&mut self, now_s: f64, key: TaskKey) {
        if let Some(task) = self.task_mut(key)
            && task.state == State::Running
        {
            task.state = State::Ended;
            let node = task.node;
            self.clean_up(now_s, node);
            self.end_array_if_over(now_s, key.0);
        }
    }

    fn end_array_if_over(&mut self, now_s: f64, id: u32) {
        let Some(array) = self.arrays.get_mut(&id) else {
            return;
        };
        let is_over = array.tasks.iter().all(|task| task.state == State::Ended);
        if is_over && array.ended_s.is_none() {
            array.ended_s = Some(now_s);
            self.submit_trainer(now_s);
        }
    }

    // What the controller asks for.

    /// The array's tasks, or those of them.
    pub fn chosen(&self, array: u32, tasks: Option<Vec<u32>>) -> Vec<TaskKey> {
        let all = || {
            let tasks = self.arrays.get(&array).map_or(0, |it| it.tasks.len());
            (0..tasks as u32).collect()
        };
        let tasks = tasks.unwrap_or_else(all);
        tasks.into_iter().map(|task| (array, task)).collect()
    }

    /// Changes the fields of one task.
    pub fn update(
        &mut self,
        now_s: f64,
        key: TaskKey,
        update: &TaskUpdate,
    ) -> Result<(), SlurmError> {
        let node = match update.required_nodes.as_deref() {
            Some(name) if !name.is_empty() => self.nodes.iter().position(|it| it.name == name),
            _ => None,
        };
        let ends = update.required_nodes.as_deref() == Some("");
        let Some(task) = self.task_mut(key).filter(|it| it.state != State::Ended) else {
            return Err(already_done());
        };
        task.limit_min = update.limit_min.unwrap_or(task.limit_min);
        let is_pending = task.state == State::Pending;
        match update.hold {
            Some(true) if is_pending => task.is_held = true,
            Some(false) if is_pending && ends => {
                // The plugin ends the step of an ended trainer's task before its script.
                task.is_split = true;
                task.state = State::Ended;
                task.start_s = now_s;
                self.end_array_if_over(now_s, key.0);
            }
            Some(false) if is_pending => {
                task.is_split = true;
                task.is_held = false;
                task.node = node;
                self.released.insert(key);
                if let Some(freed_s) = node.and_then(|it| self.nodes[it].freed_s.take()) {
                    self.waits_s.push(now_s - freed_s);
                }
                self.start_if_possible(now_s, key);
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends a running task and holds it.
    pub fn requeue_hold(&mut self, now_s: f64, key: TaskKey) -> Result<(), SlurmError> {
        match self.task_mut(key).map(|task| task.state) {
            Some(State::Running) => {
                let node = self.requeue(key, true);
                self.clean_up(now_s, node);
                self.said.push(format!("end {} {}", key.0, key.1));
                Ok(())
            }
            _ => Err(already_done()),
        }
    }
}

fn already_done() -> SlurmError {
    SlurmError::Refused {
        code: bftrainer::sys::ESLURM_ALREADY_DONE,
        text: "Job/step already completing or completed".to_owned(),
    }
}
