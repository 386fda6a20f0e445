"""Parameter sets of which make test runs some, and make test-all runs all."""

import pytest


def first(values, n=1):
    """Return the values (or rows of values) as parameters of which all but the first `n` are slow."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [
        pytest.param(*row, marks=pytest.mark.slow if place >= n else ())
        for place, row in enumerate(rows)
    ]
