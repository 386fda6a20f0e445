"""Buckets that leave when they are ready: the bits of those that leave together, and what is refused.  Any number of ranks."""

import contextlib

import numpy as np
import pytest
from mpi4py import MPI

import mpidec
from mpidec import RankMismatchError

pytestmark = pytest.mark.most(1)

torch = pytest.importorskip("torch")
nn, optim = torch.nn, mpidec.optim
torch.set_num_threads(1)
WORLD = MPI.COMM_WORLD
ONE, MANY = 1 << 20, 3000  # bytes of a bucket: one for all, or one for each layer


@pytest.fixture
def net(monkeypatch):
    """Each rank on a node of its own: rows travel in messages."""
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "1")
    with mpidec.Network() as net:
        yield net


def layers():
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(*parts, nn.Linear(24, 3))


def momentum(model):
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.01)


def two_groups(model):
    groups = [
        {"params": list(model[:2].parameters())},
        {"params": list(model[2:].parameters()), "lr": 3e-3},
    ]
    return torch.optim.AdamW(groups, 0.01)


class Training:
    """Eight steps of one kind; how many buckets had left before `step` is counted."""

    def __init__(self, net, algorithm, kind="plain", make=momentum, **options):
        self.net, self.kind, self.model = net, kind, layers()
        self.optimizer = optim.Decentralized(
            make(self.model), self.model, algorithm=algorithm, net=net, **options
        )
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if "scaler" in kind else None
        self.draws, self.early = torch.Generator().manual_seed(net.rank), 0

    def backward(self, step):
        skips = self.kind == "unused" and (step + self.net.rank) % 3 == 0
        y = self.model[: 2 if skips else 4](torch.randn(8, 24, generator=self.draws))
        loss = self.model[4](y).square().mean()
        if self.kind == "scaler" and (step, self.net.rank) == (3, self.net.size - 1):
            loss = loss * float("inf")
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, step):
        self.optimizer.zero_grad()
        irregular = self.kind == "irregular" and step % 3 == self.net.rank
        for _ in range(3 if self.kind == "accumulate" or irregular else 1):
            self.backward(step)
        if self.kind == "dropped" and step == 4:
            self.optimizer.zero_grad()
            self.backward(step)
        if self.kind == "clip":
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
        if self.kind == "calls":
            self.net.comm.allgather(step)
            self.net.mean(np.ones((self.net.m, 2)))
        departures = self.optimizer.averager._departures
        self.early += 0 if departures is None else departures.left
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def run(self):
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 8)
        for step in range(8):
            self.step(step)
            schedule.step()
        self.optimizer.close()
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


KINDS = ["plain", "accumulate", "irregular", "clip", "unused", "calls", "scaler", "dropped"]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_leave_early_have_the_same_average(net, kind):
    """As in one bucket whose step waits for all gradients."""
    whole = Training(net, "allreduce", kind, bucket_bytes=ONE)
    whole.optimizer.averager._departures = whole.optimizer.averager._method.departures = None
    parts = Training(net, "allreduce", kind, bucket_bytes=MANY)
    assert torch.equal(parts.run(), whole.run())
    if net.size > 1:
        assert (parts.early > 0) == (kind != "irregular" or net.rank > 0)


OVERLAPPED = ["atc", "relay", "d2", "gradient_tracking", "push_sum", "choco"]


@pytest.mark.parametrize("algorithm", [*OVERLAPPED, "awc"])
def test_buckets_that_are_updated_early_have_the_same_bits(net, algorithm):
    make = momentum if algorithm in ("atc", "d2") else two_groups
    kind = {"atc": "accumulate", "d2": "unused", "relay": "calls"}.get(algorithm, "plain")
    graph = {"topology": "chain"} if algorithm == "relay" else {}
    whole = Training(net, algorithm, kind, make, bucket_bytes=MANY, **graph)
    parts = Training(net, algorithm, kind, make, bucket_bytes=MANY, overlap=True, **graph)
    if algorithm == "awc":
        whole.optimizer.averager.by_bucket = False
    assert torch.equal(parts.run(), whole.run())
    assert algorithm == "awc" or parts.early > 0


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda t: nn.utils.clip_grad_norm_(t.model.parameters(), 1e-3), "has changed after its"),
        (lambda t: t.backward(0), "has changed after its update"),
        (lambda t: t.optimizer.zero_grad(), "gradients are dropped after a backward pass"),
        (lambda t: t.optimizer.step(lambda: None), r"step\(closure\) with overlap=True"),
    ],
)
def test_a_gradient_that_changes_after_its_update_is_refused(net, change, words):
    training = Training(net, "atc", bucket_bytes=MANY, overlap=True)
    training.step(0)
    training.optimizer.zero_grad()
    training.backward(1)

    def go_on():
        change(training)
        training.optimizer.step()

    with pytest.raises((RuntimeError, ValueError), match=words):
        go_on()


