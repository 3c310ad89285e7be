// The snapshots of the C ABI.
#include "capi/handles.h"

using namespace pliant;        // NOLINT: the functions below are C
using namespace pliant::capi;  // NOLINT

extern "C" {

pliant_status pliant_snapshot_state(pliant_session* session, uint64_t step,
                                    pliant_snapshot** snapshot) {
  return guarded(__func__, session, {{snapshot, "result"}}, [&]() -> Status {
    auto taken = session->session->snapshot(step);
    if (!taken) return taken.error();
    *snapshot = new pliant_snapshot{std::move(*taken)};
    return {};
  });
}

pliant_status pliant_snapshot_wait(const pliant_snapshot* snapshot) {
  return guarded(__func__, kNoView, {{snapshot, "snapshot"}},
                 [&] { return snapshot->snapshot.wait(); });
}

pliant_status pliant_snapshot_test(const pliant_snapshot* snapshot, int* done) {
  return guarded(__func__, kNoView, {{snapshot, "snapshot"}, {done, "result"}}, [&] {
    *done = snapshot->snapshot.done() ? 1 : 0;
    return Status{};
  });
}

pliant_status pliant_snapshot_destroy(pliant_snapshot* snapshot) {
  return guarded(__func__, kNoView, {}, [&] {
    delete snapshot;
    return Status{};
  });
}

pliant_status pliant_restore_state(pliant_session* session, uint64_t step, uint64_t* restored) {
  return guarded(__func__, session, {}, [&]() -> Status {
    const auto found = session->session->restore_state(step);
    if (!found) return found.error();
    if (restored != nullptr) *restored = *found;
    return {};
  });
}

}  // extern "C"
