"""Fixtures of this room."""

import pytest

from mpidec.comm.checks.matching import Matching


@pytest.fixture
def matching(comm):
    own = comm.Dup()
    matching = Matching(own, serial=5)
    yield matching
    matching.close()
    own.Free()
