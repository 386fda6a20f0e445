"""Solvers with their options crossed: all words and flags with each other, and numbers drawn away from the defaults."""

import itertools
from dataclasses import fields

import numpy as np

from mpidec.solvers.base import limits
from mpidec.solvers.needs import OneOf


def crossed(made, step_size, draws=1, seed=0, **fixed):
    """Each combination of the words and flags of `made`, `draws` times with other numbers; those it refuses are left out."""
    rng, bounds = np.random.default_rng(seed), limits(made)
    free = [each for each in fields(made) if each.name not in ("step_size", *fixed)]
    words = {
        each.name: tuple(bounds[each.name])
        if isinstance(bounds.get(each.name), OneOf)
        else (False, True)
        for each in free
        if isinstance(bounds.get(each.name), OneOf) or isinstance(each.default, bool)
    }
    found = []
    for chosen in itertools.product(*words.values()):
        for _ in range(draws):
            numbers = {
                each.name: number(rng, each, bounds.get(each.name))
                for each in free
                if each.name not in words
            }
            options = dict(zip(words, chosen)) | numbers | fixed
            try:
                found.append(made(step_size, **options))
            except ValueError:
                continue
    return found


def number(rng, field, bound):
    if isinstance(field.default, int):
        return int(rng.integers(1, 5))
    if bound is None:
        return float(rng.uniform(0.2, 1.8))
    low = max(bound.least, bound.above, 0.0)
    high = min(bound.most, bound.below, low + 1.5)
    return float(low + (high - low) * rng.uniform(0.1, 0.9))
