"""The command line of `rig/run`."""

import argparse
import os
import re
import resource
import sys
import time
from pathlib import Path

from host import golden, guest, kernel, lock, parts, shape, suite, witness
from host.outcome import ExitStatus, RigError, Tally, TestResult, Verdict, Waived

HOME = Path(__file__).resolve().parent.parent
#: Variables of these names are the rig's own in the guest.
RESERVED = "RIG_"
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def parser():
    top = argparse.ArgumentParser(
        prog="rig/run",
        description="A virtual GPU server on real kernel code: boots machine shapes under QEMU and runs tests in them.",
        epilog="Exit status: 0 passed, 1 failed, 2 usage, 77 waived (this machine cannot run the rig).",
    )
    top.add_argument("what", help="'fetch', 'list', 'all', 'adopt', or the name of a shape")
    top.add_argument(
        "tests",
        nargs="*",
        help="tests to run: names (default: all for the shape) or paths of your own; for adopt: VERSION SOURCE",
    )
    top.add_argument(
        "--set",
        dest="settings",
        metavar="NAME=VALUE",
        type=_setting,
        action="append",
        default=[],
        help="put a variable into the tests' environment; can be repeated",
    )
    top.add_argument("--keep", action="store_true", help="keep the drives' images beside the logs")
    top.add_argument("--json", action="store_true", help="results as JSON on standard output")
    top.add_argument("--refresh", action="store_true", help="look for a newer kernel")
    top.add_argument("--bless", action="store_true", help="make what is captured the golden fixtures")
    top.add_argument("--crowfly", type=Path, help="the crowfly binary to test (default: the debug build)")
    return top


def _setting(text):
    name, separator, value = text.partition("=")
    if not separator or not _NAME.match(name) or name.startswith(RESERVED):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE with a NAME that does not begin with {RESERVED}")
    return name, value


def main(arguments=None):
    wanted = parser().parse_args(arguments)
    say = Voice(quiet=wanted.json)
    try:
        return _run(wanted, say)
    except shape.ShapeError as error:
        print(f"rig/run: {error}", file=sys.stderr)
        return ExitStatus.USAGE
    except RigError as error:
        print(f"rig/run: {error}", file=sys.stderr)
        return ExitStatus.FAIL


class Voice:
    """Progress on standard error, so standard output is the result alone."""

    def __init__(self, quiet):
        self.quiet = quiet

    def __call__(self, text):
        if not self.quiet:
            print(f"rig: {text}", file=sys.stderr, flush=True)


def _run(wanted, say):
    if wanted.what == "list":
        return _list()
    if wanted.what == "adopt":
        return _adopt(wanted.tests, say)
    names = all_shapes() if wanted.what == "all" else [wanted.what]
    if wanted.what == "fetch":
        names = []
    shapes = [shape.load(HOME / "shapes" / f"{name}.toml") for name in names]
    plan = [(machine, _tests(machine, wanted.tests)) for machine in shapes]
    tally = Tally()
    try:
        with lock.held(parts.cache_home() / "fetch.lock", say):
            ready = parts.ready(HOME, say, wanted.refresh)
    except Waived as reason:
        waived = [(m.name, suite.name_of(test)) for m, tests in plan for test in tests] or [("rig", "fetch")]
        tally.results = [TestResult(s, t, Verdict.WAIVED, detail=str(reason)) for s, t in waived]
        return _report(tally, wanted.json)
    if wanted.what == "fetch":
        say(f"ready: kernel {ready.kernel.version} in {parts.cache_home()}")
        return ExitStatus.PASS
    for machine, tests in plan:
        tally.results += _boot(machine, tests, ready, wanted, say)
    return _report(tally, wanted.json)


def _boot(machine, tests, ready, wanted, say):
    """Boot once; the run's folder stays locked until what is in it has been judged."""
    out = parts.cache_home() / "runs" / machine.name
    with lock.held(out.with_suffix(".lock"), say):
        return _boot_in(out, machine, tests, ready, wanted, say)


def _boot_in(out, machine, tests, ready, wanted, say):
    say(f"{machine.name}: {machine.about}")
    begin, cpu_before = time.monotonic(), _cpu_of_children()
    ended = guest.boot(machine, ready, tests, out, {"CROWFLY": _crowfly(wanted), **dict(wanted.settings)})
    told = {
        **golden.contradictions(machine, out, _crowfly(wanted), HOME / "golden", wanted.bless),
        **witness.contradictions(out),
    }
    found = list(suite.results(machine, tests, ended, out, told))
    # What a busy machine takes longer for, it does not take more CPU for.
    cpu = _cpu_of_children() - cpu_before
    say(f"{machine.name}: {time.monotonic() - begin:.0f} s, {cpu:.0f} s of CPU, logs in {out}")
    if not wanted.keep:
        guest.discard(machine, out)
    return found


def _cpu_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _crowfly(wanted):
    target = Path(os.environ.get("CARGO_TARGET_DIR", HOME.parent / "target"))
    return (wanted.crowfly or target / "debug" / "crowfly").resolve()


def _tests(machine, asked):
    known = suite.tests_for(machine, HOME / "tests", on_request=True)
    asked = [str(Path(test).resolve()) if "/" in test else test for test in asked]
    for test in asked:
        if "/" in test and not Path(test).is_file():
            raise shape.ShapeError(f"no test at {test}")
        if "/" not in test and test not in known:
            raise shape.ShapeError(f"no test {test} for shape {machine.name}; there are: {', '.join(known)}")
    return asked or suite.tests_for(machine, HOME / "tests")


def all_shapes():
    return sorted(path.stem for path in (HOME / "shapes").glob("*.toml"))


def _list():
    for name in all_shapes():
        machine = shape.load(HOME / "shapes" / f"{name}.toml")
        print(f"{name:16} {machine.about}\n{'':16} tests: {', '.join(_tests(machine, []))}")
    return ExitStatus.PASS


def _adopt(arguments, say):
    if len(arguments) != 2:
        raise shape.ShapeError("adopt takes VERSION SOURCE; rig/kernel/build calls it")
    adopted = kernel.adopt(parts.cache_home(), arguments[0], Path(arguments[1]))
    say(f"kernel {adopted.version} is now the rig's; rig/run fetch --refresh goes back to a packaged one")
    return ExitStatus.PASS


def _report(tally, as_json):
    if as_json:
        print(tally.to_json())
    else:
        for line in tally.lines():
            print(line)
        print(tally.summary())
    return tally.status()
