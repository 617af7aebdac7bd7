"""Groups that are independent given a few globals: the arrow-shaped Gaussian, its lines, and how groups are found."""

import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import yoasovi as yo
from yoasovi.answer import averages, pools, result
from yoasovi.choosing import choose_family
from yoasovi.families.full_rank import FullRankParams
from yoasovi.files import saving
from yoasovi.kernels import kernels_of
from yoasovi.kernels.programs import Clock, as_arrays, precision
from yoasovi.methods import method
from yoasovi.model import Density, Site
from yoasovi.report import posterior
from yoasovi.scale import group_fit, readings
from yoasovi.scale.parts import GroupParts, own_terms

DENSITY = Density(
    lambda p, d: 0.0,
    tuple(Site(k, shape, shape, False) for k, shape in {"a": (2,), "u": (4, 3), "b": (), "v": (2, 4)}.items()),
    (), 1, True,
)  # fmt: skip
FAMILY = yo.Arrow({"u": 0, "v": 1}).complete(DENSITY)  # 3 globals, 4 groups of 5 locals
DIM, WIDE, OWN, GROUPS = 23, 3, 5, 4


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def some_params(rng, lanes=()):
    blank = FAMILY.init(rng.normal(size=(*lanes, DIM)), np.exp(0.2 * rng.normal(size=(*lanes, DIM))), rng)
    noisy = lambda x: x + 0.3 * rng.normal(size=x.shape)
    lower = lambda x: np.tril(noisy(x), -1)
    return blank._replace(corner=lower(blank.corner), coupling=noisy(blank.coupling), blocks=lower(blank.blocks))


def dense(params):
    """Give q's whole factor, its rows and columns as the flat vector has them."""
    return FAMILY.place(params._replace(mean=0.0 * params.mean), np.eye(DIM)).T


def ordered(matrix):
    """Put globals first, then one group after the other."""
    order = FAMILY.split(np.arange(DIM))
    order = np.concatenate([order.hub, order.spokes.T.ravel()])
    return matrix[np.ix_(order, order)]


def test_sites_are_cut_into_globals_and_groups_and_put_together_again():
    flat = np.arange(2.0 * DIM).reshape(2, DIM)
    hub, spokes = FAMILY.split(flat)
    assert hub[0].tolist() == [0.0, 1.0, 14.0] and spokes.shape == (2, OWN, GROUPS)
    assert spokes[0, :, 1].tolist() == [5.0, 6.0, 7.0, 16.0, 20.0]  # u[1], v[:, 1]
    assert (FAMILY.join(hub, spokes) == flat).all()


@pytest.mark.parametrize("space", [np, jnp])
def test_an_arrow_is_the_gaussian_that_it_says(rng, space):
    params = some_params(rng)
    factor = dense(params)
    law = multivariate_normal(params.mean, factor @ factor.T)
    precision = ordered(np.linalg.inv(factor @ factor.T))
    apart = np.kron(1.0 - np.eye(GROUPS), np.ones((OWN, OWN)))
    assert np.abs(precision[WIDE:, WIDE:] * apart).max() < 1e-8  # groups are independent given the globals
    given = params if space is np else type(params)(*map(jnp.asarray, params))
    eps, gradient = space.asarray(rng.normal(size=(6, DIM))), space.asarray(rng.normal(size=(6, DIM)))
    theta, tolerance = FAMILY.place(given, eps), {"rtol": 1e-7} if space is np else {"rtol": 2e-3, "atol": 2e-3}
    np.testing.assert_allclose(theta, params.mean + eps @ factor.T, **tolerance)
    np.testing.assert_allclose(FAMILY.log_q(given, theta), law.logpdf(theta), **tolerance)
    np.testing.assert_allclose(FAMILY.minus_log_q(given, eps), -law.logpdf(theta), **tolerance)
    np.testing.assert_allclose(FAMILY.slope(given, theta), -(theta - params.mean) @ np.linalg.inv(law.cov), **tolerance)
    np.testing.assert_allclose(FAMILY.white(given, eps, gradient), gradient @ factor + eps, **tolerance)
    np.testing.assert_allclose(FAMILY.root(given).place(eps[0]), theta[0], **tolerance)
    np.testing.assert_allclose(FAMILY.frame(params)[1], np.sqrt(np.diag(law.cov)))


