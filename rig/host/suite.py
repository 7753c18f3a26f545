"""Which tests there are, which shapes each is for, and how a boot's rows become results."""

import re
from pathlib import Path

from host.guest import TEST_LIMIT
from host.outcome import ExitStatus, RigError, TestResult, Verdict

#: What `timeout` exits with, by itself and after it had to kill.
TIMED_OUT = (124, 137)
#: Marks a test that is run only when it is named.
_ON_REQUEST = re.compile(r"^# on request$", re.MULTILINE)
_SHAPES = re.compile(r"^# shapes: (.+)$", re.MULTILINE)


def is_for(test_text, shape_name):
    """Whether a test's `# shapes:` line (`all`, `all but NAMES`, or `NAMES`) includes a shape."""
    match = _SHAPES.search(test_text)
    if not match:
        raise RigError("a test has no '# shapes:' line; write 'all', 'all but' some, or the names of shapes")
    words = match[1].split()
    if words[:1] == ["all"]:
        return shape_name not in words[2:]
    return shape_name in words


def name_of(test):
    """What a test is called in results and logs. It is asked for by that name, or by the path of a file."""
    return Path(test).stem


def tests_for(shape, folder, on_request=False):
    """Names of the tests for `shape`, `shape.sh` first: nothing else means much where it fails. With
    `on_request`, those too that are run only when named."""
    names = []
    for path in sorted(folder.glob("*.sh"), key=lambda path: (path.stem != "shape", path.stem)):
        text = path.read_text()
        if is_for(text, shape.name) and (on_request or not _ON_REQUEST.search(text)):
            names.append(path.stem)
    return names


def results(shape, tests, ended, out, told):
    """One result per test asked for; a test that left no row failed, whatever the boot says.

    `told` is what a look from outside says against a test, by its name.
    """
    rows = {name: (status, seconds, last) for name, status, seconds, last in ended.rows}
    if ended.broken:
        console = str(out / "console.log")
        yield TestResult(shape.name, "boot", Verdict.FAILED, ended.seconds, ended.broken, console)
    for test in map(name_of, tests):
        log = str(out / f"{test}.log")
        if test not in rows:
            yield TestResult(shape.name, test, Verdict.FAILED, 0.0, "it left no result", log)
            continue
        status, seconds, last = rows[test]
        verdict, detail = _judge(status, last, told.get(test))
        yield TestResult(shape.name, test, verdict, seconds, detail, log)


def _judge(status, last, against):
    if status == ExitStatus.WAIVED:
        return Verdict.WAIVED, last or "no reason given"
    if status in TIMED_OUT:
        return Verdict.FAILED, f"not done after {TEST_LIMIT} s"
    if status:
        return Verdict.FAILED, last or f"exit status {status}"
    if against:
        return Verdict.FAILED, against
    return Verdict.PASSED, ""
