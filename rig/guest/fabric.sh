# Two hosts joined by RDMA, in one guest: network namespaces `west` and `east`, a veth pair for the
# cable, a soft-RoCE device on each end. Sourced by tests after lib.sh.
#
#   fabric_up                     build it; waives the test where the kernel has no soft-RoCE
#   on SIDE COMMAND...            run on that host
#   serve SIDE NAME COMMAND...    start in the background, output in $RIG_OUT/TEST.NAME.log
#   listening SIDE PORT           wait until something accepts TCP connections there
#   finish NAME SECONDS           wait for what `serve` started; its exit status, or 124
#   impair SIDE NETEM-ARGS...     loss 1%, delay 5ms, corrupt 1%: on what the side sends
#   repair SIDE                   undo `impair`
#   cut_link SIDE, restore_link SIDE   take the link down and bring it up again

declare -A SIDE_ADDRESS=([west]=10.1.0.1 [east]=10.1.0.2)
declare -A SERVED

fabric_up() {
	local side
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

on() {
	local side=$1
	shift
	ip netns exec "$side" "$@"
}

active() { on "$1" rdma link show "roce_$1/1" | grep -q 'state ACTIVE'; }

serve() {
	local side=$1 name=$2
	shift 2
	on "$side" "$@" >"$RIG_OUT/$RIG_TEST.$name.log" 2>&1 &
	SERVED[$name]=$!
}

listening() { wait_until 20 accepts "$1" "$2" || fail "nothing listens on port $2 of $1"; }

# In /proc/net/tcp a listening socket has state 0A.
accepts() { on "$1" cat /proc/net/tcp /proc/net/tcp6 | grep -qE "^ *[0-9]+: [0-9A-F]+:$(printf %04X "$2") .* 0A "; }

finish() {
	local pid=${SERVED[$1]} left=$(($2 * 10))
	while kill -0 "$pid" 2>/dev/null; do
		left=$((left - 1))
		if [ $left -le 0 ]; then
			kill "$pid"
			return 124
		fi
		sleep 0.1
	done
	wait "$pid"
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
