# shapes: root-ports
# What goes wrong by somebody's fault, by RDMA alone: a peer that takes no values, a descriptor that says too much or
# is of another life, and ends that tell wrong things of themselves. Each has a typed error in time, and whoever is left
# works on.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"
. "$RIG_HOME/guest/rail.sh"

# Peers that are stopped or cut off go on, and an emulated machine may take its time.
export RAIL_SILENCE=60

says() { log "$1" | grep -q "^$2"; }

fabric_up
sees beyond beyond
sees hostile hostile

begin slow slow 2
wait_until 60 writing slow || fail "slow: no values"
sleep 1
strike slow-west STOP
wait_until 60 says slow "stopped after" || fail "slow: $(log slow | tail -n 2)"
strike slow-west CONT
end slow

# Whoever is gone is missed once its rail has been silent for as long.
export RAIL_SILENCE=15
begin stale stale
wait_until 60 writing stale || fail "stale: it does not begin"
strike stale-west KILL
wait_until 40 says stale lost || fail "stale: $(log stale | tail -n 2)"
serve west stale-anew "$RAIL" serve roce_west "${SIDE_ADDRESS[west]}:$PORT"
end stale
strike stale-anew KILL
