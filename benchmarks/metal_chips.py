"""Apple's chips as Apple specifies them, and what is known of a core of their GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """A chip in its largest configuration.

    Attributes:
        name: without "Apple".
        bandwidth: of its memory, in GB/s, by the technical specifications of the Macs that have it.
        cores: of its GPU, likewise.
        teraflops: in float32, where Apple named a figure.
    """

    name: str
    bandwidth: float
    cores: int
    teraflops: float | None = None


CHIPS = (
    Chip("M1", 68.25, 8, 2.6),
    Chip("M1 Pro", 200, 16, 5.2),
    Chip("M1 Max", 400, 32, 10.4),
    Chip("M1 Ultra", 800, 64, 21),
    Chip("M2", 100, 10, 3.6),
    Chip("M2 Pro", 200, 19),
    Chip("M2 Max", 400, 38),
    Chip("M2 Ultra", 800, 76),
    Chip("M3", 100, 10),
    Chip("M3 Pro", 150, 18),
    Chip("M3 Max", 400, 40),
    Chip("M3 Ultra", 819, 80),
    Chip("M4", 120, 10),
    Chip("M4 Pro", 273, 20),
    Chip("M4 Max", 546, 40),
)
"""There is no M4 Ultra."""

MOST_MEMORY = 32 * 1024
"""Bytes of threadgroup memory that a threadgroup may have (Metal's feature set tables)."""
CORE_MEMORY = 60 * 1024
"""Bytes of threadgroup memory that a core of M1 and M2 has (metal-benchmarks)."""
CORE_REGISTERS = 208 * 1024
"""Bytes of registers that a core of M1 and M2 has (applegpu, metal-benchmarks)."""
CORE_THREADS = 1024
"""Threads that a core holds at 104 registers of 16 bits each: the most that is counted here."""
MOST_REGISTERS = 256
"""Registers of 16 bits that a thread may have; what is beyond goes to memory."""


@dataclass(frozen=True)
class Occupancy:
    """How many threadgroups a core of M1 and M2 holds, and what they are bound by."""

    groups: int
    threads: int
    bound: str


def occupancy(registers: int, memory: int, threads: int) -> Occupancy:
    """Of a kernel.

    Args:
        registers: of 16 bits, a thread.
        memory: bytes of a threadgroup.
        threads: of a threadgroup.
    """
    by = {
        "threads": CORE_THREADS // threads,
        "registers": CORE_REGISTERS // (2 * min(registers, MOST_REGISTERS) * threads),
        "memory": CORE_MEMORY // memory if memory else CORE_THREADS,
    }
    bound = min(by, key=lambda name: by[name])
    return Occupancy(by[bound], by[bound] * threads, bound)
