"""Golden fixtures: what crowfly captured in each shape, and what it says of it.

`golden/SHAPE.json` is a snapshot taken in the guest, `golden/SHAPE.txt` a transcript of commands run
on it. The ordinary tests replay them without QEMU. Here, after a fresh capture, crowfly's map is held
against the shape, and its routes against what the kernel did (the shape's `[peer]`) and what they were.
"""

import shutil

from host.crowfly import SNAPSHOT, TEST, Disagreement, Reader, read_addresses
from host.mapped import hold_map_against_shape

#: The route that `[peer]` is about.
PEER_ROUTE = "peer-to-peer"
#: Standing of that route for each outcome. Where the machine lies, the kernel had let it through.
STANDING = {"direct": "open", "refused": "blocked", "corrupt": "open"}
PROMPT = "$ crowfly "
#: What `tests/peer-pairs.sh` leaves: a pair and the kernel's answer per line.
ANSWERS = "answers"


def commands(shape, addresses):
    """Arguments of the commands in the transcript: the map, and the routes between its devices."""
    listed = [["map"]]
    for drive in shape.devices("nvme"):
        for gpu in shape.devices("gpu"):
            every = ["--all"] if drive.number == gpu.number == 0 else []
            listed.append(["route", f"drive:{drive.name}", f"peer:{addresses[gpu.name]}", *every])
    for nic in shape.devices("nic"):
        listed.append(["route", f"nic:eth{nic.number}", "gpu:0"])
    return listed


def transcript(reader, listed):
    """Each command as one would type it, followed by what it says of the snapshot."""
    return "\n".join(f"{PROMPT}{' '.join(arguments)}\n{reader.says(arguments)}" for arguments in listed)


def read_answers(out):
    """What the kernel made of each pair in this boot, from `tests/peer-pairs.sh`; empty where it did not run."""
    answers = out / ANSWERS
    return dict(line.split() for line in answers.read_text().splitlines()) if answers.exists() else {}


def hold_routes_against_kernel(shape, answers, addresses, plan_of):
    """`plan_of(drive, address)` is crowfly's plan as parsed JSON. `answers` are the kernel's in this boot;
    for a pair it was not asked about, the shape says what it answers."""
    for pair, peer in shape.peer.items():
        outcome = answers.get(pair, peer.outcome)
        drive, gpu = pair.split("-")
        plan = plan_of(drive, addresses[gpu])
        way = next((way for way in plan["ways"] if way["name"] == PEER_ROUTE), None)
        if way is None or way["standing"] != STANDING[outcome]:
            standing = way["standing"] if way else "not there"
            raise Disagreement(f"{pair}: the kernel's answer is {outcome}, {PEER_ROUTE} is {standing}")
        codes = [obstacle["code"] for obstacle in way["obstacles"]]
        if peer.code and peer.code not in codes:
            raise Disagreement(f"{pair}: refused by {peer.code}, but the route names {', '.join(codes)}")


def routes_of(text):
    """The part of a transcript that does not change with the kernel's version and size."""
    return text[text.find(PROMPT + "route") :]


def contradictions(shape, out, binary, folder, bless):
    """What is wrong with what crowfly says of the snapshot in `out`, by test; `bless` makes it golden."""
    if not (out / SNAPSHOT).exists():
        return {}
    try:
        _check(shape, out, Reader(binary, out / SNAPSHOT), folder, bless)
    except (Disagreement, KeyError, TypeError, ValueError) as told:
        return {TEST: str(told) if isinstance(told, Disagreement) else f"not what crowfly promises: {told!r}"}
    return {}


def _check(shape, out, reader, folder, bless):
    addresses = read_addresses(out)
    hold_map_against_shape(shape, reader.tells(["map"]), addresses)

    def plan_of(drive, address):
        return reader.tells(["route", f"drive:{drive}", f"peer:{address}"])

    hold_routes_against_kernel(shape, read_answers(out), addresses, plan_of)
    text = transcript(reader, commands(shape, addresses))
    (out / "transcript.txt").write_text(text)
    golden = folder / f"{shape.name}.txt"
    if bless:
        folder.mkdir(exist_ok=True)
        shutil.copy(out / SNAPSHOT, folder / f"{shape.name}.json")
        golden.write_text(text)
    elif not golden.exists() or routes_of(golden.read_text()) != routes_of(text):
        raise Disagreement(f"its routes differ from {golden.name}; see transcript.txt, then `rig/run --bless`")
