"""Models on disk, for a federation that is started again: a few, by name, and what is no longer named is gone."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote

import numpy as np

from verax.received import Model

_NAMES = "names"  # of the arrays; in the file they are numbered, as a name may be any text


class KeptModels:
    """A folder of models; without a folder nothing is kept. Killed anywhere, each is there whole or not at all.

    >>> import tempfile
    >>> kept = KeptModels(Path(tempfile.mkdtemp()))
    >>> kept.keep("first", {"at": np.array([0.5])})
    >>> kept.names, kept.get("first"), kept.get("second")
    (['first'], {'at': array([0.5])}, None)
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def keep(self, name: str, model: Model) -> None:
        """Keep a model under a name, in place of what was there."""
        if self.folder is None:
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self.folder / "part"  # one name, so that what a kill leaves is written over
        with part.open("wb") as file:
            arrays = {str(n): array for n, array in enumerate(model.values())}
            np.savez(file, **{_NAMES: np.array([*model], dtype=np.str_)}, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path(name))

    def get(self, name: str) -> Model | None:
        """The model of a name; None where there is none, or what is there is no model."""
        if self.folder is None:
            return None
        try:
            with np.load(self._path(name), allow_pickle=False) as held:
                return {str(key): held[str(n)] for n, key in enumerate(held[_NAMES])}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    @property
    def names(self) -> list[str]:
        """Under which names there are models."""
        return [] if self.folder is None else sorted(path.stem for path in self.folder.glob("*.npz"))

    def forget_all_but(self, names: Collection[str]) -> None:
        """Remove every model that is not named."""
        for name in set(self.names) - set(names):
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{quote(name, safe='')}.npz"
