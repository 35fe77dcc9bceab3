# The stage "device" of tools/gpu_check.sh, which sources this file. It finds CUDA's libraries and checks that
# the programs see the GPU.

# known_libraries prints where CUDA's libraries are, one "place file" a line. It looks in python3's packages
# (PyTorch brings them), in the system's list, in CUDA's folder and in those of LD_LIBRARY_PATH.
readonly of_cuda='/lib(cublasLt\.so\.1[23]|cudnn\.so\.9|nvrtc\.so\.1[23]|nccl\.so\.2)$'
known_libraries() {
  local packages folder folders
  packages=$(timeout 60 python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)
  IFS=: read -ra folders <<<"${CUDA_PATH:-/usr/local/cuda}/lib64:${LD_LIBRARY_PATH:-}"
  {
    ls -d "$packages"/nvidia/*/lib/* | sed 's/^/packages /'
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p | sed -n 's/.* => /system /p'
    for folder in "${folders[@]}"; do ls -d "$folder"/* | sed 's/^/folder /'; done
  } 2>/dev/null | grep -E "$of_cuda"
}
# search_libraries prints the same for all other places. It searches for all libraries at once, because
# reading a disk's folders for the first time takes long. It prints each library when it finds it, as the time
# may run out.
search_libraries() {
  timeout 60 find /opt /usr /root /home -not -path '*/stubs/*' -regextype posix-extended -regex ".*$of_cuda" \
    -exec ls {} ';' 2>/dev/null | sed 's/^/found /'
}

# use_libraries [FOLDER]: chooses libraries of one CUDA version from $libraries, 13 before 12. It prefers
# those at the place of cuBLASLt. Sets chosen, incomplete, old_libstdcxx and the programs' environment, whose
# library path begins with FOLDER.
declare -A chosen
use_libraries() {
  local major place='' name file packed=() folders=()
  first_of() { sed -n "s|^$1 \(.*/$2\)\$|\1|p" <<<"$libraries" | head -n 1; }
  library_path() { (IFS=:; echo "LD_LIBRARY_PATH=$*"); }
  for major in 13 12; do
    place=$(sed -n "s|^\([a-z]*\) .*/libcublasLt\.so\.$major\$|\1|p" <<<"$libraries" | head -n 1)
    [ -z "$place" ] || break
  done
  [ -n "$place" ] || major='1[23]'
  incomplete=''
  # cuDNN compiles its kernels with libnvrtc.
  for name in libcublasLt.so.$major libcudnn.so.9 libnvrtc.so.$major libnccl.so.2; do
    file=$(first_of "$place" "$name")
    [ -n "$file" ] || file=$(first_of '[a-z]*' "$name")
    chosen[${name%%.so*}]=${file:-not found}
    if [ -n "$file" ]; then folders+=("${file%/*}"); else incomplete=1; fi
  done
  [ -z "${LD_LIBRARY_PATH:-}" ] || folders+=("$LD_LIBRARY_PATH")
  # The folders of the driver's own library in a container and in WSL. Not every system's list has them.
  for name in /usr/local/nvidia/lib64 /usr/lib/wsl/lib; do
    [ ! -e $name/libcuda.so.1 ] || folders+=("$name")
  done
  [ ! -d "$root/lib" ] || packed=("$root/lib")
  environment=(LC_ALL=C "$(library_path "$@" "${packed[@]}" "${folders[@]}")")
  [ -d "$root/lib/fallback" ] || return
  # Uses this machine's libstdc++ if it is new enough, as the driver's libraries use it, too. Otherwise the
  # packed one comes before CUDA's folders: one of those may be the system's, with the old one in it.
  env "${environment[@]}" "$bin/apps/lathe/lathe" --help >/dev/null 2>&1 && return
  packed+=("$root/lib/fallback")
  environment=(LC_ALL=C "$(library_path "$@" "${packed[@]}" "${folders[@]}")")
  old_libstdcxx=1
}

