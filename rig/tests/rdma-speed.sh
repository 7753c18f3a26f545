# shapes: one-switch
# on request
# crowfly's verbs and perftest's in turn over soft-RoCE, round after round for SPEED_SECONDS (90): one line of
# JSON for each measurement. bench/rdma makes tables of them. perftest plays twice: by writes, for which it
# polls, and by sends, for which it can sleep until a completion comes (-e). Where one thread emulates both CPUs
# a program that polls takes time from the one it waits for, unless it says so to the CPU (`pause`), as
# crowfly does. A run of perftest that does not end is left out. SPEED_OF=lat asks for latencies alone, and only
# for those that are polled for.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"

PEER=${VERBS_PEER:-$(dirname "$CROWFLY")/../release/examples/verbs_peer}
[ -x "$PEER" ] || waive "no $PEER: cargo build --release -p crowfly-machine --example verbs_peer"
command -v ib_write_bw >/dev/null || waive "no ib_write_bw: install perftest"
END=$(($(uptime_hundredths) + ${SPEED_SECONDS:-90} * 100))
PORT=18700

# table LABEL: the row of numbers that perftest printed on the east side.
table() { grep -E '^ *[0-9]+ ' "$RIG_OUT/$RIG_TEST.$1-east.log" | tail -n 1; }

# turn LABEL WEST EAST: two programs until both have ended; whether they ended well.
turn() {
	serve west "$1-west" $2
	listening west $PORT
	serve east "$1-east" $3
	finish "$1-east" 30
	local status=$?
	[ $status = 0 ] || strike "$1-west" KILL 2>/dev/null
	finish "$1-west" 10
	return $status
}

ours() {
	PORT=$((PORT + 1))
	turn ours "$PEER serve --device roce_west --listen 0.0.0.0:$PORT" \
		"$PEER $1 --device roce_east --connect ${SIDE_ADDRESS[west]}:$PORT --size $2 --count $3" ||
		fail "crowfly: $(tail -n 2 "$RIG_OUT/$RIG_TEST.ours-east.log")"
	sed 's/^{/{"tool":"crowfly",/' "$RIG_OUT/$RIG_TEST.ours-east.log"
}

theirs() {
	local tool=ib_${4:-write}_$1 fields events=${5:-}
	PORT=$((PORT + 1))
	# -F: the clock of an emulated CPU is of no interest; -x: the index of RoCE v2 over IPv4.
	turn theirs "$tool -F $events -x 1 -s $2 -n $3 -d roce_west -p $PORT" \
		"$tool -F $events -x 1 -s $2 -n $3 -d roce_east -p $PORT ${SIDE_ADDRESS[west]}" || return 0
	fields=($(table theirs))
	# What perftest makes of a clock that an emulated CPU sets back.
	[[ "${fields[*]}" != *inf* ]] || return 0
	case $1 in
	# size, iterations, peak and average MiB/s
	bw) echo "{\"tool\":\"$tool${events:+ $events}\",\"mode\":\"bw\",\"size\":$2,\"count\":$3,\"mib_per_s\":${fields[3]}}" ;;
	# size, iterations, least, most, typical and average microseconds
	lat) echo "{\"tool\":\"$tool${events:+ $events}\",\"mode\":\"lat\",\"size\":$2,\"count\":$3,\"typical_us\":${fields[4]},\"average_us\":${fields[5]}}" ;;
	esac
}

fabric_up
round=0
while [ "$(uptime_hundredths)" -lt $END ]; do
	round=$((round + 1))
	for what in "bw 65536 256" "bw 262144 80" "bw 1048576 24" "bw 8388608 6" "lat 64 300" "lat 4096 200"; do
		[[ "$what" == "${SPEED_OF:-}"* ]] || continue
		[ "$(uptime_hundredths)" -lt $END ] || break
		# Who goes first changes from round to round.
		[ $((round % 2)) = 1 ] || ours $what
		theirs $what
		[ -n "${SPEED_OF:-}" ] || theirs $what send -e
		[ $((round % 2)) = 0 ] || ours $what
	done
done
