"""torchft under `--live`: replicas that stay go on, as the same processes, and learn what the
plain PyTorch example learns undisturbed.

Run: scripts/test-torchft PYTHON, a Python that has torchft. It is no part of scripts/test.
"""

import os
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from cluster import ROOT  # noqa: E402
from live import LiveTests  # noqa: E402
from training import TrainingTest  # noqa: E402

LIVE_SCRIPT = ROOT / "examples/torchft/train-live.sh"
START_S = 180.0  # Each start imports torch, and all nodes share this machine.


class Torchft(LiveTests, TrainingTest):
    EXAMPLE = ROOT / "examples/torch"
    PROGRAM = LIVE_SCRIPT.parent / "train_live.py"
    PYTHON = os.environ["BFTRAINER_TORCHFT_PYTHON"]
    SPECIFICATION = "--bftrainer=nodes=1-4,up=3,down=3"
    SPEED = ["--device-ms-per-sample", "4", "--losses", "losses.json"]
    TOLERANCE = 1e-4  # float32 sums differ in their order.

    def test_the_script_trains_to_the_end(self):
        trainer = self.sbatch(
            *[self.SPECIFICATION, LIVE_SCRIPT, "--epochs", "4", *self.SPEED],
            env={"TORCHFT_PYTHON": self.PYTHON, "TORCHFT_EXAMPLE_DIR": str(LIVE_SCRIPT.parent)},
        )
        self.wait_ended(trainer, "COMPLETED")
        self.assert_same_losses(4)

    # Helpers.

    def goes_on(self, row, nodes, before, without=()):
        """Besides, torchft's quorum has as many replicas as the training has nodes."""
        row = super().goes_on(row, nodes, before, without)
        epoch, replicas = int(row["epoch"]), row["nodes"]

        def is_quorum():
            said = self.cluster.ok("bftrainer", "logs", "-n", 10000, row["jobid"])
            found = re.findall(r"^epoch (\d+) .* on (\d+) ranks$", said, re.MULTILINE)
            return found and int(found[-1][0]) > epoch and int(found[-1][1]) == replicas

        self.wait_for(is_quorum, "an epoch has ended on {} replicas".format(replicas), START_S)
        return row

    def wait_trains(self, trainer, nodes, after=None):
        return super().wait_trains(trainer, nodes, after, START_S)

    def wait_ended(self, trainer, state):
        super().wait_ended(trainer, state, START_S)


if __name__ == "__main__":
    unittest.main()
