"""scripts/package: the Debian and the RPM packages hold what scripts/install puts, and do the
same at installation, upgrade and removal. scripts/test-packages installs the Debian ones.

Run: python3 tests/packages.py (after cargo build --release --workspace)
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from cluster import ROOT
from test_install import install

# What the package managers call their scripts, with their arguments.
EVENTS = {
    "install": ([("postinst", "configure", "")], [("POSTIN", "1")]),
    "upgrade": (
        [("prerm", "upgrade", "2"), ("postrm", "upgrade", "2"), ("postinst", "configure", "1")],
        [("POSTIN", "2"), ("PREUN", "1"), ("POSTUN", "1")],
    ),
    "removal": ([("prerm", "remove"), ("postrm", "remove")], [("PREUN", "0"), ("POSTUN", "0")]),
}
DONE = {
    "install": {"daemon-reload", "tmpfiles"},
    "upgrade": {"daemon-reload", "tmpfiles", "try-restart"},
    "removal": {"daemon-reload", "stop"},
}
CONFIGURATION = "/etc/bftrainer/bftrainer.toml"


def out(*command, **options):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, **options
    )
    if done.returncode != 0:
        raise AssertionError("{}: {}{}".format(command, done.stdout, done.stderr))
    return done.stdout


class Deb:
    def __init__(self, path):
        self.path = path

    def field(self, name):
        return out("dpkg-deb", "--field", self.path, name).strip()

    def files(self):
        """{path: permissions in words} of all that is no folder."""
        listed = out("dpkg-deb", "--contents", self.path).splitlines()
        rows = [line.split() for line in listed if not line.startswith("d")]
        return {row[-1].lstrip("."): row[0] for row in rows}

    def script(self, name):
        return out("dpkg-deb", "--info", self.path, name)


class Rpm:
    def __init__(self, path):
        self.path = path

    def query(self, form):
        return out("rpm", "--query", "--package", "--queryformat", form, self.path)

    def files(self):
        listed = self.query("[%{FILEMODES:perms} %{FILENAMES}\n]").splitlines()
        rows = [line.split() for line in listed if not line.startswith("d")]
        return {row[1]: row[0] for row in rows}

    def script(self, name):
        return self.query("%{{{}}}".format(name))


def of_install(files):
    """`files` as scripts/install names them, without what a package adds."""
    found = {}
    for path, permissions in files.items():
        if not re.match("/usr/share/(doc|licenses)/", path):
            path = path.replace("/usr/lib64/slurm/", "/usr/lib/slurm/")
            found[re.sub(r"^/|\.gz$", "", path)] = permissions
    return found


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="bft-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for kind in ("deb", "rpm"):
            out(ROOT / "scripts/package", kind, cls.folder)
        (cls.deb,) = map(Deb, cls.folder.glob("bftrainer_*.deb"))
        (cls.plugin_deb,) = map(Deb, cls.folder.glob("bftrainer-plugin-*.deb"))
        (cls.rpm,) = map(Rpm, cls.folder.glob("bftrainer-[0-9]*.rpm"))
        (cls.plugin_rpm,) = map(Rpm, cls.folder.glob("bftrainer-plugin-*.rpm"))

    def test_both_hold_what_is_installed_without_them_and_the_documents(self):
        installed = install(self.folder / "root")
        for kind, package, plugin in (
            ("deb", self.deb, self.plugin_deb),
            ("rpm", self.rpm, self.plugin_rpm),
        ):
            with self.subTest(kind):
                files, of_plugin = of_install(package.files()), of_install(plugin.files())
                self.assertEqual(set(of_plugin), {"usr/lib/slurm/spank_bftrainer.so"})
                self.assertEqual(set(files) | set(of_plugin), installed)
                executable = {path for path, modes in files.items() if modes == "-rwxr-xr-x"}
                self.assertEqual(executable, {"usr/bin/bftrainer", "usr/sbin/bftrainerd"})
                others = {*files.values(), *of_plugin.values()} - {"-rwxr-xr-x"}
                self.assertEqual(others, {"-rw-r--r--"})
                documents = {os.path.basename(path) for path in package.files()}
                self.assertLessEqual({"admin.md", "user.md", "security.md"}, documents)

    def test_the_plugins_name_says_for_which_slurm_it_is(self):
        version = re.search(r"(\d+\.\d+)\.", out("slurmctld", "-V"))[1]
        name = "bftrainer-plugin-slurm" + version
        self.assertEqual(self.plugin_deb.field("Package"), name)
        self.assertEqual(self.plugin_rpm.query("%{NAME}"), name)
        self.assertEqual(self.plugin_deb.field("Conflicts"), "bftrainer-plugin")
        self.assertEqual(self.plugin_rpm.query("[%{CONFLICTNAME}]"), "bftrainer-plugin")
        for provided in (
            self.plugin_deb.field("Provides"),
            self.plugin_rpm.query("[%{PROVIDENAME} ]"),
        ):
            self.assertIn("bftrainer-plugin", provided.split())

    def test_both_have_the_programs_version_and_keep_an_edited_configuration(self):
        version = out(ROOT / "target/release/bftrainer", "--version").split()[1]
        self.assertEqual(self.deb.field("Version"), version + "-1")
        self.assertTrue(self.rpm.query("%{VERSION}-%{RELEASE}").startswith(version + "-1"))
        self.assertEqual(self.deb.script("conffiles").split(), [CONFIGURATION])
        flags = self.rpm.query("[%{FILEFLAGS:fflags} %{FILENAMES}\n]").splitlines()
        kept = [line.split()[1] for line in flags if line.startswith("cn ")]
        self.assertEqual(kept, [CONFIGURATION])

    def test_both_need_the_same_libraries_and_munge_and_the_plugin_needs_no_slurm(self):
        needed = self.deb.field("Depends")
        required = self.rpm.query("[%{REQUIRENAME}\n]").splitlines()
        for library in ("slurm", "munge"):
            number = re.search(r"\blib{}(\d+)".format(library), needed)[1]
            self.assertIn("lib{}.so.{}()(64bit)".format(library, number), required)
        self.assertIn("munge", re.split(r",\s*", needed))
        self.assertIn("munge", required)
        # It finds Slurm's functions in the process that loads it.
        for needs in (
            self.plugin_deb.field("Depends"),
            self.plugin_rpm.query("[%{REQUIRENAME}\n]"),
        ):
            self.assertIn("libc", needs)
            self.assertNotIn("slurm", needs)

    def test_both_do_the_same_at_installation_upgrade_and_removal(self):
        for event, (of_deb, of_rpm) in EVENTS.items():
            for package, calls in ((self.deb, of_deb), (self.rpm, of_rpm)):
                with self.subTest(event, package=package.path.name):
                    self.assertEqual(self.done_by(package, calls), DONE[event])

    def done_by(self, package, calls):
        """What the scripts have systemd do, on a system where the unit is not enabled."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        text = '#!/bin/sh\necho "${{0##*/}} $*" >> {}/done\n'.format(folder)
        text += 'case " $* " in *"-enabled "* | *"-installed "*) exit 1 ;; esac\n'
        for name in ("systemctl", "systemd-tmpfiles", "deb-systemd-helper", "deb-systemd-invoke"):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        for name, *arguments in calls:
            script = package.script(name).replace("/run/systemd/system", str(folder))
            script = script.replace("/usr/bin/deb-systemd", "{}/deb-systemd".format(folder))
            # Nothing but these programs can be called.
            out("/bin/sh", "-ec", script, name, *arguments, env={"PATH": str(folder)})
        return {verb for line in (folder / "done").read_text().splitlines() for verb in verbs(line)}


def verbs(line):
    """What a line of a call means to the unit."""
    program, *words = line.split()
    if program == "systemd-tmpfiles":
        return {"tmpfiles"}
    # Debian's notes of what is enabled, and masks of what has been removed.
    if program == "deb-systemd-helper" and "enable" not in words:
        return set()
    if words[-3:] == ["disable", "--now", "bftrainerd.service"]:
        return {"stop"}
    known = {"daemon-reload", "try-restart", "restart", "start", "stop", "enable"}
    return set(words) & known or {line}


if __name__ == "__main__":
    unittest.main()
