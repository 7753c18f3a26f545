"""What a rig run can come to: passed, failed or waived, and how each is told to the caller.

A waived test is one this machine cannot run (no QEMU, no root, no kernel source). It is counted
and named, so that a machine without the means never looks like a machine that passed.
"""

import enum
import json
from dataclasses import dataclass, field


class ExitStatus(enum.IntEnum):
    """Exit statuses of `rig/run`; 77 is what automake and meson use for a skipped test."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    WAIVED = 77


class Waived(Exception):
    """This machine lacks what the step needs; the message says what and how to get it."""


class RigError(Exception):
    """The rig itself went wrong; the message names the object, the operation and the values."""


class Verdict(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    WAIVED = "waived"


@dataclass
class TestResult:
    """One test in one shape. `seconds` is guest time; `detail` says why it failed or was waived."""

    shape: str
    test: str
    verdict: Verdict
    seconds: float = 0.0
    detail: str = ""
    log: str = ""


@dataclass
class Tally:
    """Results of a whole run, and the one status they come to."""

    results: list = field(default_factory=list)

    def count(self, verdict):
        return sum(1 for result in self.results if result.verdict is verdict)

    def status(self):
        """Any failure fails; nothing passed is a waiver, never a pass."""
        if self.count(Verdict.FAILED):
            return ExitStatus.FAIL
        if self.count(Verdict.PASSED) == 0:
            return ExitStatus.WAIVED
        return ExitStatus.PASS

    def summary(self):
        return ", ".join(f"{self.count(verdict)} {verdict.value}" for verdict in Verdict)

    def lines(self):
        for result in self.results:
            line = f"{result.verdict.value:7} {result.shape}/{result.test} {result.seconds:.1f} s"
            if result.detail:
                line += f": {result.detail}"
            yield line

    def to_json(self):
        tests = [
            {
                "shape": r.shape,
                "test": r.test,
                "verdict": r.verdict.value,
                "seconds": r.seconds,
                "detail": r.detail,
                "log": r.log,
            }
            for r in self.results
        ]
        counts = {verdict.value: self.count(verdict) for verdict in Verdict}
        return json.dumps({"tests": tests, **counts}, indent=2)