def test_a_natural_step_is_that_of_a_full_covariance_where_the_factor_may_have_entries(rng):
    params, eps, white = some_params(rng), rng.normal(size=DIM), rng.normal(size=DIM)
    scaled = lambda step: type(step)(*(1e-3 * x for x in step))
    moved = FAMILY.move(params, scaled(FAMILY.natural(params, eps, white)), 1.0)
    full, order = yo.FullRank(), FAMILY.split(np.arange(DIM))
    order = np.concatenate([order.hub, order.spokes.T.ravel()])
    step = full.natural(None, eps[order], white[order])
    may = np.ones((DIM, DIM))
    may[WIDE:, WIDE:] = np.kron(np.eye(GROUPS), np.ones((OWN, OWN)))
    factor = ordered(dense(params))
    mine = FullRankParams(params.mean[order], np.log(np.diag(factor)), np.tril(factor, -1))
    there = full.move(mine, scaled(step._replace(lower=step.lower * may)), 1.0)
    np.testing.assert_allclose(ordered(dense(moved)), full.factor(there), atol=1e-12)
    np.testing.assert_allclose(moved.mean[order], there.mean)


def test_matched_draws_have_the_second_moments_of_their_law(rng):
    hub, spokes = FAMILY.split(FAMILY.matched(rng.normal(size=(12, DIM))))
    for g in range(GROUPS):
        both = np.concatenate([hub, spokes[..., g]], 1)
        np.testing.assert_allclose(both.T @ both / 12, np.eye(WIDE + OWN), atol=1e-10)


@pytest.mark.parametrize("match", [True, False])
def test_one_line_leads_to_a_gaussian_posterior_whatever_q(rng, match):
    params, target = some_params(rng, (2,)), some_params(rng)
    factor = dense(target)
    half = rng.normal(size=(2, 64, DIM))
    eps = FAMILY.matched(half) if match else half
    eps = np.stack([eps, -eps], 2).reshape(2, 128, DIM)
    gradient = FAMILY.slope(target, FAMILY.place(params, eps))
    one = np.ones(2)
    found = FAMILY.propose(params, eps, FAMILY.white(params, eps, gradient), True, one, 1e8 * one)
    for lane in range(2):
        there = type(target)(*(x[lane] for x in found.params))
        np.testing.assert_allclose(there.mean, target.mean, atol=1e-5)
        np.testing.assert_allclose(dense(there) @ dense(there).T, factor @ factor.T, atol=1e-5)
        here, cov = (dense(type(target)(*(x[lane] for x in params))) for _ in range(2))
        away = params.mean[lane] - target.mean
        inverse = np.linalg.inv(factor @ factor.T)
        kl = 0.5 * (np.trace(inverse @ here @ cov.T) + away @ inverse @ away - DIM)
        kl += target.log_diagonal.sum() - params.log_diagonal[lane].sum()
        assert found.expected[lane] == pytest.approx(kl, rel=1e-4)


# ---- a fit -------------------------------------------------------------------------------------------------


def intercepts(y):
    mean, spread = numpyro.sample("mean", dist.Normal(0.0, 10.0)), numpyro.sample("spread", dist.HalfNormal(5.0))
    noise = numpyro.sample("noise", dist.HalfNormal(5.0))
    level = numpyro.sample("level", dist.Normal(mean, spread).expand([len(y)]))  # no plate: log p says that these are groups
    numpyro.sample("y", dist.Normal(level[:, None], noise), obs=y)


