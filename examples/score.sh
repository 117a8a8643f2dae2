# Scores a version on text that no expert has seen: bash score.sh FOLDER DOMAIN... EXPERTS is the experts' folder.
set -euo pipefail
options=()
for domain in "${@:2}"; do
    options+=(--expert "$domain=${EXPERTS:-demo/experts}/$domain" --held-out "$domain=demo/texts/$domain/heldout.jsonl")
done
moerge table version "$1" --tokens 5000 --context 256 "${options[@]}"
