# shapes: root-ports
# Two RDMA rails below one device of NCCL's: one is cut in the middle of a stream, and what it had left
# goes by the other. NCCL notices nothing; the receipt does.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"
. "$RIG_HOME/guest/nccl.sh"

fabric_up
second_cable
# The two players poll, and so take from the one emulated thread what connecting needs: that took up to
# 145 s on a crowded machine.
begin rails 11 stream 30 CROWFLY_NET_MERGE=1
wait_until 170 says rails west moving || fail "nothing moves: $(log rails west | tail -n 3)"
sleep 3
ip -n west link set west2 down
finish rails-east 150 || fail "rails: east ended with $?: $(log rails east | tail -n 3)"
says rails east 'ended 0' || fail "the other rail did not carry on: $(log rails east | tail -n 3)"
wait "${SERVED[rails-west]}" 2>/dev/null
by_rdma rails
receipt=$(grep '"event":"comm"' /tmp/rails/receipts.east)
echo "$receipt" | grep -q '"retries":[1-9]' || fail "no retries in $receipt"
echo "$receipt" | grep -q 'rail-failed' || fail "the receipt does not name the rail that failed: $receipt"
log rails east | grep -v '^INFO'
