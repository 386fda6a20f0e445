"""Pictures of networks with values at their nodes.  No MPI."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection

from mpidec import plot, topology as T

pytestmark = pytest.mark.serial


def parts(axes):
    lines = [c for c in axes.collections if isinstance(c, LineCollection)]
    (points,) = (c for c in axes.collections if isinstance(c, PathCollection))
    return lines, points


def test_a_field_has_the_edges_the_values_and_the_sizes():
    graph = T.geometric(20, seed=1)
    values = np.arange(20) - 5.0
    picture = plot.field(graph, values, sizes=np.arange(20), label="x", limits=(-20, 20))
    axes, bar = picture.axes
    (lines,), points = parts(axes)
    assert len(lines.get_segments()) == graph.source.arcs // 2
    np.testing.assert_array_equal(points.get_offsets(), graph.source.places)
    np.testing.assert_array_equal(points.get_array(), values)
    np.testing.assert_allclose(points.get_sizes() / points.get_sizes()[-1], np.arange(20) / 19)
    assert points.norm.vmin == -20 and bar.get_ylabel() == "x"
    near = np.linalg.norm(graph.source.places[:, None] - graph.source.places, axis=2)
    assert (near[graph.W.toarray() > 0].max()) <= np.sqrt(2 * np.log(20) / 20)
    assert picture._repr_png_()[:4] == b"\x89PNG"


def test_places_are_those_given_or_a_layout():
    at = np.random.default_rng(0).standard_normal((6, 2))
    for graph, lines in ((T.star(6), 1), (None, 0)):
        axes = plot.field(graph, positions=at, style="paper").axes
        assert len(axes) == 1 and len(parts(axes[0])[0]) == lines
        np.testing.assert_array_equal(parts(axes[0])[1].get_offsets(), at)
    assert len(set(map(tuple, parts(plot.field(T.grid(6)).axes[0])[1].get_offsets()))) == 6


def test_an_animation_shows_each_frame(tmp_path):
    from PIL import Image

    frames = [plot.Frame(T.ring(5), np.arange(5) == k) for k in range(3)]
    moving = plot.animate(frames, titles=["a", "b", "c"], interval=0.2)
    with Image.open(moving.save(tmp_path / "x.gif", dpi=40)) as image:
        assert image.n_frames == 3 and image.info["duration"] == 200
        shown = []
        for k in range(3):
            image.seek(k)
            shown.append(np.asarray(image.convert("RGB")).tobytes())
    assert len(set(shown)) == 3
    assert moving._repr_html_().startswith('<img src="data:image/gif;base64,R0lGOD')


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plot.field(T.ring(4), np.ones(3)), r"field: values have shape \(3,\), expected"),
        (lambda: plot.field(T.ring(4), [1, 2, np.nan, 3]), "field: agent 2: values are nan"),
        (lambda: plot.field(T.ring(4), 1j * np.ones(4)), "values are of dtype complex128"),
        (
            lambda: plot.field(T.ring(4), positions=np.ones((4, 3))),
            r"positions have shape \(4, 3\)",
        ),
        (lambda: plot.field(None, np.ones(3)), "neither topology nor positions"),
        (lambda: plot.field(T.one_peer_exponential(4)), r"of a schedule schedule.at\(k\)"),
        (lambda: plot.field(T.ring(2), [1, 2], sizes=[1, -1]), "agent 1: size -1, expected >= 0"),
        (lambda: plot.field(T.ring(2), [1, 2], limits=(2, 1)), "a smaller and a larger number"),
        (lambda: plot.animate([]), "got no frames"),
        (lambda: plot.animate([(T.ring(2), [1])]), r"animate: frame 0: values have shape \(1,\)"),
        (lambda: plot.animate([(T.ring(2),)], titles=[]), "0 titles, expected one for each of 1"),
        (lambda: plot.animate([(T.ring(2),)]).save("x.mp4"), "a name that ends with .gif"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
