# shapes: slow-drives
# Verbs work between the two hosts, survive a lossy cable, and come back after a cut or a crash.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"

PORT=18515

# between LABEL COMMAND: the command as server on west and as client on east.
between() { pair "$1" "$2 -d roce_west -p $PORT" "$2 -d roce_east -p $PORT \$WEST_ADDRESS" 60; }

# A host that crashes under a transfer. (What its peer makes of that is the peer's own: this tool
# asks for endless retries.)
received() { on west cat /sys/class/net/west/statistics/rx_bytes; }
has_received() { [ $(($(received) - before)) -gt 4000000 ]; }
crash() {
	local command="ib_write_bw -x 1 -s 65536 -n 100000 -p $PORT"
	before=$(received)
	serve west crash-west $command -d roce_west
	listening west $PORT
	serve east crash-east $command -d roce_east "${SIDE_ADDRESS[west]}"
	wait_until 30 has_received || fail "crash: the transfer did not get under way"
	strike crash-west KILL
	finish crash-west 5
	[ $? = 137 ] || fail "crash: west did not die of the signal"
	finish crash-east 5 && fail "crash: east reported success"
}

fabric_up
on west ibv_devices | grep -q roce_west || fail "west does not see its own device"
on west ibv_devices | grep -q roce_east && fail "west sees the device of east"

between pingpong "ibv_rc_pingpong -g 1 -n 200"
between write "ib_write_bw -x 1 -s 65536 -n 200"
impair east loss 5%
between lossy-write "ib_write_bw -x 1 -s 65536 -n 50"
repair east

crash
cut_link east
active east && fail "the port of east is active with its link cut"
restore_link east
between again "ibv_rc_pingpong -g 1 -n 200"
