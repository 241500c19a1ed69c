#!/usr/bin/env bash
# Installs nvcc 13.0 for the compile gate (CONTRIBUTING.md) into the checkout's ignored folder .cuda/, from PyPI: 100 MB to
# download, 250 MB on disk, no GPU and no root. Does nothing when it is there already. The last line is nvcc's path.
#
# usage: scripts/install-nvcc.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The compiler driver with ptxas, the front end, and the headers that nvcc includes unasked; kernels include nothing.
# These versions are CUDA 13.0.2.
packages=(
    nvidia-cuda-nvcc==13.0.88
    nvidia-nvvm==13.0.88
    nvidia-cuda-crt==13.0.88
    nvidia-cuda-runtime==13.0.96
)
stamp=.cuda/installed
nvcc=$PWD/.cuda/nvidia/cu13/bin/nvcc

fail() {
    echo "install-nvcc.sh: $1" >&2
    exit 1
}

# nvcc has the C++ compiler read the source first.
command -v g++ >/dev/null || fail "nvcc needs g++ (on Debian and Ubuntu: apt-get install g++)"

if [[ ! -x $nvcc || $(cat "$stamp" 2>/dev/null) != "${packages[*]}" ]]; then
    command -v python3 >/dev/null || fail "python3 with pip is needed (on Debian and Ubuntu: apt-get install python3-pip)"
    work=$(mktemp -d)
    trap 'rm -rf "$work" .cuda/new' EXIT
    # pip itself, or that of a virtual environment; a distribution has either as a package of its own.
    if python3 -m pip --version >/dev/null 2>&1; then
        python=python3
    elif python3 -m venv "$work/venv" >/dev/null 2>&1; then
        python=$work/venv/bin/python
    else
        fail "python3 has neither pip nor venv (on Debian and Ubuntu: apt-get install python3-pip, or python3-venv)"
    fi
    rm -rf .cuda
    # Nothing is installed into the system, so its wishes about that do not matter. Older versions of pip ignore these two.
    PIP_ROOT_USER_ACTION=ignore PIP_BREAK_SYSTEM_PACKAGES=1 \
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --target .cuda/new \
        "${packages[@]}" || fail "pip could not install ${packages[*]}"
    mv .cuda/new/nvidia .cuda/nvidia
    echo "${packages[*]}" >"$stamp"
fi

"$nvcc" --version | grep -q 'release 13\.0,' || fail "$nvcc does not run as release 13.0; remove .cuda/ and try again"
echo "$nvcc"
