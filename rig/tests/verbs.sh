# shapes: slow-drives
# Verbs work between the two hosts, survive a lossy cable, and come back after a cut.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"

PORT=18515

# between LABEL COMMAND...: the command as server on west and as client on east.
between() {
	local label=$1
	shift
	serve west "$label-west" timeout 60 "$@" -d roce_west -p $PORT
	listening west $PORT
	serve east "$label-east" timeout 60 "$@" -d roce_east -p $PORT "${SIDE_ADDRESS[west]}"
	finish "$label-east" 60 || fail "$label: the client ended with status $?"
	finish "$label-west" 20 || fail "$label: the server ended with status $?"
	tail -n 3 "$RIG_OUT/$RIG_TEST.$label-east.log"
}

fabric_up
on west ibv_devices | grep -q roce_west || fail "west does not see its own device"
on west ibv_devices | grep -q roce_east && fail "west sees the device of east"

between pingpong ibv_rc_pingpong -g 1 -n 200
between write ib_write_bw -x 1 -s 65536 -n 200
impair east loss 5%
between lossy-write ib_write_bw -x 1 -s 65536 -n 50
repair east
cut_link east
active east && fail "the port of east is active with its link cut"
restore_link east
between again ibv_rc_pingpong -g 1 -n 200
