"""Networks with values at their nodes: pictures and animations."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _validation as check
from .._style import COLOURS, STYLES, figure as empty
from ..topology import Topology
from ..topology.internals import positions as layout
from .runs import check_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
WIDTH, HEIGHT = 4.4, 3.6  # inches
# Area of all nodes together, of one at least and at most.
NODES, LEAST, MOST = 9000, 12, 120
EDGE = "0.75"
MARGIN = 0.06  # of the larger side


class Frame(NamedTuple):
    """One picture of an animation: a network, values and places of its agents; see `field`.

    Examples
    --------
    >>> from mpidec.topology import ring
    >>> Frame(ring(3), [1.0, 2.0, 3.0]).values
    [1.0, 2.0, 3.0]
    """

    topology: Topology | None
    values: ArrayLike | None = None
    positions: ArrayLike | None = None


def field(
    topology: Topology | None,
    values: ArrayLike | None = None,
    positions: ArrayLike | None = None,
    *,
    sizes: ArrayLike | None = None,
    limits: tuple[float, float] | None = None,
    label: str = "",
    title: str = "",
    cmap: str = "viridis",
    style: str = "screen",
) -> Figure:
    """Draw a network with a value at each agent, by colour, and optionally a second one by size.

    Parameters
    ----------
    topology : Topology or None
        Its edges are drawn, of directed graphs without their direction; None draws none.
    values : (n,) array_like, optional
        Colours of the agents.  One colour for all by default.
    positions : (n, 2) array_like, optional
        Places of the agents.  By default those of `topology.geometric`, or a layout that suits the
        graph.
    sizes : (n,) array_like, optional
        Areas of the agents' points, >= 0, relative to the largest.
    limits : (float, float), optional
        Values of the first and the last colour.  Default: the smallest and the largest value.
    label : str
        What the values are; beside the colour bar.
    title : str
    cmap : str
        A colour map of matplotlib: "viridis", or "RdBu" for values of both signs with symmetric
        `limits`.
    style : str
        "screen", or "paper", as for `figure`.

    Returns
    -------
    matplotlib.figure.Figure
        Without a window; a notebook displays it, and ``savefig("field.pdf")`` writes it.

    Raises
    ------
    TypeError, ValueError
        An array has another shape, or values that are not real and finite.

    Examples
    --------
    >>> import numpy as np
    >>> from mpidec.topology import geometric
    >>> picture = field(geometric(30), np.linspace(18, 24, 30), label="temperature, °C")
    >>> len(picture.axes)                                         # the network and the colour bar
    2
    """
    check_style(style)
    frame = _checked("field", Frame(topology, values, positions))
    scale = _scale("field", [frame], limits)
    from matplotlib import rc_context

    with rc_context(STYLES[style]):
        picture, axes = _sheet([frame], scale, label, title, cmap, style)
        area = _areas("field", sizes, len(frame.positions))
        _draw(axes, frame, area, scale, cmap)
    return picture


def animate(
    frames: Iterable[Frame | tuple[Any, ...]],
    *,
    interval: float = 0.1,
    limits: tuple[float, float] | None = None,
    label: str = "",
    cmap: str = "viridis",
    titles: Sequence[str] | None = None,
) -> Animation:
    """Animate networks: moving agents, changing values, changing graphs.

    Parameters
    ----------
    frames : iterable of Frame or tuple
        (topology, values, positions) of each picture, as for `field`.
    interval : float
        Seconds between two pictures.
    limits, label, cmap
        As for `field`; the colours are the same in all pictures.
    titles : sequence of str, optional
        One for each picture.

    Returns
    -------
    Animation
        ``save("fish.gif")`` writes it, by Pillow; a notebook displays it.

    Raises
    ------
    TypeError, ValueError
        There is no picture, or one is wrong.

    Examples
    --------
    >>> import os, tempfile, numpy as np
    >>> from mpidec.topology import ring
    >>> waves = [(ring(8), np.sin(np.arange(8) + k)) for k in range(3)]
    >>> path = animate(waves).save(os.path.join(tempfile.mkdtemp(), "wave.gif"))
    >>> path.stat().st_size > 1000
    True
    """
    checked = [_checked(f"animate: frame {k}", Frame(*frame)) for k, frame in enumerate(frames)]
    if not checked:
        raise ValueError("animate: got no frames, expected at least one")
    if titles is not None and len(titles) != len(checked):
        raise ValueError(
            f"animate: {len(titles)} titles, expected one for each of {len(checked)} frames"
        )
    interval = check.number(interval, "animate: interval", above=0)
    return Animation(checked, interval, _scale("animate", checked, limits), label, cmap, titles)


class Animation:
    """Pictures of a network one after the other; made by `animate`.

    Examples
    --------
    >>> from mpidec.topology import ring
    >>> animate([Frame(ring(3), [k, 0, 0]) for k in range(4)], interval=0.5)
    Animation(4 frames, 2 s)
    """

    def __init__(
        self,
        frames: Sequence[_Checked],
        interval: float,
        scale: tuple[float, float] | None,
        label: str,
        cmap: str,
        titles: Sequence[str] | None,
    ) -> None:
        self._frames, self._interval, self._scale = frames, interval, scale
        self._label, self._cmap, self._titles = label, cmap, titles

    def __len__(self) -> int:
        return len(self._frames)

    def __repr__(self) -> str:
        return f"Animation({len(self)} frames, {len(self) * self._interval:g} s)"

    def save(self, path: str | Path, *, dpi: int = 80) -> Path:
        """Write it to a GIF file, and return the path.

        Raises
        ------
        ValueError
            The name does not end with .gif.
        """
        path = Path(path)
        if path.suffix.lower() != ".gif":
            raise ValueError(f"{path}: expected a name that ends with .gif")
        from matplotlib import rc_context
        from matplotlib.animation import FuncAnimation
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        with rc_context(STYLES["screen"]):
            titles = self._titles or [""] * len(self)
            title = max(titles, key=len)
            picture, axes = _sheet(
                self._frames, self._scale, self._label, title, self._cmap, "screen"
            )
            FigureCanvasAgg(picture)

            def show(k: int) -> list[Any]:
                frame = self._frames[k]
                for drawn in [*axes.collections]:
                    drawn.remove()
                _draw(axes, frame, _areas("", None, len(frame.positions)), self._scale, self._cmap)
                axes.set_title(titles[k])
                return []

            wait = 1000 * self._interval
            moving = FuncAnimation(picture, show, len(self), lambda: [], interval=round(wait))
            moving.save(str(path), "pillow", dpi=dpi)
        return path

    def _repr_html_(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            data = self.save(Path(folder) / "animation.gif").read_bytes()
        return f'<img src="data:image/gif;base64,{base64.b64encode(data).decode()}">'


class _Checked(NamedTuple):
    topology: Topology | None
    values: Floats | None
    positions: Floats


def _checked(where: str, frame: Frame) -> _Checked:
    topology, values, at = frame
    if topology is not None and not isinstance(topology, Topology):
        raise TypeError(
            f"{where}: topology is {topology!r:.60}, expected a constant topology such as "
            "topology.ring(16), of a schedule schedule.at(k)"
        )
    if at is None:
        if topology is None:
            raise ValueError(f"{where}: neither topology nor positions, expected one of them")
        known = topology.source.places
        at = layout(topology) if known is None else known
    places = np.asarray(at)
    n = len(places) if topology is None else topology.n
    colours = None if values is None else _real(where, "values", values, (n,))
    return _Checked(topology, colours, _real(where, "positions", places, (n, 2)))


def _real(where: str, what: str, given: ArrayLike, shape: tuple[int, ...]) -> Floats:
    array = np.asarray(given)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{where}: {what} are of dtype {array.dtype}, expected real numbers")
    if array.shape != shape:
        raise ValueError(f"{where}: {what} have shape {array.shape}, expected {shape}")
    if not np.isfinite(array).all():
        i = int(np.argmax(~np.isfinite(array.reshape(len(array), -1)).all(axis=1)))
        raise ValueError(f"{where}: agent {i}: {what} are {array[i]}, expected finite numbers")
    return array.astype(np.float64)


def _scale(
    where: str, frames: Sequence[_Checked], limits: tuple[float, float] | None
) -> tuple[float, float] | None:
    """Values of the first and the last colour; None if there are no values."""
    values = [frame.values for frame in frames if frame.values is not None]
    if not values:
        return None
    if limits is None:
        return min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    low, high = (check.number(limit, f"{where}: limits") for limit in limits)
    if low >= high:
        raise ValueError(f"{where}: limits are {limits}, expected a smaller and a larger number")
    return low, high


def _areas(where: str, sizes: ArrayLike | None, n: int) -> float | np.ndarray:
    area = float(np.clip(NODES / n, LEAST, MOST))
    if sizes is None:
        return area
    given = _real(where, "sizes", sizes, (n,))
    if given.min() < 0:
        raise ValueError(f"{where}: agent {given.argmin()}: size {given.min():.6g}, expected >= 0")
    return 2 * area * given / (given.max() or 1.0)


def _sheet(
    frames: Sequence[_Checked],
    scale: tuple[float, float] | None,
    label: str,
    title: str,
    cmap: str,
    style: str,
) -> tuple[Figure, Axes]:
    """Return an empty picture with room for all frames, and the colour bar."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    shrink = 1.0 if style == "screen" else 0.77
    picture = empty(figsize=(shrink * WIDTH, shrink * HEIGHT), layout="constrained")
    axes = picture.subplots()
    at = np.concatenate([frame.positions for frame in frames])
    low, high = at.min(axis=0), at.max(axis=0)
    room = MARGIN * (float((high - low).max()) or 1.0)
    axes.set(xlim=(low[0] - room, high[0] + room), ylim=(low[1] - room, high[1] + room))
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_title(title)
    if scale is not None:
        bar = ScalarMappable(Normalize(*scale), cmap)
        picture.colorbar(bar, ax=axes, label=label, shrink=0.85, aspect=22).outline.set_linewidth(0)
    return picture, axes


def _draw(
    axes: Axes,
    frame: _Checked,
    area: float | np.ndarray,
    scale: tuple[float, float] | None,
    cmap: str,
) -> None:
    """Draw the edges and the agents."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import Normalize

    at = frame.positions
    if frame.topology is not None:
        W = frame.topology.W.tocoo()
        pairs = np.sort(np.column_stack([W.row, W.col])[W.row != W.col], axis=1)
        pairs = np.unique(pairs, axis=0)
        width = float(np.clip(120 / max(len(pairs), 1), 0.3, 1.1))
        axes.add_collection(
            LineCollection(list(at[pairs]), colors=EDGE, linewidths=width, zorder=1)
        )
    look: dict[str, Any] = {"s": area, "edgecolors": "0.3", "linewidths": 0.4, "zorder": 2}
    if scale is not None and frame.values is not None:
        look |= {"c": frame.values, "cmap": cmap, "norm": Normalize(*scale)}
    else:
        look["color"] = COLOURS[0]
    axes.scatter(at[:, 0], at[:, 1], **look)
