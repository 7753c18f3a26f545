"""What the direct way and the way through host RAM cost in the same guest: CPU and time from their
receipts, passes through host RAM from QEMU's trace of the drive's DMA."""

import json
import re
from dataclasses import dataclass
from statistics import median

from host import trace, witness
from host.outcome import RigError

#: The claim that `tests/cost.sh` makes with each transfer: one receipt per policy and round.
_CLAIM = re.compile(
    r"^cost\treceipt-\w+:nvme(\d):(gpu\d):read:(?P<file>cost-(?P<policy>require|staged)-(?P<round>\d+)\.json)"
    r"\t(?P<first>\d+)\t(?P<end>\d+)$"
)
GIGABYTE = 1e9


@dataclass(frozen=True)
class Sample:
    """One transfer: seconds per decimal gigabyte, and bytes per byte asked for.

    `dma_to_host` and `dma_to_bar` are where the drive put the data, by the addresses in the trace.
    """

    policy: str
    round: int
    route: str
    bytes: int
    wall_s_per_gb: float
    cpu_s_per_gb: float
    dma_to_host: float
    dma_to_bar: float

    @property
    def host_ram_passes(self):
        """How often a byte passed host RAM: written there by the drive, and, unless the drive put it into
        the BAR itself, read from there again by the CPU, which has no other place to take it from."""
        return self.dma_to_host + (1 - self.dma_to_bar)


def samples(out):
    """Every sample in a result folder, by round; none where `tests/cost.sh` did not run there."""
    claims = out / "claims"
    lines = claims.read_text().splitlines() if claims.exists() else []
    found = [match for line in lines if (match := _CLAIM.match(line))]
    if not found:
        return []
    record = trace.read(out / "trace.log")
    windows = witness.parse_windows((out / "bars").read_text())
    measured = [_sample(claim, out, record, windows) for claim in found]
    return sorted(measured, key=lambda sample: (sample.round, sample.policy))


def _sample(claim, out, record, windows):
    path = out / claim["file"]
    try:
        receipt = json.loads(path.read_text())["receipt"]
        size, route, wall = receipt["requested"], receipt["route"]["name"], receipt["wall_seconds"]
        cpu = receipt["cpu"]["user"] + receipt["cpu"]["system"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RigError(f"{path} is not a receipt: {error!r}") from error
    namespace = int(claim[1]) + 1
    commands = [
        command
        for command in record.between(int(claim["first"]), int(claim["end"]))
        if command.namespace == namespace and command.verb == "read"
    ]
    traffic = record.traffic(commands, windows)
    return Sample(
        policy=claim["policy"],
        round=int(claim["round"]),
        route=route,
        bytes=size,
        wall_s_per_gb=wall * GIGABYTE / size,
        cpu_s_per_gb=cpu * GIGABYTE / size,
        dma_to_host=traffic.outside / size,
        dma_to_bar=traffic.inside.get(claim[2], 0) / size,
    )


def table(found):
    lines = [
        "| route | CPU s/GB | wall s/GB | drive's DMA to RAM | drive's DMA to the BAR | host-RAM passes | rounds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for policy in ("require", "staged"):
        ours = [sample for sample in found if sample.policy == policy]

        def middle(name, ours=ours):
            return f"{median(getattr(sample, name) for sample in ours):.2f}"

        columns = ["cpu_s_per_gb", "wall_s_per_gb", "dma_to_host", "dma_to_bar", "host_ram_passes"]
        cells = [ours[0].route, *map(middle, columns), str(len(ours))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
