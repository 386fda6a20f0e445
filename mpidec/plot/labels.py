"""Labels of runs: the settings in which they differ, and those which they share."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..plugins import did_you_mean, is_plugin, short
from ..record import Run
from ..record.internals import table
from ..registry import TITLES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Stated first, and shared ones in the title.
FIRST = (
    "solver.name",
    "algorithm.name",
    "topology.name",
    "problem.name",
    "problem.data",
    "run.agents",
    "model.name",
    "data.name",
    "data.alpha",
    "train.workers",
)
# Stated of trainings wherever they differ, also if they follow from others.
TRAININGS = (
    "algorithm.name",
    "topology.name",
    "model.name",
    "data.name",
    "data.alpha",
    "optimizer.name",
    "optimizer.lr",
    "train.workers",
    "train.batch",
)
PROBLEMS = ("problem.name", "problem.data")  # likewise of runs
OMITTED = (
    "run.out",
    "run.every",
    "run.trajectory",
    "run.checkpoint",
    "run.progress",
    "run.stop_error",
    "run.stop",
    "train.out",
    "train.every",
    "train.trace",
)
OWN_PACE = ("run.delay", "run.drop", "run.straggler", "run.simulate")  # of asynchronous runs
MISSING = "default"
# First line of the config of a run of a sweep.
CHOSEN = "# chosen by the run: "
# Known of a run from Python and of one from a file.
SHARED = (
    "solver.name",
    "topology.name",
    "run.agents",
    "solver.step_size",
)


def settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run, ``{"solver.name": "extra", ...}``; empty if its file holds
    no experiment.
    """
    try:
        return flat(run.config)
    except tomllib.TOMLDecodeError:
        return {}


def flat(text: str) -> dict[str, Any]:
    """Return the settings of TOML text as ``{"table.key": value}``.

    Examples
    --------
    >>> flat('[solver]\\nname = "extra"')
    {'solver.name': 'extra'}
    """
    return {
        f"{table}.{key}": value
        for table, content in tomllib.loads(text).items()
        if isinstance(content, dict)
        for key, value in content.items()
    }


def chosen(run: Run) -> set[str]:
    """Return the settings of a run that it has chosen itself."""
    head = run.config.partition("\n")[0]
    listed = head.removeprefix(CHOSEN).split(", ") if head.startswith(CHOSEN) else []
    return {*listed, *(["solver.step_size"] if "step_size" in run.attributes else [])}


def given_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the settings by which runs can be compared: those of their experiments, or of the
    calls of `mpidec.solve`.
    """
    own = [settings(run) for run in runs]
    given = [one or dict(_of_call(run)) for one, run in zip(own, runs)]
    if any(own) and any(one and not mine for one, mine in zip(given, own)):
        given = [{key: value for key, value in one.items() if key in SHARED} for one in given]
    return given


def _of_call(run: Run) -> Mapping[str, Any]:
    try:
        return table(run.attributes, "settings")
    except ValueError as error:
        raise ValueError(f"{run.path}: damaged: {error}") from error


def of_seeds(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs in groups: those of one experiment with different seeds together, and any
    other run alone.

    Runs that differ only in what they have chosen themselves, and in seeds, are of one experiment.
    """
    groups: dict[object, list[Run]] = {}
    for run in runs:
        given, free = settings(run), {*OMITTED, *chosen(run)}
        same = tuple(
            sorted(
                (key, str(value))
                for key, value in given.items()
                if key not in free and not key.endswith("seed")
            )
        )
        groups.setdefault(same if given else id(run), []).append(run)
    result = []
    for group in groups.values():
        seeds = {
            tuple(
                sorted((key, value) for key, value in settings(run).items() if key.endswith("seed"))
            )
            for run in group
        }
        result += [group] if len(seeds) == len(group) else [[run] for run in group]
    return sorted(result, key=lambda group: [run is group[0] for run in runs].index(True))


