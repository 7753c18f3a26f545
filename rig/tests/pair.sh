# shapes: all
# on request
# Two command lines over soft-RoCE, WEST on one host and EAST on the other: for trying a program. Optional:
# PORT (east begins once west listens there), IMPAIR (netem arguments for both directions), SECONDS_EACH.
. "$RIG_HOME/guest/lib.sh"
. "$RIG_HOME/guest/fabric.sh"

[ -n "${WEST:-}" ] && [ -n "${EAST:-}" ] || fail "set both: --set WEST='command' --set EAST='command'"
fabric_up
if [ -n "${IMPAIR:-}" ]; then
	for side in west east; do impair $side $IMPAIR; done
fi
pair pair "$WEST" "$EAST" "${SECONDS_EACH:-60}"
echo "both ended well"
