"""Trainers grow into idle nodes, give way, and go on with what is left.

Run: python3 tests/test_membership.py (after cargo build --release --workspace)
"""

import time
import unittest

from cluster import COUNT, KILL_WAIT_S, ClusterTest

# Ranks that ignore SIGTERM.
STUBBORN = "trap '' TERM\n"


class Growing(ClusterTest):
    NODES = 5
    CONF = ["ReturnToService=1"]  # A node that an administrator sets down stays down.

    def test_a_trainer_takes_all_idle_nodes_up_to_its_maximum(self):
        trainer = self.counter("1-3")
        self.wait_trains(trainer, 3)
        self.wait_for(lambda: len(self.nodes_used_as("idle")) == 2, "the others are in the pool")
        self.assertEqual(len(self.nodes_used_as("training")), 3)

    def test_a_trainer_grows_when_regular_jobs_end(self):
        regular = self.regular("-N3")
        self.wait_state(regular, "RUNNING")
        trainer = self.counter("1-5")
        row = self.wait_trains(trainer, 2)
        self.cluster.ok("scancel", regular)
        row = self.wait_trains(trainer, 5, after=row)
        self.assertEqual(row["preemptions"], 0)

    def test_drained_down_and_reserved_nodes_are_never_harvested(self):
        self.set_node("n1", "drain")
        self.set_node("n2", "down")
        self.cluster.ok(
            *"scontrol create reservation ReservationName=kept StartTime=now".split(),
            *"Duration=60 Users=root Nodes=n3".split(),
        )
        self.addCleanup(self.cluster.ok, "scontrol", "delete", "ReservationName=kept")
        self.wait_for(lambda: len(self.pool()) == 2, "the pool has the two plain idle nodes")
        trainer = self.counter("1-5")
        row = self.wait_trains(trainer, 2)
        self.assertEqual(row["node_list"], ["n4", "n5"])
        self.set_node("n1", "resume")
        self.assertIn("n1", self.wait_trains(trainer, 3, after=row)["node_list"])
        self.assertEqual(set(self.pool()), {"n1", "n4", "n5"})

    def test_a_node_that_is_drained_under_a_worker_is_vacated(self):
        trainer = self.counter("1-5")
        row = self.wait_trains(trainer, 5)
        self.set_node("n2", "drain")
        row = self.wait_trains(trainer, 4, after=row)
        self.assertNotIn("n2", row["node_list"])
        self.wait_for(
            lambda: self.cluster.node_states()["n2"] == "drained", "n2 is drained, with no job"
        )
        self.set_node("n2", "resume")
        self.assertIn("n2", self.wait_trains(trainer, 5, after=row)["node_list"])

    def test_a_second_trainer_gets_its_share(self):
        first = self.counter("1-5")
        row = self.wait_trains(first, 5)
        second = self.counter("1-5")

        def shares():
            rows = {row["jobid"]: row["nodes"] for row in self.cluster.bftrainer("queue")}
            return (rows.get(first), rows.get(second)) in [(2, 3), (3, 2)] and rows

        nodes = self.wait_for(shares, "the two trainers share the nodes")
        row = self.wait_trains(first, nodes[first], after=row)
        other = self.wait_trains(second, nodes[second])
        self.assertEqual(set(row["node_list"]) & set(other["node_list"]), set())
        self.assertEqual(row["preemptions"], 0)
        # When one has gone the other gets all.
        self.cluster.ok("scancel", second)
        self.wait_trains(first, 5, after=row)

    def test_a_trainer_below_its_minimum_waits_and_resumes(self):
        trainer = self.counter("4-5")
        row = self.wait_trains(trainer, 5)
        regular = self.regular("-N2")
        self.wait_for(
            lambda: (self.show(trainer) or {}).get("state") == "PENDING", "the trainer waits"
        )
        self.wait_for(lambda: self.ranks() == 0, "no rank is left")
        self.assertEqual(self.show(trainer)["reason"], "not enough idle nodes")
        self.cluster.ok("scancel", regular)
        self.wait_trains(trainer, 5, after=row)

    def test_a_trainer_whose_minimum_does_not_fit_takes_no_node_from_others(self):
        large = self.counter("6-6")
        self.wait_for(lambda: self.show(large), "the large trainer is known")
        small = self.counter("1-5")
        self.wait_trains(small, 5)
        self.assertEqual(self.show(large)["nodes"], 0)

    def test_a_worker_on_a_node_with_a_planned_end_gets_a_limit_that_fits(self):
        running = self.regular("-N2", "-t", "5")
        self.wait_state(running, "RUNNING")
        planned = self.regular("-N5", "-t", "5")
        self.wait_for(
            lambda: [node["hole_end"] is not None for node in self.pool().values()] == [True] * 3,
            "the three idle nodes have a planned end",
        )
        ends_s = [node["hole_end"] for node in self.pool().values()]
        trainer = self.counter("1-5")
        self.wait_trains(trainer, 3)
        for task in self.running_tasks(trainer):
            self.assertLessEqual(task["TimeLimit"], "00:05:00")
            end_s = time.mktime(time.strptime(task["EndTime"], "%Y-%m-%dT%H:%M:%S"))
            # Slurm counts in whole minutes; who plans the node may take it from a worker.
            self.assertLess(end_s, min(ends_s) + 60)
        # The plan may come true earlier than planned.
        self.cluster.ok("scancel", running)
        self.wait_state(planned, "RUNNING")

    # Helpers.

    def set_node(self, node, state):
        command = ["scontrol", "update", "NodeName=" + node, "State=" + state]
        self.cluster.ok(*command, *(["Reason=test"] if state != "resume" else []))
        if state != "resume":
            self.addCleanup(self.resume, node)

    def resume(self, node):
        if self.cluster.node_states()[node] != "idle":
            self.cluster.run("scontrol", "update", "NodeName=" + node, "State=resume")

    def pool(self):
        return {row["node"]: row for row in self.cluster.bftrainer("nodes")}

    def nodes_used_as(self, use):
        return [name for name, row in self.pool().items() if row["use"] == use]

    def running_tasks(self, trainer):
        tasks = self.cluster.tasks(trainer).values()
        return [task for task in tasks if task["JobState"] == "RUNNING"]

    def ranks(self):
        return len([pid for pid, command in self.cluster.processes() if "count.sh" in command
                    and "bftrainer" not in command])


