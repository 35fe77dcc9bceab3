// Gloo's connections of every rank with every other one.
#pragma once

#include <gloo/rendezvous/context.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "lathe/distributed/rendezvous/store.h"

namespace lathe {

// host: this rank's address. The ranks find each other through `store`, which nobody else uses
// meanwhile. Gloo itself notices no rank that ends before it has connected, and can't be stopped:
// `look_around` is called now and then, and what it throws ends the call, though not what Gloo has
// begun, which goes on by itself for `timeout` at most. Throws Gloo's exceptions, too.
std::shared_ptr<gloo::rendezvous::Context> ConnectGloo(int rank, int size, const std::string& host,
                                                       std::shared_ptr<Store> store,
                                                       std::chrono::milliseconds timeout,
                                                       const std::function<void()>& look_around);

}  // namespace lathe
