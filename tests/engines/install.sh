#!/bin/sh
# What the tests of the engines need beside Python: their clients in a venv of their own ($1), and their servers. Debian's
# redis-server and rabbitmq-server are started by the tests only, each on a free port with its data in a temporary folder.
set -eu
venv=$1
here=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --upgrade "pip>=25.1"
"$venv/bin/python" -m pip install --quiet --editable "$here" --group "$here/pyproject.toml:engines"

if ! command -v redis-server >/dev/null || ! command -v rabbitmq-server >/dev/null; then
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    # Not started by the package: policy-rc.d says so while it is installed.
    made=""
    if [ ! -e /usr/sbin/policy-rc.d ]; then
      printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
      chmod +x /usr/sbin/policy-rc.d
      made=1
    fi
    apt-get update -qq || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server rabbitmq-server >/dev/null || true
    [ -z "$made" ] || rm -f /usr/sbin/policy-rc.d
  fi
fi
for server in redis-server rabbitmq-server; do
  command -v "$server" >/dev/null || echo "no $server here: its tests are skipped (Debian: apt-get install $server)" >&2
done

if command -v npm >/dev/null; then
  npm install --silent --no-audit --no-fund --prefix "$venv/npm" @restatedev/restate-server@1 ||
    echo "no Restate server from npm: its tests are skipped" >&2
else
  echo "no npm here: Restate's tests are skipped" >&2
fi
