"""What owners do to their arrays with Slurm's own commands, and what Slurm itself refuses:
the training goes on, and nobody else suffers.

Run: python3 tests/test_user_actions.py (after cargo build --release --workspace)
"""

import os
import pwd
import subprocess
import unittest

from cluster import COUNT, ClusterTest

OWNER = "nobody"


@unittest.skipUnless(os.geteuid() == 0, "only root can submit as somebody else")
class Owner(ClusterTest):
    """An owner who is no operator does things to the tasks of a trainer on four nodes."""

    CONF = ["MaxJobCount=60"]
    BFTRAINER_CONF = ["max_tasks = 59"]

    def setUp(self):
        super().setUp()
        os.chown(self.dir, pwd.getpwnam(OWNER).pw_uid, -1)
        self.trainer = self.counter("1-6", user=OWNER)
        self.row = self.wait_trains(self.trainer, 4)

    def scontrol(self, *words):
        self.cluster.ok("scontrol", *words, user=OWNER)

    def task(self, number):
        return "{}_{}".format(self.trainer, number)

    def running(self):
        """The number of one of the running tasks."""
        states = self.cluster.states(self.trainer)
        return max(index for index, state in states.items() if state == "RUNNING")

    def assert_finishes(self):
        self.end()
        self.wait_ended(self.trainer, "COMPLETED")
        self.assert_counted()

    def assert_undisturbed(self):
        """It trains on without having been restarted."""
        after = self.wait_for(
            lambda: (found := self.trains(self.trainer, 4))
            and found["samples"] > self.row["samples"] + 15
            and found,
            "it trains on",
        )
        self.assertEqual(after["generation"], self.row["generation"])

    def test_requeues_a_running_task(self):
        self.scontrol("requeue", self.task(self.running()))
        self.wait_trains(self.trainer, 4, after=self.row)
        self.assert_finishes()

    def test_requeues_and_holds_a_running_task(self):
        self.scontrol("requeuehold", self.task(self.running()))
        self.wait_trains(self.trainer, 4, after=self.row)
        self.assert_finishes()

    def test_holds_and_releases_the_whole_array(self):
        self.cluster.run("scontrol", "hold", self.trainer, user=OWNER)
        self.assert_undisturbed()
        # What the administrator holds the owner can't release.
        self.cluster.run("scontrol", "release", self.trainer, user=OWNER)
        self.assert_undisturbed()
        self.assert_finishes()

    def test_changes_the_comment(self):
        self.scontrol("update", "JobId=%d" % self.trainer, "Comment=bftrainer:nodes=1-1")
        self.assert_undisturbed()
        self.scontrol("update", "JobId=%d" % self.trainer, "Comment=mine")
        self.assert_undisturbed()
        self.assert_finishes()

    def test_lowers_the_time_limit_of_a_running_task(self):
        task = self.running()
        self.scontrol("update", "JobId=" + self.task(task), "TimeLimit=1")
        self.wait_for(
            lambda: self.cluster.tasks(self.trainer)[task]["TimeLimit"] != "00:01:00",
            "the limit is raised again",
        )
        self.assert_undisturbed()
        self.assert_finishes()

    def test_moves_waiting_tasks_to_another_partition(self):
        waiting = [
            index
            for index, state in self.cluster.states(self.trainer).items()
            if state == "PENDING"
        ]
        self.scontrol("update", "JobId=" + self.task(waiting[0]), "Partition=batch")
        self.assert_undisturbed()
        self.cluster.ok("scancel", self.task(waiting[0]))
        self.end()
        self.wait_for(
            lambda: sorted(self.cluster.states(self.trainer).values())
            == ["CANCELLED"] + ["COMPLETED"] * 5,
            "all other tasks are COMPLETED",
        )

    def test_z_submits_beyond_maxjobcount(self):
        # Ended jobs count until MinJobAge, so this is the class's last test: Slurm has
        # room for hardly any more, and sbatch tries again for minutes.
        with self.assertRaises(subprocess.TimeoutExpired):
            self.cluster.run(
                *["sbatch", "--bftrainer=nodes=1-60", COUNT],
                cwd=self.dir,
                user=OWNER,
                timeout_s=5,
            )
        self.assert_undisturbed()
        self.assert_finishes()


class Obstacles(ClusterTest):
    """What keeps a task from starting although it was placed."""

    CONF = ["Licenses=seat:2"]
    BFTRAINER_CONF = ["place_timeout_s = 4"]

    def test_licences_that_are_used_up_keep_no_other_trainer_from_a_node(self):
        script = self.script("cd $1\n" + COUNT.read_text())
        folders = [self.dir / "licensed", self.dir / "other"]
        for folder in folders:
            folder.mkdir()
        options = "--bftrainer=nodes=1-4,up=1,down=1"
        licensed = self.sbatch(options, "-L", "seat:1", script, folders[0])
        self.wait_trains(licensed, 2)
        other = self.sbatch(options, script, folders[1])
        self.wait_trains(other, 2)
        self.assertIsNotNone(self.trains(licensed, 2))

    def test_a_dependency_that_is_not_met_keeps_no_other_trainer_from_a_node(self):
        before = self.regular("-N1", "-w", "n4")
        waiting = self.counter("1-4", "--dependency=afterany:%d" % before)
        self.wait_for(
            lambda: self.reason(waiting) not in ("", "not enough idle nodes"),
            "it is said that it waits for something of its own",
        )
        other = self.counter("1-3")
        self.wait_trains(other, 3)


if __name__ == "__main__":
    unittest.main()
