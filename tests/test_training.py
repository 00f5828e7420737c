"""Real trainings: the examples learn the same whatever happens to their nodes.

Run: python3 tests/test_training.py (after cargo build --release --workspace)
"""

import os
import pathlib
import pwd
import unittest

from cluster import DIGITS, ClusterTest
from training import FOR_EVER, SPEED, STEERED, TrainingTest

SPECIFICATION = "--bftrainer=nodes=1-4,up=1,down=1"


class Training(TrainingTest):
    def test_the_example_trains_to_its_end(self):
        trainer = self.sbatch(DIGITS / "train.sh", "--epochs", "6", *SPEED)
        self.wait_ended(trainer, "COMPLETED")
        self.assert_same_losses(6)
        shown = self.show(trainer)
        self.assertEqual((shown["samples"], shown["total"]), (9000, 9000))

    def test_losses_are_those_of_an_undisturbed_run_after_rescales_and_preemptions(self):
        regular = self.regular("-N2")
        self.wait_state(regular, "RUNNING")
        self.set_epochs(FOR_EVER)
        trainer = self.sbatch(SPECIFICATION, self.script(STEERED), *SPEED)
        self.disturb(trainer, regular)
        self.wait_ended(trainer, "COMPLETED")
        shown = self.show(trainer)
        self.assertGreaterEqual(shown["rescales"], 3)
        self.assertGreaterEqual(shown["preemptions"], 3)
        self.assert_same_losses()

    def test_losses_are_the_same_when_the_script_calls_the_agent_itself(self):
        regular = self.regular("-N2")
        self.wait_state(regular, "RUNNING")
        self.set_epochs(FOR_EVER)
        self.script(STEERED, "steered.sh")
        text = 'echo "$SLURM_ARRAY_TASK_ID" >> prelude.log\n'
        script = self.script(text + 'srun bftrainer run -- ./steered.sh "$@"\n')
        trainer = self.sbatch(SPECIFICATION, script, *SPEED)
        self.disturb(trainer, regular)
        self.wait_ended(trainer, "COMPLETED")
        self.assert_same_losses()

    @unittest.skipUnless(os.geteuid() == 0, "only root can submit as somebody else")
    def test_another_user_than_root_submits_and_trains(self):
        user = "nobody"
        home = self.dir / "home"
        home.mkdir()
        os.chown(home, pwd.getpwnam(user).pw_uid, -1)
        trainer = self.sbatch(
            *["--bftrainer=nodes=1-4", DIGITS / "train.sh", "--epochs", "6", *SPEED],
            cwd=home,
            user=user,
        )
        self.wait_ended(trainer, "COMPLETED")
        self.assert_same_losses(6, home)
        self.assertEqual(self.show(trainer)["user"], user)
        folder = home / ".bftrainer-{}".format(trainer)
        self.assertEqual(folder.stat().st_uid, pwd.getpwnam(user).pw_uid)
        self.assertEqual(folder.stat().st_mode & 0o077, 0)
        logs = self.cluster.ok("bftrainer", "logs", trainer, user=user)
        self.assertIn("epoch 6 loss", logs)

    # Helpers.

    def disturb(self, trainer, regular):
        """Growth, the loss of one node, of two and of the master; then the end."""
        row = self.wait_trains(trainer, 2)
        self.cluster.ok("scancel", regular)
        row = self.wait_trains(trainer, 4, after=row)
        regular = self.regular("-w", row["node_list"][2])
        # Cancelled before it starts, it would have taken no node.
        self.wait_state(regular, "RUNNING")
        row = self.wait_trains(trainer, 3, after=row)
        self.cluster.ok("scancel", regular)
        row = self.wait_trains(trainer, 4, after=row)
        # What comes last reads the number of epochs again: few are left then.
        self.set_epochs(int(row["epoch"]) + 3)
        self.regular("-N2", "-w", ",".join(row["node_list"][:2]))


class Preludes(ClusterTest):
    def test_a_prelude_runs_once_per_placement_and_the_command_once_per_generation(self):
        script = self.script(
            'echo "$SLURM_ARRAY_TASK_ID $SLURM_RESTART_COUNT $SLURMD_NODENAME" >> prelude.log\n'
            "srun bftrainer run -- {}/count.sh\n".format(pathlib.Path(__file__).parent)
        )
        trainer = self.sbatch("--bftrainer=nodes=1-4,up=1,down=1", script)
        row = self.wait_trains(trainer, 4)
        first = row["generation"]
        self.assertEqual(len(self.lines("prelude.log")), 4)
        self.assertEqual(len(self.starts_of(first)), 4)

        regular = self.regular("-w", row["node_list"][0])
        row = self.wait_trains(trainer, 3, after=row)
        self.assertEqual(len(self.lines("prelude.log")), 4)
        self.assertEqual(len(self.starts_of(row["generation"])), 3)

        self.cluster.ok("scancel", regular)
        row = self.wait_trains(trainer, 4, after=row)
        self.assertEqual(len(self.lines("prelude.log")), 5)
        self.assertEqual(len(self.starts_of(row["generation"])), 4)

        self.end()
        self.wait_ended(trainer, "COMPLETED")
        self.assertEqual(len(self.lines("prelude.log")), 5)

    def test_the_examples_prelude_form_trains(self):
        trainer = self.sbatch(
            *["--bftrainer=nodes=1-3", DIGITS / "train-srun.sh", "--epochs", "5"],
            *["--device-ms-per-sample", "2"],
        )
        self.wait_ended(trainer, "COMPLETED")
        self.assertIn(len(self.lines("prelude.log")), (1, 2, 3))
        self.assertEqual(self.show(trainer)["samples"], 7500)

    def lines(self, name):
        return (self.dir / name).read_text().splitlines()

    def starts_of(self, generation):
        """The (rank, ranks, node) that a generation was started with."""
        starts = [line.split() for line in self.lines("starts.log")]
        return [start[1:] for start in starts if start[0] == str(generation)]


if __name__ == "__main__":
    unittest.main()
