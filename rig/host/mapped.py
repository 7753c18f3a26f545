"""Holds crowfly's map of a guest against the shape the guest was built from: every device must be on
the map, on its node, and every pair as far apart as it was built."""

from itertools import combinations

from host.crowfly import Disagreement


def hold_map_against_shape(shape, drawn, addresses):
    """`drawn` is the map as parsed JSON, `addresses` the PCI address of each device of the shape."""
    names = {device["address"]: device["name"] for device in drawn["devices"] if device.get("address")}
    nodes = {device["address"]: device["numa"] for device in drawn["devices"] if device.get("address")}
    between = {frozenset((pair["a"], pair["b"])): pair["relation"] for pair in drawn["distances"]}
    devices = shape.devices()
    for device in devices:
        address = addresses.get(device.name)
        if address not in names:
            raise Disagreement(f"{device.name} at {address} is not on the map")
        # One node alone leaves its devices' node to the reader: the kernel says -1, no node at all.
        if shape.nodes > 1 and nodes[address] != shape.node_of(device):
            built, seen = shape.node_of(device), nodes[address]
            raise Disagreement(f"{device.name}: built on node {built}, drawn on node {seen}")
    for one, other in combinations(devices, 2):
        built = shape.relations(one, other)
        seen = between.get(frozenset((names[addresses[one.name]], names[addresses[other.name]])))
        if seen not in built:
            raise Disagreement(f"{one.name} and {other.name}: built {' or '.join(built)}, drawn {seen}")
