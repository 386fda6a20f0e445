"""Folders of images: classes, sizes, channels, what cannot be read."""

from __future__ import annotations

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")

from mpidec.datasets.folder import folder  # noqa: E402
from mpidec.datasets.images import images  # noqa: E402
from mpidec.datasets.labelled import Reading  # noqa: E402

pytestmark = pytest.mark.serial

RNG = np.random.default_rng(0)
GREY, COLOUR = (RNG.integers(0, 256, shape).astype(np.uint8) for shape in ((4, 6), (4, 6, 3)))


@pytest.fixture
def root(tmp_path):
    """Two classes: a grey image, one of two bytes, one in colour and one that is turned."""
    for name in ("cats/.hidden", "dogs/more"):
        (tmp_path / name).mkdir(parents=True)
    Image.fromarray(GREY).save(tmp_path / "cats" / "1.png")
    Image.fromarray(GREY.astype(np.uint16) * 257).save(tmp_path / "cats" / "2.png")
    Image.fromarray(COLOUR).save(tmp_path / "dogs" / "1.png")
    turned = Image.Exif()
    turned[0x0112] = 6  # to be shown after a quarter turn clockwise
    Image.fromarray(np.rot90(COLOUR)).save(tmp_path / "dogs" / "more" / "2.png", exif=turned)
    (tmp_path / "cats" / "notes.txt").write_text("none")
    return tmp_path


def test_images_are_those_of_the_files(root):
    data = folder(root)
    x = np.stack([np.stack([GREY] * 3)] * 2 + [COLOUR.transpose(2, 0, 1)] * 2)
    np.testing.assert_allclose(255 * data["x_train"], x, atol=1e-4)
    assert data["y_train"].tolist() == [0, 0, 1, 1]
    assert folder(root, (2, 3))["x_train"].shape == (4, 3, 2, 3)
    made = images(f"{root}/", how=Reading(size=4))
    assert made.shape == (3, 4, 4) and len(made.train_x) == 3 and made.labels
    np.testing.assert_allclose(made.train_x.mean((0, 2, 3)), 0, atol=1e-6)


def test_folders_of_training_and_test_images(root, tmp_path_factory):
    both = tmp_path_factory.mktemp("both")
    root.rename(both / "train")
    (both / "val" / "dogs").mkdir(parents=True)
    Image.fromarray(COLOUR).save(both / "val" / "dogs" / "a.png")
    data = folder(both)
    assert data["y_test"].tolist() == [1] and len(data["x_train"]) == 4
    (both / "val" / "dogs").rename(both / "val" / "birds")
    with pytest.raises(ValueError, match=r"has the class birds, which .*train does not have"):
        folder(both)


def test_what_cannot_be_read_is_named(root):
    Image.fromarray(COLOUR[:3]).save(root / "dogs" / "3.png")
    with pytest.raises(ValueError, match=r"3.png has 3 x 6 pixels.* such as by size=4"):
        folder(root)
    whole = (root / "dogs" / "1.png").read_bytes()
    (root / "dogs" / "3.png").write_bytes(whole[:60])
    with pytest.raises(ValueError, match=r"dogs.3.png cannot be read as an image \(.*: repair it"):
        folder(root)
    (root / "dogs" / "3.png").unlink()
    (root / "birds").mkdir()
    with pytest.raises(ValueError, match="birds has no images"):
        folder(root)
    with pytest.raises(ValueError, match=r"no such folder: did you mean .*cats"):
        folder(root / "cast")
