"""Zero-attracting diffusion: LMS for parameters of which most are zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from ..protocols import Graph, Operator
from .base import Bias
from .diffusion import DGD, Diffusion
from .needs import Positive, Within


@dataclass(frozen=True)
class ZeroAttractingDiffusion(Diffusion):
    r"""Zero-attracting diffusion LMS (ZA), for sparse parameters: diffusion with a subgradient of
    an l1 norm; and the reweighted one (RZA), which attracts large entries less.

    .. math::
        \text{atc}:\; X^{k+1} = W^k \bigl(X^k - \alpha (\nabla F(X^k) + \rho\, S(X^k))\bigr), \qquad
        S_{\text{ZA}}(x) = \mathrm{sign}(x), \quad
        S_{\text{RZA}}(x) = \frac{\mathrm{sign}(x)}{\epsilon + |x|},

    entry by entry, with :math:`\mathrm{sign}(x) = x / |x|` of complex entries; cta likewise, at
    :math:`\Phi^k`.

    Parameters
    ----------
    step_size : float, "auto", "safe" or function of k
        :math:`\alpha`
    order : {"atc", "cta"}
    rho : float
        :math:`\rho \ge 0`; it pays up to about the standard deviation of a gradient's noise divided
        by the square root of what it is averaged over.
    reweighted : bool
        Whether to take RZA.
    epsilon : float
        :math:`\epsilon > 0` of RZA: entries far below it are attracted, those far above hardly.

    Notes
    -----
    Sent per step, and `W`: as `Diffusion`.  ZA takes the steps of `Diffusion` with the gradients
    ``problems.Subgradient(problem)`` of a problem with the term ``problems.l1(rho)``.  It moves the
    limit by about :math:`\rho / h` for curvatures h, which does not shrink with the step size. Near
    zero, entries alternate in sign, within :math:`\alpha \rho`; those of `ProximalDiffusion` are
    zero.

    Examples
    --------
    >>> import mpidec, numpy as np
    >>> b = np.array([[1.0, 0.05], [1.2, -0.05]])
    >>> problem = mpidec.problems.LeastSquares(np.tile(np.eye(2), (2, 1, 1)), b)
    >>> solver = ZeroAttractingDiffusion(0.01, rho=0.1)
    >>> abs(mpidec.solve(problem, solver, "complete", steps=2000).X).round(2).tolist()
    [[1.0, 0.0], [1.0, 0.0]]

    References
    ----------
    P. Di Lorenzo, A. H. Sayed, "Sparse distributed learning based on diffusion adaptation", IEEE
    TSP 61 (2013).
    """

    keeps_mean: ClassVar = False
    rho: Annotated[float, Within(least=0.0)] = 1e-3
    reweighted: bool = False
    epsilon: Positive = 0.1

    @property
    def by_parts(self) -> bool:
        return False

    def bias_on(self, topology: Graph) -> Bias:
        return Bias.OTHER if self.rho else super().bias_on(topology)

    def step(self, s: DGD.State, G: np.ndarray, W: Operator) -> DGD.State:
        X = self.point(s)
        size = abs(X)
        S = X / (size + (size == 0))
        if self.reweighted:
            S = S / (self.epsilon + size)
        return super().step(s, G + self.rho * S, W)
