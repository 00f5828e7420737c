"""Tests of train.py and bftrainer_progress.py with real rank processes on this host.

They play the agent's part: start ranks with its environment, listen to the progress
datagrams, signal, and start the next generation. Run with `python3 -m unittest`.
"""

import functools
import json
import os
import queue
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
TRAIN = os.path.join(HERE, "train.py")
SCRIPTS = os.path.join(HERE, os.pardir, os.pardir, "scripts")
sys.path.append(SCRIPTS)

import bftrainer_progress as bft  # noqa: E402

EPOCH_SAMPLES = 1500
REFERENCE_EPOCHS = 40
TOLERANCE = 1e-9
DEADLINE_S = 60.0  # For what must happen, on a machine however busy.
PROMPTLY_S = 20.0  # For what must not wait for a time-out (train.py's is 60 s).

# Slows a rank down so far that a test always meets it in the middle of its epochs.
SLOW = ["--epochs", "1000", "--device-ms-per-sample", "1"]

PROGRESS = re.compile(
    r"bft1 samples=(?P<samples>\d+) t=\d+\.\d{3} gen=(?P<gen>\d+)"
    r"( loss=(?P<loss>\d+\.\d+))? epoch=(?P<epoch>\d+) total=(?P<total>\d+)(?P<done> done=1)?"
)


def free_port():
    """A port below the range that the kernel gives to outgoing connections."""
    while True:
        port = random.randrange(15000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
                return port
            except OSError:
                pass


def plain_environment():
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("BFT_")
        and name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    }


@functools.lru_cache(maxsize=None)
def undisturbed_losses():
    """The loss of each epoch of one rank without any environment, never interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, TRAIN]
            + ["--epochs", str(REFERENCE_EPOCHS), "--losses", "losses.json"],
            cwd=folder,
            env=plain_environment(),
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=DEADLINE_S,
        )
        with open(os.path.join(folder, "losses.json")) as file:
            return json.load(file)


class ProgressListener:
    """The agent's progress socket, read by a thread: it holds ten datagrams only."""

    END = "end of the test"
    MARK = "mark"

    def __init__(self, path):
        self.path = path
        self.lines = queue.Queue()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()

    def next_line(self):
        try:
            return self.lines.get(timeout=DEADLINE_S)
        except queue.Empty:
            raise AssertionError("no progress for {:g} s".format(DEADLINE_S))

    def lines_so_far(self):
        """All that came before this call and has not been taken yet."""
        self._say(self.MARK)
        return list(iter(self.next_line, self.MARK))

    def close(self):
        self._say(self.END)
        self.thread.join()
        self.socket.close()

    def _listen(self):
        for line in iter(lambda: self.socket.recv(4096).decode("ascii"), self.END):
            self.lines.put(line)

    def _say(self, word):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(word.encode("ascii"), self.path)


