"""CIFAR-10 in the published layout, and images packed as JPEG or PNG files; all tests use tiny files made here."""

import hashlib
import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from pyro_bnn.data import MissingDataError, load_images, load_packed_images, read_packed_images

from .tolerances import assert_identical

NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


class Code:
    """An object whose pickle creates a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def write_cifar(root, monkeypatch):
    """Files of four images each in the published layout, whose checksums torchvision is made to expect."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    pixels, labels = {}, {}
    for name in NAMES:
        pixels[name] = generator.integers(0, 256, (4, 3072), dtype=np.uint8)
        labels[name] = generator.integers(0, 10, 4).tolist()
        (folder / name).write_bytes(pickle.dumps({"data": pixels[name], "labels": labels[name]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(label) for label in range(10)]}))
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr(datasets.CIFAR10, "train_list", [[name, sums[name]] for name in NAMES[:5]])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setitem(datasets.CIFAR10.meta, "md5", sums["batches.meta"])
    return folder, pixels, labels


def test_cifar10_is_read_in_the_published_layout(tmp_path, monkeypatch):
    """For each image the file has 1024 red values, row after row, then the green and the blue values."""
    _, pixels, labels = write_cifar(tmp_path, monkeypatch)
    monkeypatch.setenv("PYRO_BNN_DATA", str(tmp_path))
    images = load_images("cifar10")
    assert images.x_train.shape == (20, 3, 32, 32)
    assert images.x_test.shape == (4, 3, 32, 32)
    for row, channel, i, j in ((0, 0, 0, 0), (5, 1, 2, 31), (19, 2, 31, 0)):
        expected = pixels[NAMES[row // 4]][row % 4, 1024 * channel + 32 * i + j] / 255
        assert float(images.x_train[row, channel, i, j]) == pytest.approx(expected)
    assert images.y_train.tolist() == [label for name in NAMES[:5] for label in labels[name]]
    assert images.y_test.tolist() == labels["test_batch"]
    assert images.classes[3] == "cat"
    assert len(images.classes) == 10


def test_missing_files_of_cifar10_are_named_with_the_remedy(tmp_path, monkeypatch):
    with pytest.raises(MissingDataError, match=r"CIFAR10 was not found in .*cifar-10-batches-py; pass.*--download"):
        load_images("cifar10", root=tmp_path)
    folder, *_ = write_cifar(tmp_path, monkeypatch)
    (folder / "test_batch").unlink()
    with pytest.raises(MissingDataError, match=r"\(test_batch\)"):
        load_images("cifar10", root=tmp_path)


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_pickle_that_is_not_the_published_one_is_never_opened(tmp_path, monkeypatch, name):
    folder, *_ = write_cifar(tmp_path, monkeypatch)
    (folder / name).write_bytes(pickle.dumps(Code(tmp_path / "harm")))
    with pytest.raises(ValueError, match=r"cifar-10-batches-py are damaged: their checksums.*--download"):
        load_images("cifar10", root=tmp_path)
    assert not (tmp_path / "harm").exists()
    pickle.loads((folder / name).read_bytes()).close()
    assert (tmp_path / "harm").exists()  # it would have done harm


def test_cifar10_is_downloaded_only_if_that_is_wanted(tmp_path, monkeypatch):
    asked = []

    class Download(datasets.CIFAR10):
        def download(self):
            asked.append(self.root)
            write_cifar(tmp_path, monkeypatch)

    monkeypatch.setattr(datasets, "CIFAR10", Download)
    with pytest.raises(MissingDataError):
        load_images("cifar10", root=tmp_path)
    for _ in range(2):  # the second time, all files are there
        assert len(load_images("cifar10", root=tmp_path, download=True).x_test) == 4
    assert asked == [tmp_path]


# --- packed images ----------------------------------------------------------------------------------------------------


def encode(image, file_format="PNG", **options):
    """The bytes of an image of shape (C, H, W), as an array."""
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).squeeze(-1).numpy()).save(file, file_format, **options)
    return np.frombuffer(file.getvalue(), np.uint8)


def pack(path, files, numbers, **changes):
    arrays = {
        "jpeg": np.concatenate(files),
        "offsets": np.cumsum([0, *(len(file) for file in files)]),
        "labels": np.asarray(numbers),
        **changes,
    }
    np.savez(path, **{name: values for name, values in arrays.items() if values is not None})
    return path


