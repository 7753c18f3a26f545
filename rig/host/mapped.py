"""Holds crowfly's map of a guest against the shape it was built from.

The guest leaves `map.json` (crowfly's map) and `addresses` (where the rig found each device of the
shape). Every device must be on the map, on its node, and every pair as far apart as it was built.
"""

import json
from itertools import combinations

#: What the guest leaves, and the test that leaves it.
MAP, ADDRESSES, TEST = "map.json", "addresses", "capture"


def contradiction(shape, drawn, addresses):
    """None where the map `drawn` is the shape's, else the first thing that is not."""
    names = {device["address"]: device["name"] for device in drawn["devices"] if device.get("address")}
    nodes = {device["address"]: device["numa"] for device in drawn["devices"] if device.get("address")}
    between = {frozenset((pair["a"], pair["b"])): pair["relation"] for pair in drawn["distances"]}
    devices = shape.devices()
    for device in devices:
        address = addresses.get(device.name)
        if address not in names:
            return f"{device.name} at {address} is not on the map"
        # One node alone leaves its devices' node to the reader: the kernel says -1, no node at all.
        if shape.nodes > 1 and nodes[address] != shape.node_of(device):
            return f"{device.name}: built on node {shape.node_of(device)}, drawn on node {nodes[address]}"
    for one, other in combinations(devices, 2):
        built = shape.relations(one, other)
        seen = between.get(frozenset((names[addresses[one.name]], names[addresses[other.name]])))
        if seen not in built:
            return f"{one.name} and {other.name}: built {' or '.join(built)}, drawn {seen}"
    return None


def contradictions(shape, out):
    """What is wrong with the map in the result folder `out`, by test; nothing where there is no map."""
    if not (out / MAP).exists():
        return {}
    try:
        drawn = json.loads((out / MAP).read_text())
        addresses = dict(line.split() for line in (out / ADDRESSES).read_text().splitlines())
        told = contradiction(shape, drawn, addresses)
    except (OSError, ValueError, KeyError, TypeError) as error:
        told = f"{MAP} is not a map: {error!r}"
    return {TEST: told} if told else {}
