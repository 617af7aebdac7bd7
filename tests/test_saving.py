"""Saved fits: what comes back, what needs the model, and files that are wrong or hostile."""

import copy
import io
import json
import os
import pickle
import re
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from yoasovi.experiments import simulate
from yoasovi.files import saving, storage
from yoasovi.files.saving import NeedsModel


@pytest.fixture(scope="module")
def fitted(conjugate):
    return yo.fit(conjugate.model, "advi", max_steps=400, seed=2, restarts=2)


@pytest.fixture
def saved(fitted, tmp_path):
    fitted.save(tmp_path / "fit")
    return tmp_path / "fit"


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_a_fit_comes_back_whole_without_its_model(fitted, saved):
    back = yo.load(saved)
    assert same(back.params, fitted.params) and type(back.params) is type(fitted.params)
    assert back.elbo == fitted.elbo and back.restart_elbos == fitted.restart_elbos
    assert same(back.log_ratio, fitted.log_ratio) and back.family == fitted.family
    assert back.trace.keys() == fitted.trace.keys() and same(back.trace["step"], fitted.trace["step"])
    assert np.array_equal(back.trace["elbo"], fitted.trace["elbo"], equal_nan=True)
    for name in ("stop_reason", "converged", "num_steps", "num_values", "num_gradients", "nonfinite", "seed", "seconds"):
        assert getattr(back, name) == getattr(fitted, name), name
    assert back.method.name == "advi" and repr(back.method) == repr(fitted.method)
    assert back.summary(verdict=False) == fitted.summary(verdict=False) and repr(back) == repr(fitted)
    assert same(back.mean(), fitted.mean()) and same(back.sd(), fitted.sd())
    assert back.sample(50, seed=3)["w"].shape == (50, 2) and back.sample(9000)["w"].shape == (9000, 2)
    assert back.khat() == fitted.khat()
    assert {p.name for p in saved.iterdir()} == {"fit.json", json.loads((saved / "fit.json").read_text())["arrays"]}


def test_a_fit_can_be_pickled_and_copied_though_its_programs_cannot(fitted):
    draws = fitted.sample(20, seed=1)  # now it holds compiled programs
    model = yo.models.LinearRegression(np.arange(6.0)[:, None], np.array([0.0, 2.0, 1.0, 3.0, 5.0, 4.0]))
    fit = yo.fit(model, "advi", max_steps=50)
    back = pickle.loads(pickle.dumps(fit))
    assert same(back.sample(5), fit.sample(5)) and back.seconds.stages.keys() == fit.seconds.stages.keys()
    assert same(copy.deepcopy(fitted).sample(20, seed=1), draws)


def test_what_needs_the_model_says_so_and_works_with_it(fitted, saved, conjugate):
    back = yo.load(saved)
    for ask in (back.dic, lambda: back.sample(10, corrected=not back.worth_correcting), lambda: back.model.data):
        with pytest.raises(ValueError, match=r"yo\.load\(folder, model=model\)|left out without the model"):
            ask()
    assert not hasattr(back.model, "anything")
    with_model = yo.load(saved, model=conjugate.model)
    assert with_model.dic() == fitted.dic() and same(with_model.sample(10, seed=5), fitted.sample(10, seed=5))


def test_a_saved_fit_can_be_saved_again_and_replaced_only_if_asked(saved, tmp_path, conjugate):
    back = yo.load(saved)
    back.save(tmp_path / "copy")
    assert same(yo.load(tmp_path / "copy").mean(), back.mean())
    with pytest.raises(ValueError, match=r"holds a fit already; pass overwrite=True"):
        back.save(tmp_path / "copy")
    other = yo.fit(conjugate.model, "advi", max_steps=400, seed=3, restarts=2)
    other.save(tmp_path / "copy", overwrite=True)
    assert same(yo.load(tmp_path / "copy").params, other.params)
    assert len(list((tmp_path / "copy").iterdir())) == 2


def test_another_model_is_refused_with_the_difference(saved, conjugate):
    from dataclasses import replace

    other = replace(conjugate.model, data={**conjugate.model.data, "y": conjugate.y + 1.0})
    with pytest.raises(ValueError, match=r"`model` of `load` is not the one of the fit: data\['y'\] differs"):
        yo.load(saved, model=other)


