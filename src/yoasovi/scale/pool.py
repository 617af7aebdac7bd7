"""Calls run elsewhere: in this process, in others on this machine, or on a Dask cluster; one that fails stops no other."""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

from yoasovi.errors import positive_integer
from yoasovi.extras import need

_PATIENCE = "10s"  # for a scheduler that was given by its address


class Failure(NamedTuple):
    """What became of a call that raised, or whose process died."""

    error: str  # its class and message, one line
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe what was raised."""
        text = " ".join(str(error).split())
        return cls(f"{type(error).__name__}: {text}", "".join(traceback.format_exception(error)))


def each(
    fn: Callable[[Any], Any], items: Sequence[Any], workers: int = 1, client: Any = None, owner: str = "sweep"
) -> Iterator[tuple[int, Any]]:
    """Call `fn` with each item; give the place of an item and its result, or a `Failure`, as they end.

    With a `client`, a `distributed.Client` or the address of a scheduler, calls run there; else in `workers` processes of
    this machine, or right here if that is one. `owner` is whose argument `workers` or `client` is, in what is said of it.
    """
    positive_integer("workers", owner, workers)
    if client is not None:
        yield from _on_cluster(fn, items, client, owner)
    elif workers == 1 or len(items) < 2:
        yield from ((i, _call(fn, item)) for i, item in enumerate(items))
    else:
        yield from _in_processes(_Elsewhere.of(fn), items, workers)


def _call(fn: Callable[[Any], Any], item: Any) -> Any:
    try:
        return fn(item)
    except Exception as error:
        return Failure.of(error)


class _Elsewhere(NamedTuple):
    """A function in a form that another process can read, also if it was written in a notebook or is a lambda."""

    code: bytes

    @classmethod
    def of(cls, fn: Callable[[Any], Any]) -> _Elsewhere:
        import cloudpickle

        return cls(cloudpickle.dumps(fn))

    def __call__(self, item: bytes) -> Any:
        import cloudpickle

        return _call(lambda code: cloudpickle.loads(self.code)(cloudpickle.loads(code)), item)


def _in_processes(fn: _Elsewhere, items: Sequence[Any], workers: int) -> Iterator[tuple[int, Any]]:
    import cloudpickle

    left = {}
    for i, item in enumerate(items):
        try:
            left[i] = cloudpickle.dumps(item)
        except Exception as error:
            yield i, Failure.of(error)
    try:
        for i, result in _pooled(fn, left, workers):
            del left[i]
            yield i, result
    except BrokenProcessPool:  # one of them killed its process: each of the rest gets its own, so that it is seen which
        for i, item in left.items():
            try:
                yield from _pooled(fn, {i: item}, 1)
            except BrokenProcessPool:
                yield i, Failure("its process died (killed, out of memory, or a crash in compiled code)", "")


def _pooled(fn: _Elsewhere, items: dict[int, bytes], workers: int) -> Iterator[tuple[int, Any]]:
    # JAX must not be forked once its threads run.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(items) or 1), context, initializer=_end_with_parent) as pool:
        call: Callable[[bytes], Any] = fn.__call__
        futures: dict[Any, int] = {pool.submit(call, item): i for i, item in items.items()}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _end_with_parent() -> None:
    """See to it that a worker does not outlive a run that was killed."""

    def watch():
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _on_cluster(fn: Callable[[Any], Any], items: Sequence[Any], client: Any, owner: str) -> Iterator[tuple[int, Any]]:
    with _connected(client, owner) as there:
        from distributed import as_completed as ended

        futures = {there.submit(_call, fn, item, pure=False): i for i, item in enumerate(items)}
        try:
            for future in ended(list(futures)):
                lost = future.status != "finished"  # its worker died, more than once
                yield futures[future], Failure.of(future.exception()) if lost else future.result()
        except BaseException:
            there.cancel(list(futures))
            raise


class _connected:
    """A client as it is; or one made for the address that was given, and closed afterwards."""

    def __init__(self, client: Any, owner: str):
        self.client, self.owner, self.own = client, owner, isinstance(client, str)

    def __enter__(self) -> Any:
        if self.own:
            try:
                self.client = need("distributed", "dask").Client(self.client, timeout=_PATIENCE)
            except (OSError, ValueError) as error:
                raise ValueError(f"`client` of `{self.owner}`: no scheduler answers at {self.client!r} ({error}).") from None
        elif not hasattr(self.client, "submit"):
            raise ValueError(f"`client` of `{self.owner}` must be a distributed.Client or its address; got {self.client!r}.")
        return self.client

    def __exit__(self, *_: object) -> None:
        if self.own:
            self.client.close()
