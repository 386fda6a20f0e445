"""Every synchronous algorithm: its equations on dense rows, with all that a training has at once; calls that change nothing.

Any number of ranks.
"""

import contextlib
import copy
import functools
import math
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest

import mpidec
from mpidec import topology

pytestmark = pytest.mark.most(2)

torch = pytest.importorskip("torch")
nn, optim = torch.nn, mpidec.optim

torch.set_num_threads(1)
ASYNCHRONOUS = ("async_push_sum", "pairwise", "a2cid2")
STEPS, PASSES = 6, 2
RATES, MOMENTUM, DECAY, CLIP = (0.05, 0.02), 0.9, 0.01, 0.5
FALL = 0.6  # of the losses that are observed, so that periods change within a few steps
SCHEDULE = [1 / (1 + 0.1 * k) for k in range(STEPS + 2)]


# ---------------------------------------------------------------------------------------------------------------------
# The model, its data


class Net(nn.Module):
    """With a tied, a frozen and an unused parameter, and rows with gaps."""

    def __init__(self):
        super().__init__()
        self.unused, self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.norm, self.out = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x):
        y = self.norm(self.b(torch.tanh(self.a(x))))
        return self.out(torch.tanh(self.frozen(y)))


@functools.cache
def network():
    torch.manual_seed(0)
    return Net().double()


@functools.cache
def batch(worker, k, part):
    g = torch.Generator().manual_seed(1000 * worker + 10 * k + part)
    x = torch.randn(8, 3, generator=g, dtype=torch.float64) * (1 + worker) + worker
    return x, torch.randint(2, (8,), generator=g)


def trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def group_of(name):
    return int(name.startswith("out."))


def groups(model):
    parts = [[p for name, p in trained(model).items() if group_of(name) == g] for g in (0, 1)]
    return [{"params": part, "lr": rate} for part, rate in zip(parts, RATES)]


# ---------------------------------------------------------------------------------------------------------------------
# The training


class Whole(torch.optim.SGD):
    """One that may look at all parameters at once, as the package has to assume of an optimizer that is not torch's own."""


class Training:
    """The workers of this rank, by the package: one model for each rank, or a stack of several."""

    def __init__(self, net, case, kind=torch.optim.SGD, overlap=False, **options):
        self.net, self.clipped = net, not overlap
        self.stacked = net.n > net.size
        self.model = (
            mpidec.nn.Stacked(network(), net.m) if self.stacked else copy.deepcopy(network())
        )
        settings = {"momentum": MOMENTUM, "weight_decay": DECAY, "nesterov": True}
        base = kind(groups(self.model), **settings)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            self.optimizer = optim.Decentralized(
                base,
                self.model,
                case.topology(),
                case.algorithm,
                net,
                overlap=overlap,
                **{**case.options, **options},
            )
        self.warnings = [str(each.message) for each in caught]
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda k: SCHEDULE[k])

    def loss(self, k, part):
        batches = [batch(worker, k, part) for worker in range(self.net.lo, self.net.hi)]
        x, y = map(torch.stack, zip(*batches))
        output = self.model(x) if self.stacked else self.model(x[0])[None]
        losses = nn.functional.cross_entropy(output.mT, y.to(output.device), reduction="none")
        return losses.mean(1) / PASSES

    def clip(self):
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        for i in range(self.net.m):
            mine = [g[i] for g in gradients] if self.stacked else gradients
            norm = torch.stack([g.norm() for g in mine]).norm()
            for g in mine:
                g.mul_((CLIP / (norm + 1e-6)).clamp(max=1.0))

    def step(self, k, between=lambda moment: None):
        self.optimizer.zero_grad()
        between("before")
        total = 0.0
        for part in range(PASSES):
            loss = self.loss(k, part)
            loss.sum().backward()
            total = total + loss.detach()
            between("after a pass")
        if self.clipped:
            self.clip()
        between("after the gradients")
        self.optimizer.observe(total * FALL**k)
        self.optimizer.step()
        between("after")
        self.scheduler.step()

    def rows(self):
        """The trained parameters (m, d), and the statistics of batch norm."""
        parts = [*trained(self.model).values(), *self.statistics()]
        return torch.cat([p.detach().reshape(self.net.m, -1) for p in parts], dim=1).numpy().copy()

    def statistics(self):
        return self.model.norm.running_mean, self.model.norm.running_var


