"""Data larger than memory: rows read in chunks from Parquet files, memory maps and anything that can be sliced."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from yoasovi.kernels import kernels_of
from yoasovi.kernels.programs import Clock

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
N, D = 5000, 3


def likelihood(params, data):
    eta = data["X"] @ params["w"]
    return data["y"] * eta - jax.nn.softplus(eta)


def model_of(data, **more):
    return yo.Model(prior={"w": dist.Normal(jnp.zeros(D), 2.5).to_event(1)}, log_likelihood=likelihood, data=data, **more)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    X[:, 2] = rng.random(N) < 0.01  # of which a sample of the rows tells little
    return {"X": X, "y": (rng.random(N) < 1 / (1 + np.exp(-X @ [1.0, -0.5, 0.8]))).astype(float)}


@pytest.fixture(scope="module")
def folder(rows, tmp_path_factory):
    """Files whose row groups do not end where chunks do."""
    path = tmp_path_factory.mktemp("rows")
    columns = {**{f"x{j}": rows["X"][:, j] for j in range(D)}, "y": rows["y"], "word": np.full(N, "a")}
    for i, (start, stop) in enumerate([(0, 1300), (1300, 1301), (1301, N)]):
        table = arrow.table({k: v[start:stop] for k, v in columns.items()})
        parquet.write_table(table, path / f"{i}.parquet", row_group_size=700)
    return path


COLUMNS = {"X": ["x0", "x1", "x2"], "y": "y"}


@pytest.fixture(scope="module")
def streamed(folder):
    return model_of(yo.stream(folder, COLUMNS, rows_per_read=512))


@pytest.fixture(scope="module")
def whole(rows):
    return model_of(rows)


def test_chunks_are_the_rows_in_order_whatever_the_files_are(rows, folder):
    for source in (yo.stream(folder, COLUMNS, 512), yo.stream(rows, rows_per_read=512)):
        chunks = list(source.chunks())
        assert [len(c["y"]) for c in chunks] == [512] * 9 + [N - 9 * 512] and len(source) == N
        for k, v in rows.items():
            np.testing.assert_array_equal(np.concatenate([c[k] for c in chunks]), v)


def test_at_most_so_many_chunks_are_read_ahead_in_the_background(rows):
    taken, most, threads = 0, [], set()

    class Slow:
        def __len__(self):
            return N

        def __getitem__(self, part):
            threads.add(threading.current_thread())
            most.append(part.start // 100 - taken)
            return {k: v[part] for k, v in rows.items()}

    for _ in yo.stream(Slow(), rows_per_read=100, ahead=3).chunks():
        taken += 1
    assert taken == 50 and max(most) <= 3
    assert threading.main_thread() not in threads


def test_looks_at_a_stream_are_those_at_all_the_data(streamed, whole):
    points = np.random.default_rng(1).normal(size=(5, D))
    here, there = (kernels_of(m, yo.FullRank(), Clock()) for m in (streamed, whole))
    assert (streamed.num_observations, streamed.density.num_observations) == (N, 512)
    for some in (points, points[:1]):
        for a, b in zip(here.look(some, None), there.look(some, None), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)
    for a, b in zip(here.compare(points, points[::-1], None), there.compare(points, points[::-1], None), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    a, b = here.anchor(points[:2]), there.anchor(points[:2])
    np.testing.assert_allclose(a.value, b.value, rtol=1e-9)
    np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-8)
    moved = [there.anchor(points[:1] + 1e-5 * s * np.eye(D)[:1]).gradient[0] for s in (1, -1)]
    np.testing.assert_allclose(a.hessian[0, 0], (moved[0] - moved[1]) / 2e-5, rtol=1e-5)


def test_a_streamed_fit_is_the_fit_of_all_the_data(streamed, whole):
    fit, known = yo.fit(streamed, seed=0), yo.fit(whole, seed=0, mend=False)
    sd = lambda f: np.sqrt((np.asarray(f.family.factor(f.params)) ** 2).sum(-1))
    assert fit.converged and fit.model is streamed
    assert np.all(np.abs(fit.params.mean - known.params.mean) < 0.1 * sd(known))
    np.testing.assert_allclose(sd(fit), sd(known), rtol=0.1)
    assert abs(fit.elbo.value - known.elbo.value) < 0.05 + 4 * np.hypot(fit.elbo.se, known.elbo.se)
    assert fit.dic() == pytest.approx(known.dic(), abs=1.0)
    with pytest.raises(ValueError, match="`loo` needs all the data in memory"):
        fit.loo()
    with pytest.raises(ValueError, match="`refine` needs all the data in memory"):
        fit.refine()


def test_a_memory_map_is_read_in_chunks_and_data_that_fit_into_one_are_ordinary(rows, whole, tmp_path):
    np.save(tmp_path / "X.npy", rows["X"])
    mapped = {"X": np.load(tmp_path / "X.npy", mmap_mode="r"), "y": rows["y"]}
    kernels = kernels_of(model_of(yo.stream(mapped, rows_per_read=2000)), yo.FullRank(), Clock())
    known = kernels_of(whole, yo.FullRank(), Clock())
    np.testing.assert_allclose(kernels.point(np.ones((1, D)))[1], known.point(np.ones((1, D)))[1], rtol=1e-9)
    small = model_of(yo.stream(mapped, rows_per_read=10_000))
    assert small.stream is None and len(small.data["y"]) == N


BAD = {
    "a missing column": (
        lambda path: yo.stream(path, {"X": ["x0", "x9"]}),
        "`columns` of `stream` names 'x9'; {path}/0.parquet has the columns x0, x1, x2, y, word.",
    ),
    "no such folder": (
        lambda path: yo.stream(path / "none"),
        "`source` of `stream` must be a Parquet file or folder that exists; got '{path}/none'.",
    ),
    "text": (
        lambda path: yo.stream(path, ["y", "word"]).sample,
        "`columns['word']` of `stream` must be a column of numbers; got 'string'.",
    ),
    "no chunk": (
        lambda path: yo.stream(path, rows_per_read=0),
        "`rows_per_read` of `stream` must be a positive integer; got 0.",
    ),
    "columns of arrays": (
        lambda path: yo.stream(np.ones(3), ["y"]),
        "`columns` of `stream` must be None unless `source` is a Parquet file or folder; got ['y'].",
    ),
    "arrays of several lengths": (
        lambda path: yo.stream({"X": np.ones(3), "y": np.ones(4)}),
        "`source` of `stream` must be rows, as many in all arrays; got lengths [3, 4].",
    ),
    "no rows": (
        lambda path: yo.stream(3.0),
        "`source` of `stream` must be a Parquet file or folder, arrays, or an object with `len` and slices; got 3.0.",
    ),
    "a hole": (
        lambda path: yo.stream(np.array([1.0, 2.0, np.nan, 4.0]), rows_per_read=2).sample,
        "`data` of `stream` must be finite; row 2 (from 0) is not. Leave such rows out.",
    ),
    "another method": (
        lambda path: yo.fit(model_of(yo.stream(path, COLUMNS, 512)), "advi"),
        "`data` of `Model` can be a stream only where the default method fits a Gaussian; read them first.",
    ),
    "too large a batch": (
        lambda path: yo.fit(model_of(yo.stream(path, COLUMNS, 512)), batch_size=513),
        "`batch_size` of `fit` must be at most `rows_per_read` of `stream`, 512; got 513.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong, said", BAD.values(), ids=BAD)
def test_what_cannot_be_read_is_refused_in_one_line(wrong, said, folder):
    with pytest.raises(ValueError) as error:
        wrong(folder)
    assert str(error.value) == said.format(path=folder)


def test_a_broken_or_patchy_file_is_named(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"broken.parquet holds no intact Parquet file"):
        yo.stream(tmp_path / "broken.parquet")
    parquet.write_table(arrow.table({"x": [1.0, None, 2.0]}), tmp_path / "patchy.parquet")
    with pytest.raises(ValueError, match=r"column 'x' of .*patchy.parquet has 1 empty row"):
        _ = yo.stream(tmp_path / "patchy.parquet").sample


class Reader:
    """Rows that can be sliced, and know how many they are."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return N

    def __getitem__(self, part):
        return {k: v[part] for k, v in self.rows.items()}


