"""The demo's course, from a built repository to the table. Started by scripts/demo, which see."""

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import report
import screen as screens
from cluster import ACTIVE, NODES, Cluster, DemoError
from trainers import SIZES, Trainer
from workload import Workload

REPO = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
LOOK_EVERY_S = 1.0
UNDISTURBED_WITHIN_S = 300.0


class Interrupted(Exception):
    """A signal asks the demo to end."""


def main():
    options = parse_options()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    cluster = Cluster(REPO)
    try:
        with only_one(cluster):
            return run(options, cluster)
    except Interrupted as error:
        complain("ended by {}".format(error))
        return 130
    except (DemoError, OSError) as error:
        complain(str(error))
        return 1
    finally:
        forget_closed_output()


def forget_closed_output():
    """Python would complain at its end of an output that nobody reads any more."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse_options():
    parser = argparse.ArgumentParser(prog="demo")
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--keep", action="store_true")
    return parser.parse_args()


def interrupt(number, _frame):
    raise Interrupted(signal.Signals(number).name)


def only_one(cluster):
    """Holds the lock of this checkout's demo while open."""
    os.makedirs(os.path.dirname(cluster.dir), exist_ok=True)
    lock = open(cluster.dir + ".lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DemoError("another demo of this checkout is running")
    return lock


def run(options, cluster):
    demo = Demo(options, cluster)
    try:
        demo.prepare()
        demo.tag()
        demo.run_workload()
        demo.await_rest()
        return demo.conclude()
    finally:
        demo.end_undisturbed()
        if not options.keep:
            take_down(cluster)


def take_down(cluster):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    cluster.down()


class Demo:
    def __init__(self, options, cluster):
        self.options = options
        self.cluster = cluster
        self.screen = screens.Screen()
        self.undisturbed = []
        self.trainers = []
        self.workload = None
        self.measured = None

    def prepare(self):
        """The cluster, and the same trainings undisturbed, for comparison."""
        self.screen.say("starting a private Slurm of {} nodes".format(len(NODES)))
        self.cluster.up()
        self.cluster.clear_jobs_dir()
        self.workload = Workload(self.cluster, self.options.seconds)
        self.trainers = [
            Trainer(self.cluster, number, size, self.options.seconds) for number, size in enumerate(SIZES, start=1)
        ]
        self.screen.say("training undisturbed, for comparison")
        self.undisturbed = [trainer.start_undisturbed() for trainer in self.trainers]
        deadline_s = time.monotonic() + UNDISTURBED_WITHIN_S
        for trainer, process in zip(self.trainers, self.undisturbed):
            try:
                code = process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise DemoError("the undisturbed training did not end within {:.0f} s".format(UNDISTURBED_WITHIN_S))
            if code != 0:
                raise DemoError("T{}'s undisturbed training failed with exit code {}".format(trainer.number, code))

    def end_undisturbed(self):
        for process in self.undisturbed:
            if process.poll() is None:
                process.kill()
                process.wait()

    def tag(self):
        # On a fresh cluster the arrays are 1, 2, 3: T1, T2, T3 to the controller as well.
        for trainer in self.trainers:
            trainer.submit()
        for trainer in self.trainers:
            trainer.submit_follower()
        names = ["array {} (nodes={}-{})".format(t.array, t.size.min_nodes, t.size.max_nodes) for t in self.trainers]
        self.screen.say("tagged trainers: " + ", ".join(names))

    def run_workload(self):
        """Submits the regular jobs and looks once a second, to the end of the span that is measured."""
        self.screen.say("{} regular jobs come over the next {} s".format(len(self.workload.waiting), self.options.seconds))
        self.screen.say(screens.LEGEND)
        self.measured = report.Measured(self.cluster, time.time())
        began_s = looked_s = time.monotonic()
        end_s = began_s + self.options.seconds
        while time.monotonic() < end_s:
            self.workload.submit_due(time.monotonic() - began_s, time.time)
            now_s = time.monotonic()
            if now_s - looked_s >= LOOK_EVERY_S:
                self.look(now_s - began_s, now_s - looked_s)
                looked_s = now_s
            due_s = self.workload.next_s()
            wake_s = min(end_s, looked_s + LOOK_EVERY_S, end_s if due_s is None else began_s + due_s)
            time.sleep(max(0.01, wake_s - time.monotonic()))
        self.measured.finish(time.time(), self.trainers)

    def look(self, now_s, passed_s):
        slurm_jobs = self.cluster.jobs()
        queue_rows, node_rows = self.cluster.bftrainer("queue"), self.cluster.bftrainer("nodes")
        self.workload.observe(slurm_jobs)
        for trainer in self.trainers:
            trainer.observe(slurm_jobs, queue_rows)
        column = screens.column(slurm_jobs, node_rows, self.trainers)
        busy = {
            node
            for job in slurm_jobs
            if job.partition == "batch" and job.state in ACTIVE
            for node in job.nodes
        }
        if self.measured.end_s is None:
            self.measured.sample(passed_s, len(NODES) - len(busy), self.trainers)
        self.screen.show(now_s, column, self.workload, self.trainers)

    def await_rest(self):
        """The last regular jobs end, then the trainers, on the empty machine."""
        self.screen.say("no more regular jobs come; what there is finishes")
        began_s = time.monotonic()
        deadline_s = began_s + 120 + self.options.seconds
        while not self.all_done() and time.monotonic() < deadline_s:
            time.sleep(LOOK_EVERY_S)
            self.look(self.options.seconds + time.monotonic() - began_s, 0.0)
        for trainer in self.trainers:
            # The queue no longer shows ended trainers.
            trainer.row = self.cluster.bftrainer("show", str(trainer.array))[0]

    def all_done(self):
        return self.workload.done() and all(trainer.done() for trainer in self.trainers)

    def conclude(self):
        """Shows the figures; the exit code."""
        drained = self.cluster.bad_nodes()
        shown = report.figures(self.measured, self.workload, self.trainers, drained)
        print()
        print("\n".join(self.screen.picture(self.screen.width(), self.screen.is_terminal, whole=True)))
        print("    " + screens.LEGEND)
        print("\n".join(report.table(self.measured, self.workload, self.trainers, shown)), flush=True)
        if self.options.json:
            with open(self.options.json, "w") as file:
                json.dump(shown, file, indent=2)
                file.write("\n")
        problems = report.problems(self.measured, self.workload, self.trainers, drained, shown)
        for problem in problems:
            complain("wrong: " + problem)
        if self.options.keep:
            print_next_steps(self.cluster)
        return 1 if problems else 0


def print_next_steps(cluster):
    print(
        """The cluster is up. Try:
  eval "$(scripts/dev-cluster --dir target/demo env)"
  bftrainer why                                     every decision with its reason
  sbatch examples/digits/train.sh --epochs 200 --device-ms-per-sample 2
  bftrainer queue; bftrainer nodes; squeue          the new trainer grows over the idle nodes
  sbatch -N4 --wrap 'sleep 20'                      and makes room for a regular job
At the end: scripts/dev-cluster --dir target/demo down""",
        flush=True,
    )


def complain(text):
    print("demo: " + text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
