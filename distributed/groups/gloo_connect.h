// Connects ranks of several machines by Gloo, so that a lost rank ends all waits.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "lathe/distributed/groups/local_ranks.h"
#include "lathe/distributed/groups/machine_layout.h"
#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// What a rank tells all others through the store before they are connected, as bytes (see
// PeerWatch::Exchange). Then it tells under kMet, by "1" or "0", whether it can read the memory of
// the other ranks of its machine.
struct Introduction {
  static constexpr char kKey[] = "introduction", kMet[] = "met";
  RankPlacement placement;
  LocalRanks::Hello hello;
};

// The buffers whose transfers may be under way, those of Gloo's own algorithms too. Gloo's TCP has
// a gap: a send that finds its connection broken, because the peer has just ended, may wait until
// the timeout. All ranks that wait for this one then wait as long. So another thread breaks the
// waits off once a rank is known to be lost. They throw gloo::IoException then.
class ActiveTransfers {
 public:
  using Buffer = gloo::transport::UnboundBuffer;
  void Add(Buffer* buffer);
  void Remove(Buffer* buffer);
  // Ends all waits, and all later ones.
  void BreakOff();

 private:
  std::mutex mutex_;
  std::set<Buffer*> buffers_;
  bool broken_off_ = false;
};

// A rank's place in a set of ranks that are to be connected, each with every other.
struct GlooMembership {
  std::string name;  // of the set
  int member = 0, num_members = 1;
};

// Returns a context for each membership; the members are the ranks of that context. `host` is this
// rank's address. The ranks find each other through `store`, which must have no other user
// meanwhile. Gloo can't be stopped and doesn't notice a rank that ends before it has connected. So
// `on_wait` is called now and then, and an exception from it ends the call. Gloo's own work then
// goes on by itself, for `timeout` at most. Throws Gloo's exceptions, too.
std::vector<std::shared_ptr<gloo::Context>> ConnectGloo(
    const std::vector<GlooMembership>& memberships, const std::string& host,
    std::shared_ptr<Store> store, std::chrono::milliseconds timeout,
    std::shared_ptr<ActiveTransfers> transfers, const std::function<void()>& on_wait);

// Returns the key of the store that holds where `from` listens for `to`. Both are members.
std::string GlooAddressKey(const std::string& name, int from, int to);

}  // namespace lathe
