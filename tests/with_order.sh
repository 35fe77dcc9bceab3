#!/usr/bin/env bash
# Runs an emulated test with the threads and blocks of its kernels in another order: with_order.sh ORDER TEST
set -euo pipefail
LATHE_EMULATOR_ORDER=$1 exec "$2"