class Disturbance:
    """Calls in random orders; those that are collective are the same on all ranks, the others are each rank's own."""

    def __init__(self, training, seed):
        self.training = training
        self.together = np.random.default_rng(seed)
        self.own = np.random.default_rng([seed, training.net.rank])
        self.calls = []

    def __call__(self, moment):
        for _ in range(self.together.integers(3)):
            call = (self.consensus, self.save, self.load)[self.together.integers(3)]
            self.calls.append(f"{moment}: {call.__name__}")
            call()
        for _ in range(self.own.integers(2)):
            self.evaluate()
        if moment == "before" and self.own.integers(2):
            self.drop()

    def consensus(self):
        with self.training.optimizer.consensus():
            self.evaluate()

    def save(self):
        self.training.optimizer.state_dict()

    def load(self):
        self.training.optimizer.load_state_dict(self.training.optimizer.state_dict())

    def evaluate(self):
        self.training.model.eval()
        with torch.no_grad():
            self.training.loss(0, 0)
        self.training.model.train()

    def drop(self):
        self.training.model.eval()
        self.training.loss(0, 1).sum().backward()
        self.training.model.train()
        self.training.optimizer.zero_grad()


# ---------------------------------------------------------------------------------------------------------------------
# The oracle


class Step(NamedTuple):
    """What an equation is told at the point that it has given."""

    k: int
    G: np.ndarray  # (n, d), as the training has accumulated and clipped it
    lr: np.ndarray  # (d,)
    loss: float  # mean of what all workers have observed
    update: Callable  # (at, G) -> U: momentum and weight decay of each worker, written out


