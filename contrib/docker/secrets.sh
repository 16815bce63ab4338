#!/bin/sh
# Makes the secrets of compose.yaml in ./secrets. Those that are there stay.
set -eu
cd "$(dirname "$0")"
# Only the owner may enter the directory. Compose mounts the files as they are, so the users of the containers must be
# able to read them.
mkdir -p secrets
chmod 700 secrets
umask 022
for name in replication registration macaroon form postgres; do
    [ -s "secrets/$name" ] || head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"secrets/$name"
done
[ -s secrets/pgpass ] || printf 'postgres:5432:synapse:synapse:%s\n' "$(cat secrets/postgres)" >secrets/pgpass
