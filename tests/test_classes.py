"""Nodes that are not alike: constraints, excluded nodes, limits, and the solver's process.

Run: python3 tests/test_classes.py (after cargo build --release --workspace)
"""

import os
import pwd
import signal
import unittest

from cluster import ClusterTest
from nodes import solver_of

USER = pwd.getpwuid(os.geteuid()).pw_name


class Classes(ClusterTest):
    """Four nodes: n1 and n2 have the feature a100, n3 and n4 have h100 and nvlink."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.set_features("n[1-2]", "a100")
        cls.set_features("n[3-4]", "h100,nvlink")

    @classmethod
    def set_features(cls, nodes, features):
        update = ["NodeName=" + nodes, "Features=" + features, "ActiveFeatures=" + features]
        cls.cluster.ok("scontrol", "update", *update)

    def setUp(self):
        super().setUp()
        classes = {"n1": "a100", "n2": "a100", "n3": "h100,nvlink", "n4": "h100,nvlink"}
        self.wait_for(
            lambda: self.classes_of_nodes() == classes, "the controller knows the nodes' classes"
        )

    def test_a_trainer_gets_only_nodes_that_its_constraint_allows(self):
        anywhere = self.counter("1-4")
        before = self.wait_trains(anywhere, 4)
        self.assertEqual(before["classes"], ["a100", "h100,nvlink"])
        # As soon as somebody takes part who may only use some, nodes are of two classes.
        picky = self.counter("1-4", "-C", "a100|h100&nvlink")
        row = self.wait_trains(picky, 2)
        self.assertEqual(row["node_list"], ["n3", "n4"])
        self.assertEqual(row["classes"], ["h100,nvlink"])
        row = self.wait_trains(anywhere, 2, after=before)
        self.assertEqual(row["node_list"], ["n1", "n2"])
        reasons = [row["reason"] for row in self.cluster.bftrainer("why", picky)]
        self.assertTrue(any("2 h100,nvlink nodes" in reason for reason in reasons), reasons)

        regular = self.regular("-w", "n3,n4", "-N2")
        self.wait_state(regular, "RUNNING")
        self.wait_for(
            lambda: self.reason(picky) == "not enough idle nodes", "the other one waits"
        )
        self.assertIsNotNone(self.trains(anywhere, 2))

    def test_excluded_nodes_are_never_used(self):
        row = self.wait_trains(self.counter("1-4", "-x", "n[1,3]"), 2)
        self.assertEqual(row["node_list"], ["n2", "n4"])
        self.assertEqual(row["excluded_nodes"], ["n1", "n3"])

    def test_what_no_node_has_is_waited_for_and_what_needs_several_nodes_is_refused(self):
        waiting = self.counter("1-4", "-C", "a100&nvlink")
        refused = self.counter("1-4", "-C", "[a100|h100]")
        for trainer, reason in (
            (waiting, "no node of the partition has what its tasks ask for"),
            (refused, 'its constraint "[a100|h100]" has brackets or counts'),
        ):
            self.wait_for(
                lambda: self.reason(trainer).startswith(reason),
                "T{}: {}".format(trainer, reason),
            )
        self.addCleanup(self.set_features, "n2", "a100")
        self.set_features("n2", "a100,nvlink")
        self.assertEqual(self.wait_trains(waiting, 1)["node_list"], ["n2"])

    def test_a_solver_that_hangs_costs_one_decision_and_is_replaced(self):
        anywhere = self.counter("1-4")
        self.wait_trains(anywhere, 4)
        solver = self.solver()
        os.kill(solver, signal.SIGSTOP)
        picky = self.counter("1-4", "-C", "h100")
        self.wait_trains(picky, 2)
        self.wait_trains(anywhere, 2)
        (totals,) = self.cluster.bftrainer("show")
        late = [count for how, count in totals["decisions"].items() if "after_timeout" in how]
        self.assertTrue(late, totals)
        reasons = [row["reason"] for row in self.cluster.bftrainer("why", picky)]
        said = "the solver did not answer in time and was killed"
        self.assertTrue(any(said in reason for reason in reasons), reasons)
        self.assertNotEqual(self.solver(), solver)

    # Helpers.

    def classes_of_nodes(self):
        rows = self.cluster.bftrainer("nodes") or []
        return {row["node"]: row["class"] for row in rows}

    def solver(self):
        return self.wait_for(lambda: solver_of(self.cluster), "the solver's process runs")


class Gres(ClusterTest):
    """Four nodes: n1 and n2 have two tiles, n3 and n4 one."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cluster = cls.cluster
        lines = (cluster.dir / "slurm.conf").read_text().splitlines()
        (nodes,) = [line for line in lines if line.startswith("NodeName=")]
        (cluster.dir / "gres.conf").write_text("Name=tile Count=2\n")
        cluster.dev_cluster("down")
        cluster.settings += ["--conf", "GresTypes=tile", "--conf", nodes + " Gres=tile:2"]
        cluster.up()
        cluster.ok("scontrol", "update", "NodeName=n[3-4]", "Gres=tile:1")

    def test_a_trainer_gets_only_nodes_that_have_the_gres_its_tasks_ask_for(self):
        both = self.counter("1-4", "--gres=tile:2")
        row = self.wait_trains(both, 2)
        self.assertEqual(row["node_list"], ["n1", "n2"])
        one = self.counter("1-4", "--gres=tile")
        row = self.wait_trains(one, 2)
        self.assertEqual(row["node_list"], ["n3", "n4"])
        none = self.counter("1-4", "--gres=tile:3")
        self.wait_for(
            lambda: "no node" in self.reason(none),
            "the third one is told that no node has three",
        )


class Limits(ClusterTest):
    BFTRAINER_CONF = ["max_nodes_per_user = {{ default = 100, {} = 3 }}".format(USER)]

    def test_a_user_never_has_more_nodes_than_the_limit(self):
        first = self.counter("1-4")
        self.wait_trains(first, 3)
        second = self.counter("3-4")
        self.wait_for(
            lambda: self.reason(second) == "a limit is used up: user {}, 3 nodes".format(USER),
            "the second one is told of the limit",
        )
        self.assertEqual(self.show(second)["caps"], {"user " + USER: 3})
        self.assertIsNotNone(self.trains(first, 3))
        self.cluster.ok("scancel", first)
        self.wait_trains(second, 3)


if __name__ == "__main__":
    unittest.main()
