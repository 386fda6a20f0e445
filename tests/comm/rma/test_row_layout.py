"""How arrays of any kind lie in the row of a window."""

import numpy as np
import pytest

from mpidec import topology as T

pytestmark = pytest.mark.library


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64, np.complex128])
def test_dtypes(net, dtype):
    n, me = net.n, net.rank
    unit = np.ones((), dtype) * (1j if np.dtype(dtype).kind == "c" else 1)
    x = ((np.arange(6).reshape(2, 3) + me) * unit).astype(dtype)
    with net.window(x, T.ring(n)) as win:
        win.accumulate(win.value, dst_weights={int(j): 0.5 for j in T.ring(n).out_neighbors(me)})
        net.barrier()
        y = win.collect()
        near = T.ring(n).in_neighbors(me)
        assert y.dtype == dtype and y.shape == x.shape
        np.testing.assert_allclose(y, x + sum(0.5 * (x + (j - me) * unit) for j in near), rtol=1e-3)
        net.barrier()
        if dtype != np.float16:
            win.value[:] = 7  # the array itself
        win.value = 7 * np.ones_like(x)
        net.barrier()
        win.get([int(j) for j in near[:1]])
        assert all(np.all(win.update(0.0, [int(j)]) == 7) for j in near[:1])
        net.barrier()


def test_torch_and_lists(net):
    torch = pytest.importorskip("torch")
    n, me = net.n, net.rank
    near = T.ring(n).in_neighbors(me).tolist()
    for dtype in (torch.float32, torch.bfloat16):
        with net.window(torch.full((3,), float(me), dtype=dtype), T.ring(n)) as win:
            win.put(win.value)
            net.barrier()
            assert win.value.dtype == dtype
            assert win.collect().tolist() == [float(me + sum(near))] * 3
            net.barrier()
    with net.window([torch.ones(2, 2), torch.full((3,), 2.0)], T.ring(n)) as win:
        win.put(win.value)
        net.barrier()
        a, b = win.collect()
        assert (
            a.tolist() == [[1.0 + len(near)] * 2] * 2 and b.tolist() == [2.0 * (1 + len(near))] * 3
        )
        net.barrier()  # all have collected
        win.put([np.zeros((2, 2)), np.zeros(3)])
        net.barrier()


@pytest.mark.parametrize(
    "x, words",
    [
        (np.ones(3, int), "expected float16"),
        (np.ones(3, np.longdouble), "expected float16"),
        ([], "no arrays"),
        ([np.ones(2), np.ones(2, np.float32)], "expected one"),
        (np.ma.ones(3), "masked|expected float16"),
    ],
)
def test_arrays_that_no_window_takes(net, x, words):
    with pytest.raises((TypeError, ValueError), match=words):
        net.window(x, T.ring(net.n))


ODD = {
    "no entries": np.empty((3, 0)),
    "no axes": np.array(2.0),
    "a scalar": np.float64(2.0),
    "columns": np.arange(12.0).reshape(3, 4).T,
    "backwards": np.arange(6.0)[::-1],
    "every other": np.arange(10.0)[::2],
    "byte order": np.arange(4, dtype=">f8"),
    "read only": np.broadcast_to(1.0, (3, 2)),
    "a list of both": [np.empty(0), np.array(1.0)],
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_arrays(net, kind):
    x = ODD[kind]
    several = isinstance(x, list)
    with net.window(x, T.ring(net.n)) as win:
        win.accumulate([2 * one for one in x] if several else 2 * x)  # of another layout, perhaps
        win.accumulate(win.value)
        net.barrier()
        y = win.collect()
        for one, before in zip(y if several else [y], x if several else [x]):
            assert one.shape == np.shape(before)
            np.testing.assert_array_equal(one, (1 + 3 * len(win.in_neighbors)) * before)
        net.barrier()
        win.get()
        assert win.p == 1 + 2 * len(win.in_neighbors)
        net.barrier()


@pytest.mark.parametrize("kind", ["f2", "bfloat16", "list"])
def test_the_value_is_one_array_also_where_it_lies_beside_the_window(net, kind):
    if kind == "bfloat16":
        torch = pytest.importorskip("torch")
    x = np.ones(2, "f2") if kind != "bfloat16" else torch.ones(2, dtype=torch.bfloat16)
    with net.window([x, x] if kind == "list" else x, T.ring(net.n)) as win:
        (value,) = {
            id(one): one for one in (win.value[1] if kind == "list" else win.value,)
        }.values()
        win.put(win.value, self_weight=0.5)
        win.collect()
        value[:] = 9
        win.put(
            [x, x] if kind == "list" else x, self_weight=2.0
        )  # another array: the value is taken over nevertheless
        win.value = win.value
        assert (win.value[1] if kind == "list" else win.value) is value and value.tolist() == [
            18,
            18,
        ]
        net.barrier()
        value[:] = 5
        net.barrier()
        if net.rank == 0:  # its neighbours make no call: it reads their arrays
            win.get()
            slots = [win.slot(j) for j in win.in_neighbors]
            assert all((x[1] if kind == "list" else x).tolist() == [5, 5] for x in slots)
        net.barrier()
