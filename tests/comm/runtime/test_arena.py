"""The arena: where arrays lie, contexts, blocks, pages, threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.arena import inside
from mpi4py import MPI

import mpidec
from mpidec import topology as T
from mpidec.comm.runtime import arena as arena_module

shared = arena_module.shared


pytestmark = [
    pytest.mark.library,
    pytest.mark.skipif(shared is None or arena_module.arena() is None, reason="there is no arena"),
    pytest.mark.timeout(200),
]


GRAIN = 1 << 14 if shared is None else shared.GRAIN
SMALL, LARGE, HUGE = (
    5,
    20_007,
    600_001,
)  # columns of rows that are copied, and that are read in place


def handler():
    """The name of the allocator that NumPy uses for the next array."""
    return (
        np._core.multiarray.get_handler_name()
        if hasattr(np, "_core")
        else np.core.multiarray.get_handler_name()
    )


ORDINARY = handler()
OURS = "mpidec_arena"


def test_large_arrays_lie_in_the_arena():
    with mpidec.Network() as net:
        with net.memory():
            assert handler() == OURS
            X = np.empty((3, GRAIN // 8))
            small = np.empty(GRAIN // 8 - 1)
            made = [
                np.ones(LARGE),
                np.zeros(LARGE),
                X + 1,
                X[:, ::2] * 2,
                np.concatenate([X, X]),
                X.copy(),
                np.full(LARGE, 3.0),
                np.linspace(0, 1, LARGE),
                X @ np.ones((GRAIN // 8, LARGE // 8)),
                np.array([0.5] * LARGE),
            ]
        assert handler() == ORDINARY
        assert inside(X) and not inside(small) and all(inside(one) for one in made)
        assert not inside(np.empty(LARGE))
        Y = net.empty(LARGE)
        assert inside(Y) == (Y.nbytes >= GRAIN) and Y.shape == (net.m, LARGE)
        assert X.ctypes.data % 64 == 0 and Y.ctypes.data % 64 == 0


def test_views_lie_where_their_array_lies():
    with arena_module.memory():
        X = np.arange(4.0 * LARGE).reshape(4, LARGE)
    for view in (
        X[1:],
        X[:, 5:9],
        X[::-1],
        X[:, ::-3],
        X.T,
        X.reshape(-1),
        X.view(np.float32),
        X[3, -1:],
        X.real,
        np.frombuffer(X),
        np.lib.stride_tricks.as_strided(X, (2, 2), (8, 8)),
    ):
        assert inside(view)
    assert not inside(np.empty(LARGE)[3:])


def test_tensors_of_torch_lie_where_their_array_lies():
    torch = pytest.importorskip("torch")
    with arena_module.memory():
        X = np.ones(LARGE)
    tensor = torch.from_numpy(X)
    assert shared.in_arena(tensor.data_ptr()) and shared.in_arena(tensor[5:].data_ptr())
    del X
    gc.collect()
    with arena_module.memory():
        other = [np.zeros(LARGE) for _ in range(5)]
    assert float(tensor.sum()) == LARGE and not any(np.any(one) for one in other)


def test_nested_contexts():
    with arena_module.memory():
        with arena_module.memory():
            assert handler() == OURS
        assert handler() == OURS
        with mpidec.Network(comm=MPI.COMM_SELF) as net, net.memory():
            assert handler() == OURS
        assert handler() == OURS
    assert handler() == ORDINARY


def test_a_context_that_an_exception_leaves():
    with contextlib.suppress(KeyError), arena_module.memory():
        raise KeyError
    assert handler() == ORDINARY
    one = arena_module.memory()
    for _ in range(3):  # the same object, entered again
        with one:
            assert handler() == OURS
        assert handler() == ORDINARY


def test_a_solve_that_an_exception_ends_restores_the_allocator():
    class Problem(mpidec.problems.LeastSquares):
        def grad(self, X):
            if handler() == OURS:  # not in the check of the problem before
                raise KeyError
            return super().grad(X)

    with pytest.raises(KeyError):
        mpidec.solve(
            Problem(np.ones((4, 2, 3)), np.ones((4, 2))),
            mpidec.solvers.DGD(0.1),
            T.ring(4),
            steps=3,
            net=mpidec.Network(4, comm=MPI.COMM_SELF),
        )
    assert handler() == ORDINARY


def test_a_generator_that_is_suspended_in_a_context_and_closed():
    def rows():
        with arena_module.memory():
            while True:
                yield np.ones(LARGE)

    numbers = rows()
    assert inside(next(numbers))
    numbers.close()
    assert handler() == ORDINARY


def test_threads_and_tasks_have_contexts_of_their_own():
    seen = []
    with arena_module.memory():
        thread = threading.Thread(target=lambda: seen.append(handler()))
        thread.start()
        thread.join()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            seen.append(pool.submit(handler).result())

    def enter():
        with arena_module.memory():
            seen.append(handler())

    async def task():
        with arena_module.memory():
            await asyncio.sleep(0)
            return handler()

    async def tasks():
        return await asyncio.gather(task(), task()), handler()

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert (seen[2], handler()) == (OURS, ORDINARY)
    assert asyncio.run(tasks()) == ([OURS, OURS], ORDINARY)
    assert seen[0] == seen[1]  # whichever Python gives to new threads


def test_blocks_are_used_again():
    with arena_module.memory():
        X = np.empty(LARGE)
        place = X.ctypes.data
        del X
        X = np.empty(LARGE)
        assert X.ctypes.data == place
        before = shared.arena_stats()
        for k in range(300):
            del X
            X = np.empty(LARGE + k)
        assert shared.arena_stats()[:2] == before[:2] and inside(X)


def test_every_array_of_a_random_program_keeps_its_numbers():
    rng, arrays = np.random.default_rng(0), {}
    live = shared.arena_stats()[1]
    with arena_module.memory():
        for k in range(1500):
            if len(arrays) > 30 or (arrays and rng.random() < 0.45):
                key = list(arrays)[int(rng.integers(len(arrays)))]
                X = arrays.pop(key)
                assert np.all(key == X), key
            else:
                arrays[k] = np.full(int(2 ** rng.uniform(8, 18)), k, float)
    for key, X in arrays.items():
        assert np.all(key == X)
    arrays.clear()
    del X
    assert shared.arena_stats()[1] == live


@pytest.mark.parametrize("size", [GRAIN // 8, LARGE, HUGE])
def test_zeros_are_zeros(size):
    """Also in blocks that had other numbers before, and in those whose pages were given back."""
    with arena_module.memory():
        for k in range(20):
            X = np.full(size, np.nan)
            del X
            X = np.zeros(size + k % 3)
            assert not X.any()
            X[...] = np.nan
            del X
        X = [np.full(HUGE, np.nan) for _ in range(40)]  # more than is kept
        del X
        assert not any(np.zeros(HUGE).any() for _ in range(40))
        assert not any(np.zeros(LARGE, dtype).any() for dtype in (np.uint8, np.float32, complex))


@pytest.mark.parametrize(
    "first, then",
    [
        (LARGE, 5 * LARGE),
        (5 * LARGE, LARGE),
        (10, LARGE),
        (LARGE, 10),
        (LARGE, LARGE + 1),
        (LARGE, 0),
    ],
)
def test_resize(first, then):
    with arena_module.memory():
        for _ in range(5):
            trash = np.full(max(first, then), np.nan)
            del trash
            X = np.arange(float(first))
            X.resize(then, refcheck=False)
            kept = min(first, then)
            np.testing.assert_array_equal(X[:kept], np.arange(float(kept)))
            assert not X[kept:].any()
    X.resize(first, refcheck=False)  # in the memory where it was made, whichever is used now
    np.testing.assert_array_equal(X[:kept], np.arange(float(kept)))
    assert inside(X) == (first * 8 >= GRAIN) or first == 10 or then in (0, 10)


def test_objects_and_strings():
    with arena_module.memory():
        X = np.array([{"k": k} for k in range(5000)], dtype=object)
        S = np.array(["abc"] * 20_000)
    gc.collect()
    assert X[4999]["k"] == 4999 and set(S) == {"abc"}


def rss():
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split()[0][:-1]: int(line.split()[1]) for line in lines if "kB" in line}


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="what a process uses is read in /proc"
)
def test_pages_of_large_arrays_go_back():
    """200 MB in the arena, of which half may be kept for later."""
    gc.collect()
    with arena_module.memory():
        X = [np.ones(1_250_000) for _ in range(20)]
        most = rss()["RssShmem"]
        assert most >= 190_000
        del X
        gc.collect()
    assert rss()["RssShmem"] - most <= -80_000


def test_free_blocks_of_other_sizes_do_not_keep_temporaries_cold():
    """After 160 MB of large arrays were freed, temporaries of 64 KB still lie in memory that has been used before."""
    with arena_module.memory():
        X = [np.ones(1_000_000) for _ in range(20)]
        del X
        X = np.ones(8192)
        for _ in range(10):
            Y = 2 * X - X
            X = Y + 0
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for _ in range(50):
            Y = 2 * X - X
            X = Y + 0
        assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before <= 100


@pytest.mark.serial
def test_a_forked_child_has_the_numbers_of_its_parent():
    with arena_module.memory():
        arrays = [np.arange(size, dtype=float) for size in (GRAIN // 8, LARGE, HUGE)]
    assert all(map(inside, arrays))
    child = os.fork()
    if not child:
        equal = all(np.array_equal(X, np.arange(len(X))) for X in arrays)
        for X in arrays:
            X[:] = -1  # in memory of its own
        os._exit(0 if equal else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(np.array_equal(X, np.arange(len(X))) for X in arrays)


def test_six_threads():
    """Arrays are made, written, handed over and freed by any thread."""
    failed, hands, live = [], [[] for _ in range(6)], shared.arena_stats()[1]

    def work(number):
        rng = np.random.default_rng(number)
        try:
            with arena_module.memory():
                for k in range(400):
                    value = float(1000 * number + k)
                    hands[int(rng.integers(6))].append(
                        (value, np.full(int(rng.integers(GRAIN // 8, 8 * GRAIN)), value))
                    )
                    with contextlib.suppress(IndexError):
                        value, X = hands[number].pop(0)
                        assert X[0] == X[-1] == X[len(X) // 2] == value
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for hand in hands:
        for value, X in hand:
            assert np.all(value == X)
    hands.clear()
    hand = X = None
    gc.collect()
    assert shared.arena_stats()[1] == live
