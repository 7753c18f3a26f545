# shapes: all
# The machine is what its shape says: every device is at its place and ready for the other tests.
. "$RIG_HOME/guest/lib.sh"

for gpu in $RIG_GPUS; do
	address=$(pci_of "$gpu") || fail "$gpu is not at its place"
	[ "$(cat "/sys/bus/pci/devices/$address/p2pmem/published")" = 1 ] || fail "$gpu publishes no peer memory"
	echo "$gpu $address $(bar_of "$gpu") node $(cat "/sys/bus/pci/devices/$address/numa_node")"
done
for name in $RIG_DRIVES; do
	address=$(pci_of "$name") || fail "$name is not at its place"
	block=$(drive "$name") || fail "$name has no block device"
	[ -d "/sys/bus/pci/devices/$address/nvme" ] || fail "$name has no NVMe driver"
	echo "$name $address $block node $(cat "/sys/bus/pci/devices/$address/numa_node")"
done
for name in $RIG_NICS; do
	address=$(pci_of "$name") || fail "$name is not at its place"
	[ -d "/sys/bus/pci/devices/$address/net" ] || fail "$name has no network interface"
	echo "$name $address $(ls "/sys/bus/pci/devices/$address/net") node $(cat "/sys/bus/pci/devices/$address/numa_node")"
done
