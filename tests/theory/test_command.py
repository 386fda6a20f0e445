"""The table of theory: solvers that minimize, and those that only average."""

import pytest

from mpidec.theory.command import main

pytestmark = pytest.mark.serial


def test_averaging_has_a_rate_and_no_step_size(capsys, tmp_path):
    assert main(["ring", "--n=6", "--solver", "consensus", "dgd"]) == 0
    assert main(["random_matchings", "--n=6", "--solver", "consensus"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ring", "Consensus", "-", "0.66667", "-", "-"] in lines
    assert ["random_matchings", "Consensus", "-", "-", "-", "-"] in lines
    assert any(line[:2] == ["ring", "DGD"] and line[-1] == "dB" for line in lines)
    picture = str(tmp_path / "theory.png")
    assert main(["ring", "--n=6", "--solver", "consensus", "-o", picture]) == 2
    assert "no solver has a step size" in capsys.readouterr().err


def test_noise_of_links_is_a_flag(capsys):
    flags = ["ring", "--n=6", "--solver", "diffusion", "extra", "--link-noise=0.1"]
    assert main(flags) == 0
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines()]
    assert "noise 0.1, link noise 0.1; rate" in printed
    (level,) = [line[-4] for line in lines if line[1:2] == ["Diffusion"]]
    (growth,) = [line for line in lines if line[1:2] == ["EXTRA"]]
    assert float(level) < 0 and growth[-2:] == ["diverges", "diverges"]
    assert main(["ring", "--link-noise=-1"]) == 2
    assert "--link-noise -1.0: expected at least 0" in capsys.readouterr().err
