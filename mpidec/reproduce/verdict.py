"""Published figures beside measured ones, and whether they agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..cli import aligned, csv_text, plural

Figure = float | str | None
HEAD = ("", "published", "here", "ratio", "judged by", "verdict")
PRINTED, CLOSED, ORDER, ITSELF = "printed number", "closed form", "order", "itself"


class About(NamedTuple):
    """Identity of an experiment: name, source and statement.

    Parameters
    ----------
    name : str
        On the command line.
    source : str
        The paper, and the place in it.
    shows : str
        In one line.
    minutes : float
        On two idle cores, in one process.
    differs : str
        How it differs from the original in data, size or hardware.
    quick : dict
        Fields of a short run, which shows the form of the report alone.
    notes : sequence of str
        Below the lines of the report.

    Examples
    --------
    >>> About("fig1", "Nobody, Figure 1", "squares grow").minutes
    0.1
    """

    name: str
    source: str
    shows: str
    minutes: float = 0.1
    differs: str = ""
    quick: Mapping[str, object] = {}
    notes: Sequence[str] = ()


class Line(NamedTuple):
    """A published figure or statement, and what was measured.

    Parameters
    ----------
    what : str
    published : float or str, optional
        None if the paper has none: `expected` is derived.
    here : float or str
    agrees : bool, optional
        None for a line that is not judged.
    expected : str
        What agreement is.
    because : str
        The known reason of a difference.
    explains : bool, optional
        Whether the difference is within the bound of the reason, and then no failure.  A line with
        a reason that has no bound is not judged.
    by : str, optional
        What judges: a `PRINTED` number, a `CLOSED` form written apart from what is measured, an
        `ORDER` of runs, or the line `ITSELF`, which cannot fail and is not judged.  By default a
        printed number where one is published, else an order.

    Examples
    --------
    >>> within("steps, chain", 20.8, 21.0, 0.05).verdict
    'agrees'
    >>> Line("accuracy", 98.5, 97.0, False, "within 1").verdict
    'differs: expected within 1'
    >>> Line("accuracy", 98.5, 97.0, False, "within 1", "of smaller data").verdict
    'not judged: of smaller data'
    """

    what: str
    published: Figure
    here: Figure
    agrees: bool | None = None
    expected: str = ""
    because: str = ""
    explains: bool | None = None
    by: str = ""

    @property
    def judge(self) -> str:
        """The criterion of the line; "" for one that is not judged."""
        unbounded = bool(self.because) and self.explains is None
        if self.agrees is None or unbounded or self.by == ITSELF:
            return ""
        return self.by or (ORDER if self.published is None or self.ratio is None else PRINTED)

    @property
    def known(self) -> bool:
        """Whether the line differs within the bound of a known reason."""
        return bool(self.judge and not self.agrees and self.because and self.explains)

    @property
    def failed(self) -> bool:
        """Whether the line differs for no known reason."""
        return bool(self.judge) and not self.agrees and not self.known

    @property
    def ratio(self) -> float | None:
        """What is measured over what is published."""
        if isinstance(self.here, str) or isinstance(self.published, str):
            return None
        return self.here / self.published if self.published and self.here is not None else None

    @property
    def verdict(self) -> str:
        """Return the verdict as text."""
        if not self.judge:
            return f"not judged: {self.because}" if self.because else "not judged"
        if self.agrees:
            return "agrees"
        return (
            f"differs, because {self.because}"
            if self.known
            else f"differs: expected {self.expected}"
        )

    def cells(self, digits: int = 4) -> tuple[str, ...]:
        """Return the cells of a row of the table, as text."""
        return (
            self.what,
            *(_text(value, digits) for value in (self.published, self.here)),
            _text(self.ratio, 3),
            self.judge,
            self.verdict,
        )


def _text(value: Figure, digits: int) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.{digits}g}"


def within(what: str, published: float, here: float, relative: float) -> Line:
    """Return a line that agrees if both differ by at most this part of the published one."""
    agrees = abs(here - published) <= relative * abs(published)
    return Line(what, published, here, agrees, f"within {100 * relative:.3g} %")


def derived(what: str, value: float, here: float, relative: float) -> Line:
    """Return a line for a figure that no paper prints, but a closed form gives."""
    agrees = abs(here - value) <= relative * abs(value)
    return Line(what, None, here, agrees, f"{value:.6g}, within {100 * relative:.3g} %", by=CLOSED)


def holds(
    what: str,
    agrees: bool,
    here: Figure,
    expected: str,
    published: Figure = None,
    by: str = ORDER,
) -> Line:
    """Return a line for a statement; that a figure is published makes it no comparison with it."""
    return Line(what, published, here, bool(agrees), expected, by=by)


@dataclass(frozen=True)
class Report:
    """The lines of an experiment.

    Parameters
    ----------
    about : About
    lines : sequence of Line

    Examples
    --------
    >>> lines = [within("steps", 10.0, 10.2, 0.05), Line("floor", 1.0, 3.0, False, "equal")]
    >>> print(Report(About("fig1", "Nobody, Figure 1", "steps and floor"), lines))
    fig1: Nobody, Figure 1
    steps and floor
    <BLANKLINE>
           published  here  ratio  judged by       verdict
    steps         10  10.2   1.02  printed number  agrees
    floor          1     3      3  printed number  differs: expected equal
    <BLANKLINE>
    1 of 2 lines agree, 1 differs (2 printed numbers)
    """

    about: About
    lines: Sequence[Line]

    @property
    def failed(self) -> bool:
        """Whether a line that should agree does not."""
        return any(line.failed for line in self.lines)

    @property
    def summary(self) -> str:
        """Counts of the verdicts."""
        judged = [line for line in self.lines if line.judge]
        known, failed = sum(line.known for line in judged), sum(line.failed for line in judged)
        judges = Counter(line.judge for line in judged)
        by = ", ".join(plural(judges[one], one) for one in (PRINTED, CLOSED, ORDER) if judges[one])
        counts = {
            f"{len(judged) - known - failed} of {plural(len(judged), 'line')} agree": 1,
            f"{known} differ{'s' * (known == 1)} for a known reason": known,
            f"{failed} differ{'s' * (failed == 1)}": failed,
            f"{len(self.lines) - len(judged)} not judged": len(self.lines) - len(judged),
        }
        said = ", ".join(text for text, count in counts.items() if count)
        return f"{said} ({by})" if by else said

    def __str__(self) -> str:
        head = [f"{self.about.name}: {self.about.source}", self.about.shows]
        if self.about.differs:
            head.append(f"here: {self.about.differs}")
        body = aligned([HEAD, *(line.cells() for line in self.lines)], "<>>><<")
        return "\n".join([*head, "", *body, "", *self.about.notes, self.summary])

    def csv(self) -> str:
        """Return the lines as CSV."""
        rows = [(*line.cells(digits=8), line.expected) for line in self.lines]
        return csv_text([("what", *HEAD[1:], "expected"), *rows])

    def markdown(self) -> str:
        """Return a section of the page, with the figure ``NAME.png``."""
        rows = [
            HEAD,
            ("---", "---:", "---:", "---:", "---", "---"),
            *(line.cells() for line in self.lines),
        ]
        table = [
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows
        ]
        text = [
            f"*{self.about.source}.* {self.about.shows}",
            self.about.differs and f"Here: {self.about.differs}",
        ]
        picture = f"![{self.about.name}: {self.about.shows}]({self.about.name}.png)"
        parts = [
            f"## {self.about.name}",
            *filter(None, text),
            picture,
            "\n".join(table),
            *self.about.notes,
        ]
        return "\n\n".join([*parts, f"{self.summary}.", ""])
