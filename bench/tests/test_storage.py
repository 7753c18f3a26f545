"""The driver from end to end on a small checkpoint, with a stand-in for crowfly and no Python peers."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
DRIVER = HERE.parent / "storage"
STAND_IN = """\
import json, pathlib, sys
if "--version" in sys.argv:
    sys.exit(print("crowfly stand-in"))
files = list(pathlib.Path(sys.argv[2]).glob("*.safetensors"))
size = sum(len(file.read_bytes()) for file in files)
print(json.dumps({"receipt": {
    "schema": "crowfly.receipt/1", "requested": size, "bounced": 0, "overread": 0, "retries": 0,
    "shares": [{"path": "cached", "class": "staged", "bytes": size, "because": sys.argv[2]}],
    "wall_seconds": 0.01, "cpu": {"user": 0.01, "system": 0.0},
    "verification": {"state": STATE if "--verify" in sys.argv else "not-asked"},
}}))
"""


class TheDriver(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=HERE)
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.crowfly = self.folder / "crowfly"

    def run_driver(self, *arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, str(DRIVER), "--size", "64MiB", "--rounds", "2"]
        places = ["--dir", self.folder / "in", "--out", self.folder / "out"]
        command += [*map(str, places), "--crowfly", str(self.crowfly), *arguments]
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "empty")}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    def build(self, body: str) -> None:
        self.crowfly.write_text(f"#!{sys.executable}\n{body}")
        self.crowfly.chmod(self.crowfly.stat().st_mode | stat.S_IXUSR)

    def row(self) -> dict:
        """crowfly's own, of the only scenario."""
        return self.result()["scenarios"][0]["rows"][0]

    def result(self) -> dict:
        (data,) = (self.folder / "out").glob("*.json")
        return json.loads(data.read_text())

    def test_writes_samples_of_every_round_and_verdicts(self):
        self.build(STAND_IN.replace("STATE", "'matched'"))
        ran = self.run_driver("--only", "transit-warm,listing", "--tune-rounds", "1")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        transit, small, large = self.result()["scenarios"]
        ours = [one for one in transit["samples"] if one["contender"].startswith("crowfly")]
        self.assertEqual([one["round"] for one in ours], [0, 1])
        self.assertEqual(ours[0]["resident_before"], 1.0)
        self.assertEqual(ours[0]["reading"]["own"]["because"], ["INPUT"])
        self.assertEqual([small["name"], large["name"]], ["listing-10000", "listing-100000"])

    def test_names_no_path_of_the_machine_in_its_results(self):
        self.build(STAND_IN.replace("STATE", "'matched'"))
        self.run_driver("--only", "transit-warm", "--tune-rounds", "0")
        for file in (self.folder / "out").iterdir():
            self.assertNotIn(str(HERE.parent), file.read_text())

    def test_keeps_an_earlier_result_of_the_same_day(self):
        for _ in range(2):
            self.run_driver("--only", "transit-warm", "--tune-rounds", "0")
        self.assertEqual(len(list((self.folder / "out").glob("*.md"))), 2)

    def test_waives_what_is_not_there_and_says_why(self):
        ran = self.run_driver("--only", "transit-warm", "--tune-rounds", "0")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        problems = {row["name"]: row["problem"] for row in self.result()["scenarios"][0]["rows"]}
        self.assertIn("cargo build --release", problems["crowfly load --transit"])
        self.assertIn("setup-peers", problems["runai-model-streamer"])
        self.assertIsNone(problems["cat"])

    def test_has_crowfly_prove_its_bytes_outside_the_timed_runs(self):
        for state, verified, problem in (
            ("matched", True, None),
            ("differs", None, "failed: its verification did not find the right bytes"),
        ):
            self.build(STAND_IN.replace("STATE", repr(state)))
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            self.run_driver("--only", "resident-warm", "--tune-rounds", "0")
            self.assertEqual((self.row()["verified"], self.row()["problem"]), (verified, problem))

    def test_exits_with_one_when_a_contender_fails(self):
        self.build("import sys; sys.exit('no such drive')")
        ran = self.run_driver("--only", "transit-warm", "--tune-rounds", "0")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("failed: exit code 1: no such drive", ran.stdout)

    def test_refuses_a_checkpoint_that_memory_cannot_hold(self):
        ran = self.run_driver("--size", "9999999GiB")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("choose", ran.stderr)
        self.assertFalse((self.folder / "in" / "checkpoints").exists())


if __name__ == "__main__":
    unittest.main()
