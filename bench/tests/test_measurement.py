"""Cache states are the kernel's word, and a child's cost is that of its whole tree."""

import sys
import tempfile
import unittest
from pathlib import Path

from harness import cache, calm, memory, process
from harness.process import Command

HERE = Path(__file__).parent
BURN = "import time\nwhile time.process_time() < 0.2: pass"
TREE = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"
HOLD = "held = bytearray(b'x') * 200_000_000"


class TheCache(unittest.TestCase):
    def setUp(self):
        # Beside the tests, as a temporary folder may lie on a memory file system, which has no cold.
        file = tempfile.NamedTemporaryFile(dir=HERE)
        self.addCleanup(file.close)
        file.write(bytes(8 << 20))
        file.flush()
        self.file = Path(file.name)

    def test_is_warm_after_warming(self):
        self.assertEqual(cache.make_warm([self.file]), 1.0)
        self.assertEqual(cache.resident_share([self.file]), 1.0)

    def test_is_cold_after_dropping_even_what_was_just_written(self):
        cache.make_warm([self.file])
        try:
            cache.make_cold([self.file])
        except cache.CacheState as reason:
            self.skipTest(f"waived: {reason}")
        self.assertLessEqual(cache.resident_share([self.file]), cache.COLD_AT_MOST)

    def test_has_nothing_of_an_empty_file(self):
        with tempfile.NamedTemporaryFile(dir=HERE) as empty:
            self.assertEqual(cache.resident_share([Path(empty.name)]), 0.0)


class AChild(unittest.TestCase):
    def run_python(self, code: str, **more) -> process.Finished:
        return process.run(Command([sys.executable, "-c", code], {}, **more))

    def test_is_charged_the_cpu_of_its_own_children(self):
        self.assertGreaterEqual(self.run_python(TREE).cpu_s, 0.2)

    def test_reports_its_exit_code_and_both_outputs(self):
        code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
        finished = self.run_python(code)
        self.assertEqual(finished.exit_code, 3)
        self.assertEqual((finished.stdout, finished.stderr), ("out\n", "err\n"))

    def test_reports_the_signal_that_ended_it(self):
        finished = self.run_python("import os; os.kill(os.getpid(), 9)")
        self.assertEqual(finished.exit_code, -9)

    def test_larger_than_this_process_has_an_exact_peak(self):
        finished = self.run_python(HOLD)
        self.assertFalse(finished.rss_is_floor)
        self.assertTrue(200e6 <= finished.peak_rss < 300e6, finished.peak_rss)

    def test_smaller_than_this_process_is_said_to_be_at_most_so_large(self):
        self.assertTrue(process.run(Command(["true"], {})).rss_is_floor)

    def test_gets_the_environment_of_the_command(self):
        code = "import os; print(os.environ['ASKED'])"
        finished = process.run(Command([sys.executable, "-c", code], {"ASKED": "yes"}))
        self.assertEqual(finished.stdout, "yes\n")

    def test_output_that_is_discarded_is_not_collected(self):
        self.assertEqual(self.run_python("print('lots')", discard_output=True).stdout, "")


class Calm(unittest.TestCase):
    def test_waiting_for_a_drive_is_idle_and_what_others_take_is_not(self):
        # user nice system idle iowait irq softirq steal
        before = calm.ticks("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 1")
        after = calm.ticks("cpu  30 0 10 100 40 0 0 20 0 0\ncpu0 1 1")
        self.assertEqual((before, after), ((80, 100), (140, 200)))
        self.assertAlmostEqual(calm.busy_share(before, after), 0.4)
        self.assertEqual(calm.busy_share(before, before), 0.0)

    def test_levelled_memory_is_taken_and_given_back(self):
        memory.level(1 << 20)


if __name__ == "__main__":
    unittest.main()
