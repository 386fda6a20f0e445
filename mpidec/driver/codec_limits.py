"""Mixers and methods: codecs with which a method is known not to converge, and what limits the
accuracy of exact methods.
"""

from __future__ import annotations

from ..comm.mixing.internals import Operator, StepOperator
from ..solvers import Solver
from ..solvers.internals import name_of


def disturbance(solver: Solver, mixer: Operator[StepOperator]) -> str:
    """Describe what in a mixer moves the limit of an exact method; "" if nothing does."""
    return mixer.disturbance if solver.exact else ""


def warning(solver: Solver, mixer: Operator[StepOperator], d: int) -> str:
    """Return why a solver may not converge with the codec of a mixer for rows of `d` entries, or
    "".
    """
    limits, name = mixer.limits(d), type(solver).__name__
    codec, least = limits.codec, solver.needs.least_delta
    if codec is None:
        return ""
    feedback = limits.feedback and not solver.needs.exchange
    if (codec.feedback or codec.unbiased) and not feedback and solver.exact:
        remedy = (
            "messages to single neighbours exclude it: round"
            if solver.needs.exchange
            else "leave out feedback=False (mixing.feedback=false), or round"
            if mixer.topology.period == 1
            else "graphs that change exclude it: round"
        )
        return (
            f"{name} does not come close to the minimizer, or diverges, with {codec!r} without "
            f"error feedback: {remedy} all "
            'entries to nearest, as "blockwise8" or "float16" do'
        )
    if codec.delta(d) < least and (feedback or codec.unbiased):
        return (
            f"{name} may diverge with {codec!r}, which has a contraction parameter delta of "
            f"{codec.delta(d):.3g} for rows of "
            f"{d}; expected >= {least:g}: send more of each row, or take another solver, such as "
            "gradient_tracking"
        )
    return ""


def limit(solver: Solver, mixer: Operator[StepOperator], d: int) -> str:
    """Return why a mixer limits the accuracy of an exact method, in one sentence with a remedy, or
    "".
    """
    if moved := disturbance(solver, mixer):
        goal = "average" if not solver.needs.problem else "minimizer"
        return f"{moved}: {name_of(solver)}, exact without that, does not reach the {goal}"
    codec, feedback, _ = mixer.limits(d)
    if codec is None or not solver.exact:
        return ""
    if feedback and not solver.needs.exchange:
        return ""
    remedy = (
        " leave out feedback=False (mixing.feedback=false), or"
        if mixer.topology.period == 1 and not solver.needs.exchange
        else ""
    )
    return f"{codec!r} without error feedback limits the accuracy:{remedy} send more of each entry"
