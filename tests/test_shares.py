"""Who gets how much: users take turns, a user's trainings share what one would get, and
`bftrainer set`.

Run: python3 tests/test_shares.py (after cargo build --release --workspace)
"""

import os
import unittest

from cluster import COUNT, ClusterTest

OTHER = "nobody"

# Each node is worth less than the one before, so that sharing pays.
CURVE = "curve=1:10/2:15/3:19/4:21"


@unittest.skipUnless(os.geteuid() == 0, "only root can submit as somebody else")
class SharesTest(ClusterTest):
    def train(self, name, user=None, nodes="1-4"):
        """Submits a counting trainer from a folder of its own."""
        folder = self.dir / name
        folder.mkdir()
        folder.chmod(0o777)
        specification = "--bftrainer=nodes={},up=1,down=1,{}".format(nodes, CURVE)
        return self.sbatch(specification, COUNT, cwd=folder, user=user)

    def end(self, name):
        (self.dir / name / "end").write_text("0")

    def nodes(self, trainer):
        row = self.show(trainer)
        return row["nodes"] if row and row["state"] == "RUNNING" else 0

    def wait_nodes(self, wanted):
        """Until the trainers have so many nodes each."""
        self.wait_for(
            lambda: {trainer: self.nodes(trainer) for trainer in wanted} == wanted,
            "nodes by trainer are {}".format(wanted),
        )


class Shares(SharesTest):
    def test_two_trainings_of_a_user_get_together_what_another_users_one_gets(self):
        first, second = self.train("first"), self.train("second")
        other = self.train("other", user=OTHER)
        self.wait_nodes({first: 1, second: 1, other: 2})

    def test_an_owner_weighs_his_trainings_and_asks_for_less(self):
        light, heavy = self.train("light", user=OTHER), self.train("heavy", user=OTHER)
        self.wait_nodes({light: 2, heavy: 2})
        self.cluster.ok("bftrainer", "set", heavy, "weight=5", user=OTHER)
        self.wait_nodes({light: 1, heavy: 3})
        self.cluster.ok("bftrainer", "set", heavy, "nodes=1-2", user=OTHER)
        self.wait_nodes({light: 2, heavy: 2})
        self.assert_refused(heavy, "nodes=1-3", OTHER, "owners may")
        self.assert_refused(heavy, "samples=5", OTHER, "owners may")
        self.assert_refused(heavy, "weight=0", OTHER, "weight=0: expected")
        self.assert_refused(heavy, "size=3", OTHER, 'unknown key "size"')
        specification = self.show(heavy)["specification"]
        self.assertEqual(specification, "nodes=1-2,weight=5,{},up=1,down=1".format(CURVE))
        # It is Slurm that keeps it.
        self.cluster.kill("bftrainerd")
        self.cluster.start_missing()
        self.wait_nodes({light: 2, heavy: 2})
        self.assertEqual(self.show(heavy)["specification"], specification)

    def test_an_administrator_changes_anything_but_others_nothing(self):
        trainer = self.train("one", nodes="1-4")
        self.wait_nodes({trainer: 4})
        self.assert_refused(trainer, "weight=2", OTHER, "belongs to another user")
        self.assert_refused(trainer, "nodes=1-9", None, "the array has 4 tasks")
        self.assert_refused(999999, "weight=2", None, "no admitted trainer")
        self.cluster.ok("bftrainer", "set", trainer, "nodes=2-3,samples=70")
        self.wait_nodes({trainer: 3})
        self.assertEqual(self.show(trainer)["total"], 70)
        self.cluster.ok("bftrainer", "set", trainer, "nodes=2-4")
        self.wait_nodes({trainer: 4})
        self.end("one")
        self.wait_ended(trainer, "COMPLETED")

    def assert_refused(self, trainer, changes, user, reason):
        done = self.cluster.run("bftrainer", "set", trainer, changes, user=user)
        self.assertEqual(done.returncode, 1)
        self.assertIn(reason, done.stderr)


class Turns(SharesTest):
    BFTRAINER_CONF = ["min_trainers = 1"]

    def test_users_take_turns(self):
        first, second = self.train("first"), self.train("second")
        self.wait_nodes({first: 4, second: 0})
        other = self.train("other", user=OTHER)
        self.wait_for(lambda: self.show(other), "the other user's training is known")
        self.assertEqual(self.show(second)["reason"], "others come first")
        self.end("first")
        self.wait_nodes({second: 0, other: 4})
        self.end("other")
        self.wait_nodes({second: 4})


if __name__ == "__main__":
    unittest.main()
