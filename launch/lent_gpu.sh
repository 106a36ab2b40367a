#!/usr/bin/env bash
# The one call on a lent GPU (docs/install.md): launch/lent_gpu.sh [SETTING=VALUE ...]
# Unpacks what pack_gpu.py wrote into outputs/gpu_pack, and runs task=check_gpu, in 560 s together. Results go into the
# folder OUT as they come, so that they are there if the machine is taken away.
set -euo pipefail
cd "$(dirname "$0")/.."
site=$PWD/outputs/gpu_site python=${PYTHON:-python3}
export VLLM_USE_FLASHINFER_SAMPLER=0 # the image has no flashinfer, and vLLM looks for its sampler
export PYTHONPATH=$site:$PWD${PYTHONPATH:+:$PYTHONPATH}
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true

if [ ! -e "$site/whole" ]; then
    (cd outputs/gpu_pack && sha256sum --quiet --check SHA256SUMS)
    mkdir -p "$site"
    cat outputs/gpu_pack/gpu_site.tar.xz.* | tar xJ -C "$site"
    "$python" -m compileall -q -j 0 "$site" das experiments analysis rewards >/dev/null || true # spares the first import some 20 s
    touch "$site/whole"
    echo "unpacked: $SECONDS s"
fi

exec "$python" -u run.py task=check_gpu task.device=cuda "task.seconds=$((555 - SECONDS))" \
    "task.folder=${OUT:-outputs/check_gpu}" "$@"
