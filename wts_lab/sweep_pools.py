"""Workers of a sweep: a process for each GPU of this machine, or the workers of a Dask cluster, one a GPU.

Either kind gives a task to a worker, waits, and gives it the next. A local worker that dies is replaced and its task tried once more; a
cluster's scheduler does the same by its own rule (``distributed.scheduler.allowed-failures``). Dask is imported where it is used: the extra ``cluster``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from cost_model.errors import BadInput
from wts_lab.sweep import Outcome, Place, Task, run_task

TRIES = 2
"""Workers that may be lost over a task before it is given up."""

IDLE_PATIENCE_S, STOP_PATIENCE_S = 5.0, 30.0
CONNECT_PATIENCE_S = 15.0


class LocalPool:
    """Processes of this machine, each of which sees one device alone; a context, at whose end they are stopped.

    Args:
        devices: what CUDA_VISIBLE_DEVICES is to be in each, such as ``0`` or a UUID.

    Raises:
        BadInput: no device, or one twice.
    """

    shares_files = True

    def __init__(self, devices: Sequence[str]) -> None:
        if not devices or len(set(devices)) < len(devices):
            raise BadInput(f"devices are {', '.join(devices) or 'none'}; give each GPU once, such as 0,1")
        self._workers = [_LocalWorker(device) for device in devices]

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()

    def places(self, identify: Callable[[], Place]) -> list[Place]:
        """As `sweep.Pool`; RuntimeError of a worker is passed on as BadInput, with its device."""
        return [worker.place(identify) for worker in self._workers]

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """As `sweep.Pool`. One thread a worker feeds it; when the caller stops listening, what is under way is stopped."""
        waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)
        found: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        stopped = threading.Event()
        feeders = [threading.Thread(target=_feed, args=(worker, waiting, found, stopped), daemon=True) for worker in self._workers]
        for feeder in feeders:
            feeder.start()
        try:
            for _ in tasks:
                yield found.get()
        finally:
            stopped.set()
            for worker, feeder in zip(self._workers, feeders, strict=True):
                feeder.join(IDLE_PATIENCE_S)
                if feeder.is_alive():
                    worker.stop()
                    feeder.join()


def _feed(worker: _LocalWorker, waiting: queue.SimpleQueue, found: queue.SimpleQueue, stopped: threading.Event) -> None:
    """Give one worker task after task; one that is lost over a task is replaced and tried again."""
    while not stopped.is_set():
        try:
            task = waiting.get_nowait()
        except queue.Empty:
            return
        outcome = None
        for _ in range(TRIES):
            with contextlib.suppress(EOFError, OSError):  # the process is gone
                outcome = worker.ask(_outcome, task)
                break
            if stopped.is_set():
                return
            worker.stop()
        found.put(outcome or Outcome(task.number, problem=f"{TRIES} processes on device {worker.device} ended without a word"))


def _outcome(task: Task) -> Outcome:
    """Carry a task out in this process; what is raised is told, because it may not survive the way to another process."""
    try:
        return Outcome(task.number, run_task(task))
    except (RuntimeError, ValueError, OSError) as error:
        return Outcome(task.number, problem=f"{type(error).__name__}: {error}")


class _LocalWorker:
    """A process that sees one device and answers one question after the other; started when it is first asked."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._process: Any = None
        self._connection: Connection | None = None

    def ask(self, function: Callable[[Any], Any], *values: Any) -> Any:
        """What a function returns there; EOFError or OSError where the process has ended."""
        if self._process is None:
            context = get_context("spawn")  # a fork would take over a CUDA context that it cannot use
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self.device))
            self._process.start()
            theirs.close()
        self._connection.send((function, values))
        return self._connection.recv()

    def place(self, identify: Callable[[], Place]) -> Place:
        """The place that the process is at."""
        try:
            found = self.ask(_told, identify)
        except (EOFError, OSError) as error:
            raise BadInput(f"the process on device {self.device} ended before it said where it is; run `wts-lab doctor`") from error
        if isinstance(found, str):
            raise BadInput(f"device {self.device}: {found}")
        return found

    def stop(self) -> None:
        """End the process: an idle one leaves by itself; else ask, so that it can stop what it runs on the device, then insist."""
        if self._process is None:
            return
        process, self._process = self._process, None
        with contextlib.suppress(OSError):
            self._connection.send(None)
        for patience_s, insist in ((IDLE_PATIENCE_S, process.terminate), (STOP_PATIENCE_S, process.kill)):
            process.join(patience_s)
            if process.is_alive():
                insist()
        process.join()
        self._connection.close()


