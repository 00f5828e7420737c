"""Trainers on a site whose sbatch has no plugin: the plain options, and job_submit.lua.

Run: python3 tests/test_job_submit.py (after cargo build --release --workspace)
"""

import glob
import re
import shutil
import unittest

from cluster import COUNT, ROOT, ClusterTest

SNIPPET = ROOT / "packaging/job_submit.lua"


class Lua(ClusterTest):
    @classmethod
    def setUpClass(cls):
        if not glob.glob("/usr/lib/*/slurm*/job_submit_lua.so"):
            raise unittest.SkipTest("this Slurm has no job_submit/lua")
        super().setUpClass()
        cls.cluster.stop_slurmctld()
        shutil.copy(SNIPPET, cls.cluster.dir / "job_submit.lua")
        conf = cls.cluster.dir / "slurm.conf"
        conf.write_text(conf.read_text() + "JobSubmitPlugins=lua\n")
        cls.cluster.start_slurmctld()

    def test_what_users_forget_is_done_for_them(self):
        comment = ["--comment=bftrainer:nodes=1-4,up=1,down=1", "-p", "bftrainer"]
        trainer = self.sbatch("--array=0-3", "--exclusive", "--no-requeue", *comment, COUNT)
        self.wait_trains(trainer, 4)
        for task in self.cluster.tasks(trainer).values():
            found = [task[key] for key in ("Requeue", "OverSubscribe", "NumNodes")]
            self.assertEqual(found, ["1", "NO", "1"])

    def test_a_trainer_that_is_no_array_is_refused_with_a_sentence(self):
        done = self.cluster.run(
            *["sbatch", "--comment=bftrainer:nodes=1-4", "-p", "bftrainer", COUNT], cwd=self.dir
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("add --array=0-15", done.stderr)

    def test_other_jobs_are_not_touched(self):
        for words in (["-p", "batch"], ["-p", "bftrainer"], ["-p", "batch", "--comment=mine"]):
            job = self.sbatch("--no-requeue", *words, self.script("sleep 1000"))
            self.wait_state(job, "RUNNING")
            self.assertEqual(self.cluster.job(job)["Requeue"], "0")


class PlainOptions(ClusterTest):
    def test_the_line_in_the_users_guide_makes_a_trainer_without_the_plugins_option(self):
        guide = (ROOT / "docs/user.md").read_text()
        line = re.search(r"sbatch (--array=0-15 .*) train\.sh", guide)[1]
        trainer = self.sbatch(*line.split(), COUNT)
        self.wait_trains(trainer, 4)


if __name__ == "__main__":
    unittest.main()
