#include "lathe/apps/cli/yaml_file.h"

#include <yaml-cpp/eventhandler.h>

#include <sstream>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"

namespace lathe {
namespace {

// Throws at the beginning of the second document.
class OneDocument : public YAML::EventHandler {
 public:
  OneDocument(const std::string& path, const std::string& hint) : path_(path), hint_(hint) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++num_documents_ == 1) return;
    throw InvalidArgument(path_ + ":" + std::to_string(mark.line + 1) +
                              ": a second YAML document begins, but only one may be in the file",
                          hint_);
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  const std::string &path_, &hint_;
  int num_documents_ = 0;
};

}  // namespace

YAML::Node ReadYamlFile(const std::string& path, const std::string& hint) {
  const std::string text = ReadFile(path);
  try {
    // YAML::Load would leave out all documents but the first.
    std::istringstream documents(text);
    YAML::Parser parser(documents);
    OneDocument one(path, hint);
    while (parser.HandleNextDocument(one)) {
    }
    return YAML::Load(text);
  } catch (const YAML::Exception& e) {
    throw InvalidArgument(
        path + ":" + std::to_string(e.mark.line + 1) + ": not valid YAML: " + e.msg, hint);
  }
}

}  // namespace lathe
