#include "lathe/train/callbacks/columns_callback.h"

#include "lathe/core/base/file.h"

namespace lathe {

void ColumnsCallback::OnSave(const TrainingArguments&, const TrainerState&, TrainerControl&,
                             const std::string& dir) {
  WriteFileAtomically(dir + "/" + kTrainedColumns, FormatTrainedColumns(columns_));
}

}  // namespace lathe