def exact(y):
    """Integrate groups and their mean out, and the two scales on a grid."""
    count, size = y.shape
    means = y.mean(1)
    within, between, middle = ((y - means[:, None]) ** 2).sum(), ((means - means.mean()) ** 2).sum(), means.mean()
    log_spread, log_noise = np.linspace(-1.5, 0.7, 400)[:, None], np.linspace(-0.4, 0.4, 400)
    total = np.exp(2 * log_spread) + np.exp(2 * log_noise) / size
    precision = count / total + 0.01
    mean = count * middle / total / precision
    log_p = -count * (size - 1) * log_noise - 0.5 * within * np.exp(-2 * log_noise)
    log_p = log_p - 0.5 * (count * np.log(total) + (between + count * middle**2) / total + np.log(precision))
    log_p = log_p + 0.5 * mean**2 * precision
    log_p = log_p + log_spread - np.exp(2 * log_spread) / 50 + log_noise - np.exp(2 * log_noise) / 50
    share = np.exp(log_p - logsumexp(log_p))
    moments = lambda first, second: ((share * first).sum(), np.sqrt((share * second).sum() - (share * first).sum() ** 2))
    scale = {"spread": np.exp(log_spread + 0 * log_noise), "noise": np.exp(log_noise + 0 * log_spread)}
    return {"mean": moments(mean, mean**2 + 1 / precision), **{k: moments(x, x**2) for k, x in scale.items()}}


@pytest.fixture(scope="module")
def y():
    r = np.random.default_rng(3)
    return (1.0 + 0.7 * r.normal(size=200))[:, None] + r.normal(size=(200, 5))


@pytest.fixture(scope="module")
def fitted(y):
    return yo.fit(intercepts, y, mend=False)


def test_globals_of_a_hierarchy_have_their_exact_posterior(fitted, y):
    assert fitted.family.name == "arrow" and fitted.family.groups == 200 and fitted.converged
    assert fitted.family_reason == "200 groups (level), independent given 3 other parameters"
    assert fitted.num_gradients < 2000
    mean, sd = fitted.mean(), fitted.sd()
    for name, (right, width) in exact(y).items():
        assert abs(mean[name] - right) < 0.1 * width and 0.93 < sd[name] / width < 1.07, name


def test_an_arrow_is_saved_and_loaded(fitted, y, tmp_path):
    fitted.save(tmp_path)
    there = yo.load(tmp_path, model=fitted.model)
    assert there.family == fitted.family and all((a == b).all() for a, b in zip(there.params, fitted.params, strict=True))
    assert (there.sample(5)["level"] == fitted.sample(5)["level"]).all()


def test_natural_steps_reach_what_lines_do(fitted, y):
    rule = method("yoasovi")
    steps = replace(rule, acceptance=replace(rule.acceptance, lines=False))
    other = yo.fit(fitted.model, method=steps, family=fitted.family)
    assert other.elbo.value == pytest.approx(fitted.elbo.value, abs=0.5)


@pytest.mark.parametrize("steps", [1, 60])
def test_a_run_that_ends_within_a_line_has_an_answer(fitted, steps):
    short = yo.fit(fitted.model, max_steps=steps, mend=False)
    assert short.stop_reason.name == "MAX_STEPS" and np.isfinite(short.elbo.value)


def test_many_groups_are_drawn_in_order_and_tables_keep_the_globals_in_sight(fitted):
    *_, chart = posterior.forest_charts(posterior.draws(fitted, 200))
    assert chart.key == "caterpillar-level" and "All 200 entries" in chart.caption
    assert (np.diff(chart.series[1].y) >= 0).all() and len(chart.series[1].y) == 200
    table = fitted.summary(verdict=False)
    assert "level[19]" in table and "level[20]" not in table and table.endswith("...")


def test_the_correction_of_an_arrow_knows_which_noise_makes_which_parameter(rng):
    params = some_params(rng)
    lane = type(params)(*(x[None] for x in params))
    model = SimpleNamespace(density=DENSITY)
    fit = SimpleNamespace(model=model, family=FAMILY, params=params, lane=lane, _noise_size=DIM)
    factor = dense(params)
    np.testing.assert_allclose(pools._axes(fit), factor / np.linalg.norm(factor, axis=1, keepdims=True))


