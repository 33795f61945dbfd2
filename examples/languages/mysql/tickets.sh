#!/usr/bin/env bash
# Tickets for shell scripts, with the command `mariadb` or `mysql`. It answers each line of its input, such as "photos 20",
# with so many tickets of that sequence.
#   TICKET_SERVERS="ticket1.cnf ticket2.cnf" bash tickets.sh
# Each file has host, user and password under [client], and the database under [mysql].
set -uo pipefail

read -rd '' -a servers <<<"$TICKET_SERVERS" # in the pool's order, which gives each server its numbers
stride=${TICKET_STRIDE:-${#servers[@]}}     # the pool's
turn=$RANDOM
client=$(type -P mariadb || echo mysql)     # MariaDB deprecates its `mysql`, and says so in each session
messages=$(mktemp)                          # of the last session; a warning there is no part of an answer
trap 'rm -f "$messages"' EXIT
session="SET SESSION autocommit = 1, lock_wait_timeout = 1, innodb_lock_wait_timeout = 1,
    sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_ALL_TABLES')"

# Runs the statements of its input in one session. The first error ends it, whatever the file says: a block never goes on
# in another session (--batch, --skip-reconnect) or without its lock (--skip-force). --comments keeps the stride.
run() {
    timeout --foreground --kill-after=1 4 "$client" --defaults-file="$1" --connect-timeout=1 --skip-reconnect --skip-force \
        --batch --comments --skip-column-names --init-command="$session" 2>"$messages" ||
        { cat "$messages"; return 1; }
}

# Stride and offset are part of the statement: MariaDB reads /*M! */, MySQL reads /*+ */.
replace() { # OFFSET SEQUENCE VALUES
    local pair=("auto_increment_increment=$stride" "auto_increment_offset=$1")
    echo "/*M! SET STATEMENT ${pair[0]}, ${pair[1]} FOR */" \
        "REPLACE /*+ SET_VAR(${pair[0]}) SET_VAR(${pair[1]}) */ INTO \`$2\` $3;"
}

# A table's comment says how it is numbered. If its stride was changed, so was the name of its stub column.
describe() { # SEQUENCE
    echo "SELECT t.TABLE_COMMENT, c.COLUMN_NAME
        FROM information_schema.TABLES AS t CROSS JOIN information_schema.COLUMNS AS c
        WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = '$1' AND c.TABLE_SCHEMA = DATABASE()
        AND c.TABLE_NAME = '$1' AND c.COLUMN_NAME IN ('stub', 'stub_$stride');"
}

# The first and the last ticket of a block, as the table has them while it is locked.
draw_replace() { # OFFSET SEQUENCE N STUB
    if [ "$3" = 1 ]; then
        replace "$1" "$2" "($4) VALUES ('a')"
        echo "SELECT LAST_INSERT_ID(), LAST_INSERT_ID();"
    else
        echo "LOCK TABLES \`$2\` WRITE;"
        replace "$1" "$2" "($4) VALUES ('a')"
        replace "$1" "$2" "(id, $4) VALUES (LAST_INSERT_ID() + $((stride * ($3 - 1))), 'a')"
        echo "SELECT LAST_INSERT_ID(), id FROM \`$2\` WHERE $4 = 'a'; UNLOCK TABLES;"
    fi
}

draw_counter() { # OFFSET SEQUENCE N STUB
    echo "UPDATE \`$2\` SET id = LAST_INSERT_ID(id + $((stride * $3))) WHERE $4 = 'c';"
    echo "SELECT LAST_INSERT_ID() - $((stride * ($3 - 1))), LAST_INSERT_ID();"
}

# Draws from one server. Prints the tickets, or an error.
draw() { # INDEX SEQUENCE N
    local offset=$(($1 + 1)) server=${servers[$1]} out table first last k
    local numbered="^sqla_tickets \{\"layout\": \"(replace|counter)\", \"stride\": $stride, \"offset\": $offset[,}].*(stub.*)$"
    out=$(describe "$2" | run "$server") || { echo "$out"; return 1; }
    if ! [[ $out =~ $numbered ]]; then
        echo "$2 on server $offset is no table of stride $stride: $out" && return 1
    fi
    table=${BASH_REMATCH[0]}
    out=$({ describe "$2"; "draw_${BASH_REMATCH[1]}" "$offset" "$2" "$3" "${BASH_REMATCH[2]}"; } | run "$server") ||
        { echo "$out"; return 1; }
    # The address may lead to another server now.
    if [[ ${out%%$'\n'*} != "$table" ]]; then
        echo "$2 on server $offset was changed: $out" && return 1
    fi
    read -r first last <<<"${out#*$'\n'}"
    if ! ((first > 0 && last >= first && last == first + stride * ($3 - 1) && (first - offset) % stride == 0)); then
        echo "$first to $last are no tickets of server $offset" && return 1
    fi
    out=$first
    for ((k = 1; k < $3; k++)); do out+=" $((first + stride * k))"; done
    echo "$out"
}

# Draws from the next server; after an error from the one after it, each of them twice at most.
tickets() { # SEQUENCE N
    local errors= out
    # A number that wraps at 64 bits would set a counter back.
    if ! [[ $1 =~ ^[A-Za-z0-9_]+$ && $2 =~ ^[1-9][0-9]{0,5}$ ]]; then
        echo "error: expected a sequence, and 1 to 999999 tickets" && return
    fi
    for _ in "${servers[@]}" "${servers[@]}"; do
        turn=$(((turn + 1) % ${#servers[@]}))
        out=$(draw "$turn" "$1" "$2") && echo "$out" && return
        errors+="; $out"
    done
    echo "error: no ticket server${errors//$'\n'/ }"
}

while read -r sequence n; do
    tickets "$sequence" "$n"
done