class Dense:
    """The workers as rows X (n, d): model, gradients, momentum and weight decay written out.

    Attributes
    ----------
    column : array of int
        Column of each parameter in the package's rows, which begin with the last parameter of each group; each begins at a multiple
        of 64 bytes.
    bucket : array of int
        The group, or with buckets of one parameter the parameter, of each column.
    """

    def __init__(self, case, small=False):
        self.case, self.W = case, case.W
        start = trained(network())
        self.shapes = {name: p.shape for name, p in start.items()}
        self.sizes = [p.numel() for p in start.values()]
        columns, self.width = {}, 0
        for g in (0, 1):
            for name in [name for name in [*start][::-1] if group_of(name) == g]:
                columns[name] = np.arange(self.width, self.width + start[name].numel())
                self.width += -(-start[name].numel() // 8) * 8
        self.column = np.concatenate([columns[name] for name in start])
        names = np.repeat(np.arange(len(start)), self.sizes)
        group = np.array([group_of(name) for name in start])[names]
        self.bucket = names if small else group
        self.rate = np.array(RATES)[group]
        self.used = np.array([not name.startswith("unused") for name in start])[names]
        x = torch.cat([p.detach().flatten() for p in start.values()]).numpy()
        self.X, self.B = np.tile(x, (case.n, 1)), np.zeros((case.n, len(x)))
        self.mean, self.var = np.zeros((case.n, 3)), np.ones((case.n, 3))

    def gradients(self, X, k, clipped):
        """The gradients of all workers (n, d), and their mean loss."""
        X = torch.from_numpy(X.copy()).requires_grad_()
        parts = zip(self.shapes.items(), X.split(self.sizes, dim=1))
        p = {name: part.view(-1, *shape) for (name, shape), part in parts}
        frozen = network().frozen
        total = 0.0
        for part in range(PASSES):
            batches = [batch(i, k, part) for i in range(len(X))]
            x, y = map(torch.stack, zip(*batches))
            z = torch.tanh(x @ p["a.weight"].mT + p["a.bias"][:, None])
            z = z @ p["a.weight"].mT + p["b.bias"][:, None]
            mean, var = z.mean(1), z.var(1, correction=0)
            for of, value in (self.mean, mean), (self.var, var * 8 / 7):
                of += 0.1 * (value.detach().numpy() - of)
            z = (z - mean[:, None]) / (var[:, None] + 1e-5).sqrt()
            z = z * p["norm.weight"][:, None] + p["norm.bias"][:, None]
            z = torch.tanh(z @ frozen.weight.T + frozen.bias)
            z = z @ p["out.weight"].mT + p["out.bias"][:, None]
            chosen = z.gather(2, y[..., None])[..., 0]
            total = total + (z.logsumexp(2) - chosen).mean(1) / PASSES
        (G,) = torch.autograd.grad(total.sum(), X)
        G = G.numpy()
        if clipped:
            G = G * np.minimum(1, CLIP / (np.linalg.norm(G, axis=1, keepdims=True) + 1e-6))
        return G, total.mean().item()

    def run(self, clipped):
        """The point after all steps, with the statistics of batch norm."""
        equations = self.case.equations(self)
        X = next(equations)
        for k in range(STEPS):
            G, loss = self.gradients(X, k, clipped)
            lr = self.rate * SCHEDULE[k]

            def update(at, G, lr=lr):
                D = (G + DECAY * at) * self.used
                self.B = MOMENTUM * self.B + D
                return -lr * (D + MOMENTUM * self.B)

            X = equations.send(Step(k, G, lr, loss * FALL**k, update))
        return np.hstack([X, self.mean, self.var])


# An equation yields the points at which it needs gradients, and is sent the `Step` there.


def atc(o):
    X = o.X
    while True:
        s = yield X
        X = o.W(s.k) @ (X + s.update(X, s.G))


def awc(o):
    X = o.X
    while True:
        s = yield X
        Y = o.W(s.k) @ X
        X = Y + s.update(Y, s.G)


def allreduce(o):
    X = o.X
    while True:
        s = yield X
        X = X + s.update(X, np.tile(s.G.mean(0), (len(X), 1)))


def local(o, H=2):
    X = o.X
    while True:
        s = yield X
        X = X + s.update(X, s.G)
        if (s.k + 1) % H == 0:
            X = o.W(s.k // H) @ X


def pga(o, H=3):
    X = o.X
    while True:
        s = yield X
        V = X + s.update(X, s.G)
        X = np.tile(V.mean(0), (len(V), 1)) if (s.k + 1) % H == 0 else o.W(s.k) @ V


def aga(o, H0=1, warmup=2):
    X, H, count, F0 = o.X, H0, 0, 0.0
    while True:
        s = yield X
        V, count = X + s.update(X, s.G), count + 1
        if count < H:
            X = o.W(s.k) @ V
            continue
        X, count = np.tile(V.mean(0), (len(V), 1)), 0
        if s.k < warmup:
            F0 = (F0 + s.loss) / 2 if F0 else s.loss
        else:
            H = math.ceil(F0 / s.loss * H0)


def choco(o, k=4, gamma=0.4):
    X, shown = o.X, np.zeros_like(o.X)
    while True:
        s = yield X
        V = X + s.update(X, s.G)
        for b in np.unique(o.bucket):
            columns = np.flatnonzero(o.bucket == b)
            for i, difference in enumerate(V - shown):
                largest = columns[np.argsort(-abs(difference[columns]))[:k]]
                shown[i, largest] += difference[largest]
        X = V + gamma * (o.W(s.k) @ shown - shown)


def hierarchical(o):
    X = o.X
    while True:
        s = yield X
        V = X + s.update(X, s.G)
        V = np.repeat(V.reshape(2, 2, -1).mean(1), 2, axis=0)
        X = np.einsum("ab,bid->aid", o.W(0), V.reshape(2, 2, -1)).reshape(V.shape)


def corrected(half):
    def equations(o):
        X = Psi = o.X
        while True:
            s = yield X
            old, Psi = Psi, X + s.update(X, s.G)
            Phi = Psi + X - old
            X = (Phi + o.W(s.k) @ Phi) / 2 if half else o.W(s.k) @ Phi

    return equations


def gradient_tracking(o):
    X, WY, old = o.X, 0.0, 0.0
    while True:
        s = yield X
        g = -s.update(X, s.G)
        Y, old = WY + g - old, g
        X, WY = o.W(s.k) @ (X - Y), o.W(s.k) @ Y


def push_sum(o):
    U, w = o.X, np.ones((len(o.X), 1))
    while True:
        s = yield U / w
        U, w = o.W(s.k) @ (U + s.update(U / w, s.G)), o.W(s.k) @ w


def osgp(o):
    U, w, late, late_w = o.X, np.ones((len(o.X), 1)), 0.0, 0.0
    while True:
        s = yield U / w
        V, D = U + s.update(U / w, s.G), np.diag(np.diag(o.W(s.k)))
        E = o.W(s.k) - D
        U, w, late, late_w = D @ V + late, D @ w + late_w, E @ V, E @ w


def relay(o):
    """Over the chain 0 - 1 - 2: the half step of an agent h hops away arrives h - 1 steps late."""
    X, V, n = o.X, [], len(o.X)
    while True:
        s = yield X
        V.append(X + s.update(X, s.G))
        new = np.zeros_like(X)
        for i in range(n):
            for j in range(n):
                late = max(abs(i - j) - 1, 0)
                new[i] += V[s.k - late][j] if s.k >= late else o.X[i]
        X = new / n


def ceca(o):
    """With three agents: n - 1 = (10) in binary, n_0 = 0 and n_1 = 1."""
    X = Y = o.X
    while True:
        s = yield X
        u = s.update(X, s.G)
        X, Y = X + u, Y + u
        sent = np.roll(X, 1, axis=0)
        X, Y = (X + sent) / 2, sent
        s = yield Y
        u = s.update(Y, s.G)
        X, Y = X + u, Y + u
        sent = np.roll(Y, 1, axis=0)
        X, Y = (2 * X + sent) / 3, (Y + sent) / 2


def mixed_momentum(o, beta=0.9):
    X, M = o.X, 0.0
    while True:
        s = yield X
        M = beta * M - s.update(X, s.G) / s.lr
        X, M = o.W(s.k) @ (X - s.lr * M), o.W(s.k) @ M


def qg(o, beta=0.9):
    X, M = o.X, 0.0
    while True:
        s = yield X
        g = -s.update(X, s.G) / s.lr
        old, X = X, o.W(s.k) @ (X - s.lr * (g + beta * (beta * M + g)))
        M = beta * M + (1 - beta) * (old - X) / s.lr


def decentlam(o, beta=0.9):
    X, M = o.X, 0.0
    while True:
        s = yield X
        M = beta * M + (X - o.W(s.k) @ (X + s.update(X, s.G))) / s.lr
        X = X - s.lr * M


def outer(rule, H=2):
    """`rule(Z, Y, W, lr, memory)` takes the outer step from the start Z and the end Y of H local steps."""

    def equations(o):
        X = Z = o.X
        memory = {}
        while True:
            s = yield X
            X = X + s.update(X, s.G)
            if (s.k + 1) % H == 0:
                X = Z = rule(Z, X, o.W(s.k // H), s.lr, memory)

    return equations


def slowmo(Z, Y, W, lr, memory, a=0.8, beta=0.6):
    memory["U"] = beta * memory.get("U", 0.0) + (Z - W @ Y) / lr
    return Z - a * lr * memory["U"]


def diloco(Z, Y, W, lr, memory, eta=0.7, mu=0.9):
    memory["M"] = mu * memory.get("M", 0.0) + Z - W @ Y
    return Z - eta * (Z - W @ Y + mu * memory["M"])


def gasloc(Z, Y, W, lr, memory, eta=0.7, mu=0.5):
    V = Z + eta * (Y - Z)
    before, memory["V"] = memory.get("V", Z), V
    return W @ V + mu * (V - before)


def noloco(Z, Y, W, lr, memory, eta=0.7, mu=0.5, gamma=0.4):
    memory["U"] = mu * memory.get("U", 0.0) + eta * W @ (Y - Z) - gamma * (Z - W @ Z)
    return Z + memory["U"]


def streaming(kind, mu, H=2, P=2, tau=1, alpha=0.6, eta=0.7):
    def equations(o):
        X, T, M, arriving = o.X.copy(), o.X.copy(), np.zeros_like(o.X), {}
        while True:
            s = yield X.copy()
            X, steps = X + s.update(X, s.G), s.k + 1
            for p in range(P):
                inside = (o.width * p // P <= o.column) & (o.column < o.width * (p + 1) // P)
                since = steps - H * p // P
                if (steps, p) in arriving:
                    Z = arriving.pop((steps, p))
                    if kind == "noloco":
                        M[:, inside] = mu * M[:, inside] + eta * (Z - T[:, inside])
                        Z = T[:, inside] + M[:, inside]
                    T[:, inside] = Z
                    X[:, inside] = (1 - alpha) * X[:, inside] + alpha * Z
                if since >= H and since % H == 0:
                    Z, W = X[:, inside], o.W(since // H - 1)
                    if kind == "diloco":
                        Q = T[:, inside] - Z
                        M[:, inside] = mu * M[:, inside] + Q
                        Z = T[:, inside] - eta * (Q + mu * M[:, inside])
                    arriving[steps + tau, p] = W @ Z

    return equations


def newton_schulz(V, iterations):
    """By the singular values' polynomial on the smaller side, in Horner's form."""
    a, b, c = 3.4445, -4.7750, 2.0315
    Y = V / max(np.linalg.norm(V), 1e-300)
    for _ in range(iterations):
        A = Y.T @ Y
        Y = Y @ (a * np.eye(len(A)) + A @ (b * np.eye(len(A)) + c * A))
    return Y


def demuon(o, beta=0.7, iterations=2):
    X, V, M = o.X, 0.0, 0.0
    while True:
        s = yield X
        new = -s.update(X, s.G) / s.lr  # of vectors
        columns = np.split(np.arange(X.shape[1]), np.cumsum(o.sizes)[:-1])
        matrices = [each for each in zip(o.shapes.values(), columns) if len(each[0]) > 1]
        for _, columns in matrices:
            old = M[:, columns] if s.k else 0.0
            new[:, columns] = beta * old + (1 - beta) * s.G[:, columns]
        V, M = o.W(s.k) @ (V + new - M), new
        step = V.copy()
        for shape, columns in matrices:
            for i in range(len(X)):
                step[i, columns] = newton_schulz(V[i, columns].reshape(shape), iterations).ravel()
        X = o.W(s.k) @ (X - s.lr * step)


# ---------------------------------------------------------------------------------------------------------------------
# The algorithms, over weights that are not those of an average

VARYING = [
    np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]]),
    np.array([[0.6, 0.1, 0.3], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]]),
]
SYMMETRIC = [np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])]
PUSH = [
    np.array([[0.5, 0.2, 0.0], [0.3, 0.8, 0.4], [0.2, 0.0, 0.6]]),
    np.array([[0.6, 0.0, 0.3], [0.0, 0.7, 0.1], [0.4, 0.3, 0.6]]),
]
MACHINES = [np.array([[0.7, 0.3], [0.3, 0.7]])]
NEEDS_ALL = "needs the updates of all parameters at once"
NEEDS_EACH = "mixes in every 2th step, which overlap=True would not"


