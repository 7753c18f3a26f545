# Pairs of processes of the fabric by RDMA alone: the example `rail`, a server on west and a client on east. Sourced
# by tests after fabric.sh; waives the test where the example is not built.
#
#   begin LABEL MODE VALUE...    a server, and a client that does what the mode says; PORT is theirs
#   end LABEL                    wait for the client, which has to end well, and end the server
#   sees LABEL MODE VALUE...     both
#   log LABEL                    what the client said
#   writing LABEL                whether it has said something

RAIL=${FABRIC_RAIL:-$(dirname "$CROWFLY")/examples/rail}
PORT=18800
[ -x "$RAIL" ] || waive "no $RAIL: cargo build -p crowfly-mover --example rail"

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
	# Its status is that of a process that was killed, and no news.
	wait "${SERVED[$1-west]}" 2>/dev/null || true
}

sees() {
	begin "$@"
	end "$1"
}
