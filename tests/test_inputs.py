"""Inputs from outside: data files of every kind, and a table of bad ones, each refused in its own words."""

import io
import json
import os
import re
import tracemalloc
import zipfile

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from typer.testing import CliRunner

import yoasovi as yo
from yoasovi.cli import app, reading
from yoasovi.cli.data import Given, model_on
from yoasovi.cli.reading import read_columns
from yoasovi.kernels import programs as compiling

GOOD = "a,b,y\n1,2,0\n2,3.5,1\n3,-1e2,1\n4,4,0\n"


def write(folder, name, data):
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def npy(values, **options):
    out = io.BytesIO()
    np.save(out, values, **options)
    return out.getvalue()


def npz(compressed=False, **arrays):
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **arrays)
    return out.getvalue()


def parquet(**columns):
    import pyarrow
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), out)
    return out.getvalue()


def parquet_twice():
    import pyarrow
    import pyarrow.parquet

    out = io.BytesIO()
    values = [pyarrow.array([1.0, 2.0])] * 3
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(values, names=["a", "a", "y"]), out)
    return out.getvalue()


def rows(name, values):
    """A CSV file with one column of these values and one, y, of numbers."""
    return f"{name},y\n" + "".join(f"{x},{i * i % 7}\n" for i, x in enumerate(values))


# ---- good files ------------------------------------------------------------------------------------------


def test_all_kinds_of_files_give_the_same_columns(tmp_path):
    a, b = np.array([1.0, 2, 3, 4]), np.array([2, 3.5, -100, 4])
    y = np.array([0, 1, 1, 0])
    files = {
        "plain.csv": GOOD, "windows.csv": "\ufeff" + GOOD.replace("\n", "\r\n"), "semicolons.csv": GOOD.replace(",", ";"),
        "tabs.tsv": GOOD.replace(",", "\t"), "quoted.csv": GOOD.replace("3.5", '"3.5"') + "\n",
        "columns.npz": npz(a=a, b=b, y=y), "small.npz": npz(True, a=a, b=b, y=y), "columns.parquet": parquet(a=a, b=b, y=y),
        "record.npy": npy(np.array(list(zip(a, b, y, strict=True)), dtype=[("a", float), ("b", "f4"), ("y", "i8")])),
    }  # fmt: skip
    for name, data in files.items():
        found = read_columns(write(tmp_path, name, data))
        assert list(found) == ["a", "b", "y"], name
        for key, want in (("a", a), ("b", b), ("y", y)):
            assert np.array_equal(found[key], want), (name, key)
    matrix = np.column_stack([a, b, y])
    for name, data in (("matrix.npy", npy(matrix)), ("bare.csv", "\n".join(GOOD.splitlines()[1:]))):
        found = read_columns(write(tmp_path, name, data))
        assert list(found) == ["c1", "c2", "c3"] and np.array_equal(np.column_stack(list(found.values())), matrix)
    assert list(read_columns(write(tmp_path, "named.npz", npz(X=matrix[:, :2], y=y)))) == ["X1", "X2", "y"]


