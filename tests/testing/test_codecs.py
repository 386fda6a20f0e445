"""`mpidec.testing.check_codec`: codecs of this package have the properties, and faults are found."""

from dataclasses import dataclass

import numpy as np
import pytest

from mpidec.comm.mixing.codecs import CODECS, QSGD, Float16, Identity, RandK, TopK
from mpidec.testing import CodecContract, ContractError, check_codec

pytestmark = pytest.mark.serial


class TestQSGD(CodecContract):
    codec = QSGD()


@pytest.mark.parametrize("name", sorted(set(CODECS) - {"qsgd"}))
def test_codecs_have_the_properties(name):
    check_codec(CODECS[name]())


def altered(base, **members):
    return dataclass(frozen=True)(type("Mine", (base,), members))()


def zero_nan(self, rows, d, dtype, step, agents):
    return np.nan_to_num(Identity.decode(self, rows, d, dtype, step, agents))


def shrunk(self, rows, d, dtype, step, agents):
    return np.asarray(0.7 * QSGD.decode(self, rows, d, dtype, step, agents), dtype)


def drawn(self, X, step, agents):
    return Identity.encode(self, X * np.random.default_rng().uniform(0.9, 1.0), step, agents)


def together(self, X, step, agents):
    return Identity.encode(self, X - X.mean(axis=0) * 1e-3, step, agents)


def divided(self, X, step, agents):
    return Identity.encode(self, X / np.abs(X).max() * np.abs(X).max(), step, agents)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "name, base, members",
    [
        ("shapes", TopK, {"nbytes": lambda self, d, dtype: TopK.nbytes(self, d, dtype) + 1}),
        ("shapes", Identity, {"decode": lambda self, *a: np.float64(Identity.decode(self, *a))}),
        ("shapes", TopK, {"add": lambda self, rows, X, *a: TopK.add(self, rows, X, *a[:2])}),
        ("draws", Identity, {"encode": drawn}),
        ("draws", Identity, {"encode": together}),
        ("delta", RandK, {"delta": lambda self, d: min(1.0, 3 * self.kept(d) / d)}),
        ("delta", TopK, {"delta": lambda self, d: 1.0}),
        ("mean", QSGD, {"decode": shrunk}),
        ("lossless", Float16, {"lossy": False}),
        ("small", Identity, {"encode": divided}),
        ("nonfinite", Identity, {"decode": zero_nan}),
    ],
)
def test_faults_are_found(name, base, members):
    with pytest.raises(ContractError, match=rf"fails '{name}': "):
        check_codec(altered(base, **members))
