"""Any Python function as a model: called with NumPy vectors, and its errors come out as they are."""

import traceback

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import yoasovi as yo
from yoasovi.cli.commands import app
from yoasovi.kernels.programs import raise_faults


class OutOfReach(Exception):
    """A user's own kind of error."""


def far(x):
    if x[0] > 0.5:
        raise OutOfReach("the solver gave up")
    return -0.5 * np.sum(x**2)


def far_rows(x):
    if (x[:, 0] > 0.5).any():
        raise OutOfReach("the solver gave up")
    return -0.5 * np.sum(x**2, 1)


def test_vectorized_function_gets_rows_of_draws_and_gives_the_same_fit():
    shapes = set()

    def rows(x):
        shapes.add(x.shape)
        return -0.5 * np.sum((x - 1.0) ** 2, 1)

    many = yo.fit(yo.Model.external(rows, 3, vectorized=True))
    one = yo.fit(yo.Model.external(lambda x: -0.5 * np.sum((x - 1.0) ** 2), 3))
    assert {s[1] for s in shapes} == {3}
    assert max(s[0] for s in shapes) == 100  # the draws behind the ELBO go in blocks
    np.testing.assert_allclose(many.params.mean, one.params.mean, rtol=1e-12)


@pytest.mark.parametrize(("fn", "vectorized"), [(far, False), (far_rows, True)], ids=["by draw", "by rows"])
def test_error_in_the_function_comes_out_as_it_is_with_the_draw_that_caused_it(fn, vectorized):
    model = yo.Model.external(fn, 2, vectorized=vectorized)
    for seed in range(2):  # the second fit fails by its own draw, not by what was left of the first
        with pytest.raises(OutOfReach, match="the solver gave up") as caught:
            yo.fit(model, seed=seed)
        (note,) = caught.value.__notes__
        assert "`fn` of `Model.external`" in note
        assert float(note.split("[")[1].split()[0]) > 0.5
        assert fn.__name__ in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


@pytest.mark.parametrize(
    ("fn", "vectorized", "message"),
    [
        (lambda x: x, False, r"returning shape \(\); got shape \(2,\)"),
        (lambda x: None, False, "returning numbers; got None"),
        (lambda x: np.zeros((len(x), 2)), True, r"returning shape \(1,\); got shape \(1, 2\)"),
    ],
)
def test_function_that_returns_anything_but_a_number_is_refused(fn, vectorized, message):
    density = yo.Model.external(fn, 2, vectorized=vectorized).log_likelihood
    assert np.isnan(density({"x": jnp.zeros(2)}, None)).all()
    with pytest.raises(ValueError, match="`fn` of `Model.external` must be a function " + message):
        raise_faults()


def test_command_line_shows_the_error_and_its_draw_in_one_line(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(
        "import yoasovi as yo\n\ndef log_p(x):\n    raise KeyError('no such table')\n\nmodel = yo.Model.external(log_p, 2)\n"
    )
    result = CliRunner().invoke(app, ["fit", f"{path}:model", "--quiet"])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "KeyError: 'no such table'" in result.stderr
    assert "at x = [" in result.stderr
