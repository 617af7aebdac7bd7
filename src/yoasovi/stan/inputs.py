"""What the user gives: a program by path or as text, data by path or as a dict; and what Stan complains of, in a line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from yoasovi.errors import check, did_you_mean

ALIAS = "program.stan"  # what a program is called while it is compiled, so that another name does not compile it again
_PLACE = re.compile(r" \(in '.*', line.*\)$")


class StanSource(NamedTuple):
    """A Stan program, what to call it, and where its includes are."""

    text: str
    name: str
    file: str
    folder: Path


def read_program(program: str | Path) -> StanSource:
    """Read a program: a path ends in .stan, anything else is the program itself."""
    check(isinstance(program, str | Path), "program", "from_stan", "a path that ends in .stan, or a Stan program", program)
    text = str(program)
    if isinstance(program, str) and ("\n" in text or not text.endswith(".stan")):
        check("{" in text, "program", "from_stan", "a path that ends in .stan, or a Stan program", program)
        return StanSource(text, "stan_model", "program", Path.cwd())
    path = Path(program)
    if not path.is_file():
        raise ValueError(f"`program` of `from_stan`: there is no file {path}.")
    return StanSource(path.read_text(), path.stem, path.name, path.resolve().parent)


def read_data(data: Mapping[str, Any] | str | Path | None) -> str:
    """Give data as JSON in the form that Stan reads."""
    if data is None:
        return "{}"
    if isinstance(data, Mapping):
        return json.dumps({_name(k): _plain(k, v) for k, v in data.items()})
    check(isinstance(data, str | Path), "data", "from_stan", "a dict, or the path of a JSON file", data)
    path = Path(data)
    if not path.is_file():
        raise ValueError(f"`data` of `from_stan`: there is no file {path}.")
    try:
        found = json.loads(text := path.read_text())
    except ValueError as error:
        raise ValueError(f"`data` of `from_stan`: {path.name} is not JSON: {error}.") from error
    check(isinstance(found, dict), "data", "from_stan", "a JSON object with one entry per variable", f"{path.name}: {text}")
    return text


def _name(key: Any) -> str:
    check(isinstance(key, str), "data", "from_stan", "a dict with names as keys", key)
    return key


def _plain(name: str, value: Any) -> Any:
    """Give nested lists of numbers; tuples of Stan's are dicts."""
    if isinstance(value, Mapping):
        return {_name(k): _plain(f"{name}.{k}", v) for k, v in value.items()}
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    check(array.dtype.kind in "biuf", f"data[{name!r}]", "from_stan", "a number or an array of numbers", value)
    whole = array.dtype.kind in "bf" and bool(np.all((np.abs(array * 1) < 2**31) & (np.round(array * 1) == array)))
    return (array.astype(int) if whole else array).tolist()  # Stan takes whole numbers for real ones, not the other way


def syntax_line(said: str, source: StanSource) -> str:
    """Give what stanc complains of in one line: where, the line itself, and why."""
    head, _, rest = said.replace(f"'{ALIAS}'", f"'{source.file}'").strip().partition("\n")
    head = head.split(", parsing error")[0].rstrip(":")
    shown, _, why = rest.rpartition("---\n")
    line = next((x for x in re.findall(r"line (\d+)", head)), "")
    quoted = re.search(rf"^\s*{line}:(.*)$", shown, re.MULTILINE) if line else None
    at = f" `{quoted.group(1).strip()}`" if quoted else ""
    return f"`program` of `from_stan` is no Stan program. {head}:{at} {' '.join(why.split())}".strip()


def plainly(said: str, source: StanSource) -> str:
    """Give what Stan says in one line, without the names of functions (BridgeStan's) and with the user's file name."""
    said = re.sub(r"^\w+\(\) failed with exception: ", "", " ".join(said.split())).removeprefix("Exception: ")
    return said.replace(f"'{ALIAS}'", f"'{source.file}'")


def data_line(said: str, source: StanSource, data: str) -> str:
    """Give what Stan complains of in data in one line."""
    said = re.sub(r"\w+_namespace::\w+: ", "", plainly(said, source))
    fields = dict(re.findall(r"(variable name|dims declared|dims found)=(\([^)]*\)|[^\s;]+)", said))
    name, place = fields.get("variable name", ""), (_PLACE.findall(said) or [""])[-1]
    there = list(json.loads(data))
    if name and name not in there:
        got = f"{', '.join(there) or 'nothing'}.{did_you_mean(name, there)}"
        return f"`data` of `from_stan` must have {name!r}, which the program asks for{place}; got {got}"
    if "dims found" in fields:
        shapes = fields["dims declared"], fields["dims found"]
        return f"`data[{name!r}]` of `from_stan` must be of shape {shapes[0]}{place}; got shape {shapes[1]}."
    if "non-int" in said:
        return f"`data[{name!r}]` of `from_stan` must be whole numbers, written without a point{place}; got others."
    return f"`data` of `from_stan` is refused by Stan: {said.rstrip('.')}."
