"""The trace parser: where each byte of a drive's command went."""

import unittest

from host.trace import Trace, Window

BAR = Window("gpu0", 0xD000_0000, 0xDFFF_FFFF)


def trace_of(text):
    return Trace([line.encode() + b"\n" for line in text.strip().splitlines()])


def traffic_of(text, windows=(BAR,)):
    record = trace_of(text)
    return record.traffic(record.commands, windows)


class WithoutIommu(unittest.TestCase):
    def test_given_a_read_into_the_bar_every_byte_is_inside(self):
        traffic = traffic_of("""
pci_nvme_read cid 1 nsid 1 nlb 16 count 8192 lba 0x2000
pci_nvme_map_addr addr 0xd0000000 len 4096
pci_nvme_map_addr addr 0xd0001000 len 4096
""")
        self.assertEqual(dict(traffic.inside), {"gpu0": 8192})
        self.assertEqual((traffic.outside, traffic.nowhere), (0, 0))

    def test_given_a_read_into_host_memory_every_byte_is_outside(self):
        traffic = traffic_of("""
pci_nvme_read cid 1 nsid 1 nlb 8 count 4096 lba 0x0
pci_nvme_map_addr addr 0x7ed7000 len 4096
""")
        self.assertEqual((traffic.inside["gpu0"], traffic.outside, traffic.nowhere), (0, 4096, 0))

    def test_given_a_piece_across_the_end_of_the_bar_it_is_split_at_the_last_byte(self):
        traffic = traffic_of("""
pci_nvme_write cid 1 opname 'NVME_NVM_CMD_WRITE' nsid 1 nlb 8 count 4096 lba 0x0
pci_nvme_map_addr addr 0xdffffe00 len 4096
""")
        self.assertEqual((traffic.inside["gpu0"], traffic.outside), (512, 3584))

    def test_given_a_command_without_its_pieces_its_bytes_went_nowhere(self):
        traffic = traffic_of("pci_nvme_read cid 1 nsid 1 nlb 8 count 4096 lba 0x0")
        self.assertEqual((traffic.inside["gpu0"], traffic.outside, traffic.nowhere), (0, 0, 4096))

    def test_given_a_write_of_zeroes_no_bytes_are_missed(self):
        traffic = traffic_of("pci_nvme_write cid 1 opname 'NVME_NVM_CMD_WRITE_ZEROES' nsid 1 nlb 8 count 4096 lba 0x0")
        self.assertEqual(traffic.total(), 0)

    def test_given_pieces_of_untraced_commands_they_are_not_counted(self):
        traffic = traffic_of("""
pci_nvme_map_addr addr 0x1000 len 4096
pci_nvme_read cid 1 nsid 1 nlb 8 count 4096 lba 0x0
pci_nvme_map_addr addr 0xd0000000 len 4096
pci_nvme_map_addr addr 0x2000 len 4096
""")
        self.assertEqual((traffic.inside["gpu0"], traffic.outside, traffic.nowhere), (4096, 0, 0))

    def test_given_time_stamps_the_lines_are_read_all_the_same(self):
        traffic = traffic_of("""
812@1700000000.000001:pci_nvme_read cid 1 nsid 1 nlb 8 count 4096 lba 0x0
812@1700000000.000002:pci_nvme_map_addr addr 0xd0000000 len 4096
""")
        self.assertEqual(traffic.inside["gpu0"], 4096)

    def test_given_two_bars_bytes_are_told_apart(self):
        other = Window("gpu1", 0xC000_0000, 0xCFFF_FFFF)
        traffic = traffic_of(
            """
pci_nvme_read cid 1 nsid 1 nlb 8 count 4096 lba 0x0
pci_nvme_map_addr addr 0xc0000000 len 4096
""",
            (BAR, other),
        )
        self.assertEqual(dict(traffic.inside), {"gpu0": 0, "gpu1": 4096})

    def test_commands_know_drive_offset_and_place_in_the_trace(self):
        record = trace_of("""
pci_nvme_read cid 1 nsid 2 nlb 8 count 4096 lba 0x10
pci_nvme_write cid 2 opname 'NVME_NVM_CMD_WRITE' nsid 1 nlb 1 count 512 lba 0x3
""")
        first, second = record.commands
        self.assertEqual((first.verb, first.namespace, first.offset, first.position), ("read", 2, 8192, 0))
        self.assertEqual((second.verb, second.namespace, second.offset), ("write", 1, 1536))
        self.assertEqual(record.between(1, second.position + 1), [second])
        self.assertEqual(record.between(0, second.position), [first])

    def test_given_lines_that_are_no_trace_nothing_is_found(self):
        record = Trace([b"\xff\xfe\n", b"pci_nvme_read cid x\n", b"pci_nvme_map_addr addr 0x1 len\n"])
        self.assertEqual(record.commands, [])


