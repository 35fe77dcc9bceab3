// Stands in for the header of this name in Gloo's sources, which Debian's libgloo-dev 0~git20220518
// lacks: gloo/transport/tcp/pair.h and context.h include it. They keep pointers of these types in
// containers and in gloo::transport::tcp::Op. Lathe only needs the types to be as large as there:
// the library's own code makes, reads and destroys all of them.
#pragma once

#if __has_include_next(<gloo/common/memory.h>)
#include_next <gloo/common/memory.h>
#else

#include <memory>

namespace gloo {

template <typename T>
class NonOwningPtr;

template <typename T>
class WeakNonOwningPtr {
  std::weak_ptr<T*> pointer_;
};

}  // namespace gloo

#endif
