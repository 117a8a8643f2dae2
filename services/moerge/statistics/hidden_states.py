"""Hidden states of micro-batches between layers: on the device while it has room, the others in host memory."""

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from moerge.statistics.transfers import Mark, Transfers

_SLAB = 2**28
"""Bytes of host memory that are taken at a time: a power of two, as PyTorch takes pinned memory."""


class HiddenStates:
    """The hidden states of micro-batches, which pass each layer in order.

    Those in host memory are loaded one micro-batch ahead of the computation, and stored behind it; then only one thread
    computes. On the device two of them come, and two leave.

    Attributes:
        room: bytes for further ones on the device; None: for all.
    """

    def __init__(self, device: torch.device, transfers: Transfers, room: int | None = None) -> None:
        self._device, self._transfers, self.room = device, transfers, room
        self._states, self._slab = list[Tensor](), torch.empty(0, dtype=torch.uint8)
        self._stored = set[int]()  # those in host memory
        self._coming: dict[int, tuple[Tensor, Mark]] = {}
        self._leaving = deque[tuple[Tensor, Mark]]()

    def add(self, states: Tensor) -> None:
        """Adds those of the next micro-batch, from host memory."""
        number = len(self._states)
        if self.room is not None and states.nbytes > self.room:
            self._states.append(self._taken(states.nbytes).view(states.dtype).view(states.shape).copy_(states))
            self._stored.add(number)
            return
        if self.room is not None:
            self.room -= states.nbytes
        self._states.append(states.to(self._device, non_blocking=True))

    def __iter__(self) -> Iterator[Tensor]:
        """Those of each micro-batch, where they are, for their shapes."""
        return iter(self._states)

    def __getitem__(self, number: int) -> Tensor:
        """Those of a micro-batch, on the device; for computations that begin before those of the next one are asked."""
        if number not in self._stored:
            return self._states[number]
        if number not in self._coming:
            self.drop_copies()  # so those of the last layer are stored
            self._load(number)
        states, mark = self._coming.pop(number)
        self._transfers.follow(mark)
        if number + 1 in self._stored:
            self._load(number + 1)
        return states

    def __setitem__(self, number: int, states: Tensor) -> None:
        """Replaces those of a micro-batch by others of their shape, from the device."""
        if number not in self._stored:
            self._states[number].copy_(states)  # in place, because new memory would leave gaps
            return
        if len(self._leaving) == 2:
            self._transfers.follow(self._leaving.popleft()[1])  # later computations take its memory
        mark = self._transfers.store(self._states[number], states, self._transfers.mark())
        self._leaving.append((states, mark))

    def in_host(self, number: int) -> Tensor:
        """Those of a micro-batch, in host memory."""
        for _, mark in self._leaving:
            self._transfers.wait(mark)
        return self._states[number].cpu()

    def drop_copies(self) -> None:
        """Frees what comes and leaves, for computations behind it."""
        for _, mark in (*self._coming.values(), *self._leaving):
            self._transfers.follow(mark)
        self._coming.clear()
        self._leaving.clear()

    def _load(self, number: int) -> None:
        target = torch.empty_like(self._states[number], device=self._device)
        mark = self._transfers.load(target, self._states[number], self._transfers.mark())
        self._coming[number] = target, mark

    def _taken(self, size: int) -> Tensor:
        """Bytes of host memory; a slab is freed with all its parts."""
        if size > len(self._slab):
            self._slab = self._transfers.host([max(size, _SLAB)], torch.uint8)
        taken, self._slab = self._slab[:size], self._slab[size:]
        return taken
