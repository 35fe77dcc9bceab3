#include "lathe/apps/lathe/hub_commands.h"

#include <iostream>

#include "lathe/apps/cli/download_alarm.h"
#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/hub_flags.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/core/base/error.h"
#include "lathe/core/hub/cached_models.h"
#include "lathe/core/hub/resolve_checkpoint.h"
#include "lathe/core/hub/transfer_progress.h"

namespace lathe {
namespace {

constexpr char kDownloadUsage[] =
    "Fetches models from the Hub into the cache of huggingface_hub and prints the folder\n"
    "of each. Without --include these are the files that finetune and lathe predict read.\n"
    "Files that are there are compared with their hashes; damaged ones are fetched again.\n"
    "The command ends at the first model that can't be fetched.\n"
    "\n"
    "Usage:\n"
    "  lathe download NAME... [options]\n"
    "\n"
    "NAME is a model's name, such as google-bert/bert-base-uncased.\n";

constexpr char kCacheUsage[] =
    "Lists the models that were fetched from the Hub, with their sizes, or deletes them.\n"
    "\n"
    "Usage:\n"
    "  lathe cache [options]\n"
    "  lathe cache delete NAME [--revision REVISION] [options]\n";

struct DownloadOptions {
  std::vector<std::string> names, include;
  HubOptions hub;
  bool help = false;
  std::string help_text;
};

DownloadOptions ParseDownloadOptions(const std::vector<std::string>& args) {
  DownloadOptions o;
  FlagTable flags(kDownloadUsage);
  flags.Group("Options");
  flags
      .Add("include", &o.include,
           "fetch all files that match one of these patterns instead, such as '*.json,onnx/'; NAME "
           "stands before it; may be given more than once")
      .ValueName("PATTERNS")
      .AddUp();
  AddHubFlags(flags, &o.hub, "revision");
  flags.Add("help", &o.help, "show this text");
  o.help_text = flags.Help();
  o.names = flags.Parse(args);
  if (o.help) return o;
  if (o.names.empty()) {
    // --include takes all words that follow it.
    throw InvalidArgument("NAME is missing", o.include.empty()
                                                 ? "usage: lathe download NAME... [options]"
                                                 : "NAME stands before --include");
  }
  return o;
}

struct CacheOptions {
  std::string cache_dir, revision, deleted;
  bool help = false;
  std::string help_text;
};

CacheOptions ParseCacheOptions(const std::vector<std::string>& args) {
  CacheOptions o;
  FlagTable flags(kCacheUsage);
  flags.Group("Options");
  flags
      .Add("revision", &o.revision,
           "delete only this revision: a branch, a tag, a commit or at least 6 of its first digits")
      .ValueName("REVISION");
  flags
      .Add("cache_dir", &o.cache_dir,
           "folder of the cache (default: HF_HUB_CACHE, or ~/.cache/huggingface/hub)")
      .ValueName("DIR");
  flags.Add("help", &o.help, "show this text");
  o.help_text = flags.Help();
  const std::vector<std::string> words = flags.Parse(args);
  if (o.help) return o;
  const bool deletes = !words.empty() && words[0] == "delete";
  if (words.size() != (deletes ? 2 : 0)) {
    throw InvalidArgument(
        deletes ? "delete needs one NAME" : "unknown argument \"" + words[0] + "\"",
        "usage: lathe cache, or lathe cache delete NAME [--revision REVISION]");
  }
  if (deletes) o.deleted = words[1];
  if (!deletes && flags.given("revision")) {
    throw InvalidArgument("--revision goes with delete NAME");
  }
  // A variable of a script may be empty by mistake. It must not delete the whole model.
  if (flags.given("revision") && o.revision.empty()) {
    throw InvalidArgument("--revision is empty",
                          "name a revision; without --revision the whole model is deleted");
  }
  return o;
}

void PrintModel(const CachedModel& model) {
  std::cout << model.name << "  ";
  if (!model.fault.empty()) {
    std::cout << "can't be read: " << model.fault << '\n';
    return;
  }
  std::cout << FormatSize(model.size);
  if (model.incomplete > 0) {
    std::cout << ", " << FormatSize(model.incomplete)
              << " of them of downloads under way or broken off";
  }
  std::cout << '\n';
  for (const CachedRevision& revision : model.revisions) {
    std::cout << "  " << revision.commit << "  " << FormatSize(revision.size) << " in "
              << revision.num_files << (revision.num_files == 1 ? " file" : " files");
    for (size_t i = 0; i < revision.refs.size(); ++i) {
      std::cout << (i == 0 ? "  " : ", ") << revision.refs[i];
    }
    std::cout << '\n';
  }
}

int ListCache(const std::string& cache_dir) {
  int64_t total = 0;
  const std::vector<CachedModel> models = CachedModels(cache_dir);
  for (const CachedModel& model : models) {
    PrintModel(model);
    total += model.size;
  }
  std::cout << models.size() << (models.size() == 1 ? " model, " : " models, ") << FormatSize(total)
            << " in " << cache_dir << '\n';
  return 0;
}

}  // namespace

int RunDownload(const std::vector<std::string>& args) {
  DownloadOptions options;
  if (const auto code = ParseOrEnd(&options, ParseDownloadOptions, args)) return *code;
  HubSettings settings = ReadHubSettings(options.hub);
  settings.check_cached = true;
  const DownloadAlarm alarm;
  for (const std::string& name : options.names) {
    const ResolvedCheckpoint resolved =
        options.include.empty()
            ? FetchCheckpoint(name,
                              {.config = true, .tokenizer = true, .columns = true, .weights = true},
                              settings)
            : FetchMatching(name, options.include, settings);
    std::cout << resolved.folder << std::endl;
  }
  return 0;
}

int RunCache(const std::vector<std::string>& args) {
  CacheOptions options;
  if (const auto code = ParseOrEnd(&options, ParseCacheOptions, args)) return *code;
  const std::string cache_dir = HubCacheFolder(options.cache_dir);
  if (options.deleted.empty()) return ListCache(cache_dir);
  const int64_t freed = DeleteFromCache(cache_dir, options.deleted, options.revision);
  std::cout << "deleted " << options.deleted
            << (options.revision.empty() ? "" : " " + options.revision) << ", " << FormatSize(freed)
            << '\n';
  return 0;
}

}  // namespace lathe
