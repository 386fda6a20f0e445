"""Every function that the package takes from a user is known to a test that tries it as an adversary.

Those tests call each with functions that write into what they are handed, keep it, and return something else.
"""

import inspect
import re
from pathlib import Path

import pytest

import mpidec
from mpidec import datasets, nn, optim, problems, solvers, theory, topology, train
from mpidec.comm.mixing.mixers.operator import Operator

pytestmark = pytest.mark.serial

ALIASES = "Callable|Lost|Attack|RobustRule|Progress|Delay|Draw|Loss|Own|Stop|TopologyLike|Mixing|OracleLike|Codec"
MIXING, DRIVER = "comm/mixing", "driver"  # rooms with a test_users_functions.py
TRIED = {  # by parameter: where, and in which entry of its FUNCTIONS
    "Operator.attacked: attacks": (MIXING, "attack"),
    "Operator.lossy: messages": (MIXING, "lost"),
    "Operator.robust: rule": (MIXING, "rule"),
    "Operator.compress: codec": (DRIVER, "encode"),
    "Network.mixer: topology": (MIXING, "graph of n"),
    "from_function: f": (DRIVER, "graph"),
    "Custom: value": (DRIVER, "value"),
    "Custom: grad": (DRIVER, "grad"),
    "Custom: x_star": (DRIVER, "x_star"),
    "Stream: draw": (DRIVER, "draw"),
    "Stream: loss": (DRIVER, "loss"),
    "Stream: x_star": (DRIVER, "x_star"),
    "ConstraintCoupled: argmin": (DRIVER, "argmin"),
    "ConstraintCoupled: value": (DRIVER, "value of argmin"),
    "solve: problem": (DRIVER, "oracle"),
    "solve: metrics": (DRIVER, "metric"),
    "solve: stop": (DRIVER, "stop"),
    "solve: progress": (DRIVER, "progress"),
    "solve: mixing": (DRIVER, "mixing"),
    "simulate: problem": (DRIVER, "oracle of events"),
    "simulate: delay": (DRIVER, "delay"),
    "simulate: stop": (DRIVER, "stop_of_events"),
    "simulate: progress": (DRIVER, "progress_of_events"),
}
GRAPH, NET = "Network.mixer: topology", "set_topology set_machine_topology spanning_tree window"
SAME = {  # the same function of the same argument as that of another call, which passes it on
    **{f"Network.{call}: topology": GRAPH for call in NET.split()},
    **{f"{call}: topology": GRAPH for call in ("solve", "simulate", "tune")},
    **{
        f"{call}: topology": GRAPH for call in ("rate", "largest_step", "steady_state", "transient")
    },
    **{f"{call}: topology": GRAPH for call in ("Decentralized", "Averager")},
    **{f"{call}: mixing": "solve: mixing" for call in ("tune", "Decentralized", "Averager")},
    "simulate: mixing": "solve: mixing",
    "iterate: F": "solve: problem",
    **{f"{call}: delay": "simulate: delay" for call in ("solve", "tune")},
    **{f"{call}: problem": "solve: problem" for call in ("tune", "rate", "largest_step")},
    "steady_state: problem": "solve: problem",
    "transient: problem": "solve: problem",
    "Noisy: source": "solve: problem",
    "Subgradient: source": "solve: problem",
    "simulate: metrics": "solve: metrics",
    "fit: progress": "solve: progress",
    "Changing: f": "from_function: f",
}
OTHERS = {  # functions that are handed nothing of the package, or made by it
    "load_problem: problem": "a class of problems: it is handed new arrays",
    "build: problem": "likewise",
    "problem_parameters: problem": "likewise",
    "Neural: loss": "of tensors, whose gradients torch takes",
    "Decentralized.step: closure": "of torch's optimizers",
    "Operator.triggered: threshold": "of the number of the step",
    "Clip: threshold": "likewise",
    "A2CiD2.prepared: constants": "of the package",
    "PairwiseGossip.prepared: constants": "of the package",
    "Network.keeping: step": "of the package",
    "Pending: finish": "of the package",
    "Record: config": "of the package",
    "Record: lost": "of the package",
    "Averager.together: act": "of the package",
    "Result: step_size": "what a run has had",
}


def of_package(thing):
    return (getattr(thing, "__module__", None) or "").startswith("mpidec.")


def public(thing):
    """What has a public name in a module or a class."""
    return {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_")}


def parameters():
    """The public parameters that take functions."""
    rooms = [mpidec, problems, topology, solvers, theory, datasets, optim, nn, train]
    things = {each for room in rooms for each in public(room).values() if callable(each)}
    for thing in filter(of_package, (things | {Operator}) - {mpidec.Mixer}):
        calls = {thing.__name__: thing}
        if inspect.isclass(thing):
            methods = filter(inspect.isroutine, public(thing).values())
            calls |= {f"{thing.__name__}.{f.__name__}": f for f in filter(of_package, methods)}
        for name, f in calls.items():
            try:
                signature = inspect.signature(f)
            except (TypeError, ValueError):
                continue
            for each in signature.parameters.values():
                if re.search(rf"\b({ALIASES})\b", str(each.annotation)):
                    yield f"{name}: {each.name}"


def test_every_function_of_a_user_is_tried():
    found = {*parameters()}
    assert found == {*TRIED, *SAME, *OTHERS}
    assert {*SAME.values()} <= {*TRIED}


def test_the_tests_try_them():
    for room, name in TRIED.values():
        text = (Path(__file__).parent / room / "test_users_functions.py").read_text(
            encoding="utf-8"
        )
        assert f'    "{name}": (' in text, (room, name)
