# shapes: root-ports
# Queues that overflow, by RDMA alone: as many writes as are kept, to a peer that is stopped or cut off for a while. All
# of them end in time, both ends count the same, and the two go on.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"
. "$RIG_HOME/guest/rail.sh"

# Peers that are stopped or cut off go on, and an emulated machine may take its time.
export RAIL_SILENCE=150

says() { log "$1" | grep -q "^$2"; }
full() { wait_until 60 says "$1" "full with" || fail "$1: $(log "$1" | tail -n 2)"; }
writing_soon() { wait_until 60 writing "$1" || fail "$1: no writes"; }

fabric_up

# Its NIC takes bytes whether the process runs or not, and no more values than it was given receives for.
begin stopped flood 60 4096 values
writing_soon stopped
strike stopped-west STOP
full stopped
sleep 2
strike stopped-west CONT
end stopped

begin cut flood 60 16384 bytes
writing_soon cut
cut_link west
full cut
sleep 5
restore_link west
end cut

sees after verify 65536
