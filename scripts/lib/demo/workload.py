"""The regular jobs: what the machine is there for. Small ones come at random; now and then a job
wants most of the nodes and has to wait for a longer one that runs, so that backfill leaves holes."""

import os
import random
from collections import namedtuple

from cluster import ENDED

SEED = 2027
LARGE_NODES = 7
WAVE_S = 57.0  # From one large job to the next.
SMALL_EVERY_S = 16.0  # On average.
LAST_SMALL_S = 10.0  # Before the end no more small jobs come.

# `at_s` after the workload's start; `limit_min` is what the user asks for, `run_s` what it takes.
Request = namedtuple("Request", "at_s nodes run_s limit_min")


def requests(seconds, seed=SEED):
    """The workload, in the order of submission."""
    chance = random.Random(seed)
    found = [Request(0.0, 3, 14.0, 1), Request(0.0, 1, 22.0, 2)]
    at_s = 10.0
    while at_s < seconds - LAST_SMALL_S:
        found.append(
            Request(
                at_s,
                nodes=chance.choices([1, 2, 3], weights=[6, 3, 1])[0],
                run_s=round(chance.uniform(6, 34), 1),
                limit_min=chance.choice([1, 1, 2]),
            )
        )
        at_s += chance.expovariate(1 / SMALL_EVERY_S)
    wave_s = 8.0
    while wave_s + WAVE_S - 5 <= seconds:
        # The long one, and three seconds later the one that must wait for it.
        found.append(Request(wave_s, 2, round(chance.uniform(35, 40), 1), 2))
        found.append(Request(wave_s + 3, chance.choice([LARGE_NODES, 8]), round(chance.uniform(7, 10), 1), 1))
        wave_s += WAVE_S
    return sorted(found)


class RegularJob:
    """A request that was submitted. Its output's first line is its start, epoch seconds."""

    def __init__(self, request, job_id, submitted_s, output):
        self.request = request
        self.id = job_id
        self.submitted_s = submitted_s
        self.output = output
        self.state = "PENDING"
        self.nodes = []

    def started_s(self):
        try:
            with open(self.output) as file:
                return float(file.readline())
        except (OSError, ValueError):
            return None

    def ended(self):
        return self.state in ENDED


class Workload:
    def __init__(self, cluster, seconds):
        self.cluster = cluster
        self.waiting = requests(seconds)
        self.large_jobs = sum(request.nodes >= LARGE_NODES for request in self.waiting)
        self.jobs = []
        self.dir = os.path.join(cluster.jobs_dir, "regular")
        os.makedirs(self.dir)

    def submit_due(self, since_start_s, clock):
        while self.waiting and self.waiting[0].at_s <= since_start_s:
            request = self.waiting.pop(0)
            output = os.path.join(self.dir, "{}.out".format(len(self.jobs)))
            job_id = self.cluster.submit(
                "--job-name=regular",
                "--partition=batch",
                "--exclusive",
                "--no-requeue",
                "--nodes={}".format(request.nodes),
                "--time={}".format(request.limit_min),
                "--output={}".format(output),
                "--wrap=date +%s.%N; exec sleep {}".format(request.run_s),
            )
            self.jobs.append(RegularJob(request, job_id, clock(), output))

    def next_s(self):
        """When the next job is due, seconds after the start."""
        return self.waiting[0].at_s if self.waiting else None

    def observe(self, slurm_jobs):
        by_id = {job.id: job for job in slurm_jobs}
        for job in self.jobs:
            seen = by_id.get(job.id)
            if seen:
                job.state = seen.state
                job.nodes = seen.nodes or job.nodes

    def done(self):
        return not self.waiting and all(job.ended() for job in self.jobs)

    def failed(self):
        return [job for job in self.jobs if job.ended() and job.state != "COMPLETED"]

    def waited_for_block(self):
        """Seconds that each multi-node job waited which could not start at once."""
        waits_s = []
        for job in self.jobs:
            started_s = job.started_s()
            if job.request.nodes > 1 and started_s is not None and started_s - job.submitted_s > 3.0:
                waits_s.append(started_s - job.submitted_s)
        return sorted(waits_s)
