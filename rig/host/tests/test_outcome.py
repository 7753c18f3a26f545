"""What a run comes to."""

import tempfile
import threading
import time
import unittest
from pathlib import Path

from host import suite
from host.guest import TEST_LIMIT, Ended
from host.initramfs import cpio
from host.lock import held
from host.outcome import ExitStatus, RigError, Tally, TestResult, Verdict
from host.shape import parse
from host.tests.test_shape import SMALL


def tally(*verdicts):
    return Tally([TestResult("s", "t", verdict) for verdict in verdicts])


class Statuses(unittest.TestCase):
    def test_one_failure_fails_the_run(self):
        self.assertEqual(tally(Verdict.PASSED, Verdict.FAILED, Verdict.WAIVED).status(), ExitStatus.FAIL)

    def test_nothing_run_is_waived_never_passed(self):
        self.assertEqual(tally().status(), ExitStatus.WAIVED)
        self.assertEqual(tally(Verdict.WAIVED).status(), ExitStatus.WAIVED)

    def test_the_summary_counts_all_three(self):
        self.assertEqual(tally(Verdict.PASSED, Verdict.WAIVED).summary(), "1 passed, 0 failed, 1 waived")
        self.assertEqual(tally(Verdict.PASSED, Verdict.WAIVED).status(), ExitStatus.PASS)


class Results(unittest.TestCase):
    def results(self, rows, broken=None, tests=("t",), told=None):
        with tempfile.TemporaryDirectory() as out:
            ended = Ended(rows, 1.0, broken)
            found = suite.results(parse("small", SMALL), tests, ended, Path(out), told or {})
            return [(result.test, result.verdict, result.detail) for result in found]

    def test_exit_statuses_become_verdicts_with_the_last_line_as_detail(self):
        self.assertEqual(self.results([("t", 0, 1.0, "fine")]), [("t", Verdict.PASSED, "")])
        self.assertEqual(self.results([("t", 77, 1.0, "no drive")]), [("t", Verdict.WAIVED, "no drive")])
        self.assertEqual(self.results([("t", 3, 1.0, "lost")]), [("t", Verdict.FAILED, "lost")])
        self.assertEqual(self.results([("t", 3, 1.0, "")]), [("t", Verdict.FAILED, "exit status 3")])
        self.assertEqual(self.results([("t", 124, 1.0, "")]), [("t", Verdict.FAILED, f"not done after {TEST_LIMIT} s")])

    def test_what_is_seen_from_outside_fails_a_test_that_passed(self):
        self.assertEqual(self.results([("t", 0, 1.0, "")], told={"t": "a lie"}), [("t", Verdict.FAILED, "a lie")])
        self.assertEqual(self.results([("t", 77, 1.0, "no")], told={"t": "a lie"}), [("t", Verdict.WAIVED, "no")])

    def test_a_test_that_left_no_row_failed(self):
        self.assertEqual(self.results([]), [("t", Verdict.FAILED, "it left no result")])

    def test_a_boot_that_broke_fails_even_if_its_tests_passed(self):
        self.assertEqual(
            self.results([("t", 0, 1.0, "")], broken="QEMU ended with status 1"),
            [("boot", Verdict.FAILED, "QEMU ended with status 1"), ("t", Verdict.PASSED, "")],
        )

    def test_a_test_names_its_shapes_or_is_an_error(self):
        self.assertTrue(suite.is_for("# shapes: one-switch rails\n", "rails"))
        self.assertFalse(suite.is_for("# shapes: one-switch rails\n", "acs-on"))
        self.assertTrue(suite.is_for("# shapes: all\n", "rails"))
        self.assertTrue(suite.is_for("# shapes: all but rails\n", "acs-on"))
        self.assertFalse(suite.is_for("# shapes: all but rails\n", "rails"))
        with self.assertRaises(RigError):
            suite.is_for("echo\n", "rails")

    def test_a_test_on_request_is_left_out_unless_it_is_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in [
                ("b", "# shapes: all\n"),
                ("a", "# shapes: all\n# on request\n"),
                ("shape", "# shapes: all\n"),
            ]:
                (Path(folder) / f"{name}.sh").write_text(text)
            small = parse("small", SMALL)
            self.assertEqual(suite.tests_for(small, Path(folder)), ["shape", "b"])
            self.assertEqual(suite.tests_for(small, Path(folder), on_request=True), ["shape", "a", "b"])


class Locks(unittest.TestCase):
    def test_a_second_run_says_that_it_waits_and_goes_on_when_the_first_is_done(self):
        told, order = [], []

        def second(path):
            with held(path, told.append):
                order.append("second")

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "runs" / "shape.lock"
            with held(path, told.append):
                waiting = threading.Thread(target=second, args=(path,))
                waiting.start()
                while not told:
                    time.sleep(0.01)
                order.append("first")
            waiting.join()
        self.assertEqual(told, ["another run holds shape.lock; waiting for it"])
        self.assertEqual(order, ["first", "second"])


class Archives(unittest.TestCase):
    def test_a_cpio_archive_has_padded_entries_and_a_trailer(self):
        packed = cpio([("init", 0o100755, b"abc")])
        self.assertTrue(packed.startswith(b"070701" + b"00000001" + b"000081ed"))
        self.assertEqual(len(packed) % 4, 0)
        self.assertIn(b"init\0", packed)
        self.assertIn(b"TRAILER!!!\0", packed)


if __name__ == "__main__":
    unittest.main()
