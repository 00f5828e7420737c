"""The Debian packages on a system that has none of what they need: installed, run, upgraded,
removed and purged, in the chroot that the environment's BFT_CLEAN_SYSTEM names.

Run: scripts/test-packages FOLDER. It is no part of scripts/test.
"""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from cluster import PATIENCE_S, await_state, free_port  # noqa: E402

SYSTEM = pathlib.Path(os.environ["BFT_CLEAN_SYSTEM"])
OURS = SYSTEM / "test"  # The packages, and logs.
CONFIGURATION = SYSTEM / "etc/bftrainer/bftrainer.toml"
STATE = SYSTEM / "var/lib/bftrainer"
UNIT = SYSTEM / "usr/lib/systemd/system/bftrainerd.service"
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}
SLURM_CONF = """
ClusterName=clean
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=slurm
CommunicationParameters=NoCtldInAddrAny
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmctldPidFile=/run/slurmctld.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PrologFlags=Alloc
NodeName=n[1-2] NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000
PartitionName=batch Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF
PartitionName=bftrainer Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE OverSubscribe=NO DefaultTime=UNLIMITED MaxTime=UNLIMITED
"""


def run(*command):
    """In the chroot; what it said and its exit code."""
    return subprocess.run(
        ["chroot", SYSTEM, *command],
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def ok(*command):
    done = run(*command)
    if done.returncode != 0:
        raise AssertionError("{}: {}{}".format(command, done.stdout, done.stderr))
    return done.stdout


def apt(*words):
    """As unattended-upgrades calls it; what is edited stays."""
    options = ["-qq", "--yes", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"]
    return ok("apt-get", *options, *words)


def account(name):
    """uid and gid in the chroot."""
    return int(ok("id", "-u", name)), int(ok("id", "-g", name))


def version(package):
    done = run("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", package)
    return done.stdout if done.returncode == 0 else None


def named_bftrainer():
    """All paths with our name in them, without this test's own and what man keeps."""
    left_out = {OURS, *(SYSTEM / name for name in ("proc", "var/cache"))}
    found = []
    for folder, folders, files in os.walk(SYSTEM):
        path = pathlib.Path(folder)
        folders[:] = [name for name in folders if path / name not in left_out]
        found += [str(path / name) for name in [*folders, *files] if "bftrainer" in name]
    return sorted(path.removeprefix(str(SYSTEM)) for path in found)


def repacked(package, word, pattern, replacement):
    """The package with another line in its control file and another configuration; its path in
    the chroot."""
    folder = OURS / word / package.stem
    folder.parent.mkdir(exist_ok=True)
    subprocess.run(["dpkg-deb", "--raw-extract", package, folder], check=True)
    control = folder / "DEBIAN/control"
    text, changes = re.subn(pattern, replacement, control.read_text(), flags=re.MULTILINE)
    if changes != 1:
        raise AssertionError("{} lines of the control file changed: {}".format(changes, text))
    control.write_text(text)
    shipped = folder / "etc/bftrainer/bftrainer.toml"
    if shipped.exists():
        shipped.write_text(shipped.read_text() + "# New.\n")
    new = OURS / word / package.name
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", "-Znone", folder, new],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return "/" + str(new.relative_to(SYSTEM))


class CleanSystem(unittest.TestCase):
    """One life of the packages; its parts need each other."""

    def setUp(self):
        self.daemons = []
        self.addCleanup(self.stop_all)
        self.step_began_s = time.monotonic()
        # Services would not be ours to start; Debian's packages ask this before they do.
        policy = SYSTEM / "usr/sbin/policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)

    def test_a_life_of_the_packages(self):
        self.install()
        self.assert_usable()
        self.prepare_site()
        self.start_slurm()
        daemon = self.start_daemon()
        self.assert_check_is_clean()
        self.assertEqual(ok("bftrainer", "queue", "-h"), "")
        self.wait(
            lambda: json.loads(ok("bftrainer", "show", "--json"))[0]["slurm_looks"] > 1,
            "bftrainerd has looked at slurmctld",
        )
        self.step("bftrainerd and check")
        self.upgrade(daemon)
        self.stop(daemon)
        self.stop(self.start_daemon())
        self.step("bftrainerd of the new packages")
        self.change_slurm()
        self.remove()
        self.purge()

    def step(self, name):
        now_s = time.monotonic()
        print("{:6.1f} s  {}".format(now_s - self.step_began_s, name), flush=True)
        self.step_began_s = now_s

    # The packages.

    def install(self):
        ok("apt-get", "update", "-qq")
        packages = ["/" + str(path.relative_to(SYSTEM)) for path in OURS.glob("*.deb")]
        self.assertEqual(len(packages), 2)
        apt("install", *packages)
        self.step("install, with all that they need")

    def upgrade(self, daemon):
        """To packages that differ in version and in the configuration that they ship."""
        old, release = CONFIGURATION.read_text(), version("bftrainer")
        later = [r"^(Version: .*)-1$", r"\1-2"]
        apt("install", *(repacked(path, "later", *later) for path in OURS.glob("*.deb")))
        self.assertEqual(version("bftrainer"), release.removesuffix("-1") + "-2")
        self.assertEqual(CONFIGURATION.read_text(), old)
        self.assertIn("# New.", CONFIGURATION.with_suffix(".toml.dpkg-dist").read_text())
        # Where systemd runs, the package has it restart the daemon.
        self.assertIsNone(daemon.poll())
        self.step("upgrade")

    def remove(self):
        apt("remove", "bftrainer")
        self.assertFalse(UNIT.exists())
        self.assertNotEqual(run("bftrainer", "--version").returncode, 0)
        self.assertTrue(CONFIGURATION.exists())
        self.assertTrue(list(STATE.iterdir()))
        self.step("removal")

    def purge(self):
        plugin = ok("dpkg-query", "--show", "--showformat=${Package} ", "bftrainer-plugin-*").split()
        apt("purge", "bftrainer", *plugin)
        self.assertEqual(named_bftrainer(), [])
        self.assertIsNone(version("bftrainer"))
        self.step("purge")

    def change_slurm(self):
        """A plugin for another Slurm takes the place of the one that is there."""
        plugins = list(OURS.glob("later/bftrainer-plugin-*.deb"))
        self.assertEqual(len(plugins), 1)
        name = plugins[0].name.split("_")[0]
        other = repacked(plugins[0], "other", r"^(Package: .*slurm).*$", r"\g<1>99.05")
        apt("install", other)
        self.assertEqual(version("bftrainer-plugin-slurm99.05"), version("bftrainer"))
        self.assertNotIn("installed", (version(name) or "").split())
        self.step("another Slurm's plugin")

    # What they hold.

    def assert_usable(self):
        self.assertRegex(ok("bftrainer", "--version"), r"^bftrainer \d+\.\d+\.\d+\n$")
        self.assertTrue(CONFIGURATION.exists())
        # Neither a plugstack line nor an enabled unit.
        enabled = [path for path in named_bftrainer() if path.endswith(".wants/bftrainerd.service")]
        self.assertEqual(enabled, [])
        for name in (
            "bash-completion/completions/bftrainer",
            "zsh/site-functions/_bftrainer",
            "fish/vendor_completions.d/bftrainer.fish",
        ):
            self.assertGreater((SYSTEM / "usr/share" / name).stat().st_size, 1000)
        ok("bash", "-n", "/usr/share/bash-completion/completions/bftrainer")

    def prepare_site(self):
        """What a controller's host has besides, and what an administrator writes."""
        apt("install", "slurmctld", "systemd", "man-db")
        for page in ("bftrainer", "bftrainer-queue", "bftrainer.toml", "bftrainerd", "spank_bftrainer"):
            self.assertIn("/" + page + ".", ok("man", "-w", page))
        ok("systemd-tmpfiles", "--create", "bftrainerd.conf")
        self.assertEqual((STATE.stat().st_uid, STATE.stat().st_gid), account("slurm"))
        done = run("systemd-analyze", "verify", "--man=yes", "bftrainerd.service")
        ours = [line for line in done.stderr.splitlines() if "bftrainer" in line]
        self.assertEqual((ours, done.returncode), ([], 0), done.stderr)

        self.port = free_port()
        address = "127.0.0.1:{}".format(self.port)
        text = CONFIGURATION.read_text()
        self.assertIn('controller = "127.0.0.1:7115"', text)
        CONFIGURATION.write_text(text.replace("127.0.0.1:7115", address))
        line = (SYSTEM / "usr/share/bftrainer/plugstack.conf").read_text()
        (SYSTEM / "etc/slurm/plugstack.conf").write_text(line.replace("127.0.0.1:7115", address))
        conf = SLURM_CONF.format(host=socket.gethostname(), port=free_port())
        (SYSTEM / "etc/slurm/slurm.conf").write_text(conf)
        self.step("Slurm, systemd, manual pages, unit")

    def assert_check_is_clean(self):
        done = run("bftrainer", "check", "-h", "-P")
        severe = [line for line in done.stdout.splitlines() if not line.startswith("note")]
        self.assertEqual((severe, done.returncode), ([], 0), done.stdout + done.stderr)

    # Daemons, without a systemd.

    def start(self, user, *command, **environment):
        uid, gid = account(user)
        log = open(OURS / "{}.log".format(pathlib.Path(command[0]).name), "a")
        self.addCleanup(log.close)
        ids = ["setpriv", "--reuid", str(uid), "--regid", str(gid), "--init-groups", "--"]
        daemon = subprocess.Popen(
            ["chroot", SYSTEM, *ids, *command],
            env={**ENVIRONMENT, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        self.daemons.append(daemon)
        return daemon

    def start_slurm(self):
        for folder in ("run/munge", "var/log/munge", "var/lib/munge"):
            (SYSTEM / folder).mkdir(exist_ok=True)
            os.chown(SYSTEM / folder, *account("munge"))
        os.chmod(SYSTEM / "run/munge", 0o755)
        self.start("munge", "munged", "--foreground", "--force")
        self.wait(lambda: run("munge", "-n").returncode == 0, "munged answers")
        self.start("slurm", "slurmctld", "-D")
        self.wait(lambda: run("scontrol", "ping").returncode == 0, "slurmctld answers")

    def start_daemon(self):
        """bftrainerd as the unit starts it; it has told systemd that it is ready."""
        unit = UNIT.read_text()
        user = re.search(r"^User=(.*)$", unit, re.MULTILINE)[1]
        command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1].split()
        path = SYSTEM / "run/notify"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(str(path))
            path.chmod(0o777)
            listener.settimeout(PATIENCE_S)
            daemon = self.start(user, *command, NOTIFY_SOCKET="/run/notify")
            try:
                while "READY=1" not in listener.recv(4096).decode().splitlines():
                    pass
            except TimeoutError:
                self.fail("bftrainerd was not ready:\n" + self.logs())
        path.unlink()
        return daemon

    def stop(self, daemon):
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(PATIENCE_S), 0, self.logs())
        self.daemons.remove(daemon)

    def stop_all(self):
        for daemon in reversed(self.daemons):
            daemon.kill()
            daemon.wait()

    def wait(self, predicate, what):
        await_state(predicate, what, PATIENCE_S, self.logs)

    def logs(self):
        return "\n".join(path.read_text() for path in OURS.glob("*.log"))


if __name__ == "__main__":
    unittest.main()
