# What an owner's machine needs, in out/DOMAIN: bash pack.sh DOMAIN
# In earnest an owner has its expert, its text and the seed already, and gets the certificate only.
set -euo pipefail
mkdir -p "out/$1/text"
cp -R out/trust out/seed "out/$1"
cp -RL "demo/experts/$1" "out/$1/expert"
cp "demo/texts/$1/statistics.jsonl" "out/$1/text"
chmod -R a+rX "out/$1"
