"""Builds the stand-in module against a kernel from a newer suite than the machine's.

Two things of that suite do not fit the machine: its compiler flags (the kernel was built by a newer
gcc) and its build programs (linked against a newer C library). Both are bridged in front of the
kernel's own build system: the compiler by a wrapper (`module/fitted-gcc`) that leaves out the flags the
machine's gcc does not know, the programs by starting each through the newer suite's own loader.
"""

import os
import shutil
import stat
import subprocess

from host.outcome import RigError, Waived


def build_module(kernel, sources, into):
    """Build the module in `sources` (a folder with a Kbuild file) for `kernel`; returns the .ko."""
    for tool in ("gcc", "make"):
        if not shutil.which(tool):
            raise Waived(f"no {tool} here to build the stand-in module with")
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(sources, into)
    if kernel.libraries:
        bridge_programs(kernel)
    command = [
        "make",
        "-C",
        kernel.source,
        f"O={kernel.build}",
        f"M={into}",
        f"CC={into / 'fitted-gcc'}",
        "CONFIG_DEBUG_INFO_BTF_MODULES=",
        "modules",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    built = sorted(into.glob("*.ko"))
    if done.returncode or len(built) != 1:
        raise RigError(f"building the stand-in module for {kernel.version} failed:\n{done.stdout}{done.stderr}")
    return built[0]


def bridge_programs(kernel):
    """Put each build program that does not start here behind the loader of its own suite."""
    loader = next(kernel.libraries.glob("usr/lib*/ld-linux-x86-64.so.2"), None)
    folder = kernel.libraries / "usr/lib/x86_64-linux-gnu"
    if loader is None or not folder.is_dir():
        raise RigError(f"no loader among the kernel's build libraries in {kernel.libraries}")
    for program in _elf_programs(kernel.build):
        if _starts_here(program):
            continue
        original = program.with_name(program.name + ".elf")
        program.rename(original)
        program.write_text(f'#!/bin/sh\nexec "{loader}" --library-path "{folder}" "{original}" "$@"\n')
        program.chmod(0o755)


def _elf_programs(build):
    for tree in ("scripts", "tools"):
        for path in sorted((build / tree).resolve().rglob("*")):
            if path.suffix == ".elf" or path.is_symlink() or not path.is_file():
                continue
            if path.stat().st_mode & stat.S_IXUSR and path.open("rb").read(4) == b"\x7fELF":
                yield path


def _starts_here(program):
    done = subprocess.run(["ldd", program], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    return done.returncode == 0 and "not found" not in done.stdout + done.stderr
