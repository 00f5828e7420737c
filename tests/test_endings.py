"""How trainers end: finished, failed, cancelled as a whole or in part.

Run: python3 tests/test_endings.py (after cargo build --release --workspace)
"""

import unittest

from cluster import COUNT, ClusterTest


class Finishing(ClusterTest):
    def test_a_finished_array_is_completed_and_satisfies_afterok(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        after = self.sbatch("--dependency=afterok:%d" % trainer, self.script("true"))
        never = self.sbatch("--dependency=afternotok:%d" % trainer, self.script("true"))
        self.end()
        self.wait_ended(trainer, "COMPLETED")
        self.wait_state(after, "COMPLETED")
        self.assertEqual(self.state_of(never), "PENDING")
        for task in self.cluster.tasks(trainer).values():
            self.assertEqual(task["ExitCode"], "0:0")
        shown = self.show(trainer)
        self.assertEqual((shown["state"], shown["exit_code"]), ("COMPLETED", 0))
        self.assertGreaterEqual(shown["samples"], row["samples"])
        last = self.cluster.bftrainer("why", trainer)[-1]
        self.assertEqual((last["from"], last["to"]), (4, 0))
        self.assertIn("its training has ended", last["reason"])

    def test_tasks_that_never_ran_complete_without_running_the_script(self):
        script = self.script('echo "$SLURM_ARRAY_TASK_ID" >> ran\n' + COUNT.read_text())
        trainer = self.sbatch("--bftrainer=nodes=1-9", script)
        self.wait_trains(trainer, 4)
        self.end()
        self.wait_ended(trainer, "COMPLETED")
        self.assertEqual(len(self.cluster.tasks(trainer)), 9)
        self.assertEqual(len(set((self.dir / "ran").read_text().split())), 4)

    def test_a_trainer_that_finishes_while_regular_jobs_hold_the_other_nodes_completes(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        self.regular("-N2")
        self.wait_trains(trainer, 2, after=row)
        self.end()
        self.wait_ended(trainer, "COMPLETED")

    def test_the_nodes_of_a_finished_trainer_go_to_the_next_one(self):
        script = self.script('cd "$1"\n' + COUNT.read_text())
        folders = [self.dir / "a", self.dir / "b"]
        for folder in folders:
            folder.mkdir()
        first, second = (
            self.sbatch("--bftrainer=nodes=4-4", script, folder) for folder in folders
        )
        row = self.wait_trains(first, 4)
        self.assertEqual(self.show(second)["nodes"], 0)
        (folders[0] / "end").write_text("0")
        self.wait_ended(first, "COMPLETED")
        self.assertGreater(row["samples"], 0)
        self.wait_trains(second, 4)

    def test_files_of_an_earlier_trainer_with_the_same_number_end_nothing(self):
        last = self.sbatch("--hold", self.script("true"))
        self.cluster.ok("scancel", last)
        for number in range(last + 1, last + 20):
            folder = self.dir / ".bftrainer-{}".format(number)
            (folder / "ckpt").mkdir(parents=True)
            (folder / "ckpt/samples").write_text("1000000\n")
            (folder / "trainer").write_text("submit_time=1000000000\n")
            (folder / "generation").write_text("17\n")
            (folder / "finished").write_text("exit_code=0\nsubmit_time=1000000000\n")
        trainer = self.counter("1-4")
        self.assertTrue(last < trainer < last + 20)
        row = self.wait_trains(trainer, 4)
        self.assertLess(row["samples"], 1000000)
        aside = list(self.dir.glob(".bftrainer-{}.stale-*".format(trainer)))
        self.assertEqual(len(aside), 1)
        self.assertEqual((aside[0] / "ckpt/samples").read_text(), "1000000\n")
        self.end()
        self.wait_ended(trainer, "COMPLETED")


class Failing(ClusterTest):
    BFTRAINER_CONF = ["quarantine_s = 600"]

    def test_a_script_that_fails_everywhere_ends_the_array_with_its_code_and_the_reason(self):
        trainer = self.counter("1-4")
        self.wait_trains(trainer, 4)
        after = self.sbatch("--dependency=afternotok:%d" % trainer, self.script("true"))
        self.end(7)
        self.wait_ended(trainer, "FAILED")
        self.wait_state(after, "COMPLETED")
        for task in self.cluster.tasks(trainer).values():
            self.assertEqual(task["ExitCode"], "7:0")
            self.assertIn(";exit=7;failed ", task["AdminComment"])
            self.assertIn("on different nodes without progress", task["AdminComment"])
            self.assertIn("local rank 0 exited 7", task["AdminComment"])
        shown = self.show(trainer)
        self.assertEqual((shown["state"], shown["exit_code"]), ("FAILED", 7))
        # It was the script's fault, not that of the nodes.
        self.wait_for(
            lambda: [row["use"] for row in self.cluster.bftrainer("nodes")] == ["idle"] * 4,
            "all nodes are in the pool and idle",
        )

    def test_a_script_that_fails_on_one_node_goes_on_without_that_node(self):
        script = self.script('[ "$BFT_NODE" = n2 ] && exit 3\n' + COUNT.read_text())
        trainer = self.sbatch("--bftrainer=nodes=1-4,up=1,down=1", script)
        row = self.wait_trains(trainer, 3)
        self.assertEqual(row["node_list"], ["n1", "n3", "n4"])
        reason = "T{} keeps off it: local rank 0 exited 3".format(trainer)
        self.wait_for(
            lambda: [row["reason"] for row in self.cluster.bftrainer("nodes")]
            == [None, reason, None, None],
            "the node is avoided, with the reason",
        )
        # Others may use it at once.
        other = self.counter("1-1")
        row = self.wait_trains(other, 1)
        self.assertEqual(row["node_list"], ["n2"])
        # A controller that is started anew knows it, too.
        self.cluster.stop_controller()
        self.cluster.start_controller()
        self.wait_for(
            lambda: [row["reason"] for row in self.cluster.bftrainer("nodes") or ()]
            == [None, reason, None, None],
            "the node is still avoided",
        )
        self.end()
        self.wait_ended(trainer, "COMPLETED")

    def test_a_command_that_does_not_exist_fails(self):
        trainer = self.sbatch(
            "--bftrainer=nodes=1-4", self.script("srun bftrainer run -- ./no-such-program")
        )
        self.wait_ended(trainer, "FAILED")
        for task in self.cluster.tasks(trainer).values():
            self.assertEqual(task["ExitCode"], "127:0")
            self.assertIn("no-such-program can't be started", task["AdminComment"])


class Cancelling(ClusterTest):
    def test_a_cancelled_array_leaves_no_process_and_idle_nodes(self):
        trainer = self.counter("1-6")
        self.wait_trains(trainer, 4)
        self.assertTrue(self.cluster.processes(trainer))
        self.cluster.ok("scancel", trainer)
        self.wait_for(lambda: not self.cluster.processes(trainer), "no process is left", 15)
        self.wait_for(self.cluster.are_idle, "all nodes are idle", 15)
        self.wait_for(lambda: self.cluster.bftrainer("queue") == [], "it has left the queue")
        self.assertEqual(set(self.cluster.states(trainer).values()), {"CANCELLED"})
        self.assertEqual(self.show(trainer)["state"], "CANCELLED")
        # Nothing comes back, and no node is suspected.
        self.wait_for(
            lambda: [row["use"] for row in self.cluster.bftrainer("nodes")] == ["idle"] * 4,
            "all nodes are in the pool and idle",
        )

    def test_a_cancelled_array_with_stubborn_ranks_leaves_no_process(self):
        script = self.script("trap '' TERM\n" + COUNT.read_text())
        trainer = self.sbatch("--bftrainer=nodes=1-4", script)
        self.wait_trains(trainer, 4)
        self.cluster.ok("scancel", trainer)
        self.wait_for(lambda: not self.cluster.processes(trainer), "no process is left", 15)
        self.wait_for(self.cluster.are_idle, "all nodes are idle", 15)

    def test_a_waiting_array_that_is_cancelled_is_forgotten(self):
        regular = self.regular("-N4")
        self.wait_state(regular, "RUNNING")
        trainer = self.counter("1-4")
        self.wait_for(lambda: self.show(trainer), "the trainer is known")
        self.cluster.ok("scancel", trainer)
        self.wait_for(lambda: self.cluster.bftrainer("queue") == [], "it has left the queue")

    def test_one_cancelled_task_takes_one_node_and_the_others_finish(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        running = [
            index
            for index, task in self.cluster.tasks(trainer).items()
            if task["NodeList"] == row["node_list"][1]
        ]
        self.cluster.ok("scancel", "{}_{}".format(trainer, running[0]))
        self.wait_trains(trainer, 3, after=row)
        self.wait_for(lambda: self.show(trainer)["open_tasks"] == 3, "three tasks are left")
        self.end()
        self.wait_for(lambda: self.cluster.bftrainer("queue") == [], "it has left the queue")
        states = sorted(self.cluster.states(trainer).values())
        self.assertEqual(states, ["CANCELLED"] + ["COMPLETED"] * 3)

    def test_a_cancelled_trainer_does_not_disturb_others(self):
        first = self.counter("1-2")
        second = self.counter("1-2")
        self.wait_trains(second, 2)
        row = self.wait_trains(first, 2)
        self.cluster.ok("scancel", second)
        self.wait_for(
            lambda: [row["jobid"] for row in self.cluster.bftrainer("queue")] == [first],
            "the cancelled one has left the queue",
        )
        after = self.wait_for(lambda: self.trains(first, 2), "the first one trains")
        self.assertEqual(after["generation"], row["generation"])
        rows = self.cluster.bftrainer("nodes")
        self.assertEqual([row["use"] for row in rows].count("quarantine"), 0)


if __name__ == "__main__":
    unittest.main()
