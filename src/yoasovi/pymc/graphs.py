"""PyTensor graphs: as JAX functions, and evaluated by the NumPy code of their operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.scipy.special
import numpy as np

from yoasovi.extras import need
from yoasovi.kernels.programs import precision

_DATA_FROM = 16  # constants of at least so many numbers are data of the compiled program, not part of it


def import_backend() -> None:
    """Import PyTensor's JAX backend without what comes with it: 64 bits for the whole process.

    Whoever wants to use PyMC's own JAX samplers after this sets `jax_enable_x64`, or imports `pymc.sampling.jax` before.
    """
    wide = jax.config.read("jax_enable_x64")
    try:
        need("pytensor.link.jax.dispatch", "pymc")
    finally:
        jax.config.update("jax_enable_x64", wide)


def on_host(outputs: Iterable[Any], given: Mapping[Any, np.ndarray]) -> list[np.ndarray]:
    """Evaluate a graph by the NumPy code of its operations: nothing is written anew, nothing is compiled.

    Operations that have none, or that would compile a graph of their own, raise.
    """
    from pytensor.graph.traversal import toposort

    outputs, known = list(outputs), dict(given)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for node in toposort(outputs, known):
            inputs = [_value(x, known) for x in node.inputs]
            known.update(zip(node.outputs, _performed(node, inputs), strict=True))
        return [np.asarray(_value(x, known)) for x in outputs]


def _value(variable: Any, known: Mapping[Any, Any]) -> Any:
    if variable in known:
        return known[variable]
    return variable.get_value(borrow=True) if hasattr(variable, "get_value") else variable.data


def _performed(node: Any, inputs: list[Any]) -> list[Any]:
    from pytensor.compile.builders import OpFromGraph
    from pytensor.ifelse import IfElse
    from pytensor.scan.op import Scan

    if isinstance(node.op, (Scan, IfElse)):
        raise NotImplementedError(f"{node.op} has no plain NumPy code.")
    if isinstance(node.op, OpFromGraph):
        inner = node.op.fgraph
        return on_host(inner.outputs, dict(zip(inner.inputs, inputs, strict=True)))
    cells: list[list[Any]] = [[None] for _ in node.outputs]
    node.op.prepare_node(node, None, None, "py")
    node.op.perform(node, inputs, cells)
    return [x for (x,) in cells]


def rewritten(inputs: list[Any], outputs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Write a graph anew as PyTensor does for JAX, what is shared taken as constant; give its inputs and outputs.

    Operations are not fused: XLA does that, JAX traces fused ones slowly, and NumPy takes them number by number.
    """
    from pytensor.compile import SharedVariable
    from pytensor.compile.mode import JAX
    from pytensor.graph import FunctionGraph
    from pytensor.graph.replace import clone_replace
    from pytensor.graph.traversal import graph_inputs
    from pytensor.tensor import constant

    shared = [x for x in graph_inputs(outputs) if isinstance(x, SharedVariable)]
    if shared:
        outputs = clone_replace(outputs, [(x, constant(x.get_value(borrow=True))) for x in shared])
    graph = FunctionGraph(inputs, outputs, clone=True)
    JAX.excluding("fusion").optimizer.rewrite(graph)
    return graph.inputs, graph.outputs


def to_jax(inputs: list[Any], outputs: list[Any]) -> Callable:
    """Give a rewritten graph as a JAX function; its checks of parameters are left out, since JAX cannot raise."""
    from pytensor.graph import FunctionGraph
    from pytensor.link.utils import fgraph_to_python
    from pytensor.raise_op import CheckAndRaise

    if not outputs:
        return lambda *_: []
    graph = FunctionGraph(inputs, outputs, clone=True)
    checks = [node for node in graph.toposort() if isinstance(node.op, CheckAndRaise)]
    graph.replace_all([(node.outputs[0], node.inputs[0]) for node in checks], import_missing=True)
    # It may be made while a program that uses it is traced: its constants must be no part of that trace.
    with warnings.catch_warnings(), jax.ensure_compile_time_eval(), precision():
        warnings.simplefilter("ignore", UserWarning)  # of checks inside loops
        return fgraph_to_python(graph, _operation, type_conversion_fn=_constant, fgraph_name="pytensor_graph")


def _operation(op: Any, **options: Any) -> Callable:
    """Give an operation to JAX as PyTensor does; of its own what PyTensor would take from TensorFlow Probability.

    The scaled error function is in the tails of normal laws: without it none could be censored or truncated.
    """
    from pytensor.link.jax.dispatch import jax_funcify
    from pytensor.scalar.math import Erfcx

    if isinstance(getattr(op, "scalar_op", None), Erfcx) and hasattr(jax.scipy.special, "erfcx"):
        return jax.scipy.special.erfcx
    return jax_funcify(op, **options)


def _constant(data: Any, **options: Any) -> Any:
    """Give a constant to JAX as PyTensor does, but without `jnp.array`, which compiles a program for every shape."""
    from pytensor.link.jax.dispatch import jax_typify

    plain = isinstance(data, np.ndarray) and data.ndim > 0 and data.dtype.kind in "biuf"
    return jax.device_put(data) if plain else jax_typify(data, **options)


def constants(outputs: list[Any]) -> dict[str, tuple[Any, np.ndarray]]:
    """Find the larger constants of a graph, `pm.Data` among them."""
    from pytensor.compile import SharedVariable
    from pytensor.graph import Constant
    from pytensor.graph.traversal import graph_inputs
    from pytensor.tensor.random.type import RandomType

    found: dict[str, tuple[Any, np.ndarray]] = {}
    for variable in dict.fromkeys(graph_inputs(outputs)):
        if isinstance(getattr(variable, "type", None), RandomType):
            raise ValueError(
                "The PyMC model draws random numbers inside its log density (`pm.Minibatch`, or a variable that is not "
                "in the model); give it all the data."
            )
        if isinstance(variable, (SharedVariable, Constant)):
            if getattr(variable, "default_update", None) is not None:
                raise ValueError(f"The PyMC model holds {variable}, which changes by itself at every evaluation.")
            value = variable.get_value() if isinstance(variable, SharedVariable) else variable.data
            number = isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size >= _DATA_FROM
            if number and np.isfinite(value).all():  # `Model` takes no missing values
                name = variable.name or "constant"
                name = name if name not in found else f"{name}_{len(found)}"
                found[name] = variable, value
    return found
