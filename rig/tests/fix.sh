# shapes: acs-on iommu-on
# The fix that crowfly prints for a blocked route opens it: the commands are run as printed, and then
# a load that insists on the direct way gets it. Behind an IOMMU the kernel lets it through as well,
# but the emulator then delivers nothing (see shape iommu-lies), and --verify has to say so.
. "$RIG_HOME/guest/lib.sh"
needs_crowfly

peer="peer:$(pci_of gpu0)"
plan() { kept "$1" "$CROWFLY" route drive:nvme1 "$peer" --json || fail "crowfly route failed"; }

# of_peer_route FILE EXPRESSION: a Python expression about the way called peer-to-peer.
of_peer_route() {
	python3 -c '
import json, sys
ways = json.load(open(sys.argv[1]))["ways"]
way = next(way for way in ways if way["name"] == "peer-to-peer")
print(eval(sys.argv[2]))' "$RIG_OUT/$1" "$2"
}

MIB=8
file=$(file_on nvme1 ext4 $MIB) || fail "$file"
# Whatever ran before has tried this pair, and the kernel remembers its decision until the memory is
# published anew.
republish gpu0
plan fix-before.json
[ "$(of_peer_route fix-before.json 'way["standing"]')" = blocked ] || fail "the route is not blocked to begin with"
of_peer_route fix-before.json '"\n".join(step["command"] for obstacle in way["obstacles"] for step in obstacle["fix"] if step["command"])' >"$RIG_OUT/fix.sh"
grep -q setpci "$RIG_OUT/fix.sh" || fail "no setpci in the fix"
sed 's/^sudo //' "$RIG_OUT/fix.sh" | bash -e || fail "the printed commands failed"
cat "$RIG_OUT/fix.sh"

plan fix-after.json
[ "$(of_peer_route fix-after.json 'way["standing"]')" = open ] || fail "the route is still not open"
load() { kept fix-load.json "$CROWFLY" load "$file" --to "$peer" --policy require --verify --json; }
if [ "$RIG_SHAPE" = iommu-on ]; then
	witnessed "host:nvme1:gpu0:read:$((MIB << 20))" load && fail "data that did not arrive was passed off as good"
	[ "$(error_code fix-load.json)" = data-differs ] || fail "expected data-differs, got $(error_code fix-load.json)"
else
	witnessed receipt-direct:nvme1:gpu0:read:fix-load.json load || fail "the load is still refused"
fi

umount "${file%/*}"
redirect_below_switches
republish gpu0
