"""The NumPyro door: a model function with its arguments in, a `Model` out.

The function is looked at without being run, to see its sites and which of them depend on which; from then on it is part of
compiled programs. A latent site whose law is fixed keeps it as its prior. One whose law depends on other sites has a flat
prior on its support, and its log probability joins the terms of the likelihood. One whose support moves with other sites,
as y ~ Uniform(0, x) does, becomes an unconstrained site `y_base`, and y itself a deterministic one. Discrete sites that
NumPyro can enumerate are summed out, with one term of log p for each member of the plates that all they touch is in, and
come back in draws. Of others, those that each member of a plate has one of are the model's local latents.

`YOASOVI` takes the place of `numpyro.infer.SVI` where there is a guide already.
"""

from typing import TYPE_CHECKING, Any

from yoasovi.numpyro.door import from_numpyro

if TYPE_CHECKING:
    from yoasovi.numpyro.svi import YOASOVI

__all__ = ["YOASOVI", "from_numpyro"]


def __getattr__(name: str) -> Any:
    if name == "YOASOVI":  # it imports NumPyro's inference, which a plain fit does not need
        from yoasovi.numpyro.svi import YOASOVI

        return YOASOVI
    raise AttributeError(f"module 'yoasovi.numpyro' has no attribute {name!r}")
