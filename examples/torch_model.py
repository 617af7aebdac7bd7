"""A density in PyTorch, with its gradient by autograd: robust regression with Student-t noise.

Needs `pip install torch`. Many points go into one call: a batch is one tensor, and the gradient of a sum over it is that of
each row. Unknown are two coefficients and log sigma, all real; the log Jacobian of the last is part of log p.
"""

import numpy as np
import numpyro.distributions as dist
import torch

import yoasovi as yo


def simulate(seed=0, n=80):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return x, 0.5 + 1.5 * x + 0.4 * rng.standard_t(3, size=n)


def in_torch(x, y):
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    prior = torch.distributions.Normal(torch.tensor(0.0, dtype=x.dtype), 3.0)

    def log_p(points):  # (n, 3) to (n,) and (n, 3)
        rows = torch.tensor(points, requires_grad=True)
        a, b, log_sigma = rows[:, :1], rows[:, 1:2], rows[:, 2:]
        noise = torch.distributions.StudentT(torch.tensor(4.0, dtype=x.dtype), a + b * x, log_sigma.exp())
        value = noise.log_prob(y).sum(1) + prior.log_prob(rows[:, :2]).sum(1)
        value = value + (log_sigma - log_sigma.exp())[:, 0]  # sigma ~ exponential(1), with its Jacobian
        value.sum().backward()
        return value.detach().numpy(), rows.grad.numpy()

    return yo.Model.external(log_p, 3, gradient=True, batched=True, name="in torch")


def in_jax(x, y):
    prior = {"w": dist.Normal(0, 3).expand([2]).to_event(1), "sigma": dist.Exponential(1.0)}
    log_p = lambda p, data: dist.StudentT(4.0, p["w"][0] + p["w"][1] * data["x"], p["sigma"]).log_prob(data["y"])
    return yo.Model(prior=prior, log_likelihood=log_p, data={"x": x, "y": y}, name="in JAX")


def main():
    data = simulate()
    ours, other = yo.fit(in_torch(*data), seed=0), yo.fit(in_jax(*data), seed=0)
    print(ours, other, sep="\n")
    assert ours.converged and ours.family.name == other.family.name == "full_rank" and ours.num_gradients > 0
    off = np.abs(ours.params.mean - other.params.mean) / ours.sd()["x"]
    print(f"means of q differ by at most {off.max():.4f} posterior sd; ELBOs by {ours.elbo.value - other.elbo.value:.3f}")
    assert (off < 0.05).all() and abs(ours.elbo.value - other.elbo.value) < 0.05


if __name__ == "__main__":
    main()
