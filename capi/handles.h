// What the handles of the C ABI hold, and how its functions report: shared by the files of this
// folder, which alone know both sides. The handles belong to the C caller.
#pragma once

#include <cstddef>
#include <exception>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>
#include <vector>

#include "capi/pliant.h"
#include "pliant/runtime/session.h"
#include "pliant/training/adaptation.h"
#include "pliant/training/monitor.h"
#include "pliant/training/synchroniser.h"

namespace pliant::capi {

// The monitor of a session, its policies, and what pliant_signals points to.
struct Training {
  std::unique_ptr<Monitor> monitor;
  Adaptation::Policies policies;           // until the first step begins
  std::unique_ptr<Adaptation> adaptation;  // from then on
  bool gradients_given = false;            // in the open step
  std::vector<pliant_member_signals> by_rank;
  std::vector<pliant_link_signals> links;
};

}  // namespace pliant::capi

struct pliant_session {
  std::unique_ptr<pliant::Session> session;
  std::shared_ptr<const pliant::View> view;  // also kept by the works, which may outlive us
  pliant::Step step;                         // the open one, or the last committed
  std::optional<pliant::SamplerOptions> sampler;
  pliant::UpcomingSamples upcoming;  // what pliant_upcoming_samples() gave
  std::mutex mutex;                  // guards what follows
  // What pliant_allocate() gave: a wrong pointer is the user's mistake here, not a bug of ours.
  std::unordered_map<void*, size_t> allocations;
  // What they know is registered state: it lives as long as steps may begin.
  std::vector<std::shared_ptr<pliant::Synchroniser>> synchronisers;
  pliant::capi::Training training;
};

struct pliant_group {
  const pliant_session* session = nullptr;  // to compare, never to follow: it may be gone
  pliant::Group group;
};

struct pliant_work {
  pliant::Work work;
  std::shared_ptr<const pliant::View> view;
};

struct pliant_snapshot {
  pliant::Snapshot snapshot;
};

struct pliant_synchroniser {
  std::shared_ptr<pliant::Synchroniser> synchroniser;
  pliant_session* session = nullptr;
};

struct pliant_value {
  std::vector<std::byte> bytes;
};

namespace pliant::capi {

// Keeps the error for pliant_last_error(), with the peer's rank in `view`, and gives its code.
pliant_status fail(const Error& error, const View* view) noexcept;
// The same for "function: problem"; for what comes up where an Error cannot be made.
pliant_status fail(const char* function, const char* problem, Code code) noexcept;
pliant_status fail_null(const char* function, const char* argument) noexcept;

struct Argument {
  const void* pointer;
  const char* name;
};

// Calls `body`, which gives a Status, unless one of the arguments is null. No exception passes.
template <typename Body>
pliant_status guarded(const char* function, const View* view,
                      std::initializer_list<Argument> needed, Body body) noexcept {
  for (const Argument& argument : needed)
    if (argument.pointer == nullptr) return fail_null(function, argument.name);
  try {
    const Status status = body();
    return status.ok() ? PLIANT_OK : fail(status.error(), view);
  } catch (const std::bad_alloc&) {
    return fail(function, "out of memory", Code::kOverloaded);
  } catch (const std::exception& exception) {
    return fail(function, exception.what(), Code::kInvalid);
  }
}

// The same for a call on a session.
template <typename Body>
pliant_status guarded(const char* function, const pliant_session* session,
                      std::initializer_list<Argument> needed, Body body) noexcept {
  if (session == nullptr) return fail_null(function, "session");
  return guarded(function, session->view.get(), needed, body);
}

inline constexpr const View* kNoView = nullptr;

// What the monitor and the policies of the session, if it has any, do around a step. Gradients are
// the synchroniser's, if one commits the step.
Status before_begin(pliant_session* session);
Status after_begin(pliant_session* session);
Status before_commit(pliant_session* session, const Synchroniser* synchroniser = nullptr);
Status after_commit(pliant_session* session, const Synchroniser* synchroniser = nullptr);
// The loop has ended for this member.
void after_last(pliant_session* session);

// What is out of range stays so when it becomes a byte, and is refused below us.
inline DType dtype_of(pliant_dtype dtype) {
  return static_cast<DType>(dtype < 0 || dtype > UINT8_MAX ? UINT8_MAX : dtype);
}

// A step may have changed the view: errors name ranks of the new one.
inline void refresh_view(pliant_session* session) {
  if (session->view->epoch != session->session->view().epoch)
    session->view = std::make_shared<const View>(session->session->view());
}

}  // namespace pliant::capi
