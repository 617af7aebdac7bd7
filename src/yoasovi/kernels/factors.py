"""Looks through products of laws, discrete ones included: the draw itself is part of the program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.families.charts import Chart, chart, num_labels
from yoasovi.gradients import Problem
from yoasovi.kernels.looks import BLOCK, JaxKernels, Pairs
from yoasovi.kernels.programs import Clock, precision
from yoasovi.model.density import Density, Inputs, total
from yoasovi.windows.label_surface import LabelSights
from yoasovi.windows.value_regression import Layout, Memory, Sights, pull


class FactorKernels(JaxKernels):
    """Looks at a density through a `Factorised` family; noise is uniform, draws are dicts by site."""

    def __init__(self, density: Density, inputs: Inputs, family: Any, clock: Clock, lanes: int = 1):
        super().__init__(density, inputs, family, clock, lanes)
        self.block = max(1, min(self.block, BLOCK))

    def values(self, params, noise):
        return self._by_draws(self.bind(_values, self.density, self.family), noise, params)

    def pairs(self, new, old, noise, rows=None):
        return Pairs(*self._by_draws(self.bind(_pairs, self.density, self.family), noise, new, old))

    def draws(self, params: Any, noise: np.ndarray) -> Any:
        """Give draws of one lane, by site, (n, ...)."""
        lane = jax.tree.map(lambda x: np.asarray(x)[None], params)
        return jax.tree.map(lambda x: x[0], self._by_draws(self.bind(_draws, self.density, self.family), noise[None], lane))

    def densities(self, params, theta):
        """Give log p and log q at draws of one lane."""
        lane = jax.tree.map(lambda x: x[0], params)
        program = self.bind(_densities, self.density, self.family)
        return self._in_blocks(lambda some: program(lane, some), [self.block], theta)

    def blank_draw(self, lanes):
        sites = (*self.density.sites, *self.density.local_sites)
        return {s.name: np.zeros((lanes, *s.shape), int if s.discrete else float) for s in sites}

    def layout(self) -> Layout:
        """Say what values can be regressed on."""
        with precision():
            there = _chart(self.density, self.family, self.inputs)
            sizes = num_labels(self.density, self.family, self.inputs)
        return Layout(there.normal, there.element, sizes, self.density.num_observations)

    def sights(self, params: Any, noise: np.ndarray, spread: float) -> tuple[Sights, Any]:
        """Look at what values are regressed on, at draws of one lane; also the draws themselves."""
        lane = jax.tree.map(lambda x: np.asarray(x)[None], params)
        program = self.bind(_sights, self.density, self.family, spread)
        seen, tables = self._by_draws(program, noise[None], lane, split=True)
        features, shared, each, theta = jax.tree.map(lambda x: x[0], seen)
        log_probs, wide = jax.tree.map(lambda x: x[0], tables)
        labels = {k: theta[k].astype(int) for k in log_probs}
        return Sights(features, shared, each, labels, log_probs, wide), theta

    def every_label(self, params: Any, noise: np.ndarray) -> tuple[LabelSights, Any]:
        """Look under every label of the one local site, at draws of one lane; also the draws themselves."""
        lane = jax.tree.map(lambda x: np.asarray(x)[None], params)
        program = self.bind(_every_label, self.density, self.family)
        seen, log_probs = self._by_draws(program, noise[None], lane, split=True)
        features, shared, each, theta = jax.tree.map(lambda x: x[0], seen)
        return LabelSights(features, shared, each, log_probs[0]), theta

    def place(self, params: Any, shift, stretch, limit: float, log_probs, reach: float, length: float) -> Any:
        """Move one lane's parameters along the features, and its labels a share of the way to these probabilities."""
        program = self.bind(_placed, self.density, self.family)
        return jax.tree.map(np.asarray, program(params, shift, stretch, limit, log_probs, reach, length))

    def depart(self, params: Any, shift, stretch, limit: float, memory: Memory, reach: float, length: float) -> Any:
        """Move one lane's parameters along the features and along what the tables of labels say."""
        program = self.bind(_departed, self.density, self.family)
        return jax.tree.map(np.asarray, program(params, shift, stretch, limit, memory.tables, reach, length))

    def constrain(self, theta, deterministics=None):
        """Give draws by site, with the model's deterministic quantities."""
        if deterministics is None:
            return theta
        return self._in_blocks(self.bind(_with_more, deterministics), [self.block], theta)

    def _by_draws(self, program: Any, noise: np.ndarray, *params: Any, split: bool = False) -> Any:
        """Run a program on blocks of draws of all lanes; lanes are padded to a power of two, so that some may drop out."""
        lanes, n = noise.shape[:2]
        more = (1 << (lanes - 1).bit_length()) - lanes
        padded = lambda x: np.concatenate([x, np.repeat(x[-1:], more, 0)]) if more else x
        params = jax.tree.map(lambda x: padded(np.asarray(x)), params)
        found, once = [], None
        for start in range(0, n, self.block):
            part = padded(noise[:, start : start + self.block])
            short = self.block - part.shape[1]
            part = np.concatenate([part, np.repeat(part[:, -1:], short, 1)], 1) if short else part
            answer = program(*params, part)
            answer, once = answer if split else (answer, None)
            found.append((answer, self.block - short))
        join = lambda *x: np.concatenate([np.asarray(a)[:lanes, :m] for a, (_, m) in zip(x, found, strict=True)], 1)
        joined = jax.tree.map(join, *[a for a, _ in found])
        wide = lambda x: np.asarray(x).astype(float) if np.asarray(x).dtype.kind == "f" else np.asarray(x)
        joined = jax.tree.map(wide, joined)
        return (joined, jax.tree.map(wide, once)) if split else joined


