"""What a training program needs to live in a BFTrainer: progress, stopping, safe saving.

One file, standard library only, Python 3.6 or newer: import it from PYTHONPATH or
copy it beside the program. Outside a trainer (no BFT_* variables) `report` does
nothing and nothing is ever fenced, so the same program runs on a laptop.

    import bftrainer_progress as bft

    bft.install_sigterm_flag()
    for batch in batches:
        stop = all_reduce_max(bft.stop_requested())   # every rank stops at the same step
        samples += len(batch)
        bft.report(samples, loss=loss, epoch=epoch, total=total_samples)
        if stop:
            if rank == 0:
                bft.save_atomically(checkpoint, lambda file: torch.save(state, file))
            sys.exit(bft.EXIT_PREEMPTED)
"""

import math
import os
import signal
import socket
import time

EXIT_PREEMPTED = 143
"""Exit code that tells the controller "stopped because asked to", not "failed"."""

MIN_REPORT_INTERVAL_S = 0.1

_REPORT_SCHEME = "unix://"


class Fenced(Exception):
    """A newer generation of this trainer exists: this process must not write any more."""


# --- progress -------------------------------------------------------------------------


def report(samples, loss=None, epoch=None, total=None, done=False, last=False):
    """Tells the controller how far the training is: one datagram to $BFT_REPORT.

    samples: samples learnt since the very beginning, as in the checkpoint; the
        controller tells progress from standstill by it, and measures by it how long
        a restart takes.
    loss, epoch: shown to the user; a loss that is not finite is left out.
    total: the value of `samples` at which the training will be finished.
    done: the training is finished (a hint; rank 0's exit code decides).
    last: the last report before this process exits.

    May be called at every step: at most ten a second are sent, but one with `done` or
    `last` always. Does nothing outside a trainer, and on ranks other than 0, where
    $RANK says so. Never blocks and never raises: a report that the agent can't take
    just now is dropped, and the next one makes up for it.
    """
    try:
        _reporter.report(samples, loss, epoch, total, done, last)
    except Exception:  # Training must not end because its progress can't be told.
        pass


class _Reporter:
    def __init__(self):
        self._socket = None
        self._next_report_s = -math.inf

    def report(self, samples, loss, epoch, total, done, last):
        address = os.environ.get("BFT_REPORT", "")
        if not address.startswith(_REPORT_SCHEME) or os.environ.get("RANK", "0") != "0":
            return
        now_s = time.monotonic()
        if now_s < self._next_report_s and not (done or last):
            return
        self._next_report_s = now_s + MIN_REPORT_INTERVAL_S
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        line = _progress_line(samples, loss, epoch, total, done)
        # By path each time: an agent that was started anew has a new socket there.
        self._socket.sendto(line.encode("ascii"), address[len(_REPORT_SCHEME):])


_reporter = _Reporter()


def _progress_line(samples, loss, epoch, total, done):
    fields = ["bft1", "samples={:d}".format(int(samples)), "t={:.3f}".format(time.time())]
    generation = _own_generation()
    if generation is not None:
        fields.append("gen={:d}".format(generation))
    if loss is not None and math.isfinite(loss):
        fields.append("loss={:.9g}".format(float(loss)))
    if epoch is not None:
        fields.append("epoch={:d}".format(int(epoch)))
    if total is not None:
        fields.append("total={:d}".format(int(total)))
    if done:
        fields.append("done=1")
    return " ".join(fields)


# --- stopping -------------------------------------------------------------------------

_sigterm_seen = False


def install_sigterm_flag():
    """From now on SIGTERM only sets the flag that `stop_requested` returns.

    SIGTERM is how a trainer is asked to leave. A rank must not just exit on it: the
    others would be left in a dead collective. Call it from the main thread, before the
    first collective operation.
    """
    signal.signal(signal.SIGTERM, _remember_sigterm)


def stop_requested():
    """True once this process has got SIGTERM (needs `install_sigterm_flag`)."""
    return _sigterm_seen


def _remember_sigterm(_signal_number, _frame):
    global _sigterm_seen
    _sigterm_seen = True


# --- saving ---------------------------------------------------------------------------


def fenced():
    """True when a newer generation of this trainer exists than the one we belong to.

    Such a process is left over from before (its node was cut off, or hung) and would
    write over its successor's checkpoint. In `live` mode (BFT_MODE=live) never true:
    there processes outlive generations, and membership is the program's own business.
    """
    own = _own_generation()
    control_dir = os.environ.get("BFT_CONTROL_DIR")
    if own is None or not control_dir or os.environ.get("BFT_MODE") == "live":
        return False
    try:
        with open(os.path.join(control_dir, "generation")) as file:
            return int(file.read()) > own
    except (OSError, ValueError):
        return False


def save_atomically(path, content):
    """Replaces the file `path` as a whole, or leaves it as it was.

    content: bytes, or a function that writes to the binary file it is given, such as
        `lambda file: torch.save(state, file)`.

    The new content is on the disk before it takes the old one's place, so whatever
    dies at whatever moment, `path` holds one complete version. Raises Fenced, with
    `path` untouched, when a newer generation of this trainer exists; OSError when the
    file can't be written; and whatever `content` raises.
    """
    path = os.path.abspath(path)
    _refuse_when_fenced(path)
    # A name of its own for each process: a fenced one may still be writing its copy.
    temporary = "{}.{}.{}.tmp".format(path, socket.gethostname(), os.getpid())
    try:
        with open(temporary, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # Once more, as writing may have taken long.
        _refuse_when_fenced(path)
        os.replace(temporary, path)
    except BaseException:
        _remove_if_there(temporary)
        raise
    _sync_directory(os.path.dirname(path))


def _refuse_when_fenced(path):
    if fenced():
        raise Fenced(
            "{} was not saved: a newer generation than {} of this trainer exists".format(
                path, _own_generation()
            )
        )


def _sync_directory(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # Some network file systems can't; the file itself is safe already.
    finally:
        os.close(descriptor)


def _remove_if_there(path):
    try:
        os.remove(path)
    except OSError:
        pass


def _own_generation():
    try:
        return int(os.environ["BFT_GENERATION"])
    except (KeyError, ValueError):
        return None
