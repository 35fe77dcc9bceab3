// What a client sends to the rendezvous store. Whatever it is, the server must go on serving
// others.
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/socket.h"
#include "lathe/distributed/rendezvous/store.h"
#include "lathe/tests/fuzz/fuzzer.h"

namespace {

constexpr char kHost[] = "127.0.0.1", kJob[] = "job";
constexpr std::chrono::seconds kPatience(5);

struct Job {
  std::unique_ptr<lathe::StoreServer> server = std::make_unique<lathe::StoreServer>(kHost, 0, kJob);
  std::unique_ptr<lathe::Store> client =
      std::make_unique<lathe::Store>(kHost, server->port(), kJob, kPatience);
  int64_t inputs = 0;
};

// Sends the bytes, and returns all that the server answers before it closes the connection.
std::string Converse(int port, std::string_view bytes) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const lathe::Socket socket = lathe::Connect(kHost, port, deadline);
  // Closes the connection at once, so that thousands of them leave no ports behind.
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  lathe::SendAll(socket, bytes.data(), bytes.size(), deadline);
  shutdown(socket.fd(), SHUT_WR);
  std::string answers;
  for (char answer; lathe::ReceiveAll(socket, &answer, 1, deadline);) answers += answer;
  if (std::chrono::steady_clock::now() >= deadline) std::abort();  // the server hangs
  return answers;
}

}  // namespace

void lathe::fuzz::ReadInput(std::string_view input) {
  constexpr int64_t kInputsOfJob = 1000;  // the values of more would fill the memory
  static std::unique_ptr<Job> job;
  if (job == nullptr || job->inputs >= kInputsOfJob) {
    job.reset();
    job = std::make_unique<Job>();
  }
  const std::string answers = Converse(job->server->port(), input);
  const std::string number = std::to_string(++job->inputs);
  job->client->Set("another client's", number);
  if (job->client->Get("another client's", kPatience) != number) std::abort();
  // A reply begins with the magic number and the status, which is 1 if all is well.
  uint32_t status = 0;
  if (answers.size() >= 2 * sizeof status)
    std::memcpy(&status, answers.data() + sizeof status, sizeof status);
  if (status != 1) throw InvalidArgument("the server has turned the client away");
}
