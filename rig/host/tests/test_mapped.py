"""crowfly's map against the shape."""

import unittest

from host import mapped, shape
from host.crowfly import Disagreement

SHAPE = shape.parse(
    "pair",
    """
about = "two nodes"
nodes = 2
[[root]]
switch = "plain"
devices = ["gpu0", "nvme0"]
[[root]]
node = 0
devices = ["nvme1"]
[[root]]
node = 1
devices = ["nic0"]
[peer]
nvme0-gpu0 = "direct"
nvme1-gpu0 = "refused no-common-switch"
""",
)
ADDRESSES = {"gpu0": "0000:43:00.0", "nvme0": "0000:44:00.0", "nvme1": "0000:45:00.0", "nic0": "0000:81:00.0"}
#: The map's own names: they need not be the shape's.
NAMES = {"gpu0": "gpu0", "nvme0": "nvme1", "nvme1": "nvme0", "nic0": "eth3"}
NODES = {"gpu0": 0, "nvme0": 0, "nvme1": 0, "nic0": 1}
RELATIONS = {
    ("gpu0", "nvme0"): "PIX",
    ("gpu0", "nvme1"): "PHB",
    ("gpu0", "nic0"): "SYS",
    ("nvme0", "nvme1"): "PHB",
    ("nvme0", "nic0"): "SYS",
    ("nic0", "nvme1"): "SYS",
}


def drawn():
    devices = [{"name": NAMES[d], "address": ADDRESSES[d], "numa": NODES[d]} for d in NAMES]
    distances = [{"a": NAMES[a], "b": NAMES[b], "relation": r} for (a, b), r in RELATIONS.items()]
    return {"devices": devices, "distances": distances}


class Maps(unittest.TestCase):
    def told(self, wrong):
        with self.assertRaises(Disagreement) as caught:
            mapped.hold_map_against_shape(SHAPE, wrong, ADDRESSES)
        return str(caught.exception)

    def test_given_the_shapes_own_map_there_is_nothing_to_say(self):
        mapped.hold_map_against_shape(SHAPE, drawn(), ADDRESSES)

    def test_given_a_device_left_out_it_is_named(self):
        wrong = drawn()
        wrong["devices"].pop()
        self.assertEqual(self.told(wrong), "nic0 at 0000:81:00.0 is not on the map")

    def test_given_a_device_on_the_wrong_node_both_nodes_are_named(self):
        wrong = drawn()
        wrong["devices"][0]["numa"] = 1
        self.assertEqual(self.told(wrong), "gpu0: built on node 0, drawn on node 1")

    def test_given_a_wrong_distance_both_are_named(self):
        wrong = drawn()
        wrong["distances"][0]["relation"] = "SYS"
        self.assertEqual(self.told(wrong), "gpu0 and nvme0: built PIX, drawn SYS")


if __name__ == "__main__":
    unittest.main()
