"""Shape files: what a good one comes to, and what a bad one is told."""

import unittest
from pathlib import Path

from host import qemu, shape

SHAPES = Path(__file__).resolve().parents[2] / "shapes"

SMALL = """
about = "small"
[[root]]
switch = "plain"
devices = ["gpu0", "nvme0"]
[peer]
nvme0-gpu0 = "direct"
"""


class Reading(unittest.TestCase):
    def test_given_a_small_shape_its_devices_and_defaults_are_known(self):
        small = shape.parse("small", SMALL)
        self.assertEqual([device.name for device in small.devices()], ["gpu0", "nvme0"])
        self.assertEqual((small.cpu, small.iommu, small.acs_redirect, small.nodes), ("generic", False, False, 1))
        self.assertEqual(small.peer, {"nvme0-gpu0": shape.Peer("direct")})

    def test_a_refusal_has_a_code_and_nothing_else_has(self):
        refused = shape.parse("small", SMALL.replace('"direct"', '"refused acs-redirect"'))
        self.assertEqual(refused.peer, {"nvme0-gpu0": shape.Peer("refused", "acs-redirect")})
        for wrong in ['"refused"', '"direct acs-redirect"', '"refused two words"']:
            with self.subTest(wrong=wrong), self.assertRaises(shape.ShapeError) as caught:
                shape.parse("bad", SMALL.replace('"direct"', wrong))
            self.assertIn("write 'refused CODE'", str(caught.exception))

    def test_every_shape_of_the_rig_is_well_formed(self):
        names = [path.stem for path in SHAPES.glob("*.toml")]
        self.assertIn("one-switch", names)
        for name in names:
            with self.subTest(shape=name):
                shape.load(SHAPES / f"{name}.toml")

    def test_given_something_wrong_the_error_names_the_shape_and_the_value(self):
        wrong = {
            "unknown key": (SMALL.replace("about", "abuot"), "unknown abuot"),
            "not TOML": ("about = ", "shape bad"),
            "no devices": (SMALL.replace('"gpu0", "nvme0"', ""), "0 devices below a plain switch"),
            "unknown device": (SMALL.replace("gpu0", "tpu0"), "'tpu0' is not gpuN, nvmeN or nicN"),
            "twice": (SMALL.replace('"nvme0"]', '"nvme0", "nvme0"]'), "nvme0 is placed 2 times"),
            "unknown switch": (SMALL.replace('"plain"', '"fancy"'), "switch = 'fancy'; one of plain, acs"),
            "two without a switch": (SMALL.replace('switch = "plain"', ""), "2 devices below a root port"),
            "unknown node": (SMALL.replace("[[root]]", "[[root]]\nnode = 1"), "a root on node 1, but nodes = 1"),
            "too many nodes": ("nodes = 3\n" + SMALL, "nodes = 3; 1 to 2"),
            "a drive that stands still": ("drive_mib_per_s = -1\n" + SMALL, "drive_mib_per_s = -1; 1 or more"),
            "a flag as a number": ("nodes = true\n" + SMALL, "nodes = True; expected int"),
            "pair left out": (SMALL.replace('nvme0-gpu0 = "direct"', ""), "peer says nothing of nvme0-gpu0"),
            "unknown pair": (SMALL + 'nvme1-gpu0 = "direct"\n', "'nvme1-gpu0' does not name"),
            "unknown outcome": (SMALL.replace('"direct"', '"fast"'), "peer.nvme0-gpu0 = 'fast'; one of"),
            "root is no table": ('about = "x"\nroot = [1]\n', "root is 1"),
        }
        for case, (text, told) in wrong.items():
            with self.subTest(case=case), self.assertRaises(shape.ShapeError) as caught:
                shape.parse("bad", text)
            self.assertIn(told, str(caught.exception), case)

    def test_given_an_unknown_shape_the_known_ones_are_listed(self):
        with self.assertRaises(shape.ShapeError) as caught:
            shape.load(SHAPES / "no-such.toml")
        self.assertIn("one-switch", str(caught.exception))


class Placing(unittest.TestCase):
    def test_devices_behind_a_switch_are_four_steps_from_the_root_bus(self):
        places = {p.device.name: p.guest_path() for p in qemu.placements(shape.parse("small", SMALL))}
        self.assertEqual(places, {"gpu0": "00/10.0/00.0/00.0/00.0", "nvme0": "00/10.0/00.0/01.0/00.0"})

    def test_with_two_nodes_each_has_its_own_root_bus(self):
        places = {p.device.name: p.guest_path() for p in qemu.placements(shape.load(SHAPES / "two-sockets.toml"))}
        self.assertEqual(places["gpu0"], "40/00.0/00.0/00.0/00.0")
        self.assertEqual(places["gpu1"], "80/00.0/00.0/00.0/00.0")

    def test_drives_are_told_apart_by_serial_and_namespace(self):
        drives = shape.load(SHAPES / "rails.toml").devices("nvme")
        self.assertEqual([qemu.serial(d) for d in drives], [f"rig-nvme{n}" for n in range(4)])
        self.assertEqual([qemu.namespace_id(d) for d in drives], [1, 2, 3, 4])

    def command(self, text, out):
        machine = shape.parse("small", text)
        images = qemu.drives(machine, out)
        return qemu.command(
            machine,
            kernel_image="k",
            initramfs="i",
            root=Path("/"),
            modules=Path("/m"),
            out=out,
            images=images,
            cmdline="",
        )

    def test_a_slow_drive_is_slowed_down_for_reads(self):
        image = "file=/o/nvme0.img,format=raw,if=none,id=nvme0-image,cache=unsafe"
        self.assertIn(image, self.command(SMALL, Path("/o")))
        self.assertIn(
            image + ",throttling.bps-read=33554432", self.command("drive_mib_per_s = 32\n" + SMALL, Path("/o"))
        )

    def test_a_comma_in_a_path_does_not_end_the_option(self):
        command = self.command(SMALL, Path("/tmp/a,b"))
        self.assertIn("file=/tmp/a,,b/nvme0.img,format=raw,if=none,id=nvme0-image,cache=unsafe", command)


if __name__ == "__main__":
    unittest.main()
