#!/usr/bin/env bash
# Packs all that a check on a machine with a GPU needs into one file; see usage().
set -euo pipefail

usage() {
  cat <<END
Builds the programs, the tests that use a GPU and the benchmarks, and packs them with the shared libraries that
they need, their data and tools/gpu_check.sh. The file unpacks to lathe-gpu/ and runs on x86-64 Linux, without Debian's
packages and without Bazel. It needs NVIDIA's driver and CUDA's libraries, which are not packed: cuBLASLt, NCCL and cuDNN
9.15.1 or newer, from CUDA's folder or from PyTorch's packages. Without cuDNN, Lathe's own attention is used.
lathe-gpu/MANIFEST says which glibc is needed. The same files give the same bytes.

Usage: tools/bundle.sh OUT.tar.zst|OUT.tar.xz|OUT.tar.gz [options]
       tools/bundle.sh --targets                # prints what is built
       tools/bundle.sh --libraries PROGRAM...   # prints the shared libraries that would be packed with it
  --with DIR[:NAME]   adds a folder as data/NAME (default: its own name); may be repeated. tools/gpu_check.sh uses
                      golden/models, sst2, bert-base-uncased/vocab.txt and peers
  --max_mib N         fail if the file is larger than N MiB (default: $max_mib)
  --bin DIR           folder of the programs (default: bazel-bin, after building them)
  --program PATH      pack this program of --bin instead of all, and build nothing; may be repeated
END
}

fail() {
  echo "error: $1" >&2
  exit "${2:-1}"
}

# The libraries of glibc, which must not be mixed with those of another glibc.
readonly of_system='^(linux-vdso|ld-linux.*|lib(c|m|pthread|dl|rt|util|resolv|nsl|anl|BrokenLocale)|libnss_.*)\.so'
# The libraries of the driver and of CUDA, which are opened at run time and never packed.
readonly of_cuda='^lib(cuda|cudart|cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|nvrtc|nvJitLink|nvidia-.*|nccl)[._-]'

# Prints the paths of the shared libraries of all given programs, one a line.
libraries() {
  local line name path
  for program in "$@"; do
    ldd "$program" || fail "$program: ldd can't tell its libraries"
  done | while read -r line; do
    name=${line%% *}
    name=${name##*/}
    [[ $name =~ $of_system || $line != *'=>'* ]] && continue
    path=${line#*=> }
    [[ $path == 'not found'* ]] && fail "$name, which a program needs, is not found"
    [[ $name =~ $of_cuda ]] && fail "a program is linked with $name; CUDA's libraries must be opened at run time"
    printf '%s\n' "${path% (*}"
  done | LC_ALL=C sort -u
}

# Prints the targets that are built and packed. Each op has a program of its own, so that a fault of the GPU spoils less.
targets() {
  local tests='_gpu_test$|:nccl_(group|library)_test$|(cublaslt|cudnn)_library_test$|attention_cudnn_test$'
  bazel query --noshow_progress "filter('$tests', tests(//...)) except //core:ops/all_ops_gpu_test union attr(testonly, 0, kind(cc_binary, //tests/benchmarks/...)) union //apps/finetune union //apps/lathe" 2>/dev/null |
    LC_ALL=C sort
}

max_mib=45
out=''
bin=''
folders=()
packed=()
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case ${1:-} in
  --help | -h | '') usage; exit 0 ;;
  --targets) cd "$root"; targets; exit ;;
  --libraries) shift; libraries "$@"; exit ;;
esac
while [ $# -gt 0 ]; do
  case $1 in
    --with | --max_mib | --bin | --program) [ $# -ge 2 ] || fail "$1 needs a value" 2 ;;
    -*) usage >&2; fail "unknown argument $1" 2 ;;
    *)
      [ -z "$out" ] || fail "name one file to write, not both $out and $1" 2
      out=$(realpath -m -- "$1")
      shift
      continue
      ;;
  esac
  case $1 in
    --with)
      path=$(realpath -e -- "${2%%:*}" 2>/dev/null) && [ -d "$path" ] || fail "--with $2: no such folder"
      name=${2#"${2%%:*}"}
      name=${name#:}
      folders+=("$path:${name:-${path##*/}}")
      ;;
    --max_mib) max_mib=$2 ;;
    --bin) bin=$(realpath -e -- "$2") ;;
    --program) packed+=("$2") ;;
  esac
  shift 2
