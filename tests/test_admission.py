"""What the controller does with what it finds in its partition.

Run: python3 tests/test_admission.py (after cargo build --release --workspace)
"""

import os
import unittest

from cluster import COUNT, ClusterTest

IN_PARTITION = "-p bftrainer -N1 --exclusive --requeue --hold".split()
RUNNING = {"RUNNING", "CONFIGURING", "COMPLETING"}


class Held(ClusterTest):
    BFTRAINER_CONF = ["max_tasks = 12"]

    def test_an_array_with_a_bad_comment_or_shape_is_held_with_the_reason(self):
        jobs = {
            self.sbatch(*IN_PARTITION, *words, COUNT): part
            for words, part in (
                (
                    ["--array=0-3", "--comment=bftrainer:nodes=0-4"],
                    "nodes=0-4: expected MIN-MAX or MAX, whole numbers",
                ),
                (
                    ["--array=0-3", "--comment=bftrainer:nodes=1-4,colour=blue"],
                    'unknown key "colour": expected nodes, samples',
                ),
                (["--array=0-3", "--comment=bftrainer:"], "the specification is empty"),
                (
                    ["--comment=bftrainer:nodes=1-4"],
                    "it is no job array; submit it with --array=0-3",
                ),
                (["--array=0-3", "-N2", "--comment=bftrainer:nodes=1-4"], "submit it with -N1"),
                (
                    ["--array=0-3", "--no-requeue", "--comment=bftrainer:nodes=1-4"],
                    "submit it with --requeue",
                ),
                (
                    ["--array=0-2", "--comment=bftrainer:nodes=1-4"],
                    "asks for up to 4 nodes but has 3 tasks; submit it with --array=0-3",
                ),
                (["--array=0-12", "--comment=bftrainer:nodes=1-13"], "max_tasks = 12"),
            )
        }
        shared = ["--array=0-3", "-p", "bftrainer", "-N1", "-n1", "--requeue", "--hold"]
        shared = self.sbatch(*shared, "--comment=bftrainer:nodes=1-4", COUNT)
        jobs[shared] = "submit it with --exclusive"
        for job, part in jobs.items():
            with self.subTest(part):
                self.assert_held(job, part)
        # Nobody but an administrator releases them.
        for job in jobs:
            self.cluster.run("scontrol", "release", job, user="nobody")
        rows = {row["jobid"]: row for row in self.cluster.bftrainer("queue")}
        for job, part in jobs.items():
            with self.subTest(part):
                self.assert_held(job, part)
                self.assertEqual(rows[job]["state"], "REFUSED")
                self.assertIn(part, rows[job]["reason"])
        self.cluster.ok("scancel", *jobs)
        self.wait_for(lambda: self.cluster.bftrainer("queue") == [], "the cancelled ones are gone")

    def assert_held(self, job, part):
        def is_held():
            records = self.cluster.jobs(job)
            return records and all(
                record["JobState"] == "PENDING"
                and record["Priority"] == "0"
                and record["Reason"] == "JobHeldAdmin"
                and part in record.get("AdminComment", "")
                for record in records
            )

        self.wait_for(is_held, "job {} is held because: {}".format(job, part))

    def test_a_refused_array_is_admitted_when_its_comment_is_corrected(self):
        trainer = self.sbatch(
            "--array=0-3", "--comment=bftrainer:nodes=many", *IN_PARTITION, COUNT
        )
        self.assert_held(trainer, "nodes=many: expected")
        self.cluster.ok("scontrol", "update", "JobId=%d" % trainer, "Comment=bftrainer:nodes=1-4")
        self.wait_trains(trainer, 4)

    def test_an_array_that_waits_for_max_tasks_is_admitted_when_others_have_ended(self):
        first = self.counter("1-8")
        self.wait_trains(first, 4)
        second = self.counter("1-5")
        self.assert_held(second, "trainers would have 13 tasks in all, more than max_tasks = 12")
        self.cluster.ok("scancel", first)
        self.wait_trains(second, 4)


class Released(ClusterTest):
    def test_tasks_that_an_administrator_releases_run_as_workers_or_are_held_again(self):
        regular = self.regular("-N4")
        self.wait_state(regular, "RUNNING")
        trainer = self.counter("2-4")
        self.wait_for(
            lambda: self.reason(trainer) == "not enough idle nodes",
            "the trainer is admitted",
        )
        self.cluster.ok("scontrol", "release", trainer)
        self.wait_for(
            lambda: all(task["Priority"] == "0" for task in self.cluster.tasks(trainer).values()),
            "its tasks are held again",
        )
        self.cluster.ok("scancel", regular)
        self.wait_trains(trainer, 4)
        self.assert_every_start_was_in_a_generation()

    def test_an_array_that_was_released_and_runs_before_it_is_admitted_is_adopted(self):
        self.cluster.stop_controller()
        self.addCleanup(self.cluster.start_controller)
        trainer = self.counter("1-3")
        self.cluster.ok("scontrol", "release", trainer)
        self.wait_for(
            lambda: set(self.cluster.states(trainer).values()) == {"RUNNING"},
            "all tasks run without a controller",
        )
        self.assertFalse((self.dir / "starts.log").exists())
        self.cluster.start_controller()
        self.wait_trains(trainer, 3)
        self.assert_every_start_was_in_a_generation()

    def test_a_released_task_beyond_what_is_wanted_does_not_train(self):
        # Two trainers' tasks on all nodes; then a third's are released by hand.
        first = self.counter("4-4")
        self.wait_trains(first, 4)
        second = self.counter("4-4")
        self.wait_for(lambda: self.show(second), "the second trainer is known")
        self.cluster.ok("scontrol", "release", second)
        self.wait_for(
            lambda: all(task["Priority"] == "0" for task in self.cluster.tasks(second).values()),
            "its tasks are held again",
        )
        self.assertIsNotNone(self.trains(first, 4))
        self.assert_every_start_was_in_a_generation()

    @unittest.skipUnless(os.geteuid() == 0, "only root can submit as somebody else")
    def test_an_owner_can_not_release_what_the_controller_has_held(self):
        regular = self.regular("-N4")
        self.wait_state(regular, "RUNNING")
        trainer = self.counter("1-4", user="nobody")
        self.wait_for(lambda: self.show(trainer), "the trainer is known")
        self.wait_for(
            lambda: all(
                task["Reason"] == "JobHeldAdmin" for task in self.cluster.tasks(trainer).values()
            ),
            "it is held by the administrator",
        )
        done = self.cluster.run("scontrol", "release", trainer, user="nobody")
        self.assertNotEqual(done.returncode, 0)
        self.cluster.ok("scancel", regular)
        self.wait_trains(trainer, 4)

    def assert_every_start_was_in_a_generation(self):
        for line in (self.dir / "starts.log").read_text().splitlines():
            generation, rank, ranks, node = line.split()
            self.assertGreaterEqual(int(generation), 1)
            self.assertLess(int(rank), int(ranks))


if __name__ == "__main__":
    unittest.main()
