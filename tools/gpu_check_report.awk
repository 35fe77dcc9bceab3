# Turns the notes of tools/gpu_check.sh into results.json (form=json) or results.md (form=md). Kinds of notes:
#   fact <TAB> name <TAB> value
#   record <TAB> stage <TAB> passed|failed|skipped <TAB> name <TAB> seconds <TAB> detail
#   failure <TAB> program <TAB> case <TAB> what it said, lines joined by \036
#   metric <TAB> case <TAB> system <TAB> key=value <TAB> ...
#   benchmark <TAB> name <TAB> one line of what it printed
# $running in the environment is the program that runs while the page is written.
BEGIN { FS = "\t"; running = ENVIRON["running"] }

$1 == "fact" { fact[$2] = $3; fact_names[++facts] = $2 }
$1 == "record" {
  ++records
  ++count[$3]
  for (i = 2; i <= 6; ++i) record[records, i] = $i
}
$1 == "failure" {
  ++failures
  for (i = 2; i <= 4; ++i) failure[failures, i] = $i
}
$1 == "metric" {
  ++metrics
  for (i = 2; i <= NF; ++i) metric[metrics, i] = $i
  fields[metrics] = NF
}

$1 == "benchmark" { benchmark[++benchmarks] = $3; benchmark_name[benchmarks] = $2 }

function quoted(text,    i, n, parts) {
  n = split(text, parts, "\\")  # awks differ in what \ means in gsub's replacement
  text = parts[1]
  for (i = 2; i <= n; ++i) text = text "\\\\" parts[i]
  gsub(/"/, "\\\"", text)
  gsub(/\036/, "\\n", text)
  gsub(/[\001-\037]/, " ", text)
  return "\"" text "\""
}
# Returns a number as it is, and any other text in quotes.
function value(text) {
  return text ~ /^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$/ ? text : quoted(text)
}
function cell(text) {
  gsub(/\|/, "\\|", text)
  gsub(/</, "\\&lt;", text)
  return text
}
function of_metric(row, key,    i) {
  for (i = 4; i <= fields[row]; ++i)
    if (index(metric[row, i], key "=") == 1) return substr(metric[row, i], length(key) + 2)
  return ""
}

function json(    i, j, at) {
  print "{\n  \"facts\": {"
  for (i = 1; i <= facts; ++i) printf "    %s: %s%s\n", quoted(fact_names[i]), quoted(fact[fact_names[i]]), i < facts ? "," : ""
  printf "  },\n  \"passed\": %d,\n  \"failed\": %d,\n  \"skipped\": %d,\n  \"records\": [\n", count["passed"], count["failed"], count["skipped"]
  for (i = 1; i <= records; ++i)
    printf "    {\"stage\": %s, \"status\": %s, \"name\": %s, \"seconds\": %s, \"detail\": %s}%s\n", quoted(record[i, 2]),
      quoted(record[i, 3]), quoted(record[i, 4]), value(record[i, 5]), quoted(record[i, 6]), i < records ? "," : ""
  print "  ],\n  \"failures\": ["
  for (i = 1; i <= failures; ++i)
    printf "    {\"program\": %s, \"case\": %s, \"text\": %s}%s\n", quoted(failure[i, 2]), quoted(failure[i, 3]),
      quoted(failure[i, 4]), i < failures ? "," : ""
  print "  ],\n  \"measurements\": ["
  for (i = 1; i <= metrics; ++i) {
    printf "    {\"case\": %s, \"system\": %s", quoted(metric[i, 2]), quoted(metric[i, 3])
    for (j = 4; j <= fields[i]; ++j) {
      at = index(metric[i, j], "=")
      printf ", %s: %s", quoted(substr(metric[i, j], 1, at - 1)), value(substr(metric[i, j], at + 1))
    }
    print "}" (i < metrics ? "," : "")
  }
  printf "  ],\n  \"benchmarks\": ["
  for (i = 1; i <= benchmarks; ++i)
    printf "%s\n    {\"name\": %s, \"line\": %s}", (i > 1 ? "," : ""), quoted(benchmark_name[i]), quoted(benchmark[i])
  print "\n  ]\n}"
}

function lines_of_benchmarks(    i) {
  if (!benchmarks) return
  print "## Kernels and steps alone\n"
  for (i = 1; i <= benchmarks; ++i) {
    if (benchmark_name[i] != benchmark_name[i - 1]) printf "%s%s\n\n", (i > 1 ? "\n" : ""), benchmark_name[i]
    print "    " benchmark[i]
  }
  print ""
}

