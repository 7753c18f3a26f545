"""Medians, ratios paired by round, and verdicts, from samples with known figures."""

import unittest

from harness import rounds, targets
from harness.contenders.contender import PEER, REMARK, SUBJECT, Reading
from harness.contenders.fio import Ceiling
from harness.contenders.wheels import MAPPING, STREAMER
from harness.rounds import Sample
from harness.summary import Row, Spread, cpu, paired, rate, row, wall

GB = 1_000_000_000


def sample(name: str, number: int, wall_s: float, cpu_s: float = 1.0, rss: int = 1, error=None):
    reading = None if error else Reading(wall_s, cpu_s, GB, rss)
    before = {"cache": "cold", "resident_before": 0.0, "load_average": 0.0, "busy_before": 0.0}
    return Sample(
        contender=name,
        setting="default",
        round=number,
        position=0,
        **before,
        exit_code=0,
        process_wall_s=wall_s,
        process_cpu_s=cpu_s,
        reading=reading,
        error=error,
    )


def summed(role: str, name: str, samples: list[Sample]) -> Row:
    return row(name, role, "", "", [one for one in samples if one.contender == name])


class ASummary(unittest.TestCase):
    def test_gives_the_median_and_the_range(self):
        samples = [sample("a", number, wall_s) for number, wall_s in enumerate((4.0, 1.0, 2.0))]
        self.assertEqual(summed(PEER, "a", samples).wall_s, Spread(2.0, 1.0, 4.0))
        self.assertEqual(summed(PEER, "a", samples).gb_per_s, Spread(0.5, 0.25, 1.0))

    def test_is_a_failure_when_one_run_failed(self):
        samples = [sample("a", 0, 1.0), sample("a", 1, 1.0, error="exit code 2: no drive")]
        self.assertEqual(summed(PEER, "a", samples).problem, "failed: exit code 2: no drive")

    def test_pairs_ratios_within_rounds(self):
        # The second round was slow for both: paired, that cancels.
        samples = [
            *(sample("a", number, wall_s) for number, wall_s in enumerate((1.0, 10.0, 1.1))),
            *(sample("b", number, wall_s) for number, wall_s in enumerate((2.0, 20.0, 2.2))),
        ]
        self.assertEqual(paired(samples, "a", "b", wall), Spread(0.5, 0.5, 0.5))
        self.assertEqual(paired(samples, "a", "b", rate), Spread(2.0, 2.0, 2.0))
        self.assertIsNone(paired(samples, "a", "c", cpu))


class Rounds(unittest.TestCase):
    def test_play_everybody_once_after_another_predecessor_each_time(self):
        orders = ["".join(rounds.shuffled("abcdef", seed)) for seed in range(7)]
        self.assertTrue(all(sorted(order) == list("abcdef") for order in orders))
        before_a = {order[order.index("a") - 1] if order[0] != "a" else "" for order in orders}
        self.assertGreater(len(before_a), 2)
        self.assertEqual(orders[3], "".join(rounds.shuffled("abcdef", 3)))

    def test_begin_with_another_contender_each_time(self):
        orders = [rounds.rotated("abc", number) for number in range(4)]
        self.assertEqual(["".join(order) for order in orders], ["abc", "bca", "cab", "abc"])


class TransitTargets(unittest.TestCase):
    def verdicts(self, wall_s: float, cpu_s: float, rss: int) -> list[str]:
        samples = [
            sample("crowfly", 0, wall_s, cpu_s, rss),
            sample("fio", 0, 1.0, 0.2),
            sample(STREAMER, 0, 1.5, 1.0),
        ]
        rows = [
            summed(role, name, samples)
            for role, name in ((SUBJECT, "crowfly"), (PEER, "fio"), (PEER, STREAMER))
        ]
        return [verdict.state for verdict in targets.transit("transit-cold", rows, samples)]

    def test_are_met_just_within_their_bounds(self):
        self.assertEqual(self.verdicts(1 / 0.971, 0.5, 256_000_000), ["met", "met", "met"])

    def test_are_missed_just_beyond_them(self):
        self.assertEqual(self.verdicts(1 / 0.969, 0.51, 256_000_001), ["missed"] * 3)


class ResidentTargets(unittest.TestCase):
    def setUp(self):
        self.samples = [
            sample("crowfly", 0, 0.9, 1.1),
            sample(MAPPING, 0, 1.0, 1.2),
            sample("frugal", 0, 3.0, 1.0),
            sample("untouched", 0, 0.1, 0.1),
        ]
        roles = ((SUBJECT, "crowfly"), (PEER, MAPPING), (PEER, "frugal"), (REMARK, "untouched"))
        self.rows = [summed(role, name, self.samples) for role, name in roles]

    def test_compare_with_the_fastest_and_the_thriftiest_that_really_load(self):
        found = targets.resident_cold("resident-cold", self.rows, self.samples)
        self.assertEqual([verdict.state for verdict in found], ["met", "met", "missed"])
        self.assertEqual(found[0].found, f"0.90 × {MAPPING} [0.90–0.90]")

    def test_ask_more_of_the_wheel(self):
        for wall_s, state in ((0.83, "met"), (0.84, "missed")):
            samples = [sample("crowfly", 0, wall_s, 1.0), sample(MAPPING, 0, 1.0, 1.0)]
            roles = ((SUBJECT, "crowfly"), (PEER, MAPPING))
            rows = [summed(role, name, samples) for role, name in roles]
            found = targets.resident_cold("resident-cold", rows, samples, targets.WHEEL)
            self.assertEqual(found[0].state, state)

    def test_stand_beside_what_the_drive_needs_by_itself(self):
        samples = [*self.samples, sample(Ceiling.name, 0, 0.5, 0.1)]
        rows = [*self.rows, summed(REMARK, Ceiling.name, samples)]
        found = targets.resident_cold("resident-cold", rows, samples)
        beside = [one for one in found if one.state == "for scale"]
        self.assertEqual(
            [one.found for one in beside], ["1.80 × the drive's [1.80–1.80]", "2.00 × the drive's [2.00–2.00]"]
        )
        self.assertIn("crowfly", beside[0].target)
        self.assertEqual([one.state for one in found if one not in beside], ["met", "met", "missed"])

    def test_compare_a_warm_load_with_the_mapping(self):
        found = targets.resident_warm("resident-warm", self.rows, self.samples)
        self.assertEqual([verdict.state for verdict in found], ["met"])

    def test_are_waived_with_the_reason_when_crowfly_did_not_run(self):
        missing = Row("crowfly", SUBJECT, "", "", 0, "waived: not built")
        found = targets.resident_cold("resident-cold", [missing, *self.rows[1:]], self.samples)
        self.assertEqual({verdict.state for verdict in found}, {"waived"})
        self.assertIn("not built", found[0].found)


class ListingTargets(unittest.TestCase):
    def states(self, small: float, large: float) -> list[list[str]]:
        rows = [summed(SUBJECT, "list", [sample("list", 0, wall_s)]) for wall_s in (small, large)]
        found = (targets.listing(rows[:1], rows[1:], goals) for goals in (targets.COMMAND, targets.WHEEL))
        return [[verdict.state for verdict in verdicts] for verdicts in found]

    def test_ask_for_ten_milliseconds_and_growth_in_proportion_and_fifteen_of_the_wheel(self):
        self.assertEqual(self.states(0.010, 0.125), [["met", "met"]] * 2)
        self.assertEqual(self.states(0.011, 0.150), [["missed", "missed"], ["met", "missed"]])
        self.assertEqual(self.states(0.016, 0.160), [["missed", "met"]] * 2)


if __name__ == "__main__":
    unittest.main()
