"""Everything goes wrong in random order, and nothing may be lost. Started by scripts/soak, which see."""

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter

from figures import Progress
from stage import ROOT, Stage

sys.path.insert(0, str(ROOT / "tests"))

from nodes import command_name, freeze, node_of, parent_of, pids_on, thaw  # noqa: E402
from proxy import Proxy  # noqa: E402

NODES = 8
CONF = ["SlurmdTimeout=10", "MinJobAge=7200"]
BFTRAINER_CONF = ["quarantine_s = 5", "quarantine_max_s = 20", "grace_s = 10"]
MAXIMA = [8, 4, 3]  # Of the trainings.
DEVICE_MS_PER_SAMPLE = 8
LONGEST_PAUSE_S = 8.0
END_WITHIN_S = 300.0
LARGEST_LOSS_DIFFERENCE = 1e-6


def main():
    options = parse_options()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    progress = Progress("soak")
    progress.say("seed {}, {:g} minutes".format(seed, options.minutes))
    with Stage(NODES, CONF, BFTRAINER_CONF) as stage:
        soak = Soak(stage, random.Random(seed), progress)
        soak.start()
        soak.disturb(options.minutes * 60)
        soak.calm()
        problems = soak.problems()
        if problems:
            print(stage.cluster.portrait(stage.dir), file=sys.stderr)
    done = ", ".join("{} {}".format(count, name) for name, count in sorted(soak.done.items()))
    print("seed {}: {}".format(seed, done))
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

    def __init__(self, stage, number, most_nodes):
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
                *[script, "--seed", number, "--losses", "losses.json"],
                *["--device-ms-per-sample", DEVICE_MS_PER_SAMPLE],
                cwd=self.dir,
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
        self.chance = chance
        self.progress = progress
        self.done = Counter()
        self.jobs = []  # Job numbers of the regular jobs.
        self.undo = []  # (when, monotonic seconds; what to call)
        self.trainings = []
        self.proxy = None

    def start(self):
        self.proxy = Proxy.of(self.cluster)
        self.trainings = [Training(self.stage, n, most) for n, most in enumerate(MAXIMA, 1)]
        for training in self.trainings:
            self.stage.wait_for(training.epoch, "array {} has an epoch behind it".format(training.array))

    # Disturbances.

    def disturb(self, seconds):
        actions = {
            self.regular_job: 8,
            self.kill_agent: 3,
            self.kill_keeper: 2,
            self.kill_rank: 3,
            self.kill_step: 1,
            self.kill_controller: 3,
            self.kill_slurmctld: 1,
            self.kill_slurmd: 2,
            self.kill_munged: 1,
            self.cut_nodes: 3,
            self.reset_connections: 2,
            self.freeze_node: 2,
            self.drain_node: 2,
            self.requeue_task: 2,
        }
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            action = self.chance.choices(list(actions), weights=list(actions.values()))[0]
            what = action()
            name = action.__name__.replace("_", " ")
            self.done[name] += 1
            self.progress.say("{} {}".format(name, what or ""))
            self.pass_time(self.chance.uniform(0, LONGEST_PAUSE_S))

    def pass_time(self, seconds):
        """Does what is due until so many seconds have passed."""
        end_s = time.monotonic() + seconds
        while True:
            now_s = time.monotonic()
            due = [call for time_s, call in self.undo if time_s <= now_s]
            self.undo = [(time_s, call) for time_s, call in self.undo if time_s > now_s]
            for call in due:
                call()
            if now_s >= end_s:
                return
            next_s = min([time_s for time_s, _ in self.undo] + [end_s])
            time.sleep(max(0.01, next_s - time.monotonic()))

    def later(self, longest_s, call):
        self.undo.append((time.monotonic() + self.chance.uniform(0.1, longest_s), call))

    def regular_job(self):
        nodes = self.chance.choice([1, 1, 2, 3, 5, NODES])
        seconds = round(self.chance.uniform(0.5, 12), 1)
        done = self.cluster.run(
            *["sbatch", "--parsable", "--exclusive", "--no-requeue", "--output=/dev/null", "-N", nodes],
            *["-t", "1", "--wrap", "exec sleep {}".format(seconds)],
            cwd=self.stage.dir,
        )
        if done.returncode == 0:
            self.jobs.append(int(done.stdout))
        return "on {} nodes for {} s".format(nodes, seconds)

    def kill_agent(self):
        return self.kill_one("bftrainer task", last=True)

    def kill_keeper(self):
        return self.kill_one("bftrainer task", last=False)

    def kill_rank(self):
        return self.kill_one("python3", last=False)

    def kill_step(self):
        workers = self.processes("bftrainer task")
        steps = [parent_of(pid) for pid in workers]
        steps = [pid for pid in steps if pid and command_name(pid).startswith("slurmstepd")]
        return self.kill_pid(steps)

    def kill_one(self, program, last):
        """Of a random node's processes of that program, the first or last one."""
        by_node = {}
        for pid in self.processes(program):
            by_node.setdefault(node_of(pid), []).append(pid)
        by_node.pop(None, None)
        if not by_node:
            return "(there is none)"
        pids = by_node[self.chance.choice(sorted(by_node))]
        return self.kill_pid([pids[-1] if last else pids[0]])

    def processes(self, program):
        return sorted(pid for pid, command in self.cluster.processes() if command.startswith(program))

    def kill_pid(self, pids):
        if not pids:
            return "(there is none)"
        pid = self.chance.choice(sorted(pids))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return "(it has ended)"
        return str(pid)

    def kill_controller(self):
        return self.kill_daemon("bftrainerd", 15)

    def kill_slurmctld(self):
        return self.kill_daemon("slurmctld", 10)

    def kill_slurmd(self):
        return self.kill_daemon("slurmd-" + self.some_node(), 25)

    def kill_munged(self):
        return self.kill_daemon("munged", 5)

    def kill_daemon(self, name, longest_s):
        try:
            self.cluster.kill(name)
        except (OSError, ValueError):
            return name + " (it does not run)"
        self.later(longest_s, self.start_missing)
        return name

    def start_missing(self):
        """Starts the daemons; agents go on through the proxy."""
        plugin = self.cluster.dir / "plugstack.conf.d/bftrainer.conf"
        line = plugin.read_text()
        try:
            self.cluster.start_missing()
        except AssertionError as error:
            # A node that is frozen, or slurmctld while munged is away: the next time.
            self.progress.say("not all could be started: {}".format(str(error).splitlines()[0][:150]))
        plugin.write_text(line)

    def cut_nodes(self):
        nodes = self.chance.sample(self.cluster.nodes, self.chance.choice([1, 2, NODES]))
        self.proxy.cut(*nodes)
        self.later(15, self.proxy.heal)
        return ",".join(sorted(nodes))

    def reset_connections(self):
        self.proxy.reset()

    def freeze_node(self):
        node = self.some_node()
        try:
            frozen = freeze(self.cluster, node)
        except (OSError, ValueError):
            return "(its slurmd does not run)"
        self.later(25, lambda: thaw(frozen))
        return node

    def drain_node(self):
        node = self.some_node()
        self.cluster.run("scontrol", "update", "NodeName=" + node, "State=DRAIN", "Reason=soak")
        self.later(15, lambda: self.resume(node))
        return node

    def resume(self, node):
        self.cluster.run("scontrol", "update", "NodeName=" + node, "State=RESUME")

    def requeue_task(self):
        training = self.chance.choice(self.trainings)
        states = self.cluster.states(training.array)
        running = sorted(task for task, state in states.items() if state == "RUNNING")
        if not running:
            return "(none runs)"
        task = "{}_{}".format(training.array, self.chance.choice(running))
        self.cluster.run("scontrol", "requeue", task)
        return task

    def some_node(self):
        return self.chance.choice(self.cluster.nodes)

    # The end.

    def calm(self):
        """All is mended, the regular jobs and then the trainings come to their ends."""
        self.progress.say("no more disturbances")
        for _, call in self.undo:
            call()
        self.undo = []
        self.start_missing()
        self.stage.wait_for(lambda: not self.queued("batch"), "the regular jobs have ended")
        for training in self.trainings:
            epoch = self.stage.wait_for(training.epoch, "the controller knows all trainings")
            training.set_epochs(int(epoch) + 4)
        # Each training reads its number of epochs when it is started again.
        last = self.stage.start(NODES)
        self.stage.end(last)
        self.stage.wait_ended(last)
        began_s = time.monotonic()
        while self.queued("bftrainer") and time.monotonic() - began_s < END_WITHIN_S:
            time.sleep(1)

    def queued(self, partition):
        return self.cluster.ok("squeue", "-h", "-p", partition, "-o", "%A").split()

    def problems(self):
        """A sentence for each thing that is not as it must be."""
        found = [problem for training in self.trainings for problem in training.problems()]
        left = self.cluster.processes()
        if left:
            found.append("processes are left: {}".format(left))
        for node, state in self.cluster.node_states().items():
            if state != "idle":
                found.append("node {} is {}".format(node, state))
        for job_id in self.jobs:
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
