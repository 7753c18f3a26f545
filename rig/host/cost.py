"""What the direct way and the way through host RAM cost in the same guest, from their receipts."""

import json
import re
from dataclasses import dataclass
from statistics import median

#: What `tests/cost.sh` leaves: one file per policy and round.
_RECEIPT_FILE = re.compile(r"^cost-(require|staged)-(\d+)\.json$")
GIGABYTE = 1e9


@dataclass(frozen=True)
class Sample:
    """One transfer: seconds per decimal gigabyte, reads and writes of host RAM per byte."""

    policy: str
    round: int
    route: str
    bytes: int
    wall_s_per_gb: float
    cpu_s_per_gb: float
    host_ram_passes: int


def samples(out):
    """Every sample in a result folder, by round."""
    found = []
    for path in out.glob("cost-*.json"):
        if match := _RECEIPT_FILE.match(path.name):
            found.append(_sample(match[1], int(match[2]), json.loads(path.read_text())["receipt"]))
    return sorted(found, key=lambda sample: (sample.round, sample.policy))


def _sample(policy, number, receipt):
    size = receipt["requested"]
    per_gb = GIGABYTE / size
    cpu = receipt["cpu"]["user"] + receipt["cpu"]["system"]
    hops = receipt["route"]["hops"]
    # A hop that ends in host RAM writes it, one that starts there reads it.
    passes = sum((hop["to"]["at"] == "host") + (hop["from"]["at"] == "host") for hop in hops)
    route = receipt["route"]["name"]
    return Sample(policy, number, route, size, receipt["wall_seconds"] * per_gb, cpu * per_gb, passes)


def table(found):
    lines = [
        "| route | CPU seconds per GB | wall seconds per GB | host-RAM passes | rounds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for policy in ("require", "staged"):
        ours = [sample for sample in found if sample.policy == policy]
        cpu = median(sample.cpu_s_per_gb for sample in ours)
        wall = median(sample.wall_s_per_gb for sample in ours)
        first = ours[0]
        lines.append(f"| {first.route} | {cpu:.2f} | {wall:.2f} | {first.host_ram_passes} | {len(ours)} |")
    return "\n".join(lines) + "\n"
