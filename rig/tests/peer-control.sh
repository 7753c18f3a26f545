# shapes: one-switch
# The oracle can say no: a buffered read into the BAR brings the right bytes by way of the page
# cache and a CPU copy, and a claim that they came by peer DMA is contradicted by the trace.
. "$RIG_HOME/guest/lib.sh"

BYTES=1048576
OFFSET=8388608

block=$(drive nvme0)
content=$(digest "$block" $OFFSET $BYTES)
sync
echo 3 >/proc/sys/vm/drop_caches
detour() { "$RIG_HOME/guest/peer-io" read "$(peer_memory gpu0)" "$block" --offset $OFFSET --bytes $BYTES --buffered; }
got=$(witnessed "!peer:nvme0:gpu0:read:$BYTES" detour)
[ "$got" = "moved $BYTES sha256 $content" ] || fail "the buffered read gave '$got', the drive holds $content"
echo 3 >/proc/sys/vm/drop_caches
witnessed "host:nvme0:gpu0:read:$BYTES" detour
