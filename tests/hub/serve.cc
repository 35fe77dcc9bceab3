// Serves folders of models as a Hub does, for tests by hand and for other clients:
//
//   serve FOLDER    # FOLDER/OWNER/NAME/FILE...; prints the address; ends when its input ends
//
// Files that end in .safetensors, .bin or .h5 lie on another host and have a SHA-256.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "lathe/tests/hub/hub_server.h"

namespace {

namespace fs = std::filesystem;

void AddModel(const fs::path& folder, lathe::HubServer& hub) {
  lathe::HubServerModel model;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    const std::string end = entry.path().extension();
    model.files[entry.path().lexically_relative(folder).string()] = {
        bytes, end == ".safetensors" || end == ".bin" || end == ".h5"};
  }
  hub.Add((folder.parent_path().filename() / folder.filename()).string(), std::move(model));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: serve FOLDER\n";
    return 2;
  }
  lathe::HubServer cdn({.host = "localhost"});
  lathe::HubServer hub({.cdn = &cdn});
  for (const auto& owner : fs::directory_iterator(argv[1])) {
    if (!owner.is_directory()) continue;
    for (const auto& model : fs::directory_iterator(owner.path())) AddModel(model.path(), hub);
  }
  std::cout << hub.url() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    for (const lathe::HubRequest& request : hub.requests()) {
      std::cout << request.method << ' ' << request.target << '\n';
    }
    std::cout << "end" << std::endl;
    hub.ForgetRequests();
  }
  return 0;
}
