#include "lathe/distributed/groups/gloo_device.h"

#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "lathe/distributed/liveness/peer_watch.h"

namespace lathe {
namespace {

namespace tcp = gloo::transport::tcp;

tcp::attr AttributesOf(const std::string& host) {
  tcp::attr attributes;
  attributes.hostname = host;
  return tcp::CreateDeviceAttr(attributes);
}

void SetPort(tcp::attr& attributes, int port) {
  const auto in_network_order = htons(static_cast<uint16_t>(port));
  if (attributes.ai_addr.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(attributes.ai_addr).sin6_port = in_network_order;
  } else {
    reinterpret_cast<sockaddr_in&>(attributes.ai_addr).sin_port = in_network_order;
  }
}

// Each of Gloo's pairs listens at a port, which it takes from its device.
class RangeDevice : public tcp::Device {
 public:
  RangeDevice(const tcp::attr& attributes, PortRange ports)
      : tcp::Device(attributes), ports_(ports) {}

  std::shared_ptr<gloo::transport::Context> createContext(int rank, int size) override;

  std::shared_ptr<gloo::transport::Context> CreatePlainContext(int rank, int size) {
    return tcp::Device::createContext(rank, size);
  }
  PortRange ports() const { return ports_; }
  // Lets the next pair listen at this port.
  void SetNextPort(int port) {
    tcp::attr changed = attr_;
    SetPort(changed, port);
    // The member is const, so it is replaced, as C++20 allows for a part of an object.
    std::destroy_at(&attr_);
    std::construct_at(const_cast<tcp::attr*>(&attr_), changed);
  }

 private:
  const PortRange ports_;
};

// A context that chooses a port for each pair. Another one of the same device does all the rest.
class RangeContext : public gloo::transport::Context {
 public:
  RangeContext(std::shared_ptr<RangeDevice> device, int own_rank, int num_ranks)
      : gloo::transport::Context(own_rank, num_ranks),
        device_(std::move(device)),
        plain_(device_->CreatePlainContext(own_rank, num_ranks)),
        // So that processes of one machine don't all try the same ports first.
        next_(static_cast<int>(getpid() * int64_t{37} % device_->ports().size())) {}

  std::unique_ptr<gloo::transport::Pair>& getPair(int other) override {
    return plain_->getPair(other);
  }

  std::unique_ptr<gloo::transport::Pair>& createPair(int other) override {
    plain_->setTimeout(getTimeout());
    const PortRange ports = device_->ports();
    for (int tries = 0; tries < ports.size(); ++tries) {
      device_->SetNextPort(ports.first + std::exchange(next_, (next_ + 1) % ports.size()));
      try {
        return plain_->createPair(other);
      } catch (const gloo::Exception&) {
        // The port is taken.
      }
    }
    throw OwnFault("all ports from " + std::to_string(ports.first) + " to " +
                   std::to_string(ports.last) + " are taken; each process needs one for each of " +
                   std::to_string(size - 1) + " others");
  }

  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                      size_t bytes) override {
    return plain_->createUnboundBuffer(data, bytes);
  }

 private:
  const std::shared_ptr<RangeDevice> device_;
  const std::shared_ptr<gloo::transport::Context> plain_;
  int next_;
};

std::shared_ptr<gloo::transport::Context> RangeDevice::createContext(int rank, int size) {
  return std::make_shared<RangeContext>(std::static_pointer_cast<RangeDevice>(shared_from_this()),
                                        rank, size);
}

}  // namespace

std::shared_ptr<gloo::transport::Device> MakeGlooDevice(const std::string& host,
                                                        const std::optional<PortRange>& ports) {
  const tcp::attr attributes = AttributesOf(host);
  if (!ports) return std::make_shared<tcp::Device>(attributes);
  return std::make_shared<RangeDevice>(attributes, *ports);
}

std::shared_ptr<gloo::transport::Device> MakeGlooDevice(const std::string& host) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return MakeGlooDevice(SocketInterfaceAddress(is_ipv6).value_or(host), ReadPortRange());
}

}  // namespace lathe
