#!/usr/bin/env python3
"""A trainer whose throughput on n nodes is PER_S * n ** EXPONENT samples per second, plus or
minus 5 % in each step: usage: scaling.py PER_S EXPONENT. Ends when a file `end` appears."""

import os
import random
import sys
import time

import bftrainer_progress as bft

STEP_S = 0.2


def main():
    bft.install_sigterm_flag()
    per_s, exponent = float(sys.argv[1]), float(sys.argv[2])
    is_first = os.environ["RANK"] == "0"
    checkpoint = os.path.join(os.environ["BFT_CKPT_DIR"], "samples")
    samples = 0.0
    if is_first:
        os.makedirs(os.path.dirname(checkpoint), exist_ok=True)
        if os.path.exists(checkpoint):
            with open(checkpoint) as file:
                samples = float(file.read())
    rate = per_s * int(os.environ["BFT_NUM_NODES"]) ** exponent
    noise = random.Random(os.environ["BFT_GENERATION"])
    began_s = time.monotonic()
    while not bft.stop_requested() and not os.path.exists("end"):
        time.sleep(STEP_S)
        # What a busy machine slept too long was trained as well.
        now_s = time.monotonic()
        samples += rate * (now_s - began_s) * noise.uniform(0.95, 1.05)
        began_s = now_s
        bft.report(samples)
    if is_first:
        bft.save_atomically(checkpoint, str(samples).encode("ascii"))
        bft.report(samples, last=True)
    return bft.EXIT_PREEMPTED if bft.stop_requested() else 0


if __name__ == "__main__":
    sys.exit(main())
