"""What came back in a federation's round: which replies are models that can be scored, and why the others are not.

A reply is looked at by names, shapes and finite numbers, and cast to the types of the first broadcast: an average of
counters is no integer, an optimiser on the server may answer in double precision, and neither is a client's fault.
What cannot be used is the fault of one client, and is dropped with one sentence; what fails on the model that
everybody was sent is the caller's own, and is raised before anybody trains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from verax.errors import InputError, OptionError, VeraxError
from verax.reports import some
from verax.topk import WORTH_LISTING, TopK

Model = dict[str, npt.NDArray[Any]]
Predict = Callable[[Model, Any], npt.ArrayLike | TopK]
Said = npt.NDArray[Any] | TopK
_SLACK = 1024  # bytes that an array's encoding may take beyond its numbers
_WIDEST = 8  # bytes of a number of the widest type that is taken
_NUMBERS = "biuf"  # kinds of types that models are made of
_SAME = 0.1  # of what rows differ by among themselves: less is how a machine rounds, more is another answer


class Encoded(NamedTuple):
    """An array as it was sent: what it claims to be is looked at before anything is decoded.

    >>> Encoded((2,), 16, lambda: np.zeros(2)).decode()
    array([0., 0.])
    """

    shape: tuple[int, ...]
    size: int
    decode: Callable[[], npt.NDArray[Any]]

    @property
    def oversized(self) -> bool:
        """Whether it has more bytes than numbers of its shape can take.

        >>> Encoded((2,), 10_000, lambda: np.zeros(2)).oversized
        True
        """
        return self.size > int(np.prod(self.shape, dtype=np.float64)) * _WIDEST + _SLACK


@dataclass(frozen=True, eq=False)
class Reply:
    """What a client sent: arrays by name, or why they are not looked at.

    `failed`: it says itself that it has no model. `claim`: what it says it counts for, which is believed only where
    that is asked. `origin` is its carrier's own message.

    >>> Reply("ann", {"at": np.array([0.4])}).refused
    ''
    """

    agent: str
    arrays: Mapping[str, Encoded | npt.NDArray[Any]] = field(default_factory=dict)
    refused: str = ""
    origin: Any = None
    failed: bool = False
    claim: float | None = None


@dataclass(frozen=True, eq=False)
class Work:
    """A reply that is a model, and what it says of the pool; nothing where it was not asked.

    >>> Work("ann", {"at": np.array([0.4])}, np.array([0, 1])).claim
    1.0
    """

    agent: str
    model: Model
    said: Said
    origin: Any = None
    claim: float = 1.0


@dataclass(frozen=True, eq=False)
class Received:
    """A round's replies: those that are models, one a client, by name; the others with the reason; all who were asked.

    >>> Received((), {"eve": "no reply"}, ("eve",)).dropped
    {'eve': 'no reply'}
    """

    works: tuple[Work, ...]
    dropped: dict[str, str]
    asked: tuple[str, ...] = ()

    @cached_property
    def digests(self) -> dict[str, str]:
        """Of each client's model, by its name."""
        return {work.agent: digest_of(work.model) for work in self.works}


class Refused(Exception):  # noqa: N818
    """Why one reply is dropped; caught where a round's replies are received."""


