#!/usr/bin/env bash
# Install a wheel as a user would, in an environment of its own, and use its kernel with no compiler to be found.
set -euo pipefail
wheel=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --constraint "$here/../constraints.txt" "$wheel"
cd "$folder"
for capability in "" default avx2; do
    env -i ${capability:+ATEN_CPU_CAPABILITY=$capability} HOME="$folder/home" PATH="$folder/env/bin" \
        "$folder/env/bin/python" "$here/use.py"
done