SAVING = '''
trap 'echo "$BFT_GENERATION $RANK" >> saved.log; exit 143' TERM
'''


class Stay(ClusterTest):
    NODES = 3

    def test_workers_whose_longest_stay_is_over_leave_saved_all_of_them(self):
        script = self.script(SAVING + COUNT.read_text())
        trainer = self.sbatch("-t", "1", "--bftrainer=nodes=1-3,up=1,down=1", script)
        row = self.wait_trains(trainer, 3)

        def have_restarted():
            tasks = self.cluster.tasks(trainer).values()
            return all(int(task["Restarts"]) > 0 for task in tasks) and self.trains(trainer, 3)

        last = self.wait_for(have_restarted, "all three workers have left and come again", 150)
        self.assertGreater(last["samples"], row["samples"])
        starts = [line.split() for line in (self.dir / "starts.log").read_text().splitlines()]
        started = {(int(generation), rank) for generation, rank, _, _ in starts}
        saved = [line.split() for line in (self.dir / "saved.log").read_text().splitlines()]
        saved = {(int(generation), rank) for generation, rank in saved}
        ended = {(number, rank) for number, rank in started if number < last["generation"]}
        self.assertEqual(ended - saved, set())
        for output in self.dir.glob("slurm-*.out"):
            self.assertNotIn("Slurm's limit is", output.read_text())
        self.assertEqual(set(self.cluster.states(trainer).values()), {"RUNNING"})