def _chart(density: Density, family: Any, inputs: Inputs) -> Chart:
    there = chart(density, family, inputs)
    if there is None:
        raise ValueError(f"`ValueLine` cannot fit the family {family}; use method 'bbvi-rb'.")
    return there


# ---- programs ----------------------------------------------------------------------------------------------


def _values(density, family, inputs, params, noise):
    problem = Problem(density, family, inputs)
    return jax.vmap(problem.elbo)(params, noise)


def _pairs(density, family, inputs, new, old, noise):
    problem = Problem(density, family, inputs)

    def lane(new, old, noise):
        draws = [problem.draws(q, noise) for q in (new, old)]
        # log p stands in the program once, for both sides.
        terms = problem.terms(jax.tree.map(lambda a, b: jnp.concatenate([a, b]), *draws))
        log_q = [problem.log_q(q, x) for q, x in zip((new, old), draws, strict=True)]
        n = len(noise)
        change = jax.vmap(total)(jax.tree.map(lambda t: t[:n] - t[n:], terms))
        value = jax.vmap(total)(terms)
        return change - (log_q[0] - log_q[1]), value[:n] - log_q[0], value[n:] - log_q[1]

    return jax.vmap(lane)(new, old, noise)


def _draws(density, family, inputs, params, noise):
    return jax.vmap(lambda p, u: family.draw(density, p, u))(params, noise)


def _sights(density, family, spread, inputs, params, noise):
    problem, there = Problem(density, family, inputs), _chart(density, family, inputs)
    mixed = lambda x: jnp.logaddexp(np.log1p(-spread) + x, np.log(max(spread, 1e-300) / x.shape[-1]))

    def lane(params, noise):
        log_probs = there.log_probs(params)
        wide = there.with_log_probs(params, {k: mixed(x) for k, x in log_probs.items()})
        theta = problem.draws(wide, noise)
        terms, pieces = problem.terms(theta), problem.pieces(params, theta)
        rest = {k: v for k, v in pieces.items() if k not in log_probs}
        shared = jax.vmap(total)(terms.prior) - jax.vmap(total)(rest) if rest else jax.vmap(total)(terms.prior)
        each = terms.likelihood + sum(terms.local.values())
        if not log_probs:
            shared, each = shared + jnp.sum(each, -1), each[:, :0]
        features = jax.vmap(lambda x: there.features(params, x))(theta)
        return (features, shared, each, theta), (log_probs, there.log_probs(wide))

    return jax.vmap(lane)(params, noise)


def _every_label(density, family, inputs, params, noise):
    problem, there = Problem(density, family, inputs), _chart(density, family, inputs)

    def lane(params, noise):
        theta = problem.draws(params, noise)
        ((site, log_probs),) = there.log_probs(params).items()
        labelled = lambda k: problem.terms({**theta, site: jnp.full_like(theta[site], k)})
        terms = jax.vmap(labelled)(jnp.arange(log_probs.shape[-1]))
        pieces = problem.pieces(params, theta)
        rest = {k: v for k, v in pieces.items() if k != site}
        shared = jax.vmap(total)(jax.tree.map(lambda x: x[0], terms.prior)) - jax.vmap(total)(rest)
        each = jnp.moveaxis(terms.likelihood + sum(terms.local.values()), 0, -1)
        features = jax.vmap(lambda x: there.features(params, x))(theta)
        return (features, shared, each, theta), log_probs

    return jax.vmap(lane)(params, noise)


def _placed(density, family, inputs, params, shift, stretch, limit, log_probs, reach, length):
    there = _chart(density, family, inputs)
    ((site, now),) = there.log_probs(params).items()
    weight, towards = jnp.exp(now), log_probs - now
    towards = jnp.clip(towards - jnp.sum(weight * towards, -1, keepdims=True), -reach, reach)
    labels = {site: jax.nn.log_softmax(now + length * towards, -1)}
    return there.with_log_probs(there.move(params, shift, stretch, limit), labels)


def _departed(density, family, inputs, params, shift, stretch, limit, tables, reach, length):
    there = _chart(density, family, inputs)
    moved = there.move(params, shift, stretch, limit)
    logits = {}
    for k, x in there.log_probs(params).items():
        towards = jnp.clip(pull(tables[k], x), -reach, reach)
        logits[k] = jax.nn.log_softmax(x + length * towards, -1)
    return there.with_log_probs(moved, logits)


def _densities(density, family, inputs, params, theta):
    problem = Problem(density, family, inputs)
    return jax.vmap(total)(problem.terms(theta)), problem.log_q(params, theta)


def _with_more(deterministics, inputs, theta):
    return jax.vmap(lambda p: {**p, **deterministics(p, inputs.data)})(theta)
