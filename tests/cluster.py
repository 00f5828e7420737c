"""A private Slurm cluster for each class of tests, and what tests do with it.

Nothing here sleeps for a fixed time: `wait_for` waits for a state, and says what the
cluster looked like when the state did not come.
"""

import glob
import json
import os
import pathlib
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEV_CLUSTER = ROOT / "scripts/dev-cluster"
DIGITS = ROOT / "examples/digits"
COUNT = ROOT / "tests/count.sh"

PATIENCE_S = 60.0  # How long a state may take on a busy machine.
KILL_WAIT_S = 5.0

# Of the caller's own Slurm or trainer nothing may reach the commands here.
FOREIGN = re.compile(r"(SLURM|SBATCH|SALLOC|SRUN|SQUEUE|SINFO|SCANCEL|SCONTROL|SPANK|BFT)")


class Cluster:
    """Slurm and bftrainerd on nodes n1..nN, all in one folder of its own. `features`, between
    blanks, are given to the nodes in turn."""

    def __init__(self, nodes, conf=(), bftrainer_conf=(), features=""):
        self.nodes = ["n{}".format(i + 1) for i in range(nodes)]
        self.settings = ["--features", features]
        for line in conf:
            self.settings += ["--conf", line]
        # Seconds count in tests; and a busy machine is no reason to suspect a node.
        base = ["poll_interval_s = 1", "place_timeout_s = 30"]
        if not any(line.startswith("learn") for line in bftrainer_conf):
            # The counting trainer is no faster on more nodes, and would be given one.
            base.append("learn = false")
        for line in [*base, *bftrainer_conf]:
            self.settings += ["--bftrainer-conf", line]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bft-"))
        self.folder.chmod(0o755)
        self.dir = self.folder / "cluster"
        self.env = {}

    # The cluster's life.

    def up(self):
        self.dev_cluster("up", str(len(self.nodes)), *self.settings)
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        # Other users' jobs could not reach what is in the caller's home.
        home = str(pathlib.Path.home())
        path = [entry for entry in path if not (entry + "/").startswith(home + "/")]
        self.env = {name: v for name, v in os.environ.items() if not FOREIGN.match(name)}
        self.env["PATH"] = os.pathsep.join([*path, "/usr/sbin", "/sbin"])
        self.env["DIGITS_DIR"] = str(DIGITS)
        for line in self.dev_cluster("env").splitlines():
            name, value = shlex.split(line)[1].split("=", 1)
            self.env[name] = value.replace("$PATH", self.env["PATH"])

    def down(self):
        said = self.dev_cluster("down")
        left = self.processes()
        if os.environ.get("BFT_KEEP_CLUSTERS"):
            print("kept:", self.folder)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        if left or "outlived" in said:
            raise AssertionError("processes outlived the cluster: {} {}".format(said, left))

    def dev_cluster(self, *command, env=None):
        done = subprocess.run(
            [str(DEV_CLUSTER), "--dir", str(self.dir), *command],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode != 0:
            raise AssertionError("dev-cluster {}: {}{}".format(command, done.stdout, done.stderr))
        return done.stdout

    def start_controller(self, env=None):
        """Starts it; `env` is added to its environment."""
        self.dev_cluster("start-bftrainerd", env=env)

    def controller_address(self):
        """Host and port at which it listens."""
        conf = (self.dir / "bftrainer.toml").read_text()
        host, port = re.search(r'controller = "(.*):(\d+)"', conf).groups()
        return host, int(port)

    def stop_controller(self):
        self.dev_cluster("stop-bftrainerd")

    def foreground(self, bftrainerd, **environment):
        """Starts this bftrainerd as SlurmUser; the process, which is the caller's to end."""
        command = [str(bftrainerd), "--config", str(self.dir / "bftrainer.toml")]
        if os.geteuid() == 0:
            command = ["setpriv", "--reuid", "slurm", "--regid", "slurm", "--init-groups", "--", *command]
        mark = {"BFT_DEV_CLUSTER_DAEMON": str(self.dir)}
        with open(self.dir / "log/bftrainerd.log", "ab") as log:
            return subprocess.Popen(
                command, cwd="/", env={**self.env, **mark, **environment}, stderr=log
            )

    def stop_slurmctld(self):
        pid = self.pid_of("slurmctld")
        os.kill(pid, signal.SIGTERM)
        # A zombie has no command line.
        cmdline = pathlib.Path("/proc/{}/cmdline".format(pid))
        await_state(
            lambda: not cmdline.exists() or not cmdline.read_bytes(),
            "slurmctld has ended",
            PATIENCE_S,
            self.controller_log,
        )
        (self.dir / "run/slurmctld.pid").unlink(missing_ok=True)

    def start_slurmctld(self):
        """Starts it, with whatever slurm.conf says by now, unless it runs."""
        if self.slurmctld_answers():
            return
        mark = {"BFT_DEV_CLUSTER_DAEMON": str(self.dir)}
        user = "slurm" if os.geteuid() == 0 else None
        self.ok("slurmctld", "-f", self.dir / "slurm.conf", user=user, env=mark)
        await_state(
            self.slurmctld_answers, "slurmctld answers", PATIENCE_S, self.controller_log
        )

    def slurmctld_answers(self):
        return self.run("scontrol", "ping").returncode == 0

    def kill(self, daemon):
        """kill -9; `up` starts it again."""
        os.kill(self.pid_of(daemon), signal.SIGKILL)

    def start_missing(self):
        """Starts the daemons that do not run."""
        self.dev_cluster("up")

    def pid_of(self, daemon):
        folder = "munge" if daemon == "munged" else "run"
        return int((self.dir / folder / (daemon + ".pid")).read_text())

    # Commands.

    def run(self, *command, cwd="/", user=None, env=None, timeout_s=60):
        """What the command said and its exit code; `user` runs it instead of the caller."""
        if user:
            account = pwd.getpwnam(user)
            ids = ["--reuid", str(account.pw_uid), "--regid", str(account.pw_gid)]
            command = ["setpriv", *ids, "--clear-groups", "--", *command]
        return subprocess.run(
            [str(word) for word in command],
            cwd=str(cwd),
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def ok(self, *command, **options):
        """What the command said on standard output; it must succeed."""
        done = self.run(*command, **options)
        if done.returncode != 0:
            raise AssertionError(
                "{}: exit code {}\n{}{}".format(command, done.returncode, done.stdout, done.stderr)
            )
        return done.stdout

    def bftrainer(self, *command):
        """The rows that the controller answers with; None when it refuses."""
        done = self.run("bftrainer", *command, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    # What Slurm shows.

    def jobs(self, job_id=None):
        """Every job and array task as a dictionary of scontrol's fields."""
        done = self.run("scontrol", "--oneliner", "show", "job", *([job_id] if job_id else []))
        lines = [line for line in done.stdout.splitlines() if line.startswith("JobId=")]
        return [fields(line) for line in lines]

    def job(self, job_id):
        """The one job of that number; None when Slurm knows it no more."""
        jobs = self.jobs(job_id)
        return jobs[0] if jobs else None

    def tasks(self, array_id):
        """The array's tasks by number; tasks that share a record share its fields."""
        tasks = {}
        for job in self.jobs(array_id):
            if job.get("ArrayJobId") != str(array_id):
                continue
            for index in numbers(job["ArrayTaskId"]):
                tasks[index] = job
        return tasks

    def states(self, array_id):
        return {index: task["JobState"] for index, task in self.tasks(array_id).items()}

    def node_states(self):
        lines = self.ok("sinfo", "-h", "-N", "-p", "batch", "-o", "%N %T").splitlines()
        return dict(line.split() for line in lines)

    def are_idle(self):
        return set(self.node_states().values()) == {"idle"}

    # What runs.

    def processes(self, array_id=None):
        """[(pid, command line)] of this cluster's jobs, or of one array's."""
        found = []
        conf = "SLURM_CONF={}/slurm.conf".format(self.dir).encode()
        array = "SLURM_ARRAY_JOB_ID={}".format(array_id).encode()
        for folder in glob.glob("/proc/[0-9]*"):
            try:
                environment = pathlib.Path(folder, "environ").read_bytes().split(b"\0")
                command = pathlib.Path(folder, "cmdline").read_bytes()
            except OSError:
                continue
            if conf not in environment or array_id and array not in environment:
                continue
            if any(entry.startswith(b"SLURM_JOB_ID=") for entry in environment):
                command = command.replace(b"\0", b" ").decode(errors="replace").strip()
                found.append((int(os.path.basename(folder)), command))
        return found

    def controller_log(self):
        return (self.dir / "log/bftrainerd.log").read_text(errors="replace")

    def portrait(self, folder):
        """The state in words, for a test that has failed; `folder` is the test's own."""
        parts = []
        for command in (
            ["squeue", "-r", "-a", "-o", "%i %P %T %N %r %l %M"],
            ["sinfo", "-N", "-p", "batch"],
            ["bftrainer", "queue"],
            ["bftrainer", "nodes"],
            ["bftrainer", "why"],
        ):
            try:
                done = self.run(*command, timeout_s=20)
                said = tail(done.stdout + done.stderr)
            except subprocess.TimeoutExpired:
                said = "no answer within 20 s"
            parts.append("$ {}\n{}".format(" ".join(command), said))
        logs = sorted(glob.glob("{}/*.out".format(folder)))
        logs += sorted(glob.glob("{}/.bftrainer-*/rank0.log".format(folder)))
        for path in [self.dir / "log/bftrainerd.log", self.dir / "log/slurmctld.log", *logs]:
            try:
                text = pathlib.Path(path).read_text(errors="replace")
            except OSError as error:
                text = str(error)
            parts.append("--- {}\n{}".format(path, tail(text)))
        return "\n".join(parts)


class ClusterTest(unittest.TestCase):
    """A class of tests that share a cluster; each has a folder of its own, and leaves the
    cluster without jobs and with idle nodes."""

    NODES = 4
    CONF = ()
    BFTRAINER_CONF = ()

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(cls.NODES, cls.CONF, cls.BFTRAINER_CONF)
        cls.addClassCleanup(cls.cluster.down)
        cls.cluster.up()

    def setUp(self):
        self.dir = self.cluster.folder / self._testMethodName[:60]
        self.dir.mkdir()
        self.dir.chmod(0o777)
        self.addCleanup(self.clean)

    def clean(self):
        def is_clean():
            jobs = self.cluster.ok("squeue", "-h", "-o", "%F").split()
            if jobs:
                self.cluster.run("scancel", *sorted(set(jobs)))
            return not jobs and self.cluster.are_idle() and not self.cluster.processes()

        self.wait_for(is_clean, "no job and no job's process is left and all nodes are idle")

    # Waiting.

    def wait_for(self, predicate, what, deadline_s=PATIENCE_S):
        """Returns what `predicate` returns as soon as that is true."""
        def portrait():
            return self.cluster.portrait(self.dir)

        return await_state(predicate, what, deadline_s, portrait)

    # Jobs.

    def sbatch(self, *words, **options):
        """Submits from the test's folder; the job's number."""
        options.setdefault("cwd", self.dir)
        return int(self.cluster.ok("sbatch", "--parsable", *words, **options).split(";")[0])

    def script(self, text, name="script.sh"):
        """A batch script in the test's folder."""
        path = self.dir / name
        path.write_text("#!/bin/bash\n" + text)
        path.chmod(0o755)
        return path

    def regular(self, *words, seconds=1000):
        """A regular job that writes its start to start-JOBID, epoch seconds."""
        text = 'date +%s.%N > "start-$SLURM_JOB_ID"; exec sleep {}'.format(seconds)
        return self.sbatch("--exclusive", *words, "--wrap", text)

    def counter(self, nodes, *words, **options):
        """Submits the counting trainer."""
        return self.sbatch("--bftrainer=nodes={},up=1,down=1".format(nodes), *words, COUNT, **options)

    def end(self, exit_code=0):
        """Has the counting trainers of this test end."""
        new = self.dir / "end.new"
        new.write_text(str(exit_code))
        new.rename(self.dir / "end")

    def starts(self, row=None):
        """How often ranks of the counting trainers have started, from the row's generation on."""
        lines = (self.dir / "starts.log").read_text().splitlines()
        first = row["generation"] if row else 0
        return sum(int(line.split()[0]) >= first for line in lines)

    def state_of(self, job_id):
        job = self.cluster.job(job_id)
        return job and job["JobState"]

    def assert_counted(self):
        """No sample of this test's counting trainer was lost, and none was counted by a
        generation after a newer one had begun."""
        lines = (self.dir / "counted.log").read_text().splitlines()
        last_generation = last = 0
        for generation, sample in (map(int, line.split()) for line in lines):
            self.assertGreaterEqual(generation, last_generation)
            if generation == last_generation:
                self.assertEqual(sample, last + 1)
            else:
                # Between the line and the checkpoint a rank may have been killed.
                self.assertIn(sample, (last, last + 1))
            last_generation, last = generation, sample

    def wait_state(self, job_id, state):
        self.wait_for(
            lambda: self.state_of(job_id) == state, "job {} is {}".format(job_id, state)
        )

    def wait_saved(self):
        """Until slurmctld has written all that it knows now: what it forgets is not ours."""
        now_s = time.time()
        self.sbatch("--hold", self.script("true"))
        state = self.cluster.dir / "state/job_state"
        self.wait_for(lambda: state.stat().st_mtime > now_s, "slurmctld has saved its state")

    # Trainers.

    def show(self, trainer):
        """What `bftrainer show` says of it; None when it is not known."""
        rows = self.cluster.bftrainer("show", trainer)
        return rows[0] if rows else None

    def reason(self, trainer):
        """Why it has fewer nodes than it might have; empty when nothing is said."""
        row = self.show(trainer)
        return row and row["reason"] or ""

    def trains(self, trainer, nodes):
        """Its row when ranks run on so many nodes, or on one of several numbers of them, and
        have made progress, else None."""
        row = self.show(trainer)
        if row and row["state"] == "RUNNING" and row["samples"] > 0:
            wanted = nodes if isinstance(nodes, tuple) else (nodes,)
            if row["nodes"] == len(row["node_list"]) and row["nodes"] in wanted:
                return row
        return None

    def wait_trains(self, trainer, nodes, after=None, deadline_s=PATIENCE_S):
        """Waits until it trains on so many nodes, in a generation later than that of the
        row `after`, with more samples; its row."""

        def trains():
            row = self.trains(trainer, nodes)
            if row and after:
                later = row["generation"] > after["generation"]
                return row if later and row["samples"] > after["samples"] else None
            return row

        return self.wait_for(trains, "T{} trains on {} nodes".format(trainer, nodes), deadline_s)

    def wait_more(self, trainer, nodes, row):
        """Until it trains on so many nodes with more samples than in `row`."""
        return self.wait_for(
            lambda: (found := self.trains(trainer, nodes))
            and found["samples"] > row["samples"]
            and found,
            "T{} trains on {} nodes with more samples".format(trainer, nodes),
        )

    def wait_ended(self, trainer, state, deadline_s=PATIENCE_S):
        """Waits until all its tasks have ended in Slurm's `state` and it has left the queue."""

        def ended():
            states = set(self.cluster.states(trainer).values())
            rows = self.cluster.bftrainer("queue")
            return states == {state} and rows is not None and not any(
                row["jobid"] == trainer for row in rows
            )

        self.wait_for(ended, "all tasks of T{} are {}".format(trainer, state), deadline_s)


def await_state(predicate, what, deadline_s, portrait):
    """Returns what `predicate` returns as soon as that is true; AssertionError at the
    deadline, with what `portrait` says."""
    began_s = time.monotonic()
    while True:
        found = predicate()
        if found:
            return found
        if time.monotonic() - began_s > deadline_s:
            message = "not within {:g} s: {}\nlast seen: {!r}\n{}"
            raise AssertionError(message.format(deadline_s, what, found, portrait()))
        time.sleep(0.1)


def free_port():
    """A port of this host that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def web_json(port, path):
    """What bftrainerd shows there on this host."""
    url = "http://127.0.0.1:{}{}".format(port, path)
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def fields(line):
    """scontrol's one line: Key=Value, where a value may hold spaces and "="."""
    pairs = re.split(r"\s+(?=[A-Z][A-Za-z/:]*=)", line.strip())
    return dict(pair.split("=", 1) for pair in pairs)


def numbers(ranges):
    """The numbers in "0-2,5", as Slurm writes array tasks ("%4" may follow)."""
    found = []
    for part in ranges.split("%")[0].split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def tail(text, lines=40):
    return "\n".join(text.splitlines()[-lines:])
