"""What the built plugin exports and needs: exactly the hooks that are used, and
only symbols that every process which loads it has. One symbol too many in either
list would stop each sbatch or slurmd of a site.

Run: python3 tests/plugin_symbols.py (after cargo build --release -p spank_bftrainer)
"""

import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLUGIN = os.environ.get("BFT_PLUGIN", str(ROOT / "target/release/libspank_bftrainer.so"))

EXPORTED = set((ROOT / "spank-plugin/exports.txt").read_text().split())

FROM_SLURM = {
    "slurm_error",
    "spank_context",
    "spank_get_item",
    "spank_job_control_unsetenv",
    "spank_option_register",
}

LOADED_BY = ["sbatch", "salloc", "srun", "slurmd", "slurmstepd"]

SYSTEM_LIBRARIES = re.compile(r"(libc|libgcc_s|libdl|libpthread|libm)\.so\.\d+|ld-linux.*")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def program(name):
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
    if path is None:
        raise FileNotFoundError(f"{name} is not installed: install slurm-client and slurmd")
    return path


def dynamic_symbols(path):
    """(letter of nm, name without version, version) of each dynamic symbol."""
    for line in output("nm", "-D", path).splitlines():
        letter, name = line.split()[-2:]
        name, _, version = name.partition("@")
        yield letter, name, version


def slurm_library(path):
    """The Slurm library with the plugin interface that a program loads."""
    return re.search(r"=> (\S*libslurmfull\S*)", output("ldd", path)).group(1)


class PluginSymbols(unittest.TestCase):
    def test_exactly_the_used_hooks_are_exported(self):
        defined = {name for letter, name, _ in dynamic_symbols(PLUGIN) if letter not in "Uw"}
        self.assertEqual(defined, EXPORTED)

    def test_what_it_needs_is_libcs_or_known_to_be_slurms(self):
        needed = {
            name
            for letter, name, version in dynamic_symbols(PLUGIN)
            if letter == "U" and not version.startswith(("GLIBC_", "GCC_"))
        }
        self.assertEqual(needed, FROM_SLURM)

    def test_every_process_that_loads_it_has_them(self):
        for name in LOADED_BY:
            library = slurm_library(program(name))
            there = {symbol for letter, symbol, _ in dynamic_symbols(library) if letter in "TW"}
            self.assertLessEqual(FROM_SLURM, there, name)

    def test_it_is_linked_to_no_slurm_library(self):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", PLUGIN))
        self.assertEqual([name for name in needed if not SYSTEM_LIBRARIES.fullmatch(name)], [])

    def test_it_stays_mapped_when_slurm_unloads_it(self):
        self.assertIn("NODELETE", output("readelf", "-d", PLUGIN))

    def test_it_loads_beside_the_installed_slurm_and_names_its_version(self):
        ctypes.CDLL(slurm_library(program("sbatch")), mode=ctypes.RTLD_GLOBAL | os.RTLD_LAZY)
        plugin = ctypes.CDLL(PLUGIN)
        major, minor, micro = map(int, re.findall(r"\d+", output(program("slurmd"), "-V"))[:3])
        version = ctypes.c_uint.in_dll(plugin, "plugin_version").value
        self.assertEqual(version, major << 16 | minor << 8 | micro)
        for name, text in [("plugin_name", b"bftrainer"), ("plugin_type", b"spank")]:
            self.assertEqual((ctypes.c_char * (len(text) + 1)).in_dll(plugin, name).value, text)


if __name__ == "__main__":
    unittest.main()
