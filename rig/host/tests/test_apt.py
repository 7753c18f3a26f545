"""Deriving another suite from the machine's own package sources."""

import unittest

from host import apt, kernel

DEB822 = """
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/example.gpg

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main
Enabled: no
"""


class Sources(unittest.TestCase):
    def test_given_deb822_the_suite_is_exchanged_and_mirror_and_key_are_kept(self):
        derived = apt.exchange_suite(apt.parse_sources(DEB822, deb822=True), "bookworm", ("trixie-backports",))
        self.assertEqual(
            derived,
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie-backports\nComponents: main\n"
            "Signed-By: /usr/share/keyrings/example.gpg\n",
        )

    def test_given_one_line_entries_options_are_kept(self):
        text = "deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main # note\n"
        derived = apt.exchange_suite(apt.parse_sources(text, deb822=False), "bookworm", ("trixie",))
        self.assertIn("Arch: amd64\nSigned-By: /k.gpg\n", derived)

    def test_options_that_switch_verification_off_are_cut(self):
        text = "deb [trusted=yes allow-insecure=yes] http://mirror.example/debian bookworm main\n"
        derived = apt.exchange_suite(apt.parse_sources(text, deb822=False), "bookworm", ("trixie",))
        self.assertNotIn("yes", derived)

    def test_given_no_entry_for_the_machines_suite_there_is_nothing_to_derive(self):
        text = "deb http://mirror.example/tools stable main\n# deb http://mirror.example/debian bookworm main\n"
        self.assertIsNone(apt.exchange_suite(apt.parse_sources(text, deb822=False), "bookworm", ("trixie",)))

    def test_disabled_and_source_entries_are_left_out(self):
        entries = apt.parse_sources(DEB822 + "\nTypes: deb-src\nURIs: u\nSuites: s\nComponents: c\n", deb822=True)
        self.assertEqual([entry["suites"] for entry in entries], [["bookworm", "bookworm-updates"]])

    def test_the_machines_suite_is_read_from_os_release(self):
        self.assertEqual(apt.codename_of('NAME="x"\nVERSION_CODENAME=bookworm\n'), "bookworm")
        self.assertIsNone(apt.codename_of('NAME="x"\n'))

    def test_dependencies_are_found_by_prefix(self):
        stanza = {"Depends": "gcc-14-for-host, linux-base (>= 4.12~), linux-kbuild-7.3.4 | linux-kbuild"}
        self.assertEqual(apt.depends(stanza, "linux-"), ["linux-base", "linux-kbuild-7.3.4", "linux-kbuild"])


class Kernels(unittest.TestCase):
    def test_the_newest_image_is_found_by_number_not_by_spelling(self):
        names = [
            "linux-image-amd64",
            "linux-image-7.3.4+deb13-amd64",
            "linux-image-7.10.1+deb13-amd64",
            "linux-image-8.0.1+deb13-cloud-amd64",
            "linux-image-7.10.1+deb13-amd64-dbg",
        ]
        self.assertEqual(kernel.newest_image(names), "linux-image-7.10.1+deb13-amd64")
        self.assertIsNone(kernel.newest_image(["linux-image-amd64"]))

    def test_a_kernel_without_peer_to_peer_dma_is_refused_by_name(self):
        config = "\n".join(f"CONFIG_{name}={value[-1]}" for name, value in kernel.REQUIRED_CONFIG.items())
        self.assertEqual(kernel.missing_options(config), [])
        without = config.replace("CONFIG_PCI_P2PDMA=y", "# CONFIG_PCI_P2PDMA is not set")
        self.assertEqual(kernel.missing_options(without), ["PCI_P2PDMA=n"])


if __name__ == "__main__":
    unittest.main()
