# shapes: all but slow-drives
# What the kernel makes of a read from each drive into each stand-in is what the shape says, seen
# with the rig's own mover: by result, by content, and by where QEMU saw the bytes go. The host holds
# crowfly's routes against the answers.
. "$RIG_HOME/guest/lib.sh"

BYTES=1048576
OFFSET=4194304

for name in $RIG_DRIVES; do
	block=$(drive "$name")
	content=$(digest "$block" $OFFSET $BYTES)
	for gpu in $RIG_GPUS; do
		expected=$(expected_peer "$name" "$gpu")
		case $expected in
		direct) claim=peer:$name:$gpu:read:$BYTES ;;
		refused | corrupt) claim=none:$name:$gpu:read:0 ;;
		esac
		got=$(witnessed "$claim" "$RIG_HOME/guest/peer-io" read "$(peer_memory "$gpu")" "$block" --offset $OFFSET --bytes $BYTES)
		case $got in
		"moved $BYTES sha256 $content") answer=direct ;;
		"moved $BYTES sha256 "*) answer=corrupt ;;
		"error EINVAL" | "error EREMOTEIO") answer=refused ;;
		*) fail "$name to $gpu: neither moved nor refused, but '$got'" ;;
		esac
		echo "$name-$gpu $answer" >>"$RIG_OUT/answers"
		[ $answer = "$expected" ] || fail "$name to $gpu: expected $expected, got '$got'"
		echo "$name to $gpu: $expected ($got)"
	done
done
