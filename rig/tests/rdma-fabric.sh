# shapes: root-ports
# The whole fabric by RDMA alone: contents and receipts on clean and lossy cables and on one that reorders; a region
# taken back, a black hole, a cut cable and a crash each end in a typed error in time, with the memory given back.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"

RAIL=${FABRIC_RAIL:-$(dirname "$CROWFLY")/examples/rail}
PORT=18800
[ -x "$RAIL" ] || waive "no $RAIL: cargo build -p crowfly-mover --example rail"

# begin LABEL MODE VALUE...: a server on west, a client on east.
begin() {
	PORT=$((PORT + 1))
	serve west "$1-west" "$RAIL" serve roce_west "${SIDE_ADDRESS[west]}:$PORT"
	listening west $PORT
	serve east "$1-east" "$RAIL" "$2" roce_east "${SIDE_ADDRESS[west]}:$PORT" "${@:3}"
}

log() { cat "$RIG_OUT/$RIG_TEST.$1-east.log"; }
writing() { [ -s "$RIG_OUT/$RIG_TEST.$1-east.log" ]; }

end() {
	# Longer than whoever waits there is patient, so that it says what became of it.
	finish "$1-east" 75 || fail "$1: ended with $?: $(log "$1" | tail -n 2)"
	echo "$1: $(log "$1" | tail -n 1)"
	strike "$1-west" KILL 2>/dev/null
	wait "${SERVED[$1-west]}" 2>/dev/null
}

sees() {
	begin "$@"
	end "$1"
}

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
