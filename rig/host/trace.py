"""Reads QEMU's record of its drives' DMA: for each command, how many bytes went where.

QEMU's drives trace each command (`pci_nvme_read`, `pci_nvme_write`) and then, before the next one,
every piece of memory its data comes from or goes to (`pci_nvme_map_addr`). Behind an IOMMU those
addresses are the device's own; `vtd_dmar_translate` records what the IOMMU made of each page, at
the moment of the transfer, so after the piece. A page that was never translated was never reached.
"""

import bisect
import re
from collections import defaultdict
from dataclasses import dataclass, field

#: Writes without data: the drive fills the blocks itself.
_WITHOUT_DATA = ("NVME_NVM_CMD_WRITE_ZEROES",)
#: The prefix QEMU's trace has where the time stamp is compiled in.
_PREFIX = r"^(?:\d+@[\d.]+:)?"
_COMMAND = re.compile(
    _PREFIX + r"pci_nvme_(read|write) cid \d+ (?:opname '(\w*)' )?"
    r"nsid (\d+) nlb (\d+) count (\d+) lba 0x([0-9a-f]+)$"
)
_PIECE = re.compile(_PREFIX + r"pci_nvme_map_addr addr 0x([0-9a-f]+) len (\d+)$")
_TRANSLATION = re.compile(
    _PREFIX + r"vtd_dmar_translate dev (\S+) iova 0x([0-9a-f]+) -> gpa 0x([0-9a-f]+) mask 0x([0-9a-f]+)$"
)


@dataclass(frozen=True)
class Window:
    """A range of guest-physical addresses, both ends included: a stand-in's BAR."""

    name: str
    first: int
    last: int

    def overlap(self, address, length):
        return max(0, min(address + length - 1, self.last) - max(address, self.first) + 1)


@dataclass
class Piece:
    """Memory a drive was told to use. `moment` orders it among the trace's events."""

    address: int
    length: int
    moment: int


@dataclass
class Command:
    """A read or write of `bytes` at byte `offset` of a namespace; `position` is its line's byte
    offset in the trace, `requester` the device the IOMMU knew it by (None without an IOMMU)."""

    verb: str
    namespace: int
    offset: int
    bytes: int
    position: int
    requester: str | None
    pieces: list = field(default_factory=list)

    def described(self):
        return sum(piece.length for piece in self.pieces)


@dataclass
class Traffic:
    """Bytes of some commands by where they went: into each window, to memory outside of all of
    them, or nowhere (asked for, but no address was ever reached)."""

    inside: dict = field(default_factory=lambda: defaultdict(int))
    outside: int = 0
    nowhere: int = 0

    def total(self):
        return sum(self.inside.values()) + self.outside + self.nowhere


class Trace:
    """A whole trace, parsed once; any part of it can then be asked about."""

    def __init__(self, lines):
        """`lines` are the trace's lines as bytes, line ends included."""
        self.commands = []
        self._translations = defaultdict(list)
        self._page_bytes = None
        position, current, requester = 0, None, None
        for moment, raw in enumerate(lines):
            line = raw.decode("ascii", "replace").rstrip("\n")
            if match := _PIECE.match(line):
                self._add_piece(current, Piece(int(match[1], 16), int(match[2]), moment))
            elif match := _TRANSLATION.match(line):
                requester = match[1]
                self._add_translation(requester, *(int(match[i], 16) for i in (2, 3, 4)), moment)
            elif match := _COMMAND.match(line):
                current = self._add_command(match, position, requester)
            position += len(raw)

    def _add_command(self, match, position, requester):
        """The device fetched the command by DMA just before, so it is the last one translated for."""
        verb, operation, namespace, blocks, count, block = match.groups()
        block_bytes = int(count) // max(1, int(blocks))
        size = 0 if operation in _WITHOUT_DATA else int(count)
        command = Command(verb, int(namespace), int(block, 16) * block_bytes, size, position, requester)
        self.commands.append(command)
        return command

    @staticmethod
    def _add_piece(command, piece):
        """Pieces beyond a command's length belong to commands that are not traced (identify, flush)."""
        if command and command.described() + piece.length <= command.bytes:
            command.pieces.append(piece)

    def _add_translation(self, requester, iova, physical, mask, moment):
        self._page_bytes = mask + 1
        self._translations[requester, iova & ~mask].append((moment, physical & ~mask))

    def between(self, first, end):
        """Commands whose line begins in the byte range `first..end` of the trace."""
        return [command for command in self.commands if first <= command.position < end]

    def traffic(self, commands, windows):
        """Where the bytes of `commands` went."""
        traffic = Traffic()
        for command in commands:
            placed = 0
            for address, length in self._physical(command):
                placed += length
                inside = 0
                for window in windows:
                    overlap = window.overlap(address, length)
                    traffic.inside[window.name] += overlap
                    inside += overlap
                traffic.outside += length - inside
            traffic.nowhere += command.bytes - placed
        return traffic

    def _physical(self, command):
        """Guest-physical `(address, length)` of each piece that was reached."""
        for piece in command.pieces:
            if command.requester is None:
                yield piece.address, piece.length
                continue
            at, end = piece.address, piece.address + piece.length
            while at < end:
                page = at & ~(self._page_bytes - 1)
                length = min(end, page + self._page_bytes) - at
                reached = self._first_translation(command.requester, page, piece.moment)
                if reached is not None:
                    yield reached + (at - page), length
                at += length

    def _first_translation(self, requester, page, moment):
        """A page can be mapped anew only once its command is done, so the first one after it counts."""
        history = self._translations.get((requester, page), [])
        index = bisect.bisect_left(history, (moment, 0))
        return history[index][1] if index < len(history) else None


def read(path):
    with open(path, "rb") as lines:
        return Trace(lines)
