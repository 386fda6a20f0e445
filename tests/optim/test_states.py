"""States in torch's shape: resumed runs, other buckets, plain optimizers, torch.distributed.checkpoint.  Any number of ranks."""

import copy
import io
import warnings

import pytest

import mpidec

pytestmark = pytest.mark.most(1)

torch = pytest.importorskip("torch")
nn, optim = torch.nn, mpidec.optim

torch.set_num_threads(1)
ASYNCHRONOUS = ("async_push_sum", "pairwise", "a2cid2")
SMALL = {"bucket_bytes": 100}
CASES = {
    **{name: {"algorithm": name} for name in optim.names() if name not in ASYNCHRONOUS},
    "awc in bfloat16": {"algorithm": "awc", "mixing": lambda W: W.compress("bfloat16")},
    "local every 3": {"algorithm": "local", "every": 3},
    "pga adaptive": {
        "algorithm": "pga",
        "adaptive": True,
        "period": 2,
        "warmup": 2,
    },
    "relay over trees": {"algorithm": "relay", "topology": "double_binary_trees"},
    "osgp over two": {"algorithm": "osgp", "topology": ["ring", "chain"]},
    "tracking, choco": {
        "algorithm": "gradient_tracking",
        "topology": "ring",
        "mixing": lambda W: W.compress("top_k", fraction=0.2, feedback=True),
    },
}
# Codecs and topologies that divide the columns depend on the buckets.
OF_BUCKETS = ("choco", "tracking, choco", "relay over trees", "osgp over two")


@pytest.fixture
def net():
    with mpidec.Network() as net:
        yield net


def start(net, kind=torch.optim.AdamW, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    if options["algorithm"] == "hierarchical":
        options |= {"topology": "ring", "machine_size": net.n}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return model, optim.Decentralized(kind(model.parameters(), 0.01), model, net=net, **options)


def train(net, model, optimizer, first, last):
    for k in range(first, last):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * 0.9**k
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * net.rank + k))
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        if hasattr(optimizer, "observe"):
            optimizer.observe(loss)
        optimizer.step()


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def saved(*parts):
    """The states as from a file."""
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    return file.getvalue()


def load(file, *parts):
    for part, state in zip(parts, torch.load(io.BytesIO(file), weights_only=True)):
        part.load_state_dict(state)


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_has_the_same_bits(net, name):
    """Saved in the middle of an overlap or of local steps; the rate decays; with the same buckets, and with others."""
    model, optimizer = start(net, **CASES[name])
    train(net, model, optimizer, 0, 5)
    file = saved(model, optimizer)
    train(net, model, optimizer, 5, 9)
    optimizer.close()
    for buckets in {}, SMALL:
        again, resumed = start(net, **CASES[name], **buckets)
        load(file, again, resumed)
        train(net, again, resumed, 5, 9)
        resumed.close()
        assert torch.equal(flat(model), flat(again)) or (buckets and name in OF_BUCKETS)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", ["awc", "relay", "choco", "tracking, choco"])
