# What a test in the guest can call. Devices are named as in the shape file (gpu0, nvme1, nic0).
# Functions that run a test's own command have no local variables of common names: the command
# would see them in place of the test's.

. /run/rig/settings

fail() { echo "$*"; exit 1; }
waive() { echo "$*"; exit 77; }
uptime_hundredths() {
	local up
	read -r up _ </proc/uptime
	echo "${up/./}"
}

# passed: takes what has passed since it was last called off _left; _then is when that was. An emulator that was stopped
# makes time jump, which nothing in the guest could use: of five seconds at once one counts.
passed() {
	local _now _took
	_now=$(uptime_hundredths)
	_took=$((_now - _then))
	[ $_took -lt 500 ] || _took=100
	_left=$((_left - _took)) _then=$_now
}

# wait_until SECONDS COMMAND...: until the command succeeds.
wait_until() {
	local _left=$(($1 * 100)) _then
	_then=$(uptime_hundredths)
	until "${@:2}" >/dev/null 2>&1; do
		passed
		[ $_left -gt 0 ] || return 1
		sleep 0.1
	done
}

# These run often and a process costs a tenth of a second here, so they use the shell alone.

# lookup KEY FILE: what follows KEY on its line.
lookup() {
	local key rest
	while read -r key rest; do
		[ "$key" = "$1" ] && echo "$rest" && return 0
	done <"$2"
	return 1
}

# locate_devices: writes the PCI address of each device of the shape, found by its path of
# device.function numbers: bus numbers are the firmware's to choose, places on a bus are not.
locate_devices() {
	local link real bus path part name want
	local -A address_at
	for link in /sys/bus/pci/devices/*; do
		real=$(cd -P "$link" && pwd)
		bus=${real#/sys/devices/pci????:}
		path=${bus%%/*}
		for part in $(IFS=/; echo ${bus#*/}); do path+=/${part##*:}; done
		address_at[$path]=${link##*/}
	done
	while read -r name want; do
		[ -n "${address_at[$want]:-}" ] && echo "$name ${address_at[$want]}"
	done <"$RIG_OUT/devices" >"$RIG_OUT/addresses"
}

# PCI address of a device of the shape.
pci_of() { lookup "$1" "$RIG_OUT/addresses"; }

# bind DEVICE DRIVER
bind() {
	local place=/sys/bus/pci/devices/$(pci_of "$1")
	# A driver that is part of the kernel has found it already.
	[ -e "$place/driver" ] || echo "${place##*/}" >"/sys/bus/pci/drivers/$2/bind"
}

# Block device of a drive of the shape, found by serial number.
drive() {
	local controller serial name
	for controller in /sys/class/nvme/nvme*; do
		read -r serial <"$controller/serial" || continue
		[ "$serial" = "rig-$1" ] || continue
		for name in "$controller"/nvme*n*; do
			[ -e "/dev/${name##*/}" ] || return 1
			echo "/dev/${name##*/}"
			return 0
		done
	done
	return 1
}

# File to map for a piece of a stand-in's memory.
peer_memory() { echo "/sys/bus/pci/devices/$(pci_of "$1")/p2pmem/allocate"; }

# First and last address of a stand-in's BAR.
bar_of() {
	local first last flags
	{
		read -r _
		read -r _
		read -r first last flags
	} <"/sys/bus/pci/devices/$(pci_of "$1")/resource"
	echo "$first $last"
}

# Digest of BYTES of a file from OFFSET, read around the page cache into host memory.
digest() {
	local sum
	sum=$(dd if="$1" bs=1M iflag=direct,skip_bytes,count_bytes skip="$2" count="$3" status=none | sha256sum)
	echo "${sum%% *}"
}

# What the shape expects of a drive's DMA into a stand-in: direct, refused or corrupt.
expected_peer() { lookup "$1-$2" "$RIG_OUT/peer"; }

# Network interface of a NIC of the shape.
interface_of() { (cd "/sys/bus/pci/devices/$(pci_of "$1")/net" && echo *); }

# The port a device hangs on.
port_above() {
	local real
	real=$(cd -P "/sys/bus/pci/devices/$(pci_of "$1")/.." && pwd)
	echo "${real##*/}"
}

# Requests and completions between the ports of a switch go up to the root complex first: what
# firmware sets up where virtual machines are to be kept apart.
redirect_below_switches() {
	local device
	for device in $RIG_GPUS $RIG_DRIVES $RIG_NICS; do
		setpci -s "$(port_above "$device")" ECAP_ACS+6.w=001d
	done
}

# Bytes QEMU has written to its trace so far. Every address of a transfer is in the trace before
# the guest hears of its completion.
trace_position() { stat -c %s "$RIG_OUT/trace.log"; }

# witnessed CLAIM COMMAND...: run the command and claim something of the DMA it caused. The host
# holds the claim against QEMU's trace after the run; a claim that does not hold fails the test.
#   peer:DRIVE:GPU:read|write:BYTES   exactly BYTES moved between drive and BAR, none elsewhere
#   peer-some:...                     the same, with other traffic of the drive allowed beside it
#   host:DRIVE:GPU:read|write:BYTES   at least BYTES moved, none of them into the BAR
#   none:DRIVE:GPU:read|write:0       nothing arrived anywhere
#   receipt-direct:DRIVE:GPU:read|write:FILE   the receipt in $RIG_OUT/FILE is all of that class, and
#   receipt-staged:...                         its bytes by peer DMA are those in the BAR
# A claim after "!" is one the trace must contradict.
witnessed() {
	local _before _status
	_before=$(trace_position)
	"${@:2}"
	_status=$?
	printf '%s\t%s\t%s\t%s\n' "$RIG_TEST" "$1" "$_before" "$(trace_position)" >>"$RIG_OUT/claims"
	return $_status
}

# kept FILE COMMAND...: run it with its standard output in $RIG_OUT/FILE.
kept() { "${@:2}" >"$RIG_OUT/$1"; }

# error_code FILE: the stable code of the error document that crowfly left there.
error_code() { sed -n 's/^ *"code": "\([a-z0-9-]*\)".*/\1/p' "$RIG_OUT/$1" | head -n 1; }

needs_crowfly() { [ -x "$CROWFLY" ] || waive "no crowfly binary at $CROWFLY; build it first"; }

# file_on DRIVE FILE_SYSTEM MIB: a file of random bytes on a fresh file system; prints its path.
file_on() {
	local block folder=/run/files/$1-$2
	block=$(drive "$1")
	modprobe -q "$2"
	wipefs -qa "$block"
	"mkfs.$2" -q "$block" >&2 && mkdir -p "$folder" && mount "$block" "$folder" || fail "no $2 on $1"
	dd if=/dev/urandom of="$folder/data" bs=1M count="$3" conv=fsync status=none
	echo 3 >/proc/sys/vm/drop_caches
	echo "$folder/data"
}

# republish GPU: the kernel decides anew who may reach its memory.
republish() {
	local address
	address=$(pci_of "$1")
	echo "$address" >/sys/bus/pci/drivers/crowfly_standin/unbind
	echo "$address" >/sys/bus/pci/drivers/crowfly_standin/bind
}
