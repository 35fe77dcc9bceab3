// Many products at once: each runs alone on one thread.
#pragma once

#include <omp.h>

#include <cstdint>
#include <exception>

namespace lathe {

// Calls body(i, thread) for i from 0 to count - 1. If `parallel`, all threads share the calls, and
// each product within a call has one thread. Otherwise the calls run one after the other, with
// thread 0, and each product may use all threads. Passes on one of the exceptions.
template <typename Body>
void ForProducts(int64_t count, bool parallel, const Body& body) {
  if (!parallel || omp_get_max_threads() == 1 || omp_in_parallel()) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  std::exception_ptr error;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i) {
    omp_set_num_threads(1);  // for this thread, in this region
    try {
      body(i, omp_get_thread_num());
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace lathe
