"""The seeded inputs are valid, whole, and the same every time."""

import hashlib
import json
import struct
import tempfile
import unittest
from pathlib import Path

from harness import checkpoint

MIB = 1 << 20


def parsed(file: Path) -> tuple[dict, int, bytes]:
    """Header, offset of the data, and the data."""
    content = file.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + length]), 8 + length, content[8 + length :]


def digests(root: Path) -> dict[str, str]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class ACheckpoint(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "one"
        self.written = checkpoint.ensure(self.root, 16 * MIB)

    def test_has_four_shards_of_eighty_tensors(self):
        counts = [len(parsed(shard)[0]) - 1 for shard in self.written.shards]
        self.assertEqual(counts, [80, 80, 80, 80])

    def test_has_contiguous_data_that_ends_with_the_file(self):
        for shard in self.written.shards:
            header, _, data = parsed(shard)
            del header["__metadata__"]
            spans = [entry["data_offsets"] for entry in header.values()]
            ends = [end for _, end in spans]
            self.assertEqual([begin for begin, _ in spans], [0, *ends[:-1]])
            self.assertEqual(ends[-1], len(data))

    def test_pads_its_headers_to_eight_bytes(self):
        offsets = [parsed(shard)[1] % 8 for shard in self.written.shards]
        self.assertEqual(offsets, [0, 0, 0, 0])

    def test_indexes_every_tensor_in_the_shard_that_holds_it(self):
        index = json.loads((self.written.model / checkpoint.INDEX).read_text())
        held = {
            name: shard.name
            for shard in self.written.shards
            for name in parsed(shard)[0]
            if name != "__metadata__"
        }
        self.assertEqual(index["weight_map"], held)
        self.assertEqual(index["metadata"]["total_size"], self.written.data_bytes)

    def test_states_the_fingerprint_of_the_bytes_on_disk(self):
        stated = json.loads((self.root / checkpoint.MANIFEST).read_text())["fingerprints"]
        header, _, data = parsed(self.written.shards[0])
        name = "model.layers.0.self_attn.q_proj.weight"
        begin, end = header[name]["data_offsets"]
        tensor = data[begin:end]
        edge = checkpoint.EDGE_BYTES
        self.assertEqual(checkpoint.fingerprint(tensor[:edge], tensor[-edge:]), stated[name])

    def test_is_the_same_when_written_again(self):
        again = checkpoint.ensure(self.root.with_name("two"), 16 * MIB)
        self.assertEqual(digests(again.root), digests(self.root))

    def test_is_kept_when_it_is_whole(self):
        before = self.written.shards[0].stat().st_mtime_ns
        checkpoint.ensure(self.root, 16 * MIB)
        self.assertEqual(self.written.shards[0].stat().st_mtime_ns, before)

    def test_is_written_anew_when_a_shard_was_cut_short(self):
        expected = digests(self.root)
        with open(self.written.shards[2], "r+b") as shard:
            shard.truncate(1000)
        self.assertIsNone(checkpoint.open_existing(self.root, 16 * MIB))
        checkpoint.ensure(self.root, 16 * MIB)
        self.assertEqual(digests(self.root), expected)

    def test_is_not_taken_for_one_of_another_size(self):
        self.assertIsNone(checkpoint.open_existing(self.root, 32 * MIB))


class AListing(unittest.TestCase):
    def test_has_as_many_tensors_as_asked_and_no_bytes_beyond_them(self):
        with tempfile.TemporaryDirectory() as folder:
            file = checkpoint.ensure_listing(Path(folder) / "many.safetensors", 1000)
            header, _, data = parsed(file)
        self.assertEqual(len(header) - 1, 1000)
        self.assertEqual(len(data), 1000 * 64)


class TheSizeAskedFor(unittest.TestCase):
    def test_is_met_within_two_percent_at_a_gibibyte(self):
        planned = sum(tensor.size for shard in checkpoint.plan(1 << 30) for tensor in shard)
        self.assertLess(abs(planned / (1 << 30) - 1), 0.02)


if __name__ == "__main__":
    unittest.main()