# Sets seen to the devices that the programs see.
ask_lathe() {
  run 120 "$bin/apps/lathe/lathe" env  # CUDA's libraries have hundreds of MB, and the disk may be cold
  seen=$(sed -n 's/^- Devices: //p' "$work/output")
}
sees_gpu() { [[ $seen == *'cuda:0 is'* ]]; }

stage_device() {
  local name device driver='' seen libraries incomplete old_libstdcxx='' compat=${CUDA_PATH:-/usr/local/cuda}/compat
  local query=name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.draw,compute_cap
  fact revision "$([ -f MANIFEST ] && sed -n 's/^revision //p' MANIFEST || git describe --always --dirty 2>/dev/null)"
  fact glibc "$(getconf GNU_LIBC_VERSION 2>/dev/null)$([ -f MANIFEST ] && sed -n 's/^glibc \(.*\)/, the programs need \1/p' MANIFEST)"
  fact system "$(uname -sr), $(nproc) cores, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
  stage=device stage_end=$((SECONDS + 500))
  has_gpu='' has_smi=''
  PATH+=:/usr/local/nvidia/bin:/usr/lib/wsl/lib  # where containers and WSL have it
  if ! command -v nvidia-smi >/dev/null; then
    device="none: no nvidia-smi here"
  elif ! name=$(timeout 60 nvidia-smi --query-gpu="$query" --format=csv,noheader 2>&1); then
    device="none: nvidia-smi says: $name"
  else
    has_gpu=1 has_smi=1
    device=$(head -n 1 <<<"$name" | cut -d, -f1)
    driver=$(head -n 1 <<<"$name" | cut -d, -f2)
    fact nvidia-smi "($query) $(tr '\n' ';' <<<"$name")"
  fi
  libraries=$(known_libraries)
  use_libraries
  ask_lathe
  if [ -z "$has_gpu" ] && sees_gpu; then
    has_gpu=1
    fact nvidia-smi "${device#none: }, but lathe sees a GPU: memory in use is not watched"
    device=$(sed 's/.*cuda:0 is \([^,;]*\).*/\1/' <<<"$seen")
  fi
  if [ -n "$has_gpu" ] && [ -n "$incomplete" ]; then
    libraries+=$'\n'$(search_libraries)
    use_libraries
    ask_lathe
  fi
  # CUDA's folder may have a newer copy of the driver's library, for drivers older than this CUDA.
  if [ -n "$has_gpu" ] && ! sees_gpu && [ -e "$compat/libcuda.so.1" ]; then
    use_libraries "$compat"
    ask_lathe
    if sees_gpu; then
      fact driver "${driver# } alone is too old for the programs; with $compat they see the GPU"
    else
      use_libraries
      ask_lathe
    fi
  fi
  fact device "$device"
  for name in libcublasLt libcudnn libnvrtc libnccl; do fact $name "${chosen[$name]}"; done
  [ -z "$old_libstdcxx" ] || fact libstdc++ "this machine's is too old; the packed one is used"
  fact lathe "$seen"
  fact libraries "$(sed -n 's/^- Library for GPUs: //p' "$work/output" | tr '\n' ';')"
  if [ $rc -ne 0 ]; then
    record failed "programs start" "$took" "lathe env: $(last_lines)"
  elif [ -n "$has_gpu" ] && ! sees_gpu; then
    record failed "the GPU can be used" "$took" "nvidia-smi shows a GPU, with driver${driver:- of unknown version}, but lathe sees: $seen"
    has_gpu=''
  else
    record passed "programs start" "$took" ''
  fi
  [ -z "$has_gpu" ] || ! name=$(grep -m 1 '^- Library for GPUs: no cuBLASLt' "$work/output") ||
    record failed "cuBLASLt is found" 0 "dense layers need it: ${name#*: }; put its folder into LD_LIBRARY_PATH"
  [ -n "$has_gpu" ] || record skipped "all that needs a GPU" 0 "no usable GPU here"
}
