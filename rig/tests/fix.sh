# shapes: acs-on iommu-on
# The fix that crowfly prints for a blocked route opens it: the commands are run as printed, and then
# a load that insists on the direct way gets it. Plan and kernel agree before, between and after, for
# the repaired pair and for the one beside it. Behind an IOMMU the kernel lets the repaired pair
# through as well, but the emulator then delivers nothing (see shape iommu-lies), and --verify has
# to say so.
. "$RIG_HOME/guest/lib.sh"
needs_crowfly

MIB=8
PROBE=1048576
peer="peer:$(pci_of gpu0)"

# plan DRIVE STANDING FILE: the plan, kept; it has to say this of the way called peer-to-peer.
plan() {
	local got
	kept "$3" "$CROWFLY" route "drive:$(basename "$(drive "$1")")" "$peer" --json || fail "crowfly route failed"
	got=$(of_peer_route "$3" 'way["standing"]')
	[ "$got" = "$2" ] || fail "$1 in $3: expected $2, the plan says $got"
}

# of_peer_route FILE EXPRESSION: a Python expression about the way called peer-to-peer.
of_peer_route() {
	/usr/bin/python3 -IS -c '
import json, sys
ways = json.load(open(sys.argv[1]))["ways"]
way = next(way for way in ways if way["name"] == "peer-to-peer")
print(eval(sys.argv[2]))' "$RIG_OUT/$1" "$2"
}

# kernel_refuses DRIVE: one read by the rig's own mover.
kernel_refuses() {
	local got
	got=$("$RIG_HOME/guest/peer-io" read "$(peer_memory gpu0)" "$(drive "$1")" --bytes $PROBE)
	case $got in
	"error EINVAL" | "error EREMOTEIO") echo "$1: the kernel refuses ($got)" ;;
	"moved $PROBE "*) return 1 ;;
	*) fail "$1: neither moved nor refused, but '$got'" ;;
	esac
}

file=$(file_on nvme1 ext4 $MIB) || fail "$file"
republish gpu0
plan nvme1 blocked fix-before.json
kernel_refuses nvme1 || fail "planned as blocked, but the kernel lets it through"

of_peer_route fix-before.json '"\n".join(step["command"] for obstacle in way["obstacles"] for step in obstacle["fix"] if step["command"])' >"$RIG_OUT/fix.sh"
grep -q setpci "$RIG_OUT/fix.sh" || fail "no setpci in the fix"
sed 's/^sudo //' "$RIG_OUT/fix.sh" | bash -e || fail "the printed commands failed"
cat "$RIG_OUT/fix.sh"

# The kernel keeps the answer it has once given for a pair until the memory is published anew, and
# that is part of what crowfly prints.
kernel_refuses nvme1 || fail "the kernel has forgotten its refusal; crowfly says that it does not"
grep -q 'the kernel keeps refusing this pair' "$RIG_OUT/fix-before.json" || fail "the fix does not say that a refusal is kept"
republish gpu0

plan nvme1 open fix-after.json
plan nvme0 blocked fix-beside.json
kernel_refuses nvme0 || fail "nvme0 was not repaired, and yet the kernel lets it through"
kernel_refuses nvme1 && fail "planned as open after the repair, but the kernel refuses"

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
