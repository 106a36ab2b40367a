#!/usr/bin/env bash
# The calls of the plan for a lent GPU (docs/install.md): launch/lent_gpu.sh CALL [SETTING=VALUE ...]
# CALL: unpack (the parts that pack_gpu.py wrote into outputs/gpu_pack), 1, 2, 3, or all of these three.
# `make rehearse-gpu` runs all at tiny shapes on a CPU. OUT: a folder to copy the results to.
set -euo pipefail
cd "$(dirname "$0")/.."
call=$1 begun=$SECONDS python=${PYTHON:-python3} site=$PWD/outputs/gpu_site
shift
export PYTHONPATH=$site:$PWD${PYTHONPATH:+:$PYTHONPATH}

check() {
    local status=0
    "$python" run.py task=check_gpu "cache=$site" "$@" || status=$?
    [ -z "${OUT:-}" ] || cp outputs/check_gpu/check_gpu.tar.gz "$OUT"
    echo "call $call: $((SECONDS - begun)) s"
    return $status
}

case $call in
    unpack)
        (cd outputs/gpu_pack && sha256sum --check SHA256SUMS)
        mkdir -p "$site"
        cat outputs/gpu_pack/gpu_site.tar.xz.* | tar xJ -C "$site"
        "$python" -c "import das.engine.worker, trl, hydra; print('all is imported')"
        echo "call $call: $((SECONDS - begun)) s"
        ;;
    1) check task.minutes=6 "task.parts=[kernels,sampler,environment]" "$@" ;;
    2) check task.minutes=9 "task.parts=[audit_eager,audit_captured]" "$@" ;;
    3) check task.minutes=9 "task.parts=[forced,policy,grpo,sleep,pass_times_8b]" "$@" ;;
    all)
        failed=""
        for each in 1 2 3; do "$0" $each "$@" || failed+=" $each"; done
        [ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
        ;;
esac
