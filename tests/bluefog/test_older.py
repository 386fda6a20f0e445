"""What other packages have dropped, and programs of BlueFog's time use."""

from __future__ import annotations

import networkx
import numpy as np
import pytest

torch = pytest.importorskip("torch")


def test_numbers_that_require_gradients_can_be_plotted(monkeypatch):
    from mpidec.bluefog import older

    monkeypatch.setattr(torch.Tensor, "__array__", torch.Tensor.__array__)
    profiler = torch.autograd.profiler.profile
    monkeypatch.setattr(profiler, "__init__", profiler.__init__)
    monkeypatch.setattr(networkx, "to_numpy_matrix", None, raising=False)
    monkeypatch.delattr(networkx, "to_numpy_matrix")
    errors = [torch.tensor(v, requires_grad=True) for v in (0.5, 0.25)]
    older.restore()
    older.restore()
    np.testing.assert_array_equal(np.asarray(errors), [0.5, 0.25])
    np.testing.assert_array_equal(np.asarray(torch.arange(3.0), dtype=int), [0, 1, 2])
    with pytest.raises(RuntimeError, match="requires grad"):
        np.asarray(torch.ones(2, requires_grad=True))
    for use_cuda in (False, True):  # positional, as before PyTorch 1.8
        with torch.autograd.profiler.profile(True, use_cuda) as profile:
            torch.ones(2).sum()
        assert "aten::sum" in {event.name for event in profile.function_events}
    assert isinstance(networkx.to_numpy_matrix(networkx.path_graph(2)), np.matrix)
