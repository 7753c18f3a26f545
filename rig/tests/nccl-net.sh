# shapes: root-ports
# The network plugin for NCCL by RDMA, between two hosts, with a program that plays NCCL: contents and
# receipts on clean and lossy cables; a peer that crashes; require.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"
. "$RIG_HOME/guest/nccl.sh"

fabric_up
plays sizes-8 8 sizes 0
plays sizes-11 11 sizes 0
plays groups 9 groups 0
plays many 10 many 0
plays parallel 11 parallel 0
for side in west east; do impair $side loss 1%; done
plays lossy 11 groups 0
for side in west east; do repair $side; done

begin refused 11 refused 0 CROWFLY_NET_POLICY=require
end refused
says refused east 'route-refused' || fail "require was not refused: $(log refused east | tail -n 3)"
says refused east 'obstacle \[software-nic\]' || fail "nobody says that the NIC is software: $(log refused east)"

# The receiver posts nothing that could fail: silence tells it.
begin killed 11 stream 120 CROWFLY_NET_SILENCE=15
wait_until 60 says killed west moving || fail "nothing moves: $(log killed west | tail -n 3)"
strike killed-east KILL
finish killed-west 90 || fail "killed: west ended with $?: $(log killed west | tail -n 3)"
says killed west 'ended 6' || fail "the peer's death was no error: $(log killed west | tail -n 3)"
wait "${SERVED[killed-east]}" 2>/dev/null
log killed west | grep '^ended'