def test_what_cannot_overlap_is_refused(net):
    def refused(words, error=ValueError, algorithm="atc", make=momentum, **options):
        def train():
            Training(net, algorithm, "scaler", make, overlap=True, **options).step(0)

        with pytest.raises(error, match=words):
            train()

    class Own(torch.optim.SGD):
        """One that may look at all parameters."""

    refused("Own may need all gradients at once", make=lambda m: Own(m.parameters(), 0.1))
    refused("'local' mixes in every 5th step", algorithm="local")
    refused("'demuon' needs the updates of all", algorithm="demuon")
    refused("a GradScaler divides the gradients", RuntimeError)
    with pytest.raises(ValueError, match="use Decentralized"):
        optim.Averager(layers(), overlap=True)


@pytest.mark.parametrize("algorithm", ["atc", "d2", "allreduce", "awc"])
def test_a_worker_that_is_not_finite_is_named_although_buckets_have_left(monkeypatch, algorithm):
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "1")
    said = ""
    with contextlib.suppress(RankMismatchError), mpidec.Network() as net:
        training = Training(net, algorithm, bucket_bytes=MANY, overlap=True)
        for step in range(12):
            try:
                if step == 3 and net.rank == net.size - 1:
                    training.model[4].bias.register_hook(lambda g: g * float("nan"))
                training.step(step)
            except (ValueError, RuntimeError) as error:
                said = str(error)
                break
    if WORLD.rank == WORLD.size - 1:
        whose = "gradient" if algorithm == "allreduce" else "parameter"
        assert said.startswith(f"worker {WORLD.rank}, step 3: {whose} 4.bias is nan")
    else:
        assert said and not said.startswith("worker ")


def test_buckets_leave_on_one_node():
    with mpidec.Network() as net:
        for algorithm in "allreduce", "atc", "relay":
            graph = {"topology": "chain"} if algorithm == "relay" else {}
            parts = Training(net, algorithm, bucket_bytes=MANY, overlap=True, **graph)
            whole = Training(net, algorithm, bucket_bytes=ONE, **graph)
            torch.testing.assert_close(parts.run(), whole.run(), rtol=0, atol=0)


def test_what_has_left_for_a_step_that_is_not_taken_is_completed(net):
    for algorithm in "allreduce", "atc":
        training = Training(net, algorithm, bucket_bytes=MANY, overlap=True)
        for step in range(2):
            training.step(step)
        training.backward(2)
        training.optimizer.close()
        training.backward(2)  # nothing leaves any more
    assert net.mean(np.ones((net.m, 1))) == 1


def test_ranks_wait_neither_for_buckets_that_leave_late_nor_for_steps_that_are_not_taken(net):
    """A parameter that some ranks do not use, over edges that are new in each step."""
    graph = {"topology": "one_peer_exponential", "bucket_bytes": MANY}
    parts = Training(net, "atc", "unused", overlap=True, **graph)
    assert torch.equal(parts.run(), Training(net, "atc", "unused", **graph).run())


def test_unequal_numbers_of_steps_are_found_at_once(monkeypatch):
    monkeypatch.setenv("MPIDEC_RANKS_PER_NODE", "1")
    if WORLD.size == 1:
        pytest.skip("one rank")
    with contextlib.suppress(RankMismatchError), mpidec.Network() as net:
        training = Training(net, "atc", bucket_bytes=MANY, overlap=True)

        def train():
            for step in range(10 if net.rank else 8):
                training.step(step)
            with training.optimizer.consensus():
                pass

        words = r"every rank must call step|gave up|out of step"
        with pytest.raises((RankMismatchError, RuntimeError), match=words):
            train()


@pytest.mark.parametrize("algorithm", ["local", "diloco", "gasloc", "noloco", "slowmo"])
def test_between_outer_steps_the_consensus_is_the_average_of_the_workers(net, algorithm):
    if algorithm == "noloco" and net.n % 2:
        pytest.skip("pairs")
    training = Training(net, algorithm)
    for step in range(3):
        training.step(step)
    own = torch.cat([p.detach().flatten() for p in training.model.parameters()])
    due = np.asarray(net.comm.allgather(own.numpy()), dtype=np.float64).mean(axis=0)
    with training.optimizer.consensus() as distance:
        shown = torch.cat([p.detach().flatten() for p in training.model.parameters()])
    np.testing.assert_allclose(shown.numpy(), due, atol=1e-6)
    assert (distance > 0) == (net.n > 1)
    training.optimizer.close()