class Case(NamedTuple):
    """An algorithm: its equations, weights by step (or the name of a graph), and options.

    `refused` is what overlap=True is told; `changed`, what clipping is told then, if it is not allowed.
    """

    algorithm: str
    equations: Callable
    weights: list | str | None
    options: Mapping = MappingProxyType({})
    refused: str = ""
    changed: str = "has changed after its update"
    n: int = 3

    def topology(self):
        if not isinstance(self.weights, list):
            return self.weights
        graphs = [topology.from_weights(W) for W in self.weights]
        return topology.cycle(graphs) if len(graphs) > 1 else graphs[0]

    def W(self, k):
        return self.weights[k % len(self.weights)]


def every_two(name, rule, weights=SYMMETRIC, **options):
    return Case(name, outer(rule), weights, {"local_steps": 2, **options}, NEEDS_EACH)


def fragments(kind, mu, **options):
    given = {"local_steps": 2, "fragments": 2, "delay": 1, "blend": 0.6, "outer": kind}
    equations = streaming(kind, mu)
    return Case("streaming_diloco", equations, VARYING, {**given, **options}, changed="")


ADAPTIVE = {"adaptive": True, "period": 1, "warmup": 2}
CASES = {
    "atc": Case("atc", atc, VARYING),
    "awc": Case("awc", awc, VARYING, changed=""),
    "allreduce": Case("allreduce", allreduce, None, changed=""),
    "local": Case("local", local, VARYING, {"local_steps": 2}, NEEDS_EACH),
    "pga": Case("pga", pga, VARYING, {"period": 3}),
    "aga": Case("pga", aga, VARYING, ADAPTIVE, NEEDS_ALL),
    "choco": Case("choco", choco, SYMMETRIC, {"codec": "top_k", "k": 4, "gamma": 0.4}),
    "hierarchical": Case("hierarchical", hierarchical, MACHINES, refused=NEEDS_ALL, n=4),
    "d2": Case("d2", corrected(False), SYMMETRIC),
    "exact_diffusion": Case("exact_diffusion", corrected(True), SYMMETRIC),
    "gradient_tracking": Case("gradient_tracking", gradient_tracking, VARYING),
    "push_sum": Case("push_sum", push_sum, PUSH),
    "osgp": Case("osgp", osgp, PUSH, changed=""),
    "relay": Case("relay", relay, "chain"),
    "ceca": Case("ceca", ceca, None),
    "qg": Case("qg", qg, VARYING),
    "mixed_momentum": Case("mixed_momentum", mixed_momentum, VARYING),
    "decentlam": Case("decentlam", decentlam, SYMMETRIC),
    "slowmo": every_two("slowmo", slowmo, slow_step=0.8, momentum=0.6),
    "diloco": every_two("diloco", diloco),
    "gasloc": every_two("gasloc", gasloc),
    "noloco": every_two("noloco", noloco, consensus_step=0.4),
    "streaming_diloco": fragments("diloco", 0.5),
    "streaming_noloco": fragments("noloco", 0.4, momentum=0.4),
    "demuon": Case("demuon", demuon, VARYING, {"momentum": 0.7, "iterations": 2}, NEEDS_ALL),
}
OWN_MOMENTUM = ("qg", "mixed_momentum", "decentlam")


