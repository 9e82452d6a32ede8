"""The memory of tensors where no allocator keeps count of it: every storage that an operation makes, until it is gone.

A process's resident memory says little about a job: it never falls while the process lives, and holds what was freed but not
given back. This sees what the job's tensors take, to the byte, at the price of some microseconds for every operation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_resize = torch.UntypedStorage.resize_


class Meter(TorchDispatchMode):
    """While it is entered, `current` bytes are held, and `peak` is the most of them since `restart`.

    What counts: what is handed to `hold`, what operations return, what collectives send. Not what was made elsewhere, such as
    a dataset in memory. Storages that freed their memory and take it again (fully_shard's) are followed.
    `kinds` are the classes of tensors that have memory: a DTensor has none, what it wraps does.
    """

    def __init__(self, kinds: tuple[type, ...] = _PLAIN) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = self.peak = 0
        self._kinds = kinds
        self._held: dict[int, tuple[weakref.ref[Any], int]] = {}

    def restart(self) -> None:
        self.peak = self.current

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Count `tensors` from now on, until they are gone."""
        for tensor in tensors:
            if type(tensor) in self._kinds and tensor.layout is torch.strided:  # a sparse one has no storage of its own
                self._see(tensor.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "to_local") for kind in types):
            return NotImplemented  # a DTensor: it calls the operations on what it wraps, which come here again
        result = func(*args, **(kwargs or {}))
        if type(result) in self._kinds and result.layout is torch.strided:
            self._see(result.untyped_storage())
        elif result is not None:
            self.hold(tree_leaves(result))
        if func.namespace == "c10d":  # DDP's buckets are made out of sight, and are first seen when they are sent
            self.hold(tree_leaves(args))
        return result

    def __enter__(self) -> Self:
        torch.UntypedStorage.resize_ = self._resizing()  # type: ignore[method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = _resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._held.get(key)
        if known is None:
            self._held[key] = (weakref.ref(storage, lambda _: self._forget(key)), size)
            self._add(key, size)
        elif known[1] != size:
            self._held[key] = (known[0], size)
            self._add(key, size - known[1])

    def _forget(self, key: int) -> None:
        self._add(key, -self._held.pop(key)[1])

    def _add(self, key: int, size: int) -> None:
        self.current += size
        self.peak = max(self.peak, self.current)

    def _resizing(self) -> Callable[..., Any]:
        """UntypedStorage.resize_, which is no operation and passes no dispatcher."""

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = _resize(storage, size)
            self._see(storage)
            return result

        return resize
