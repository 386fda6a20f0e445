"""Fixtures of this room."""

import pytest

import mpidec


@pytest.fixture
def net():
    with mpidec.Network() as net:
        yield net
