# The operator's files, in out: the coordinator's certificate, and the seed: bash operator.sh ADDRESS
# If ADDRESS is a name, write DNS:$1 below. The name coordinator is for the container's health check. Containers run as the user 1000.
set -euo pipefail
mkdir -p out/tls out/trust
openssl req -x509 -newkey rsa:3072 -nodes -days 365 -subj /CN=coordinator \
    -addext "subjectAltName=DNS:coordinator,IP:$1" -keyout out/tls/key.pem -out out/tls/certificate.pem
sudo chown 1000 out/tls/key.pem
cp out/tls/certificate.pem out/trust/roots.pem
cp -RL demo/experts/seed out
chmod -R a+rX out/seed
