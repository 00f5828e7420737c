"""How a job becomes a trainer, and how every other job is left alone.

Run: python3 tests/test_tagging.py (after cargo build --release --workspace)
"""

import unittest

from cluster import COUNT, ClusterTest

PLAIN = "--array=0-3 --hold --comment=bftrainer:nodes=1-4 -p bftrainer -N1 --exclusive --requeue"


class Tags(ClusterTest):
    def test_the_option_on_the_command_line_makes_a_trainer(self):
        self.assert_becomes_a_trainer(
            self.sbatch("--bftrainer=nodes=1-4", "-J", "by-option", COUNT)
        )

    def test_an_sbatch_line_makes_a_trainer(self):
        script = self.script("#SBATCH --bftrainer=nodes=1-4\n" + COUNT.read_text())
        self.assert_becomes_a_trainer(self.sbatch(script))

    def test_the_comment_alone_makes_a_trainer(self):
        self.assert_becomes_a_trainer(self.sbatch(*PLAIN.split(), COUNT))

    def test_an_array_with_the_comment_that_was_not_held_is_adopted(self):
        words = [word for word in PLAIN.split() if word != "--hold"]
        self.assert_becomes_a_trainer(self.sbatch(*words, COUNT))

    def test_what_the_submission_asks_for_besides_reaches_the_tasks(self):
        trainer = self.sbatch(
            *["--bftrainer=nodes=1-2", "-x", "n1,n2", "-t", "20", "-J", "mine"],
            *["--export=ALL,COLOUR=blue"],
            self.script('echo "$COLOUR $1" > said\n' + COUNT.read_text()),
            "word",
        )
        row = self.wait_trains(trainer, 2)
        self.assertEqual(row["node_list"], ["n3", "n4"])
        self.assertEqual(row["name"], "mine")
        self.assertEqual((self.dir / "said").read_text(), "blue word\n")
        for task in self.cluster.tasks(trainer).values():
            self.assertLessEqual(task["TimeLimit"], "00:20:00")

    def assert_becomes_a_trainer(self, trainer):
        self.wait_trains(trainer, 4)
        tasks = self.cluster.tasks(trainer)
        self.assertEqual(sorted(tasks), [0, 1, 2, 3])
        for task in tasks.values():
            self.assertEqual(task["Comment"], "bftrainer:nodes=1-4")
            self.assertTrue(task["AdminComment"].startswith("bftrainer:nodes=1-4;"))
            found = [task[key] for key in ("Partition", "Requeue", "OverSubscribe", "NumNodes")]
            self.assertEqual(found, ["bftrainer", "1", "NO", "1"])


class Refusals(ClusterTest):
    NODES = 1

    def test_a_bad_specification_is_refused_with_key_value_and_what_was_expected(self):
        for specification, parts in {
            "nodes=0-4": ["nodes=0-4", "MIN-MAX", "nodes=1-16"],
            "nodes=8-4": ["nodes=8-4", "1 <= MIN <= MAX"],
            "nodes=many": ["nodes=many", "whole numbers"],
            "nodes=1-4,samples=1e6": ["samples=1e6", "whole number of samples"],
            "nodes=1-4,weight=-1": ["weight=-1", "from 0.000001"],
            "nodes=1-4,curve=2:10/1:5": ["curve=2:10/1:5", "nodes rising"],
            "nodes=1-4,up=soon": ["up=soon", "seconds from 0 to 86400"],
            "nodes=1-4,colour=blue": ['"colour"', "expected nodes, samples"],
            "nodes=1-4,nodes=2": ["nodes=", "write it once"],
            "samples=5": ["nodes= is missing", "nodes=1-16"],
            "": ["empty", "nodes=1-16"],
            "nodes=1-2000": ["nodes=1-2000", "at most 1001"],
        }.items():
            with self.subTest(specification):
                said = self.refused("sbatch", "--bftrainer=" + specification, COUNT)
                for part in parts:
                    self.assertIn(part, said)

    def test_options_that_a_trainer_can_not_have_are_refused_by_name(self):
        for words in (
            ["--array=0-7"],
            ["-p", "batch"],
            ["-N2"],
            ["--comment=mine"],
            ["--no-requeue"],
            ["-w", "n1"],
            ["--begin=now+1hour"],
            ["-n", "8"],
        ):
            with self.subTest(words):
                said = self.refused("sbatch", "--bftrainer=nodes=1-4", *words, COUNT)
                self.assertIn("can't be used with --bftrainer", said)

    def test_salloc_and_srun_refuse_the_option_with_a_sentence(self):
        for command in ("salloc", "srun"):
            with self.subTest(command):
                said = self.refused(command, "--bftrainer=nodes=1-4", "true")
                self.assertIn("submit the script with sbatch --bftrainer=SPEC", said)

    def test_help_is_shown_without_a_script(self):
        said = self.cluster.ok("sbatch", "--bftrainer=help")
        self.assertIn("nodes=MIN-MAX", said)

    def refused(self, *command):
        """What a command says that must fail and submit nothing."""
        done = self.cluster.run(*command, cwd=self.dir)
        self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.cluster.ok("squeue", "-h"), "")
        return done.stderr