@dataclass(frozen=True, eq=False)
class Question:
    """What every model is asked: the pool, by the caller's own function, with labels or rows of so many classes.

    `whole`: rows are needed whole, also where `predict` lists the likeliest labels only.

    >>> question = Question([1, 2], lambda model, pool: [0, 5], 2, 3)
    >>> question.answer({})
    Traceback (most recent call last):
    verax.received.Refused: it says label 5 of 3 classes
    """

    pool: Any
    predict: Predict
    tasks: int
    classes: int
    whole: bool = False

    def tried_on(self, model: Model) -> Said:
        """What the model that everybody is sent says; whatever is wrong then is the caller's own, and is raised."""
        try:
            said = self.said_by(model)
        except Exception as error:
            error.add_note("verax tried predict(model, pool) on the model to be broadcast, before anybody trained")
            raise
        if fault := self._form_fault(said) or self._value_fault(said):
            raise InputError(f"tried on the model to be broadcast, predict fails: {fault}")
        return said

    def tried_first(self, model: Model) -> Said:
        """What the first model says; a model or a `predict` that cannot be used is refused before anybody trains.

        Scores compare what models say input by input, so the same model must say the same again.

        >>> Question([1, 2], lambda model, pool: [0, 1], 2, 3).tried_first({"phase": np.array(1j)})
        Traceback (most recent call last):
        verax.errors.InputError: array 'phase' of the model is complex128; send real or whole numbers
        """
        for name, array in model.items():
            if array.dtype.kind not in _NUMBERS:
                raise InputError(f"array {name!r} of the model is {array.dtype}; send real or whole numbers")
        said = self.tried_on(model)
        if not _says_the_same(said, self.tried_on(model)):
            raise InputError(
                "tried twice on the model to be broadcast, predict gives other answers the second time; keep the pool "
                "in one order (no shuffling), leave it as it is, and put the network into evaluation mode"
            )
        return said

    def said_by(self, model: Model) -> Said:
        """What `predict` gives, as an array or as rows by their likeliest labels, written out where that is asked.

        It has a copy, for what it does to a model is no part of it.
        """
        said = self.predict({name: array.copy() for name, array in model.items()}, self.pool)
        if not isinstance(said, TopK):
            return np.asarray(said)
        return said.dense() if self.whole or np.prod(said.shape) <= WORTH_LISTING else said

    def answer(self, model: Model, like: Said | None = None) -> Said:
        """What a client's model says of the pool, in the form of `like`; a model on which that fails is no model."""
        try:
            said = self.said_by(model)
        except VeraxError:
            raise
        except Exception as error:  # whatever a user's own code may raise on a strange model
            raise Refused(f"the pool cannot be predicted with it ({type(error).__name__}: {str(error)[:80]})") from None
        if fault := self._form_fault(said) or self._value_fault(said):
            raise Refused(fault)
        if like is not None and (said.ndim, type(said)) != (like.ndim, type(like)):
            raise Refused("it gives labels where others give probabilities, or the other way round")
        return said

    def _form_fault(self, said: Said) -> str:
        if isinstance(said, TopK):
            same = said.shape == (self.tasks, self.classes) and bool(said.answered.all())
            return "" if same else f"its likeliest labels make rows {said.shape}, not ({self.tasks}, {self.classes})"
        labels = said.shape == (self.tasks,) and said.dtype.kind in "iu"
        rows = said.shape == (self.tasks, self.classes) and said.dtype.kind == "f"
        if labels or rows:
            return ""
        if said.shape == (self.tasks,) and said.dtype.kind == "f":
            return "predict gives numbers; put them in bins and give the bins' places (docs/regression.md)"
        return (
            f"predict gives shape {said.shape} and type {said.dtype}; "
            f"give labels ({self.tasks},) or probabilities ({self.tasks}, {self.classes}), as the pool's length "
            f"is {self.tasks}"
        )

    def _value_fault(self, said: Said) -> str:
        if isinstance(said, TopK):  # which was checked when it was made
            return ""
        if said.ndim == 1:
            strange = said[(said < 0) | (said >= self.classes)]
            return f"it says label {strange[0]} of {self.classes} classes" if strange.size else ""
        if not np.isfinite(said).all():
            return "its predictions are not finite numbers"
        if (said < 0).any():
            return f"its predictions have {said.min():.3g}; give probabilities, not logits"
        empty = np.flatnonzero(said.sum(1) <= 0)
        return f"its probabilities of input {empty[0]} sum to 0" if empty.size else ""


def tasks_in(pool: Any) -> tuple[str, ...]:
    """The names of a pool's inputs: their places.

    >>> tasks_in(np.zeros((3, 8, 8)))
    ('0', '1', '2')
    """
    try:
        inputs = len(pool)
    except TypeError:
        raise OptionError(
            f"the pool is a {type(pool).__name__}, which has no length; give an array, a list or a data set"
        ) from None
    if inputs < 2:
        raise OptionError(f"the pool's length is {inputs}; give inputs to be scored on, two at least")
    return tuple(map(str, range(inputs)))


def _says_the_same(said: Said, again: Said) -> bool:
    if isinstance(said, TopK) or isinstance(again, TopK):
        return type(said) is type(again)
    if said.ndim == 1 or again.ndim == 1:
        return said.shape == again.shape and bool((said != again).mean() <= _SAME)
    apart = np.abs(said - said.mean(0)).mean()
    return bool(np.abs(said - again).mean() <= _SAME * apart + 1e-6)


def checked_model(sent: Mapping[str, Encoded | npt.NDArray[Any]], like: Model) -> Model:
    """The model that was sent, with the names, the order, the shapes and the types of another, and finite numbers.

    >>> checked_model({"steps": np.array(3.0), "at": np.array([0.4])}, {"at": np.zeros(1), "steps": np.array(0)})
    {'at': array([0.4]), 'steps': array(3)}
    """
    if set(sent) != set(like):
        strange = [name for name in sent if name not in like] or sorted(set(like) - set(sent))
        raise Refused(f"the arrays' names are not the broadcast's ({some(strange)})")
    return {name: checked_array(name, sent[name], expected) for name, expected in like.items()}