def labels(groups: Sequence[Sequence[Run]], names: Mapping[str, str] | None = None) -> list[str]:
    """Return one label per group of runs: the fewest settings that distinguish the groups, or the
    names of their files.

    A setting that follows from others is omitted: runs of two solvers with two step sizes are
    labelled by the solver, but trainings by all of TRAININGS that differ, and runs by their
    problems, too.  What some run has chosen counts only if nothing else differs.  `names` has own
    names of values and of labels.
    """
    own = names or {}
    runs = [group[0] for group in groups]
    given = given_of(runs)
    last = set().union(*map(chosen, runs))
    found = [
        label({key: one.get(key, MISSING) for key in keys}, own)
        for one, keys in zip(given, distinguishing(given, last))
    ]
    if not any(found):
        found = [label({key: one[key] for key in FIRST if key in one}, own) for one in given]
    full = [
        f"{name} ({file})" if name and found.count(name) > 1 else name or file
        for name, file in zip(found, _files(runs))
    ]
    return [name + ending(group) for name, group in zip(full, groups)]


def _files(runs: Sequence[Run]) -> list[str]:
    """Return the names of the files of runs, or their paths where names are the same."""
    files = [Path(run.path).stem for run in runs]
    return files if len({*files}) == len(files) else [run.path for run in runs]


def label(values: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return settings as text, with the names of papers, or those in `names`."""
    text = ", ".join(displayed(key, value, names) for key, value in values.items())
    return names.get(text, text)


def displayed(key: str, value: object, names: Mapping[str, str] | None = None) -> str:
    """Return a setting in the words of papers, or in those that `names` has for its value.

    Examples
    --------
    >>> displayed("solver.name", "d2"), displayed("topology.name", "ring"), displayed("problem.l2", 0.1)
    ('D$^2$', 'Ring', 'l2 0.1')
    >>> displayed("solver.name", "lead{mixing.codec=top_k}"), displayed("solver.name", "dgd", {"dgd": "DSGD"})
    ('LEAD, top k', 'DSGD')
    """
    names, text = names or {}, str(value)
    base, more = together(text)
    for known in (text, base, worded(key, value)):
        if known in names:
            return names[known]
    title = TITLES.get(key, {}).get(base)
    if title is None:
        return worded(key, value)
    return ", ".join([title, *(worded(*setting) for setting in more.items())])


def together(text: str) -> tuple[str, dict[str, str]]:
    """Return a value and the settings that come with it.

    Examples
    --------
    >>> together("lead{mixing.codec=top_k, mixing.k=2}"), together("dgd")
    (('lead', {'mixing.codec': 'top_k', 'mixing.k': '2'}), ('dgd', {}))
    """
    found = re.fullmatch(r"([^{}]*)\{(.*)\}", text)
    if found is None:
        return text, {}
    parts = [part.partition("=") for part in split(found[2])]
    return found[1].strip(), {key.strip(): value.strip() for key, _, value in parts}


def split(text: str) -> list[str]:
    """Return the parts between commas; those in brackets, braces and quotes belong to a part.

    Examples
    --------
    >>> split("ring,[1, 2],lead{mixing.codec=top_k,mixing.k=2}")
    ['ring', '[1, 2]', 'lead{mixing.codec=top_k,mixing.k=2}']
    """
    inside = r"""\[[^\]]*\]|"[^"]*"|'[^']*'"""
    braces = rf"""\{{(?:{inside}|[^\[\]"'}}])*\}}"""
    parts = re.findall(rf"""((?:{inside}|{braces}|[^,\[\]{{}}"'])*)(?:,|$)""", text)
    parts = [part.strip() for part in parts]
    return parts[:-1] if parts and not parts[-1] and not text.endswith(",") else parts


def check_names(
    names: Mapping[str, str], given: Sequence[Mapping[str, Any]], labels: Sequence[str]
) -> None:
    """Raise ValueError for an own name of what is not in the figure or table."""
    known = {*labels}
    for one in given:
        for key, value in one.items():
            known |= {str(value), together(str(value))[0], worded(key, value)}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(
                f"label {name}={names[name]}: {name} is no value of a setting of these runs"
                f"{hint and ': '}{hint or ', expected one such as extra'}"
            )


