"""Published experiments: the form of their tables, and the order of the methods in them."""

from __future__ import annotations

import csv
import io
from math import isnan

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

import mpidec  # noqa: E402
from mpidec import reproduce, topology as T  # noqa: E402
from mpidec.reproduce import acid, ceca, relaysgd  # noqa: E402
from mpidec.reproduce.command import main  # noqa: E402
from mpidec.reproduce.graphs import two_half_rounds  # noqa: E402

RELAY, GOSSIP, SGP = "RelaySGD, double trees", "DP-SGD, ring", "SGP, time-varying exponential"


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def test_every_method_has_its_published_figures_and_learning_rates():
    for method in relaysgd.METHODS.values():
        assert len(relaysgd.alphas(method)) == len(method.published) == len(method.rates)
    assert [relaysgd.METHODS[GOSSIP].published, relaysgd.METHODS[RELAY].published] == [
        (87.4, 79.9, 53.9),
        (87.4, 86.9, 84.6),
    ]
    assert ceca.METHODS["DSGD-CECA-2P"].published == 98.5 and acid.PUBLISHED["A2CiD2"][64] == 93.08


def test_two_half_rounds_are_two_rounds():
    for n in (2, 8, 12, 16):
        one, two = T.one_peer_exponential(n), two_half_rounds(n)
        for k in range(2 * two.period):
            expected = one.at(2 * k + 1).W.toarray() @ one.at(2 * k).W.toarray()
            np.testing.assert_allclose(two.at(k).W.toarray(), expected, atol=1e-15)


@pytest.fixture
def short(monkeypatch):
    """Runs of one epoch, with every algorithm once; the comparisons are those of the slow tests."""
    for module in (relaysgd, ceca, acid):
        monkeypatch.setattr(module, "QUICK", 1)
    monkeypatch.setattr(
        relaysgd,
        "METHODS",
        {label: method for label, method in relaysgd.METHODS.items() if "momentum" in label},
    )
    monkeypatch.setattr(acid, "WORKERS", (8, 16))


@pytest.mark.most(1)
@pytest.mark.parametrize("name", sorted(reproduce.EXPERIMENTS))
def test_quick_table(name, short):
    module = {"relaysgd-table2": relaysgd, "ceca-table2": ceca, "acid-table4": acid}[name]
    lines: list[str] = []
    table = reproduce.table(name, seeds=1, quick=True, on_line=lines.append)
    assert len(lines) == len(table.rows) and all(
        len(cells) == len(table.columns) for cells in table.rows.values()
    )
    if module is not acid:
        assert list(table.rows) == list(module.METHODS)
    assert (
        "digits" in table.measured
        and "another data set" in table.measured
        and "quick" in table.measured
    )
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    measured = [row for row in rows if row["mean"]]
    assert len(measured) >= 0.6 * len(rows) and all(
        row["settings"] and not isnan(float(row["mean"])) for row in measured
    )
    text = str(table)
    assert all(label in text for label in table.rows) and max(map(len, text.splitlines())) < 180


@pytest.mark.serial
def test_command(short, monkeypatch, tmp_path, capsys):
    label = f"{RELAY}, local momentum"
    monkeypatch.setattr(relaysgd, "METHODS", {label: relaysgd.METHODS[label]})
    assert main(["relaysgd-table2", "--quick", "--out", str(tmp_path / "table.csv")]) == 0
    out, error = capsys.readouterr()
    assert out.startswith("relaysgd-table2: test accuracy") and error.startswith(label)
    assert (tmp_path / "table.csv").read_text().count("\n") == 4
    for arguments, message in [
        (["table2"], "unknown experiment 'table2': did you mean"),
        (["ceca-table2", "--seeds", "0"], "seeds is 0, expected"),
        (["ceca-table2", "--fast"], "--fast"),
        (["ceca-table2", "--out", str(tmp_path / "none" / "x.csv")], "there is no folder"),
    ]:
        assert main(arguments) == 2
        out, error = capsys.readouterr()
        assert message in error and error.count("\n") == 1 and not out
    assert main(["--help"]) == 0 and "relaysgd-table2" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------------------
# Findings


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_relaysgd_and_sgp_keep_their_accuracy_where_gossip_loses_it():
    with mpidec.Network(relaysgd.WORKERS) as net:

        def mean(label, alpha):
            method = relaysgd.METHODS[label]
            return np.mean([relaysgd.accuracy(net, method, alpha, seed) for seed in (1, 2)])

        labels = (RELAY, "RelaySGD, chain", SGP, f"{SGP}, local momentum", GOSSIP)
        lost = {label: mean(label, 1.0) - mean(label, 0.01) for label in labels}
    assert lost.pop(GOSSIP) > 8 and max(lost.values()) < 6, lost
    assert max(lost[RELAY], lost[f"{SGP}, local momentum"]) < 2, lost


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(300)
def test_a2cid2_keeps_large_rings_together():
    runs = {name: acid.measured(64, eta, seed=1) for name, eta in acid.METHODS.items()}
    (_, worst, apart), (_, worst_acid, apart_acid) = runs["AD-PSGD (eta = 0)"], runs["A2CiD2"]
    assert apart_acid < 0.6 * apart and worst_acid > worst - 0.5, runs


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
