"""Shared by all tests: small models with known answers, and float64 inside the tests that look at bits."""

import gc
import mmap
import os
from importlib.util import find_spec
from pathlib import Path

# Almost all the time of these tests is XLA's compiling, for models that then run for milliseconds. The second flag
# halves it, the last (it does not cut small programs into parts) takes off an eighth; XLA ends the process over a flag that
# it does not know, and these may go one day.
FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_multi_thread_eigen=false " \
    "--xla_cpu_parallel_codegen_split_count=1"  # fmt: skip
for library in ("OMP", "OPENBLAS", "MKL"):  # one thread for each of pytest's workers
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")


def known(flag):
    """Whether the jaxlib that is installed has this flag."""
    library = Path(find_spec("jaxlib").origin).with_name("libjax_common.so")
    if not library.exists():
        return False
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return text.find(flag.strip("-").split("=")[0].encode()) >= 0


os.environ.setdefault("XLA_FLAGS", " ".join(filter(known, FLAGS.split())))
os.environ["YOASOVI_CACHE"] = "off"  # the command line's own would be the user's
gc.disable()  # until all is imported

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import yoasovi as yo


def pytest_collection_finish():
    """Do not look for garbage in what imports left, again and again: that takes a tenth of the time of tests."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    gc.enable()


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=[False, True], ids=["float32", "float64"])
def dtype(request):
    """Each precision in turn."""
    with jax.enable_x64(request.param):
        yield jnp.dtype(jnp.float64 if request.param else jnp.float32)


@pytest.fixture
def stan_folder(request, monkeypatch):
    """Keep compiled Stan programs from one run of the tests to the next: each takes half a minute."""
    place = request.config.cache.mkdir("stan")
    monkeypatch.setattr("yoasovi.stan.building.folder", lambda: place)
    return place


class Conjugate:
    """Bayesian linear regression with known noise: everything about it is known in closed form."""

    def __init__(self, n=12, d=2, seed=0):
        rng = np.random.default_rng(seed)
        self.X, self.y = rng.normal(size=(n, d)), rng.normal(size=n)
        self.precision = self.X.T @ self.X + np.eye(d)
        self.covariance = np.linalg.inv(self.precision)
        self.mean = self.covariance @ self.X.T @ self.y
        joint = np.eye(n) + self.X @ self.X.T
        self.evidence = float(
            -0.5 * (self.y @ np.linalg.solve(joint, self.y) + np.linalg.slogdet(joint)[1] + n * np.log(2 * np.pi))
        )
        self.model = yo.Model(
            prior={"w": dist.Normal(jnp.zeros(d), 1.0).to_event(1)},
            log_likelihood=likelihood,
            data={"X": self.X, "y": self.y},
        )

    def elbo(self, mean, factor):
        """Evidence minus KL, in JAX, for N(mean, factor factor^T)."""
        gap = mean - self.mean
        spread = factor @ factor.T
        kl = 0.5 * (
            jnp.trace(self.precision @ spread) + gap @ self.precision @ gap - len(self.mean)
            - jnp.linalg.slogdet(spread)[1] - jnp.linalg.slogdet(self.precision)[1]
        )  # fmt: skip
        return self.evidence - kl


def likelihood(params, data):
    return dist.Normal(data["X"] @ params["w"], 1.0).log_prob(data["y"])


@pytest.fixture(scope="session")
def conjugate():
    return Conjugate()
