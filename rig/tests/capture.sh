# shapes: all but slow-drives
# crowfly captures the machine of the shape. The host holds the snapshot's map against the shape, and
# its routes against what the kernel lets through.
. "$RIG_HOME/guest/lib.sh"
needs_crowfly

# Soft-RoCE turns each NIC into an RDMA device: the ports of a GPU server.
has_carrier() { [ "$(cat "/sys/class/net/$1/carrier")" = 1 ]; }
modprobe -a rdma_rxe ib_uverbs rdma_ucm || fail "the kernel has no soft-RoCE"
for nic in $RIG_NICS; do
	ip link set "$(interface_of "$nic")" up
	wait_until 10 has_carrier "$(interface_of "$nic")" || fail "no carrier on $nic"
	rdma link add "roce${nic#nic}" type rxe netdev "$(interface_of "$nic")" || fail "no soft-RoCE on $nic"
done

ulimit -l unlimited
"$CROWFLY" capture --salt 1 -o "$RIG_OUT/snapshot.json" || fail "capture failed"
# One shape is enough to show that a snapshot says what the machine says.
if [ "$RIG_SHAPE" = wrong-side ]; then
	kept map.txt "$CROWFLY" map || fail "map failed"
	kept map-again.txt "$CROWFLY" map --snapshot "$RIG_OUT/snapshot.json" || fail "map of the snapshot failed"
	diff "$RIG_OUT/map.txt" "$RIG_OUT/map-again.txt" || fail "the snapshot's map differs from the machine's"
fi