class Others(ClusterTest):
    def test_a_job_that_does_not_ask_for_us_sees_no_line_of_ours(self):
        script = self.script("echo out; echo err >&2\nsrun echo step\n")
        done = self.cluster.run("sbatch", script, cwd=self.dir)
        self.assertRegex(done.stdout, r"^Submitted batch job \d+\n$")
        self.assertEqual(done.stderr, "")
        job = done.stdout.split()[-1]
        self.wait_state(job, "COMPLETED")
        output = (self.dir / "slurm-{}.out".format(job)).read_text()
        self.assertEqual(sorted(output.splitlines()), ["err", "out", "step"])

        done = self.cluster.run("srun", "-Q", "echo", "hello", cwd=self.dir)
        self.assertEqual((done.stdout, done.stderr), ("hello\n", ""))
        done = self.cluster.run("salloc", "-Q", "echo", "hello", cwd=self.dir)
        self.assertEqual((done.stdout, done.stderr), ("hello\n", ""))

    def test_an_array_that_does_not_ask_for_us_runs_as_it_is(self):
        job = self.sbatch("--array=0-1", self.script("echo $SLURM_ARRAY_TASK_ID; exit 3"))
        self.wait_for(
            lambda: set(self.cluster.states(job).values()) == {"FAILED"}, "both tasks have ended"
        )
        for task in ("0", "1"):
            output = (self.dir / "slurm-{}_{}.out".format(job, task)).read_text()
            self.assertEqual(output, task + "\n")

    def test_a_plain_job_in_the_partition_of_trainers_runs_and_its_node_is_not_in_the_pool(self):
        job = self.sbatch("-p", "bftrainer", "--exclusive", self.script("echo mine; sleep 1000"))
        array = self.sbatch("-p", "bftrainer", "--array=0-0", self.script("sleep 1000"))
        self.wait_state(job, "RUNNING")
        self.wait_state(array, "RUNNING")
        taken = {self.cluster.job(job)["NodeList"], self.cluster.job(array)["NodeList"]}
        self.assertEqual(len(taken), 2)

        def pool():
            rows = self.cluster.bftrainer("nodes")
            return len(rows) == 2 and {row["node"] for row in rows}

        self.assertEqual(self.wait_for(pool, "two nodes are in the pool") & taken, set())
        self.assertEqual(self.cluster.bftrainer("show")[0]["plain_jobs"], 2)
        # A trainer leaves both alone.
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 2)
        self.assertEqual(set(row["node_list"]) & taken, set())
        for plain in (job, array):
            self.assertEqual(self.cluster.job(plain)["JobState"], "RUNNING")
            self.assertNotIn("AdminComment", self.cluster.job(plain))

    def test_the_comment_in_another_partition_is_left_alone(self):
        script = self.script("echo mine; sleep 1000")
        job = self.sbatch("--comment=bftrainer:nodes=1-4", "--array=0-1", script)
        self.wait_for(
            lambda: set(self.cluster.states(job).values()) == {"RUNNING"}, "both tasks run"
        )
        mention = "carries a trainer's comment in partition batch: left alone"
        self.wait_for(lambda: mention in self.cluster.controller_log(), "the log says so")
        self.assertNotIn("AdminComment", self.cluster.job(job))
        self.assertEqual(self.cluster.bftrainer("queue"), [])
        output = self.dir / "slurm-{}_0.out".format(job)
        said = self.wait_for(lambda: output.exists() and output.read_text(), "the script runs")
        self.assertEqual(said, "mine\n")

    def test_a_nested_submission_does_not_become_a_trainer(self):
        script = self.script(
            "if [ ! -e inner ]; then\n"
            '  sbatch --parsable --wrap "hostname" > inner 2> inner.err\n'
            "  sbatch --bftrainer=nodes=1-2 --wrap true > again 2>&1\n"
            "fi\n" + COUNT.read_text()
        )
        trainer = self.sbatch("--bftrainer=nodes=1-1", script)
        self.wait_trains(trainer, 1)
        self.assertEqual((self.dir / "inner.err").read_text(), "")
        inner = (self.dir / "inner").read_text().strip()
        self.wait_state(inner, "COMPLETED")
        job = self.cluster.job(inner)
        self.assertEqual(job["Partition"], "batch")
        self.assertNotIn("ArrayJobId", job)
        self.assertNotIn("bftrainer", job.get("Comment", ""))
        self.assertIn("can't be used inside a job", (self.dir / "again").read_text())


if __name__ == "__main__":
    unittest.main()
