"""Processes of this host that end."""

import subprocess
import sys

import pytest

from mpidec.comm.runtime.survivors import _ended

HOLDING = (
    "import os, time; pipes = [os.pipe() for _ in range(400)]; print(flush=True); time.sleep(60)"
)


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_process_counts_as_dead_once_its_connections_are_closed():
    for _ in range(20):
        command = [sys.executable, "-S", "-c", HOLDING]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            assert not _ended(process.pid, ending=True)
            process.kill()
            assert process.stdout.read() == b""  # closed, as others see it
            assert _ended(process.pid, ending=True)
        assert _ended(process.pid)
