// What a server answers to a client of the rendezvous store: it may be another program.
#include <chrono>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/store.h"
#include "lathe/tests/fuzz/fuzzer.h"
#include "lathe/tests/fuzz/impostor.h"

namespace {

void Converse(int port) {
  constexpr std::chrono::milliseconds kTimeout(5000);
  lathe::Store store(lathe::fuzz::kLoopback, port, "job", kTimeout, "", [] {
    throw lathe::InvalidArgument("the greeting is cut off");  // instead of another try
  });
  store.SetPatience(kTimeout);
  lathe::fuzz::CallAll({[&] { store.Set("key", "value"); }, [&] { store.Get("key", kTimeout); },
                        [&] { store.Add("counter", 1); },
                        [&] {
                          store.GetSeveral({"key", "other"}, kTimeout);
                        },
                        [&] {
                          store.Await({"key", "other"}, kTimeout);
                        },
                        [&] {
                          store.Leave({{"key", "value"}});
                        }});
}

}  // namespace

void lathe::fuzz::ReadInput(std::string_view input) {
  static Impostor impostor;
  // The input as the greeting and all that follows it. A client that gets no whole greeting waits
  // before it tries again. So inputs that are too short for one are not given in this way.
  constexpr size_t kGreeting = 24;
  const auto all = [&] {
    if (input.size() < kGreeting) throw InvalidArgument("too short for a greeting");
    impostor.Say(input);
    Converse(impostor.port());
  };
  const auto after_greeting = [&] {
    std::string bytes = "1HTL\1";  // the magic number, and that all is well
    bytes.resize(kGreeting);
    impostor.Say(bytes.append(input));
    Converse(impostor.port());
  };
  CallAll({all, after_greeting});
}
