"""Images: another name for `mpidec.datasets.images`."""

from ..datasets import Images, augment, image_sets, images, split

__all__ = ["Images", "augment", "image_sets", "images", "split"]
