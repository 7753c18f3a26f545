"""Holds what tests claim of their DMA against QEMU's trace of it.

A test in the guest states, next to the command it runs, where the bytes should have gone
(`witnessed` in `guest/lib.sh`). The guest cannot check that itself: equal bytes prove nothing about
the way they took. QEMU, outside the guest, saw every address.
"""

import json
import re
from dataclasses import dataclass

from host import trace
from host.outcome import RigError

_CLAIM = re.compile(r"^(!?)(peer|peer-some|host|none):nvme([0-9]):(gpu[0-9]):(read|write):(\d+)$")
_RECEIPT = re.compile(r"^receipt-(direct|staged):nvme([0-9]):(gpu[0-9]):(read|write):([\w.-]+)$")
#: The receipt's name for bytes that a drive's own DMA moved to or from peer memory.
PEER_PATH = "peer"


@dataclass(frozen=True)
class Claim:
    """`kind` as `guest/lib.sh` lists them; `first..end` is the claim's part of the trace, in bytes.
    A `refuted` claim is one the trace must contradict: the control that shows it can."""

    test: str
    refuted: bool
    kind: str
    namespace: int
    window: str
    verb: str
    bytes: int
    first: int
    end: int

    def __str__(self):
        denial = "not " if self.refuted else ""
        return f"{denial}{self.kind} {self.verb} of {self.bytes} bytes, namespace {self.namespace}, {self.window}"


def parse_claim(line):
    fields = line.rstrip("\n").split("\t")
    match = _CLAIM.match(fields[1]) if len(fields) == 4 else None
    if not match or not (fields[2].isdigit() and fields[3].isdigit()):
        raise RigError(f"claim {line!r} is not TEST, KIND:DRIVE:GPU:VERB:BYTES, FROM, TO")
    refuted, kind, drive, window, verb, size = match.groups()
    return Claim(
        test=fields[0],
        refuted=bool(refuted),
        kind=kind,
        namespace=int(drive) + 1,
        window=window,
        verb=verb,
        bytes=int(size),
        first=int(fields[2]),
        end=int(fields[3]),
    )


def parse_windows(text):
    """The `bars` file the guest writes: a name and the first and last address of its BAR per line."""
    rows = [line.split() for line in text.splitlines()]
    return [trace.Window(name, int(first, 16), int(last, 16)) for name, first, last in rows]


def contradiction(claim, record, windows):
    """None where the trace bears the claim out, else what the trace shows instead."""
    commands = [
        command
        for command in record.between(claim.first, claim.end)
        if command.namespace == claim.namespace and command.verb == claim.verb
    ]
    traffic = record.traffic(commands, windows)
    inside = traffic.inside.get(claim.window, 0)
    elsewhere = traffic.total() - inside
    holds = {
        "peer": inside == claim.bytes and elsewhere == 0,
        "peer-some": inside == claim.bytes,
        "host": sum(traffic.inside.values()) == 0 and traffic.outside >= claim.bytes,
        "none": traffic.total() - traffic.nowhere == 0,
    }
    if holds[claim.kind] != claim.refuted:
        return None
    shown = f"{inside} bytes in {claim.window}, {traffic.outside} in host memory, {traffic.nowhere} nowhere"
    return f"claimed {claim}; QEMU's trace has {shown}"


def receipt_claim(line, out):
    """The claim that a receipt kept in `out` makes by itself, and what is wrong with the receipt.

    Its shares must be of the class the test expects and add up to what was asked for; the bytes it
    says went by peer DMA, and no others, must be those the trace shows in the BAR.
    """
    test, claim, first, end = line.rstrip("\n").split("\t")
    expected, drive, window, verb, name = _RECEIPT.match(claim).groups()
    try:
        receipt = json.loads((out / name).read_text())["receipt"]
        requested, shares = receipt["requested"], receipt["shares"]
        moved = sum(share["bytes"] for share in shares)
        by_peer = sum(share["bytes"] for share in shares if share["path"] == PEER_PATH)
        classes = sorted({share["class"] for share in shares})
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, f"{name} is not a receipt: {error!r}"
    if classes != [expected]:
        return None, f"{name}: expected class {expected}, the receipt says {', '.join(classes) or 'nothing'}"
    if moved != requested:
        return None, f"{name}: {requested} bytes asked for, but its shares add up to {moved}"
    kind = (
        f"peer-some:nvme{drive}:{window}:{verb}:{by_peer}" if by_peer else f"host:nvme{drive}:{window}:{verb}:{moved}"
    )
    return parse_claim(f"{test}\t{kind}\t{first}\t{end}"), None


def contradictions(out):
    """What the trace in the result folder `out` says against the claims made there, by test."""
    claims = out / "claims"
    if not claims.exists():
        return {}
    record = trace.read(out / "trace.log")
    windows = parse_windows((out / "bars").read_text())
    against = {}
    for line in claims.read_text().splitlines():
        if "\treceipt-" in line:
            claim, told = receipt_claim(line, out)
        else:
            claim, told = parse_claim(line), None
        told = told or contradiction(claim, record, windows)
        if told:
            against.setdefault(line.split("\t")[0], told)
    return against
