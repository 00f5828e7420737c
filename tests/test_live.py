"""Live trainings: ranks that stay go on, as the same processes, whatever the others do.

Run: python3 tests/test_live.py (after cargo build --release --workspace)
"""

import unittest

from live import LiveTests
from training import TrainingTest


class Live(LiveTests, TrainingTest):
    pass


if __name__ == "__main__":
    unittest.main()
