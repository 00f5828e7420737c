"""The demo's private Slurm: started and stopped by scripts/dev-cluster, asked through Slurm's
and BFTrainer's commands."""

import json
import os
import re
import shutil
import subprocess
from collections import namedtuple

NODES = ["n{}".format(i) for i in range(1, 9)]

# What squeue shows of a job or of one task of an array. `task` is None outside arrays.
Job = namedtuple("Job", "id array task state partition nodes reason")

SQUEUE_FORMAT = "%A|%F|%K|%T|%P|%N|%r"
ACTIVE = ("RUNNING", "COMPLETING", "CONFIGURING")
ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)
BAD_NODE_STATES = ("drain", "down", "fail", "unk", "no_respond")


# Records of ended jobs must last until the end of the demo. And where real sites count hours, the
# demo counts seconds, so backfill has to be as much quicker: it is what starts trainers while regular
# jobs wait, every 30 s by default, and by default it takes a job that is planned in 119 s as one that
# may come in 60 s.
SLURM_CONF = [
    "MinJobAge=7200",
    "SchedulerParameters=bf_interval=2,bf_resolution=1,batch_sched_delay=0,sched_min_interval=100000",
]


class DemoError(Exception):
    """The demo cannot go on; the text is a sentence for the user."""


class Cluster:
    def __init__(self, repo):
        self.repo = repo
        self.dir = os.path.join(repo, "target", "demo")
        self.jobs_dir = os.path.join(self.dir, "jobs")
        # Nothing of the caller's own Slurm or trainer may decide what happens here.
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not re.match(r"(SLURM|SBATCH|SQUEUE|SINFO|SCONTROL|SCANCEL|BFT|BFTRAINER)_", name)
        }
        release = os.path.join(repo, "target", "release")
        self.env["PATH"] = "{}:{}:/usr/sbin:/sbin".format(release, os.environ["PATH"])
        self.env["SLURM_CONF"] = os.path.join(self.dir, "slurm.conf")
        self.env["BFTRAINER_CONF"] = os.path.join(self.dir, "bftrainer.toml")
        # Here, where nobody else cleans up, the trainers' agents have their sockets.
        self.env["TMPDIR"] = os.path.join(self.jobs_dir, "tmp")
        self.env["DIGITS_DIR"] = os.path.join(repo, "examples", "digits")

    def up(self):
        conf = [word for line in SLURM_CONF for word in ("--conf", line)]
        self._dev_cluster("up", str(len(NODES)), "--fresh", *conf, timeout_s=180)

    def clear_jobs_dir(self):
        shutil.rmtree(self.jobs_dir, ignore_errors=True)
        os.makedirs(self.env["TMPDIR"])

    def down(self):
        self._dev_cluster("down", timeout_s=180)

    def _dev_cluster(self, *arguments, timeout_s):
        program = os.path.join(self.repo, "scripts", "dev-cluster")
        self.run([program, "--dir", self.dir, *arguments], timeout_s=timeout_s)

    def run(self, command, timeout_s=30, cwd=None):
        """The command's standard output; DemoError when it fails."""
        name = os.path.basename(command[0])
        try:
            # A session of its own: Ctrl-C is for the demo, which then ends things in order.
            done = subprocess.run(
                command,
                cwd=cwd or self.repo,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=timeout_s,
                start_new_session=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            raise DemoError("{} gave no answer within {} s".format(name, timeout_s))
        except OSError as error:
            raise DemoError("{} could not be run: {}".format(name, error))
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip() or "no message"
            raise DemoError("{} failed with exit code {}: {}".format(name, done.returncode, said))
        return done.stdout

    def submit(self, *arguments, cwd=None):
        """The new job's id."""
        text = self.run(["sbatch", "--parsable", *arguments], cwd=cwd or self.jobs_dir)
        return int(text.strip().splitlines()[-1].split(";")[0])

    def jobs(self):
        """All jobs and array tasks of Slurm, ended ones too."""
        text = self.run(["squeue", "--noheader", "--array", "--all", "--states=all", "--format", SQUEUE_FORMAT])
        return [parse_job(line) for line in text.splitlines()]

    def bftrainer(self, *arguments):
        """What one of bftrainer's commands shows: a list of rows."""
        return json.loads(self.run(["bftrainer", *arguments, "--json"]))

    def totals(self):
        return self.bftrainer("show")[0]

    def bad_nodes(self):
        """Names of nodes that are drained or otherwise out of order."""
        text = self.run(["sinfo", "--noheader", "--Node", "--format", "%N %T"])
        states = dict(line.split() for line in text.splitlines())
        return sorted(node for node, state in states.items() if state.lower().startswith(BAD_NODE_STATES))


def parse_job(line):
    job_id, array, task, state, partition, nodes, reason = line.split("|")
    return Job(
        id=int(job_id),
        array=int(array),
        task=int(task) if task.isdigit() else None,
        state=state,
        partition=partition,
        nodes=expand_hosts(nodes),
        reason=reason,
    )


def expand_hosts(text):
    """The names in a host list like "n[1-3,7]" or "n4"."""
    match = re.fullmatch(r"([a-z]+)\[([0-9,-]+)\]", text)
    if not match:
        return text.split(",") if text and not text.startswith("(") else []
    names = []
    for part in match.group(2).split(","):
        first, _, last = part.partition("-")
        names += [match.group(1) + str(i) for i in range(int(first), int(last or first) + 1)]
    return names