def test_factorised_fits_come_back_too(tmp_path):
    paper = yo.models.GaussianMixture(simulate.mixture(2, 2)[:30], num_components=2, parameters="paper").default_family
    assert saving._family(json.loads(json.dumps(saving._family_as_json(paper))), None) == paper
    model = yo.models.GaussianMixture(simulate.mixture(2, 2)[:30], num_components=2)
    fit = yo.fit(model, "bbvi-rb", max_steps=30)
    fit.save(tmp_path)
    back = yo.load(tmp_path)
    assert same(back.params, fit.params) and back.family == fit.family
    assert back.summary(verdict=False) == fit.summary(verdict=False)
    assert same(yo.load(tmp_path, model=model).sample(5), fit.sample(5))


def test_a_disk_that_fills_up_leaves_the_old_fit_as_it_was(monkeypatch, saved, fitted, conjugate):
    other = yo.fit(conjugate.model, "advi", max_steps=400, seed=3, restarts=2)
    for nth in (1, 2):  # while the arrays are written, and while the JSON is
        count = [0]

        def fsync(handle, nth=nth, count=count):
            count[0] += 1
            if count[0] == (1 if nth == 1 else 3):  # files and their folder are synchronised in turn
                raise OSError(28, os.strerror(28))

        with monkeypatch.context() as patch:
            patch.setattr(storage.os, "fsync", fsync)
            with pytest.raises(OSError, match=r"could not be written .*No space left.*; what was there before is as it was"):
                other.save(saved, overwrite=True)
        assert same(yo.load(saved).params, fitted.params) and len(list(saved.iterdir())) == 2


# ---- hostile and broken folders ----------------------------------------------------------------------------


def edit(folder, **changes):
    path = folder / "fit.json"
    header = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del header[key]
        else:
            header[key] = value(header[key]) if callable(value) else value
    path.write_text(json.dumps(header))


def repack(folder, change, header_too=False):
    """Change the arrays and make the checksum match, as a stranger could."""
    header = json.loads((folder / "fit.json").read_text())
    with np.load(folder / header["arrays"]) as file:
        arrays = dict(file)
    change(arrays)
    data = storage.pack(arrays)
    (folder / header["arrays"]).write_bytes(data)
    shapes = {k: [v.dtype.str, list(np.shape(v))] for k, v in arrays.items()} if header_too else header["shapes"]
    edit(folder, sha256=storage.checksum(data), shapes=shapes)


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch /tmp/yoasovi-was-run",))


def pickled(folder):
    header = json.loads((folder / "fit.json").read_text())
    out = io.BytesIO()
    np.savez(out, allow_pickle=True, **{"params.0000": np.array([Bomb()], dtype=object)})
    (folder / header["arrays"]).write_bytes(out.getvalue())
    edit(folder, sha256=storage.checksum(out.getvalue()))


def compressed(folder):
    """A zip that is far larger inside than outside."""
    header = json.loads((folder / "fit.json").read_text())
    out = io.BytesIO()
    np.savez_compressed(out, **{"params.0000": np.zeros(10**7)})
    (folder / header["arrays"]).write_bytes(out.getvalue())
    edit(folder, sha256=storage.checksum(out.getvalue()))


def linked(folder):
    header = json.loads((folder / "fit.json").read_text())
    outside = folder.parent / header["arrays"]
    (folder / header["arrays"]).rename(outside)
    (folder / header["arrays"]).symlink_to(outside)


def inside_name(folder):
    header = json.loads((folder / "fit.json").read_text())
    path = folder / header["arrays"]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../evil.npy", b"x")
    edit(folder, sha256=storage.checksum(path.read_bytes()))


