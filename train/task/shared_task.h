// What one process on a machine has read and tokenised, for the others there.
#pragma once

#include "lathe/train/task/task.h"

namespace lathe {

// A file without a name that holds a task's labels, columns, data sets and the digests of its
// tokenizer, but neither its model nor its tokenizer. Others of the same user open path() while it
// lives.
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

// Throws NotFound if there is no such file for this process.
void ReadSharedTask(const std::string& path, Task& task);

}  // namespace lathe
