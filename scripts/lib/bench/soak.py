"""Everything goes wrong in random order, and nothing may be lost. Started by scripts/soak, which see."""

import argparse
import contextlib
import json
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter

from disturbances import DRAIN_REASON, Disturbances, Missed
from figures import Progress
from stage import ROOT, Stage

sys.path.insert(0, str(ROOT / "tests"))

from nodes import solver_of  # noqa: E402
from proxy import Proxy  # noqa: E402

NODES = 8
CONF = ["SlurmdTimeout=10", "MinJobAge=7200"]
BFTRAINER_CONF = ["quarantine_s = 5", "quarantine_max_s = 20", "grace_s = 10"]
FEATURES = "a100 h100"  # Of the nodes, in turn.
# Most nodes and constraint of each training. One that may not run everywhere makes two classes of the
# nodes, and the solver is asked.
TRAININGS = [(8, None), (4, "a100"), (3, None)]
DEVICE_MS_PER_SAMPLE = 8
MANY_MINUTES = 5.0  # In which each kind of disturbance should happen.
END_WITHIN_S = 300.0
LARGEST_LOSS_DIFFERENCE = 1e-6
DUPLICATE = "Duplicate jobid"  # Slurm's reason for a drain.


def main():
    options = parse_options()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    progress = Progress("soak")
    progress.say("seed {}, {:g} minutes".format(seed, options.minutes))
    with Stage(NODES, CONF, BFTRAINER_CONF, FEATURES) as stage:
        soak = Soak(stage, random.Random(seed), progress)
        soak.start()
        soak.disturbances.disturb(options.minutes * 60)
        soak.calm()
        problems = soak.problems()
        if problems:
            print(stage.cluster.portrait(stage.dir), file=sys.stderr)
            logs = tempfile.mkdtemp(prefix="bft-soak-")
            shutil.copytree(stage.cluster.dir / "log", logs, dirs_exist_ok=True)
            print("the logs are kept in {}".format(logs))
    done = soak.disturbances.done
    counts = ", ".join("{} {}".format(count, name) for name, count in sorted(done.items()) if count)
    print("seed {}: {}".format(seed, counts))
    never = sorted(name for name, count in done.items() if not count)
    if never and options.minutes >= MANY_MINUTES:
        print("never happened: " + ", ".join(never))
    for problem in problems:
        print("wrong: " + problem)
    print("all is right" if not problems else "{} things are wrong".format(len(problems)))
    return 1 if problems else 0


def parse_options():
    parser = argparse.ArgumentParser(prog="scripts/soak", description="random-order disturbances")
    parser.add_argument("--seed", type=int, help="repeats a run's choices (default: a new one)")
    parser.add_argument("--minutes", type=float, default=20.0, help="of disturbances (default 20)")
    return parser.parse_args()


class Training:
    """The example on real data, in a folder of its own."""

    def __init__(self, stage, number, most_nodes, constraint, temp):
        self.cluster = stage.cluster
        self.dir = stage.dir / "T{}".format(number)
        self.dir.mkdir()
        self.seed = number
        self.set_epochs(1_000_000)
        script = self.dir / "train.sh"
        program = 'exec python3 "$DIGITS_DIR/train.py" --epochs "$(cat epochs)" "$@"\n'
        script.write_text("#!/bin/bash\n" + program)
        self.array = int(
            self.cluster.ok(
                *["sbatch", "--parsable", "--bftrainer=nodes=1-{},up=1,down=1".format(most_nodes)],
                *(["--constraint", constraint] if constraint else []),
                *[script, "--seed", number, "--losses", "losses.json"],
                *["--device-ms-per-sample", DEVICE_MS_PER_SAMPLE],
                cwd=self.dir,
                env={"TMPDIR": str(temp)},
            )
        )

    def set_epochs(self, epochs):
        """What the next generation reads."""
        new = self.dir / "epochs.new"
        new.write_text(str(epochs))
        new.rename(self.dir / "epochs")

    def epoch(self):
        """As the controller knows it; None when it does not."""
        rows = self.cluster.bftrainer("show", self.array)
        return rows[0]["epoch"] if rows else None

    def problems(self):
        """What is wrong with the ended training."""
        states = set(self.cluster.states(self.array).values())
        if states != {"COMPLETED"}:
            return ["array {}: its tasks are {}".format(self.array, ", ".join(sorted(states)))]
        losses = json.loads((self.dir / "losses.json").read_text())
        alone = self.dir / "alone"
        alone.mkdir()
        self.cluster.ok(
            *["python3", ROOT / "examples/digits/train.py", "--epochs", len(losses), "--seed", self.seed],
            *["--losses", alone / "losses.json"],
            cwd=alone,
            timeout_s=600,
        )
        expected = json.loads((alone / "losses.json").read_text())
        pairs = zip(losses, expected)
        wrong = [n for n, (loss, one) in enumerate(pairs, 1) if abs(loss - one) > LARGEST_LOSS_DIFFERENCE]
        found = ["array {}: the loss of epoch {} is not an undisturbed run's".format(self.array, n) for n in wrong[:1]]
        if len(losses) < 3:
            found.append("array {}: only {} epochs".format(self.array, len(losses)))
        return found + self.files_left()

    def files_left(self):
        expected = {"train.sh", "epochs", "losses.json", "alone", ".bftrainer-{}".format(self.array)}
        files = [path.name for path in self.dir.iterdir()]
        return [
            "array {}: the file {} is left".format(self.array, name)
            for name in files
            if name not in expected and not name.startswith("slurm-")
        ]