def test_averages_of_draws_in_pieces_are_those_of_all(fitted, monkeypatch):
    fitted = replace(fitted, log_ratio=np.zeros(10))  # nothing to correct
    right = fitted.family.frame(fitted.params)[1][-200:]
    monkeypatch.setattr(averages, "_NUMBERS", 2**14)
    mean, sd = averages.moments(fitted, 4000, 0)
    assert np.abs((mean["level"] - fitted.params.mean[-200:]) / right).max() < 5 / np.sqrt(4000)
    assert np.abs(sd["level"] / right - 1).max() < 0.06
    shape, draws = averages.columns(fitted, 300, 7)["level"]
    assert shape == (200,) and draws.shape == (300, 7)


# ---- minibatches of groups ---------------------------------------------------------------------------------


def test_minibatches_of_groups_give_the_exact_posterior_and_read_rows_a_few_times(y, monkeypatch):
    monkeypatch.setattr(group_fit, "_START", 60)
    fit = yo.fit(intercepts, y, batch_size=20, mend=False)
    assert fit.converged and fit.family_reason.endswith("; 10 minibatches of groups")
    assert fit.num_steps / 10 < 30  # looks at a row, after the start
    mean, sd = fit.mean(), fit.sd()
    for name, (right, width) in exact(y).items():
        assert abs(mean[name] - right) < 0.1 * width and 0.93 < sd[name] / width < 1.07, name
    # Each group's own is what it is given the globals: a normal mean between the data's and the prior's.
    centre, spread, noise = (mean[k] for k in ("mean", "spread", "noise"))
    weight = spread**2 / (spread**2 + noise**2 / 5)
    np.testing.assert_allclose(fit.params.mean[-200:], centre + weight * (y.mean(1) - centre), atol=0.03)
    assert fit.elbo.value == pytest.approx(fit.reported_elbo, abs=2.0)


RAGGED = np.repeat(np.arange(40), np.random.default_rng(1).integers(1, 6, 40))


def hard_coded(group, z):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 40, subsample_size=8):
        u = numpyro.sample("u", dist.Normal(0.0, spread))
    with numpyro.plate("rows", len(z)):
        numpyro.sample("z", dist.Normal(u[group], 1.0), obs=z)


@pytest.mark.parametrize("door", ["built-in", "numpyro"])
def test_parts_of_groups_of_any_size_sum_to_the_whole(rng, door):
    z = rng.normal(size=len(RAGGED))
    model = yo.models.HierarchicalNormal(z, RAGGED) if door == "built-in" else yo.from_numpyro(hard_coded, RAGGED, z)
    family = yo.Arrow({"offset" if door == "built-in" else "u": 0}).complete(model.density)
    parts = GroupParts(model, family, 10)
    assert parts.check() == "" and parts.count == 4 and sorted(np.concatenate(parts.places)) == list(range(40))
    with precision():
        hub, spokes = map(jnp.asarray, family.split(rng.normal(size=model.density.dim)))
        whole = float(own_terms(model.density, family, as_arrays(model.inputs), hub, spokes))
        each = [parts.part(i) for i in range(4)]
        found = [
            float(
                own_terms(parts.density_of(10), parts.family_of(10), as_arrays(p.inputs), hub, spokes[:, p.groups], p.rows)
            )
            for p in each
        ]
    assert len({jax.tree.leaves(p.inputs.data)[0].shape for p in each}) == 1  # one program does for all
    assert sum(found) == pytest.approx(whole, rel=1e-9)


