// Passes on what one rank of a machine has read and tokenised to the machine's other ranks.
#pragma once

#include "lathe/train/task/task.h"

namespace lathe {

// An unnamed file in memory that holds a task's labels, columns, datasets and digests of the
// tokenizer. It holds neither the model nor the tokenizer. A dataset whose rows lie in a file
// (dataset_file.h) is passed on as that file. Other processes of the same user can open path()
// while this object exists.
class SharedTask {
 public:
  explicit SharedTask(const Task& task);
  ~SharedTask();
  SharedTask(const SharedTask&) = delete;
  SharedTask& operator=(const SharedTask&) = delete;
  std::string path() const;

 private:
  int fd_;
};

// Reads what SharedTask wrote into `task`. Throws NotFound if this process finds no such file.
void ReadSharedTask(const std::string& path, Task& task);

}  // namespace lathe
