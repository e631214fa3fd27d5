"""Flower's records as flat vectors: floating arrays by name, with every header of a reply checked against its data."""

import hashlib
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord

from hubbub._util import strict_json
from hubbub._util.npy import read_header
from hubbub.errors import ConfigError

# The last parts of names of layer statistics.
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
_FLOATS = ("float16", "float32", "float64")


# Floating arrays, each flat.
Views = list[npt.NDArray[Any]]


def difference(after: Views, before: Views) -> torch.Tensor:
    """A client's update, reply minus model, ``(dim,)``: of two float32 arrays in float32, of all others in float64."""
    # Overflows and NaNs show in the norm.
    with np.errstate(all="ignore"):
        parts = [
            np.subtract(a, b) if a.dtype.itemsize == b.dtype.itemsize == 4 else np.subtract(a, b, dtype=np.float64)
            for a, b in zip(after, before, strict=True)
        ]
    return torch.from_numpy(np.concatenate(parts))


@dataclass(frozen=True)
class Layout:
    """The arrays of a model: floating ones are clipped, summed and noised as one vector, the others (buffers) stay.

    ``names``, ``shapes`` and ``dtypes`` are of the floating ones, in the order of the vector; ``order`` has all names, as the
    record.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    order: tuple[str, ...]

    @classmethod
    def of(cls, arrays: ArrayRecord) -> "Layout":
        """The layout of a model."""
        if not isinstance(arrays, ArrayRecord):
            raise TypeError(
                f"initial_arrays = {type(arrays).__name__}: must be an ArrayRecord, such as ArrayRecord(model.state_dict())"
            )
        kept: dict[str, Array] = {}
        for name, array in arrays.items():
            if array.stype != "numpy.ndarray":
                raise ConfigError(f"initial_arrays: {name!r} is stored as {array.stype!r}; store it as a NumPy array")
            if array.dtype not in _FLOATS and np.dtype(array.dtype).kind in "fc":
                raise ConfigError(f"initial_arrays: {name!r} is of {array.dtype}; convert it to one of {', '.join(_FLOATS)}")
            if array.dtype in _FLOATS and name.rpartition(".")[2] not in BUFFERS:
                kept[name] = array
        if not any(math.prod(array.shape) for array in kept.values()):
            raise ConfigError(f"initial_arrays: none of {list(arrays)[:5]} is a floating array that can be trained")
        shapes, dtypes = (tuple(array.shape) for array in kept.values()), (array.dtype for array in kept.values())
        return cls(tuple(kept), tuple(shapes), tuple(dtypes), tuple(arrays))

    @property
    def buffers(self) -> tuple[str, ...]:
        """The names of the other arrays."""
        return tuple(name for name in self.order if name not in self.names)

    @property
    def dim(self) -> int:
        """Numbers in the vector."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Numbers in each floating array."""
        return [math.prod(shape) for shape in self.shapes]

    def digest(self) -> str:
        """A SHA-256 that tells whether a later start trains the same model."""
        content = [self.order, [[name, list(s), d] for name, s, d in zip(self.names, self.shapes, self.dtypes, strict=True)]]
        return hashlib.sha256(strict_json.canonical(content)).hexdigest()

    def floating(self, arrays: ArrayRecord) -> ArrayRecord:
        """The floating arrays alone, in the vector's order."""
        return ArrayRecord({name: arrays[name] for name in self.names})

    def record(self, parts: Iterable[npt.NDArray[Any]]) -> ArrayRecord:
        """The floating arrays, given flat, in their shapes."""
        named = zip(self.names, self.shapes, parts, strict=True)
        return ArrayRecord({name: Array(part.reshape(shape)) for name, shape, part in named})

    def whole(self, arrays: ArrayRecord) -> torch.Tensor:
        """Floating arrays that hold whole numbers (int64), as one vector, ``(dim,)``."""
        if set(arrays) - set(self.order):
            raise ValueError("its arrays are not the model's floating arrays")
        named = zip(self.names, self.shapes, strict=True)
        return torch.from_numpy(np.concatenate([native(self._view(arrays, name, shape, ("int64",))) for name, shape in named]))

    def views(self, arrays: ArrayRecord) -> Views:
        """The floating arrays, each flat, as views of the record's bytes."""
        if unknown := set(arrays) - set(self.order):
            raise ValueError(f"has the array {min(unknown)!r}, which the model has not")
        return [self._view(arrays, name, shape) for name, shape in zip(self.names, self.shapes, strict=True)]

    def moved(self, arrays: ArrayRecord, step: torch.Tensor) -> ArrayRecord:
        """The floating arrays after a step, ``(dim,)``, in their own dtypes."""
        before = [torch.from_numpy(arrays[name].numpy().reshape(-1).copy()) for name in self.names]
        moved = zip(before, step.split(self.sizes), strict=True)
        return self.record((flat + part.to(flat.dtype)).numpy() for flat, part in moved)

    def completed(self, floating: ArrayRecord, arrays: ArrayRecord) -> ArrayRecord:
        """New floating arrays in the model's dtypes, together with the buffers as they were, in the model's order."""
        fresh = {}
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            if name not in floating or tuple(floating[name].shape) != shape:
                raise ConfigError(f"strategy: made no array {name!r} of shape {shape}; wrap one that averages")
            made = floating[name]
            fresh[name] = made if made.dtype == dtype else Array(made.numpy().astype(dtype))
        return ArrayRecord({name: fresh.get(name, arrays[name]) for name in self.order})

    def _view(
        self, arrays: Mapping[str, Array], name: str, shape: tuple[int, ...], dtypes: tuple[str, ...] = _FLOATS
    ) -> npt.NDArray[Any]:
        """The entries of a received array; its header is compared with its length before memory is allocated."""
        if name not in arrays:
            raise ValueError(f"has no array {name!r}")
        data = arrays[name].data
        if arrays[name].stype != "numpy.ndarray":
            raise ValueError("an array is not stored as NumPy stores it")
        stream = io.BytesIO(data)
        try:
            dtype, fortran_order, stated = read_header(stream)
        except ValueError as error:
            raise ValueError("an array has no header of a plain NumPy array") from error
        size = math.prod(stated) * dtype.itemsize
        if len(data) - stream.tell() != size:
            raise ValueError(f"holds {len(data) - stream.tell()} bytes of entries, its header says {size}")
        # A view, so that an array of a wrong shape is refused without a copy.
        array = np.frombuffer(data, dtype, offset=stream.tell()).reshape(stated, order="F" if fortran_order else "C")
        if array.shape != shape or array.dtype.name not in dtypes:
            raise ValueError(f"{name!r} is {array.dtype} {array.shape}, the model's {' or '.join(dtypes)} {shape}")
        return array.reshape(-1)


def native(view: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A writable copy in native byte order."""
    return np.array(view, dtype=view.dtype.newbyteorder("="))
