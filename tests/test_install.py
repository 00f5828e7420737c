"""scripts/install: what it puts where, that it enables nothing, and that it can be undone.

Run: python3 tests/test_install.py (after cargo build --release --workspace)
"""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from cluster import ROOT, ClusterTest

SHIPPED = """
bin/bftrainer sbin/bftrainerd lib/slurm/spank_bftrainer.so
lib/systemd/system/bftrainerd.service lib/tmpfiles.d/bftrainerd.conf
share/bftrainer/plugstack.conf share/bftrainer/job_submit.lua share/bftrainer/bftrainer.toml
share/bftrainer/bftrainer_progress.py share/bftrainer/alerts.yml
share/bftrainer/grafana-dashboard.json
share/man/man1/bftrainer.1 share/man/man5/bftrainer.toml.5
share/man/man8/bftrainerd.8 share/man/man8/spank_bftrainer.8
share/bash-completion/completions/bftrainer share/zsh/site-functions/_bftrainer
share/fish/vendor_completions.d/bftrainer.fish
""".split()


def install(destdir, *words, **variables):
    """Runs scripts/install; what it put under `destdir`, as relative paths."""
    env = {**os.environ, "DESTDIR": str(destdir), **variables}
    done = subprocess.run(
        [ROOT / "scripts/install", *words], env=env, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return {str(p.relative_to(destdir)) for p in destdir.rglob("*") if not p.is_dir()}


def enable(test, prefix):
    """The cluster of `test` has the plugin and agent that are installed there, for this test."""
    shipped = (prefix / "share/bftrainer/plugstack.conf").read_text()
    drop_in = test.cluster.dir / "plugstack.conf.d/bftrainer.conf"
    before = drop_in.read_text()
    test.addCleanup(drop_in.write_text, before)
    address = re.search("controller=([^ ]+)", before)[1]
    drop_in.write_text(shipped.replace("127.0.0.1:7115", address))


def subcommands(program, *words):
    """The visible subcommands that --help lists."""
    help_text = subprocess.run(
        [program, *words, "--help"], check=True, capture_output=True, text=True
    ).stdout
    block = re.search(r"^Commands:\n((?: .*\n|\n)*)", help_text, re.MULTILINE)
    names = re.findall(r"^  ([a-z-]+)", block[1], re.MULTILINE) if block else []
    return [name for name in names if name != "help"], help_text


class Scripts(unittest.TestCase):
    def test_each_says_how_it_is_used_and_does_nothing_else(self):
        scripts = [path for path in (ROOT / "scripts").iterdir() if os.access(path, os.X_OK)]
        scripts = sorted(path for path in scripts if path.is_file())
        self.assertIn(ROOT / "scripts/demo", scripts)
        for script in scripts:
            for word in ("-h", "--help"):
                with self.subTest(script=script.name, word=word):
                    done = subprocess.run([script, word], capture_output=True, text=True)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertIn("usage: ", done.stdout)
                    self.assertEqual(done.stderr, "")


class Install(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="bft-"))
        self.root.chmod(0o755)
        self.addCleanup(shutil.rmtree, self.root)

    def test_everything_is_put_in_its_place_and_nothing_is_enabled(self):
        files = install(self.root)
        for file in SHIPPED:
            self.assertIn("usr/" + file, files)
        # The configuration is all that is put below /etc: no plugstack line, no enabled unit.
        etc = {file for file in files if file.startswith("etc/")}
        self.assertEqual(etc, {"etc/bftrainer/bftrainer.toml"})
        for name in ("bin/bftrainer", "sbin/bftrainerd"):
            self.assertEqual((self.root / "usr" / name).stat().st_mode & 0o777, 0o755)
        plugstack = (self.root / "usr/share/bftrainer/plugstack.conf").read_text()
        (line,) = [line for line in plugstack.splitlines() if not line.startswith("#")]
        self.assertTrue(line.startswith("optional /usr/lib/slurm/spank_bftrainer.so controller="))
        self.assertIn("agent=/usr/bin/bftrainer", line)

    def test_the_shipped_configuration_is_valid_and_a_present_one_stays(self):
        install(self.root)
        path = self.root / "etc/bftrainer/bftrainer.toml"
        done = subprocess.run(
            [self.root / "usr/bin/bftrainer", "check", "--config", path],
            env={**os.environ, "SLURM_CONF": "/nonexistent"},
            capture_output=True,
            text=True,
        )
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        path.write_text("# mine\n")
        install(self.root)
        self.assertEqual(path.read_text(), "# mine\n")

    def test_removing_leaves_the_configuration_alone(self):
        install(self.root)
        self.assertEqual(install(self.root, "--uninstall"), {"etc/bftrainer/bftrainer.toml"})

    def test_each_command_has_a_page_with_its_options_and_a_completion(self):
        install(self.root)
        program = self.root / "usr/bin/bftrainer"
        completions = (
            self.root / "usr/share/bash-completion/completions/bftrainer"
        ).read_text()
        names, _ = subcommands(program)
        self.assertIn("queue", names)
        for name in names:
            with self.subTest(name):
                inner, said = subcommands(program, name)
                self.assertIn("bftrainer__subcmd__" + name, completions.replace("-", "__"))
                page = self.page("man1/bftrainer-{}.1".format(name))
                for option in re.findall(r"--[a-z][a-z0-9-]+", said):
                    self.assertIn(option, page)
                    self.assertIn(option, completions)
                for word in inner:
                    self.page("man1/bftrainer-{}-{}.1".format(name, word))
        page = self.page("man8/bftrainerd.8")
        self.assertIn("--config", page)
        self.page("man5/bftrainer.toml.5")
        self.assertIn("controller_uid=UID", self.page("man8/spank_bftrainer.8"))

    def page(self, name):
        """The page as text; groff must have nothing to say against it."""
        done = subprocess.run(
            ["man", "--warnings", "-l", self.root / "usr/share/man" / name],
            env={**os.environ, "MANWIDTH": "500", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""},
            capture_output=True,
            text=True,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), name)
        return re.sub("\x1b\\[[0-9;]*m|.\b", "", done.stdout).replace("\u2010", "-")

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd is not installed")
    def test_systemd_finds_no_fault_in_the_unit(self):
        install(self.root, PREFIX=str(self.root / "usr"), DESTDIR="")
        unit = self.root / "usr/lib/systemd/system/bftrainerd.service"
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True
        )
        ours = [line for line in done.stderr.splitlines() if "bftrainer" in line]
        self.assertEqual(ours, [])
        self.assertEqual(done.returncode, 0, done.stderr)
        rated = subprocess.run(
            ["systemd-analyze", "security", "--offline=yes", "--no-pager", unit],
            capture_output=True,
            text=True,
        )
        level = float(re.search(r"exposure level for .*: ([0-9.]+)", rated.stdout)[1])
        self.assertLess(level, 3.0, rated.stdout)


class Enabled(ClusterTest):
    NODES = 2

    def test_the_installed_plugin_and_agent_make_a_trainer_once_they_are_enabled(self):
        root = self.dir / "root"
        install(root, PREFIX=str(root / "usr"), SYSCONFDIR=str(root / "etc"), DESTDIR="")
        enable(self, root / "usr")
        self.cluster.ok("bftrainer", "check")
        row = self.wait_trains(self.counter("1-2"), 2)
        self.assertEqual(row["nodes"], 2)
        programs = set()
        for pid, _ in self.cluster.processes():
            with contextlib.suppress(OSError):
                programs.add(os.readlink("/proc/{}/exe".format(pid)))
        self.assertIn(str(root / "usr/bin/bftrainer"), programs)


if __name__ == "__main__":
    unittest.main()
