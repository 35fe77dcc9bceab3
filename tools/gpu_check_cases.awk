# Turns the output of one process of a GoogleTest program into a line for each case that began:
#   passed|skipped|failed|sticky|open|slow <TAB> case <TAB> text
# sticky: the case failed with an error after which CUDA answers nothing else in that process. Later cases are
# left out.
# open: the program ended within the case.
# slow: the program was stopped within the case.
# text: all that the case printed, its lines joined by \036; empty if the case passed or was skipped.
#
#   -v rc=N    the program's exit code; 124: it was stopped
#   -v most=N  the most lines of a case; the number of left-out lines is added
BEGIN {
  sticky = "illegal (memory access|address|instruction)|misaligned address|launch fail|the launch timed out|hardware stack error|" \
    "invalid (program counter|address space)|not supported on global/shared address space|device-side assert|uncorrectable|" \
    "cudaError(IllegalAddress|MisalignedAddress|LaunchFailure)|context is destroyed|EXECUTION_FAILED"
}

function start(case_name) { name = case_name; text = ""; spoilt = 0; lines = 0 }

function add(line) {
  if (++lines <= most) text = text (lines > 1 ? "\036" : "") line
}

function finish(status) {
  if (lines > most) text = text "\036(" lines - most " more lines may be in log.txt)"
  printf "%s\t%s\t%s\n", status, name, status == "passed" || status == "skipped" ? "" : text
  start("")
}

{ gsub(/\t/, "  ") }

/^\[ RUN +\] / { sub(/^[^]]*\] /, ""); start($0); next }

# The last text that a case printed may lack its end of line. Then the result follows on the same line.
match($0, /\[ +(OK|FAILED|SKIPPED) +\] .*\([0-9]+ ms\)$/) {
  if (RSTART > 1) {
    if ($0 ~ sticky) spoilt = 1
    add(substr($0, 1, RSTART - 1))
    $0 = substr($0, RSTART)
  }
  status = $2 == "OK" ? "passed" : $2 == "FAILED" ? "failed" : "skipped"
  sub(/^[^]]*\] /, "")
  sub(/[, ].*/, "")
  name = $0
  if (status == "failed" && spoilt) status = "sticky"
  finish(status)
  if (status == "sticky") exit
  next
}

/^\[[-=]+\]/ { next }

{ if ($0 ~ sticky) spoilt = 1; add($0) }

END {
  if (status != "sticky" && name != "") {
    add(rc == 124 ? "(stopped: not done in time)" : "(the program ended here, with exit code " rc ")")
    finish(rc == 124 ? "slow" : "open")
  }
}