WRONG = {
    "an unknown version": (lambda f: edit(f, format=99), "has format 99; this version of yoasovi reads 1"),
    "no version": (lambda f: edit(f, format=None), "has format None"),
    "no JSON": (lambda f: (f / "fit.json").write_text("{'a':"), "is no JSON: Expecting"),
    "binary JSON": (lambda f: (f / "fit.json").write_bytes(b"\xff\xfe\x00"), "is no JSON: 'utf-16"),
    "a list": (lambda f: (f / "fit.json").write_text("[1]"), "must be a JSON object"),
    "a lost field": (lambda f: edit(f, params=None), "lacks or garbles something: KeyError: 'params'"),
    "a wrong kind of field": (lambda f: edit(f, model=3), "lacks or garbles something: TypeError"),
    "a path outside": (lambda f: edit(f, arrays="../../etc/passwd"), "names '../../etc/passwd' as its arrays"),
    "an absolute path": (lambda f: edit(f, arrays="/etc/passwd"), "they must lie beside it"),
    "a link outside": (linked, "leads out of the folder"),
    "no arrays": (lambda f: next(f.glob("*.npz")).unlink(), "is not there, though fit.json names it"),
    "damaged arrays": (lambda f: next(f.glob("*.npz")).write_bytes(b"PK"), "its checksum does not match"),
    "a missing array": (lambda f: repack(f, lambda a: a.pop("log_ratio")), "lacks the array 'log_ratio'"),
    "a wrong shape": (lambda f: repack(f, lambda a: a.update({"log_ratio": np.zeros(3)})), "'log_ratio' must be"),
    "a wrong type": (lambda f: repack(f, lambda a: a.update({"elbos": a["elbos"].astype(int)})), "'elbos' must be <f8"),
    "parameters of another size": (
        lambda f: repack(f, lambda a: a.update({"params.0000": np.zeros(7), "params.0001": np.zeros(7)}), True),
        "parameters have shapes",
    ),
    "parameters that are NaN": (
        lambda f: repack(f, lambda a: a.update({"params.0000": np.full(2, np.nan)}), True), "not finite"
    ),
    "a ragged trace": (lambda f: repack(f, lambda a: a.update({"trace.0000": np.zeros(3)}), True), "different lengths"),
    "pickled objects": (pickled, "would need pickle"),
    "a zip bomb": (compressed, "would expand to 80,000,"),
    "a path inside the zip": (inside_name, "has a member '../../evil.npy'"),
    "an unknown family": (lambda f: edit(f, family={"kind": "evil"}), "a family of kind 'evil'"),
    "a law that is none": (
        lambda f: edit(f, family={"kind": "factorised", "factors": [["w", {"law": "system"}]]}), "KeyError: 'system'"
    ),
    "an unknown reason": (lambda f: edit(f, stop_reason="BORED"), "KeyError: 'BORED'"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_folder_is_refused_and_nothing_in_it_runs(saved, what):
    spoil, says = WRONG[what]
    spoil(saved)
    before = {p.name: p.lstat().st_mtime_ns for p in saved.iterdir()}
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        yo.load(saved)
    assert not isinstance(caught.value, NeedsModel)
    assert {p.name: p.lstat().st_mtime_ns for p in saved.iterdir()} == before
    assert not os.path.exists("/tmp/yoasovi-was-run")


def test_each_wrong_folder_has_its_own_message():
    says = [message for _, message in WRONG.values()]
    assert len(set(says)) == len(says)


def test_a_checkpoint_is_no_pickle_either(tmp_path, conjugate):
    from yoasovi.files import checkpoint

    (tmp_path / "a.checkpoint").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=r"a\.checkpoint is no checkpoint, or its beginning is lost"):
        yo.fit(conjugate.model, "advi", max_steps=10, checkpoint=tmp_path, resume=True)
    assert not os.path.exists("/tmp/yoasovi-was-run") and checkpoint.FORMAT == saving.FORMAT == 1


def test_the_verdict_is_saved_with_the_fit_and_its_report_needs_no_model(tmp_path):
    model = yo.Model.from_log_density(lambda p: -0.5 * jnp.sum(p["x"] ** 2), {"x": dist.constraints.real}, {"x": (2,)})
    fit = yo.fit(model, progress=False)
    fit.save(tmp_path / "silent")
    assert yo.load(tmp_path / "silent").verdict is None
    with pytest.raises(ValueError, match="a verdict needs the model"):
        yo.load(tmp_path / "silent").diagnose()
    verdict = fit.diagnose()
    fit.save(tmp_path / "told")
    loaded = yo.load(tmp_path / "told")
    assert str(loaded.diagnose()) == str(verdict) and loaded.summary().startswith("GOOD")
    page = Path(loaded.report(tmp_path / "fit.html")).read_text()
    assert verdict.advice.split(".")[0] in page

    header = json.loads((tmp_path / "told" / "fit.json").read_text())
    header["verdict"]["grade"] = "superb"
    (tmp_path / "told" / "fit.json").write_text(json.dumps(header))
    with pytest.raises(ValueError, match="verdict cannot be read"):
        yo.load(tmp_path / "told")
