"""What the development cluster itself must get right, whatever else runs on the machine.

Run: python3 tests/test_dev_cluster.py
"""

import socket
import subprocess
import unittest

from cluster import ROOT

LISTENS_ON = 'set -euo pipefail; source "$1"; listens_on "$2"'


def listens_on(port):
    """Whether the cluster's scripts take `port` (TCP) for one that something listens on."""
    ports = ROOT / "scripts/lib/dev-cluster-ports.bash"
    words = ["bash", "-c", LISTENS_ON, "bash", ports, str(port)]
    return subprocess.run(words, env={"PATH": "/usr/bin:/bin", "dir": "/nowhere"}).returncode == 0


class Ports(unittest.TestCase):
    def test_a_port_is_found_however_many_others_are_listened_on(self):
        others = []
        self.addCleanup(lambda: [it.close() for it in others])
        for number in range(200):
            family, host = (socket.AF_INET6, "::1") if number % 2 else (socket.AF_INET, "127.0.0.1")
            others.append(socket.create_server((host, 0), family=family))
        for it in others:
            self.assertTrue(listens_on(it.getsockname()[1]), it)

    def test_a_port_on_which_nobody_listens_is_not_found(self):
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            self.assertFalse(listens_on(bound.getsockname()[1]))


if __name__ == "__main__":
    unittest.main()
