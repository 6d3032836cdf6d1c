"""MNIST and CIFAR-10 as arrays, read from their canonical files, fetched and checked if they are not there."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import tarfile
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from verax.errors import InputError
from verax.tables import write_atomically

Images = npt.NDArray[np.uint8]
Progress = Callable[[int, int], None]

_MNIST_BASE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_MNIST = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
_CIFAR10 = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"
_RECORD = 1 + 3 * 32 * 32
NAMES = ("mnist", "cifar10")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images (N, C, H, W) as bytes and their labels, for training and for testing, in their original order."""

    name: str
    train_images: Images
    train_labels: npt.NDArray[np.int64]
    test_images: Images
    test_labels: npt.NDArray[np.int64]


def load(name: str, folder: str | Path, *, fetch: bool = True, progress: Progress | None = None) -> Dataset:
    """The data set of a name, from `folder`/mnist or `folder`/cifar-10-batches-bin; fetched there if allowed."""
    if name not in NAMES:
        raise InputError(f"no data set is called {name!r}; choose mnist or cifar10")
    place = Path(folder) / ("mnist" if name == "mnist" else "cifar-10-batches-bin")
    wanted = list(_MNIST) if name == "mnist" else [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    if any(not (place / file).exists() for file in wanted):
        if not fetch:
            raise InputError(f"{place}: {name} is not there; put its {len(wanted)} files there, or allow the download")
        (_fetch_mnist if name == "mnist" else _fetch_cifar10)(place, progress)
    return _read_mnist(place) if name == "mnist" else _read_cifar10(place)


def test_labels(name: str, folder: str | Path) -> npt.NDArray[np.int64]:
    """The labels of the test images alone, without fetching anything."""
    path = label_file(name, folder)
    return (_read_idx(path) if name == "mnist" else _read_records(path)[:, 0]).astype(np.int64)


def label_file(name: str, folder: str | Path) -> Path:
    """Where the labels of the test images are.

    >>> label_file("mnist", "data").as_posix()
    'data/mnist/t10k-labels-idx1-ubyte.gz'
    """
    file = "mnist/t10k-labels-idx1-ubyte.gz" if name == "mnist" else "cifar-10-batches-bin/test_batch.bin"
    return Path(folder) / file


def _read_mnist(place: Path) -> Dataset:
    train, train_labels, test, labels = (_read_idx(place / file) for file in _MNIST)
    return Dataset("mnist", train[:, None], train_labels.astype(np.int64), test[:, None], labels.astype(np.int64))


def _read_idx(path: Path) -> Images:
    """An IDX file: a magic number, the sizes, then bytes."""
    try:
        data = gzip.decompress(_read_there(path))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a gzip file ({error}); fetch it again") from None
    rank = data[3] if len(data) > 3 else 0
    sizes = np.frombuffer(data, ">u4", rank, 4) if len(data) >= 4 + 4 * rank else np.zeros(1, ">u4")
    if data[:3] != b"\0\0\x08" or len(data) != 4 + 4 * rank + int(np.prod(sizes, dtype=np.int64)):
        raise InputError(f"{path}: not an IDX file of bytes, or cut short; fetch it again")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape([int(s) for s in sizes])


def _read_cifar10(place: Path) -> Dataset:
    train = np.concatenate([_read_records(place / f"data_batch_{i}.bin") for i in range(1, 6)])
    test = _read_records(place / "test_batch.bin")
    images = [rows[:, 1:].reshape(-1, 3, 32, 32) for rows in (train, test)]
    return Dataset("cifar10", images[0], train[:, 0].astype(np.int64), images[1], test[:, 0].astype(np.int64))


def _read_records(path: Path) -> Images:
    """A CIFAR-10 batch: records of one label byte and 3072 pixel bytes."""
    data = np.frombuffer(_read_there(path), np.uint8)
    if len(data) % _RECORD or not len(data):
        raise InputError(f"{path}: {len(data)} bytes are not whole records of {_RECORD}; fetch it again")
    return data.reshape(-1, _RECORD)


def _read_there(path: Path) -> bytes:
    if not path.exists():
        raise InputError(f"{path}: not there; give data_dir= the folder that holds mnist and cifar-10-batches-bin")
    return path.read_bytes()


def _fetch_mnist(place: Path, progress: Progress | None) -> None:
    for file, digest in _MNIST.items():
        if not (place / file).exists():
            _write_file(place / file, _fetch_checked(_MNIST_BASE + file, digest, progress))


def _fetch_cifar10(place: Path, progress: Progress | None) -> None:
    data = _fetch_checked(*_CIFAR10, progress)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            source = archive.extractfile(member) if member.isfile() else None
            if source is not None and member.name.endswith(".bin"):
                _write_file(place / Path(member.name).name, source.read())


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(data))


def _fetch_checked(url: str, digest: str, progress: Progress | None) -> bytes:
    """A whole file, checked by its MD5 sum, or a sentence."""
    parts: list[bytes] = []
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # nosec B310
            size = int(answer.headers.get("Content-Length") or 0)
            while part := answer.read(1 << 18):
                parts.append(part)
                if progress is not None:
                    progress(sum(map(len, parts)), size)
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"{url} cannot be fetched ({reason}); fetch it elsewhere and give its folder with data_dir="
        ) from None
    data = b"".join(parts)
    if hashlib.md5(data, usedforsecurity=False).hexdigest() != digest:
        raise InputError(f"{url}: what came is not the file that was asked for; try again, or give data_dir=")
    return data
