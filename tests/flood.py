"""A flood of forged hints, at a known rate."""

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
