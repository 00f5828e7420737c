//! The cluster's nodes and jobs as libslurm would report them.

use bftrainer::spec::COMMENT_PREFIX;
use bftrainer_controller::classes::{NodeRequest, NodeTraits};
use bftrainer_controller::slurm::{BaseState, JobRecord, NodeBase, NodeRecord};

use crate::cluster::{Array, Cluster, Job, Node, State, Task, Use};

/// Regular jobs that have started within this time are reported, seconds.
const STARTED_LATELY_S: f64 = 120.0;

pub fn nodes(cluster: &Cluster) -> Vec<NodeRecord> {
    cluster.nodes.iter().map(node).collect()
}

fn node(node: &Node) -> NodeRecord {
    NodeRecord {
        name: node.name.clone(),
        address: node.name.clone(),
        base: match node.used {
            Use::Idle | Use::CleanedUp { .. } => NodeBase::Idle,
            Use::Regular | Use::Trainer(_) => NodeBase::Allocated,
            Use::Down => NodeBase::Other,
        },
        completing: matches!(node.used, Use::CleanedUp { .. }),
        flagged: false,
        traits: NodeTraits::new("cpu,fast", "gpu:4", 64, 512_000, 0),
    }
}

pub fn jobs(cluster: &Cluster, partition: &str, now_s: f64) -> Vec<JobRecord> {
    let uid = nix::unistd::Uid::effective().as_raw();
    let mut records = Vec::new();
    for (id, array) in &cluster.arrays {
        let (split, together): (Vec<_>, Vec<_>) =
            (0..).zip(&array.tasks).partition(|(_, task)| task.is_split);
        records.extend(split.into_iter().map(|(number, task)| {
            let nodes = task.node.map(|it| cluster.nodes[it].name.clone());
            JobRecord {
                job_id: task.job_id,
                nodes: match task.state {
                    State::Pending => Vec::new(),
                    State::Running | State::Ended => nodes.into_iter().collect(),
                },
                ..of_array(*id, array, task, vec![number], partition, uid)
            }
        }));
        if let Some((_, first)) = together.first() {
            let numbers = together.iter().map(|(number, _)| *number).collect();
            records.push(of_array(*id, array, first, numbers, partition, uid));
        }
    }
    let lately = |job: &&Job| now_s - job.start_s < STARTED_LATELY_S;
    let running = cluster.running.iter().filter(lately);
    records.extend(running.map(|job| of_job(cluster, job, BaseState::Running)));
    let planned = cluster.planned.iter();
    records.extend(planned.map(|job| of_job(cluster, job, BaseState::Pending)));
    records
}

fn of_array(
    id: u32,
    array: &Array,
    task: &Task,
    array_tasks: Vec<u32>,
    partition: &str,
    uid: u32,
) -> JobRecord {
    let has_run = task.state != State::Pending;
    JobRecord {
        job_id: id,
        array_job_id: id,
        array_tasks,
        base: match task.state {
            State::Pending => BaseState::Pending,
            State::Running => BaseState::Running,
            State::Ended => BaseState::Complete,
        },
        partition: partition.to_owned(),
        name: "train".to_owned(),
        comment: format!("{COMMENT_PREFIX}nodes=1-{}", array.max_nodes),
        admin_comment: array.admin_comment.clone(),
        command: format!("/home/user/project/train-{}.sh", array.max_nodes),
        user_id: uid,
        start_time_s: if has_run { task.start_s as i64 } else { 0 },
        end_time_s: match has_run {
            true => task.start_s as i64 + i64::from(task.limit_min) * 60,
            false => 0,
        },
        submit_time_s: array.submit_s as i64,
        limit_min: Some(task.limit_min),
        priority: u32::from(!task.is_held),
        restart_count: task.restart_count,
        ..blank()
    }
}

fn of_job(cluster: &Cluster, job: &Job, base: BaseState) -> JobRecord {
    let names = job.nodes.iter().map(|it| cluster.nodes[*it].name.clone());
    let names: Vec<String> = names.collect();
    let (nodes, planned_nodes) = match base {
        BaseState::Pending => (Vec::new(), names),
        _ => (names, Vec::new()),
    };
    JobRecord {
        job_id: job.id,
        base,
        partition: "batch".to_owned(),
        nodes,
        planned_nodes,
        start_time_s: job.start_s as i64,
        submit_time_s: job.start_s as i64,
        ..blank()
    }
}

fn blank() -> JobRecord {
    JobRecord {
        job_id: 0,
        array_job_id: 0,
        array_tasks: Vec::new(),
        base: BaseState::Pending,
        completing: false,
        flagged: false,
        partition: String::new(),
        name: String::new(),
        comment: String::new(),
        admin_comment: String::new(),
        user_id: 0,
        user_name: "user".to_owned(),
        account: "project".to_owned(),
        command: String::new(),
        work_dir: "/home/user/project".to_owned(),
        nodes: Vec::new(),
        planned_nodes: Vec::new(),
        start_time_s: 0,
        end_time_s: 0,
        submit_time_s: 0,
        limit_min: None,
        priority: 1,
        wait_reason: 0,
        restart_count: 0,
        requeue: true,
        exclusive: true,
        node_count: 1,
        request: NodeRequest::default(),
    }
}