def test_a_path_memory_maps_and_what_can_be_sliced_are_data_as_they_are(rows, tmp_path, monkeypatch):
    monkeypatch.setattr("yoasovi.scale.stream.stream.__defaults__", (None, 512, 2))
    columns = {**{f"x{j}": rows["X"][:, j] for j in range(D)}, "y": rows["y"]}
    parquet.write_table(arrow.table(columns), tmp_path / "rows.parquet")
    np.save(tmp_path / "X.npy", rows["X"])
    by_name = lambda p, d: likelihood(p, {"X": jnp.stack([d[f"x{j}"] for j in range(D)], -1), "y": d["y"]})
    prior = {"w": dist.Normal(jnp.zeros(D), 2.5).to_event(1)}
    paths = [
        yo.Model(prior=prior, log_likelihood=by_name, data=x)
        for x in (tmp_path / "rows.parquet", str(tmp_path / "rows.parquet"))
    ]
    mapped = model_of({"X": np.load(tmp_path / "X.npy", mmap_mode="r"), "y": rows["y"]})
    for model in (*paths, mapped, model_of(Reader(rows))):
        assert len(model.stream) == N and len(jax.tree.leaves(model.data)[0]) == 512
    at = np.full((1, D), 0.3)
    found = [kernels_of(m, yo.MeanField(), Clock()).point(at)[0] for m in (mapped, model_of(rows))]
    np.testing.assert_allclose(*found)
    with pytest.raises(ValueError, match=r"`data` of `Model` must be a Parquet file or folder that exists; got '.*absent'"):
        model_of(str(tmp_path / "absent"))
    with pytest.raises(ValueError, match=r"`log_likelihood` of `Model` asks for .*'X'"):
        model_of(tmp_path / "rows.parquet")
