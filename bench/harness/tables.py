"""Results as Markdown: the same text for the terminal and for the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .contenders.contender import REMARK
from .scenario import Outcome
from .summary import Row, Spread, paired, rate, wall
from .targets import Verdict, best

MILLI = 1000
NONE = "–"


def render(
    title: str,
    facts: Mapping[str, object],
    options: Mapping[str, object],
    versions: Mapping[str, str],
    outcomes: Sequence[Outcome],
    verdicts: Sequence[Verdict],
) -> str:
    parts = [f"# {title}", "", *_facts(facts, options, versions), _load(facts, outcomes), ""]
    for outcome in outcomes:
        parts += [f"## {outcome.scenario.name}: {outcome.scenario.title}", ""]
        parts += [*table(outcome), *_notes(outcome.rows), ""]
    parts += ["## Targets", "", *_verdicts(verdicts), "", *LEGEND]
    return "\n".join(parts) + "\n"


LEGEND = [
    "Medians with [lowest–highest] over the rounds. A ratio is the median of the ratios within each",
    "round; for rates more is better, for seconds less. Python loaders are timed inside the",
    "interpreter after their imports and a warm-up on one tiny tensor (`process` counts all of it); fio",
    "by its own run time; cat, dd and crowfly by their whole process. CPU is user plus system of the",
    "process tree; work that the kernel does in interrupts is charged to nobody. Peak memory marked ≤ is",
    "below what could be told apart; (+N) is what the load added to an interpreter. Checked: both ends of",
    "every tensor held what was written; of crowfly, a run with --verify matched every byte.",
]


def table(outcome: Outcome) -> list[str]:
    small = outcome.scenario.name.startswith("listing")
    columns = _listing_columns() if small else _transfer_columns(outcome)
    lines = [
        "| " + " | ".join(name for name, _ in columns) + " |",
        "|" + " --- |" * len(columns),
    ]
    for row in outcome.rows:
        if row.problem:
            cells = [row.name, row.problem, *[""] * (len(columns) - 2)]
        else:
            cells = [cell(row) for _, cell in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _transfer_columns(outcome: Outcome):
    transit = outcome.scenario.name.startswith("transit")
    peer = best(outcome.rows, lambda row: row.gb_per_s if transit else row.wall_s, highest=transit)
    figure = rate if transit else wall

    def against(row: Row) -> str:
        if peer is None or row.role == REMARK:
            return NONE
        if row is peer:
            return "best peer"
        ratio = paired(outcome.samples, row.name, peer.name, figure)
        return spread(ratio, 2)

    return [
        ("contender", lambda row: row.name),
        ("wall s", lambda row: spread(row.wall_s, 2)),
        ("GB/s", lambda row: spread(row.gb_per_s, 2)),
        ("rate ÷ best peer" if transit else "wall ÷ best peer", against),
        ("CPU s", lambda row: spread(row.cpu_s, 2)),
        ("process wall / CPU s", _process),
        ("peak MB", _memory),
        ("checked", _checked),
    ]


def _listing_columns():
    return [
        ("contender", lambda row: row.name),
        ("wall ms", lambda row: spread(row.wall_s, 1, MILLI)),
        ("CPU ms", lambda row: spread(row.cpu_s, 1, MILLI)),
        ("process wall ms", lambda row: spread(row.process_wall_s, 1, MILLI)),
    ]


def spread(value: Spread | None, digits: int, scale: float = 1) -> str:
    if value is None:
        return NONE
    median, low, high = (
        f"{figure * scale:.{digits}f}" for figure in (value.median, value.low, value.high)
    )
    return f"{median} [{low}–{high}]"


def _process(row: Row) -> str:
    if row.process_wall_s is None or row.process_cpu_s is None:
        return NONE
    return f"{row.process_wall_s.median:.2f} / {row.process_cpu_s.median:.2f}"


def _memory(row: Row) -> str:
    if row.peak_rss is None:
        return NONE
    added = f" (+{(row.peak_rss - row.rss_before) / 1e6:.0f})" if row.rss_before else ""
    return f"{'≤ ' if row.peak_rss_is_floor else ''}{row.peak_rss / 1e6:.0f}{added}"


def _checked(row: Row) -> str:
    return {True: "yes", False: "no", None: NONE}[row.verified]


def _notes(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        setting = f"at {row.setting}" if row.setting and not row.problem else ""
        text = "; ".join(part for part in (setting, row.note) if part)
        if text:
            lines.append(f"- {row.name}: {text}")
        if row.receipt_wall_s and row.receipt_cpu_s:
            wall_s, cpu_s = spread(row.receipt_wall_s, 3), spread(row.receipt_cpu_s, 3)
            figures = f"{wall_s} s wall, {cpu_s} s CPU"
            lines.append(f"- {row.name}: its receipt says {figures}; {row.receipt_says}")
    return ["", *lines] if lines else []


def _verdicts(verdicts: Sequence[Verdict]) -> list[str]:
    lines = ["| scenario | target | verdict | found |", "| --- | --- | --- | --- |"]
    lines += [f"| {one.scenario} | {one.target} | {one.state} | {one.found} |" for one in verdicts]
    return lines


def _facts(
    facts: Mapping[str, object], options: Mapping[str, object], versions: Mapping[str, str]
) -> list[str]:
    memory = float(str(facts["memory_bytes"])) / 1e9
    machine = f"{facts['cores']} cores, {facts['cpu']}; {memory:.0f} GB memory"
    return [
        f"- {machine}; kernel {facts['kernel']}",
        f"- file system {_flat(facts['file_system'])}",
        f"- block device {_flat(facts['block_device'])}",
        f"- {_flat(options)}",
        f"- {_flat(versions)}",
    ]


def _load(facts: Mapping[str, object], outcomes: Sequence[Outcome]) -> str:
    during = [sample.load_average for outcome in outcomes for sample in outcome.samples]
    start, highest = facts["load_average_at_start"], max(during, default=0.0)
    return f"- load average {start:.1f} at the start, up to {highest:.1f} before a run"


def _flat(value: object) -> str:
    if not isinstance(value, Mapping):
        return "unknown"
    return ", ".join(f"{key} {item}" for key, item in value.items())