def test_text_is_read_as_words_from_every_kind_of_file(tmp_path):
    text = "who,y,s\nbob,1,2\nann,2,2\nbob,3,2\n"
    who = ["bob", "ann", "bob"]
    files = {
        "a.csv": text, "a.parquet": parquet(who=who, y=[1.0, 2, 3], s=[2, 2, 2]),
        "a.npz": npz(who=np.array(who), y=np.arange(1.0, 4), s=np.full(3, 2)),
    }  # fmt: skip
    for name, data in files.items():
        found = read_columns(write(tmp_path, name, data))
        assert list(found) == ["who", "y", "s"]
        assert found["who"].levels == ["ann", "bob"] and found["who"].codes.tolist() == [1, 0, 1]
        model = model_on("hierarchical", Given(str(tmp_path / name), None, None, "who", "s"), "free")
        assert model.names("offset", (2,)) == ["offset[ann]", "offset[bob]"]


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("linear", {}, (4, 2)),
        ("logistic", {}, (4, 2)),
        ("poisson", {"columns": "b"}, (4, 1)),
        ("linear", {"target": "b", "columns": "a,y"}, (4, 2)),
        ("network", {}, (4, 2)),
        ("mixture-2-2", {"columns": "a,b"}, None),
        ("mixture-2-3", {"columns": "a,b"}, None),
        ("eight-schools", {"target": "b", "sd": "a"}, None),
        ("eight-schools-centered", {"target": "b", "sd": "a"}, None),
    ],
)
def test_every_built_in_takes_a_file(tmp_path, name, options, shape):
    given = dict(file=str(write(tmp_path, "d.csv", GOOD)), target=None, columns=None, group=None, sd=None)
    model = model_on(name, Given(**{**given, **options}), "free")
    assert isinstance(model, yo.Model) and (
        shape is None or model.data["X" if name == "network" else "centred"].shape == shape
    )


def test_a_fit_of_a_data_file_is_that_of_its_arrays(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 2))
    y = X @ [1.0, 2.0] + rng.normal(size=12)
    data = write(tmp_path, "d.npz", npz(X=X, y=y))
    args = ["fit", "linear", "--method", "advi", "--max-steps", "50", "--data", str(data), "--save", str(tmp_path / "fit")]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    same = yo.fit(yo.models.LinearRegression(X, y), "advi", max_steps=50)
    assert np.array_equal(yo.load(tmp_path / "fit").params.mean, same.params.mean)


# ---- bounded memory --------------------------------------------------------------------------------------


def peak(fn):
    tracemalloc.start()
    with pytest.raises(ValueError) as caught:
        fn()
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return str(caught.value), size


def test_a_line_of_a_gigabyte_is_refused_in_little_memory(tmp_path):
    path = tmp_path / "line.csv"
    with open(path, "wb") as file:
        file.write(b"a,b\n1,2\n" + b"7" * 10)
        file.truncate(2**30)  # a sparse file: no space on the disk, a gigabyte to read
    message, size = peak(lambda: read_columns(path))
    assert "line 3 is longer than" in message and size < 20e6


def test_bombs_are_refused_before_they_expand(tmp_path, monkeypatch):
    """A zip and a Parquet file of a few kilobytes each, of more than the limit inside."""
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": (65 * 2**20,)})
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w", force_zip64=True) as file:
        file.write(member.getvalue())
        for _ in range(520):
            file.write(bytes(2**20))
    assert bomb.stat().st_size < 2e6
    message, size = peak(lambda: read_columns(bomb))
    assert "would expand to 545," in message and size < 20e6

    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "bomb.parquet"
    pyarrow.parquet.write_table(pyarrow.table({f"x{i}": np.zeros(2**18) for i in range(16)}), path)
    monkeypatch.setattr(reading, "LIMIT", 2**24)  # a lower one, so that the test need not write half a gigabyte
    assert path.stat().st_size < 1e5
    message, size = peak(lambda: read_columns(path))
    assert "says it has 262,144 rows of 16 columns" in message and size < 2e6


def test_a_table_beyond_the_limit_is_refused_while_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LIMIT", 1000)
    message, _ = peak(lambda: read_columns(write(tmp_path, "long.csv", "a\n" + "1\n" * 1000)))
    assert "line 126: more than 1,000 bytes of numbers" in message
    message, _ = peak(lambda: read_columns(write(tmp_path, "long.npy", npy(np.zeros(1000)))))
    assert "has 8,128 bytes; the limit is 1,000" in message


# ---- the table of bad inputs -----------------------------------------------------------------------------

