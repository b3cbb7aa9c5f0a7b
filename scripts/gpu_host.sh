#!/bin/sh
# A worker for every visible GPU of this host, until SIGTERM; then all of them drain.
# Options are those of `dflashq host up`; settings come from the environment or a .env here.
set -eu
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
if [ -x "$root/.venv/bin/dflashq" ]; then
    exec "$root/.venv/bin/dflashq" host up "$@"
fi
exec dflashq host up "$@"
