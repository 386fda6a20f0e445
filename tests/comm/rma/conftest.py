"""A network for each way in which rows of windows travel."""

import pytest
from helpers.windows import TRANSPORTS

import mpidec


@pytest.fixture(params=["auto", "p2p", pytest.param("rma", marks=pytest.mark.slow)])
def net(request):
    with mpidec.Network(**TRANSPORTS[request.param]) as net:
        yield net
