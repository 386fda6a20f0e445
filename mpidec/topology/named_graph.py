"""Turn functions of a graph into functions of the number of agents, for the catalogue: the graph
is given by its name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature

from .. import _validation as check
from .base.schedule import Schedule
from .base.topology import Topology

Made = Callable[..., Topology | Schedule]
DEFAULT = "symmetric_exponential"


def of_named_graph(make: Made, catalogue: Mapping[str, Made]) -> Made:
    """Return `make`, a function of a topology, as a function of n and of `graph`, the text of a
    topology of n agents.

    Examples
    --------
    >>> from mpidec.topology import CATALOGUE
    >>> CATALOGUE["spanning_tree"](6, graph="grid(shape=[2, 3])").is_tree
    True
    """

    @wraps(make)
    def of_n(n: int, *args: object, graph: str = DEFAULT, **options: object) -> Topology | Schedule:
        return make(named(make.__name__, graph, n, catalogue), *args, **options)

    one, *rest = signature(make).parameters.values()
    n = Parameter("n", Parameter.POSITIONAL_OR_KEYWORD, annotation="int")
    graph = Parameter("graph", Parameter.KEYWORD_ONLY, default=DEFAULT, annotation="str")
    of_n.__signature__ = signature(make).replace(parameters=[n, *rest, graph])  # type: ignore[attr-defined]
    of_n.__annotations__ = {**make.__annotations__, "n": "int", "graph": "str"}
    del of_n.__annotations__[one.name]
    return of_n


def named(where: str, text: str, n: int, catalogue: Mapping[str, Made]) -> Topology | Schedule:
    """Return the topology of n agents that a text such as "ring" or "erdos_renyi(p=0.3, seed=1)"
    describes.
    """
    if not isinstance(text, str):
        raise TypeError(
            f"{where}: graph is {text!r}, expected a name such as ring or erdos_renyi(p=0.3)"
        )
    try:
        node = ast.parse(text.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        if not isinstance(call.func, ast.Name) or call.args:
            raise SyntaxError
        options = {str(pair.arg): ast.literal_eval(pair.value) for pair in call.keywords}
    except (SyntaxError, ValueError):
        raise ValueError(
            f"{where}: graph is {text!r}, expected a name, perhaps with settings: ring or "
            "erdos_renyi(p=0.3, seed=1)"
        ) from None
    make = catalogue[check.component(call.func.id, catalogue, f"topology in {where}: graph =")]
    known = [name for name in signature(make).parameters if name != "n"]
    for option in options:
        check.known_name(option, known, f"parameter of {call.func.id}")
    return make(n, **options)
