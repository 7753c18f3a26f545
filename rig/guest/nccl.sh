# A program that plays NCCL, against the network plugin, on each of the two hosts. Sourced by tests after
# fabric.sh.
#
#   begin LABEL VERSION SCENE SECONDS NAME=VALUE...   a player on each side, by its RDMA devices alone
#   end LABEL                     wait until both end well
#   says LABEL SIDE TEXT          whether the output of a player has it
#   by_rdma LABEL                 fail unless the receipts say that all bytes that were sent went by RDMA
#   plays LABEL VERSION SCENE SECONDS   all of that

BUILT=$(dirname "$CROWFLY")
PLUGIN=${NCCL_PLUGIN:-$BUILT/deps/libnccl_net_crowfly.so}
PLAYER=${NCCL_PLAYER:-$BUILT/../tmp/nccl-player}
for built in "$PLUGIN" "$PLAYER"; do
	[ -e "$built" ] || waive "no $built: cargo test -p crowfly-nccl-net"
done

# begin LABEL VERSION SCENE SECONDS NAME=VALUE...: a player on each side. Emulated hosts on a busy machine are
# silent for longer than real ones may be.
begin() {
	local side label=$1 version=$2 scene=$3 seconds=$4
	mkdir -p "/tmp/$label"
	for side in west east; do
		serve $side "$label-$side" env CROWFLY_NET_ADDRESS="${SIDE_ADDRESS[$side]}" CROWFLY_NET_LOCAL=0 CROWFLY_NET_SILENCE=60 \
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
