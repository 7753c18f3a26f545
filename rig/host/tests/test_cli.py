"""`rig/run` as its callers see it, on machines that cannot run it and with arguments it does not know."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from host import cli, parts
from host.outcome import ExitStatus


def run(*arguments):
    """Exit status, standard output and standard error of `rig/run ARGUMENTS`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(list(arguments))
    return status, out.getvalue(), err.getvalue()


class WithoutMeans(unittest.TestCase):
    """No QEMU here, and nobody who may install it."""

    def setUp(self):
        for target, value in [("missing_packages", ["qemu-system-x86"]), ("os.geteuid", 1000)]:
            patch = mock.patch(f"host.parts.{target}", return_value=value)
            patch.start()
            self.addCleanup(patch.stop)

    def test_every_test_is_counted_as_waived_with_the_reason(self):
        status, out, _ = run("one-switch", "shape", "peer-pairs")
        self.assertEqual(status, ExitStatus.WAIVED)
        lines = out.splitlines()
        self.assertIn("missing qemu-system-x86, and installing them needs root", lines[0])
        self.assertEqual(lines[-1], "0 passed, 0 failed, 2 waived")

    def test_as_json_too(self):
        status, out, err = run("--json", "one-switch", "shape")
        self.assertEqual((status, err), (ExitStatus.WAIVED, ""))
        document = json.loads(out)
        self.assertEqual((document["passed"], document["failed"], document["waived"]), (0, 0, 1))
        self.assertEqual(document["tests"][0]["verdict"], "waived")

    def test_a_test_of_ones_own_is_named_by_its_path(self):
        with tempfile.NamedTemporaryFile(suffix=".sh") as mine:
            _, out, _ = run("--json", "one-switch", mine.name)
            self.assertEqual(json.loads(out)["tests"][0]["test"], Path(mine.name).stem)

    def test_fetch_is_waived_as_one(self):
        self.assertEqual(run("fetch")[1].splitlines()[-1], "0 passed, 0 failed, 1 waived")


class Misuse(unittest.TestCase):
    def test_an_unknown_shape_or_test_is_told_what_there_is(self):
        status, _, err = run("two-switch")
        self.assertEqual(status, ExitStatus.USAGE)
        self.assertIn("no shape two-switch; there are: acs-on, ", err)
        status, _, err = run("one-switch", "nothing")
        self.assertEqual(status, ExitStatus.USAGE)
        self.assertIn("no test nothing for shape one-switch; there are: shape, ", err)

    def test_a_path_without_a_test_is_told(self):
        status, _, err = run("one-switch", "./nowhere.sh")
        self.assertEqual(status, ExitStatus.USAGE)
        self.assertIn("nowhere.sh", err)

    def test_only_variables_that_are_not_the_rigs_own_can_be_set(self):
        for text in ["A", "=1", "A B=1", "RIG_OUT=/"]:
            with self.subTest(text), self.assertRaises(SystemExit) as ended:
                run("one-switch", "--set", text)
            self.assertEqual(ended.exception.code, ExitStatus.USAGE)
        wanted = cli.parser().parse_args(["one-switch", "--set", "A=b=c", "--set", "D="])
        self.assertEqual(wanted.settings, [("A", "b=c"), ("D", "")])


class Listing(unittest.TestCase):
    def test_every_shape_is_listed_with_its_tests(self):
        status, out, _ = run("list")
        self.assertEqual(status, ExitStatus.PASS)
        for name in cli.all_shapes():
            self.assertIn(name, out)
        self.assertIn("tests: shape, ", out)


class Cache(unittest.TestCase):
    def test_the_cache_follows_the_users_choice(self):
        with mock.patch.dict("os.environ", {"XDG_CACHE_HOME": "/somewhere"}):
            self.assertEqual(str(parts.cache_home()), "/somewhere/crowfly/rig")


if __name__ == "__main__":
    unittest.main()