done
# The programs have the same kernels in them. zstd and xz find such matches with these options, but gzip does
# not look back so far.
case $out in
  *.tar.zst) compress=(zstd -q -c -19 --long=27 -T1) ;;
  *.tar.xz) compress=(xz -c -T1 --lzma2=preset=6,dict=128MiB) ;;
  *.tar.gz) compress=(gzip -n -6 -c) ;;
  *) fail "the file to write must end in .tar.zst, .tar.xz or .tar.gz but is \"$out\"" 2 ;;
esac
command -v "${compress[0]}" >/dev/null || fail "${compress[0]} is not installed; choose another ending"

cd "$root"
if [ ${#packed[@]} -eq 0 ]; then
  mapfile -t built < <(targets)
  [ ${#built[@]} -gt 2 ] || fail "bazel query found no tests that use a GPU"
  bazel build --color=no --noshow_progress "${built[@]}"
  packed=("${built[@]#//}")
  packed=("${packed[@]/://}")
fi
bin=${bin:-$root/bazel-bin}

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
top=$stage/lathe-gpu
mkdir -p "$top"/{bin,lib/fallback,tests/golden,tools,data}
for program in "${packed[@]}"; do
  mkdir -p "$top/bin/$(dirname "$program")"
  strip -o "$top/bin/$program" "$bin/$program"
done
list=$(libraries "${packed[@]/#/$bin/}")
while read -r library; do
  [ -n "$library" ] || continue
  name=${library##*/}
  case $name in
    # Used only if a machine's own libraries are older: the driver's and CUDA's libraries use them, too.
    libstdc++.so* | libgcc_s.so*) to=$top/lib/fallback/$name ;;
    *) to=$top/lib/$name ;;
  esac
  strip --strip-unneeded -o "$to" "$(realpath -- "$library")"
done <<<"$list"
cp tools/gpu_check*.{sh,awk} "$top/tools/"
cp -rL tests/golden/models "$top/tests/golden/models"
for folder in "${folders[@]}"; do
  path=${folder%%:*}
  name=${folder#*:}
  mkdir -p "$top/data/$name"
  cp -rL "$path/." "$top/data/$name/"
done

# The newest version of glibc that a packed file needs.
glibc=$(find "$top/bin" "$top/lib" -type f -exec grep -aohE '\bGLIBC_[0-9]+(\.[0-9]+)+\b' {} + | LC_ALL=C sort -Vu | tail -n 1)
{
  echo "revision $(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)"
  echo "glibc ${glibc#GLIBC_}"
  echo "taken from that machine: libcuda.so.1 libcublasLt.so.13|12 libcudnn.so.9 libnvrtc.so.13|12 libnccl.so.2"
  for program in "${packed[@]}"; do echo "program $program"; done
} >"$top/MANIFEST"

chmod -R u=rwX,go=rX "$top"
mkdir -p "$(dirname "$out")"
tar -C "$stage" --sort=name --format=gnu --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - lathe-gpu |
  "${compress[@]}" >"$out.part"
bytes=$(stat -c %s "$out.part")
mib=$(awk -v b="$bytes" 'BEGIN { printf "%.1f", b / 1048576 }')
if [ "$bytes" -gt $((max_mib * 1048576)) ]; then
  rm -f "$out.part"
  fail "$out would have $mib MiB, more than the $max_mib that --max_mib allows; leave out a folder of --with, or end its name in .tar.zst or .tar.xz, which pack tighter than .tar.gz"
fi
mv "$out.part" "$out"
echo "$out: $mib MiB, ${#packed[@]} programs, $(wc -l <<<"$list") libraries, $(sed -n 's/^glibc/needs glibc/p' "$top/MANIFEST") or newer"
echo "there: tar xf ${out##*/} && lathe-gpu/tools/gpu_check.sh --out results"
[[ $out == *.zst ]] || echo "or, where tar can't: python3 -m tarfile -e ${out##*/}"
