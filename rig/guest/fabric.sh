# Two hosts joined by RDMA, in one guest: network namespaces `west` and `east`, a veth pair for the
# cable, a soft-RoCE device on each end. Sourced by tests after lib.sh.
#
#   fabric_up                     build it anew; waives the test where the kernel has no soft-RoCE
#   on SIDE COMMAND...            run on that host
#   serve SIDE NAME COMMAND...    start in the background, output in $RIG_OUT/TEST.NAME.log
#   listening SIDE PORT           wait until something accepts TCP connections there
#   finish NAME SECONDS           wait for what `serve` started; its exit status, or 124
#   strike NAME SIGNAL            send it a signal: KILL is a host that crashes, STOP one that hangs
#   pair LABEL WEST EAST SECONDS  two command lines, one on each host; fails the test unless both end
#                                 well in time; logs TEST.LABEL-west.log and TEST.LABEL-east.log
#   impair SIDE NETEM-ARGS...     loss 1%, delay 5ms, corrupt 1%: on what the side sends
#   repair SIDE                   undo `impair`
#   second_cable                  one more cable: interfaces west2 and east2, devices roce2_west and roce2_east
#   cut_link SIDE, restore_link SIDE   take the link down and bring it up again

declare -A SIDE_ADDRESS=([west]=10.1.0.1 [east]=10.1.0.2)
declare -A SERVED

fabric_up() {
	local side
	fabric_down
	modprobe -a rdma_rxe ib_uverbs rdma_ucm veth sch_netem || waive "the kernel has no soft-RoCE"
	# Each host sees its own device only, as two machines would.
	rdma system set netns exclusive
	for side in west east; do ip netns add $side; done
	ip link add $side type veth peer name cable
	ip link set $side netns $side
	ip link set cable netns west
	ip -n west link set cable name west
	for side in west east; do
		ip -n $side address add "${SIDE_ADDRESS[$side]}/24" dev $side
		ip -n $side link set lo up
		ip -n $side link set $side mtu 9000 up
		on $side rdma link add "roce_$side" type rxe netdev $side || fail "no soft-RoCE device on $side"
		# Kernels differ in where a new device appears: in the caller's namespace or in the first one.
		rdma dev set "roce_$side" netns $side 2>/dev/null
	done
	for side in west east; do
		wait_until 10 active $side || fail "the port of roce_$side did not become active"
	done
}

second_cable() {
	local side
	ip link add west2 type veth peer name east2
	for side in west east; do
		ip link set "${side}2" netns $side
		ip -n $side address add "${SIDE_ADDRESS[$side]/10.1./10.2.}/24" dev "${side}2"
		ip -n $side link set "${side}2" mtu 9000 up
		on $side rdma link add "roce2_$side" type rxe netdev "${side}2" || fail "no second soft-RoCE device on $side"
		rdma dev set "roce2_$side" netns $side 2>/dev/null
	done
	for side in west east; do
		wait_until 10 active2 $side || fail "the port of roce2_$side did not become active"
	done
}

active2() { on "$1" rdma link show "roce2_$1/1" | grep -q 'state ACTIVE'; }

# What an earlier test left: its processes, and with the namespaces the cable and the devices on it.
fabric_down() {
	local side pids
	for side in west east; do
		[ -e "/run/netns/$side" ] || continue
		pids=$(ip netns pids $side)
		[ -z "$pids" ] || kill -KILL $pids
		ip netns delete $side
	done
	wait_until 10 gone /sys/class/net/west
}

gone() { [ ! -e "$1" ]; }

on() {
	local side=$1
	shift
	ip netns exec "$side" "$@"
}

active() { on "$1" rdma link show "roce_$1/1" | grep -q 'state ACTIVE'; }

serve() {
	local side=$1 name=$2
	shift 2
	# Not through `on`: a function in the background is a shell of its own, and a signal sent to it
	# would not reach the command.
	ip netns exec "$side" "$@" >"$RIG_OUT/$RIG_TEST.$name.log" 2>&1 &
	SERVED[$name]=$!
}

strike() { kill -s "$2" "${SERVED[$1]}"; }

listening() { wait_until 20 accepts "$1" "$2" || fail "nothing listens on port $2 of $1"; }

# In /proc/net/tcp a listening socket has state 0A.
accepts() { on "$1" cat /proc/net/tcp /proc/net/tcp6 | grep -qE "^ *[0-9]+: [0-9A-F]+:$(printf %04X "$2") .* 0A "; }

finish() {
	local pid=${SERVED[$1]} _left=$(($2 * 100)) _then
	_then=$(uptime_hundredths)
	while kill -0 "$pid" 2>/dev/null; do
		passed
		if [ $_left -le 0 ]; then
			kill -KILL "$pid"
			return 124
		fi
		sleep 0.1
	done
	wait "$pid"
}

# The command lines see WEST_ADDRESS and EAST_ADDRESS. With PORT set, east begins once west listens there.
pair() {
	local label=$1 west=$2 east=$3 limit=$4 side failed=""
	local -x WEST_ADDRESS=${SIDE_ADDRESS[west]} EAST_ADDRESS=${SIDE_ADDRESS[east]}
	serve west "$label-west" bash -c "$west"
	[ -z "${PORT:-}" ] || listening west "$PORT"
	serve east "$label-east" bash -c "$east"
	for side in east west; do
		finish "$label-$side" "$limit" || failed+="$label: $side ended with status $?. "
	done
	for side in west east; do
		sed "s/^/$side: /" "$RIG_OUT/$RIG_TEST.$label-$side.log" | tail -n 5
	done
	[ -z "$failed" ] || fail "$failed"
}

impair() {
	local side=$1
	shift
	on "$side" tc qdisc replace dev "$side" root netem "$@"
}

repair() { on "$1" tc qdisc delete dev "$1" root; }
cut_link() { ip -n "$1" link set "$1" down; }
restore_link() {
	ip -n "$1" link set "$1" up
	wait_until 10 active "$1" || fail "the port of roce_$1 did not come back"
}
