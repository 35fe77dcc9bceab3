// Connects every rank with every other one by Gloo.
#pragma once

#include <gloo/rendezvous/context.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// Returns when this rank is connected with all others. `host` is its address. The ranks find each
// other through `store`, which must have no other user meanwhile. Gloo can't be stopped and doesn't
// notice a rank that ends before it has connected. So `look_around` is called now and then, and an
// exception from it ends the call. Gloo's own work then goes on by itself, for `timeout` at most.
// Throws Gloo's exceptions, too.
std::shared_ptr<gloo::rendezvous::Context> ConnectGloo(int rank, int size, const std::string& host,
                                                       std::shared_ptr<Store> store,
                                                       std::chrono::milliseconds timeout,
                                                       const std::function<void()>& look_around);

}  // namespace lathe
