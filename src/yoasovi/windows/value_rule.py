"""The default method where there are no gradients: one value of log p per iteration, a regression per window.

q stands still during a window. Its values f = log p - log q are regressed on the features of the family's chart, which
have mean zero under q: the intercept is the ELBO of q, with its standard error, and the coefficients are its natural
gradient. A window is drawn after its q was chosen, so the intercept is a fresh estimate, and judges that q against the
incumbent's; the incumbent's coefficients say where the next window stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.acceptance import INCUMBENT, VALUES, Plan, Verdict
from yoasovi.errors import check, positive_integer, positive_number
from yoasovi.families.charts import Chart, chart, num_labels
from yoasovi.gradients import Problem, look, total
from yoasovi.windows.value_regression import BLIND, Line, fit_line, newton, promise

# ---- the gradient part -------------------------------------------------------------------------------------


class Sight(NamedTuple):
    """What one draw shows."""

    features: jax.Array  # (P,)
    shared: jax.Array  # the part of log p - log q that belongs to no single observation
    each: jax.Array  # (N,) log p of each observation and its latents; empty where there are no local sites
    labels: dict[str, jax.Array]  # (N,) per local site
    ratios: dict[str, jax.Array]  # (N,) probability under q over that of the law drawn from
    log_probs: dict[str, jax.Array]  # (N, K) of q


@dataclass(frozen=True)
class Values:
    """One value of log p, and what it is to be regressed on.

    Local latents are drawn from (1 - spread) q + spread / K, so that every label is seen now and then, and are put
    right by one ratio per observation, at most 1 / (1 - spread).
    """

    spread: float = 0.1
    reparameterised: ClassVar[bool] = False

    def __post_init__(self):
        check(0 <= self.spread < 1, "spread", "Values", "in [0, 1)", self.spread)

    def init(self, problem, params):
        return ()

    def evaluate(self, problem, params, uniform):
        if len(uniform) != 1:
            raise ValueError(f"`Values` takes one draw per iteration, MonteCarlo(1); got {len(uniform)}.")
        seen = look(problem, params, uniform, self._drawn_from(_chart(problem), params))
        return seen._replace(ratio=jnp.ones_like(seen.elbo))  # ratios enter observation by observation

    def direction(self, problem, params, memory, uniform, seen):
        there = _chart(problem)
        terms, theta, pieces = jax.tree.map(lambda x: x[0], (seen.terms, seen.theta, seen.pieces))
        log_probs, labels = there.log_probs(params), {k: theta[k] for k in there.labels}
        wide = there.log_probs(self._drawn_from(there, params))
        ratios = {k: jnp.exp(_pick(log_probs[k], z) - _pick(wide[k], z)) for k, z in labels.items()}
        shared = total(terms.prior) - total({k: v for k, v in pieces.items() if k not in labels})
        each = terms.likelihood + sum(terms.local.values())
        if not labels:
            shared, each = shared + jnp.sum(each), jnp.zeros(0)
        return Sight(there.features(params, theta), shared, each, labels, ratios, log_probs), memory

    def _drawn_from(self, there: Chart, params):
        mixed = lambda x: jnp.logaddexp(np.log1p(-self.spread) + x, np.log(max(self.spread, 1e-300) / x.shape[-1]))
        return there.with_log_probs(params, {k: mixed(x) for k, x in there.log_probs(params).items()})


# ---- the optimiser part ------------------------------------------------------------------------------------


class Table(NamedTuple):
    """What each label of a local site was worth, E[log p of its observation | label], and how often it was seen; (N, K)."""

    worth: jax.Array
    seen: jax.Array


class Memory(NamedTuple):
    """What is known of the incumbent."""

    line: Line
    tables: dict[str, Table]


class Record(NamedTuple):
    """The window so far."""

    features: jax.Array  # (capacity, P)
    values: jax.Array  # (capacity,)
    sums: dict[str, jax.Array]  # (N, K)
    counts: dict[str, jax.Array]


class Forecast(NamedTuple):
    """What a window says of the q it was drawn from."""

    elbo: jax.Array
    se: jax.Array
    promise: jax.Array  # gain of a full step, global sites (nats)
    local_promise: jax.Array  # and local sites
    lost: jax.Array
    draws: jax.Array


@dataclass(frozen=True)
class ValueLine:
    """Regress a window's values and go where the coefficients say; see `fit_line` and `depart`.

    `recall` is how many earlier sightings of a label the table remembers when a window adds to it.
    """

    recall: float = 2.0
    reach: float = 2.0  # most that a logit moves in a step of full length

    def __post_init__(self):
        positive_number("recall", "ValueLine", self.recall)
        positive_number("reach", "ValueLine", self.reach)

    def init(self, problem, params):
        there = _chart(problem)
        none, empty = jnp.zeros(there.normal.size), jax.tree.map(jnp.zeros_like, there.log_probs(params))
        return Memory(Line(none, none, none, none, jnp.asarray(0.0)), {k: Table(x, x) for k, x in empty.items()})

    def step(self, problem, params, memory, direction, plan):
        return params, memory

    def blank(self, problem, acceptance):
        capacity, width = acceptance.capacity(problem), _chart(problem).normal.size
        sizes = num_labels(problem.density, problem.family, problem.inputs)
        empty = {k: jnp.zeros((problem.density.num_observations, size)) for k, size in sizes.items()}
        return Record(jnp.zeros((capacity, width)), jnp.zeros(capacity), empty, empty)

    def record(self, record, memory, direction, i):
        value, each = direction.shared, direction.each
        if direction.labels:
            # What earlier windows know of each label is a control variate: its mean under q is exact.
            excess, expected, ratio = each, 0.0, 1.0
            for n, (k, z) in enumerate(direction.labels.items()):
                known = _known(memory.tables[k], direction.log_probs[k], centred=n > 0)
                excess = excess - _pick(direction.log_probs[k] + known, z)
                expected = expected + jnp.sum(jnp.exp(direction.log_probs[k]) * known)
                ratio = ratio * direction.ratios[k]
            value = value + jnp.sum(ratio * excess) + expected
        hot = {k: jax.nn.one_hot(z, record.sums[k].shape[-1], dtype=each.dtype) for k, z in direction.labels.items()}
        put = lambda store, row: store.at[i].set(row, mode="drop")
        sums = {k: record.sums[k] + h * each[:, None] for k, h in hot.items()}
        counts = {k: record.counts[k] + h for k, h in hot.items()}
        return Record(put(record.features, direction.features), put(record.values, value), sums, counts)

    def propose(self, problem, start, trip, plan):
        """Give where the window stood, with what it tells of that place."""
        there, record = _chart(problem), trip.record
        line, elbo, se = fit_line(there, record.features, record.values, plan.size)
        tables = {k: self._absorbed(old, record.sums[k], record.counts[k]) for k, old in trip.memory.tables.items()}
        local = sum((_local_promise(tables[k], x) for k, x in there.log_probs(start).items()), jnp.asarray(0.0))
        forecast = Forecast(elbo, se, promise(line), local, line.lost, plan.size)
        return start, Memory(line, tables), forecast

    def _absorbed(self, old: Table, sums, counts) -> Table:
        before = jnp.minimum(old.seen, self.recall)
        count = before + counts
        finite = jnp.isfinite(sums)
        worth = (old.worth * before + jnp.where(finite, sums, 0.0)) / jnp.maximum(count, 1e-30)
        return Table(jnp.where(finite, worth, old.worth), jnp.where(finite, count, old.seen))

    def depart(self, problem, params, memory, control):
        """Stand where the incumbent's line and tables point."""
        there = _chart(problem)
        shift, stretch = newton(there, memory.line, control.length, control.trust)
        limit = self.reach * control.length
        moved = there.move(params, shift, stretch, limit)
        logits = {}
        for k, x in there.log_probs(params).items():
            pull = jnp.clip(_pull(memory.tables[k], x), -self.reach, self.reach)
            logits[k] = jax.nn.log_softmax(x + control.length * pull, -1)
        moved = there.with_log_probs(moved, logits)
        return jax.tree.map(lambda new, old: jnp.where(control.again, old, new), moved, params)

    def restart(self, memory):
        return memory


