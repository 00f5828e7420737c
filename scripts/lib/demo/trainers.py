"""The three trainers: tagged, followed, and compared with the same training undisturbed."""

import json
import os
import subprocess
from collections import namedtuple

from cluster import ACTIVE, ENDED

DEVICE_MS_PER_SAMPLE = 8.0
ROWS_PER_EPOCH = 1500  # Of examples/digits/train.py.

# `epochs_per_minute` of the workload: more than the holes give, so that the trainers outlast it.
# The first one, which could use all nodes, the longest: there is always somebody to use a hole.
Size = namedtuple("Size", "min_nodes max_nodes epochs_per_minute")
SIZES = [Size(1, 8, 9.0), Size(2, 4, 6.0), Size(1, 3, 6.0)]


class Trainer:
    def __init__(self, cluster, number, size, seconds):
        self.cluster = cluster
        self.number = number  # 1, 2, 3
        self.size = size
        self.epochs = max(2, round(size.epochs_per_minute * seconds / 60))
        self.dir = os.path.join(cluster.jobs_dir, "T{}".format(number))
        self.losses_file = os.path.join(self.dir, "losses.json")
        self.undisturbed_file = os.path.join(self.dir, "undisturbed.json")
        self.array = None
        self.follower = None  # The job with afterok.
        self.follower_state = None
        self.task_states = {}
        self.nodes_held = []
        self.row = {}  # What the controller showed last.
        os.makedirs(self.dir)

    def _training(self, losses_file):
        return ["--epochs", str(self.epochs), "--seed", str(self.number), "--losses", losses_file]

    def start_undisturbed(self):
        """The same training on one rank, without the device's time: a process."""
        env = dict(self.cluster.env, BFT_CKPT_DIR=os.path.join(self.dir, "undisturbed-ckpt"))
        program = os.path.join(self.cluster.env["DIGITS_DIR"], "train.py")
        return subprocess.Popen(
            ["nice", "-n", "19", "python3", program, *self._training(self.undisturbed_file)],
            env=env,
            cwd=self.dir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def submit(self):
        self.array = self.cluster.submit(
            "--job-name=T{}".format(self.number),
            "--bftrainer=nodes={}-{}".format(self.size.min_nodes, self.size.max_nodes),
            "--output={}".format(os.path.join(self.dir, "%A_%a.out")),
            os.path.join(self.cluster.env["DIGITS_DIR"], "train.sh"),
            *self._training(self.losses_file),
            "--device-ms-per-sample",
            str(DEVICE_MS_PER_SAMPLE),
            cwd=self.dir,
        )

    def submit_follower(self):
        """A job that starts when the array is COMPLETED, and only then."""
        self.follower = self.cluster.submit(
            "--job-name=after-T{}".format(self.number),
            "--dependency=afterok:{}".format(self.array),
            "--time=1",
            "--output={}".format(os.path.join(self.dir, "follower.out")),
            "--wrap=date +%s.%N",
        )

    def observe(self, slurm_jobs, queue_rows):
        self.nodes_held = []
        for job in slurm_jobs:
            if job.array == self.array and job.task is not None:
                self.task_states[job.task] = job.state
                if job.state in ACTIVE:
                    self.nodes_held += job.nodes
            elif job.id == self.follower:
                self.follower_state = job.state
        for row in queue_rows:
            if row["jobid"] == self.array:
                self.row = row

    def wanted_nodes(self):
        """The most that it could use now."""
        ends = self.row.get("state") == "CLOSING" or self.array_ended()
        return 0 if ends else self.size.max_nodes

    def array_ended(self):
        states = self.task_states.values()
        return bool(states) and all(state in ENDED for state in states)

    def done(self):
        """Whether nothing more will happen to the array and its follower."""
        return self.array_ended() and self.follower_state in ENDED

    def state(self):
        """The array's state: its tasks' when they agree, else the odd one out."""
        states = set(self.task_states.values()) or {"UNKNOWN"}
        return "COMPLETED" if states == {"COMPLETED"} else sorted(states - {"COMPLETED"})[0]

    def samples(self):
        return self.row.get("samples") or 0

    def losses(self):
        return read_losses(self.losses_file)

    def undisturbed_losses(self):
        return read_losses(self.undisturbed_file)

    def largest_difference(self):
        """Of the loss at any common epoch; None when there is none."""
        pairs = list(zip(self.losses(), self.undisturbed_losses()))
        return max((abs(ours - theirs) for ours, theirs in pairs), default=None)


def read_losses(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return []