def test_there_are_equations_of_every_synchronous_algorithm():
    assert {case.algorithm for case in CASES.values()} == {*optim.names()} - {*ASYNCHRONOUS}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture
def net(case):
    with mpidec.Network(case.n) as net:
        yield net


def error(training, expected):
    """Relative, of the workers of this rank."""
    own = expected[training.net.lo : training.net.hi]
    return np.linalg.norm(training.rows() - own) / np.linalg.norm(own)


@pytest.fixture
def undisturbed(net, case):
    """The training, with the bytes of its rows after each step."""
    training, rows = Training(net, case, Whole), []
    for k in range(STEPS):
        training.step(k)
        rows.append(training.rows().tobytes())
    training.optimizer.close()
    return training, rows


def test_a_training_is_its_equations_whatever_is_called_in_between(net, case, undisturbed):
    """Also when each bucket is updated by itself."""
    training, rows = undisturbed
    assert error(training, Dense(case).run(clipped=True)) <= 1e-13
    own = any("has a momentum of its own" in each for each in training.warnings)
    assert own == (case.algorithm in OWN_MOMENTUM)
    disturbed = Training(net, case)
    between = Disturbance(disturbed, seed=1)
    for k in range(STEPS):
        disturbed.step(k, between)
        assert disturbed.rows().tobytes() == rows[k], f"step {k}: {between.calls}"
    disturbed.optimizer.close()


def test_updates_during_the_backward_pass_are_the_equations_or_refused(net, case):
    """Not clipped, which changes gradients that have been used: that is refused, too, where they have."""
    if case.refused:
        with pytest.raises(ValueError, match=case.refused):
            Training(net, case, overlap=True, bucket_bytes=1)
        return
    training = Training(net, case, overlap=True, bucket_bytes=1)
    for k in range(STEPS):
        training.step(k)
    assert error(training, Dense(case, small=True).run(clipped=False)) <= 1e-13
    training.clipped = True
    with (
        pytest.raises(RuntimeError, match=case.changed)
        if case.changed
        else contextlib.nullcontext()
    ):
        training.step(STEPS)
        training.optimizer.close()
