"""crowfly itself. Its whole process is counted; its receipt's own figures are kept beside that."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from .. import process
from ..process import Command, Finished
from .contender import DEFAULT, SUBJECT, Arena, Contender, Failed, Reading, Setting, whole_process

RECEIPT_SCHEMA = "crowfly.receipt/1"


class Load(Contender):
    """`crowfly load PATH --json`, with `--transit` for bytes that pass through."""

    role = SUBJECT
    note = "whole process, start and exit included"

    def __init__(self, binary: Path, *, transit: bool) -> None:
        self.name = "crowfly load --transit" if transit else "crowfly load"
        self._binary = binary
        self._flags = ["--transit"] if transit else []

    def waived(self) -> str | None:
        return _missing(self._binary)

    def command(self, arena: Arena, setting: Setting) -> Command:
        return Command([str(self._binary), "load", str(arena.target), *self._flags, "--json"], {})

    def read(self, finished: Finished, arena: Arena) -> Reading:
        try:
            # A result names no path of the machine; the input's is the one that a report repeats.
            report = json.loads(finished.stdout.replace(str(arena.target), "INPUT"))
        except ValueError as error:
            raise Failed(f"crowfly load --json printed no JSON: {error}") from error
        own = summary(report)
        moved = own["requested_bytes"]
        if moved < arena.data_bytes:
            raise Failed(f"the receipts cover {moved} bytes of {arena.data_bytes} tensor bytes")
        return whole_process(finished, moved, **own)

    def prove(self, arena: Arena) -> bool | None:
        """By `--verify`, which compares what arrived with a second reading of the files."""
        load = self.command(arena, DEFAULT)
        finished = process.run(Command([*load.argv, "--verify"], load.env))
        try:
            found = list(_receipts(json.loads(finished.stdout)))
        except ValueError:
            return False
        return finished.exit_code == 0 and bool(found) and all(map(_matched, found))


class List(Contender):
    """`crowfly load FILE --list`, its output thrown away."""

    name = "crowfly load --list"
    role = SUBJECT
    note = "whole process, start and exit included"

    def __init__(self, binary: Path) -> None:
        self._binary = binary

    def waived(self) -> str | None:
        return _missing(self._binary)

    def command(self, arena: Arena, setting: Setting) -> Command:
        argv = [str(self._binary), "load", str(arena.target), "--list"]
        return Command(argv, {}, discard_output=True)

    def read(self, finished: Finished, arena: Arena) -> Reading:
        return whole_process(finished, arena.data_bytes)


def summary(report: object) -> dict:
    """The receipts found anywhere in the report, added up; a transfer may have one for each file."""
    found = list(_receipts(report))
    if not found:
        raise Failed(f"the report holds no receipt of schema {RECEIPT_SCHEMA}")
    try:
        shares = [share for receipt in found for share in _whole_shares(receipt)]
        by_path: dict[str, int] = {}
        for share in shares:
            by_path[share["path"]] = by_path.get(share["path"], 0) + share["bytes"]
        because = sorted({share["because"] for share in shares if share.get("because")})
        ways = [f"{path} {size / 1e9:.3f} GB" for path, size in by_path.items()]
        return {
            "receipts": len(found),
            "requested_bytes": sum(receipt["requested"] for receipt in found),
            "bytes_by_path": by_path,
            "because": because,
            "says": ", ".join(ways) + "".join(f" ({reason})" for reason in because),
            "bounced_bytes": sum(receipt["bounced"] for receipt in found),
            "overread_bytes": sum(receipt["overread"] for receipt in found),
            "retries": sum(receipt["retries"] for receipt in found),
            "receipt_wall_s": max(receipt["wall_seconds"] for receipt in found),
            "receipt_cpu_s": sum(
                receipt["cpu"]["user"] + receipt["cpu"]["system"] for receipt in found
            ),
        }
    except (KeyError, TypeError) as error:
        raise Failed(f"a receipt lacks a figure: {error!r}") from error


def _whole_shares(receipt: dict) -> list[dict]:
    """The shares of a receipt whose bytes by path sum to the bytes asked for."""
    total = sum(share["bytes"] for share in receipt["shares"])
    if total != receipt["requested"]:
        raise Failed(f"shares sum to {total} bytes of {receipt['requested']} requested")
    return receipt["shares"]


def _receipts(value: object) -> Iterator[dict]:
    if isinstance(value, dict):
        if value.get("schema") == RECEIPT_SCHEMA:
            yield value
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _receipts(item)


def _matched(receipt: dict) -> bool:
    verification = receipt.get("verification")
    return isinstance(verification, dict) and verification.get("state") == "matched"


def _missing(binary: Path) -> str | None:
    if os.access(binary, os.X_OK):
        return None
    return f"{binary.name} is not built; run cargo build --release"