function table(status,    i) {
  if (!count[status]) return
  printf "## %s: %d\n\n", toupper(substr(status, 1, 1)) substr(status, 2), count[status]
  for (i = 1; i <= records; ++i)
    if (record[i, 3] == status) printf "- %s: %s%s\n", record[i, 2], record[i, 4], record[i, 6] == "" ? "" : ": " cell(record[i, 6])
  print ""
}

# Prints the failures in full: the one page may be all that anybody sees.
function what_failures_said(    i, j, n, lines) {
  if (!failures) return
  print "## What failed cases said\n"
  for (i = 1; i <= failures; ++i) {
    printf "%s: %s\n\n", failure[i, 2], failure[i, 3]
    n = split(failure[i, 4], lines, "\036")
    for (j = 1; j <= n; ++j) print "    " lines[j]
    print ""
  }
}

# Returns a ratio such as "1.50", or "-" if a number is unknown.
function ratio(a, b) { return a && b ? sprintf("%.2f", a / b) : "-" }

# Prints all measurements. Then compares Lathe's slowest run, in bfloat16, with three rates of the peer: its
# default in float32, its default in bfloat16, and its best of all kinds.
function speed(    i, name, rate, order, n) {
  if (!metrics) return
  print "## Speed (bfloat16, unless the case says otherwise; \"peer, default\": float32)\n\n| case | system | samples/s | step, ms | products, % of their ceiling | first step, s | GPU memory, MiB |\n|---|---|---|---|---|---|---|"
  for (i = 1; i <= metrics; ++i) {
    name = metric[i, 2]
    rate = of_metric(i, "samples_per_s") + 0
    printf "| %s | %s | %s | %s | %s | %s | %s |\n", name, metric[i, 3], rate, of_metric(i, "step_ms"), of_metric(i, "of_ceiling_percent"),
      of_metric(i, "first_step_s"), of_metric(i, "memory_mib")
    if (metric[i, 3] == "Lathe, steps alone") of_ceiling[name] = of_metric(i, "of_ceiling_percent")
    if (!(name in seen)) { seen[name] = 1; order[++n] = name }
    if (metric[i, 3] == "Lathe" && rate && (!lathe[name] || rate < lathe[name])) lathe[name] = rate
    if (metric[i, 3] == "peer, default" && rate > usual[name]) usual[name] = rate
    if (metric[i, 3] == "peer, default in bf16" && rate > usual_bf16[name]) usual_bf16[name] = rate
    if (metric[i, 3] ~ /^peer/ && rate > best[name]) best[name] = rate
    if (metric[i, 3] ~ /^peer.*compiled/ && rate) compiled[name] = 1
  }
  print "\n| case | Lathe's slowest run (bf16) over the peer's default (float32) | over the peer's default in bf16 | over the peer's best | products of its steps, % of their ceiling |\n|---|---|---|---|---|"
  for (i = 1; i <= n; ++i)
    if (lathe[order[i]] || of_ceiling[order[i]])
      printf "| %s | %s | %s | %s | %s |\n", order[i], ratio(lathe[order[i]], usual[order[i]]), ratio(lathe[order[i]], usual_bf16[order[i]]),
        ratio(lathe[order[i]], best[order[i]]) (!best[order[i]] || compiled[order[i]] ? "" : " (not compiled: no such run)"),
        of_ceiling[order[i]] ? of_ceiling[order[i]] : "-"
  print ""
}

END {
  if (form == "json") { json(); exit }
  printf "# GPU check: %s\n\n%d passed, %d failed, %d skipped.\n\n", fact["device"], count["passed"], count["failed"], count["skipped"]
  if (!("took" in fact)) print "The check has not come to its end" (running == "" ? "" : "; it was in: " cell(substr(running, 1, 300))) ".\n"
  for (i = 1; i <= facts; ++i) printf "- %s: %s\n", fact_names[i], cell(fact[fact_names[i]])
  print ""
  table("failed")
  what_failures_said()
  speed()
  lines_of_benchmarks()
  table("skipped")
  print "## All\n\n| stage | result | what | s | |\n|---|---|---|---|---|"
  for (i = 1; i <= records; ++i)
    printf "| %s | %s | %s | %s | %s |\n", record[i, 2], record[i, 3], cell(record[i, 4]), record[i, 5], cell(record[i, 6])
}