class Preemption(ClusterTest):
    NODES = 5

    def wait_preemptions(self, trainer, count):
        self.wait_for(
            lambda: self.show(trainer)["preemptions"] == count, "%d preemptions are counted" % count
        )

    def test_one_node_is_taken_and_the_trainer_goes_on_and_comes_back(self):
        trainer = self.counter("1-5")
        row = self.wait_trains(trainer, 5)
        regular = self.regular("-w", "n4", seconds=1)
        row = self.wait_trains(trainer, 4, after=row) or row
        self.assertNotIn("n4", row["node_list"])
        self.wait_preemptions(trainer, 1)
        self.wait_state(regular, "COMPLETED")
        row = self.wait_trains(trainer, 5, after=row)
        self.assertIn("n4", row["node_list"])

    def test_two_nodes_are_taken_at_once(self):
        trainer = self.counter("1-5")
        row = self.wait_trains(trainer, 5)
        regular = self.regular("-w", "n2,n4", "-N2")
        row = self.wait_trains(trainer, 3, after=row)
        self.assertEqual(row["node_list"], ["n1", "n3", "n5"])
        self.wait_preemptions(trainer, 2)
        self.cluster.ok("scancel", regular)
        self.wait_trains(trainer, 5, after=row)

    def test_the_generations_master_is_taken(self):
        trainer = self.counter("1-5")
        row = self.wait_trains(trainer, 5)
        master = row["node_list"][0]
        self.regular("-w", master)
        row = self.wait_trains(trainer, 4, after=row)
        self.assertNotIn(master, row["node_list"])

    def test_a_task_that_its_owner_requeues_is_no_preemption(self):
        trainer = self.counter("1-5")
        row = self.wait_trains(trainer, 5)
        node = row["node_list"][2]
        tasks = self.cluster.tasks(trainer)
        (index,) = [index for index, task in tasks.items() if task["NodeList"] == node]
        self.cluster.ok("scontrol", "requeue", "{}_{}".format(trainer, index))
        self.wait_trains(trainer, 5, after=row)
        regular = self.regular("-w", node)
        self.wait_state(regular, "RUNNING")
        self.wait_preemptions(trainer, 1)

    def test_a_trainer_whose_owner_forbids_requeueing_still_gives_nodes_back(self):
        trainer = self.counter("1-5")
        row = self.wait_trains(trainer, 5)
        self.cluster.ok("scontrol", "update", "JobId=%d" % trainer, "Requeue=0")
        second = self.counter("2-2")
        self.wait_trains(second, 2)
        self.wait_trains(trainer, 3, after=row)
        self.wait_for(
            lambda: {task["Requeue"] for task in self.cluster.tasks(trainer).values()} == {"1"},
            "its tasks may be queued again",
        )
        self.assertEqual(self.cluster.controller_log().count("has set Requeue=0"), 1)
        regular = self.regular("-N5")
        self.wait_state(regular, "RUNNING")
        self.cluster.ok("scancel", regular, second)
        self.wait_trains(trainer, 5)
        self.assertNotIn("CANCELLED", self.cluster.states(trainer).values())

    def test_all_nodes_are_taken_and_the_trainer_resumes_from_its_checkpoint(self):
        trainer = self.counter("1-5")
        row = self.wait_trains(trainer, 5)
        regular = self.regular("-N5")
        self.wait_state(regular, "RUNNING")
        self.wait_for(lambda: self.show(trainer)["nodes"] == 0, "the trainer has no node")
        self.cluster.ok("scancel", regular)
        self.wait_trains(trainer, 5, after=row)

    def test_a_regular_job_gets_its_nodes_quickly_and_does_not_fail(self):
        trainer = self.counter("1-5")
        self.wait_trains(trainer, 5)
        self.assert_quick_start("-N3")

    def test_a_regular_job_gets_its_node_from_ranks_that_ignore_sigterm(self):
        script = self.script(STUBBORN + COUNT.read_text())
        trainer = self.sbatch("--bftrainer=nodes=1-5,up=1,down=1", script)
        self.wait_trains(trainer, 5)
        self.assert_quick_start("-N1")

    def test_a_regular_job_gets_its_node_from_a_stubborn_srun(self):
        self.script(STUBBORN + COUNT.read_text(), "stubborn.sh")
        script = self.script("srun bftrainer run -- ./stubborn.sh")
        trainer = self.sbatch("--bftrainer=nodes=1-5,up=1,down=1", script)
        self.wait_trains(trainer, 5)
        self.assert_quick_start("-N1")

    def assert_quick_start(self, *words):
        submitted_s = time.time()
        regular = self.regular(*words, seconds=1)
        start = self.dir / "start-{}".format(regular)
        started_s = float(
            self.wait_for(
                lambda: start.exists() and start.read_text(), "the regular job has started"
            )
        )
        self.assertLess(started_s - submitted_s, KILL_WAIT_S + 3)
        self.wait_state(regular, "COMPLETED")
        job = self.cluster.job(regular)
        self.assertEqual((job["ExitCode"], job["Restarts"]), ("0:0", "0"))
        states = " ".join(self.cluster.node_states().values())
        self.assertNotRegex(states, "drain|down")


if __name__ == "__main__":
    unittest.main()
