"""Parallel calls of a function, by this process and worker processes that it starts."""

import os
import pickle
import queue
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Generic, TypeVar

import cloudpickle
import torch

T = TypeVar("T")

START = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    f"from {__name__} import serve; serve(sys.stdin.buffer)"
)
"""The code of a worker process, which imports from the same folders as this process."""

GRACE = 5.0  # heuristic: a worker process that gets SIGTERM has this many seconds to write a checkpoint


class WorkerError(RuntimeError):
    """Raised if a worker process ended before all its calls were done."""


class TracebackError(Exception):
    """Shows the traceback from a worker process, as `__cause__` of the error raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def side_by_side(
    job: Callable[[int], T],
    count: int,
    *,
    num_workers: int,
    num_threads: int,
    is_asked: Callable[[], bool] = lambda: False,
    done: Callable[[], object] = lambda: None,
) -> list[T]:
    """Return ``[job(0), ..., job(count - 1)]``. This process and ``num_workers - 1`` others make the calls.

    `done` is called after each call. If `is_asked` returns True, the other processes get SIGTERM, and KeyboardInterrupt
    is raised here. An error of `job` in another process is raised here, too. If a process died, a WorkerError is
    raised.
    """
    num_others = min(num_workers, count) - 1
    message = _pickled(job, num_threads) if num_others > 0 else b""
    team = Team[T](count, done)
    with _threads(num_threads), team:
        for _ in range(num_others):
            team.hire(message)
        while not is_asked() and (index := team.next()) is not None:
            team.put(index, job(index))
        return team.wait(is_asked)


class Team(Generic[T]):
    """The waiting and finished calls of a job, and the worker processes."""

    def __init__(self, count: int, done: Callable[[], object]) -> None:
        self._count, self._done = count, done
        self._waiting, self._results = deque(range(count)), dict[int, T]()
        self._change, self._error = threading.Condition(), list[BaseException]()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._leaders: list[threading.Thread] = []

    def __enter__(self) -> "Team[T]":
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all worker processes, even those still starting."""
        with self._change:
            self._waiting.clear()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for leader in self._leaders:
            leader.join()

    def hire(self, message: bytes) -> None:
        """Start a worker process, and a thread that sends it the job (`message`) and then one call after another."""
        process = subprocess.Popen(
            [sys.executable, "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches this process only, which stops the others
        )
        self._processes.append(process)
        self._leaders.append(threading.Thread(target=self._lead, args=(process, message), daemon=True))
        self._leaders[-1].start()

    def next(self) -> int | None:
        """Take the next waiting call; None if there is none, or after an error."""
        with self._change:
            return self._waiting.popleft() if self._waiting and not self._error else None

    def put(self, index: int, result: T) -> None:
        with self._change:
            self._results[index] = result
            self._done()
            self._change.notify_all()

    def wait(self, is_asked: Callable[[], bool]) -> list[T]:
        """Wait until other processes have finished their calls; return all results, or raise the first error."""
        with self._change:
            while len(self._results) < self._count and not self._error:
                self._change.wait(0.1)
                if is_asked():
                    raise KeyboardInterrupt
            if len(self._results) < self._count:
                raise self._error[0]
            return [self._results[index] for index in range(self._count)]

    def _lead(self, process: "subprocess.Popen[bytes]", message: bytes) -> None:
        """Give calls to a worker process until no call waits. Each worker process has a thread for this."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError), process.stdin as commands, process.stdout as answers:  # a dead process reads nothing
            try:
                _send(commands, pickle.dumps(sys.path))
                pickle.load(answers)  # the worker has started
                if self._waiting:
                    _send(commands, message)
                while (index := self.next()) is not None:
                    _send(commands, pickle.dumps(index))
                    is_good, answer = pickle.load(answers)
                    if not is_good:
                        raise answer[0] from TracebackError(answer[1])
                    self.put(index, answer)
            except (EOFError, BrokenPipeError):
                self._fail(_death(process))
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._change:
            self._error.append(error)
            self._change.notify_all()


def _pickled(job: Callable[[int], object], num_threads: int) -> bytes:
    """Return what a worker process needs first: settings of torch, and the job."""
    settings = torch.get_default_dtype(), torch.get_float32_matmul_precision(), num_threads
    try:
        return pickle.dumps(settings) + cloudpickle.dumps(job)
    except Exception as error:  # objects may raise anything
        raise ValueError(
            f"several processes need copies of the model, the data and all functions, but these cannot be pickled "
            f"({type(error).__name__}: {error}); pass `num_workers=1` to do all in this process."
        ) from error


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(message)
    stream.flush()


def _death(process: "subprocess.Popen[bytes]") -> WorkerError:
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    code = process.returncode
    how = "" if code is None else f" by signal {-code}" if code < 0 else f" with code {code}"
    return WorkerError(
        f"a worker process ended{how}, perhaps for lack of memory (its own messages are in the error output); pass a "
        "smaller `num_workers`, or `num_workers=1` to do all in this process."
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != before:
            torch.set_num_threads(before)


def serve(commands: IO[bytes]) -> None:
    """Make the calls that another process asks for, until the input ends. Prints go to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _send(answers, pickle.dumps("started"))
    try:
        dtype, precision, num_threads = pickle.load(commands)
        job = pickle.load(commands)
    except EOFError:
        return
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(num_threads)
    indices = queue.SimpleQueue[int]()

    def listen() -> None:
        while True:
            try:
                indices.put(pickle.load(commands))
            except BaseException:
                os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        _send(answers, _answer(job, indices.get()))


def _answer(job: Callable[[int], object], index: int) -> bytes:
    """Make a call; return a pickled (True, result) or (False, (error, traceback))."""
    try:
        return cloudpickle.dumps((True, job(index)))
    except KeyboardInterrupt:
        os._exit(1)  # stopped, with its state in a checkpoint
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        try:
            pickled = cloudpickle.dumps((False, (error, text)))
            pickle.loads(pickled)
        except Exception:
            return pickle.dumps((False, (RuntimeError(f"{type(error).__name__}: {error}"), text)))
        return pickled
