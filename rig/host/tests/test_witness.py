"""Claims against the trace: the oracle says yes, and it says no."""

import json
import tempfile
import unittest
from pathlib import Path

from host import witness
from host.outcome import RigError

INTO_BAR = """pci_nvme_read cid 1 nsid 1 nlb 8 count 4096 lba 0x0
pci_nvme_map_addr addr 0xd0000000 len 4096
"""
INTO_HOST = """pci_nvme_read cid 2 nsid 1 nlb 8 count 4096 lba 0x0
pci_nvme_map_addr addr 0x5000000 len 4096
"""


def contradictions(trace, *claims, receipt=None):
    """What is told of claims `(kind:..., from, to)` in one result folder, with a receipt in it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        if receipt is not None:
            (out / "r.json").write_text(receipt)
        (out / "trace.log").write_text(trace)
        (out / "bars").write_text("gpu0 0x00000000d0000000 0x00000000dfffffff\n")
        (out / "claims").write_text("".join(f"t\t{claim}\t{first}\t{end}\n" for claim, first, end in claims))
        return witness.contradictions(out)


class Claims(unittest.TestCase):
    def test_given_peer_dma_the_claim_of_peer_dma_holds(self):
        self.assertEqual(contradictions(INTO_BAR, ("peer:nvme0:gpu0:read:4096", 0, 999)), {})

    def test_given_a_detour_the_claim_of_peer_dma_is_contradicted_with_what_was_seen(self):
        self.assertEqual(
            contradictions(INTO_HOST, ("peer:nvme0:gpu0:read:4096", 0, 999)),
            {
                "t": "claimed peer read of 4096 bytes, namespace 1, gpu0; "
                "QEMU's trace has 0 bytes in gpu0, 4096 in host memory, 0 nowhere"
            },
        )

    def test_given_a_detour_the_denial_of_peer_dma_holds_and_fails_on_peer_dma(self):
        self.assertEqual(contradictions(INTO_HOST, ("!peer:nvme0:gpu0:read:4096", 0, 999)), {})
        self.assertIn("t", contradictions(INTO_BAR, ("!peer:nvme0:gpu0:read:4096", 0, 999)))

    def test_given_other_traffic_beside_it_only_the_looser_claim_holds(self):
        both = INTO_BAR + INTO_HOST
        self.assertIn("t", contradictions(both, ("peer:nvme0:gpu0:read:4096", 0, 999)))
        self.assertEqual(contradictions(both, ("peer-some:nvme0:gpu0:read:4096", 0, 999)), {})

    def test_given_too_few_bytes_the_claim_is_contradicted(self):
        self.assertIn("t", contradictions(INTO_BAR, ("peer:nvme0:gpu0:read:8192", 0, 999)))

    def test_a_claim_sees_only_its_own_part_drive_and_direction(self):
        both = INTO_BAR + INTO_HOST
        self.assertEqual(contradictions(both, ("peer:nvme0:gpu0:read:4096", 0, len(INTO_BAR))), {})
        self.assertEqual(contradictions(both, ("host:nvme0:gpu0:read:4096", len(INTO_BAR), 999)), {})
        self.assertEqual(contradictions(both, ("none:nvme1:gpu0:read:0", 0, 999)), {})
        self.assertEqual(contradictions(both, ("none:nvme0:gpu0:write:0", 0, 999)), {})

    def test_a_claim_of_host_traffic_is_contradicted_by_one_byte_in_a_bar(self):
        self.assertIn("t", contradictions(INTO_BAR + INTO_HOST, ("host:nvme0:gpu0:read:4096", 0, 999)))

    def test_a_malformed_claim_is_an_error_that_shows_it(self):
        for line in ["", "t\tpeer", "t\tpeer:nvme0:gpu0:read:many\t0\t9", "t\tpeer:nvme0:gpu0:read:1\t-1\t9"]:
            with self.subTest(line=line), self.assertRaises(RigError):
                witness.parse_claim(line)


def receipt(*shares, requested=4096):
    """A receipt document with shares `(path, class, bytes)`."""
    listed = [{"path": path, "class": kind, "bytes": size} for path, kind, size in shares]
    return json.dumps({"receipt": {"requested": requested, "shares": listed}})


class Receipts(unittest.TestCase):
    DIRECT = ("receipt-direct:nvme0:gpu0:read:r.json", 0, 999)
    STAGED = ("receipt-staged:nvme0:gpu0:read:r.json", 0, 999)

    def told(self, trace, claim, text):
        return contradictions(trace, claim, receipt=text).get("t")

    def test_given_peer_bytes_that_the_trace_shows_in_the_bar_the_receipt_holds(self):
        self.assertIsNone(self.told(INTO_BAR, self.DIRECT, receipt(("peer", "direct", 4096))))

    def test_given_peer_bytes_that_went_to_host_memory_the_receipt_is_contradicted(self):
        self.assertIn("0 bytes in gpu0", self.told(INTO_HOST, self.DIRECT, receipt(("peer", "direct", 4096))))

    def test_given_staged_bytes_the_trace_must_show_them_in_host_memory_alone(self):
        staged = receipt(("cached", "staged", 4096))
        self.assertIsNone(self.told(INTO_HOST, self.STAGED, staged))
        self.assertIn("4096 bytes in gpu0", self.told(INTO_BAR, self.STAGED, staged))

    def test_given_another_class_than_expected_it_says_so(self):
        told = self.told(INTO_BAR, self.STAGED, receipt(("peer", "direct", 4096)))
        self.assertEqual(told, "r.json: expected class staged, the receipt says direct")

    def test_given_shares_that_do_not_add_up_it_says_so(self):
        told = self.told(INTO_BAR, self.DIRECT, receipt(("peer", "direct", 4000)))
        self.assertEqual(told, "r.json: 4096 bytes asked for, but its shares add up to 4000")

    def test_given_no_receipt_it_says_so(self):
        for text in [None, "", "{}", "[]", '{"receipt": {"requested": 1, "shares": [7]}}']:
            with self.subTest(text=text):
                self.assertIn("r.json is not a receipt", self.told(INTO_BAR, self.DIRECT, text))


if __name__ == "__main__":
    unittest.main()
