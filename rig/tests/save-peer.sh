# shapes: iommu-zen
# crowfly takes a file into peer memory and writes it back out of it, to a block device and through
# ext4 and xfs, with nothing in between; the receipt of the writing agrees with QEMU's trace.
. "$RIG_HOME/guest/lib.sh"
needs_crowfly

MIB=8
WRITE_BACK=${WRITE_BACK:-$(dirname "$CROWFLY")/examples/write_back}
[ -x "$WRITE_BACK" ] || waive "no $WRITE_BACK: cargo build -p crowfly-mover --example write_back"

# write_back KIND TARGET
write_back() {
	witnessed "receipt-direct:nvme1:gpu0:write:save-$1.json" \
		kept "save-$1.json" "$WRITE_BACK" "$file" "$(pci_of gpu0)" "$2" || fail "$1: the writing failed"
	echo 3 >/proc/sys/vm/drop_caches
	cmp -n $((MIB << 20)) "$file" "$2" || fail "$1: other bytes were written"
	echo "$1: written straight out of the BAR"
}

file=$(file_on nvme0 ext4 $MIB) || fail "$file"
block=$(drive nvme1)
write_back block "$block"
for kind in ext4 xfs; do
	other=$(file_on nvme1 $kind 1) || fail "$other"
	write_back $kind "${other%/*}/copy"
	umount "/run/files/nvme1-$kind"
done
# What is mounted is not written over.
other=$(file_on nvme1 ext4 1) || fail "$other"
"$WRITE_BACK" "$file" "$(pci_of gpu0)" "$block" 2>"$RIG_OUT/save-busy.log" && fail "a mounted device was written over"
grep -q busy "$RIG_OUT/save-busy.log" || fail "not told that the device is in use: $(cat "$RIG_OUT/save-busy.log")"
umount /run/files/nvme1-ext4 /run/files/nvme0-ext4
