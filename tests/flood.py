"""A flood of forged hints, at a known rate, and a crowd of connections that prove nothing."""

import socket
import threading
import time

BURST = 100
HINT = b"bfth1 n1"


class Flood:
    """`with Flood(address, rate)`: so many forged hints a second are sent inside."""

    def __init__(self, address, rate):
        self.address = address
        self.rate = rate
        self.sent = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.send)

    def __enter__(self):
        self.began_s = time.monotonic()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def send(self):
        if not self.rate:
            return
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while not self.ended.is_set():
                for _ in range(BURST):
                    sender.sendto(HINT, self.address)
                self.sent += BURST
                due_s = self.began_s + self.sent / self.rate
                self.ended.wait(max(0, due_s - time.monotonic()))

    def sent_a_s(self):
        return self.sent / (time.monotonic() - self.began_s)


class Crowd:
    """`with Crowd(address, size)`: inside, so many connections are held open that never prove
    who they are, a new one in place of each that is closed. Every other one is silent, the
    rest begin a frame and send a byte of it now and then."""

    PAUSE_S = 0.5
    # A frame of 4,096 bytes, of which no byte is wrong.
    FRAME = (4096).to_bytes(4, "big") + b'{"credential":"' + b"x" * 4081

    def __init__(self, address, size):
        self.address = address
        self.size = size
        self.opened = 0
        self.held = []  # [socket, bytes of the frame sent]; None of a silent one
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.hold)

    def __enter__(self):
        self.began_s = time.monotonic()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        for connection, _ in self.held:
            connection.close()

    def hold(self):
        while not self.ended.is_set():
            self.held = [held for held in self.held if self.goes_on(held)]
            while len(self.held) < self.size and not self.ended.is_set():
                connection = socket.create_connection(self.address, timeout=60)
                connection.setblocking(False)
                self.held.append([connection, 0 if self.opened % 2 else None])
                self.opened += 1
            self.ended.wait(self.PAUSE_S)

    def goes_on(self, held):
        """Sends its next byte; whether the server holds the connection."""
        connection, sent = held
        try:
            if sent is not None:
                held[1] += connection.send(self.FRAME[sent : sent + 1])
            # The server speaks first; after that only its end can come.
            while connection.recv(4096):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        connection.close()
        return False
