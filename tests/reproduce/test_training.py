"""Trainings as cells of experiments."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

import mpidec  # noqa: E402
from mpidec import topology as T  # noqa: E402
from mpidec.reproduce.graphs import two_half_rounds  # noqa: E402
from mpidec.reproduce.training import DIGITS, trained  # noqa: E402


def test_two_half_rounds_are_two_rounds():
    for n in (2, 8, 12, 16):
        one, two = T.one_peer_exponential(n), two_half_rounds(n)
        for k in range(2 * two.period):
            expected = one.at(2 * k + 1).W.toarray() @ one.at(2 * k).W.toarray()
            np.testing.assert_allclose(two.at(k).W.toarray(), expected, atol=1e-15)


@pytest.mark.serial
def test_a_cell_is_a_training_and_a_diverged_one_has_no_accuracy():
    short = {**DIGITS, "epochs": 1, "algorithm": "atc", "topology": "ring"}
    found, fit = trained(3, short), mpidec.train.fit(workers=3, **short)
    assert np.array_equal(found["accuracy"], fit.accuracy)
    assert found["bytes"].tolist() == fit.metrics["bytes"].tolist()
    lost = trained(3, {**short, "lr": 1e30})
    assert not lost["accuracy"].any() and np.isnan(lost["loss_mean"]).all()


@pytest.mark.serial
def test_decentlam_removes_the_bias_of_momentum():
    """Quadratics on a ring: the bias of local momentum is that of a step size 1 / (1 - beta) as large, DecentLaM's that of DGD."""
    n, p, d, step = 8, 5, 3, 0.01
    rng = np.random.default_rng(0)
    A = 2 * np.linalg.qr(rng.standard_normal((n, p, d)))[0]  # Hessians 4 I
    b = rng.standard_normal((n, p))
    x_star = np.linalg.lstsq(A.reshape(-1, d), b.ravel(), rcond=None)[0]

    def bias(algorithm, momentum):
        with mpidec.Network(n) as net:
            inputs, targets = (torch.from_numpy(array[net.lo : net.hi]) for array in (A, b))
            start = torch.nn.Linear(d, 1, bias=False).double()
            torch.nn.init.zeros_(start.weight)
            model = mpidec.nn.Stacked(start, net.m)
            sgd = torch.optim.SGD(model.parameters(), lr=step, momentum=momentum)
            with mpidec.optim.Decentralized(sgd, model, T.ring(n), algorithm, net) as optimizer:
                for _ in range(250):
                    optimizer.zero_grad()
                    (0.5 * (model(inputs).squeeze(-1) - targets).square().sum()).backward()
                    optimizer.step()
            return (
                net.comm.allreduce(float(np.square(model.weight.detach().numpy() - x_star).sum()))
                ** 0.5
            )

    plain, momentum, decentlam = bias("atc", 0.0), bias("atc", 0.9), bias("decentlam", 0.0)
    assert decentlam == pytest.approx(plain, rel=1e-3) and momentum > 4 * decentlam, (
        plain,
        momentum,
        decentlam,
    )