FILES = {
    "ragged.csv": ("a,b,y\n1,2,0\n1,2\n", "line 3 has 2 fields; line 1 has 3"),
    "wide.csv": ("a,b,y\n1,2,0\n1,2,0,9\n", "line 3 has 4 fields"),
    "mixed.csv": ("a,b,y\n1,2,0\n1,two,0\n", "line 3: column 'b' is 'two', after numbers"),
    "gap.csv": (
        "a,b,y\n1,,0\n",
        "line 2: column 'b' is empty; drop or impute such rows, or leave the column out with --drop b",
    ),
    "na.csv": ("a,b,y\n1,2,0\n2,NA,0\n", "line 3: column 'b' is 'NA'"),
    "infinite.csv": ("a,b,y\n1,2,0\n2,inf,0\n", "line 3: column 'b' is 'inf'"),
    "latin.csv": (b"a,b,y\n1,2,0\n1,2,\xe9\n", "line 3 is not UTF-8 (byte 5 of it)"),
    "utf16.csv": (GOOD.encode("utf-16"), "line 1 is UTF-16"),
    "zero.csv": (b"a,b,y\n1,\x002,0\n", "line 2 has a zero byte"),
    "empty.csv": ("", "empty.csv is empty."),
    "head.csv": ("a,b,y\n", "has no rows"),
    "twice.csv": ("a,a,y\n1,2,3\n", "line 1 has the column 'a' twice"),
    "open.csv": ('a,b,y\n1,"2,0\n', "line 2: unexpected end of data"),
    "blank.csv": ("\n1,2\n", "line 1 is empty"),
    "letters.xlsx": ("PK", "a data file must end in .csv"),
    "text.npy": ("hello", "text.npy is no npy file"),
    "objects.npy": (npy(np.array([{}], object), allow_pickle=True), "would need pickle"),
    "short.npy": (npy(np.zeros((50, 3)))[:-8], "says it has shape (50, 3)"),
    "huge.npy": (npy(np.zeros(3)).replace(b"(3,)", b"(3000000000000,)").ljust(200), "24,000,000,000,000 bytes, but holds"),
    "cube.npy": (npy(np.zeros((2, 2, 2))), "must have one or two dimensions"),
    "complex.npy": (npy(np.zeros(3, complex)), "must be numbers; it is complex128"),
    "nan.npy": (npy(np.array([(1.0, 2.0), (np.nan, 1.0)], [("a", float), ("y", float)])), "column 'a' has nan in row 2"),
    "names.csv": (rows("who", [f"n{i}" for i in range(25)]), "column 'who' is text with 25 different values, such as 'n0'"),
    "few_names.csv": (
        rows("who", "abcdef"),
        "text that names the rows: 6 different values in 6 rows; leave it out with --drop who",
    ),
    "count.csv": (
        rows("place", range(1, 31)),
        "column 'place' counts the rows, 1 to 30; leave it out with --drop place, or name",
    ),
    "index.csv": (rows("", range(30)), "column 'c1' counts the rows, 0 to 29; leave it out with --drop c1"),
    "id.csv": (rows("patient_id", [7, 3, 9, 12]), "column 'patient_id' looks like a name of the rows: a different whole"),
    "dates.csv": (
        rows("when", ["2020-01-03", "2020-01-04", "2020-01-03"]),
        "column 'when' holds dates (such as '2020-01-03')",
    ),
    "word_gap.csv": (
        rows("sex", ["m", "", "f"]),
        "line 3: column 'sex' is empty; drop or impute such rows, or leave the column",
    ),
    "one_word.csv": ("sex,y\nm,1\nm,2\n", "no columns are left to explain the target by. Column 'sex' is 'm' in every row"),
    "times.parquet": (
        lambda: parquet(a=np.array(["2020-01-03"] * 2, "M8[s]"), y=[1.0, 2]),
        "column 'a' holds dates or times",
    ),
    "lists.parquet": (lambda: parquet(a=[[1], [2]], y=[1.0, 2.0]), "column 'a' must be numbers or text; it is list"),
    "twice.parquet": (lambda: parquet_twice(), "has the column 'a' twice"),
    "text.npz": ("hello", "text.npz is no intact npz file"),
    "cut.npz": (npz(a=np.zeros(99))[:300], "cut.npz is no intact npz file"),
    "member.npz": ("zip", "has a member 'readme.txt'"),
    "lengths.npz": (npz(a=np.zeros(3), y=np.zeros(4)), "columns must have one length; got a: 3, y: 4"),
    "text.parquet": ("hello", "is no intact Parquet file"),
    "null.parquet": (lambda: parquet(a=[1.0, None], y=[1.0, 2.0]), "column 'a' is empty in row 2"),
}