class WithIommu(unittest.TestCase):
    FETCH = "vtd_dmar_translate dev 04:00.00 iova 0xffffa000 -> gpa 0x6c76000 mask 0xfff\n"

    def test_given_translations_into_the_bar_the_bytes_are_inside(self):
        traffic = traffic_of(
            self.FETCH
            + """
pci_nvme_read cid 1 nsid 1 nlb 16 count 8192 lba 0x0
pci_nvme_map_addr addr 0xfff40000 len 8192
vtd_dmar_translate dev 04:00.00 iova 0xfff40000 -> gpa 0xd0000000 mask 0xfff
vtd_dmar_translate dev 04:00.00 iova 0xfff41000 -> gpa 0xd0001000 mask 0xfff
"""
        )
        self.assertEqual((traffic.inside["gpu0"], traffic.outside, traffic.nowhere), (8192, 0, 0))

    def test_given_an_address_that_was_never_translated_its_bytes_went_nowhere(self):
        traffic = traffic_of(
            self.FETCH
            + """
pci_nvme_read cid 1 nsid 1 nlb 8 count 4096 lba 0x0
pci_nvme_map_addr addr 0xd0000000 len 4096
"""
        )
        self.assertEqual((traffic.inside["gpu0"], traffic.outside, traffic.nowhere), (0, 0, 4096))

    def test_given_the_same_page_mapped_anew_each_command_has_its_own_translation(self):
        record = trace_of(
            self.FETCH
            + """
pci_nvme_read cid 1 nsid 1 nlb 8 count 4096 lba 0x0
pci_nvme_map_addr addr 0xfff40000 len 4096
vtd_dmar_translate dev 04:00.00 iova 0xfff40000 -> gpa 0xd0000000 mask 0xfff
pci_nvme_read cid 2 nsid 1 nlb 8 count 4096 lba 0x8
pci_nvme_map_addr addr 0xfff40000 len 4096
vtd_dmar_translate dev 04:00.00 iova 0xfff40000 -> gpa 0x5000000 mask 0xfff
"""
        )
        into_bar, into_host = (record.traffic([command], [BAR]) for command in record.commands)
        self.assertEqual((into_bar.inside["gpu0"], into_bar.outside), (4096, 0))
        self.assertEqual((into_host.inside["gpu0"], into_host.outside), (0, 4096))

    def test_given_another_devices_translation_of_the_same_page_it_does_not_count(self):
        traffic = traffic_of(
            self.FETCH
            + """
pci_nvme_read cid 1 nsid 1 nlb 8 count 4096 lba 0x0
pci_nvme_map_addr addr 0xfff40000 len 4096
vtd_dmar_translate dev 05:00.00 iova 0xfff40000 -> gpa 0xd0000000 mask 0xfff
"""
        )
        self.assertEqual((traffic.inside["gpu0"], traffic.nowhere), (0, 4096))


if __name__ == "__main__":
    unittest.main()
