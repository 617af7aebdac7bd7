"""The NumPyro door: a model function with its arguments in, a `Model` out.

The function is run a few times to see its sites and which of them depend on which; from then on only inside compiled
programs. A latent site whose law is fixed keeps it as its prior. One whose law depends on other sites has a flat prior
on its support, and its log probability joins the terms of the likelihood. One whose support moves with other sites, as
y ~ Uniform(0, x) does, becomes an unconstrained site `y_base`, and y itself a deterministic one. Discrete sites of a
plate that NumPyro would enumerate are the model's local latents, so that each is judged by its own observation.

`YOASOVI` takes the place of `numpyro.infer.SVI` where there is a guide already.
"""

from yoasovi.numpyro.door import from_numpyro
from yoasovi.numpyro.svi import YOASOVI

__all__ = ["YOASOVI", "from_numpyro"]