LINES = [
    (["fit", "linear", "--data", "nowhere.csv"], "no file nowhere.csv"),
    (["fit", "linear", "--data", "good.csv", "--target", "z"], "--target: no column 'z'; good.csv has a, b, y"),
    (["fit", "linear", "--data", "no_y.csv"], "say which column to explain: --target NAME"),
    (["fit", "linear", "--data", "good.csv", "--columns", "a,q"], "--columns: no column 'q'; good.csv has a, b, y"),
    (["fit", "linear", "--data", "good.csv", "--columns", "a,y"], "--columns has 'y', which is the target"),
    (["fit", "linear", "--data", "only_y.csv"], "no columns are left"),
    (["fit", "linear", "--data", "good.csv", "--drop", "q"], "--drop q: no such column; good.csv has a, b, y"),
    (["fit", "linear", "--data", "good.csv", "--drop", "y"], "--drop y is the column to explain"),
    (["fit", "linear", "--drop", "a"], "--drop names a column of a data file; say which file"),
    (
        ["fit", "linear", "--data", "words.csv", "--target", "sex"],
        "--target sex is text ('f', 'm'); linear explains numbers",
    ),
    (
        ["fit", "logistic", "--data", "words.csv", "--target", "size"],
        "column 'size' must have two values to tell apart; it has 3",
    ),
    (
        ["fit", "hierarchical", "--data", "words.csv", "--target", "sex", "--group", "size"],
        "--target sex is text; hierarchical",
    ),
    (["fit", "hierarchical", "--data", "good.csv", "--columns", "a"], "--columns does not go with hierarchical"),
    (
        ["fit", "linear", "--prior-scale", "-1"],
        "--prior-scale must be a positive finite number; got -1.0",
    ),
    (
        ["fit", "eight-schools", "--prior-scale", "2"],
        "--prior-scale goes with linear, logistic, poisson, not with eight-schools",
    ),
    (["fit", "linear", "--target", "y"], "--target names a column of a data file; say which file"),
    (["fit", "linear", "--data", "good.csv", "--group", "a"], "--group goes with hierarchical"),
    (["fit", "hierarchical", "--data", "good.csv", "--group", "who"], "--group: no column 'who'; good.csv has a, b, y"),
    (
        ["fit", "hierarchical", "--data", "good.csv"],
        "hierarchical needs the column with the groups, --group NAME, or that with known noise, --sd NAME",
    ),
    (["fit", "mixture-2-2", "--data", "good.csv"], "mixture-2-2 needs 2 columns; got 3"),
    (["fit", "mixture-2-2", "--data", "good.csv", "--target", "y"], "--target does not go with mixture-2-2"),
    (["fit", "logistic", "--data", "good.csv", "--target", "b"], "--target b must be 0 or 1"),
    (["fit", "poisson", "--data", "good.csv", "--target", "b"], "--target b must be non-negative integers"),
    (["fit", "mine.py:model", "--data", "good.csv"], "--data goes with the built-in models"),
    (["fit", "linear", "--resume"], "--resume needs --checkpoint DIR"),
    (["fit", "linear", "--checkpoint", "good.csv"], "`checkpoint` of `fit` must be a folder; good.csv is a file"),
    (["fit", "linear", "--checkpoint", "run", "--checkpoint-seconds", "0"], "`seconds` of `Checkpoint`"),
    (["fit", "linear", "--checkpoint", "run", "--checkpoint-steps", "-1"], "`steps` of `Checkpoint`"),
    (["fit", "linear", "--checkpoint", "run", "--checkpoint-steps", "few"], "--checkpoint-steps"),
    (["fit", "linear", "--checkpoint", "old"], "old holds the checkpoint of an earlier run"),
    (["fit", "linear", "--checkpoint", "old", "--resume"], "can be read: a.checkpoint is no checkpoint"),
    (["fit", "linear", "--checkpoint", "newer", "--resume"], "a.checkpoint has format 7; this version of yoasovi reads 1"),
    (["fit", "linear", "--checkpoint", "cut", "--resume"], "a.checkpoint is cut short: 3 of 100 bytes"),
    (["fit", "linear", "--checkpoint", "flipped", "--resume"], "a.checkpoint is damaged: its checksum"),
    (["fit", "linear", "--save", "good.csv"], "--save must be a folder; good.csv is a file"),
    (["fit", "linear", "--save", "saved"], "saved holds a fit already"),
    (["fit", "linear", "--seed", "x"], "--seed"),
    (["fit", "nothing.py:model"], "no file nothing.py"),
    (["fit", "linear", "--set", "tolerance=-1"], "`tolerance` of `Window` must be a positive finite number; got -1"),
    (["fit", "linear", "--method", "advi", "--set", "draws=1.5"], "`size` of `MonteCarlo` must be a positive integer"),
    (["report", "saved", "--nonsense"], "no such"),
]