def test_integrals_over_locals_go_beyond_the_gaussian(rng):
    seen = rng.integers(0, 2, size=(3, 50))
    groups = lambda u: jnp.sum(seen * u - jnp.logaddexp(0.0, u)) - 0.5 * jnp.sum(u**2) / 4.0
    with precision():
        top, root = readings._climbed(lambda x: groups(x[0]), jnp.zeros((1, 50)))
        laplace = groups(top[0]) - jnp.sum(jnp.log(root[0][0])) + 25 * jnp.log(2 * jnp.pi)
        better = laplace + readings._beyond(lambda x: groups(x[0]), top, root)
    grid = np.linspace(-15, 15, 4001)
    heights = (seen[..., None] * grid - np.logaddexp(0.0, grid)).sum(0) - grid**2 / 8
    right = (logsumexp(heights, axis=-1) + np.log(grid[1] - grid[0])).sum()
    assert abs(laplace - right) > 0.5 and abs(better - right) < 0.05 * abs(laplace - right)


def test_what_cannot_be_cut_into_groups_is_refused(y, fitted):
    def fixed(y):
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        level = numpyro.sample("level", dist.Normal(0.0, spread).expand([200]))
        numpyro.sample("y", dist.Normal(level[:, None], 1.0), obs=y)

    with pytest.raises(
        ValueError, match="`batch_size` of `fit` must be None for this model: its groups cannot be looked at"
    ):
        yo.fit(fixed, y, batch_size=20)
    for given, said in (
        ({"batch_size": 201}, "at most the number of rows of the data, 200; got 201"),
        ({"batch_size": 20, "restarts": 2}, "`restarts` of `fit` must be 1 for minibatches of groups; got 2"),
        ({"batch_size": 0}, "`batch_size` of `fit` must be a positive integer"),
    ):
        with pytest.raises(ValueError, match=said):
            yo.fit(fitted.model, **given)


# ---- finding groups ----------------------------------------------------------------------------------------


def chosen(log_p, shapes, family="auto", **fields):
    model = yo.Model.from_log_density(log_p, dict.fromkeys(shapes, constraints.real), shapes, **fields)
    return choose_family(model, method("yoasovi"), family)


SHAPES = {"m": (), "u": (3, 60), "v": (60,), "w": (60,)}


def test_groups_are_found_across_sites_and_axes_where_log_p_falls_into_pieces():
    def log_p(p):
        inner = (p["u"] - p["m"]) ** 2 * jnp.exp(p["v"])
        return -jnp.sum(inner) - jnp.sum(p["v"] ** 2 + p["w"] ** 2 * p["v"] ** 2) - p["m"] ** 2

    family, why, looks = chosen(log_p, SHAPES)
    assert dict(family.local) == {"u": 1, "v": 0, "w": 0} and (family.groups, family.num_locals) == (60, 5) and looks > 0
    assert "60 groups (u, v, w)" in why


def test_an_axis_along_which_neighbours_hang_together_is_no_axis_of_groups():
    walk = lambda p: -jnp.sum(jnp.diff(p["v"]) ** 2) - jnp.sum((p["u"] - p["v"]) ** 2) - jnp.sum(p["v"] ** 2)
    family, *_ = chosen(walk, {"u": (9, 20), "v": (20,)})
    assert dict(family.local) == {"u": 1} and family.num_globals == 20  # columns of u are apart given v, which is not
    chain, shapes = (lambda p: -jnp.sum(jnp.diff(p["v"] - p["m"]) ** 2) - jnp.sum(p["v"]) ** 2), {"m": (), "v": (120,)}
    assert chosen(chain, shapes)[0].name == "full_rank"
    with pytest.raises(ValueError, match=r"arrow, but no groups were found.*Arrow\(\{'theta': 0\}\)"):
        chosen(chain, shapes, "arrow")


def in_one_vector(z):
    """Twelve groups of three locals, two of which lie beside each other, before and after two of the three globals."""
    pairs, (middle, spread), own, noise = z[:24].reshape(12, 2), z[24:26], z[26:38], z[38]
    inner = (pairs[:, 0] - middle) ** 2 * jnp.exp(-spread) + (pairs[:, 1] - pairs[:, 0] * own) ** 2 * jnp.exp(noise)
    return -jnp.sum(inner) - jnp.sum(own**2) - middle**2 - spread**2 - noise**2


