"""What bench/collective makes of its contenders' output, and how it judges rounds with known figures."""

import json
import unittest
from pathlib import Path
from unittest import mock

from harness.collective import contenders, judgement, tables
from harness.collective.contenders import Contender, Figure

KIB, MIB = 1 << 10, 1 << 20


def contender(kind: str, path: str) -> Contender:
    return Contender(kind if kind == "Gloo" else f"{kind} {path}", kind, path, ())


ALL = [
    contender("crowfly", "shm"),
    contender("crowfly", "tcp"),
    contender("Open MPI", "shm"),
    contender("Open MPI", "tcp"),
    contender("Gloo", "tcp"),
]


def turn(size: int, seconds: float, cpu: float = 1.0, bound=None) -> dict[int, Figure]:
    return {size: Figure(size, seconds, cpu, 0, bound)}


def judged(rounds, size):
    filled = {one.name: rounds.get(one.name, []) for one in ALL}
    return {(v.way, v.what): v for v in judgement.judge(ALL, filled, [size])}


class Figures(unittest.TestCase):
    def test_come_from_lines_of_json_among_whatever_else_is_printed(self):
        line = json.dumps({"bytes": 8, "calls": 3, "seconds": 0.5, "cpu_seconds": 1.0, "wrong": 2})
        self.assertEqual(contenders.of_lines(f"hello\n{line}\n"), [Figure(8, 0.5, 1.0, 2)])

    def test_come_from_crowflys_document_with_the_bound_where_it_was_measured(self):
        def point(size, ceiling):
            sample = {"seconds": 0.25, "cpu_seconds": 0.5}
            return {"size": size, "wrong": 0, "ceiling": ceiling, "samples": [sample]}

        document = {"points": [point(8, None), point(16, {"rate": 5e9})]}
        figures = contenders.of_crowfly(json.dumps(document))
        self.assertEqual(figures, [Figure(8, 0.25, 0.5, 0), Figure(16, 0.25, 0.5, 0, 5e9)])


class Finding(unittest.TestCase):
    def test_has_open_mpi_go_bound_as_well_where_ranks_share_cores_and_as_a_peer_of_the_same_way(self):
        def commands(crowded):
            with mock.patch.object(contenders, "built", side_effect=lambda needs, source: source):
                found, _ = contenders.find("crowfly", Path("/nowhere"), crowded)
            return {one.name: one for one in found if one.kind == "Open MPI"}

        self.assertEqual(list(commands(False)), ["Open MPI shm", "Open MPI tcp"])
        crowded = commands(True)
        self.assertEqual(len(crowded), 4)
        bound = crowded["Open MPI tcp, bound"]
        self.assertEqual((bound.path, bound.is_peer), ("tcp", True))
        plain = [word for word in bound.command if word not in contenders.BOUND]
        self.assertEqual(tuple(plain), crowded["Open MPI tcp"].command)


class AJudgement(unittest.TestCase):
    def test_takes_the_best_peer_of_each_round_and_the_median_of_the_rounds(self):
        rounds = {
            "crowfly shm": [turn(MIB, s) for s in (1.0, 10.0, 1.0)],
            "Open MPI shm": [turn(MIB, s) for s in (2.0, 20.0, 3.0)],
            "Open MPI tcp": [turn(MIB, 0.1)] * 3,
            "Gloo": [turn(MIB, s) for s in (9.0, 15.0, 9.0)],
        }
        rate = judged(rounds, MIB)["shm", "rate"]
        # 2, 1.5 (Gloo's, in the slow round) and 3; Open MPI's TCP is no peer of shared memory.
        self.assertEqual((rate.value, rate.met, rate.rounds), (2.0, True, 3))

    def test_takes_bare_sockets_for_no_peer(self):
        bare = Contender("bare sockets", contenders.BARE, "tcp", (), ranks=2)
        ways = [contender("crowfly", "tcp"), contender("Open MPI", "tcp"), bare]
        rounds = {"crowfly tcp": [turn(MIB, 1.0)] * 3, "Open MPI tcp": [turn(MIB, 2.0)] * 3, bare.name: [turn(MIB, 0.5, 0.5)] * 3}
        found = {v.what: v.value for v in judgement.judge(ways, rounds, [MIB])}
        self.assertEqual(found, {"rate": 2.0, "cpu": 1.0})

    def test_holds_latency_and_cpu_time_below_their_limits_and_rates_and_shares_above(self):
        small = {"crowfly shm": [turn(8, 1.3)] * 3, "Open MPI shm": [turn(8, 1.0)] * 3}
        latency = judged(small, 8)["shm", "latency"]
        self.assertEqual((round(latency.value, 3), latency.met), (1.3, False))
        size = 64 * MIB
        large = {
            "crowfly shm": [turn(size, 1.0, cpu=0.9, bound=size / 0.8)] * 3,
            "Open MPI shm": [turn(size, 1.2, cpu=1.0)] * 3,
        }
        found = judged(large, size)
        self.assertEqual((found["shm", "share"].met, round(found["shm", "share"].value, 3)), (True, 0.8))
        self.assertIs(found["shm", "cpu"].met, True)
        self.assertIs(found["shm", "rate"].met, False)
        by_tcp = {"crowfly tcp": [turn(size, 1.0, bound=size / 0.1)] * 3}
        self.assertNotIn(("tcp", "share"), judged(by_tcp, size), "memory is not what limits there")

    def test_holds_the_groups_memory_against_the_same_peers_under_its_own_name(self):
        ways = [*ALL, Contender("crowfly shm, group's memory", "crowfly", "shm", ())]
        rounds = {one.name: [] for one in ways}
        rounds["Open MPI shm"] = rounds["crowfly shm"] = [turn(MIB, 1.0)] * 3
        rounds["crowfly shm, group's memory"] = [turn(MIB, 0.5)] * 3
        found = {(v.way, v.what): v.value for v in judgement.judge(ways, rounds, [MIB])}
        self.assertEqual(found["shm", "rate"], 1.0)
        self.assertEqual(found["shm, group's memory", "rate"], 2.0)

    def test_says_nothing_of_too_few_rounds_and_leaves_out_what_is_missing(self):
        rounds = {"crowfly tcp": [turn(MIB, 1.0)] * 2, "Gloo": [turn(MIB, 2.0), {}]}
        found = judged(rounds, MIB)
        self.assertEqual((found["tcp", "rate"].rounds, found["tcp", "rate"].met), (1, None))
        self.assertNotIn(("shm", "rate"), found)


class Tables(unittest.TestCase):
    def test_show_what_failed_as_nothing_and_what_was_wrong_as_such(self):
        rounds = {"a": [{8: Figure(8, 2e-6, 4e-6, 3)}], "b": [{}]}
        lines = tables.figures(rounds, [8], 2)
        self.assertEqual(lines[-1], "| 8 B | 2 (2–2) µs, 250 s/GB, 3 wrong | – |")
        self.assertEqual([tables.size_text(s) for s in (8, 64 * KIB, 4 * MIB)], ["8 B", "64 KiB", "4 MiB"])


if __name__ == "__main__":
    unittest.main()
