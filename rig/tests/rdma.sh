# shapes: root-ports-zen
# crowfly's own bindings of the verbs: right contents on clean and lossy cables, each fault with its
# status and within its deadline, and the refusal of a dma-buf as obstacles.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"

PEER=${VERBS_PEER:-$(dirname "$CROWFLY")/examples/verbs_peer}
PORT=18600
[ -x "$PEER" ] || waive "no $PEER: cargo build -p crowfly-machine --example verbs_peer"

# host LABEL: a server for one client.
host() {
	PORT=$((PORT + 1))
	serve west "$1-west" "$PEER" serve --device roce_west --listen "0.0.0.0:$PORT" --timeout 14
	listening west $PORT
}

# client LABEL MODE OPTIONS...: started, not waited for.
client() {
	serve east "$1-east" "$PEER" "$2" --device roce_east --connect "${SIDE_ADDRESS[west]}:$PORT" "${@:3}"
}

log() { cat "$RIG_OUT/$RIG_TEST.$1-east.log"; }
writing() { [ -s "$RIG_OUT/$RIG_TEST.$1-east.log" ]; }

# sees LABEL MODE OPTIONS...: the client must end well.
sees() {
	host "$1"
	client "$@"
	finish "$1-east" 60 || fail "$1: $(log "$1" | tail -n 2)"
	finish "$1-west" 10 || true
	echo "$1: $(log "$1" | tail -n 1)"
}

# stalls LABEL WHAT... -- OPTIONS...: WHAT happens in the middle of a stream of writes.
stalls() {
	local label=$1 what=()
	shift
	while [ "$1" != -- ]; do
		what+=("$1")
		shift
	done
	host "$label"
	client "$label" stall --size 65536 "${@:2}"
	wait_until 20 writing "$label" || fail "$label: no writes"
	sleep 0.5
	"${what[@]}"
	finish "$label-east" 30 || fail "$label: ended with $?: $(log "$label" | tail -n 2)"
	echo "$label: $(log "$label" | tail -n 1)"
	strike "$label-west" KILL 2>/dev/null
	wait "${SERVED[$label-west]}" 2>/dev/null
}

fabric_up
# The kernel's udmabuf makes dma-bufs of host memory; soft-RoCE takes none.
modprobe udmabuf 2>/dev/null
if [ -e /dev/udmabuf ]; then
	on east "$PEER" dma-buf --device roce_east >"$RIG_OUT/$RIG_TEST.dma-buf.log" 2>&1 ||
		fail "dma-buf: $(tail -n 2 "$RIG_OUT/$RIG_TEST.dma-buf.log")"
	sed 's/^/dma-buf: /' "$RIG_OUT/$RIG_TEST.dma-buf.log"
else
	echo "dma-buf: not looked at, the kernel has no udmabuf"
fi

sees clean verify --size 1048576
sees messages messages
sees bad-key bad-key
sees outside outside
sees gone gone
sees no-receive no-receive --receiver-retries 1
for loss in 1 10; do
	for side in west east; do impair $side loss $loss%; done
	sees "loss-$loss" verify --size 524288
	for side in west east; do repair $side; done
done

# Seven retries are for ever on soft-RoCE: the deadline ends it. Six end by themselves.
hole() { for side in west east; do impair $side loss 100%; done; }
stalls hole-for-ever hole -- --deadline 2
for side in west east; do repair $side; done
stalls cut-six cut_link west -- --retries 6 --deadline 10
restore_link west
stalls killed strike killed-west KILL -- --retries 6 --deadline 10
sees after verify --size 65536
