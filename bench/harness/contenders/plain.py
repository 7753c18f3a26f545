"""The tools that every machine has: cat and dd."""

from __future__ import annotations

import shutil

from ..process import Command, Finished
from .contender import Arena, Contender, Reading, Setting, whole_process

DD_EACH = 'for file; do dd if="$file" of=/dev/null bs=$BS $FLAGS status=none || exit; done'


class Cat(Contender):
    name = "cat"

    def waived(self) -> str | None:
        return None if shutil.which("cat") else "cat is not on the PATH"

    def command(self, arena: Arena, setting: Setting) -> Command:
        return Command(["cat", *map(str, arena.files)], {}, discard_output=True)

    def read(self, finished: Finished, arena: Arena) -> Reading:
        return whole_process(finished, _file_bytes(arena))


class Dd(Contender):
    name = "dd"
    settings = (
        Setting("bs=1M", {"BS": "1M", "FLAGS": ""}),
        Setting("bs=4M iflag=direct", {"BS": "4M", "FLAGS": "iflag=direct"}),
    )

    def waived(self) -> str | None:
        return None if shutil.which("dd") else "dd is not on the PATH"

    def command(self, arena: Arena, setting: Setting) -> Command:
        env = {key: str(value) for key, value in setting.values.items()}
        return Command(["sh", "-c", DD_EACH, "dd", *map(str, arena.files)], env)

    def read(self, finished: Finished, arena: Arena) -> Reading:
        return whole_process(finished, _file_bytes(arena))


def _file_bytes(arena: Arena) -> int:
    return sum(file.stat().st_size for file in arena.files)