class Generation:
    """The ranks of one membership, as processes; rank r is processes[r]."""

    def __init__(self, trainer, number, world_size, arguments, port, ranks):
        self.processes = {}
        for rank in ranks:
            environment = dict(
                plain_environment(),
                BFT_TRAINER_ID="7",
                BFT_MODE="restart",
                BFT_GENERATION=str(number),
                BFT_REPORT="unix://" + trainer.report_path,
                BFT_CONTROL_DIR=trainer.control_dir,
                BFT_CKPT_DIR=os.path.join(trainer.control_dir, "ckpt"),
                RANK=str(rank),
                WORLD_SIZE=str(world_size),
                MASTER_ADDR="localhost",
                MASTER_PORT=str(port),
            )
            self.processes[rank] = subprocess.Popen(
                [sys.executable, TRAIN] + arguments,
                env=environment,
                cwd=trainer.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                universal_newlines=True,
            )

    def signal(self, signal_number, ranks=None):
        for rank in self.processes if ranks is None else ranks:
            self.processes[rank].send_signal(signal_number)

    def finish(self, timeout_s=DEADLINE_S):
        """Waits for all; returns the exit codes in the order of the ranks."""
        deadline = time.monotonic() + timeout_s
        self.output, self.complaints = "", ""
        for process in self.processes.values():
            output, complaints = process.communicate(timeout=max(0, deadline - time.monotonic()))
            self.output += output
            self.complaints += complaints
        return [process.returncode for process in self.processes.values()]

    def wait_for_complaint(self, rank, word):
        """Returns once the rank has written a line with that word to stderr."""
        for line in self.processes[rank].stderr:
            if word in line:
                return
        raise AssertionError("rank {} ended without saying {!r}".format(rank, word))

    def destroy(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()


class TrainerInATest:
    """One trainer with its control folder and the agent's progress socket."""

    def __init__(self):
        # Below /tmp by choice: a socket's path has room for 107 bytes only.
        self.folder = tempfile.mkdtemp(prefix="digits-", dir="/tmp")
        self.control_dir = os.path.join(self.folder, "control")
        os.mkdir(self.control_dir)
        self.report_path = os.path.join(self.folder, "report.sock")
        self.listener = ProgressListener(self.report_path)
        self.generations = []
        self.progress = []  # The datagrams so far, as matches of PROGRESS.

    def destroy(self):
        for generation in self.generations:
            generation.destroy()
        self.listener.close()
        shutil.rmtree(self.folder)

    def start(self, world_size, arguments, port=None, ranks=None):
        number = len(self.generations) + 1
        self.write_generation(number)
        ranks = range(world_size) if ranks is None else ranks
        generation = Generation(self, number, world_size, arguments, port or free_port(), ranks)
        self.generations.append(generation)
        return generation

    def write_generation(self, number):
        bft.save_atomically(os.path.join(self.control_dir, "generation"), b"%d\n" % number)

    def next_progress(self):
        return self._take(self.listener.next_line())

    def drain_progress(self):
        for line in self.listener.lines_so_far():
            self._take(line)

    def _take(self, line):
        progress = PROGRESS.fullmatch(line)
        if progress is None:
            raise AssertionError("not a progress line: {!r}".format(line))
        self.progress.append(progress)
        return progress

    def wait_for_samples(self, samples):
        """Returns once the newest generation has learnt so many samples, in all."""
        while True:
            progress = self.next_progress()
            newest = int(progress["gen"]) == len(self.generations)
            if newest and int(progress["samples"]) >= samples:
                return

    def checkpoint_files(self):
        folder = os.path.join(self.control_dir, "ckpt")
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def checkpoint(self):
        with open(os.path.join(self.control_dir, "ckpt", "digits.json")) as file:
            return json.load(file)


class TrainerCase(unittest.TestCase):
    def setUp(self):
        self.trainer = TrainerInATest()
        self.addCleanup(self.trainer.destroy)

    def assert_reference(self, losses):
        for epoch, (loss, expected) in enumerate(zip(losses, undisturbed_losses()), start=1):
            self.assertAlmostEqual(loss, expected, delta=TOLERANCE, msg="epoch %d" % epoch)

    def assert_goes_on_as_if_undisturbed(self, world_size):
        """Finishes the trainer two epochs on, and compares all its losses."""
        epochs = self.trainer.checkpoint()["epoch"] + 2
        self.assertLess(epochs, REFERENCE_EPOCHS, "the machine is too slow for this test")
        last = self.trainer.start(world_size, ["--epochs", str(epochs)])
        self.assertEqual(last.finish(), [0] * world_size, last.complaints)
        checkpoint = self.trainer.checkpoint()
        self.assertEqual(checkpoint["samples"], epochs * EPOCH_SAMPLES)
        self.assertEqual(len(checkpoint["losses"]), epochs)
        self.assert_reference(checkpoint["losses"])


class NumberOfRanksTest(TrainerCase):
    def test_the_losses_are_the_same_on_1_3_and_8_ranks(self):
        for world_size in (1, 3, 8):
            with self.subTest(world_size=world_size):
                trainer = TrainerInATest()
                self.addCleanup(trainer.destroy)
                run = trainer.start(world_size, ["--epochs", "10", "--losses", "losses.json"])
                self.assertEqual(run.finish(), [0] * world_size, run.complaints)
                with open(os.path.join(trainer.folder, "losses.json")) as file:
                    losses = json.load(file)
                self.assertEqual(len(losses), 10)
                self.assert_reference(losses)

    def test_it_learns(self):
        losses = undisturbed_losses()
        self.assertAlmostEqual(losses[0], 2.04, delta=0.01)
        self.assertLess(losses[19], 0.35)
        self.assertEqual(losses, sorted(losses, reverse=True))

    def test_one_line_an_epoch_comes_from_rank_0_alone(self):
        run = self.trainer.start(2, ["--epochs", "3"])
        self.assertEqual(run.finish(), [0, 0], run.complaints)
        lines = run.output.splitlines()
        self.assertEqual(len(lines), 3)
        self.assertRegex(lines[2], r"^epoch 3 loss 1\.25\d{4} accuracy 0\.8\d{3} samples 4500$")

    def test_alone_it_needs_no_environment(self):
        command = [sys.executable, TRAIN, "--epochs", "1"]
        environment = plain_environment()
        for expected_output in (r"^epoch 1 loss \S+ accuracy \S+ samples 1500\n$", r"^$"):
            run = subprocess.run(
                command,
                cwd=self.trainer.folder,
                env=environment,
                stdout=subprocess.PIPE,
                universal_newlines=True,
                timeout=DEADLINE_S,
            )
            self.assertEqual(run.returncode, 0)
            self.assertRegex(run.stdout, expected_output)
        self.assertEqual(os.listdir(os.path.join(self.trainer.folder, "ckpt")), ["digits.json"])

    def test_another_data_order_is_refused_rather_than_mixed_in(self):
        self.assertEqual(self.trainer.start(1, ["--epochs", "1"]).finish(), [0])
        other = self.trainer.start(2, ["--epochs", "2", "--seed", "5"])
        self.assertEqual(other.finish(), [1, 1])
        self.assertIn("--seed 1", other.complaints)


class StopTest(TrainerCase):
    def test_sigterm_to_one_or_to_all_loses_nothing_at_any_number_of_ranks(self):
        seed = random.randrange(1000000)
        choose = random.Random(seed)
        samples = 0
        for world_size, to_all in ((1, True), (3, False), (8, True), (2, False)):
            moment = samples + choose.randrange(48, 1000)
            signalled = None if to_all else [choose.randrange(world_size)]
            with self.subTest(seed=seed, world_size=world_size, signalled=signalled):
                run = self.trainer.start(world_size, SLOW + ["--save-every", "1000000"])
                self.trainer.wait_for_samples(moment)
                run.signal(signal.SIGTERM, signalled)
                codes = run.finish(PROMPTLY_S)
                self.assertEqual(codes, [bft.EXIT_PREEMPTED] * world_size, run.complaints)
                self.trainer.drain_progress()
                samples = self.trainer.checkpoint()["samples"]
                self.assertGreaterEqual(samples, moment)
                self.assertEqual(int(self.trainer.progress[-1]["samples"]), samples)
        self.assert_goes_on_as_if_undisturbed(world_size=3)
        self.trainer.drain_progress()
        told = [int(progress["samples"]) for progress in self.trainer.progress]
        self.assertEqual(told, sorted(told))

    def test_sigterms_that_come_one_after_the_other_stop_all_at_the_same_step(self):
        run = self.trainer.start(3, SLOW)
        self.trainer.wait_for_samples(480)
        for rank in (2, 0, 1):
            run.signal(signal.SIGTERM, [rank])
            time.sleep(random.uniform(0, 0.05))  # Not to wait for anything: to be uneven.
        self.assertEqual(run.finish(PROMPTLY_S), [bft.EXIT_PREEMPTED] * 3, run.complaints)

    def test_sigterm_at_the_rendezvous_exits_143_and_leaves_the_checkpoint_alone(self):
        self.assertEqual(self.trainer.start(1, ["--epochs", "1"]).finish(), [0])
        before = self.trainer.checkpoint()
        for present, port in (([0, 1], free_port()), ([1, 2], free_port())):
            with self.subTest(present=present):
                run = self.trainer.start(3, SLOW, port=port, ranks=present)
                if 0 in present:
                    wait_until(lambda: is_listening(port))
                for rank in present:
                    wait_until(lambda: catches_sigterm(run.processes[rank].pid))
                run.signal(signal.SIGTERM)
                codes = run.finish(PROMPTLY_S)
                self.assertEqual(codes, [bft.EXIT_PREEMPTED] * 2, run.complaints)
                self.assertEqual(self.trainer.checkpoint(), before)

    def test_sigterm_to_a_rank_whose_peer_hangs_exits_143_and_saves(self):
        run = self.trainer.start(2, SLOW + ["--save-every", "1000000"])
        self.trainer.wait_for_samples(480)
        run.signal(signal.SIGSTOP, [1])
        run.signal(signal.SIGTERM, [0])
        code = run.processes[0].wait(PROMPTLY_S)
        self.assertEqual(code, bft.EXIT_PREEMPTED)
        self.assertGreaterEqual(self.trainer.checkpoint()["samples"], 480)
        run.signal(signal.SIGKILL, [1])
        run.finish()
        self.assert_goes_on_as_if_undisturbed(world_size=1)


class LostPeerTest(TrainerCase):
    def test_after_kill_9_the_others_exit_1_at_once_and_the_checkpoint_carries_on(self):
        samples = 0
        for victim in (2, 0):
            with self.subTest(victim=victim):
                run = self.trainer.start(3, SLOW + ["--save-every", "5"])
                self.trainer.wait_for_samples(samples + 10 * 48)
                run.signal(signal.SIGKILL, [victim])
                codes = run.finish(PROMPTLY_S)
                expected = [1, 1, 1]
                expected[victim] = -signal.SIGKILL
                self.assertEqual(codes, expected, run.complaints)
                samples = self.trainer.checkpoint()["samples"]
                self.assertGreater(samples, 0)
        self.assert_goes_on_as_if_undisturbed(world_size=2)

    def test_a_peer_that_hangs_ends_the_wait_with_exit_1(self):
        run = self.trainer.start(2, SLOW + ["--peer-timeout-s", "5"])
        self.trainer.wait_for_samples(480)
        run.signal(signal.SIGSTOP, [1])
        self.assertEqual(run.processes[0].wait(PROMPTLY_S), 1)

    def test_a_rank_that_never_comes_ends_the_rendezvous_with_exit_1(self):
        run = self.trainer.start(3, SLOW + ["--peer-timeout-s", "1"], ranks=[0, 1])
        self.assertEqual(run.finish(), [1, 1])
        self.assertIn("of 3 ranks are here", run.complaints)

    def test_a_port_that_is_taken_for_a_moment_is_tried_again(self):
        port = free_port()
        with socket.socket() as other:
            other.bind(("", port))
            other.listen(1)
            run = self.trainer.start(2, ["--epochs", "1"], port=port)
            run.wait_for_complaint(0, "trying on")
        self.assertEqual(run.finish(), [0, 0], run.complaints)

    def test_strangers_at_the_rendezvous_are_turned_away(self):
        port = free_port()
        run = self.trainer.start(2, ["--epochs", "1"], port=port, ranks=[0])
        wait_until(lambda: is_listening(port))  # Itself a stranger without a word.
        with socket.create_connection(("localhost", port)) as stranger:
            stranger.sendall(b"digits 7 0 1 2".ljust(64))
            stranger.settimeout(DEADLINE_S)
            self.assertEqual(stranger.recv(64), b"")
        late = Generation(self.trainer, 1, 2, ["--epochs", "1"], port, ranks=[1])
        self.addCleanup(late.destroy)
        self.assertEqual(run.finish() + late.finish(), [0, 0], run.complaints)


class FencingTest(TrainerCase):
    def test_a_fenced_generation_stops_at_its_next_save(self):
        run = self.trainer.start(2, SLOW + ["--save-every", "5"])
        self.trainer.wait_for_samples(480)
        self.trainer.write_generation(2)
        self.assertEqual(run.finish(PROMPTLY_S), [1, 1])
        self.assertIn("newer generation than 1", run.complaints)
        self.assertEqual(self.trainer.checkpoint_files(), ["digits.json"])

    def test_a_fenced_generation_does_not_save_on_sigterm_either(self):
        run = self.trainer.start(2, SLOW + ["--save-every", "1000000"])
        self.trainer.wait_for_samples(480)
        self.trainer.write_generation(2)
        run.signal(signal.SIGTERM)
        self.assertEqual(run.finish(PROMPTLY_S)[0], 1)
        self.assertEqual(self.trainer.checkpoint_files(), [])

    def test_a_fenced_rank_that_lost_its_peer_does_not_save_on_sigterm(self):
        run = self.trainer.start(2, SLOW + ["--save-every", "1000000"])
        self.trainer.wait_for_samples(480)
        self.trainer.write_generation(2)
        run.signal(signal.SIGSTOP, [1])
        run.signal(signal.SIGTERM, [0])
        self.assertEqual(run.processes[0].wait(PROMPTLY_S), 1)
        self.assertEqual(self.trainer.checkpoint_files(), [])
        self.assertNotIn("Traceback", run.processes[0].stderr.read())


class ProgressTest(TrainerCase):
    def test_the_datagrams_of_a_run_tell_where_it_is(self):
        run = self.trainer.start(2, ["--epochs", "2", "--device-ms-per-sample", "1"])
        while not self.trainer.next_progress()["done"]:
            pass
        self.assertEqual(run.finish(), [0, 0], run.complaints)
        first, last = self.trainer.progress[0], self.trainer.progress[-1]
        self.assertEqual((first["samples"], first["epoch"], first["loss"]), ("0", "0", None))
        self.assertEqual((last["samples"], last["epoch"]), ("3000", "2"))
        self.assertAlmostEqual(float(last["loss"]), undisturbed_losses()[1], delta=1e-6)
        self.assertEqual({progress["total"] for progress in self.trainer.progress}, {"3000"})
        self.assertEqual({progress["gen"] for progress in self.trainer.progress}, {"1"})

    def test_a_resumed_generation_begins_with_the_samples_of_the_checkpoint(self):
        self.assertEqual(self.trainer.start(1, ["--epochs", "1"]).finish(), [0])
        self.trainer.drain_progress()
        run = self.trainer.start(1, ["--epochs", "2"])
        self.assertEqual(self.trainer.next_progress()["samples"], "1500")
        self.assertEqual(run.finish(), [0], run.complaints)


class ProgressModuleTest(unittest.TestCase):
    """bftrainer_progress in processes of its own, as its state is the process's."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="digits-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.report_path = os.path.join(self.folder, "report.sock")

    def run_python(self, code, **environment):
        """Runs `code` with the module imported as bft; returns what it printed."""
        run = subprocess.run(
            [sys.executable, "-c", "import bftrainer_progress as bft\n" + code],
            env=dict(plain_environment(), PYTHONPATH=SCRIPTS, **environment),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            timeout=DEADLINE_S,
        )
        self.assertEqual(run.returncode, 0, run.stdout)
        return run.stdout

    def receive_all(self, code, **environment):
        """The datagrams that `code` sends, in order."""
        listener = ProgressListener(self.report_path)
        try:
            self.run_python(code, BFT_REPORT="unix://" + self.report_path, **environment)
            return listener.lines_so_far()
        finally:
            listener.close()

    def test_outside_a_trainer_it_is_silent_and_nothing_is_fenced(self):
        code = "print(bft.report(5, loss=0.5), bft.fenced(), bft.stop_requested())"
        self.assertEqual(self.run_python(code), "None False False\n")

    def test_a_report_never_raises(self):
        code = "bft.report(5); bft.report('x', done=True); bft.report(None, loss='y', last=True)"
        addresses = ("unix:///nowhere/at/all", "unix://" + "x" * 500, "http://x", "", "unix://")
        for address in addresses:
            with self.subTest(address=address):
                self.assertEqual(self.run_python(code, BFT_REPORT=address), "")

    def test_a_report_does_not_wait_for_an_agent_that_does_not_read(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
            deaf.bind(self.report_path)
            code = "for n in range(100000): bft.report(n, last=True)"
            self.run_python(code, BFT_REPORT="unix://" + self.report_path)

    def test_the_line_has_the_contracts_form(self):
        code = "bft.report(30000, loss=0.125, epoch=20, total=90000, done=True)"
        (line,) = self.receive_all(code, BFT_GENERATION="4")
        form = r"bft1 samples=30000 t=\d{10}\.\d{3} gen=4 loss=0\.125 epoch=20 total=90000 done=1"
        self.assertRegex(line, "^" + form + "$")

    def test_a_loss_that_is_not_finite_is_left_out(self):
        (line,) = self.receive_all("bft.report(1, loss=float('nan'))")
        self.assertRegex(line, r"^bft1 samples=1 t=\S+$")

    def test_ranks_other_than_0_say_nothing(self):
        self.assertEqual(self.receive_all("bft.report(1, done=True)", RANK="1"), [])

    def test_ten_a_second_pass_and_a_last_one_always(self):
        code = (
            "import time\n"
            "end, n = time.monotonic() + 1, 0\n"
            "while time.monotonic() < end: bft.report(n); n += 1; time.sleep(0.001)\n"
            "bft.report(1000000, last=True)\n"
            "bft.report(1000001, done=True)\n"
        )
        lines = self.receive_all(code)
        self.assertIn("samples=0 ", lines[0])
        self.assertIn("samples=1000000 ", lines[-2])
        self.assertIn("samples=1000001 ", lines[-1])
        self.assertLessEqual(len(lines), 11 + 2)

    def test_fenced_compares_the_generation_file_with_ours(self):
        code = "print(bft.fenced())"
        path = os.path.join(self.folder, "generation")
        for content, mode, expected in (
            (None, "restart", "False"),
            ("4\n", "restart", "False"),
            ("5\n", "restart", "True"),
            ("3", "restart", "False"),
            ("", "restart", "False"),
            ("5\n", "live", "False"),
        ):
            with self.subTest(content=content, mode=mode):
                if content is not None:
                    with open(path, "w") as file:
                        file.write(content)
                printed = self.run_python(
                    code, BFT_CONTROL_DIR=self.folder, BFT_GENERATION="4", BFT_MODE=mode
                )
                self.assertEqual(printed, expected + "\n")

    def test_a_save_replaces_the_file_or_leaves_it_as_it_was(self):
        code = (
            "bft.save_atomically('model', b'old')\n"
            "def broken(file):\n"
            "    file.write(b'half')\n"
            "    raise ValueError\n"
            "try: bft.save_atomically('model', broken)\n"
            "except ValueError: print(open('model').read())\n"
            "bft.save_atomically('model', lambda file: file.write(b'new'))\n"
            "print(open('model').read())\n"
        )
        self.assertEqual(self.run_python(code), "old\nnew\n")
        self.assertEqual(os.listdir(self.folder), ["model"])

    def test_a_save_that_is_fenced_while_it_writes_does_not_take_place(self):
        code = (
            "def slow(file):\n"
            "    file.write(b'late')\n"
            "    open('generation', 'w').write('2')\n"
            "try: bft.save_atomically('model', slow)\n"
            "except bft.Fenced: print('fenced')\n"
        )
        environment = {"BFT_CONTROL_DIR": self.folder, "BFT_GENERATION": "1"}
        self.assertEqual(self.run_python(code, **environment), "fenced\n")
        self.assertEqual(os.listdir(self.folder), ["generation"])

    def test_sigterm_only_sets_the_flag(self):
        code = (
            "import os, signal\n"
            "bft.install_sigterm_flag()\n"
            "os.kill(os.getpid(), signal.SIGTERM)\n"
            "print(bft.stop_requested())\n"
        )
        self.assertEqual(self.run_python(code), "True\n")


class BatchScriptTest(unittest.TestCase):
    """The plugin tells the two forms apart by the words `bftrainer run` in the script."""

    def test_only_the_srun_form_calls_the_agent(self):
        scripts = {}
        for name in ("train.sh", "train-srun.sh"):
            with open(os.path.join(HERE, name)) as file:
                scripts[name] = file.read()
        self.assertNotIn("bftrainer run", scripts["train.sh"])
        last_line = scripts["train-srun.sh"].splitlines()[-1]
        self.assertTrue(last_line.startswith("srun bftrainer run -- "), last_line)

    def test_a_spooled_copy_finds_the_example_and_passes_arguments_on(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(HERE, "train.sh"), os.path.join(folder, "slurm_script"))
            for variable in ("DIGITS_DIR", "SLURM_SUBMIT_DIR"):
                with self.subTest(variable=variable):
                    run = subprocess.run(
                        ["bash", os.path.join(folder, "slurm_script"), "--help"],
                        env=dict(plain_environment(), **{variable: HERE}),
                        stdout=subprocess.PIPE,
                        universal_newlines=True,
                        timeout=DEADLINE_S,
                    )
                    self.assertEqual(run.returncode, 0)
                    self.assertIn("--device-ms-per-sample", run.stdout)


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("did not happen within {:g} s".format(DEADLINE_S))
        time.sleep(0.02)


def is_listening(port):
    try:
        socket.create_connection(("localhost", port), timeout=1).close()
        return True
    except OSError:
        return False


def catches_sigterm(pid):
    """True once the process has its handler (a bit in /proc's mask of caught signals)."""
    with open("/proc/{}/status".format(pid)) as status:
        caught = next(line for line in status if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


if __name__ == "__main__":
    unittest.main()
