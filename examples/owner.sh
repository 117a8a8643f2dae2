# An owner from the join request to its contribution: bash owner.sh DOMAIN [TEXT]
# EXPERTS is the folder of the owners' experts. In earnest the operator types the second command, after a call about the fingerprint, and the owner the others.
set -euo pipefail
domain=$1 text=${2:-demo/texts/$1/statistics.jsonl} home=out/$1
request=$(moerge worker init --owner "$domain-owner" --domain "$domain" --home "$home")
token=$(moerge owner approve "$request" < /dev/null)
MOERGE_TOKEN=$token moerge worker run --once --home "$home" --config worker.toml --domain "$domain" --license Apache-2.0 \
    --seed demo/experts/seed --expert "${EXPERTS:-demo/experts}/$domain" --data "$text"
