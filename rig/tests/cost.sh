# shapes: one-switch
# on request
# The same file by the direct way and by way of host RAM, in turn: what each costs the CPU. The
# receipts are the result (`rig/cost` makes a table of them); the trace has to agree with every one.
. "$RIG_HOME/guest/lib.sh"
needs_crowfly

MIB=64
ROUNDS=3

file=$(file_on nvme1 ext4 $MIB) || fail "$file"
peer="peer:$(pci_of gpu0)"

# run_once POLICY CLASS ROUND
run_once() {
	echo 3 >/proc/sys/vm/drop_caches
	witnessed "receipt-$2:nvme1:gpu0:read:cost-$1-$3.json" \
		kept "cost-$1-$3.json" "$CROWFLY" load "$file" --to "$peer" --policy "$1" --json || fail "--policy $1 failed"
}

for round in $(seq $ROUNDS); do
	run_once require direct "$round"
	run_once staged staged "$round"
done
umount "${file%/*}"
