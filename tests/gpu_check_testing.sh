# What gpu_bundle_test.sh and gpu_check_test.sh share. They source it where Bazel starts a test.

fail() {
  echo "FAILED: $1" >&2
  exit 1
}
expect() { # expect PATTERN FILE
  grep -qE -- "$1" "$2" || { cat "$2" >&2; fail "no \"$1\" in $2"; }
}

check() { # check EXIT_CODE OPTIONS...: runs the unpacked check; its output goes to $temp/check
  local expected=$1 rc=0
  shift
  PATH=$temp/commands "$bundle/tools/gpu_check.sh" --out "$temp/results" "$@" >"$temp/check" 2>&1 || rc=$?
  [ $rc = "$expected" ] || { cat "$temp/check"; fail "gpu_check.sh $* ended with $rc"; }
}

temp=${TEST_TMPDIR:?}
bundle=$temp/lathe-gpu
programs=(--bin . --program apps/finetune/finetune --program apps/lathe/lathe --program core/optimizer_gpu_test)

# pack FILE OPTION...: packs the programs as tools/bundle.sh does, but compresses little, which is faster.
pack() {
  mkdir -p "$temp/faster"
  printf '#!/bin/sh\nexec %s -n -1 -c\n' "$(command -v gzip)" >"$temp/faster/gzip"
  chmod +x "$temp/faster/gzip"
  PATH=$temp/faster:$PATH tools/bundle.sh "$1" "${programs[@]}" --max_mib 100 "${@:2}"
}

# unpack FILE: unpacks the bundle to $bundle and goes to $temp. There the check finds neither a GPU nor a command of
# the machine's but these.
unpack() {
  tar -C "$temp" -xf "$1"
  mkdir "$temp/commands"
  for command in awk basename bash cat cksum cmp cp cut date dirname env find getconf grep head ls mkdir mktemp mv nproc \
    paste readlink realpath rm sed sleep sort tail timeout tr uname uniq wc; do
    ln -s "$(command -v $command)" "$temp/commands/"
  done
  # It must not find the driver's commands in the folders of containers and WSL, either.
  sed -i "s|/usr/local/nvidia|$temp/nvidia|g; s|/usr/lib/wsl|$temp/wsl|g" "$bundle"/tools/gpu_check*.sh
  cd "$temp"
  export CUDA_VISIBLE_DEVICES=-1
}
