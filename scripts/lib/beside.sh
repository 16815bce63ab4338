# shellcheck shell=bash
# Commands that run beside others. Sourced.
#
# Each writes its own exit status to a file: `wait PID` cannot be relied on for it, as bash forgets the status of a child that
# has ended once a later child is given the same PID (seen in a pass of half an hour: "pid 9607 is not a child of this shell").

BESIDE=$(mktemp -d)

# beside NAME COMMAND...: start the command; what it prints is kept for `joined`.
beside() {
    local name=$1
    shift
    {
        local status=0 child=
        trap '[ -z "$child" ] || kill "$child" 2>/dev/null' TERM
        "$@" &
        child=$!
        wait "$child" || status=$?
        echo "$status" >"$BESIDE/$name.status"
    } >"$BESIDE/$name.log" 2>&1 &
    printf '%s\n' $! >"$BESIDE/$name.pid"
}

# joined NAME: wait until the command has ended, print what it printed, and succeed if it did.
joined() {
    wait "$(<"$BESIDE/$1.pid")" 2>/dev/null || true
    cat "$BESIDE/$1.log"
    [ "$(cat "$BESIDE/$1.status" 2>/dev/null)" = 0 ]
}

# stop_beside: end what still runs, and forget what was printed.
stop_beside() {
    cat "$BESIDE"/*.pid 2>/dev/null | xargs -r kill 2>/dev/null || true
    rm -rf "$BESIDE"
}
