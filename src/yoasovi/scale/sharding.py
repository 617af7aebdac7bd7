"""One fit over many devices: rows of the data are shared out, parameters are everywhere.

Programs are compiled for all devices of a mesh; what they give is a few reduced numbers, the same on every device and in
every process. Decisions are made from those, so processes decide alike without talking about it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from yoasovi.errors import check, positive_integer
from yoasovi.model import Model

AXIS = "rows"
_HEARTBEAT = 20  # seconds after which a process that says nothing is taken for gone


def as_mesh(given: Any) -> Mesh:
    """Take "all" for all devices of all processes, a list of devices, or a mesh of one axis."""
    if isinstance(given, Mesh):
        check(len(given.axis_names) == 1, "mesh", "fit", "a mesh of one axis, the rows'", given)
        return given
    if isinstance(given, str):
        check(given == "all", "mesh", "fit", '"all", a list of devices or a jax.sharding.Mesh', given)
        given = jax.devices()
    usable = isinstance(given, (list, tuple, np.ndarray)) and all(isinstance(x, jax.Device) for x in np.ravel(given))
    check(usable and len(given) > 0, "mesh", "fit", '"all", a list of devices or a jax.sharding.Mesh', given)
    return Mesh(np.ravel(given), (AXIS,))


def over(model: Model, given: Any) -> Model:
    """Give the model with the rows of its data shared out over devices."""
    mesh, rows = as_mesh(given), model.num_observations
    check(not model.on_host, "mesh", "fit", "None for a function that the host calls", given)
    check(model.stream is None, "mesh", "fit", "None for data that are streamed", given)
    check(not model.laws, "mesh", "fit", "None for a model that has a latent variable per observation", given)
    shared = [x for x in jax.tree.leaves(model.data) if np.ndim(x) and np.shape(x)[0] == rows]
    check(bool(shared), "mesh", "fit", "None for a model without arrays of one row per observation", given)
    if rows % mesh.size:
        raise ValueError(
            f"`mesh` of `fit` must divide the rows: {rows:,} rows do not go evenly over {mesh.size} devices; "
            f"leave out {rows % mesh.size}, or use {_largest_divisor(rows, mesh.size)} devices."
        )
    return replace(model, mesh=mesh)


def _largest_divisor(rows: int, most: int) -> int:
    return next(n for n in range(most, 0, -1) if rows % n == 0)


def connect(coordinator: str, num_processes: int, process_id: int, seconds: int = 60) -> None:
    """Join the processes of one fit: each calls this with the same address and its own number, before anything else."""
    positive_integer("num_processes", "connect", num_processes)
    inside = isinstance(process_id, int) and 0 <= process_id < num_processes
    check(inside, "process_id", "connect", f"from 0 to {num_processes - 1}", process_id)
    check(":" in coordinator, "coordinator", "connect", "HOST:PORT", coordinator)
    if process_id:
        _wait_for(coordinator, seconds)
    try:
        jax.distributed.initialize(
            coordinator, num_processes, process_id, initialization_timeout=seconds, heartbeat_timeout_seconds=_HEARTBEAT,
            shutdown_timeout_seconds=_HEARTBEAT,
        )  # fmt: skip
    except Exception as error:  # of the runtime's own classes, with pages of text
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"`coordinator` of `connect`: {num_processes} processes did not meet at {coordinator} within "
                         f"{seconds} s ({reason}).") from None  # fmt: skip


def _wait_for(coordinator: str, seconds: int) -> None:
    """Wait until somebody listens at an address. The runtime itself ends the process where nobody does."""
    import socket
    import time

    host, port = coordinator.rsplit(":", 1)
    check(port.isdigit(), "coordinator", "connect", "HOST:PORT", coordinator)
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=2).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise ValueError(
                    f"`coordinator` of `connect`: nobody answered at {coordinator} within {seconds} s ({error})."
                ) from None
            time.sleep(0.3)
