"""The default method in float32, as it runs on accelerators: the answers of float64 within a tenth of a nat."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from yoasovi.kernels import programs as compiling

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 3))
HITS = (RNG.random(50) < 1 / (1 + np.exp(-X @ [1.0, -1.0, 0.0]))).astype(int)
EFFECT, ERROR = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def supports():
    """A simplex, a scale with a heavy tail, and an interval."""
    return yo.Model(
        prior={"s": dist.Dirichlet(np.ones(3)), "g": dist.HalfCauchy(1.0), "u": dist.Uniform(0.0, 1.0)},
        log_likelihood=lambda p, d: d * jnp.log(p["s"]) + dist.Normal(0.0, p["g"]).log_prob(d) + jnp.log(p["u"]),
        data=np.array([3.0, 5.0, 1.0]),
    )  # fmt: skip


MODELS = {
    "logistic": lambda: yo.models.LogisticRegression(X, HITS),
    "schools": lambda: yo.models.HierarchicalNormal(EFFECT, sd=ERROR),
    "supports": supports,
}


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(compiling, "_WIDE_ON", ())


@pytest.mark.parametrize("name", MODELS)
def test_float32_converges_to_the_answer_of_float64(name, narrow, monkeypatch):
    found = yo.fit(MODELS[name](), seed=0)
    seen = [found.kernels._gradients(np.zeros((found.kernels.block, found.model.density.dim)))]
    assert all(x.dtype == np.float32 for x in (*seen, *found.kernels.held.leaves) if x.dtype.kind == "f")
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found.params)) and found.converged
    assert all(np.isfinite(x).all() for x in found.sample(500).values())
    monkeypatch.setattr(compiling, "_WIDE_ON", ("cpu",))
    wide = yo.fit(MODELS[name](), seed=0)
    assert wide.kernels._gradients(np.zeros((wide.kernels.block, wide.model.density.dim))).dtype == np.float64
    # Three standard errors of both estimates besides the tenth of a nat.
    assert abs(found.elbo.value - wide.elbo.value) < 0.1 + 3 * np.hypot(found.elbo.se, wide.elbo.se)


def test_data_of_any_number_type_give_the_same_fit():
    fits = [yo.fit(yo.models.LogisticRegression(np.round(X), HITS.astype(kind)), seed=0) for kind in (int, bool, np.float32)]
    design = [yo.fit(yo.models.LogisticRegression(np.round(X).astype(kind), HITS), seed=0) for kind in (int, np.float32)]
    for other in (*fits[1:], *design):
        assert other.elbo == fits[0].elbo and np.array_equal(other.params.mean, fits[0].params.mean)
