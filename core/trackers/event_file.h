// The bytes of TensorBoard's event files. A file is a row of records, and each record is an Event,
// a message of Protocol Buffers. The numbers of their fields are those of TensorBoard's
// event.proto, summary.proto, tensor.proto and plugins/hparams/plugin_data.proto.
//
//   std::string bytes = EventRecord(VersionEvent(now));
//   bytes += EventRecord(SummaryEvent(now, /*step=*/7, {ScalarValue("train/loss", 0.5)}));
//
// All texts must be UTF-8 but that of TextValue. None of the functions throws.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

// Returns the name of an event file, by which TensorBoard finds and orders them. `seconds` is the
// time since 1970. The last two keep files apart that begin in the same second.
std::string EventFileName(int64_t seconds, const std::string& host, int64_t process,
                          int64_t number);

// Frames an event: length, checksum of the length, event, checksum of the event.
std::string EventRecord(std::string_view event);

// Returns the event that begins a file. Times are seconds since 1970.
std::string VersionEvent(double wall_time);
// Returns an event with values of a step, each made by a function below.
std::string SummaryEvent(double wall_time, int64_t step, const std::vector<std::string>& values);

// A number, which TensorBoard shows as a point of a curve. It is stored in float32.
std::string ScalarValue(std::string_view tag, double value);
// A text in Markdown. Its tag ends with "/text_summary", as PyTorch writes it.
std::string TextValue(std::string_view tag, std::string_view text);

// The row of a run in TensorBoard's table of hyperparameters. Takes numbers, booleans and texts by
// their names, and passes over other values.
std::string HyperparametersValue(const nlohmann::json& hyperparameters, double start_time);
// Ends that row: the run was successful.
std::string HyperparametersEndValue(double end_time);

}  // namespace lathe
