"""Tests with the example that learns: its losses tell whether anything was lost or repeated."""

import json

from cluster import DIGITS, ClusterTest

# The number of epochs is read anew by each generation: the test says when to end.
STEERED = 'exec python3 "$DIGITS_DIR/train.py" --epochs "$(cat epochs)" "$@"\n'
FOR_EVER = 100000
SPEED = ["--device-ms-per-sample", "2", "--losses", "losses.json"]


class TrainingTest(ClusterTest):
    EXAMPLE = DIGITS
    PYTHON = "python3"  # Runs the example.
    TOLERANCE = 1e-6

    def set_epochs(self, epochs):
        new = self.dir / "epochs.new"
        new.write_text(str(epochs))
        new.rename(self.dir / "epochs")

    def assert_same_losses(self, epochs=None, folder=None):
        """Of each epoch, as a single rank learns them alone."""
        losses = json.loads(((folder or self.dir) / "losses.json").read_text())
        alone = self.dir / "alone"
        alone.mkdir()
        self.cluster.ok(
            *[self.PYTHON, self.EXAMPLE / "train.py", "--epochs", len(losses)],
            *["--losses", alone / "losses.json"],
            cwd=alone,
            timeout_s=300,
        )
        expected = json.loads((alone / "losses.json").read_text())
        self.assertEqual(len(losses), epochs or len(expected))
        self.assertGreaterEqual(len(losses), 3)
        for epoch, (loss, one) in enumerate(zip(losses, expected)):
            self.assertAlmostEqual(loss, one, delta=self.TOLERANCE, msg="epoch {}".format(epoch + 1))
        self.assertLess(losses[-1], losses[0] / 2)
