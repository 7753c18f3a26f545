# shapes: one-switch
# A drive takes its data straight out of the BAR, on the block device and through ext4 and xfs.
. "$RIG_HOME/guest/lib.sh"

BYTES=1048576

# write_out CLAIM_KIND FILE OFFSET
write_out() {
	local got
	got=$(witnessed "$1:nvme1:gpu0:write:$BYTES" "$RIG_HOME/guest/peer-io" write "$(peer_memory gpu0)" "$2" --offset "$3" --bytes $BYTES)
	[ "$got" = "moved $BYTES sha256 $(digest "$2" "$3" $BYTES)" ] || fail "$2: '$got', but the file holds other bytes"
	echo "$2: $got"
}

# read_in FILE OFFSET
read_in() {
	local got
	got=$(witnessed "peer-some:nvme1:gpu0:read:$BYTES" "$RIG_HOME/guest/peer-io" read "$(peer_memory gpu0)" "$1" --offset "$2" --bytes $BYTES)
	[ "$got" = "moved $BYTES sha256 $(digest "$1" "$2" $BYTES)" ] || fail "$1: '$got', but the file holds other bytes"
	echo "$1: $got"
}

block=$(drive nvme1)
write_out peer "$block" 16777216
modprobe -a ext4 xfs
mkdir -p /run/rig-files
for kind in ext4 xfs; do
	wipefs -qa "$block"
	"mkfs.$kind" -q "$block" || fail "mkfs.$kind failed"
	mount "$block" /run/rig-files || fail "cannot mount $kind"
	dd if=/dev/urandom of=/run/rig-files/data bs=1M count=4 conv=fsync status=none
	write_out peer-some /run/rig-files/data $BYTES
	read_in /run/rig-files/data $BYTES
	umount /run/rig-files
done
