"""A private cluster with a trainer of sleeping ranks and regular jobs that say when they start."""

import os
import pathlib
import signal
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from cluster import Cluster, await_state  # noqa: E402 (the tests' cluster is used here too)

RANKS = ROOT / "scripts/lib/bench/ranks.sh"
REGULAR = ROOT / "scripts/lib/bench/regular.sh"
PATIENCE_S = 120.0

# Where tests look more often and wait longer than the product does by itself.
DEFAULTS = ["poll_interval_s = 2", "place_timeout_s = 10"]


class Stage:
    """`with Stage(...) as stage`: the cluster is up inside, and gone afterwards."""

    def __init__(self, nodes, conf=(), bftrainer_conf=DEFAULTS, features=""):
        self.cluster = Cluster(nodes, conf, bftrainer_conf, features)
        self.dir = self.cluster.folder / "jobs"
        self.jobs = 0

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(1))
        self.dir.mkdir()
        try:
            self.cluster.up()
        except BaseException:
            self.cluster.down()
            raise
        return self

    def __exit__(self, *_):
        self.cluster.down()

    def wait_for(self, predicate, what):
        return await_state(predicate, what, PATIENCE_S, lambda: self.cluster.portrait(self.dir))

    # Regular jobs.

    def submit(self, nodes, *words):
        """A regular job that runs until it is ended."""
        self.jobs += 1
        job = RegularJob(self.dir / "regular-{}".format(self.jobs), nodes)
        os.mkfifo(job.file("end"))
        command = ["sbatch", "--parsable", "--exclusive", "--no-requeue", "--output=/dev/null", *words]
        job.submitted_s = time.time()
        job.id = int(self.cluster.ok(*command, "-N", nodes, REGULAR, job.path, cwd=self.dir))
        return job

    def start(self, nodes, *words):
        """A regular job that has started."""
        job = self.submit(nodes, *words)
        self.wait_started(job)
        return job

    def wait_seen(self):
        """Until the controller has looked at Slurm as it is now."""
        looks = self.looks()
        self.wait_for(lambda: self.looks() > looks + 1, "the controller has looked twice")

    def looks(self):
        return self.cluster.bftrainer("show")[0]["slurm_looks"]

    def wait_started(self, job):
        self.wait_for(lambda: job.said_s("start"), "regular job {} has started".format(job.id))

    def end(self, job):
        """Ends the regular job; the epoch second of its script's end."""
        with open(job.file("end"), "w") as pipe:
            pipe.write("\n")
        return self.wait_for(lambda: job.said_s("ended"), "regular job {} has ended".format(job.id))

    def wait_ended(self, job):
        self.wait_for(
            lambda: (self.cluster.job(job.id) or {}).get("JobState") == "COMPLETED",
            "regular job {} is COMPLETED".format(job.id),
        )

    # The trainer.

    def train(self, nodes, *arguments):
        """Submits a trainer of up to so many nodes; its number."""
        said = self.cluster.ok(
            "sbatch", "--parsable", "--bftrainer=nodes=1-{},up=1,down=1".format(nodes), RANKS, *arguments, cwd=self.dir
        )
        return int(said)

    def trains_on(self, trainer):
        """The number of nodes on which its ranks run."""
        rows = self.cluster.bftrainer("show", trainer)
        return rows[0]["nodes"] if rows and rows[0]["state"] == "RUNNING" else 0

    def wait_trains(self, trainer, nodes):
        self.wait_for(
            lambda: self.trains_on(trainer) == nodes, "T{} trains on {} nodes".format(trainer, nodes)
        )

    def rank_starts(self, since_s):
        """The first start of a rank on each node since then, epoch seconds by node."""
        starts = {}
        for line in (self.dir / "starts.log").read_text().splitlines():
            time_s, _, node = line.split()
            if float(time_s) > since_s:
                starts.setdefault(node, float(time_s))
        return starts

    def decided_s(self, trainer, since_s):
        """When the controller first gave the trainer more or fewer nodes since then, epoch seconds."""
        rows = self.cluster.bftrainer("why", trainer) or []
        return min((row["time"] for row in rows if row["time"] > since_s), default=None)

    def cancel(self, trainer):
        self.cluster.ok("scancel", trainer)
        self.wait_for(
            lambda: not self.cluster.processes(trainer) and self.cluster.bftrainer("queue") == [],
            "T{} is gone".format(trainer),
        )


class RegularJob:
    def __init__(self, path, nodes):
        self.path = path
        self.nodes = nodes
        self.id = None
        self.submitted_s = None

    def file(self, kind):
        return self.path.with_suffix("." + kind)

    def said_s(self, kind):
        """The epoch second in that file; None before."""
        try:
            return float(self.file(kind).read_text())
        except (OSError, ValueError):
            return None

    def delay_s(self):
        """From the submission to the script's first line."""
        return self.said_s("start") - self.submitted_s
