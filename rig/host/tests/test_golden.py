"""Routes against the kernel, and against what they were."""

import json
import tempfile
import unittest
from itertools import combinations
from pathlib import Path

from host import golden, shape
from host.crowfly import Disagreement

SHAPE = shape.parse(
    "two",
    """
about = "two switches"
[[root]]
switch = "plain"
devices = ["gpu0", "nvme0", "nic0"]
[[root]]
switch = "plain"
devices = ["nvme1"]
[peer]
nvme0-gpu0 = "direct"
nvme1-gpu0 = "refused no-common-switch"
""",
)
ADDRESSES = {"gpu0": "0000:03:00.0", "nvme0": "0000:04:00.0", "nvme1": "0000:09:00.0", "nic0": "0000:05:00.0"}


def plan(standing, *codes):
    return {"ways": [{"name": "peer-to-peer", "standing": standing, "obstacles": [{"code": c} for c in codes]}]}


GOOD = {"nvme0": plan("open"), "nvme1": plan("blocked", "slow-link", "no-common-switch")}

MAP = {
    "devices": [{"name": name, "address": place, "numa": 0} for name, place in ADDRESSES.items()],
    "distances": [
        {"a": a, "b": b, "relation": "PHB" if "nvme1" in (a, b) else "PIX"} for a, b in combinations(ADDRESSES, 2)
    ],
}

#: Stands in for crowfly: says its arguments, and MAP and GOOD where it is asked for JSON.
PROGRAM = f"""#!/usr/bin/env python3
import json, sys
map, plans = json.loads({json.dumps(json.dumps([MAP, GOOD]))})
arguments = sys.argv[1:-2]
if "--json" not in arguments:
    print(" ".join(arguments))
else:
    print(json.dumps(map if arguments[0] == "map" else plans[arguments[1].split(":")[1]]))
"""


class AgainstTheKernel(unittest.TestCase):
    def told(self, **plans):
        with self.assertRaises(Disagreement) as caught:
            golden.hold_routes_against_kernel(SHAPE, {}, ADDRESSES, lambda drive, _: {**GOOD, **plans}[drive])
        return str(caught.exception)

    def test_given_routes_that_say_what_the_kernel_does_there_is_nothing_to_say(self):
        golden.hold_routes_against_kernel(SHAPE, {}, ADDRESSES, lambda drive, _: GOOD[drive])

    def test_given_an_open_route_that_the_kernel_refuses_it_is_named(self):
        self.assertEqual(
            self.told(nvme1=plan("open")), "nvme1-gpu0: the kernel's answer is refused, peer-to-peer is open"
        )

    def test_given_an_answer_of_this_boot_it_counts_and_not_what_the_shape_expects(self):
        with self.assertRaises(Disagreement) as caught:
            golden.hold_routes_against_kernel(SHAPE, {"nvme0-gpu0": "refused"}, ADDRESSES, lambda drive, _: GOOD[drive])
        self.assertEqual(str(caught.exception), "nvme0-gpu0: the kernel's answer is refused, peer-to-peer is open")

    def test_given_answers_on_disk_they_are_read_by_pair(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            self.assertEqual(golden.read_answers(out), {})
            (out / golden.ANSWERS).write_text("nvme0-gpu0 direct\nnvme1-gpu0 refused\n")
            self.assertEqual(golden.read_answers(out), {"nvme0-gpu0": "direct", "nvme1-gpu0": "refused"})

    def test_given_a_blocked_route_that_the_kernel_allows_it_is_named(self):
        self.assertIn("nvme0-gpu0: the kernel's answer is direct", self.told(nvme0=plan("blocked", "acs-redirect")))

    def test_given_another_reason_than_the_kernels_both_are_named(self):
        told = self.told(nvme1=plan("blocked", "acs-redirect"))
        self.assertEqual(told, "nvme1-gpu0: refused by no-common-switch, but the route names acs-redirect")

    def test_given_no_such_route_it_says_so(self):
        self.assertIn("peer-to-peer is not there", self.told(nvme0={"ways": []}))


class Transcripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out, self.golden = Path(folder.name) / "out", Path(folder.name) / "golden"
        self.out.mkdir()
        (self.out / "snapshot.json").write_text("{}")
        (self.out / "addresses").write_text("".join(f"{name} {place}\n" for name, place in ADDRESSES.items()))
        self.crowfly = Path(folder.name) / "crowfly"
        self.crowfly.write_text(PROGRAM)
        self.crowfly.chmod(0o755)

    def contradictions(self, bless=False):
        return golden.contradictions(SHAPE, self.out, self.crowfly, self.golden, bless)

    def test_a_blessed_transcript_is_what_the_next_capture_is_held_against(self):
        self.assertIn("its routes differ from two.txt", self.contradictions()["capture"])
        self.assertEqual(self.contradictions(bless=True), {})
        self.assertEqual(self.contradictions(), {})
        blessed = self.golden / "two.txt"
        self.assertTrue(blessed.read_text().startswith("$ crowfly map\nmap\n\n$ crowfly route drive:nvme0"))
        blessed.write_text(blessed.read_text().replace("\nmap\n", "\nanother kernel\n"))
        self.assertEqual(self.contradictions(), {})
        blessed.write_text(blessed.read_text().replace("nic:eth0", "nic:eth1"))
        self.assertIn("capture", self.contradictions())

    def test_a_program_that_fails_is_told_of(self):
        self.crowfly.write_text("#!/bin/sh\necho no >&2; exit 3\n")
        self.assertEqual(self.contradictions(), {"capture": "crowfly map --json: no"})

    def test_a_document_without_what_it_promises_is_told_of(self):
        self.crowfly.write_text("#!/bin/sh\necho [1]\n")
        self.assertIn("not what crowfly promises", self.contradictions()["capture"])

    def test_without_a_snapshot_there_is_nothing_to_say(self):
        (self.out / "snapshot.json").unlink()
        self.assertEqual(self.contradictions(), {})


if __name__ == "__main__":
    unittest.main()
