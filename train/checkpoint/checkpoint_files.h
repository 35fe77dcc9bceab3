// The names of files that the trainer writes into a checkpoint's folder.
#pragma once

namespace lathe {

inline constexpr char kStateFile[] = "trainer_state.json";
inline constexpr char kModelFile[] = "model.safetensors";
// The best model so far, if it is not a checkpoint of its own.
inline constexpr char kBestFile[] = "best_model.safetensors";

}  // namespace lathe