def common(runs: Sequence[Run], names: Mapping[str, str] | None = None) -> str:
    """Return the main settings that all of several runs share, for a title."""
    if len(runs) < 2:
        return ""
    given = given_of(runs)
    keys = [
        key
        for key in FIRST
        if all(key in one for one in given) and len({str(one[key]) for one in given}) == 1
    ]
    return label({key: given[0][key] for key in keys}, names or {})


def distinguishing(
    given: Sequence[Mapping[str, Any]], last: Collection[str] = ()
) -> list[list[str]]:
    """Return for each run the fewest keys, in order of interest, whose values tell it from the
    others as far as possible.

    The keys in `last` come last.  All those of TRAININGS, of trainings, or of PROBLEMS that differ
    are among the keys.
    """
    every = [
        key
        for key in dict.fromkeys([*FIRST, *(key for one in given for key in one)])
        if key not in OMITTED
    ]
    every.sort(key=lambda key: key in last)
    result = []
    for one in given:
        keys = {*_fewest(one, given, every if one else []), *_of_kind(one, given)}
        result.append(sorted(keys, key=every.index))
    return result


def _of_kind(one: Mapping[str, Any], given: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of TRAININGS, or of PROBLEMS, in which a run differs from others of its kind."""
    training = "algorithm.name" in one
    kind = [other for other in given if ("algorithm.name" in other) == training]
    return [
        key
        for key in (TRAININGS if training else PROBLEMS)
        if key in one and len({str(other[key]) for other in kind if key in other}) > 1
    ]


def _fewest(
    one: Mapping[str, Any], given: Sequence[Mapping[str, Any]], every: Sequence[str]
) -> list[str]:
    """Return the first keys whose values tell a run from the others."""
    alike, keys = [other for other in given if other], []
    for key in every:
        value, before = str(one.get(key, MISSING)), len(alike)
        alike = [other for other in alike if str(other.get(key, MISSING)) == value]
        if len(alike) < before:
            keys.append(key)
    return keys


def worded(key: str, value: object) -> str:
    """Return a setting as text.

    Examples
    --------
    >>> worded("solver.name", "gradient_tracking"), worded("run.agents", 16), worded("problem.l2", 0.1)
    ('gradient tracking', '16 agents', 'l2 0.1')
    """
    table, _, name = key.partition(".")
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    base, more = together(text)
    if more:
        return ", ".join([worded(key, base), *(worded(*setting) for setting in more.items())])
    if is_plugin(text):
        return short(text)
    if key in OWN_PACE:
        given, missing = (
            ("simulated", "on ranks") if name == "simulate" else (f"{name} {text}", f"no {name}")
        )
        return missing if value == MISSING else given
    if key in ("run.agents", "train.workers"):
        return f"{text} {name}"
    if name in ("name", "data", "codec", "partition"):
        return Path(text).name.replace("_", " ") if value != MISSING else f"{table} {text}"
    return f"{name.replace('_', ' ')} {text}"


def ending(group: Sequence[Run]) -> str:
    """Return the number of runs, and what a reader must know of those that have not ended as
    wanted.
    """
    run, steps = group[0], f"{group[0].steps} steps"
    if len(group) > 1:
        ends = Counter("unfinished" if one.outcome == "running" else one.outcome for one in group)
        odd = [
            f", {count} {word}"
            for word, count in ends.items()
            if word not in ("completed", "stopped", "missed")
        ]
        return f" ({len(group)} seeds{''.join(odd)})"
    return {
        "running": f", unfinished after {steps}",
        "interrupted": f", interrupted after {steps}",
        "failed": f", failed after {steps}",
        "diverged": f", diverged after {steps}",
    }.get(run.outcome, "")
