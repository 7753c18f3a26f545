"""Receipts as costs."""

import json
import tempfile
import unittest
from pathlib import Path

from host import cost

DRIVE, HOST, PEER = ({"at": place} for place in ("drive", "host", "peer"))


def receipt(name, hops, wall, user, system):
    listed = [{"from": start, "to": end} for start, end in hops]
    return {
        "receipt": {
            "requested": 500_000_000,
            "route": {"name": name, "hops": listed},
            "wall_seconds": wall,
            "cpu": {"user": user, "system": system},
        }
    }


class Costs(unittest.TestCase):
    def test_both_ways_are_told_per_gigabyte_with_their_passes_through_host_ram(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            for number, cpu in enumerate([0.5, 0.1, 0.2], start=1):
                direct = receipt("peer-to-peer", [(DRIVE, PEER)], 1.0, cpu, 0.0)
                staged = receipt("page-cache", [(DRIVE, HOST), (HOST, PEER)], 2.0, cpu, 1.0)
                (out / f"cost-require-{number}.json").write_text(json.dumps(direct))
                (out / f"cost-staged-{number}.json").write_text(json.dumps(staged))
            (out / "cost-other.json").write_text("not a receipt")
            found = cost.samples(out)
            self.assertEqual([(s.round, s.policy) for s in found[:2]], [(1, "require"), (1, "staged")])
            rows = cost.table(found).splitlines()[2:]
        self.assertEqual(rows[0], "| peer-to-peer | 0.40 | 2.00 | 0 | 3 |")
        self.assertEqual(rows[1], "| page-cache | 2.40 | 4.00 | 2 | 3 |")


if __name__ == "__main__":
    unittest.main()
