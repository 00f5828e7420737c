"""bftrainer check: clean on the development cluster, and a name and a remedy for each fault.

Run: python3 tests/test_check.py (after cargo build --release --workspace)
"""

import json
import os
import pathlib
import re
import subprocess
import unittest

from cluster import ClusterTest

COLUMNS = "SEVERITY ITEM FINDING MEANS REMEDY".split()
EX_CONFIG = 78


class Check(ClusterTest):
    """One cluster; a test rewrites its slurm.conf, restarts slurmctld and puts both back."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.conf = cls.cluster.dir / "slurm.conf"
        cls.good_conf = cls.conf.read_text()
        cls.toml = (cls.cluster.dir / "bftrainer.toml").read_text()
        cls.plugstack = cls.cluster.dir / "plugstack.conf"
        cls.plugin_line = (cls.cluster.dir / "plugstack.conf.d/bftrainer.conf").read_text().strip()

    # Clean.

    def test_the_development_cluster_is_clean_in_every_form(self):
        done = self.cluster.run("bftrainer", "check", "--json")
        rows = json.loads(done.stdout)
        self.assertEqual((done.returncode, {row["severity"] for row in rows}), (0, {"note"}), rows)
        kill_wait = next(row for row in rows if row["item"] == "KillWait")
        self.assertIn("8 s", kill_wait["means"])

        header, *lines = self.cluster.ok("bftrainer", "check", "-P").splitlines()
        self.assertEqual(header.split("|"), COLUMNS)
        self.assertEqual(len(lines), len(rows))
        self.assertEqual(self.cluster.ok("bftrainer", "check", "-P", "-h").splitlines(), lines)
        self.assertEqual(self.cluster.ok("bftrainer", "check").splitlines()[0].split(), COLUMNS)

    @unittest.skipUnless(os.geteuid() == 0, "only root can ask as somebody else")
    def test_it_is_clean_for_slurm_user_too_who_needs_no_note_on_rights(self):
        done = self.cluster.run("bftrainer", "check", "--json", user="slurm")
        items = [row["item"] for row in json.loads(done.stdout)]
        self.assertEqual((done.returncode, "bftrainer check" in items), (0, False), items)

    # slurm.conf.

    def test_faults_of_slurm_conf_that_cost_other_jobs_are_errors(self):
        self.slurm_conf(
            ["PreemptMode=CANCEL", "PreemptExemptTime=00:01:00", "MaxJobCount=5000"]
            + ["SuspendTime=600", "SuspendProgram=/bin/true", "ResumeProgram=/bin/true"],
            bftrainer="PriorityTier=10 PreemptMode=OFF OverSubscribe=FORCE:2",
        )
        self.assert_found(
            "error",
            {
                "PreemptMode": "PreemptMode=REQUEUE",
                "PreemptExemptTime": "PreemptExemptTime=00:00:00",
                "MaxJobCount": "MaxJobCount=16000",
                "SuspendTime": "SuspendExcParts=bftrainer",
                "partition bftrainer: PriorityTier": "PriorityTier=0",
                "partition bftrainer: PreemptMode": "PreemptMode=REQUEUE",
                "partition bftrainer: OverSubscribe": "OverSubscribe=NO",
            },
        )

    def test_faults_of_slurm_conf_that_slow_trainers_down_are_warnings(self):
        self.slurm_conf(
            ["KillWait=120", "MaxArraySize=3", "JobRequeue=0", "MinJobAge=10"]
            + ["SchedulerType=sched/builtin", "PrologFlags=NoHold"]
            + ["PriorityType=priority/multifactor", "PriorityWeightFairshare=1000"]
            + ["PriorityDecayHalfLife=0", "PriorityUsageResetPeriod=MONTHLY"]
            + ["SchedulerParameters=defer,batch_sched_delay=20,bf_interval=300,"
               "sched_min_interval=5000000"],
            bftrainer="GraceTime=30 MaxTime=5 DefaultTime=5 State=DOWN",
            batch="Nodes=n1",
        )
        self.assert_found(
            "warning",
            {
                "KillWait": "KillWait=30",
                "MaxArraySize": "MaxArraySize=5",
                "JobRequeue": "JobRequeue=1",
                "MinJobAge": "MinJobAge=300",
                "SchedulerType": "SchedulerType=sched/backfill",
                "SchedulerParameters: defer": "without defer",
                "SchedulerParameters: batch_sched_delay": "batch_sched_delay=0",
                "SchedulerParameters: bf_interval": "bf_interval=30",
                "SchedulerParameters: sched_min_interval": "sched_min_interval=100000",
                "partition bftrainer: GraceTime": "GraceTime=0",
                "partition bftrainer: MaxTime": "MaxTime=UNLIMITED",
                "partition bftrainer: DefaultTime": "DefaultTime=UNLIMITED",
                "partition bftrainer: State": "State=UP",
                "partition bftrainer: QOS": "UsageFactor=0",
            },
        )

    def test_no_preemption_at_all_is_named(self):
        self.slurm_conf(
            ["PreemptType=preempt/none", "PreemptMode=OFF", "PrologFlags=NoHold"],
            bftrainer="PreemptMode=OFF",
            batch="Nodes=n1",
        )
        rows = self.assert_found("error", {"PreemptType": "PreemptType=preempt/partition_prio"})
        self.assertTrue(any("regular jobs would wait" in row["means"] for row in rows))

    def test_a_partition_that_is_not_there_or_that_nobody_shares_is_named(self):
        self.assert_found(
            "error",
            {"partition idle": "PartitionName=idle Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE"},
            toml='partition = "idle"',
        )
        self.slurm_conf([], bftrainer="Nodes=n2,n3,n4", batch="Nodes=n1")
        self.assert_found("warning", {"partition bftrainer: Nodes": "PartitionName=bftrainer"})

    # bftrainer.toml.

    def test_faults_of_our_own_configuration_are_named(self):
        for line, severity, item, remedy in (
            ("max_tasks = 20000", "error", "MaxJobCount", "MaxJobCount=40000"),
            ('exclude_nodes = ["n[4-6]"]', "warning", "bftrainer.toml: exclude_nodes", "sinfo -N"),
            ('controller = "0.0.0.0:7115"', "warning", "bftrainer.toml: controller", "HOST:PORT"),
            ('controller = "nohost.invalid:1"', "error", "bftrainer.toml: controller", "HOST:PORT"),
            ('munge_socket = "/nonexistent"', "error", "munge", "systemctl start munge"),
            ('state_dir = "/proc/none"', "error", "bftrainer.toml: state_dir", "install -d -o"),
        ):
            with self.subTest(line):
                self.assert_found(severity, {item: remedy}, toml=line)

    def test_a_wrong_configuration_file_ends_with_78_and_names_the_line(self):
        for text, part in (("horizon = 60\n", "b.toml:1: unknown setting"), (None, "b.toml: ")):
            path = self.dir / "b.toml"
            path.unlink(missing_ok=True)
            if text:
                path.write_text(text)
            done = self.cluster.run("bftrainer", "check", "--config", path)
            self.assertEqual((done.returncode, done.stdout), (EX_CONFIG, ""))
            self.assertIn(part, done.stderr)

    # The plugin.

    def test_faults_of_the_plugins_line_are_named(self):
        line = self.plugin_line
        for lines, parts, remedy in (
            ([], ["no line of the BFTrainer plugin"], "write as the last line: optional"),
            ([line.replace("optional", "required")], ["`required`"], "write optional"),
            ([line, "optional /none/other.so"], ["not the last"], "to the end of the stack"),
            ([line + " controller=127.0.0.1:9"], ["listens at 127.0.0.1:"], "controller=127.0.0.1:"),
            ([re.sub(" controller=[^ ]+", "", line)], ["controller= is missing"], "controller="),
            ([line + " partition=idle"], ["partition=idle"], "partition=bftrainer"),
            ([line + " agent=/none/bftrainer"], ["agent=/none/bftrainer"], "install bftrainer"),
            ([line + " colour=blue"], ["colour=blue", "expected controller="], "write: optional"),
            ([re.sub("/[^ ]+/", "/none/", line, count=1)], ["No such file"], "install the plugin"),
        ):
            with self.subTest(lines):
                self.plugin_lines(lines)
                rows = self.rows()
                found = [row for row in rows if all(part in row["finding"] for part in parts)]
                self.assertEqual(len(found), 1, rows)
                self.assertEqual(found[0]["severity"], "warning")
                self.assertIn(remedy, found[0]["remedy"])

    def test_a_plugin_for_another_slurm_is_named_and_not_executed(self):
        source = self.dir / "plugin.c"
        source.write_text(
            "#include <stdlib.h>\n"
            "const unsigned int plugin_version = 20 << 16 | 11 << 8 | 9;\n"
            "__attribute__((constructor)) static void run(void) { abort(); }\n"
        )
        plugin = self.dir / "spank_bftrainer.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", plugin, source], check=True)
        self.plugin_lines(["optional {}".format(plugin)])
        found = [row for row in self.rows() if row["item"] == str(plugin)]
        self.assertEqual(len(found), 1)
        self.assertRegex(found[0]["finding"], r"built for Slurm 20\.11, but [0-9.]+ runs")
        plugin.write_text("no shared object")
        found = [row for row in self.rows() if row["item"] == str(plugin)]
        self.assertEqual(found[0]["finding"], "not a shared object")

    # The daemon.

    def test_the_daemon_does_not_start_on_errors_and_says_why(self):
        self.addCleanup(self.cluster.start_controller)
        self.cluster.stop_controller()
        self.slurm_conf([], bftrainer="PriorityTier=10")
        done = self.daemon()
        self.assertEqual(done.returncode, EX_CONFIG, done.stderr)
        self.assertIn("PriorityTier=0", done.stderr)
        self.assertIn("ERROR", done.stderr)

    def test_the_daemon_waits_for_slurmctld_and_check_names_its_absence(self):
        self.addCleanup(self.cluster.start_controller)
        self.cluster.stop_controller()
        self.addCleanup(self.cluster.start_slurmctld)
        self.cluster.stop_slurmctld()
        done = self.cluster.run("bftrainer", "check", "--json", timeout_s=120)
        self.assertEqual(done.returncode, 1)
        self.assertEqual([row["item"] for row in json.loads(done.stdout)], ["slurmctld"])

        log, daemon = self.start_daemon()
        self.wait_for(lambda: "can't be asked" in log.read_text(), "it says that it waits")
        self.assertIsNone(daemon.poll())
        self.cluster.start_slurmctld()
        self.wait_for(lambda: " started, Slurm " in log.read_text(), "it starts")
        daemon.terminate()
        self.assertEqual(daemon.wait(60), 0, log.read_text())

    def test_the_daemon_writes_for_the_journal_when_that_is_its_standard_error(self):
        self.addCleanup(self.cluster.start_controller)
        self.cluster.stop_controller()
        log, daemon = self.start_daemon(for_journal=True)
        self.wait_for(lambda: " started, Slurm " in log.read_text(), "it starts")
        daemon.terminate()
        self.assertEqual(daemon.wait(60), 0, log.read_text())
        lines = log.read_text().splitlines()
        started = next(line for line in lines if " started, Slurm " in line)
        self.assertRegex(started, r"^<6>\[INFO  bftrainer")
        self.assertEqual([line for line in lines if not re.match("<[3467]>", line)], [])

        # What ends it, too, is one line, whatever name a file has.
        log, daemon = self.start_daemon(self.dir / "no\n<0>x\x1b.toml", for_journal=True)
        self.assertEqual(daemon.wait(60), EX_CONFIG)
        self.assertRegex(log.read_text(), r"^<3>bftrainerd: .*no\\n<0>x\\u\{1b\}\.toml: .*\n$")
        log, daemon = self.start_daemon(self.dir / "none.toml")
        self.assertEqual(daemon.wait(60), EX_CONFIG)
        self.assertRegex(log.read_text(), r"^bftrainerd: .*none\.toml: ")

    @unittest.skipUnless(os.geteuid() == 0, "only root can start it as somebody else")
    def test_the_daemon_ends_with_78_as_another_user(self):
        self.addCleanup(self.cluster.start_controller)
        self.cluster.stop_controller()
        done = self.cluster.run(
            "bftrainerd", "--config", self.cluster.dir / "bftrainer.toml", timeout_s=120
        )
        self.assertEqual(done.returncode, EX_CONFIG, done.stderr)
        self.assertIn("runs as uid 0, but Slurm's SlurmUser", done.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "only root can give it another resolver")
    def test_the_daemon_waits_for_the_resolver(self):
        self.addCleanup(self.cluster.start_controller)
        self.cluster.stop_controller()
        # A resolver that nobody is, and names that files know.
        resolver = self.dir / "resolv.conf"
        resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        hosts = self.dir / "hosts"
        hosts.write_text(pathlib.Path("/etc/hosts").read_text())
        port = self.cluster.controller_address()[1]
        conf = self.dir / "bftrainer.toml"
        own = 'controller = "bft-controller.example:{}"'.format(port)
        conf.write_text(re.sub("(?m)^controller = .*$", own, self.toml))
        log, daemon = self.start_daemon(
            conf, binds={resolver: "/etc/resolv.conf", hosts: "/etc/hosts"}
        )
        self.wait_for(lambda: "asked again in" in log.read_text(), "it says that it waits")
        self.assertIn("bft-controller.example", log.read_text())
        self.assertIsNone(daemon.poll())
        with open(hosts, "a") as names:
            names.write("127.0.0.1 bft-controller.example\n")
        self.wait_for(lambda: " started, Slurm " in log.read_text(), "it starts")
        daemon.terminate()
        self.assertEqual(daemon.wait(60), 0, log.read_text())

    # Helpers.

    def slurm_conf(self, lines, **partitions):
        """Has slurmctld run with these lines in place of the good ones, and with these
        words in place of a partition's own."""
        keys = {line.split("=")[0].lower() for line in lines}
        kept = []
        for line in self.good_conf.splitlines():
            name = re.match("PartitionName=([a-z]+)", line)
            if name and name[1] in partitions:
                words = partitions[name[1]].split()
                new = {word.split("=")[0] for word in words}
                old = [word for word in line.split() if word.split("=")[0] not in new]
                kept.append(" ".join([*old, *words]))
            elif line.split("=")[0].lower() not in keys:
                kept.append(line)
        self.addCleanup(self.put_conf, self.good_conf)
        self.put_conf("\n".join([*kept, *lines, ""]))

    def put_conf(self, text):
        self.cluster.stop_slurmctld()
        self.conf.write_text(text)
        self.cluster.start_slurmctld()

    def plugin_lines(self, lines):
        good = self.plugstack.read_text()
        self.addCleanup(self.plugstack.write_text, good)
        self.plugstack.write_text("".join(line + "\n" for line in lines))

    def rows(self, toml=None):
        """What check finds, with a line of bftrainer.toml in place of its own or after it."""
        path = self.dir / "bftrainer.toml"
        lines = self.toml.splitlines()
        if toml:
            key = toml.split("=")[0]
            lines = [line for line in lines if line.split("=")[0] != key] + [toml]
        path.write_text("\n".join(lines) + "\n")
        done = self.cluster.run("bftrainer", "check", "--json", "--config", path, timeout_s=120)
        rows = json.loads(done.stdout)
        clean = {row["severity"] for row in rows} <= {"note"}
        self.assertEqual(done.returncode, 0 if clean else 1, done.stderr)
        return rows

    def assert_found(self, severity, remedies, toml=None):
        rows = self.rows(toml)
        found = {row["item"]: row for row in rows if row["severity"] == severity}
        for item, remedy in remedies.items():
            self.assertIn(item, found, json.dumps(rows, indent=1))
            self.assertIn(remedy, found[item]["remedy"])
            self.assertTrue(found[item]["means"])
        return rows

    def start_daemon(self, conf=None, for_journal=False, binds=None):
        """Its log and its process, which sees files of `binds` in place of their values."""
        command = self.daemon_command(conf)
        if binds:
            mounts = ["mount --bind {} {}".format(file, place) for file, place in binds.items()]
            script = " && ".join([*mounts, 'exec "$@"'])
            command = ["unshare", "--mount", "sh", "-c", script, "sh", *command]
        log = self.dir / "bftrainerd.log"
        with open(log, "wb") as output:
            status = os.fstat(output.fileno())
            journal = "{}:{}".format(status.st_dev, status.st_ino)
            env = {**self.cluster.env, **({"JOURNAL_STREAM": journal} if for_journal else {})}
            daemon = subprocess.Popen(command, cwd="/", env=env, stderr=output)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        return log, daemon

    def daemon_command(self, conf=None):
        conf = conf or self.cluster.dir / "bftrainer.toml"
        command = ["bftrainerd", "--config", str(conf)]
        if os.geteuid() == 0:
            ids = ["--reuid", "slurm", "--regid", "slurm", "--init-groups"]
            command = ["setpriv", *ids, "--", *command]
        return command

    def daemon(self):
        return self.cluster.run(*self.daemon_command(), timeout_s=120)


if __name__ == "__main__":
    unittest.main()