def likelihood(params, data):
    return dist.Normal(params["m"], 1.0).log_prob(data)


def model(**changes):
    given = {"prior": {"m": dist.Normal(0.0, 1.0)}, "log_likelihood": likelihood, "data": np.ones(3)}
    return yo.Model(**{**given, **changes})


CALLS = [
    (lambda: yo.fit(3), "`model` of `fit` must be a Model"),
    (lambda: yo.fit(model(), "nuts"), "`method` of `fit` must be one of"),
    (lambda: yo.fit(model(), family=3), "`family` of `fit` must be auto"),
    (lambda: yo.fit(model(), seed=1.5), "`seed` of `fit` must be an integer of 64 bits; got 1.5"),
    (lambda: yo.fit(model(), chunk=0), "yoasovi has no setting chunk; it takes tolerance"),
    (lambda: yo.fit(model(), max_nonfinite=0), "`max_nonfinite` of `fit`"),
    (lambda: yo.fit(model(), nonfinite="warn"), "`nonfinite` of `fit` must be 'reject' or 'raise'"),
    (lambda: yo.fit(model(), resume="yes", checkpoint="x"), "`resume` of `fit` must be True or False"),
    (lambda: yo.fit(model(), checkpoint=7), "`checkpoint` of `fit` must be a folder or a Checkpoint; got 7"),
    (lambda: yo.Checkpoint("x", seconds=float("nan")), "`seconds` of `Checkpoint` must be a positive finite number"),
    (lambda: model(prior={"m": 1.0}), "`prior['m']` of `Model` must be a NumPyro distribution"),
    (lambda: model(data={"y": [[1.0], [2.0, 3.0]]}), "`data['y']` of `Model` must be an array, or lists of one length"),
    (lambda: model(data=np.array(["a"])), "`data` of `Model` must be numeric"),
    (lambda: model(data=np.array([np.inf])), "`data` of `Model` must be finite; got 1 NaN"),
    (lambda: model(log_likelihood=lambda p, d: jnp.sum(d)), "must return one value per observation"),
    (lambda: model(log_likelihood=lambda p, d: p["typo"]), "asks for 'typo', which is not there; there are the sites m"),
    (lambda: model(local={"m": dist.Normal()}), "`local` of `Model` repeats names"),
    (lambda: yo.load("nowhere"), "`folder` of `load`: nowhere holds no fit"),
    (lambda: yo.load(5), "`folder` of `load` must be a path"),
    (lambda: yo.models.LinearRegression(np.ones((3, 2)), np.ones(4)), "`y` of `LinearRegression` must be as long as"),
    (lambda: yo.models.LogisticRegression(np.ones((3, 2)), ["a", "b", "c"]), "`y` of `LogisticRegression` must be an array"),
]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with everything the table asks for, as the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("YOASOVI_TRACEBACK", raising=False)
    for name, (data, _) in FILES.items():
        write(tmp_path, name, data() if callable(data) else data)
    with zipfile.ZipFile("member.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    words = "sex,size,y\nf,s,1\nm,m,2\nf,l,4\nm,s,3\n"
    for name, text in (("good", GOOD), ("no_y", "a,b\n1,2\n"), ("only_y", "y\n1\n"), ("words", words)):
        write(tmp_path, f"{name}.csv", text)
    write(tmp_path, "mine.py", "raise SystemExit('this must not run')")
    head = {"identity": {}, "serial": 1, "step": 1, "numbers": {}}
    for name, line in (
        ("old", "what is this"),
        ("newer", json.dumps({"format": 7, "length": 3, "sha256": "", "head": head}) + "\nabc"),
        ("cut", json.dumps({"format": 1, "length": 100, "sha256": "", "head": head}) + "\nabc"),
        ("flipped", json.dumps({"format": 1, "length": 3, "sha256": "", "head": head}) + "\nabc"),
    ):
        (tmp_path / name).mkdir()
        write(tmp_path / name, "a.checkpoint", line)
    (tmp_path / "saved").mkdir()
    write(tmp_path / "saved", "fit.json", "{}")
    return tmp_path


def listing(folder):
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.rglob("*"))}


