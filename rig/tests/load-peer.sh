# shapes: all but slow-drives
# crowfly loads a file into peer memory as far as the machine allows: straight where the kernel lets
# the drive reach the BAR, through host RAM with the reason where it refuses, and not at all where
# the bytes do not arrive. The receipt says which, and QEMU's trace agrees.
. "$RIG_HOME/guest/lib.sh"
needs_crowfly

MIB=8

# load FILE ARGUMENTS...
load() { "$CROWFLY" load "$file" --to "peer:$(pci_of gpu0)" --json "$@"; }

expect_direct() {
	witnessed "receipt-direct:$name:gpu0:read:load-$kind-require.json" \
		kept "load-$kind-require.json" load --policy require --verify || fail "$name, $kind: --policy require failed"
}

expect_refused() {
	witnessed "receipt-staged:$name:gpu0:read:load-$kind-prefer.json" \
		kept "load-$kind-prefer.json" load --policy prefer --verify || fail "$name, $kind: --policy prefer failed"
	grep -q '"code": "peer-dma-refused"' "$RIG_OUT/load-$kind-prefer.json" || fail "$name: the receipt does not say why"
}

expect_corrupt() {
	witnessed "none:$name:gpu0:read:0" kept "load-$kind-require.json" load --policy require
	kept "load-$kind-verified.json" load --policy require --verify && fail "$name: data that did not arrive was passed off as good"
	[ "$(error_code "load-$kind-verified.json")" = data-differs ] || fail "$name: expected data-differs, got $(error_code "load-$kind-verified.json")"
}

name=nvme0
# The kernel decides on the devices, not on the file system: one shape with both is enough.
kinds=ext4
[ "$RIG_SHAPE" = one-switch ] && kinds="ext4 xfs"
for kind in $kinds; do
	file=$(file_on $name $kind $MIB) || fail "$file"
	case $(expected_peer $name gpu0) in
	direct) expect_direct ;;
	refused) expect_refused ;;
	corrupt) expect_corrupt ;;
	esac
	umount "/run/files/$name-$kind"
	echo "$name to gpu0 on $kind: $(expected_peer $name gpu0), as the receipts say"
done

# Asked to, it goes through host RAM where it need not.
if [ "$RIG_SHAPE" = one-switch ]; then
	file=$(file_on $name ext4 $MIB) || fail "$file"
	witnessed "receipt-staged:$name:gpu0:read:load-staged.json" \
		kept load-staged.json load --policy staged --verify || fail "--policy staged failed"
	umount "/run/files/$name-ext4"
fi