def _known(table: Table, log_probs, centred: bool):
    """Give what is known of log p - log q of each label; a label never seen is worth the mean of the others."""
    seen = table.seen > 0
    weight = jnp.where(seen, jnp.exp(log_probs), 0.0)
    mean = jnp.sum(weight * table.worth, -1, keepdims=True) / jnp.maximum(jnp.sum(weight, -1, keepdims=True), 1e-300)
    return jnp.where(seen, table.worth, mean) - (mean if centred else 0.0) - log_probs


def _pull(table: Table, log_probs):
    """Give the natural gradient of the logits: worth - log q, centred; zero for labels never seen."""
    seen = table.seen > 0
    weight = jnp.where(seen, jnp.exp(log_probs), 0.0)
    pull = table.worth - log_probs
    mean = jnp.sum(weight * pull, -1, keepdims=True) / jnp.maximum(jnp.sum(weight, -1, keepdims=True), 1e-300)
    return jnp.where(seen, pull - mean, 0.0)


def _local_promise(table: Table, log_probs):
    """Give KL(q || softmax of the table), summed over observations whose labels were all seen."""
    gap = jnp.sum(jnp.exp(log_probs) * (log_probs - jax.nn.log_softmax(table.worth, -1)), -1)
    return jnp.sum(jnp.where((table.seen > 0).all(-1), gap, 0.0))


