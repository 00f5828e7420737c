"""Plugin, agent and controller are replaced one after the other under a running training: it is
neither lost nor started anew by that, learns what it learns undisturbed, and regular jobs and
nodes don't notice. The new files are of the same build; what peers of another version are told
is tested in controller/tests/handshake.rs.

Run: python3 tests/test_upgrade.py (after cargo build --release --workspace)
"""

import contextlib
import os
import shutil
import unittest

from cluster import PATIENCE_S
from test_install import enable, install
from training import FOR_EVER, SPEED, STEERED, TrainingTest

PLUGIN = "lib/slurm/spank_bftrainer.so"
AGENT = "bin/bftrainer"
CONTROLLER = "sbin/bftrainerd"


class Upgrade(TrainingTest):
    def setUp(self):
        super().setUp()
        self.prefix = self.dir / "usr"
        self.install()
        enable(self, self.prefix)
        self.cluster.stop_controller()
        self.addCleanup(self.cluster.start_controller)
        self.addCleanup(self.stop_daemon)
        self.start_daemon()

    def test_each_is_replaced_under_a_running_training(self):
        witness = self.regular_until("end-of-witness", "-N2")
        self.wait_state(witness, "RUNNING")
        self.set_epochs(FOR_EVER)
        trainer = self.sbatch("--bftrainer=nodes=1-4,up=1,down=1", self.script(STEERED), *SPEED)
        row = self.wait_trains(trainer, 2)

        self.replace(PLUGIN)
        row = self.wait_trains(trainer, 2, after=self.take_a_node(trainer, row))
        self.assertEqual(self.agents(trainer), {"new"})

        self.replace(AGENT)
        self.assertEqual(self.agents(trainer), {"old"})
        row = self.wait_trains(trainer, 2, after=self.take_a_node(trainer, row))
        self.assertEqual(self.agents(trainer), {"old", "new"})

        self.replace(CONTROLLER)
        row = self.restart_daemon(trainer, row)
        row = self.wait_trains(trainer, 2, after=self.take_a_node(trainer, row))

        # All at once, as packages do it.
        self.install()
        self.assertEqual(self.agents(trainer), {"old"})
        row = self.restart_daemon(trainer, row)
        (self.dir / "end-of-witness").touch()
        self.wait_state(witness, "COMPLETED")
        row = self.wait_trains(trainer, 4, after=row)
        self.assertEqual(self.agents(trainer), {"old", "new"})

        # What comes last reads the number of epochs again.
        self.set_epochs(int(row["epoch"]) + 3)
        self.take_a_node(trainer, row)
        self.wait_ended(trainer, "COMPLETED")
        self.assert_same_losses()
        self.assertEqual(self.cluster.job(witness)["Restarts"], "0")
        self.assertEqual(self.cluster.ok("sinfo", "-h", "-R"), "")

    # Regular jobs.

    def regular_until(self, name, *words):
        """A regular job that ends when a file of that name is there."""
        text = "until [ -e {} ]; do sleep 0.1; done".format(name)
        return self.sbatch("--exclusive", *words, "--wrap", text)

    def take_a_node(self, trainer, row):
        """A regular job takes one of the trainer's nodes and completes; the trainer's row when
        it trains on the others."""
        name = "end-of-{}".format(row["generation"])
        job = self.regular_until(name, "-w", row["node_list"][1])
        self.wait_state(job, "RUNNING")
        fewer = self.wait_trains(trainer, row["nodes"] - 1, after=row)
        (self.dir / name).touch()
        self.wait_state(job, "COMPLETED")
        return fewer

    # Installed files.

    def install(self):
        install(self.dir, PREFIX=str(self.prefix), SYSCONFDIR=str(self.dir / "etc"), DESTDIR="")

    def replace(self, name):
        new = self.prefix / (name + ".new")
        shutil.copy2(self.prefix / name, new)
        new.rename(self.prefix / name)

    def agents(self, trainer):
        """Which executables its agents run: the "new" one that is installed, an "old" one that
        has been replaced since they started."""
        kinds = {str(self.prefix / AGENT): "new", str(self.prefix / AGENT) + " (deleted)": "old"}
        found = set()
        for pid, command in self.cluster.processes(trainer):
            if command.startswith("bftrainer task"):
                with contextlib.suppress(FileNotFoundError):
                    found.add(kinds[os.readlink("/proc/{}/exe".format(pid))])
        return found

    # The controller.

    def start_daemon(self):
        self.daemon = self.cluster.foreground(self.prefix / CONTROLLER)
        self.wait_for(
            lambda: self.cluster.bftrainer("queue") is not None, "the installed controller answers"
        )

    def stop_daemon(self):
        self.daemon.terminate()
        self.assertEqual(self.daemon.wait(PATIENCE_S), 0)

    def restart_daemon(self, trainer, row):
        """The trainer's row when it trains on, undisturbed, with the new controller."""
        self.stop_daemon()
        self.start_daemon()
        self.assertEqual(
            os.readlink("/proc/{}/exe".format(self.daemon.pid)), str(self.prefix / CONTROLLER)
        )
        after = self.wait_more(trainer, row["nodes"], row)
        self.assertEqual(after["generation"], row["generation"])
        return after


if __name__ == "__main__":
    unittest.main()
