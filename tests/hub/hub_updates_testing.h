// Gives each test a Hub whose branch can move to a second commit.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <string>
#include <utility>

#include "lathe/tests/hub/hub_testing.h"

namespace lathe {

// The commit that the branch moves to.
inline constexpr char kSecond[] = "2222222222222222222222222222222222222222";

// How a note ends that says why the first commit is used.
inline const std::string kOldIsUsed =
    "; the cache has owner/name of commit " + std::string(kCommit) + ", which is used";

class HubUpdatesTest : public HubTest {
 protected:
  void SetUp() override {
    HubTest::SetUp();
    new_weights_ = RandomBytes(100'000, 8);
  }
  ~HubUpdatesTest() override { unsetenv("HF_HUB_OFFLINE"); }

  // Moves the branch to a commit with another configuration and other weights.
  void MoveBranch(std::map<std::string, std::string> other_revisions = {}) {
    other_revisions["main"] = kSecond;
    hub_.Add(kModel, {.files = {{"config.json", {"{\"model_type\": \"bert\", \"a\": 1}"}},
                                {"vocab.txt", {"[PAD]\n[UNK]\n"}},
                                {"model.safetensors", {new_weights_, true}}},
                      .revisions = std::move(other_revisions)});
  }
  std::string Branch() const { return ReadFile(Cache() + "/refs/main"); }

  struct Outcome {
    std::string commit, weights, note;
  };
  Outcome FetchWithNote(const CheckpointParts& parts = kAllParts) {
    testing::internal::CaptureStderr();
    Outcome outcome;
    try {
      const ResolvedCheckpoint resolved = FetchCheckpoint(kModel, parts, Settings());
      outcome.commit = resolved.commit;
      EXPECT_EQ(resolved.folder, Cache() + "/snapshots/" + resolved.commit);
      if (parts.weights) outcome.weights = Weights(resolved.folder);
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
    outcome.note = testing::internal::GetCapturedStderr();
    return outcome;
  }
  // Expects that the old commit is used, and that the note ends so.
  void ExpectOld(const std::string& note_end, const CheckpointParts& parts = kAllParts) {
    const Outcome outcome = FetchWithNote(parts);
    EXPECT_EQ(outcome.commit, kCommit);
    EXPECT_EQ(outcome.weights, weights_);
    EXPECT_TRUE(note_end.empty() ? outcome.note.empty() : outcome.note.ends_with(note_end + "\n"))
        << outcome.note;
  }
  // Expects the same without any request, and if nobody answers.
  void ExpectOldWithoutHub(const std::string& note_end, const std::string& note_of_error) {
    setenv("HF_HUB_OFFLINE", "1", 1);
    ExpectOld(note_end);
    unsetenv("HF_HUB_OFFLINE");
    setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1);
    ExpectOld(note_of_error);
    setenv("HF_ENDPOINT", hub_.url().c_str(), 1);
  }

  std::string new_weights_;
};

}  // namespace lathe
