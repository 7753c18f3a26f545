"""Costs from receipts and from the trace."""

import json
import tempfile
import unittest
from pathlib import Path

from host import cost
from host.outcome import RigError

SIZE = 500_000_000
#: A BAR at 0x10000000, and one read of `SIZE` bytes into it, or into memory below it.
BARS = "gpu0 0x10000000 0x4fffffff\n"


def read_to(address):
    blocks = SIZE // 512
    command = f"pci_nvme_read cid 1 nsid 2 nlb {blocks} count {SIZE} lba 0x0\n"
    return command + f"pci_nvme_map_addr addr {address:#x} len {SIZE}\n"


def receipt(route, wall, user, system):
    return {
        "receipt": {
            "requested": SIZE,
            "route": {"name": route},
            "wall_seconds": wall,
            "cpu": {"user": user, "system": system},
        }
    }


class Costs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name)
        self.trace, self.claims = "", "cost\tnone:nvme1:gpu0:read:0\t0\t9\n"
        (self.out / "bars").write_text(BARS)

    def ran(self, policy, number, address, document):
        first = len(self.trace)
        self.trace += read_to(address)
        name = f"cost-{policy}-{number}.json"
        kind = {"require": "direct", "staged": "staged"}[policy]
        self.claims += f"cost\treceipt-{kind}:nvme1:gpu0:read:{name}\t{first}\t{len(self.trace)}\n"
        (self.out / name).write_text(json.dumps(document))
        (self.out / "trace.log").write_text(self.trace)
        (self.out / "claims").write_text(self.claims)

    def test_both_ways_are_told_per_gigabyte_with_the_passes_that_the_trace_shows(self):
        for number, cpu in enumerate([0.5, 0.1, 0.2], start=1):
            self.ran("require", number, 0x1000_0000, receipt("peer-to-peer", 1.0, cpu, 0.0))
            self.ran("staged", number, 0x5000_0000, receipt("page-cache", 2.0, cpu, 1.0))
        found = cost.samples(self.out)
        self.assertEqual([(s.round, s.policy) for s in found[:2]], [(1, "require"), (1, "staged")])
        rows = cost.table(found).splitlines()[2:]
        self.assertEqual(rows[0], "| peer-to-peer | 0.40 | 2.00 | 0.00 | 1.00 | 0.00 | 3 |")
        self.assertEqual(rows[1], "| page-cache | 2.40 | 4.00 | 1.00 | 0.00 | 2.00 | 3 |")

    def test_given_a_receipt_of_the_direct_way_and_a_trace_of_a_detour_the_trace_counts(self):
        self.ran("require", 1, 0x5000_0000, receipt("peer-to-peer", 1.0, 0.1, 0.0))
        self.assertEqual([s.host_ram_passes for s in cost.samples(self.out)], [2.0])

    def test_given_no_run_of_the_test_there_are_no_samples(self):
        self.assertEqual(cost.samples(self.out), [])

    def test_given_something_else_than_a_receipt_it_is_named(self):
        self.ran("require", 1, 0x1000_0000, {"error": {}})
        with self.assertRaisesRegex(RigError, "cost-require-1.json is not a receipt"):
            cost.samples(self.out)


if __name__ == "__main__":
    unittest.main()
