# shapes: root-ports
# Two RDMA rails between two hosts: they share the bytes; cut in the middle of a transfer, one leaves the rest to
# the other, with the retries in the receipt; joined again, it comes back by itself.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"

RAIL=${FABRIC_RAIL:-$(dirname "$CROWFLY")/examples/rail}
PORT=18900
[ -x "$RAIL" ] || waive "no $RAIL: cargo build -p crowfly-mover --example rail"

log() { cat "$RIG_OUT/$RIG_TEST.east.log"; }
says() { log | grep -q "^$1"; }

fabric_up
second_cable
serve west west "$RAIL" serve roce_west,roce2_west "${SIDE_ADDRESS[west]}:$PORT"
listening west $PORT
serve east east "$RAIL" rails roce_east,roce2_east "${SIDE_ADDRESS[west]}:$PORT" 60
wait_until 30 says shared: || fail "the rails do not share: $(log | tail -n 2)"
sleep 1
ip -n west link set west2 down
wait_until 60 says "by the other:" || fail "the other does not carry on: $(log | tail -n 2)"
ip -n west link set west2 up
wait_until 10 active2 west || fail "the port of roce2_west did not come back"
finish east 90 || fail "ended with $?: $(log | tail -n 2)"
log