def _serve(connection: Connection, device: str) -> None:
    """Answer questions until there are no more, or the other end is gone. The device is chosen before anything of CUDA is loaded."""
    os.environ["CUDA_VISIBLE_DEVICES"] = device
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while (asked := connection.recv()) is not None:
            function, values = asked
            connection.send(function(*values))


def _told(identify: Callable[[], Place]) -> Place | str:
    """A process's place, or why there is none."""
    try:
        return identify()
    except (RuntimeError, ValueError) as error:
        return str(error)


def local_devices(chosen: Sequence[str] = ()) -> list[str]:
    """Devices of this machine for a `LocalPool`: those that this process sees, or the chosen ones of them by number.

    Raises:
        BadInput: torch is missing or sees no GPU; a number that is none of theirs.
    """
    if importlib.util.find_spec("torch") is None:
        raise BadInput("a sweep measures with torch, which is missing; `wts-lab doctor` says what else is")
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    devices = [word.strip() for word in visible.split(",")][:count] if visible else [str(number) for number in range(count)]
    numbers = [str(number) for number in range(len(devices))]
    if not devices or any(number not in numbers for number in chosen):
        seen = ", ".join(numbers) or "none; `wts-lab doctor` says why, and a cluster's can be used from here"
        raise BadInput(f"GPUs {', '.join(chosen) or 'of this machine'} were asked for; torch sees {seen}")
    return [devices[int(number)] for number in chosen] if chosen else devices


def open_pool(scheduler: str | None, gpus: Sequence[str] = ()) -> LocalPool | ClusterPool:
    """The workers of a cluster where a scheduler's address is given, else one for each GPU of this machine, or for the chosen ones.

    Raises:
        BadInput: both were given; as `ClusterPool`, `local_devices`.
    """
    if scheduler is not None and gpus:
        raise BadInput(f"GPUs {', '.join(gpus)} of this machine and the workers of {scheduler} were asked for; a sweep runs on one or the other")
    return LocalPool(local_devices(gpus)) if scheduler is None else ClusterPool(scheduler)


class ClusterPool:
    """The workers of a Dask cluster; a context, at whose end it is left.

    Args:
        address: of the scheduler, such as ``tcp://10.0.0.1:8786``.

    Raises:
        BadInput: Dask is missing; nobody answers; no worker, or one that would run two tasks at once.
    """

    shares_files = False

    def __init__(self, address: str) -> None:
        if importlib.util.find_spec("distributed") is None:
            raise BadInput("a cluster needs Dask; pip install 'weights-that-stay[cluster]'")
        from distributed import Client

        try:
            self._client = Client(address, timeout=CONNECT_PATIENCE_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise BadInput(f"no Dask scheduler answers at {address}: {error}") from error
        busy = {worker: threads for worker, threads in self._client.nthreads().items() if threads != 1}
        start = f"start one a GPU: CUDA_VISIBLE_DEVICES=0 dask worker {address} --nworkers 1 --nthreads 1"
        if busy or not self._client.nthreads():
            self._client.close()
            told = ", ".join(f"{worker} runs {threads} tasks at once" for worker, threads in busy.items())
            raise BadInput(f"{told or f'the scheduler at {address} has no worker'}; {start}")

    def __enter__(self) -> ClusterPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def places(self, identify: Callable[[], Place]) -> list[Place]:
        """As `sweep.Pool`."""
        try:
            return list(self._client.run(identify).values())
        except RuntimeError as error:
            raise BadInput(f"a worker of the cluster cannot measure: {error}") from error

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """As `sweep.Pool`. The scheduler gives the task of a worker that died to another."""
        from distributed import as_completed
        from distributed.scheduler import KilledWorker

        numbers = {self._client.submit(_outcome, task, pure=False): task.number for task in tasks}
        try:
            for future in as_completed(list(numbers), loop=self._client.loop):
                error = future.exception()
                if error is None:
                    yield future.result()
                elif isinstance(error, KilledWorker):
                    yield Outcome(numbers[future], problem=f"every worker that took it died ({error.last_worker.address} last)")
                else:
                    yield Outcome(numbers[future], problem=f"{type(error).__name__}: {error}")
                future.release()
        finally:
            self._client.cancel(list(numbers))
