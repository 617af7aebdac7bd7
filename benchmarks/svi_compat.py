"""NumPyro's own tests of SVI with YOASOVI in its place: `python benchmarks/svi_compat.py CLONE [pytest options]`.

CLONE is a clone of https://github.com/pyro-ppl/numpyro of the version that is installed.
"""

import sys
from collections import Counter
from pathlib import Path

from swapped import outcomes

BY_DESIGN = {
    "test_stable_run[False]": "asserts NaN without `stable_update`; here a step that is not finite is always left out",
}


def main(clone: str, *options: str) -> None:
    line = "from yoasovi.numpyro import YOASOVI as SVI"
    found = outcomes(Path(clone) / "test" / "infer" / "test_svi.py", line, *options)
    print(dict(Counter(kind for kind, _ in found.values())))
    for name, (kind, text) in found.items():
        if kind == "failed":
            print(f"{name}: {BY_DESIGN.get(name) or text}")
    sys.exit(any(kind == "failed" and name not in BY_DESIGN for name, (kind, _) in found.items()))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
