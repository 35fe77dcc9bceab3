// The addresses and ports at which Gloo listens for other ranks.
#pragma once

#include <gloo/transport/device.h>

#include <memory>
#include <optional>
#include <string>

#include "lathe/distributed/rendezvous/network.h"

namespace lathe {

// Returns a device that listens at `host`, an address of this machine, IPv4 or IPv6. Its contexts
// take a port of `ports` for each connection, or any free one without a range. Creating a pair
// throws OwnFault if all ports of the range are taken.
std::shared_ptr<gloo::transport::Device> MakeGlooDevice(const std::string& host,
                                                        const std::optional<PortRange>& ports);

// Does so as the environment says (SocketInterfaceAddress, ReadPortRange). `host` is used if it
// names no network interface.
std::shared_ptr<gloo::transport::Device> MakeGlooDevice(const std::string& host);

}  // namespace lathe
