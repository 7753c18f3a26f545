# shapes: root-ports
# The whole fabric by RDMA alone: contents and receipts on clean and lossy cables and on one that reorders; a region
# taken back, a black hole, a cut cable and a crash each end in a typed error in time, with the memory given back.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"
. "$RIG_HOME/guest/rail.sh"

# stalls LABEL WHAT...: happens in the middle of a stream of writes.
stalls() {
	begin "$1" stall 4
	wait_until 20 writing "$1" || fail "$1: no writes"
	sleep 1
	"${@:2}"
	end "$1"
}

hole() { for side in west east; do impair $side loss 100%; done; }
repair_both() { for side in west east; do repair $side; done; }

fabric_up
sees clean verify 1048576
sees gone gone
for loss in 1 10; do
	for side in west east; do impair $side loss $loss%; done
	sees "loss-$loss" verify 524288
	repair_both
done
for side in west east; do impair $side delay 1ms reorder 10%; done
sees reorder verify 262144
repair_both
stalls hole hole
repair_both
stalls cut cut_link west
restore_link west
stalls killed strike killed-west KILL
sees after verify 65536
