#include "lathe/data/loading/loader_pass.h"

#include <algorithm>
#include <numeric>
#include <system_error>
#include <utility>

#include "lathe/data/loading/sample_order.h"

namespace lathe {

LoaderPass::LoaderPass(Plan plan, std::shared_ptr<LoaderPasses> passes)
    : plan_(std::move(plan)),
      passes_(std::move(passes)),
      given_(plan_.first_batch),
      batches_left_(plan_.num_batches == kUnknown ? kUnknown
                                                  : plan_.num_batches - plan_.first_batch),
      next_(plan_.first_batch) {
  if (passes_ != nullptr) {
    entry_ = std::make_shared<LoaderPasses::Entry>();
    entry_->began_at = ++passes_->clock;
    passes_->entries.push_back(entry_);
    if (passes_->changed) passes_->changed();
  }
  if (plan_.prefetch == 0) return;
  for (int i = 0; i < plan_.num_workers; ++i) {
    try {
      threads_.emplace_back([this] { Run(); });
    } catch (const std::system_error&) {  // fewer threads do as well
      if (i > 0) break;
      Withdraw();
      throw;
    }
  }
}

LoaderPass::~LoaderPass() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  Withdraw();
}

void LoaderPass::Withdraw() {
  if (passes_ == nullptr) return;
  std::erase(passes_->entries, entry_);
  if (passes_->changed && std::uncaught_exceptions() == 0) passes_->changed();
  passes_ = nullptr;
}

// An error while reading ahead belongs to the next batch, not to the one that is taken now.
void LoaderPass::ReadAhead() {
  try {
    ahead_ = reader_->Read(plan_.batch_size);
    if (plan_.drop_last && ahead_.count() < plan_.batch_size) ahead_ = {};
  } catch (...) {
    ahead_error_ = std::current_exception();
  }
}

LoaderPass::Ticket LoaderPass::TakeFromStream() {
  Ticket ticket{.number = next_++};
  try {
    if (reader_ == nullptr) {
      reader_ = plan_.source->Open(plan_.epoch, plan_.shuffle);
      for (int64_t i = 0; i < plan_.first_batch; ++i) reader_->Read(plan_.batch_size);
      ReadAhead();
    }
  } catch (...) {
    ticket.error = std::current_exception();
    return ticket;
  }
  if (ahead_error_) {
    ticket.error = std::exchange(ahead_error_, nullptr);
    return ticket;
  }
  ticket.read = std::exchange(ahead_, {});
  if (ticket.read.count() == plan_.batch_size) ReadAhead();
  ticket.batches_left = ahead_.count() > 0 || ahead_error_ ? kUnknown : 0;
  ticket.indices = ticket.read.numbers;
  return ticket;
}

LoaderPass::Ticket LoaderPass::Take() {
  if (plan_.num_batches == kUnknown) return TakeFromStream();
  Ticket ticket{.number = next_++};
  if (ticket.number >= plan_.num_batches) return ticket;
  ticket.batches_left = plan_.num_batches - ticket.number - 1;
  const int64_t begin = ticket.number * plan_.batch_size;
  const int64_t end = std::min(begin + plan_.batch_size, std::ssize(plan_.order));
  ticket.indices.assign(plan_.order.begin() + begin, plan_.order.begin() + end);
  return ticket;
}

LoaderPass::Made LoaderPass::Make(const Ticket& ticket) const try {
  if (ticket.error) return {.error = ticket.error};
  const std::vector<int64_t>& all = ticket.indices;
  if (all.empty()) return {};
  const BatchSource& source = *plan_.source;
  auto info = std::make_shared<BatchInfo>();
  BatchShare& share = info->share;
  share.global_size = std::ssize(all);
  const std::vector<double>& weights = ticket.read.weights;  // of a stream's samples
  const bool is_stream = source.size() == BatchSource::kStream;
  share.global_weight =
      is_stream ? std::accumulate(weights.begin(), weights.end(), 0.0) : source.Weight(all);
  std::vector<int64_t> lengths;
  lengths.reserve(all.size());
  for (const int64_t i : all) {
    lengths.push_back(source.Length(i));
    share.global_num_tokens += lengths.back();
  }
  const std::vector<int> rank_of = SplitByTokens(lengths, plan_.world_size);
  for (size_t i = 0; i < rank_of.size(); ++i) {
    if (rank_of[i] != plan_.rank) continue;
    info->indices.push_back(all[i]);
    info->sample_ids.push_back(static_cast<int32_t>(i));
    if (is_stream) share.weight += weights[i];
  }
  if (!is_stream) share.weight = source.Weight(info->indices);
  share.stand_in = info->indices.empty();
  if (share.stand_in) {
    info->indices = {all[0]};
    info->sample_ids = {0};
  }
  info->step = plan_.first_step + ticket.number;
  Made made{.batches_left = ticket.batches_left};
  made.given.batch = source.Make(*info, ticket.read);
  made.given.info = std::move(info);
  return made;
} catch (...) {
  return {.error = std::current_exception()};
}

void LoaderPass::Run() {
  const int64_t most_ahead = int64_t{plan_.prefetch} + plan_.num_workers;
  for (;;) {
    Ticket ticket;
    {
      std::lock_guard turn(taking_);
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ || next_ - given_ < most_ahead; });
        if (stopped_ || no_more_) return;
      }
      ticket = Take();
      if (ticket.indices.empty()) {
        std::lock_guard lock(mutex_);
        no_more_ = true;
      }
    }
    Made made = Make(ticket);
    std::lock_guard lock(mutex_);
    if (made.error) no_more_ = true;
    ready_.emplace(ticket.number, std::move(made));
    changed_.notify_all();
  }
}

LoaderPass::Made LoaderPass::Await() {
  if (threads_.empty()) return Make(Take());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() && ready_.begin()->first == given_; });
  Made made = std::move(ready_.begin()->second);
  ready_.erase(ready_.begin());
  return made;
}

LoaderPass::Given LoaderPass::Next() {
  if (over_) {
    Withdraw();
    return {};
  }
  if (passes_ != nullptr && passes_->before_batch) passes_->before_batch();
  over_ = true;  // if making the batch has failed
  Made made = Await();
  if (made.error) std::rethrow_exception(made.error);
  batches_left_ = made.batches_left;
  if (made.given.batch != nullptr) {
    std::lock_guard lock(mutex_);
    ++given_;
    changed_.notify_all();
    over_ = false;
  }
  if (entry_ != nullptr) {
    entry_->batch = made.given.info;
    if (passes_ != nullptr) entry_->last_batch_at = ++passes_->clock;
    entry_->batches_left = batches_left_;
  }
  if (over_) Withdraw();
  return std::move(made.given);
}

}  // namespace lathe