def cast_model(model: Model, like: Model) -> Model:
    """A model of the server's own, with the types of another; what does not fit is left to whoever made it.

    >>> cast_model({"steps": np.array(6.6)}, {"steps": np.array(0)})
    {'steps': array(7)}
    """
    with np.errstate(all="ignore"):
        return {name: _as_type(model[name], expected.dtype, copy=True) for name, expected in like.items()}


def _as_type(values: npt.NDArray[Any], type_: np.dtype[Any], *, copy: bool) -> npt.NDArray[Any]:
    whole = type_.kind in "iu" and values.dtype.kind == "f"  # an average of counters
    return np.asarray(np.rint(values) if whole else values).astype(type_, copy=copy)


def checked_array(name: str, array: Encoded | npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array of the expected shape and type, if what was sent can be cast to it and is finite everywhere.

    Where what is expected is itself not finite, as in an attention's mask, the same may be there.

    >>> checked_array("at", np.array([2.0]), np.zeros(1, np.float32)).dtype
    dtype('float32')
    """
    values = decoded_array(name, array, expected.shape)
    if values.dtype.kind not in _NUMBERS:
        raise Refused(f"array {name!r} is {values.dtype}, not numbers such as {expected.dtype}")
    if not _fits(values, expected):
        raise Refused(f"array {name!r} is not finite everywhere as {expected.dtype}")
    return _as_type(values, expected.dtype, copy=False)


def decoded_array(
    name: str, array: Encoded | npt.NDArray[Any], shape: tuple[int, ...] | None = None
) -> npt.NDArray[Any]:
    """What was sent as an array of a shape, its own if none is given, looked at before it is decoded and after.

    >>> decoded_array("at", Encoded((1,), 136, lambda: np.zeros(1)), (1,))
    array([0.])
    """
    values = array
    if isinstance(array, Encoded):
        shape = array.shape if shape is None else shape
        if array.shape != shape or array.oversized:
            raise Refused(f"array {name!r} has shape {array.shape} in {array.size} bytes, not {shape}")
        try:
            values = array.decode()
        except Exception as error:  # bytes from a stranger: whatever a decoder may raise
            raise Refused(f"array {name!r} cannot be decoded ({type(error).__name__})") from None
    if not isinstance(values, np.ndarray):
        raise Refused(f"{name!r} is a {type(values).__name__}, not an array")
    if shape is not None and values.shape != shape:
        raise Refused(f"array {name!r} is {values.dtype} {values.shape}, not {shape}")
    return values


def _fits(values: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Whether every number is finite, and stays so in the type, or is as little finite as what is expected."""
    type_ = expected.dtype
    if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
        if not same_numbers(values[~finite], expected[~finite]):
            return False
        values = values[finite]
    if not values.size or type_.kind == "b":
        return True
    limits = np.finfo(type_) if type_.kind == "f" else np.iinfo(type_)
    return float(limits.min) <= float(values.min()) and float(values.max()) <= float(limits.max)


def same_numbers(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> bool:
    """Whether two arrays are the same, what is no number too.

    >>> same_numbers(np.array([np.nan, -np.inf]), np.array([np.nan, -np.inf]))
    True
    """
    return np.array_equal(ours, theirs, equal_nan=True)


def without_numbers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Zeros in an array's shape and type, and what is not finite where it is.

    >>> without_numbers(np.array([2.0, -np.inf]))
    array([  0., -inf])
    """
    found = np.zeros_like(array)
    if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
        found[~finite] = array[~finite]
    return found


def digest_of(model: Model) -> str:
    """SHA-256 over names, shapes, types and numbers: the same model is known again after a restart.

    >>> digest_of({"at": np.zeros(1)}) == digest_of({"at": np.zeros(1, np.float32)})
    False
    """
    found = hashlib.sha256()
    for name, array in model.items():
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def nothing_left(dropped: Mapping[str, str]) -> str:
    """What is said where no reply of a round can be used.

    >>> nothing_left({"eve": "no model"})[:52]
    'all 1 replies of the round were dropped (eve: no mod'
    """
    agent, why = min(dropped.items())
    return (
        f"all {len(dropped)} replies of the round were dropped ({agent}: {why}), so the model would stay as it is; "
        "mend what they have in common, or give on_all_dropped='plain' to average such a round as it came"
    )
