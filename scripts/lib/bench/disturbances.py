"""What goes wrong in a soak, each kind a method that says what it has hit."""

import os
import signal
import sys
import time
from collections import Counter

from stage import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from nodes import command_name, freeze, node_of, parent_of, solver_of, thaw  # noqa: E402

LONGEST_PAUSE_S = 8.0
DRAIN_REASON = "soak"


class Missed(Exception):
    """There was nothing that the disturbance could hit; why."""


class Disturbances:
    """Draws from `chance` what happens when. `trainings` have an array number."""

    def __init__(self, stage, chance, progress, trainings, proxy):
        self.stage = stage
        self.cluster = stage.cluster
        self.chance = chance
        self.progress = progress
        self.trainings = trainings
        self.proxy = proxy
        self.jobs = []  # Job numbers of the regular jobs.
        self.done = Counter()  # How often each kind has hit something.
        self.undo = []  # (when, monotonic seconds; what to call)

    def disturb(self, seconds):
        """Until so many seconds have passed."""
        weights = self.weights()
        self.done.update({name_of(action): 0 for action in weights})
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            action = self.chance.choices(list(weights), weights=list(weights.values()))[0]
            name = name_of(action)
            try:
                said = action()
                self.done[name] += 1
            except Missed as reason:
                said = "({})".format(reason)
            self.progress.say("{} {}".format(name, said or ""))
            self.pass_time(self.chance.uniform(0, LONGEST_PAUSE_S))

    def mend(self):
        """Undoes what is not undone yet."""
        self.undo_all()
        self.stage.wait_for(self.start_missing, "all daemons run")
        # What slurmctld was needed for and away.
        self.undo_all()

    def undo_all(self):
        undo, self.undo = self.undo, []
        for _, call in undo:
            call()

    def weights(self):
        """How often each kind is drawn, compared with the others."""
        return {
            self.regular_job: 8,
            self.kill_agent: 3,
            self.kill_keeper: 2,
            self.kill_rank: 3,
            self.kill_step: 1,
            self.kill_controller: 3,
            self.kill_solver: 3,
            self.kill_slurmctld: 1,
            self.kill_slurmd: 2,
            self.kill_munged: 1,
            self.cut_nodes: 3,
            self.reset_connections: 2,
            self.freeze_node: 2,
            self.drain_node: 2,
            self.requeue_task: 2,
        }

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
        nodes = self.chance.choice([1, 1, 2, 3, 5, len(self.cluster.nodes)])
        seconds = round(self.chance.uniform(0.5, 12), 1)
        done = self.cluster.run(
            *["sbatch", "--parsable", "--exclusive", "--no-requeue", "--output=/dev/null", "-N", nodes],
            *["-t", "1", "--wrap", "exec sleep {}".format(seconds)],
            cwd=self.stage.dir,
        )
        if done.returncode != 0:
            raise Missed("not submitted")
        self.jobs.append(int(done.stdout))
        return "on {} nodes for {} s".format(nodes, seconds)

    def kill_agent(self):
        return self.kill_one("bftrainer task", last=True)

    def kill_keeper(self):
        return self.kill_one("bftrainer task", last=False)

    def kill_rank(self):
        return self.kill_one("python3", last=False)

    def kill_step(self):
        """slurmstepd of a task."""
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
            raise Missed("there is none")
        pids = by_node[self.chance.choice(sorted(by_node))]
        return self.kill_pid([pids[-1] if last else pids[0]])

    def processes(self, program):
        return sorted(pid for pid, command in self.cluster.processes() if command.startswith(program))

    def kill_pid(self, pids):
        if not pids:
            raise Missed("there is none")
        pid = self.chance.choice(sorted(pids))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            raise Missed("it has ended") from None
        return str(pid)

    def kill_controller(self):
        return self.kill_daemon("bftrainerd", 15)

    def kill_solver(self):
        """The next decision that needs it starts another."""
        solver = solver_of(self.cluster)
        return self.kill_pid([solver] if solver else [])

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
            raise Missed(name + " does not run") from None
        self.later(longest_s, self.start_missing)
        return name

    def start_missing(self):
        """Starts the daemons; whether all run. Agents go on through the proxy."""
        plugin = self.cluster.dir / "plugstack.conf.d/bftrainer.conf"
        line = plugin.read_text()
        try:
            self.cluster.start_missing()
            return True
        except AssertionError as error:
            # A node that is frozen, or slurmctld while munged is away: the next time.
            self.progress.say("not all could be started: {}".format(str(error).splitlines()[0][:150]))
            return False
        finally:
            plugin.write_text(line)

    def cut_nodes(self):
        nodes = self.chance.sample(self.cluster.nodes, self.chance.choice([1, 2, len(self.cluster.nodes)]))
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
            raise Missed("its slurmd does not run") from None
        self.later(25, lambda: thaw(frozen))
        return node

    def drain_node(self):
        node = self.some_node()
        self.scontrol("update", "NodeName=" + node, "State=DRAIN", "Reason=" + DRAIN_REASON)
        self.later(15, lambda: self.resume(node))
        return node

    def resume(self, node):
        """Ends a drain, as soon as slurmctld answers; one that was killed may have forgotten it."""
        done = self.cluster.run("scontrol", "update", "NodeName=" + node, "State=RESUME")
        if done.returncode != 0 and "Invalid node state" not in done.stderr:
            self.later(5, lambda: self.resume(node))

    def requeue_task(self):
        training = self.chance.choice(self.trainings)
        states = self.cluster.states(training.array)
        running = sorted(task for task, state in states.items() if state == "RUNNING")
        if not running:
            raise Missed("none runs")
        task = "{}_{}".format(training.array, self.chance.choice(running))
        self.scontrol("requeue", task)
        return task

    def scontrol(self, *words):
        if self.cluster.run("scontrol", *words).returncode != 0:
            raise Missed("scontrol failed")

    def some_node(self):
        return self.chance.choice(self.cluster.nodes)


def name_of(action):
    return action.__name__.replace("_", " ")