class Soak:
    def __init__(self, stage, chance, progress):
        self.stage = stage
        self.cluster = stage.cluster
        self.progress = progress
        self.temp = stage.dir / "tmp"  # All tasks' TMPDIR, as of one node.
        self.drained = set()  # What there is to say of nodes that Slurm has drained.
        self.trainings = []
        proxy = Proxy.of(self.cluster)
        self.disturbances = Disturbances(stage, chance, progress, self.trainings, proxy)

    def start(self):
        self.temp.mkdir()
        for number, (most_nodes, constraint) in enumerate(TRAININGS, 1):
            self.trainings.append(Training(self.stage, number, most_nodes, constraint, self.temp))
        for training in self.trainings:
            self.stage.wait_for(training.epoch, "array {} has an epoch behind it".format(training.array))

    def calm(self):
        """All is mended, the regular jobs and then the trainings come to their ends."""
        self.progress.say("no more disturbances")
        self.disturbances.mend()
        self.wait_resuming(lambda: not self.queued("batch"), "the regular jobs have ended")
        for training in self.trainings:
            self.stage.wait_for(training.epoch, "the controller knows how far array {} is".format(training.array))
        # All stop and are started again: then each reads its number of epochs, and the solver is asked.
        last = self.stage.submit(NODES)
        self.wait_resuming(lambda: last.said_s("start"), "the last regular job has started")
        with contextlib.suppress(Missed):
            self.disturbances.kill_solver()
        for training in self.trainings:
            training.set_epochs(int(training.epoch()) + 4)
        self.stage.end(last)
        self.stage.wait_ended(last)
        self.stage.wait_for(lambda: solver_of(self.cluster), "the solver was asked, and so started again")
        began_s = time.monotonic()
        while self.queued("bftrainer") and time.monotonic() - began_s < END_WITHIN_S:
            time.sleep(1)

    def wait_resuming(self, predicate, what):
        """Waits while nodes that Slurm has drained by itself are resumed, so that the rest can be seen."""

        def is_so():
            drained = self.cluster.ok("sinfo", "-h", "-N", "-p", "batch", "-t", "drain", "-o", "%N %E")
            for node, reason in (line.split(None, 1) for line in drained.splitlines()):
                # That a drain of ours had ended may be forgotten by a slurmctld that was killed.
                if reason != DRAIN_REASON:
                    self.drained.add("Slurm has drained node {}: {}".format(node, reason))
                self.disturbances.resume(node)
            return predicate()

        self.stage.wait_for(is_so, what)

    def queued(self, partition):
        return self.cluster.ok("squeue", "-h", "-p", partition, "-o", "%A").split()

    def problems(self):
        """A sentence for each thing that is not as it must be."""
        found = [problem for training in self.trainings for problem in training.problems()]
        # A slurmctld that is killed forgets a job that it has just started, and gives its number to the
        # next one; where slurmd still has the first, it refuses the second, and Slurm drains the node.
        twice = {job_id for job_id, count in Counter(self.disturbances.jobs).items() if count > 1}
        found += sorted(text for text in self.drained if not (twice and text.endswith(DUPLICATE)))
        for folder in self.temp.iterdir():
            found.append("a killed agent's folder is left: {}".format(folder.name))
        left = self.cluster.processes()
        if left:
            found.append("processes are left: {}".format(left))
        for node, state in self.cluster.node_states().items():
            if state != "idle":
                found.append("node {} is {}".format(node, state))
        for job_id in set(self.disturbances.jobs) - twice:
            job = self.cluster.job(job_id)
            # A killed slurmctld has forgotten the youngest jobs; a dead node's jobs die with it.
            if job and job["JobState"] not in ("COMPLETED", "NODE_FAIL"):
                found.append("regular job {} is {}".format(job_id, job["JobState"]))
        found += self.store_problems()
        return found

    def store_problems(self):
        path = self.cluster.dir / "state-bftrainer/bftrainer.db"
        with sqlite3.connect("file:{}?mode=ro".format(path), uri=True) as database:
            said = database.execute("PRAGMA integrity_check").fetchone()[0]
        return [] if said == "ok" else ["the state file is damaged: {}".format(said)]


if __name__ == "__main__":
    sys.exit(main())
