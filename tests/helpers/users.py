"""Functions of users that write into their arguments, or keep them, or return something else."""

import inspect

import numpy as np

WRONG = {
    "None": None,
    "text": "text",
    "cube": np.zeros((2, 2, 2)),
    "object": object(),
    "nan": np.nan,
    "True": True,
    "complex": 1 + 2j,
}


def spoil(things):
    for thing in things:
        if isinstance(thing, (list, tuple)):
            spoil(thing)
        elif isinstance(thing, dict):
            thing.clear()
        elif isinstance(thing, np.ndarray) and thing.flags.writeable:
            thing[...] = np.nan if thing.dtype.kind in "fc" else 0


def same_signature(f, body):
    """`body(args)` as a function with the parameters of f, by whose names some are called."""
    names = ", ".join(inspect.signature(f).parameters)
    return eval(f"lambda {names}: body([{names}])", {"body": body})


def writing(f):
    def body(args):
        made = f(*(each.copy() if isinstance(each, np.ndarray | dict) else each for each in args))
        spoil(args)
        return made

    return same_signature(f, body)


def keeping(f):
    kept = []

    def body(args):
        spoil(kept)
        kept[:] = [f(*args), *args]
        return kept[0]

    return same_signature(f, body)
