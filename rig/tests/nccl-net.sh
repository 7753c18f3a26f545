# shapes: root-ports
# The network plugin for NCCL by RDMA, between two hosts, with a program that plays NCCL: contents and
# receipts on clean and lossy cables; a peer that crashes; require; a rail cut in the middle of a stream.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"

BUILT=$(dirname "$CROWFLY")
PLUGIN=${NCCL_PLUGIN:-$BUILT/deps/libnccl_net_crowfly.so}
PLAYER=${NCCL_PLAYER:-$BUILT/../tmp/nccl-player}
for built in "$PLUGIN" "$PLAYER"; do
	[ -e "$built" ] || waive "no $built: cargo test -p crowfly-nccl-net"
done

# begin LABEL VERSION SCENE SECONDS NAME=VALUE...: a player on each side; %S in a value is the side.
begin() {
	local side label=$1 version=$2 scene=$3 seconds=$4
	mkdir -p "/tmp/$label"
	for side in west east; do
		serve $side "$label-$side" env CROWFLY_NET_ADDRESS="${SIDE_ADDRESS[$side]}" CROWFLY_NET_LOCAL=0 \
			CROWFLY_NET_RECEIPTS="/tmp/$label/receipts.$side" "${@:5}" CROWFLY_NET_NICS="$(nics "$label" $side)" \
			"$PLAYER" "$PLUGIN" "$version" $side "/tmp/$label" "$scene" "$seconds"
	done
}

nics() {
	case $1 in
	rails*) echo "roce_$2,roce2_$2" ;;
	*) echo "roce_$2" ;;
	esac
}

log() { cat "$RIG_OUT/$RIG_TEST.$1-$2.log"; }
says() { log "$1" "$2" | grep -q "$3"; }

end() {
	local side
	for side in west east; do
		finish "$1-$side" 90 || fail "$1: $side ended with $?: $(log "$1" $side | tail -n 3)"
	done
	echo "$1: $(log "$1" west | grep -v '^[IW]' | tr '\n' ';')"
}

# All bytes that were sent went by RDMA.
by_rdma() {
	local paths
	paths=$(cat "/tmp/$1"/receipts.* | grep '"event":"comm"' | grep '"direction":"send"' |
		grep -o '"shares":\[[^]]*\]' | grep -o '"path":"[a-z]*"' | sort -u)
	[ "$paths" = '"path":"verbs"' ] || fail "$1: the receipts say $paths"
}

plays() {
	begin "$@"
	end "$1"
	by_rdma "$1"
}

fabric_up
plays sizes-8 8 sizes 0
plays sizes-11 11 sizes 0
plays groups 9 groups 0
plays many 10 many 0
plays parallel 11 parallel 0
for side in west east; do impair $side loss 1%; done
plays lossy 11 groups 0
for side in west east; do repair $side; done

begin refused 11 refused 0 CROWFLY_NET_POLICY=require
end refused
says refused east 'route-refused' || fail "require was not refused: $(log refused east | tail -n 3)"
says refused east 'obstacle \[software-nic\]' || fail "nobody says that the NIC is software: $(log refused east)"

begin killed 11 stream 60
wait_until 30 says killed west moving || fail "nothing moves: $(log killed west | tail -n 3)"
strike killed-east KILL
finish killed-west 60 || fail "killed: west ended with $?: $(log killed west | tail -n 3)"
says killed west 'ended 6' || fail "the peer's death was no error: $(log killed west | tail -n 3)"
wait "${SERVED[killed-east]}" 2>/dev/null

second_cable
begin rails 11 stream 40 CROWFLY_NET_MERGE=1
wait_until 30 says rails west moving || fail "nothing moves: $(log rails west | tail -n 3)"
sleep 3
ip -n west link set west2 down
finish rails-east 120 || fail "rails: east ended with $?: $(log rails east | tail -n 3)"
says rails east 'ended 0' || fail "the other rail did not carry on: $(log rails east | tail -n 3)"
wait "${SERVED[rails-west]}" 2>/dev/null
by_rdma rails
receipt=$(grep '"event":"comm"' /tmp/rails/receipts.east)
echo "$receipt" | grep -q '"retries":[1-9]' || fail "no retries in $receipt"
echo "$receipt" | grep -q 'rail-failed' || fail "the receipt does not name the rail that failed: $receipt"
log rails east | grep -v '^INFO'
