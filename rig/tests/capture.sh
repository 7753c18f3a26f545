# shapes: all
# crowfly sees the machine of the shape: what it captures says the same elsewhere as here, and its map
# has every device where it was built (the host compares the two).
. "$RIG_HOME/guest/lib.sh"
needs_crowfly

# Soft-RoCE turns each NIC into an RDMA device: the ports of a GPU server.
has_carrier() { [ "$(cat "/sys/class/net/$1/carrier")" = 1 ]; }
modprobe -a rdma_rxe || fail "the kernel has no soft-RoCE"
for nic in $RIG_NICS; do
	ip link set "$(interface_of "$nic")" up
	wait_until 10 has_carrier "$(interface_of "$nic")" || fail "no carrier on $nic"
	rdma link add "roce${nic#nic}" type rxe netdev "$(interface_of "$nic")" || fail "no soft-RoCE on $nic"
done

kept map.txt "$CROWFLY" map || fail "map failed"
"$CROWFLY" capture --salt 1 -o "$RIG_OUT/snapshot.json" || fail "capture failed"
kept map-again.txt "$CROWFLY" map --snapshot "$RIG_OUT/snapshot.json" || fail "map of the snapshot failed"
kept map.json "$CROWFLY" map --snapshot "$RIG_OUT/snapshot.json" --json || fail "map --json failed"
diff "$RIG_OUT/map.txt" "$RIG_OUT/map-again.txt" || fail "the snapshot's map differs from the machine's"
