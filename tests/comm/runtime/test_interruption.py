"""Interrupts: by Ctrl-C, and by the signals of batch systems."""

import signal

import pytest

from mpidec.comm.runtime.interruption import interrupt, interrupts

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_a_signal_of_a_batch_system_counts_also_where_ctrl_c_is_ignored(handler):
    """As it is for what a shell script has in the background."""
    former = signal.signal(signal.SIGINT, handler)
    try:
        with interrupts() as interrupted, interrupts() as inner:
            assert not interrupted()
            interrupt()
            interrupt()
            assert interrupted() and inner()
        assert signal.getsignal(signal.SIGINT) is handler
        with interrupts() as interrupted:
            assert not interrupted()
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    finally:
        signal.signal(signal.SIGINT, former)
