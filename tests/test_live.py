"""Live trainings: ranks that stay go on, as the same processes, whatever the others do.

Run: python3 tests/test_live.py (after cargo build --release --workspace)
"""

import unittest

from live import LiveTrainingTest


class Live(LiveTrainingTest):
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


if __name__ == "__main__":
    unittest.main()
