"""Independent Gaussians."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from yoasovi.arrays import space
from yoasovi.families.base import LOG_2PI, SCALE_CAP, Gaussian, Proposal, clip, squares, whole_line_size
from yoasovi.windows.score_line import line_of_scales, matched, newton, newton_of_product

_WHOLE_LINES_UP_TO = 64  # parameters; beyond, as many draws do more as steps
_FEWEST = 64  # draws of a whole line: fewer may all miss the tails


class MeanFieldParams(NamedTuple):
    """Means and logarithms of scales."""

    mean: Any  # (d,)
    log_scale: Any  # (d,)


@dataclass(frozen=True)
class MeanField(Gaussian):
    """Independent Gaussians: theta = mean + exp(log_scale) * eps. O(d) per step."""

    name: ClassVar[str] = "mean_field"

    def init(self, mean: Any, scale: Any, rng: Any) -> Any:
        return MeanFieldParams(mean, space(mean).log(scale))

    def place(self, params: Any, eps: Any) -> Any:
        return params.mean[..., None, :] + space(eps).exp(params.log_scale)[..., None, :] * eps

    def minus_log_q(self, params: Any, eps: Any) -> Any:
        return 0.5 * squares(eps) + (params.log_scale + 0.5 * LOG_2PI).sum(-1)[..., None]

    def behind(self, params: Any, theta: Any) -> Any:
        return (theta - params.mean[..., None, :]) * space(theta).exp(-params.log_scale)[..., None, :]

    def log_q(self, params: Any, theta: Any) -> Any:
        return -0.5 * self.behind(params, theta) ** 2 - params.log_scale[..., None, :] - 0.5 * LOG_2PI

    def slope(self, params: Any, theta: Any) -> Any:
        return (params.mean[..., None, :] - theta) * space(theta).exp(-2.0 * params.log_scale)[..., None, :]

    def white(self, params: Any, eps: Any, grad: Any) -> Any:
        return space(grad).exp(params.log_scale)[..., None, :] * grad + eps

    def natural(self, params: Any, eps: Any, white: Any) -> Any:
        return MeanFieldParams(white, 0.5 * white * eps)

    def move(self, params: Any, step: Any, cap: Any) -> Any:
        return self._shifted(params, clip(step.mean, cap), clip(step.log_scale, space(params.mean).minimum(cap, SCALE_CAP)))

    def _shifted(self, params: Any, shift: Any, log_scales: Any) -> Any:
        return MeanFieldParams(params.mean + space(shift).exp(params.log_scale) * shift, params.log_scale + log_scales)

    def propose(self, params: Any, eps: Any, white: Any, full: Any, length: Any, trust: Any, weight: Any = None) -> Any:
        if full:
            step, signal, noise = newton_of_product(eps, white, length, trust, weight)
        else:
            fitted = line_of_scales(eps, white)
            step, signal, noise = newton(fitted, length, trust), fitted.signal, fitted.noise
        return Proposal(self._shifted(params, step.shift, step.log_scales), step.expected, signal, noise)

    def matched(self, noise: Any) -> Any:
        return matched(noise) if noise.shape[-2] > noise.shape[-1] else noise

    def line_size(self, dim: Any) -> Any:
        return max(_FEWEST, whole_line_size(dim)) if dim <= _WHOLE_LINES_UP_TO else 0

    def longest_line(self, dim: Any) -> Any:
        return 16 * self.line_size(dim)

    def bend(self, dim: Any) -> Any:
        # Slight bends of many coordinates add up, and a product's steps, noisy where parameters are correlated, follow
        # them no better.
        return max(1.5, 1.0 * dim)

    def frame(self, params: Any) -> Any:
        return params.mean, np.exp(params.log_scale)

    def widen(self, params: Any, factor: Any) -> Any:
        return params._replace(log_scale=params.log_scale + 0.5 * np.log(factor))
