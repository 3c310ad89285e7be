// The operations of the C ABI: each function states its call, one place checks it and makes the
// Operation, and two places run or start it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "capi/handles.h"

namespace pliant::capi {
namespace {

// One call, as it comes from C.
struct Call {
  const char* function;
  Collective collective;
  const char* name;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  bool has_counts = false;  // counts[r] instead of count
  const size_t* counts = nullptr;
  pliant_dtype dtype = PLIANT_U8;
  pliant_op op = PLIANT_SUM;
  int root = 0;
};

Error wrong(const Call& call, const char* problem) {
  return invalid(fmt::format("{}: {}", call.function, problem));
}

// Numbers from C may be anything. What is out of range stays so when it becomes a byte, and is
// refused below us, where the other ranks of the call are told.
template <typename Word>
Word word_of(int number) {
  return static_cast<Word>(number < 0 || number > UINT8_MAX ? UINT8_MAX : number);
}

Result<Operation> operation_of(const Call& call, const Group& group) {
  if (call.name == nullptr && call.collective != Collective::kBarrier)
    return wrong(call, "the name is null");
  if (call.has_counts && call.counts == nullptr) return wrong(call, "the array of counts is null");
  Operation operation;
  operation.collective = call.collective;
  operation.name = call.name == nullptr ? "barrier" : call.name;
  operation.input = call.input;
  operation.output = call.output;
  operation.count = call.count;
  operation.dtype = word_of<DType>(call.dtype);
  operation.op = word_of<Op>(call.op);
  operation.root = call.root;
  if (call.has_counts) operation.counts = {call.counts, static_cast<size_t>(group.size())};
  return operation;
}

// Calls `use` with the operation and its group; null stands for the world.
template <typename Use>
pliant_status with_operation(const pliant_session* session, const pliant_group* group,
                             const Call& call, std::initializer_list<Argument> needed,
                             Use use) noexcept {
  return guarded(call.function, session, needed, [&]() -> Status {
    if (group != nullptr && group->session != session)
      return wrong(call, "the group belongs to another session");
    const Group& members = group == nullptr ? session->session->world() : group->group;
    auto operation = operation_of(call, members);
    if (!operation) return operation.error();
    return use(*operation, members);
  });
}

pliant_status run(pliant_session* session, const pliant_group* group, const Call& call) noexcept {
  return with_operation(session, group, call, {},
                        [&](const Operation& operation, const Group& members) {
                          return session->session->run(operation, members);
                        });
}

pliant_status start(pliant_session* session, const pliant_group* group, const Call& call,
                    pliant_work** work) noexcept {
  return with_operation(session, group, call, {{work, "result"}},
                        [&](const Operation& operation, const Group& members) {
                          auto handle = std::make_unique<pliant_work>();
                          handle->view = session->view;
                          handle->work = session->session->start(operation, members);
                          *work = handle.release();
                          return Status{};
                        });
}

}  // namespace
}  // namespace pliant::capi

using namespace pliant;        // NOLINT: this file is the C side of that namespace
using namespace pliant::capi;  // NOLINT

// ---- Both forms of each -----------------------------------------------------------------------

// Defines pliant_NAME and pliant_NAME_async, which differ in their last parameter alone.
#define PLIANT_UNPACK(...) __VA_ARGS__
#define PLIANT_BOTH_FORMS(NAME, PARAMETERS, ...)                                          \
  pliant_status pliant_##NAME(pliant_session* session, const pliant_group* group,         \
                              PLIANT_UNPACK PARAMETERS) {                                 \
    return run(session, group, {.function = __func__, __VA_ARGS__});                      \
  }                                                                                       \
  pliant_status pliant_##NAME##_async(pliant_session* session, const pliant_group* group, \
                                      PLIANT_UNPACK PARAMETERS, pliant_work** work) {     \
    return start(session, group, {.function = __func__, __VA_ARGS__}, work);              \
  }

PLIANT_BOTH_FORMS(all_reduce,
                  (const char* name, const void* input, void* output, size_t count,
                   pliant_dtype dtype, pliant_op op),
                  .collective = Collective::kAllReduce, .name = name, .input = input,
                  .output = output, .count = count, .dtype = dtype, .op = op)
PLIANT_BOTH_FORMS(reduce,
                  (const char* name, const void* input, void* output, size_t count,
                   pliant_dtype dtype, pliant_op op, int root),
                  .collective = Collective::kReduce, .name = name, .input = input, .output = output,
                  .count = count, .dtype = dtype, .op = op, .root = root)
PLIANT_BOTH_FORMS(broadcast,
                  (const char* name, void* buffer, size_t count, pliant_dtype dtype, int root),
                  .collective = Collective::kBroadcast, .name = name, .input = buffer,
                  .output = buffer, .count = count, .dtype = dtype, .root = root)
PLIANT_BOTH_FORMS(all_gather,
                  (const char* name, const void* input, void* output, size_t count,
                   pliant_dtype dtype),
                  .collective = Collective::kAllGather, .name = name, .input = input,
                  .output = output, .count = count, .dtype = dtype)
PLIANT_BOTH_FORMS(all_gather_v,
                  (const char* name, const void* input, void* output, const size_t* counts,
                   pliant_dtype dtype),
                  .collective = Collective::kAllGather, .name = name, .input = input,
                  .output = output, .has_counts = true, .counts = counts, .dtype = dtype)