def pictures(count, channels=3, size=8):
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_packed_images_are_those_that_were_packed(tmp_path, channels):
    x = pictures(5, channels)
    path = pack(tmp_path / "images.npz", [encode(image) for image in x], [3, 1, 4, 1, 5])
    images, labels = read_packed_images(path)
    assert_identical(images, x)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [3, 1, 4, 1, 5]


def test_packed_jpeg_is_nearly_what_was_packed(tmp_path):
    x = torch.arange(64, dtype=torch.uint8).reshape(8, 8).expand(2, 3, 8, 8).contiguous()
    path = pack(tmp_path / "images.npz", [encode(image, "JPEG", quality=95) for image in x], [0, 1])
    assert int((read_packed_images(path)[0].int() - x.int()).abs().max()) < 8


def test_a_folder_of_packed_images_is_a_data_set(tmp_path):
    for part, count in (("train", 4), ("test", 2)):
        pack(tmp_path / f"{part}.npz", [encode(image) for image in pictures(count)], np.arange(count) % 3)
    images = load_packed_images(tmp_path)
    assert images.x_train.shape == (4, 3, 8, 8)
    assert images.classes == ("0", "1", "2")
    assert 0.9 < float(images.x_train.max()) <= 1
    assert load_packed_images(str(tmp_path), classes=("a", "b", "c")).classes == ("a", "b", "c")
    with pytest.raises(ValueError, match=r"`classes` must name all 3 labels, 0 to 2, got \['a', 'b'\]"):
        load_packed_images(tmp_path, classes=("a", "b"))
    pack(tmp_path / "test.npz", [encode(image) for image in pictures(2, size=9)], [0, 1])
    with pytest.raises(ValueError, match=r"shape \(3, 9, 9\), but the images of train.npz \(3, 8, 8\)"):
        load_packed_images(tmp_path)
    (tmp_path / "train.npz").unlink()
    with pytest.raises(MissingDataError, match=r"there is no file .*train.npz; packed images are an archive"):
        load_packed_images(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jpeg": None}, r"it lacks \['jpeg'\]"),
        ({"jpeg": np.zeros(9)}, "`jpeg` has dtype float64"),
        ({"labels": np.array([0.5, 1.0])}, "`labels` has dtype float64"),
        ({"labels": np.array([object()])}, "it is not an archive of arrays"),
        ({"labels": np.array([0, 1, 2])}, "it has 3 offsets and 3 labels"),
        ({"labels": np.array([0, -1])}, "`labels` has -1"),
        ({"offsets": np.array([0, 5, 9])}, "do not increase from 0 to"),
        ({"offsets": np.array([[0, 1, 2]])}, "`offsets` has dtype int64 and 2 axes"),
    ],
)
def test_a_damaged_archive_says_what_is_wrong(tmp_path, changes, message):
    path = pack(tmp_path / "images.npz", [encode(image) for image in pictures(2)], [0, 1], **changes)
    with pytest.raises(ValueError, match=rf"images.npz is damaged: .*{message}.*; it must contain `jpeg`"):
        read_packed_images(path)


def test_an_image_that_cannot_be_decoded_is_named(tmp_path, monkeypatch):
    good = encode(pictures(1)[0])
    for files, message in (
        ([good, np.zeros(40, np.uint8)], "image 1 is no whole JPEG or PNG file"),
        ([good, good[:-90]], "image 1 is no whole JPEG or PNG file"),
        ([good, encode(pictures(1, channels=4)[0])], "image 1 has the mode RGBA, and must be grey"),
        ([good, good, encode(pictures(1, size=4)[0])], r"image 2 has shape \(3, 4, 4\) and image 0 \(3, 8, 8\)"),
    ):
        path = pack(tmp_path / "images.npz", files, range(len(files)))
        with pytest.raises(ValueError, match=message):
            read_packed_images(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
    with pytest.raises(ValueError, match=r"image 0 is no whole JPEG or PNG file \(Image size"):  # far too large
        read_packed_images(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="it is not an archive of arrays"):
        read_packed_images(path)
    with path.open("wb") as file:
        np.save(file, good)
    with pytest.raises(ValueError, match="it is not an archive of arrays"):
        read_packed_images(path)