def test_torch_distributed_checkpoint_saves_and_loads(net, name, shared_tmp):
    """By names of parameters, into new optimizers; the empty step by which it makes states mixes nothing."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    kind = torch.optim.SGD if name == "awc" else torch.optim.AdamW  # without a state
    model, optimizer = start(net, kind, **CASES[name])
    train(net, model, optimizer, 0, 3)
    optimizer.zero_grad()
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    assert get_state_dict(model, optimizer.optimizer)[1]["param_groups"][0]["lr"] > 0
    checkpoint.save(parts, checkpoint_id=shared_tmp / f"{net.rank}", no_dist=True)
    held = copy.deepcopy(parts)
    train(net, model, optimizer, 3, 5)
    optimizer.close()
    for buckets in {}, SMALL:
        for from_file in (False, True):
            again, resumed = start(net, kind, **CASES[name], **buckets)
            parts = copy.deepcopy(held)
            if from_file:
                parts = dict(zip(parts, get_state_dict(again, resumed)))
                assert resumed.averager.steps == 0
                checkpoint.load(parts, checkpoint_id=shared_tmp / f"{net.rank}", no_dist=True)
                if name == "tracking, choco":  # not known before a step how often rows are mixed
                    with pytest.raises(ValueError, match=r"no mpidec\.W0\.1 of parameter"):
                        resumed.load_state_dict(parts["optimizer"])
                    continue
            set_state_dict(
                again,
                resumed,
                model_state_dict=parts["model"],
                optim_state_dict=parts["optimizer"],
            )
            train(net, again, resumed, 3, 5)
            resumed.close()
            assert torch.equal(flat(model), flat(again)) or (buckets and name in OF_BUCKETS)


def test_a_plain_optimizer_loads_the_state(net):
    """And continues as the optimizer that was wrapped; wrapped again, it has no memory left."""
    model, optimizer = start(net, algorithm="relay")
    train(net, model, optimizer, 0, 3)
    file = saved(model, optimizer)
    state = optimizer.state_dict()["state"][2]
    if net.n > 1:
        assert state["mpidec.M"].shape[-2:] == (2, 5)  # of each edge
    results = []
    for base in optimizer.optimizer, None:
        other = copy.deepcopy(model)
        plain = torch.optim.AdamW(other.parameters(), 0.01)
        if base is None:
            load(file, other, plain)
            assert "mpidec" in plain.param_groups[0]
        else:
            plain.load_state_dict(copy.deepcopy(base.state_dict()))
        train(net, other, plain, 3, 5)
        results.append(flat(other))
    optimizer.close()
    assert torch.equal(*results)
    with optim.Decentralized(plain, other, "ring", "atc", net, equal=False) as again:
        assert (
            "mpidec" not in plain.param_groups[0] and "mpidec.X" not in plain.state[other[0].weight]
        )
        assert not any("mpidec.X" in held for held in again.state_dict()["state"].values())


@pytest.mark.parametrize("name", ["awc", "relay", "slowmo", "tracking, choco", "async_push_sum"])
@pytest.mark.parametrize("before", [0, 3])
def test_the_algorithm_begins_anew_with_the_state_of_a_plain_optimizer(net, name, before):
    """At the parameters that the model loads afterwards, as if it were wrapped then."""
    options = CASES.get(name, {"algorithm": name})
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    plain = torch.optim.AdamW(one.parameters(), 0.01)
    train(net, one, plain, 0, 4)
    file = saved(plain, one)
    model, optimizer = start(net, **options)
    train(net, model, optimizer, 0, before)
    load(file, optimizer, model)
    last = 5 if name == "async_push_sum" else 7
    train(net, model, optimizer, 4, last)
    assert optimizer.averager.steps == last - 4
    optimizer.close()
    with optim.Decentralized(plain, one, net=net, equal=False, **options) as fresh:
        train(net, one, fresh, 4, last)
    assert name == "async_push_sum" or torch.equal(flat(one), flat(model))


def test_states_of_others_are_refused(net):
    """Another number of workers, algorithm, model or mixing; within consensus(); all say what to do."""
    model, optimizer = start(net, algorithm="atc")
    train(net, model, optimizer, 0, 2)
    states = {"atc": optimizer.state_dict()}
    for algorithm in "relay", "choco":
        _, other = start(net, algorithm=algorithm)
        states[algorithm] = other.state_dict()
        for group in states[algorithm]["param_groups"]:
            group["mpidec"]["n"] += 1
        with pytest.raises(ValueError, match=r"optimizer\.optimizer\.state_dict\(\), with which"):
            other.load_state_dict(states[algorithm])
        other.close()
    states["atc"]["param_groups"][0]["mpidec"] |= {"n": net.n + 1, "worker": net.n}
    optimizer.averager.steps = 0
    optimizer.load_state_dict(states["atc"])
    assert optimizer.averager.steps == 2
    with pytest.raises(ValueError, match=r"is of algorithm 'relay', expected 'atc'"):
        optimizer.load_state_dict(states["relay"])
    with (
        optimizer.consensus(),
        pytest.raises(RuntimeError, match="a state is saved in the context"),
    ):
        optimizer.state_dict()
    optimizer.close()
    model, optimizer = start(net, algorithm="d2")
    state = optimizer.state_dict()
    for change, words in [
        (lambda s: s["state"][0].pop("mpidec.X"), "no mpidec.X of parameter 0.weight"),
        (
            lambda s: s["state"][0].update({"mpidec.X": torch.ones(2)}),
            r"has shape \(2,\), expected \(5, 6\)",
        ),
        (
            lambda s: s["param_groups"][0]["params"].pop(),
            r"groups of \[3\] parameters, expected \[4\]",
        ),
        (
            lambda s: s["param_groups"][0]["mpidec"].update(parts=()),
            "of other topologies, or of another",
        ),
    ]:
        wrong = copy.deepcopy(state)
        change(wrong)
        with pytest.raises(ValueError, match=words):
            optimizer.load_state_dict(wrong)
    optimizer.close()


def test_state_dicts_of_models_hold_copies(net, shared_tmp):
    """Of parameters that are views of the rows, also after `close`; not in deep copies, and with keep_vars; tied ones stay tied."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].weight = model[0].weight
    with optim.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, net=net, equal=False):
        average = copy.deepcopy(model)
        outer = nn.ModuleDict({"inner": model})
    assert len(outer.state_dict()) == len(model.state_dict()) == 9
    for value in [*model.state_dict().values(), *outer.state_dict().values()]:
        assert value.untyped_storage().nbytes() == value.nbytes
    state = model.state_dict()
    assert (
        state["0.weight"].data_ptr() == state["1.weight"].data_ptr() != model[0].weight.data_ptr()
    )
    assert torch.equal(state["0.bias"], model[0].bias)
    assert model.state_dict(keep_vars=True)["0.bias"] is model[0].bias
    assert average.state_dict()["0.bias"].data_ptr() == average[0].bias.data_ptr()
    with pytest.raises(ValueError, match="holds copies of the parameters"):
        optim.broadcast_parameters(state, net)
    optim.broadcast_parameters(average.state_dict(), net)
