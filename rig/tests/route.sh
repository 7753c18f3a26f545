# shapes: all
# What crowfly plans is what the kernel does: the drive's way into each stand-in stands open where a
# read arrives, and is blocked where the kernel refuses it. Where ACS is in the way, the commands that
# crowfly prints open it.
. "$RIG_HOME/guest/lib.sh"
needs_crowfly

BYTES=1048576

# standing DRIVE GPU: what the plan says of peer-to-peer DMA; the plan stays in a file.
standing() {
	kept "route-$1-$2.txt" "$CROWFLY" route "drive:$(basename "$(drive "$1")")" "peer:$(pci_of "$2")" || fail "no plan from $1 to $2"
	local way rest
	while read -r way rest; do
		[ "$way" = peer-to-peer ] && echo "${rest%% *}" && return 0
	done <"$RIG_OUT/route-$1-$2.txt"
	return 1
}

# The command that crowfly prints for every port that redirects, without its sudo.
repairs() { sed -n 's/^ *\$ sudo \(setpci -s [0-9a-f:.]* ECAP_ACS+6\.w=[0-9a-f]*\)$/\1/p' "$RIG_OUT/$1"; }

moves() { "$RIG_HOME/guest/peer-io" read "$(peer_memory "$2")" "$(drive "$1")" --offset 0 --bytes $BYTES; }

redirected=
for name in $RIG_DRIVES; do
	for gpu in $RIG_GPUS; do
		expected=$(expected_peer "$name" "$gpu")
		got=$(standing "$name" "$gpu") || fail "$name to $gpu: peer-to-peer is not planned"
		case $expected:$got in
		# What the emulator corrupts, the kernel allows.
		direct:open | corrupt:open | refused:blocked) ;;
		*) fail "$name to $gpu: the kernel's answer is $expected, the plan says $got" ;;
		esac
		echo "$name to $gpu: $expected, planned as $got"
		if [ "$expected" = refused ] && repairs "route-$name-$gpu.txt" | grep -q setpci; then
			redirected+=" $name:$gpu"
		fi
	done
done

for pair in $redirected; do
	name=${pair%:*} gpu=${pair#*:}
	repairs "route-$name-$gpu.txt" >"$RIG_OUT/repairs"
	while read -r command; do
		$command || fail "$command failed"
	done <"$RIG_OUT/repairs"
	[ "$(standing "$name" "$gpu")" = open ] || fail "$name to $gpu: still not open after $(cat "$RIG_OUT/repairs")"
	got=$(moves "$name" "$gpu")
	content=$(digest "$(drive "$name")" 0 $BYTES)
	case $got in
	"moved $BYTES sha256 $content") ;;
	# Behind an IOMMU the emulator reports success and delivers nothing, as shape iommu-lies shows.
	"moved $BYTES sha256 "*) [ -n "$(ls /sys/class/iommu)" ] || fail "$name to $gpu: other bytes arrived" ;;
	*) fail "$name to $gpu: planned as open after the repair, but '$got'" ;;
	esac
	echo "$name to $gpu: open after $(tr '\n' ';' <"$RIG_OUT/repairs")"
	redirect_below_switches
done
