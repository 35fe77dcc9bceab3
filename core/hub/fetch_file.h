// Brings one file of a model from the Hub into the cache.
#pragma once

#include <string>

#include "lathe/core/hub/hub_cache.h"
#include "lathe/core/hub/hub_client.h"

namespace lathe {

// Returns the file's path in the snapshot. Makes no request if it is there. With the setting
// check_cached it must be sound as well. A link is sound if its blob has the hash that is its name
// (IsDamagedBlob). A file without a link is compared with the length and the hash that the Hub
// gives, which takes one request. Otherwise fetches the file: goes on where an earlier download
// broke off, and tries again when the network fails. Length and hash are compared before the file
// appears. Processes that want the same file wait for each other, and one of them fetches it. A
// file whose hash differs is removed and fetched once more.
//
// `commit` is a commit, not a branch. Throws NotFound if it has no such file, and DataLoss if the
// hash differs twice. Throws FileError if the cache can't be written or the disk is full. What came
// before then stays for the next attempt.
std::string FetchFile(HubClient& client, const HubCache& cache, const std::string& commit,
                      const std::string& file);

}  // namespace lathe
