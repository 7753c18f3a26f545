"""How contenders are started and how their reports are read."""

import json
import tempfile
import unittest
from pathlib import Path

from harness.contenders import crowfly
from harness.contenders.contender import Arena, Failed, Setting
from harness.contenders.fio import Ceiling, Fio
from harness.contenders.wheels import Wheel
from harness.process import Finished

MIB = 1 << 20


def finished(stdout: str) -> Finished:
    return Finished(0, 2.0, 0.3, 0.1, 50_000_000, False, stdout, "")


def receipt(**changed) -> dict:
    base = {
        "schema": crowfly.RECEIPT_SCHEMA,
        "requested": 100,
        "shares": [
            {"path": "direct", "class": "staged", "bytes": 90, "because": None},
            {"path": "cached", "class": "staged", "bytes": 10, "because": "was resident"},
        ],
        "bounced": 10,
        "overread": 4,
        "retries": 0,
        "wall_seconds": 0.5,
        "cpu": {"user": 0.1, "system": 0.2},
    }
    return {**base, **changed}


class FioRuns(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.files = tuple(Path(folder.name) / f"{number}.bin" for number in range(4))
        for file in self.files:
            file.write_bytes(b"")
            with open(file, "r+b") as sparse:
                sparse.truncate(10 * MIB + 3000)
        self.arena = Arena(Path(folder.name), self.files, None, 4 * (10 * MIB + 2000))

    def sections(self, jobs: int) -> list[tuple[str, int, int]]:
        """(file, offset, size) of each job section."""
        values = {"engine": "psync", "direct": 0, "block": "1m", "depth": 1, "jobs": jobs}
        argv = Fio().command(self.arena, Setting("one", values)).argv
        names = [option.split("=", 1)[1] for option in argv if option.startswith("--filename=")]
        offsets = [int(option.split("=")[1]) for option in argv if option.startswith("--offset=")]
        lengths = [int(option.split("=")[1]) for option in argv if option.startswith("--size=")]
        return list(zip(names, offsets, lengths))

    def test_hold_all_of_the_data_in_memory_of_their_own_for_the_ceiling(self):
        argv = Ceiling().command(self.arena, Ceiling.settings[0]).argv
        self.assertIn("--fixedbufs=1", argv)
        depth, = [int(option.split("=")[1]) for option in argv if option.startswith("--iodepth=")]
        self.assertGreaterEqual(depth * 4 * MIB, self.arena.data_bytes)

    def test_reads_every_byte_of_every_file_once(self):
        for jobs in (4, 16):
            for file in self.files:
                parts = [part for part in self.sections(jobs) if part[0] == str(file)]
                ends = [offset + length for _, offset, length in parts]
                self.assertEqual([offset for _, offset, _ in parts], [0, *ends[:-1]])
                self.assertEqual(ends[-1], file.stat().st_size)

    def test_leaves_the_cache_state_to_the_harness(self):
        self.assertIn("--invalidate=0", Fio().command(self.arena, Fio.settings[0]).argv)

    def test_with_one_job_names_all_files_together(self):
        values = {"engine": "io_uring", "direct": 1, "block": "4m", "depth": 32, "jobs": 1}
        argv = Fio().command(self.arena, Setting("one", values)).argv
        self.assertIn("--filename=" + ":".join(map(str, self.files)), argv)

    def test_is_judged_by_the_bytes_and_time_that_it_reports(self):
        figures = ((30 * MIB, 400), (10 * MIB, 500))
        jobs = [{"read": {"io_bytes": size, "runtime": ms}} for size, ms in figures]
        reading = Fio().read(finished(json.dumps({"jobs": jobs})), self.arena)
        self.assertEqual((reading.bytes, reading.wall_s), (40 * MIB, 0.5))

    def test_fails_when_it_read_much_less_than_was_there(self):
        jobs = [{"read": {"io_bytes": 10 * MIB, "runtime": 400}}]
        with self.assertRaisesRegex(Failed, "were to be read"):
            Fio().read(finished(json.dumps({"jobs": jobs})), self.arena)


class CrowflyLoad(unittest.TestCase):
    arena = Arena(Path("model"), (), None, 200)

    def read(self, report: object):
        return crowfly.Load(Path("crowfly"), transit=True).read(
            finished(json.dumps(report)), self.arena
        )

    def test_counts_the_whole_process_and_keeps_what_the_receipts_say(self):
        reading = self.read({"receipts": [receipt(), receipt(wall_seconds=0.7)], "other": 1})
        self.assertEqual((reading.wall_s, reading.cpu_s, reading.bytes), (2.0, 0.4, 200))
        self.assertEqual(reading.own["bytes_by_path"], {"direct": 180, "cached": 20})
        self.assertEqual(reading.own["because"], ["was resident"])
        self.assertEqual(reading.own["receipt_wall_s"], 0.7)
        self.assertAlmostEqual(reading.own["receipt_cpu_s"], 0.6)

    def test_fails_when_shares_do_not_sum_to_the_bytes_asked_for(self):
        with self.assertRaisesRegex(Failed, "shares sum to 100 bytes of 101 requested"):
            self.read([receipt(requested=101), receipt()])

    def test_fails_when_the_receipts_cover_less_than_the_tensors(self):
        with self.assertRaisesRegex(Failed, "cover 100 bytes of 200"):
            self.read(receipt())

    def test_fails_without_a_receipt(self):
        with self.assertRaisesRegex(Failed, "no receipt"):
            self.read({"tensors": 320})

    def test_fails_when_a_receipt_lacks_a_figure(self):
        lacking = receipt()
        del lacking["cpu"]
        with self.assertRaisesRegex(Failed, "cpu"):
            self.read([lacking, receipt()])

    def test_asks_for_transit_only_in_transit(self):
        for transit in (True, False):
            load = crowfly.Load(Path("crowfly"), transit=transit)
            argv = load.command(self.arena, Setting("default")).argv
            self.assertEqual("--transit" in argv, transit)
            self.assertEqual(list(argv[:3]), ["crowfly", "load", "model"])

    def test_is_waived_until_it_is_built(self):
        load = crowfly.Load(Path("nowhere/crowfly"), transit=False)
        self.assertIn("not built", load.waived() or "")


class AWheel(unittest.TestCase):
    def test_is_waived_with_the_way_to_install_it_when_there_is_no_venv(self):
        wheel = Wheel(Path("nowhere/python"), "one", "safetensors-torch", "safetensors")
        self.assertIn("setup-peers", wheel.waived() or "")

    def test_that_printed_nothing_failed(self):
        wheel = Wheel(Path("nowhere/python"), "one", "safetensors-torch", "safetensors")
        with self.assertRaisesRegex(Failed, "no figures"):
            wheel.read(finished(""), Arena(Path("model"), (), None, 1))


if __name__ == "__main__":
    unittest.main()