def test_groups_are_found_within_one_vector_from_few_parameters_on():
    family, why, looks = chosen(lambda p: in_one_vector(p["z"]), {"z": (39,)})
    assert (family.groups, family.num_locals, family.num_globals) == (12, 3, 3) and looks < 39 + 20
    assert "12 groups (z), independent given 3 other parameters" in why
    hub, spokes = family.split(np.arange(39))
    assert hub.tolist() == [24, 25, 38] and spokes[:, 5].tolist() == [10, 11, 31]
    density = DENSITY._replace(sites=(Site("z", (39,), (39,), False),))
    said = json.loads(json.dumps(saving._family_as_json(family)))
    assert saving._family(said, density) == family  # saved and read
    shuffled = np.random.default_rng(0).permutation(39)
    assert chosen(lambda p: in_one_vector(p["z"][shuffled]), {"z": (39,)})[0].name == "full_rank"  # in no order


@pytest.mark.parametrize(
    "log_p",
    [
        lambda z: -jnp.sum(z**2),
        lambda z: -(jnp.sum(z) ** 2) - jnp.sum(z**2),
        lambda z: -jnp.sum(jnp.diff(z) ** 2) - z[0] ** 2,
    ],
    ids=["product", "dense", "chain"],
)
def test_a_vector_without_groups_is_looked_at_a_few_times_only(log_p):
    family, _, looks = chosen(lambda p: log_p(p["z"]), {"z": (60,)})
    assert family.name == "full_rank" and looks < 10


def test_groups_may_be_named():
    free = lambda p: -jnp.sum(p["u"] ** 2) - jnp.sum(p["v"] ** 2) - jnp.sum(p["w"] ** 2) - p["m"] ** 2
    family, _, looks = chosen(free, SHAPES, local={"v": 0})
    assert dict(family.local) == {"v": 0} and looks == 0
    for local, said in (
        ({"x": 0}, "by site"), ({"v": 1}, r"an axis of its shape \(60,\); got 1"),
        ({"u": 0, "v": 0}, "axes of the same length"), ({"m": 0, "u": 1, "v": 0, "w": 0}, "so that others are global"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            chosen(free, SHAPES, yo.Arrow(local))
    with pytest.raises(ValueError, match="`local` of `Model` must be an axis of sites of the prior"):
        chosen(free, SHAPES, local={"x": 0})


def test_looks_that_are_not_cheap_come_in_blocks_of_eight_too():
    wide = yo.Model(prior={"m": dist.Normal(0.0, 1.0)}, log_likelihood=lambda p, d: d * p["m"], data=np.ones(20_000))
    assert kernels_of(wide, yo.MeanField(), Clock()).sizes == [16, 8]


def test_draws_too_long_to_keep_are_weighed_and_made_again(fitted, y, monkeypatch):
    monkeypatch.setattr(result, "LONG", 100)
    monkeypatch.setattr(pools, "LONG", 100)
    monkeypatch.setattr(averages, "LONG", 100)
    monkeypatch.setattr(averages, "_NUMBERS", 2**14)
    long = replace(fitted, _pools={})
    pool = long.pool(4000)
    assert pool.weights.sum() == pytest.approx(1.0) and pool.effective_size >= 1000
    picked = np.concatenate(list(pool.picked(50, np.random.default_rng(0))))
    everything = np.concatenate([pool.batches(i) for i in range(-(-len(pool.weights) // pool.batches.rows))])
    assert (picked[:, None, :3] == everything[None, :, :3]).all(-1).any(1).all()
    mean, sd = long.mean(), long.sd()
    for name, (right, width) in exact(y).items():
        assert abs(mean[name] - right) < 0.15 * width and 0.9 < sd[name] / width < 1.1, name
