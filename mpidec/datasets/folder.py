"""Images in folders: one folder for each class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import _validation as check

Size: TypeAlias = "int | tuple[int, int]"
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
TESTS = ("test", "val", "valid", "validation")
GREY = ("1", "L", "LA", "La", "I", "F")  # and I;16 of several byte orders
DEEP = 257  # of two bytes to one


def folder(path: Path, size: Size | None = None) -> dict[str, NDArray[Any]]:
    """Return the images in a folder that has a folder for each class.

    Parameters
    ----------
    path : Path
        Its folders are the classes, in alphabetical order; or they are ``train`` and ``test`` (or
        ``val``), which have the folders of the classes.
    size : int or (int, int), optional
        Height and width: images are scaled and cropped at the centre to it. Without it, all must
        have the same.

    Returns
    -------
    dict
        `x_train` and `x_test` of the shape (N, channels, height, width), in [0, 1]; one channel if
        all images are grey, else three. `y_train` and `y_test`, the classes. `x_test` and `y_test`
        only if there is a folder of them.

    Raises
    ------
    ValueError
        A folder without images, a file that is no image, sizes that differ.
    ImportError
        Without Pillow.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> root = Path(tempfile.mkdtemp())
    >>> for name in ("cats", "dogs"):
    ...     (root / name).mkdir()
    ...     Image.new("RGB", (6, 4)).save(root / name / "1.png")
    >>> data = folder(root)
    >>> data["x_train"].shape, data["y_train"].tolist()
    ((2, 3, 4, 6), [0, 1])
    """
    parts = _parts(path)
    classes = {name: number for number, name in enumerate(parts["train"])}
    images = _read(
        [file for part in parts.values() for files in part.values() for file in files], size
    )
    found, first = {}, 0
    for part, held in parts.items():
        y = [classes[name] for name, files in held.items() for _ in files]
        found[f"x_{part}"] = images[first : first + len(y)]
        found[f"y_{part}"] = np.array(y)
        first += len(y)
    return found


def _parts(path: Path) -> dict[str, Mapping[str, Sequence[Path]]]:
    """Return the images of each class of the training set, and of the test set if there is one."""
    if not path.is_dir():
        near = [str(each) for each in path.parent.glob("*") if each.is_dir()]
        hint = check.did_you_mean(str(path), near) or "give a folder with a folder for each class"
        raise ValueError(f"{path}: no such folder: {hint}")
    train = path / "train" if (path / "train").is_dir() else path
    tests = [path / name for name in TESTS if (path / name).is_dir()]
    if tests and train == path:
        raise ValueError(f"{path} has a folder {tests[0].name}, but no folder train: add it")
    parts = {"train": _files(train), **({"test": _files(tests[0])} if tests else {})}
    if unknown := [name for name in parts.get("test", ()) if name not in parts["train"]]:
        raise ValueError(f"{tests[0]} has the class {unknown[0]}, which {train} does not have")
    return parts


def _files(path: Path) -> Mapping[str, Sequence[Path]]:
    """Return the images of each class, in alphabetical order."""
    classes = sorted(one for one in path.iterdir() if one.is_dir() and one.name[0] != ".")
    if not classes:
        raise ValueError(f"{path} has no folders, expected one for each class, with its images")
    found = {
        one.name: sorted(
            file
            for file in one.rglob("*")
            if file.suffix.lower() in SUFFIXES and file.name[0] != "." and file.is_file()
        )
        for one in classes
    }
    if empty := [name for name, files in found.items() if not files]:
        raise ValueError(
            f"{path / empty[0]} has no images ({' '.join(SUFFIXES)}): add some, or remove the folder"
        )
    return found


def _read(files: Sequence[Path], size: Size | None) -> NDArray[np.float32]:
    """Return the images of files, (N, channels, height, width)."""
    images = [_image(file, size) for file in files]
    for file, image in zip(files, images):
        if image.shape[1:] != images[0].shape[1:]:
            a, b = (" x ".join(map(str, one.shape[1:])) for one in (image, images[0]))
            raise ValueError(
                f"{file} has {a} pixels, {files[0]} has {b}, expected the same: scale all of them, "
                f"such as by size={min(images[0].shape[1:])}"
            )
    channels = max(len(image) for image in images)
    stacked = np.stack([np.broadcast_to(each, (channels, *each.shape[1:])) for each in images])
    scaled: NDArray[np.float32] = stacked.astype(np.float32) / np.float32(255)
    return scaled


def _image(file: Path, size: Size | None) -> NDArray[np.uint8]:
    """Return an image, (1 or 3, height, width)."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ImportError(
            "a folder of images needs Pillow, which is not installed: pip install pillow"
        ) from None
    try:
        with Image.open(file) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode[0] == "I":  # two bytes
                levels = np.asarray(image, float) / DEEP
                image = Image.fromarray(levels.clip(0, 255).round().astype(np.uint8))
            image = image.convert("L" if image.mode in GREY else "RGB")
            if size is not None:
                height, width = (size, size) if isinstance(size, int) else size
                image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    except Exception as error:
        why = f"{type(error).__name__}: {os.linesep.join(str(error).splitlines()[:1])}"
        raise ValueError(
            f"{file} cannot be read as an image ({why}): repair it, or remove it"
        ) from None
    array = np.asarray(image, np.uint8)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
