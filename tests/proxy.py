"""A TCP proxy between agents and controller, which a test can cut: for all or for some nodes.

Cut off, bytes wait (as TCP's would) until the network is whole again; `reset` closes all
connections instead.
"""

import contextlib
import os
import pathlib
import re
import selectors
import socket
import threading

from nodes import node_of

BLOCK_BYTES = 65536


class Proxy:
    def __init__(self, port):
        """For the controller at 127.0.0.1:port."""
        self.target = ("127.0.0.1", port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.cut_off = lambda node: False
        self.connections = []
        threading.Thread(target=self._accept, daemon=True).start()

    @classmethod
    def of(cls, cluster):
        """A proxy through which agents that start from now on reach the cluster's controller, until
        the cluster's configuration is written anew."""
        toml = (cluster.dir / "bftrainer.toml").read_text()
        port = int(re.search(r'^controller = ".*:(\d+)"', toml, re.MULTILINE)[1])
        proxy = cls(port)
        plugin = cluster.dir / "plugstack.conf.d/bftrainer.conf"
        line = plugin.read_text()
        plugin.write_text(line.replace(":{} ".format(port), ":{} ".format(proxy.port)))
        return proxy

    def cut(self, *nodes):
        """Nothing passes from and to these nodes' agents; without nodes, to nobody."""
        self.cut_off = (lambda node: node in nodes) if nodes else (lambda node: True)

    def heal(self):
        self.cut_off = lambda node: False

    def reset(self):
        """Closes all connections."""
        with self.lock:
            connections, self.connections = self.connections, []
        for connection in connections:
            connection.close()

    def close(self):
        self.listener.close()
        self.reset()

    def _accept(self):
        while True:
            try:
                client, address = self.listener.accept()
            except OSError:
                return
            connection = Connection(self, client, node_behind(address[1]))
            with self.lock:
                self.connections.append(connection)
            threading.Thread(target=connection.carry, daemon=True).start()


class Connection:
    def __init__(self, proxy, client, node):
        self.proxy = proxy
        self.node = node
        self.client = client
        self.server = None
        self.closed = threading.Event()

    def close(self):
        self.closed.set()

    def carry(self):
        """Carries bytes both ways until either side ends."""
        try:
            while self.proxy.cut_off(self.node):
                if self.closed.wait(0.05):
                    return
            self.server = socket.create_connection(self.proxy.target, timeout=10)
            with selectors.DefaultSelector() as selector:
                selector.register(self.client, selectors.EVENT_READ, self.server)
                selector.register(self.server, selectors.EVENT_READ, self.client)
                while not self.closed.is_set():
                    self._carry_some(selector)
        except OSError:
            pass
        finally:
            for end in (self.client, self.server):
                if end:
                    end.close()

    def _carry_some(self, selector):
        if self.proxy.cut_off(self.node):
            self.closed.wait(0.05)
            return
        for key, _ in selector.select(timeout=0.05):
            block = key.fileobj.recv(BLOCK_BYTES)
            if not block:
                raise ConnectionError("ended")
            key.data.sendall(block)


def node_behind(port):
    """The Slurm node of the process that has this local TCP port; None when there is none."""
    while inode := inode_of(port):
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            if has_socket(folder, inode):
                with contextlib.suppress(OSError):
                    return node_of(folder.name)
        # It was handed on, or its process began while we looked.
    return None


def has_socket(process, inode):
    """Whether the process has the socket open; files that it closes meanwhile don't matter."""
    with contextlib.suppress(OSError):
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(link) == "socket:[{}]".format(inode):
                    return True
    return False


def inode_of(port):
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if int(columns[1].split(":")[1], 16) == port:
            return int(columns[9])
    return None
