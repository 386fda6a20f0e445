"""Flags of the commands that draw curves."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TypedDict

from ..cli import Flag
from ..exceptions import ConfigError
from .drawing import Range

FLAGS = [
    Flag(
        "--panels",
        nargs="+",
        metavar="SETTING",
        help="a panel for each value of these settings: topology, solver, problem.l2, ...",
    ),
    Flag(
        "--colour",
        metavar="SETTING",
        help="a colour for each value of this setting (default: solver, if solver and topology "
        "distinguish the lines)",
    ),
    Flag("--dash", metavar="SETTING", help="dashes likewise (default: topology)"),
    Flag("--log-x", action="store_true", help="logarithmic x axis, without step 0"),
    Flag("--xlim", nargs=2, type=float, metavar=("LOW", "HIGH"), help="limits of the x axis"),
    Flag("--ylim", nargs=2, type=float, metavar=("LOW", "HIGH"), help="limits of the y axis"),
    Flag(
        "--theory",
        action="store_true",
        help="draw, dashed, the error_rms that theory expects of the runs whose files state it",
    ),
]


class Style(TypedDict):
    """The options of `mpidec.plot.figure` that FLAGS give."""

    panels: Sequence[str] | None
    colour: str | None
    dash: str | None
    log_x: bool
    xlim: Range | None
    ylim: Range | None
    theory: bool


def look(args: argparse.Namespace) -> Style:
    """Return the options of the flags FLAGS."""
    return Style(
        panels=args.panels,
        colour=args.colour,
        dash=args.dash,
        log_x=args.log_x,
        xlim=None if args.xlim is None else (args.xlim[0], args.xlim[1]),
        ylim=None if args.ylim is None else (args.ylim[0], args.ylim[1]),
        theory=args.theory,
    )


def own_names(given: Sequence[str] | None) -> dict[str, str]:
    """Return the own names of flags ``name=TEXT``.

    Raises
    ------
    ConfigError

    Examples
    --------
    >>> own_names(["dgd=DSGD", "ring=cycle"])
    {'dgd': 'DSGD', 'ring': 'cycle'}
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, shown = text.partition("=")
        if not (name and equals and shown):
            raise ConfigError(f"--label {text}: expected name=TEXT, such as dgd=DSGD")
        if name in found:
            raise ConfigError(f"--label {text}: {name} is named twice")
        found[name] = shown
    return found
