# shapes: slow-drives
# What breaks before or under a transfer becomes an error with a code: no hang, no signal, and never
# data passed off as good.
. "$RIG_HOME/guest/lib.sh"
needs_crowfly

# A transfer takes 4 s on these drives; whatever is still running after LIMIT hangs.
MIB=96
LIMIT=30

# begin NAME ARGUMENTS...: load in the background.
begin() {
	timeout $LIMIT "$CROWFLY" load "$file" --json "${@:2}" >"$RIG_OUT/fault-$1.json" 2>"$RIG_OUT/fault-$1.err" &
	transfer=$!
}

# under_way: wait until the drive has read a sixth of the file since `begin`.
sectors_read() { awk '{ print $3 }' "/sys/block/${block##*/}/stat"; }
has_read() { [ $(($(sectors_read) - before)) -ge $((MIB * 2048 / 6)) ]; }
under_way() { wait_until 20 has_read || fail "$1: the transfer did not get under way"; }

# ended NAME CODE: it ended by itself with this code. Failures are gathered, so that one fault does
# not hide the next.
failures=""
ended() {
	local status told
	wait "$transfer"
	status=$?
	case $status in
	0) told="reported success" ;;
	124) told="hung for $LIMIT s" ;;
	*) told=$(error_code "fault-$1.json") ;;
	esac
	[ $status -gt 128 ] && told="died of signal $((status - 128))"
	echo "$1: status $status, ${told:-no code}"
	[ "$told" = "$2" ] || failures+="$1: expected $2, got ${told:-no code}. "
}

# hold_peer_memory MIB_OF_IT: another program that has taken it.
hold_peer_memory() {
	python3 -c '
import mmap, os, sys, time
memory = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), int(sys.argv[2]) << 20, mmap.MAP_SHARED)
print("held", flush=True)
time.sleep(600)' "$(peer_memory gpu0)" "$1" >"$RIG_OUT/held" &
	holder=$!
	wait_until 20 grep -q held "$RIG_OUT/held"
}

address=$(pci_of gpu0)
peer=peer:$address
file=$(file_on nvme0 ext4 $MIB) || fail "$file"
block=$(drive nvme0)

hold_peer_memory 200
begin pool-exhausted --to "$peer"
ended pool-exhausted no-peer-memory
kill $holder
wait $holder 2>/dev/null

before=$(sectors_read)
begin standin-unbound --to "$peer" --policy require --verify
under_way standin-unbound
echo "$address" >/sys/bus/pci/drivers/crowfly_standin/unbind
ended standin-unbound memory-gone

begin no-standin --to "$peer"
ended no-standin no-peer-memory
echo "$address" >/sys/bus/pci/drivers/crowfly_standin/bind

before=$(sectors_read)
begin module-unloaded --to "$peer" --policy prefer --verify
under_way module-unloaded
rmmod crowfly_standin
ended module-unloaded memory-gone
insmod "$RIG_STANDIN"

# A machine that promises no more memory than it has, and has less than the file.
promised=$(awk '/Committed_AS/ { print $2 }' /proc/meminfo)
echo $((promised + MIB * 1024 * 3 / 4)) >/proc/sys/vm/overcommit_kbytes
echo 2 >/proc/sys/vm/overcommit_memory
begin out-of-memory --to host
ended out-of-memory no-host-memory
echo 0 >/proc/sys/vm/overcommit_memory

before=$(sectors_read)
begin drive-unbound --to "$peer" --policy require
under_way drive-unbound
pci_of nvme0 >/sys/bus/pci/drivers/nvme/unbind
ended drive-unbound read-failed
umount -l "${file%/*}"
bind nvme0 nvme
wait_until 10 drive nvme0 || failures+="nvme0 did not come back. "

dmesg | grep -E 'BUG:|Oops|Kernel panic' && failures+="the kernel complained. "
[ -z "$failures" ] || fail "$failures"
