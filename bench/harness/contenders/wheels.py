"""The Python loaders, each in a fresh interpreter of the throw-away venv."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from .. import process
from ..process import Command, Finished
from .contender import PEER, REMARK, SUBJECT, Arena, Contender, Failed, Reading, Setting

WORKER = Path(__file__).resolve().parent.parent / "worker.py"
TRANSIT_MEMORY = 512_000_000
"""Bytes the streamer may hold in transit: it then recycles its buffers instead of keeping the model."""

STREAMER = "runai-model-streamer"
MAPPING = "safetensors (torch, mapped)"
"""Names that targets refer to."""

STREAMER_SETTINGS: tuple[tuple[str, dict[str, str]], ...] = (
    ("default", {}),
    ("sync_buffered concurrency=8", {"RUNAI_STREAMER_CONCURRENCY": "8"}),
    ("sync_buffered concurrency=32", {"RUNAI_STREAMER_CONCURRENCY": "32"}),
    ("io_uring_buffered", {"RUNAI_STREAMER_FS_STRATEGY": "io_uring_buffered"}),
    ("io_uring_direct", {"RUNAI_STREAMER_FS_STRATEGY": "io_uring_direct"}),
)
QUIET = {"RUNAI_STREAMER_LOG_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false"}


def streamer_settings(memory_limit: int | None) -> tuple[Setting, ...]:
    limit = {} if memory_limit is None else {"RUNAI_STREAMER_MEMORY_LIMIT": str(memory_limit)}
    return tuple(Setting(label, {**env, **limit}) for label, env in STREAMER_SETTINGS)


FASTSAFETENSORS_SETTINGS = (
    Setting("default (O_DIRECT)"),
    Setting("buffered", {"FASTSAFETENSORS_ODIRECT": "0"}),
)


@lru_cache
def probe(python: Path) -> dict[str, dict[str, str]]:
    """Per wheel its version, or the error that its import gives."""
    if not python.exists():
        return {}
    finished = process.run(Command([str(python), str(WORKER), "probe"], QUIET))
    try:
        return json.loads(finished.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        reason = (finished.stderr.strip().splitlines() or ["no output"])[-1]
        return {"python": {"error": reason}}


def tensorize(python: Path, model: Path, target: Path) -> None:
    """Writes the model's tensors to `target` in tensorizer's format."""
    command = Command([str(python), str(WORKER), "tensorize", str(model), str(target)], QUIET)
    finished = process.run(command)
    if finished.exit_code != 0:
        reason = (finished.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"tensorizer could not write its copy of the model: {reason}")


class Wheel(Contender):
    """One function of worker.py; the load is timed inside the interpreter, its start is not."""

    def __init__(
        self,
        python: Path,
        name: str,
        action: str,
        package: str,
        *,
        settings: tuple[Setting, ...] = (Setting("default"),),
        role: str = PEER,
        note: str = "",
    ) -> None:
        self.name = name
        self.role = role
        self.settings = settings
        self.note = note
        self._python = python
        self._action = action
        self._package = package

    def waived(self) -> str | None:
        found = probe(self._python)
        if not found:
            return "the venv of the peers is not there; run bench/setup-peers"
        wheel = found.get(self._package) or found.get("python") or {"error": "not installed"}
        return f"{self._package} cannot be imported: {wheel['error']}" if "error" in wheel else None

    def command(self, arena: Arena, setting: Setting) -> Command:
        target = arena.target
        if self._package == "tensorizer" and arena.tensorized is not None:
            target = arena.tensorized
        env = {**QUIET, **{key: str(value) for key, value in setting.values.items()}}
        return Command([str(self._python), str(WORKER), self._action, str(target)], env)

    def inputs(self, arena: Arena) -> tuple[Path, ...]:
        if self._package == "tensorizer" and arena.tensorized is not None:
            return (arena.tensorized,)
        return arena.files

    def read(self, finished: Finished, arena: Arena) -> Reading:
        try:
            figures = json.loads(finished.stdout.splitlines()[-1])
            return Reading(
                wall_s=figures["wall_s"],
                cpu_s=figures["cpu_s"],
                bytes=figures["bytes"],
                peak_rss=figures["peak_rss"],
                rss_before=figures["rss_before"],
                verified=figures["verified"],
                own={"tensors": figures["tensors"]},
            )
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise Failed(f"{self.name} printed no figures: {error!r}") from error


def transit(python: Path) -> list[Contender]:
    return [
        Wheel(
            python,
            STREAMER,
            "streamer-transit",
            "runai-model-streamer",
            settings=streamer_settings(TRANSIT_MEMORY),
            note=f"memory limit {TRANSIT_MEMORY // 1_000_000} MB",
        )
    ]


def resident(python: Path) -> list[Contender]:
    return [
        Wheel(
            python,
            "safetensors (numpy)",
            "safetensors-numpy",
            "safetensors",
            note="load_file, which copies out of its mapping",
        ),
        Wheel(
            python,
            MAPPING,
            "safetensors-torch",
            "safetensors",
            note="load_file, then one byte of each page touched",
        ),
        Wheel(
            python,
            "safetensors (torch, mapped), untouched",
            "safetensors-untouched",
            "safetensors",
            role=REMARK,
            note="mapped, not loaded: what was not read ahead comes in at first use",
        ),
        Wheel(
            python,
            "fastsafetensors",
            "fastsafetensors",
            "fastsafetensors",
            settings=FASTSAFETENSORS_SETTINGS,
            note="nogds, device cpu",
        ),
        Wheel(
            python,
            "tensorizer",
            "tensorizer",
            "tensorizer",
            note="the same tensors in its own format",
        ),
        Wheel(
            python,
            STREAMER,
            "streamer-resident",
            "runai-model-streamer",
            settings=streamer_settings(None),
        ),
    ]


def listing(python: Path) -> list[Contender]:
    return [
        Wheel(python, "safe_open keys", "list-keys", "safetensors"),
        Wheel(
            python,
            "safe_open keys and shapes",
            "list-shapes",
            "safetensors",
            note="what crowfly's list shows",
        ),
        Wheel(python, "fastsafetensors metadata", "list-fastsafetensors", "fastsafetensors"),
    ]


def crowfly_resident(python: Path) -> Contender:
    """crowfly's own wheel in the place of its command."""
    note = "load_file of the folder, then one byte of each page touched"
    return Wheel(python, "crowfly.torch", "crowfly-torch", "crowfly", role=SUBJECT, note=note)


def crowfly_listing(python: Path) -> Contender:
    """The same for the header of one file."""
    return Wheel(python, "crowfly.safe_open keys", "list-crowfly", "crowfly", role=SUBJECT)