def _pick(rows, z):
    return jnp.take_along_axis(rows, z[:, None].astype(int), -1)[:, 0]


def _chart(problem: Problem) -> Chart:
    there = chart(problem.density, problem.family, problem.inputs)
    if there is None:
        raise ValueError(f"`ValueLine` cannot fit the family {problem.family}; use method 'bbvi-rb'.")
    return there


# ---- the acceptance part -----------------------------------------------------------------------------------


class ValueControl(NamedTuple):
    """What the rule adapts from window to window."""

    size: jax.Array  # iterations in the next window
    length: jax.Array  # share of the full step
    trust: jax.Array  # by how much a step may change a variance
    refusals: jax.Array  # in a row
    again: jax.Array  # is the next window to stand at the incumbent once more?
    se: jax.Array  # of the yardstick
    lost: jax.Array  # share of the incumbent's draws that were not finite


@dataclass(frozen=True)
class ValueWindow:
    """Judge the place where a window stood by the intercept of its values against the incumbent's.

    Parameters
    ----------
    tolerance, local_tolerance
        A flat window is a miss only if a full step promises less than this many nats.
    sure
        Standard errors beyond which a gain is believed.
    flat
        Gains below this many nats, beyond doubt, are flat.
    step
        Share of the full step to begin with.
    longest
        Most iterations in a window (more if the family has so many parameters).
    """

    tolerance: float = 0.05
    local_tolerance: float = 0.5
    sure: float = 2.0
    flat: float = 0.5
    step: float = 0.3
    longest: int = 2048
    restores_optimizer: ClassVar[bool] = True

    def __post_init__(self):
        for name in ("tolerance", "local_tolerance", "sure", "flat", "step"):
            positive_number(name, "ValueWindow", getattr(self, name))
        positive_integer("longest", "ValueWindow", self.longest)

    def first(self, problem: Problem) -> int:
        """Iterations in the first window: three to a coefficient."""
        normal = _chart(problem).normal
        return max(32, 3 * (1 + normal.size + int(normal.sum())))

    def capacity(self, problem: Problem) -> int:
        """Most draws a line is fitted to."""
        return max(self.longest, self.first(problem))

    def init(self, problem, trust):
        number = lambda x: jnp.asarray(x, float)
        size, none = jnp.asarray(self.first(problem)), jnp.asarray(0)
        return ValueControl(size, number(self.step), number(4.0), none, jnp.asarray(False), number(0.0), number(0.0))

    def plan(self, control):
        return Plan(control.size, control.length, VALUES, control.trust, 1.0)

    def weigh(self, seen, yardstick):
        return seen

    def screen(self, key, control, elbo, yardstick, t):
        return True

    def judge(self, key, control, problem, journey, yardstick, t):
        seen = journey.forecast
        first = ~jnp.isfinite(yardstick) | (control.lost > BLIND)  # nothing to compare with
        again = control.again
        gain, se = seen.elbo - yardstick, jnp.hypot(seen.se, control.se)
        lost = seen.lost > control.lost + 0.05  # a window that falls off the support more often is no better
        worse = ~(gain >= -self.sure * se) | lost | ~journey.finite
        better = ~worse & (gain > self.sure * se) & (gain > 0.02)
        flat = ~worse & ~better & (jnp.abs(gain) + self.sure * se < self.flat)
        # A window cut short by `max_steps` may win, but no doubt is read in its favour.
        cut = seen.draws < control.size
        enough = ~cut | (better & (seen.draws >= self.first(problem)))
        accept = first | (enough & (again | ~worse))
        settled = first | again | cut
        promised = (seen.promise > self.tolerance) | (seen.local_promise > self.local_tolerance)
        adapted = self._adapted(problem, control, better, worse, flat, promised)
        rest = control._replace(again=jnp.asarray(False))
        control = jax.tree.map(lambda a, b: jnp.where(settled, a, b), rest, adapted)
        se_kept, lost_kept = jnp.where(accept, seen.se, control.se), jnp.where(accept, seen.lost, control.lost)
        control = control._replace(se=se_kept, lost=lost_kept)
        return Verdict(
            accept=accept, rollback=~accept, resume=jnp.asarray(INCUMBENT), missed=flat & ~promised & ~settled,
            progressed=better & ~settled, settled=jnp.asarray(False), stuck=jnp.asarray(False),
            yardstick=jnp.where(accept, seen.elbo, yardstick), elbo=seen.elbo, gain=gain, gain_se=se,
            strictness=jnp.asarray(jnp.inf, float), values=jnp.asarray(0), nonfinite=jnp.asarray(0), control=control,
        )  # fmt: skip

    def _adapted(self, problem: Problem, control: ValueControl, better, worse, flat, promised) -> ValueControl:
        """Longer steps after a clear gain, shorter after a loss; longer windows when in doubt."""
        refusals = jnp.where(worse, control.refusals + 1, 0)
        again = refusals >= 2  # twice refused: the yardstick may have been a lucky window, so draw it again, longer
        length = control.length
        length = jnp.select(
            [again, worse, better, flat & promised, flat],
            [
                jnp.maximum(0.5 * length, 0.1), jnp.maximum(0.5 * length, 0.02), jnp.minimum(1.25 * length, 1.0),
                jnp.minimum(1.5 * length, 1.0), length,
            ],
            jnp.maximum(0.9 * length, 0.05),
        )  # fmt: skip
        trust = jnp.where(better, jnp.minimum(2.0 * control.trust, 1e4), control.trust)
        trust = jnp.where(worse, jnp.maximum(2.0, jnp.sqrt(trust)), trust)
        grow = again | ~(worse | better)
        size = jnp.where(grow, jnp.minimum(1.5 * control.size, self.capacity(problem)).astype(int), control.size)
        return control._replace(size=size, length=length, trust=trust, refusals=jnp.where(again, 0, refusals), again=again)
