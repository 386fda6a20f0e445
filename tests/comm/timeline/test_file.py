"""The file of one rank: full disks, killed processes, links."""

from __future__ import annotations

import errno
import json
import os
import signal
import time

import numpy as np
import pytest
from helpers import launch

import mpidec
from mpidec.comm.timeline import file as files_of_ranks
from mpidec.comm.timeline.merge import merge


@pytest.mark.serial
def test_a_disk_that_is_full_is_told_once(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(os, "O_NOFOLLOW", 0)  # the link stands for the disk
    (tmp_path / "t.0.json").symlink_to("/dev/full")
    with mpidec.Network(4, timeline=str(tmp_path / "t.")) as net:
        W = net.mixer(mpidec.topology.ring(4))
        for _ in range(3):
            W(np.ones((4, 2)))
            net.context.timeline.file.flush()
        thread = net.context.timeline.file.writer
        thread.join(launch.patient(10))
        assert not thread.is_alive()
    (line,) = capfd.readouterr().err.splitlines()
    reason = os.strerror(errno.ENOSPC)
    assert line == f"mpidec: the timeline {tmp_path / 't.0.json'} ends here: {reason}"


@pytest.mark.serial
def test_a_process_that_is_killed_leaves_its_events(tmp_path):
    path, child = tmp_path / "t.0.json", os.fork()
    if not child:
        made = files_of_ranks.TimelineFile(str(path), 0)
        made.add(made.kind("a", "b"), 1000, 3000)
        time.sleep(60)
    launch.until(lambda: path.exists() and '"dur":2' in path.read_text(), 10)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    merge([path.read_text()], tmp_path / "all.json")
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert "a" in {event["name"] for event in events}


@pytest.mark.serial
def test_a_timeline_follows_no_link(tmp_path):
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "t0.json").symlink_to(tmp_path / "kept")
    with pytest.raises(OSError, match="symbolic links"):
        files_of_ranks.TimelineFile(str(tmp_path / "t0.json"), 0)
    assert (tmp_path / "kept").read_text() == "mine"