PLIANT_BOTH_FORMS(gather,
                  (const char* name, const void* input, void* output, size_t count,
                   pliant_dtype dtype, int root),
                  .collective = Collective::kGather, .name = name, .input = input, .output = output,
                  .count = count, .dtype = dtype, .root = root)
PLIANT_BOTH_FORMS(gather_v,
                  (const char* name, const void* input, void* output, const size_t* counts,
                   pliant_dtype dtype, int root),
                  .collective = Collective::kGather, .name = name, .input = input, .output = output,
                  .has_counts = true, .counts = counts, .dtype = dtype, .root = root)
PLIANT_BOTH_FORMS(scatter,
                  (const char* name, const void* input, void* output, size_t count,
                   pliant_dtype dtype, int root),
                  .collective = Collective::kScatter, .name = name, .input = input,
                  .output = output, .count = count, .dtype = dtype, .root = root)
PLIANT_BOTH_FORMS(scatter_v,
                  (const char* name, const void* input, void* output, const size_t* counts,
                   pliant_dtype dtype, int root),
                  .collective = Collective::kScatter, .name = name, .input = input,
                  .output = output, .has_counts = true, .counts = counts, .dtype = dtype,
                  .root = root)
PLIANT_BOTH_FORMS(reduce_scatter,
                  (const char* name, const void* input, void* output, size_t count,
                   pliant_dtype dtype, pliant_op op),
                  .collective = Collective::kReduceScatter, .name = name, .input = input,
                  .output = output, .count = count, .dtype = dtype, .op = op)
PLIANT_BOTH_FORMS(reduce_scatter_v,
                  (const char* name, const void* input, void* output, const size_t* counts,
                   pliant_dtype dtype, pliant_op op),
                  .collective = Collective::kReduceScatter, .name = name, .input = input,
                  .output = output, .has_counts = true, .counts = counts, .dtype = dtype, .op = op)
PLIANT_BOTH_FORMS(all_to_all,
                  (const char* name, const void* input, void* output, size_t count,
                   pliant_dtype dtype),
                  .collective = Collective::kAllToAll, .name = name, .input = input,
                  .output = output, .count = count, .dtype = dtype)
PLIANT_BOTH_FORMS(barrier, (const char* name), .collective = Collective::kBarrier, .name = name)
PLIANT_BOTH_FORMS(send,
                  (const char* name, const void* input, size_t count, pliant_dtype dtype, int peer),
                  .collective = Collective::kSend, .name = name, .input = input, .count = count,
                  .dtype = dtype, .root = peer)
PLIANT_BOTH_FORMS(recv,
                  (const char* name, void* output, size_t count, pliant_dtype dtype, int peer),
                  .collective = Collective::kReceive, .name = name, .output = output,
                  .count = count, .dtype = dtype, .root = peer)

#undef PLIANT_BOTH_FORMS
#undef PLIANT_UNPACK

// ---- Those with a result of their own ---------------------------------------------------------

pliant_status pliant_all_reduce_shared(pliant_session* session, const char* name, const void* input,
                                       size_t count, pliant_dtype dtype, pliant_op op,
                                       const void** result) {
  const Call call{.function = __func__,
                  .collective = Collective::kAllReduce,
                  .name = name,
                  .input = input,
                  .count = count,
                  .dtype = dtype,
                  .op = op};
  return with_operation(session, nullptr, call, {{result, "result"}},
                        [&](const Operation& operation, const Group&) -> Status {
                          auto shared = session->session->all_reduce_shared(
                              operation.name, input, count, operation.dtype, operation.op);
                          if (!shared) return shared.error();
                          *result = shared->data();
                          return {};
                        });
}

pliant_status pliant_consensus(pliant_session* session, const char* name, const void* data,
                               size_t bytes, int* same) {
  return guarded(__func__, session, {{name, "name"}, {same, "result"}}, [&]() -> Status {
    if (data == nullptr && bytes > 0) return invalid("pliant_consensus: the data is null");
    auto agreed = session->session->consensus(name, {static_cast<const std::byte*>(data), bytes});
    if (!agreed) return agreed.error();
    *same = *agreed ? 1 : 0;
    return {};
  });
}

// ---- Works ------------------------------------------------------------------------------------

pliant_status pliant_work_wait(pliant_work* work) {
  const View* view = work == nullptr ? nullptr : work->view.get();
  return guarded(__func__, view, {{work, "work"}}, [&] { return work->work.wait(); });
}

pliant_status pliant_work_test(const pliant_work* work, int* done) {
  return guarded(__func__, kNoView, {{work, "work"}, {done, "result"}}, [&] {
    *done = work->work.done() ? 1 : 0;
    return Status{};
  });
}

pliant_status pliant_await_works(pliant_session* session, uint64_t* finished, double seconds) {
  return guarded(__func__, session, {{finished, "result"}}, [&] {
    *finished = session->session->await_works(*finished, from_seconds(std::max(0.0, seconds)));
    return Status{};
  });
}

pliant_status pliant_work_destroy(pliant_work* work) {
  const std::unique_ptr<pliant_work> owned(work);
  return work == nullptr ? PLIANT_OK : pliant_work_wait(work);
}
