"""What a rank keeps in host memory, where its kernel, its proxy and the other ranks of the machine see it."""

from __future__ import annotations

import ctypes

from mkbench.build.layout import Layout
from mkbench.dist.place import Place
from mkbench.dist.symmetric import ALIGNMENT, SymmetricHeap, round_up
from mkbench.platforms.launch_parameters import RING_DEPTH, RINGS, HeapLayout

_WORD = 8


class HostMemory:
    """Network region, abort record and command rings of one rank, zeroed.

    Addresses are this process's; those of other ranks are of ranks of this machine. Collective over the
    machine's ranks to create and to free.
    """

    def __init__(self, place: Place, heap: HeapLayout, structs: Layout) -> None:
        self.network_bytes = heap.network_bytes
        self.flag_words = heap.network_control_bytes // _WORD
        self._place, self._structs = place, structs
        self._abort = round_up(heap.network_bytes, ALIGNMENT)
        self._slots = round_up(self._abort + structs.dtype("AbortRecord").itemsize, ALIGNMENT)
        self._tails = self._slots + round_up(2 * RINGS * RING_DEPTH * _WORD, ALIGNMENT)
        self.size = self._tails + round_up(RINGS * _WORD, ALIGNMENT)
        self._segments = SymmetricHeap(place.machine, place.machine_ranks, self.size)

    def base(self, rank: int) -> int:
        """Return the address of all of a rank's."""
        return self._segments.address(rank)

    def network(self, rank: int) -> int:
        """Return the address of a rank's network region."""
        return self.base(rank)

    @property
    def abort_record(self) -> int:
        """Address of the own abort record."""
        return self.base(self._place.rank) + self._abort

    @property
    def ring_slots(self) -> int:
        """Address of the own command rings."""
        return self.base(self._place.rank) + self._slots

    @property
    def ring_tails(self) -> int:
        """Address of the own rings' tails."""
        return self.base(self._place.rank) + self._tails

    def tell_to_give_up(self, cause: int) -> None:
        """Have the ranks of this machine leave the launch too, instead of each at its own deadline."""
        fields = self._structs.dtype("AbortRecord").fields
        assert fields is not None
        for rank in self._place.machine_ranks:
            told = ctypes.c_uint32.from_address(self.base(rank) + self._abort + fields["set"][1])
            # Not atomic: a rank that gives up at this moment may lose its report, but leaves anyway.
            if told.value == 0:
                told.value = cause

    def free(self) -> None:
        """Give the memory back. Collective."""
        self._segments.free()