def test_sixty_and_more_bad_inputs_are_each_refused_in_their_own_words(desk):
    before, programs, said = listing(desk), compiling.num_programs(), []

    def tell(message, says, what):
        assert says.lower() in message.lower(), f"{what}: {message}"
        assert "Traceback" not in message and len(message) < 700, message
        said.append(message)

    rows = [(["fit", "linear", "--data", name], says) for name, (_, says) in FILES.items()] + LINES
    for args, says in rows:
        result = CliRunner().invoke(app, args)
        assert result.exit_code == 2, (args, result.output)
        line = result.stderr.splitlines()
        assert len(line) == 1 and line[0].startswith("yoasovi: ") and result.stdout == "", (args, result.output)
        tell(line[0], says, args)
    for call, says in CALLS:
        with pytest.raises(ValueError) as caught:
            call()
        tell(str(caught.value), says, says)
    assert len(said) >= 60 and len(set(said)) == len(said)
    assert listing(desk) == before and compiling.num_programs() == programs


def test_lists_of_numbers_are_arrays_of_a_models_data():
    by_name = lambda params, data: likelihood(params, data["y"])
    made = model(log_likelihood=by_name, data={"y": [1.0, 2.0], "more": ([[1, 2], [3, 4]], np.ones(2))})
    assert made.data["y"].tolist() == [1.0, 2.0] and made.data["more"][0].shape == (2, 2)
    assert model(data=[1.0, 2.0]).num_observations == 2
    given = {"y": np.ones(3)}
    assert model(log_likelihood=by_name, data=given).data is given


def test_the_help_says_what_is_code_and_what_is_data():
    text = " ".join(CliRunner().invoke(app, ["fit", "--help"]).stdout.split())
    assert "path.py:name runs the code in that file" in text
    assert "it is data, nothing in it is run" in text


def test_a_number_of_rows_that_cannot_be_is_refused(tmp_path):
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match=re.escape("no file")):
        read_columns(tmp_path / "x.csv")
