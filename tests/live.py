"""The tests of a live training: ranks that stay go on, as the same processes."""

import os
import signal

from cluster import DIGITS
from nodes import node_of, parent_of, signal_all
from training import FOR_EVER, SPEED

# The number of epochs is read by each process that starts: the test says when to end.
LIVE = 'exec "{}" "{}" --epochs "$(cat epochs)" "$@"\n'
AGENT = 'srun bftrainer run --live --notify USR1 -- ./live.sh "$@"\n'


class LiveTests:
    """To be mixed into a TrainingTest; here, a test of the example without torch."""

    PROGRAM = DIGITS / "train_live.py"
    SPECIFICATION = "--bftrainer=nodes=1-4,up=1,down=1"
    SPEED = SPEED

    def test_who_stays_goes_on_and_the_losses_are_those_of_an_undisturbed_run(self):
        regular = self.regular("-N2")
        self.wait_state(regular, "RUNNING")
        row = self.grows(self.start(), regular)
        row = self.loses(row, row["node_list"][2])
        first = row["node_list"][0]
        row = self.loses(row, first)
        self.assertNotEqual(row["node_list"][0], first)
        row = self.shrinks(row)
        row = self.outlives_the_controller(row)
        self.ends(row)

    def test_without_a_rank_that_dies_or_falls_silent_the_others_go_on(self):
        row = self.start()
        row = self.wait_trains(row["jobid"], 4)
        row = self.survives_a_death(row)
        row = self.survives_silence(row)
        self.ends(row)
        # None of it was put down to the survivors.
        self.assertEqual(self.cluster.controller_log().count("started again after"), 0)

    # What happens to the training; each returns its row afterwards.

    def start(self):
        self.set_epochs(FOR_EVER)
        self.script(LIVE.format(self.PYTHON, self.PROGRAM), "live.sh")
        trainer = self.sbatch(self.SPECIFICATION, self.script(AGENT), *self.SPEED)
        return self.wait_trains(trainer, (1, 2, 3, 4))

    def grows(self, row, regular):
        row = self.wait_trains(row["jobid"], 2)
        before = self.ranks(row)
        self.cluster.ok("scancel", regular)
        return self.goes_on(row, 4, before)

    def loses(self, row, node):
        """A regular job takes a node, and gives it back."""
        before = self.ranks(row)
        regular = self.regular("-w", node)
        self.wait_state(regular, "RUNNING")
        row = self.goes_on(row, 3, before, without=[node])
        self.assertNotIn(node, row["node_list"])
        before = self.ranks(row)
        self.cluster.ok("scancel", regular)
        return self.goes_on(row, 4, before)

    def shrinks(self, row):
        """Nodes are given back, after a farewell."""
        trainer, before = row["jobid"], self.ranks(row)
        self.cluster.ok("bftrainer", "set", trainer, "nodes=1-2")
        kept = self.wait_trains(trainer, 2, after=row)
        left = set(row["node_list"]) - set(kept["node_list"])
        row = self.goes_on(row, 2, before, without=left)
        self.cluster.ok("bftrainer", "set", trainer, "nodes=1-4")
        return self.goes_on(row, 4, self.ranks(row))

    def outlives_the_controller(self, row):
        before = self.ranks(row)
        self.cluster.stop_controller()
        self.cluster.start_controller()
        row = self.wait_trains(row["jobid"], 4)
        self.assertEqual(self.ranks(row), before)
        return row

    def survives_a_death(self, row):
        before = self.ranks(row)
        node = row["node_list"][1]
        os.kill(before[node], signal.SIGKILL)
        return self.goes_on(row, (3, 4), before, without=[node])

    def survives_silence(self, row):
        """The agent of rank 0's node is heard no more."""
        before = self.ranks(row)
        node = row["node_list"][0]
        agent = parent_of(before[node])
        signal_all([agent], signal.SIGSTOP)
        self.addCleanup(signal_all, [agent], signal.SIGCONT)
        row = self.goes_on(row, (2, 3), before, without=[node])
        self.wait_for(
            lambda: before[node] not in self.all_ranks(row["jobid"]), "the old rank is gone"
        )
        return row

    def ends(self, row):
        """All nodes are taken; who starts after that has few epochs left."""
        self.set_epochs(int(row["epoch"]) + 2)
        regular = self.regular("-N4")
        self.wait_state(regular, "RUNNING")
        self.cluster.ok("scancel", regular)
        self.wait_ended(row["jobid"], "COMPLETED")
        self.assert_same_losses()
        # It went on from the checkpoint, not from the beginning.
        logs = self.cluster.ok("bftrainer", "logs", row["jobid"])
        self.assertEqual(logs.count("epoch 1 loss"), 1)

    # What is looked at.

    def goes_on(self, row, nodes, before, without=()):
        """It trains on so many nodes, and where it did before by the same processes."""
        row = self.wait_trains(row["jobid"], nodes, after=row)
        ranks = self.ranks(row)
        for node, pid in before.items():
            if node not in without:
                self.assertEqual(ranks.get(node), pid, node)
        return row

    def ranks(self, row):
        """The process that trains on each node; they are those that the row names."""

        def found():
            ranks = {node_of(pid): pid for pid in self.all_ranks(row["jobid"])}
            return set(ranks) == set(row["node_list"]) and ranks

        return self.wait_for(found, "the ranks are those of {}".format(row["node_list"]))

    def all_ranks(self, trainer):
        processes = self.cluster.processes(trainer)
        return {pid for pid, command in processes if command.startswith(self.PYTHON + " ")}
